//! A WAV file, sample by sample.
#![no_main]

use std::cell::RefCell;

use hankelite_data::Sound;
use hankelite_fuzz::{MemoryFile, within};
use libfuzzer_sys::fuzz_target;

thread_local!(static FILE: RefCell<MemoryFile> = RefCell::new(MemoryFile::new("a.wav")));

fuzz_target!(|bytes: &[u8]| {
    FILE.with_borrow_mut(|file| {
        let file = file.fill(bytes);
        within(file.len(), || {
            if let Ok(sound) = Sound::open(file.path()) {
                let _ = sound.channels();
                // As the program reads it: to its end or the first sample that is wrong.
                let _: Option<Vec<f32>> = sound.map(Result::ok).collect();
            }
        });
    });
});
