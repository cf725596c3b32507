//! Reading and writing files: values against PyTorch, round trips, and refusals.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use crate::common::{here, shared};
use crate::models::{change_layer, changed, with_systems};
use hankelite::advanced::read_dynamics;
use hankelite::checkpoint::{Checkpoint, CheckpointError, DssVersion, from_tensors, read_files};
use hankelite::infer::{Network, Path as Run};
use hankelite::model::{BatchNorm, BlockParts, Encoder, Gate, Linear, Norm, Placement, Pooling};
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::{Archive, ArchiveError, Container, Dtype, RawTensor, ReadAt};
use hankelite_control::DiagonalSystem;
use hankelite_data::{Dataset, Source};

/// Logits and kernels of PyTorch are float64 computed from the stored float32 weights. What is
/// left is the order of summation; for DSS the float32 constants of its formula.
const AGAINST_TORCH: f64 = 1e-9;

fn data(name: &str) -> PathBuf {
    here("data").join(name)
}

fn open(name: &str, declared: Declared) -> Checkpoint {
    read(data(name), &declared).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn golden(name: &str, tensor: &str) -> (Vec<usize>, Vec<f64>) {
    let archive = Archive::open(data(name)).unwrap();
    let raw = archive.tensor(tensor).unwrap();
    let values = raw.to_f64().unwrap();
    (raw.shape().to_vec(), values)
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
    let pairs = found.iter().zip(expected);
    let worst = pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    assert!(worst <= AGAINST_TORCH * scale, "{what}: off by {worst:e}");
}

fn logits(checkpoint: &Checkpoint, golden_file: &str, run: Run) -> Vec<f64> {
    let source = Source::Arrays(data(golden_file));
    let inputs = Dataset::read(&source, None).unwrap();
    let network = Network::new(&checkpoint.model, inputs.length(), run).unwrap();
    let sequences: Vec<_> = (0..inputs.len()).map(|i| inputs.sequence(i)).collect();
    network.logits_of_all(&sequences).unwrap().concat()
}

fn kernels(checkpoint: &Checkpoint, length: usize) -> Vec<f64> {
    let blocks = checkpoint.model.blocks().iter();
    let systems = blocks.flat_map(|block| block.systems());
    systems
        .flat_map(|system| system.kernel(length).unwrap())
        .collect()
}

fn softmax() -> Declared {
    Declared {
        dss_version: Some(DssVersion::Softmax),
        length: Some(48),
        ..Declared::default()
    }
}

/// Every classifier fixture: file, golden file, what has to be declared.
fn classifiers() -> Vec<(&'static str, &'static str, Declared)> {
    let s4d = "s4d_classifier_golden.safetensors";
    let plain = Declared::default();
    vec![
        ("s4d_classifier.safetensors", s4d, plain),
        ("s4d_classifier.pth", s4d, plain),
        ("dataparallel.pth", s4d, plain),
        ("lightning_like.ckpt", s4d, plain),
        ("flat_state_dict.pt", s4d, plain),
        (
            "noncontiguous.pth",
            "noncontiguous_golden.safetensors",
            plain,
        ),
        ("mixed_dtypes.pth", "mixed_dtypes_golden.safetensors", plain),
        (
            "dss_exp_classifier.pth",
            "dss_exp_classifier_golden.safetensors",
            plain,
        ),
        (
            "dss_softmax_classifier.pth",
            "dss_softmax_classifier_golden.safetensors",
            softmax(),
        ),
        (
            "dss_softmax_unstable.pth",
            "dss_softmax_unstable_golden.safetensors",
            softmax(),
        ),
    ]
}

#[test]
fn kernels_and_logits_equal_those_of_pytorch() {
    for (file, golden_file, declared) in classifiers() {
        let checkpoint = open(file, declared);
        let (_, expected) = golden(golden_file, "kernels");
        assert_close(
            &kernels(&checkpoint, 48),
            &expected,
            &format!("{file} kernels"),
        );
        let (_, expected) = golden(golden_file, "logits_postnorm");
        let found = logits(&checkpoint, golden_file, Run::Fft);
        assert_close(&found, &expected, &format!("{file} logits"));
    }
}

#[test]
fn declared_norm_and_pooling_change_the_logits_as_in_pytorch() {
    let golden_file = "s4d_classifier_golden.safetensors";
    let pre = Declared {
        norm: Some(Placement::Pre),
        ..Declared::default()
    };
    let (_, expected) = golden(golden_file, "logits_prenorm");
    let found = logits(&open("s4d_classifier.pth", pre), golden_file, Run::Fft);
    assert_close(&found, &expected, "pre-norm");
    let last = Declared {
        pooling: Some(Pooling::Last),
        ..Declared::default()
    };
    let (_, expected) = golden(golden_file, "logits_postnorm_last");
    let found = logits(&open("s4d_classifier.pth", last), golden_file, Run::Fft);
    assert_close(&found, &expected, "last step");
}

#[test]
fn lone_layers_are_read_in_every_version_their_tensors_fit() {
    let s4d = open("s4d_layer.safetensors", Declared::default());
    let (_, expected) = golden("s4d_layer_golden.safetensors", "kernel");
    assert_close(&kernels(&s4d, 48), &expected, "S4D layer");
    assert!(s4d.model.encoder().is_none() && s4d.model.head().is_none());
    for (version, tensor) in [
        (DssVersion::Exp, "kernel_exp"),
        (DssVersion::ExpNoScale, "kernel_exp_no_scale"),
    ] {
        let declared = Declared {
            dss_version: Some(version),
            ..Declared::default()
        };
        let dss = open("dss_exp_layer.safetensors", declared);
        let (_, expected) = golden("dss_exp_layer_golden.safetensors", tensor);
        assert_close(&kernels(&dss, 48), &expected, tensor);
    }
}

#[test]
fn recurrence_and_fft_give_the_same_logits() {
    for (file, golden_file, declared) in classifiers() {
        let checkpoint = open(file, declared);
        let fft = logits(&checkpoint, golden_file, Run::Fft);
        let recurrence = logits(&checkpoint, golden_file, Run::Recurrence);
        assert_close(&recurrence, &fft, file);
    }
}

#[test]
fn what_was_assumed_is_listed_and_what_was_declared_is_not() {
    let assumed = open("dss_exp_classifier.pth", Declared::default());
    let text = assumed.assumptions().join("\n");
    for word in ["post-norm", "mean pooling", "DSS version `exp`"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let declared = Declared {
        norm: Some(Placement::Pre),
        pooling: Some(Pooling::Last),
        dss_version: Some(DssVersion::ExpNoScale),
        ..Declared::default()
    };
    let told = open("dss_exp_classifier.pth", declared);
    assert!(told.assumptions().is_empty(), "{:?}", told.assumptions());
}

/// Every readable fixture.
fn readable() -> Vec<(PathBuf, Declared)> {
    let mut files: Vec<_> = classifiers()
        .into_iter()
        .map(|(file, _, declared)| (data(file), declared))
        .collect();
    files.push((data("s4d_layer.safetensors"), Declared::default()));
    files.push((data("dss_exp_layer.safetensors"), Declared::default()));
    files
}

/// Real files that others have trained.
fn published() -> Vec<(PathBuf, Declared)> {
    let names = [
        "gevorgyg/ckpt.pth",
        "gevorgyg/ckpt.safetensors",
        "dallingordon/ckpt.pth",
        "asleep-ece/ckpt.pth",
        "asleep-ece/preprocessing_ckpt.pth",
        "jayesh365/s4d_signal_testing_ckpt_0.pth",
    ];
    let files = names.map(|name| shared(&format!("data/checkpoints/{name}")));
    files.map(|file| (file, Declared::default())).into()
}

fn all_tensors(path: &Path) -> Vec<(String, RawTensor)> {
    let archive = Archive::open(path).unwrap();
    let names: Vec<String> = archive.names().map(str::to_string).collect();
    let tensors = names.into_iter().map(|name| {
        let raw = archive.tensor(&name).unwrap();
        (name, raw)
    });
    tensors.collect()
}

fn assert_same_tensors(first: &Path, second: &Path) {
    let (first, second) = (all_tensors(first), all_tensors(second));
    assert_eq!(first.len(), second.len());
    for ((name, a), (other, b)) in first.iter().zip(&second) {
        assert_eq!(name, other);
        assert!(a == b, "{name}");
    }
}

fn assert_written_back(files: Vec<(PathBuf, Declared)>) {
    let folder = tempfile::tempdir().unwrap();
    for (path, declared) in files {
        let checkpoint = read(&path, &declared).unwrap();
        for name in ["out.safetensors", "out.pth"] {
            let out = folder.path().join(name);
            write(&checkpoint, &out).unwrap();
            assert_same_tensors(&path, &out);
            let back = read(&out, &Declared::default()).unwrap();
            assert_eq!(back.model, checkpoint.model, "{}", path.display());
        }
    }
}

#[test]
fn an_unchanged_model_is_written_back_bit_for_bit_in_either_container() {
    assert_written_back(readable());
}

#[test]
#[ignore = "needs checkpoints beside the project"]
fn published_models_are_written_back_bit_for_bit_in_either_container() {
    assert_written_back(published());
}

fn assert_dynamics_alone_suffice(files: Vec<(PathBuf, Declared)>) {
    let folder = tempfile::tempdir().unwrap();
    for (path, declared) in files {
        let whole = read(&path, &declared).unwrap();
        let mut alone = read_dynamics(&path, &declared).unwrap();
        assert!(alone.model.encoder().is_none() && alone.model.head().is_none());
        for (a, b) in whole.model.blocks().iter().zip(alone.model.blocks()) {
            assert_eq!(a.systems(), b.systems());
        }
        alone.model = with_systems(&alone.model, shifted_residues);
        let out = folder.path().join("out.pth");
        write(&alone, &out).unwrap();
        let back = read(&out, &Declared::default()).unwrap();
        assert_eq!(back.model.encoder(), whole.model.encoder());
        assert_eq!(back.model.head(), whole.model.head());
        assert_ne!(
            back.model.blocks()[0].systems(),
            whole.model.blocks()[0].systems()
        );
    }
    for file in [
        "bad/nan.safetensors",
        "bad/extra.safetensors",
        "bad/missing.safetensors",
    ] {
        assert!(matches!(
            read_dynamics(data(file), &Declared::default()),
            Err(CheckpointError::Content(_))
        ));
    }
}

#[test]
fn the_dynamics_alone_are_the_same_systems_and_write_the_same_file() {
    assert_dynamics_alone_suffice(readable());
}

#[test]
#[ignore = "needs checkpoints beside the project"]
fn the_dynamics_of_published_models_alone_write_the_same_file() {
    assert_dynamics_alone_suffice(published());
}

fn shifted_residues(system: &DiagonalSystem) -> DiagonalSystem {
    let residues: Vec<_> = system.residues().unwrap().iter().map(|r| r * 1.5).collect();
    let (time, exponents) = (system.time(), system.exponents().to_vec());
    let feedthrough = system.feedthrough()[(0, 0)];
    DiagonalSystem::siso(time, exponents, &residues, feedthrough).unwrap()
}

#[test]
fn the_written_file_needs_no_declaration_again() {
    let folder = tempfile::tempdir().unwrap();
    let declared = Declared {
        norm: Some(Placement::Pre),
        ..softmax()
    };
    let checkpoint = open("dss_softmax_classifier.pth", declared);
    for name in ["out.safetensors", "out.pth"] {
        let out = folder.path().join(name);
        write(&checkpoint, &out).unwrap();
        let back = read(&out, &Declared::default()).unwrap();
        assert!(back.assumptions().is_empty());
        assert_eq!(back.declared(), checkpoint.declared());
        let other = Declared {
            norm: Some(Placement::Post),
            ..Declared::default()
        };
        let overruled = read(&out, &other).unwrap();
        assert_eq!(overruled.declared().norm, Some(Placement::Post));
    }
}

#[test]
fn a_sidecar_declares_and_a_bad_one_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pth");
    std::fs::copy(data("dss_softmax_classifier.pth"), &path).unwrap();
    let sidecar = folder.path().join("model.hankelite.toml");
    std::fs::write(&sidecar, "length = 48\nnorm = \"pre\"\n").unwrap();
    let checkpoint = read(&path, &Declared::default()).unwrap();
    assert_eq!(checkpoint.declared().length, Some(48));
    assert_eq!(checkpoint.declared().norm, Some(Placement::Pre));
    std::fs::write(&sidecar, "lenght = 48\n").unwrap();
    let error = read(&path, &Declared::default()).err().unwrap().to_string();
    assert!(
        error.contains("model.hankelite.toml") && error.contains("lenght"),
        "{error}"
    );
}

#[test]
fn a_sidecar_in_a_folder_declares_for_the_checkpoint_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pytorch_model.bin");
    std::fs::copy(data("dss_softmax_classifier.pth"), &path).unwrap();
    let sidecar = folder.path().join("pytorch_model.hankelite.toml");
    std::fs::write(sidecar, "length = 48\nnorm = \"pre\"\n").unwrap();
    let checkpoint = read(folder.path(), &Declared::default()).unwrap();
    assert_eq!(checkpoint.declared().length, Some(48));
    assert_eq!(checkpoint.declared().norm, Some(Placement::Pre));
}

