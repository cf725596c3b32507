//! Statistics of layer inputs, a safetensors file.
#![no_main]

use std::cell::RefCell;

use hankelite::calibrate::Calibration;
use hankelite_fuzz::{MemoryFile, within};
use libfuzzer_sys::fuzz_target;

thread_local!(static FILE: RefCell<MemoryFile> = RefCell::new(MemoryFile::new("a.safetensors")));

fuzz_target!(|bytes: &[u8]| {
    FILE.with_borrow_mut(|file| {
        let file = file.fill_safetensors(bytes);
        within(file.len(), || {
            if let Ok(calibration) = Calibration::read(file.path()) {
                let parts = [calibration.clone(), calibration];
                let _ = Calibration::merged(&parts, "both");
            }
        });
    });
});
