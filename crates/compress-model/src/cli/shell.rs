//! `compress-model completions` and `man`: the program for shells and `man`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use clap_complete::Shell;

use crate::cli::printer::Printer;

const COMPLETION_EXAMPLES: &str = "\
Examples:
  compress-model completions bash > ~/.local/share/bash-completion/completions/compress-model
  compress-model completions zsh > ~/.zfunc/_compress-model
  compress-model completions fish > ~/.config/fish/completions/compress-model.fish";

const MANUAL_EXAMPLES: &str = "\
Examples:
  compress-model man ~/.local/share/man/man1
  man compress-model-reduce";

#[derive(Debug, Args)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub(super) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = MANUAL_EXAMPLES)]
pub(super) struct Manual {
    /// The folder that the pages go to, one for each command.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub(super) fn completions(
    arguments: &Completions,
    mut command: clap::Command,
    printer: &Printer,
) -> anyhow::Result<()> {
    let mut script = Vec::new();
    let name = command.get_name().to_string();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    printer.line(String::from_utf8(script)?.trim_end())
}

pub(super) fn manual(
    arguments: &Manual,
    command: clap::Command,
    printer: &Printer,
) -> anyhow::Result<()> {
    let folder = &arguments.folder;
    if !folder.is_dir() {
        bail!("{}: expected a folder that exists", folder.display());
    }
    clap_mangen::generate_to(command, folder).with_context(|| folder.display().to_string())?;
    printer.line(&format!("wrote the pages to {}", folder.display()))
}
