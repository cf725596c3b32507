//! The program's commands for the other sequence models.
#![cfg(feature = "research")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod bounds;
mod program;
