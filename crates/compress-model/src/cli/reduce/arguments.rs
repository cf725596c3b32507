//! The arguments of `compress-model reduce`, and which go together.

mod target;
#[cfg(feature = "train")]
mod training;

use std::path::PathBuf;

use anyhow::bail;
use clap::{ArgGroup, Args};
use hankelite::compress::{Method, RealisationChoice, TimeBase};
use hankelite::model::Model;
use hankelite::target::Parts;
use hankelite_archive::{check_destination, check_output};
use hankelite_data::Source;
use serde::Deserialize;

pub(super) use target::{TargetArguments, TargetWays};
#[cfg(feature = "train")]
pub(super) use training::TrainArguments;

use crate::cli::calibration::{Form, Sharing, Ways};
use crate::cli::common::{Declarations, Input, TIME_BASES, Usage, Word, word, words};
use crate::cli::folders::Folders;
use crate::cli::quantities::share;
use crate::cli::reduce::places::Places;
use crate::cli::report::ReportFile;

/// Those of `-h`, which shows few options.
const FEW_EXAMPLES: &str = "\
Examples:
  compress-model reduce model.pth --data mnist:data/mnist
  compress-model reduce model.pth --calibrate mnist:data/mnist --times 8 --image small.edge
  compress-model reduce model.pth --calibrate mnist:data/mnist --order 8 --output small.pth
  compress-model reduce model.pth --order 8 --output small.pth --report report.html

Without a size the smallest model within 0.5 points of accuracy (--within) is looked for and written
as model-small.pth, model-small.edge and model-small.html. `--help` lists every option.";

const EXAMPLES: &str = "\
Examples:
  compress-model reduce model.pth --data mnist:data/mnist
  compress-model reduce model.pth --data test.npz --within 1 --output small.pth
  compress-model reduce model.pth --order 8 --output small.pth
  compress-model reduce FOLDER --order 8 --output FOLDER-small
  compress-model reduce model.pth --tolerance 0.01 --output small.safetensors
  compress-model reduce model.pth --energy 0.999 --dry-run
  compress-model reduce model.pth --order 8 --method h2-optimal --output small.pth
  compress-model reduce model.pth --calibrate mnist:data/mnist --order 8 --output small.pth --report report.html
  compress-model reduce model.pth --calibrate mnist:data/mnist --budget 0.125 --output small.pth
  compress-model reduce model.pth --calibrate mnist:data/mnist --budget 0.125 --image small.edge
  compress-model reduce model.pth --calibrate mnist:data/mnist --times 8 --image small.edge
  compress-model reduce model.pth --calibrate train.npz --max-bytes 100k --output small.pth --image small.edge
  compress-model reduce model.pth --calibrate train.npz --times 12 --train --output small.pth --image small.edge
  compress-model reduce dss.pth --order 8 --unstable --length 1024 --output small.pth
  compress-model reduce model.safetensors --order 16 --output small.safetensors --data test.safetensors
  compress-model reduce model.pth --order 8 --time continuous --realisation complex --output paper.pth

Without a size, `reduce` tries sizes from large to small, states and maps together. It takes the
smallest model within 0.5 points of the full accuracy (--within), measured on labelled sequences
that the calibration does not use. Without labels it takes the smallest one that changes the logits
of held-out sequences by at most 5 %. Data without parts are split: --sequences of them calibrate,
at most half, and the others are scored.

Orders count the complex states that a channel stores. A conjugate pair takes one, and so does a
real pole. A reduction of states leaves all other tensors bit for bit. A target in bytes also rounds
maps, norms, encoder and head.";

