//! A model laid out for the runtime.

use hankelite_control::{DiagonalSystem, Time};
use hankelite_edge::{Header, LANES, Layer, MAGIC, Matrix, Real, VERSION, code, padded};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::model::{Block, Encoder, Linear, Model, Norm, Placement, Pooling};
use crate::rounding::Entries;
use crate::stream::aligned::{Aligned, LINE};
use crate::stream::{StreamError, layout};

/// A model as the block of bytes that [`Runner`](crate::stream::Runner) and `hankelite-edge` run.
///
/// It holds what a step reads and nothing else. The bytes can be kept in a file, or in the flash of
/// a device.
#[derive(Debug, Clone)]
pub struct Image {
    bytes: Aligned<u8>,
}

impl Image {
    /// Lays a model out in single precision.
    ///
    /// # Errors
    /// A [`StreamError`] that states why the model cannot be streamed.
    pub fn new(model: &Model, entries: Entries) -> Result<Self, StreamError> {
        pack(model, entries, f32::BYTES)
    }

    /// The same in double precision, to check the runtime by.
    ///
    /// # Errors
    /// As [`Image::new`].
    pub fn double(model: &Model, entries: Entries) -> Result<Self, StreamError> {
        pack(model, entries, f64::BYTES)
    }

    /// An image that was made before; checked when a runner takes it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            bytes: Aligned::copied(bytes),
        }
    }

    /// Whether a file that starts with these bytes can be an image.
    pub fn is_image(start: &[u8]) -> bool {
        start.starts_with(&MAGIC.to_le_bytes())
    }

    /// The bytes, to be kept.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

/// Bytes so far, and how numbers are written.
struct Packer {
    bytes: Vec<u8>,
    number: u32,
    entries: Entries,
    channels: usize,
    /// What is being packed, for errors.
    place: String,
}

fn pack(model: &Model, entries: Entries, number: u32) -> Result<Image, StreamError> {
    let mut packer = Packer {
        bytes: vec![0; 4 * Header::WORDS],
        number,
        entries,
        channels: channels_of(model)?,
        place: "the encoder".to_string(),
    };
    let mut header = Header {
        magic: MAGIC,
        version: VERSION,
        number,
        channels: packer.channels as u32,
        inputs: model.inputs().unwrap_or(packer.channels) as u32,
        outputs: model.classes().unwrap_or(packer.channels) as u32,
        layers: (model.blocks().len() + usize::from(model.final_norm().is_some())) as u32,
        ..Header::default()
    };
    (header.encoder, header.encoder_at) = packer.encoder(model.encoder())?;
    let layers: Result<Vec<Layer>, _> = model.blocks().iter().map(|b| packer.layer(b)).collect();
    let mut layers = layers?;
    if let Some(norm) = model.final_norm() {
        layers.push(packer.final_norm(norm)?);
    }
    let words: Vec<u32> = layers.iter().flat_map(|layer| layer.words()).collect();
    header.layers_at = packer.words(&words)?;
    packer.place = "the head".to_string();
    if let Some(head) = model.head() {
        header.head_at = packer.linear(&head.linear, packer.channels, Entries::Full)?;
        header.pooling = match head.pooling {
            Some(Pooling::Mean) => code::MEAN,
            Some(Pooling::Last) => code::LAST,
            None => code::NONE,
        };
    }
    packer.finish(header)
}

/// The number H of channels, which encoder, layers and head must agree on.
fn channels_of(model: &Model) -> Result<usize, StreamError> {
    let encoder = model.encoder().map(Encoder::width);
    let layer = model.blocks().first().map(Block::channels);
    let channels = encoder.or(layer).unwrap_or(0);
    let expect =
        |place: &str, found: usize| expect("the number of channels", place, found, channels);
    if channels == 0 {
        return Err(StreamError::Shape {
            what: "the number of channels",
            place: "the model".to_string(),
            found: 0,
            expected: 1,
        });
    }
    for block in model.blocks() {
        expect(block.name(), block.channels())?;
    }
    if let Some(head) = model.head() {
        expect("the head", head.linear.weight.nrows())?;
    }
    Ok(channels)
}

fn expect(
    what: &'static str,
    place: &str,
    found: usize,
    expected: usize,
) -> Result<(), StreamError> {
    if found == expected {
        return Ok(());
    }
    Err(StreamError::Shape {
        what,
        place: place.to_string(),
        found,
        expected,
    })
}

