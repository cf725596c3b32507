//! The arguments that name a target.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use hankelite::model::Model;
use hankelite::target::Parts;

use crate::cli::common::{PARTS, words};
use crate::cli::quantities::{bytes, share, times};

/// Targets of the whole model.
#[derive(Debug, Clone, Args)]
#[group(id = "target", multiple = true)]
#[command(next_help_heading = "Targets")]
pub(in crate::cli::reduce) struct TargetArguments {
    /// With --calibrate: maximum size of the image and the state of one stream together, in
    /// bytes; states and maps become smaller. `k` means a thousand, `KiB` 1,024, `M` a million.
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = bytes, requires = "calibrate")]
    pub(in crate::cli::reduce) max_bytes: Option<usize>,
    /// With --calibrate: this many times fewer bytes than in single precision; or the share that is
    /// left, such as 1/8.
    #[arg(
        long,
        value_name = "X",
        value_parser = times,
        requires = "calibrate",
        allow_negative_numbers = true
    )]
    pub(in crate::cli::reduce) times: Option<f64>,
    /// With --calibrate: a step of at most so many microseconds on this machine.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "T",
        requires = "calibrate",
        allow_negative_numbers = true
    )]
    pub(in crate::cli::reduce) max_microseconds: Option<f64>,
    /// With --calibrate: the fewest bytes with which the logits of held-out calibration sequences
    /// change by at most this share.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "E",
        value_parser = share,
        requires = "calibrate",
        allow_negative_numbers = true
    )]
    pub(in crate::cli::reduce) max_change: Option<f64>,
}

/// What goes with a target.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Targets")]
pub(in crate::cli::reduce) struct TargetWays {
    /// Without a size: the points of accuracy that the smaller model may lose [default: 0.5].
    #[arg(long, value_name = "POINTS", allow_negative_numbers = true)]
    pub(in crate::cli::reduce) within: Option<f64>,
    /// What a target makes smaller.
    #[arg(hide_short_help = true, long, default_value = "all", value_parser = words::<Parts>(PARTS))]
    pub(in crate::cli::reduce) only: Parts,
    /// The image of the smaller model, for `stream`, `bench` and devices. The checkpoint of
    /// --output holds the same numbers.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli::reduce) image: Option<PathBuf>,
}

impl TargetArguments {
    pub(in crate::cli::reduce) fn is_set(&self) -> bool {
        self.max_bytes.is_some()
            || self.times.is_some()
            || self.max_microseconds.is_some()
            || self.max_change.is_some()
    }

    /// The bytes that are allowed, of so many.
    pub(in crate::cli::reduce) fn bytes_of(&self, full: u64) -> Option<u64> {
        let times = self.times.map(|times| (full as f64 / times) as u64);
        let most = self.max_bytes.map(|most| most as u64);
        times.into_iter().chain(most).min()
    }

    /// Refuses what is no target of a model whose channels share modes.
    pub(in crate::cli::reduce) fn check_shared(&self, model: &Model) -> anyhow::Result<()> {
        let mut blocks = model.blocks().iter();
        if blocks.any(|block| !block.backward().is_empty()) {
            bail!(
                "a target takes causal layers; here they run in both directions: choose the size \
                 by --order or --budget"
            );
        }
        Ok(())
    }

    /// Refuses numbers that are no targets.
    pub(in crate::cli::reduce) fn check(&self) -> anyhow::Result<()> {
        for (name, value, least) in [
            ("--times", self.times, 1.0),
            ("--max-microseconds", self.max_microseconds, 0.0),
            ("--max-change", self.max_change, 0.0),
        ] {
            if let Some(value) = value
                && !(value > least && value.is_finite())
            {
                bail!("{name} is {value}, expected a number above {least}");
            }
        }
        Ok(())
    }
}
