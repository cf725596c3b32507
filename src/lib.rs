//! Smaller state space models from pretrained ones.
//!
//! `hankelite` takes a trained checkpoint of a diagonal state space model (S4D, DSS), computes
//! Gramians and Hankel singular values of every channel, cuts the state by balanced truncation,
//! and writes a smaller checkpoint in the layout it came from. The program `compress-model` does
//! the same from the command line.
//!
//! A checkpoint becomes a [`Model`], a plain description of the whole network on the host. Every
//! stage takes a model and gives a model, so each tool works on the full and the reduced one.
//!
//! ```
//! use std::path::Path;
//! use hankelite::{Declared, Plan, Realisation, Rule, TimeBase, inspect, read, reduce, write};
//!
//! # let folder = tempfile::tempdir()?;
//! # let smaller = folder.path().join("smaller.safetensors");
//! # std::env::set_current_dir(env!("CARGO_MANIFEST_DIR"))?;
//! let full = read(Path::new("models/waves/model.safetensors"), &Declared::default())?;
//! for assumption in full.assumptions() {
//!     println!("assumed: {assumption}");
//! }
//!
//! // What is there: the Hankel singular values of every channel.
//! let spectra = inspect(&full.model, TimeBase::Discrete, Realisation::Real)?;
//! assert!(spectra.iter().all(|layer| layer.stable));
//!
//! // Eight of 32 stored states stay in every channel.
//! let compressed = reduce(&full.model, &Plan::new(Rule::Order(8))?)?;
//! for record in &compressed.records {
//!     println!("{}: relative H2 error {:.3}", record.name, record.relative_h2_error);
//! }
//! write(&full.with_model(compressed.model), &smaller)?;
//! # assert_eq!(read(&smaller, &Declared::default())?.model.blocks[0].order(), 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The rooms
//! A room uses only rooms before it in this list.
//!
//! | room | job |
//! |---|---|
//! | [`linalg`] | graded SVD, diagonalisation, convolution |
//! | [`ssm`] | diagonal systems, time bases, kernels |
//! | [`control`] | Gramian factors, Hankel values, truncation, norms |
//! | [`model`] | a whole network as plain data |
//! | [`checkpoint`] | files and models, one file per layout |
//! | [`compress`] | plan, reduce, record |
//! | [`bounds`] | the generalisation measure of a layer |
//! | [`infer`] | whole sequences on the host |
//! | [`calibrate`] | reduction for what the layers really hear |
//! | [`stream`] | one sample in, one out |
//! | [`data`] | data sets and generated tasks |
//! | [`shallow`] | shallow transformers, their descent and their theory |
//! | `nn` | trainable networks (feature `train`) |
//! | `train` | the trainer (feature `train`) |
//! | [`report`] | pictures for the terminal |
//! | `cli` | the program (feature `cli`) |
//!
//! Theory runs in double precision. Nothing here prints or keeps global state; the program
//! alone does the first. Random numbers come from seeds that the caller gives.

pub mod calibrate;
pub mod checkpoint;
pub mod compress;
pub mod infer;
pub mod measure;
pub mod model;
pub mod progress;
pub mod stream;

pub use checkpoint::{Checkpoint, Declared, read, write};
pub use compress::{Compressed, LayerRecord, Plan, Rule, TimeBase, inspect, reduce};
pub use control::Realisation;
pub use hankelite_archive as archive;
pub use hankelite_control as control;
pub use model::Model;
pub use progress::{Cancelled, ProgressSink, Stage};
pub use stream::Runner;
