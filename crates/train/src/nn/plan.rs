//! What one block computes, and where its numbers stand in the flat tensors of the whole stack.

use std::ops::Range;

use candle_core::{Shape, Tensor};
use hankelite::model::Placement;
use hankelite_kernels::{GeluForm, Mixing, Modes};
use num_complex::Complex64;

use crate::nn::Penalty;

/// Batch × length × channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) batch: usize,
    pub(super) length: usize,
    pub(super) channels: usize,
}

impl Size {
    /// Numbers of a batch.
    pub(super) fn numbers(self) -> usize {
        self.batch * self.length * self.channels
    }
}

/// How steps become channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// The data are channels.
    None,
    /// x = W u + b, with W channels × inputs before b.
    Linear {
        /// Numbers of a step.
        inputs: usize,
    },
    /// Row `token` of a vocabulary × channels table.
    Embedding {
        /// Rows of the table.
        vocabulary: usize,
    },
}

impl Encoding {
    /// Numbers of its parameters.
    pub(super) fn parameters(self, channels: usize) -> usize {
        match self {
            Encoding::None => 0,
            Encoding::Linear { inputs } => channels * (inputs + 1),
            Encoding::Embedding { vocabulary } => channels * vocabulary,
        }
    }
}

/// Over what a normalisation averages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormKind {
    Layer,
    Batch,
}

/// A normalisation and its place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NormPlan {
    pub(super) kind: NormKind,
    pub(super) placement: Placement,
    pub(super) epsilon: f64,
}

/// The state space of a block whose channels share modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedPlan {
    /// Whether D is a matrix, and not a diagonal.
    pub(super) dense: bool,
}

/// One block on one batch. Blocks without a norm have no residual either.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BlockPlan {
    /// Modes of every channel, or of all together.
    pub(super) modes: usize,
    /// Whether some may grow, as those of a softmax do.
    pub(super) may_grow: bool,
    pub(super) bidirectional: bool,
    /// `None` for one system for each channel.
    pub(super) shared: Option<SharedPlan>,
    pub(super) gelu: GeluForm,
    pub(super) mixing: Mixing,
    pub(super) norm: Option<NormPlan>,
    /// Dropout before the linear map, batch × channels; empty for none.
    pub(super) inner_mask: Vec<f64>,
    /// Dropout after it.
    pub(super) outer_mask: Vec<f64>,
    /// Mean and variance that a batch norm takes instead of the batch's own.
    pub(super) running: Option<(Vec<f64>, Vec<f64>)>,
    /// A number for the filters that is given out too.
    pub(super) penalty: Option<Penalty>,
}

/// A whole network on one batch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NetworkPlan {
    pub(super) channels: usize,
    pub(super) encoding: Encoding,
    pub(super) blocks: Vec<BlockPlan>,
    /// The weights of all steps, batch × L, of a pooling over time.
    pub(super) pooling: Option<Vec<f64>>,
    /// Whether the outputs of all blocks are given out too.
    pub(super) layers: bool,
    /// Whether a backward pass follows.
    pub(super) training: bool,
}

impl NetworkPlan {
    /// Blocks that give out a number for their filters.
    pub(super) fn penalties(&self) -> usize {
        let blocks = self.blocks.iter();
        blocks.filter(|plan| plan.penalty.is_some()).count()
    }

    /// Blocks whose outputs are given out too.
    pub(super) fn layers_given(&self) -> usize {
        if self.layers { self.blocks.len() } else { 0 }
    }

    /// Numbers and shape of the result: batch × H with a pooling, else batch × L × H.
    pub(super) fn result(&self, size: Size) -> (usize, Shape) {
        let shape = match self.pooling {
            Some(_) => Shape::from((size.batch, size.channels)),
            None => Shape::from((size.batch, size.length, size.channels)),
        };
        (shape.elem_count(), shape)
    }

    /// Numbers of all modes and of all parameters; those of the encoder stand first.
    pub(super) fn numbers(&self) -> (usize, usize) {
        let modes = self.blocks.iter();
        let modes = modes.map(|plan| plan.mode_numbers(self.channels));
        let parameters = self.blocks.iter();
        let parameters = parameters.map(|plan| plan.parameters(self.channels));
        let encoder = self.encoding.parameters(self.channels);
        (modes.sum(), encoder + parameters.sum::<usize>())
    }
}

/// Mean and population variance of every channel, for each block with a batch norm.
pub(super) type Statistics = Vec<Option<(Vec<f64>, Vec<f64>)>>;

