//! A model as a block of bytes that is used where it lies.
//!
//! All numbers are little-endian. An image starts with a [`Header`]. It records where the encoder,
//! the [`Layer`] records and the head lie; layers and ends record where their matrices and vectors
//! lie. Every place is a count of bytes from the start of the image and a multiple of what the numbers
//! there need; 0 stands for what is absent. Vectors over channels are padded with zeros to whole
//! groups of [`LANES`].

use core::marker::PhantomData;

use crate::entries::Numbers;
use crate::record::{Header, Layer, MAGIC, Matrix, SharedSystem, VERSION, code};
use crate::{LANES, Real, StepFault, Unit, levels, padded};

/// Numbers of the state that hold the count of steps.
pub(crate) const COUNT: usize = 2;

/// An image whose header and records were checked.
#[derive(Debug, Clone, Copy)]
pub struct ImageView<'a, T> {
    bytes: &'a [u8],
    plan: ImagePlan,
    number: PhantomData<T>,
}

/// What checking an image found out: kept, it saves the next check.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImagePlan {
    header: Header,
    /// Numbers of a stream's state.
    state: usize,
    /// Numbers that the widest dynamics which channels share work in.
    shared: usize,
    /// Words of the widest inputs that are rounded to 8 bits.
    rounded: usize,
}

