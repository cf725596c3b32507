//! Data sets as host arrays: MNIST files and safetensors files.

mod arrays;
mod mnist;

use std::path::Path;
use std::path::PathBuf;
use std::str::FromStr;

use crate::checkpoint::ArchiveError;
use crate::infer::Sequence;

/// Where data come from: `mnist:DIR`, or the path of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A folder with idx files, compressed or not.
    Mnist(PathBuf),
    /// A safetensors file with `inputs` and, for scores, `labels`.
    Arrays(PathBuf),
}

impl FromStr for Source {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix("mnist:") {
            Some(folder) => Source::Mnist(folder.into()),
            None => Source::Arrays(text.into()),
        })
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Mnist(folder) => write!(f, "mnist:{}", folder.display()),
            Source::Arrays(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Which part of a data set that has parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Split {
    /// The training part.
    Train,
    /// The held-out part.
    #[default]
    Test,
}

/// Sequences of one length, with or without labels.
#[derive(Debug, Clone)]
pub struct Dataset {
    inputs: Inputs,
    labels: Option<Vec<usize>>,
    count: usize,
    length: usize,
}

#[derive(Debug, Clone)]
enum Inputs {
    /// count × length × width.
    Values(Vec<f32>),
    /// count × length.
    Tokens(Vec<u32>),
}

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The container could not be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder without the files that were asked for.
    #[error("{}: no file `{expected}` here", folder.display())]
    NoFile {
        /// The folder.
        folder: PathBuf,
        /// The name looked for.
        expected: &'static str,
    },
    /// A file whose content is not what its name says.
    #[error("{}: {found}, expected {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// A tensor that does not hold what it should.
    #[error("{}: {source}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// What is wrong with the tensor.
        source: ArchiveError,
    },
    /// A split asked of data that have none.
    #[error("{} is one set of sequences and has no splits", path.display())]
    NoSplits {
        /// The file.
        path: PathBuf,
    },
}

impl Dataset {
    /// Reads a data set. A split may be named only where the source has splits; the held-out part
    /// is the default there.
    ///
    /// # Errors
    /// [`DataError`] with the file and what was found and expected.
    pub fn read(source: &Source, split: Option<Split>) -> Result<Self, DataError> {
        match (source, split) {
            (Source::Mnist(folder), split) => mnist::read(folder, split.unwrap_or_default()),
            (Source::Arrays(path), None) => arrays::read(path),
            (Source::Arrays(path), Some(_)) => Err(DataError::NoSplits { path: path.clone() }),
        }
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of steps of each sequence.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Sequence `index`.
    pub fn sequence(&self, index: usize) -> Sequence<'_> {
        match &self.inputs {
            Inputs::Values(values) => {
                let size = values.len() / self.count.max(1);
                Sequence::Values(&values[index * size..(index + 1) * size])
            }
            Inputs::Tokens(tokens) => {
                let row = index * self.length..(index + 1) * self.length;
                Sequence::Tokens(&tokens[row])
            }
        }
    }

    /// The labels, one for each sequence, if there are any.
    pub fn labels(&self) -> Option<&[usize]> {
        self.labels.as_deref()
    }
}

fn content(path: &Path, found: impl Into<String>, expected: impl Into<String>) -> DataError {
    DataError::Content {
        path: path.to_path_buf(),
        found: found.into(),
        expected: expected.into(),
    }
}
