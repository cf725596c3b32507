//! What the page calls. One session at a time; the page runs it in a worker.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use hankelite::{Declared, ProgressSink};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::page_file::{PageFile, PageNewFile};
use crate::{Asked, CHOICES, Download, Fault, File, Reading, Request, Session, Which, in_words};

#[link(wasm_import_module = "page")]
unsafe extern "C" {
    fn progress(stage: *const u8, length: usize, done: usize, total: usize);
    fn panicked(text: *const u8, length: usize);
}

thread_local! {
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static FILE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static STAGE: RefCell<(String, usize)> = const { RefCell::new((String::new(), 0)) };
    static DONE: Cell<usize> = const { Cell::new(0) };
}

/// What the page asks. Bytes that belong to it come beside it, and those of the answer likewise.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Ask {
    /// What can be declared.
    Choices,
    /// Names and lengths of files, which the page knows by their places in this list.
    Open {
        files: Vec<(String, u64)>,
        declared: Box<Declared>,
        reading: Reading,
    },
    /// A data file, or the name of a generated task.
    Data {
        name: String,
    },
    Reduce(Request),
    /// What a size would give without data.
    Preview(Request),
    /// The report, beside the answer.
    Report(Asked),
    Save {
        what: Download,
        name: String,
    },
    Sequence {
        index: usize,
    },
    /// The next samples, for one of the networks.
    Play {
        which: Which,
        rewind: bool,
    },
}

struct Page;

impl ProgressSink for Page {
    fn begin(&self, stage: &'static str, total: usize) {
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

/// Room for bytes from the page. Each is given back to [`ask`].
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

/// Where the bytes beside the answer are.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn file_at() -> *const u8 {
    FILE.with_borrow(|bytes| bytes.as_ptr())
}

/// Their number.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn file_length() -> usize {
    FILE.with_borrow(Vec::len)
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

/// Does what the page asks: 0, or 1 where that went wrong.
///
/// # Safety
/// Both places came from [`room`], with these lengths.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ask(
    request: *mut u8,
    request_length: usize,
    at: *mut u8,
    length: usize,
) -> i32 {
    // SAFETY: as above.
    let (request, bytes) = unsafe { (taken(request, request_length), taken(at, length)) };
    FILE.set(Vec::new());
    let answered = || {
        let ask: Ask = serde_json::from_slice(&request)?;
        let answer = SESSION.with_borrow_mut(|session| answer(session, ask, bytes))?;
        Ok::<_, Fault>(serde_json::to_vec(&answer)?)
    };
    let (text, code) = match answered() {
        Ok(text) => (text, 0),
        Err(fault) => (in_words(fault.as_ref()).into_bytes(), 1),
    };
    ANSWER.set(text);
    code
}

fn answer(session: &mut Option<Session>, ask: Ask, bytes: Vec<u8>) -> Result<Value, Fault> {
    if let Ask::Choices = ask {
        return Ok(json!(CHOICES));
    }
    if let Ask::Open {
        files,
        declared,
        reading,
    } = ask
    {
        *session = None;
        let files = files.into_iter().zip(0..).map(|((name, length), number)| {
            let file: File = Arc::new(PageFile { number, length });
            (name, file)
        });
        let opened = Session::open(files.collect(), &declared, reading)?;
        let shown = serde_json::to_value(opened.inspect(&Page)?)?;
        *session = Some(opened);
        return Ok(shown);
    }
    let session = session.as_mut().ok_or("no checkpoint is open")?;
    Ok(match ask {
        Ask::Choices | Ask::Open { .. } => Value::Null,
        Ask::Data { name } => serde_json::to_value(session.use_data(&name, bytes)?)?,
        Ask::Reduce(request) => {
            let new = &mut PageNewFile::default();
            serde_json::to_value(session.reduce(&request, new, &Page)?)?
        }
        Ask::Preview(request) => serde_json::to_value(session.preview(&request)?)?,
        Ask::Report(asked) => {
            FILE.set(session.report(&asked, &Page)?.into_bytes());
            Value::Null
        }
        Ask::Save { what, name } => {
            FILE.set(session.save(what, &name)?);
            Value::Null
        }
        Ask::Sequence { index } => serde_json::to_value(session.sequence(index))?,
        Ask::Play { which, rewind } => {
            if rewind {
                session.rewind();
            }
            let outputs = session.play(which, &bytes)?;
            FILE.set(outputs.iter().flat_map(|y| y.to_le_bytes()).collect());
            Value::Null
        }
    })
}
