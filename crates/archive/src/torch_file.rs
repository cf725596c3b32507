//! Checkpoints written by `torch.save`: a zip file with one pickle, which
//! lists what there is, and one record of raw bytes per storage.
//!
//! The pickle is read by a machine that runs nothing. What it yields is cut
//! into a [`Document`]: the tensors of the model under flat names, and beside
//! them the plain data (epoch, accuracy, …) that goes along when the file is
//! written again.

mod settings;
mod sharing;
mod state_dict;
pub(crate) mod writer;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use settings::Setting;
pub use writer::tensor_file;

use crate::contents::{Read, TensorFile, Ties};
use crate::error::ArchiveError;
use crate::foreign::ForeignFormat;
use crate::pickle::Plain;
use crate::strides::{gather, row_major};
use crate::tensor::{Dtype, Header, RawTensor};
use crate::torch_file::sharing::Stretch;
use crate::torch_file::state_dict::{Root, StateDict};
use crate::weight_set::WeightSet;
use crate::zip_records::{
    Record, Zip, list_records, read_range, read_record, read_text, record_error,
};

/// Our own record, which `torch.load` does not look at.
const METADATA_RECORD: &str = "hankelite.json";
/// Largest pickle that is read, about half a million tensors.
const PICKLE_LIMIT: u64 = 1 << 26;

/// Storage classes of PyTorch, the element type of each, and its other name.
const STORAGES: [(&str, &str, Dtype); 11] = [
    ("DoubleStorage", "float64", Dtype::F64),
    ("FloatStorage", "float32", Dtype::F32),
    ("HalfStorage", "float16", Dtype::F16),
    ("BFloat16Storage", "bfloat16", Dtype::BF16),
    ("LongStorage", "int64", Dtype::I64),
    ("IntStorage", "int32", Dtype::I32),
    ("ShortStorage", "int16", Dtype::I16),
    ("CharStorage", "int8", Dtype::I8),
    ("ByteStorage", "uint8", Dtype::U8),
    ("BoolStorage", "bool", Dtype::BOOL),
    ("ComplexFloatStorage", "complex64", Dtype::C64),
];

/// Element types without a storage class of their own: PyTorch writes them as
/// untyped bytes and the name of the type.
const UNTYPED: [(&str, Dtype); 8] = [
    ("uint16", Dtype::U16),
    ("uint32", Dtype::U32),
    ("uint64", Dtype::U64),
    ("float8_e4m3fn", Dtype::F8_E4M3),
    ("float8_e5m2", Dtype::F8_E5M2),
    ("float8_e4m3fnuz", Dtype::F8_E4M3FNUZ),
    ("float8_e5m2fnuz", Dtype::F8_E5M2FNUZ),
    ("float8_e8m0fnu", Dtype::F8_E8M0),
];

/// What the top object of a checkpoint holds, in its own order.
#[derive(Debug, Default)]
struct Document {
    ordered: bool,
    items: Vec<(Plain, Item)>,
    /// Attributes of the dictionary, such as the `_metadata` of a state dict.
    attributes: Option<Plain>,
}

#[derive(Debug)]
enum Item {
    /// A tensor of the model, by its flat name.
    Tensor(String),
    Plain(Plain),
    Document(Document),
}

impl Document {
    /// A state dict without anything around it.
    fn flat<'a>(names: impl Iterator<Item = &'a str>) -> Document {
        let items = names.map(|name| (Plain::Text(name.into()), Item::Tensor(name.into())));
        Document {
            ordered: true,
            items: items.collect(),
            attributes: None,
        }
    }
}

/// Where a tensor's elements lie.
#[derive(Debug)]
struct StoredTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Distance along each axis, in elements.
    strides: Vec<usize>,
    record: Record,
    /// First element, counted from the start of the record.
    first: usize,
    /// Elements from the first to the last one used.
    span: usize,
    conjugate: bool,
    negative: bool,
}

/// An open file of `torch.save`.
#[derive(Debug)]
pub(crate) struct TorchFile {
    path: PathBuf,
    zip: Arc<Mutex<Zip>>,
    state_dict: StateDict,
    /// Tensors whose elements are those of one before them.
    repeated: BTreeSet<String>,
    metadata: Option<String>,
}

impl TorchFile {
    /// Reads the pickle and checks every tensor of the model against its record.
    pub(crate) fn open(path: &Path, zip: Zip) -> Result<TorchFile, ArchiveError> {
        Self::opened(path, zip, (Root::StateDict, None))
    }

