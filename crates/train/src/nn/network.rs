//! A trainable network from a model, and a model from a trained network.

use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::OnceLock;

#[cfg(feature = "cuda")]
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, bail};
use hankelite::model::{Block, Gate, Model, ModelParts, Placement};
use hankelite_kernels::Workspaces;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::nn::block::{Dropout, TrainableBlock, TrainableNorm};
#[cfg(feature = "cuda")]
use crate::nn::dynamics::ModesLeaf;
use crate::nn::dynamics::{TrainableDynamics, modes_for};
use crate::nn::ends::{TrainableEncoder, TrainableHead};
#[cfg(feature = "cuda")]
use crate::nn::gpu::{
    self,
    leaf::{Leaf, PartGradients},
};
use crate::nn::hankel::{HankelPlan, hankel};
use crate::nn::parameterisation::ModeForm;
use crate::nn::plan::{Encoding, NetworkPlan, NetworkTensors, Size};
use crate::nn::random::{Draw, random_model};
use crate::nn::tensors::TensorType;
use crate::nn::{
    Architecture, Buffer, HeldMaps, Mode, NetworkError, NetworkInput, Parameter, Parameterisation,
    Penalty, SequenceModel, Traced, Wanted, op,
};

/// The stream of a seed's random numbers for a measurement, apart from those of the model.
const SENSING: u64 = 1;

/// A training step looks at the Hankel values of every so many channels.
const HANKEL_EVERY: usize = 16;

/// Settings of a trainable network.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainableOptions {
    /// Steps of the sequences that will be trained on, at least 1. DSS-softmax depends on it; the
    /// others run at any length.
    pub length: usize,
    /// f32 for training (the default), f64 for checks.
    pub dtype: DType,
    /// The share of channels that dropout silences after GELU and after the output map, 0 (the
    /// default) up to below 1; one draw for all steps of a sequence.
    pub dropout: f64,
    /// How poles and weights are trained. `None` (the default) takes S4D, or DSS-softmax where a
    /// mode does not decay.
    pub parameterisation: Option<Parameterisation>,
    /// Whether the rates of poles are scaled down where a kernel would turn over at a small step: see
    /// [`Parameter::scale`]. `false` is the default.
    pub scaled_poles: bool,
    /// Which maps are held at few bits. The default leaves all as they are.
    pub maps: HeldMaps,
}

impl TrainableOptions {
    /// The defaults for sequences of `length` steps.
    pub fn new(length: usize) -> Self {
        Self {
            length,
            dtype: DType::F32,
            dropout: 0.0,
            parameterisation: None,
            scaled_poles: false,
            maps: HeldMaps::default(),
        }
    }

    fn check(&self) -> Result<(), NetworkError> {
        if self.length == 0 {
            let (what, found, expected) = ("the length", 0.0, "at least 1 step");
            return Err(NetworkError::Option {
                what,
                found,
                expected,
            });
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(NetworkError::Option {
                what: "dropout",
                found: self.dropout,
                expected: "0 up to below 1",
            });
        }
        let groups = self.maps.all().map(|choice| choice.group);
        let mut wrong = groups.filter(|&group| group == 0 || !group.is_multiple_of(16));
        if let Some(group) = wrong.next() {
            return Err(NetworkError::Option {
                what: "the group of [maps]",
                found: group as f64,
                expected: "a multiple of 16",
            });
        }
        match self.dtype {
            DType::F32 | DType::F64 => Ok(()),
            found => Err(NetworkError::Dtype { found }),
        }
    }
}

/// A trainable network: encoder, blocks, pooling and head, each as far as the model has it.
///
/// On the processor all blocks are one operation with its own gradient, on all threads of rayon's
/// global pool; the same bits for any number of them. On other devices the blocks are put
/// together from candle's operations and, on a GPU, from kernels of our own. Layers whose channels share
/// modes (S5, LRU) take no [`Penalty`].
///
/// Work is shared out by slabs of two sequences (of 2⌊16/H⌋ where H < 16), so a batch should hold
/// several slabs for each thread. Buffers of a step are kept for the next one.
///
/// Padding behind a sequence's length does not enter the pooled outputs, but in a bidirectional
/// layer it does reach the steps before it, as in the public code.
pub struct TrainableNetwork {
    encoder: Option<TrainableEncoder>,
    blocks: Vec<TrainableBlock>,
    /// Between the last block and the head.
    final_norm: Option<TrainableNorm>,
    head: Option<TrainableHead>,
    parameters: Vec<Parameter>,
    buffers: Vec<Buffer>,
    channels: usize,
    dropout: f64,
    dtype: DType,
    device: Device,
    workspaces: Arc<Workspaces>,
    #[cfg(feature = "cuda")]
    leaves: OnceLock<Option<Leaves>>,
}