#[derive(Debug, Clone, Args)]
#[command(
    after_help = FEW_EXAMPLES,
    after_long_help = EXAMPLES,
    override_usage = "compress-model reduce <CKPT> --data <DATA> [OPTIONS]\n       \
                      compress-model reduce <CKPT> --output <OUT> --order <R> [OPTIONS]\n       \
                      compress-model reduce <CKPT> --output <OUT> --calibrate <DATA> \
                      --order <R>|--budget <F>|--times <X> [OPTIONS]",
    group(ArgGroup::new("size").multiple(true).conflicts_with("within").args([
        "order", "energy", "tolerance", "budget", "max_error", "max_bytes", "times",
        "max_microseconds", "max_change",
    ]))
)]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    pub(super) input: Input,
    /// Where the smaller checkpoint goes. Its ending chooses the container.
    ///
    /// Where the source is a folder, a name without an ending is a folder: with the number of states set
    /// in config.json, a section in README.md, and all other files copied.
    #[arg(long, short, value_name = "OUT")]
    pub(super) output: Option<PathBuf>,
    /// The number format of the checkpoint's real tensors [default: that of the source]. Poles and
    /// residues keep theirs where rounding them would change a system by more than 1 %.
    #[arg(hide_short_help = true, long, value_name = "DTYPE", value_parser = words::<FileDtype>(DTYPES), requires = "output")]
    pub(super) dtype: Option<FileDtype>,
    /// Reduce for the layers' own inputs, measured on unlabelled sequences (any data source of
    /// `evaluate`), given by the statistics that `calibrate` wrote, or captured in another program:
    /// a file with a tensor (B, L, H) for each layer.
    #[arg(long, value_name = "DATA|STATS|INPUTS",
          conflicts_with_all = ["energy", "tolerance", "method", "unstable", "time", "realisation"])]
    pub(super) calibrate: Option<String>,
    /// How a channel is made smaller [default: balanced; real-poles or in-layout where the file cannot hold all systems].
    #[arg(help_heading = "Method without calibration", hide_short_help = true, long, value_parser = words::<Method>(METHODS))]
    pub(super) method: Option<Method>,
    /// Reduce channels with modes that do not decay over the sequence length (--length) instead
    /// of refusing them. The method and the realisation do not apply to such channels.
    #[arg(
        help_heading = "Method without calibration",
        hide_short_help = true,
        long
    )]
    pub(super) unstable: bool,
    /// Give all channels of a layer the same poles, as they have them in DSS: its module then loads
    /// the file with nothing changed but N, at a larger error.
    #[arg(help_heading = "Method without calibration", hide_short_help = true, long, conflicts_with_all = ["calibrate", "time", "realisation"])]
    pub(super) share_poles: bool,
    /// The time base that is balanced [default: discrete; for layers that run at any step continuous, or
    /// impulses]. Continuous balancing spends states on what lies beyond the Nyquist frequency.
    #[arg(help_heading = "Method without calibration", hide_short_help = true, long, value_parser = words::<TimeBase>(TIME_BASES))]
    pub(super) time: Option<TimeBase>,
    /// The system that is balanced: the real one, whose output the network uses, the complex modes as
    /// stored, or per channel whichever leaves the smaller error.
    #[arg(help_heading = "Method without calibration", hide_short_help = true, long, default_value = "real", value_parser = words::<RealisationChoice>(REALISATIONS))]
    pub(super) realisation: RealisationChoice,
    /// Plan and report without writing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Labelled data (mnist:DIR or a file of arrays, as for `evaluate`): also print the accuracy
    /// before and after. Without a size, the program chooses one on these data.
    #[arg(long, value_name = "DATA")]
    pub(super) data: Option<Source>,
    /// Also write a model card: what was done, as Markdown with the head that Hugging Face reads. With
    /// a target in bytes, it also has bytes, bits and microseconds.
    #[arg(hide_short_help = true, long, value_name = "FILE.md")]
    pub(super) card: Option<PathBuf>,
    /// Also write the filters of StripedHyena, each layer with its own number of modes, into a folder:
    /// approx_poles_1.pt, approx_residues_1.pt and so on, which `load_poles_residues` of its class reads.
    #[arg(hide_short_help = true, long, value_name = "DIR")]
    pub(super) filters: Option<PathBuf>,
    #[command(flatten)]
    pub(super) report: ReportFile,
    #[command(flatten)]
    pub(super) folders: Folders,
    #[command(flatten)]
    pub(super) rule: RuleArguments,
    #[command(flatten)]
    pub(super) target: TargetArguments,
    #[command(flatten)]
    pub(super) target_ways: TargetWays,
    #[command(flatten)]
    pub(super) ways: Ways,
    #[cfg(feature = "train")]
    #[command(flatten)]
    pub(super) training: TrainArguments,
    /// Known to a program without a trainer, too, which says how to get one.
    #[cfg(not(feature = "train"))]
    #[arg(hide = true, long)]
    train: bool,
    #[command(flatten)]
    pub(super) sharing: Sharing,
    #[command(flatten)]
    pub(super) declarations: Declarations,
}

