//! Data sets in a file of arrays.

use std::path::Path;

use hankelite_archive::{Archive, ArchiveError, Dtype, RawTensor, TensorError, write_arrays};

use crate::error::content;
use crate::roles::Roles;
use crate::{DataError, Dataset, Steps, Targets};

const INPUTS: &str = "`inputs` of shape (B, L, d_in) or (B, L), floating point, or integer tokens \
                      (B, L), or integers (B, L, d_in)";

/// More classes or tokens than any data have: something is counted for each of them.
const SIZE_MAX: usize = 1 << 22;

/// A file with its path at hand for errors.
struct Arrays<'a> {
    path: &'a Path,
    archive: Archive,
}

pub(super) fn read(path: &Path) -> Result<Dataset, DataError> {
    read_archive(path, Archive::open_arrays(path)?)
}

pub(super) fn read_archive(path: &Path, archive: Archive) -> Result<Dataset, DataError> {
    let Roles { archive, note } = Roles::find(archive);
    let arrays = Arrays { path, archive };
    let mut data = arrays.inputs()?;
    if let Some(note) = note {
        data = data.with_note(note);
    }
    let (count, length) = (data.len(), data.length());
    let targets = arrays.targets(count, length)?;
    let data = data.with_targets(targets);
    Ok(match arrays.lengths(count, length)? {
        Some(lengths) => data.with_lengths(lengths),
        None => data,
    })
}

