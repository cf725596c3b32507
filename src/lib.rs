//! draft
pub mod linalg;
pub mod ssm;
pub mod control;
