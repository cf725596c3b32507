//! Tests of archives in every container.

use tempfile::TempDir;

use super::*;
use crate::tensor::TensorError;

/// A safetensors file with an `f32` pair `a.w` and a 4-bit pair `b`.
const SAMPLE: &str = r#"{"a.w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F4","shape":[2],"data_offsets":[8,9]}}"#;
/// The same without `b`.
const PORTABLE: &str = r#"{"a.w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

fn sample(folder: &TempDir, header: &str, data: &[u8]) -> Archive {
    let path = folder.path().join("model.safetensors");
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(&path, [&length, header.as_bytes(), data].concat()).unwrap();
    Archive::open(&path).unwrap()
}

fn open_bytes(bytes: &[u8]) -> ArchiveError {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.pth");
    std::fs::write(&path, bytes).unwrap();
    Archive::open(&path).unwrap_err()
}

fn files_in(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn extensions_stand_for_containers() {
    let cases = [
        ("a.safetensors", Some(Container::Safetensors)),
        ("a.PTH", Some(Container::Torch)),
        ("a.pt", Some(Container::Torch)),
        ("a.ckpt", Some(Container::Torch)),
        ("a.bin", Some(Container::Torch)),
        ("a.onnx", None),
        ("pth", None),
    ];
    for (path, expected) in cases {
        assert_eq!(Container::of_path(Path::new(path)), expected, "{path}");
    }
}

#[test]
fn files_of_other_formats_are_distinguished() {
    assert!(matches!(open_bytes(b""), ArchiveError::Empty { .. }));
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    assert!(matches!(
        open_bytes(pointer),
        ArchiveError::GitLfsPointer { .. }
    ));
    let legacy = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
    assert!(matches!(
        open_bytes(legacy),
        ArchiveError::LegacyTorch { .. }
    ));
    let mut tar = vec![0; 512];
    tar[257..262].copy_from_slice(b"ustar");
    let plain = open_bytes(&tar).to_string();
    assert!(
        plain.contains("is a tar file") && plain.contains("`tar -xf "),
        "{plain}"
    );
    tar[..9].copy_from_slice(b"sys_info\0");
    assert!(matches!(open_bytes(&tar), ArchiveError::LegacyTorch { .. }));
    let error = open_bytes(b"\x89PNG\r\n\x1a\n\0\0\0");
    assert!(matches!(error, ArchiveError::UnknownFormat { .. }));
    let message = error.to_string();
    assert!(message.contains(r"\x89PNG\r\n\x1a\n\x00"), "{message}");
    assert!(matches!(
        open_bytes(b"\x80"),
        ArchiveError::UnknownFormat { .. }
    ));
}

#[test]
fn a_brace_at_the_ninth_byte_makes_no_safetensors_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("x.msgpack");
    // After the map, the key and the head of the extension comes its length of 123.
    let tensor = RawTensor::new(Dtype::U8, vec![112], vec![7; 112]).unwrap();
    let archive = Archive::in_memory("x", BTreeMap::from([("abcde".to_owned(), tensor)]));
    archive.write(&path, Container::Msgpack, "").unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[8], b'{');
    let again = Archive::open(&path).unwrap();
    assert_eq!(again.container(), Container::Msgpack);
    assert_eq!(again.tensor("abcde").unwrap().bytes(), [7; 112]);
}

#[test]
fn one_long_key_round_many_arrays_does_not_fill_the_memory() {
    let mut bytes = vec![0x81, 0xda, 3, 0xde];
    bytes.extend([b'k'; 990]);
    bytes.push(0xdf);
    bytes.extend(10_000u32.to_be_bytes());
    for index in 0..10_000 {
        bytes.extend(format!("\u{a5}{index:05}").chars().map(|c| c as u8));
        // An extension of type 1: shape, type and bytes of one number.
        bytes.extend(b"\xc7\x0c\x01\x93\x91\x01\xa5uint8\xc4\x01\x07");
    }
    let error = open_bytes(&bytes);
    let expected = matches!(&error, ArchiveError::Msgpack { source, .. }
        if matches!(**source, crate::MsgpackError::Names { .. }));
    assert!(expected, "{error}");
}

/// What opening a file or a folder of such a format says.
fn way_out(name: &str, fill: impl Fn(&Path)) -> String {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    fill(&path);
    let error = Archive::open(&path).unwrap_err();
    assert!(
        matches!(error, ArchiveError::ForeignFormat { .. }),
        "{error}"
    );
    error
        .to_string()
        .replace(folder.path().to_str().unwrap(), "")
}

