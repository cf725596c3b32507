//! `compress-model reduce`.

mod file_target;
mod layerwise;
mod provenance;
mod report;
mod rounding;
mod storage;
mod target;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{ArgGroup, Args};
use hankelite::calibrate::{
    Calibration, Choice, GradientFit, Known, LogitFit, Longer, Settings, TargetSize, change_beyond,
};
use hankelite::checkpoint::{Checkpoint, EncodedCheckpoint, KeptLayer, Provenance};
use hankelite::compress::{
    LayerRecord, Method, Plan, RealisationChoice, Rule, TimeBase, reduce_observed,
};
use hankelite::model::Model;
use hankelite::rounding::Storage;
use hankelite::target::Parts;
use hankelite_archive::{Container, check_destination, write_whole};
use hankelite_data::Source;
use serde::Serialize;

use crate::cli::calibration::{CalibrationData, Drawn, Form, Sharing, Ways, prepare};
use crate::cli::common::{
    Declarations, Input, TIME_BASES, Word, grouped, open, short, word, words,
};
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::reduce::file_target::{FileTarget, Found};
use crate::cli::reduce::provenance::{Way, card, longest, measured, provenance};
use crate::cli::reduce::report::page;
use crate::cli::reduce::rounding::written;
use crate::cli::reduce::storage::{
    DTYPES, FileDtype, WrittenImage, show_kept, stored, write_image,
};
use crate::cli::reduce::target::{TargetArguments, TargetWays};
use crate::cli::report::{ReportFile, WrittenReport, write_page};
use crate::cli::score::{First, Scores, labelled, score};

/// Steps over which kernels are compared unless the length of sequences is declared.
const KERNEL_LENGTH: usize = 1024;

/// Those of `-h`, which shows few options.
const FEW_EXAMPLES: &str = "\
Examples:
  compress-model reduce model.pth --calibrate mnist:data/mnist --order 8 --output small.pth
  compress-model reduce model.pth --calibrate mnist:data/mnist --times 8 --image small.edge
  compress-model reduce model.pth --order 8 --output small.pth --report report.html

`--help` lists every option.";

const EXAMPLES: &str = "\
Examples:
  compress-model reduce model.pth --order 8 --output small.pth
  compress-model reduce model.pth --tolerance 0.01 --output small.safetensors
  compress-model reduce model.pth --energy 0.999 --dry-run
  compress-model reduce model.pth --order 8 --method h2-optimal --output small.pth
  compress-model reduce model.pth --calibrate mnist:data/mnist --order 8 --output small.pth --report report.html
  compress-model reduce model.pth --calibrate mnist:data/mnist --budget 0.125 --output small.pth
  compress-model reduce model.pth --calibrate mnist:data/mnist --budget 0.125 --image small.edge
  compress-model reduce model.pth --calibrate mnist:data/mnist --times 8 --image small.edge
  compress-model reduce model.pth --calibrate train.npz --max-bytes 100k --output small.pth --image small.edge
  compress-model reduce dss.pth --order 8 --unstable --length 1024 --output small.pth
  compress-model reduce model.safetensors --order 16 --output small.safetensors --data test.safetensors
  compress-model reduce model.pth --order 8 --time continuous --realisation complex --output paper.pth

Orders count the complex states that a channel stores. A conjugate pair takes one, and so does a
real pole. All tensors but those of poles and residues are copied bit for bit.";