impl Packer {
    fn encoder(&mut self, encoder: Option<&Encoder>) -> Result<(u32, u32), StreamError> {
        match encoder {
            None => Ok((code::NONE, 0)),
            Some(Encoder::Linear(linear)) => {
                let at = self.linear(linear, linear.weight.nrows(), Entries::Full)?;
                Ok((code::LINEAR, at))
            }
            Some(Encoder::Embedding(table)) => {
                let rows = table.column_iter();
                let rows = rows.flat_map(|row| layout::lanes(row.into_owned().as_slice()));
                let rows: Vec<f64> = rows.collect();
                Ok((code::EMBEDDING, self.numbers("an entry", &rows)?))
            }
        }
    }

    fn layer(&mut self, block: &Block) -> Result<Layer, StreamError> {
        self.place = block.name().to_string();
        check_causal(block)?;
        let mut layer = Layer::default();
        match block.systems() {
            [one] if one.as_siso().is_err() => self.shared(&mut layer, one)?,
            systems => self.bank(&mut layer, systems)?,
        }
        if let Some((norm, placement)) = block.norm() {
            layer.before = u32::from(*placement == Placement::Pre);
            (layer.norm, layer.norm_at) = self.norm(norm)?;
        }
        if let Some(output) = block.output() {
            let (mixing, halves) = match output.gated {
                true => (code::GATED, 2),
                false => (code::MIXED, 1),
            };
            let rows = output.linear.weight.ncols();
            let expected = halves * self.channels;
            expect("the number of outputs", &self.place, rows, expected)?;
            layer.mixing = mixing;
            let linear = in_halves(&output.linear, halves);
            layer.mixing_at = self.linear(&linear, self.channels, self.entries)?;
        }
        Ok(layer)
    }

    /// A layer that only normalises, norm(x + 0): its systems have no modes and GELU(0) = 0.
    fn final_norm(&mut self, norm: &Norm) -> Result<Layer, StreamError> {
        self.place = "the last norm".to_string();
        let mut layer = Layer::default();
        let silent = DiagonalSystem::siso(Time::Discrete { step: 1.0 }, Vec::new(), &[], 0.0)?;
        self.bank(&mut layer, &vec![silent; self.channels])?;
        (layer.norm, layer.norm_at) = self.norm(norm)?;
        Ok(layer)
    }

    /// One system for each channel, those of like order side by side.
    fn bank(&mut self, layer: &mut Layer, systems: &[DiagonalSystem]) -> Result<(), StreamError> {
        let modes = systems.iter().map(used_modes);
        let modes: Vec<Vec<[Complex64; 2]>> = modes.collect::<Result<_, _>>()?;
        let orders: Vec<usize> = modes.iter().map(Vec::len).collect();
        let places = layout::sorted(&orders);
        let channel_at = |lane: usize| match &places {
            Some(places) => places.get(lane).copied(),
            None => (lane < systems.len()).then_some(lane),
        };
        let (mut counts, mut numbers) = (Vec::new(), Vec::new());
        for first in (0..systems.len()).step_by(LANES) {
            let lanes: [Option<usize>; LANES] = std::array::from_fn(|l| channel_at(first + l));
            let of_lanes = lanes.iter().flatten();
            let count = of_lanes.map(|&channel| orders[channel]).max().unwrap_or(0);
            counts.push(count as u32);
            for mode in 0..count {
                let pair = lanes.map(|channel| {
                    let of_channel = channel.and_then(|channel| modes[channel].get(mode));
                    of_channel.copied().unwrap_or_default()
                });
                numbers.extend(pair.map(|[d, _]| d.re));
                numbers.extend(pair.map(|[d, _]| d.im));
                numbers.extend(pair.map(|[_, r]| r.re));
                numbers.extend(pair.map(|[_, r]| r.im));
            }
        }
        layer.dynamics = code::CHANNELS;
        layer.groups = counts.len() as u32;
        layer.modes_at = self.words(&counts)?;
        layer.systems_at = self.numbers("a pole or residue", &numbers)?;
        let d = (0..systems.len()).filter_map(channel_at);
        let d: Vec<f64> = d
            .map(|channel| systems[channel].feedthrough()[(0, 0)])
            .collect();
        layer.feedthrough_at = self.feedthrough(&d)?;
        if let Some(places) = places {
            let mut words: Vec<u32> = places.iter().map(|&place| place as u32).collect();
            // The lanes that pad the last group read and write the padding of the channels.
            words.extend(self.channels as u32..padded(self.channels) as u32);
            layer.places_at = self.words(&words)?;
        }
        Ok(())
    }

