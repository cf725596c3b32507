//! The runtime for C. `hankelite.h` documents every function; this file turns pointers into
//! slices and faults into codes, and is the only place with unsafe code of what runs on a device.
//!
//! # What the caller promises
//! Every pointer that is not null stands for as many readable (state, work, outputs, sizes: also
//! writable) elements as the length beside it states, for the time of the call, and what is written
//! overlaps nothing else. Null, wrong alignment and wrong lengths are reported by a code.

// `tests/c_interface.rs` has this file as a module, where the standard library is at hand.
#![cfg_attr(not(test), no_std)]

use core::slice;

use hankelite_edge::{ImageView, Input, Plain, StepFault, code};

const OK: i32 = 0;
const NULL: i32 = 1;
const IMAGE: i32 = 2;
const LENGTH: i32 = 3;
const KIND: i32 = 4;
const TOKEN: i32 = 5;

/// `hankelite_sizes`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    inputs: usize,
    outputs: usize,
    state: usize,
    work: usize,
    tokens: usize,
}

/// `hankelite_stream`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    image: *const u8,
    image_bytes: usize,
    state: *mut f32,
    state_len: usize,
    work: *mut f32,
    work_len: usize,
}

/// `hankelite_measure`.
///
/// # Safety
/// The promise at the head of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hankelite_measure(
    image: *const u8,
    image_bytes: usize,
    sizes: *mut Sizes,
) -> i32 {
    // SAFETY: the caller's promise.
    let (bytes, sizes) = unsafe { (shared(image, image_bytes), exclusive(sizes, 1)) };
    let (Some(bytes), Some([sizes])) = (bytes, sizes) else {
        return NULL;
    };
    match ImageView::<f32>::new(bytes) {
        Err(fault) => code_of(fault),
        Ok(image) => {
            let header = image.header();
            *sizes = Sizes {
                inputs: header.inputs as usize,
                outputs: header.outputs as usize,
                state: image.state_len(),
                work: image.work_len(1),
                tokens: usize::from(header.encoder == code::EMBEDDING),
            };
            OK
        }
    }
}

/// `hankelite_step`.
///
/// # Safety
/// The promise at the head of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hankelite_step(
    stream: *const Stream,
    inputs: *const f32,
    inputs_len: usize,
    outputs: *mut f32,
    outputs_len: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some(inputs) = (unsafe { shared(inputs, inputs_len) }) else {
        return NULL;
    };
    // SAFETY: the caller's promise, passed on.
    unsafe { step(stream, Input::Values(inputs), outputs, outputs_len) }
}

/// `hankelite_step_token`.
///
/// # Safety
/// The promise at the head of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hankelite_step_token(
    stream: *const Stream,
    token: u32,
    outputs: *mut f32,
    outputs_len: usize,
) -> i32 {
    // SAFETY: the caller's promise, passed on.
    unsafe { step(stream, Input::Tokens(&[token]), outputs, outputs_len) }
}

/// # Safety
/// The promise at the head of this file.
unsafe fn step(
    stream: *const Stream,
    input: Input<'_, f32>,
    outputs: *mut f32,
    outputs_len: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some([stream]) = (unsafe { shared(stream, 1) }) else {
        return NULL;
    };
    // SAFETY: the caller's promise; state, work and outputs do not overlap.
    let buffers = unsafe {
        (
            shared(stream.image, stream.image_bytes),
            exclusive(stream.state, stream.state_len),
            exclusive(stream.work, stream.work_len),
            exclusive(outputs, outputs_len),
        )
    };
    let (Some(bytes), Some(state), Some(work), Some(outputs)) = buffers else {
        return NULL;
    };
    match stepped(bytes, state, work, input, outputs) {
        Ok(()) => OK,
        Err(fault) => code_of(fault),
    }
}

fn stepped(
    bytes: &[u8],
    state: &mut [f32],
    work: &mut [f32],
    input: Input<'_, f32>,
    outputs: &mut [f32],
) -> Result<(), StepFault> {
    let image = ImageView::<f32>::new(bytes)?;
    for (what, found, expected) in [
        ("state", state.len(), image.state_len()),
        ("output", outputs.len(), image.header().outputs as usize),
    ] {
        if found != expected {
            return Err(StepFault::Length {
                what,
                found,
                expected,
            });
        }
    }
    outputs.copy_from_slice(hankelite_edge::step(Plain, &image, state, work, input)?);
    Ok(())
}

fn code_of(fault: StepFault) -> i32 {
    match fault {
        StepFault::Length { .. } => LENGTH,
        StepFault::Kind { .. } => KIND,
        StepFault::Token { .. } => TOKEN,
        _ => IMAGE,
    }
}

/// # Safety
/// The promise at the head of this file.
unsafe fn shared<'a, T>(pointer: *const T, length: usize) -> Option<&'a [T]> {
    if pointer.is_null() || !pointer.is_aligned() || length > isize::MAX as usize / size_of::<T>() {
        return None;
    }
    // SAFETY: neither null nor misaligned; the caller promised the rest.
    Some(unsafe { slice::from_raw_parts(pointer, length) })
}

/// # Safety
/// The promise at the head of this file.
unsafe fn exclusive<'a, T>(pointer: *mut T, length: usize) -> Option<&'a mut [T]> {
    if pointer.is_null() || !pointer.is_aligned() || length > isize::MAX as usize / size_of::<T>() {
        return None;
    }
    // SAFETY: neither null nor misaligned; the caller promised the rest.
    Some(unsafe { slice::from_raw_parts_mut(pointer, length) })
}

/// A device has nowhere to report a fault of ours; it stops.
#[cfg(not(test))]
#[panic_handler]
fn stop(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
