//! `device/hankelite.c` against the plain path of `hankelite-edge`: images of every kind, spoiled
//! images, and what a compiler says of it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![cfg(target_os = "linux")]

mod common;
#[path = "common/draws.rs"]
mod draws;
#[path = "common/models.rs"]
mod models;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{here, top};
use draws::{DRAWS, Draw, PLAIN, Signal, model, of_all_lanes, of_orders, shared, storage};
use hankelite::checkpoint::HalfGate;
use hankelite::model::{Block, Model, ModelParts, Placement};
use hankelite::rounding::{Entries, Numbers, Storage};
use hankelite::stream::Image;
use hankelite::{Declared, read};
use hankelite_edge::{
    Header, ImageView, Input, Layer, MAGIC, Matrix, Plain, SharedSystem, StepFault, VERSION, code,
    step,
};
use models::{change_layer, changed};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What `device/hankelite.c` is held to.
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"];
/// The same bits need products and sums apart, whatever the compiler.
const APART: &str = "-ffp-contract=off";
const SANITIZED: [&str; 3] = [
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
];

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_string())
}

/// A folder for the programs and files of one test.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("device")
        .join(test);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles sources of `device` and `tests/device` as C99.
fn compiled(program: &Path, sources: &[&str], options: &[&str]) {
    let mut command = Command::new(compiler());
    command.current_dir(top()).args(["-std=c99", "-Idevice"]);
    command.args(WARNINGS).args(options).args(sources);
    if !options.contains(&"-c") {
        command.arg("-lm");
    }
    let output = command.arg("-o").arg(program).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && message.is_empty(),
        "{options:?}: {message}"
    );
}

/// An image and the words of every step: numbers, or a token.
struct Case {
    name: String,
    image: Image,
    steps: Vec<Vec<u32>>,
}

impl Case {
    fn new(name: String, image: Image, length: usize) -> Self {
        let random = &mut ChaCha8Rng::seed_from_u64(3);
        let mut steps = Vec::new();
        if let Ok(view) = ImageView::<f32>::new(image.as_bytes()) {
            let header = view.header();
            for k in 0..length {
                let tone = (0.1 * k as f32).sin();
                let mut number = || (tone + random.random_range(-1.0..1.0f32)).to_bits();
                // Silence now and then.
                let loud = u32::from(k % 8 != 7);
                steps.push(match header.encoder {
                    code::EMBEDDING => vec![k as u32 * 5 % header.inputs],
                    _ => (0..header.inputs).map(|_| loud * number()).collect(),
                });
            }
        }
        Self { name, image, steps }
    }

    /// What the plain path gives, as `tests/device/steps.c` writes it.
    fn expected(&self) -> Vec<u32> {
        let view = match ImageView::<f32>::new(self.image.as_bytes()) {
            Err(fault) => return vec![code_of(fault)],
            Ok(view) => view,
        };
        let header = view.header();
        let tokens = header.encoder == code::EMBEDDING;
        let (state_len, work_len) = (view.state_len(), view.work_len(1));
        let mut words = vec![0, header.inputs, header.outputs, tokens.into()];
        words.extend([state_len as u32, work_len as u32]);
        let mut state = vec![0.0; state_len];
        let mut work = vec![f32::NAN; work_len];
        for input in &self.steps {
            let numbers: Vec<f32> = input.iter().map(|word| f32::from_bits(*word)).collect();
            let input = match tokens {
                true => Input::Tokens(input),
                false => Input::Values(&numbers),
            };
            let outputs = step(Plain, &view, &mut state, &mut work, input).unwrap();
            words.push(0);
            words.extend(outputs.iter().map(|y| y.to_bits()));
        }
        words
    }

    /// What `tests/device/steps.c` reads.
    fn written(&self) -> Vec<u8> {
        let bytes = self.image.as_bytes();
        let inputs = self.steps.first().map_or(0, Vec::len);
        let head = [bytes.len(), self.steps.len(), inputs].map(|x| (x as u32).to_ne_bytes());
        let steps = self.steps.concat().into_iter().flat_map(u32::to_ne_bytes);
        let head = head.as_flattened().iter().chain(bytes).copied();
        head.chain(steps).collect()
    }
}

