//! A checkpoint in a web page: bytes in, spectra and smaller files out.
//!
//! [`Session`] does the work on any machine. Built for wasm32, the library exports what the page
//! calls.

#[cfg(target_arch = "wasm32")]
mod page;

use hankelite::calibrate::{
    CalibratedReduction, CalibrationRun, Choice, Settings, TargetSize, WeightChoice, change_beyond,
};
use hankelite::checkpoint::{Checkpoint, Provenance, read_bytes};
use hankelite::compress::{
    LayerRecord, LayerSpectrum, Plan, Rule, inspect_observed, reduce_observed,
};
use hankelite::infer::{Answers, Network, Path};
use hankelite::model::{Model, Sequence};
use hankelite::rounding::Storage;
use hankelite::stream::Image;
use hankelite::target::Size;
use hankelite::{Declared, ProgressSink, Realisation, Reducer, Suited, TimeBase};
use hankelite_data::{Dataset, Source};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What goes wrong, in words for a person.
pub type Fault = Box<dyn std::error::Error>;

/// Sequences that calibrate where no number is given.
const SEQUENCES: usize = 100;
/// Sequences that are scored at most.
const SCORED: usize = 500;

/// An opened checkpoint.
pub struct Session {
    name: String,
    sha256: String,
    checkpoint: Checkpoint,
}

/// What the page shows first.
#[derive(Debug, Serialize)]
pub struct Opened<'a> {
    family: &'a str,
    parameters: usize,
    /// Weights and state of one stream in single precision; `None` for layers alone.
    bytes: Option<usize>,
    assumptions: &'a [String],
    notes: &'a [String],
    provenance: Option<&'a Provenance>,
    layers: Vec<LayerSpectrum>,
}

/// What a person asked for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// Stored states of every channel.
    pub order: Option<usize>,
    /// Relative error bound of every channel, without data.
    pub tolerance: Option<f64>,
    /// How many times fewer bytes, states and maps together, with data.
    pub times: Option<f64>,
    /// The name of the new file: its ending chooses the container.
    pub output: String,
    /// Draws the sequences that calibrate.
    pub seed: u64,
}

/// The name and the bytes of a data file; without bytes the name of data that are generated, as the
/// program spells them (`waves`).
pub type Data = (String, Vec<u8>);

/// What was made.
#[derive(Debug)]
pub struct Made {
    /// The smaller checkpoint.
    pub file: Vec<u8>,
    /// What devices run; `None` where the library does not run the network.
    pub image: Option<Vec<u8>>,
    /// What was done.
    pub record: Reduced,
}

/// What was done.
#[derive(Debug, Serialize)]
pub struct Reduced {
    parameters_before: usize,
    parameters_after: usize,
    /// Weights and state of one stream.
    bytes: Option<usize>,
    /// Relative change of the logits of the calibration sequences; with a size of the whole model,
    /// of those that were held out.
    pub logit_change: Option<f64>,
    /// With labels, of sequences that did not calibrate.
    pub accuracy: Option<Accuracy>,
    /// One for each layer.
    pub layers: Vec<LayerRecord>,
}

/// Shares of right answers.
#[derive(Debug, Serialize)]
pub struct Accuracy {
    /// Sequences.
    pub scored: usize,
    /// Of the model as it came.
    pub full: f64,
    /// Of the smaller one.
    pub reduced: f64,
    /// Standard error of the difference.
    pub error: f64,
}

/// A smaller model on its way into a file.
struct Smaller {
    model: Model,
    layers: Vec<LayerRecord>,
    storage: Option<Storage>,
    note: Provenance,
    logit_change: Option<f64>,
}

impl Session {
    /// Reads a checkpoint of one file.
    ///
    /// # Errors
    /// As [`read_bytes`].
    pub fn open(name: &str, bytes: Vec<u8>) -> Result<Self, Fault> {
        let digest = Sha256::digest(&bytes);
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let checkpoint = read_bytes(name, bytes, &Declared::default())?;
        Ok(Self {
            name: name.to_string(),
            sha256,
            checkpoint,
        })
    }

