//! Numerical forms of papers behind hankelite that no checkpoint needs: the Rademacher bounds of
//! recurrent networks and the finite-time analysis of shallow transformers ([`bounds`]), and those
//! shallow networks themselves with their descent and tangent kernel ([`shallow`]).
//!
//! The crate serves the program and the tests of the trainer.
//!
//! ```
//! use hankelite_research::bounds::Radii;
//! use hankelite_research::shallow::{
//!     Activation, Descent, Query, Samples, Sampling, Transformer, TransformerSize, descend,
//! };
//!
//! let samples = Samples::gaussian(8, 5, 3, 0)?.with_labels(vec![0.5; 8])?;
//! let size = TransformerSize { units: 16, width: 3 };
//! let mut model = Transformer::symmetric(size, Query::Last, Activation::Tanh, 1)?;
//! let descent = Descent {
//!     steps: 20,
//!     rate: 0.1,
//!     sampling: Sampling::All,
//!     radii: Some(Radii::all(3.0)),
//! };
//! let record = descend(&mut model, &samples, &descent, &mut |_, _| {})?;
//! assert!(record.losses[19] < record.losses[0]);
//! # Ok::<(), hankelite_research::shallow::ShallowError>(())
//! ```

pub mod bounds;
pub mod shallow;
