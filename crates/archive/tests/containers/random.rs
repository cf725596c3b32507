//! Random tensors through every container.

use std::collections::BTreeMap;
use std::path::Path;

use hankelite_archive::{Container, Dtype, RawTensor, write_arrays};
use proptest::prelude::*;

use crate::{all, open};

/// What every container holds.
const TYPES: [Dtype; 13] = [
    Dtype::BOOL,
    Dtype::U8,
    Dtype::I8,
    Dtype::U16,
    Dtype::I16,
    Dtype::U32,
    Dtype::I32,
    Dtype::U64,
    Dtype::I64,
    Dtype::F16,
    Dtype::F32,
    Dtype::F64,
    Dtype::C64,
];

const FILES: [(&str, Container); 5] = [
    ("x.safetensors", Container::Safetensors),
    ("x.index.json", Container::Sharded),
    ("x.pth", Container::Torch),
    ("x.npz", Container::Npz),
    ("x.msgpack", Container::Msgpack),
];

fn tensor() -> impl Strategy<Value = RawTensor> {
    let shape = prop::collection::vec(0..7usize, 0..4);
    (prop::sample::select(&TYPES[..]), shape, any::<u8>()).prop_map(|(dtype, shape, first)| {
        let count: usize = shape.iter().product();
        let bytes = (0..count * dtype.bitsize() / 8).map(|at| first.wrapping_add(at as u8));
        // A truth value is 0 or 1.
        let bytes = bytes.map(|byte| if dtype == Dtype::BOOL { byte & 1 } else { byte });
        RawTensor::new(dtype, shape, bytes.collect()).unwrap()
    })
}

fn tensors() -> impl Strategy<Value = BTreeMap<String, RawTensor>> {
    prop::collection::btree_map("[a-zA-Z0-9_./ é]{1,12}", tensor(), 1..8)
}

fn source(folder: &Path, tensors: &BTreeMap<String, RawTensor>) -> hankelite_archive::Archive {
    let path = folder.join("source.safetensors");
    write_arrays(&path, tensors.clone(), "").unwrap();
    open(&path)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_goes_into_a_container_comes_out(expected in tensors()) {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path(), &expected);
        for (name, container) in FILES {
            let path = folder.path().join(name);
            source.write(&path, container, "").unwrap();
            let first = open(&path);
            prop_assert_eq!(first.container(), container);
            prop_assert_eq!(&all(&first), &expected);
            // A second time over, in a folder of its own, under the same name.
            let inner = folder.path().join("inner");
            std::fs::create_dir_all(&inner).unwrap();
            let again = inner.join(name);
            first.write(&again, container, "").unwrap();
            prop_assert_eq!(&all(&open(&again)), &expected);
            prop_assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap());
        }
    }

    #[test]
    fn a_changed_tensor_changes_no_other(
        before in tensors(),
        which in any::<prop::sample::Index>(),
        new in tensor(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path(), &before);
        let name = which.get(&before.keys().collect::<Vec<_>>()).to_string();
        let mut expected = before.clone();
        expected.insert(name.clone(), new.clone());
        let changed = BTreeMap::from([(name, new)]);
        for (file, container) in FILES {
            let path = folder.path().join(file);
            source.write(&path, container, "").unwrap();
            let inner = folder.path().join("inner");
            std::fs::create_dir_all(&inner).unwrap();
            let again = inner.join(file);
            let changed = open(&path).with(changed.clone()).unwrap();
            changed.write(&again, container, "").unwrap();
            prop_assert_eq!(&all(&open(&again)), &expected);
        }
    }
}
