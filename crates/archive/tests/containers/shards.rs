//! Sharded safetensors files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use hankelite_archive::{
    Archive, ArchiveError, Container, RawTensor, check_destination, write_arrays,
};
use tempfile::TempDir;

use crate::{all, chain, common, fixture, open};

const INDEX: &str = "model.safetensors.index.json";

/// The fixture, to be spoilt.
fn copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture("sharded")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn all_shards_are_one_archive() {
    let expected = all(&open(&common::here("data/s4d_classifier.safetensors")));
    for path in [fixture("sharded"), fixture("sharded").join(INDEX)] {
        let archive = open(&path);
        assert_eq!(archive.container(), Container::Sharded);
        assert_eq!(archive.path(), fixture("sharded").join(INDEX));
        assert_eq!(all(&archive), expected);
    }
}

#[test]
fn an_unchanged_sharded_checkpoint_is_written_as_it_was() {
    let outer = tempfile::tempdir().unwrap();
    let archive = open(&fixture("sharded"));
    let place = outer.path().join("new");
    let container = Container::Sharded;
    // A folder that is made, one that is there, and an index in it.
    for path in [place.clone(), place.clone(), place.join(INDEX)] {
        // What a program left that was killed before the folder was there; elsewhere it stays.
        #[cfg(unix)]
        fs::create_dir(outer.path().join(".hankelite-killed.part")).unwrap();
        archive.write(&path, container, "").unwrap();
        assert_eq!(files(&place), files(&fixture("sharded")));
        for name in files(&place) {
            let (ours, theirs) = (place.join(&name), fixture("sharded").join(&name));
            let (ours, theirs) = (open_or_text(&ours), open_or_text(&theirs));
            assert_eq!(ours, theirs, "{name}");
        }
        assert_eq!(files(outer.path()), ["new"]);
    }
}

/// The text of an index, or the tensors of a file.
fn open_or_text(path: &Path) -> String {
    match path.extension().is_some_and(|ending| ending == "json") {
        true => fs::read_to_string(path).unwrap(),
        false => format!("{:?}", all(&open(path))),
    }
}

#[test]
fn a_changed_tensor_stays_in_its_shard_and_sizes_follow() {
    let outer = tempfile::tempdir().unwrap();
    let archive = open(&fixture("sharded"));
    let name = "s4_layers.1.kernel.C";
    let old = archive.tensor(name).unwrap();
    let tensor = RawTensor::from_f64(old.dtype(), vec![4, 1, 2], &[0.5; 8]).unwrap();
    let changed = BTreeMap::from([(name.to_owned(), tensor.clone())]);
    let place = outer.path().join("new").join("other.index.json");
    fs::create_dir(outer.path().join("new")).unwrap();
    let changed = archive.with(changed).unwrap();
    changed
        .write(&place, Container::Sharded, "{\"our\":\"text\"}")
        .unwrap();
    let again = open(&place);
    assert_eq!(again.tensor(name).unwrap(), tensor);
    assert_eq!(again.metadata(), Some("{\"our\":\"text\"}"));
    let index = common::json(&place);
    let shard = &index["weight_map"][name];
    assert_eq!(*shard, common::json(archive.path())["weight_map"][name]);
    let size: usize = all(&again)
        .values()
        .map(|tensor| tensor.bytes().len())
        .sum();
    assert_eq!(index["metadata"]["total_size"], size);
    assert!(open(&outer.path().join("new").join(shard.as_str().unwrap())).contains(name));
}

#[test]
fn a_sharded_checkpoint_becomes_one_file_and_one_file_a_sharded_checkpoint() {
    let outer = tempfile::tempdir().unwrap();
    let archive = open(&fixture("sharded"));
    let single = outer.path().join("one.safetensors");
    archive.write(&single, Container::Safetensors, "").unwrap();
    let single = open(&single);
    assert_eq!(all(&single), all(&archive));
    let index = outer.path().join("many.index.json");
    single.write(&index, Container::Sharded, "").unwrap();
    assert_eq!(all(&open(&index)), all(&archive));
    assert!(
        outer
            .path()
            .join("model-00001-of-00001.safetensors")
            .exists()
    );
}

const FIRST: &str = "model-00001-of-00003.safetensors";
const SECOND: &str = "model-00002-of-00003.safetensors";

#[test]
fn each_fault_of_an_index_has_its_message() {
    let beside = "expected the name of a file beside the index";
    let twice = "two entries for tensor `decoder.weight`";
    let cases = [
        (FIRST, "../model.safetensors", beside),
        (FIRST, "/etc/passwd", beside),
        (FIRST, SECOND, "where it is not"),
        (
            FIRST,
            "no.safetensors",
            "`no.safetensors` of the index is missing",
        ),
        (FIRST, INDEX, "is neither a safetensors file nor"),
        ("\"decoder.bias\"", "\"decoder.other\"", "where it is not"),
        ("\"decoder.bias\"", "\"decoder.weight\"", twice),
        ("weight_map", "weights", "weight_map"),
    ];
    for (from, to, expected) in cases {
        let folder = copy();
        let index = folder.path().join(INDEX);
        let text = fs::read_to_string(&index).unwrap();
        assert!(text.contains(from));
        fs::write(&index, text.replace(from, to)).unwrap();
        let found = chain(&Archive::open(folder.path()).unwrap_err());
        assert!(found.contains(expected), "{to}: {found}");
    }
}