/// What a network is applied to.
#[derive(Clone, Copy)]
pub(super) struct NetworkTensors<'a> {
    /// Numbers or tokens of a batch.
    pub(super) steps: &'a Tensor,
    /// The modes of all blocks, f64, flat.
    pub(super) modes: &'a Tensor,
    /// The parameters of encoder and blocks, flat, in the order of [`NetworkPlan`].
    pub(super) parameters: &'a Tensor,
}

/// What a network gives on a batch.
pub(super) struct NetworkOutput {
    /// Batch × H with a pooling, else batch × L × H.
    pub(super) out: Tensor,
    /// The outputs of all blocks, where they are requested.
    pub(super) layers: Vec<Tensor>,
    /// One number for the filters of each block that is requested one.
    pub(super) penalties: Option<Tensor>,
    pub(super) statistics: Statistics,
}

/// Where the parameters of a block stand.
pub(super) struct Places {
    pub(super) feedthrough: Range<usize>,
    /// γ B and C of channels that share modes.
    pub(super) input: Range<usize>,
    pub(super) output: Range<usize>,
    pub(super) norm_weight: Range<usize>,
    pub(super) norm_bias: Range<usize>,
    pub(super) weight: Range<usize>,
    pub(super) bias: Range<usize>,
}

impl BlockPlan {
    pub(super) fn places(&self, channels: usize) -> Places {
        let mut end = 0;
        let mut next = |count: usize| {
            end += count;
            end - count..end
        };
        let norm = if self.norm.is_some() { channels } else { 0 };
        let rows = self.mixing.rows(channels);
        let dense = self.shared.is_some_and(|shared| shared.dense);
        let matrix = match self.shared {
            Some(_) => 2 * self.modes * channels,
            None => 0,
        };
        Places {
            feedthrough: next(if dense { channels * channels } else { channels }),
            input: next(matrix),
            output: next(self.directions() * matrix),
            norm_weight: next(norm),
            norm_bias: next(norm),
            weight: next(rows * channels),
            bias: next(rows),
        }
    }

    /// Numbers of all parameters beside the modes.
    pub(super) fn parameters(&self, channels: usize) -> usize {
        self.places(channels).bias.end
    }

    /// Numbers of all modes: for each direction Re z, Im z, Re w, Im w, each channels × modes; Re z,
    /// Im z of shared ones.
    pub(super) fn mode_numbers(&self, channels: usize) -> usize {
        match self.shared {
            Some(_) => 2 * self.modes,
            None => self.directions() * 4 * channels * self.modes,
        }
    }

    fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }
}

/// The modes of every channel, for each direction.
pub(super) fn unpack_modes(plan: &BlockPlan, channels: usize, numbers: &[f64]) -> Vec<Vec<Modes>> {
    let count = channels * plan.modes;
    let direction = |start: usize| -> Vec<Modes> {
        let numbers = &numbers[start..start + 4 * count];
        let complex = |part: usize, at: usize| {
            Complex64::new(numbers[part * count + at], numbers[(part + 1) * count + at])
        };
        let channel = |h: usize| {
            let range = h * plan.modes..(h + 1) * plan.modes;
            Modes {
                exponents: range.clone().map(|at| complex(0, at)).collect(),
                weights: range.map(|at| complex(2, at)).collect(),
            }
        };
        (0..channels).map(channel).collect()
    };
    (0..plan.directions())
        .map(|d| direction(d * 4 * count))
        .collect()
}

/// z of shared modes.
pub(super) fn unpack_exponents(numbers: &[f64]) -> Vec<Complex64> {
    let (re, im) = numbers.split_at(numbers.len() / 2);
    let parts = re.iter().zip(im);
    parts.map(|(&re, &im)| Complex64::new(re, im)).collect()
}

/// The reverse of [`unpack_exponents`].
pub(super) fn pack_exponents(exponents: &[Complex64]) -> Vec<f64> {
    let parts: [fn(&Complex64) -> f64; 2] = [|z| z.re, |z| z.im];
    parts
        .iter()
        .flat_map(|part| exponents.iter().map(part))
        .collect()
}

/// The reverse of [`unpack_modes`].
pub(super) fn pack_modes(plan: &BlockPlan, directions: &[Vec<Modes>]) -> Vec<f64> {
    let mut numbers = Vec::new();
    for channels in &directions[..plan.directions()] {
        let all = |part: &dyn Fn(&Modes) -> Vec<f64>| channels.iter().flat_map(part).collect();
        let parts: [Vec<f64>; 4] = [
            all(&|modes| modes.exponents.iter().map(|z| z.re).collect()),
            all(&|modes| modes.exponents.iter().map(|z| z.im).collect()),
            all(&|modes| modes.weights.iter().map(|w| w.re).collect()),
            all(&|modes| modes.weights.iter().map(|w| w.im).collect()),
        ];
        numbers.extend(parts.concat());
    }
    numbers
}