    /// The same with one entry of the top object as the model.
    pub(crate) fn open_set(path: &Path, zip: Zip, set: &str) -> Result<TorchFile, ArchiveError> {
        Self::opened(path, zip, (Root::StateDict, Some(set)))
    }

    /// The same file with one entry of the top object as the model.
    pub(crate) fn of_set(&self, set: &str) -> Result<TorchFile, ArchiveError> {
        Self::of_zip(
            &self.path,
            Arc::clone(&self.zip),
            (Root::StateDict, Some(set)),
        )
    }

    /// The same for a file of arrays: one, or a tuple or list of them, goes too, named by its place.
    pub(crate) fn open_arrays(path: &Path, zip: Zip) -> Result<TorchFile, ArchiveError> {
        Self::opened(path, zip, (Root::Arrays, None))
    }

    fn opened(
        path: &Path,
        zip: Zip,
        wanted: (Root, Option<&str>),
    ) -> Result<TorchFile, ArchiveError> {
        Self::of_zip(path, Arc::new(Mutex::new(zip)), wanted)
    }

    fn of_zip(
        path: &Path,
        shared: Arc<Mutex<Zip>>,
        wanted: (Root, Option<&str>),
    ) -> Result<TorchFile, ArchiveError> {
        let mut locked = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let zip = &mut *locked;
        let records = list_records(path, zip)?;
        let (prefix, pickle) = find_pickle(path, &records)?;
        check_byte_order(path, zip, records.get(&format!("{prefix}byteorder")))?;
        if pickle.length > PICKLE_LIMIT {
            return Err(ArchiveError::PickleLength {
                path: path.to_owned(),
                found: pickle.length,
                limit: PICKLE_LIMIT,
            });
        }
        let bytes = read_record(path, zip, pickle)?;
        let state_dict = StateDict::read(path, &bytes, (&records, prefix), wanted)?;
        let metadata = match records.get(&format!("{prefix}{METADATA_RECORD}")) {
            Some(record) => Some(read_text(path, zip, record)?),
            None => None,
        };
        drop(locked);
        Ok(TorchFile {
            path: path.to_owned(),
            zip: shared,
            repeated: sharing::repeats(&state_dict.tensors),
            state_dict,
            metadata,
        })
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a tensor of that name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.state_dict.tensors.contains_key(name)
    }

    /// Keys from the top object to the state dict, joined by dots.
    pub(crate) fn wrapper(&self) -> Option<&str> {
        self.state_dict.wrapper.as_deref()
    }

    /// The sets of weights of the top object, where there are several.
    pub(crate) fn sets(&self) -> &[WeightSet] {
        &self.state_dict.sets
    }

    /// The settings of the training run.
    pub(crate) fn settings(&self) -> &BTreeMap<String, Setting> {
        &self.state_dict.settings
    }

    /// So many elements of a record from one on.
    fn stored_bytes(
        &self,
        record: &Record,
        dtype: Dtype,
        first: usize,
        span: usize,
    ) -> Result<Vec<u8>, ArchiveError> {
        let size = dtype.bitsize() / 8;
        let (start, length) = (first * size, span * size);
        let mut zip = self.zip.lock().unwrap_or_else(PoisonError::into_inner);
        if start == 0 && length as u64 == record.length {
            // Only a record read as a whole can be checked against its checksum.
            return read_record(&self.path, &mut zip, record);
        }
        let mut bytes = vec![0; length];
        let read = read_range(&mut zip, record.index, start as u64, &mut bytes);
        read.map_err(|source| record_error(&self.path, record, source))?;
        Ok(bytes)
    }

    /// The bytes of a stretch.
    fn stretch_bytes(&self, stretch: &Stretch) -> Result<Vec<u8>, ArchiveError> {
        let Stretch {
            record,
            dtype,
            first,
            span,
        } = stretch;
        self.stored_bytes(record, *dtype, *first, *span)
    }
}

impl TensorFile for TorchFile {
    fn headers(&self) -> Box<dyn Iterator<Item = Header<'_>> + '_> {
        let tensors = self.state_dict.tensors.iter();
        Box::new(tensors.map(|(name, stored)| Header {
            name,
            dtype: stored.dtype,
            shape: &stored.shape,
        }))
    }

