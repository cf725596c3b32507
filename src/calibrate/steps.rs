//! Mean and deviation of the input of every layer at each step.

use nalgebra::DMatrix;

use crate::calibrate::statistics::{Gather, gathered};
use crate::infer::{InferError, Network};
use crate::measure::StepStatistics;
use crate::model::Sequence;

/// Means and sums of squared distances from them, L × H.
struct Moments {
    count: f64,
    mean: DMatrix<f64>,
    squares: DMatrix<f64>,
}

impl Gather for Moments {
    fn zeros(length: usize, channels: usize) -> Self {
        Self {
            count: 0.0,
            mean: DMatrix::zeros(length, channels),
            squares: DMatrix::zeros(length, channels),
        }
    }

    /// Welford's update.
    fn add(&mut self, input: &DMatrix<f64>, _: usize) {
        self.count += 1.0;
        let entries = self.mean.iter_mut().zip(self.squares.iter_mut());
        for ((mean, squares), value) in entries.zip(input.iter()) {
            let before = value - *mean;
            *mean += before / self.count;
            *squares += before * (value - *mean);
        }
    }

    /// That of Chan, Golub and LeVeque for two groups.
    fn merge(&mut self, other: &Moments) {
        let total = self.count + other.count;
        if total == 0.0 {
            return;
        }
        let (share, between) = (other.count / total, self.count * other.count / total);
        let own = self.mean.iter_mut().zip(self.squares.iter_mut());
        let others = other.mean.iter().zip(other.squares.iter());
        for ((mean, squares), (other_mean, other_squares)) in own.zip(others) {
            let apart = other_mean - *mean;
            *mean += apart * share;
            *squares += other_squares + apart * apart * between;
        }
        self.count = total;
    }
}

/// Mean and standard deviation of the input of every layer at each step, when the model runs on the
/// given sequences: one for each block. Padding counts with the values that it takes. Sequences run on all cores;
/// the result does not depend on their number. Memory O(L H) for each layer and thread.
///
/// # Errors
/// As [`Network::logits_of_all`]; [`InferError`] for no sequences; [`InferError::Statistics`].
pub fn step_statistics(
    network: &Network<'_>,
    sequences: &[Sequence<'_>],
) -> Result<Vec<StepStatistics>, InferError> {
    if sequences.is_empty() {
        return Err(InferError::no_sequences());
    }
    let total: Vec<Moments> = gathered(network, sequences)?;
    let layers = total.into_iter().enumerate();
    let layers = layers.map(|(layer, moments)| {
        let deviation = (moments.squares / moments.count).map(|square| square.max(0.0).sqrt());
        StepStatistics::new(moments.mean, deviation, sequences.len())
            .map_err(|fault| InferError::of_input(layer, fault))
    });
    layers.collect()
}
