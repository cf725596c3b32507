//! Why data cannot be used.

use std::path::{Path, PathBuf};

use hankelite_archive::ArchiveError;

use crate::Split;

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The container could not be read or written.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system reported.
        source: std::io::Error,
    },
    /// A folder without the files that were requested.
    #[error("{}: no file `{expected}` here", folder.display())]
    NoFile {
        /// The folder.
        folder: PathBuf,
        /// The name looked for.
        expected: &'static str,
    },
    /// A file whose content is not what its name promises.
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
    /// A sound file that cannot be decoded.
    #[error("{}: {source}, expected a WAV file of one channel", path.display())]
    Sound {
        /// The file.
        path: PathBuf,
        /// What the decoder reported.
        source: hound::Error,
    },
    /// A split requested of data that have none.
    #[error("{} is one set of sequences and has no splits", path.display())]
    NoSplits {
        /// The file.
        path: PathBuf,
    },
    /// A part that the data do not have.
    #[error("{data} has no {part} part, only {parts}")]
    NoPart {
        /// The source.
        data: String,
        /// The part requested.
        part: Split,
        /// The parts there are.
        parts: String,
    },
    /// More numbers than are ever wanted at once.
    #[error("{data} would take {values} numbers, expected at most {most}")]
    TooLarge {
        /// The source.
        data: String,
        /// Numbers it would hold.
        values: u128,
        /// The limit.
        most: u128,
    },
    /// A covariance that is not positive definite to rounding.
    #[error("{data}: the covariance is singular at step {step}; choose a smaller width")]
    Singular {
        /// The source.
        data: String,
        /// The step.
        step: usize,
    },
    /// A generator that finds too few sequences that keep its rules.
    #[error("{data}: {found} different sequences in {draws} draws, expected {requested}")]
    TooFew {
        /// The source.
        data: String,
        /// Sequences found.
        found: usize,
        /// Sequences requested.
        requested: usize,
        /// Draws after which it gave up.
        draws: usize,
    },
    /// A subset larger than the set, or empty.
    #[error("{requested} sequences requested, expected 1 to {most}")]
    Subset {
        /// Sequences requested.
        requested: usize,
        /// What can be given.
        most: usize,
    },
    /// A batch of no sequence, or of more than there are.
    #[error("a batch of {size}, expected 1 to {most}, the number of sequences")]
    BatchSize {
        /// Size requested.
        size: usize,
        /// Sequences there are.
        most: usize,
    },
}

impl DataError {
    /// What may help, where that is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoPart {
                part: Split::Validation,
                ..
            } => Some("hold a validation part out of `train`"),
            Self::TooFew { .. } => Some("widen min_length to max_length, or request fewer"),
            Self::NoFile { .. } => Some("docs/data.md shows what a folder of each data set holds"),
            Self::Archive(ArchiveError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Some("data are a safetensors file or name:PATH; `compress-model data --help`")
            }
            _ => None,
        }
    }
}

pub(super) fn content(
    path: &Path,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> DataError {
    DataError::Content {
        path: path.to_path_buf(),
        found: found.into(),
        expected: expected.into(),
    }
}

/// Names the file that the system's error is about.
pub(super) fn io(path: &Path) -> impl Fn(std::io::Error) -> DataError + '_ {
    |source| DataError::Io {
        path: path.to_path_buf(),
        source,
    }
}
