//! `compress-model pipeline`: pretraining, reduction, extraction, main training, and what it is to
//! be compared with.

mod page;
mod report;
mod settings;
mod study;

use std::path::PathBuf;

use clap::Args;
use hankelite_archive::check_destination;
use hankelite_data::Source;
use hankelite_train::{Folder, Place};
use page::Results;
use report::Report;
use settings::Config;
use study::{Record, Study, Tools};

use crate::cli::folders::Folders;
use crate::cli::printer::Printer;
use crate::cli::report::{ReportFile, write_page};
use crate::cli::training;

const EXAMPLES: &str = "\
Examples:
  compress-model pipeline digits.toml --output runs/digits
  compress-model pipeline digits.toml --output runs/digits --resume
  compress-model pipeline digits.toml --output runs/digits --resume --finished --report digits.html

CONFIG has the keys `seeds` and `arms` and the tables [model] or `checkpoint`, [data], [pretrain],
[reduce] and [train]; docs/pipeline.md has all keys with defaults and ranges. For every seed:
pretraining, then for every order reduction and main training of every arm. The folder gets
report.md, report.json and report.svg; --report makes a page for a browser. Ctrl-C ends the step and the run, with exit code 130;
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
    /// Show what is finished, train nothing.
    #[arg(long, requires = "resume")]
    finished: bool,
    #[command(flatten)]
    report: ReportFile,
    #[command(flatten)]
    folders: Folders,
    /// Where to train: cpu, cuda or cuda:N; cuda needs a program built with the feature `cuda`.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Place,
}

impl Arguments {
    /// Refuses a page in the place of what is read.
    fn check(&self, config: &Config) -> anyhow::Result<()> {
        self.folders.make(&self.report.path)?;
        let source: Source = config.data.source.parse()?;
        let mut inputs = vec![self.config.as_path()];
        inputs.extend(config.checkpoint.as_deref());
        inputs.extend(source.path());
        match &self.report.path {
            Some(page) => Ok(check_destination(page, &inputs)?),
            None => Ok(()),
        }
    }

    /// Writes the report of what there is so far.
    fn keep(&self, config: &Config, records: &[Record], root: &Folder) -> anyhow::Result<Report> {
        let rows = records.iter().map(|record| record.row.clone());
        let mut report = Report::new(config, rows.collect());
        report.keep(root)?;
        if let Some(file) = &self.report.path {
            let results = Results {
                settings: (&self.config, config),
                root: root.path(),
                report: &report,
                records,
            };
            report.report = Some(write_page(&results.page()?, file)?);
        }
        Ok(report)
    }
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let config: Config = training::parse(&arguments.config)?;
    config.check()?;
    arguments.check(&config)?;
    training::require_folder(&arguments.output, arguments.resume)?;
    let text = toml::to_string(&config)?;
    if arguments.finished {
        let root = training::folder(&arguments.output, &text, true)?;
        let records = study::finished(&config, root.path())?;
        let report = arguments.keep(&config, &records, &root)?;
        return report.show(&root, printer);
    }
    // Whether the device is there is known before data are read.
    arguments.device.open()?;
    let tools = Tools {
        device: arguments.device,
        printer,
        stop: training::stop_on_interrupt(printer)?,
    };
    let (mut root, mut records, mut report) = (None, Vec::new(), None);
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
        records.extend(study.records()?);
        report = Some(arguments.keep(&config, &records, root)?);
    }
    match (&root, report) {
        (Some(root), Some(report)) => report.show(root, printer),
        _ => Ok(()),
    }
}
