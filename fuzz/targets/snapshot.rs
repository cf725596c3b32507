//! The snapshot that a training goes on from: its numbers, and the text that says where it stood.
//!
//! Four bytes of one number, which fills all tensors, then the text. The training goes on to its end.
#![no_main]

use std::path::Path;

use candle_core::{Device, Result, Tensor, Var};
use hankelite_data::Dataset;
use hankelite_fuzz::{MemoryFile, folder, safetensors, within};
use hankelite_train::nn::{Group, Mode, NetworkInput, Parameter, SequenceModel};
use hankelite_train::{Folder, Recipe, Stop, Task, Training};
use libfuzzer_sys::fuzz_target;

/// Classes, and the numbers in of each step.
const CLASSES: usize = 2;
const WIDTH: usize = 3;

/// One linear map of the mean over time.
struct Linear([Parameter; 1]);

impl Linear {
    fn new() -> Self {
        let zeros = Tensor::zeros((WIDTH, CLASSES), candle_core::DType::F32, &Device::Cpu);
        Self([Parameter {
            name: "w".to_string(),
            var: Var::from_tensor(&zeros.expect("small")).expect("on the host"),
            group: Group::Plain,
            scale: None,
        }])
    }
}

impl SequenceModel for Linear {
    fn forward(&self, input: &NetworkInput, _: Mode<'_>) -> Result<Tensor> {
        input.steps.mean(1)?.matmul(self.0[0].var.as_tensor())
    }

    fn parameters(&self) -> &[Parameter] {
        &self.0
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }
}

/// What does not change from one execution to the next.
struct Place {
    folder: Folder,
    data: Dataset,
    recipe: Recipe,
}

impl Place {
    fn new() -> Self {
        let path = folder();
        let file = MemoryFile::new("data.safetensors")
            .fill(&sequences())
            .path()
            .to_path_buf();
        let source = format!("{}", file.display()).parse().expect("a source");
        Self {
            folder: Folder::create(path.join("run"), "").expect("a new folder"),
            data: Dataset::read(&source, None).expect("sequences"),
            recipe: Recipe {
                epochs: Some(2),
                batch: 2,
                average: 0.5,
                keep_start: true,
                ..Recipe::default()
            },
        }
    }

    fn run(&self, snapshot: &[u8]) {
        let network = Linear::new();
        let training = Training {
            network: &network,
            data: &self.data,
            validation: Some(&self.data),
            recipe: &self.recipe,
        };
        for place in [self.folder.best(), self.folder.last()] {
            put(&place, snapshot);
        }
        put(&self.folder.metrics(), b"");
        let task = &mut Task {
            label_smoothing: 0.0,
        };
        let _ = training.run(task, Some(&self.folder), &mut (), &Stop::default());
    }
}

fn put(place: &Path, bytes: &[u8]) {
    std::fs::write(place, bytes).expect("the file can be written");
}

/// Four sequences of one step of two classes.
fn sequences() -> Vec<u8> {
    let inputs: Vec<u8> = (0..4 * WIDTH)
        .flat_map(|i| (i as f32).to_le_bytes())
        .collect();
    let labels: Vec<u8> = (0..4i64).flat_map(|i| (i % 2).to_le_bytes()).collect();
    safetensors(&[
        ("inputs", "F32", &[4, 1, WIDTH], &inputs),
        ("labels", "I64", &[4], &labels),
    ])
}

thread_local!(static PLACE: Place = Place::new());

fuzz_target!(|bytes: &[u8]| {
    let Some((number, text)) = bytes.split_at_checked(4) else {
        return;
    };
    let numbers = number.repeat(WIDTH * CLASSES);
    let shape = [WIDTH, CLASSES];
    let names = ["parameter.w", "first.w", "second.w", "average.0"];
    let tensors = names.map(|name| (name, "F32", &shape[..], &numbers[..]));
    let progress = ("progress", "U8", &[text.len()][..], text);
    let snapshot = safetensors(&[&tensors[..], &[progress]].concat());
    PLACE.with(|place| within(snapshot.len(), || place.run(&snapshot)));
});