#[derive(Debug, Clone, Args)]
#[group(id = "rule", multiple = false, conflicts_with = "target")]
#[command(next_help_heading = "Size")]
pub(super) struct RuleArguments {
    /// Stored states to keep in every channel.
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(super) order: Option<usize>,
    /// Keep the smallest order with this share of the sum of squared Hankel singular values.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "F",
        value_parser = share,
        allow_negative_numbers = true
    )]
    pub(super) energy: Option<f64>,
    /// Keep the smallest order whose error bound is at most T times the channel's Hankel norm.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "T",
        allow_negative_numbers = true
    )]
    pub(super) tolerance: Option<f64>,
    /// With --calibrate: keep this share of all stored states, shared among layers, or, in an image
    /// (--for), among channels.
    #[arg(
        long,
        value_name = "F",
        value_parser = share,
        allow_negative_numbers = true,
        requires = "calibrate"
    )]
    pub(super) budget: Option<f64>,
    /// With --calibrate: keep the fewest states with this output error, relative to the output.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "E",
        value_parser = share,
        allow_negative_numbers = true,
        requires = "calibrate"
    )]
    pub(super) max_error: Option<f64>,
    /// `d_state` and its like, which count otherwise from class to class.
    #[arg(
        hide = true,
        long,
        value_name = "N",
        aliases = ["n-state", "n-states", "states", "num-states", "state-size", "ratio"]
    )]
    d_state: Option<String>,
}

impl Arguments {
    /// Whether the size is to be looked for.
    pub(super) fn is_without_size(&self) -> bool {
        let rule = &self.rule;
        let shares = [rule.energy, rule.tolerance, rule.budget, rule.max_error];
        rule.order.is_none() && shares.iter().all(Option::is_none) && !self.target.is_set()
    }

    /// Whether states and maps become smaller together: to a target of an image, or without a size.
    pub(super) fn is_whole(&self) -> bool {
        self.is_without_size() || (self.target.is_set() && self.form() == Form::Image)
    }

    /// The same with places for all files, where none is given and no size.
    pub(super) fn with_places(&self) -> Self {
        let mut all = self.clone();
        let given = self.output.is_some() || self.target_ways.image.is_some();
        if self.is_without_size() && !given && !self.dry_run {
            let Places {
                output,
                image,
                report,
            } = Places::of(&self.input.checkpoint);
            (all.output, all.target_ways.image) = (Some(output), Some(image));
            all.report.path.get_or_insert(report);
        }
        all
    }

    /// Refuses what clap cannot tell: sizes that are missing, and names of sizes that other programs
    /// have.
    fn check_size(&self) -> anyhow::Result<()> {
        if self.rule.d_state.is_some() {
            bail!(Usage(
                "--order R is the number of complex states that a channel stores (half of the d_state of S4D's \
                 class, N of DSS), --budget 1/4 a share of all states, --times 8 of all bytes"
                    .to_string()
            ));
        }
        let without = self.is_without_size();
        let source = self.data.is_some() || self.calibrate.is_some();
        if without && !source {
            bail!(Usage(
                "no size: give --order R --output small.pth, or --data DATA, and the smallest model within 0.5 \
                 points of accuracy is looked for"
                    .to_string()
            ));
        }
        let written = self.output.is_some() || self.target_ways.image.is_some();
        if !without && !written && !self.dry_run {
            bail!(Usage(
                "the smaller model has no place: give --output small.pth, --image small.edge or --dry-run"
                    .to_string()
            ));
        }
        if self.target_ways.image.is_some() && self.calibrate.is_none() && !without {
            bail!(Usage(
                "--image goes with --calibrate DATA; `pack` makes the image of a checkpoint"
                    .to_string()
            ));
        }
        if self.target_ways.only != Parts::All && !self.target.is_set() && !without {
            bail!(Usage(
                "--only is of a target: --times, --max-bytes, --max-change or --max-microseconds"
                    .to_string()
            ));
        }
        let white = self.method.is_some_and(|method| method != Method::Balanced)
            || self.realisation != RealisationChoice::Real
            || self.time.is_some_and(|time| time != TimeBase::Discrete)
            || self.unstable
            || self.share_poles;
        if without && white {
            bail!(Usage(
                "--method, --time, --realisation, --unstable and --share-poles go with --order, --energy or \
                 --tolerance"
                    .to_string()
            ));
        }
        self.check_ways(without)?;
        match self.target_ways.within {
            Some(within) if !(0.0..100.0).contains(&within) => {
                bail!("--within is {within}, expected points of accuracy from 0 to 100")
            }
            _ => Ok(()),
        }
    }

    /// Refuses ways that do not go with the size.
    fn check_ways(&self, without: bool) -> anyhow::Result<()> {
        let image = self.target.is_set() && self.form() == Form::Image;
        if self.filters.is_some() && (without || image) {
            bail!(Usage(
                "--filters goes with a size of states: --order, --energy, --tolerance, --budget or --max-error"
                    .to_string()
            ));
        }
        if self.calibrate.is_none() && !self.sharing.is_free_of_data() {
            bail!(Usage(
                "--for and --allocate layer or channel go with --calibrate; without it every channel has the \
                 states that it needs, and --allocate model gives all the most of them"
                    .to_string()
            ));
        }
        Ok(())
    }

