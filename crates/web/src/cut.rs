//! The smaller model.

use std::collections::BTreeMap;

use hankelite::advanced::{
    CalibratedReduction, CalibrationRun, Settings, WeightChoice, change_beyond, reduce_observed,
};
use hankelite::calibrate::{Choice, TargetSize};
use hankelite::checkpoint::{Provenance, read_files};
use hankelite::compress::LayerRecord;
use hankelite::model::Model;
use hankelite::rounding::{Storage, StorageChoice};
use hankelite::target::{Size, WholeSize};
use hankelite::{Plan, ProgressSink, Reducer, Rule, Suited};
use serde::Deserialize;

use crate::given::{Given, listed, steps};
use crate::place::{File, NewFile, sha256};
use crate::record::{Accuracy, Preview, Reduced};
use crate::saved::Made;
use crate::{Fault, Reading, Session};

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
    /// Bytes of the image and of the state of one stream at most, likewise.
    pub bytes: Option<usize>,
    /// The name of the new file: its ending chooses the container.
    pub output: String,
}

/// A smaller model on its way into a file.
struct Smaller {
    model: Model,
    layers: Vec<LayerRecord>,
    /// Of the image and of a state, where a target chose how tensors are stored.
    bytes: Option<usize>,
    storage: Option<StorageChoice>,
    note: Provenance,
    logit_change: Option<f64>,
}

impl Session {
    /// Makes the model smaller, in a new file; with data for the inputs that its layers get. [`Session::save`] gives
    /// its files, [`Session::play`] runs it.
    ///
    /// # Errors
    /// For a size that does not go with or without data, and as [`reduce_observed`],
    /// [`CalibratedReduction`] and [`Reducer`].
    pub fn reduce(
        &mut self,
        request: &Request,
        new: &mut dyn NewFile,
        sink: &dyn ProgressSink,
    ) -> Result<Reduced, Fault> {
        // Its file may be the one that is written now.
        self.made = None;
        self.players[1] = None;
        let in_bytes = request.times.is_some() || request.bytes.is_some();
        let smaller = match &self.given {
            None => self.balanced(request, sink)?,
            Some(given) if in_bytes => self.in_bytes(request, given, sink)?,
            Some(given) => self.calibrated(request, given, sink)?,
        };
        let accuracy = match &self.given {
            Some(given) => self.accuracy(&smaller.model, given)?,
            None => None,
        };
        let made = self.finish(request, smaller, accuracy, new)?;
        let record = made.record.clone();
        self.made = Some(made);
        Ok(record)
    }

    /// What a size would give without data; nothing is kept of it.
    ///
    /// # Errors
    /// As [`Session::reduce`].
    pub fn preview(&self, request: &Request) -> Result<Preview, Fault> {
        let reduced = reduce_observed(&self.checkpoint.model, &self.plan(request)?, &())?;
        let errors = reduced
            .records
            .iter()
            .map(|layer| layer.relative_kernel_error);
        Ok(Preview {
            kernel_error: errors.fold(0.0, f64::max),
            bytes: self.bytes_of(&reduced.model),
            parameters: self
                .checkpoint
                .with_model(reduced.model)
                .encode()?
                .parameters(),
        })
    }

    /// Weights and state of one stream in single precision, where all of the network was read.
    fn bytes_of(&self, model: &Model) -> Option<usize> {
        let size = Size::of(model, &Storage::single(model)).ok()?;
        (self.reading == Reading::Whole).then(|| size.total())
    }

    fn plan(&self, request: &Request) -> Result<Plan, Fault> {
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
        Ok(plan)
    }

    fn balanced(&self, request: &Request, sink: &dyn ProgressSink) -> Result<Smaller, Fault> {
        let suited = Suited::to(&self.checkpoint);
        let reduced = reduce_observed(&self.checkpoint.model, &self.plan(request)?, sink)?;
        let time = suited.time.name();
        let method = serde_json::to_value(suited.method)?;
        let method = method.as_str().unwrap_or_default();
        let method = format!("{method}, {time} time, real system");
        Ok(Smaller {
            note: self.note(method, &reduced.records)?,
            model: reduced.model,
            layers: reduced.records,
            bytes: None,
            storage: None,
            logit_change: None,
        })
    }

