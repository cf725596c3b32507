//! `--create-folders`, for commands that write files.

use std::fs::create_dir_all;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};

/// Whether missing folders are made.
#[derive(Debug, Clone, Args)]
pub(super) struct Folders {
    /// Make the folders of the files to be written where they do not exist.
    #[arg(hide_short_help = true, long)]
    create_folders: bool,
}

impl Folders {
    /// Makes the folders of files, if requested. It comes before the check of destinations, which
    /// refuses what is in a missing folder.
    pub(super) fn make<'a>(
        &self,
        files: impl IntoIterator<Item = &'a PathBuf>,
    ) -> anyhow::Result<()> {
        let folders = files.into_iter().filter_map(|file| file.parent());
        for folder in folders.filter(|_| self.create_folders) {
            if !folder.as_os_str().is_empty() {
                made(folder)?;
            }
        }
        Ok(())
    }
}

fn made(folder: &Path) -> anyhow::Result<()> {
    let shown = || format!("{}: the folder cannot be made", folder.display());
    create_dir_all(folder).with_context(shown)
}

/// Whether a command takes the option.
pub(super) fn takes_folders(program: &Command, name: &str) -> bool {
    let command = program.find_subcommand(name);
    command.is_some_and(|command| {
        let mut arguments = command.get_arguments();
        arguments.any(|argument| argument.get_id() == "create_folders")
    })
}