#[derive(Debug, Args)]
#[command(
    after_help = FEW_EXAMPLES,
    after_long_help = EXAMPLES,
    override_usage = "compress-model reduce <CKPT> --output <OUT> --order <R> [OPTIONS]\n       \
                      compress-model reduce <CKPT> --output <OUT> --calibrate <DATA> \
                      --order <R>|--budget <F>|--times <X> [OPTIONS]",
    group(ArgGroup::new("size").required(true).multiple(true).args([
        "order", "energy", "tolerance", "budget", "max_error", "max_bytes", "times",
        "max_microseconds", "max_change",
    ]))
)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// Where the smaller checkpoint goes. Its ending chooses the container.
    #[arg(long, short, value_name = "OUT", required_unless_present_any = ["dry_run", "image"])]
    output: Option<PathBuf>,
    /// The number format of the checkpoint's real tensors [default: that of the source]. Poles and
    /// residues keep theirs where rounding them would change a system by more than 1 %.
    #[arg(hide_short_help = true, long, value_name = "DTYPE", value_parser = words::<FileDtype>(DTYPES), requires = "output")]
    dtype: Option<FileDtype>,
    /// Reduce for the layers' own inputs, measured on unlabelled sequences (any data source of
    /// `evaluate`), given by the statistics that `calibrate` wrote, or captured in another program:
    /// a file with a tensor (B, L, H) for each layer.
    #[arg(long, value_name = "DATA|STATS|INPUTS",
          conflicts_with_all = ["energy", "tolerance", "method", "unstable", "time", "realisation"])]
    calibrate: Option<String>,
    /// How a channel is made smaller.
    #[arg(help_heading = "Method without calibration", hide_short_help = true, long, default_value = "balanced", value_parser = words::<Method>(METHODS))]
    method: Method,
    /// Reduce channels with modes that do not decay over the sequence length (--length) instead
    /// of refusing them. The method and the realisation do not apply to such channels.
    #[arg(
        help_heading = "Method without calibration",
        hide_short_help = true,
        long
    )]
    unstable: bool,
    /// Give all channels of a layer the same poles, as they have them in DSS: its module then loads
    /// the file with nothing changed but N, at a larger error.
    #[arg(help_heading = "Method without calibration", hide_short_help = true, long, conflicts_with_all = ["calibrate", "time", "realisation"])]
    share_poles: bool,
    /// The time base that is balanced. Continuous balancing spends states on what lies beyond the
    /// Nyquist frequency.
    #[arg(help_heading = "Method without calibration", hide_short_help = true, long, default_value = "discrete", value_parser = words::<TimeBase>(TIME_BASES))]
    time: TimeBase,
    /// The system that is balanced: the real one, whose output the network uses, the complex modes as
    /// stored, or per channel whichever leaves the smaller error.
    #[arg(help_heading = "Method without calibration", hide_short_help = true, long, default_value = "real", value_parser = words::<RealisationChoice>(REALISATIONS))]
    realisation: RealisationChoice,
    /// Plan and report without writing.
    #[arg(long)]
    dry_run: bool,
    /// Labelled data (mnist:DIR or a safetensors file, as for `evaluate`): also print the accuracy
    /// before and after.
    #[arg(long, value_name = "DATA")]
    data: Option<Source>,
    /// Also write a model card: what was done, as Markdown with the head that Hugging Face reads.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "FILE.md",
        requires = "output",
        conflicts_with = "target"
    )]
    card: Option<PathBuf>,
    #[command(flatten)]
    report: ReportFile,
    #[command(flatten)]
    rule: RuleArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    target_ways: TargetWays,
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    sharing: Sharing,
    #[command(flatten)]
    declarations: Declarations,
}

#[derive(Debug, Args)]
#[group(id = "rule", multiple = false, conflicts_with = "target")]
#[command(next_help_heading = "Size")]
struct RuleArguments {
    /// Stored states to keep in every channel.
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    order: Option<usize>,
    /// Keep the smallest order with this share of the sum of squared Hankel singular values.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "F",
        allow_negative_numbers = true
    )]
    energy: Option<f64>,
    /// Keep the smallest order whose error bound is at most T times the channel's Hankel norm.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "T",
        allow_negative_numbers = true
    )]
    tolerance: Option<f64>,
    /// With --calibrate: keep this share of all stored states, shared among layers, or, in an image
    /// (--for), among channels.
    #[arg(
        long,
        value_name = "F",
        allow_negative_numbers = true,
        requires = "calibrate"
    )]
    budget: Option<f64>,
    /// With --calibrate: keep the fewest states with this output error, relative to the output.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "E",
        allow_negative_numbers = true,
        requires = "calibrate"
    )]
    max_error: Option<f64>,
}