#[test]
fn each_fault_of_the_shards_has_its_message() {
    type Spoil = fn(&Path);
    let spoils: [(Spoil, &str); 3] = [
        (remove_second, "is missing"),
        (
            add_second_to_first,
            "which the index has in the file `model-00002-of-00003.safetensors`",
        ),
        (empty_index, "names no tensor"),
    ];
    for (spoil, expected) in spoils {
        let folder = copy();
        spoil(folder.path());
        let found = chain(&Archive::open(folder.path()).unwrap_err());
        assert!(found.contains(expected), "{found}");
    }
}

fn remove_second(folder: &Path) {
    fs::remove_file(folder.join(SECOND)).unwrap();
}

fn add_second_to_first(folder: &Path) {
    let mut tensors = all(&open(&folder.join(FIRST)));
    tensors.extend(all(&open(&folder.join(SECOND))));
    write_arrays(folder.join(FIRST), tensors, "").unwrap();
}

fn empty_index(folder: &Path) {
    fs::write(folder.join(INDEX), "{\"weight_map\": {}}").unwrap();
}

#[test]
fn a_failed_write_leaves_nothing_and_no_input_is_overwritten() {
    let folder = copy();
    let archive = open(folder.path());
    let before = files(folder.path());
    let container = Container::Sharded;
    for path in [
        folder.path().to_owned(),
        folder.path().join("again.index.json"),
    ] {
        let error = archive.write(&path, container, "").unwrap_err();
        assert!(matches!(error, ArchiveError::SameFile { .. }), "{error}");
    }
    // A file that can no longer be read ends the work when others are already written.
    let last = folder.path().join("model-00003-of-00003.safetensors");
    fs::File::options()
        .write(true)
        .open(&last)
        .unwrap()
        .set_len(100)
        .unwrap();
    let outer = tempfile::tempdir().unwrap();
    for path in [outer.path().join("new"), outer.path().to_owned()] {
        let error = archive.write(&path, container, "").unwrap_err();
        assert!(matches!(error, ArchiveError::Read { .. }), "{error}");
        assert!(files(outer.path()).is_empty());
    }
    assert_eq!(files(folder.path()), before);
    let error = archive.write(outer.path().join("no/x.index.json"), container, "");
    assert!(matches!(error, Err(ArchiveError::MissingFolder { .. })));
    let file = outer.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = archive.write(&file, container, "").unwrap_err();
    assert!(matches!(error, ArchiveError::NotAFolder { .. }), "{error}");
}

#[test]
fn places_are_checked_before_the_work() {
    let (source, outer) = (copy(), tempfile::tempdir().unwrap());
    let (inside, outside) = (source.path(), outer.path());
    for input in [inside.to_owned(), inside.join(INDEX)] {
        let check = |path: &Path| check_destination(path, &[&input]);
        check(&outside.join("new")).unwrap();
        check(outside).unwrap();
        check(&outside.join("x.index.json")).unwrap();
        check(&outside.join("x.safetensors")).unwrap();
        assert!(matches!(check(inside), Err(ArchiveError::SameFile { .. })));
        let same = check(&inside.join(INDEX));
        assert!(matches!(same, Err(ArchiveError::SameFile { .. })));
        let missing = check(&outside.join("no/new"));
        assert!(matches!(missing, Err(ArchiveError::MissingFolder { .. })));
    }
    let single = check_destination(outside, &[Path::new("x.pth")]);
    assert!(matches!(single, Err(ArchiveError::Folder { .. })));
}

#[test]
fn a_folder_without_one_index_is_no_checkpoint() {
    let folder = copy();
    fs::rename(
        folder.path().join(INDEX),
        folder.path().join("a.index.json"),
    )
    .unwrap();
    open(folder.path());
    fs::copy(
        folder.path().join("a.index.json"),
        folder.path().join("b.index.json"),
    )
    .unwrap();
    let error = Archive::open(folder.path()).unwrap_err();
    assert!(matches!(error, ArchiveError::Folder { .. }), "{error}");
}

#[test]
fn no_file_of_a_sharded_checkpoint_is_replaced_that_is_write_protected() {
    let archive = open(&fixture("sharded"));
    for protected in files(&fixture("sharded")) {
        let place = copy();
        let path = place.path().join(&protected);
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).unwrap();
        let error = archive
            .write(place.path(), Container::Sharded, "")
            .unwrap_err();
        let named =
            matches!(&error, ArchiveError::WriteProtected { path: found } if *found == path);
        assert!(named, "{error}");
        assert_eq!(all(&open(place.path())), all(&archive));
        if protected == INDEX {
            let inputs: [&Path; 0] = [];
            check_destination(&path, &inputs).unwrap_err();
        }
    }
}

