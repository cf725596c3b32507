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