impl Arrays<'_> {
    fn inputs(&self) -> Result<Dataset, DataError> {
        let Some(shape) = self.archive.shape("inputs") else {
            return Err(content(self.path, self.shapes(), INPUTS));
        };
        if shape.contains(&0) {
            let expected = "at least one sequence of at least one step";
            return Err(self.wrong_shape("inputs", expected));
        }
        match *shape {
            [_, length] if self.whole("inputs")? => {
                let tokens = self.counts("inputs")?;
                let tokens: Vec<u32> = tokens.into_iter().map(|token| token as u32).collect();
                let most = tokens.iter().max().copied().unwrap_or(0);
                let vocabulary = self.size("vocabulary", most as usize)?;
                Ok(Dataset::from_tokens(tokens, vocabulary, length))
            }
            [_, length] => Ok(Dataset::from_values(self.numbers("inputs")?, 1, length)),
            [_, length, width] => Ok(Dataset::from_values(self.numbers("inputs")?, width, length)),
            _ => Err(self.wrong_shape("inputs", INPUTS)),
        }
    }

    fn targets(&self, count: usize, length: usize) -> Result<Targets, DataError> {
        match (self.shape("labels"), self.shape("targets")) {
            (Some(_), Some(_)) => {
                let found = "both `labels` and `targets`";
                Err(content(self.path, found, "one of them"))
            }
            (Some(shape), None) => self.labels(&shape, count, length),
            (None, Some(shape)) => self.values(&shape, count, length),
            (None, None) => Ok(Targets::None),
        }
    }

    fn labels(&self, shape: &[usize], count: usize, length: usize) -> Result<Targets, DataError> {
        let one_each = *shape == [count];
        if !one_each && *shape != [count, length] {
            let expected = format!("[{count}], one for each sequence, or [{count}, {length}]");
            return Err(self.wrong_shape("labels", &expected));
        }
        let labels = self.counts("labels")?;
        let classes = self.size("classes", labels.iter().max().copied().unwrap_or(0))?;
        if one_each {
            return Ok(Targets::Classes { labels, classes });
        }
        Ok(Targets::StepClasses {
            labels: labels.into_iter().map(|label| label as u32).collect(),
            classes,
            mask: self.mask(count, length)?,
        })
    }

    fn values(&self, shape: &[usize], count: usize, length: usize) -> Result<Targets, DataError> {
        match *shape {
            [found] if found == count => Ok(Targets::Values {
                values: self.numbers("targets")?,
                width: 1,
            }),
            [found, width] if found == count && width > 0 => Ok(Targets::Values {
                values: self.numbers("targets")?,
                width,
            }),
            [found, steps, width] if (found, steps) == (count, length) && width > 0 => {
                Ok(Targets::StepValues {
                    values: self.numbers("targets")?,
                    width,
                    mask: self.mask(count, length)?,
                })
            }
            _ => {
                let expected = format!("[{count}], [{count}, k] or [{count}, {length}, k]");
                Err(self.wrong_shape("targets", &expected))
            }
        }
    }

    fn mask(&self, count: usize, length: usize) -> Result<Option<Vec<bool>>, DataError> {
        let Some(shape) = self.shape("mask") else {
            return Ok(None);
        };
        if shape != [count, length] {
            return Err(self.wrong_shape("mask", &format!("[{count}, {length}]")));
        }
        let mask: Vec<bool> = self.counts("mask")?.iter().map(|&one| one > 0).collect();
        if !mask.contains(&true) {
            return Err(content(
                self.path,
                "a `mask` of zeros",
                "a step that counts",
            ));
        }
        Ok(Some(mask))
    }

    fn lengths(&self, count: usize, length: usize) -> Result<Option<Vec<usize>>, DataError> {
        let Some(shape) = self.shape("lengths") else {
            return Ok(None);
        };
        if shape != [count] {
            let expected = format!("[{count}], one for each sequence");
            return Err(self.wrong_shape("lengths", &expected));
        }
        let lengths = self.counts("lengths")?;
        if let Some(place) = lengths.iter().position(|n| *n == 0 || *n > length) {
            let found = format!("length {} of sequence {place}", lengths[place]);
            return Err(content(self.path, found, format!("1 to {length}")));
        }
        Ok(Some(lengths))
    }

    /// The number of classes or tokens: the largest index + 1, or what the file declares, which may
    /// be more.
    fn size(&self, name: &str, largest: usize) -> Result<usize, DataError> {
        if largest >= SIZE_MAX {
            let found = format!("{largest} as the largest index for `{name}`");
            return Err(content(self.path, found, format!("below {SIZE_MAX}")));
        }
        if self.shape(name).is_none() {
            return Ok(largest + 1);
        }
        match self.counts(name)?.as_slice() {
            &[size] if size > largest && size <= SIZE_MAX => Ok(size),
            found => {
                let name = self.called(name);
                let found = format!("{name} {found:?} with {largest} as the largest index");
                Err(content(self.path, found, "one number above it"))
            }
        }
    }

    /// The arrays that there are.
    fn shapes(&self) -> String {
        const SHOWN: usize = 5;
        let shown = self.archive.headers().take(SHOWN);
        let shown: Vec<String> = shown
            .map(|header| format!("`{}` of shape {:?}", header.name, header.shape))
            .collect();
        match shown.as_slice() {
            [] => "no array".to_string(),
            shown => shown.join(", "),
        }
    }

    /// What the file calls an array.
    fn called(&self, name: &str) -> String {
        format!("`{}`", self.archive.name_in_file(name))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.archive.shape(name).map(<[usize]>::to_vec)
    }

    /// Whether a tensor holds whole numbers.
    fn whole(&self, name: &str) -> Result<bool, DataError> {
        Ok(self.archive.tensor(name)?.to_i64().is_ok())
    }

    /// Whole numbers of at least 0, below 2³².
    fn counts(&self, name: &str) -> Result<Vec<usize>, DataError> {
        let raw = self.archive.tensor(name)?;
        let numbers = raw
            .to_i64()
            .map_err(|error| self.wrong_tensor(name, error))?;
        let converted = numbers
            .into_iter()
            .map(|number| match u32::try_from(number) {
                Ok(number) if number < u32::MAX => Ok(number as usize),
                _ => {
                    let found = format!("{} holds {number}", self.called(name));
                    Err(content(
                        self.path,
                        found,
                        "numbers of at least 0, below 2^32 - 1",
                    ))
                }
            });
        converted.collect()
    }

    /// Finite numbers of any type, rounded to f32.
    fn numbers(&self, name: &str) -> Result<Vec<f32>, DataError> {
        let raw = self.archive.tensor(name)?;
        let whole = raw.to_i64();
        let numbers: Vec<f32> = match whole {
            Ok(whole) => whole.into_iter().map(|x| x as f32).collect(),
            Err(_) => {
                let numbers = raw.to_f64();
                let numbers = numbers.map_err(|error| self.wrong_tensor(name, error))?;
                numbers.into_iter().map(|x| x as f32).collect()
            }
        };
        match numbers.iter().position(|x: &f32| !x.is_finite()) {
            None => Ok(numbers),
            Some(place) => {
                let name = self.called(name);
                let found = format!("{name} holds {} at index {place}", numbers[place]);
                Err(content(
                    self.path,
                    found,
                    "finite numbers of single precision",
                ))
            }
        }
    }

    fn wrong_tensor(&self, name: &str, error: TensorError) -> DataError {
        DataError::Tensor {
            path: self.path.to_path_buf(),
            source: error.of(self.archive.name_in_file(name)),
        }
    }

    fn wrong_shape(&self, name: &str, expected: &str) -> DataError {
        let shape = self.archive.shape(name).unwrap_or_default();
        let found = format!("{} of shape {shape:?}", self.called(name));
        content(self.path, found, expected)
    }
}

