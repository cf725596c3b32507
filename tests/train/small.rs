//! A network of four tensors, and a task for it.

use std::path::Path;

use candle_core::DType;
use candle_core::Device;
use candle_core::Result;
use candle_core::Tensor;
use candle_core::Var;
use hankelite::checkpoint::Dtype;
use hankelite::checkpoint::RawTensor;
use hankelite::checkpoint::write_arrays;
use hankelite::data::Dataset;
use hankelite::data::Source;
use hankelite::nn::Buffer;
use hankelite::nn::Group;
use hankelite::nn::Input;
use hankelite::nn::Mode;
use hankelite::nn::Parameter;
use hankelite::nn::SequenceModel;
use hankelite::train::Folder;
use hankelite::train::Observer;
use hankelite::train::Outcome;
use hankelite::train::Recipe;
use hankelite::train::Step;
use hankelite::train::Stop;
use hankelite::train::Task;
use hankelite::train::TrainError;
use hankelite::train::Training;
use rand_chacha::rand_core::RngCore;

pub(crate) const WIDTH: usize = 2;
pub(crate) const HIDDEN: usize = 5;
pub(crate) const CLASSES: usize = 3;

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
    fn forward(&self, input: &Input, mode: Mode<'_>) -> Result<Tensor> {
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

/// Sequences of noise around one of three points of the plane; the class is the point.
pub(crate) fn points(folder: &Path, count: usize) -> Dataset {
    let mut state = 12345u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f64 / f64::from(1u32 << 24) - 0.5
    };
    let centres = [(1.0, 0.0), (-0.5, 0.8), (-0.5, -0.8)];
    let (mut inputs, mut labels) = (vec![], vec![]);
    for index in 0..count {
        let (x, y) = centres[index % CLASSES];
        labels.extend((index as i64 % CLASSES as i64).to_le_bytes());
        (0..4).for_each(|_| inputs.extend([x + noise(), y + noise()]));
    }
    let path = folder.join("points.safetensors");
    let inputs = RawTensor::from_f64(Dtype::F32, vec![count, 4, WIDTH], &inputs);
    let labels = RawTensor {
        dtype: Dtype::I64,
        shape: vec![count],
        bytes: labels,
    };
    write_arrays(&path, &[("inputs", inputs), ("labels", labels)]).unwrap();
    Dataset::read(&Source::Arrays(path), None).unwrap()
}

pub(crate) fn recipe() -> Recipe {
    Recipe {
        epochs: Some(6),
        batch: 16,
        lr: 0.05,
        lr_dynamics: 0.02,
        clip: Some(1.0),
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

/// As [`run`], in a folder, with someone who listens and may stop it.
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
            self.1.ask();
        }
    }
}

/// `check` returns the error of a training that cannot run.
pub(crate) fn refused(data: (&Dataset, Option<&Dataset>), recipe: &Recipe) -> TrainError {
    let network = Small::started();
    run(&network, data, recipe).unwrap_err()
}
