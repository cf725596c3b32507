//! Training: objective, optimiser, schedule, and runs that can be stopped anywhere and go on
//! bit for bit.
//!
//! A [`Training`] takes a network through its data by a [`Recipe`]. What it writes goes through a
//! [`Folder`]; what it tells goes to an [`Observer`]; it prints nothing. All randomness derives
//! from the seed of the recipe, the epoch and the step, so that a snapshot needs no state of a
//! generator.
//!
//! ```
//! use hankelite::train::{Course, Schedule};
//!
//! let (course, plateau_factor) = (Course::Cosine, 0.5);
//! let schedule = Schedule { course, warmup: 10, total: 110, floor: 0.0, plateau_factor };
//! assert_eq!(schedule.factor(9, 0), 1.0);
//! assert!((schedule.factor(60, 0) - 0.5).abs() < 1e-12);
//! ```

mod allocator;
mod batch;
mod error;
mod folder;
mod loss;
mod objective;
mod observer;
mod optimiser;
mod place;
mod psnr;
mod recipe;
mod schedule;
mod snapshot;
mod terms;
mod trainer;
mod trust;

pub use allocator::keep_freed_memory;
pub use batch::Takes;
pub use batch::evaluate;
pub use batch::input;
pub use batch::logits;
pub use batch::require_fitting;
pub use batch::require_suitable;
pub use error::TrainError;
pub use folder::Folder;
pub use loss::Loss;
pub use loss::Tally;
pub use loss::scalar;
pub use loss::task_loss;
pub use objective::Examples;
pub use objective::Objective;
pub use objective::Task;
pub use objective::Term;
pub use observer::Entry;
pub use observer::Observer;
pub use observer::Step;
pub use observer::Stop;
pub use optimiser::AdamW;
pub use optimiser::AdamWSettings;
pub use optimiser::Gradients;
pub use optimiser::clip_factor;
pub use place::Place;
pub use psnr::psnr;
pub use recipe::Monitor;
pub use recipe::Precision;
pub use recipe::Recipe;
pub use recipe::RecipeError;
pub use schedule::Course;
pub use schedule::Schedule;
pub use snapshot::Best;
pub use snapshot::End;
pub use snapshot::Progress;
pub use terms::Composed;
pub use terms::Distil;
pub use terms::FilterPenalty;
pub use terms::Regularise;
pub use terms::Terms;
pub use trainer::Outcome;
pub use trainer::Training;
pub use trust::Scale;
pub use trust::Start;
pub use trust::Trust;
pub use trust::TrustRegion;
