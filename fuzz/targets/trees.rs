//! Lines of a ListOps file.
#![no_main]

use std::cell::RefCell;

use hankelite_data::{Dataset, Source};
use hankelite_fuzz::{MemoryFile, within};
use libfuzzer_sys::fuzz_target;

thread_local!(static STATE: RefCell<(MemoryFile, Source)> = RefCell::new(state()));

fn state() -> (MemoryFile, Source) {
    let file = MemoryFile::new("a.tsv");
    // Sequences of ordinary length would need more memory than their short lines.
    let source = format!("listops:{},length=64", file.path().display());
    (file, source.parse().expect("a source"))
}

fuzz_target!(|bytes: &[u8]| {
    STATE.with_borrow_mut(|(file, source)| {
        file.fill(bytes);
        within(bytes.len(), || {
            let _ = Dataset::read(source, None);
        });
    });
});
