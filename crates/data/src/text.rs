//! The next byte of a text.

use std::fmt::Display;
use std::path::PathBuf;

use crate::error::content;
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split, files};

const BYTES_MAX: u64 = 1 << 29;
/// Every byte is a token; nothing is padded.
const VOCABULARY: usize = 256;

/// The next byte of a text file (.txt, perhaps .gz or .xz).
///
/// The first nine tenths of the bytes are the training part, the rest the test part. A part is
/// cut into windows that follow each other: sequence i holds bytes i L … i L + L − 1, and the
/// answer at each step is the byte behind it. What is left at the end is not used.
///
/// Keys: `length` L (256).
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    pub(super) path: PathBuf,
    length: usize,
}

impl Text {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            path: options.path()?,
            length: options.number("length", 256, 1..=1 << 24)?,
        })
    }

    pub(super) fn read(&self, split: Split) -> Result<Dataset, DataError> {
        let bytes = files::read(&self.path, BYTES_MAX)?;
        let (train, test) = bytes.split_at(bytes.len() * 9 / 10);
        let part = if split == Split::Test { test } else { train };
        let count = part.len().saturating_sub(1) / self.length;
        if count == 0 {
            let found = format!("{} bytes in the {split} part", part.len());
            let expected = format!("more than length={}", self.length);
            return Err(content(&self.path, found, expected));
        }
        let window = |from: usize| {
            let bytes = part[from..from + count * self.length].iter();
            bytes.map(|&byte| u32::from(byte)).collect::<Vec<u32>>()
        };
        let targets = Targets::StepClasses {
            labels: window(1),
            classes: VOCABULARY,
            mask: None,
        };
        Ok(Dataset::from_tokens(window(0), VOCABULARY, self.length).with_targets(targets))
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "text:{},length={}", self.path.display(), self.length)
    }
}