    /// One system that all channels share.
    fn shared(&mut self, layer: &mut Layer, system: &DiagonalSystem) -> Result<(), StreamError> {
        let channels = self.channels;
        system.require_size(channels, channels)?;
        let poles = system.poles();
        let groups = poles.len().div_ceil(LANES);
        let parts = 2 * LANES * groups;
        let place = |mode: usize| mode / LANES * 2 * LANES + mode % LANES;
        let mut poles_at = vec![0.0; parts];
        let mut input = DMatrix::zeros(channels, parts);
        let mut output = DMatrix::zeros(parts, channels);
        for (mode, pole) in poles.iter().enumerate() {
            let (re, im) = (place(mode), place(mode) + LANES);
            (poles_at[re], poles_at[im]) = (pole.re - 1.0, pole.im);
            for channel in 0..channels {
                let (b, c) = (
                    system.input()[(mode, channel)],
                    system.output()[(channel, mode)],
                );
                (input[(channel, re)], input[(channel, im)]) = (b.re, b.im);
                (output[(re, channel)], output[(im, channel)]) = (c.re, -c.im);
            }
        }
        let d = system.feedthrough();
        let diagonal = DMatrix::from_diagonal(&d.diagonal()) == *d;
        if diagonal {
            layer.feedthrough_at = self.feedthrough(d.diagonal().as_slice())?;
        } else {
            // D stands beside C: both act on what lies side by side.
            output = output.resize_vertically(parts + channels, 0.0);
            output.rows_mut(parts, channels).copy_from(&d.transpose());
        }
        layer.dynamics = code::SHARED;
        layer.groups = groups as u32;
        layer.systems_at = self.numbers("a pole", &poles_at)?;
        layer.input_at = self.matrix("an entry of B", &input, None, Entries::Full)?;
        layer.output_at = self.matrix("an entry of C or D", &output, None, Entries::Full)?;
        Ok(())
    }

    fn feedthrough(&mut self, d: &[f64]) -> Result<u32, StreamError> {
        if d.iter().all(|d| *d == 0.0) {
            return Ok(0);
        }
        self.numbers("a feedthrough", &layout::lanes(d))
    }

    /// Fixed statistics become a factor and an offset.
    fn norm(&mut self, norm: &Norm) -> Result<(u32, u32), StreamError> {
        let (weight, bias, epsilon) = norm.affine();
        for found in [weight.len(), bias.len()] {
            expect("the length of the norm", &self.place, found, self.channels)?;
        }
        let (kind, factors, offsets) = match norm {
            Norm::Layer(_) => (code::LAYER_NORM, weight.to_vec(), bias.to_vec()),
            Norm::Batch(batch) => {
                for found in [batch.mean.len(), batch.variance.len()] {
                    expect("the length of the norm", &self.place, found, self.channels)?;
                }
                let factors = weight.iter().zip(&batch.variance);
                let factors = factors.map(|(w, variance)| w / (variance + epsilon).sqrt());
                let factors: Vec<f64> = factors.collect();
                let offsets = bias.iter().zip(&batch.mean).zip(&factors);
                let offsets = offsets.map(|((b, mean), w)| b - mean * w).collect();
                (code::AFFINE, factors, offsets)
            }
        };
        let epsilons = [epsilon; LANES];
        let numbers = [
            layout::lanes(&factors),
            layout::lanes(&offsets),
            epsilons.to_vec(),
        ];
        Ok((
            kind,
            self.numbers("a number of the norm", &numbers.concat())?,
        ))
    }

    fn linear(
        &mut self,
        linear: &Linear,
        inputs: usize,
        entries: Entries,
    ) -> Result<u32, StreamError> {
        let (rows, columns) = (linear.weight.ncols(), linear.weight.nrows());
        expect("the number of inputs", &self.place, columns, inputs)?;
        if let Some(bias) = &linear.bias {
            expect("the length of the bias", &self.place, bias.len(), rows)?;
        }
        self.matrix("a weight", &linear.weight, linear.bias.as_deref(), entries)
    }

