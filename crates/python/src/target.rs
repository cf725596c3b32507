//! Sizes of a whole model.

use hankelite::calibrate::CalibratedReduction;
use hankelite::model::Sequence;
use hankelite::stream::Image;
use hankelite::target::{
    Goal, Limits, LogitChanges, Met, Parts, Size, SizePlan, TargetError, meet, planner,
};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// What smaller models must keep within, in turn.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Targets {
    targets: Vec<Target>,
    /// Where the sequences came from.
    pub(crate) origin: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    max_bytes: Option<usize>,
    max_change: Option<f64>,
    max_microseconds: Option<f64>,
    /// `all`, `states` or `maps`.
    only: Option<Parts>,
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

impl Targets {
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let targets: Self = serde_json::from_str(text).map_err(Failure::setting)?;
        for target in &targets.targets {
            target.require_positive()?;
        }
        Ok(targets)
    }

    /// The models that keep within, and their images.
    pub(crate) fn met(
        &self,
        reduction: &CalibratedReduction<'_>,
        held_out: &[Sequence<'_>],
    ) -> Outcome<Vec<(Met, Image)>> {
        let planner = planner(reduction)?;
        let mut made = Vec::new();
        for target in &self.targets {
            match meet(&*planner, &target.goal(), held_out) {
                Err(TargetError::TooSmall { .. }) if !made.is_empty() => break,
                met => {
                    let met = met?;
                    let image = Image::packed(&met.made.model, &met.made.storage)?;
                    made.push((met, image));
                }
            }
        }
        Ok(made)
    }

    pub(crate) fn record<'a>(&'a self, met: &'a Met) -> Record<'a> {
        Record {
            origin: &self.origin,
            size: met.made.size,
            changes: met.made.changes,
            held_out_change: met.held_out_change,
            plan: &met.made.plan,
        }
    }
}

impl Target {
    fn require_positive(&self) -> Outcome<()> {
        for (name, value) in [
            ("max_change", self.max_change),
            ("max_microseconds", self.max_microseconds),
        ] {
            if let Some(value) = value.filter(|value| value.is_nan() || *value <= 0.0) {
                let message = format!("{name} is {value}, expected a number above 0");
                return Err(Failure::setting(message));
            }
        }
        Ok(())
    }

    fn goal(&self) -> Goal {
        Goal {
            limits: Limits {
                bytes: self.max_bytes.unwrap_or(usize::MAX),
                microseconds: self.max_microseconds,
            },
            change: self.max_change,
            parts: self.only.unwrap_or_default(),
        }
    }
}
