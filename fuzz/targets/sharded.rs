//! The index of a sharded checkpoint, beside two files of one tensor each.
#![no_main]

use std::cell::RefCell;

use hankelite_fuzz::{MemoryFile, read_archive};
use libfuzzer_sys::fuzz_target;

fn index() -> MemoryFile {
    for (shard, tensor) in [("a.safetensors", "a"), ("b.safetensors", "b")] {
        let header = format!(r#"{{"{tensor}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        let length = (header.len() as u64).to_le_bytes();
        let bytes = [&length, header.as_bytes(), &[7]].concat();
        MemoryFile::new(shard).fill(&bytes);
    }
    MemoryFile::new("model.safetensors.index.json")
}

thread_local!(static INDEX: RefCell<MemoryFile> = RefCell::new(index()));

fuzz_target!(|bytes: &[u8]| {
    INDEX.with_borrow_mut(|file| read_archive(file.fill(bytes)));
});
