//! How much memory and time one execution takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::abort;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes that an execution may hold beside four times its file.
const FIXED: usize = 64 << 20;

/// Microseconds of the processor that an execution may take.
const LONGEST: u64 = 1_000_000;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
static LARGEST: AtomicUsize = AtomicUsize::new(1 << 10);
static SLOWEST: AtomicU64 = AtomicU64::new(1 << 10);

/// The system's allocator, which ends the program where more is held than [`within`] allows.
pub struct Limited;

#[global_allocator]
static ALLOCATOR: Limited = Limited;

impl Limited {
    fn add(size: usize) {
        let held = HELD.fetch_add(size, Relaxed).wrapping_add(size);
        if held > PEAK.load(Relaxed) {
            PEAK.store(held, Relaxed);
        }
        let limit = LIMIT.load(Relaxed);
        if held > limit {
            LIMIT.store(usize::MAX, Relaxed);
            eprintln!("{held} bytes are held, expected at most {limit}: {size} were requested");
            abort();
        }
    }
}

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::add(size.saturating_sub(layout.size()));
        HELD.fetch_sub(layout.size().saturating_sub(size), Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

/// Time of the processor that this thread has had: other programs do not count.
fn micros() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is that of a local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Runs what reads a file of so many bytes. More memory than four times that and 64 MB ends the
/// program, as does more than a second. An execution that is much slower or larger than all before it is reported.
pub fn within(file: usize, read: impl FnOnce()) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    LIMIT.store(before + 4 * file + FIXED, Relaxed);
    let start = micros();
    read();
    let micros = micros() - start;
    if micros > LONGEST {
        eprintln!("{micros} microseconds for {file} bytes, expected at most {LONGEST}");
        abort();
    }
    LIMIT.store(usize::MAX, Relaxed);
    let peak = PEAK.load(Relaxed) - before;
    if micros > SLOWEST.load(Relaxed) {
        SLOWEST.store(micros + micros / 8, Relaxed);
        eprintln!("slowest: {micros} microseconds for {file} bytes");
    }
    if peak > LARGEST.load(Relaxed) {
        LARGEST.store(peak + peak / 8, Relaxed);
        eprintln!("largest: {peak} bytes for {file} bytes");
    }
}
