//! One block with its trainable tensors.

use candle_core::{D, Result, Tensor, Var};
use hankelite::model;
use hankelite::model::{BatchNorm, LayerNorm, Linear, Norm, OutputLinear, Placement};
use hankelite::rounding::MapChoice;
use hankelite_control::SystemClass;
use hankelite_kernels::{GeluForm, Mixing};
use nalgebra::DMatrix;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::nn::bank::TrainableBank;
use crate::nn::dynamics::TrainableDynamics;
use crate::nn::parameterisation::ModeForm;
use crate::nn::plan::{BlockPlan, NormKind, NormPlan, SharedPlan, Size};
use crate::nn::shared::TrainableShared;
use crate::nn::straight::{Held, HeldLayer};
use crate::nn::tensors::{TensorType, host, parameter, var};
use crate::nn::{Buffer, Group, NetworkError, Parameter, Penalty};

/// How much of a batch's statistics enters the running ones; torch's default.
const MOMENTUM: f64 = 0.1;

/// A weight matrix (outputs × inputs) and a bias.
pub(super) struct TrainableLinear {
    pub(super) weight: Var,
    pub(super) bias: Option<Var>,
    /// How the weights are held, where that is at few bits.
    held: Option<Held>,
}

impl TrainableLinear {
    pub(super) fn new(
        linear: &Linear,
        choice: Option<MapChoice>,
        to: TensorType<'_>,
    ) -> Result<Self> {
        // Inputs × outputs by columns is outputs × inputs by rows.
        let (inputs, outputs) = linear.weight.shape();
        let bias = linear.bias.as_ref();
        Ok(Self {
            weight: var(linear.weight.as_slice(), &[outputs, inputs], to)?,
            bias: bias.map(|bias| var(bias, &[outputs], to)).transpose()?,
            held: match choice {
                Some(choice) => Held::new(&linear.weight, choice, to)?,
                None => None,
            },
        })
    }

    pub(super) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let mut all = vec![parameter(prefix, "weight", &self.weight, Group::Plain)];
        let bias = self.bias.iter();
        all.extend(bias.map(|bias| parameter(prefix, "bias", bias, Group::NoDecay)));
        all.extend(self.held.iter().filter_map(|held| held.parameter(prefix)));
        all
    }

    /// The weights as they are held.
    pub(super) fn held_weight(&self) -> Result<Tensor> {
        match &self.held {
            Some(held) => held.applied(&self.weight),
            None => Ok(self.weight.as_tensor().clone()),
        }
    }

    /// Weight and bias, or zeros in its place; not yet flat.
    pub(super) fn flat_parameters(&self) -> Result<Vec<Tensor>> {
        let outputs = self.weight.dim(0)?;
        let bias = match &self.bias {
            Some(bias) => bias.as_tensor().clone(),
            None => Tensor::zeros(outputs, self.weight.dtype(), self.weight.device())?,
        };
        Ok(vec![self.held_weight()?, bias])
    }

    pub(super) fn to_linear(&self) -> Result<Linear> {
        let (outputs, inputs) = self.weight.dims2()?;
        Ok(Linear {
            weight: DMatrix::from_vec(inputs, outputs, host(&self.held_weight()?)?).into(),
            bias: self.bias.as_deref().map(host).transpose()?,
        })
    }
}

/// Weight and bias of a normalisation; mean and variance of a batch norm.
pub(super) struct TrainableNorm {
    weight: Var,
    bias: Var,
    running: Option<(Var, Var)>,
    placement: Placement,
    epsilon: f64,
}

impl TrainableNorm {
    pub(super) fn new(norm: &Norm, placement: Placement, to: TensorType<'_>) -> Result<Self> {
        let (weight, bias, epsilon) = norm.affine();
        let vector = |values: &[f64]| var(values, &[values.len()], to);
        let running = match norm {
            Norm::Layer(_) => None,
            Norm::Batch(norm) => Some((vector(&norm.mean)?, vector(&norm.variance)?)),
        };
        Ok(Self {
            weight: vector(weight)?,
            bias: vector(bias)?,
            running,
            placement,
            epsilon,
        })
    }

