//! One block with its trainable tensors.

use candle_core::{D, Result, Tensor, Var};
use hankelite::model;
use hankelite::model::{BatchNorm, LayerNorm, Linear, Norm, OutputLinear, Placement};
use hankelite_control::DiagonalSystem;
use hankelite_kernels::Mixing;
use nalgebra::DMatrix;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::nn::dynamics::TrainableDynamics;
use crate::nn::parameterisation::ModeForm;
use crate::nn::plan::{BlockPlan, NormKind, NormPlan, Size};
use crate::nn::tensors::{TensorType, host, parameter, var};
use crate::nn::{Buffer, Group, MapRounding, NetworkError, Parameter, Penalty};

/// How much of a batch's statistics enters the running ones; torch's default.
const MOMENTUM: f64 = 0.1;

/// A weight matrix (outputs × inputs) and a bias.
pub(super) struct TrainableLinear {
    pub(super) weight: Var,
    pub(super) bias: Option<Var>,
}

impl TrainableLinear {
    pub(super) fn new(linear: &Linear, to: TensorType<'_>) -> Result<Self> {
        // Inputs × outputs by columns is outputs × inputs by rows.
        let (inputs, outputs) = linear.weight.shape();
        let bias = linear.bias.as_ref();
        Ok(Self {
            weight: var(linear.weight.as_slice(), &[outputs, inputs], to)?,
            bias: bias.map(|bias| var(bias, &[outputs], to)).transpose()?,
        })
    }

