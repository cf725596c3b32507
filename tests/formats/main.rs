//! Every layout and container: what is read, what it means, and what is written back.
//! One program: each links the whole library, and makes its generic parts again.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/golden.rs"]
mod golden;
#[path = "../common/models.rs"]
mod models;

mod checkpoint;
mod containers;
mod flax;
mod large;
mod layouts;
mod parts;
mod repository;
mod s5;
mod scanned;
mod spellings;
mod stacks;
mod trees;
mod written;
