//! Checkpoints written by `torch.save`: a zip file with one pickle, which says
//! what there is, and one record of raw bytes per storage.
//!
//! The pickle is read by a machine that runs nothing. What it yields is cut
//! into a [`Document`]: the tensors of the model under flat names, and beside
//! them the plain data (epoch, accuracy, …) that goes along when the file is
//! written again.

mod settings;
mod state_dict;
pub(super) mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use settings::Setting;

use crate::archive_error::ArchiveError;
use crate::pickle::Plain;
use crate::strides::{gather, row_major};
use crate::tensor::{Dtype, RawTensor};
use crate::torch_file::state_dict::StateDict;
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
pub(super) struct Document {
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
pub(super) struct TorchFile {
    path: PathBuf,
    zip: Mutex<Zip>,
    state_dict: StateDict,
    metadata: Option<String>,
}

impl TorchFile {
    /// Reads the pickle and checks every tensor of the model against its record.
    pub(super) fn open(path: &Path, mut zip: Zip) -> Result<TorchFile, ArchiveError> {
        let records = list_records(path, &mut zip)?;
        let (prefix, pickle) = find_pickle(path, &records)?;
        check_byte_order(path, &mut zip, records.get(&format!("{prefix}byteorder")))?;
        if pickle.length > PICKLE_LIMIT {
            return Err(ArchiveError::PickleLength {
                path: path.to_owned(),
                found: pickle.length,
                limit: PICKLE_LIMIT,
            });
        }
        let bytes = read_record(path, &mut zip, pickle)?;
        let state_dict = StateDict::read(path, &bytes, &records, prefix)?;
        let metadata = match records.get(&format!("{prefix}{METADATA_RECORD}")) {
            Some(record) => Some(read_text(path, &mut zip, record)?),
            None => None,
        };
        Ok(TorchFile {
            path: path.to_owned(),
            zip: Mutex::new(zip),
            state_dict,
            metadata,
        })
    }

    /// Every tensor's header.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&str, Dtype, &[usize])> {
        let tensors = self.state_dict.tensors.iter();
        tensors.map(|(name, stored)| (name.as_str(), stored.dtype, stored.shape.as_slice()))
    }

    /// Keys from the top object to the state dict, joined by dots.
    pub(super) fn wrapper(&self) -> Option<&str> {
        self.state_dict.wrapper.as_deref()
    }

    /// What will be left out when the file is written.
    pub(super) fn notes(&self) -> &[String] {
        &self.state_dict.notes
    }

    /// The settings of the training run.
    pub(super) fn settings(&self) -> &BTreeMap<String, Setting> {
        &self.state_dict.settings
    }

    /// Our own record.
    pub(super) fn metadata(&self) -> Option<&str> {
        self.metadata.as_deref()
    }

    /// What the file holds besides the bytes of tensors.
    pub(super) fn document(&self) -> &Document {
        &self.state_dict.document
    }

    /// Reads one tensor; `None` when there is none of that name.
    pub(super) fn tensor(&self, name: &str) -> Option<Result<RawTensor, ArchiveError>> {
        let stored = self.state_dict.tensors.get(name)?;
        let tensor = self.stored_bytes(stored).map(|bytes| RawTensor {
            dtype: stored.dtype,
            shape: stored.shape.clone(),
            bytes: stored.unfold(bytes),
        });
        Some(tensor)
    }

    /// The bytes from a tensor's first to its last element.
    fn stored_bytes(&self, stored: &StoredTensor) -> Result<Vec<u8>, ArchiveError> {
        let size = stored.dtype.bitsize() / 8;
        let (start, length) = (stored.first * size, stored.span * size);
        let mut zip = self.zip.lock().unwrap_or_else(PoisonError::into_inner);
        if start == 0 && length as u64 == stored.record.length {
            // Only a record read as a whole can be checked against its checksum.
            return read_record(&self.path, &mut zip, &stored.record);
        }
        let mut bytes = vec![0; length];
        let read = read_range(&mut zip, stored.record.index, start as u64, &mut bytes);
        read.map_err(|source| record_error(&self.path, &stored.record, source))?;
        Ok(bytes)
    }
}

impl StoredTensor {
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
mod tests {
    use std::io::{Cursor, Write};

    use tempfile::TempDir;
    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::*;
    use crate::archive::{Archive, Container};
    use crate::pickle::writer::PickleWriter;
    use crate::torch_file::state_dict::tests::Sample;

