//! A data set in a safetensors file.
#![no_main]

use std::cell::RefCell;

use hankelite_data::{Dataset, Source};
use hankelite_fuzz::{MemoryFile, with_header_length, within};
use libfuzzer_sys::fuzz_target;

thread_local!(static FILE: RefCell<MemoryFile> = RefCell::new(MemoryFile::new("a.safetensors")));

fuzz_target!(|bytes: &[u8]| {
    FILE.with_borrow_mut(|file| {
        let repaired = with_header_length(bytes);
        let file = file.fill(repaired.as_deref().unwrap_or(bytes));
        let source = Source::Arrays(file.path().to_path_buf());
        within(file.len(), || {
            let _ = Dataset::read(&source, None);
        });
    });
});
