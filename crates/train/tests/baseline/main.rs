//! The other sequence models: values, gradients, counts.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod attention;
#[path = "../../../../tests/common/mod.rs"]
mod common;
mod resumed;
mod stacked;
mod unfolded;
