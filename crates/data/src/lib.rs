//! Data sets as host arrays: files that are read, and tasks that are generated.
//!
//! A [`Source`] is a text such as `mnist:data/mnist` or `adding:length=200,count=1000,seed=1`;
//! [`Dataset::read`] makes a [`Dataset`] of one of its parts. [`Batches`] gives a seeded order,
//! [`Dataset::batch`] host arrays for a trainer. Nothing depends on the number of threads: the
//! same source gives the same bytes.

mod adding;
mod arrays;
mod autoregression;
mod batch;
mod bouncing;
mod copy;
mod dataset;
mod draw;
mod error;
mod files;
mod fsdd;
mod generate;
mod imdb;
mod lagged_sine;
mod listops;
mod listops_file;
mod mnist;
mod moving_digits;
mod options;
mod recall;
mod sound;
mod source;
mod sparse;
mod sprites;
mod teacher;
mod text;
mod waves;

use std::path::Path;

pub use adding::Adding;
pub use autoregression::Autoregression;
pub use batch::{Batch, Batches, Steps};
pub use copy::Copying;
pub use dataset::{ConstantAnswer, Dataset, Targets};
pub use draw::Draw;
pub use error::DataError;
pub use fsdd::SpokenDigits;
pub use generate::Baseline;
pub use imdb::Reviews;
pub use lagged_sine::LaggedSine;
pub use listops::ListOps;
pub use listops_file::ListOpsFiles;
pub use moving_digits::MovingDigits;
pub use options::SourceError;
pub use recall::Recall;
pub use sound::Sound;
pub use source::Source;
pub use sparse::Sparse;
pub use sprites::Sprites;
pub use teacher::Teacher;
pub use text::Text;
pub use waves::Waves;

/// Which part of a data set that has parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// The training part.
    Train,
    /// The part that settings are chosen on, where the data set has its own.
    Validation,
    /// The held-out part.
    #[default]
    Test,
}

impl std::fmt::Display for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
        })
    }
}

impl Dataset {
    /// Reads or generates a data set. A split may be named only where the source has splits; the
    /// held-out part is the default there.
    ///
    /// # Errors
    /// [`DataError`] with the file and what was found and expected.
    pub fn read(source: &Source, split: Option<Split>) -> Result<Self, DataError> {
        let part = part(source, split)?;
        match source {
            Source::Mnist(folder) => mnist::read(folder, part),
            Source::PermutedMnist(folder) => mnist::read_permuted(folder, part),
            Source::BottomUpMnist(folder) => mnist::read_bottom_up(folder, part),
            Source::Arrays(path) => arrays::read(path),
            Source::SpokenDigits(data) => data.read(part),
            Source::Reviews(data) => data.read(part),
            Source::ListOpsFiles(data) => data.read(split),
            Source::Text(data) => data.read(part),
            Source::ListOps(task) => task.generate(part),
            Source::Recall(task) => task.generate(part),
            Source::Adding(task) => task.generate(part),
            Source::Copying(task) => task.generate(part),
            Source::LaggedSine(task) => task.generate(part),
            Source::Autoregression(task) => task.generate(part),
            Source::Waves(task) => task.generate(part),
            Source::MovingDigits(task) => task.generate(part),
            Source::Sprites(task) => task.generate(part),
            Source::Sparse(task) => task.generate(part),
            Source::Teacher(task) => task.generate(part),
            Source::Sample {
                source,
                count,
                seed,
            } => Self::read(source, split)?.sample(*count, *seed),
        }
    }

    /// Writes the data as a safetensors file, whole or not at all, which `Source::Arrays` reads
    /// back to an equal set: `inputs` (f32, or i32 tokens), `lengths`, `labels` or `targets`,
    /// `mask` (u8), and the numbers `vocabulary` and `classes`, each where the data have it.
    ///
    /// # Errors
    /// [`DataError::Archive`] when the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), DataError> {
        arrays::write(self, path)
    }
}

/// The part to read, if the source has it.
fn part(source: &Source, split: Option<Split>) -> Result<Split, DataError> {
    let (splits, part) = (source.splits(), split.unwrap_or_default());
    if splits.contains(&part) || (splits.is_empty() && split.is_none()) {
        return Ok(part);
    }
    let path = source.path().unwrap_or(Path::new("")).to_path_buf();
    if splits.is_empty() {
        return Err(DataError::NoSplits { path });
    }
    let parts: Vec<String> = splits.iter().map(Split::to_string).collect();
    let (data, parts) = (source.to_string(), parts.join(", "));
    Err(DataError::NoPart { data, part, parts })
}
