//! Layers that are stacked on a leading axis, as `nn.scan` of flax has them: each is one of its own, and
//! they are written stacked. The fixtures are made by `tests/reference/make_flax.py` and
//! `make_spellings.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::here;
use crate::golden::{Golden, largest_difference, logits};
use hankelite::advanced::read_layerwise;
use hankelite::checkpoint::{Checkpoint, Gelu, from_tensors};
use hankelite::model::{Block, Model, Nonlinearity};
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::{Archive, Dtype, RawTensor};

const NETWORKS: [&str; 2] = ["s5_full_glu", "lru_half_glu1"];

fn network(name: &str) -> PathBuf {
    here("data/flax").join(format!("{name}_stacked.msgpack"))
}

fn layers(name: &str) -> PathBuf {
    here("data/spellings").join(format!("{name}.msgpack"))
}

fn opened(path: &Path) -> Checkpoint {
    read(path, &Declared::default()).unwrap()
}

/// The sequences and logits of the layers before they were stacked.
fn golden() -> Golden {
    Golden::open(here("data/flax/golden.safetensors"))
}

fn assert_kernels(checkpoint: &Checkpoint, name: &str) {
    let truth = Archive::open(here("data/spellings/kernels.safetensors")).unwrap();
    let expected = truth.tensor(name).unwrap().to_f64().unwrap();
    let blocks = checkpoint.model.blocks().iter();
    let systems = blocks.flat_map(|block| block.systems());
    let found: Vec<f64> = systems.flat_map(|s| s.kernel(40).unwrap()).collect();
    let scale = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let apart = largest_difference(&found, &expected);
    assert!(apart <= 1e-6 * scale, "{name}: {apart:e} of {scale}");
}

fn at_order(model: &Model, order: usize) -> Model {
    let plan = Plan::new(Rule::Order(order)).unwrap();
    reduce(model, &plan).unwrap().model
}

#[test]
fn stacked_networks_run_as_those_with_layers_apart() {
    for name in NETWORKS {
        let checkpoint = opened(&network(name));
        let apart = opened(&here("data/flax").join(format!("{name}.safetensors")));
        let data = golden();
        let expected = data.truth(&format!("{name}/logits"));
        let found = logits(&checkpoint.model, &data.sequences(name));
        let difference = largest_difference(&found, &expected);
        assert!(difference < 1e-10, "{name}: {difference:e}");
        let blocks = checkpoint.model.blocks();
        assert_eq!(blocks[1].name(), "params/encoder/layers[1]/seq");
        assert_eq!(blocks[1].systems(), apart.model.blocks()[1].systems());
        assert_eq!(blocks[0].activation(), Nonlinearity::GeluTanh);
        assert_eq!(checkpoint.assumptions(), apart.assumptions());
        assert_eq!(checkpoint.parameters_of_file(), apart.parameters_of_file());
        let notes = checkpoint.notes().join("\n");
        assert!(notes.contains("`params/encoder/layers`, 2"), "{notes}");
        let exact = Declared {
            gelu: Some(Gelu::Exact),
            ..Declared::default()
        };
        let exact = read(network(name), &exact).unwrap();
        assert_eq!(exact.model.blocks()[0].activation(), Nonlinearity::Gelu);
    }
}

#[test]
fn layers_of_annotated_s4_are_taken_out_of_a_stack() {
    let s4d = opened(&layers("s4d_stacked"));
    assert_eq!(s4d.family(), "S4D (annotated-s4)");
    assert_eq!(s4d.model.blocks()[0].name(), "params/layers[0]/seq");
    assert_eq!(s4d.carried(), ["params/decoder/kernel"]);
    assert_kernels(&s4d, "s4d_stacked");
    let path = layers("dplr_stacked");
    let refused = read(&path, &Declared::default()).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("annotated-s4"), "{refused}");
    assert!(
        refused.to_string().contains("params/layers[0]/seq/P"),
        "{refused}"
    );
    let declared = Declared {
        diagonalise: Some(16),
        length: Some(32),
        ..Declared::default()
    };
    let dplr = read(&path, &declared).unwrap();
    assert_kernels(&dplr, "dplr_64");
    // Written stacked, as diagonal kernels of state-spaces/s4 v4, and read again as they are.
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("diagonal.safetensors");
    write(&dplr, &out).unwrap();
    let written = Archive::open(&out).unwrap();
    let decays = written.shape("params/layers/seq/kernel.A_real").unwrap();
    assert_eq!(decays[..2], [2, 3]);
    assert_kernels(&opened(&out), "dplr_64");
}

#[test]
fn unchanged_stacks_come_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for path in [
        network(NETWORKS[0]),
        network(NETWORKS[1]),
        layers("s4d_stacked"),
    ] {
        let out = folder.path().join(path.file_name().unwrap());
        write(&opened(&path), &out).unwrap();
        let pair = [&path, &out].map(|path| std::fs::read(path).unwrap());
        assert!(pair[0] == pair[1], "{}", path.display());
    }
}

fn systems_alike(a: &Block, b: &Block) -> bool {
    let mut pairs = a.all_systems().zip(b.all_systems());
    pairs.all(|(a, b)| {
        let weights =
            |s: &hankelite_control::DiagonalSystem| (s.output() * s.input()).map(|z| z.re);
        (weights(a) - weights(b)).norm() <= 1e-5 * weights(b).norm()
    })
}

