//! A model as a block of bytes that is used where it lies.
//!
//! All numbers are little-endian. An image starts with a [`Header`] of 32-bit words. It records where
//! the encoder, the [`Layer`] records and the head lie; layers and ends record where their matrices
//! and vectors lie. Every place is a count of bytes from the start of the image and a multiple of
//! 64; 0 stands for what is absent. Vectors over channels are padded with zeros to whole groups of
//! [`LANES`].

use core::marker::PhantomData;

use crate::{LANES, Real, StepFault, padded};

/// The first word of an image: `HKLE`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"HKLE");
/// The version of the format described here.
pub const VERSION: u32 = 1;

/// What the words of the records stand for.
pub mod code {
    /// Nothing here.
    pub const NONE: u32 = 0;

    /// Encoder: x = W u + b.
    pub const LINEAR: u32 = 1;
    /// Encoder: one row of a table for each token.
    pub const EMBEDDING: u32 = 2;

    /// Dynamics: one system for each channel.
    pub const CHANNELS: u32 = 0;
    /// Dynamics: one system that all channels share.
    pub const SHARED: u32 = 1;

    /// Norm: over the channels of a step.
    pub const LAYER_NORM: u32 = 1;
    /// Norm: a fixed factor and offset for each channel.
    pub const AFFINE: u32 = 2;

    /// Mixing: W y + b.
    pub const MIXED: u32 = 1;
    /// Mixing: the first half of W y + b, times the sigmoid of the second.
    pub const GATED: u32 = 2;

    /// Pooling: the mean of all steps so far.
    pub const MEAN: u32 = 1;
    /// Pooling: the latest step. The outputs are those of [`NONE`].
    pub const LAST: u32 = 2;

    /// Entries of a matrix: as the image's other numbers.
    pub const FULL: u32 = 0;
    /// Entries of a matrix: the upper half of an f32.
    pub const BF16: u32 = 1;
    /// Entries of a matrix: −127 to 127, times a scale for each row.
    pub const INT8: u32 = 2;
}

/// Numbers of the state that hold the count of steps.
pub(crate) const COUNT: usize = LANES;

macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: u32,)* }

        impl $name {
            /// Words of the record.
            pub const WORDS: usize = [$(stringify!($field)),*].len();

            /// The record at the start of `words`.
            #[inline]
            pub fn read(words: &[u32]) -> Option<Self> {
                let mut words = words.iter();
                Some(Self { $($field: *words.next()?,)* })
            }

            /// The words of the record.
            pub fn words(&self) -> [u32; Self::WORDS] {
                [$(self.$field),*]
            }
        }
    };
}

record! {
    /// What stands first in an image.
    Header {
        /// [`MAGIC`].
        magic,
        /// [`VERSION`].
        version,
        /// Bytes of a number: 4 or 8.
        number,
        /// Bytes of the image.
        bytes,
        /// Inputs of a step; for an embedding, the size of the vocabulary.
        inputs,
        /// Channels H.
        channels,
        /// Outputs of a step.
        outputs,
        /// `NONE`, `LINEAR` or `EMBEDDING`.
        encoder,
        /// A [`Matrix`] (H × inputs), or the table: inputs × padded H numbers.
        encoder_at,
        /// Number of layers.
        layers,
        /// Their records, one after the other.
        layers_at,
        /// `NONE`, `MEAN` or `LAST`.
        pooling,
        /// A [`Matrix`] (outputs × H), or 0: the channels are the outputs.
        head_at,
    }
}

record! {
    /// One residual layer.
    Layer {
        /// `CHANNELS` or `SHARED`.
        dynamics,
        /// `CHANNELS`: groups of sixteen channels. `SHARED`: groups of sixteen modes.
        groups,
        /// `CHANNELS`: the number of modes of each group, one word each.
        modes_at,
        /// `CHANNELS`: for each group and mode, sixteen each of Re d, Im d, Re r, Im r,
        /// d = a − 1. `SHARED`: for each group, sixteen each of Re d, Im d.
        systems_at,
        /// `CHANNELS`: the channel in each lane, one word each, where channels are sorted by their
        /// number of modes; 0 where lane h is channel h.
        places_at,
        /// The feedthrough D of every channel, in the order of the lanes; 0: there is none.
        feedthrough_at,
        /// `SHARED`: B, a [`Matrix`] from H channels to the parts Re, Im of each group of modes.
        input_at,
        /// `SHARED`: C, a [`Matrix`] from those parts (Re C, −Im C) to H channels. Where D is dense
        /// it stands beside C, in H more columns.
        output_at,
        /// `NONE`, `LAYER_NORM` or `AFFINE`.
        norm,
        /// 1: the norm stands before the dynamics, else after the residual sum.
        before,
        /// Padded H factors, padded H offsets, and ε sixteen times.
        norm_at,
        /// `NONE`, `MIXED` or `GATED`.
        mixing,
        /// A [`Matrix`]: H × H, or 2 padded H × H when gated.
        mixing_at,
    }
}

