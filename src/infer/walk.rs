//! Sequences that go through a network layer by layer.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::compress::{NumberStore, Place};
use crate::infer::layer::Layer;
use crate::infer::single::{PartsOfStream, Single};
use crate::infer::{InferError, Network, Signal};
use crate::model::{Pooling, Sequence};
use crate::progress::{ProgressSink, in_order, stage};

/// Channels whose numbers are put in order at a time: a line of the cache.
const CHANNELS_TOGETHER: usize = 16;

/// Sequences that wait before a layer of a network: the inputs of all layers, one after the other,
/// for the cost of one forward pass. L × H numbers for each sequence, in memory up to 256 MiB (32 MiB
/// where sequences are long), beyond that in a temporary file.
pub(crate) struct Walk<'w, 'a> {
    network: &'w Network<'a>,
    /// Steps of each sequence that are no padding.
    steps: Vec<usize>,
    layer: usize,
    streams: Streams<'w, 'a>,
}

/// What stands before the layer.
enum Streams<'w, 'a> {
    Single(SingleStreams<'w>),
    /// L × H of each sequence.
    Double(&'w [Layer<'a>], Vec<DMatrix<f64>>),
}

/// In single precision.
struct SingleStreams<'w> {
    single: &'w Single,
    few: Few,
}

/// Of a few sequences each: sequence × step × channel.
enum Few {
    Held(Vec<Vec<f32>>),
    Stored(StoredStreams),
}

/// In a temporary file.
struct StoredStreams {
    store: NumberStore,
    places: Vec<Place<f32>>,
    /// Of the layer at hand, from where inputs were taken channel by channel.
    turned: OnceLock<Turned>,
}

/// What the state spaces of a layer take, in a temporary file channel by channel.
struct Turned {
    store: NumberStore,
    /// Sequences × L.
    channels: Vec<Place<f32>>,
}

struct PartsInFile<'s> {
    store: &'s NumberStore,
    place: &'s Place<f32>,
}

impl PartsOfStream<io::Error> for PartsInFile<'_> {
    fn read(&self, first: usize, numbers: &mut [f32]) -> io::Result<()> {
        let part = self.place.part(first, numbers.len());
        self.store.read(&part, numbers)
    }

    fn write(&self, first: usize, numbers: &[f32]) -> io::Result<()> {
        let part = self.place.part(first, numbers.len());
        self.store.replace(&part, numbers)
    }
}

impl<'w> SingleStreams<'w> {
    /// Before the first layer. The sequences were checked.
    fn new(single: &'w Single, sequences: &[Sequence<'_>]) -> io::Result<Self> {
        let bytes = size_of::<f32>() * single.row() * sequences.len();
        let encoded = sequences
            .par_chunks(single.together())
            .map(|few| single.encoded(few));
        let few = match bytes <= single.streams_held {
            true => Few::Held(encoded.collect()),
            false => {
                let store = NumberStore::new()?;
                let places = in_order(encoded.map(|few| store.put(&few)))?;
                Few::Stored(StoredStreams {
                    store,
                    places,
                    turned: OnceLock::new(),
                })
            }
        };
        Ok(Self { single, few })
    }

    /// Goes through a layer; `passed` gets how many sequences did.
    fn pass(
        &mut self,
        layer: usize,
        observer: &dyn ProgressSink,
        passed: impl Fn(usize) + Sync,
    ) -> Result<(), InferError> {
        let (single, operator) = (self.single, self.single.prepared(layer));
        match &mut self.few {
            Few::Held(streams) => {
                in_order(streams.par_iter_mut().map(|x| {
                    observer.check()?;
                    single.pass(layer, &operator, x);
                    passed(x.len() / single.row());
                    Ok::<_, InferError>(())
                }))?;
            }
            Few::Stored(StoredStreams {
                store,
                places,
                turned,
            }) => {
                turned.take();
                let store = &*store;
                in_order(places.par_iter().map(|place| {
                    observer.check()?;
                    let parts = PartsInFile { store, place };
                    let done = single.pass_by_parts(layer, &operator, place.count(), parts);
                    done.map_err(InferError::of_store)?;
                    passed(place.count() / single.row());
                    Ok::<_, InferError>(())
                }))?;
            }
        }
        Ok(())
    }

    /// What the state spaces of some channels of a layer take: for each sequences × L.
    fn inputs(
        &self,
        layer: usize,
        channels: Range<usize>,
        length: usize,
    ) -> io::Result<Vec<DMatrix<f64>>> {
        let single = self.single;
        let streams = match &self.few {
            Few::Held(streams) => streams,
            Few::Stored(stored) => {
                let turned = stored.turned(single, layer, length)?;
                let inputs = channels.into_par_iter().map(|h| turned.input(h, length));
                return in_order(inputs);
            }
        };
        let own = streams.par_iter().map(|x| {
            let mut inputs = single.numbers(x.len());
            inputs.copy_from_slice(x);
            single.normalise(layer, &mut inputs);
            let rows: Vec<&[f32]> = inputs.chunks_exact(single.row()).collect();
            by_channel(&rows, length, channels.clone())
        });
        let own: Vec<Vec<DMatrix<f32>>> = own.collect();
        let of = |h: usize| stacked(own.iter().map(|few| &few[h]), length);
        Ok((0..channels.len()).into_par_iter().map(of).collect())
    }

    /// What the head takes of every sequence, behind the last layer.
    fn pooled(self, steps: &[usize], pooling: Option<Pooling>) -> io::Result<Vec<Vec<f64>>> {
        let (single, mut steps) = (self.single, steps.iter());
        let mut all = Vec::with_capacity(steps.len());
        let mut pool = |few: &mut [f32]| {
            let sequences = few.chunks_exact_mut(single.row()).zip(&mut steps);
            all.extend(sequences.map(|(x, &steps)| single.pooled(x, steps, pooling)));
        };
        match self.few {
            Few::Held(streams) => streams.into_iter().for_each(|mut few| pool(&mut few)),
            Few::Stored(StoredStreams { store, places, .. }) => {
                for place in places {
                    let mut few = single.numbers(place.count());
                    store.read(&place, &mut few)?;
                    pool(&mut few);
                }
            }
        }
        Ok(all)
    }
}