fn fault(name: &str, declared: Declared) -> String {
    match read(data(name), &declared).err() {
        Some(CheckpointError::Content(content)) => content.to_string(),
        Some(other) => panic!("{name}: {other}"),
        None => panic!("{name} was read"),
    }
}

#[test]
fn models_of_other_kinds_are_refused_by_name() {
    let none = Declared::default();
    for (file, word) in [
        ("bad/dplr.pth", "DPLR"),
        ("bad/mamba.safetensors", "Mamba"),
        ("bad/cnn.pth", "convolutional"),
    ] {
        let found = fault(file, none);
        assert!(found.contains("found by tensor"), "{file}: {found}");
        assert!(found.contains(word), "{file}: {found}");
    }
}

#[test]
#[ignore = "needs checkpoints beside the project"]
fn published_models_with_a_low_rank_term_are_refused_by_name() {
    let none = Declared::default();
    for name in ["mnist100HZ", "ppg100HZ", "ppg50HZ"] {
        let path = shared(&format!("data/checkpoints/asleep-ece/{name}_ckpt.pth"));
        let error = read(&path, &none).err().unwrap().to_string();
        assert!(
            error.contains("DPLR") && error.contains("kernel.P"),
            "{error}"
        );
    }
}

#[test]
fn faults_of_the_tensors_name_the_tensor_and_what_was_expected() {
    for (file, words) in [
        ("mixed_families", "expected one family"),
        ("nan", "tensor `s4_layers.1.kernel.C` holds NaN"),
        (
            "missing",
            "tensor `s4_layers.1.kernel.log_dt` is missing, expected",
        ),
        ("extra", "1 tensors belong to no known part of the model"),
        ("shapes", "kernel.C` has shape"),
    ] {
        let found = fault(&format!("bad/{file}.safetensors"), Declared::default());
        assert!(found.contains(words), "{file}: {found}");
    }
}

