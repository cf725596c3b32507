//! What the commands share that reduce a model for its input.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hankelite::advanced::{
    CalibratedReduction, CalibrationRun, Captured, InputScale, Settings, WeightChoice, input_scale,
    kernel_norm,
};
use hankelite::calibrate::{Calibration, Importance, TargetSize};
use hankelite::checkpoint::Checkpoint;
use hankelite::compress::Allocation;
use hankelite::infer::{Network, Path as InferPath};
use hankelite::model::{Block, Encoder, InputKind, InputSignal, Model, Sequence};
use hankelite_archive::check_destination;
use hankelite_control::Refinement;
use hankelite_data::{DataError, Dataset, Source, Split};
use serde::{Deserialize, Serialize};

use crate::cli::common::{SPLITS, Word, positive, short, word, word_of, words};
use crate::cli::picture::check_drawn;
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;

/// Fewer sequences than this get a remark.
const SEQUENCES_FEW: usize = 10;

/// The share of a kernel's energy that may lie beyond the sequences without a remark.
const BEYOND: f64 = 0.01;

/// Sequences whose scale is compared with that of training.
const SCALE_SEQUENCES: usize = 16;

/// How many times larger or smaller than in training inputs may be without a warning.
const SCALE_MAX: f64 = 2.0;

/// Where the calibration sequences come from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Calibration")]
pub(super) struct Sequences {
    /// How many sequences are used, chosen by --calibration-seed.
    #[arg(long = "sequences", value_name = "N", default_value = "100", value_parser = positive)]
    count: usize,
    /// Chooses the sequences.
    #[arg(
        hide_short_help = true,
        long,
        visible_alias = "seed",
        value_name = "S",
        default_value_t = 0
    )]
    calibration_seed: u64,
    /// The part of the data they come from [default: train, where there are parts].
    #[arg(hide_short_help = true, long, visible_alias = "split",
          value_parser = words::<Split>(SPLITS))]
    calibration_split: Option<Split>,
    /// Of these, the share that this run takes.
    #[arg(skip)]
    part: Option<Part>,
}

impl Sequences {
    /// Only this share of them.
    pub(super) fn of_part(self, part: Option<Part>) -> Self {
        Self { part, ..self }
    }

    /// The seed that draws them.
    #[cfg(feature = "train")]
    pub(super) fn seed(&self) -> u64 {
        self.calibration_seed
    }

    /// No more of them than this.
    pub(super) fn at_most(self, most: usize) -> Self {
        let count = self.count.min(most);
        Self { count, ..self }
    }

    /// The sequences of a set that has no parts, but for these.
    pub(super) fn left_of(&self, data: &Dataset) -> Result<Dataset, DataError> {
        Ok(data.hold_out(self.count, self.calibration_seed)?.0)
    }
}

/// One of several equal shares, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    number: usize,
    pub(super) of: usize,
}

impl Part {
    fn range(self, count: usize) -> std::ops::Range<usize> {
        (self.number - 1) * count / self.of..self.number * count / self.of
    }
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/');
        let numbers =
            numbers.and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { number, of }),
            _ => Err("expected K/N with K from 1 to N, e.g. 2/4".to_string()),
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "part {}/{}", self.number, self.of)
    }
}

/// How a calibrated reduction goes about it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Calibration")]
pub(super) struct Ways {
    #[command(flatten)]
    sequences: Sequences,
    /// The model of the input: exact moments of the sequences, or the spectrum of a stationary
    /// input with the same autocorrelation.
    #[arg(hide_short_help = true, long, default_value = "auto", requires = "calibrate",
          value_parser = words::<WeightChoice>(WEIGHTS))]
    weight: WeightChoice,
    /// How far truncated channels are refined: alone, in the weighted error, and then together, in
    /// the logits of the calibration sequences.
    #[arg(hide_short_help = true, long, default_value = LOGITS, requires = "calibrate", value_parser = refine())]
    refine: Refine,
    /// What counts when states are shared.
    #[arg(hide_short_help = true, long, default_value = "auto", requires = "calibrate",
          value_parser = words::<Importance>(IMPORTANCES))]
    importance: Importance,
    /// Reduce each layer again for its input in the reduced network, and keep that where the logits
    /// come nearer.
    #[arg(hide_short_help = true, long, requires = "calibrate")]
    sequential: bool,
}

/// What a smaller model is stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    File,
    Image,
}

/// How states are shared.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Calibration")]
pub(super) struct Sharing {
    /// What the smaller model is stored in, which decides how states are shared and what their
    /// number means [default: image for targets and where only --image is written, else file].
    #[arg(hide_short_help = true, long = "for", value_name = "FORM", requires = "calibrate",
          value_parser = words::<Form>(FORMS))]
    form: Option<Form>,
    /// How states are shared [default: model for --order; for other sizes layer in a file, channel
    /// in an image; without --calibrate what each channel needs].
    #[arg(hide_short_help = true, long, value_parser = words::<Allocation>(ALLOCATIONS))]
    allocate: Option<Allocation>,
}