#[test]
fn a_format_that_is_not_read_is_named_with_a_way_out() {
    let file = |bytes: &'static [u8]| move |path: &Path| std::fs::write(path, bytes).unwrap();
    let hdf5 = way_out("a.weights.h5", file(b"\x89HDF\r\n\x1a\n\0\0\0"));
    assert!(
        hdf5.contains("an HDF5 file") && hdf5.ends_with("/a.weights.npz`"),
        "{hdf5}"
    );
    let gguf = way_out("a.gguf", file(b"GGUF\x03\0\0\0"));
    assert!(
        gguf.contains("a GGUF file") && gguf.ends_with("/a.gguf /a.npz`"),
        "{gguf}"
    );
    let gzip = way_out("a.pth.gz", file(b"\x1f\x8b\x08\0"));
    assert!(gzip.ends_with("`gzip -dc /a.pth.gz > /a.pth`"), "{gzip}");
    let holding = |names: &'static [&'static str]| {
        move |path: &Path| {
            for name in names {
                std::fs::create_dir_all(path.join(name).parent().unwrap()).unwrap();
                std::fs::write(path.join(name), b"").unwrap();
            }
        }
    };
    let torch = way_out("dcp", holding(&[".metadata", "__0_0.distcp"]));
    assert!(torch.ends_with("dcp_to_torch /dcp /dcp.pth`"), "{torch}");
    let orbax = way_out(
        "steps",
        holding(&["_CHECKPOINT_METADATA", "default/manifest.ocdbt"]),
    );
    assert!(orbax.ends_with("/steps/default /steps.msgpack`"), "{orbax}");
}

#[test]
fn a_folder_and_a_missing_file_are_distinguished() {
    let folder = TempDir::new().unwrap();
    let error = Archive::open(folder.path()).unwrap_err();
    assert!(matches!(error, ArchiveError::Folder { .. }));
    let error = Archive::open(folder.path().join("no.pth")).unwrap_err();
    let missing = matches!(&error, ArchiveError::Read { source, .. }
        if source.kind() == io::ErrorKind::NotFound);
    assert!(missing, "{error}");
}

#[test]
fn an_unknown_tensor_is_an_error_to_read_and_to_replace() {
    let folder = TempDir::new().unwrap();
    let archive = sample(&folder, PORTABLE, &[1; 8]);
    let error = archive.tensor("a").unwrap_err();
    assert!(matches!(error, ArchiveError::NoSuchTensor { .. }));
    let changed = BTreeMap::from([("a".to_owned(), archive.tensor("a.w").unwrap())]);
    let error = archive.with(changed).unwrap_err();
    assert!(matches!(error, ArchiveError::NoSuchTensor { .. }));
}

#[test]
fn tensors_survive_every_way_between_the_containers() {
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let both = [Container::Safetensors, Container::Torch];
    for first in both {
        let one = folder.path().join("one");
        source.write(&one, first, "{\"r\":4}").unwrap();
        let one = Archive::open(&one).unwrap();
        assert_eq!(one.container(), first);
        for second in both {
            let two = folder.path().join("two");
            one.write(&two, second, "{}").unwrap();
            let two = Archive::open(&two).unwrap();
            assert_eq!(two.container(), second);
            assert_eq!(one.metadata(), Some("{\"r\":4}"));
            assert_eq!(two.metadata(), Some("{}"));
            assert!(two.names().eq(source.names()));
            let marked = two.source.texts().get("format") == Some(&"pt");
            assert_eq!(marked, [first, second].contains(&Container::Torch));
            assert_eq!(two.tensor("a.w").unwrap(), source.tensor("a.w").unwrap());
        }
    }
}

#[test]
fn every_element_type_of_pytorch_survives_in_a_torch_file() {
    use Dtype::*;
    let all = [
        BOOL,
        U8,
        I8,
        I16,
        U16,
        I32,
        U32,
        I64,
        U64,
        F16,
        BF16,
        F32,
        F64,
        C64,
        F8_E4M3,
        F8_E5M2,
        F8_E8M0,
        F8_E4M3FNUZ,
        F8_E5M2FNUZ,
    ];
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, &[1; 8]);
    let path = folder.path().join("out.pth");
    for dtype in all {
        for shape in [vec![], vec![2, 3], vec![0, 2]] {
            let count: usize = shape.iter().product();
            let bytes = (0..count * dtype.bitsize() / 8).map(|i| i as u8).collect();
            let tensor = RawTensor::new(dtype, shape, bytes).unwrap();
            let changed = BTreeMap::from([("a.w".to_owned(), tensor.clone())]);
            let changed = source.with(changed).unwrap();
            changed.write(&path, Container::Torch, "").unwrap();
            let read = Archive::open(&path).unwrap().tensor("a.w").unwrap();
            assert_eq!(read, tensor);
        }
    }
}

