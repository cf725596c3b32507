//! One array of a file of NumPy: header and elements.
#![no_main]

use std::cell::RefCell;

use hankelite_fuzz::{MemoryFile, Zip, read_archive};
use libfuzzer_sys::fuzz_target;

thread_local!(static FILE: RefCell<MemoryFile> = RefCell::new(MemoryFile::new("a.npz")));

fuzz_target!(|bytes: &[u8]| {
    FILE.with_borrow_mut(|file| {
        let mut zip = Zip::default();
        zip.add("a.npy", bytes);
        read_archive(file.fill(&zip.finish()));
    });
});
