//! Images and labels of idx files, one behind the other: the first two bytes are the length of the
//! labels, which stand first.
#![no_main]

use std::cell::RefCell;

use hankelite_data::{Dataset, Source};
use hankelite_fuzz::{MemoryFile, folder, within};
use libfuzzer_sys::fuzz_target;

struct Files {
    images: MemoryFile,
    labels: MemoryFile,
}

thread_local!(static FILES: RefCell<Files> = RefCell::new(Files {
    images: MemoryFile::new("t10k-images-idx3-ubyte"),
    labels: MemoryFile::new("t10k-labels-idx1-ubyte"),
}));

fuzz_target!(|bytes: &[u8]| {
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (first, second) = rest.split_at(length);
    FILES.with_borrow_mut(|Files { images, labels }| {
        labels.fill(first);
        images.fill(second);
        let source = Source::Mnist(folder());
        within(bytes.len(), || {
            let _ = Dataset::read(&source, None);
        });
    });
});
