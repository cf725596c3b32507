//! Calibration of a network that is not run here: the shipped model with renamed parts, and the
//! inputs of its layers in a file as another program writes it.

use std::path::{Path, PathBuf};

use crate::common::{here, top};
use hankelite::advanced::{
    Calibrated, CalibratedReduction, Captured, Settings, WeightChoice, input_statistics,
};
use hankelite::calibrate::{CalibrateError, Calibration, Known, LayerCalibration, TargetSize};
use hankelite::checkpoint::Checkpoint;
use hankelite::infer::{Network, Path as Run};
use hankelite::model::{Model, Sequence};
use hankelite::{Declared, Plan, Rule, read, reduce};
use hankelite_archive::{Archive, Container, Dtype, RawTensor, write_arrays};
use hankelite_data::{Dataset, Source, Split};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const LENGTH: usize = 256;
const SEQUENCES: usize = 100;
const COMBINATIONS: usize = 10;

fn shipped() -> Model {
    let path = top().join("models/waves/model.safetensors");
    read(path, &Declared::default()).unwrap().model
}

fn data(split: Split, count: usize) -> Dataset {
    let source: Source = "waves".parse().unwrap();
    let all = Dataset::read(&source, Some(split)).unwrap();
    all.sample(count, 0).unwrap()
}

/// The shipped model under names that nobody knows.
fn renamed(folder: &Path) -> Checkpoint {
    let archive = Archive::open(top().join("models/waves/model.safetensors")).unwrap();
    let new = |name: &str| {
        let name = name
            .replace("encoder", "front.lift")
            .replace("decoder", "readout.map");
        name.replace("s4_layers.", "trunk.mixers.")
            .replace("norms.", "trunk.scales.")
    };
    let tensors = archive
        .names()
        .map(|name| (new(name), archive.tensor(name).unwrap()));
    let path = folder.join("renamed.safetensors");
    write_arrays(&path, tensors, "").unwrap();
    read(&path, &Declared::default()).unwrap()
}

/// Random signs less their mean.
fn signs(random: &mut ChaCha8Rng, classes: usize) -> Vec<f64> {
    let signs = (0..classes).map(|_| if random.random() { 1.0 } else { -1.0 });
    let signs: Vec<f64> = signs.collect();
    let mean = signs.iter().sum::<f64>() / classes as f64;
    signs.iter().map(|sign| sign - mean).collect()
}

/// What a hook writes: inputs and gradients of every layer, in single precision.
fn capture(model: &Model, data: &Dataset, names: &[&str]) -> Vec<(String, RawTensor)> {
    let network = Network::new(model, LENGTH, Run::Auto).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let layers = model.blocks().len();
    let (mut inputs, mut gradients) = (vec![Vec::new(); layers], vec![Vec::new(); layers]);
    for index in 0..data.len() {
        for combination in 0..COMBINATIONS {
            let signs = signs(&mut random, 10);
            let found = network
                .output_gradients(data.unpadded(index), &signs)
                .unwrap();
            for (layer, own) in found.into_iter().enumerate() {
                if combination == 0 {
                    inputs[layer].extend(own.input.transpose().iter().copied());
                }
                gradients[layer].extend(own.gradient.transpose().iter().copied());
            }
        }
    }
    let mut arrays = Vec::new();
    let channels = model.blocks()[0].channels();
    for (layer, name) in names.iter().enumerate() {
        let shape = vec![data.len(), LENGTH, channels];
        let tensor = RawTensor::from_f64(Dtype::F32, shape, &inputs[layer]).unwrap();
        arrays.push(((*name).to_string(), tensor));
        let shape = vec![data.len(), COMBINATIONS, LENGTH, channels];
        let tensor = RawTensor::from_f64(Dtype::F32, shape, &gradients[layer]).unwrap();
        arrays.push((format!("{name}.output_gradient"), tensor));
    }
    arrays
}

/// The share of sequences whose class is found.
fn accuracy(model: &Model, data: &Dataset) -> f64 {
    let network = Network::new(model, LENGTH, Run::Auto).unwrap();
    let listed: Vec<Sequence<'_>> = (0..data.len()).map(|i| data.unpadded(i)).collect();
    let logits = network.logits_of_all(&listed).unwrap();
    let best = logits
        .iter()
        .map(|z| (0..z.len()).max_by(|&a, &b| z[a].total_cmp(&z[b])).unwrap());
    let right = best
        .zip(data.labels().unwrap())
        .filter(|(found, label)| found == *label);
    right.count() as f64 / data.len() as f64
}

/// The whole network with the layers of another.
fn with_layers_of(whole: &Model, layers: &Model) -> Model {
    let blocks = whole.blocks().iter().zip(layers.blocks());
    let blocks =
        blocks.map(|(block, small)| block.with_systems(small.systems().to_vec(), Vec::new()));
    whole
        .with_blocks(blocks.collect::<Result<_, _>>().unwrap())
        .unwrap()
}