/// The code of the C file for a fault.
fn code_of(fault: StepFault) -> u32 {
    match fault {
        StepFault::NotAnImage { .. } => 2,
        StepFault::Version { .. } => 3,
        StepFault::Outside { .. } => 4,
        StepFault::Record { .. } => 5,
        other => panic!("{other}"),
    }
}

/// Runs all cases through a program: the words of each.
fn ran(program: &Path, cases: &[Case]) -> Vec<Vec<u32>> {
    let file = program.with_extension("in");
    fs::write(
        &file,
        cases.iter().flat_map(Case::written).collect::<Vec<u8>>(),
    )
    .unwrap();
    let mut command = Command::new(program);
    command
        .stdin(File::open(&file).unwrap())
        .stderr(Stdio::piped());
    let output = command.output().unwrap();
    fs::remove_file(&file).unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {message}", program.display());
    let words = output.stdout.as_chunks().0.iter();
    let mut words = words.map(|word| u32::from_ne_bytes(*word));
    let mut all = Vec::new();
    for case in cases {
        let mut own: Vec<u32> = words.by_ref().take(1).collect();
        if own == [0] {
            own.extend(words.by_ref().take(5));
            let count = case.steps.len() * (1 + own[2] as usize);
            own.extend(words.by_ref().take(count));
        }
        all.push(own);
    }
    assert_eq!(words.next(), None);
    all
}

/// The same bits, of numbers that are any.
fn same(found: &[u32], expected: &[u32]) -> bool {
    let is_nan = |word: u32| f32::from_bits(word).is_nan();
    let each = found.iter().zip(expected);
    let mut each = each.map(|(a, b)| a == b || is_nan(*a) && is_nan(*b));
    found.len() == expected.len() && each.all(|same| same)
}

const ALL_NUMBERS: [Numbers; 2] = [Numbers::F32, Numbers::F16];

/// Networks as files have them: every reader's kinds of layers, activations and ends.
fn from_files() -> Vec<(String, Model)> {
    let files = [
        "s4d_classifier.safetensors",
        "dss_exp_classifier.pth",
        "flax/s5_full_glu.safetensors",
        "flax/s5_half_glu2.safetensors",
        "flax/s5_gelu.safetensors",
        "flax/lru_half_glu1.safetensors",
        "flax/lru_tokens.safetensors",
    ];
    let files = files.map(|file| here("data").join(file));
    let files = files
        .into_iter()
        .chain([top().join("models/waves/model.safetensors")]);
    let mut models: Vec<_> = files.map(|path| known(&path, None)).collect();
    // Which kind of half gate it is no tensor records.
    let gates = here("data/flax/s5_half_glu2.safetensors");
    models.push(known(&gates, Some(HalfGate::HalfGlu2)));
    models
}

/// The network of a file, with its name.
fn known(path: &Path, half_gate: Option<HalfGate>) -> (String, Model) {
    let declared = Declared {
        half_gate,
        ..Declared::default()
    };
    let name = format!("{} {half_gate:?}", path.display());
    (name, read(path, &declared).unwrap().model)
}

/// Layers alone.
fn alone(blocks: Vec<Block>) -> Model {
    Model::new(ModelParts {
        encoder: None,
        blocks,
        final_norm: None,
        head: None,
    })
    .unwrap()
}

/// Models that no file has: places of 16 bits, layers alone, no modes.
fn drawn() -> Vec<(String, Model)> {
    let mut models = Vec::new();
    for (index, draw) in DRAWS.iter().enumerate() {
        models.push((format!("{draw:?}"), model(draw, 31 + index as u64)));
    }
    let wide = Draw {
        channels: 257,
        modes: 3,
        placement: Placement::Post,
        ..PLAIN
    };
    let wide = of_orders(&model(&wide, 41), |h| h % 4);
    models.push(("257 channels".to_string(), wide));
    let without = changed(&model(&PLAIN, 42), |parts| {
        (parts.encoder, parts.head, parts.final_norm) = (None, None, None);
        parts.blocks.truncate(1);
        change_layer(parts, 0, |layer| (layer.norm, layer.output) = (None, None));
    });
    models.push(("a layer alone".to_string(), without));
    let random = &mut ChaCha8Rng::seed_from_u64(12);
    for (channels, modes, dense) in [(6, 5, false), (16, 20, true), (3, 0, true), (5, 0, false)] {
        let name = format!("{modes} modes of {channels} channels");
        models.push((name, alone(vec![shared(random, channels, modes, dense)])));
    }
    // The widest system is not the last.
    let several = [5, 20, 3].map(|modes| shared(random, 6, modes, modes == 3));
    models.push(("several systems".to_string(), alone(several.into())));
    models
}