    /// Whether one layer after the other is enough. The network of a folder may need one order for all,
    /// which only `--order` gives from the start.
    pub(super) fn is_of_layers_alone(&self) -> bool {
        let one = self.input.checkpoint.is_dir() || self.sharing.is_one_order();
        if self.rule.order.is_none() && one || self.filters.is_some() {
            return false;
        }
        let shown = self.data.is_some() || self.report.path.is_some() || self.card.is_some();
        !shown && self.calibrate.is_none() && self.dtype.is_none()
    }

    /// Refuses what is there for causal layers with one system per channel alone.
    pub(super) fn check_model(&self, model: &Model) -> anyhow::Result<()> {
        if model.is_bank() {
            return Ok(());
        }
        let here = "here channels share modes (S5, LRU), or layers run in both directions";
        if self.target.is_set() || self.is_without_size() {
            self.target.check_shared(model)?;
        }
        let ways = self.ways.for_banks_alone();
        match self.sharing.allocates_in(model).or(ways) {
            Some(flag) => bail!(
                "{flag} is for causal layers with one system per channel; {here}, and all layers \
                 keep the same share: leave {flag} out"
            ),
            None => Ok(()),
        }
    }

    /// What the smaller model is stored in.
    pub(super) fn form(&self) -> Form {
        let image = self.target_ways.image.is_some() && self.output.is_none();
        let whole = self.target.is_set() || self.is_without_size();
        self.sharing.form(match image || whole {
            true => Form::Image,
            false => Form::File,
        })
    }

    /// Refuses destinations that would be written over a source or one another, and arguments that
    /// do not go together.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.check_size()?;
        let source = self.input.checkpoint.as_path();
        let destinations = [
            ("--output", &self.output),
            ("--image", &self.target_ways.image),
            ("--report", &self.report.path),
            ("--card", &self.card),
        ];
        let given = destinations
            .iter()
            .filter_map(|(name, path)| Some((name, path.as_ref()?)));
        let given: Vec<_> = given.collect();
        self.folders.make(given.iter().map(|(_, path)| *path))?;
        for (index, (name, path)) in given.iter().enumerate() {
            if let Some((other, _)) = given[..index].iter().find(|(_, known)| known == path) {
                bail!(
                    "{other} and {name} are both {}, expected two files",
                    path.display()
                );
            }
        }
        for (name, path) in given {
            match *name {
                "--output" => check_output(path, &[source])?,
                _ => check_destination(path, &[source])?,
            }
        }
        self.target.check()?;
        if self.target.is_set() && self.form() == Form::File {
            if self.target.max_microseconds.is_some() {
                bail!("--max-microseconds is of an image: leave out --for file");
            }
            if self.target_ways.only == Parts::Maps {
                bail!("a file stores its maps as they are: --only maps goes with --for image");
            }
        }
        #[cfg(not(feature = "train"))]
        if self.train {
            bail!(Usage(
                "this program was built without its trainer; `cargo install --path crates/compress-model` \
                 installs it with --train and `retrain`"
                    .to_string()
            ));
        }
        #[cfg(feature = "train")]
        if self.training.train && !self.is_whole() {
            bail!(Usage(
                "--train goes with a target (--times, --max-bytes, ...) or without a size; `retrain small.pth \
                 --teacher model.pth --data DATA --output better.pth` trains any smaller model"
                    .to_string()
            ));
        }
        Ok(())
    }
}

/// A number format of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FileDtype {
    F32,
    Bf16,
    F16,
}

const DTYPES: [Word; 3] = [
    word("f32", "Single precision"),
    word(
        "bf16",
        "Eight bits of the mantissa, the range of single precision",
    ),
    word("f16", "Eleven bits of the mantissa, up to 65,504"),
];

const METHODS: [Word; 9] = [
    word("balanced", "Balanced truncation"),
    word(
        "residualised",
        "Balanced residualisation: keeps the gain for constant input; changes D",
    ),
    word(
        "modal-hinf",
        "Keep the modes with the largest |residue|/(1 − |a|)",
    )
    .alias("modal"),
    word(
        "modal-h2",
        "Keep the modes with the largest |residue|/√(1 − |a|²)",
    ),
    word(
        "h2-optimal",
        "Balanced truncation, then poles and residues moved to the least kernel error",
    ),
    word(
        "horizon",
        "Truncation balanced over the sequence length (--length) instead of all time",
    ),
    word("hankel-norm", "Least Hankel norm of the error"),
    word(
        "real-poles",
        "Positive real poles of the least kernel error: for Evo 2 and MEGA, which hold no others",
    ),
    word(
        "in-layout",
        "What the file can hold, of the least kernel error: for files that cannot hold all systems",
    ),
];

const REALISATIONS: [&str; 3] = ["real", "complex", "auto"];
