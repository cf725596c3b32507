//! The pickle in a file of `torch.save`, between records of tensors.
#![no_main]

use std::cell::RefCell;

use hankelite_fuzz::{MemoryFile, Zip, read_archive};
use libfuzzer_sys::fuzz_target;

/// Records of tensors, and the bytes of each.
const RECORDS: usize = 12;
const BYTES: usize = 1 << 13;

struct Around {
    file: MemoryFile,
    start: usize,
    zip: Zip,
}

impl Around {
    fn new() -> Self {
        let mut zip = Zip::default();
        for index in 0..RECORDS {
            zip.add(&format!("a/data/{index}"), &[index as u8; BYTES]);
        }
        let records = zip.take_records();
        let mut file = MemoryFile::new("a.pth");
        file.fill(&records);
        let start = records.len();
        Self { file, start, zip }
    }
}

thread_local!(static AROUND: RefCell<Around> = RefCell::new(Around::new()));

fuzz_target!(|bytes: &[u8]| {
    AROUND.with_borrow_mut(|around| {
        let mut zip = around.zip.clone();
        zip.add("a/data.pkl", bytes);
        read_archive(around.file.fill_from(around.start, &zip.finish()));
    });
});
