//! Spoken digits in a tar file.
#![no_main]

use std::cell::RefCell;

use hankelite_fuzz::{MemoryFile, read_data};
use libfuzzer_sys::fuzz_target;

thread_local!(static FILE: RefCell<MemoryFile> = RefCell::new(MemoryFile::new("a.tar")));

fuzz_target!(|bytes: &[u8]| {
    FILE.with_borrow_mut(|file| read_data(file.fill(bytes), "fsdd", ",length=64"));
});
