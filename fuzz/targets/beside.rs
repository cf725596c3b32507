//! What lies beside a checkpoint: the sidecar, and the description of a layout, in TOML. The first
//! byte decides which of them it is.
#![no_main]

use std::cell::RefCell;

use hankelite::checkpoint::{OwnLayout, read_own};
use hankelite::{Declared, read};
use hankelite_fuzz::{MemoryFile, within};
use libfuzzer_sys::fuzz_target;

/// Layers in a layout that needs nothing beside it.
const KNOWN: &[u8] = include_bytes!("../../tests/data/s4d_layer.safetensors");

struct Files {
    known: MemoryFile,
    sidecar: MemoryFile,
}

thread_local!(static FILES: RefCell<Files> = RefCell::new(files()));

fn files() -> Files {
    let mut known = MemoryFile::new("a.safetensors");
    known.fill(KNOWN);
    Files {
        known,
        sidecar: MemoryFile::new("a.hankelite.toml"),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, text)) = bytes.split_first() else {
        return;
    };
    FILES.with_borrow_mut(|Files { known, sidecar }| {
        if *which == b'L' {
            sidecar.fill(b"");
            let Ok(text) = str::from_utf8(text) else {
                return;
            };
            within(KNOWN.len() + text.len(), || {
                if let Ok(layout) = OwnLayout::parse(text) {
                    let _ = read_own(known.path(), &layout, &Declared::default());
                }
            });
        } else {
            sidecar.fill(text);
            within(KNOWN.len() + text.len(), || {
                let _ = read(known.path(), &Declared::default());
            });
        }
    });
});