/// Images of all models with all entries and numbers.
fn cases(length: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for entries in Entries::ALL {
        for numbers in ALL_NUMBERS {
            let mut add = |name: &str, model: &Model, storage: &Storage| {
                let name = format!("{name} {entries:?} {numbers:?}");
                let image = Image::packed(model, storage).unwrap();
                cases.push(Case::new(name, image, length));
            };
            for (name, model) in from_files().iter().chain(&drawn()) {
                let storage = Storage::nearest(model, entries, 32).unwrap();
                add(name, model, &storage.with_numbers(numbers));
            }
            // Ends of integers, too, and other groups.
            for (draw, model, _) in of_all_lanes() {
                add(
                    &format!("{draw:?}"),
                    &model,
                    &storage(&model, entries, numbers),
                );
            }
        }
    }
    cases
}

/// Everything that the records of an image can hold, as this one has it.
fn kinds(image: &Image, found: &mut BTreeSet<String>) {
    let bytes = image.as_bytes();
    let view = ImageView::<f32>::new(bytes).unwrap();
    let header = *view.header();
    let mut see = |what: &str, kind: u8| found.insert(format!("{what} {kind}"));
    see("encoder", header.encoder);
    see("pooling", header.pooling);
    see("activation", header.activation);
    see("head", u8::from(header.head_at != 0));
    let mut matrices = vec![header.head_at];
    if header.encoder == code::LINEAR {
        matrices.push(header.encoder_at);
    }
    for index in 0..header.layers {
        let layer: Layer = view.layer(index).unwrap();
        see("dynamics", layer.dynamics);
        see("norm", layer.norm);
        see("before", layer.before);
        see("mixing", layer.mixing);
        see("feedthrough", u8::from(layer.feedthrough_at != 0));
        if layer.dynamics == code::CHANNELS {
            see("lanes", layer.lanes);
            see("numbers", layer.numbers);
            let words = u8::from(hankelite_edge::padded(header.channels as usize) > 256);
            see("places", if layer.places_at == 0 { 2 } else { words });
        }
        if layer.dynamics == code::SHARED {
            let system = SharedSystem::read(&bytes[layer.systems_at as usize..]).unwrap();
            let output = Matrix::read(&bytes[system.output_at as usize..]).unwrap();
            let parts = hankelite_edge::padded(2 * system.modes as usize) as u32;
            see("dense D", u8::from(output.inputs != parts));
            matrices.extend([system.input_at, system.output_at]);
        }
        matrices.push(layer.mixing_at);
    }
    for at in matrices.into_iter().filter(|at| *at != 0) {
        let matrix = Matrix::read(&bytes[at as usize..]).unwrap();
        see("entries", matrix.entries);
        see("bias", u8::from(matrix.bias_at != 0));
        see("numbers of a bias", matrix.numbers);
    }
}

/// How many kinds there are of each.
const KINDS: [(&str, u8, u8); 17] = [
    ("encoder", 0, 2),
    ("pooling", 0, 2),
    ("activation", 0, 1),
    ("head", 0, 1),
    ("dynamics", 0, 2),
    ("norm", 0, 2),
    ("before", 0, 1),
    ("mixing", 0, 4),
    ("feedthrough", 0, 1),
    ("lanes", 4, 4),
    ("lanes", 8, 8),
    ("lanes", 16, 16),
    ("numbers", 0, 1),
    ("places", 0, 2),
    ("dense D", 0, 1),
    ("entries", 0, 4),
    ("bias", 0, 1),
];

