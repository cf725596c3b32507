//! Sequences that go through a network layer by layer.

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
    /// The inputs of the layer's channels: for each sequences × L.
    pub(crate) fn inputs(&self) -> Vec<DMatrix<f64>> {
        let count = self.steps.len();
        match &self.streams {
            Streams::Single(single, streams) => {
                let inputs = streams.par_iter().map(|x| single.input_of(self.layer, x));
                let inputs: Vec<Vec<f32>> = inputs.collect();
                let row = single.row();
                let rows: Vec<&[f32]> = inputs.iter().flat_map(|x| x.chunks_exact(row)).collect();
                by_channel(&rows, self.network.length)
            }
            Streams::Double(layers, streams) => {
                let layer = &layers[self.layer];
                let inputs = streams.par_iter().map(|x| layer.input_of(x).into_owned());
                let inputs: Vec<DMatrix<f64>> = inputs.collect();
                let (length, channels) = inputs.first().map_or((0, 0), DMatrix::shape);
                let of = |h| DMatrix::from_fn(count, length, |n, t| inputs[n][(t, h)]);
                (0..channels).into_par_iter().map(of).collect()
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

/// Sequences × L of every channel, from L × H by rows of every sequence.
fn by_channel(rows: &[&[f32]], length: usize) -> Vec<DMatrix<f64>> {
    let channels = rows.first().map_or(0, |row| row.len() / length.max(1));
    let groups = (0..channels).into_par_iter().step_by(CHANNELS_TOGETHER);
    let groups = groups.map(|first| {
        let together = CHANNELS_TOGETHER.min(channels - first);
        let mut made = vec![DMatrix::zeros(rows.len(), length); together];
        for t in 0..length {
            for (n, row) in rows.iter().enumerate() {
                let own = &row[t * channels + first..][..together];
                for (made, &value) in made.iter_mut().zip(own) {
                    made[(n, t)] = f64::from(value);
                }
            }
        }
        made
    });
    groups.flatten_iter().collect()
}
