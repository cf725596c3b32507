//! Reading and writing such files, whole and damaged.

use std::collections::HashMap;

use tempfile::TempDir;

use super::*;
use crate::archive::Archive;
use crate::container::Container;
use crate::tensor::Dtype;

/// A file of the given header and data.
fn bytes_of(header: &str, data: &[u8]) -> Vec<u8> {
    let length = header.len() as u64;
    [&length.to_le_bytes(), header.as_bytes(), data].concat()
}

fn open(folder: &TempDir, bytes: &[u8]) -> Result<Archive, ArchiveError> {
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    Archive::open(&path)
}

fn small() -> Vec<u8> {
    let header = r#"{"__metadata__":{"hankelite":"{}","b":"c"},"y":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]}}"#;
    bytes_of(header, &[7; 16])
}

#[test]
fn tensors_and_texts_are_read() {
    let folder = TempDir::new().unwrap();
    let archive = open(&folder, &small()).unwrap();
    assert_eq!(archive.container(), Container::Safetensors);
    assert_eq!(archive.names().collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!(archive.shape("x"), Some([2, 1].as_slice()));
    assert_eq!(archive.dtype("y"), Some(Dtype::I64));
    assert_eq!(archive.tensor("y").unwrap().bytes(), [7; 8]);
    assert_eq!(archive.metadata(), Some("{}"));
    assert_eq!((archive.wrapper(), archive.notes().len()), (None, 0));
}

#[test]
fn contradictions_in_the_header_are_refused() {
    let entry = |shape: &str, offsets: &str| {
        format!(r#"{{"x":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let overlap = r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#;
    let cases = [
        entry("[2]", "[0,4]"),
        entry("[1]", "[4,8]"),
        entry("[1]", "[4,0]"),
        entry("[18446744073709551615,2]", "[0,8]"),
        entry("[-1]", "[0,8]"),
        overlap.to_owned(),
        "{".to_owned(),
        "{\"x\":1}".to_owned(),
    ];
    let folder = TempDir::new().unwrap();
    for header in cases {
        let error = open(&folder, &bytes_of(&header, &[0; 8])).unwrap_err();
        let expected = matches!(error, ArchiveError::SafetensorsHeader { .. });
        assert!(expected, "{header}: {error}");
    }
}

#[test]
fn data_of_another_length_than_announced_are_refused() {
    let folder = TempDir::new().unwrap();
    let mut bytes = small();
    bytes.push(0);
    let error = open(&folder, &bytes).unwrap_err();
    let expected = matches!(
        error,
        ArchiveError::SafetensorsData {
            found: 17,
            expected: 16,
            ..
        }
    );
    assert!(expected, "{error}");
}

#[test]
fn a_header_longer_than_the_file_is_refused_before_it_is_read() {
    let folder = TempDir::new().unwrap();
    let mut bytes = small();
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let error = open(&folder, &bytes).unwrap_err();
    assert!(matches!(
        error,
        ArchiveError::SafetensorsHeaderLength { .. }
    ));
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
                | ArchiveError::SafetensorsHeaderLength { .. }
                | ArchiveError::SafetensorsData { .. }
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
                    archive.tensor(name).unwrap();
                }
            }
        }
    }
}

#[test]
fn the_crate_writes_the_same_bytes() {
    let folder = TempDir::new().unwrap();
    let archive = open(&folder, &small()).unwrap();
    let path = folder.path().join("out.safetensors");
    let plain = folder.path().join("plain.safetensors");
    // One text only: the crate's order of several is not reproducible.
    archive.write(&plain, Container::Torch, "").unwrap();
    let archive = Archive::open(&plain).unwrap();
    archive.write(&path, Container::Safetensors, "").unwrap();
    let names = ["x", "y"];
    let tensors = names.map(|name| archive.tensor(name).unwrap());
    let views = tensors.iter().map(|tensor| {
        let shape = tensor.shape().to_vec();
        safetensors::tensor::TensorView::new(tensor.dtype(), shape, tensor.bytes()).unwrap()
    });
    let views: Vec<_> = views.collect();
    let texts = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let expected = safetensors::serialize(names.iter().zip(&views), Some(texts)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), expected);
}

#[test]
fn other_texts_are_kept_and_sorted() {
    let folder = TempDir::new().unwrap();
    let archive = open(&folder, &small()).unwrap();
    let path = folder.path().join("out.safetensors");
    let container = Container::Safetensors;
    archive.write(&path, container, "new").unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let start = br#"{"__metadata__":{"b":"c","hankelite":"new"},"y":"#;
    assert_eq!(&bytes[8..8 + start.len()], start);
    archive.write(&path, container, "").unwrap();
    assert_eq!(Archive::open(&path).unwrap().metadata(), None);
}
