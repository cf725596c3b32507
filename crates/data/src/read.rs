//! A data set from its source.

use std::path::Path;

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::source::Source;
use crate::split::Split;
use crate::{arrays, mnist};

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
            Source::Table(data) => data.read(),
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
            Source::RandomTransformer(task) => task.generate(part),
            Source::Sample {
                source,
                count,
                seed,
            } => Self::read(source, split)?.sample(*count, *seed),
        }
    }

    /// Reads arrays from the bytes of a safetensors or npz file; `name` stands for it in messages.
    ///
    /// # Errors
    /// As [`Dataset::read`].
    pub fn from_bytes(name: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self, DataError> {
        let name = name.as_ref();
        let archive = hankelite_archive::Archive::from_bytes(name, bytes)?;
        arrays::read_archive(name, archive)
    }

    /// Writes the data as a safetensors file, whole or not at all, which `Source::Arrays` reads
    /// back to an equal set: `inputs` (f32, or i32 tokens), `lengths`, `labels` or `targets`,
    /// `mask` (u8), and the numbers `vocabulary` and `classes`, each where the data have it.
    ///
    /// # Errors
    /// [`DataError::Archive`] when the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        arrays::write(self, path.as_ref())
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
