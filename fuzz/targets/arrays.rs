//! A data set in a safetensors file.
#![no_main]

use std::cell::RefCell;

use hankelite_fuzz::{MemoryFile, read_data};
use libfuzzer_sys::fuzz_target;

thread_local!(static FILE: RefCell<MemoryFile> = RefCell::new(MemoryFile::new("a.safetensors")));

fuzz_target!(|bytes: &[u8]| {
    FILE.with_borrow_mut(|file| read_data(file.fill_safetensors(bytes), "arrays", ""));
});
