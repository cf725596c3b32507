//! Options and steps that several commands share.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use hankelite::advanced::{Layerwise, read_dynamics, read_layerwise};
use hankelite::checkpoint::{
    Checkpoint, Discretisation, DssVersion, Gelu, HalfGate, PartName, Transform,
};
use hankelite::model::{Placement, Pooling};
use hankelite::{Declared, read};
pub(super) use hankelite_report::{grouped, short};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::printer::Printer;

/// What no tensor of a checkpoint records. Also read from the file's own metadata and from a sidecar
/// NAME.hankelite.toml, whose keys are the names below with underscores.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Conventions that no tensor records")]
pub(super) struct Declarations {
    /// Where the normalisation stands [default: post, as example.py of state-spaces/s4].
    #[arg(long, value_parser = words::<Placement>(["pre", "post"]))]
    norm: Option<Placement>,
    /// How the steps are pooled [default: mean, as example.py].
    #[arg(hide_short_help = true, long, value_parser = words::<Pooling>(["mean", "last"]))]
    pooling: Option<Pooling>,
    /// The kernel formula of a DSS layer [default: softmax or exp, by the tensor names].
    #[arg(hide_short_help = true, long, value_parser = words::<DssVersion>(DSS_VERSIONS))]
    dss_version: Option<DssVersion>,
    /// The sequence length L: needed by the softmax kernel of DSS; kernel errors are measured
    /// over L steps [default: 1024].
    #[arg(hide_short_help = true, long, value_name = "L", value_parser = positive)]
    length: Option<usize>,
    /// How a layer of state-spaces/s4, S5 or LinOSS is discretised [default: that of its class; LinOSS,
    /// Event-SSM and S5 of lrnnx have none].
    #[arg(hide_short_help = true, long, alias = "discretization", value_parser = words::<Discretisation>(DISCRETISATIONS))]
    discretisation: Option<Discretisation>,
    /// What the steps `inv_dt` of state-spaces/s4 v4 go through; no default.
    #[arg(hide_short_help = true, long, value_parser = words::<Transform>(TRANSFORMS))]
    dt_transform: Option<Transform>,
    /// What the decays of state-spaces/s4 v3 and v4 go through [default: exp].
    #[arg(hide_short_help = true, long, value_parser = words::<Transform>(TRANSFORMS))]
    real_transform: Option<Transform>,
    /// The `bandlimit` of state-spaces/s4 v4 [default: none].
    #[arg(hide_short_help = true, long, value_name = "F")]
    bandlimit: Option<f64>,
    /// Whether S5 stores one of each conjugate pair [default: true for flax, false for torch].
    #[arg(hide_short_help = true, long, value_name = "BOOL")]
    conj_sym: Option<bool>,
    /// Whether S5 cuts the real parts of its poles at -1e-4 [default: false].
    #[arg(hide_short_help = true, long, value_name = "BOOL")]
    clip_eigs: Option<bool>,
    /// What the gates of a layer of S5 with one map act on [default: half-glu1].
    #[arg(hide_short_help = true, long, value_parser = words::<HalfGate>(["half-glu1", "half-glu2"]))]
    half_gate: Option<HalfGate>,
    /// GELU in networks of S5, minimal-LRU and lru-reduction [default: tanh for flax, exact for
    /// torch].
    #[arg(hide_short_help = true, long, value_parser = words::<Gelu>(["exact", "tanh"]))]
    gelu: Option<Gelu>,
    /// Read S4 layers in diagonal-plus-low-rank form (DPLR) as diagonal ones with R stored modes per
    /// channel; written files are those of a diagonal kernel (`mode=diag`) of state-spaces/s4 v4.
    #[arg(hide_short_help = true, long, value_name = "R", value_parser = positive)]
    diagonalise: Option<usize>,
    /// Which set of weights is read, of a file that holds several (a network and its running mean, a
    /// student and its teacher); `all` for the layers of all modules [default: the entry `model` or
    /// its like, or all modules].
    #[arg(hide_short_help = true, long, value_name = "NAME", value_parser = part)]
    part: Option<PartName>,
}

