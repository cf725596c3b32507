//! The program `compress-model`: the only place where the rooms meet.
//!
//! Data go to stdout, messages to stderr. Exit codes: 0 done, 1 the run failed, 2 wrong usage,
//! 130 a training was interrupted.

mod arduino;
mod bench;
mod bounds;
mod c_header;
mod calibrate;
mod calibration;
mod check;
mod common;
mod compare;
mod convert;
mod data;
#[cfg(feature = "train")]
mod design;
mod endings;
mod evaluate;
mod export;
mod folders;
mod image;
mod inspect;
mod look;
mod pack;
mod parts;
mod picture;
#[cfg(feature = "train")]
mod pipeline;
#[cfg(feature = "train")]
mod pretrain;
mod printer;
mod progress;
mod quantities;
mod reduce;
mod report;
#[cfg(feature = "train")]
mod retrain;
mod samples;
mod score;
mod shell;
mod stream;
mod sweep;
mod table;
#[cfg(feature = "train")]
mod terms;
#[cfg(feature = "train")]
mod training;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use hankelite::checkpoint::CheckpointError;
use hankelite::compress::CompressError;
use hankelite_archive::ArchiveError;
use hankelite_control::{ControlError, SystemError};
use hankelite_data::DataError;
use printer::Printer;

/// Makes pretrained diagonal state space models (S4D, DSS, S5, LRU) smaller by balanced truncation, and
/// writes them back in the layout they came from.
#[derive(Debug, Parser)]
#[command(
    name = "compress-model",
    version,
    after_help = EXAMPLES,
    max_term_width = 100,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

const EXAMPLES: &str = "\
Examples:
  compress-model ./model.pth
  compress-model reduce model.pth --data mnist:data/mnist
  compress-model reduce model.pth --order 8 --output small.pth
  compress-model sweep model.pth --calibrate mnist:data/mnist --data mnist:data/mnist
  compress-model reduce model.pth --calibrate mnist:data/mnist --budget 0.125 --output small.pth
  compress-model evaluate small.pth --data mnist:data/mnist
  compress-model evaluate model.pth --against small.pth --data test.safetensors
  compress-model data adding:length=200

`compress-model COMMAND -h` shows the options of one command that matter most, `--help` all of them.

Results go to stdout, messages to stderr. Exit codes: 0 done; 1 the input or the run failed, with
the file, what was found and what was expected on stderr; 2 wrong usage; 130 a training was
interrupted, and `--resume` goes on. With `--format json` results are one document on stdout and
an error is one on stderr, each with a `schema_version`.";

/// The commands in groups, as `compress-model --help` lists them.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Look and make smaller",
        &[
            "inspect",
            "reduce",
            "sweep",
            "evaluate",
            "report",
            "calibrate",
            "compare",
            "convert",
        ],
    ),
    (
        "Run on a device",
        &["pack", "export", "stream", "bench", "check"],
    ),
    ("Train", &["retrain", "pretrain", "pipeline"]),
    ("More", &["data", "bounds", "completions", "man"]),
];

/// The program's commands, listed in groups: clap lists them in one.
fn commands() -> clap::Command {
    let command = Cli::command();
    let about = |name: &str| {
        let found = command.get_subcommands().find(|c| c.get_name() == name)?;
        Some(found.get_about()?.to_string())
    };
    let mut listed = String::new();
    for (title, names) in GROUPS {
        let known = names.iter().filter_map(|name| Some((name, about(name)?)));
        let lines: Vec<String> = known
            .map(|(name, about)| format!("  {name:<12} {about}\n"))
            .collect();
        if !lines.is_empty() {
            listed.push_str(&format!("\n{title}:\n{}", lines.concat()));
        }
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{listed}\nOptions:\n{{options}}{{after-help}}"
    ))
}

#[derive(Debug, clap::Args)]
struct Global {
    /// How results are printed on stdout.
    #[arg(long, value_enum, default_value_t = Format::Human, global = true)]
    format: Format,
    /// When to use colour. `auto` follows NO_COLOR and the terminal.
    #[arg(hide_short_help = true, long, value_enum, default_value_t = Colour::Auto, global = true)]
    color: Colour,
    /// Threads to use; 0 takes all cores.
    #[arg(hide_short_help = true, long, default_value_t = 0, value_name = "N", global = true,
          value_parser = clap::value_parser!(u16).range(..=1024))]
    threads: u16,
    /// Print nothing on stderr but errors.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Print the tables of single layers too, where results are summarised.
    #[arg(long, short, global = true)]
    verbose: bool,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables for a person.
    Human,
    /// One JSON document.
    Json,
}