impl StoredStreams {
    /// Inputs in their order by channel: one pass through the file for all channels of the layer.
    fn turned(&self, single: &Single, layer: usize, length: usize) -> io::Result<&Turned> {
        if let Some(turned) = self.turned.get() {
            return Ok(turned);
        }
        let (row, each) = (single.row(), single.together() * length);
        let all = row / length.max(1);
        let numbers: usize = self.places.iter().map(Place::count).sum();
        let store = NumberStore::new()?;
        let channels = (0..all).map(|_| store.reserve(numbers / row * length));
        let channels: Vec<Place<f32>> = channels.collect::<io::Result<_>>()?;
        let written = self.places.par_iter().enumerate().map(|(index, place)| {
            let mut inputs = single.numbers(place.count());
            self.store.read(place, &mut inputs)?;
            single.normalise(layer, &mut inputs);
            let rows: Vec<&[f32]> = inputs.chunks_exact(row).collect();
            for first in (0..all).step_by(CHANNELS_TOGETHER) {
                let group = first..all.min(first + CHANNELS_TOGETHER);
                let own = by_channel(&rows, length, group.clone());
                for (place, own) in channels[group].iter().zip(own) {
                    let part = place.part(index * each, own.len());
                    store.replace(&part, own.as_slice())?;
                }
            }
            Ok::<_, io::Error>(())
        });
        in_order(written)?;
        Ok(self.turned.get_or_init(|| Turned { store, channels }))
    }
}

impl Turned {
    /// Of one channel: sequences × L.
    fn input(&self, channel: usize, length: usize) -> io::Result<DMatrix<f64>> {
        let place = &self.channels[channel];
        let mut numbers = vec![0.0; place.count()];
        self.store.read(place, &mut numbers)?;
        let sequences = place.count() / length.max(1);
        let of = |n: usize, t: usize| f64::from(numbers[n * length + t]);
        Ok(DMatrix::from_fn(sequences, length, of))
    }
}