    pub(super) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let mut all = vec![parameter(prefix, "weight", &self.weight, Group::Plain)];
        let bias = self.bias.iter();
        all.extend(bias.map(|bias| parameter(prefix, "bias", bias, Group::NoDecay)));
        all
    }

    /// Weight and bias, or zeros in its place.
    pub(super) fn flat_parameters(&self) -> Result<Vec<Tensor>> {
        let outputs = self.weight.dim(0)?;
        let bias = match &self.bias {
            Some(bias) => bias.as_tensor().clone(),
            None => Tensor::zeros(outputs, self.weight.dtype(), self.weight.device())?,
        };
        Ok(vec![self.weight.flatten_all()?, bias])
    }

    pub(super) fn to_linear(&self) -> Result<Linear> {
        let (outputs, inputs) = self.weight.dims2()?;
        Ok(Linear {
            weight: DMatrix::from_vec(inputs, outputs, host(&self.weight)?).into(),
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

/// One block.
pub(super) struct TrainableBlock {
    name: String,
    forward: TrainableDynamics,
    backward: Option<TrainableDynamics>,
    feedthrough: Var,
    /// D of the model, and as rounded to the network's type.
    source_feedthrough: (Vec<f64>, Vec<f64>),
    norm: Option<TrainableNorm>,
    output: Option<(TrainableLinear, bool)>,
    /// How the output map is held.
    held: Option<MapRounding>,
}

impl TrainableBlock {
    pub(super) fn new(
        block: &model::Block,
        form: ModeForm,
        held: Option<MapRounding>,
        to: TensorType<'_>,
    ) -> std::result::Result<Self, NetworkError> {
        // Both directions are stored with the same number of modes.
        let order = block.order();
        let made = |systems| TrainableDynamics::new(block.name(), systems, order, form, to);
        let forward = made(block.systems())?;
        let backward = match block.backward() {
            [] => None,
            systems if shared(block.systems(), systems) => {
                Some(made(systems)?.with_poles_of(&forward))
            }
            systems => Some(made(systems)?),
        };
        let systems = block.systems().iter();
        let source: Vec<f64> = systems.map(|system| system.feedthrough()[(0, 0)]).collect();
        let feedthrough = var(&source, &[source.len()], to)?;
        let rounded = host(&feedthrough)?;
        let norm = block.norm();
        let norm = norm.map(|(norm, placement)| TrainableNorm::new(norm, *placement, to));
        let output = block.output().map(|output| {
            let linear = TrainableLinear::new(&output.linear, to)?;
            Ok::<_, candle_core::Error>((linear, output.gate == model::Gate::Halves))
        });
        Ok(Self {
            name: block.name().to_string(),
            forward,
            backward,
            feedthrough,
            source_feedthrough: (source, rounded),
            norm: norm.transpose()?,
            output: output.transpose()?,
            held,
        })
    }

    pub(super) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let mut all = self.forward.parameters(prefix);
        if let Some(backward) = &self.backward {
            all.extend(backward.parameters(&format!("{prefix}backward.")));
        }
        let feedthrough = parameter(prefix, "feedthrough", &self.feedthrough, Group::NoDecay);
        all.push(feedthrough);
        if let Some((linear, _)) = &self.output {
            all.extend(linear.parameters(&format!("{prefix}output.")));
        }
        all.extend(self.norm.iter().flat_map(|norm| norm.parameters(prefix)));
        all
    }

    pub(super) fn buffers(&self, prefix: &str) -> Vec<Buffer> {
        let norm = self.norm.iter();
        norm.flat_map(|norm| norm.buffers(prefix)).collect()
    }

    /// The dynamics of each direction.
    pub(super) fn dynamics(&self) -> impl Iterator<Item = &TrainableDynamics> {
        let directions = [Some(&self.forward), self.backward.as_ref()];
        directions.into_iter().flatten()
    }

    /// The other parameters, flat, as [`BlockPlan`] has them.
    pub(super) fn flat_parameters(&self) -> Result<Vec<Tensor>> {
        let mut parts = vec![self.feedthrough.as_tensor().clone()];
        if let Some(norm) = &self.norm {
            parts.extend([
                norm.weight.as_tensor().clone(),
                norm.bias.as_tensor().clone(),
            ]);
        }
        if let Some((linear, _)) = &self.output {
            let mut flat = linear.flat_parameters()?;
            if let Some(held) = self.held {
                flat[0] = held.held(&linear.weight)?.flatten_all()?;
            }
            parts.extend(flat);
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
        let norm = self.norm.as_ref();
        let kind = |norm: &TrainableNorm| match norm.running {
            None => NormKind::Layer,
            Some(_) => NormKind::Batch,
        };
        let mut plan = BlockPlan {
            modes: self.forward.modes(),
            bidirectional: self.backward.is_some(),
            mixing: match &self.output {
                None => Mixing::None,
                Some((_, false)) => Mixing::Plain,
                Some((_, true)) => Mixing::Gated,
            },
            norm: norm.map(|norm| NormPlan {
                kind: kind(norm),
                placement: norm.placement,
                epsilon: norm.epsilon,
            }),
            inner_mask: Vec::new(),
            outer_mask: Vec::new(),
            running: None,
            penalty,
        };
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

    /// Moves the running statistics towards those of a batch.
    pub(super) fn observe(&self, size: Size, found: &(Vec<f64>, Vec<f64>)) -> Result<()> {
        match &self.norm {
            Some(norm) => norm.observe(size.batch * size.length, found),
            None => Ok(()),
        }
    }

    pub(super) fn to_block(&self) -> std::result::Result<model::Block, NetworkError> {
        let now = host(&self.feedthrough)?;
        let (source, rounded) = &self.source_feedthrough;
        let unchanged = now == *rounded;
        let feedthrough = if unchanged { source } else { &now };
        let zero = vec![0.0; now.len()];
        let backward = self.backward.as_ref();
        let output = self.output.as_ref().map(|(linear, gated)| {
            let mut map = linear.to_linear()?;
            if let Some(held) = self.held {
                map.weight = held.rounded(&linear.weight)?.into();
            }
            Ok::<_, candle_core::Error>(OutputLinear {
                linear: map,
                gate: match gated {
                    true => model::Gate::Halves,
                    false => model::Gate::None,
                },
            })
        });
        Ok(model::Block::new(model::BlockParts {
            name: self.name.clone(),
            systems: self.forward.systems(&self.name, feedthrough)?,
            backward: backward
                .map(|dynamics| dynamics.systems(&self.name, &zero))
                .transpose()?
                .unwrap_or_default(),
            backward_from: 1,
            activation: model::Nonlinearity::Gelu,
            output: output.transpose()?,
            norm: self.norm.as_ref().map(TrainableNorm::to_norm).transpose()?,
        })?)
    }
}

/// Whether both directions of every channel have the same step and poles, as layouts with one set of
/// poles for several kernels store them.
fn shared(forward: &[DiagonalSystem], backward: &[DiagonalSystem]) -> bool {
    let mut pairs = forward.iter().zip(backward);
    pairs.all(|(a, b)| (a.time(), a.exponents()) == (b.time(), b.exponents()))
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