    /// A zip file of the given records.
    fn zip_of(records: &[(&str, &[u8])]) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        for (name, bytes) in records {
            zip.start_file(*name, options).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    /// The pickle of a flat state dict with one tensor, `w`.
    fn pickle_of(sample: &Sample) -> Vec<u8> {
        let mut pickle = PickleWriter::new();
        pickle.empty_dict(true);
        pickle.text("w");
        sample.write(&mut pickle);
        pickle.instruction(b's');
        pickle.finish()
    }

    fn open(folder: &TempDir, bytes: &[u8]) -> Result<Archive, ArchiveError> {
        let path = folder.path().join("model.pth");
        std::fs::write(&path, bytes).unwrap();
        Archive::open(&path)
    }

    /// The bytes of tensor `w` that a sample makes of the record.
    fn bytes_of(sample: &Sample, record: &[u8]) -> Vec<u8> {
        let folder = TempDir::new().unwrap();
        let pickle = pickle_of(sample);
        let zip = zip_of(&[("x/data.pkl", &pickle), ("x/data/0", record)]);
        let archive = open(&folder, &zip).unwrap();
        assert_eq!(archive.container(), Container::Torch);
        archive.tensor("w").unwrap().bytes
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    fn small() -> Vec<u8> {
        zip_of(&[
            ("x/data.pkl", &pickle_of(&Sample::new())),
            ("x/byteorder", b"little"),
            ("x/data/0", &[7; 12]),
            ("x/hankelite.json", b"{}"),
        ])
    }

    #[test]
    fn a_small_file_is_read() {
        let folder = TempDir::new().unwrap();
        let archive = open(&folder, &small()).unwrap();
        assert_eq!(archive.names().collect::<Vec<_>>(), ["w"]);
        assert_eq!(archive.dtype("w"), Some(Dtype::F32));
        assert_eq!(archive.tensor("w").unwrap().bytes, [7; 12]);
        assert_eq!(archive.metadata(), Some("{}"));
    }

    #[test]
    fn views_of_any_stride_become_row_major() {
        let record = floats(&[0., 1., 2., 3., 4., 5.]);
        type View = (usize, Vec<usize>, Vec<usize>, &'static [f32]);
        let cases: [View; 7] = [
            (0, vec![2, 3], vec![3, 1], &[0., 1., 2., 3., 4., 5.]),
            (0, vec![3, 2], vec![1, 3], &[0., 3., 1., 4., 2., 5.]),
            (1, vec![2, 2], vec![3, 1], &[1., 2., 4., 5.]),
            (1, vec![2, 2], vec![0, 2], &[1., 3., 1., 3.]),
            (5, vec![], vec![], &[5.]),
            (0, vec![2, 0], vec![1, 1], &[]),
            (4, vec![1, 2], vec![usize::MAX >> 1, 1], &[4., 5.]),
        ];
        for (offset, shape, strides, expected) in cases {
            let sample = Sample {
                offset,
                shape,
                strides,
                ..Sample::new()
            };
            assert_eq!(bytes_of(&sample, &record), floats(expected));
        }
    }

    #[test]
    fn conjugate_and_negative_views_are_carried_out() {
        let record = floats(&[1., 2., 3., -4.]);
        let complex = |flag| Sample {
            class: "ComplexFloatStorage",
            shape: vec![2],
            flag: Some(flag),
            ..Sample::new()
        };
        let conjugate = floats(&[1., -2., 3., 4.]);
        assert_eq!(bytes_of(&complex("conj"), &record), conjugate);
        let negative = floats(&[-1., -2., -3., 4.]);
        assert_eq!(bytes_of(&complex("neg"), &record), negative);
        let real = Sample {
            flag: Some("neg"),
            ..Sample::new()
        };
        assert_eq!(bytes_of(&real, &record), floats(&[-1., -2., -3.]));
    }

    #[test]
    fn zip_files_of_other_kinds_are_named() {
        let folder = TempDir::new().unwrap();
        let error = open(&folder, &zip_of(&[("a.txt", b"")])).unwrap_err();
        let expected = "a zip file whose first record is `a.txt`";
        assert!(matches!(&error, ArchiveError::UnknownFormat { found, .. } if found == expected));
        let error = open(&folder, &zip_of(&[])).unwrap_err();
        assert!(matches!(error, ArchiveError::UnknownFormat { .. }));
        let script = zip_of(&[("x/data.pkl", b""), ("x/constants.pkl", b"")]);
        let error = open(&folder, &script).unwrap_err();
        assert!(matches!(error, ArchiveError::TorchScript { .. }));
        let two = zip_of(&[("x/data.pkl", b""), ("y/data.pkl", b"")]);
        let error = open(&folder, &two).unwrap_err();
        assert!(matches!(
            error,
            ArchiveError::SeveralPickles { found: 2, .. }
        ));
    }

    #[test]
    fn numbers_in_big_endian_order_are_refused() {
        let folder = TempDir::new().unwrap();
        let zip = zip_of(&[("x/data.pkl", b""), ("x/byteorder", b"big")]);
        let error = open(&folder, &zip).unwrap_err();
        assert!(matches!(error, ArchiveError::ByteOrder { found, .. } if found == "big"));
    }

    #[test]
    fn a_compressed_record_is_refused() {
        let folder = TempDir::new().unwrap();
        let mut zip = zip_of(&[("x/data.pkl", b"N.")]);
        // The method stands at byte 8 of the record's own header and at byte 10
        // of its entry in the directory.
        let directory = zip
            .windows(4)
            .position(|four| four == b"PK\x01\x02")
            .unwrap();
        zip[8] = 8;
        zip[directory + 10] = 8;
        let error = open(&folder, &zip).unwrap_err();
        assert!(
            matches!(error, ArchiveError::CompressedRecord { .. }),
            "{error}"
        );
    }

    #[test]
    fn a_record_longer_than_the_file_is_refused_before_it_is_read() {
        let folder = TempDir::new().unwrap();
        let zip = zip_of(&[("x/data.pkl", b"N.")]);
        let directory = zip.windows(4).position(|four| four == b"PK\x01\x02");
        let lengths = directory.unwrap() + 20;
        let with_length = |length: u32| {
            let mut zip = zip.clone();
            zip[lengths..lengths + 4].copy_from_slice(&length.to_le_bytes());
            zip[lengths + 4..lengths + 8].copy_from_slice(&length.to_le_bytes());
            open(&folder, &zip).unwrap_err()
        };
        let error = with_length(1 << 20);
        assert!(
            matches!(error, ArchiveError::RecordLength { .. }),
            "{error}"
        );
        let error = with_length(1 << 30);
        assert!(
            matches!(error, ArchiveError::PickleLength { .. }),
            "{error}"
        );
    }

    #[test]
    fn two_records_of_one_name_are_refused() {
        let folder = TempDir::new().unwrap();
        let mut zip = zip_of(&[("x/data.pkl", b"N."), ("x/data.pkm", b"N.")]);
        while let Some(at) = zip.windows(3).position(|three| three == b"pkm") {
            zip[at + 2] = b'l';
        }
        let error = open(&folder, &zip).unwrap_err();
        assert!(
            matches!(error, ArchiveError::DuplicateRecord { .. }),
            "{error}"
        );
    }

    #[test]
    fn a_damaged_tensor_fails_its_checksum() {
        let folder = TempDir::new().unwrap();
        let mut zip = small();
        let data = zip.windows(12).position(|bytes| bytes == [7; 12]).unwrap();
        zip[data] = 8;
        let archive = open(&folder, &zip).unwrap();
        let error = archive.tensor("w").unwrap_err();
        assert!(matches!(error, ArchiveError::Record { .. }), "{error}");
    }

    #[test]
    fn a_name_that_safetensors_reserves_stays_in_torch_files() {
        let folder = TempDir::new().unwrap();
        let mut pickle = PickleWriter::new();
        pickle.empty_dict(true);
        pickle.text("__metadata__");
        Sample::new().write(&mut pickle);
        pickle.instruction(b's');
        let zip = zip_of(&[("x/data.pkl", &pickle.finish()), ("x/data/0", &[0; 12])]);
        let archive = open(&folder, &zip).unwrap();
        let path = folder.path().join("out");
        let none = BTreeMap::new();
        archive.write(&path, Container::Torch, &none, "").unwrap();
        let error = archive.write(&path, Container::Safetensors, &none, "");
        assert!(matches!(error, Err(ArchiveError::ReservedName { .. })));
    }

    #[test]
    fn a_malformed_pickle_is_refused() {
        let folder = TempDir::new().unwrap();
        let error = open(&folder, &zip_of(&[("x/data.pkl", b"N")])).unwrap_err();
        assert!(matches!(error, ArchiveError::Pickle { .. }), "{error}");
    }

    #[test]
    fn a_file_cut_short_anywhere_is_refused() {
        let folder = TempDir::new().unwrap();
        let bytes = small();
        for length in 0..bytes.len() {
            let error = open(&folder, &bytes[..length]).unwrap_err();
            let expected = matches!(
                error,
                ArchiveError::Empty { .. }
                    | ArchiveError::UnknownFormat { .. }
                    | ArchiveError::Zip { .. }
            );
            assert!(expected, "{length}: {error}");
        }
    }

    #[test]
    fn no_damaged_byte_can_upset_the_reader() {
        let folder = TempDir::new().unwrap();
        let bytes = small();
        for at in 0..bytes.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                if let Ok(archive) = open(&folder, &damaged) {
                    for name in archive.names() {
                        let _either_way = archive.tensor(name);
                    }
                }
            }
        }
    }
}