record! {
    /// y = W x + b, sixteen rows side by side: for each group of rows, for each input, sixteen
    /// entries.
    Matrix {
        /// Rows, a multiple of sixteen.
        outputs,
        /// Columns.
        inputs,
        /// `FULL`, `BF16` or `INT8`.
        entries,
        /// W.
        weights_at,
        /// The scale of each row, for `INT8`.
        scales_at,
        /// b, one number for each row; 0: there is none.
        bias_at,
    }
}

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
    /// Numbers of the widest dynamics that channels share.
    shared_modes: usize,
}

impl<'a, T: Real> ImageView<'a, T> {
    /// Checks an image: every record and every place. The bytes must be aligned for `T`; 64 is
    /// fastest. Cost O(layers + H), without reading the weights.
    ///
    /// # Errors
    /// [`StepFault::NotAnImage`], [`StepFault::Outside`], [`StepFault::Record`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, StepFault> {
        let mut image = Self {
            bytes,
            plan: ImagePlan::default(),
            number: PhantomData,
        };
        image.plan.header = image.read_header()?;
        image.check_ends()?;
        for index in 0..image.plan.header.layers {
            let layer = image.layer(index)?;
            image.check_layer(&layer)?;
            let state = image.layer_state(&layer)?;
            image.plan.state = image.plan.state.saturating_add(state);
            if layer.dynamics == code::SHARED {
                image.plan.shared_modes = image
                    .plan
                    .shared_modes
                    .max(layer.groups as usize * 2 * LANES);
            }
        }
        image.plan.state += COUNT;
        if image.plan.header.pooling == code::MEAN {
            image.plan.state += 2 * image.width();
        }
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
        let words = self.words(0, Header::WORDS, what)?;
        let header = Header::read(words).ok_or(StepFault::Outside { what, at: 0 })?;
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        for (what, found, expected) in [
            ("the first word", header.magic, MAGIC),
            ("the version", header.version, VERSION),
            ("the size of a number", header.number, T::BYTES),
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
        Ok(header)
    }

    fn check_ends(&self) -> Result<(), StepFault> {
        let header = &self.plan.header;
        match header.encoder {
            code::NONE if header.inputs == header.channels => {}
            code::LINEAR => {
                let matrix = self.matrix(header.encoder_at)?;
                self.check_matrix(&matrix, self.width(), header.inputs as usize)?;
            }
            code::EMBEDDING => {
                let entries = (header.inputs as usize).checked_mul(self.width());
                let entries = entries.ok_or(StepFault::Record {
                    what: "vocabulary",
                    found: header.inputs,
                })?;
                self.numbers(header.encoder_at, entries, "embedding")?;
            }
            found => {
                let what = "kind of encoder";
                return Err(StepFault::Record { what, found });
            }
        }
        check_code("kind of pooling", header.pooling, code::LAST)?;
        if header.head_at == 0 {
            return expect("number of outputs", header.outputs, header.channels);
        }
        let matrix = self.matrix(header.head_at)?;
        let outputs = padded(header.outputs as usize);
        self.check_matrix(&matrix, outputs, header.channels as usize)
    }

    fn check_layer(&self, layer: &Layer) -> Result<(), StepFault> {
        check_code("kind of dynamics", layer.dynamics, code::SHARED)?;
        check_code("kind of norm", layer.norm, code::AFFINE)?;
        check_code("kind of mixing", layer.mixing, code::GATED)?;
        let (width, channels) = (self.width(), self.plan.header.channels as usize);
        if layer.dynamics == code::CHANNELS {
            self.check_channels(layer)?;
        } else {
            self.check_shared(layer)?;
        }
        if layer.feedthrough_at != 0 {
            self.numbers(layer.feedthrough_at, width, "feedthrough")?;
        }
        if layer.norm != code::NONE {
            self.numbers(layer.norm_at, 2 * width + LANES, "norm")?;
        }
        if layer.mixing != code::NONE {
            let halves = if layer.mixing == code::GATED { 2 } else { 1 };
            let matrix = self.matrix(layer.mixing_at)?;
            self.check_matrix(&matrix, halves * width, channels)?;
        }
        Ok(())
    }

    fn check_channels(&self, layer: &Layer) -> Result<(), StepFault> {
        expect(
            "number of groups",
            layer.groups,
            (self.width() / LANES) as u32,
        )?;
        let numbers = 2 * self.channels_state(layer)?;
        self.numbers(layer.systems_at, numbers, "poles and residues")?;
        let Some(places) = self.places(layer)? else {
            return Ok(());
        };
        match places.iter().find(|&&place| place as usize >= self.width()) {
            Some(&found) => Err(StepFault::Record {
                what: "place of a channel",
                found,
            }),
            None => Ok(()),
        }
    }

    fn check_shared(&self, layer: &Layer) -> Result<(), StepFault> {
        if layer.groups > 1 << 16 {
            return Err(StepFault::Record {
                what: "number of groups",
                found: layer.groups,
            });
        }
        let (width, channels) = (self.width(), self.plan.header.channels as usize);
        let parts = 2 * LANES * layer.groups as usize;
        self.numbers(layer.systems_at, parts, "poles")?;
        self.check_matrix(&self.matrix(layer.input_at)?, parts, channels)?;
        let output = self.matrix(layer.output_at)?;
        let dense = output.inputs as usize != parts;
        let columns = if dense { parts + channels } else { parts };
        self.check_matrix(&output, width, columns)
    }

