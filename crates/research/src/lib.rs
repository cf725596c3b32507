//! Bounds and shallow networks of the papers behind hankelite, beside what a checkpoint needs.

pub mod bounds;
pub mod shallow;