#[test]
fn every_kind_of_image_gives_the_bits_of_the_plain_path() {
    let folder = folder("bits");
    let cases = cases(40);
    let mut found = BTreeSet::new();
    cases.iter().for_each(|case| kinds(&case.image, &mut found));
    for (what, first, last) in KINDS {
        for kind in first..=last {
            assert!(
                found.contains(&format!("{what} {kind}")),
                "no image has {what} {kind}"
            );
        }
    }
    let expected: Vec<_> = cases.iter().map(Case::expected).collect();
    let variants: [&[&str]; 5] = [
        &["-O2", APART],
        &["-O2", APART, "-DHK_DSP", "-Itests/device/acle"],
        &["-Os", APART, "-DHK_NO_MATH", "-DHK_BYTES"],
        &["-O3", APART, "-DHK_NO_MATH"],
        &[&["-O1", APART][..], &SANITIZED].concat(),
    ];
    for (index, options) in variants.into_iter().enumerate() {
        let program = folder.join(format!("steps-{index}"));
        compiled(
            &program,
            &["device/hankelite.c", "tests/device/steps.c"],
            options,
        );
        for ((case, found), expected) in cases.iter().zip(ran(&program, &cases)).zip(&expected) {
            assert!(same(&found, expected), "{} {options:?}", case.name);
        }
    }
}

/// Products may be fused with sums: rounded once instead of twice.
#[test]
fn fused_products_stay_within_what_vector_units_differ_by() {
    let folder = folder("fused");
    let cases = cases(100);
    let program = folder.join("steps");
    let mut options = vec!["-O3", "-ffp-contract=fast"];
    if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
        options.push("-mfma");
        if !std::arch::is_x86_feature_detected!("fma") {
            eprintln!("not run: this processor fuses nothing");
            return;
        }
    }
    compiled(
        &program,
        &["device/hankelite.c", "tests/device/steps.c"],
        &options,
    );
    let mut differ = 0;
    for (case, found) in cases.iter().zip(ran(&program, &cases)) {
        let expected = case.expected();
        assert_eq!(found[..6], expected[..6], "{}", case.name);
        // The last digit of an input of a map of integers decides how it is rounded to 8 bits.
        let integers = ["Int8", "Int4", "Int3", "Int2"]
            .iter()
            .any(|kind| case.name.contains(kind));
        let near = if integers { 2e-2 } else { 2e-5 };
        for (a, b) in found[6..].iter().zip(&expected[6..]) {
            let (a, b) = (f32::from_bits(*a), f32::from_bits(*b));
            let scale = b.abs().max(1.0);
            assert!((a - b).abs() <= near * scale, "{}: {a} {b}", case.name);
            differ += usize::from(a != b);
        }
    }
    assert!(differ > 0, "nothing was fused");
}

/// Both runtimes take the same images, give the same code for all others, and compute the same
/// from what a spoiled image that passes holds.
#[test]
fn spoiled_images_are_refused_as_the_rust_runtime_refuses_them() {
    let random = &mut ChaCha8Rng::seed_from_u64(17);
    let made = made_up().into_iter();
    let mut cases: Vec<Case> = made
        .map(|image| Case::new("made up".to_string(), image, 2))
        .collect();
    let half = model(&DRAWS[1], 15);
    let files = ["lru_tokens", "s5_half_glu2"].map(|name| {
        let path = here("data/flax").join(format!("{name}.safetensors"));
        known(&path, Some(HalfGate::HalfGlu2)).1
    });
    let [tokens, gates] = files;
    for model in [half, model(&DRAWS[2], 16), tokens, gates] {
        for (entries, numbers) in [
            (Entries::Full, Numbers::F16),
            (Entries::Int8, Numbers::F32),
            (Entries::Int3, Numbers::F16),
            (Entries::Int2, Numbers::F16),
        ] {
            let storage = Storage::nearest(&model, entries, 32).unwrap();
            let image = Image::packed(&model, &storage.with_numbers(numbers)).unwrap();
            let edges = at_the_edge(&image).into_iter();
            cases.extend(edges.map(|image| Case::new("at the edge".to_string(), image, 2)));
            for _ in 0..400 {
                let image = Image::from_bytes(&spoiled(image.as_bytes(), random));
                cases.push(Case::new("spoiled".to_string(), image, 2));
            }
        }
    }
    let program = folder("spoiled").join("steps");
    let options = [&["-O1", APART][..], &SANITIZED].concat();
    compiled(
        &program,
        &["device/hankelite.c", "tests/device/steps.c"],
        &options,
    );
    let mut codes = [0; 6];
    for (index, (case, found)) in cases.iter().zip(ran(&program, &cases)).enumerate() {
        let expected = case.expected();
        assert!(
            same(&found, &expected),
            "{index}: {:?} {:?}",
            &found[..1],
            &expected[..1]
        );
        codes[found[0] as usize] += 1;
    }
    // Some of each: taken, no image, another version, outside, a record.
    assert!(
        [0, 2, 3, 4, 5].iter().all(|code| codes[*code] > 0),
        "{codes:?}"
    );
}