    pub(super) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let named = [("norm.weight", &self.weight), ("norm.bias", &self.bias)];
        let one = |(name, var)| parameter(prefix, name, var, Group::NoDecay);
        named.map(one).into()
    }

    pub(super) fn buffers(&self, prefix: &str) -> Vec<Buffer> {
        let Some((mean, variance)) = &self.running else {
            return Vec::new();
        };
        let named = |(name, var): (&str, &Var)| Buffer {
            name: format!("{prefix}norm.{name}"),
            var: var.clone(),
        };
        [("mean", mean), ("variance", variance)].map(named).into()
    }

    /// Normalises batch × L × H by candle's operations; `training` takes the statistics of the batch
    /// where it is a batch norm, and moves the running ones.
    pub(super) fn forward(&self, x: &Tensor, training: bool) -> Result<Tensor> {
        let (mean, variance) = match &self.running {
            None => {
                let mean = x.mean_keepdim(D::Minus1)?;
                let variance = x.broadcast_sub(&mean)?.sqr()?.mean_keepdim(D::Minus1)?;
                (mean, variance)
            }
            Some((mean, variance)) if !training => {
                (mean.as_tensor().detach(), variance.as_tensor().detach())
            }
            Some(_) => {
                let (batch, length, channels) = x.dims3()?;
                let rows = x.reshape((batch * length, channels))?;
                let mean = rows.mean(0)?;
                let variance = rows.broadcast_sub(&mean)?.sqr()?.mean(0)?;
                self.observe(batch * length, &(host(&mean)?, host(&variance)?))?;
                (mean, variance)
            }
        };
        let scale = (variance + self.epsilon)?.sqrt()?;
        let normal = x.broadcast_sub(&mean)?.broadcast_div(&scale)?;
        normal
            .broadcast_mul(self.weight.as_tensor())?
            .broadcast_add(self.bias.as_tensor())
    }

    /// Moves the running statistics towards those of a batch of so many rows; the variance without
    /// bias.
    fn observe(&self, rows: usize, found: &(Vec<f64>, Vec<f64>)) -> Result<()> {
        let Some((mean, variance)) = &self.running else {
            return Ok(());
        };
        let rows = rows as f64;
        let unbiased = rows / (rows - 1.0).max(1.0);
        for (var, (values, factor)) in [mean, variance]
            .into_iter()
            .zip([(&found.0, 1.0), (&found.1, unbiased)])
        {
            let pairs = host(var)?.into_iter().zip(values);
            let next: Vec<f64> = pairs
                .map(|(old, new)| old + MOMENTUM * (factor * new - old))
                .collect();
            let next = Tensor::from_vec(next, var.shape(), var.device())?;
            var.set(&next.to_dtype(var.dtype())?)?;
        }
        Ok(())
    }

    pub(super) fn to_norm(&self) -> Result<(Norm, Placement)> {
        let (weight, bias, epsilon) = (host(&self.weight)?, host(&self.bias)?, self.epsilon);
        let norm = match &self.running {
            None => Norm::Layer(LayerNorm {
                weight,
                bias,
                epsilon,
            }),
            Some((mean, variance)) => Norm::Batch(BatchNorm {
                weight,
                bias,
                mean: host(mean)?,
                variance: host(variance)?,
                epsilon,
            }),
        };
        Ok((norm, self.placement))
    }
}

/// The state spaces of a block.
enum BlockDynamics {
    /// One system for each channel.
    Bank(Box<TrainableBank>),
    /// One for all.
    Shared(Box<TrainableShared>),
}

/// The map that mixes channels.
struct BlockOutput {
    linear: TrainableLinear,
    gate: model::Gate,
}

/// One block.
pub(super) struct TrainableBlock {
    name: String,
    dynamics: BlockDynamics,
    backward_from: usize,
    holds_feedthrough: bool,
    class: Option<SystemClass>,
    activation: model::Nonlinearity,
    norm: Option<TrainableNorm>,
    output: Option<BlockOutput>,
}