impl TrainableNetwork {
    /// The network of a model.
    ///
    /// # Errors
    /// [`NetworkError`]: modes that the parameterisation cannot hold, parts that do not fit
    /// together, settings outside their range.
    pub fn from_model(
        model: &Model,
        options: &TrainableOptions,
        device: &Device,
    ) -> Result<Self, NetworkError> {
        options.check()?;
        check_channels(model)?;
        let layers = model.blocks().len();
        for found in [&options.maps.layers, &options.maps.systems].map(Vec::len) {
            if ![0, layers].contains(&found) {
                return Err(NetworkError::Maps { found, layers });
            }
        }
        let to = TensorType {
            dtype: options.dtype,
            device,
        };
        let form = ModeForm {
            kind: options.parameterisation.unwrap_or_else(|| fitting(model)),
            length: options.length,
            scaled: options.scaled_poles,
        };
        let maps = &options.maps;
        let blocks = model.blocks().iter().enumerate();
        let blocks =
            blocks.map(|(layer, block)| TrainableBlock::new(block, form, maps.layer(layer), to));
        let encoder = model.encoder();
        let encoder = encoder.map(|encoder| TrainableEncoder::new(encoder, maps.encoder, to));
        let last = model.final_norm();
        let last = last.map(|norm| TrainableNorm::new(norm, Placement::Post, to));
        let head = model.head();
        let head = head.map(|head| TrainableHead::new(head, maps.head, to));
        let mut network = Self {
            encoder: encoder.transpose()?,
            blocks: blocks.collect::<Result<_, _>>()?,
            final_norm: last.transpose()?,
            head: head.transpose()?,
            parameters: Vec::new(),
            buffers: Vec::new(),
            channels: model.blocks().first().map_or(0, Block::channels),
            dropout: options.dropout,
            dtype: options.dtype,
            device: device.clone(),
            workspaces: Workspaces::new(),
            #[cfg(feature = "cuda")]
            leaves: OnceLock::new(),
        };
        network.list();
        Ok(network)
    }