impl Sharing {
    /// What the smaller model is stored in, where only the other arguments may decide it.
    pub(super) fn form(&self, default: Form) -> Form {
        match self.allocate {
            Some(Allocation::Channel) => Form::Image,
            _ => self.form.unwrap_or(default),
        }
    }

    /// Settings with what the arguments set, for a model that is stored so.
    ///
    /// A file stores one order for each layer at most.
    pub(super) fn apply(
        &self,
        form: Form,
        model: &Model,
        settings: &mut Settings,
    ) -> anyhow::Result<()> {
        if self.form == Some(Form::File) && self.allocate == Some(Allocation::Channel) {
            bail!(
                "--allocate channel is stored by an image only; a file stores one order for each \
                 layer: --for image, or --allocate layer"
            );
        }
        let ordered = matches!(settings.size, TargetSize::Order(_));
        if let Some(allocation) = self.allocate {
            settings.allocation = allocation;
        } else if form == Form::Image && !ordered && model.is_bank() {
            settings.allocation = Allocation::Channel;
        }
        Ok(())
    }

    /// The flag that sets how states are shared, where it is given and a model whose channels share modes
    /// does not do so anyway: its layers keep the same share, which is one order where all have one.
    pub(super) fn allocates_in(&self, model: &Model) -> Option<&'static str> {
        let mut orders = model.blocks().iter().map(Block::order);
        let first = orders.next();
        let equal = orders.all(|order| Some(order) == first);
        let anyway = self.is_one_order() && equal;
        (self.allocate.is_some() && !anyway).then_some("--allocate")
    }

    /// Whether nothing is asked for that needs calibration.
    pub(super) fn is_free_of_data(&self) -> bool {
        self.form.is_none() && matches!(self.allocate, None | Some(Allocation::Model))
    }

    /// Whether the whole model is requested to keep the same order.
    pub(super) fn is_one_order(&self) -> bool {
        self.allocate == Some(Allocation::Model)
    }

    /// The arguments as one would type them.
    pub(super) fn typed(&self) -> String {
        let form = self.form.map(|form| format!(" --for {}", word_of(&form)));
        let allocate = self.allocate.as_ref();
        let allocate = allocate.map(|way| format!(" --allocate {}", word_of(way)));
        form.unwrap_or_default() + &allocate.unwrap_or_default()
    }
}

const FORMS: [Word; 2] = [
    word(
        "file",
        "A checkpoint: every channel of a layer is padded to the largest order of the layer",
    ),
    word(
        "image",
        "What `pack`, `stream` and devices take: channels are gathered by order, four at least",
    ),
];

const WEIGHTS: [Word; 3] = [
    word(
        "auto",
        "Moments where sequences are given and they fit into 4 GiB, else the spectrum",
    ),
    word(
        "moments",
        "Exact second moments of the sequences: up to 8 GiB, beyond 64 MiB in a temporary file",
    ),
    word(
        "spectrum",
        "The spectrum of a stationary input with the same autocorrelation",
    ),
];

const ALLOCATIONS: [Word; 3] = [
    word(
        "model",
        "One order for the whole model, for modules of a single number of states: without \
         --calibrate the most that any channel needs",
    )
    .alias("uniform"),
    word("layer", "One order per layer, none below half the mean"),
    word(
        "channel",
        "One order for every four channels of a layer, gathered by what they need: images",
    ),
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
        "Then the residues and D of all channels together, where there are sequences and \
         pooled logits",
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
    /// The flag that is given and has no meaning where channels share modes.
    pub(super) fn for_banks_alone(&self) -> Option<&'static str> {
        let given = [
            ("--importance", self.importance != Importance::Auto),
            ("--sequential", self.sequential),
        ];
        given
            .into_iter()
            .find_map(|(flag, given)| given.then_some(flag))
    }

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
        settings.importance = self.importance;
        settings.sequential = self.sequential;
    }

    /// The arguments as one would type them, without those that have their default.
    pub(super) fn typed(&self) -> String {
        self.typed_with(&self.sequences)
    }

    /// The same with other sequences.
    pub(super) fn typed_with(&self, sequences: &Sequences) -> String {
        let Sequences {
            count,
            calibration_seed: seed,
            calibration_split: split,
            part: _,
        } = *sequences;
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

/// What a command needs of calibration sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needed {
    /// The statistics of the layers' inputs.
    Statistics,
    /// A reduction, which gathers its own statistics.
    Reduction,
}

impl Needed {
    /// Statistics where a page shows them.
    pub(super) fn with_page(page: bool) -> Self {
        match page {
            true => Self::Statistics,
            false => Self::Reduction,
        }
    }
}