#[test]
fn the_softmax_kernel_asks_for_its_length_and_a_version_must_fit_the_tensors() {
    let found = fault("dss_softmax_classifier.pth", Declared::default());
    assert!(found.contains("the file does not record"), "{found}");
    let declared = Declared {
        dss_version: Some(DssVersion::Exp),
        length: Some(48),
        ..Declared::default()
    };
    let found = fault("dss_softmax_classifier.pth", declared);
    assert!(found.contains("contradicts"), "{found}");
}

#[test]
fn containers_that_are_no_checkpoint_are_refused_each_with_its_own_words() {
    for (file, word) in [
        ("bad/legacy.pth", "1.6"),
        ("bad/evil.pth", "system"),
        ("bad/whole_module.pth", "never runs code"),
        ("bad/torchscript.pt", "TorchScript"),
        ("bad/lfs_pointer.pth", "Git LFS"),
    ] {
        let error = read(data(file), &Declared::default()).err().unwrap();
        assert!(
            matches!(error, CheckpointError::Archive(_)),
            "{file}: {error}"
        );
        assert!(error.to_string().contains(word), "{file}: {error}");
    }
    let error = read(Path::new("/no/such/file.pth"), &Declared::default())
        .err()
        .unwrap();
    assert!(matches!(error, CheckpointError::Archive(_)), "{error}");
}