    /// A network from scratch: [`random_model`] made trainable in the parameterisation of its
    /// layers, in f32.
    ///
    /// # Errors
    /// [`NetworkError::Architecture`], and as [`TrainableNetwork::from_model`].
    pub fn random(
        architecture: &Architecture,
        length: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Self, NetworkError> {
        let model = random_model(architecture, length, seed)?;
        let options = TrainableOptions {
            dropout: architecture.dropout,
            parameterisation: Some(architecture.layer.parameterisation()),
            ..TrainableOptions::new(length)
        };
        let network = Self::from_model(&model, &options, device)?;
        network.measured(architecture.measurements, seed)
    }

    /// With a random trainable measurement S of so many rows in front of a random encoder, which
    /// takes the place of the linear one; the same network for `None`. [`TrainableNetwork::to_model`] gives
    /// the product of both as its encoder.
    ///
    /// # Errors
    /// [`NetworkError::Candle`] without a linear encoder.
    pub fn measured(mut self, rows: Option<usize>, seed: u64) -> Result<Self, NetworkError> {
        let (Some(rows), Some(encoder)) = (rows, &self.encoder) else {
            return Ok(self);
        };
        let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
        draw.0.set_stream(SENSING);
        self.encoder = Some(encoder.measured(rows, &mut draw)?);
        self.parameters.clear();
        self.buffers.clear();
        self.list();
        Ok(self)
    }

    /// The model as it is trained now. What was not changed comes back to the rounding of the
    /// network's number type; poles, weights and steps of a layer that was not changed, and its
    /// feedthrough, to the last bit.
    ///
    /// # Errors
    /// [`NetworkError::System`] where training has led to numbers that are not finite.
    pub fn to_model(&self) -> Result<Model, NetworkError> {
        let blocks = self.blocks.iter().map(TrainableBlock::to_block);
        let last = |norm: &TrainableNorm| Ok::<_, candle_core::Error>(norm.to_norm()?.0);
        let encoder = self.encoder.as_ref();
        let head = self.head.as_ref();
        Ok(Model::new(ModelParts {
            encoder: encoder.map(TrainableEncoder::to_encoder).transpose()?,
            blocks: blocks.collect::<Result<_, _>>()?,
            final_norm: self.final_norm.as_ref().map(last).transpose()?,
            head: head.map(TrainableHead::to_head).transpose()?,
        })?)
    }

    fn list(&mut self) {
        let encoder = self.encoder.iter().flat_map(TrainableEncoder::parameters);
        self.parameters.extend(encoder);
        for (index, block) in self.blocks.iter().enumerate() {
            let prefix = format!("blocks.{index}.");
            self.parameters.extend(block.parameters(&prefix));
            self.buffers.extend(block.buffers(&prefix));
        }
        if let Some(norm) = &self.final_norm {
            self.parameters.extend(norm.parameters("final_"));
            self.buffers.extend(norm.buffers("final_"));
        }
        let head = self.head.iter().flat_map(TrainableHead::parameters);
        self.parameters.extend(head);
    }

    fn plan(
        &self,
        input: &NetworkInput,
        wanted: Wanted,
        mut random: Option<&mut ChaCha8Rng>,
    ) -> candle_core::Result<(NetworkPlan, Size)> {
        let dims = input.steps.dims();
        let &[batch, length, ..] = dims else {
            bail!("the steps have shape {dims:?}, expected batch x length (x width)");
        };
        let size = Size {
            batch,
            length,
            channels: self.channels,
        };
        let training = random.is_some();
        let shared = self.blocks.iter().find(|block| block.shared().is_some());
        if let (Some(block), Some(_)) = (shared, wanted.penalty) {
            bail!(
                "layer `{}` has several inputs, and penalties on filters are for layers with one \
                 system for each channel: expected no table [regularise]",
                block.name()
            );
        }
        // That of the modes needs no kernels.
        let of_kernels = wanted.penalty.filter(|penalty| *penalty != Penalty::Hankel);
        let encoder = self.encoder.as_ref();
        let head = self.head.as_ref();
        // What is normalised first is pooled behind that.
        let head = head.filter(|_| self.final_norm.is_none());
        let pooling = head.map(|head| head.pooling(batch, length, input.lengths.as_deref()));
        let block = |block: &TrainableBlock| {
            let rate = self.dropout;
            let dropout = random.as_deref_mut();
            let dropout = dropout.map(|random| Dropout { random, rate });
            block.plan(size, of_kernels, dropout)
        };
        let plan = NetworkPlan {
            channels: self.channels,
            encoding: encoder.map_or(Ok(Encoding::None), TrainableEncoder::encoding)?,
            blocks: self.blocks.iter().map(block).collect::<Result<_, _>>()?,
            pooling: pooling.transpose()?.flatten(),
            layers: wanted.layers,
            training,
        };
        Ok((plan, size))
    }

    /// The channels whose Hankel values are looked at: all in evaluation.
    fn looked_at(&self, random: Option<&mut ChaCha8Rng>) -> HankelPlan {
        let every = HANKEL_EVERY.min(self.channels);
        let layers = self.blocks.iter().map(|block| {
            let modes = block.dynamics().map(TrainableDynamics::modes);
            (modes.max().unwrap_or(0), block.dynamics().count())
        });
        HankelPlan {
            channels: self.channels,
            layers: layers.collect(),
            every: if random.is_some() { every } else { 1 },
            offset: random.map_or(0, |random| random.random_range(0..every)),
        }
    }

    /// Batch × L × H, pooled where the head pools.
    fn pooled(&self, x: &Tensor, input: &NetworkInput) -> candle_core::Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        let head = self.head.as_ref();
        let weights = head.map(|head| head.pooling(batch, length, input.lengths.as_deref()));
        match weights.transpose()?.flatten() {
            None => Ok(x.clone()),
            Some(weights) => {
                let weights = Tensor::from_vec(weights, (batch, length, 1), x.device())?;
                x.broadcast_mul(&weights.to_dtype(x.dtype())?)?.sum(1)
            }
        }
    }

