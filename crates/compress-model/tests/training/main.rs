//! `compress-model pretrain`, `retrain` and `pipeline` on small networks.
#![cfg(feature = "train")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod pipeline;
#[path = "../../../../tests/common/points.rs"]
mod points;
mod program;
mod shared;
