//! `compress-model pack --c-header`: what it writes compiles with `device/hankelite.c` and gives what
//! `stream` prints.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![cfg(target_os = "linux")]

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{here, top};
use serde_json::Value;

fn program(program: &str, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that has enough closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn compress_model(arguments: &[&str], input: &str) -> Output {
    program(env!("CARGO_BIN_EXE_compress-model"), arguments, input)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// As the comment of a header tells: one model, its numbers or tokens from standard input, the last
/// outputs.
const MAIN: &str = r#"
#include "hankelite.h"
#include "NAME.h"
#include <stdio.h>

static float state[UPPER_STATE], work[UPPER_WORK];
static hk_model model;

int main(void) {
    int k;
    if (hk_check(&model, NAME_image.bytes, UPPER_IMAGE_BYTES) != HK_OK) return 1;
    if (hk_state_bytes(&model) != UPPER_STATE_BYTES || sizeof state != UPPER_STATE_BYTES) return 2;
    if (hk_work_bytes(&model) != UPPER_WORK_BYTES || sizeof work != UPPER_WORK_BYTES) return 3;
    if (model.outputs != UPPER_OUTPUTS || hk_reset(&model, state) != HK_OK) return 4;
#ifdef UPPER_VOCABULARY
    {
        unsigned token;
        if (model.inputs != UPPER_VOCABULARY) return 5;
        while (scanf("%u", &token) == 1)
            if (hk_step_token(&model, state, work, token) != HK_OK) return 6;
    }
#else
    {
        float inputs[UPPER_INPUTS];
        if (model.inputs != UPPER_INPUTS) return 5;
        for (k = 0; scanf("%f", inputs + k) == 1;)
            if (++k == UPPER_INPUTS) {
                if (hk_step(&model, state, work, inputs) != HK_OK) return 6;
                k = 0;
            }
    }
#endif
    for (k = 0; k < UPPER_OUTPUTS; k++) printf("%.9g\n", (double)hk_logits(&model, work)[k]);
    return 0;
}
"#;

/// The outputs of a header in C.
fn from_c(folder: &Path, name: &str, input: &str) -> Vec<f32> {
    let (source, made) = (folder.join("main.c"), folder.join(name));
    let upper = name.to_ascii_uppercase();
    let main = MAIN.replace("NAME", name).replace("UPPER", &upper);
    fs::write(&source, main).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let mut command = Command::new(compiler);
    command.args(["-std=c99", "-O2", "-ffp-contract=off", "-Wall", "-Wextra"]);
    command.args(["-Wpedantic", "-Wconversion", "-Werror", "-I"]);
    command
        .arg(folder)
        .arg("-I")
        .arg(top().join("device"))
        .arg(&source);
    command
        .arg(top().join("device/hankelite.c"))
        .arg("-o")
        .arg(&made);
    let output = command.arg("-lm").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = program(made.to_str().unwrap(), &[], input);
    assert!(output.status.success(), "{name}: {output:?}");
    let lines = text(&output.stdout);
    lines.lines().map(|y| y.parse().unwrap()).collect()
}

#[test]
fn a_header_gives_the_logits_of_stream() {
    let folder = tempfile::tempdir().unwrap();
    let waves = top().join("models/waves/model.safetensors");
    let numbers: Vec<String> = (0..64)
        .map(|k| (0.3 * f64::from(k)).sin().to_string())
        .collect();
    let tokens: Vec<String> = (0..64).map(|k| (k * 5 % 3).to_string()).collect();
    let [numbers, tokens] = [numbers, tokens].map(|words| words.join("\n"));
    for (name, model, input, kinds) in [
        ("waves", waves.clone(), &numbers, &[][..]),
        (
            "small_2",
            waves,
            &numbers,
            &["--mixing", "int4", "--numbers", "f16"],
        ),
        (
            "tokens",
            here("data/flax/lru_tokens.safetensors"),
            &tokens,
            &["--mixing", "int8"],
        ),
    ] {
        let model = model.to_str().unwrap();
        let header = folder.path().join(format!("{}.h", name.replace('_', "-")));
        let header = header.to_str().unwrap();
        let packed = compress_model(
            &[&["pack", model, "--c-header", header], kinds].concat(),
            "",
        );
        assert!(packed.status.success(), "{}", text(&packed.stderr));
        let told = text(&packed.stdout);
        assert!(
            told.contains(header) && told.contains("bytes of state"),
            "{told}"
        );
        // The name in C is another than that of the file.
        fs::rename(header, folder.path().join(format!("{name}.h"))).unwrap();
        let found = from_c(folder.path(), name, input);
        let arguments = [&["stream", model, "--last", "--format", "json"], kinds].concat();
        let streamed = compress_model(&arguments, input);
        assert!(streamed.status.success(), "{}", text(&streamed.stderr));
        let expected: Vec<f32> = serde_json::from_slice(&streamed.stdout).unwrap();
        assert_eq!(found.len(), expected.len());
        // The program has vector units, which fuse products: in maps of integers the last digit of
        // an input decides how it is rounded to 8 bits.
        let near = if kinds.is_empty() { 2e-5 } else { 2e-2 };
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() <= near * b.abs().max(1.0), "{name}: {a} {b}");
        }
    }
}