    fn calibrated(
        &self,
        request: &Request,
        given: &Given,
        sink: &dyn ProgressSink,
    ) -> Result<Smaller, Fault> {
        let Some(order) = request.order else {
            return Err("no size, expected an order or fewer bytes".into());
        };
        let (model, origin) = (&self.checkpoint.model, given.origin.as_str());
        let sequences = &listed(&given.calibrating)[..];
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
        let mut note = self.note(method, &made.records)?;
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
            bytes: None,
            storage: None,
        })
    }

    fn in_bytes(
        &self,
        request: &Request,
        given: &Given,
        sink: &dyn ProgressSink,
    ) -> Result<Smaller, Fault> {
        let sequences = listed(&given.calibrating);
        let reducer = Reducer::new(&self.checkpoint.model).calibrated(&sequences);
        let size = WholeSize {
            times: request.times,
            bytes: request.bytes,
            ..WholeSize::default()
        };
        let made = reducer.whole(size).observer(sink).run()?;
        let method = "states and maps to a target, balanced for the layers' inputs, refined";
        let mut note = self.note(method.to_string(), &made.records)?;
        note.calibration = Some(given.origin.clone());
        let whole = made.whole.ok_or("no size of the whole model")?;
        Ok(Smaller {
            note,
            logit_change: whole.held_out_change,
            model: made.model,
            layers: made.records,
            bytes: Some(whole.size.total()),
            storage: Some(whole.plan.storage()),
        })
    }

    /// Of sequences that did not calibrate, where these have labels.
    fn accuracy(&self, reduced: &Model, given: &Given) -> Result<Option<Accuracy>, Fault> {
        let full = given.answers(&self.checkpoint.model)?;
        let (Some(full), Some(reduced)) = (full, given.answers(reduced)?) else {
            return Ok(None);
        };
        let error = full.loss_of(&reduced).standard_error;
        Ok(Some(Accuracy {
            scored: given.others.as_ref().map_or(0, |others| others.len()),
            full: full.accuracy(),
            reduced: reduced.accuracy(),
            error,
        }))
    }

    fn note(&self, method: String, layers: &[LayerRecord]) -> Result<Provenance, Fault> {
        let error = |layer: &LayerRecord| {
            let own = layer.relative_weighted_error;
            rounded(own.unwrap_or(layer.relative_kernel_error))
        };
        Ok(Provenance {
            source: self.name.clone(),
            source_sha256: sha256(&self.file)?,
            method,
            orders_before: layers.iter().map(|layer| layer.order_before).collect(),
            orders: layers.iter().map(|layer| layer.order).collect(),
            calibration: None,
            errors: layers.iter().map(error).collect(),
            logit_change: None,
            calibrated_steps: None,
            change_of_pairs: None,
            version: env!("CARGO_PKG_VERSION").to_string(),
        })
    }

    fn finish(
        &self,
        request: &Request,
        smaller: Smaller,
        accuracy: Option<Accuracy>,
        new: &mut dyn NewFile,
    ) -> Result<Made, Fault> {
        let bytes = smaller.bytes.or_else(|| self.bytes_of(&smaller.model));
        let bytes_met = smaller.bytes.is_some();
        let mut reduced = self.checkpoint.with_model(smaller.model);
        reduced = reduced.with_provenance(smaller.note);
        if let Some(choice) = smaller.storage {
            reduced = reduced.with_storage(choice);
        }
        let encoded = reduced.encode()?;
        let parameters_after = encoded.parameters();
        encoded.write_into(&request.output, &mut *new, |new| Box::new(new.again()))?;
        let file = new.again();
        let checkpoint = match self.reading {
            Reading::Parts => None,
            Reading::Whole => {
                let (name, file) = (&request.output, Box::new(File::clone(&file)));
                let declared = self.checkpoint.declared();
                Some(read_files(name, file, BTreeMap::new(), &declared)?)
            }
        };
        let record = Reduced {
            parameters_before: self.checkpoint.parameters_of_file(),
            parameters_after,
            file_bytes: file.length(),
            bytes,
            bytes_met,
            logit_change: smaller.logit_change,
            accuracy,
            layers: smaller.layers,
        };
        Ok(Made {
            name: request.output.clone(),
            file,
            checkpoint,
            record,
        })
    }
}

/// In four digits, as the program's note.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}