/// The name of a set of weights.
fn part(name: &str) -> Result<PartName, &'static str> {
    PartName::new(name).ok_or("expected the name of a set of weights, of 1 to 64 bytes")
}

impl Declarations {
    /// The arguments as one would type them, each with a blank before it.
    pub(super) fn typed(&self) -> String {
        let number = |value: Option<usize>| value.map(|value| value.to_string());
        let yes = |value: Option<bool>| value.map(|value| value.to_string());
        let options = [
            ("--norm", self.norm.as_ref().map(word_of)),
            ("--pooling", self.pooling.as_ref().map(word_of)),
            ("--dss-version", self.dss_version.as_ref().map(word_of)),
            ("--length", number(self.length)),
            (
                "--discretisation",
                self.discretisation.as_ref().map(word_of),
            ),
            ("--dt-transform", self.dt_transform.as_ref().map(word_of)),
            (
                "--real-transform",
                self.real_transform.as_ref().map(word_of),
            ),
            ("--bandlimit", self.bandlimit.map(|value| value.to_string())),
            ("--conj-sym", yes(self.conj_sym)),
            ("--clip-eigs", yes(self.clip_eigs)),
            ("--half-gate", self.half_gate.as_ref().map(word_of)),
            ("--gelu", self.gelu.as_ref().map(word_of)),
            ("--diagonalise", number(self.diagonalise)),
            ("--part", self.part.map(|part| quoted(part.as_str()))),
        ];
        let given = options.into_iter();
        let given = given.filter_map(|(name, value)| Some(format!(" {name} {}", value?)));
        given.collect()
    }
}

/// A word as a shell takes it: quoted where it has more in it than letters, digits and the marks of
/// paths.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

const DISCRETISATIONS: [&str; 9] = [
    "zoh", "bilinear", "dss", "im", "imex", "imex2", "ex", "dirac", "async",
];
const DSS_VERSIONS: [&str; 6] = [
    "softmax",
    "exp",
    "exp-re-im",
    "exp-no-scale",
    "clip",
    "clip-no-scale",
];
const TRANSFORMS: [&str; 5] = ["exp", "softplus", "none", "relu", "sigmoid"];

/// A word of the command line, and its line in `--help`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    name: &'static str,
    help: &'static str,
    alias: Option<&'static str>,
}

/// A word that serde knows a value by.
pub(super) const fn word(name: &'static str, help: &'static str) -> Word {
    let alias = None;
    Word { name, help, alias }
}

impl Word {
    /// Takes another word too, which `--help` does not list.
    pub(super) const fn alias(self, alias: &'static str) -> Self {
        let alias = Some(alias);
        Self { alias, ..self }
    }
}

impl From<Word> for PossibleValue {
    fn from(word: Word) -> Self {
        PossibleValue::new(word.name)
            .help(word.help)
            .aliases(word.alias)
    }
}

/// Takes the words that serde knows the values of `T` by.
pub(super) fn words<T>(
    words: impl IntoIterator<Item = impl Into<PossibleValue>>,
) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    let words: Vec<PossibleValue> = words.into_iter().map(Into::into).collect();
    let parser = PossibleValuesParser::new(words.clone());
    parser.try_map(move |typed| {
        let known = words.iter().find(|word| word.matches(&typed, false));
        let name = known.map_or(typed.as_str(), PossibleValue::get_name);
        toml::Value::from(name).try_into::<T>()
    })
}

/// The word that [`words`] takes a value from.
pub(super) fn word_of(value: &impl Serialize) -> String {
    let word = toml::Value::try_from(value).ok();
    word.and_then(|word| Some(word.as_str()?.to_string()))
        .unwrap_or_default()
}

/// Of [`Parts`](hankelite::target::Parts).
pub(super) const PARTS: [Word; 3] = [
    word("all", "Everything together"),
    word("states", "The states of the channels; all numbers stay f32"),
    word(
        "maps",
        "The maps between channels, and the precision of all other numbers",
    ),
];

