//! Sizes of a whole model.

use hankelite::advanced::{LogitChanges, Targeted};
use hankelite::checkpoint::Checkpoint;
use hankelite::model::Model;
use hankelite::rounding::Storage;
use hankelite::stream::Image;
use hankelite::target::{Parts, Size, SizePlan, TargetError, WholeSize};
use pyo3::PyErr;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// Which model is made.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// What it keeps within. Left out where the smallest is looked for.
    #[serde(default)]
    pub(crate) size: WholeSize,
    /// `all`, `states` or `maps`.
    #[serde(default)]
    pub(crate) only: Parts,
    /// Where the sequences came from.
    pub(crate) origin: String,
}

/// What was chosen.
#[derive(Serialize)]
pub(crate) struct Record<'a> {
    origin: &'a str,
    /// Bytes of the image and of the state of one stream.
    size: Size,
    changes: LogitChanges,
    held_out_change: Option<f64>,
    plan: &'a SizePlan,
}

impl Wanted {
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        serde_json::from_str(text).map_err(Failure::setting)
    }

    pub(crate) fn record<'a>(&'a self, met: &'a Targeted) -> Record<'a> {
        Record {
            origin: &self.origin,
            size: met.size,
            changes: met.changes,
            held_out_change: met.held_out_change,
            plan: &met.plan,
        }
    }
}

pub(crate) fn image_of(met: &Targeted) -> Outcome<Image> {
    Ok(Image::packed(&met.model, &met.storage)?)
}

/// A model of the same shapes in a checkpoint that records the bits of an image: rounded to them, with
/// its image.
pub(crate) fn trained(recorded: &Checkpoint, model: &Model) -> Outcome<(Checkpoint, Image)> {
    let choice = recorded.storage().cloned().unwrap_or_default();
    let storage = Storage::chosen(model, &choice).map_err(TargetError::from)?;
    let model = storage.applied(model).map_err(TargetError::from)?;
    let image = Image::packed(&model, &storage)?;
    Ok((recorded.with_model(model).with_storage(choice), image))
}

/// Why a search for a size ends.
pub(crate) enum Stop {
    Failed(Failure),
    /// By the function that accepts a size.
    Raised(PyErr),
}

impl From<TargetError> for Stop {
    fn from(error: TargetError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Stop> for PyErr {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Failed(failure) => failure.into(),
            Stop::Raised(error) => error,
        }
    }
}