#[test]
fn tensors_of_every_type_are_read_and_none_is_dropped() {
    let error = Archive::open(data("complex_int_bool.pth"))
        .err()
        .map(|error| error.to_string());
    // complex128 has no place in the archive; it is named, never skipped.
    let error = error.expect("the file holds a complex128 tensor");
    assert!(
        error.contains("ComplexDouble") || error.contains("complex128"),
        "{error}"
    );
}

#[test]
fn a_pole_that_the_layout_cannot_hold_is_named() {
    let checkpoint = open("s4d_classifier.pth", Declared::default());
    let mut systems = checkpoint.model.blocks()[1].systems().to_vec();
    let system = &systems[2];
    let mut exponents = system.exponents().to_vec();
    exponents[3].re = 0.25;
    let residues = system.residues().unwrap();
    systems[2] = DiagonalSystem::siso(system.time(), exponents, &residues, 0.0).unwrap();
    let model = changed(&checkpoint.model, |parts| {
        change_layer(parts, 1, |layer| layer.systems = systems);
    });
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.pth");
    let error = write(&checkpoint.with_model(model), &out).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("layer `s4_layers.1`, channel 2: pole"),
        "{text}"
    );
    assert!(!out.exists());
}

#[test]
fn a_number_that_overflows_the_files_dtype_is_named_before_anything_is_written() {
    let checkpoint = open("mixed_dtypes.pth", Declared::default());
    let model = with_systems(&checkpoint.model, |system| {
        let residues = system.residues().unwrap();
        let residues: Vec<_> = residues.iter().map(|r| r * 1e60).collect();
        let (time, exponents) = (system.time(), system.exponents().to_vec());
        DiagonalSystem::siso(time, exponents, &residues, 0.0).unwrap()
    });
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.pth");
    let error = write(&checkpoint.with_model(model), &out).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("tensor `s4_layers.0.kernel.C` would hold"),
        "{text}"
    );
    assert!(!out.exists());
}

