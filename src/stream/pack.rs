//! A model laid out for the runtime.

use Precision::{Real32, Real64};
use hankelite_control::DiagonalSystem;
use hankelite_edge::{Header, Layer, MAGIC, Matrix, SharedSystem, VERSION, code, padded};
use num_complex::Complex64;

use crate::model::{Block, Encoder, Gate, Linear, Model, Nonlinearity, Norm, Placement, Pooling};
use crate::rounding::{
    Entries, GROUP, HalfExponents, LayerStorage, MapStorage, Numbers, SharedMaps, SharedStorage,
    Storage,
};
use crate::stream::aligned::{Aligned, LINE};
use crate::stream::layout::Lanes;
use crate::stream::{StreamError, layout};

/// What the places of channels can count.
pub(super) const CHANNELS_MAX: usize = 1 << 16;
/// Bytes of a part from which on it starts at a line of cache.
const LONG: usize = 1024;

/// A model as the block of bytes that [`Runner`](crate::stream::Runner) and `hankelite-edge` run.
///
/// It holds what a step reads and nothing else. The bytes can be kept in a file, or in the flash of
/// a device.
#[derive(Debug, Clone)]
pub struct Image {
    bytes: Aligned<u8>,
    shares: Option<ImageShares>,
}

impl Image {
    /// Lays a model out in single precision, the entries of its maps between channels rounded to the
    /// nearest. Integers have a scale for each row and 32 inputs, or for all where there are fewer.
    ///
    /// # Errors
    /// A [`StreamError`] that states why the model cannot be streamed.
    pub fn new(model: &Model, entries: Entries) -> Result<Self, StreamError> {
        Self::packed(model, &nearest(model, entries)?)
    }

    /// The same in double precision, to check the runtime by.
    ///
    /// # Errors
    /// As [`Image::new`].
    pub(crate) fn double(model: &Model, entries: Entries) -> Result<Self, StreamError> {
        Self::packed_double(model, &nearest(model, entries)?)
    }

    /// Lays a model out as a storage lists, what is not rounded in single precision. It computes
    /// [`Storage::applied`], short of rounding the inputs of integers to 8 bits.
    ///
    /// # Errors
    /// As [`Image::new`], and [`StreamError::Rounding`] for a storage of another model.
    pub fn packed(model: &Model, storage: &Storage) -> Result<Self, StreamError> {
        pack(model, storage, Real32)
    }

    /// The same with double precision for what is not rounded. Inputs of integers are not rounded
    /// either: it computes [`Storage::applied`].
    ///
    /// # Errors
    /// As [`Image::packed`].
    pub fn packed_double(model: &Model, storage: &Storage) -> Result<Self, StreamError> {
        pack(model, storage, Real64)
    }

    /// An image that was made before; checked when a runner takes it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            bytes: Aligned::copied(bytes),
            shares: None,
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

    /// What the bytes are for; `None` for an image that was made before.
    pub fn shares(&self) -> Option<&ImageShares> {
        self.shares.as_ref()
    }
}

/// What the bytes of an image are for.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct ImageShares {
    /// Poles and residues, with the numbers of modes and the places of channels.
    pub systems: usize,
    /// Entries and scales of the maps between channels.
    pub maps: usize,
    /// All else: encoder, head, feedthroughs, norms, biases, records.
    pub rest: usize,
    /// Channels side by side in each layer; 0 where they share one system.
    pub lanes: Vec<usize>,
}

fn nearest(model: &Model, entries: Entries) -> Result<Storage, StreamError> {
    Ok(Storage::nearest(model, entries, GROUP)?)
}

/// Bytes so far, and how numbers are written.
struct Packer {
    bytes: Vec<u8>,
    precision: Precision,
    channels: usize,
    /// What is being packed, for errors.
    place: String,
    shares: ImageShares,
}

/// The precision of what is not rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precision {
    Real32,
    Real64,
}

