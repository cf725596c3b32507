//! What the commands share that reduce a model for its input.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hankelite::calibrate::{CalibratedReduction, Calibration, Importance, Settings, WeightChoice};
use hankelite::checkpoint::Checkpoint;
use hankelite::compress::{Allocation, kernel_distance};
use hankelite::infer::{Network, Path as InferPath};
use hankelite::model::{Model, Sequence};
use hankelite_archive::check_destination;
use hankelite_control::{Refinement, h2_norm};
use hankelite_data::{Dataset, Source, Split};

use crate::cli::common::{SPLITS, Word, positive, word, word_of, words};
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;

/// Fewer sequences than this get a remark.
const SEQUENCES_FEW: usize = 10;

/// Of a reduction to a target, every so many calibration sequences one is kept out of all choices
/// and fits.
const HELD_OUT_EVERY: usize = 5;

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
    #[arg(long, value_parser = words::<Split>(SPLITS))]
    calibration_split: Option<Split>,
}

/// How a calibrated reduction goes about it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Calibration")]
pub(super) struct Ways {
    #[command(flatten)]
    sequences: Sequences,
    /// What stands for the input: exact moments of the sequences, or the spectrum of a stationary
    /// input with the same autocorrelation.
    #[arg(long, default_value = "auto", requires = "calibrate",
          value_parser = words::<WeightChoice>(WEIGHTS))]
    weight: WeightChoice,
    /// How far truncated channels are refined: alone, in the weighted error, and then together, in
    /// the logits of the calibration sequences.
    #[arg(long, default_value = LOGITS, requires = "calibrate", value_parser = refine())]
    refine: Refine,
    /// How states are shared [default: uniform for --order, channel for --budget and --max-error].
    #[arg(long, requires = "calibrate", value_parser = words::<Allocation>(ALLOCATIONS))]
    allocate: Option<Allocation>,
    /// What counts when states are shared.
    #[arg(long, default_value = "auto", requires = "calibrate",
          value_parser = words::<Importance>(IMPORTANCES))]
    importance: Importance,
    /// Reduce each layer again for its input in the reduced network, and keep that where the logits
    /// come nearer.
    #[arg(long, requires = "calibrate")]
    sequential: bool,
}

const WEIGHTS: [Word; 3] = [
    word(
        "auto",
        "Moments where sequences are at hand and they fit into 1 GiB, else the spectrum",
    ),
    word("moments", "Exact second moments of the sequences"),
    word(
        "spectrum",
        "The spectrum of a stationary input with the same autocorrelation",
    ),
];

const ALLOCATIONS: [Word; 3] = [
    word("uniform", "The same order everywhere"),
    word("layer", "One order per layer, none below half the mean"),
    word("channel", "One order per channel"),
];

const IMPORTANCES: [Word; 4] = [
    word(
        "auto",
        "Try the others and factors on layers; take what changes the logits of the calibration \
         sequences least. Equal without sequences",
    ),
    word("equal", "Output errors count the same everywhere"),
    word("root", "By the root of `gradient`"),
    word(
        "gradient",
        "By the gradient of the logits with respect to the channel's output",
    ),
];

const REFINEMENTS: [Word; 4] = [
    word("none", "Truncation only"),
    word("residues", "Residues and D by least squares"),
    word("full", "Poles too, by Gauss-Newton"),
    word(
        LOGITS,
        "Then the residues and D of all channels together, where sequences and pooled logits are \
         at hand",
    ),
];

/// The word for the fullest refinement and a fit to the logits after it.
const LOGITS: &str = "logits";

/// How far truncated channels are refined.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Refine {
    refinement: Refinement,
    fit_logits: bool,
}

fn refine() -> impl TypedValueParser<Value = Refine> {
    let parser = PossibleValuesParser::new(REFINEMENTS);
    parser.try_map(|name| {
        let fit_logits = name == LOGITS;
        let alone = if fit_logits { "full" } else { name.as_str() };
        let refinement = toml::Value::from(alone).try_into()?;
        Ok::<_, toml::de::Error>(Refine {
            refinement,
            fit_logits,
        })
    })
}

impl Ways {
    pub(super) fn weight(&self) -> WeightChoice {
        self.weight
    }

