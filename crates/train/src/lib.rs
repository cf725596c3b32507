#![doc = include_str!("../README.md")]

pub mod nn;
mod train;

pub use candle_core;
pub use train::{
    AdamW, AdamWSettings, Best, Composed, Course, Cut, Distil, End, Entry, Evaluation, Examples,
    FilterPenalty, Folder, Gradients, Loss, Monitor, Objective, Observer, Outcome, Place,
    Precision, Progress, Recipe, RecipeError, Reducing, ReducingTraining, Regularise, Scale,
    Schedule, Start, Step, Stop, Tally, Task, Term, Terms, TrainError, Training, Trial,
    TrialOutcome, Tried, Trust, TrustRegion, clip_factor, evaluate, evaluate_by,
    give_back_freed_memory, give_back_now, input, keep_freed_memory, logits, psnr, require_fitting,
    require_suitable, scalar, task_loss,
};