/// When colour is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show layers, states, stability and Hankel singular values.
    Inspect(inspect::Arguments),
    /// Make the model smaller: states, or states and maps together, in a checkpoint and an image.
    #[command(aliases = ["compress", "shrink"])]
    Reduce(Box<reduce::Arguments>),
    /// What a file is, in three lines: the same as the file alone.
    #[command(hide = true)]
    Look(look::Arguments),
    /// Measure the inputs of all layers on unlabelled sequences, and keep their statistics.
    Calibrate(calibrate::Arguments),
    /// Size against error (and accuracy) in one run: which size to take.
    Sweep(sweep::Arguments),
    /// All methods side by side at equal states.
    Compare(compare::Arguments),
    /// Run the classifier on data, or compare two checkpoints.
    Evaluate(evaluate::Arguments),
    /// Show one model, or two side by side, as a page for a browser.
    Report(report::Arguments),
    /// Train a network from a random start.
    #[cfg(feature = "train")]
    Pretrain(pretrain::Arguments),
    /// Train a checkpoint further, e.g. a reduced one.
    #[cfg(feature = "train")]
    Retrain(retrain::Arguments),
    /// Pretrain, reduce and retrain in one run, and train the same network from other starts to compare.
    #[cfg(feature = "train")]
    Pipeline(pipeline::Arguments),
    /// The same systems in the tensors of another family.
    Convert(convert::Arguments),
    /// Take samples from a pipe or a sound file and write outputs as they come.
    Stream(stream::Arguments),
    /// Time a step, beside the time that reading its bytes takes.
    Bench(bench::Arguments),
    /// Whether a model keeps within bytes and accuracy: exit code 1 where it does not.
    Check(check::Arguments),
    /// Write the image that a device runs, with maps of 16, 8, 4, 3 or 2 bits where requested.
    Pack(pack::Arguments),
    /// Write the network as an ONNX file, for ONNX Runtime and others: one step, or whole sequences.
    Export(export::Arguments),
    /// Error, complexity and risk bounds, of a checkpoint or from given numbers.
    Bounds(bounds::Arguments),
    /// Describe a data set or a generated task, or write it as arrays.
    Data(data::Arguments),
    /// Print the completions of a shell.
    Completions(shell::Completions),
    /// Write the manual pages.
    Man(shell::Manual),
}

/// Runs the program with the given arguments, the first being its name. Returns the exit code:
/// 0 done, 1 failed, 2 wrong usage, 130 interrupted.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = look::natural(arguments.into_iter().collect(), &commands());
    let parsed = commands().try_get_matches_from(&arguments);
    let parsed = parsed.and_then(|matches| {
        let name = matches.subcommand_name().unwrap_or_default().to_string();
        Ok((Cli::from_arg_matches(&matches)?, name))
    });
    let (cli, name) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            usage(&error, &arguments);
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let printer = Printer::new(&cli.global);
    #[cfg(feature = "train")]
    match cli.command {
        Command::Pretrain(_) | Command::Retrain(_) | Command::Pipeline(_) => {
            hankelite_train::keep_freed_memory();
        }
        _ => hankelite_train::give_back_freed_memory(),
    }
    let outcome = in_pool(cli.global.threads, || dispatch(&cli.command, &printer));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let kind = match error.is::<common::Usage>() {
                true => "usage",
                false => "run",
            };
            printer.error(kind, &error, hint(&error, &name).as_deref());
            exit_code(&error)
        }
    }
}

/// Prints what clap has to say: help and the version too, which are no errors. A closed pipe is
/// none either.
fn usage(error: &clap::Error, arguments: &[OsString]) {
    let json = arguments.windows(2).any(|two| two == ["--format", "json"])
        || arguments.iter().any(|one| one == "--format=json");
    if json && error.use_stderr() {
        let text = error.to_string();
        let message = text.trim_start_matches("error: ").trim_end();
        let failure = printer::failure("usage", message, None);
        let _ = writeln!(std::io::stderr(), "{failure}");
    } else {
        let _ = error.print();
    }
}

