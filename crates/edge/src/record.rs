//! The records of an image: what its bytes stand for, and where its parts lie.

/// The first word of an image: `HKLE`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"HKLE");
/// The version of the format described here: a new one for every change of a record that an older
/// reader, or an older image, would give another meaning.
pub const VERSION: u32 = 4;

/// What the kinds in the records stand for.
pub mod code {
    /// Nothing here.
    pub const NONE: u8 = 0;

    /// Encoder: x = W u + b.
    pub const LINEAR: u8 = 1;
    /// Encoder: one row of a table for each token.
    pub const EMBEDDING: u8 = 2;

    /// Dynamics: one system for each channel. With [`NONE`] the layer only normalises.
    pub const CHANNELS: u8 = 1;
    /// Dynamics: one system that all channels share.
    pub const SHARED: u8 = 2;

    /// Norm: over the channels of a step.
    pub const LAYER_NORM: u8 = 1;
    /// Norm: a fixed factor and offset for each channel.
    pub const AFFINE: u8 = 2;

    /// Mixing: W y + b.
    pub const MIXED: u8 = 1;
    /// Mixing: the first half of W y + b, times the sigmoid of the second.
    pub const GATED: u8 = 2;
    /// Mixing: y times the sigmoid of W y + b.
    pub const ACTIVATED: u8 = 3;
    /// Mixing: what the systems give, before the activation, times the sigmoid of W y + b.
    pub const RESPONSE: u8 = 4;

    /// Activation: the exact GELU.
    pub const GELU: u8 = 0;
    /// Activation: GELU by a tanh.
    pub const GELU_TANH: u8 = 1;

    /// Pooling: the mean of all steps so far.
    pub const MEAN: u8 = 1;
    /// Pooling: the latest step. The outputs are those of [`NONE`].
    pub const LAST: u8 = 2;

    /// Numbers or entries: in the image's precision.
    pub const FULL: u8 = 0;
    /// Numbers: IEEE half precision.
    pub const HALF: u8 = 1;
    /// Entries of a matrix: the upper half of an f32.
    pub const BF16: u8 = 1;
    /// Entries of a matrix: u − 128 for bytes u, times scales.
    pub const INT8: u8 = 2;
    /// Entries of a matrix: u − 8 for four bits u, times scales.
    pub const INT4: u8 = 3;
    /// Entries of a matrix: u − 4 for three bits u, times scales.
    pub const INT3: u8 = 4;
    /// Entries of a matrix: 2 u − 3 for two bits u, times scales.
    pub const INT2: u8 = 5;
}

macro_rules! record {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $number:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: $number,)* }

        impl $name {
            /// Bytes of the record.
            pub const BYTES: usize = 0 $(+ size_of::<$number>())*;

            /// The record at the start of `bytes`.
            #[inline]
            pub fn read(bytes: &[u8]) -> Option<Self> {
                $(let ($field, bytes) = bytes.split_first_chunk()?;)*
                let _ = bytes;
                Some(Self { $($field: <$number>::from_le_bytes(*$field),)* })
            }

            /// The bytes of the record, one number after the other.
            pub fn to_bytes(&self) -> impl Iterator<Item = u8> {
                let none = core::iter::empty();
                $(let none = none.chain(self.$field.to_le_bytes());)*
                none
            }
        }
    };
}

record! {
    /// What stands first in an image.
    Header {
        /// [`MAGIC`].
        magic: u32,
        /// [`VERSION`].
        version: u32,
        /// Bytes of a number: 4 or 8.
        number: u8,
        /// `NONE`, `LINEAR` or `EMBEDDING`.
        encoder: u8,
        /// `NONE`, `MEAN` or `LAST`.
        pooling: u8,
        /// Of all layers: `GELU` or `GELU_TANH`.
        activation: u8,
        /// Bytes of the image.
        bytes: u32,
        /// Inputs of a step; for an embedding, the size of the vocabulary.
        inputs: u32,
        /// Channels H.
        channels: u32,
        /// Outputs of a step.
        outputs: u32,
        /// Number of layers.
        layers: u32,
        /// Their records, one after the other.
        layers_at: u32,
        /// A [`Matrix`] (H × inputs), or the table: inputs × padded H numbers.
        encoder_at: u32,
        /// A [`Matrix`] (outputs × H), or 0: the channels are the outputs.
        head_at: u32,
    }
}