    /// The modes of all blocks, flat.
    fn modes(&self, length: usize) -> candle_core::Result<Tensor> {
        let banks =
            |a: &TrainableBlock, b: &TrainableBlock| a.shared().is_none() && b.shared().is_none();
        let runs = self.blocks.chunk_by(banks);
        let parts = runs.map(|run| match run[0].shared() {
            Some(shared) => shared.exponents(),
            None => {
                let dynamics = run.iter().flat_map(TrainableBlock::dynamics);
                modes_for(&dynamics.collect::<Vec<_>>(), length)
            }
        });
        Tensor::cat(&parts.collect::<candle_core::Result<Vec<_>>>()?, 0)
    }

    /// Modes and parameters, flat.
    fn flat(&self, length: usize) -> candle_core::Result<(Tensor, Tensor)> {
        #[cfg(feature = "cuda")]
        if let Some(leaves) = self.leaves()? {
            let modes = leaves.modes.iter().map(|run| run.modes(length));
            let modes = Tensor::cat(&modes.collect::<candle_core::Result<Vec<_>>>()?, 0)?;
            return Ok((modes, leaves.parameters.row()?.clone()));
        }
        let flat = self.parts()?;
        let flat = flat.iter().map(Tensor::flatten_all);
        let parameters = Tensor::cat(&flat.collect::<candle_core::Result<Vec<_>>>()?, 0)?;
        Ok((self.modes(length)?, parameters))
    }

    /// The parameters of encoder and blocks beside the modes, in the order of the plan.
    fn parts(&self) -> candle_core::Result<Vec<Tensor>> {
        let mut parts = Vec::new();
        if let Some(encoder) = &self.encoder {
            parts.extend(encoder.flat_parameters()?);
        }
        for block in &self.blocks {
            parts.extend(block.flat_parameters()?);
        }
        Ok(parts)
    }

    /// On a GPU, where all of them are variables or constants.
    #[cfg(feature = "cuda")]
    fn leaves(&self) -> candle_core::Result<Option<&Leaves>> {
        if let Some(leaves) = self.leaves.get() {
            return Ok(leaves.as_ref());
        }
        let dynamics = self.blocks.iter().flat_map(TrainableBlock::dynamics);
        let is_bank = self.blocks.iter().all(|block| block.shared().is_none());
        let leaves = match is_bank && gpu::takes(&self.device, self.dtype) {
            false => None,
            true => {
                let modes = ModesLeaf::of_all(&dynamics.collect::<Vec<_>>())?;
                let parameters = Leaf::new(self.parts()?, self.dtype)?;
                modes
                    .zip(parameters)
                    .map(|(modes, parameters)| Leaves { modes, parameters })
            }
        };
        Ok(self.leaves.get_or_init(|| leaves).as_ref())
    }
}

/// Modes and other parameters of encoder and blocks.
#[cfg(feature = "cuda")]
struct Leaves {
    modes: Vec<ModesLeaf>,
    parameters: Leaf,
}

impl SequenceModel for TrainableNetwork {
    fn forward(&self, input: &NetworkInput, mode: Mode<'_>) -> candle_core::Result<Tensor> {
        Ok(self.traced(input, mode, Wanted::default())?.outputs)
    }