/// What a program ended by Ctrl-C gives back by convention: 128 and the number of the signal.
#[cfg(feature = "train")]
const INTERRUPTED: u8 = 130;

fn exit_code(error: &anyhow::Error) -> ExitCode {
    #[cfg(feature = "train")]
    if error.is::<training::Interrupted>() {
        return ExitCode::from(INTERRUPTED);
    }
    match error.is::<common::Usage>() {
        true => ExitCode::from(2),
        false => ExitCode::FAILURE,
    }
}

fn dispatch(command: &Command, printer: &Printer) -> anyhow::Result<()> {
    match command {
        Command::Inspect(arguments) => inspect::run(arguments, printer),
        Command::Reduce(arguments) => reduce::run(arguments, printer),
        Command::Look(arguments) => look::run(arguments, printer),
        Command::Calibrate(arguments) => calibrate::run(arguments, printer),
        Command::Sweep(arguments) => sweep::run(arguments, printer),
        Command::Compare(arguments) => compare::run(arguments, printer),
        Command::Evaluate(arguments) => evaluate::run(arguments, printer),
        Command::Report(arguments) => report::run(arguments, printer),
        #[cfg(feature = "train")]
        Command::Pretrain(arguments) => pretrain::run(arguments, printer),
        #[cfg(feature = "train")]
        Command::Retrain(arguments) => retrain::run(arguments, printer),
        #[cfg(feature = "train")]
        Command::Pipeline(arguments) => pipeline::run(arguments, printer),
        Command::Convert(arguments) => convert::run(arguments, printer),
        Command::Stream(arguments) => stream::run(arguments, printer),
        Command::Bench(arguments) => bench::run(arguments, printer),
        Command::Check(arguments) => check::run(arguments, printer),
        Command::Pack(arguments) => pack::run(arguments, printer),
        Command::Export(arguments) => export::run(arguments, printer),
        Command::Bounds(arguments) => bounds::run(arguments, printer),
        Command::Data(arguments) => data::run(arguments, printer),
        Command::Completions(arguments) => shell::completions(arguments, commands(), printer),
        Command::Man(arguments) => shell::manual(arguments, commands(), printer),
    }
}

/// Runs the work on its own pool, so that `--threads` leaves no global state behind.
fn in_pool(threads: u16, work: impl FnOnce() -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.into())
        .build()?;
    pool.install(work)
}

/// The way out of an error of a command.
fn hint(error: &anyhow::Error, command: &str) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(ControlError::System(SystemError::Unstable { .. })) = cause.downcast_ref() {
            let hint = "`reduce --unstable --length L` keeps the first L kernel samples instead";
            return Some(hint.to_string());
        }
        if let Some(CompressError::SharedGrowing(_)) = cause.downcast_ref() {
            let hint =
                "an S5 layer that was trained with clip_eigs is read so by `--clip-eigs true`";
            return Some(hint.to_string());
        }
        if let Some(ArchiveError::MissingFolder { folder, .. }) = cause.downcast_ref() {
            return Some(match folders::takes_folders(&commands(), command) {
                true => format!("{} --create-folders", report::typed_command()),
                false => format!("mkdir -p {}", common::quoted(&folder.display().to_string())),
            });
        }
        if let Some(ArchiveError::ForeignEnding { path, ending, .. }) = cause.downcast_ref() {
            return Some(endings::hint(path, ending, command));
        }
        if let Some(error) = cause.downcast_ref::<DataError>() {
            return error.hint().map(str::to_string);
        }
        if cause.is::<image::LayersAlone>() {
            return Some(image::LayersAlone::HINT.to_string());
        }
        if let Some(CheckpointError::Content(content)) = cause.downcast_ref()
            && !content.parts().is_empty()
        {
            return Some(parts::each(content.parts()));
        }
        #[cfg(feature = "train")]
        if cause.is::<training::Interrupted>() {
            return Some("the same command with --resume goes on".to_string());
        }
        cause.downcast_ref::<CheckpointError>()?.hint()
    })
}