impl<'a, T: Real> ImageView<'a, T> {
    /// Checks an image: every record and every place. The bytes must be aligned for `T`; 64 is
    /// fastest. Cost O(layers + H), without reading the weights.
    ///
    /// # Errors
    /// [`StepFault::NotAnImage`], [`StepFault::Version`], [`StepFault::Outside`],
    /// [`StepFault::Record`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, StepFault> {
        let mut image = Self {
            bytes,
            plan: ImagePlan::default(),
            number: PhantomData,
        };
        image.plan.header = image.read_header()?;
        image.check_sizes()?;
        image.check_ends()?;
        for index in 0..image.plan.header.layers {
            let layer = image.layer(index)?;
            let state = image.check_layer(&layer)?;
            image.plan.state = image.plan.state.saturating_add(state);
            // The two numbers of a mode take eight bytes at least.
            image.in_proportion("number of modes", image.plan.state, 4)?;
        }
        if image.plan.header.pooling == code::MEAN {
            image.plan.state += 2 * image.width() + COUNT;
        }
        // How many streams there are follows from the length of the state.
        image.plan.state = image.plan.state.max(1);
        Ok(image)
    }

    /// Bytes that were checked before, with what was found out then.
    pub fn checked(bytes: &'a [u8], plan: ImagePlan) -> Self {
        let number = PhantomData;
        Self {
            bytes,
            plan,
            number,
        }
    }

    /// What checking found out.
    pub fn plan(&self) -> ImagePlan {
        self.plan
    }

    fn read_header(&self) -> Result<Header, StepFault> {
        let what = "header";
        let header = Header::read(self.bytes);
        let header = header.ok_or(StepFault::Outside { what, at: 0 })?;
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        if header.magic == MAGIC && header.version != VERSION {
            let found = header.version;
            return Err(StepFault::Version { found });
        }
        for (what, found, expected) in [
            ("the first word", header.magic, MAGIC),
            ("the size of a number", header.number.into(), T::BYTES),
            ("the number of bytes", header.bytes, length),
        ] {
            if found != expected {
                return Err(StepFault::NotAnImage {
                    what,
                    found,
                    expected,
                });
            }
        }
        for (what, found) in [
            ("number of inputs", header.inputs),
            ("number of channels", header.channels),
            ("number of outputs", header.outputs),
        ] {
            if found == 0 || found > 1 << 24 {
                return Err(StepFault::Record { what, found });
            }
        }
        // The first numbers of an image that lies wrong would be looked for at every step.
        self.slice::<T>(0, 0, "image")?;
        Ok(header)
    }

    /// Channels and layers as many as the bytes can account for: records that all point at the same
    /// place would else let a short image request any amount of memory and time.
    fn check_sizes(&self) -> Result<(), StepFault> {
        let Header {
            channels, layers, ..
        } = self.plan.header;
        // A channel has two bytes at least, somewhere in the image; in each layer one bit.
        self.in_proportion("number of channels", channels as usize, 2)?;
        let all = (channels as usize).saturating_mul(layers as usize);
        self.in_proportion("number of layers", all / 16, 1)
    }

    fn in_proportion(
        &self,
        what: &'static str,
        found: usize,
        each: usize,
    ) -> Result<(), StepFault> {
        if found.saturating_mul(each) <= self.bytes.len() {
            return Ok(());
        }
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        Err(StepFault::Record { what, found })
    }

    fn check_ends(&mut self) -> Result<(), StepFault> {
        let header = self.plan.header;
        match header.encoder {
            code::NONE if header.inputs == header.channels => {}
            code::LINEAR => self.check_matrix(Shape {
                at: header.encoder_at,
                outputs: self.width(),
                inputs: header.inputs as usize,
            })?,
            code::EMBEDDING => {
                let entries = (header.inputs as usize).checked_mul(self.width());
                let entries = entries.ok_or(StepFault::Record {
                    what: "vocabulary",
                    found: header.inputs,
                })?;
                self.numbers(header.encoder_at, entries, "embedding")?;
            }
            found => {
                let (what, found) = ("kind of encoder", found.into());
                return Err(StepFault::Record { what, found });
            }
        }
        check_code("kind of pooling", header.pooling, code::LAST)?;
        check_code("kind of activation", header.activation, code::GELU_TANH)?;
        if header.head_at == 0 {
            return expect("number of outputs", header.outputs, header.channels);
        }
        self.check_matrix(Shape {
            at: header.head_at,
            outputs: padded(header.outputs as usize),
            inputs: header.channels as usize,
        })
    }

    /// Numbers of the layer's state.
    fn check_layer(&mut self, layer: &Layer) -> Result<usize, StepFault> {
        check_code("kind of dynamics", layer.dynamics, code::SHARED)?;
        check_code("kind of numbers", layer.numbers, code::HALF)?;
        check_code("kind of norm", layer.norm, code::AFFINE)?;
        check_code("kind of mixing", layer.mixing, code::RESPONSE)?;
        if layer.dynamics == code::NONE && layer.norm == code::NONE {
            let (what, found) = ("kind of norm", code::NONE.into());
            return Err(StepFault::Record { what, found });
        }
        let state = match layer.dynamics {
            code::CHANNELS => self.check_channels(layer)?,
            code::SHARED => self.check_shared(layer)?,
            _ => 0,
        };
        self.feedthrough(layer)?;
        if layer.norm != code::NONE {
            self.norm(layer)?;
        }
        if layer.mixing != code::NONE {
            let halves = if layer.mixing == code::GATED { 2 } else { 1 };
            self.check_matrix(Shape {
                at: layer.mixing_at,
                outputs: halves * self.width(),
                inputs: self.plan.header.channels as usize,
            })?;
        }
        Ok(state)
    }

    fn check_channels(&self, layer: &Layer) -> Result<usize, StepFault> {
        if ![4, 8, 16].contains(&layer.lanes) {
            let (what, found) = ("number of lanes", layer.lanes.into());
            return Err(StepFault::Record { what, found });
        }
        let lanes = usize::from(layer.lanes);
        let modes = self.group_modes(layer)?.iter();
        let modes = modes.fold(0usize, |sum, &modes| sum.saturating_add(modes.into()));
        let numbers = modes.checked_mul(4 * lanes);
        let what = "number of modes";
        let numbers = numbers.ok_or(StepFault::Record { what, found: !0 })?;
        self.stored(
            layer.systems_at,
            numbers,
            layer.numbers,
            "poles and residues",
        )?;
        if let Some(places) = self.places(layer)? {
            for lane in 0..self.width() {
                let place = places.channel(lane);
                if place >= self.width() {
                    let (what, found) = ("place of a channel", place as u32);
                    return Err(StepFault::Record { what, found });
                }
            }
        }
        Ok(numbers / 2)
    }

    fn check_shared(&mut self, layer: &Layer) -> Result<usize, StepFault> {
        let system = self.shared_system(layer)?;
        if system.modes > 1 << 20 {
            return Err(StepFault::Record {
                what: "number of modes",
                found: system.modes,
            });
        }
        let (width, channels) = (self.width(), self.plan.header.channels as usize);
        let numbers = 2 * system.modes as usize;
        let parts = padded(numbers);
        self.numbers(system.poles_at, numbers, "poles")?;
        self.check_matrix(Shape {
            at: system.input_at,
            outputs: parts,
            inputs: channels,
        })?;
        let dense = self.matrix(system.output_at)?.inputs as usize != parts;
        self.check_matrix(Shape {
            at: system.output_at,
            outputs: width,
            inputs: if dense { parts + channels } else { parts },
        })?;
        self.plan.shared = self.plan.shared.max(parts + width);
        Ok(parts)
    }

    fn check_matrix(&mut self, shape: Shape) -> Result<(), StepFault> {
        let matrix = self.matrix(shape.at)?;
        let Shape {
            outputs, inputs, ..
        } = shape;
        expect("number of rows", matrix.outputs, outputs as u32)?;
        expect("number of columns", matrix.inputs, inputs as u32)?;
        check_code("kind of entries", matrix.entries, code::INT2)?;
        check_code("kind of numbers", matrix.numbers, code::HALF)?;
        let at = matrix.weights_at;
        let too_many = StepFault::Record {
            what: "number of columns",
            found: matrix.inputs,
        };
        let entries = outputs.checked_mul(inputs).ok_or(too_many)?;
        match matrix.entries {
            code::FULL => self.numbers(at, entries, "matrix").map(drop)?,
            code::BF16 => self.slice::<u16>(at, entries, "matrix").map(drop)?,
            kind => {
                levels::check_group(kind, matrix.group)?;
                let bytes = levels::tile_bytes(kind, inputs);
                let bytes = bytes.checked_mul(outputs / LANES).ok_or(too_many)?;
                self.slice::<u8>(at, bytes, "matrix")?;
                let scales = outputs * inputs.div_ceil(matrix.group.into());
                self.slice::<u16>(matrix.scales_at, scales, "scales")?;
                let words = levels::words(inputs, matrix.group.into());
                self.plan.rounded = self.plan.rounded.max(words);
            }
        }
        self.bias(&matrix).map(drop)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.plan.header
    }

    /// The bytes of the image.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Numbers of the state of one stream: 2 for each mode, with mean pooling 2 for each channel
    /// and the count of steps.
    pub fn state_len(&self) -> usize {
        self.plan.state
    }

    /// Numbers that a step of `streams` streams works in.
    pub fn work_len(&self, streams: usize) -> usize {
        let each = 5 * self.width() + padded(self.plan.header.outputs as usize);
        let each = streams.saturating_mul(each + self.plan.rounded);
        each.saturating_add(self.shared_len())
    }

    /// Numbers that dynamics which channels share work in.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn shared_len(&self) -> usize {
        self.plan.shared
    }

    /// Channels, padded.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub fn width(&self) -> usize {
        padded(self.plan.header.channels as usize)
    }

    /// The record of layer `index`.
    ///
    /// # Errors
    /// [`StepFault::Outside`].
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub fn layer(&self, index: u32) -> Result<Layer, StepFault> {
        let (what, bytes) = ("layer record", Layer::BYTES as u32);
        let at = index.checked_mul(bytes);
        let at = at.and_then(|offset| offset.checked_add(self.plan.header.layers_at));
        let at = at.unwrap_or(u32::MAX);
        Layer::read(self.slice(at, Layer::BYTES, what)?).ok_or(StepFault::Outside { what, at })
    }

    /// The matrix record at `at`.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn matrix(&self, at: u32) -> Result<Matrix, StepFault> {
        let what = "matrix record";
        Matrix::read(self.slice(at, Matrix::BYTES, what)?).ok_or(StepFault::Outside { what, at })
    }

    /// What a layer with dynamics that channels share points at.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn shared_system(&self, layer: &Layer) -> Result<SharedSystem, StepFault> {
        let (what, at) = ("record of a shared system", layer.systems_at);
        let bytes = self.slice(at, SharedSystem::BYTES, what)?;
        SharedSystem::read(bytes).ok_or(StepFault::Outside { what, at })
    }

    /// Modes of each group of lanes, as the image has them.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn group_modes(&self, layer: &Layer) -> Result<&'a [u16], StepFault> {
        let groups = self.width() / usize::from(layer.lanes.max(1));
        self.slice(layer.modes_at, groups, "numbers of modes")
    }

    /// The channel in each lane, where that is not the lane itself.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn places(&self, layer: &Layer) -> Result<Option<Places<'a>>, StepFault> {
        let (at, width, what) = (layer.places_at, self.width(), "places");
        Ok(match at {
            0 => None,
            _ if width <= 256 => Some(Places::Bytes(self.slice(at, width, what)?)),
            _ => Some(Places::Words(self.slice(at, width, what)?)),
        })
    }

    /// Whether [`Self::back`] has something to write for a layer.
    pub fn has_back(&self, layer: &Layer) -> bool {
        layer.dynamics == code::CHANNELS && layer.places_at != 0 && self.width() <= 256
    }

    /// Writes the lane of each channel of a layer whose channels are sorted, as many as the padded
    /// channels: for [`Kept`](crate::Kept).
    ///
    /// # Errors
    /// [`StepFault::Length`], [`StepFault::Outside`].
    pub fn back(&self, layer: &Layer, lanes: &mut [u8]) -> Result<(), StepFault> {
        let (found, expected) = (lanes.len(), self.width());
        if found != expected {
            let what = "lanes of the channels";
            return Err(StepFault::Length {
                what,
                found,
                expected,
            });
        }
        if let Some(places @ Places::Bytes(_)) = self.places(layer)? {
            for lane in 0..expected {
                lanes[places.channel(lane)] = lane as u8;
            }
        }
        Ok(())
    }

    /// The feedthrough in the order of the lanes.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn feedthrough(&self, layer: &Layer) -> Result<Option<Numbers<'a, T>>, StepFault> {
        let numbers = match layer.dynamics {
            code::CHANNELS => layer.numbers,
            _ => code::FULL,
        };
        self.some(layer.feedthrough_at, self.width(), numbers, "feedthrough")
    }

    /// ε, factors and offsets of the norm.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn norm(&self, layer: &Layer) -> Result<(T, [Numbers<'a, T>; 2]), StepFault> {
        let (at, width, what) = (layer.norm_at, self.width(), "norm");
        let numbers = match layer.norm {
            code::LAYER_NORM => layer.numbers,
            _ => code::FULL,
        };
        let epsilon = self.numbers(at, 1, what)?[0];
        let vectors = self.stored(at.saturating_add(T::BYTES), 2 * width, numbers, what)?;
        Ok((epsilon, vectors.halves(width)))
    }

    /// b of a matrix.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn bias(&self, matrix: &Matrix) -> Result<Option<Numbers<'a, T>>, StepFault> {
        let count = matrix.outputs as usize;
        self.some(matrix.bias_at, count, matrix.numbers, "bias")
    }

    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn some(
        &self,
        at: u32,
        count: usize,
        numbers: u8,
        what: &'static str,
    ) -> Result<Option<Numbers<'a, T>>, StepFault> {
        match at {
            0 => Ok(None),
            _ => self.stored(at, count, numbers, what).map(Some),
        }
    }

    /// `count` numbers at `at`, full or half.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn stored(
        &self,
        at: u32,
        count: usize,
        numbers: u8,
        what: &'static str,
    ) -> Result<Numbers<'a, T>, StepFault> {
        Ok(match numbers {
            code::HALF => Numbers::Half(self.slice(at, count, what)?),
            _ => Numbers::Full(self.numbers(at, count, what)?),
        })
    }

    /// `count` full numbers at `at`.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn numbers(
        &self,
        at: u32,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [T], StepFault> {
        self.slice(at, count, what)
    }

    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn slice<P: bytemuck::Pod>(
        &self,
        at: u32,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [P], StepFault> {
        let outside = StepFault::Outside { what, at };
        let length = count.checked_mul(size_of::<P>()).ok_or(outside)?;
        let end = (at as usize).checked_add(length).ok_or(outside)?;
        let bytes = self.bytes.get(at as usize..end).ok_or(outside)?;
        bytemuck::try_cast_slice(bytes).map_err(|_| outside)
    }
}