impl Arguments {
    /// Whether one layer after the other is enough.
    fn is_of_layers_alone(&self) -> bool {
        let shown = self.data.is_some() || self.report.path.is_some() || self.card.is_some();
        !shown && self.calibrate.is_none() && self.dtype.is_none()
    }

    /// Refuses what is there for causal layers with one system per channel alone.
    fn check_model(&self, model: &Model) -> anyhow::Result<()> {
        if model.is_bank() {
            return Ok(());
        }
        let here = "here channels share modes (S5, LRU), or layers run in both directions";
        if self.target.is_set() {
            self.target.check_shared(model)?;
        }
        let ways = self.ways.for_banks_alone();
        match self.sharing.allocates().or(ways) {
            Some(flag) => bail!(
                "{flag} is for causal layers with one system per channel; {here}, and all layers \
                 keep the same share: leave {flag} out"
            ),
            None => Ok(()),
        }
    }

    /// What the smaller model is stored in.
    fn form(&self) -> Form {
        let image = self.target_ways.image.is_some() && self.output.is_none();
        self.sharing.form(match image || self.target.is_set() {
            true => Form::Image,
            false => Form::File,
        })
    }

    /// Refuses destinations that would be written over a source or one another, and arguments that
    /// do not go together.
    fn check(&self) -> anyhow::Result<()> {
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
        for (index, (name, path)) in given.iter().enumerate() {
            check_destination(path, &[source])?;
            if let Some((other, _)) = given[..index].iter().find(|(_, known)| known == path) {
                bail!(
                    "{other} and {name} are both {}, expected two files",
                    path.display()
                );
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
        Ok(())
    }
}

const METHODS: [Word; 7] = [
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
];

const REALISATIONS: [&str; 3] = ["real", "complex", "auto"];

#[derive(Serialize)]
struct Document<'a> {
    checkpoint: String,
    output: Option<String>,
    family: &'static str,
    /// Absent with calibration.
    plan: Option<&'a Plan>,
    /// What calibration chose. Absent without it.
    calibration: Option<Choice>,
    /// Relative change of the logits of sequences that took no part. With a target.
    held_out_change: Option<f64>,
    /// What to expect on longer sequences. With calibration, where the network ran.
    longer: Option<Longer>,
    dry_run: bool,
    /// What --image wrote.
    image: Option<WrittenImage>,
    report: Option<WrittenReport>,
    card: Option<String>,
    /// Layers whose poles and residues are not in the number format of --dtype.
    kept_layers: Vec<KeptLayer>,
    parameters_before: usize,
    parameters_after: usize,
    seconds: f64,
    /// ‖k_written − k_planned‖/‖k‖ of the worst channel: what the file's number format costs.
    rounding_error: Option<f64>,
    /// Steps over which kernel errors were measured.
    kernel_length: usize,
    before: Option<Scores>,
    after: Option<Scores>,
    assumptions: &'a [String],
    notes: &'a [String],
    layers: Vec<LayerRecord>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let start = Instant::now();
    arguments.check()?;
    if arguments.target.is_set() && arguments.form() == Form::Image {
        return target::run(arguments, start, printer);
    }
    if arguments.is_of_layers_alone() {
        return layerwise::run(arguments, start, printer);
    }
    whole(arguments, start, printer)
}

/// Reduces all layers at once.
fn whole(arguments: &Arguments, start: Instant, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let checkpoint = open(path, &arguments.declarations.declared(), printer)?;
    let data = match &arguments.data {
        None => None,
        Some(source) => Some(labelled(&checkpoint, source)?),
    };
    let Work {
        model,
        layers,
        plan,
        calibration,
        held_out_change,
        longer,
        kernel_length,
        statistics,
        made,
    } = work(arguments, &checkpoint, printer).with_context(|| path.display().to_string())?;
    let mut reduced = checkpoint.with_model(model).with_provenance(made.clone());
    let (encoded, kept_layers) = stored(&reduced, arguments.dtype)?;
    let mut document = Document {
        family: checkpoint.family(),
        plan: plan.as_ref(),
        calibration,
        held_out_change,
        longer,
        kernel_length,
        kept_layers,
        parameters_before: checkpoint.parameters_of_file(),
        parameters_after: encoded.parameters(),
        assumptions: checkpoint.assumptions(),
        notes: checkpoint.notes(),
        layers,
        ..Document::new(arguments)
    };
    if !arguments.dry_run {
        document.image = write_image(arguments, &reduced.model, &Storage::single(&reduced.model))?;
    }
    if let Some(output) = arguments.output.as_deref().filter(|_| !arguments.dry_run) {
        let (held, worst) = write(
            arguments,
            encoded,
            (&reduced, output),
            kernel_length,
            printer,
        )?;
        document.rounding_error = Some(worst);
        // What is measured below is what the file holds.
        reduced = held;
    }
    document.seconds = start.elapsed().as_secs_f64();
    if let Some(data) = &data {
        document.before = Some(score(&checkpoint, First::all(data), printer)?);
        document.after = Some(score(&reduced, First::all(data), printer)?);
    }
    let models = [&checkpoint, &reduced];
    describe(
        arguments,
        models,
        &mut document,
        (&made, statistics.as_ref()),
        printer,
    )?;
    finish(&document, printer)
}

/// Writes the smaller checkpoint: what the file holds, and how far rounding changed a kernel.
fn write(
    arguments: &Arguments,
    encoded: EncodedCheckpoint<'_>,
    (reduced, output): (&Checkpoint, &Path),
    kernel_length: usize,
    printer: &Printer,
) -> anyhow::Result<(Checkpoint, f64)> {
    let read_back = encoded.write(output)?;
    let (written, worst) = written(reduced, read_back, kernel_length, printer)?;
    let held = match arguments.dtype {
        None => written,
        Some(_) => hankelite::read(output, &arguments.declarations.declared())?,
    };
    Ok((held, worst))
}

/// Writes the card and the report.
fn describe(
    arguments: &Arguments,
    models: [&Checkpoint; 2],
    document: &mut Document<'_>,
    (made, statistics): (&Provenance, Option<&Calibration>),
    printer: &Printer,
) -> anyhow::Result<()> {
    if let Some(file) = arguments.card.as_deref().filter(|_| !arguments.dry_run) {
        write_whole(file, card(document, made))?;
        document.card = Some(file.display().to_string());
    }
    if let Some(file) = &arguments.report.path {
        let page = page(models, document, statistics, printer)?;
        document.report = Some(write_page(&page, file)?);
    }
    Ok(())
}

impl Document<'_> {
    /// What the arguments hold already.
    fn new(arguments: &Arguments) -> Self {
        let output = arguments.output.as_ref();
        Self {
            checkpoint: arguments.input.checkpoint.display().to_string(),
            output: output.map(|output| output.display().to_string()),
            family: "",
            plan: None,
            calibration: None,
            held_out_change: None,
            longer: None,
            image: None,
            report: None,
            card: None,
            kept_layers: Vec::new(),
            dry_run: arguments.dry_run,
            parameters_before: 0,
            parameters_after: 0,
            seconds: 0.0,
            rounding_error: None,
            kernel_length: KERNEL_LENGTH,
            before: None,
            after: None,
            assumptions: &[],
            notes: &[],
            layers: Vec::new(),
        }
    }
}