    fn check_matrix(
        &self,
        matrix: &Matrix,
        outputs: usize,
        inputs: usize,
    ) -> Result<(), StepFault> {
        expect("number of rows", matrix.outputs, outputs as u32)?;
        expect("number of columns", matrix.inputs, inputs as u32)?;
        check_code("kind of entries", matrix.entries, code::INT8)?;
        let entries = outputs.checked_mul(inputs).ok_or(StepFault::Record {
            what: "number of columns",
            found: matrix.inputs,
        })?;
        let at = matrix.weights_at;
        match matrix.entries {
            code::FULL => self.numbers(at, entries, "matrix").map(drop)?,
            code::BF16 => self.slice::<u16>(at, entries, "matrix").map(drop)?,
            _ => {
                self.slice::<i8>(at, entries, "matrix")?;
                self.numbers(matrix.scales_at, outputs, "scales")?;
            }
        }
        if matrix.bias_at != 0 {
            self.numbers(matrix.bias_at, outputs, "bias")?;
        }
        Ok(())
    }

    fn layer_state(&self, layer: &Layer) -> Result<usize, StepFault> {
        if layer.dynamics == code::SHARED {
            return Ok(2 * LANES * layer.groups as usize);
        }
        self.channels_state(layer)
    }

    /// Numbers of the state of a layer with one system for each channel. Twice as many fit the
    /// address space, since the image holds them.
    fn channels_state(&self, layer: &Layer) -> Result<usize, StepFault> {
        let most = self.bytes.len() / (4 * LANES);
        let mut total = 0;
        for &modes in self.group_modes(layer)? {
            if modes as usize > most - total {
                return Err(StepFault::Record {
                    what: "number of modes",
                    found: modes,
                });
            }
            total += modes as usize;
        }
        Ok(2 * LANES * total)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.plan.header
    }

    /// The bytes of the image.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Numbers of the state of one stream: 2 for each mode, with mean pooling 2 for each channel,
    /// and the count of steps.
    pub fn state_len(&self) -> usize {
        self.plan.state
    }

    /// Numbers that a step of `streams` streams works in.
    pub fn work_len(&self, streams: usize) -> usize {
        let each = 5 * self.width() + padded(self.plan.header.outputs as usize);
        let each = streams.saturating_mul(each);
        each.saturating_add(self.plan.shared_modes + self.width())
    }

    /// Channels, padded.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        padded(self.plan.header.channels as usize)
    }

    /// The record of layer `index`.
    ///
    /// # Errors
    /// [`StepFault::Outside`].
    #[inline(always)]
    pub fn layer(&self, index: u32) -> Result<Layer, StepFault> {
        let (what, bytes) = ("layer record", 4 * Layer::WORDS as u32);
        let at = index.checked_mul(bytes);
        let at = at.and_then(|offset| offset.checked_add(self.plan.header.layers_at));
        let at = at.unwrap_or(u32::MAX);
        let words = self.words(at, Layer::WORDS, what)?;
        Layer::read(words).ok_or(StepFault::Outside { what, at })
    }

    /// The matrix record at `at`.
    #[inline(always)]
    pub(crate) fn matrix(&self, at: u32) -> Result<Matrix, StepFault> {
        let what = "matrix record";
        let words = self.words(at, Matrix::WORDS, what)?;
        Matrix::read(words).ok_or(StepFault::Outside { what, at })
    }

    /// Modes of each group of channels, as the image has them.
    #[inline(always)]
    pub(crate) fn group_modes(&self, layer: &Layer) -> Result<&'a [u32], StepFault> {
        self.words(layer.modes_at, layer.groups as usize, "numbers of modes")
    }

    /// The channel in each lane, where that is not the lane itself.
    #[inline(always)]
    pub(crate) fn places(&self, layer: &Layer) -> Result<Option<&'a [u32]>, StepFault> {
        if layer.places_at == 0 {
            return Ok(None);
        }
        self.words(layer.places_at, self.width(), "places")
            .map(Some)
    }

    #[inline(always)]
    fn words(&self, at: u32, count: usize, what: &'static str) -> Result<&'a [u32], StepFault> {
        self.slice(at, count, what)
    }

    /// `count` numbers at `at`.
    #[inline(always)]
    pub(crate) fn numbers(
        &self,
        at: u32,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [T], StepFault> {
        self.slice(at, count, what)
    }

    /// `count` numbers in groups of sixteen.
    #[inline(always)]
    pub(crate) fn lanes(
        &self,
        at: u32,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [[T; LANES]], StepFault> {
        Ok(self.numbers(at, count, what)?.as_chunks().0)
    }

    #[inline(always)]
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

fn check_code(what: &'static str, found: u32, last: u32) -> Result<(), StepFault> {
    if found <= last {
        Ok(())
    } else {
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
