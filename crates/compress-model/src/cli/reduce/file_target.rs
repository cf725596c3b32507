//! A checkpoint to a target of bytes or change: the states of every layer, nothing else.

use anyhow::bail;
use hankelite::advanced::{Calibrated, CalibratedReduction, Settings, stand_in};
use hankelite::calibrate::TargetSize;
use hankelite::checkpoint::{Checkpoint, Provenance};
use hankelite::model::{Model, Sequence};

use crate::cli::common::grouped;
use crate::cli::reduce::arguments::Arguments;
use crate::cli::reduce::storage::stored;
use crate::cli::report::percent;

/// Models that are made at most to meet a target of change.
const TRIES: usize = 6;

/// A reduction of what a file stores.
pub(super) struct FileTarget<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) prepared: &'a CalibratedReduction<'a>,
    /// Its size is what is looked for.
    pub(super) settings: Settings,
    pub(super) held_out: &'a [Sequence<'a>],
    /// For the metadata, at its longest.
    pub(super) note: Provenance,
}

/// What was found, and the change of the logits of the sequences held out.
pub(super) struct Found {
    pub(super) calibrated: Calibrated,
    pub(super) held_out_change: Option<f64>,
}

/// Bytes of a file by the states in it: the same number for each.
struct Bytes {
    /// With one state for each channel.
    smallest: u64,
    each: f64,
}

impl FileTarget<'_> {
    /// The model that meets all targets.
    pub(super) fn reduced(&self) -> anyhow::Result<Found> {
        let target = self.arguments.target.bytes_of(self.source_bytes()?);
        let bytes = self.bytes_by_states()?;
        let mut states = match target {
            None => self.states(),
            Some(target) => self.most_states(target, &bytes)?,
        };
        if let Some(change) = self.arguments.target.max_change {
            return self.least_for(change, states);
        }
        for _ in 0..TRIES {
            let found = self.made(states)?;
            let written = self.bytes(&found.calibrated.model)?;
            // A layer may have kept its number format where that of fewer states did not.
            let beyond = written.saturating_sub(target.unwrap_or(u64::MAX));
            if beyond == 0 {
                return Ok(found);
            }
            states = states.saturating_sub((beyond as f64 / bytes.each).ceil() as usize);
        }
        bail!("no model that was tried is small enough; a larger target may be met")
    }

    fn bytes_by_states(&self) -> anyhow::Result<Bytes> {
        let model = &self.checkpoint.model;
        let of_orders = |per: fn(usize) -> usize| {
            let blocks = model.blocks().iter();
            let orders = blocks.map(|block| {
                let systems = block.systems().iter();
                systems.map(|system| per(system.order())).collect()
            });
            self.bytes(&stand_in(model, &orders.collect::<Vec<Vec<_>>>())?)
        };
        let [smallest, whole] = [of_orders(|_| 1)?, of_orders(|order| order)?];
        let more = (self.states() - self.channels()).max(1);
        Ok(Bytes {
            smallest,
            each: whole.saturating_sub(smallest).max(1) as f64 / more as f64,
        })
    }

    /// The states that a target of bytes allows.
    fn most_states(&self, target: u64, bytes: &Bytes) -> anyhow::Result<usize> {
        let Some(left) = target.checked_sub(bytes.smallest) else {
            bail!(
                "a target of {} bytes, expected at least {}: those of a file with one state for each \
                 channel. Its maps are stored as they are: --dtype bf16 halves them, --for image \
                 takes them down to three bits",
                grouped(target as usize),
                grouped(bytes.smallest as usize)
            );
        };
        let more = (left as f64 / bytes.each) as usize;
        Ok(self.states().min(self.channels() + more))
    }

    /// The fewest states with which the logits of held-out sequences change by at most `change`.
    fn least_for(&self, change: f64, most: usize) -> anyhow::Result<Found> {
        let (mut low, mut high) = (self.channels(), most);
        let mut best = None;
        for attempt in 0..TRIES {
            // The most that is allowed first, then between what failed and what did not.
            let states = if attempt == 0 { high } else { (low + high) / 2 };
            let found = self.made(states)?;
            let reached = found
                .held_out_change
                .or(found.calibrated.choice.logit_change);
            if reached.is_none_or(|reached| reached <= change) {
                (best, high) = (Some(found), states);
            } else if attempt == 0 {
                bail!(
                    "{} states change the logits by {}, expected at most {}",
                    grouped(states),
                    percent(reached.unwrap_or(f64::NAN)),
                    percent(change)
                );
            } else {
                low = states;
            }
            if high - low <= self.channels() {
                break;
            }
        }
        best.ok_or_else(|| anyhow::anyhow!("no model was tried"))
    }

    fn made(&self, states: usize) -> anyhow::Result<Found> {
        let mut settings = self.settings.clone();
        settings.size = TargetSize::Budget(states as f64 / self.states() as f64);
        let calibrated = self.prepared.reduce(&settings)?;
        let held_out_change = match self.held_out {
            [] => None,
            held_out => Some(self.prepared.change_on(&calibrated.model, held_out)?),
        };
        Ok(Found {
            calibrated,
            held_out_change,
        })
    }

    /// Bytes of the file of a model.
    fn bytes(&self, model: &Model) -> anyhow::Result<u64> {
        let path = match &self.arguments.output {
            Some(output) => output,
            None => &self.arguments.input.checkpoint,
        };
        let checkpoint = self.checkpoint.with_model(model.clone());
        let checkpoint = checkpoint.with_provenance(self.note.clone());
        let encoded = stored(&checkpoint, self.arguments.dtype)?;
        Ok(encoded.file_bytes(path)?)
    }

    /// Bytes of the file of the full model, in its own number format.
    fn source_bytes(&self) -> anyhow::Result<u64> {
        let path = &self.arguments.input.checkpoint;
        Ok(self.checkpoint.encode()?.file_bytes(path)?)
    }

    fn channels(&self) -> usize {
        let blocks = self.checkpoint.model.blocks().iter();
        blocks.map(|block| block.systems().len()).sum()
    }

    fn states(&self) -> usize {
        let blocks = self.checkpoint.model.blocks().iter();
        blocks
            .flat_map(|block| block.systems())
            .map(|s| s.order())
            .sum()
    }
}