    /// The spectra of all layers, and what is known of the file.
    ///
    /// # Errors
    /// As [`inspect_observed`].
    pub fn inspect(&self, sink: &dyn ProgressSink) -> Result<Opened<'_>, Fault> {
        let known = &self.checkpoint;
        let time = Suited::to(known).time;
        let full = Size::of(&known.model, &Storage::single(&known.model));
        Ok(Opened {
            family: known.family(),
            parameters: known.parameters_of_file(),
            bytes: full.ok().map(Size::total),
            assumptions: known.assumptions(),
            notes: known.notes(),
            provenance: known.provenance(),
            layers: inspect_observed(&known.model, time, Realisation::Real, sink)?,
        })
    }

    /// Makes the model smaller; with data for the inputs that its layers get.
    ///
    /// # Errors
    /// For a size that does not go with or without data, data that do not suit, and as
    /// [`reduce_observed`], [`CalibratedReduction`] and [`Reducer`].
    pub fn reduce(
        &self,
        request: &Request,
        data: Option<Data>,
        sink: &dyn ProgressSink,
    ) -> Result<Made, Fault> {
        let Some((name, bytes)) = data else {
            let smaller = self.balanced(request, sink)?;
            return self.finish(request, smaller, None);
        };
        let data = match bytes.is_empty() {
            true => generated(&name)?,
            false => Dataset::from_bytes(&name, bytes)?,
        };
        let count = SEQUENCES.min(data.len());
        let origin = format!("{count} sequences of {name}, seed {}", request.seed);
        let (scored, used) = match data.len() > count {
            true => data
                .hold_out(count, request.seed)
                .map(|(rest, own)| (Some(rest), own))?,
            false => (None, data),
        };
        let listed: Vec<_> = (0..used.len()).map(|i| used.unpadded(i)).collect();
        let smaller = match request.times {
            Some(times) => self.in_bytes(times, &listed, &origin, sink)?,
            None => self.calibrated(request, &listed, &origin, sink)?,
        };
        let accuracy = scored.map_or(Ok(None), |scored| self.accuracy(&smaller.model, &scored))?;
        self.finish(request, smaller, accuracy)
    }

    fn balanced(&self, request: &Request, sink: &dyn ProgressSink) -> Result<Smaller, Fault> {
        let rule = match (request.order, request.tolerance) {
            (Some(order), _) => Rule::Order(order),
            (_, Some(tolerance)) => Rule::Tolerance(tolerance),
            _ => return Err("no size, expected an order or an error bound".into()),
        };
        let suited = Suited::to(&self.checkpoint);
        let plan = Plan::new(rule)?
            .with_kernel_length(self.checkpoint.declared().length.unwrap_or(1024))
            .with_method(suited.method)?
            .with_time(suited.time)?;
        plan.check(&self.checkpoint.model)?;
        let reduced = reduce_observed(&self.checkpoint.model, &plan, sink)?;
        let time = match suited.time {
            TimeBase::Continuous => "continuous",
            _ => "discrete",
        };
        let method = serde_json::to_value(suited.method)?;
        let method = method.as_str().unwrap_or_default();
        let method = format!("{method}, {time} time, real system");
        Ok(Smaller {
            note: self.note(method, &reduced.records),
            model: reduced.model,
            layers: reduced.records,
            storage: None,
            logit_change: None,
        })
    }

    fn calibrated(
        &self,
        request: &Request,
        sequences: &[Sequence<'_>],
        origin: &str,
        sink: &dyn ProgressSink,
    ) -> Result<Smaller, Fault> {
        let Some(order) = request.order else {
            return Err("no size, expected an order or fewer bytes".into());
        };
        let model = &self.checkpoint.model;
        let length = steps(sequences, model);
        let mut settings = Settings::new(TargetSize::Order(order));
        settings.kernel_length = self.checkpoint.declared().length;
        let run = CalibrationRun {
            sequences,
            length,
            origin,
        };
        let balanced = CalibratedReduction::of_sequences(model, run, WeightChoice::Auto, sink)?;
        let made = balanced.reduce(&settings)?;
        let Choice { weight, .. } = made.choice;
        let method = format!("balanced for the layers' inputs by their {weight}, refined");
        let mut note = self.note(method, &made.records);
        note.calibration = Some(origin.to_string());
        note.logit_change = made.choice.logit_change.map(rounded);
        let longer = change_beyond(model, &made.model, sequences, length)?;
        note.calibrated_steps = longer.as_ref().map(|longer| longer.steps);
        note.change_of_pairs = longer.map(|longer| rounded(longer.change_of_pairs));
        Ok(Smaller {
            note,
            logit_change: made.choice.logit_change,
            model: made.model,
            layers: made.records,
            storage: None,
        })
    }

    fn in_bytes(
        &self,
        times: f64,
        sequences: &[Sequence<'_>],
        origin: &str,
        sink: &dyn ProgressSink,
    ) -> Result<Smaller, Fault> {
        let reducer = Reducer::new(&self.checkpoint.model).calibrated(sequences);
        let made = reducer.times(times).observer(sink).run()?;
        let method = "states and maps to a target, balanced for the layers' inputs, refined";
        let mut note = self.note(method.to_string(), &made.records);
        note.calibration = Some(origin.to_string());
        let whole = made.whole.ok_or("no size of the whole model")?;
        Ok(Smaller {
            note,
            logit_change: whole.held_out_change,
            model: made.model,
            layers: made.records,
            storage: Some(whole.storage),
        })
    }

    /// Of sequences that did not calibrate, where these have labels.
    fn accuracy(&self, reduced: &Model, scored: &Dataset) -> Result<Option<Accuracy>, Fault> {
        let scored = scored.take(SCORED.min(scored.len()))?;
        let Some(labels) = scored.labels() else {
            return Ok(None);
        };
        let listed: Vec<_> = (0..scored.len()).map(|i| scored.unpadded(i)).collect();
        let answers = |model: &Model| {
            let network = Network::new(model, steps(&listed, model), Path::Auto)?;
            Ok::<_, Fault>(Answers::of(&network.logits_of_all(&listed)?, labels))
        };
        let (full, reduced) = (answers(&self.checkpoint.model)?, answers(reduced)?);
        let (_, error) = full.loss_of(&reduced);
        Ok(Some(Accuracy {
            scored: scored.len(),
            full: full.accuracy(),
            reduced: reduced.accuracy(),
            error,
        }))
    }

    fn note(&self, method: String, layers: &[LayerRecord]) -> Provenance {
        let error = |layer: &LayerRecord| {
            let own = layer.relative_weighted_error;
            rounded(own.unwrap_or(layer.relative_kernel_error))
        };
        Provenance {
            source: self.name.clone(),
            source_sha256: self.sha256.clone(),
            method,
            orders_before: layers.iter().map(|layer| layer.order_before).collect(),
            orders: layers.iter().map(|layer| layer.order).collect(),
            calibration: None,
            errors: layers.iter().map(error).collect(),
            logit_change: None,
            calibrated_steps: None,
            change_of_pairs: None,
            version: env!("CARGO_PKG_VERSION").to_string(),
        }
    }

    fn finish(
        &self,
        request: &Request,
        smaller: Smaller,
        accuracy: Option<Accuracy>,
    ) -> Result<Made, Fault> {
        let model = smaller.model.clone();
        let single = || Storage::single(&model);
        let storage = smaller.storage.unwrap_or_else(single);
        let bytes = Size::of(&model, &storage).ok().map(Size::total);
        let image = Image::packed(&model, &storage).ok();
        let reduced = self.checkpoint.with_model(smaller.model);
        let reduced = reduced.with_provenance(smaller.note);
        let encoded = reduced.encode()?;
        let parameters_after = encoded.parameters();
        let (file, _) = encoded.to_bytes(&request.output)?;
        Ok(Made {
            file,
            image: image.map(|image| image.as_bytes().to_vec()),
            record: Reduced {
                parameters_before: self.checkpoint.parameters_of_file(),
                parameters_after,
                bytes,
                logit_change: smaller.logit_change,
                accuracy,
                layers: smaller.layers,
            },
        })
    }
}

fn generated(name: &str) -> Result<Dataset, Fault> {
    let source: Source = name.parse()?;
    match source.path() {
        None => Ok(Dataset::read(&source, None)?),
        Some(path) => Err(format!("{} is a file, expected its bytes", path.display()).into()),
    }
}

/// Those of the longest sequence.
fn steps(sequences: &[Sequence<'_>], model: &Model) -> usize {
    let inputs = model.inputs().unwrap_or(1).max(1);
    let steps = sequences.iter().map(|sequence| match sequence {
        Sequence::Values(values) => values.len() / inputs,
        Sequence::Tokens(tokens) => tokens.len(),
    });
    steps.max().unwrap_or(0)
}

/// In four digits, as the program's note.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}
