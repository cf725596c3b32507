//! Sequences that wait inside a network.

use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::infer::single::Single;
use crate::infer::space::Prepared;
use crate::infer::{InferError, Network, Signal, columns_of};
use crate::model::Sequence;
use crate::progress::{ProgressSink, in_order};

/// Sequences before a layer, in memory, for networks of the layers from there on: models that are the
/// same up to a layer are compared without running that part again. L × H numbers for each sequence.
pub(crate) struct Waiting {
    length: usize,
    /// Steps of each sequence that are no padding.
    steps: Vec<usize>,
    streams: Streams,
}

enum Streams {
    /// A few sequences each: sequence × step × channel.
    Single(Vec<Vec<f32>>),
    /// L × H of each sequence.
    Double(Vec<DMatrix<f64>>),
}

impl Waiting {
    /// Before the first layer.
    ///
    /// # Errors
    /// As [`Network::logits_of_all`].
    pub(crate) fn new(
        network: &Network<'_>,
        sequences: &[Sequence<'_>],
    ) -> Result<Self, InferError> {
        let steps = network.steps_of_all(sequences)?;
        let streams = match &network.single {
            Some(single) => {
                let few = sequences.par_chunks(single.together());
                Streams::Single(few.map(|few| single.encoded(few)).collect())
            }
            None => {
                let encoded = sequences.par_iter().map(|&sequence| {
                    let Signal { x, .. } = network.encode(sequence)?;
                    Ok::<_, InferError>(x)
                });
                Streams::Double(in_order(encoded)?)
            }
        };
        Ok(Self {
            length: network.length,
            steps,
            streams,
        })
    }

    /// Goes through the first layer of a network.
    ///
    /// # Errors
    /// [`InferError`] for a layer that cannot run; [`InferError::Cancelled`].
    pub(crate) fn pass(&mut self, network: &Network<'_>) -> Result<(), InferError> {
        if let (Streams::Single(few), Some(single)) = (&mut self.streams, &network.single) {
            let passed = Passed::new(single, 1, network.observer);
            in_order(few.par_iter_mut().map(|x| passed.through(x)))?;
            return Ok(());
        }
        self.streams = Streams::Double(self.doubles(network, 1)?);
        Ok(())
    }

    /// The logits of a network that takes what waits before its first layer.
    ///
    /// # Errors
    /// As [`Waiting::pass`].
    pub(crate) fn logits(&self, network: &Network<'_>) -> Result<Vec<Vec<f64>>, InferError> {
        let layers = network.model.blocks().len();
        let (Streams::Single(few), Some(single)) = (&self.streams, &network.single) else {
            let behind = self.doubles(network, layers)?.into_iter().zip(&self.steps);
            return Ok(behind.map(|(x, &steps)| network.head(x, steps)).collect());
        };
        let passed = Passed::new(single, layers, network.observer);
        let parts = few.par_iter().zip(self.steps.par_chunks(single.together()));
        let logits = parts.map(|(few, steps)| {
            let mut behind = few.clone();
            passed.through(&mut behind)?;
            let each = behind.chunks_exact_mut(single.row()).zip(steps);
            let logits = each.map(|(x, &steps)| {
                let features = single.pooled(x, steps, network.pooling());
                network.read_out(&features)
            });
            Ok::<_, InferError>(logits.collect::<Vec<_>>())
        });
        Ok(in_order(logits)?.concat())
    }

    /// Sequences that wait.
    pub(crate) fn count(&self) -> usize {
        self.steps.len()
    }

    /// What the map of the first layer of a network takes.
    pub(crate) fn taken<'a, 'n>(&'a self, network: &'a Network<'n>) -> Taken<'a, 'n> {
        let single = network.single.as_ref();
        Taken {
            waiting: self,
            network,
            operator: single.map(|single| single.prepared(0)),
        }
    }

    /// The streams behind the first layers of a network, in double precision.
    fn doubles(
        &self,
        network: &Network<'_>,
        count: usize,
    ) -> Result<Vec<DMatrix<f64>>, InferError> {
        let layers = &network.layers()?[..count];
        in_order((0..self.count()).into_par_iter().map(|index| {
            network.observer.check()?;
            let x = self.double(index);
            Ok(layers.iter().fold(x, |x, layer| layer.forward(x, None)))
        }))
    }

    /// The stream of one sequence in double precision.
    fn double(&self, index: usize) -> DMatrix<f64> {
        match &self.streams {
            Streams::Double(each) => each[index].clone(),
            Streams::Single(few) => {
                let row = few.iter().map(Vec::len).sum::<usize>() / self.count().max(1);
                let mut each = few.iter().flat_map(|few| few.chunks_exact(row.max(1)));
                let x = each.nth(index).unwrap_or_default();
                columns_of(x, row / self.length.max(1))
            }
        }
    }
}

/// What the map between the channels of a layer takes, for each of the sequences that wait before the layer.
pub(crate) struct Taken<'a, 'n> {
    waiting: &'a Waiting,
    network: &'a Network<'n>,
    operator: Option<Prepared<'a>>,
}

impl Taken<'_, '_> {
    /// GELU(y) of a sequence by its place among those that wait, steps × channels without padding.
    ///
    /// # Errors
    /// [`InferError`] for a layer that cannot run.
    pub(crate) fn of(&self, index: usize) -> Result<DMatrix<f64>, InferError> {
        let (network, steps) = (self.network, self.waiting.steps[index]);
        let single = network.single.as_ref().zip(self.operator.as_ref());
        if let (Streams::Single(few), Some((single, operator))) = (&self.waiting.streams, single) {
            let (together, row) = (single.together(), single.row());
            let mut rows = few[index / together].chunks_exact(row);
            let mut y = rows.nth(index % together).unwrap_or_default().to_vec();
            single.respond_with(0, operator, &mut y);
            y.truncate(steps * single.channels());
            return Ok(network.widened(&single.activated(0, &y)));
        }
        let layer = &network.layers()?[0];
        let y = layer.response(&self.waiting.double(index));
        Ok(layer.activate(&y.rows(0, steps).into_owned()))
    }
}

/// The first layers of a network, ready to run.
struct Passed<'a> {
    single: &'a Single,
    operators: Vec<Prepared<'a>>,
    observer: &'a dyn ProgressSink,
}

