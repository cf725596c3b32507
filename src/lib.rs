//! draft
pub mod linalg;
pub mod ssm;
pub mod control;
pub mod model;
pub mod checkpoint;
pub mod compress;
pub mod infer;
pub mod data;
pub mod report;
#[cfg(feature="cli")]
pub mod cli;
