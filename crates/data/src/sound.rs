//! Samples of a WAV file, read as they are requested.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use crate::DataError;

/// The samples of a WAV file, those of all channels in turn. Whole numbers are divided by the
/// largest of their width, so that full scale is 1.
pub struct Sound {
    path: PathBuf,
    samples: Samples,
    channels: usize,
    hertz: u32,
    index: usize,
}

enum Samples {
    Whole(hound::WavIntoSamples<Box<dyn Read>, i32>, f32),
    Float(hound::WavIntoSamples<Box<dyn Read>, f32>),
}

impl Sound {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`DataError::Sound`] when it is not a WAV file or cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| failed(path, error.into()))?;
        Self::from_reader(Box::new(BufReader::new(file)), path)
    }

    /// The same of anything that gives bytes; `name` stands in errors.
    ///
    /// # Errors
    /// As [`Sound::open`].
    pub fn from_reader(reader: Box<dyn Read>, name: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = name.as_ref();
        let reader = hound::WavReader::new(reader).map_err(|source| failed(path, source))?;
        let spec = reader.spec();
        let samples = match spec.sample_format {
            hound::SampleFormat::Int => {
                let full = 2f32.powi(i32::from(spec.bits_per_sample) - 1);
                Samples::Whole(reader.into_samples(), full)
            }
            hound::SampleFormat::Float => Samples::Float(reader.into_samples()),
        };
        Ok(Self {
            path: path.to_owned(),
            samples,
            channels: spec.channels.into(),
            hertz: spec.sample_rate,
            index: 0,
        })
    }

    /// Channels, whose samples come in turn.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Samples of a second, of each channel.
    pub fn hertz(&self) -> u32 {
        self.hertz
    }
}

fn failed(path: &Path, source: hound::Error) -> DataError {
    DataError::Sound {
        path: path.to_owned(),
        source,
    }
}

impl Iterator for Sound {
    type Item = Result<f32, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let sample = match &mut self.samples {
            Samples::Whole(samples, full) => samples
                .next()
                .map(|sample| sample.map(|x| x as f32 / *full)),
            Samples::Float(samples) => samples.next(),
        };
        let index = self.index;
        self.index += 1;
        Some(match sample? {
            Err(source) => Err(failed(&self.path, source)),
            Ok(sample) if sample.is_finite() => Ok(sample),
            Ok(_) => Err(DataError::Content {
                path: self.path.clone(),
                found: format!("sample {index} is not finite"),
                expected: "finite samples".to_string(),
            }),
        })
    }
}