/// A matrix that is expected somewhere.
struct Shape {
    at: u32,
    outputs: usize,
    inputs: usize,
}

/// The channel in each lane.
#[derive(Clone, Copy)]
pub(crate) enum Places<'a> {
    Bytes(&'a [u8]),
    Words(&'a [u16]),
}

impl Places<'_> {
    /// The channel in a lane.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn channel(self, lane: usize) -> usize {
        match self {
            Places::Bytes(places) => places[lane].into(),
            Places::Words(places) => places[lane].into(),
        }
    }

    /// The numbers of the channels of every stream in the order of the lanes.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn gather<T: Real, U: Unit<T>>(self, unit: U, channels: &[T], lanes: &mut [T]) {
        match self {
            Places::Bytes(places) => {
                let width = places.len();
                for first in (0..channels.len()).step_by(width) {
                    let lanes = &mut lanes[first..][..width];
                    unit.gather(&channels[first..][..width], places, lanes);
                }
            }
            Places::Words(places) => gather(places, channels, lanes),
        }
    }

    /// The way back.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(crate) fn scatter<T: Real>(self, lanes: &[T], channels: &mut [T]) {
        match self {
            Places::Bytes(places) => scatter(places, lanes, channels),
            Places::Words(places) => scatter(places, lanes, channels),
        }
    }
}