#[test]
fn a_dss_version_declared_for_s4d_layers_is_a_contradiction() {
    let declared = Declared {
        dss_version: Some(DssVersion::Exp),
        ..Declared::default()
    };
    let found = fault("s4d_classifier.pth", declared);
    assert!(found.contains("contradicts"), "{found}");
}

#[test]
fn the_source_is_never_overwritten_and_a_missing_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::copy(data("s4d_layer.safetensors"), &path).unwrap();
    let checkpoint = read(&path, &Declared::default()).unwrap();
    let same = folder.path().join(".").join("model.safetensors");
    let error = write(&checkpoint, &same).unwrap_err();
    assert!(
        matches!(
            error,
            CheckpointError::Archive(ArchiveError::SameFile { .. })
        ),
        "{error}"
    );
    let error = write(&checkpoint, folder.path().join("no/out.pth")).unwrap_err();
    assert!(
        matches!(
            error,
            CheckpointError::Archive(ArchiveError::MissingFolder { .. })
        ),
        "{error}"
    );
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "nothing is left behind");
}

#[test]
fn the_ending_of_the_output_chooses_the_container() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = open("s4d_layer.safetensors", Declared::default());
    for (name, container) in [
        ("a.safetensors", Container::Safetensors),
        ("a.pth", Container::Torch),
        ("a.without_a_known_ending", Container::Safetensors),
    ] {
        let out = folder.path().join(name);
        write(&checkpoint, &out).unwrap();
        assert_eq!(
            Archive::open(&out).unwrap().container(),
            container,
            "{name}"
        );
    }
}

/// Every number around the systems, moved by amounts that single precision holds.
fn retrained(checkpoint: &Checkpoint) -> Checkpoint {
    use std::sync::Arc;
    let moved = |values: &mut [f64]| {
        values
            .iter_mut()
            .for_each(|x| *x = f64::from((*x * 1.25) as f32))
    };
    let moved_map = |linear: &mut Linear| {
        moved(Arc::make_mut(&mut linear.weight).as_mut_slice());
        moved(linear.bias.as_mut().unwrap());
    };
    let model = changed(&checkpoint.model, |parts| {
        if let Some(Encoder::Linear(linear)) = &mut parts.encoder {
            moved_map(linear);
        }
        for index in 0..parts.blocks.len() {
            change_layer(parts, index, |layer| {
                moved_map(&mut layer.output.as_mut().unwrap().linear);
                let Norm::Layer(norm) = &mut layer.norm.as_mut().unwrap().0 else {
                    panic!("the fixtures have layer norms");
                };
                moved(&mut norm.weight);
                moved(&mut norm.bias);
            });
        }
        moved_map(&mut parts.head.as_mut().unwrap().linear);
    });
    checkpoint.with_model(model)
}

#[test]
fn weights_that_were_trained_are_written_in_the_layout_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for (file, _, declared) in classifiers() {
        if file == "mixed_dtypes.pth" {
            continue; // Its half precision rounds.
        }
        let before = open(file, declared);
        let after = retrained(&before);
        let path = folder.path().join(file);
        write(&after, &path).unwrap();
        let found = read(&path, &declared).unwrap();
        assert!(found.model == after.model, "{file}");
        let (old, new) = (
            Archive::open(data(file)).unwrap(),
            Archive::open(&path).unwrap(),
        );
        assert!(old.names().eq(new.names()), "{file}");
        for name in old.names() {
            assert_eq!(old.shape(name), new.shape(name), "{file} {name}");
            let trained = ["encoder", "output_linear", "norms", "decoder"];
            let trained = trained.iter().any(|part| name.contains(part));
            let same = old.tensor(name).unwrap() == new.tensor(name).unwrap();
            assert_eq!(same, !trained, "{file} {name}");
        }
        assert_eq!(after.parameters().unwrap(), before.parameters().unwrap());
    }
}