    pub(super) fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// Settings with what the arguments set.
    pub(super) fn apply(&self, settings: &mut Settings) {
        settings.refinement = self.refine.refinement;
        settings.fit_logits = self.refine.fit_logits;
        if let Some(allocation) = self.allocate {
            settings.allocation = allocation;
        }
        settings.importance = self.importance;
        settings.sequential = self.sequential;
    }

    /// Whether every channel is requested to keep the same order.
    pub(super) fn uniform(&self) -> bool {
        self.allocate == Some(Allocation::Uniform)
    }

    /// The arguments as one would type them, without those that have their default.
    pub(super) fn typed(&self) -> String {
        let Sequences {
            count,
            calibration_seed: seed,
            calibration_split: split,
        } = self.sequences;
        let value = |set: bool, value: String| set.then_some(value);
        let options = [
            ("--sequences", value(count != 100, count.to_string())),
            ("--calibration-seed", value(seed != 0, seed.to_string())),
            ("--calibration-split", split.as_ref().map(word_of)),
            (
                "--weight",
                value(self.weight != WeightChoice::Auto, word_of(&self.weight)),
            ),
            (
                "--refine",
                value(!self.refine.fit_logits, word_of(&self.refine.refinement)),
            ),
            ("--allocate", self.allocate.as_ref().map(word_of)),
            (
                "--importance",
                value(
                    self.importance != Importance::Auto,
                    word_of(&self.importance),
                ),
            ),
        ];
        let mut typed = String::new();
        for (name, value) in options {
            if let Some(value) = value {
                typed.push_str(&format!(" {name} {value}"));
            }
        }
        if self.sequential {
            typed.push_str(" --sequential");
        }
        typed
    }
}

/// Statistics of the layers' inputs, and the sequences where they are at hand.
pub(super) struct CalibrationData {
    pub(super) statistics: Calibration,
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
            let statistics = Calibration::read(file)?;
            statistics.check(&checkpoint.model)?;
            return Ok(Self {
                statistics,
                data: None,
            });
        }
        let source: Source = source.parse()?;
        let (data, origin) = read(&source, sequences, printer)?;
        let length = data.length();
        let listed: Vec<Sequence<'_>> = (0..data.len()).map(|i| data.unpadded(i)).collect();
        let bars = Bars::new(printer);
        let network = Network::new(&checkpoint.model, length, InferPath::Auto)?.observed(&bars);
        let statistics = Calibration::gather(&network, &listed, &origin)?;
        bars.clear();
        remark_on_length(&checkpoint.model, length, printer);
        Ok(Self {
            statistics,
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

/// Sequences, those that take part first.
pub(super) struct Drawn<'a> {
    pub(super) used: Vec<Sequence<'a>>,
    pub(super) held_out: Vec<Sequence<'a>>,
}

impl<'a> Drawn<'a> {
    pub(super) fn new(listed: &[Sequence<'a>]) -> Self {
        let (mut used, mut held_out) = (Vec::new(), Vec::new());
        for (index, &sequence) in listed.iter().enumerate() {
            match (index + 1) % HELD_OUT_EVERY {
                0 => held_out.push(sequence),
                _ => used.push(sequence),
            }
        }
        Self { used, held_out }
    }
}

/// Balances the channels of a checkpoint for their inputs.
pub(super) fn prepare<'a>(
    checkpoint: &'a Checkpoint,
    data: &'a CalibrationData,
    listed: &'a [Sequence<'a>],
    ways: &Ways,
    bars: &'a Bars<'_>,
) -> anyhow::Result<CalibratedReduction<'a>> {
    let (model, calibration) = (&checkpoint.model, &data.statistics);
    let weight = ways.weight();
    let balanced = CalibratedReduction::new_observed(model, calibration, listed, weight, bars)?;
    bars.clear();
    Ok(balanced)
}

fn read(
    source: &Source,
    sequences: &Sequences,
    printer: &Printer,
) -> anyhow::Result<(Dataset, String)> {
    let split = sequences.calibration_split.or_else(|| {
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

/// A note when kernels are longer than the sequences: their later samples have no weight.
fn remark_on_length(model: &Model, length: usize, printer: &Printer) {
    let systems = model.blocks().iter().flat_map(|block| block.systems());
    let needed = systems.filter_map(|system| {
        let whole = h2_norm(system.stable().ok()?).ok()?.powi(2);
        let reaches = |steps: usize| {
            let (_, norm) = kernel_distance(system, system, steps).ok()?;
            Some(whole - norm.powi(2) <= BEYOND * whole)
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