    /// The record of y = Wᵀ x + b, W being inputs × outputs.
    fn matrix(
        &mut self,
        what: &'static str,
        weight: &DMatrix<f64>,
        bias: Option<&[f64]>,
        entries: Entries,
    ) -> Result<u32, StreamError> {
        let inputs = weight.nrows();
        let tiles = layout::tiles(weight);
        let mut record = Matrix {
            outputs: padded(weight.ncols()) as u32,
            inputs: inputs as u32,
            ..Matrix::default()
        };
        match entries {
            Entries::Full => record.weights_at = self.numbers(what, &tiles)?,
            Entries::Bf16 => {
                self.check_finite(what, &tiles)?;
                let halves = tiles.iter().map(|&w| layout::bf16(w).to_le_bytes());
                record.entries = code::BF16;
                record.weights_at = self.place_bytes(halves.flatten())?;
            }
            // Entries of fewer bits come with version 2 of the format.
            Entries::Int8 | Entries::Int4 | Entries::Int3 => {
                self.check_finite(what, &tiles)?;
                let rows = tiles.chunks(LANES * inputs.max(1)).map(layout::int8);
                let (rows, scales): (Vec<Vec<i8>>, Vec<[f64; LANES]>) = rows.unzip();
                let bytes = rows.iter().flatten().map(|entry| entry.cast_unsigned());
                record.entries = code::INT8;
                record.weights_at = self.place_bytes(bytes)?;
                record.scales_at = self.numbers("a scale", &scales.concat())?;
            }
        }
        if let Some(bias) = bias {
            record.bias_at = self.numbers("a bias", &layout::lanes(bias))?;
        }
        self.words(&record.words())
    }

    fn check_finite(&self, what: &'static str, numbers: &[f64]) -> Result<(), StreamError> {
        let finite = |value: f64| match self.number {
            f32::BYTES => (value as f32).is_finite(),
            _ => value.is_finite(),
        };
        match numbers.iter().find(|&&value| !finite(value)) {
            None => Ok(()),
            Some(&value) => Err(StreamError::NotFinite {
                what,
                place: self.place.clone(),
                value,
            }),
        }
    }

    fn numbers(&mut self, what: &'static str, numbers: &[f64]) -> Result<u32, StreamError> {
        self.check_finite(what, numbers)?;
        if self.number == f32::BYTES {
            self.place_bytes(numbers.iter().flat_map(|&x| (x as f32).to_le_bytes()))
        } else {
            self.place_bytes(numbers.iter().flat_map(|x| x.to_le_bytes()))
        }
    }

    fn words(&mut self, words: &[u32]) -> Result<u32, StreamError> {
        self.place_bytes(words.iter().flat_map(|word| word.to_le_bytes()))
    }

    /// Puts bytes at the next line of cache.
    fn place_bytes(&mut self, bytes: impl Iterator<Item = u8>) -> Result<u32, StreamError> {
        let at = self.bytes.len().next_multiple_of(LINE);
        self.bytes.resize(at, 0);
        self.bytes.extend(bytes);
        self.too_large()?;
        Ok(at as u32)
    }

    fn too_large(&self) -> Result<(), StreamError> {
        let bytes = self.bytes.len();
        match u32::try_from(bytes) {
            Ok(_) => Ok(()),
            Err(_) => Err(StreamError::TooLarge { bytes }),
        }
    }

    fn finish(mut self, mut header: Header) -> Result<Image, StreamError> {
        self.too_large()?;
        header.bytes = self.bytes.len() as u32;
        let words = header.words();
        for (bytes, word) in self.bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(Image::from_bytes(&self.bytes))
    }
}

fn check_causal(block: &Block) -> Result<(), StreamError> {
    if block.backward().is_empty() {
        return Ok(());
    }
    let layer = block.name().to_string();
    Err(StreamError::Bidirectional { layer })
}

/// Pole less 1 and residue of every mode whose residue is not zero: a layout of one width for all
/// channels pads the smaller ones with modes of residue zero.
fn used_modes(system: &DiagonalSystem) -> Result<Vec<[Complex64; 2]>, StreamError> {
    let modes = system.poles().into_iter().zip(system.as_siso()?.residues());
    let used = modes.filter(|(_, residue)| *residue != Complex64::ZERO);
    Ok(used.map(|(pole, residue)| [pole - 1.0, residue]).collect())
}

/// The same map with each half of its outputs padded to whole groups of sixteen.
fn in_halves(linear: &Linear, halves: usize) -> Linear {
    let (inputs, outputs) = linear.weight.shape();
    let half = outputs / halves;
    let width = padded(half);
    let mut weight = DMatrix::zeros(inputs, halves * width);
    for k in 0..halves {
        let from = linear.weight.columns(k * half, half);
        weight.columns_mut(k * width, half).copy_from(&from);
    }
    let bias = linear.bias.as_ref();
    let bias = bias.map(|bias| bias.chunks(half.max(1)).flat_map(layout::lanes).collect());
    Linear {
        weight: weight.into(),
        bias,
    }
}