record! {
    /// One residual layer.
    Layer {
        /// `CHANNELS`, `SHARED`, or `NONE`: the layer gives norm(x).
        dynamics: u8,
        /// `CHANNELS`: channels side by side, 4, 8 or 16.
        lanes: u8,
        /// `FULL` or `HALF`: systems, feedthrough, and the numbers of a `LAYER_NORM`.
        numbers: u8,
        /// `HALF`: d is the half times 2 to the power of this.
        pole_exponent: i8,
        /// `HALF`: r is the half times 2 to the power of this.
        residue_exponent: i8,
        /// `NONE`, `LAYER_NORM` or `AFFINE`.
        norm: u8,
        /// 1: the norm stands before the dynamics, else after the residual sum.
        before: u8,
        /// `NONE`, `MIXED`, `GATED`, `ACTIVATED` or `RESPONSE`; y is what the activation gives.
        mixing: u8,
        /// `CHANNELS`: the number of modes of each group of lanes, 16 bits each.
        modes_at: u32,
        /// `CHANNELS`: for each group and mode, for each lane Re d, then Im d, Re r, Im r,
        /// d = a − 1. `SHARED`: a [`SharedSystem`].
        systems_at: u32,
        /// `CHANNELS`: the channel in each lane, where channels are sorted by their number of modes:
        /// a byte each for up to 256 padded channels, else 16 bits; 0 where lane h is channel h.
        places_at: u32,
        /// The feedthrough D of every channel, in the order of the lanes; 0: there is none.
        feedthrough_at: u32,
        /// ε, always full, padded H factors, padded H offsets.
        norm_at: u32,
        /// A [`Matrix`]: H × H, or 2 padded H × H when gated.
        mixing_at: u32,
    }
}

record! {
    /// A system that all channels share. Its poles are full.
    SharedSystem {
        /// The number n of modes.
        modes: u32,
        /// Re d of all modes, d = a − 1, then Im d.
        poles_at: u32,
        /// B, a [`Matrix`] from H channels to the parts of the states: Re of all modes, Im of all, and
        /// zeros up to a multiple of sixteen.
        input_at: u32,
        /// C, a [`Matrix`] from those parts (Re C, −Im C) to H channels. Where D is dense it stands
        /// beside C, in H more columns.
        output_at: u32,
    }
}

record! {
    /// y = W x + b, sixteen rows side by side.
    ///
    /// `FULL`, `BF16`: for each group of sixteen rows, for each input, sixteen entries. Integers: for
    /// each group of rows, for each unit of inputs, 64 bytes (of three bits 192) that hold for
    /// every row in turn four bytes, one for each of four inputs that follow one another:
    /// - `INT8`: a unit is 4 inputs, the bytes are u.
    /// - `INT4`: a unit is 8 inputs: the lower four bits are those of the first four inputs.
    /// - `INT3`: a unit is 32 inputs, eight times four: thrice 64 bytes A, B, C. The first four are in the
    ///   lowest three bits of A, the next in the next three, those after them in B and C likewise. The
    ///   last eight have their lower two bits highest in A and in B, the upper ones in bits 6 and 7 of C.
    /// - `INT2`: a unit is 16 inputs: the lowest two bits are those of the first four, and so on.
    Matrix {
        /// `FULL`, `BF16`, `INT8`, `INT4`, `INT3` or `INT2`.
        entries: u8,
        /// `FULL` or `HALF`: the numbers of b.
        numbers: u8,
        /// Integers: inputs that share a scale, a multiple of sixteen (for `INT3`: of 32).
        group: u16,
        /// Rows, a multiple of sixteen.
        outputs: u32,
        /// Columns.
        inputs: u32,
        /// W.
        weights_at: u32,
        /// Integers: for each group of rows and group of inputs, sixteen scales as upper halves of f32.
        scales_at: u32,
        /// b, one number for each row; 0: there is none.
        bias_at: u32,
    }
}