fn reduced(model: &Model, path: &Path, weight: WeightChoice) -> Calibrated {
    let captured = Captured::open(path, model, SEQUENCES).unwrap();
    let statistics = captured.statistics("captures", &()).unwrap();
    let balanced = CalibratedReduction::of_captured(model, &statistics, &captured, weight, &());
    balanced
        .unwrap()
        .reduce(&Settings::new(TargetSize::Order(8)))
        .unwrap()
}

/// The statistics of the captures are those of the network itself, to single precision.
fn assert_statistics(whole: &Model, train: &Dataset, foreign: &Checkpoint, both: &Path) {
    let captured = Captured::open(both, &foreign.model, SEQUENCES).unwrap();
    let statistics = captured.statistics("captures", &()).unwrap();
    let network = Network::new(whole, LENGTH, Run::Auto).unwrap();
    let listed: Vec<Sequence<'_>> = (0..train.len()).map(|i| train.unpadded(i)).collect();
    let native = input_statistics(&network, &listed).unwrap();
    let importance = hankelite::advanced::importance(&network, &listed).unwrap();
    for ((own, native), importance) in statistics.layers().iter().zip(&native).zip(&importance) {
        let (lags, expected) = (own.statistics.autocorrelation(), native.autocorrelation());
        assert!((lags - expected).amax() < 1e-5 * expected.amax());
        // Other signs, so the same but for chance.
        let sums: [f64; 2] = [own.importance.iter().sum(), importance.iter().sum()];
        assert!((sums[0] / sums[1] - 1.0).abs() < 0.3, "{sums:?}");
    }
}

#[test]
fn the_shipped_model_with_renamed_parts_is_calibrated_from_captured_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, foreign) = (shipped(), renamed(folder.path()));
    assert!(foreign.is_layers_alone() && foreign.model.encoder().is_none());
    let names: Vec<&str> = foreign
        .model
        .blocks()
        .iter()
        .map(|block| block.name())
        .collect();
    assert_eq!(names, ["trunk.mixers.0", "trunk.mixers.1"]);
    let train = data(Split::Train, SEQUENCES);
    let mut arrays = capture(&whole, &train, &names);
    let both = folder.path().join("both.safetensors");
    write_arrays(&both, arrays.clone(), "").unwrap();
    arrays.retain(|(name, _)| !name.ends_with("output_gradient"));
    let inputs = folder.path().join("inputs.safetensors");
    write_arrays(&inputs, arrays, "").unwrap();

    assert_statistics(&whole, &train, &foreign, &both);
    let test = data(Split::Test, 2000);
    let full = accuracy(&whole, &test);
    let plan = Plan::new(Rule::Order(8)).unwrap();
    let white = reduce(&foreign.model, &plan).unwrap().model;
    let white = accuracy(&with_layers_of(&whole, &white), &test);
    let figures = [
        (
            "inputs, spectrum",
            &inputs,
            WeightChoice::Spectrum,
            Known::Inputs,
        ),
        ("inputs", &inputs, WeightChoice::Auto, Known::Inputs),
        (
            "inputs and gradients",
            &both,
            WeightChoice::Auto,
            Known::InputsAndGradients,
        ),
    ];
    println!("full {full:.4}, white noise {white:.4}");
    let found = figures.map(|(name, path, weight, known)| {
        let small = reduced(&foreign.model, path, weight);
        assert_eq!(small.choice.known, known);
        assert_eq!(
            small.choice.gradient_fit.is_some(),
            known == Known::InputsAndGradients
        );
        let found = accuracy(&with_layers_of(&whole, &small.model), &test);
        println!("{name}: {found:.4} {:?}", small.choice.gradient_fit);
        found
    });
    assert!(white < 0.85 && found[0] > 0.94 && found[1] > 0.94);
    assert!(found[2] >= 0.97, "{found:?}");
}

#[test]
fn captures_that_do_not_fit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = renamed(folder.path());
    let path = folder.path().join("inputs.safetensors");
    let tensor = |shape: &[usize], value: f64| {
        let count = shape.iter().product();
        RawTensor::from_f64(Dtype::F32, shape.to_vec(), &vec![value; count]).unwrap()
    };
    let fault = |arrays: Vec<(&str, RawTensor)>| {
        write_arrays(&path, arrays, "").unwrap();
        let captured = Captured::open(&path, &foreign.model, SEQUENCES);
        let error = captured
            .and_then(|captured| captured.statistics("", &()))
            .unwrap_err();
        match error {
            CalibrateError::Other(error) => error,
            other => panic!("{other}"),
        }
    };
    let (first, second) = ("trunk.mixers.0", "trunk.mixers.1");
    let good = || tensor(&[2, 8, 16], 1.0);
    let error = fault(vec![("mixers.0", good())]);
    assert!(
        error
            .to_string()
            .contains("`trunk.mixers.0`, found `mixers.0`"),
        "{error}"
    );
    let error = fault(vec![(first, good()), (second, tensor(&[2, 16, 8], 1.0))]);
    assert!(
        error
            .to_string()
            .contains("[2, 16, 8], expected [2, 8, 16]"),
        "{error}"
    );
    let error = fault(vec![
        (first, good()),
        (second, tensor(&[2, 8, 16], f64::NAN)),
    ]);
    assert!(error.contains("holds NaN in sequence 0"), "{error}");
    let gradient = "trunk.mixers.0.output_gradient";
    let error = fault(vec![(first, good()), (second, good()), (gradient, good())]);
    assert!(
        error
            .to_string()
            .contains("`trunk.mixers.1.output_gradient`"),
        "{error}"
    );
}

