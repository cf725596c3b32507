//! What the commands share that reduce a model for its input.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, ValueEnum};
use hankelite::calibrate::{Calibration, Importance, Prepared, Settings, WeightChoice};
use hankelite::checkpoint::Checkpoint;
use hankelite::compress::Allocation;
use hankelite::model::{Model, Sequence};
use hankelite_archive::check_destination;
use hankelite_control::{Refinement, h2_norm};
use hankelite_data::{Dataset, Source, Split};

use crate::cli::common::positive;
use crate::cli::printer::Printer;

/// Fewer sequences than this get a remark.
const SEQUENCES_FEW: usize = 10;

/// The share of a kernel's energy that may lie beyond the sequences without a remark.
const BEYOND: f64 = 0.01;

/// Where the calibration sequences come from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Calibration")]
pub(super) struct Sequences {
    /// How many sequences are used, chosen by --calibration-seed.
    #[arg(long = "sequences", value_name = "N", default_value = "100", value_parser = positive)]
    count: usize,
    /// Chooses the sequences.
    #[arg(long, value_name = "S", default_value_t = 0)]
    calibration_seed: u64,
    /// The part of the data they come from [default: train, where there are parts].
    #[arg(long, value_enum)]
    calibration_split: Option<Part>,
}

/// How a calibrated reduction goes about it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Calibration")]
pub(super) struct Ways {
    #[command(flatten)]
    sequences: Sequences,
    /// What stands for the input: exact moments of the sequences, or the spectrum of a stationary
    /// input with the same autocorrelation.
    #[arg(long, value_enum, default_value_t = Weight::Auto, requires = "calibrate")]
    weight: Weight,
    /// How far truncated channels are refined: alone, in the weighted error, and then together, in
    /// the logits of the calibration sequences.
    #[arg(long, value_enum, default_value_t = Refine::Logits, requires = "calibrate")]
    refine: Refine,
    /// How states are shared [default: uniform for --order, channel for --budget and --max-error].
    #[arg(long, value_enum, requires = "calibrate")]
    allocate: Option<Allocate>,
    /// What counts when states are shared.
    #[arg(long, value_enum, default_value_t = Count::Auto, requires = "calibrate")]
    importance: Count,
    /// Reduce each layer again for what it hears in the reduced network, and keep that where the
    /// logits come nearer.
    #[arg(long, requires = "calibrate")]
    sequential: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    Train,
    Validation,
    Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weight {
    /// Moments where sequences are at hand and they fit into 1 GiB, else the spectrum.
    Auto,
    Moments,
    Spectrum,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Refine {
    /// Truncation only.
    None,
    /// Residues and D by least squares.
    Residues,
    /// Poles too, by Gauss-Newton.
    Full,
    /// Then the residues and D of all channels together, where sequences and pooled logits are at
    /// hand.
    Logits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Allocate {
    /// The same order everywhere.
    Uniform,
    /// One order per layer, none below half the mean.
    Layer,
    /// One order per channel.
    Channel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Count {
    /// Try the others and factors on layers; take what moves the logits of the calibration
    /// sequences least. Equal without sequences.
    Auto,
    /// Output errors count the same everywhere.
    Equal,
    /// By the root of `gradient`.
    Root,
    /// By how much the logits feel them.
    Gradient,
}

impl Ways {
    pub(super) fn weight(&self) -> WeightChoice {
        match self.weight {
            Weight::Auto => WeightChoice::Auto,
            Weight::Moments => WeightChoice::Moments,
            Weight::Spectrum => WeightChoice::Spectrum,
        }
    }

    pub(super) fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// Settings with what the arguments say.
    pub(super) fn apply(&self, settings: &mut Settings) {
        settings.refinement = match self.refine {
            Refine::None => Refinement::None,
            Refine::Residues => Refinement::Residues,
            Refine::Full | Refine::Logits => Refinement::Full,
        };
        settings.fit_logits = self.refine == Refine::Logits;
        if let Some(allocate) = self.allocate {
            settings.allocation = match allocate {
                Allocate::Uniform => Allocation::Uniform,
                Allocate::Layer => Allocation::Layer,
                Allocate::Channel => Allocation::Channel,
            };
        }
        settings.importance = match self.importance {
            Count::Auto => Importance::Auto,
            Count::Equal => Importance::Equal,
            Count::Root => Importance::Root,
            Count::Gradient => Importance::Gradient,
        };
        settings.sequential = self.sequential;
    }

    /// Whether every channel is requested to keep the same order.
    pub(super) fn uniform(&self) -> bool {
        self.allocate == Some(Allocate::Uniform)
    }

    /// The arguments as one would type them, without those that say the default.
    pub(super) fn typed(&self) -> String {
        let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            value().map_or(String::new(), |value| value.get_name().to_string())
        };
        let mut typed = String::new();
        let mut say = |text: String| {
            typed.push(' ');
            typed.push_str(&text);
        };
        if self.sequences.count != 100 {
            say(format!("--sequences {}", self.sequences.count));
        }
        if self.sequences.calibration_seed != 0 {
            say(format!(
                "--calibration-seed {}",
                self.sequences.calibration_seed
            ));
        }
        if let Some(part) = self.sequences.calibration_split {
            say(format!(
                "--calibration-split {}",
                name(&|| part.to_possible_value())
            ));
        }
        if self.weight != Weight::Auto {
            say(format!(
                "--weight {}",
                name(&|| self.weight.to_possible_value())
            ));
        }
        if self.refine != Refine::Logits {
            say(format!(
                "--refine {}",
                name(&|| self.refine.to_possible_value())
            ));
        }
        if let Some(allocate) = self.allocate {
            say(format!(
                "--allocate {}",
                name(&|| allocate.to_possible_value())
            ));
        }
        if self.importance != Count::Auto {
            say(format!(
                "--importance {}",
                name(&|| self.importance.to_possible_value())
            ));
        }
        if self.sequential {
            say("--sequential".to_string());
        }
        typed
    }
}

/// Statistics of what a model hears, and the sequences where they are at hand.
pub(super) struct CalibrationData {
    pub(super) calibration: Calibration,
    data: Option<Dataset>,
}

impl CalibrationData {
    /// From a data source, or from a file that `calibrate` wrote.
    pub(super) fn open(
        source: &str,
        sequences: &Sequences,
        checkpoint: &Checkpoint,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let file = Path::new(source);
        if file.is_file() && Calibration::is_file_of(file) {
            let calibration = Calibration::read(file)?;
            calibration.check(&checkpoint.model)?;
            return Ok(Self {
                calibration,
                data: None,
            });
        }
        let source: Source = source.parse()?;
        let (data, origin) = read(&source, sequences, printer)?;
        let length = data.length();
        let listed: Vec<Sequence<'_>> = (0..data.len()).map(|i| data.unpadded(i)).collect();
        let calibration = Calibration::gather(&checkpoint.model, length, &listed, &origin)?;
        remark_on_length(&checkpoint.model, length, printer);
        Ok(Self {
            calibration,
            data: Some(data),
        })
    }

    /// The sequences; none where only their statistics are known.
    pub(super) fn listed(&self) -> Vec<Sequence<'_>> {
        match &self.data {
            Some(data) => (0..data.len()).map(|i| data.unpadded(i)).collect(),
            None => Vec::new(),
        }
    }
}

/// Balances the channels of a checkpoint for what they hear, with a spinner.
pub(super) fn prepare<'a>(
    checkpoint: &'a Checkpoint,
    heard: &'a CalibrationData,
    listed: &'a [Sequence<'a>],
    ways: &Ways,
    printer: &Printer,
) -> anyhow::Result<Prepared<'a>> {
    let spinner = printer.spinner("balancing channels for what they hear");
    let model = &checkpoint.model;
    let prepared = Prepared::new(model, &heard.calibration, listed, ways.weight());
    spinner.finish_and_clear();
    Ok(prepared?)
}

