//! What reading and writing costs in memory, counted at every allocation of the process: therefore
//! a test program of its own, and one test at a time.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hankelite::advanced::{read_dynamics, read_layerwise};
use hankelite::model::Block;
use hankelite::{Declared, read};
use hankelite_archive::{Archive, Container, Dtype, RawTensor, write_arrays};
use hankelite_control::DiagonalSystem;
use peak_alloc::PeakAlloc;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[global_allocator]
static COUNTER: PeakAlloc = PeakAlloc;

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most that was held during a piece of work, above what was held before.
fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = COUNTER.current_usage();
    COUNTER.reset_peak_usage();
    let done = work();
    (COUNTER.peak_usage().saturating_sub(before), done)
}

const LAYERS: usize = 24;
const CHANNELS: usize = 64;
const MODES: usize = 256;
/// Bytes of the largest tensor, C of a layer, in single precision.
const LARGEST: usize = CHANNELS * MODES * 2 * 4;
/// Bytes of the systems of a layer: exponent, input and output of every mode.
const SYSTEMS: usize = CHANNELS * MODES * 3 * 16;

/// A classifier of S4D layers in two files with an index, about 7 MB.
fn sharded(folder: &Path) -> PathBuf {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut weight_map = BTreeMap::new();
    let halves = [0..LAYERS / 2, LAYERS / 2..LAYERS];
    for (index, layers) in halves.into_iter().enumerate() {
        let shard = format!("model-{index}.safetensors");
        let mut arrays = Vec::new();
        for layer in layers {
            arrays.extend(layer_arrays(layer, &mut random));
        }
        if index == 0 {
            arrays.push(uniform(
                "encoder.weight".into(),
                &[CHANNELS, 1],
                &mut random,
            ));
            arrays.push(uniform("encoder.bias".into(), &[CHANNELS], &mut random));
            arrays.push(uniform(
                "decoder.weight".into(),
                &[2, CHANNELS],
                &mut random,
            ));
            arrays.push(uniform("decoder.bias".into(), &[2], &mut random));
        }
        weight_map.extend(arrays.iter().map(|(name, _)| (name.clone(), shard.clone())));
        write_arrays(folder.join(&shard), arrays, "").unwrap();
    }
    let index = folder.join("model.safetensors.index.json");
    let text = serde_json::json!({"metadata": {}, "weight_map": weight_map});
    fs::write(&index, text.to_string()).unwrap();
    index
}

fn layer_arrays(layer: usize, random: &mut ChaCha8Rng) -> Vec<(String, RawTensor)> {
    let grid = [CHANNELS, MODES];
    let shapes: [(&str, &[usize]); 7] = [
        ("kernel.log_dt", &grid[..1]),
        ("kernel.log_A_real", &grid),
        ("kernel.A_imag", &grid),
        ("kernel.C", &[CHANNELS, MODES, 2]),
        ("D", &grid[..1]),
        ("output_linear.0.weight", &[2 * CHANNELS, CHANNELS, 1]),
        ("output_linear.0.bias", &[2 * CHANNELS]),
    ];
    let own = shapes.map(|(name, shape)| (format!("s4_layers.{layer}.{name}"), shape));
    let norms = ["weight", "bias"].map(|name| (format!("norms.{layer}.{name}"), &grid[..1]));
    let all = own.into_iter().chain(norms);
    all.map(|(name, shape)| uniform(name, shape, random))
        .collect()
}

fn uniform(name: String, shape: &[usize], random: &mut ChaCha8Rng) -> (String, RawTensor) {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|_| random.random_range(-1.0..1.0)).collect();
    (
        name,
        RawTensor::from_f64(Dtype::F32, shape.to_vec(), &values).unwrap(),
    )
}

#[test]
fn an_archive_holds_one_tensor_at_a_time() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let index = sharded(folder.path());
    let out = tempfile::tempdir().unwrap();
    // What is known of all tensors, and buffers.
    const ROOM: usize = 200_000;
    let (held, archive) = peak(|| Archive::open(&index).unwrap());
    assert!(held < ROOM, "{held}");
    for (name, container) in [
        ("new", Container::Sharded),
        ("x.safetensors", Container::Safetensors),
        ("x.pth", Container::Torch),
        ("x.npz", Container::Npz),
        ("x.msgpack", Container::Msgpack),
    ] {
        let path = out.path().join(name);
        let (held, written) = peak(|| archive.write(&path, container, ""));
        written.unwrap();
        assert!(held < LARGEST + ROOM, "{name}: {held}");
        let (held, archive) = peak(|| Archive::open(&path).unwrap());
        // A pickle is some thirty values for each tensor, all of which are there at once.
        let room = if name == "x.pth" { 10 * ROOM } else { ROOM };
        assert!(held < room, "{name}: {held}");
        // An npz or torch record is read whole; a MessagePack array without its head.
        let (held, _) = peak(|| archive.tensor("s4_layers.3.kernel.C").unwrap());
        assert!(held < LARGEST + ROOM / 2, "{name}: {held}");
    }
}