/// Statistics of the layers' inputs where they are known, and the sequences where they are at hand.
pub(super) struct CalibrationData {
    origin: String,
    length: usize,
    pub(super) statistics: Option<Calibration>,
    data: Option<Dataset>,
    captured: Option<Captured>,
}

impl CalibrationData {
    /// From a data source, or from a file that `calibrate` wrote.
    pub(super) fn open(
        source: &str,
        sequences: &Sequences,
        checkpoint: &Checkpoint,
        needed: Needed,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let file = Path::new(source);
        if let Some([first, second]) = checkpoint.tied_layers() {
            bail!(
                "layers `{first}` and `{second}` are one in the file, but have inputs of their own: \
                 expected layers that share no tensors, or a reduction without calibration"
            );
        }
        if file.is_file() && Calibration::is_file_of(file) {
            let statistics = Calibration::read(file)?;
            statistics.check(&checkpoint.model)?;
            return Ok(Self::of_statistics(statistics));
        }
        if file.exists() && Captured::is_file_of(file, &checkpoint.model) {
            return Self::captured(file, sequences, checkpoint, printer);
        }
        if checkpoint.model.encoder().is_none() || checkpoint.model.head().is_none() {
            let first = checkpoint
                .model
                .blocks()
                .first()
                .map_or("", |block| block.name());
            bail!(
                "layers alone were read, so no sequences can be run through the network: expected \
                 statistics, or captured inputs with a tensor `{first}` (sequences, steps, channels) \
                 and so on for every layer, as docs/calibrate-your-own-network.md makes them"
            );
        }
        let source: Source = source.parse()?;
        let (data, origin) = read(&source, sequences, printer)?;
        require_axes(&checkpoint.model, &data, &source.to_string())?;
        let length = data.length();
        let listed: Vec<Sequence<'_>> = (0..data.len()).map(|i| data.unpadded(i)).collect();
        let own = sequences
            .part
            .map_or(0..listed.len(), |part| part.range(listed.len()));
        let origin = match sequences.part {
            None => origin,
            Some(part) => format!("{origin}, {part}"),
        };
        let statistics = match needed {
            Needed::Reduction => None,
            Needed::Statistics => {
                let (first, bars) = (own.start, Bars::new(printer));
                let network = Network::new(&checkpoint.model, length, InferPath::Auto)?;
                let network = network.observed(&bars);
                let gathered = Calibration::gather_from(&network, &listed[own], first, &origin)?;
                bars.clear();
                Some(gathered)
            }
        };
        remark_on_length(&checkpoint.model, length, printer);
        remark_on_signal(&listed, printer);
        remark_on_scale(&checkpoint.model, &listed, length, printer)?;
        Ok(Self {
            origin,
            length,
            statistics,
            data: Some(data),
            captured: None,
        })
    }

    /// From a file of captured layer inputs.
    pub(super) fn captured(
        file: &Path,
        sequences: &Sequences,
        checkpoint: &Checkpoint,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let captured = Captured::open(file, &checkpoint.model, sequences.count)?;
        let count = captured.sequences();
        let origin = format!("{count} captured sequences of {}", file.display());
        let bars = Bars::new(printer);
        let statistics = captured.statistics(&origin, &bars)?;
        bars.clear();
        remark_on_length(&checkpoint.model, captured.length(), printer);
        Ok(Self {
            captured: Some(captured),
            ..Self::of_statistics(statistics)
        })
    }

    fn of_statistics(statistics: Calibration) -> Self {
        Self {
            origin: statistics.origin().to_string(),
            length: statistics.length(),
            statistics: Some(statistics),
            data: None,
            captured: None,
        }
    }

    /// Where the sequences came from.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// Steps of the sequences.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The sequences; none where only their statistics are known.
    pub(super) fn listed(&self) -> Vec<Sequence<'_>> {
        match &self.data {
            Some(data) => (0..data.len()).map(|i| data.unpadded(i)).collect(),
            None => Vec::new(),
        }
    }
}

/// Balances the channels of a checkpoint for their inputs. Where some of the sequences are held out,
/// `listed` are the others, and nothing that was gathered on all of them is used.
pub(super) fn prepare<'a>(
    checkpoint: &'a Checkpoint,
    data: &'a CalibrationData,
    listed: &'a [Sequence<'a>],
    ways: &Ways,
    bars: &'a Bars<'_>,
) -> anyhow::Result<CalibratedReduction<'a>> {
    let (model, weight) = (&checkpoint.model, ways.weight());
    let all = data.data.as_ref().map_or(0, Dataset::len) == listed.len();
    let statistics = data.statistics.as_ref().filter(|_| all);
    let balanced = match (statistics, &data.captured) {
        (Some(calibration), Some(captured)) => {
            CalibratedReduction::of_captured(model, calibration, captured, weight, bars)?
        }
        (Some(calibration), None) => {
            CalibratedReduction::new(model, calibration, listed, weight, bars)?
        }
        (None, _) => {
            let run = CalibrationRun {
                sequences: listed,
                length: data.length,
                origin: &data.origin,
            };
            CalibratedReduction::of_sequences(model, run, weight, bars)?
        }
    };
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