#[test]
fn a_weight_of_another_size_is_refused() {
    let checkpoint = open("s4d_classifier.pth", Declared::default());
    let model = changed(&checkpoint.model, |parts| {
        let linear = &mut parts.head.as_mut().unwrap().linear;
        linear.weight = linear.weight.columns(0, 2).into_owned().into();
        linear.bias.as_mut().unwrap().truncate(2);
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.pth");
    let error = write(&checkpoint.with_model(model), &path).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("tensor `decoder.weight` has shape"), "{text}");
    assert!(!path.exists());
}

#[test]
fn a_new_model_is_written_as_example_py_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let source = Archive::open(data("s4d_classifier.safetensors")).unwrap();
    for (file, golden_file, declared) in classifiers() {
        if file.starts_with("dss") {
            continue; // See the next test.
        }
        let model = open(file, declared).model;
        let new = Checkpoint::new_s4d(&model).unwrap();
        for name in ["new.safetensors", "new.pth"] {
            let path = folder.path().join(name);
            write(&new, &path).unwrap();
            let written = Archive::open(&path).unwrap();
            assert!(written.names().eq(source.names()), "{file}");
            for tensor in source.names() {
                assert_eq!(
                    written.shape(tensor),
                    source.shape(tensor),
                    "{file} {tensor}"
                );
            }
            let found = read(&path, &Declared::default()).unwrap();
            assert!(found.assumptions().is_empty());
            assert!(found.model == new.model, "{file}");
            assert_close_to(&found, &model, golden_file, 1e-5);
        }
    }
    // Batch norms, no pooling, plain output maps.
    let (other, _) = variants(&open("s4d_classifier.pth", Declared::default()).model);
    let new = Checkpoint::new_s4d(&other).unwrap();
    let path = folder.path().join("other.safetensors");
    write(&new, &path).unwrap();
    let found = read(&path, &Declared::default()).unwrap();
    assert!(found.model == new.model && found.model.head().unwrap().pooling.is_none());
}

#[test]
fn the_layout_of_a_new_model_holds_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    // Any stable diagonal system, whatever file it came from.
    let dss = open("dss_softmax_classifier.pth", softmax()).model;
    let new = Checkpoint::new_s4d(&dss).unwrap();
    assert_close_to(
        &new,
        &dss,
        "dss_softmax_classifier_golden.safetensors",
        1e-5,
    );
    let unstable = open("dss_softmax_unstable.pth", softmax()).model;
    let error = Checkpoint::new_s4d(&unstable).err().unwrap().to_string();
    assert!(error.contains("cannot be written as S4D"), "{error}");
    for model in [&dss, &unstable] {
        let new = Checkpoint::new_dss_softmax(model, 48).unwrap();
        let path = folder.path().join("softmax.safetensors");
        write(&new, &path).unwrap();
        let found = read(&path, &Declared::default()).unwrap();
        assert!(found.model == new.model);
        // That of the same inputs as every classifier's.
        assert_close_to(
            &found,
            model,
            "dss_softmax_unstable_golden.safetensors",
            1e-4,
        );
    }
    let (_, both_ways) = variants(&dss);
    let error = Checkpoint::new_dss_softmax(&both_ways, 48).err().unwrap();
    assert!(error.to_string().contains("bidirectional"), "{error}");
    let one_way = changed(&both_ways, |parts| {
        change_layer(parts, 0, |layer| layer.backward.clear());
    });
    let error = Checkpoint::new_s4d(&one_way).err().unwrap().to_string();
    assert!(error.contains("bidirectional"), "{error}");
    let layer = open("s4d_layer.safetensors", Declared::default()).model;
    let error = Checkpoint::new_s4d(&layer).err().unwrap().to_string();
    assert!(error.contains("the model has no encoder"), "{error}");
}

#[test]
fn a_new_model_in_both_directions_is_written_as_version_4_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = open("s4d_classifier.pth", Declared::default()).model;
    let (_, both_ways) = variants(&model);
    let new = Checkpoint::new_s4d(&both_ways).unwrap();
    assert_eq!(new.family(), "S4D (state-spaces/s4 v4)");
    for name in ["both.safetensors", "both.pth"] {
        let path = folder.path().join(name);
        write(&new, &path).unwrap();
        let written = Archive::open(&path).unwrap();
        let (block, order) = (&model.blocks()[0], model.blocks()[0].order());
        let shape = written.shape("s4_layers.0.layer.kernel.C").unwrap();
        assert_eq!(shape, [2, block.channels(), order, 2]);
        let found = read(&path, &Declared::default()).unwrap();
        assert!(found.assumptions().is_empty(), "{:?}", found.assumptions());
        assert!(found.model == new.model);
        assert_eq!(found.model.blocks()[0].backward_from(), 1);
        assert_close_to(
            &found,
            &both_ways,
            "s4d_classifier_golden.safetensors",
            1e-5,
        );
    }
    // The second direction counts.
    let both = logits(&new, "s4d_classifier_golden.safetensors", Run::Fft);
    let causal = logits(
        &new.with_model(model),
        "s4d_classifier_golden.safetensors",
        Run::Fft,
    );
    let apart = both.iter().zip(&causal).map(|(a, b)| (a - b).abs());
    assert!(apart.fold(0.0, f64::max) > 1e-2);
    let own_poles = changed(&both_ways, |parts| {
        change_layer(parts, 0, |layer| {
            let step = layer.systems[0].time();
            let poles = vec![num_complex::Complex64::new(-0.5, 1.0)];
            let residues = [num_complex::Complex64::ONE];
            layer.backward[0] = DiagonalSystem::siso(step, poles, &residues, 0.0).unwrap();
        });
    });
    let error = Checkpoint::new_s4d(&own_poles).err().unwrap().to_string();
    assert!(error.contains("poles"), "{error}");
}