fn finish(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        return printer.json(document);
    }
    show(document, printer)
}

/// A reduced model and how it came about.
struct Work {
    model: Model,
    layers: Vec<LayerRecord>,
    plan: Option<Plan>,
    calibration: Option<Choice>,
    held_out_change: Option<f64>,
    longer: Option<Longer>,
    kernel_length: usize,
    /// Of the layers' inputs, with calibration.
    statistics: Option<Calibration>,
    /// For the file's metadata.
    made: Provenance,
}

fn work(arguments: &Arguments, checkpoint: &Checkpoint, printer: &Printer) -> anyhow::Result<Work> {
    if let Some(source) = &arguments.calibrate {
        return calibrated(arguments, source, checkpoint, printer);
    }
    let plan = plan(arguments, &checkpoint.model, checkpoint.declared().length)?;
    let reduced = reduce_observed(&checkpoint.model, &plan, &Bars::new(printer))?;
    let source = &arguments.input.checkpoint;
    Ok(Work {
        made: provenance((source, checkpoint), &reduced.records, &Way::Plan(&plan))?,
        model: reduced.model,
        layers: reduced.records,
        kernel_length: plan.kernel_length(),
        plan: Some(plan),
        calibration: None,
        held_out_change: None,
        longer: None,
        statistics: None,
    })
}