#[test]
fn equal_contents_give_equal_bytes() {
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, &[1; 8]);
    for container in [Container::Safetensors, Container::Torch] {
        let path = folder.path().join("out");
        source.write(&path, container, "{}").unwrap();
        let first = std::fs::read(&path).unwrap();
        source.write(&path, container, "{}").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), first);
    }
}

#[test]
fn records_are_aligned_as_pytorch_aligns_them() {
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, b"alignedx");
    let path = folder.path().join("out.pth");
    source.write(&path, Container::Torch, "").unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(8).position(|eight| eight == b"alignedx");
    assert_eq!(at.unwrap() % 64, 0);
}

#[test]
fn a_failed_attempt_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, SAMPLE, &[1; 9]);
    let path = folder.path().join("out.pth");
    let error = source.write(&path, Container::Torch, "");
    let lacking = matches!(&error, Err(ArchiveError::NoDtype { tensor, .. }) if tensor == "b");
    assert!(lacking);
    // The source is cut short after it was opened.
    let cut = std::fs::OpenOptions::new().write(true).open(source.path());
    let cut = cut.unwrap();
    cut.set_len(cut.metadata().unwrap().len() - 1).unwrap();
    let error = source.write(&path, Container::Safetensors, "");
    assert!(matches!(error, Err(ArchiveError::Read { .. })));
    assert_eq!(files_in(&folder), ["model.safetensors"]);
}

#[test]
fn a_file_that_changes_in_its_place_is_not_read_on() {
    let folder = TempDir::new().unwrap();
    for container in [
        Container::Safetensors,
        Container::Torch,
        Container::Npz,
        Container::Msgpack,
    ] {
        let path = folder.path().join("changing");
        let first = sample(&folder, PORTABLE, &[1; 8]);
        first.write(&path, container, "").unwrap();
        let open = Archive::open(&path).unwrap();
        let name = open.names().next().unwrap().to_owned();
        open.tensor(&name).unwrap();
        // One that takes its name is another file.
        first.write(&path, container, "").unwrap();
        open.tensor(&name).unwrap();
        let open = Archive::open(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        // Beyond a tick of the system's clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&path, bytes).unwrap();
        let error = open.tensor(&name).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(
            source.is_some_and(|source| source.contains("has changed")),
            "{error}"
        );
    }
}

#[test]
fn destinations_that_cannot_be_are_refused() {
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, &[1; 8]);
    let write = |path: &Path| {
        let written = source.write(path, Container::Safetensors, "");
        written.unwrap_err()
    };
    let error = write(&folder.path().join("no/out.pth"));
    assert!(matches!(&error, ArchiveError::MissingFolder { folder, .. } if folder.ends_with("no")));
    let error = write(folder.path());
    assert!(matches!(error, ArchiveError::Folder { .. }));
    let error = write(&folder.path().join("./model.safetensors"));
    assert!(matches!(error, ArchiveError::SameFile { .. }));
    assert_eq!(files_in(&folder), ["model.safetensors"]);
}

#[test]
fn changed_tensors_must_fill_their_shape() {
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, &[1; 8]);
    let tensor = source.tensor("a.w").unwrap();
    let error = tensor.reshaped(vec![3]).unwrap_err();
    assert!(matches!(error, TensorError::Bytes { found: 8, .. }));
}

#[test]
fn an_archive_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Archive>();
}

#[cfg(unix)]
#[test]
fn the_umask_decides_who_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, &[1; 8]);
    let path = folder.path().join("out.safetensors");
    source.write(&path, Container::Safetensors, "").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(source.path()));
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) {
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, permissions).unwrap();
}

#[test]
fn a_write_protected_file_is_not_replaced() {
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, &[1; 8]);
    let path = folder.path().join("keep me.safetensors");
    std::fs::write(&path, b"kept").unwrap();
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    let errors = [
        crate::check_destination(&path, &[source.path()]).unwrap_err(),
        source.write(&path, Container::Safetensors, "").unwrap_err(),
        crate::write_whole(&path, b"new").unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(error, ArchiveError::WriteProtected { .. }),
            "{error}"
        );
        let way = format!("`chmod u+w '{}'`", path.display());
        assert!(error.to_string().ends_with(&way), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}

#[cfg(unix)]
#[test]
fn a_file_that_is_replaced_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, &[1; 8]);
    let path = folder.path().join("out.safetensors");
    for mode in [0o600, 0o664, 0o640] {
        std::fs::write(&path, b"old").unwrap();
        set_mode(&path, mode);
        source.write(&path, Container::Safetensors, "").unwrap();
        let found = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{found:o}");
    }
}

