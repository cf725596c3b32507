//! A checkpoint in a layout that hankelite does not know, described, reduced and written.
//!
//! `cargo run --release -p hankelite --example own_layout`
//!
//! The same text in a file `NAME.layout.toml` beside the checkpoint does without any code:
//! docs/formats.md.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;

use hankelite::checkpoint::{OwnLayout, read_own};
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::Dtype;
use safetensors::tensor::TensorView;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (file, small) = (
        folder.path().join("mine.safetensors"),
        folder.path().join("small.safetensors"),
    );
    write_mine(&file)?;

    // Modes along the first axis; softplus for what must be positive; half of each pair.
    let layout = OwnLayout::parse(
        r#"
        axes = "mode-channel"
        factor = 2.0
        weight = "w"
        feedthrough = "skip"
        step = { name = "raw_step", transform = "softplus" }
        decay = { name = "raw_decay", transform = "softplus" }
        frequency = { name = "omega" }
        "#,
    )?;
    let full = read_own(&file, &layout, &Declared::default())?;
    let compressed = reduce(&full.model, &Plan::new(Rule::Order(3))?)?;
    let error = compressed.records[0].relative_h2_error;
    write(&full.with_model(compressed.model), &small)?;

    // The written file carries the description.
    let back = read(&small, &Declared::default())?;
    let orders = (
        full.model.blocks()[0].order(),
        back.model.blocks()[0].order(),
    );
    println!(
        "{} → {} modes, H2 error {:.1} %",
        orders.0,
        orders.1,
        100.0 * error
    );
    Ok(())
}

/// Four channels of eight modes.
fn write_mine(path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let numbers = |count: usize, of: &dyn Fn(usize) -> f32| -> Vec<u8> {
        (0..count).flat_map(|i| of(i).to_le_bytes()).collect()
    };
    let tensors: [(&str, Vec<usize>, Vec<u8>); 6] = [
        (
            "net.ssm.raw_step",
            vec![4],
            numbers(4, &|h| -3.0 + 0.3 * h as f32),
        ),
        ("net.ssm.raw_decay", vec![8, 4], numbers(32, &|_| -0.4)),
        (
            "net.ssm.omega",
            vec![8, 4],
            numbers(32, &|i| 3.1 * (i / 4) as f32),
        ),
        (
            "net.ssm.w",
            vec![8, 4, 2],
            numbers(64, &|i| (1.3 * i as f32).sin()),
        ),
        ("net.ssm.skip", vec![4], numbers(4, &|h| h as f32)),
        ("net.out.weight", vec![2, 4], numbers(8, &|i| i as f32)),
    ];
    let mut views = HashMap::new();
    for (name, shape, bytes) in &tensors {
        views.insert(*name, TensorView::new(Dtype::F32, shape.clone(), bytes)?);
    }
    safetensors::serialize_to_file(views, None, path)?;
    Ok(())
}