fn calibrated(
    arguments: &Arguments,
    source: &str,
    checkpoint: &Checkpoint,
    printer: &Printer,
) -> anyhow::Result<Work> {
    arguments.check_model(&checkpoint.model)?;
    let rule = &arguments.rule;
    let size = match (rule.order, rule.budget, rule.max_error) {
        (Some(order), ..) => TargetSize::Order(order),
        (_, Some(share), _) => TargetSize::Budget(share),
        (.., Some(error)) => TargetSize::Error(error),
        _ if arguments.target.is_set() => TargetSize::Budget(1.0),
        _ => bail!("--calibrate takes --order, --budget, --max-error or a target"),
    };
    let mut settings = Settings::new(size);
    let ways = &arguments.ways;
    ways.apply(&mut settings);
    arguments.sharing.apply(arguments.form(), &mut settings)?;
    settings.kernel_length = checkpoint.declared().length;
    let calibration = CalibrationData::open(source, ways.sequences(), checkpoint, printer)?;
    let kernel_length = settings
        .kernel_length
        .unwrap_or(calibration.statistics.length());
    let (listed, bars) = (calibration.listed(), Bars::new(printer));
    let Found {
        calibrated,
        held_out_change,
    } = match arguments.target.is_set() {
        false => Found {
            calibrated: prepare(checkpoint, &calibration, &listed, ways, &bars)?
                .reduce(&settings)?,
            held_out_change: None,
        },
        true => {
            let drawn = Drawn::new(&listed);
            let target = FileTarget {
                arguments,
                checkpoint,
                prepared: &prepare(checkpoint, &calibration, &drawn.used, ways, &bars)?,
                settings,
                held_out: &drawn.held_out,
                note: longest(
                    &arguments.input.checkpoint,
                    checkpoint,
                    calibration.statistics.origin(),
                )?,
            };
            target.reduced()?
        }
    };
    let steps = calibration.statistics.length();
    let longer = change_beyond(&checkpoint.model, &calibrated.model, &listed, steps)?;
    let way = Way::Calibrated(&calibrated.choice);
    Ok(Work {
        made: measured(
            provenance(
                (&arguments.input.checkpoint, checkpoint),
                &calibrated.records,
                &way,
            )?,
            longer,
        ),
        longer,
        model: calibrated.model,
        layers: calibrated.records,
        plan: None,
        kernel_length,
        calibration: Some(calibrated.choice),
        held_out_change,
        statistics: Some(calibration.statistics),
    })
}

/// What to do with a model; of its layers only the largest order counts.
fn plan(arguments: &Arguments, model: &Model, length: Option<usize>) -> anyhow::Result<Plan> {
    let RuleArguments {
        order,
        energy,
        tolerance,
        ..
    } = arguments.rule;
    let rule = match (order, energy, tolerance) {
        (Some(order), ..) => Rule::Order(order),
        (_, Some(share), _) => Rule::Energy(share),
        (.., Some(tolerance)) => Rule::Tolerance(tolerance),
        _ => bail!("one of --order, --energy and --tolerance is needed"),
    };
    let plan = Plan::new(rule)?;
    if arguments.unstable && length.is_none() {
        bail!("--unstable keeps the first L kernel samples: declare L with --length");
    }
    let plan = plan
        .with_kernel_length(length.unwrap_or(KERNEL_LENGTH))
        .with_realisation(arguments.realisation)
        .with_method(arguments.method)?
        .with_time(arguments.time)?
        .with_unstable(arguments.unstable)?
        .with_shared_poles(arguments.share_poles)?;
    plan.check(model)?;
    Ok(plan)
}