#[cfg(unix)]
#[test]
fn the_files_of_a_sharded_checkpoint_keep_their_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let (archive, place) = (open(&fixture("sharded")), copy());
    let paths = files(place.path()).into_iter();
    let paths: Vec<_> = paths.map(|name| place.path().join(name)).collect();
    for path in &paths {
        fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap();
    }
    archive.write(place.path(), Container::Sharded, "").unwrap();
    for path in &paths {
        let found = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, 0o640, "{}", path.display());
    }
}

/// The fixture in files of PyTorch.
pub(crate) fn torch_shards() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let name = |shard: &str| {
        let shard = shard.replace("model-", "pytorch_model-");
        shard.replace(".safetensors", ".bin")
    };
    for shard in files(&fixture("sharded")) {
        if shard != INDEX {
            let place = folder.path().join(name(&shard));
            let archive = open(&fixture("sharded").join(&shard));
            archive.write(place, Container::Torch, "").unwrap();
        }
    }
    let index = fs::read_to_string(fixture("sharded").join(INDEX)).unwrap();
    let place = folder.path().join("pytorch_model.bin.index.json");
    fs::write(place, name(&index)).unwrap();
    folder
}

#[test]
fn several_files_of_pytorch_are_read_by_their_index_and_written_as_one() {
    let (folder, outer) = (torch_shards(), tempfile::tempdir().unwrap());
    let index = folder.path().join("pytorch_model.bin.index.json");
    let expected = all(&open(&fixture("sharded")));
    for path in [folder.path(), &index] {
        let archive = open(path);
        assert_eq!(all(&archive), expected);
        assert_eq!(archive.path(), index);
        assert_eq!(archive.container(), Container::Torch);
        let [note] = archive.notes() else {
            panic!("{:?}", archive.notes());
        };
        assert!(note.contains("are written as one file"), "{note}");
        let endings = [
            ("one.pth", Container::Torch, Container::Torch),
            ("one", Container::Torch, Container::Torch),
            (
                "one.safetensors",
                Container::Safetensors,
                Container::Safetensors,
            ),
            ("many", Container::Sharded, Container::Sharded),
        ];
        for (name, container, found) in endings {
            let out = outer.path().join(name);
            if container != Container::Sharded {
                check_destination(&out, &[path]).unwrap();
            }
            archive.write(&out, container, "{}").unwrap();
            let written = open(&out);
            assert_eq!(written.container(), found, "{name}");
            assert_eq!(written.metadata(), Some("{}"), "{name}");
            assert_eq!(all(&written), expected, "{name}");
        }
    }
    assert!(outer.path().join("many").join(INDEX).is_file());
    let error = open(&index)
        .write(&index, Container::Torch, "")
        .unwrap_err();
    assert!(
        matches!(error, ArchiveError::ForeignEnding { .. }),
        "{error}"
    );
}

#[test]
fn what_pytorch_files_of_an_index_hold_beside_tensors_is_noted() {
    let folder = torch_shards();
    let beside = common::here("data/lightning_like.ckpt");
    let index = "{\"weight_map\": {\"NAME\": \"a.bin\"}}";
    fs::copy(&beside, folder.path().join("a.bin")).unwrap();
    let names = open(&beside);
    let map: Vec<_> = names
        .names()
        .map(|name| format!("\"{name}\": \"a.bin\""))
        .collect();
    let text = index.replace("\"NAME\": \"a.bin\"", &map.join(", "));
    let place = folder.path().join("pytorch_model.bin.index.json");
    fs::write(&place, text).unwrap();
    assert!(!names.notes().is_empty());
    assert_eq!(open(&place).notes()[1..], *names.notes());
}

#[test]
fn a_folder_stands_for_the_one_checkpoint_in_it() {
    let source = common::here("data/s4d_classifier.safetensors");
    let expected = all(&open(&source));
    for name in [
        "model.safetensors",
        "other.safetensors",
        "pytorch_model.bin",
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), "{}").unwrap();
        let container = Container::of_path(name).unwrap();
        let place = folder.path().join(name);
        open(&source).write(&place, container, "").unwrap();
        let archive = open(folder.path());
        assert_eq!(archive.path(), place);
        assert_eq!(archive.container(), container);
        assert_eq!(all(&archive), expected, "{name}");
        // A file without a known ending is one file again, and the source is not written over.
        check_destination(folder.path().join("new"), &[folder.path()]).unwrap();
        let same = check_destination(&place, &[folder.path()]).unwrap_err();
        assert!(matches!(same, ArchiveError::SameFile { .. }), "{same}");
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.safetensors", "b.safetensors"] {
        fs::copy(&source, folder.path().join(name)).unwrap();
    }
    let error = Archive::open(folder.path()).unwrap_err();
    assert!(matches!(error, ArchiveError::Folder { .. }), "{error}");
}
