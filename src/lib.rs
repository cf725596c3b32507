//! Smaller state space models from pretrained ones.
//!
//! `hankelite` takes a trained checkpoint of a diagonal state space model (S4D, DSS, S5, LRU),
//! balances every channel by its Gramians, truncates its state, and writes a smaller checkpoint in
//! the layout it came from. The program `compress-model` does the same from the command line.
//!
//! ```
//! use hankelite::model::Sequence;
//! use hankelite::{Declared, Reducer, read, write};
//!
//! # let folder = tempfile::tempdir()?;
//! # let smaller = folder.path().join("smaller.safetensors");
//! # std::env::set_current_dir(env!("CARGO_MANIFEST_DIR"))?;
//! let full = read("models/waves/model.safetensors", &Declared::default())?;
//!
//! // A few sequences as the model gets them, without labels. Here they are tones.
//! let tone = |n: usize| (0..256).map(|t| (0.01 * (n * t) as f32).sin()).collect();
//! let tones: Vec<Vec<f32>> = (5..35).map(tone).collect();
//! let sequences: Vec<Sequence> = tones.iter().map(|tone| Sequence::Values(tone)).collect();
//!
//! // Eight of 32 stored states stay in every channel.
//! let small = Reducer::new(&full.model).calibrated(&sequences).order(8).run()?;
//! for record in &small.records {
//!     println!("{}: relative H2 error {:.3}", record.name, record.relative_h2_error);
//! }
//! write(&full.with_model(small.model), &smaller)?;
//! # assert_eq!(read(&smaller, &Declared::default())?.model.blocks()[0].order(), 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A checkpoint becomes a [`model::Model`], a plain description of the whole network on the host. Every
//! step takes a model and gives a model, so each tool works on the full and the reduced one. What
//! a reader had to assume about a file stands in [`checkpoint::Checkpoint::assumptions`].
//!
//! [`Reducer`] covers the usual settings. [`reduce`] takes all those of a [`Plan`];
//! [`advanced::CalibratedReduction`] balances once for reductions to many sizes. [`compress::inspect`] gives
//! the Hankel singular values of every channel. Long work reports to a [`ProgressSink`], which can
//! cancel it.
//!
//! # The rooms
//! A room uses only rooms before it in this list.
//!
//! | room | job |
//! |---|---|
//! | [`archive`] | the containers of checkpoints, a crate of its own |
//! | [`control`] | diagonal systems, Gramians, Hankel values, truncation, norms, a crate of its own |
//! | [`ProgressSink`] | progress and cancellation of long work |
//! | [`model`] | a whole network as plain data |
//! | [`rounding`] | numbers of few bits, and how every tensor is stored |
//! | [`checkpoint`] | files and models, one file per layout |
//! | [`compress`] | plan, reduce, record |
//! | [`advanced::LayerMeasure`] | the generalisation measure of a layer |
//! | [`infer`] | whole sequences on the host |
//! | [`calibrate`] | reduction for the inputs that the layers get |
//! | [`stream`] | one sample in, one out |
//! | [`target`] | states and maps together, to so many bytes |
//! | [`Reducer`] | the main job in one line |
//! | [`advanced`] | the steps of `Reducer`, for code that combines them itself |
//!
//! Theory runs in double precision. Nothing here prints or keeps global state. Random numbers come
//! from seeds that the caller gives.

pub mod advanced;
pub mod calibrate;
pub mod checkpoint;
pub mod compress;
pub mod infer;
mod measure;
pub mod model;
mod progress;
mod reducer;
pub mod rounding;
pub mod stream;
pub mod target;

pub use checkpoint::declared::Declared;
pub use checkpoint::encode::write;
pub use checkpoint::reading::read;
pub use compress::plan::{Plan, Rule};
pub use compress::reduce::reduce;
pub use control::Realisation;
pub use hankelite_archive as archive;
pub use hankelite_control as control;
pub use progress::{Cancelled, ProgressSink};
pub use reducer::{Reducer, Reduction, Suited, WholeReduction};
