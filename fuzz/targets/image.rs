//! Images: the check, and two steps of what passes it, in memory as the image requests it.
#![no_main]

use hankelite_edge::{ImageView, Input, Plain, Real, step};
use hankelite_fuzz::within;
use libfuzzer_sys::fuzz_target;

/// Steps of images with more layers would only be slow.
const LAYERS: u32 = 16;

fuzz_target!(|bytes: &[u8]| {
    // At a multiple of 16, as an image lies on a device.
    let mut aligned = vec![0u128; bytes.len().div_ceil(16)];
    let (whole, rest) = bytes.as_chunks();
    for (to, from) in aligned.iter_mut().zip(whole) {
        *to = u128::from_le_bytes(*from);
    }
    if let Some(last) = aligned.last_mut().filter(|_| !rest.is_empty()) {
        let mut padded = [0; 16];
        padded[..rest.len()].copy_from_slice(rest);
        *last = u128::from_le_bytes(padded);
    }
    let aligned: &[u8] = bytemuck::cast_slice(&aligned);
    within(bytes.len(), || {
        steps::<f32>(&aligned[..bytes.len()]);
        steps::<f64>(&aligned[..bytes.len()]);
    });
});

fn steps<T: Real>(bytes: &[u8]) {
    let Ok(view) = ImageView::<T>::new(bytes) else {
        return;
    };
    let mut state = vec![T::default(); view.state_len()];
    let mut work = vec![T::default(); view.work_len(1)];
    if view.header().layers > LAYERS {
        return;
    }
    let values = vec![T::default(); view.header().inputs as usize];
    for input in [Input::Values(&values), Input::Tokens(&[1])] {
        let _ = step(Plain, &view, &mut state, &mut work, input);
    }
}
