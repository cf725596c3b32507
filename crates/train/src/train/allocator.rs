//! Memory that a training step frees is kept for the next one; what other work frees is given back.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether freed memory is given back.
static GIVES_BACK: AtomicBool = AtomicBool::new(false);

/// Asks the C library to keep all freed memory for the process, in one arena for all threads, and to
/// map no tensor by itself.
///
/// A training step takes and frees hundreds of tensors of up to 100 MB. glibc maps and unmaps each of
/// more than 32 MiB, and gives those of a thread other than the first back in pieces: up to 45 % of a
/// recurrent network's step, and a third of one of a network of 128 channels over 1024 steps, was spent
/// in the system for it. To be called once by a program that trains, before it does and before it
/// starts threads, whose arenas stay otherwise. Does nothing on other systems.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[allow(unsafe_code, reason = "a call of C that only sets three numbers")]
        // SAFETY: mallopt takes plain integers, locks the allocator itself and may be called at any
        // time; what it does not accept it leaves as it was.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_MMAP_MAX, 0);
            libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        }
    }
}

/// Asks the C library to give memory of 8 MiB and more back to the system as soon as it is freed, and to
/// keep up to 64 MiB of what smaller pieces free at the end of the heap.
///
/// By itself glibc gives back pieces above a size that grows with what is freed, up to 32 MiB: whatever of
/// less lies between small pieces then stays, and how much differs from run to run. What is given back must
/// be cleared when it is taken again: with pieces from 4 MiB on and the end of the heap given back, that was
/// a fifth of the time of layers of 512 channels. To be called once, before the work. Does nothing on other
/// systems.
pub fn give_back_freed_memory() {
    GIVES_BACK.store(true, Ordering::Relaxed);
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[allow(unsafe_code, reason = "a call of C that only sets two numbers")]
        // SAFETY: as above.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 23);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 26);
        }
    }
}

/// Asks the C library to give all freed memory back now, between pieces that are still used, too. To be
/// called between stages of long work; takes some milliseconds. The streams of 500 sequences stayed
/// otherwise, 260 MB, in pieces of less than 8 MiB. Does nothing where freed memory is to be kept, and on
/// other systems.
pub fn give_back_now() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if GIVES_BACK.load(Ordering::Relaxed) {
        #[allow(unsafe_code, reason = "a call of C that takes one number")]
        // SAFETY: malloc_trim locks the allocator itself, touches free memory only and may be called at any
        // time.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}