    fn tensor(&self, name: &str) -> Option<Read<'_>> {
        let stored = self.state_dict.tensors.get(name)?;
        let StoredTensor {
            record,
            dtype,
            first,
            span,
            ..
        } = stored;
        let bytes = self.stored_bytes(record, *dtype, *first, *span);
        Some(bytes.and_then(|bytes| {
            let bytes = stored.unfold(bytes);
            let tensor = RawTensor::new(stored.dtype, stored.shape.clone(), bytes);
            tensor.map(Cow::Owned).map_err(|error| error.of(name))
        }))
    }

    fn metadata(&self) -> Option<&str> {
        self.metadata.as_deref()
    }

    fn notes(&self) -> &[String] {
        &self.state_dict.notes
    }

    fn ties(&self) -> Ties {
        sharing::ties(&self.state_dict.tensors)
    }

    fn repeats(&self, name: &str) -> bool {
        self.repeated.contains(name)
    }
}

impl StoredTensor {
    /// Bytes that the description takes.
    fn held(&self) -> usize {
        size_of::<StoredTensor>() + 2 * size_of_val(self.shape.as_slice()) + self.record.name.len()
    }

    /// Brings the elements into row-major order and applies what PyTorch left
    /// to be done when the tensor is used.
    fn unfold(&self, stored: Vec<u8>) -> Vec<u8> {
        let size = self.dtype.bitsize() / 8;
        let mut bytes = if self.is_row_major() {
            stored
        } else {
            gather(&stored, size, &self.shape, &self.strides)
        };
        if self.conjugate {
            // The sign bit of each imaginary part, the latter half of an element.
            bytes
                .chunks_exact_mut(size)
                .for_each(|z| z[size - 1] ^= 0x80);
        }
        if self.negative {
            let part = if self.dtype == Dtype::C64 { 4 } else { size };
            bytes
                .chunks_exact_mut(part)
                .for_each(|x| x[part - 1] ^= 0x80);
        }
        bytes
    }

    fn is_row_major(&self) -> bool {
        if self.span == 0 {
            return true;
        }
        let expected = row_major(&self.shape);
        let axes = self.shape.iter().zip(&self.strides).zip(expected);
        // An axis of extent one is never stepped along.
        axes.fold(true, |all, ((extent, stride), expected)| {
            all && (*extent == 1 || *stride == expected)
        })
    }
}

/// The one pickle, and what stands before `data.pkl` in its name.
fn find_pickle<'a>(
    path: &Path,
    records: &'a BTreeMap<String, Record>,
) -> Result<(&'a str, &'a Record), ArchiveError> {
    let names = records.keys();
    let script = |name: &&String| name.ends_with("/constants.pkl") || name.contains("/code/");
    if names.clone().any(|name| script(&name)) {
        return Err(ArchiveError::TorchScript {
            path: path.to_owned(),
        });
    }
    if names.clone().any(|name| name.ends_with("/archive_format")) {
        let path = path.to_owned();
        let format = ForeignFormat::TorchExport;
        return Err(ArchiveError::ForeignFormat { path, format });
    }
    let pickles = names.filter_map(|name| {
        let prefix = name.strip_suffix("data.pkl")?;
        (prefix.is_empty() || prefix.ends_with('/')).then_some(prefix)
    });
    let pickles: Vec<&str> = pickles.collect();
    match pickles[..] {
        [prefix] => Ok((prefix, &records[&format!("{prefix}data.pkl")])),
        [] => Err(ArchiveError::UnknownFormat {
            path: path.to_owned(),
            found: match records.values().min_by_key(|record| record.index) {
                Some(first) => format!("a zip file whose first record is `{}`", first.name),
                None => "an empty zip file".to_owned(),
            },
        }),
        _ => Err(ArchiveError::SeveralPickles {
            path: path.to_owned(),
            found: pickles.len(),
        }),
    }
}

fn check_byte_order(
    path: &Path,
    zip: &mut Zip,
    record: Option<&Record>,
) -> Result<(), ArchiveError> {
    let Some(record) = record else {
        // Older files lack the record; only little-endian machines wrote them.
        return Ok(());
    };
    let found = read_text(path, zip, record)?;
    if found == "little" {
        return Ok(());
    }
    Err(ArchiveError::ByteOrder {
        path: path.to_owned(),
        found: found.chars().take(16).collect(),
    })
}

#[cfg(test)]
mod tests;