/// The logits of two models differ by single precision only.
fn assert_close_to(
    found: &Checkpoint,
    model: &hankelite::model::Model,
    golden_file: &str,
    tolerance: f64,
) {
    let expected = logits(&found.with_model(model.clone()), golden_file, Run::Fft);
    let found = logits(found, golden_file, Run::Fft);
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= tolerance * expected.abs().max(1.0));
    }
}

/// The model with batch norms, plain output maps and outputs at every step; and a bidirectional
/// one.
fn variants(model: &hankelite::model::Model) -> (hankelite::model::Model, hankelite::model::Model) {
    let without_feedthrough = |system: &DiagonalSystem| {
        let residues = system.residues().unwrap();
        let (time, exponents) = (system.time(), system.exponents().to_vec());
        DiagonalSystem::siso(time, exponents, &residues, 0.0).unwrap()
    };
    let batch_norm = |layer: &mut BlockParts| {
        let (norm, _) = layer.norm.as_mut().unwrap();
        let (weight, bias, epsilon) = norm.affine();
        *norm = Norm::Batch(BatchNorm {
            weight: weight.to_vec(),
            bias: bias.to_vec(),
            mean: bias.iter().map(|x| x + 1.0).collect(),
            variance: bias.iter().map(|x| x.abs() + 0.5).collect(),
            epsilon,
        });
        let output = layer.output.as_mut().unwrap();
        let channels = output.linear.weight.nrows();
        output.gate = Gate::None;
        output.linear.weight = output
            .linear
            .weight
            .columns(0, channels)
            .into_owned()
            .into();
        output.linear.bias.as_mut().unwrap().truncate(channels);
    };
    let both_ways = |layer: &mut BlockParts| {
        layer.backward = layer.systems.iter().map(without_feedthrough).collect();
    };
    let layers = 0..model.blocks().len();
    let other = changed(model, |parts| {
        let mut layers = layers.clone();
        layers
            .by_ref()
            .for_each(|index| change_layer(parts, index, batch_norm));
        parts.head.as_mut().unwrap().pooling = None;
    });
    let both_ways = changed(model, |parts| {
        layers.for_each(|index| change_layer(parts, index, both_ways));
    });
    (other, both_ways)
}

/// ‖k − k'‖/‖k‖ of the worst channel.
fn worst_kernel_change(one: &Checkpoint, other: &Checkpoint) -> f64 {
    let blocks = one.model.blocks().iter().zip(other.model.blocks());
    let systems = blocks.flat_map(|(a, b)| a.systems().iter().zip(b.systems()));
    let changes = systems.map(|(a, b)| {
        let apart = hankelite::advanced::kernel_distance(a, b, 256);
        apart.unwrap().relative()
    });
    changes.fold(0.0, f64::max)
}

#[test]
fn another_number_format_keeps_systems_that_it_would_change() {
    let waves = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/models/waves/model.safetensors"
    );
    let full = read(waves, &Declared::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (dtype, name) in [(Dtype::F16, "f16"), (Dtype::BF16, "bf16")] {
        for end in ["safetensors", "pth"] {
            let path = folder.path().join(format!("{name}.{end}"));
            let encoded = full.encode().unwrap().in_dtype(dtype).unwrap();
            let kept = encoded.kept_layers().to_vec();
            let bytes = encoded.file_bytes(&path).unwrap();
            drop(encoded.write(&path).unwrap());
            let written = std::fs::metadata(&path).unwrap().len();
            assert_eq!(written, bytes, "{name}.{end}");
            let whole = full.encode().unwrap().file_bytes(&path).unwrap();
            assert!(bytes < whole, "{name}.{end}: {bytes} of {whole}");
            // Poles of a hundred radians in the unit of their step do not take eleven bits.
            assert!(kept.iter().all(|layer| layer.change > 0.01), "{kept:?}");
            assert_eq!(kept.len(), full.model.blocks().len(), "{kept:?}");
            let back = read(&path, &Declared::default()).unwrap();
            assert_eq!(worst_kernel_change(&full, &back), 0.0, "{name}.{end}");
            for (tensor, raw) in all_tensors(&path) {
                let of_systems = tensor.contains("kernel") || tensor.ends_with(".D");
                let expected = if of_systems { Dtype::F32 } else { dtype };
                assert_eq!(raw.dtype(), expected, "{tensor}");
            }
        }
    }
    let same = full.encode().unwrap().in_dtype(Dtype::F32).unwrap();
    assert!(same.kept_layers().is_empty());
    let path = folder.path().join("same.safetensors");
    drop(same.write(&path).unwrap());
    assert_same_tensors(Path::new(waves), &path);
}