/// Refuses sequences whose values are not as many as the model's steps take, by their axes.
pub(super) fn require_axes(model: &Model, data: &Dataset, source: &str) -> anyhow::Result<()> {
    let takes = model.encoder().map(Encoder::takes);
    let (Some(InputKind::Numbers { width: expected }), Some(found)) = (takes, data.width()) else {
        return Ok(());
    };
    let (count, length) = (data.len(), data.length());
    let values = length * found;
    if values.is_multiple_of(expected) && values / expected <= length {
        return Ok(());
    }
    let turned = match length == expected {
        true => format!("; did you mean [{count}, {found}, {length}] (sequences, steps, values)?"),
        false => String::new(),
    };
    bail!(
        "{source}: {count} sequences of {length} steps with {found} values each, [{count}, {length}, {found}]; \
         the model takes {expected} values at each step{turned}"
    )
}

/// A warning when inputs are scaled otherwise than in training, as batch norms remember it, or when all
/// values are bytes, which few networks take as they are.
fn remark_on_scale(
    model: &Model,
    listed: &[Sequence<'_>],
    length: usize,
    printer: &Printer,
) -> anyhow::Result<()> {
    let few = &listed[..listed.len().min(SCALE_SEQUENCES)];
    if let Some(InputScale { layer, power }) = input_scale(model, few, length)?
        && !(1.0 / SCALE_MAX..=SCALE_MAX).contains(&power.sqrt())
    {
        let text = format!(
            "the input of {layer} is {} times as large as its batch norm saw in training: scale the sequences as in \
             training",
            short(power.sqrt())
        );
        printer.note("warning", &text);
        return Ok(());
    }
    let values = || {
        listed.iter().flat_map(|sequence| match sequence {
            Sequence::Values(values) => *values,
            Sequence::Tokens(_) => &[],
        })
    };
    let most = values().copied().fold(0.0, f32::max);
    if most > 1.0 && values().all(|x| x.fract() == 0.0 && (0.0..=255.0).contains(x)) {
        let text = format!(
            "all values are whole numbers from 0 to {most}, as bytes are: scale them as in training, where they \
             were scaled"
        );
        printer.note("warning", &text);
    }
    Ok(())
}

/// A warning when sequences repeat, or hold nothing: errors that are measured on them say little of
/// others.
fn remark_on_signal(listed: &[Sequence<'_>], printer: &Printer) {
    let Some(InputSignal {
        different,
        root_mean_square,
    }) = InputSignal::of(listed)
    else {
        return;
    };
    let energy = root_mean_square.map_or(String::new(), |root| {
        format!(", inputs have a root mean square of {}", short(root))
    });
    if different < listed.len() || root_mean_square == Some(0.0) {
        let text = format!(
            "{different} of {} calibration sequences are different{energy}: what is measured on them says \
             little of other sequences",
            listed.len()
        );
        printer.note("warning", &text);
    }
}

/// A note when kernels are longer than the sequences: their later samples have no weight.
fn remark_on_length(model: &Model, length: usize, printer: &Printer) {
    let systems = model.blocks().iter().flat_map(|block| block.systems());
    let (mut longest, most) = (length, length << 8);
    for system in systems.filter(|system| system.stable().is_ok()) {
        let square = |steps: usize| kernel_norm(system, steps).powi(2);
        let whole = square(usize::MAX);
        while longest < most && whole - square(longest) > BEYOND * whole {
            longest *= 2;
        }
    }
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
    if let Some(picture) = picture {
        check_drawn(picture)?;
    }
    check_apart(picture, checkpoint, calibrate, data)
}

/// Whether a file may be written beside what is read, before long work.
pub(super) fn check_apart(
    output: Option<&Path>,
    checkpoint: &Path,
    calibrate: &str,
    data: Option<&Source>,
) -> anyhow::Result<()> {
    let Some(output) = output else {
        return Ok(());
    };
    let source = source_path(calibrate);
    let mut inputs = vec![checkpoint];
    inputs.extend(source.as_deref());
    inputs.extend(data.and_then(Source::path));
    Ok(check_destination(output, &inputs)?)
}

/// The path of a source if it is one, so that it is not overwritten.
pub(super) fn source_path(source: &str) -> Option<PathBuf> {
    let path = PathBuf::from(source);
    path.is_file().then_some(path)
}