impl<'a> Passed<'a> {
    fn new(single: &'a Single, layers: usize, observer: &'a dyn ProgressSink) -> Self {
        Self {
            single,
            operators: (0..layers).map(|layer| single.prepared(layer)).collect(),
            observer,
        }
    }

    /// The streams of a few sequences, from before the layers to behind them.
    fn through(&self, x: &mut [f32]) -> Result<(), InferError> {
        for (layer, operator) in self.operators.iter().enumerate() {
            self.observer.check()?;
            self.single.pass(layer, operator, x);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::{Path, waves};

    #[test]
    fn the_rest_of_a_network_gives_the_same_logits() {
        let model = waves();
        let values: Vec<f32> = (0..1000).map(|t| (0.3 * t as f32).sin()).collect();
        let mut sequences: Vec<_> = values.chunks(200).map(Sequence::Values).collect();
        sequences[2] = Sequence::Values(&values[400..550]);
        for path in [Path::Auto, Path::Double] {
            let whole = Network::new(&model, 200, path).unwrap();
            let expected = whole.logits_of_all(&sequences).unwrap();
            let mut waiting = Waiting::new(&whole, &sequences).unwrap();
            for first in 0..model.blocks().len() {
                let rest = model.with_blocks(model.blocks()[first..].to_vec()).unwrap();
                let rest = Network::new(&rest, 200, path).unwrap();
                assert_eq!(waiting.logits(&rest).unwrap(), expected);
                // By the other path, nearly the same.
                let other = match path {
                    Path::Auto => Path::Double,
                    _ => Path::Auto,
                };
                let other = Network::new(rest.model(), 200, other).unwrap();
                let near = waiting.logits(&other).unwrap().concat();
                for (a, b) in near.iter().zip(expected.concat()) {
                    assert!((a - b).abs() < 1e-4, "{a} {b}");
                }
                waiting.pass(&rest).unwrap();
            }
        }
    }
}
