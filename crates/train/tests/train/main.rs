//! The trainer on a network of four tensors, and the program on small networks.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../../tests/common/mod.rs"]
mod common;
mod filter;
mod kept;
mod one_logit;
#[path = "../../../../tests/common/points.rs"]
mod points;
mod reducing;
mod runs;
mod small;
mod steps;
mod taught;
mod terms;
mod trial;

use hankelite_train::Recipe;

#[test]
fn every_key_is_documented() {
    let full = Recipe {
        epochs: Some(1),
        steps: Some(1),
        clip: Some(1.0),
        lr_steps: Some(0.0),
        ..Recipe::default()
    };
    let text = toml::to_string(&full).unwrap();
    let architecture = hankelite_train::nn::Architecture {
        inputs: Some(1),
        vocabulary: Some(1),
        initialisation: Some(hankelite_train::nn::Initialisation::Lin),
        ..toml::from_str(MODEL).unwrap()
    };
    let reducing = hankelite_train::Reducing::default();
    let text =
        text + &toml::to_string(&architecture).unwrap() + &toml::to_string(&reducing).unwrap();
    let documented = include_str!("../../../../docs/training.md");
    for line in text.lines() {
        let key = line.split(' ').next().unwrap();
        assert!(documented.contains(&format!("| `{key}` |")), "{key}");
    }
}

#[test]
fn every_term_is_documented() {
    let text = "[regularise]\nweight = 1.0\n[distil]\n[trust]\nstep = 1.0\ndecay = 1.0\n\
                frequency = 1.0\nweights = 1.0\nfeedthrough = 1.0\nothers = 1.0";
    let terms: hankelite_train::Terms = toml::from_str(text).unwrap();
    let documented = include_str!("../../../../docs/pipeline.md");
    for line in toml::to_string(&terms).unwrap().lines() {
        let key = line.split(' ').next().unwrap();
        let shown = format!("`{key}`");
        assert!(key.is_empty() || documented.contains(&shown), "{key}");
    }
}

const MODEL: &str =
    "layer = \"s4d\"\nchannels = 1\nstates = 1\nlayers = 1\ninputs = 1\noutputs = 1";
