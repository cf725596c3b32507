//! One sample in, one output out: the form in which a model runs on a small device.
//!
//! A [`Runner`] takes a model's inputs step by step. A step costs O(H N) + O(H²), the state O(H N)
//! numbers, however long the signal. After [`Runner::new`] nothing is allocated and no thread is
//! started.
//!
//! ```
//! use std::path::Path;
//! use hankelite::stream::Runner;
//!
//! # std::env::set_current_dir(env!("CARGO_MANIFEST_DIR"))?;
//! let model = Path::new("models/waves/model.safetensors");
//! let model = hankelite::read(model, &hankelite::Declared::default())?.model;
//! let mut runner = Runner::new(&model)?;
//! for k in 0..256 {
//!     let logits = runner.step(&[(0.1 * k as f32).sin()])?;
//!     assert_eq!(logits.len(), 10);
//! }
//! let kept = runner.snapshot();
//! let one = runner.step(&[0.5])?.to_vec();
//! runner.restore(&kept)?;
//! assert_eq!(runner.step(&[0.5])?, one);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The model is first laid out as an [`Image`]: channels side by side in vector lanes, sorted by
//! their orders, B folded into C, and the maps between channels row group by row group. The step
//! itself is the crate `hankelite-edge`, which needs neither the standard library nor memory of its
//! own, so that a device runs the same code on the same bytes.

mod aligned;
mod c_header;
pub(crate) mod floor;
mod layout;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(
        dead_code,
        reason = "other processors take the step of `hankelite-edge` as it is"
    )
)]
mod machine;
mod pack;
mod runner;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(
        dead_code,
        reason = "other processors take the step of `hankelite-edge` as it is"
    )
)]
mod unit;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use c_header::c_header;
use hankelite_control::SystemError;
pub use hankelite_edge::StepFault;
pub use pack::{Image, ImageShares};
pub use runner::{Runner, Snapshot};
pub use unit::Arithmetic;

use crate::rounding::RoundingError;

/// The same step in C99, which runs the same images: names and texts of the files in `device`.
pub const C_RUNTIME: [(&str, &str); 2] = [
    ("hankelite.c", include_str!("../../device/hankelite.c")),
    ("hankelite.h", include_str!("../../device/hankelite.h")),
];

/// Why a model cannot be streamed.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum StreamError {
    /// A model that no image holds, or more streams than there can be: what was found, and where.
    #[error("{0}")]
    Model(String),
    /// A storage that does not fit the model.
    #[error(transparent)]
    Rounding(#[from] RoundingError),
    /// A system without the numbers that are requested.
    #[error(transparent)]
    System(#[from] SystemError),
    /// An image or an input that does not do.
    #[error(transparent)]
    Step(#[from] StepFault),
}