#[test]
fn nothing_is_written_under_a_name_that_stands_for_something_else() {
    let folder = TempDir::new().unwrap();
    let source = sample(&folder, PORTABLE, &[1; 8]);
    let cases = [
        ("small.onnx", "ONNX"),
        ("small.TFLite", "TensorFlow Lite"),
        ("small.h", "source text"),
        ("small.h5", "HDF5"),
        ("small.gguf", "llama.cpp"),
        ("small.mlmodel", "Core ML"),
        ("small.pb", "TensorFlow"),
        ("small.keras", "Keras"),
        ("small.pt2", "torch.export"),
        ("small.edge", "an image for a device"),
        ("small.json", "settings or a record"),
        (
            "pytorch_model.bin.index.json",
            "the index of several .bin files",
        ),
    ];
    for (name, expected) in cases {
        let path = folder.path().join(name);
        let errors = [
            crate::check_output(&path, &[source.path()]).unwrap_err(),
            crate::ChangesOnDisk::beside(&path).unwrap_err(),
            source.write(&path, Container::Torch, "").unwrap_err(),
            source.write(&path, Container::Sharded, "").unwrap_err(),
            crate::write_arrays(&path, [("a", source.tensor("a.w").unwrap())], "").unwrap_err(),
        ];
        for error in errors {
            let found =
                matches!(error, ArchiveError::ForeignEnding { what, .. } if what == expected);
            assert!(found, "{name}: {error}");
        }
    }
    assert_eq!(files_in(&folder), ["model.safetensors"]);
    for name in [
        "small",
        "small.v2",
        "small.stats",
        "a.safetensors.index.json",
    ] {
        crate::check_output(folder.path().join(name), &[source.path()]).unwrap();
    }
}

#[test]
fn renamed_tensors_are_read_changed_and_tied_by_their_new_names_and_written_under_their_own() {
    let pair = |value: f64| RawTensor::from_f64(Dtype::F32, vec![2], &[value; 2]).unwrap();
    let names = ["a._orig_mod.w", "a._orig_mod.x", "b"];
    let tensors = names.iter().zip(1..);
    let tensors = tensors.map(|(name, value)| (name.to_string(), pair(f64::from(value))));
    let archive = Archive::in_memory("m", tensors.collect());
    let short = |name: &str| Some(name.replace("_orig_mod.", ""));
    let renamed = archive.renamed(short).unwrap();
    assert_eq!(renamed.names().collect::<Vec<_>>(), ["a.w", "a.x", "b"]);
    assert_eq!(renamed.headers().next().unwrap().name, "a.w");
    assert_eq!(renamed.tensor("a.x").unwrap(), pair(2.0));
    assert_eq!(renamed.rows("a.x", 1..2).unwrap().shape(), [1]);
    assert_eq!(renamed.shape("a.w"), Some(&[2][..]));
    assert!(!renamed.contains("a._orig_mod.w"));

    let ties = BTreeMap::from([("a.x".to_string(), "a.w".to_string())]);
    let changes = BTreeMap::from([("a.w".to_string(), pair(9.0))]);
    let changed = renamed.tied(ties).unwrap().with(changes).unwrap();
    assert_eq!(changed.tied_to("a.x"), Some("a.w"));
    assert!(changed.repeats("a.x"));
    assert_eq!(changed.elements(), 4);
    assert_eq!(changed.tensor("a.x").unwrap(), pair(9.0));

    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.safetensors");
    changed.write(&path, Container::Safetensors, "").unwrap();
    let written = Archive::open(&path).unwrap();
    assert_eq!(written.names().collect::<Vec<_>>(), names);
    assert_eq!(written.tensor(names[1]).unwrap(), pair(9.0));
    let again = written.called_as_in(&changed);
    assert_eq!(again.tensor("a.w").unwrap(), pair(9.0));
    let own = changed.called_as_in_file();
    assert_eq!(own.tensor(names[0]).unwrap(), pair(9.0));

    let one = |_: &str| Some("c".to_string());
    assert!(archive.renamed(one).is_none());
}

