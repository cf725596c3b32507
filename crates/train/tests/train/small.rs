//! A network of four tensors, and a task for it.

use candle_core::{DType, Device, Result, Tensor, Var};
use hankelite_data::Dataset;
use hankelite_train::nn::{Buffer, Group, Mode, NetworkInput, Parameter, SequenceModel};
use hankelite_train::{Folder, Observer, Outcome, Recipe, Step, Stop, Task, TrainError, Training};
use rand_chacha::rand_core::RngCore;

pub(crate) const WIDTH: usize = 2;
pub(crate) const HIDDEN: usize = 5;
use crate::points::CLASSES;

/// Mean over time of tanh(d ∘ (x W₁ + b)), dropout, then W₂; a buffer counts the forward passes
/// in training.
pub(crate) struct Small {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) dropout: bool,
}

impl Small {
    pub(crate) fn new(dtype: DType, start: impl Fn(&str, usize) -> Vec<f64>) -> Self {
        let parameter = |name: &str, shape: &[usize], group: Group| {
            let values = start(name, shape.iter().product());
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
            Parameter {
                name: name.to_string(),
                var: Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap(),
                group,
                scale: None,
            }
        };
        let passes = Tensor::zeros(1, dtype, &Device::Cpu).unwrap();
        Self {
            parameters: vec![
                parameter("d", &[HIDDEN], Group::Dynamics),
                parameter("w1", &[WIDTH, HIDDEN], Group::Plain),
                parameter("b", &[HIDDEN], Group::NoDecay),
                parameter("w2", &[HIDDEN, CLASSES], Group::Plain),
            ],
            buffers: vec![Buffer {
                name: "passes".to_string(),
                var: Var::from_tensor(&passes).unwrap(),
            }],
            dropout: true,
        }
    }

    /// The same start every time.
    pub(crate) fn started() -> Self {
        Self::new(DType::F32, |name, count| {
            let of = |i: usize| ((i * 7 + name.len() * 3) % 11) as f64 / 11.0 - 0.4;
            (0..count).map(of).collect()
        })
    }

    pub(crate) fn values(&self) -> Vec<Vec<f32>> {
        let parameters = self.parameters.iter().map(|parameter| &parameter.var);
        let buffers = self.buffers.iter().map(|buffer| &buffer.var);
        let all = parameters.chain(buffers);
        all.map(|var| var.flatten_all().unwrap().to_vec1().unwrap())
            .collect()
    }
}

impl SequenceModel for Small {
    fn forward(&self, input: &NetworkInput, mode: Mode<'_>) -> Result<Tensor> {
        let var = |index: usize| self.parameters[index].var.as_tensor();
        let (batch, length, width) = input.steps.dims3()?;
        let x = input.steps.reshape((batch * length, width))?;
        let x = x.matmul(var(1))?.broadcast_add(var(2))?;
        let x = x.broadcast_mul(var(0))?.tanh()?;
        let mut x = x.reshape((batch, length, HIDDEN))?.mean(1)?;
        if let Mode::Train(generator) = mode {
            let passes = &self.buffers[0].var;
            passes.set(&(passes.as_tensor().detach() + 1.0)?)?;
            if self.dropout {
                let keep = (0..batch * HIDDEN).map(|_| (generator.next_u32() % 8 > 0) as u32);
                let keep = Tensor::from_vec(keep.collect(), (batch, HIDDEN), x.device())?;
                let keep = keep.to_dtype(x.dtype())?;
                x = (x * keep)?;
            }
        }
        x.matmul(var(3))
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }
}

pub(crate) fn recipe() -> Recipe {
    Recipe {
        epochs: Some(6),
        batch: 16,
        lr: 0.05,
        lr_dynamics: 0.02,
        clip: Some(1.0),
        average: 0.6,
        warmup: 3,
        label_smoothing: 0.05,
        snapshot_every: 2,
        seed: 5,
        ..Recipe::default()
    }
}

/// A run on data and, perhaps, validation data.
pub(crate) fn run(network: &Small, sets: Sets<'_>, recipe: &Recipe) -> Ran {
    run_in(network, sets, recipe, (None, &mut (), &Stop::default()))
}

/// As [`run`], in a folder, with an observer that may stop it.
pub(crate) fn run_in(
    network: &Small,
    (data, validation): Sets<'_>,
    recipe: &Recipe,
    (folder, observer, stop): (Option<&Folder>, &mut dyn Observer, &Stop),
) -> Ran {
    let training = Training {
        network,
        data,
        validation,
        recipe,
    };
    let label_smoothing = recipe.label_smoothing;
    training.run(&mut Task { label_smoothing }, folder, observer, stop)
}

pub(crate) type Sets<'a> = (&'a Dataset, Option<&'a Dataset>);
pub(crate) type Ran = std::result::Result<Outcome, TrainError>;

/// Stops behind a step.
pub(crate) struct StopAfter(pub(crate) u64, pub(crate) Stop);

impl Observer for StopAfter {
    fn step(&mut self, step: &Step) {
        if step.step >= self.0 {
            self.1.request();
        }
    }
}

/// `check` returns the error of a training that cannot run.
pub(crate) fn refused(data: (&Dataset, Option<&Dataset>), recipe: &Recipe) -> TrainError {
    let network = Small::started();
    run(&network, data, recipe).unwrap_err()
}
