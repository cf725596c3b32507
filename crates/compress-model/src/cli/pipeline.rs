//! `compress-model pipeline`: pretraining, reduction, extraction, main training, and what it is to
//! be compared with.

mod report;
mod settings;
mod study;

use std::path::PathBuf;

use clap::Args;
use hankelite_train::Place;
use report::Report;
use settings::Config;
use study::{Study, Tools};

use crate::cli::printer::Printer;
use crate::cli::training;

const EXAMPLES: &str = "\
Examples:
  compress-model pipeline digits.toml --output runs/digits
  compress-model pipeline digits.toml --output runs/digits --resume
  compress-model pipeline digits.toml --output runs/digits --resume --report

CONFIG has the keys `seeds` and `arms` and the tables [model] or `checkpoint`, [data], [pretrain],
[reduce] and [train]; docs/pipeline.md has all keys with defaults and ranges. For every seed:
pretraining, then for every order reduction and main training of every arm. The folder gets
report.md, report.json and report.svg. Ctrl-C ends the step and the run, with exit code 130;
--resume goes on, to the same bytes.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The settings: a TOML file.
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// The folder of all runs.
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Go on with what is in that folder.
    #[arg(long)]
    resume: bool,
    /// Report what is finished, train nothing.
    #[arg(long, requires = "resume")]
    report: bool,
    /// Where to train: cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Place,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let config: Config = training::parse(&arguments.config)?;
    config.check()?;
    training::require_folder(&arguments.output, arguments.resume)?;
    let text = toml::to_string(&config)?;
    let mut rows = Vec::new();
    if arguments.report {
        let root = training::folder(&arguments.output, &text, true)?;
        rows = study::finished(&config, root.path())?;
        return Report::new(&config, rows).finish(&root, printer);
    }
    // Whether the device is there is known before data are read.
    arguments.device.open()?;
    let tools = Tools {
        device: arguments.device,
        printer,
        stop: training::stop_on_interrupt(printer)?,
    };
    let mut root = None;
    for &seed in &config.seeds {
        let sets = config.data.read(seed, printer)?;
        let prepared = Study::prepare(&config, seed, &sets, &arguments.output, &tools)?;
        // What cannot work is known before the folder is made.
        let root = match &root {
            Some(root) => root,
            None => root.insert(training::folder(
                &arguments.output,
                &text,
                arguments.resume,
            )?),
        };
        let study = prepared.pretrained(root.path())?;
        rows.extend(study.rows()?);
        Report::new(&config, rows.clone()).keep(root)?;
    }
    match &root {
        Some(root) => Report::new(&config, rows).finish(root, printer),
        None => Ok(()),
    }
}