impl TrainableBlock {
    pub(super) fn new(
        block: &model::Block,
        form: ModeForm,
        held: HeldLayer,
        to: TensorType<'_>,
    ) -> std::result::Result<Self, NetworkError> {
        let dynamics = if block.is_siso() {
            BlockDynamics::Bank(Box::new(TrainableBank::new(block, form, to)?))
        } else {
            let length = form.scaled.then_some(form.length);
            let shared = TrainableShared::new(block, length, held.systems, to)?;
            BlockDynamics::Shared(Box::new(shared))
        };
        let norm = block.norm();
        let norm = norm.map(|(norm, placement)| TrainableNorm::new(norm, *placement, to));
        let output = block.output().map(|output| {
            Ok::<_, candle_core::Error>(BlockOutput {
                linear: TrainableLinear::new(&output.linear, held.map, to)?,
                gate: output.gate,
            })
        });
        Ok(Self {
            name: block.name().to_string(),
            dynamics,
            backward_from: block.backward_from(),
            holds_feedthrough: block.holds_feedthrough(),
            class: block.class(),
            activation: block.activation(),
            norm: norm.transpose()?,
            output: output.transpose()?,
        })
    }

    pub(super) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let mut all = match &self.dynamics {
            BlockDynamics::Bank(bank) => bank.parameters(prefix),
            BlockDynamics::Shared(shared) => shared.parameters(prefix),
        };
        if let Some(output) = &self.output {
            all.extend(output.linear.parameters(&format!("{prefix}output.")));
        }
        all.extend(self.norm.iter().flat_map(|norm| norm.parameters(prefix)));
        all
    }

    pub(super) fn buffers(&self, prefix: &str) -> Vec<Buffer> {
        let norm = self.norm.iter();
        norm.flat_map(|norm| norm.buffers(prefix)).collect()
    }

    /// The dynamics of each direction, of one system for each channel.
    pub(super) fn dynamics(&self) -> impl Iterator<Item = &TrainableDynamics> {
        let directions = match &self.dynamics {
            BlockDynamics::Bank(bank) => [Some(&bank.forward), bank.backward.as_ref()],
            BlockDynamics::Shared(_) => [None, None],
        };
        directions.into_iter().flatten()
    }

    /// The dynamics that all channels share.
    pub(super) fn shared(&self) -> Option<&TrainableShared> {
        match &self.dynamics {
            BlockDynamics::Bank(_) => None,
            BlockDynamics::Shared(shared) => Some(shared),
        }
    }

    /// The layer's name in the file.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The other parameters in the order of [`BlockPlan`]; not yet flat.
    pub(super) fn flat_parameters(&self) -> Result<Vec<Tensor>> {
        let mut parts = match &self.dynamics {
            BlockDynamics::Bank(bank) => vec![bank.feedthrough.as_tensor().clone()],
            BlockDynamics::Shared(shared) => shared.flat_parameters()?,
        };
        if let Some(norm) = &self.norm {
            parts.extend([
                norm.weight.as_tensor().clone(),
                norm.bias.as_tensor().clone(),
            ]);
        }
        if let Some(BlockOutput { linear, .. }) = &self.output {
            parts.extend(linear.flat_parameters()?);
        }
        Ok(parts)
    }

    /// What the block computes on a batch. Without dropout and with running statistics when
    /// `dropout` is `None`, that is, in evaluation.
    pub(super) fn plan(
        &self,
        size: Size,
        penalty: Option<Penalty>,
        dropout: Option<Dropout<'_>>,
    ) -> Result<BlockPlan> {
        let mut plan = self.plain_plan();
        plan.penalty = penalty;
        let norm = self.norm.as_ref();
        match dropout {
            Some(mut dropout) if dropout.rate > 0.0 => {
                if self.output.is_some() {
                    plan.inner_mask = dropout.mask(size);
                }
                plan.outer_mask = dropout.mask(size);
            }
            Some(_) => {}
            None => {
                let running = norm.and_then(|norm| norm.running.as_ref());
                let values = running.map(|(mean, variance)| Ok((host(mean)?, host(variance)?)));
                plan.running = values
                    .transpose()
                    .map_err(|error: candle_core::Error| error)?;
            }
        }
        Ok(plan)
    }

    /// What the block computes in training without dropout.
    fn plain_plan(&self) -> BlockPlan {
        let (modes, bidirectional, shared) = match &self.dynamics {
            BlockDynamics::Bank(bank) => (bank.forward.modes(), bank.backward.is_some(), None),
            BlockDynamics::Shared(shared) => {
                let dense = shared.is_dense();
                let plan = SharedPlan { dense };
                (shared.modes(), shared.is_bidirectional(), Some(plan))
            }
        };
        let kind = |norm: &TrainableNorm| match norm.running {
            None => NormKind::Layer,
            Some(_) => NormKind::Batch,
        };
        let mut dynamics = self.dynamics();
        BlockPlan {
            modes,
            may_grow: dynamics.any(TrainableDynamics::may_grow),
            bidirectional,
            shared,
            gelu: match self.activation {
                model::Nonlinearity::Gelu => GeluForm::Exact,
                model::Nonlinearity::GeluTanh => GeluForm::Tanh,
            },
            mixing: match self.output.as_ref().map(|output| output.gate) {
                None => Mixing::None,
                Some(model::Gate::None) => Mixing::Plain,
                Some(model::Gate::Halves) => Mixing::Gated,
                Some(model::Gate::Activated) => Mixing::Activated,
                Some(model::Gate::Response) => Mixing::Response,
            },
            norm: self.norm.as_ref().map(|norm| NormPlan {
                kind: kind(norm),
                placement: norm.placement,
                epsilon: norm.epsilon,
            }),
            inner_mask: Vec::new(),
            outer_mask: Vec::new(),
            running: None,
            penalty: None,
        }
    }

    /// Moves the running statistics towards those of a batch.
    pub(super) fn observe(&self, size: Size, found: &(Vec<f64>, Vec<f64>)) -> Result<()> {
        match &self.norm {
            Some(norm) => norm.observe(size.batch * size.length, found),
            None => Ok(()),
        }
    }

    pub(super) fn to_block(&self) -> std::result::Result<model::Block, NetworkError> {
        let output = self.output.as_ref().map(|BlockOutput { linear, gate }| {
            Ok::<_, candle_core::Error>(OutputLinear {
                linear: linear.to_linear()?,
                gate: *gate,
            })
        });
        let [systems, backward] = match &self.dynamics {
            BlockDynamics::Bank(bank) => bank.systems(&self.name)?,
            BlockDynamics::Shared(shared) => shared.systems(&self.name)?,
        };
        Ok(model::Block::new(model::BlockParts {
            name: self.name.clone(),
            systems,
            backward,
            backward_from: self.backward_from,
            holds_feedthrough: self.holds_feedthrough,
            class: self.class,
            activation: self.activation,
            output: output.transpose()?,
            norm: self.norm.as_ref().map(TrainableNorm::to_norm).transpose()?,
        })?)
    }
}

/// Which share of the channels is silenced in training, and by which random numbers.
pub(super) struct Dropout<'a> {
    pub(super) random: &'a mut ChaCha8Rng,
    pub(super) rate: f64,
}

impl Dropout<'_> {
    /// 0 with probability `rate`, else 1/(1 − rate), for each sequence and channel: the same at all
    /// steps, as the dropout of the S4 code is tied over time.
    fn mask(&mut self, size: Size) -> Vec<f64> {
        let kept = 1.0 / (1.0 - self.rate);
        let one = |_| {
            if self.random.random::<f64>() < self.rate {
                0.0
            } else {
                kept
            }
        };
        (0..size.batch * size.channels).map(one).collect()
    }
}