#[test]
fn a_header_goes_beside_an_image_or_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let waves = top().join("models/waves/model.safetensors");
    let waves = waves.to_str().unwrap();
    let [image, first, second] = [path("a.edge"), path("a.h"), path("b.h")];
    let both = [
        "pack",
        waves,
        "--output",
        &image,
        "--c-header",
        &first,
        "--format",
        "json",
    ];
    let both = compress_model(&both, "");
    assert!(both.status.success(), "{}", text(&both.stderr));
    let document: Value = serde_json::from_slice(&both.stdout).unwrap();
    assert_eq!(document["image"], *image);
    assert_eq!(document["c_header"], *first);
    // Of an image, too, and then the same bytes.
    let again = compress_model(&["pack", &image, "--c-header", &second], "");
    assert!(again.status.success(), "{}", text(&again.stderr));
    let bytes = |path: &str| -> Vec<u8> {
        let header = fs::read_to_string(path).unwrap();
        let (_, rest) = header.split_once("{{\n").unwrap();
        let (bytes, _) = rest.split_once("}}").unwrap();
        let bytes = bytes
            .split(',')
            .map(str::trim)
            .filter(|byte| !byte.is_empty());
        bytes.map(|byte| byte.parse().unwrap()).collect()
    };
    assert_eq!(bytes(&first), fs::read(&image).unwrap());
    assert_eq!(bytes(&second), bytes(&first));
}

