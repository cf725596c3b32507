//! The functions of the C library, called with pointers as C has them. Here, and not beside them, since
//! a static library without the standard library has no tests; Miri follows every access
//! (`.ci/emulated`).
#![allow(unsafe_code, reason = "C has pointers")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![cfg(target_endian = "little")]

#[expect(unreachable_pub, reason = "a library of its own elsewhere")]
#[path = "../crates/c/src/lib.rs"]
mod c;

use std::ptr;

use hankelite::rounding::Entries;
use hankelite::stream::{Arithmetic, Image, Runner};
use hankelite::{Declared, read};

const OK: i32 = 0;
const NULL: i32 = 1;
const IMAGE: i32 = 2;
const LENGTH: i32 = 3;
const KIND: i32 = 4;

/// `hankelite_sizes` as the header declares it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    inputs: usize,
    outputs: usize,
    state: usize,
    work: usize,
    tokens: usize,
}

/// `hankelite_stream` as the header declares it.
#[repr(C)]
struct Stream {
    image: *const u8,
    image_bytes: usize,
    state: *mut f32,
    state_len: usize,
    work: *mut f32,
    work_len: usize,
}

fn classifier() -> Image {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/s4d_classifier.safetensors"
    );
    let checkpoint = read(path, &Declared::default()).unwrap();
    Image::new(&checkpoint.model, Entries::Int8).unwrap()
}

fn measure(image: &[u8], sizes: *mut Sizes) -> i32 {
    // SAFETY: the image lies where its slice does; the sizes are null or those of a variable.
    unsafe { c::hankelite_measure(image.as_ptr(), image.len(), sizes.cast()) }
}

/// What C holds of one stream: its own memory, of the sizes that it was given.
struct Caller {
    image: Image,
    sizes: Sizes,
    state: Vec<f32>,
    work: Vec<f32>,
    outputs: Vec<f32>,
}

impl Caller {
    fn new(image: Image) -> Self {
        let mut sizes = Sizes::default();
        assert_eq!(measure(image.as_bytes(), &mut sizes), OK);
        Self {
            image,
            sizes,
            state: vec![0.0; sizes.state],
            // Of any value, as the header has it.
            work: vec![f32::NAN; sizes.work],
            outputs: vec![0.0; sizes.outputs],
        }
    }

    fn stream(&mut self) -> Stream {
        let bytes = self.image.as_bytes();
        Stream {
            image: bytes.as_ptr(),
            image_bytes: bytes.len(),
            state: self.state.as_mut_ptr(),
            state_len: self.state.len(),
            work: self.work.as_mut_ptr(),
            work_len: self.work.len(),
        }
    }

    fn step(&mut self, stream: &Stream, inputs: &[f32]) -> i32 {
        let (outputs, length) = (self.outputs.as_mut_ptr(), self.outputs.len());
        // SAFETY: every pointer is that of a live vector of the length beside it, or null.
        unsafe {
            c::hankelite_step(
                ptr::from_ref(stream).cast(),
                inputs.as_ptr(),
                inputs.len(),
                outputs,
                length,
            )
        }
    }
}

#[test]
fn steps_from_c_are_those_of_the_plain_runner() {
    let image = classifier();
    let mut runner = Runner::<f32>::from_image(image.clone()).unwrap();
    runner = runner.with_arithmetic(Arithmetic::Plain);
    let mut caller = Caller::new(image);
    assert_eq!(caller.sizes.inputs, runner.inputs());
    assert_eq!(caller.sizes.outputs, runner.outputs());
    assert_eq!(caller.sizes.tokens, 0);
    let stream = caller.stream();
    for step in 0..4 {
        let inputs = vec![(step as f32 / 8.0).sin(); runner.inputs()];
        assert_eq!(caller.step(&stream, &inputs), OK);
        assert_eq!(caller.outputs, runner.step(&inputs).unwrap());
    }
}

#[test]
fn pointers_that_are_null_or_astray_are_reported() {
    let mut caller = Caller::new(classifier());
    let inputs = vec![0.5; caller.sizes.inputs];
    assert_eq!(measure(caller.image.as_bytes(), ptr::null_mut()), NULL);
    type Spoil = fn(&mut Stream);
    let spoiled: [Spoil; 5] = [
        |stream| stream.image = ptr::null(),
        |stream| stream.state = ptr::null_mut(),
        |stream| stream.work = ptr::null_mut(),
        |stream| stream.state = stream.state.wrapping_byte_add(1),
        |stream| stream.work_len = usize::MAX,
    ];
    for spoil in spoiled {
        let mut stream = caller.stream();
        spoil(&mut stream);
        assert_eq!(caller.step(&stream, &inputs), NULL);
    }
    // SAFETY: null is among what the functions take.
    let found = unsafe { c::hankelite_step(ptr::null(), ptr::null(), 0, ptr::null_mut(), 0) };
    assert_eq!(found, NULL);
}

#[test]
fn lengths_kinds_and_images_are_checked() {
    let mut caller = Caller::new(classifier());
    let inputs = vec![0.5; caller.sizes.inputs];
    let mut stream = caller.stream();
    stream.state_len -= 1;
    assert_eq!(caller.step(&stream, &inputs), LENGTH);
    let stream = caller.stream();
    assert_eq!(caller.step(&stream, &inputs[1..]), LENGTH);
    let (outputs, length) = (caller.outputs.as_mut_ptr(), caller.outputs.len());
    // SAFETY: every pointer is that of a live vector of the length beside it.
    let found =
        unsafe { c::hankelite_step_token(ptr::from_ref(&stream).cast(), 0, outputs, length) };
    assert_eq!(found, KIND);
    let bytes = caller.image.as_bytes();
    for length in (0..bytes.len()).step_by(bytes.len() / 20) {
        assert_eq!(measure(&bytes[..length], &mut Sizes::default()), IMAGE);
    }
}
