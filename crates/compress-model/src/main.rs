//! The program `compress-model`; everything it does stands in [`compress_model::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    compress_model::cli::run(std::env::args_os())
}