#[test]
fn statistics_that_python_saved_are_read() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/statistics-from-python.safetensors"
    );
    let read = Calibration::read(path.as_ref()).unwrap();
    assert_eq!((read.known(), read.origin()), (Known::Inputs, "numbers"));
    let names: Vec<_> = read.layers().iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    for layer in read.layers() {
        let own = &layer.statistics;
        assert_eq!(own.sequences(), 2);
        assert_eq!(own.mean(), [0.0, 0.125, 0.25]);
        // 12, 11, 10 and 9, by two sequences of four steps.
        let first: Vec<f64> = own.autocorrelation().column(0).iter().copied().collect();
        assert_eq!(first, [1.5, 1.375, 1.25, 1.125]);
        assert_eq!(layer.importance, [1.0; 3]);
    }
}

#[test]
fn statistics_that_were_made_elsewhere_need_no_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    let whole = shipped();
    let train = data(Split::Train, 10);
    let listed: Vec<Sequence<'_>> = (0..train.len()).map(|i| train.unpadded(i)).collect();
    let network = Network::new(&whole, LENGTH, Run::Auto).unwrap();
    let native = input_statistics(&network, &listed).unwrap();
    let layers = whole.blocks().iter().zip(native);
    let layers = layers.map(|(block, statistics)| {
        let ones = vec![1.0; statistics.channels()];
        LayerCalibration::new(block.name(), statistics, ones).unwrap()
    });
    let own = Calibration::new(layers.collect(), "by hand", Known::Inputs).unwrap();
    own.check(&whole).unwrap();
    let path = folder.path().join("own.stats");
    own.write(&path).unwrap();
    assert_eq!(Calibration::read(&path).unwrap(), own);
    // As docs/calibrate-your-own-network.md describes the file.
    let archive = Archive::open(&path).unwrap();
    let arrays = archive.names().filter(|name| !name.ends_with("importance"));
    let arrays: Vec<_> = arrays
        .map(|name| (name, archive.tensor(name).unwrap()))
        .collect();
    let header = r#"{"format": "hankelite input statistics 1", "sequences": 10, "layers": ["s4_layers.0", "s4_layers.1"]}"#;
    let plain = folder.path().join("plain.stats");
    write_arrays(&plain, arrays, header).unwrap();
    let plain = Calibration::read(&plain).unwrap();
    assert_eq!(
        (plain.known(), plain.layers()),
        (Known::Inputs, own.layers())
    );
    let error = Calibration::new(Vec::new(), "", Known::Inputs).unwrap_err();
    let expected = "layer ``: statistics of 0 sequences of 0 steps";
    assert!(error.to_string().starts_with(expected), "{error}");
    // One of the network itself still knows it.
    let gathered = Calibration::gather(&network, &listed, "waves").unwrap();
    assert_eq!(gathered.known(), Known::Network);
    let changed = reduce(&whole, &Plan::new(Rule::Order(30)).unwrap())
        .unwrap()
        .model;
    assert!(matches!(
        gathered.check(&changed),
        Err(CalibrateError::OtherModel(_))
    ));
    own.check(&changed).unwrap();
}

#[test]
fn rows_of_a_tensor_are_the_same_read_alone_in_every_container() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<f64> = (0..120).map(f64::from).collect();
    let tensor = RawTensor::from_f64(Dtype::F32, vec![5, 4, 6], &values).unwrap();
    let made = Archive::in_memory("made", [("a".to_string(), tensor)].into());
    let mut files: Vec<PathBuf> = Vec::new();
    for (name, container) in [
        ("a.safetensors", Container::Safetensors),
        ("a.npz", Container::Npz),
        ("a.pth", Container::Torch),
        ("a.msgpack", Container::Msgpack),
        ("shards", Container::Sharded),
    ] {
        let path = folder.path().join(name);
        made.write(&path, container, "").unwrap();
        files.push(path);
    }
    for path in files {
        let archive = Archive::open(&path).unwrap();
        for (first, last) in [(0, 5), (1, 3), (4, 5), (2, 2)] {
            let part = archive.rows("a", first..last).unwrap();
            assert_eq!(part.shape(), [last - first, 4, 6]);
            assert_eq!(
                part.to_f64().unwrap(),
                &values[first * 24..last * 24],
                "{path:?}"
            );
        }
    }
    let fortran = Archive::open(here("data/containers/fortran.npz")).unwrap();
    for name in fortran
        .names()
        .filter(|name| fortran.shape(name).is_some_and(|s| s.len() > 1 && s[0] > 1))
    {
        let whole = fortran.tensor(name).unwrap();
        let part = fortran.rows(name, 1..2).unwrap();
        let row = whole.bytes().len() / whole.shape()[0];
        assert_eq!(part.bytes(), &whole.bytes()[row..2 * row], "{name}");
    }
}
