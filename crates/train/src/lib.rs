//! Training: objective, optimiser, schedule, and runs that can be stopped anywhere and go on
//! bit for bit.
//!
//! A [`Training`] takes a network through its data by a [`Recipe`]. What it writes goes through a
//! [`Folder`]; what it tells goes to an [`Observer`]; it prints nothing. All randomness derives
//! from the seed of the recipe, the epoch and the step, so that a snapshot needs no state of a
//! generator.
//!
//! ```
//! use hankelite_train::{Course, Schedule};
//!
//! let (course, plateau_factor) = (Course::Cosine, 0.5);
//! let schedule = Schedule { course, warmup: 10, total: 110, floor: 0.0, plateau_factor };
//! assert_eq!(schedule.factor(9, 0), 1.0);
//! assert!((schedule.factor(60, 0) - 0.5).abs() < 1e-12);
//! ```

pub mod nn;
mod train;

pub use train::{
    AdamW, AdamWSettings, Best, Composed, Course, Distil, End, Entry, Examples, FilterPenalty,
    Folder, Gradients, Loss, Monitor, Objective, Observer, Outcome, Place, Precision, Progress,
    Recipe, RecipeError, Regularise, Scale, Schedule, Start, Step, Stop, Tally, Task, Term, Terms,
    TrainError, Training, Trust, TrustRegion, clip_factor, evaluate, input, keep_freed_memory,
    logits, psnr, require_fitting, require_suitable, scalar, task_loss,
};