#[test]
fn bytes_in_memory_are_read_and_written_as_files_are() {
    let folder = TempDir::new().unwrap();
    let archive = sample(&folder, PORTABLE, &[0, 0, 128, 63, 0, 0, 0, 64]);
    let containers = [
        ("a.safetensors", Container::Safetensors),
        ("a.pth", Container::Torch),
        ("a.npz", Container::Npz),
        ("a.msgpack", Container::Msgpack),
    ];
    for (name, container) in containers {
        let path = folder.path().join(name);
        archive.write(&path, container, "{}").unwrap();
        let on_disk = std::fs::read(&path).unwrap();
        let bytes = archive.to_bytes(&path, container, "{}").unwrap();
        assert_eq!(bytes, on_disk, "{name}");

        let again = Archive::from_bytes(name, bytes).unwrap();
        let read = again.tensor("a.w").unwrap();
        assert_eq!(
            read.bytes(),
            archive.tensor("a.w").unwrap().bytes(),
            "{name}"
        );
        assert_eq!(again.to_bytes(&path, container, "{}").unwrap(), on_disk);
        let cut = on_disk[..on_disk.len() - 1].to_vec();
        let fault = Archive::from_bytes(name, cut).and_then(|cut| cut.tensor("a.w"));
        assert!(fault.is_err(), "{name} without its last byte");
    }
}

#[test]
fn bytes_that_are_no_checkpoint_are_refused_by_their_name() {
    let index = br#"{"weight_map":{"a.w":"a.safetensors"}}"#;
    for bytes in [&b""[..], b"text", index] {
        let fault = Archive::from_bytes("model.safetensors.index.json", bytes.to_vec());
        let text = fault.unwrap_err().to_string();
        assert!(text.contains("model.safetensors.index.json"), "{text}");
    }
}

#[test]
fn files_with_an_index_are_read_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = |value: f64| RawTensor::from_f64(Dtype::F32, vec![2], &[value, 1.0]).unwrap();
    for (name, key, value) in [("a", "a.w", 3.0), ("b", "b.w", 5.0)] {
        let one = Archive::in_memory("a new file", [(key.to_string(), tensor(value))].into());
        let path = folder.path().join(format!("{name}.safetensors"));
        one.write(&path, Container::Safetensors, "{}").unwrap();
    }
    let index = br#"{"weight_map":{"a.w":"a.safetensors","b.w":"b.safetensors"}}"#;
    let name = "model.safetensors.index.json";
    let read = |file: &str| {
        let bytes = std::fs::read(folder.path().join(file)).unwrap();
        (file.to_string(), Box::new(bytes) as Box<dyn ReadAt>)
    };
    let files = || BTreeMap::from([read("a.safetensors"), read("b.safetensors")]);
    std::fs::write(folder.path().join(name), index).unwrap();
    let on_disk = Archive::open(folder.path().join(name)).unwrap();
    let whole = Archive::from_files(name, Box::new(index.to_vec()), files()).unwrap();
    let written = |archive: &Archive| {
        let path = folder.path().join("whole.safetensors");
        let bytes = archive.to_bytes(path, Container::Safetensors, "{}");
        bytes.unwrap()
    };
    assert_eq!(written(&whole), written(&on_disk));

    let mut lacking = files();
    lacking.remove("b.safetensors");
    let fault = Archive::from_files(name, Box::new(index.to_vec()), lacking).unwrap_err();
    let fault = std::error::Error::source(&fault).unwrap().to_string();
    assert_eq!(fault, "the file `b.safetensors` of the index is missing");
}

#[test]
fn a_part_is_seen_alone_and_written_with_all_others() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("both.safetensors");
    let numbers = |value: f64| RawTensor::from_f64(Dtype::F32, vec![2], &[value; 2]).unwrap();
    let tensors = [("ema.w", 1.0), ("model.v", 2.0), ("model.w", 1.0)];
    let tensors = tensors.map(|(name, value)| (name.to_owned(), numbers(value)));
    let both = Archive::in_memory("both", tensors.into());
    let both = both.tied([("model.w".to_owned(), "ema.w".to_owned())].into());
    let part = both.unwrap().below("model.");
    assert!(part.names().eq(["model.v", "model.w"]));
    assert!(
        part.tensor("ema.w").is_ok(),
        "the others stay where they are"
    );
    assert_eq!(part.tied_to("model.w"), None);
    let changed = part.with(BTreeMap::from([("model.w".to_owned(), numbers(3.0))]));
    let changed = changed.unwrap();
    changed.write(&path, Container::Safetensors, "").unwrap();
    let written = Archive::open(&path).unwrap();
    assert!(written.names().eq(["ema.w", "model.v", "model.w"]));
    let first = |name: &str| written.tensor(name).unwrap().to_f64().unwrap()[0];
    assert_eq!(
        [first("ema.w"), first("model.v"), first("model.w")],
        [1.0, 2.0, 3.0]
    );
    assert!(changed.called_as_in_file().names().eq(written.names()));
}
