//! The program killed at any moment, out of space, without leave to write, and run twice at once:
//! what it writes is there whole or not at all, and a run that is resumed ends in the same bytes.
//!
//! `HANKELITE_KILLS=200 cargo test --release -p compress-model --test interrupted -- --nocapture
//! --test-threads 1` kills every command 200 times and shows where the kills met it; the default
//! is four times, which is quick. `--include-ignored` adds a full disk, which takes root to mount.
#![cfg(all(target_os = "linux", feature = "train"))]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::print_stderr, reason = "the full form shows what it met")]

mod files;
mod killed;
mod room;
mod together;
mod work;