#[test]
fn tensors_in_memory_are_read_as_those_of_a_file() {
    let path = data("s4d_classifier.safetensors");
    let archive = Archive::open(&path).unwrap();
    let named = archive.names().map(|name| {
        let tensor = archive.tensor(name).unwrap();
        (name.to_string(), tensor)
    });
    let from_file = read(&path, &Declared::default()).unwrap();
    let in_memory = from_tensors("the tensors", named.collect(), &Declared::default()).unwrap();
    assert!(in_memory.model == from_file.model);
    assert_eq!(
        in_memory.system_tensors(1),
        [
            "D",
            "kernel.A_imag",
            "kernel.C",
            "kernel.log_A_real",
            "kernel.log_dt"
        ]
        .map(|name| format!("s4_layers.1.{name}"))
    );
    let small = reduce(&in_memory.model, &Plan::new(Rule::Order(2)).unwrap()).unwrap();
    let small = in_memory.with_model(small.model);
    let tensors = small.encode().unwrap().into_archive();
    assert_eq!(tensors.shape("s4_layers.1.kernel.C"), Some(&[4, 2, 2][..]));
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("small.safetensors");
    write(&small, &written).unwrap();
    let written = Archive::open(&written).unwrap();
    for name in tensors.names() {
        assert_eq!(tensors.tensor(name).unwrap(), written.tensor(name).unwrap());
    }
    let nothing = from_tensors("the tensors", BTreeMap::new(), &Declared::default());
    assert!(
        nothing
            .err()
            .unwrap()
            .to_string()
            .starts_with("the tensors: ")
    );
}

#[test]
fn another_number_format_halves_a_layer_of_slow_modes() {
    let tensor = |shape: &[usize], value: f64| {
        let values = vec![value; shape.iter().product()];
        RawTensor::from_f64(Dtype::F32, shape.to_vec(), &values).unwrap()
    };
    let tensors = [
        ("D", tensor(&[2], 1.0)),
        ("kernel.log_dt", tensor(&[2], -4.1)),
        ("kernel.log_A_real", tensor(&[2, 1], -0.7)),
        ("kernel.A_imag", tensor(&[2, 1], 3.1)),
        ("kernel.C", tensor(&[2, 1, 2], 0.3)),
    ];
    let named = tensors.map(|(name, tensor)| (name.to_string(), tensor));
    let layer = from_tensors("a layer", named.into(), &Declared::default()).unwrap();
    let encoded = layer.encode().unwrap().in_dtype(Dtype::F16).unwrap();
    assert!(encoded.kept_layers().is_empty());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layer.safetensors");
    drop(encoded.write(&path).unwrap());
    let back = read(&path, &Declared::default()).unwrap();
    let change = worst_kernel_change(&layer, &back);
    assert!(change > 0.0 && change < 0.02, "{change}");
    let mut all = all_tensors(&path).into_iter();
    assert!(all.all(|(_, raw)| raw.dtype() == Dtype::F16));
}

#[test]
fn bytes_in_memory_give_the_model_and_the_bytes_of_files() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/waves/model.safetensors");
    let declared = Declared::default();
    let of_file = read(&path, &declared).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let name = "model.safetensors";
    let of_bytes = read_files(name, Box::new(bytes), BTreeMap::new(), &declared).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::new(Rule::Order(8)).unwrap();
    let made = |checkpoint: &Checkpoint| {
        let reduced = reduce(&checkpoint.model, &plan).unwrap();
        checkpoint.with_model(reduced.model)
    };
    let (of_file, of_bytes) = (made(&of_file), made(&of_bytes));
    for name in ["r8.safetensors", "r8.pth", "r8.npz"] {
        let to = folder.path().join(name);
        let written = of_file.encode().unwrap().write(&to).unwrap();
        let mut bytes = Cursor::new(Vec::new());
        let encoded = of_bytes.encode().unwrap();
        let in_memory = encoded.write_into(name, &mut bytes, |bytes| {
            Box::new(bytes.get_ref().clone()) as Box<dyn ReadAt>
        });
        assert!(bytes.into_inner() == std::fs::read(&to).unwrap(), "{name}");
        assert_eq!(in_memory.unwrap(), written, "{name}");
    }
}
