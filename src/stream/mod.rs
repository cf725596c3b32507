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
mod floor;
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
pub use floor::read_nanoseconds;
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
    /// A layer that also runs backwards in time.
    #[error(
        "layer `{layer}` is bidirectional: its output depends on samples that have not come yet, \
         expected a causal layer"
    )]
    Bidirectional {
        /// Name of the layer.
        layer: String,
    },
    /// A nonlinear function other than that of the layers before it.
    #[error(
        "layer `{layer}` has another form of GELU than the layers before it, expected one for all, \
         which is what an image holds"
    )]
    Activation {
        /// Name of the layer.
        layer: String,
    },
    /// Parts that do not fit together.
    #[error("{what} of {place} is {found}, expected {expected}")]
    Shape {
        /// Which size.
        what: &'static str,
        /// Encoder, head, or the name of a layer.
        place: String,
        /// The size found.
        found: usize,
        /// The size expected.
        expected: usize,
    },
    /// A number that the runtime's precision cannot hold.
    #[error("{what} of {place} is {value}, which is no finite number in single precision")]
    NotFinite {
        /// Which number.
        what: &'static str,
        /// Encoder, head, or the name of a layer.
        place: String,
        /// The number.
        value: f64,
    },
    /// More bytes than an image counts.
    #[error("the model takes {bytes} bytes, expected less than 4 GiB")]
    TooLarge {
        /// Bytes so far.
        bytes: usize,
    },
    /// No streams, or more than there is memory for.
    #[error("{streams} streams at once, expected 1 to {}", u16::MAX)]
    Streams {
        /// The number requested.
        streams: usize,
    },
    /// More channels than an image counts.
    #[error(
        "the model has {found} channels, expected at most {}",
        pack::CHANNELS_MAX
    )]
    Channels {
        /// The channels found.
        found: usize,
    },
    /// More modes than an image counts.
    #[error(
        "a channel of {place} has {found} modes, expected at most {}",
        u16::MAX
    )]
    Modes {
        /// Name of the layer.
        place: String,
        /// The modes found.
        found: usize,
    },
    /// More inputs to a scale than an image counts.
    #[error(
        "{found} inputs share a scale in {place}, expected at most {}",
        u16::MAX
    )]
    Group {
        /// Encoder, head, or the name of a layer.
        place: String,
        /// The inputs found.
        found: usize,
    },
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
