//! Sizes of a whole model.

use hankelite::calibrate::CalibratedReduction;
use hankelite::model::Sequence;
use hankelite::target::{Goal, Limits, LogitChanges, Met, Parts, Size, SizePlan, meet, planner};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// What a smaller model must keep within, as Python gives it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    max_bytes: Option<usize>,
    max_change: Option<f64>,
    max_microseconds: Option<f64>,
    /// `all`, `states` or `maps`.
    only: Option<Parts>,
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

impl Target {
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let target: Self = serde_json::from_str(text).map_err(Failure::setting)?;
        for (name, value) in [
            ("max_change", target.max_change),
            ("max_microseconds", target.max_microseconds),
        ] {
            if let Some(value) = value.filter(|value| value.is_nan() || *value <= 0.0) {
                let message = format!("{name} is {value}, expected a number above 0");
                return Err(Failure::setting(message));
            }
        }
        Ok(target)
    }

    /// The model that keeps within.
    pub(crate) fn met(
        &self,
        reduction: &CalibratedReduction<'_>,
        held_out: &[Sequence<'_>],
    ) -> Outcome<Met> {
        let goal = Goal {
            limits: Limits {
                bytes: self.max_bytes.unwrap_or(usize::MAX),
                microseconds: self.max_microseconds,
            },
            change: self.max_change,
            parts: self.only.unwrap_or_default(),
        };
        Ok(meet(&*planner(reduction)?, &goal, held_out)?)
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