fn show(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    printer.heading(&format!("{}: {}", document.checkpoint, document.family))?;
    let length = document.kernel_length;
    let kernel = format!("kernel error, L = {length}");
    let (cut, bound) = match document.calibration.is_some() {
        true => ("weighted error", "truncated only"),
        false => ("Σσ cut (all)", "bound (worst)"),
    };
    let header = [
        "layer", "states", cut, bound, "H2 error", &kernel, "cond(V)",
    ];
    let rows = document.layers.iter().map(|layer| {
        let (cut, bound) = match layer.relative_weighted_error {
            Some(error) => (percent(error), percent(layer.relative_truncation_error())),
            None => (
                layer.discarded.map_or("-".to_string(), short),
                finite(layer.error_bound, short),
            ),
        };
        vec![
            layer.name.clone(),
            states(layer),
            cut,
            bound,
            finite(layer.relative_h2_error, percent),
            percent(layer.relative_kernel_error),
            short(layer.condition),
        ]
    });
    printer.table(&header, rows.collect())?;
    if let Some(choice) = &document.calibration {
        show_choice(choice, printer)?;
    }
    if let Some(change) = document.held_out_change {
        let change = percent(change);
        printer.line(&format!("held out   {change} change of the logits"))?;
    }
    if let Some(longer) = &document.longer {
        show_longer(longer, printer)?;
    }
    show_notes(&document.layers, printer);
    show_kept(&document.kept_layers, printer);
    let d_state: Vec<usize> = document.layers.iter().map(|layer| layer.order).collect();
    printer.line(&format!(
        "parameters {} → {} ({:.1} %), d_state = {d_state:?}, in {:.2} s",
        grouped(document.parameters_before),
        grouped(document.parameters_after),
        100.0 * document.parameters_after as f64 / document.parameters_before as f64,
        document.seconds,
    ))?;
    if let (Some(before), Some(after)) = (&document.before, &document.after) {
        printer.line(&format!("accuracy   {before} → {after}"))?;
    }
    show_outcome(document, printer)?;
    if let Some(card) = &document.card {
        printer.line(&format!("wrote {card}"))?;
    }
    match &document.report {
        Some(report) => report.show(printer),
        None => Ok(()),
    }
}

/// What to expect on sequences longer than those of the calibration.
fn show_longer(longer: &Longer, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "longer     logits change by {} over {} steps, twice those of the calibration ({} over {})",
        percent(longer.change_of_pairs),
        longer.steps * 2,
        percent(longer.change),
        longer.steps
    ))
}

/// What calibration chose, in a few lines.
fn show_choice(choice: &Choice, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "calibrated on {} ({} steps), weighted by {}",
        choice.origin,
        choice.length,
        match choice.weight {
            "moments" => "their exact moments",
            _ => "their spectrum",
        },
    ))?;
    let mut shared = format!(
        "states     {} → {} used ({:.1} %)",
        grouped(choice.states_before),
        grouped(choice.states),
        100.0 * choice.states as f64 / choice.states_before as f64
    );
    if let Some(importance) = choice.importance {
        shared.push_str(&format!(", shared by {importance} importance"));
    }
    if choice.layer_factors.iter().any(|&factor| factor != 1.0) {
        let factors = choice.layer_factors.iter().map(f64::to_string);
        let factors: Vec<String> = factors.collect();
        shared.push_str(&format!(", layers times {}", factors.join(", ")));
    }
    printer.line(&shared)?;
    printer.line(&format!("known      {}", known(choice.known)))?;
    let mut error = format!(
        "error      {} of the layers' output",
        percent(choice.relative_error)
    );
    if let Some(change) = choice.logit_change {
        error.push_str(&format!(", {} of the logits", percent(change)));
    }
    match choice.sequential {
        Some(true) => {
            error.push_str("; layers reduced again for their inputs in the reduced network")
        }
        Some(false) => error.push_str("; reducing layers again brought nothing"),
        None => {}
    }
    printer.line(&error)?;
    if let Some(fit) = &choice.gradient_fit {
        printer.line(&fitted_by_gradients(fit))?;
    }
    match &choice.fit {
        Some(fit) => printer.line(&fitted(fit)),
        None => Ok(()),
    }
}

