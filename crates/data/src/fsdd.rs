//! Spoken digits.

use std::fmt::Display;
use std::io::Cursor;
use std::path::PathBuf;

use rayon::prelude::*;

use crate::error::content;
use crate::files::{Entry, Wanted, entries};
use crate::options::{Options, SourceError};
use crate::targets::Targets;
use crate::{DataError, Dataset, Split};

/// More than 100 times the longest recording.
const FILE_MAX: usize = 1 << 22;
/// How far the rate that is reached may be from the one requested.
const RATE_TOLERANCE: f64 = 0.02;
/// Keeps the division by the loudness finite for silence; in units of the samples.
const SILENCE: f64 = 1e-6;

/// The Free Spoken Digit Dataset (Jackson and others), resampled.
///
/// A folder (or .tar, .tar.gz, .tar.xz) of `{digit}_{speaker}_{take}.wav`, perhaps within a folder
/// `recordings`. Every recording is divided by groups of D samples, of which the mean is taken (a
/// rest of less than D is dropped), then by its root mean square, then cropped or padded with
/// zeros to `length`. D is the file's rate / `rate`, rounded. Order: by file name. Classes: the
/// digits. Test part: takes below `test_takes`, the data set's own split for 5.
///
/// Keys: `rate` in Hz (1333: 8000/6), `length` in steps (512), `test_takes` (5).
#[derive(Debug, Clone, PartialEq)]
pub struct SpokenDigits {
    pub(super) path: PathBuf,
    rate: f64,
    length: usize,
    test_takes: u32,
}

impl SpokenDigits {
    pub(super) fn parse(options: &mut Options) -> Result<Self, SourceError> {
        Ok(Self {
            path: options.path()?,
            rate: options.number("rate", 1333.0, 1.0..=192_000.0)?,
            length: options.number("length", 512, 1..=FILE_MAX)?,
            test_takes: options.number("test_takes", 5, 0..=1_000_000)?,
        })
    }

    pub(super) fn read(&self, split: Split) -> Result<Dataset, DataError> {
        let inner = self.path.join("recordings");
        let place = if inner.is_dir() { &inner } else { &self.path };
        let wanted = Wanted {
            within: "",
            ending: ".wav",
            most: FILE_MAX,
        };
        let files = entries(place, &[wanted])?.remove(0);
        let mut chosen = Vec::new();
        for file in files {
            let (digit, take) = named(&file)?;
            if (take < self.test_takes) == (split == Split::Test) {
                chosen.push((digit, file));
            }
        }
        if chosen.is_empty() {
            let found = format!("no recording for the {split} part");
            return Err(content(place, found, "takes on both sides of test_takes"));
        }
        let labels = chosen.iter().map(|(digit, _)| *digit).collect();
        let rows = chosen.par_iter().map(|(_, file)| self.row(file));
        let rows: Vec<_> = rows.collect();
        let rows: Vec<Vec<f32>> = rows.into_iter().collect::<Result<_, _>>()?;
        Ok(self.dataset(&rows, labels))
    }

    fn dataset(&self, rows: &[Vec<f32>], labels: Vec<usize>) -> Dataset {
        let mut values = vec![0.0; rows.len() * self.length];
        let mut cut = 0;
        for (to, row) in values.chunks_exact_mut(self.length).zip(rows) {
            to.iter_mut().zip(row).for_each(|(to, value)| *to = *value);
            cut += usize::from(row.len() > self.length);
        }
        let lengths = rows.iter().map(|row| row.len().min(self.length));
        let data = Dataset::from_values(values, 1, self.length)
            .with_lengths(lengths.collect())
            .with_targets(Targets::Classes {
                labels,
                classes: 10,
            });
        let (count, length) = (rows.len(), self.length);
        match cut {
            0 => data,
            _ => data.with_note(format!("{cut} of {count} recordings cut to {length} steps")),
        }
    }

    /// A whole recording at the new rate, of unit root mean square.
    fn row(&self, file: &Entry) -> Result<Vec<f32>, DataError> {
        let (samples, rate) = decode(file)?;
        let group = self.group(file, rate)?;
        let means = samples.chunks_exact(group);
        let means: Vec<f64> = means
            .map(|group_of| group_of.iter().sum::<f64>() / group as f64)
            .collect();
        if means.is_empty() {
            let found = format!("{} samples", samples.len());
            return Err(content(&file.path, found, format!("at least {group}")));
        }
        let square = means.iter().map(|x| x * x).sum::<f64>() / means.len() as f64;
        let scale = square.sqrt() + SILENCE;
        Ok(means.iter().map(|x| (x / scale) as f32).collect())
    }

    /// Samples whose mean makes one step.
    fn group(&self, file: &Entry, rate: u32) -> Result<usize, DataError> {
        let group = (f64::from(rate) / self.rate).round().max(1.0);
        let reached = f64::from(rate) / group;
        if (reached / self.rate - 1.0).abs() > RATE_TOLERANCE {
            let found = format!("{rate} Hz, of which whole groups give {reached:.1} Hz");
            let expected = format!("within 2 % of rate={}", self.rate);
            return Err(content(&file.path, found, expected));
        }
        Ok(group as usize)
    }
}

impl Display for SpokenDigits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, rate) = (self.path.display(), self.rate);
        let (length, takes) = (self.length, self.test_takes);
        write!(
            f,
            "fsdd:{path},rate={rate},length={length},test_takes={takes}"
        )
    }
}

/// Digit and take of `{digit}_{speaker}_{take}.wav`.
fn named(file: &Entry) -> Result<(usize, u32), DataError> {
    let stem = file.name.trim_end_matches(".wav");
    let parts: Vec<&str> = stem.split('_').collect();
    let digit = parts.first().and_then(|digit| digit.parse().ok());
    let take = parts.last().and_then(|take| take.parse().ok());
    match (digit, take, parts.len()) {
        (Some(digit @ 0..=9), Some(take), 3) => Ok((digit, take)),
        _ => Err(content(
            &file.path,
            "a name of another form",
            "{digit}_{speaker}_{take}.wav",
        )),
    }
}

/// The samples as they are stored (whole numbers stay whole) and their rate in Hz.
fn decode(file: &Entry) -> Result<(Vec<f64>, u32), DataError> {
    let failed = |source| DataError::Sound {
        path: file.path.clone(),
        source,
    };
    let reader = hound::WavReader::new(Cursor::new(&file.bytes)).map_err(failed)?;
    let spec = reader.spec();
    if spec.channels != 1 || spec.sample_rate == 0 {
        let found = format!("{} channels at {} Hz", spec.channels, spec.sample_rate);
        return Err(content(&file.path, found, "one channel"));
    }
    let samples: Result<Vec<f64>, _> = match spec.sample_format {
        hound::SampleFormat::Int => reader
            .into_samples::<i32>()
            .map(|sample| sample.map(f64::from))
            .collect(),
        hound::SampleFormat::Float => reader
            .into_samples::<f32>()
            .map(|sample| sample.map(f64::from))
            .collect(),
    };
    let samples = samples.map_err(failed)?;
    if let Some(index) = samples.iter().position(|sample| !sample.is_finite()) {
        let found = format!("sample {index} is not finite");
        return Err(content(&file.path, found, "finite samples"));
    }
    Ok((samples, spec.sample_rate))
}