fn read(
    source: &Source,
    sequences: &Sequences,
    printer: &Printer,
) -> anyhow::Result<(Dataset, String)> {
    let requested = sequences.calibration_split.map(|part| match part {
        Part::Train => Split::Train,
        Part::Validation => Split::Validation,
        Part::Test => Split::Test,
    });
    let split = requested.or_else(|| {
        source
            .splits()
            .contains(&Split::Train)
            .then_some(Split::Train)
    });
    let data = Dataset::read(source, split)?;
    let count = sequences.count.min(data.len());
    let part = split.map_or(String::new(), |split| format!(" ({split})"));
    let origin = format!(
        "{count} sequences of {source}{part}, seed {}",
        sequences.calibration_seed
    );
    if count < sequences.count {
        let text = format!(
            "{source} has {count} sequences, {} were requested",
            sequences.count
        );
        printer.note("note", &text);
    }
    if count < SEQUENCES_FEW {
        let text = format!("{count} calibration sequences are few: take {SEQUENCES_FEW} or more");
        printer.note("note", &text);
    }
    if count == 0 {
        bail!("{source} has no sequences");
    }
    Ok((data.sample(count, sequences.calibration_seed)?, origin))
}

/// Says so when kernels are longer than the sequences: what comes later is not heard.
fn remark_on_length(model: &Model, length: usize, printer: &Printer) {
    let systems = model.blocks().iter().flat_map(|block| block.systems());
    let needed = systems.filter_map(|system| {
        let whole = h2_norm(system.stable().ok()?).ok()?.powi(2);
        let reaches = |steps: usize| {
            let kernel = system.kernel(steps).ok()?;
            let energy: f64 = kernel.iter().map(|k| k * k).sum();
            Some(whole - energy <= BEYOND * whole)
        };
        let doubled = std::iter::successors(Some(length), |steps| Some(2 * steps));
        let mut few = doubled.take(8);
        few.find(|&steps| reaches(steps) == Some(true))
            .or(Some(length << 8))
    });
    let longest = needed.max().unwrap_or(length);
    if longest > length {
        let text = format!(
            "kernels reach beyond the calibration sequences: {length} steps, up to {longest} would \
             hold 99 % of every kernel"
        );
        printer.note("note", &text);
    }
}

/// Whether a picture may be written, before long work.
pub(super) fn check_picture(
    picture: Option<&Path>,
    checkpoint: &Path,
    calibrate: &str,
    data: Option<&Source>,
) -> anyhow::Result<()> {
    let Some(picture) = picture else {
        return Ok(());
    };
    let source = source_path(calibrate);
    let mut inputs = vec![checkpoint];
    inputs.extend(source.as_deref());
    inputs.extend(data.and_then(Source::path));
    Ok(check_destination(picture, &inputs)?)
}

/// The path of a source if it is one, so that it is not overwritten.
pub(super) fn source_path(source: &str) -> Option<PathBuf> {
    let path = PathBuf::from(source);
    path.is_file().then_some(path)
}
