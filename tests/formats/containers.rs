//! Models in every container.

use std::fs;
use std::path::PathBuf;

use crate::common::here;
use hankelite::{Declared, read, write};
use hankelite_archive::Archive;

fn fixture(name: &str) -> PathBuf {
    here("data/containers").join(name)
}

#[test]
fn the_same_model_comes_out_of_every_container() {
    let folder = tempfile::tempdir().unwrap();
    let reference = here("data/s4d_classifier.safetensors");
    let expected = read(&reference, &Declared::default()).unwrap();
    let sources = [fixture("s4d_classifier.npz"), fixture("sharded"), reference];
    for source in sources {
        let model = read(&source, &Declared::default()).unwrap();
        assert_eq!(model.model, expected.model);
        for name in [
            "o.npz",
            "o.msgpack",
            "o.pth",
            "o.safetensors",
            "o.index.json",
        ] {
            let out = folder.path().join(name);
            write(&model, &out).unwrap();
            let back = read(&out, &Declared::default()).unwrap();
            assert_eq!(back.model, expected.model, "{name}");
        }
    }
}

#[test]
fn a_file_of_lightning_keeps_its_plain_data() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.ckpt");
    let model = read(fixture("omegaconf.ckpt"), &Declared::default()).unwrap();
    write(&model, &out).unwrap();
    let again = Archive::open(&out).unwrap();
    assert_eq!(again.wrapper(), Some("state_dict"));
    assert!(again.notes().is_empty(), "{:?}", again.notes());
    let bytes = fs::read(&out).unwrap();
    for key in [&b"pytorch-lightning_version"[..], b"loops"] {
        assert!(bytes.windows(key.len()).any(|window| window == key));
    }
    let back = read(&out, &Declared::default()).unwrap();
    assert_eq!(back.model, model.model);
}
