//! What the page calls. One session at a time; the page runs it in a worker.

use std::cell::{Cell, RefCell};

use hankelite::ProgressSink;
use hankelite::progress::Stage;

use crate::{Fault, Request, Session};

#[link(wasm_import_module = "page")]
unsafe extern "C" {
    fn progress(stage: *const u8, length: usize, done: usize, total: usize);
    fn panicked(text: *const u8, length: usize);
}

thread_local! {
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static FILE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static IMAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static STAGE: RefCell<(String, usize)> = const { RefCell::new((String::new(), 0)) };
    static DONE: Cell<usize> = const { Cell::new(0) };
}

struct Page;

impl ProgressSink for Page {
    fn begin(&self, stage: Stage, total: usize) {
        STAGE.set((stage.to_string(), total));
        DONE.set(0);
        self.advance(0);
    }

    fn advance(&self, units: usize) {
        DONE.set(DONE.get() + units);
        STAGE.with_borrow(|(stage, total)| {
            // SAFETY: the page reads these bytes before it returns.
            unsafe { progress(stage.as_ptr(), stage.len(), DONE.get(), *total) }
        });
    }
}

/// Room for bytes from the page. Each is given back to one of the functions below.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn room(length: usize) -> *mut u8 {
    let mut bytes = Vec::<u8>::new();
    if bytes.try_reserve_exact(length).is_err() {
        return std::ptr::null_mut();
    }
    let at = bytes.as_mut_ptr();
    std::mem::forget(bytes);
    at
}

/// SAFETY: `at` came from [`room`] with the same length and was filled.
unsafe fn taken(at: *mut u8, length: usize) -> Vec<u8> {
    unsafe { Vec::from_raw_parts(at, length, length) }
}

fn answer(result: Result<Vec<u8>, Fault>) -> i32 {
    let (text, code) = match result {
        Ok(text) => (text, 0),
        Err(fault) => (fault.to_string().into_bytes(), 1),
    };
    ANSWER.set(text);
    code
}

/// Where the answer of the last call is: JSON, or what went wrong.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn answer_at() -> *const u8 {
    ANSWER.with_borrow(|bytes| bytes.as_ptr())
}

/// Its length.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn answer_length() -> usize {
    ANSWER.with_borrow(Vec::len)
}

/// Where the smaller file is.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn file_at() -> *const u8 {
    FILE.with_borrow(|bytes| bytes.as_ptr())
}

/// Its length.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn file_length() -> usize {
    FILE.with_borrow(Vec::len)
}

/// Where the image is.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn image_at() -> *const u8 {
    IMAGE.with_borrow(|bytes| bytes.as_ptr())
}

/// Its length; 0 where there is none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn image_length() -> usize {
    IMAGE.with_borrow(Vec::len)
}

/// Once, first.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn start() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        // SAFETY: the page reads these bytes before it returns.
        unsafe { panicked(text.as_ptr(), text.len()) }
    }));
}

/// Opens a checkpoint and answers with its spectra.
///
/// # Safety
/// Both places came from [`room`], with these lengths.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open(
    name: *mut u8,
    name_length: usize,
    at: *mut u8,
    length: usize,
) -> i32 {
    // SAFETY: as above.
    let (name, bytes) = unsafe { (taken(name, name_length), taken(at, length)) };
    let opened = || {
        let session = Session::open(&String::from_utf8(name)?, bytes)?;
        let text = serde_json::to_vec(&session.inspect(&Page)?)?;
        SESSION.set(Some(session));
        Ok(text)
    };
    answer(opened())
}

/// Reduces the opened checkpoint: for the inputs in a data file where one is given.
///
/// # Safety
/// All places came from [`room`], with these lengths.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn reduce(
    request: *mut u8,
    request_length: usize,
    name: *mut u8,
    name_length: usize,
    data: *mut u8,
    data_length: usize,
) -> i32 {
    // SAFETY: as above.
    let (request, name, data) = unsafe {
        (
            taken(request, request_length),
            taken(name, name_length),
            taken(data, data_length),
        )
    };
    let reduced = || {
        let request: Request = serde_json::from_slice(&request)?;
        let name = String::from_utf8(name)?;
        SESSION.with_borrow(|session| {
            let session = session.as_ref().ok_or("no checkpoint is open")?;
            let data = (!name.is_empty()).then_some((name, data));
            let made = session.reduce(&request, data, &Page)?;
            FILE.set(made.file);
            IMAGE.set(made.image.unwrap_or_default());
            Ok(serde_json::to_vec(&made.record)?)
        })
    };
    answer(reduced())
}
