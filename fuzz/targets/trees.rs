//! Lines of a ListOps file.
#![no_main]

use std::cell::RefCell;

use hankelite_fuzz::{MemoryFile, read_data};
use libfuzzer_sys::fuzz_target;

thread_local!(static FILE: RefCell<MemoryFile> = RefCell::new(MemoryFile::new("a.tsv")));

fuzz_target!(|bytes: &[u8]| {
    // Sequences of ordinary length would need more memory than their short lines.
    FILE.with_borrow_mut(|file| read_data(file.fill(bytes), "listops", ",length=64"));
});