#[test]
fn names_that_are_no_header_and_no_place_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let waves = top().join("models/waves/model.safetensors");
    let waves = waves.to_str().unwrap();
    for (arguments, code, words) in [
        (
            vec!["--c-header".to_string(), path("a.hpp")],
            2,
            "expected a name that ends in .h",
        ),
        (
            vec!["--c-header".to_string(), path("hankelite.h")],
            2,
            "the runtime's own header",
        ),
        (vec!["--output".to_string(), path("a.c")], 1, "--c-header"),
        (vec!["--c-header".to_string(), path("no/a.h")], 1, "no/a.h"),
        (vec![], 2, "--output <FILE>"),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = compress_model(&[&["pack", waves], &arguments[..]].concat(), "");
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// What a sketch calls of a board: pins whose values follow from the step, and the serial line.
const BOARD: &str = r#"
#include <cstdint>
#include <cstdio>
static const int A0 = 14;
static long samples;
static int analogRead(int pin) { return (int)((samples++ * 37 + pin) % 1024); }
struct Line {
    void begin(long) {}
    void println(int number) { std::printf("%d\n", number); }
    void println(const char *text) { std::printf("%s\n", text); }
    int available() { return 1; }
    long parseInt() { return samples++ % 5; }
};
static Line Serial;
"#;

/// Compiles a library and runs its sketch for some steps.
fn sketched(library: &Path, steps: usize) -> String {
    let folder = library.parent().unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_string();
    fs::write(folder.join("Arduino.h"), BOARD).unwrap();
    let main = format!("int main() {{ setup(); for (int i = 0; i < {steps}; i++) loop(); }}\n");
    let sketch = fs::read_to_string(library.join("examples/Stream/Stream.ino")).unwrap();
    // The tools put this line before a sketch.
    let sketch = format!("#include <Arduino.h>\n{sketch}{main}");
    fs::write(folder.join("sketch.cpp"), sketch).unwrap();
    let source = library.join("src");
    let include = format!("-I{}", source.display());
    let runtime = source.join("hankelite.c").to_str().unwrap().to_string();
    let strict = [
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Wconversion",
        "-Werror",
        "-O1",
    ];
    let c = [
        "-std=c99",
        "-ffp-contract=off",
        "-c",
        &runtime,
        "-o",
        &path("runtime.o"),
    ];
    let compiled = program("gcc", &[&strict[..], &c].concat(), "");
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    let beside = format!("-I{}", folder.display());
    let cpp = [
        "-std=c++11",
        &include,
        &beside,
        &path("sketch.cpp"),
        &path("runtime.o"),
    ];
    let warned = [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-function",
        "-lm",
        "-o",
        &path("sketch"),
    ];
    let compiled = program("g++", &[&cpp[..], &warned].concat(), "");
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    let run = program(&path("sketch"), &[], "");
    assert!(run.status.success());
    text(&run.stdout)
}

#[test]
fn an_arduino_library_compiles_and_its_sketch_gives_the_classes() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("Waves");
    let shown = library.to_str().unwrap();
    let waves = top().join("models/waves/model.safetensors");
    let waves = waves.to_str().unwrap();
    let mixing = ["--mixing", "int8"];
    let pack = ["pack", waves, "--arduino", shown, "--format", "json"];
    let packed = compress_model(&[&pack[..], &mixing].concat(), "");
    assert!(packed.status.success(), "{}", text(&packed.stderr));
    let document: Value = serde_json::from_slice(&packed.stdout).unwrap();
    assert_eq!(document["arduino"], *shown);
    let properties = fs::read_to_string(library.join("library.properties")).unwrap();
    assert!(
        properties.starts_with("name=Waves\nversion="),
        "{properties}"
    );
    for file in ["hankelite.c", "hankelite.h"] {
        let own = fs::read(top().join("device").join(file)).unwrap();
        assert_eq!(
            fs::read(library.join("src").join(file)).unwrap(),
            own,
            "{file}"
        );
    }
    assert!(library.join("src/model.h").exists());
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing else is left"
    );

    let steps = 1024;
    let classes = sketched(&library, steps);
    let samples = (0..steps).map(|k| (k * 37 + 14) % 1024);
    let samples: Vec<String> = samples
        .map(|v| (v as f32 / 511.5 - 1.0).to_string())
        .collect();
    let stream = ["stream", waves, "--every", "256", "--class"];
    let streamed = compress_model(&[&stream[..], &mixing].concat(), &samples.join("\n"));
    assert_eq!(classes, text(&streamed.stdout));
    assert_eq!(classes.lines().count(), 4);
}

#[test]
fn an_arduino_library_of_tokens_compiles() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("Tokens");
    let model = here("data/flax/lru_tokens.safetensors");
    let pack = [
        "pack",
        model.to_str().unwrap(),
        "--arduino",
        library.to_str().unwrap(),
    ];
    let packed = compress_model(&pack, "");
    assert!(packed.status.success(), "{}", text(&packed.stderr));
    assert_eq!(sketched(&library, 512).lines().count(), 2);
}

#[test]
fn a_library_never_takes_the_place_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let waves = top().join("models/waves/model.safetensors");
    let waves = waves.to_str().unwrap();
    fs::create_dir(folder.path().join("There")).unwrap();
    for (place, code, words) in [
        (path("There"), 1, "already there, expected a new folder"),
        (path("no/Waves"), 1, "no/Waves"),
        (path("a b"), 2, "as the Arduino tools name libraries"),
    ] {
        let output = compress_model(&["pack", waves, "--arduino", &place], "");
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let made = [
        "pack",
        waves,
        "--arduino",
        &path("no/Waves"),
        "--create-folders",
    ];
    assert!(compress_model(&made, "").status.success());
    assert!(folder.path().join("no/Waves/src/model.h").exists());
}
