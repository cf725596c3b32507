//! Reading and writing such files, whole and damaged.

use std::io::{Cursor, Write};

use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::*;
use crate::archive::Archive;
use crate::container::Container;
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
    archive.tensor("w").unwrap().into_bytes()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// A zip file with the end that PyTorch writes: that of zip64 stands before the usual one, which
/// has all numbers too.
fn with_end_of_pytorch(zip: &[u8]) -> Vec<u8> {
    let (records, end) = zip.split_at(zip.len() - 22);
    let wide = |at: usize, length: usize| {
        let mut number = [0; 8];
        number[..length].copy_from_slice(&end[at..at + length]);
        number
    };
    let (count, size, start) = (wide(10, 2), wide(12, 4), wide(16, 4));
    let mut bytes = records.to_vec();
    bytes.extend(b"PK\x06\x06");
    bytes.extend(44_u64.to_le_bytes());
    bytes.extend([[45, 0, 45, 0], [0; 4], [0; 4]].concat());
    bytes.extend([count, count, size, start].concat());
    bytes.extend(b"PK\x06\x07\0\0\0\0");
    bytes.extend((records.len() as u64).to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(end);
    bytes
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
    assert_eq!(archive.tensor("w").unwrap().bytes(), [7; 12]);
    assert_eq!(archive.metadata(), Some("{}"));
}

#[test]
fn a_file_of_pytorch_is_read_whatever_the_length_of_its_name() {
    let folder = TempDir::new().unwrap();
    let inner = with_end_of_pytorch(&small());
    let mut sample = Sample::new();
    sample.class = "ByteStorage";
    sample.shape = vec![inner.len()];
    let pickle = pickle_of(&sample);
    for length in 1..=120 {
        let prefix = "a".repeat(length);
        let zip = zip_of(&[
            (&format!("{prefix}/data.pkl"), &pickle),
            (&format!("{prefix}/byteorder"), b"little"),
            (&format!("{prefix}/data/0"), &inner),
        ]);
        for bytes in [with_end_of_pytorch(&zip), zip] {
            let archive = open(&folder, &bytes);
            let archive = archive.unwrap_or_else(|error| panic!("{length} letters: {error:?}"));
            assert_eq!(archive.tensor("w").unwrap().bytes(), inner);
        }
    }
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
    let export = zip_of(&[("x/models/model.json", b"{}"), ("x/archive_format", b"pt2")]);
    let error = open(&folder, &export).unwrap_err().to_string();
    assert!(error.contains("a program of torch.export"), "{error}");
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
    archive.write(&path, Container::Torch, "").unwrap();
    let error = archive.write(&path, Container::Safetensors, "");
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
