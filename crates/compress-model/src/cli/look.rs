//! A file without a command: what it is, in three lines, and which command is next.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Args;
use hankelite::advanced::read_dynamics;
use hankelite::checkpoint::Checkpoint;
use serde::Serialize;

use crate::cli::common::{Declarations, Input, grouped, quoted};
use crate::cli::image::is_image;
use crate::cli::printer::Printer;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    declarations: Declarations,
}

#[derive(Serialize)]
struct Document {
    file: String,
    found: String,
    known: String,
    next: String,
}

/// The command that looks at a file.
const NAME: &str = "look";

/// What people type in place of a command: `help reduce`, or a file alone.
pub(super) fn natural(mut arguments: Vec<OsString>, commands: &clap::Command) -> Vec<OsString> {
    let Some(first) = arguments.get(1).cloned() else {
        return arguments;
    };
    if first == "help" {
        arguments.remove(1);
        arguments.push("--help".into());
        return arguments;
    }
    if commands.find_subcommand(&first).is_none() && is_file(&first) {
        arguments.insert(1, NAME.into());
    }
    arguments
}

/// Whether a word is meant as a file: one that is not there is named as such.
fn is_file(word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    !text.starts_with('-') && (text.contains(['.', '/']) || Path::new(word).exists())
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let document = match is_image(path) {
        true => of_image(path),
        false => of_checkpoint(
            path,
            &read_dynamics(path, &arguments.declarations.declared())?,
            &arguments.declarations.typed(),
        ),
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    printer.heading(&format!("{}: {}", document.file, document.found))?;
    printer.line(&document.known)?;
    printer.line(&format!("next: {}", document.next))
}

fn of_image(path: &Path) -> Document {
    let file = path.display().to_string();
    Document {
        found: "an image of `pack` or `reduce --image`, which devices run".to_string(),
        known: "`evaluate --data DATA` scores it, `bench` times a step".to_string(),
        next: format!("compress-model stream {}", quoted(&file)),
        file,
    }
}

fn of_checkpoint(path: &Path, checkpoint: &Checkpoint, declared: &str) -> Document {
    let file = path.display().to_string();
    let blocks = checkpoint.model.blocks();
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let channels = blocks.first().map_or(0, |block| block.channels());
    let orders = blocks.iter().flat_map(|block| block.systems());
    let states = orders.map(|system| system.order()).max().unwrap_or(0);
    let shared = match checkpoint.model.is_bank() {
        true => "states each",
        false => "modes",
    };
    let bytes = std::fs::metadata(path).ok().filter(|found| found.is_file());
    let bytes = bytes.map_or(String::new(), |found| {
        format!(", {} bytes", grouped(found.len() as usize))
    });
    let found = format!(
        "{}, {} layer{} of {channels} channels with {states} {shared}, {} parameters{bytes}",
        checkpoint.family(),
        blocks.len(),
        plural(blocks.len()),
        grouped(checkpoint.parameters_of_file()),
    );
    let assumed = match checkpoint.assumptions() {
        [] => String::new(),
        assumptions => format!(" (assumed: {})", assumptions.join("; ")),
    };
    let typed = quoted(&file);
    let (known, next) = match checkpoint.is_network() {
        false => (
            "no network around the layers is known: they can be inspected and reduced, and calibrated on inputs \
             that PyTorch or JAX captures (docs/calibrate-your-own-network.md)"
                .to_string(),
            format!("compress-model inspect {typed}{declared}"),
        ),
        true => (
            format!("the whole network is understood{assumed}"),
            format!("compress-model reduce {typed} --data DATA{declared}"),
        ),
    };
    Document {
        file,
        found,
        known,
        next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_alone_is_looked_at_and_help_is_an_option() {
        let commands = clap::Command::new("x").subcommand(clap::Command::new("reduce"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.pth");
        std::fs::write(&file, "").unwrap();
        let made = |words: &[&str]| {
            let words = words.iter().map(OsString::from).collect();
            let made = natural(words, &commands).into_iter();
            made.map(|word| word.into_string().unwrap())
                .collect::<Vec<_>>()
        };
        let path = file.to_str().unwrap();
        assert_eq!(made(&["x", path, "-q"]), ["x", "look", path, "-q"]);
        assert_eq!(made(&["x", "help", "reduce"]), ["x", "reduce", "--help"]);
        assert_eq!(made(&["x", "help"]), ["x", "--help"]);
        assert_eq!(made(&["x", "none.pth"]), ["x", "look", "none.pth"]);
        for same in [
            &["x", "reduce"][..],
            &["x", "--help"],
            &["x", "none"],
            &["x"],
        ] {
            assert_eq!(made(same), same);
        }
    }
}
