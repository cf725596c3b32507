//! Files that NumPy, flax and PyTorch wrote (`tests/reference/make_containers.py`).

use std::fs;

use hankelite_archive::{Archive, Container, Dtype, Setting};

use crate::{all, chain, fixture, open};

#[test]
fn arrays_of_numpy_are_those_of_safetensors() {
    let expected = all(&open(&fixture("arrays.safetensors")));
    assert_eq!(expected.len(), 16);
    for name in ["arrays.npz", "fortran.npz"] {
        let archive = open(&fixture(name));
        assert_eq!(archive.container(), Container::Npz);
        assert_eq!(all(&archive), expected, "{name}");
        assert!(archive.notes().is_empty());
    }
}

#[test]
fn an_unchanged_npz_file_has_the_records_that_numpy_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.npz");
    let archive = open(&fixture("arrays.npz"));
    archive.write(&out, Container::Npz, "{\"a\":1}").unwrap();
    assert_eq!(open(&out).metadata(), Some("{\"a\":1}"));
    let (ours, theirs) = (
        fs::read(&out).unwrap(),
        fs::read(fixture("arrays.npz")).unwrap(),
    );
    for (name, tensor) in all(&archive) {
        // Header and elements stand together in both files.
        let at = |bytes: &[u8]| {
            let record = format!("{name}.npy");
            let name_at = find(bytes, record.as_bytes());
            let start = name_at + find(&bytes[name_at..], b"\x93NUMPY");
            let header = usize::from(u16::from_le_bytes([bytes[start + 8], bytes[start + 9]]));
            bytes[start..][..10 + header + tensor.bytes().len()].to_vec()
        };
        assert_eq!(at(&ours), at(&theirs), "{name}");
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> usize {
    let mut windows = bytes.windows(wanted.len());
    windows.position(|window| window == wanted).unwrap()
}

#[test]
fn what_cannot_be_read_of_an_npz_file_is_named() {
    let cases = [
        ("compressed.npz", "savez_compressed"),
        ("objects.npz", "`|O`"),
        ("big_endian.npz", "`>f4`, expected little endian"),
    ];
    for (name, expected) in cases {
        let text = chain(&Archive::open(fixture(name)).unwrap_err());
        assert!(text.contains(expected), "{name}: {text}");
    }
}

#[test]
fn a_tree_of_flax_is_flattened_and_written_back_to_the_byte() {
    let archive = open(&fixture("tree.msgpack"));
    assert_eq!(archive.container(), Container::Msgpack);
    let found = all(&archive);
    for (name, tensor) in all(&open(&fixture("tree.safetensors"))) {
        assert_eq!(found.get(&name), Some(&tensor), "{name}");
    }
    let half = &found["batch_stats/bf16"];
    assert_eq!(half.dtype(), Dtype::BF16);
    assert_eq!(half.to_f64().unwrap(), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(found.len(), 20);
    assert!(archive.notes().is_empty());

    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.msgpack");
    let container = Container::Msgpack;
    archive.write(&out, container, "").unwrap();
    let original = fs::read(fixture("tree.msgpack")).unwrap();
    assert!(fs::read(&out).unwrap() == original, "the same to the byte");
    // Every array made anew from its numbers is what flax wrote, heads included.
    let anew = archive.with(found).unwrap();
    anew.write(&out, container, "").unwrap();
    assert!(
        fs::read(&out).unwrap() == original,
        "arrays as flax packs them"
    );
}

#[test]
fn the_optimiser_of_a_training_state_is_left_out_with_a_note() {
    let archive = open(&fixture("train_state.msgpack"));
    let names: Vec<&str> = archive.names().collect();
    assert_eq!(names.len(), 8, "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("params/layers_")));
    let [note] = archive.notes() else {
        panic!("{:?}", archive.notes());
    };
    assert!(
        note.starts_with("`opt_state` (17 arrays) is not part"),
        "{note}"
    );
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.msgpack");
    archive.write(&out, Container::Msgpack, "").unwrap();
    let again = open(&out);
    assert_eq!(all(&again), all(&archive));
    assert!(again.notes().is_empty());
    let bytes = fs::read(&out).unwrap();
    assert_eq!(bytes[0], 0x82, "step and params");
    find(&bytes, b"\xa4step");
}

#[test]
fn settings_of_lightning_are_read_whatever_holds_them() {
    let whole = |value| Some(Setting::Whole(value));
    let text = |value: &str| Some(Setting::Text(value.to_owned()));
    for (name, prefix) in [("lightning.ckpt", "model."), ("omegaconf.ckpt", "")] {
        let archive = open(&fixture(name));
        let get = |key: &str| archive.settings().get(&format!("{prefix}{key}")).cloned();
        assert_eq!(get("layer.mode"), text("diag"), "{name}");
        assert_eq!(get("layer.dt_transform"), text("softplus"));
        assert_eq!(get("layer.n_ssm"), whole(2));
        assert_eq!(get("layer.lr.dt"), Some(Setting::Number(1e-3)));
        assert_eq!(get("prenorm"), Some(Setting::Bool(true)));
        assert_eq!(get("bidirectional"), Some(Setting::Bool(false)));
        assert_eq!(get("stack.0"), text("s4"));
        assert_eq!(get("stack.1.n"), whole(3));
        assert_eq!(get("linked"), text("${dropout}"));
        assert_eq!((get("unset"), get("missing")), (None, None));
        let notes = archive.notes().join("\n");
        assert!(notes.contains("optimizer_states"), "{notes}");
    }
    let archive = open(&fixture("lightning.ckpt"));
    let get = |key: &str| archive.settings().get(key).cloned();
    assert_eq!(get("name"), text("run"), "hyper_parameters come first");
    assert_eq!((get("seed"), get("l_max")), (whole(1), whole(784)));
    let notes = archive.notes().join("\n");
    assert!(notes.contains("`custom` (project.optim.Custom)"), "{notes}");
    assert!(notes.contains("`kind` (project.optim.Custom)"), "{notes}");
    assert!(
        notes.contains("`callbacks` holds Python objects"),
        "{notes}"
    );
    let other = open(&fixture("arrays.npz"));
    assert!(other.settings().is_empty());
}
