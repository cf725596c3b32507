//! Models made smaller: without data, calibrated, by captured inputs, to a size in bytes.
//! One program: each links the whole library, and makes its generic parts again.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/draws.rs"]
mod draws;
#[path = "../common/models.rs"]
mod models;

mod calibrate;
mod calibrated_layers;
mod captured;
mod model;
mod pipeline;
mod target;