/// Short images that request much, as in the tests of `hankelite-edge`, and one with a misplaced norm.
fn made_up() -> Vec<Image> {
    let image = |channels: u32, layers: u32, rest: &[u8]| {
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            number: 4,
            bytes: (Header::BYTES + rest.len()) as u32,
            inputs: channels,
            channels,
            outputs: channels,
            layers,
            layers_at: Header::BYTES as u32,
            ..Header::default()
        };
        let bytes: Vec<u8> = header.to_bytes().chain(rest.iter().copied()).collect();
        Image::from_bytes(&bytes)
    };
    let behind = |layers: usize| (Header::BYTES + layers * Layer::BYTES) as u32;
    let many = Layer {
        dynamics: code::CHANNELS,
        lanes: 16,
        modes_at: behind(1000),
        systems_at: behind(1000) + 4,
        ..Layer::default()
    };
    let mut layers: Vec<u8> = (0..1000).flat_map(|_| many.to_bytes()).collect();
    // A hundred modes in sixteen lanes, four numbers each.
    layers.extend([100, 0, 0, 0]);
    layers.extend([0; 100 * 16 * 4 * 4]);
    let norm = Layer {
        norm: code::LAYER_NORM,
        numbers: code::HALF,
        norm_at: behind(1) + 2,
        ..Layer::default()
    };
    let norm: Vec<u8> = norm.to_bytes().chain([0; 80]).collect();
    vec![
        image(1 << 24, 0, &[]),
        image(1 << 13, 1000, &[0; 1 << 15]),
        image(16, 1000, &layers),
        image(16, 1, &norm),
    ]
}

/// Cut by a few bytes that the header does not count, and with a channel just beyond the last.
fn at_the_edge(image: &Image) -> Vec<Image> {
    let bytes = image.as_bytes();
    let mut images = Vec::new();
    for cut in 1..=4 {
        let mut short = bytes[..bytes.len() - cut].to_vec();
        let length = short.len() as u32;
        short[12..16].copy_from_slice(&length.to_le_bytes());
        images.push(Image::from_bytes(&short));
    }
    let view = ImageView::<f32>::new(bytes).unwrap();
    let width = hankelite_edge::padded(view.header().channels as usize) as u8;
    let places = view.layer(0).unwrap().places_at as usize;
    for place in [width - 1, width, 255] {
        let mut other = bytes.to_vec();
        // Where there are no places, in the header.
        other[places] = place;
        images.push(Image::from_bytes(&other));
    }
    images
}

/// An image cut short, or with some of its bytes or words others.
fn spoiled(bytes: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    for _ in 0..random.random_range(1..=3) {
        // The records of the layers stand before the head, near the end.
        let at = match random.random_range(0..4) {
            0 => random.random_range(0..44),
            1 | 2 => random.random_range(bytes.len() * 3 / 4..bytes.len()),
            _ => random.random_range(0..bytes.len()),
        };
        let word = [0, 1, 15, bytes.len() as u32, u32::MAX, at as u32];
        match random.random_range(0..8) {
            0 => {
                let length = random.random_range(0..=changed.len());
                changed.truncate(length);
            }
            1 | 2 if at / 4 * 4 + 4 <= changed.len() => {
                let word = word[random.random_range(0..word.len())];
                changed[at / 4 * 4..][..4].copy_from_slice(&word.to_le_bytes());
            }
            3..=5 if at < changed.len() => changed[at] = random.random_range(0..6),
            _ if at < changed.len() => changed[at] = random.random(),
            _ => {}
        }
    }
    changed
}

