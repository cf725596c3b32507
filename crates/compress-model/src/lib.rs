//! The program `compress-model` and its pictures.

pub mod cli;
pub mod report;