/// Which parts of the method could run.
fn known(known: Known) -> &'static str {
    match known {
        Known::Inputs => "the inputs of the layers only: each channel is reduced by itself",
        Known::InputsAndGradients => {
            "the inputs of the layers and gradients of the logits: no logits were compared"
        }
        Known::Network => "the whole network",
    }
}

/// What fitting all channels together to first order brought.
fn fitted_by_gradients(fit: &GradientFit) -> String {
    match fit.price {
        None => "fitted     no step of all channels together is better to first order".to_string(),
        Some(_) => format!(
            "fitted     {} residues and feedthroughs by gradients: {} → {} of the logits' change to \
             first order on held-out sequences",
            grouped(fit.parameters),
            short(fit.before),
            short(fit.after)
        ),
    }
}

/// What fitting all channels together brought.
fn fitted(fit: &LogitFit) -> String {
    if fit.steps == 0 {
        return "fitted     no step of all channels together brings the logits nearer".to_string();
    }
    format!(
        "fitted     {} residues and feedthroughs to the logits in {} {}: {} → {} on held-out \
         sequences",
        grouped(fit.parameters),
        fit.steps,
        if fit.steps == 1 { "step" } else { "steps" },
        percent(fit.before),
        percent(fit.after)
    )
}

/// "32 → 8", and where channels need different orders also what they use of it.
fn states(layer: &LayerRecord) -> String {
    let least = layer.channels.iter().map(|channel| channel.order).min();
    let stored = format!("{} → {}", layer.order_before, layer.order);
    match least {
        Some(least) if least < layer.order => format!("{stored} ({least} to {} used)", layer.order),
        _ => stored,
    }
}

fn show_outcome(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    if let Some(WrittenImage { path, size }) = &document.image {
        printer.line(&format!(
            "wrote {path}: {} bytes of weights, {} of state",
            grouped(size.weights),
            grouped(size.state)
        ))?;
    }
    match (&document.output, document.rounding_error) {
        (Some(output), Some(rounding)) => printer.line(&format!(
            "wrote {output}{} and read it back; rounding to its number format changes kernels by {}",
            container(Path::new(output)),
            percent(rounding),
        )),
        _ if document.image.is_some() => Ok(()),
        _ => printer.line("dry run: nothing was written"),
    }
}

/// A remark when the ending of the output names no container.
fn container(output: &Path) -> &'static str {
    match Container::of_path(output) {
        Some(_) => "",
        None => " (in the container of the source, since its ending names none)",
    }
}

/// Every remark once, with how many channels it concerns.
fn show_notes(layers: &[LayerRecord], printer: &Printer) {
    for layer in layers {
        let mut seen: Vec<(&str, Vec<usize>)> = Vec::new();
        for channel in &layer.channels {
            for note in &channel.notes {
                match seen.iter_mut().find(|(text, _)| *text == note) {
                    Some((_, channels)) => channels.push(channel.index),
                    None => seen.push((note, vec![channel.index])),
                }
            }
        }
        for (text, channels) in seen {
            let which = match channels.as_slice() {
                [one] => format!("channel {one}"),
                many => format!("{} channels", many.len()),
            };
            printer.note("note", &format!("{}, {which}: {text}", layer.name));
        }
    }
}

/// A number, or a dash where unstable modes leave none.
fn finite(value: f64, show: fn(f64) -> String) -> String {
    if value.is_finite() {
        show(value)
    } else {
        "-".to_string()
    }
}

fn percent(ratio: f64) -> String {
    if ratio == 0.0 {
        return "0 %".to_string();
    }
    if ratio < 1e-4 {
        return format!("{:.1e} %", 100.0 * ratio);
    }
    format!("{:.2} %", 100.0 * ratio)
}