    fn traced(
        &self,
        input: &NetworkInput,
        mode: Mode<'_>,
        wanted: Wanted,
    ) -> candle_core::Result<Traced> {
        let mut random = match mode {
            Mode::Train(random) => Some(random),
            Mode::Evaluate => None,
        };
        let training = random.is_some();
        let (plan, size) = self.plan(input, wanted, random.as_deref_mut())?;
        let (mut modes, mut parameters) = self.flat(size.length)?;
        if !training {
            // No graph, and so nothing kept.
            (modes, parameters) = (modes.detach(), parameters.detach());
        }
        let steps = match input.steps.dtype() {
            DType::U32 => input.steps.clone(),
            _ => input.steps.to_dtype(self.dtype)?,
        };
        let plan = Arc::new(plan);
        let tensors = NetworkTensors {
            steps: &steps,
            modes: &modes,
            parameters: &parameters,
        };
        let found = op::network(tensors, &plan, &self.workspaces)?;
        if training {
            for (block, statistics) in self.blocks.iter().zip(&found.statistics) {
                let mut statistics = statistics.iter();
                statistics.try_for_each(|found| block.observe(size, found))?;
            }
        }
        let out = match &self.final_norm {
            None => found.out,
            Some(norm) => self.pooled(&norm.forward(&found.out, training)?, input)?,
        };
        Ok(Traced {
            outputs: match &self.head {
                Some(head) => head.forward(&out)?,
                None => out,
            },
            layers: found.layers,
            penalties: match wanted.penalty {
                Some(Penalty::Hankel) => Some(hankel(&modes, self.looked_at(random))?),
                _ => found.penalties,
            },
        })
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    #[cfg(feature = "cuda")]
    fn gradients(&self, store: &GradStore) -> candle_core::Result<Vec<Option<Tensor>>> {
        let mut found = PartGradients::new();
        if let Some(leaves) = self.leaves.get().and_then(Option::as_ref) {
            leaves.parameters.gradients(store, &mut found)?;
            for run in &leaves.modes {
                run.leaf.gradients(store, &mut found)?;
            }
        }
        let parameters = self.parameters.iter().map(|parameter| {
            let variable = parameter.var.as_tensor();
            match (store.get(variable), found.remove(&variable.id())) {
                (Some(own), Some(part)) => Ok(Some((own + part)?)),
                (own, part) => Ok(part.or_else(|| own.cloned())),
            }
        });
        parameters.collect()
    }

    fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    fn device(&self) -> &Device {
        &self.device
    }
}

/// S4D where every mode decays, else DSS-softmax.
fn fitting(model: &Model) -> Parameterisation {
    let blocks = model.blocks().iter();
    let mut systems = blocks.flat_map(|block| block.systems().iter().chain(block.backward()));
    if systems.all(|system| system.is_stable()) {
        Parameterisation::S4d
    } else {
        Parameterisation::DssSoftmax
    }
}

fn check_channels(model: &Model) -> Result<(), NetworkError> {
    use hankelite::model::Encoder;
    let expected = model.blocks().first().map_or(0, Block::channels);
    if expected == 0 {
        return Err(NetworkError::Channels {
            what: "the first layer".into(),
            found: 0,
            expected: 1,
        });
    }
    let equal = |what: String, found: usize| {
        if found == expected && found > 0 {
            return Ok(());
        }
        Err(NetworkError::Channels {
            what,
            found,
            expected,
        })
    };
    if let Some(encoder) = model.encoder() {
        let found = match encoder {
            Encoder::Linear(linear) => linear.weight.ncols(),
            Encoder::Embedding(table) => table.nrows(),
        };
        equal("the encoder".into(), found)?;
    }
    for block in model.blocks() {
        let name = format!("layer `{}`", block.name());
        equal(name.clone(), block.channels())?;
        if !block.backward().is_empty() && block.is_siso() {
            if block.backward_from() != 1 {
                let layer = block.name().to_string();
                return Err(NetworkError::Backward { layer });
            }
            equal(
                format!("{name}, backwards in time,"),
                block.backward().len(),
            )?;
        }
        if let Some(output) = block.output() {
            let (inputs, outputs) = output.linear.weight.shape();
            equal(format!("{name}, the input of its output map,"), inputs)?;
            let outputs = match output.gate {
                Gate::Halves => outputs / 2,
                _ => outputs,
            };
            equal(format!("{name}, its output map,"), outputs)?;
        }
        if let Some((norm, _)) = block.norm() {
            equal(format!("{name}, its norm,"), norm.affine().0.len())?;
        }
    }
    if let Some(head) = model.head() {
        equal("the head".into(), head.linear.weight.nrows())?;
    }
    Ok(())
}