pub(super) fn write(data: &Dataset, path: &Path) -> Result<(), DataError> {
    let (count, length) = (data.len(), data.length());
    let batch = data.batch(&(0..count).collect::<Vec<_>>());
    let mut tensors = vec![match &batch.steps {
        Steps::Values(values) => {
            let shape = vec![count, length, data.width().unwrap_or(1)];
            ("inputs", floating(shape, values))
        }
        Steps::Tokens(tokens) => {
            let tokens = tokens
                .iter()
                .flat_map(|token| token.to_le_bytes())
                .collect();
            (
                "inputs",
                RawTensor::new(Dtype::I32, vec![count, length], tokens),
            )
        }
    }];
    if let Some(vocabulary) = data.vocabulary() {
        tensors.push(("vocabulary", whole(vec![1], [vocabulary])));
    }
    if let Some(classes) = data.classes() {
        tensors.push(("classes", whole(vec![1], [classes])));
    }
    if let Some(lengths) = data.lengths() {
        tensors.push(("lengths", whole(vec![count], lengths.iter().copied())));
    }
    tensors.extend(target_tensors(data));
    let tensors = tensors.into_iter().map(|(name, tensor)| match tensor {
        Ok(tensor) => Ok((name, tensor)),
        Err(error) => Err(error.of(name)),
    });
    let tensors: Vec<_> = tensors.collect::<Result<_, ArchiveError>>()?;
    Ok(write_arrays(path, tensors, "")?)
}

/// A tensor, where its numbers fill its shape.
type Built = Result<RawTensor, TensorError>;

fn target_tensors(data: &Dataset) -> Vec<(&'static str, Built)> {
    let (count, length) = (data.len(), data.length());
    let masked = |mask: &Option<Vec<bool>>| {
        let bytes = mask.as_ref()?.iter().map(|&one| u8::from(one)).collect();
        Some((
            "mask",
            RawTensor::new(Dtype::U8, vec![count, length], bytes),
        ))
    };
    match data.targets() {
        Targets::None => Vec::new(),
        Targets::Classes { labels, .. } => {
            vec![("labels", whole(vec![count], labels.iter().copied()))]
        }
        Targets::Values { values, width } => {
            vec![("targets", floating(vec![count, *width], values))]
        }
        Targets::StepClasses { labels, mask, .. } => {
            let labels = labels.iter().map(|&label| label as usize);
            let labels = whole(vec![count, length], labels);
            [("labels", labels)]
                .into_iter()
                .chain(masked(mask))
                .collect()
        }
        Targets::StepValues {
            values,
            width,
            mask,
        } => {
            let values = floating(vec![count, length, *width], values);
            [("targets", values)]
                .into_iter()
                .chain(masked(mask))
                .collect()
        }
    }
}

fn floating(shape: Vec<usize>, values: &[f32]) -> Built {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    RawTensor::new(Dtype::F32, shape, bytes.collect())
}

/// 64 bits, as PyTorch wants its labels.
fn whole(shape: Vec<usize>, numbers: impl IntoIterator<Item = usize>) -> Built {
    let bytes = numbers
        .into_iter()
        .flat_map(|number| (number as i64).to_le_bytes());
    RawTensor::new(Dtype::I64, shape, bytes.collect())
}