/// Of [`Split`](hankelite_data::Split).
pub(super) const SPLITS: [&str; 3] = ["train", "validation", "test"];

/// Of [`TimeBase`](hankelite::compress::TimeBase).
pub(super) const TIME_BASES: [Word; 3] = [
    word("discrete", "As the network runs"),
    word(
        "continuous",
        "Before discretisation, the input held from sample to sample",
    ),
    word(
        "impulses",
        "Before discretisation, each sample an impulse (events)",
    ),
];

pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("expected a whole number of at least 1".to_string()),
    }
}

impl Declarations {
    pub(super) fn declared(&self) -> Declared {
        Declared {
            norm: self.norm,
            pooling: self.pooling,
            per_step: false,
            dss_version: self.dss_version,
            length: self.length,
            discretisation: self.discretisation,
            dt_transform: self.dt_transform,
            real_transform: self.real_transform,
            bandlimit: self.bandlimit,
            conj_sym: self.conj_sym,
            clip_eigs: self.clip_eigs,
            half_gate: self.half_gate,
            gelu: self.gelu,
            diagonalise: self.diagonalise,
            part: self.part,
        }
    }
}

/// Reads a checkpoint that is to be run, and prints what was assumed and what was set aside.
pub(super) fn open(
    path: &Path,
    declared: &Declared,
    printer: &Printer,
) -> anyhow::Result<Checkpoint> {
    Ok(announced(read(path, declared)?, printer))
}

/// As [`open`], for a checkpoint whose layers are only looked at or reduced.
pub(super) fn open_dynamics(
    path: &Path,
    declared: &Declared,
    printer: &Printer,
) -> anyhow::Result<Checkpoint> {
    Ok(announced(read_dynamics(path, declared)?, printer))
}

/// As [`open`], for a checkpoint whose layers are looked at one by one.
pub(super) fn open_layerwise(
    path: &Path,
    declared: &Declared,
    printer: &Printer,
) -> anyhow::Result<Layerwise> {
    let layerwise = read_layerwise(path, declared)?;
    let outline = layerwise.outline();
    announce(outline.assumptions(), outline.notes(), printer);
    Ok(layerwise)
}

fn announced(checkpoint: Checkpoint, printer: &Printer) -> Checkpoint {
    announce(checkpoint.assumptions(), checkpoint.notes(), printer);
    checkpoint
}

fn announce(assumptions: &[String], notes: &[String], printer: &Printer) {
    for assumption in assumptions {
        printer.note("assumed", assumption);
    }
    for note in notes {
        printer.note("note", note);
    }
}

/// The softmax kernel of DSS holds for one length only.
pub(super) fn require_length(checkpoint: &Checkpoint, length: usize) -> anyhow::Result<()> {
    let declared = checkpoint.declared();
    match (declared.dss_version, declared.length) {
        (Some(DssVersion::Softmax), Some(declared)) if declared != length => bail!(
            "the softmax kernel was declared for L = {declared}, but the sequences have {length} \
             steps"
        ),
        _ => Ok(()),
    }
}

/// Arguments that do not go together in a way that clap cannot tell: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Usage(pub(super) String);

/// A checkpoint argument.
#[derive(Debug, Clone, Args)]
pub(super) struct Input {
    /// The checkpoint: .safetensors, a .pt, .pth or .ckpt file of torch.save, or a model's folder.
    #[arg(value_name = "CKPT")]
    pub(super) checkpoint: PathBuf,
}

/// That a file was written, with its bytes and their share of those of a checkpoint.
pub(super) fn wrote(path: &str, source: &Path) -> String {
    let bytes = |path: &Path| std::fs::metadata(path).ok().filter(|found| found.is_file());
    let Some(own) = bytes(Path::new(path)) else {
        return format!("wrote {path}");
    };
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let share = bytes(source).map_or(String::new(), |source| {
        let share = 100.0 * own.len() as f64 / (source.len() as f64).max(1.0);
        format!(", {share:.0} % of {name}")
    });
    format!(
        "wrote {path} ({} bytes{share})",
        grouped(own.len() as usize)
    )
}
