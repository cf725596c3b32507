//! The other sequence models: values, gradients, counts, and the program's commands for them.
#![cfg(all(feature = "train", feature = "cli"))]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod attention;
mod bounds;
#[path = "../common/mod.rs"]
mod common;
mod program;
mod resumed;
mod stacked;
mod unfolded;
