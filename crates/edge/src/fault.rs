//! What can be wrong, reported without memory of its own.

use core::fmt;

use crate::record::VERSION;

/// Why bytes, buffers or inputs do not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepFault {
    /// The bytes are not an image of this version for this number type.
    NotAnImage {
        /// What does not fit.
        what: &'static str,
        /// The word found.
        found: u32,
        /// The word expected.
        expected: u32,
    },
    /// An image of another version of the format.
    Version {
        /// The version found.
        found: u32,
    },
    /// A record or a vector lies outside the image or is not aligned.
    Outside {
        /// What was to be read.
        what: &'static str,
        /// Its place in bytes.
        at: u32,
    },
    /// A record holds a number that no image has.
    Record {
        /// Which number.
        what: &'static str,
        /// The number.
        found: u32,
    },
    /// A buffer or an input has the wrong length.
    Length {
        /// `state`, `work` or `input`.
        what: &'static str,
        /// Numbers found.
        found: usize,
        /// Numbers expected.
        expected: usize,
    },
    /// Numbers for a model with an embedding, or a token for one without.
    Kind {
        /// `numbers` or `tokens`.
        expected: &'static str,
    },
    /// A token outside the vocabulary.
    Token {
        /// The token.
        token: u32,
        /// The number of tokens.
        vocabulary: u32,
    },
}

impl fmt::Display for StepFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            StepFault::NotAnImage {
                what,
                found,
                expected,
            } => write!(
                f,
                "not an image of this version: {what} is {found:#x}, expected {expected:#x}"
            ),
            StepFault::Version { found } => write!(
                f,
                "an image of version {found}, expected version {VERSION}: pack the checkpoint again"
            ),
            StepFault::Outside { what, at } => {
                write!(
                    f,
                    "the {what} at byte {at} lies outside the image or is not aligned"
                )
            }
            StepFault::Record { what, found } => write!(f, "the image's {what} is {found}"),
            StepFault::Length {
                what,
                found,
                expected,
            } => write!(f, "the {what} holds {found} numbers, expected {expected}"),
            StepFault::Kind { expected } => write!(f, "the model's encoder takes {expected}"),
            StepFault::Token { token, vocabulary } => {
                write!(f, "token {token} is outside the vocabulary of {vocabulary}")
            }
        }
    }
}

impl core::error::Error for StepFault {}
