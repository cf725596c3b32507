//! IMDb reviews as bytes.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::error::content;
use crate::files::{Entry, Wanted, entries};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// Padding and 256 bytes.
const VOCABULARY: usize = 257;
/// More than 80 times the longest review.
const REVIEW_MAX: usize = 1 << 20;

/// The Large Movie Review Dataset (Maas and others, 2011), byte by byte.
///
/// A folder (or .tar, .tar.gz, .tar.xz) with `train` and `test`, in each `neg` and `pos`, in each
/// text files; the folder `aclImdb` may stand around them. Token 0 is padding, token b + 1 is byte
/// b, as in the byte encoder that Long Range Arena takes. The texts are not changed. Of a longer
/// text the first `length` bytes stay. Classes: 0 negative, 1 positive; negative texts first, each
/// class sorted by file name.
///
/// Keys: `length` (4096).
#[derive(Debug, Clone, PartialEq)]
pub struct Reviews {
    pub(super) path: PathBuf,
    length: usize,
}

impl Reviews {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            path: options.path()?,
            length: options.number("length", 4096, 1..=REVIEW_MAX)?,
        })
    }

    pub(super) fn read(&self, split: Split) -> Result<Dataset, DataError> {
        let inner = self.path.join("aclImdb");
        let place = if inner.is_dir() { &inner } else { &self.path };
        let folders = ["neg", "pos"].map(|class| format!("{split}/{class}"));
        let wanted = folders.each_ref().map(|within| Wanted {
            within,
            ending: ".txt",
            // One byte more shows whether the text is cut.
            most: self.length + 1,
        });
        let groups = entries(place, &wanted)?;
        let (mut rows, mut labels, mut cut) = (Vec::new(), Vec::new(), 0);
        for (class, group) in groups.into_iter().enumerate() {
            for text in group {
                cut += usize::from(text.bytes.len() > self.length);
                rows.push(self.row(&text)?);
                labels.push(class);
            }
        }
        let count = rows.len();
        let targets = Targets::Classes { labels, classes: 2 };
        let data = Dataset::from_rows(&rows, VOCABULARY, self.length).with_targets(targets);
        let length = self.length;
        Ok(match cut {
            0 => data,
            _ => data.with_note(format!("{cut} of {count} texts cut to {length} bytes")),
        })
    }

    fn row(&self, text: &Entry) -> Result<Vec<u16>, DataError> {
        if text.bytes.is_empty() {
            return Err(content(&text.path, "an empty text", "at least one byte"));
        }
        let bytes = text.bytes.iter().take(self.length);
        Ok(bytes.map(|&byte| u16::from(byte) + 1).collect())
    }
}

impl Display for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path: &Path = &self.path;
        write!(f, "imdb:{},length={}", path.display(), self.length)
    }
}
