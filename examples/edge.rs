//! A model on a device: the image in flash, two arrays in memory, no operating system.
//!
//! ```text
//! cargo run --release -p hankelite --example edge
//! ```
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;

use hankelite::rounding::Entries;
use hankelite::stream::Image;
use hankelite_edge::{Input, Plain, StepFault, step};

/// Numbers that the model needs, known when the firmware is built: 2 layers × 16 channels × 8 states
/// × 2 parts, the sums of the mean and the count of steps.
const STATE: usize = 546;
/// What `compress-model pack` says.
const WORK: usize = 106;

/// What the firmware does with every sample; nothing in it needs the standard library.
fn classify(image: &[u8], samples: impl Iterator<Item = f32>) -> Result<usize, StepFault> {
    let image = hankelite_edge::ImageView::<f32>::new(image)?;
    let mut state = [0.0; STATE];
    let mut work = [0.0; WORK];
    let mut class = 0;
    for sample in samples {
        let input = Input::Values(std::slice::from_ref(&sample));
        let logits = step(Plain, &image, &mut state, &mut work, input)?;
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        class = logits.iter().position(|&y| y == largest).unwrap_or(0);
    }
    Ok(class)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // On the host: cut the states to 8 for each channel and lay the model out with 8-bit maps.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/waves");
    let full = hankelite::read(folder.join("model.safetensors"), &Default::default())?;
    let plan = hankelite::Plan::new(hankelite::Rule::Order(8))?;
    let small = hankelite::reduce(&full.model, &plan)?.model;
    let image = Image::new(&small, Entries::Int8)?;
    println!("{} bytes in flash", image.as_bytes().len());
    println!("{} bytes of memory", 4 * (STATE + WORK));

    // On the device: one sample at a time.
    let tone = (0..256).map(|k| (0.4 * k as f32).sin());
    let square = (0..256).map(|k| (0.4 * k as f32).sin().signum());
    println!("a tone:        class {}", classify(image.as_bytes(), tone)?);
    println!(
        "a square wave: class {}",
        classify(image.as_bytes(), square)?
    );
    Ok(())
}
