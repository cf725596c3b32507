//! The inputs of the layers, gathered from sequences.

use hankelite_control::{Convolver, InputStatistics, StatisticsError, lags_of};
use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::infer::{InferError, Network, Walk};
use crate::model::Sequence;
use crate::progress::stage;

/// Sequences whose sums are taken on one thread, in order: sums do not depend on the threads.
pub(super) const GROUP: usize = 4;

/// Groups whose sums are held at a time, at most.
pub(super) const GROUPS_HELD: usize = 8;

/// What is summed over sequences for one layer.
pub(super) trait Gather: Send {
    /// Nothing yet.
    fn zeros(length: usize, channels: usize) -> Self;
    /// Adds a sequence, L × H, of which so many steps are no padding.
    fn add(&mut self, input: &DMatrix<f64>, steps: usize);
    /// Adds other sums.
    fn merge(&mut self, other: &Self);
}

/// One sum for each layer over all of some sequences.
pub(super) fn gathered<T: Gather>(
    network: &Network<'_>,
    sequences: &[Sequence<'_>],
) -> Result<Vec<T>, InferError> {
    let blocks = network.model().blocks();
    let empty = || -> Vec<T> {
        let sums = blocks.iter();
        sums.map(|block| T::zeros(network.length(), block.channels()))
            .collect()
    };
    let observer = network.begin(stage::LAYER_INPUTS, sequences.len());
    network.steps_of_all(sequences)?;
    let mut total: Option<Vec<T>> = None;
    // One for each thread: at long sequences sums take more memory than all else.
    let groups = rayon::current_num_threads().clamp(1, GROUPS_HELD);
    for held in sequences.chunks(GROUP * groups) {
        let sums = held.par_chunks(GROUP).map(|members| {
            let mut sums = empty();
            observer.check()?;
            network.visit_inputs(members, blocks.len(), |_, layer, input, steps| {
                sums[layer].add(input, steps);
            })?;
            observer.advance(members.len());
            Ok(sums)
        });
        for sums in sums.collect::<Result<Vec<_>, InferError>>()? {
            match &mut total {
                None => total = Some(sums),
                Some(total) => {
                    let pairs = total.iter_mut().zip(&sums);
                    pairs.for_each(|(total, sums)| total.merge(sums));
                }
            }
        }
    }
    Ok(total.unwrap_or_else(empty))
}

/// Sums over sequences for one layer.
pub(super) struct Sums {
    /// Σ u, one for each channel.
    values: Vec<f64>,
    /// Σ |U(k)|² on 2L frequencies, L + 1 × H.
    power: DMatrix<f64>,
}

impl Gather for Sums {
    fn zeros(length: usize, channels: usize) -> Self {
        Self {
            values: vec![0.0; channels],
            power: DMatrix::zeros(length + 1, channels),
        }
    }

    /// Padding counts as zero: no error there reaches what is pooled.
    fn add(&mut self, input: &DMatrix<f64>, steps: usize) {
        let mut padded = vec![0.0; 2 * input.nrows()];
        for (h, column) in input.column_iter().enumerate() {
            let own = &column.as_slice()[..steps];
            self.values[h] += own.iter().sum::<f64>();
            padded[..steps].copy_from_slice(own);
            padded[steps..].fill(0.0);
            let spectrum = Convolver::transform(&mut padded);
            for (sum, value) in self.power.column_mut(h).iter_mut().zip(&spectrum) {
                *sum += value.norm_sqr();
            }
        }
    }

    fn merge(&mut self, other: &Sums) {
        self.power += &other.power;
        for (sum, value) in self.values.iter_mut().zip(&other.values) {
            *sum += value;
        }
    }
}

impl Sums {
    /// Means and autocorrelations.
    pub(super) fn statistics(&self, sequences: usize) -> Result<InputStatistics, StatisticsError> {
        let (bins, channels) = self.power.shape();
        let length = bins - 1;
        let samples = (sequences * length) as f64;
        let mut autocorrelation = DMatrix::zeros(length, channels);
        for (mut lags, power) in autocorrelation
            .column_iter_mut()
            .zip(self.power.column_iter())
        {
            lags.copy_from_slice(&lags_of(power.as_slice(), sequences));
        }
        let mean = self.values.iter().map(|sum| sum / samples).collect();
        InputStatistics::new(mean, autocorrelation, sequences)
    }
}

/// The inputs of the channels of one layer: for each channel sequences × L. Cost a forward pass for
/// each sequence, up to the layer; memory O(n L H).
///
/// # Errors
/// As [`Network::logits_of_all`]; [`InferError`] for no sequences.
pub fn layer_inputs(
    network: &Network<'_>,
    sequences: &[Sequence<'_>],
    layer: usize,
) -> Result<Vec<DMatrix<f64>>, InferError> {
    if sequences.is_empty() {
        return Err(InferError::no_sequences());
    }
    walk_to(network, sequences, layer)?.inputs()
}

/// Sequences before a layer.
pub(super) fn walk_to<'w, 'a>(
    network: &'w Network<'a>,
    sequences: &[Sequence<'_>],
    layer: usize,
) -> Result<Walk<'w, 'a>, InferError> {
    let mut walk = network.walk(sequences)?;
    for _ in 0..layer {
        walk.advance()?;
    }
    Ok(walk)
}

/// The statistics of every layer's input when the model runs on the given sequences: one for each
/// block. Padding counts as zero. Sequences run on all cores; the result does not depend on
/// their number. Memory O(L H) for each layer. Cost of a forward pass and an FFT per layer, channel
/// and sequence.
///
/// # Errors
/// As [`Network::logits_of_all`]; [`InferError`] for no sequences; [`InferError::Statistics`] for
/// sequences without steps and where the squares of a layer's input overflow.
pub fn input_statistics(
    network: &Network<'_>,
    sequences: &[Sequence<'_>],
) -> Result<Vec<InputStatistics>, InferError> {
    if sequences.is_empty() {
        return Err(InferError::no_sequences());
    }
    let length = network.length();
    let fault = |(layer, fault): (usize, StatisticsError)| InferError::of_input(layer, fault);
    if length == 0 {
        let sequences = sequences.len();
        return Err(fault((0, StatisticsError::Empty { sequences, length })));
    }
    let total: Vec<Sums> = gathered(network, sequences)?;
    let statistics = total.into_iter().enumerate().map(|(layer, sums)| {
        let statistics = sums.statistics(sequences.len());
        statistics.map_err(|source| fault((layer, source)))
    });
    statistics.collect()
}
