//! Sequences that go through a network layer by layer.

use std::ops::Range;

use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::infer::layer::Layer;
use crate::infer::single::Single;
use crate::infer::{InferError, Network, Signal};
use crate::model::Sequence;
use crate::progress::{Stage, in_order};

/// Channels whose numbers are put in order at a time: a line of the cache.
const CHANNELS_TOGETHER: usize = 16;

/// Sequences that wait before a layer of a network: the inputs of all layers, one after the other,
/// for the cost of one forward pass. Memory L × H numbers for each sequence.
pub(crate) struct Walk<'w, 'a> {
    network: &'w Network<'a>,
    /// Steps of each sequence that are no padding.
    steps: Vec<usize>,
    layer: usize,
    streams: Streams<'w, 'a>,
}

/// What stands before the layer.
enum Streams<'w, 'a> {
    /// Of a few sequences each, sequence × step × channel.
    Single(&'w Single, Vec<Vec<f32>>),
    /// L × H of each sequence.
    Double(&'w [Layer<'a>], Vec<DMatrix<f64>>),
}

impl<'a> Network<'a> {
    /// Sequences before the first layer.
    ///
    /// # Errors
    /// As [`Network::logits_of_all`].
    pub(crate) fn walk<'w>(
        &'w self,
        sequences: &[Sequence<'_>],
    ) -> Result<Walk<'w, 'a>, InferError> {
        let steps = self.steps_of_all(sequences)?;
        let streams = match &self.single {
            Some(single) => {
                let few = sequences.par_chunks(single.together());
                let encoded = few.map(|few| single.encoded(few));
                Streams::Single(single, encoded.collect())
            }
            None => {
                let encoded = sequences.par_iter().map(|&sequence| {
                    let Signal { x, .. } = self.encode(sequence)?;
                    Ok::<_, InferError>(x)
                });
                Streams::Double(self.layers()?, in_order(encoded)?)
            }
        };
        Ok(Walk {
            network: self,
            steps,
            layer: 0,
            streams,
        })
    }
}

impl Walk<'_, '_> {
    /// The inputs of all channels of the layer, see [`Walk::inputs_of`].
    pub(crate) fn inputs(&self) -> Vec<DMatrix<f64>> {
        self.inputs_of(0..self.network.model().blocks()[self.layer].channels())
    }

    /// The inputs of some of the layer's channels: for each sequences × L. Memory for those, and for the
    /// inputs of the sequences at hand.
    pub(crate) fn inputs_of(&self, channels: Range<usize>) -> Vec<DMatrix<f64>> {
        let (count, length) = (self.steps.len(), self.network.length);
        match &self.streams {
            Streams::Single(single, streams) => {
                let own = streams.par_iter().map(|x| {
                    let inputs = single.input_of(self.layer, x);
                    let rows: Vec<&[f32]> = inputs.chunks_exact(single.row()).collect();
                    by_channel(&rows, length, channels.clone())
                });
                let own: Vec<Vec<DMatrix<f32>>> = own.collect();
                let of = |h: usize| stacked(own.iter().map(|few| &few[h]), length);
                (0..channels.len()).into_par_iter().map(of).collect()
            }
            Streams::Double(layers, streams) => {
                let layer = &layers[self.layer];
                let own = streams.par_iter().map(|x| {
                    let input = layer.input_of(x);
                    input.columns(channels.start, channels.len()).into_owned()
                });
                let own: Vec<DMatrix<f64>> = own.collect();
                let of = |h| DMatrix::from_fn(count, length, |n, t| own[n][(t, h)]);
                (0..channels.len()).into_par_iter().map(of).collect()
            }
        }
    }

    /// Goes through the layer.
    ///
    /// # Errors
    /// [`InferError::Cancelled`].
    pub(crate) fn advance(&mut self) -> Result<(), InferError> {
        let observer = self.network.begin(Stage::LayerInputs, self.steps.len());
        let index = self.layer;
        match &mut self.streams {
            Streams::Single(single, streams) => {
                let passed = streams.par_iter_mut().map(|x| {
                    observer.check()?;
                    single.pass(index, x);
                    observer.advance(x.len() / single.row());
                    Ok::<_, InferError>(())
                });
                in_order(passed)?;
            }
            Streams::Double(layers, streams) => {
                let passed = streams.par_iter_mut().map(|x| {
                    *x = layers[index].forward(std::mem::take(x), None);
                    observer.step()?;
                    Ok::<_, InferError>(())
                });
                in_order(passed)?;
            }
        }
        self.layer += 1;
        Ok(())
    }

    /// The logits, behind the last layer.
    pub(crate) fn logits(self) -> Vec<Vec<f64>> {
        let (network, pooling) = (self.network, self.network.pooling());
        match self.streams {
            Streams::Single(single, mut streams) => {
                let rows = streams
                    .iter_mut()
                    .flat_map(|x| x.chunks_exact_mut(single.row()));
                let pairs = rows.zip(&self.steps);
                pairs
                    .map(|(x, &steps)| network.read_out(&single.pooled(x, steps, pooling)))
                    .collect()
            }
            Streams::Double(_, streams) => {
                let pairs = streams.into_iter().zip(&self.steps);
                pairs.map(|(x, &steps)| network.head(x, steps)).collect()
            }
        }
    }
}

/// L × sequences of some channels, from L × H by rows of every sequence.
fn by_channel(rows: &[&[f32]], length: usize, channels: Range<usize>) -> Vec<DMatrix<f32>> {
    let all = rows.first().map_or(0, |row| row.len() / length.max(1));
    let mut made = vec![DMatrix::zeros(length, rows.len()); channels.len()];
    let groups = made.chunks_mut(CHANNELS_TOGETHER).enumerate();
    for (group, made) in groups {
        let first = channels.start + group * CHANNELS_TOGETHER;
        for t in 0..length {
            for (n, row) in rows.iter().enumerate() {
                let own = &row[t * all + first..][..made.len()];
                for (made, &value) in made.iter_mut().zip(own) {
                    made[(t, n)] = value;
                }
            }
        }
    }
    made
}

/// Sequences × L of one channel, from L × sequences of a few sequences each.
fn stacked<'m>(few: impl Iterator<Item = &'m DMatrix<f32>>, length: usize) -> DMatrix<f64> {
    let columns: Vec<&[f32]> = few
        .flat_map(|own| own.as_slice().chunks_exact(length.max(1)))
        .collect();
    DMatrix::from_fn(columns.len(), length, |n, t| f64::from(columns[n][t]))
}