impl<'a> Network<'a> {
    /// Sequences before the first layer.
    ///
    /// # Errors
    /// As [`Network::logits_of_all`]; [`InferError`] for the temporary file.
    pub(crate) fn walk<'w>(
        &'w self,
        sequences: &[Sequence<'_>],
    ) -> Result<Walk<'w, 'a>, InferError> {
        let steps = self.steps_of_all(sequences)?;
        let streams = match &self.single {
            Some(single) => {
                let streams = SingleStreams::new(single, sequences);
                Streams::Single(streams.map_err(InferError::of_store)?)
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
    pub(crate) fn inputs(&self) -> Result<Vec<DMatrix<f64>>, InferError> {
        self.inputs_of(0..self.network.model().blocks()[self.layer].channels())
    }

    /// The inputs of some of the layer's channels: for each sequences × L. Memory for those, and for the
    /// inputs of the sequences at hand.
    ///
    /// # Errors
    /// [`InferError`] for the temporary file.
    pub(crate) fn inputs_of(
        &self,
        channels: Range<usize>,
    ) -> Result<Vec<DMatrix<f64>>, InferError> {
        let (count, length) = (self.steps.len(), self.network.length);
        match &self.streams {
            Streams::Single(streams) => {
                let inputs = streams.inputs(self.layer, channels, length);
                inputs.map_err(InferError::of_store)
            }
            Streams::Double(layers, streams) => {
                let layer = &layers[self.layer];
                let own = streams.par_iter().map(|x| {
                    let input = layer.input_of(x);
                    input.columns(channels.start, channels.len()).into_owned()
                });
                let own: Vec<DMatrix<f64>> = own.collect();
                let of = |h| DMatrix::from_fn(count, length, |n, t| own[n][(t, h)]);
                Ok((0..channels.len()).into_par_iter().map(of).collect())
            }
        }
    }

    /// Fewer channels than this at a time cost as much as so many.
    pub(crate) fn channels_together(&self) -> usize {
        match &self.streams {
            Streams::Single(streams) if matches!(streams.few, Few::Stored(_)) => 1,
            _ => CHANNELS_TOGETHER,
        }
    }

    /// Goes through the layer.
    ///
    /// # Errors
    /// [`InferError::Cancelled`]; [`InferError`] for the temporary file.
    pub(crate) fn advance(&mut self) -> Result<(), InferError> {
        let observer = self.network.begin(stage::LAYER_INPUTS, self.steps.len());
        self.pass(|count| observer.advance(count))
    }

    /// Goes through the layer; `passed` gets how many sequences did.
    pub(super) fn pass(&mut self, passed: impl Fn(usize) + Sync) -> Result<(), InferError> {
        let (index, observer) = (self.layer, self.network.observer);
        match &mut self.streams {
            Streams::Single(streams) => streams.pass(index, observer, passed)?,
            Streams::Double(layers, streams) => {
                let all = streams.par_iter_mut().map(|x| {
                    *x = layers[index].forward(std::mem::take(x), None);
                    passed(1);
                    Ok::<_, InferError>(observer.check()?)
                });
                in_order(all)?;
            }
        }
        self.layer += 1;
        Ok(())
    }

    /// The logits, behind the last layer.
    ///
    /// # Errors
    /// [`InferError`] for the temporary file.
    pub(crate) fn logits(self) -> Result<Vec<Vec<f64>>, InferError> {
        let (network, pooling) = (self.network, self.network.pooling());
        match self.streams {
            Streams::Single(streams) => {
                let pooled = streams.pooled(&self.steps, pooling);
                let pooled = pooled.map_err(InferError::of_store)?;
                Ok(pooled.iter().map(|of| network.read_out(of)).collect())
            }
            Streams::Double(_, streams) => {
                let pairs = streams.into_iter().zip(self.steps);
                Ok(pairs.map(|(x, steps)| network.head(x, steps)).collect())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::{Path, Setup, waves};

    /// Logits of five sequences, one shorter than the others, and the inputs of some channels of all
    /// layers, by operators and sequences that are in memory or not.
    fn walked(in_memory: bool) -> (Vec<Vec<f64>>, Vec<Vec<DMatrix<f64>>>) {
        let model = waves();
        let mut setup = Setup::default();
        if !in_memory {
            setup.spectra_held = 0;
        }
        let mut network = Network::with_setup(&model, 200, Path::Auto, &setup).unwrap();
        let single = network.single.as_mut().unwrap();
        assert_eq!(single.forms_operators(), !in_memory);
        if !in_memory {
            single.streams_held = 0;
        }
        let values: Vec<f32> = (0..1000).map(|t| (0.3 * t as f32).sin()).collect();
        let mut sequences: Vec<_> = values.chunks(200).map(Sequence::Values).collect();
        sequences[2] = Sequence::Values(&values[400..550]);
        let mut walk = network.walk(&sequences).unwrap();
        let mut inputs = Vec::new();
        for _ in model.blocks() {
            inputs.push(walk.inputs_of(1..4).unwrap());
            walk.advance().unwrap();
        }
        let logits = walk.logits().unwrap();
        assert_eq!(network.logits_of_all(&sequences).unwrap(), logits);
        (logits, inputs)
    }

    #[test]
    fn what_does_not_fit_into_memory_gives_the_same_bits() {
        assert_eq!(walked(true), walked(false));
    }
}
