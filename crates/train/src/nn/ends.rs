//! What stands before and after the blocks: encoder, pooling, head.

use candle_core::{Result, Tensor, Var, bail};
use hankelite::model::{Encoder, Head, Pooling};
use hankelite::rounding::MapChoice;
use nalgebra::DMatrix;

use crate::nn::block::TrainableLinear;
use crate::nn::plan::Encoding;
use crate::nn::random::Draw;
use crate::nn::tensors::{TensorType, host, parameter, var};
use crate::nn::{Group, Parameter};

/// From data to channels.
pub(super) enum TrainableEncoder {
    Linear(TrainableLinear),
    /// A map of measurements S u: S, measurements × inputs, and the map behind it.
    Measured(Var, TrainableLinear),
    /// Vocabulary × channels.
    Embedding(Var),
}

impl TrainableEncoder {
    pub(super) fn new(
        encoder: &Encoder,
        held: Option<MapChoice>,
        to: TensorType<'_>,
    ) -> Result<Self> {
        Ok(match encoder {
            Encoder::Linear(linear) => Self::Linear(TrainableLinear::new(linear, held, to)?),
            Encoder::Embedding(table) => {
                let (channels, vocabulary) = table.shape();
                Self::Embedding(var(table.as_slice(), &[vocabulary, channels], to)?)
            }
        })
    }

    /// A random S, normal with variance 1/rows, and a random map behind it, uniform within 1/√rows;
    /// both take the place of a linear encoder.
    pub(super) fn measured(&self, rows: usize, draw: &mut Draw) -> Result<Self> {
        let Self::Linear(linear) = self else {
            bail!("only numbers are measured, expected a linear encoder");
        };
        let (channels, inputs) = linear.weight.dims2()?;
        let to = TensorType::of(&linear.weight);
        let deviation = 1.0 / (rows as f64).sqrt();
        let numbers = (0..rows * inputs).map(|_| deviation * draw.normal());
        let sensing = var(&numbers.collect::<Vec<_>>(), &[rows, inputs], to)?;
        let behind = TrainableLinear::new(&draw.linear(rows, channels), None, to)?;
        Ok(Self::Measured(sensing, behind))
    }

    pub(super) fn parameters(&self) -> Vec<Parameter> {
        match self {
            Self::Linear(linear) => linear.parameters("encoder."),
            Self::Measured(sensing, linear) => {
                let mut all = vec![parameter("", "sensing", sensing, Group::Plain)];
                all.extend(linear.parameters("encoder."));
                all
            }
            Self::Embedding(table) => vec![parameter("encoder.", "table", table, Group::Plain)],
        }
    }

    pub(super) fn to_encoder(&self) -> Result<Encoder> {
        Ok(match self {
            Self::Linear(linear) => Encoder::Linear(linear.to_linear()?),
            Self::Measured(sensing, linear) => {
                let mut folded = linear.to_linear()?;
                let (rows, inputs) = sensing.dims2()?;
                let sensing = DMatrix::from_vec(inputs, rows, host(sensing)?);
                folded.weight = (sensing * &*folded.weight).into();
                Encoder::Linear(folded)
            }
            Self::Embedding(table) => {
                let (vocabulary, channels) = table.dims2()?;
                let table = DMatrix::from_vec(channels, vocabulary, host(table)?);
                Encoder::Embedding(table.into())
            }
        })
    }

    pub(super) fn encoding(&self) -> Result<Encoding> {
        Ok(match self {
            Self::Linear(linear) => Encoding::Linear {
                inputs: linear.weight.dim(1)?,
            },
            Self::Measured(sensing, _) => Encoding::Linear {
                inputs: sensing.dim(1)?,
            },
            Self::Embedding(table) => Encoding::Embedding {
                vocabulary: table.dim(0)?,
            },
        })
    }

    /// All parameters in the order of [`Encoding`]; not yet flat.
    pub(super) fn flat_parameters(&self) -> Result<Vec<Tensor>> {
        match self {
            Self::Linear(linear) => linear.flat_parameters(),
            Self::Measured(sensing, linear) => {
                let mut flat = linear.flat_parameters()?;
                flat[0] = linear.weight.matmul(sensing)?;
                Ok(flat)
            }
            Self::Embedding(table) => Ok(vec![table.as_tensor().clone()]),
        }
    }
}

/// X Wᵀ + b. The bias is the last row of one product: adding it to many rows, and summing its
/// gradient, would each be a pass of its own.
pub(super) fn affine(rows: &Tensor, linear: &TrainableLinear) -> Result<Tensor> {
    let Some(bias) = &linear.bias else {
        return rows.matmul(&linear.held_weight()?.t()?);
    };
    let ones = Tensor::ones((rows.dim(0)?, 1), rows.dtype(), rows.device())?;
    let rows = Tensor::cat(&[rows, &ones], 1)?;
    let weight = Tensor::cat(&[&linear.held_weight()?, &bias.unsqueeze(1)?], 1)?;
    rows.matmul(&weight.t()?)
}

/// From channels to outputs.
pub(super) struct TrainableHead {
    pooling: Option<Pooling>,
    linear: TrainableLinear,
}

impl TrainableHead {
    pub(super) fn new(head: &Head, held: Option<MapChoice>, to: TensorType<'_>) -> Result<Self> {
        Ok(Self {
            pooling: head.pooling,
            linear: TrainableLinear::new(&head.linear, held, to)?,
        })
    }

    pub(super) fn parameters(&self) -> Vec<Parameter> {
        self.linear.parameters("head.")
    }

    pub(super) fn to_head(&self) -> Result<Head> {
        Ok(Head {
            pooling: self.pooling,
            linear: self.linear.to_linear()?,
        })
    }

    /// The share of every step (batch × L) in the pooled vectors, if there is a pooling.
    pub(super) fn pooling(
        &self,
        batch: usize,
        length: usize,
        lengths: Option<&[usize]>,
    ) -> Result<Option<Vec<f64>>> {
        let weights = |pooling| pooling_weights(pooling, batch, length, lengths);
        self.pooling.map(weights).transpose()
    }

    /// Batch × classes from pooled vectors, or batch × L × outputs from all steps.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.pooling.is_some() {
            return affine(x, &self.linear);
        }
        let (batch, length, channels) = x.dims3()?;
        let rows = x.reshape((batch * length, channels))?;
        affine(&rows, &self.linear)?.reshape((batch, length, ()))
    }
}

/// The share of every step in the pooled vector. Steps beyond a sequence's length have none.
pub(super) fn pooling_weights(
    pooling: Pooling,
    batch: usize,
    length: usize,
    lengths: Option<&[usize]>,
) -> Result<Vec<f64>> {
    if let Some(lengths) = lengths
        && (lengths.len() != batch || lengths.iter().any(|l| !(1..=length).contains(l)))
    {
        bail!("expected {batch} lengths from 1 to {length}");
    }
    let mut weights = vec![0.0; batch * length];
    for (item, row) in weights.chunks_exact_mut(length).enumerate() {
        let own = lengths.map_or(length, |lengths| lengths[item]);
        match pooling {
            Pooling::Mean => row[..own].fill(1.0 / own as f64),
            Pooling::Last => row[own - 1] = 1.0,
        }
    }
    Ok(weights)
}
