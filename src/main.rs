//! The program `compress-model`; everything it does stands in [`hankelite::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    hankelite::cli::run(std::env::args_os())
}
