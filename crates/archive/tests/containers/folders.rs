//! Whole folders of models.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use hankelite_archive::{
    Archive, ArchiveError, Container, Dtype, RawTensor, check_destination, is_temporary,
};
use tempfile::TempDir;

use crate::{all, fixture, open};

/// Everything in a folder, by its path from there.
fn held(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true => {
                let inner = held(&path).into_iter();
                all.extend(inner.map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
            }
            false => {
                all.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    all
}

/// A checkpoint with a configuration, a vocabulary in a folder of its own, and what is not copied.
fn model(container: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    match container {
        "sharded" => {
            for (name, bytes) in held(&fixture("sharded")) {
                fs::write(at(&name), bytes).unwrap();
            }
        }
        name => {
            let container = Container::of_path(name).unwrap();
            let source = open(&fixture("sharded"));
            source.write(at(name), container, "").unwrap();
        }
    }
    fs::write(at("config.json"), "{\"state_size\": 4}\n").unwrap();
    fs::create_dir_all(at("words/more")).unwrap();
    fs::write(at("words/more/vocab.txt"), "a\nb\n").unwrap();
    fs::create_dir(at(".git")).unwrap();
    fs::write(at(".git/HEAD"), "x").unwrap();
    fs::write(at("tf_model.h5"), "other weights").unwrap();
    folder
}

/// One tensor of half the size.
fn changed(archive: &Archive) -> Archive {
    let header = archive.headers().find(|h| h.dtype == Dtype::F32).unwrap();
    let (name, count) = (
        header.name.to_owned(),
        header.shape.iter().product::<usize>() / 2,
    );
    let tensor = RawTensor::from_f64(Dtype::F32, vec![count], &vec![1.5; count]).unwrap();
    archive.with(BTreeMap::from([(name, tensor)])).unwrap()
}

#[test]
fn a_folder_is_written_with_all_that_belongs_to_it() {
    for container in ["sharded", "model.safetensors", "pytorch_model.bin"] {
        let (source, outer) = (model(container), tempfile::tempdir().unwrap());
        let archive = open(source.path());
        let beside = archive.beside().unwrap().unwrap();
        let names = |paths: &[std::path::PathBuf]| {
            let names = paths.iter().map(|path| path.display().to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(
            names(&beside.copied),
            ["config.json", "words/more/vocab.txt"]
        );
        assert_eq!(names(&beside.left_out), [".git", "tf_model.h5"]);
        let texts = BTreeMap::from([
            ("config.json".to_owned(), "{\"state_size\": 2}\n".to_owned()),
            ("README.md".to_owned(), "# A model\n".to_owned()),
        ]);
        // A folder that is made, and one that is there, twice.
        let there = outer.path().join("there");
        fs::create_dir(&there).unwrap();
        fs::write(there.join("mine.txt"), "mine").unwrap();
        for place in [outer.path().join("new"), there.clone(), there] {
            let ok = |_: &Path| Ok::<(), ArchiveError>(());
            check_destination(&place, &[source.path()]).unwrap();
            changed(&archive)
                .write_folder(&place, "", &texts, ok)
                .unwrap();
            let mut found = held(&place);
            assert!(found.remove("mine.txt").is_some() == place.ends_with("there"));
            let mut expected = held(source.path());
            expected.retain(|name, _| !name.starts_with(".git") && name != "tf_model.h5");
            expected.insert("README.md".to_owned(), Vec::new());
            let names: Vec<_> = found.keys().collect();
            assert_eq!(names, expected.keys().collect::<Vec<_>>(), "{container}");
            assert_eq!(found["config.json"], b"{\"state_size\": 2}\n");
            assert_eq!(found["words/more/vocab.txt"], b"a\nb\n");
            assert_eq!(all(&open(&place)), all(&changed(&archive)));
        }
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_not_there() {
    let (source, outer) = (model("model.safetensors"), tempfile::tempdir().unwrap());
    let archive = open(source.path());
    let place = outer.path().join("new");
    let refuse = |path: &Path| {
        Err(ArchiveError::SameFile {
            path: path.to_owned(),
        })
    };
    let error = archive.write_folder(&place, "", &BTreeMap::new(), refuse);
    assert!(matches!(error, Err(ArchiveError::SameFile { .. })));
    assert!(held(outer.path()).is_empty());
    // A checkpoint of another name would stand beside the new one, and might be taken for it.
    fs::create_dir(&place).unwrap();
    fs::write(place.join("pytorch_model.bin"), "x").unwrap();
    let ok = |_: &Path| Ok::<(), ArchiveError>(());
    let error = archive
        .write_folder(&place, "", &BTreeMap::new(), ok)
        .unwrap_err();
    assert!(
        matches!(error, ArchiveError::OtherCheckpoint { .. }),
        "{error}"
    );
    let error = check_destination(&place, &[source.path()]).unwrap_err();
    assert!(
        matches!(error, ArchiveError::OtherCheckpoint { .. }),
        "{error}"
    );
    assert_eq!(held(&place).len(), 1);
    let error = archive.write_folder(source.path(), "", &BTreeMap::new(), ok);
    assert!(matches!(error, Err(ArchiveError::SameFile { .. })));
}

#[test]
fn a_copy_within_its_source_does_not_hold_itself() {
    let source = model("model.safetensors");
    let place = source.path().join("small");
    let ok = |_: &Path| Ok::<(), ArchiveError>(());
    for _ in 0..2 {
        let archive = open(source.path());
        archive
            .write_folder(&place, "", &BTreeMap::new(), ok)
            .unwrap();
        assert!(!place.join("small").exists());
    }
    let mut names = fs::read_dir(&place).unwrap();
    assert!(names.all(|entry| !is_temporary(entry.unwrap().file_name())));
}

#[test]
fn files_of_pytorch_keep_their_names_and_get_an_index() {
    let (source, outer) = (crate::shards::torch_shards(), tempfile::tempdir().unwrap());
    let archive = open(source.path());
    let place = outer.path().join("new");
    let ok = |_: &Path| Ok::<(), ArchiveError>(());
    let changed = changed(&archive);
    changed
        .write_folder(&place, "made so", &BTreeMap::new(), ok)
        .unwrap();
    let names = |folder: &Path| held(folder).into_keys().collect::<Vec<_>>();
    assert_eq!(names(&place), names(source.path()));
    let written = open(&place);
    assert_eq!(all(&written), all(&changed));
    assert_eq!(written.metadata(), Some("made so"));
}

#[test]
fn several_checkpoints_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.safetensors", "a.safetensors"] {
        let place = folder.path().join(name);
        open(&fixture("sharded"))
            .write(place, Container::Safetensors, "")
            .unwrap();
    }
    let error = Archive::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("(a.safetensors, b.safetensors)"), "{error}");
    assert!(
        error.contains(&format!("`{}/a.safetensors`", folder.path().display())),
        "{error}"
    );
}
