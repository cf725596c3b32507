//! Stacked recurrent cells: layer l feeds layer l + 1 at the same step.

use std::sync::Arc;

use candle_core::{Result, Tensor, Var};
use hankelite_kernels::Workspaces;
use nalgebra::DMatrix;

use crate::nn::baseline::body::{Body, Frame, SingleLayer, matrix};
use crate::nn::baseline::gates::{Cell, CellTensors};
use crate::nn::baseline::product::rows_times;
use crate::nn::baseline::recurrence::recurrence;
use crate::nn::baseline::{orthogonal, plain};
use crate::nn::random::Draw;
use crate::nn::tensors::{TensorType, host, parameter, var};
use crate::nn::{Group, Mode, Parameter};

/// α and β of a FastRNN start at σ(∓3), as in its authors' program: close to the state before.
const SHARES: [f64; 2] = [-3.0, 3.0];

/// Which cells are stacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A cell with a matrix and two biases: tanh, LSTM or GRU.
    Torch(Cell),
    IndRnn,
    FastRnn,
    SpectralRnn,
}

/// Units of each layer, number of layers, and numbers of each step of the first one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stack {
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) inputs: usize,
}

/// From the state before to the gates.
enum State {
    Matrix(Var),
    /// One weight for each unit.
    Diagonal(Var),
    /// U, σ and V of a matrix.
    Factors([Var; 3]),
}

/// What stands beside the matrices.
enum Beside {
    /// Of the inputs and of the state.
    Biases([Var; 2]),
    Bias(Var),
    /// α and β before their sigmoids.
    Shares(Var),
    None,
}

struct Layer {
    cell: Cell,
    input: Var,
    state: State,
    beside: Beside,
}

pub(super) struct Stacked {
    layers: Vec<Layer>,
    parameters: Vec<Parameter>,
    workspaces: Arc<Workspaces>,
}

impl Stacked {
    /// Matrices and biases are uniform within 1/√hidden, as in torch's cells. IndRNN: W uniform
    /// within 1/√inputs, w uniform over 0 to 1, no bias at first. SpectralRNN: normal vectors of
    /// reflections, all singular values 1.
    pub(super) fn new(
        kind: Kind,
        stack: Stack,
        draw: &mut Draw,
        to: TensorType<'_>,
    ) -> Result<Self> {
        let layer = |index| {
            let inputs = if index == 0 {
                stack.inputs
            } else {
                stack.hidden
            };
            layer(kind, inputs, stack.hidden, draw, to)
        };
        let layers: Vec<Layer> = (0..stack.layers).map(layer).collect::<Result<_>>()?;
        let each = layers.iter().enumerate();
        let parameters = each.flat_map(|(index, layer)| layer.parameters(index));
        Ok(Self {
            parameters: parameters.collect(),
            layers,
            workspaces: Workspaces::new(),
        })
    }
}

fn layer(
    kind: Kind,
    inputs: usize,
    hidden: usize,
    draw: &mut Draw,
    to: TensorType<'_>,
) -> Result<Layer> {
    let cell = match kind {
        Kind::Torch(cell) => cell,
        Kind::IndRnn => Cell::Independent,
        Kind::FastRnn | Kind::SpectralRnn => Cell::Mixed,
    };
    let gates = cell.gates() * hidden;
    let bound = match kind {
        Kind::IndRnn => 1.0 / (inputs as f64).sqrt(),
        _ => 1.0 / (hidden as f64).sqrt(),
    };
    let mut drawn = |shape: &[usize], low: f64, high: f64| {
        let count: usize = shape.iter().product();
        let numbers: Vec<f64> = (0..count).map(|_| draw.uniform(low, high)).collect();
        var(&numbers, shape, to)
    };
    let input = drawn(&[gates, inputs], -bound, bound)?;
    let state = match kind {
        Kind::IndRnn => State::Diagonal(drawn(&[hidden], 0.0, 1.0)?),
        Kind::Torch(_) | Kind::FastRnn => State::Matrix(drawn(&[gates, hidden], -bound, bound)?),
        Kind::SpectralRnn => {
            let count = hidden.min(orthogonal::REFLECTIONS);
            let mut factor = || {
                let normal: Vec<f64> = (0..hidden * count).map(|_| draw.normal()).collect();
                var(&normal, &[hidden, count], to)
            };
            let (left, right) = (factor()?, factor()?);
            State::Factors([left, var(&vec![0.0; hidden], &[hidden], to)?, right])
        }
    };
    let beside = match kind {
        Kind::Torch(_) => {
            let mut bias = || {
                let numbers: Vec<f64> = (0..gates).map(|_| draw.uniform(-bound, bound)).collect();
                var(&numbers, &[gates], to)
            };
            Beside::Biases([bias()?, bias()?])
        }
        Kind::IndRnn => Beside::Bias(var(&vec![0.0; hidden], &[hidden], to)?),
        Kind::FastRnn => Beside::Shares(var(&SHARES, &[2], to)?),
        Kind::SpectralRnn => Beside::None,
    };
    Ok(Layer {
        cell,
        input,
        state,
        beside,
    })
}