impl Precision {
    fn bytes(self) -> usize {
        match self {
            Real32 => size_of::<f32>(),
            Real64 => size_of::<f64>(),
        }
    }
}

/// A map and how it is laid out.
struct Laid<'a> {
    linear: &'a Linear,
    storage: &'a MapStorage,
    numbers: Numbers,
    /// Inputs that it has to have.
    inputs: usize,
    /// Parts of its outputs that are padded each.
    halves: usize,
}

fn pack(model: &Model, storage: &Storage, precision: Precision) -> Result<Image, StreamError> {
    let applied = storage.applied(model)?;
    let mut packer = Packer {
        bytes: vec![0; Header::BYTES],
        precision,
        channels: channels_of(model)?,
        place: "the encoder".to_string(),
        shares: ImageShares::default(),
    };
    let mut header = Header {
        magic: MAGIC,
        version: VERSION,
        number: precision.bytes() as u8,
        activation: activation_of(model)?,
        channels: packer.channels as u32,
        inputs: model.inputs().unwrap_or(packer.channels) as u32,
        outputs: model.classes().unwrap_or(packer.channels) as u32,
        layers: (model.blocks().len() + usize::from(model.final_norm().is_some())) as u32,
        ..Header::default()
    };
    (header.encoder, header.encoder_at) = packer.encoder(applied.encoder(), storage)?;
    let mut layers = Vec::with_capacity(model.blocks().len() + 1);
    let each = model.blocks().iter().zip(applied.blocks());
    for ((block, applied), stored) in each.zip(&storage.layers) {
        layers.push(packer.layer(block, applied, stored)?);
    }
    if let Some(norm) = applied.final_norm() {
        layers.push(packer.final_norm(norm, storage.numbers)?);
    }
    let records = layers.iter().flat_map(|layer| layer.to_bytes());
    header.layers_at = packer.place_bytes(records)?;
    packer.place = "the head".to_string();
    if let Some(head) = applied.head() {
        header.head_at = packer.linear(&Laid {
            linear: &head.linear,
            storage: &storage.head,
            numbers: storage.numbers,
            inputs: packer.channels,
            halves: 1,
        })?;
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
        let found = "the number of channels of the model is 0, expected 1";
        return Err(StreamError::Model(found.to_string()));
    }
    if channels > CHANNELS_MAX {
        return Err(StreamError::Model(format!(
            "the model has {channels} channels, expected at most {CHANNELS_MAX}"
        )));
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
    Err(StreamError::Model(format!(
        "{what} of {place} is {found}, expected {expected}"
    )))
}

impl Packer {
    fn encoder(
        &mut self,
        encoder: Option<&Encoder>,
        storage: &Storage,
    ) -> Result<(u8, u32), StreamError> {
        match encoder {
            None => Ok((code::NONE, 0)),
            Some(Encoder::Linear(linear)) => {
                let at = self.linear(&Laid {
                    linear,
                    storage: &storage.encoder,
                    numbers: storage.numbers,
                    inputs: linear.weight.nrows(),
                    halves: 1,
                })?;
                Ok((code::LINEAR, at))
            }
            Some(Encoder::Embedding(table)) => {
                let rows = table.column_iter();
                let rows = rows.flat_map(|row| layout::lanes(row.into_owned().as_slice()));
                let rows: Vec<f64> = rows.collect();
                Ok((code::EMBEDDING, self.full("an entry", &rows)?))
            }
        }
    }

    /// The record of a layer whose numbers are those of `applied`.
    fn layer(
        &mut self,
        block: &Block,
        applied: &Block,
        storage: &LayerStorage,
    ) -> Result<Layer, StreamError> {
        self.place = block.name().to_string();
        check_causal(block)?;
        let mut layer = Layer {
            numbers: code_of(storage.numbers),
            ..Layer::default()
        };
        match applied.systems() {
            [one] if one.as_siso().is_err() => self.shared(&mut layer, one, &storage.shared)?,
            systems => {
                if storage.numbers == Numbers::F16 {
                    let exponents = HalfExponents::of(block.systems())?;
                    // Both lie within what a byte holds.
                    layer.pole_exponent = -exponents.poles as i8;
                    layer.residue_exponent = -exponents.residues as i8;
                }
                self.bank(&mut layer, systems)?;
            }
        }
        if let Some((norm, placement)) = applied.norm() {
            layer.before = u8::from(*placement == Placement::Pre);
            self.norm(&mut layer, norm, storage.numbers)?;
        }
        if let Some(output) = applied.output() {
            let (halves, mixing) = match output.gate {
                Gate::None => (1, code::MIXED),
                Gate::Halves => (2, code::GATED),
                Gate::Activated => (1, code::ACTIVATED),
                Gate::Response => (1, code::RESPONSE),
            };
            layer.mixing = mixing;
            let rows = output.linear.weight.ncols();
            let expected = halves * self.channels;
            expect("the number of outputs", &self.place, rows, expected)?;
            let before = self.bytes.len();
            layer.mixing_at = self.linear(&Laid {
                linear: &output.linear,
                storage: &storage.map,
                numbers: storage.numbers,
                inputs: self.channels,
                halves,
            })?;
            self.shares.maps += self.bytes.len() - before;
        }
        Ok(layer)
    }

    /// A layer that only normalises.
    fn final_norm(&mut self, norm: &Norm, numbers: Numbers) -> Result<Layer, StreamError> {
        self.place = "the last norm".to_string();
        let mut layer = Layer::default();
        self.norm(&mut layer, norm, numbers)?;
        Ok(layer)
    }

    /// One system for each channel, those of like order side by side.
    fn bank(&mut self, layer: &mut Layer, systems: &[DiagonalSystem]) -> Result<(), StreamError> {
        let modes = systems.iter().map(used_modes);
        let modes: Vec<Vec<[Complex64; 2]>> = modes.collect::<Result<_, _>>()?;
        let orders: Vec<usize> = modes.iter().map(Vec::len).collect();
        let lanes = Lanes::new(&orders);
        let scales = [layer.pole_exponent, layer.residue_exponent]
            .map(|exponent| (-f64::from(exponent)).exp2());
        let mut numbers = Vec::new();
        for (group, &count) in lanes.modes.iter().enumerate() {
            let channels = (group * lanes.count..(group + 1) * lanes.count)
                .map(|lane| lanes.channel(lane, systems.len()));
            let channels: Vec<Option<usize>> = channels.collect();
            for mode in 0..count {
                let of = |channel: &Option<usize>| {
                    let pair = channel.and_then(|channel| modes[channel].get(mode));
                    let [d, r] = pair.copied().unwrap_or_default();
                    [d * scales[0], r * scales[1]]
                };
                let pairs: Vec<[Complex64; 2]> = channels.iter().map(of).collect();
                numbers.extend(pairs.iter().map(|[d, _]| d.re));
                numbers.extend(pairs.iter().map(|[d, _]| d.im));
                numbers.extend(pairs.iter().map(|[_, r]| r.re));
                numbers.extend(pairs.iter().map(|[_, r]| r.im));
            }
        }
        layer.dynamics = code::CHANNELS;
        layer.lanes = lanes.count as u8;
        let before = self.bytes.len();
        layer.modes_at = self.modes(&lanes.modes)?;
        layer.places_at = self.places(&lanes)?;
        layer.systems_at = self.stored("a pole or residue", &numbers, layer.numbers)?;
        self.shares.systems += self.bytes.len() - before;
        self.shares.lanes.push(lanes.count);
        let d = (0..padded(systems.len())).map(|lane| {
            let channel = lanes.channel(lane, systems.len());
            channel.map_or(0.0, |channel| systems[channel].feedthrough()[(0, 0)])
        });
        layer.feedthrough_at = self.feedthrough(&d.collect::<Vec<_>>(), layer.numbers)?;
        Ok(())
    }

    /// The modes of each group.
    fn modes(&mut self, modes: &[usize]) -> Result<u32, StreamError> {
        let mut bytes = Vec::with_capacity(2 * modes.len());
        for &found in modes {
            let Ok(count) = u16::try_from(found) else {
                return Err(StreamError::Model(format!(
                    "a channel of {} has {found} modes, expected at most {}",
                    self.place,
                    u16::MAX
                )));
            };
            bytes.extend(count.to_le_bytes());
        }
        self.place_bytes(bytes.into_iter())
    }

    /// The channel in each lane. Lanes that pad read and write what pads the channels.
    fn places(&mut self, lanes: &Lanes) -> Result<u32, StreamError> {
        let Some(places) = &lanes.places else {
            return Ok(0);
        };
        let width = padded(places.len());
        let all = places.iter().copied().chain(places.len()..width);
        match width <= 256 {
            true => self.place_bytes(all.map(|place| place as u8)),
            false => self.place_bytes(all.flat_map(|place| (place as u16).to_le_bytes())),
        }
    }

    /// One system that all channels share.
    fn shared(
        &mut self,
        layer: &mut Layer,
        system: &DiagonalSystem,
        storage: &SharedStorage,
    ) -> Result<(), StreamError> {
        system.require_size(self.channels, self.channels)?;
        let maps = SharedMaps::of(system);
        let poles = system.poles();
        let decays = poles.iter().map(|pole| pole.re - 1.0);
        let numbers: Vec<f64> = decays.chain(poles.iter().map(|pole| pole.im)).collect();
        if let Some(d) = &maps.feedthrough {
            layer.feedthrough_at = self.feedthrough(&layout::lanes(d), code::FULL)?;
        }
        layer.dynamics = code::SHARED;
        let before = self.bytes.len();
        let record = SharedSystem {
            modes: poles.len() as u32,
            poles_at: self.full("a pole", &numbers)?,
            input_at: self.beside("an entry of B", &maps.input, &storage.input)?,
            output_at: self.beside("an entry of C or D", &maps.output, &storage.output)?,
        };
        layer.systems_at = self.place_bytes(record.to_bytes())?;
        self.shares.systems += self.bytes.len() - before;
        self.shares.lanes.push(0);
        Ok(())
    }

    /// A matrix of a system.
    fn beside(
        &mut self,
        what: &'static str,
        linear: &Linear,
        storage: &MapStorage,
    ) -> Result<u32, StreamError> {
        let laid = Laid {
            linear,
            storage,
            numbers: Numbers::F32,
            inputs: linear.weight.nrows(),
            halves: 1,
        };
        self.matrix(what, &laid)
    }

    fn feedthrough(&mut self, d: &[f64], numbers: u8) -> Result<u32, StreamError> {
        if d.iter().all(|d| *d == 0.0) {
            return Ok(0);
        }
        self.stored("a feedthrough", d, numbers)
    }

    /// Fixed statistics become a factor and an offset, which keep their precision.
    fn norm(
        &mut self,
        layer: &mut Layer,
        norm: &Norm,
        numbers: Numbers,
    ) -> Result<(), StreamError> {
        let (weight, bias, epsilon) = norm.affine();
        for found in [weight.len(), bias.len()] {
            expect("the length of the norm", &self.place, found, self.channels)?;
        }
        let (numbers, factors, offsets) = match norm {
            Norm::Layer(_) => {
                layer.norm = code::LAYER_NORM;
                let numbers = code_of(numbers);
                if layer.dynamics == code::NONE {
                    layer.numbers = numbers;
                }
                (numbers, weight.to_vec(), bias.to_vec())
            }
            Norm::Batch(batch) => {
                for found in [batch.mean.len(), batch.variance.len()] {
                    expect("the length of the norm", &self.place, found, self.channels)?;
                }
                layer.norm = code::AFFINE;
                let factors = weight.iter().zip(&batch.variance);
                let factors = factors.map(|(w, variance)| w / (variance + epsilon).sqrt());
                let factors: Vec<f64> = factors.collect();
                let offsets = bias.iter().zip(&batch.mean).zip(&factors);
                let offsets = offsets.map(|((b, mean), w)| b - mean * w).collect();
                (code::FULL, factors, offsets)
            }
        };
        let vectors = [layout::lanes(&factors), layout::lanes(&offsets)].concat();
        let what = "a number of the norm";
        layer.norm_at = self.full(what, &[epsilon])?;
        let bytes = self.encoded(what, &vectors, numbers)?;
        self.bytes.extend(bytes);
        Ok(())
    }

    fn linear(&mut self, laid: &Laid<'_>) -> Result<u32, StreamError> {
        let (rows, columns) = (laid.linear.weight.ncols(), laid.linear.weight.nrows());
        expect("the number of inputs", &self.place, columns, laid.inputs)?;
        if let Some(bias) = &laid.linear.bias {
            expect("the length of the bias", &self.place, bias.len(), rows)?;
        }
        self.matrix("a weight", laid)
    }

    /// The record of y = Wᵀ x + b, W being inputs × outputs.
    fn matrix(&mut self, what: &'static str, laid: &Laid<'_>) -> Result<u32, StreamError> {
        let weight = &laid.linear.weight;
        let rows = layout::rows(weight.ncols(), laid.halves);
        let mut record = Matrix {
            numbers: code_of(laid.numbers),
            outputs: rows.len() as u32,
            inputs: weight.nrows() as u32,
            ..Matrix::default()
        };
        match laid.storage {
            MapStorage::Full => {
                record.weights_at = self.full(what, &layout::tiles(weight, &rows))?;
            }
            MapStorage::Bf16 => {
                let tiles = layout::tiles(weight, &rows);
                self.check_finite(what, &tiles)?;
                let halves = tiles.iter().map(|&w| layout::bf16(w).to_le_bytes());
                record.entries = code::BF16;
                record.weights_at = self.place_bytes(halves.flatten())?;
            }
            MapStorage::Integers(rounded) => {
                let integers = layout::integers(rounded, &rows);
                record.entries = match integers.bits {
                    8 => code::INT8,
                    4 => code::INT4,
                    2 => code::INT2,
                    _ => code::INT3,
                };
                let Ok(group) = u16::try_from(integers.group) else {
                    return Err(StreamError::Model(format!(
                        "{} inputs share a scale in {}, expected at most {}",
                        integers.group,
                        self.place,
                        u16::MAX
                    )));
                };
                record.group = group;
                let scales = integers.scales.iter().flat_map(|scale| scale.to_le_bytes());
                record.scales_at = self.place_bytes(scales)?;
                record.weights_at = self.place_bytes(integers.weights.into_iter())?;
            }
        }
        if let Some(bias) = &laid.linear.bias {
            let half = (bias.len() / laid.halves).max(1);
            let bias: Vec<f64> = bias.chunks(half).flat_map(layout::lanes).collect();
            record.bias_at = self.stored("a bias", &bias, record.numbers)?;
        }
        self.place_bytes(record.to_bytes())
    }

    fn check_finite(&self, what: &'static str, numbers: &[f64]) -> Result<(), StreamError> {
        let finite = |value: f64| match self.precision {
            Real32 => (value as f32).is_finite(),
            Real64 => value.is_finite(),
        };
        match numbers.iter().find(|&&value| !finite(value)) {
            None => Ok(()),
            Some(&value) => Err(StreamError::Model(format!(
                "{what} of {} is {value}, which is no finite number in single precision",
                self.place
            ))),
        }
    }

    /// Numbers in the image's precision.
    fn full(&mut self, what: &'static str, numbers: &[f64]) -> Result<u32, StreamError> {
        self.stored(what, numbers, code::FULL)
    }

    fn stored(
        &mut self,
        what: &'static str,
        numbers: &[f64],
        kind: u8,
    ) -> Result<u32, StreamError> {
        let bytes = self.encoded(what, numbers, kind)?;
        self.place_bytes(bytes.into_iter())
    }

    fn encoded(
        &self,
        what: &'static str,
        numbers: &[f64],
        kind: u8,
    ) -> Result<Vec<u8>, StreamError> {
        self.check_finite(what, numbers)?;
        let each = numbers.iter();
        Ok(match (kind, self.precision) {
            (code::HALF, _) => each.flat_map(|&x| layout::f16(x).to_le_bytes()).collect(),
            (_, Real32) => each.flat_map(|&x| (x as f32).to_le_bytes()).collect(),
            (_, Real64) => each.flat_map(|&x| x.to_le_bytes()).collect(),
        })
    }

    /// Puts bytes where the numbers in them can be read; long parts at the next line of cache.
    fn place_bytes(&mut self, bytes: impl Iterator<Item = u8>) -> Result<u32, StreamError> {
        let bytes: Vec<u8> = bytes.collect();
        let align = match bytes.len() >= LONG {
            true => LINE,
            false => self.precision.bytes(),
        };
        let at = self.bytes.len().next_multiple_of(align);
        self.bytes.resize(at, 0);
        self.bytes.extend(bytes);
        self.too_large()?;
        Ok(at as u32)
    }

    fn too_large(&self) -> Result<(), StreamError> {
        let bytes = self.bytes.len();
        match u32::try_from(bytes) {
            Ok(_) => Ok(()),
            Err(_) => Err(StreamError::Model(format!(
                "the model takes {bytes} bytes, expected less than 4 GiB"
            ))),
        }
    }

    fn finish(mut self, mut header: Header) -> Result<Image, StreamError> {
        self.too_large()?;
        header.bytes = self.bytes.len() as u32;
        for (byte, header) in self.bytes.iter_mut().zip(header.to_bytes()) {
            *byte = header;
        }
        let mut shares = self.shares;
        shares.rest = self.bytes.len() - shares.systems - shares.maps;
        Ok(Image {
            bytes: Aligned::copied(&self.bytes),
            shares: Some(shares),
        })
    }
}

fn code_of(numbers: Numbers) -> u8 {
    match numbers {
        Numbers::F32 => code::FULL,
        Numbers::F16 => code::HALF,
    }
}

fn check_causal(block: &Block) -> Result<(), StreamError> {
    if block.backward().is_empty() {
        return Ok(());
    }
    Err(StreamError::Model(format!(
        "layer `{}` is bidirectional: its output depends on samples that have not come yet, expected a \
         causal layer",
        block.name()
    )))
}

/// The form of GELU, which all layers have to share.
fn activation_of(model: &Model) -> Result<u8, StreamError> {
    let first = model.blocks().first().map(Block::activation);
    let mut blocks = model.blocks().iter();
    if let Some(other) = blocks.find(|block| Some(block.activation()) != first) {
        return Err(StreamError::Model(format!(
            "layer `{}` has another form of GELU than the layers before it, expected one for all, which is \
             what an image holds",
            other.name()
        )));
    }
    Ok(match first.unwrap_or_default() {
        Nonlinearity::Gelu => code::GELU,
        Nonlinearity::GeluTanh => code::GELU_TANH,
    })
}

/// Pole less 1 and residue of every mode whose residue is not zero: a layout of one width for all
/// channels pads the smaller ones with modes of residue zero.
fn used_modes(system: &DiagonalSystem) -> Result<Vec<[Complex64; 2]>, StreamError> {
    let modes = system.poles().into_iter().zip(system.as_siso()?.residues());
    let used = modes.filter(|(_, residue)| *residue != Complex64::ZERO);
    Ok(used.map(|(pole, residue)| [pole - 1.0, residue]).collect())
}
