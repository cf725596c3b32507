//! One sample in, one output out: diagonal state space models on small devices.
//!
//! No operating system, no allocation, no dependency on how a model was made. A model is an
//! [`ImageView`], a block of bytes that is read where it lies, for instance in flash. The caller hands
//! in two buffers of numbers, and [`step`] takes one sample to one output:
//!
//! ```
//! # fn run(bytes: &[u8]) -> Result<(), hankelite_edge::StepFault> {
//! use hankelite_edge::{ImageView, Plain, step};
//!
//! let image = ImageView::<f32>::new(bytes)?;
//! let mut state = [0.0; 4096];
//! let mut work = [0.0; 1024];
//! let state = &mut state[..image.state_len()];
//! let work = &mut work[..image.work_len(1)];
//! let outputs: &[f32] = step(Plain, &image, state, work, hankelite_edge::Input::Values(&[0.5]))?;
//! # Ok(())
//! # }
//! ```
//!
//! The state has a fixed size, O(H N) numbers, however long the signal. The `hankelite` crate makes
//! images from checkpoints and runs this same code with vector units ([`Unit`]).
//!
//! For those everything is put in line in a few pieces ([`Piece`]), so that it is compiled with their
//! instructions. On bare metal (`target_os = "none"`) the compiler decides, and loops that only serve several streams are left out: the code
//! takes a fifth of the flash, and gives the same numbers.

#![no_std]

#[cfg(target_endian = "big")]
compile_error!("an image is little-endian and is used where it lies");

mod dots;
mod dynamics;
mod entries;
mod fault;
mod functions;
mod image;
mod integers;
mod kept;
mod levels;
mod matrix;
mod norm;
mod numbers;
mod plain;
mod real;
mod record;
mod step;
mod streams;

pub use dots::{Dots, Piece, Processor, QUADS};
pub use fault::StepFault;
pub use functions::{erf, exp};
pub use image::{ImagePlan, ImageView};
pub use kept::Kept;
pub use plain::Plain;
pub use real::{LANES, Real, Unit};
pub use record::{Header, Layer, MAGIC, Matrix, SharedSystem, VERSION, code};
pub use step::{Buffers, Input, run_chunk, step, step_layers, step_many};

/// `count` rounded up to whole groups of [`LANES`].
pub const fn padded(count: usize) -> usize {
    count.div_ceil(LANES) * LANES
}