impl Layer {
    fn parameters(&self, index: usize) -> Vec<Parameter> {
        let one =
            |name: &str, var: &Var, group| parameter(&format!("layers.{index}."), name, var, group);
        let mut all = vec![one("input", &self.input, Group::Plain)];
        match &self.state {
            State::Matrix(matrix) => all.push(one("state", matrix, Group::Plain)),
            State::Diagonal(weights) => all.push(one("state", weights, Group::NoDecay)),
            State::Factors([left, spread, right]) => {
                all.push(one("state.left", left, Group::NoDecay));
                all.push(one("state.spread", spread, Group::NoDecay));
                all.push(one("state.right", right, Group::NoDecay));
            }
        }
        match &self.beside {
            Beside::Biases([first, second]) => {
                all.push(one("input_bias", first, Group::NoDecay));
                all.push(one("state_bias", second, Group::NoDecay));
            }
            Beside::Bias(bias) => all.push(one("bias", bias, Group::NoDecay)),
            Beside::Shares(shares) => all.push(one("shares", shares, Group::NoDecay)),
            Beside::None => {}
        }
        all
    }

    fn weights(&self) -> Result<Tensor> {
        match &self.state {
            State::Matrix(var) | State::Diagonal(var) => Ok(var.as_tensor().clone()),
            State::Factors([left, spread, right]) => orthogonal::from_factors(left, spread, right),
        }
    }

    /// `None` where there are gates.
    fn single(&self) -> Result<Option<SingleLayer>> {
        if self.cell.gates() > 1 {
            return Ok(None);
        }
        let recurrent = match &self.state {
            State::Diagonal(weights) => DMatrix::from_diagonal(&host(weights.as_tensor())?.into()),
            State::Matrix(_) | State::Factors(_) => matrix(&self.weights()?)?,
        };
        let (mut bias, mut shares) = (None, None);
        match &self.beside {
            Beside::Biases([first, second]) => {
                bias = Some(host(&(first.as_tensor() + second.as_tensor())?)?)
            }
            Beside::Bias(one) => bias = Some(host(one.as_tensor())?),
            Beside::Shares(_) => {
                let both = host(&self.vector()?)?;
                shares = Some([both[0], both[1]]);
            }
            Beside::None => {}
        }
        Ok(Some(SingleLayer {
            recurrent,
            input: matrix(self.input.as_tensor())?,
            bias,
            shares,
        }))
    }

    fn vector(&self) -> Result<Tensor> {
        match &self.beside {
            Beside::Biases([first, second]) => {
                Tensor::cat(&[first.as_tensor(), second.as_tensor()], 0)
            }
            Beside::Bias(bias) => Ok(bias.as_tensor().clone()),
            Beside::Shares(shares) => ((shares.as_tensor() * 0.5)?.tanh()? + 1.0)? * 0.5,
            Beside::None => {
                let shares = Tensor::new(&[1.0, 0.0], self.input.device())?;
                shares.to_dtype(self.input.dtype())
            }
        }
    }
}

impl Body for Stacked {
    fn codes(&self, input: &Tensor, _: &Frame<'_>, mode: Mode<'_>) -> Result<Tensor> {
        let keep = matches!(mode, Mode::Train(_));
        let mut x = input.clone();
        for layer in &self.layers {
            let inputs = rows_times(&x, layer.input.as_tensor())?;
            let (weights, vector) = (layer.weights()?, layer.vector()?);
            let operands = CellTensors {
                inputs: &inputs,
                weights: &weights,
                vector: &vector,
            };
            x = match x.device().is_cpu() {
                true => recurrence(layer.cell, operands, &self.workspaces, keep)?,
                false => plain::recurrence(layer.cell, operands)?,
            };
        }
        Ok(x)
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn single_layer(&self) -> Result<Option<SingleLayer>> {
        match self.layers.as_slice() {
            [layer] => layer.single(),
            _ => Ok(None),
        }
    }
}