#[test]
fn its_functions_are_those_of_c() {
    let program = folder("functions").join("functions");
    compiled(&program, &["tests/device/functions.c"], &["-O2", APART]);
    let output = Command::new(&program).output().unwrap();
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{message}");
}

#[test]
fn what_is_not_there_or_of_another_kind_is_refused() {
    let folder = folder("refusals");
    let program = folder.join("refusals");
    let options = [&["-O1"][..], &SANITIZED].concat();
    compiled(
        &program,
        &["device/hankelite.c", "tests/device/refusals.c"],
        &options,
    );
    let images = [model(&PLAIN, 5), model(&DRAWS[4], 5)].map(|model| {
        let image = Image::new(&model, Entries::Full).unwrap();
        let file = folder.join(format!("{}.edge", image.as_bytes().len()));
        fs::write(&file, image.as_bytes()).unwrap();
        file
    });
    let output = Command::new(&program).args(images).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
}

/// What its head promises.
#[test]
fn the_runtime_is_short_and_needs_nothing_but_a_root() {
    let source = fs::read_to_string(top().join("device/hankelite.c")).unwrap();
    let header = fs::read_to_string(top().join("device/hankelite.h")).unwrap();
    assert!(source.lines().count() + header.lines().count() <= 1000);
    let object = folder("needs").join("hankelite.o");
    for (options, expected) in [
        (&["-Os"][..], &["sqrtf"][..]),
        (&["-Os", "-DHK_NO_MATH"], &[]),
    ] {
        compiled(
            &object,
            &["device/hankelite.c"],
            &[options, &["-c", "-ffreestanding"]].concat(),
        );
        let output = Command::new("nm").arg("-u").arg(&object).output().unwrap();
        let names = String::from_utf8(output.stdout).unwrap();
        let names = names.split_whitespace().filter(|name| *name != "U");
        // What a compiler may call without being asked to.
        let own = ["memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"];
        let names: Vec<&str> = names.filter(|name| !own.contains(name)).collect();
        let left = names.iter().filter(|name| !expected.contains(name)).count();
        assert_eq!(left, 0, "{options:?}: {names:?}");
    }
}

/// Both headers stand in one file, and C++ takes them.
#[test]
fn its_header_stands_beside_that_of_the_rust_library() {
    let file = folder("beside").join("both.c");
    let both = "#include \"device/hankelite.h\"\n#include \"crates/c/hankelite.h\"\n\
        int both(void);\nint both(void) { return (int)HK_OK + (int)HANKELITE_OK; }\n";
    fs::write(&file, both).unwrap();
    for language in [&["-x", "c", "-std=c99"][..], &["-x", "c++"]] {
        let mut command = Command::new(compiler());
        command
            .args(["-I", "."])
            .args(WARNINGS)
            .arg("-fsyntax-only")
            .args(language);
        let output = command.current_dir(top()).arg(&file).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{language:?}: {message}");
    }
}

/// The count of steps and the sums go on where a float would stop.
#[test]
fn a_mean_of_many_steps_is_that_of_the_plain_path() {
    let draw = Draw {
        channels: 1,
        modes: 1,
        ..PLAIN
    };
    let image = Image::new(&model(&draw, 9), Entries::Full).unwrap();
    let signal = Signal::new(1_100_000);
    let mut case = Case::new("a long signal".to_string(), image, 0);
    let words = signal.values.chunks(2);
    case.steps = words
        .map(|pair| pair.iter().map(|x| x.to_bits()).collect())
        .collect();
    let program = folder("mean").join("steps");
    compiled(
        &program,
        &["device/hankelite.c", "tests/device/steps.c"],
        &["-O2", APART],
    );
    let expected = case.expected();
    let found = ran(&program, &[case]).concat();
    assert!(same(&found, &expected));
}