#[cfg_attr(not(target_os = "none"), inline(always))]
fn gather<T: Real>(places: &[u16], channels: &[T], lanes: &mut [T]) {
    let width = places.len();
    for first in (0..channels.len()).step_by(width) {
        let (channels, lanes) = (&channels[first..][..width], &mut lanes[first..][..width]);
        for (lane, &place) in lanes.iter_mut().zip(places) {
            *lane = channels[usize::from(place)];
        }
    }
}

#[cfg_attr(not(target_os = "none"), inline(always))]
fn scatter<T: Real, P: Copy + Into<usize>>(places: &[P], lanes: &[T], channels: &mut [T]) {
    let width = places.len();
    for first in (0..channels.len()).step_by(width) {
        let (channels, lanes) = (&mut channels[first..][..width], &lanes[first..][..width]);
        for (&lane, &place) in lanes.iter().zip(places) {
            channels[place.into()] = lane;
        }
    }
}

fn check_code(what: &'static str, found: u8, last: u8) -> Result<(), StepFault> {
    if found <= last {
        Ok(())
    } else {
        let found = found.into();
        Err(StepFault::Record { what, found })
    }
}

fn expect(what: &'static str, found: u32, expected: u32) -> Result<(), StepFault> {
    if found == expected {
        Ok(())
    } else {
        Err(StepFault::Record { what, found })
    }
}
