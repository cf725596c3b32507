//! The arguments of a training behind a reduction.

use clap::Args;
use hankelite_train::Place;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Targets")]
pub(in crate::cli::reduce) struct TrainArguments {
    /// With a target, or without a size: train the smaller model at its bits.
    ///
    /// The full model is the teacher. The sequences are those of --calibrate (its part `train`), all of
    /// them, with their labels where they have some. If no epoch is better, the smaller model stays as
    /// it was.
    #[arg(long, conflicts_with = "dry_run")]
    pub(in crate::cli::reduce) train: bool,
    /// With --train: passes over the training data [default: 10].
    #[arg(hide_short_help = true, long, value_name = "N", requires = "train")]
    pub(in crate::cli::reduce) epochs: Option<u64>,
    /// With --train: go on with a training that was interrupted, by the same command and this flag.
    #[arg(hide_short_help = true, long, requires = "train")]
    pub(in crate::cli::reduce) resume: bool,
    /// With --train: where to train, cpu, cuda or cuda:N [default: cpu].
    #[arg(
        hide_short_help = true,
        long,
        value_name = "DEVICE",
        requires = "train"
    )]
    pub(in crate::cli::reduce) device: Option<Place>,
}

impl TrainArguments {
    /// The options as they were typed, each behind a space.
    pub(in crate::cli::reduce) fn typed(&self) -> String {
        let epochs = self.epochs.map(|epochs| format!(" --epochs {epochs}"));
        match self.train {
            true => format!(" --train{}", epochs.unwrap_or_default()),
            false => String::new(),
        }
    }
}
