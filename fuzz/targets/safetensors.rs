//! Safetensors files.
#![no_main]

use std::cell::RefCell;

use hankelite_fuzz::{MemoryFile, read_archive, with_header_length};
use libfuzzer_sys::fuzz_target;

thread_local!(static FILE: RefCell<MemoryFile> = RefCell::new(MemoryFile::new("a.safetensors")));

fuzz_target!(|bytes: &[u8]| {
    FILE.with_borrow_mut(|file| {
        let repaired = with_header_length(bytes);
        read_archive(file.fill(repaired.as_deref().unwrap_or(bytes)));
    });
});