#[test]
fn work_layer_by_layer_holds_one_layer_at_a_time() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let index = sharded(folder.path());
    let declared = Declared::default();
    // The measure itself: all systems together are far more than the limit below.
    let (held, whole) = peak(|| read_dynamics(&index, &declared).unwrap());
    assert!(held > LAYERS * SYSTEMS, "{held}");
    // A layer as stored in double precision and as systems, twice, for what is made of it.
    let limit = 4 * SYSTEMS;
    assert!(limit < LAYERS * SYSTEMS / 5);
    let out = folder.path().join("out.safetensors");
    let (held, ()) = peak(|| {
        let source = read_layerwise(&index, &declared).unwrap();
        let mut rewrite = source.rewrite(Some(&out)).unwrap();
        for layer in 0..LAYERS {
            let block = source.layer(layer).unwrap();
            let half = halved(&block);
            rewrite.set(layer, block, &half).unwrap();
        }
        rewrite.write(&out).unwrap();
    });
    assert!(held < limit, "{held} of {limit}");
    let expected: Vec<Block> = whole.model.blocks().iter().map(halved).collect();
    let back = read(&out, &declared).unwrap();
    for (new, old) in back.model.blocks().iter().zip(&expected) {
        for (new, old) in new.systems().iter().zip(old.systems()) {
            assert_eq!(new.order(), MODES / 2);
            let (new, old) = (new.kernel(8).unwrap(), old.kernel(8).unwrap());
            for (new, old) in new.iter().zip(&old) {
                assert!((new - old).abs() < 1e-4, "{new} {old}");
            }
        }
    }
}

/// Every channel with the first half of its modes.
fn halved(block: &Block) -> Block {
    let systems = block.systems().iter().map(half).collect();
    block.with_systems(systems, Vec::new()).unwrap()
}

/// The first half of the modes.
fn half(system: &DiagonalSystem) -> DiagonalSystem {
    let order = system.order() / 2;
    let residues = system.residues().unwrap();
    let exponents = system.exponents()[..order].to_vec();
    let feedthrough = system.feedthrough()[(0, 0)];
    DiagonalSystem::siso(system.time(), exponents, &residues[..order], feedthrough).unwrap()
}

/// Cuts, flips and copies of bytes.
fn damage(bytes: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    if random.random_bool(0.2) {
        damaged.truncate(random.random_range(0..bytes.len()));
    }
    for _ in 0..random.random_range(1..5) {
        if damaged.is_empty() {
            break;
        }
        let at = random.random_range(0..damaged.len());
        match random.random_range(0..4) {
            0 => damaged[at] = 0xff,
            1 => damaged[at] = random.random(),
            2 => damaged[at] ^= 1 << random.random_range(0..8),
            _ => {
                let from = random.random_range(0..damaged.len());
                let length = random.random_range(1..9).min(damaged.len() - from.max(at));
                damaged.copy_within(from..from + length, at);
            }
        }
    }
    damaged
}

#[test]
fn damaged_files_neither_upset_the_reader_nor_fill_the_memory() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let sharded = common::here("data/containers/sharded");
    for entry in fs::read_dir(&sharded).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let index = "model.safetensors.index.json";
    let cases = [
        ("containers/arrays.npz", "x.npz"),
        ("containers/train_state.msgpack", "x.msgpack"),
        ("containers/arrays.safetensors", "x.safetensors"),
        ("containers/omegaconf.ckpt", "x.ckpt"),
        ("containers/lightning.ckpt", "x.ckpt"),
        ("noncontiguous.pth", "x.pth"),
        ("containers/sharded/model.safetensors.index.json", index),
    ];
    for (fixture, name) in cases {
        let bytes = fs::read(common::here("data").join(fixture)).unwrap();
        let (path, limit) = (folder.path().join(name), 40 * bytes.len() + 300_000);
        let mut opened = 0;
        for case in 0..1500 {
            fs::write(&path, damage(&bytes, &mut random)).unwrap();
            let (held, ok) = peak(|| read_all(&path, limit / 2));
            opened += usize::from(ok);
            assert!(held < limit, "{fixture}, case {case}: {held} of {limit}");
        }
        // Damage must get past the front door often enough, and be noticed often enough. In an
        // index nearly every byte counts.
        let least = if name == index { 0 } else { 3 };
        assert!((least..1490).contains(&opened), "{fixture}: {opened}");
    }
}

/// Whether a file could be opened; its tensors are then read where they are not made of fewer
/// stored elements than they show.
fn read_all(path: &Path, most: usize) -> bool {
    let Ok(archive) = Archive::open(path) else {
        return false;
    };
    for name in archive.names() {
        let elements: usize = archive.shape(name).unwrap().iter().product();
        if elements.saturating_mul(8) < most {
            let _either_way = archive.tensor(name);
        }
    }
    true
}