#[test]
fn reduced_stacks_are_written_as_stacks_with_one_order() {
    let folder = tempfile::tempdir().unwrap();
    for path in [
        network(NETWORKS[0]),
        network(NETWORKS[1]),
        layers("s4d_stacked"),
    ] {
        let full = opened(&path);
        let (three, four) = (at_order(&full.model, 3), at_order(&full.model, 4));
        let uneven = vec![three.blocks()[0].clone(), four.blocks()[1].clone()];
        let uneven = full.model.with_blocks(uneven).unwrap();
        for (model, order) in [(three, 3), (uneven, 4)] {
            let small = full.with_model(model);
            let out = folder.path().join("small.msgpack");
            write(&small, &out).unwrap();
            let (before, after) = (Archive::open(&path).unwrap(), Archive::open(&out).unwrap());
            assert!(before.names().eq(after.names()));
            let with = |n: &usize| if *n == 6 { order } else { *n };
            for name in before.names() {
                let wanted: Vec<usize> = before.shape(name).unwrap().iter().map(with).collect();
                assert_eq!(after.shape(name).unwrap(), wanted, "{name}");
            }
            assert_eq!(small.parameters().unwrap(), after.elements());
            let back = opened(&out);
            for (a, b) in back.model.blocks().iter().zip(small.model.blocks()) {
                assert!(a.order() == order && systems_alike(a, b), "{}", a.name());
            }
            if model_runs(&small.model) {
                let data = golden();
                let sequences = data.sequences(NETWORKS[0]);
                let pair = [&back.model, &small.model].map(|model| logits(model, &sequences));
                assert!(largest_difference(&pair[0], &pair[1]) < 1e-4);
            }
        }
    }
}

fn model_runs(model: &Model) -> bool {
    model.head().is_some()
}

#[test]
fn layer_by_layer_the_same_file_is_made() {
    let folder = tempfile::tempdir().unwrap();
    for path in [network(NETWORKS[1]), layers("s4d_stacked")] {
        let full = opened(&path);
        let [whole, single] = ["whole.msgpack", "single.msgpack"].map(|n| folder.path().join(n));
        let small = at_order(&full.model, 3);
        write(&full.with_model(small.clone()), &whole).unwrap();
        let layerwise = read_layerwise(&path, &Declared::default()).unwrap();
        let mut rewrite = layerwise.rewrite(Some(&single)).unwrap();
        for (index, block) in small.blocks().iter().enumerate() {
            let stored = layerwise.layer(index).unwrap();
            let bare = stored.with_systems(block.systems().to_vec(), block.backward().to_vec());
            rewrite.set(index, stored, &bare.unwrap()).unwrap();
        }
        assert_eq!(
            rewrite.parameters(),
            Archive::open(&whole).unwrap().elements()
        );
        rewrite.write(&single).unwrap();
        let pair = [whole, single].map(|path| std::fs::read(path).unwrap());
        assert!(pair[0] == pair[1], "{}", path.display());
    }
}

/// The tensors of a file, some of them changed.
fn tensors(path: &Path) -> BTreeMap<String, RawTensor> {
    let archive = Archive::open(path).unwrap();
    let all = archive
        .names()
        .map(|name| (name.to_string(), archive.tensor(name).unwrap()));
    all.collect()
}

#[test]
fn equal_layers_of_a_stack_are_not_one() {
    let mut all = tensors(&network("lru_half_glu1"));
    for (name, tensor) in &mut all {
        if name.contains("/layers/") {
            let bytes = tensor.bytes();
            let bytes = [&bytes[..bytes.len() / 2]; 2].concat();
            *tensor = RawTensor::new(tensor.dtype(), tensor.shape().to_vec(), bytes).unwrap();
        }
    }
    let twice = from_tensors("twice", all, &Declared::default()).unwrap();
    assert_eq!(twice.model.blocks().len(), 2);
    assert!(twice.model.head().is_some() && twice.tied_layers().is_none());
    let half = at_order(&twice.model, 3).blocks()[0].clone();
    let mixed = twice.model.with_block(0, half).unwrap();
    assert!(twice.with_model(mixed).encode().is_ok());
}

#[test]
fn directions_side_by_side_in_one_tensor_keep_one_order() {
    let archive = Archive::open(here("data/layouts/s5_bidirectional_one_c.safetensors")).unwrap();
    let place = archive
        .names()
        .find_map(|name| name.strip_suffix("Lambda_re"))
        .unwrap();
    let mut all = BTreeMap::new();
    for name in archive.names().filter(|name| name.starts_with(place)) {
        let tensor = archive.tensor(name).unwrap();
        let values = tensor.to_f64().unwrap();
        let second = values.iter().map(|x| 1.1 * x);
        let both: Vec<f64> = values.iter().copied().chain(second).collect();
        let shape = [&[2], tensor.shape()].concat();
        let name = format!("params/layers/seq/{}", &name[place.len()..]);
        all.insert(name, RawTensor::from_f64(Dtype::F32, shape, &both).unwrap());
    }
    let full = from_tensors("both", all, &Declared::default()).unwrap();
    assert_eq!(full.model.blocks().len(), 2);
    assert!(full.with_model(at_order(&full.model, 3)).encode().is_ok());
    let half = at_order(&full.model, 3).blocks()[0].clone();
    let mixed = full.model.with_block(0, half).unwrap();
    let refused = full
        .with_model(mixed)
        .encode()
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("`params/layers/seq/C`"), "{refused}");
    assert!(
        refused.contains("reduce all layers to one order"),
        "{refused}"
    );
}
