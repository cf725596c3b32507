//! `compress-model retrain` on layers with several inputs: an S5 and an LRU.

use std::path::Path;

use crate::program::{Program, killed_until_done, loss};

/// The fixture as `full.safetensors`, its reduction as `small.safetensors`, and points without labels.
fn reduced(fixture: &str) -> Program {
    let program = Program::new(200);
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/flax");
    let file = top.join(format!("{fixture}.safetensors"));
    std::fs::copy(file, program.path("full.safetensors")).unwrap();
    let reduce = ["reduce", "full.safetensors", "--order", "2"];
    program.json(&[&reduce[..], &["--output", "small.safetensors"]].concat());
    program.bare();
    program
}

const TAUGHT: [&str; 6] = [
    "retrain",
    "small.safetensors",
    "--teacher",
    "full.safetensors",
    "--data",
    "bare.safetensors",
];

#[test]
fn layers_with_several_inputs_follow_their_teacher_and_keep_their_layout() {
    for fixture in ["s5_full_glu", "lru_half_glu1"] {
        let program = reduced(fixture);
        let record = program.json(&[&TAUGHT[..], &["--output", "better.safetensors"]].concat());
        let distance = |part: &str| record[part]["distance"].as_f64().unwrap();
        assert!(
            distance("validation") < 0.9 * distance("before"),
            "{fixture}: {record}"
        );
        assert!(record["trial"]["tried"].as_array().unwrap().len() >= 3);
        let shapes = |file: &str| {
            let archive = hankelite_archive::Archive::open(Path::new(&program.path(file))).unwrap();
            let shape = |name: &str| (name.to_string(), archive.shape(name).unwrap().to_vec());
            archive.names().map(shape).collect::<Vec<_>>()
        };
        assert_eq!(shapes("small.safetensors"), shapes("better.safetensors"));
        // The host finds the loss of what was written, and it is that of the trainer.
        let evaluate = [
            "evaluate",
            "better.safetensors",
            "--data",
            "points.safetensors",
        ];
        let host = loss(&program.json(&evaluate));
        let trainer = loss(&program.json(&[&evaluate[..], &["--device", "cpu"]].concat()));
        assert!(
            (host - trainer).abs() < 1e-5 * (1.0 + host),
            "{host} {trainer}"
        );
    }
}

#[test]
fn a_retraining_of_such_layers_that_was_killed_anywhere_goes_on_to_the_same_bytes() {
    let program = reduced("lru_half_glu1");
    let run =
        |name: &'static str| [&TAUGHT[..], &["-q", "--epochs", "4", "--output", name]].concat();
    let whole = program.command(&run("whole.safetensors")).status().unwrap();
    assert!(whole.success());
    killed_until_done(&program, &run("killed.safetensors"), "killed.run");
    assert_eq!(
        program.bytes("whole.safetensors"),
        program.bytes("killed.safetensors")
    );
}

#[test]
fn a_penalty_on_filters_is_refused_by_the_name_of_the_layer() {
    let program = reduced("s5_full_glu");
    program.config("[regularise]\npenalty = \"hankel\"\nweight = 0.1");
    let retrain = [
        &TAUGHT[..],
        &["--config", "config.toml", "--output", "no.safetensors"],
    ]
    .concat();
    program.refuses(&retrain, &["[regularise]", "layers_0", "several inputs"]);
    assert!(!Path::new(&program.path("no.run")).exists());
}
