//! Rounding a map so that the logits change least.

use std::collections::VecDeque;

use hankelite_control::{UpperRoot, gram_matrix};
use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

use crate::calibrate::{CalibratedReduction, Combinations, left};
use crate::infer::{InferError, MapSlopes, Network, Path as InferPath};
use crate::model::{Linear, Model};
use crate::rounding::{MapChoice, MapStorage, RoundedColumn, RoundedMatrix};
use crate::target::TargetError;
use crate::target::compared::{Compared, MapPlace};
use crate::target::menu::with_map;

/// Rounds over all outputs after the first one.
const ROUNDS: usize = 2;

/// The prices ρ that are tried.
const PRICES: [f64; 4] = [1e4, 1000.0, 100.0, 10.0];

/// The share of the mean square of an input that every input has besides.
const RIDGE: f64 = 1e-3;

/// Numbers in the table of gradients at most, half a GiB.
const SLOPES_MAX: usize = 1 << 27;

/// Sequences whose derivatives are formed before they are put in their places, and outputs whose metrics are
/// inverted side by side.
const TOGETHER: usize = 16;

/// Combinations of the logits of each sequence at most.
const COMBINATIONS_MAX: usize = 3;

/// Every so many sequences one is kept to check the others.
const CHECK_EVERY: usize = 4;

/// The least squares problem of the entries of one map.
///
/// With J_o the derivatives of n combinations of the logits by the weights and the bias of output
/// o, and r what is left of the full model's combinations, the entries ŵ_o of all outputs minimise
///
/// ```text
/// ‖r − Σ_o J_o (ŵ_o − w_o)‖² + ρ Σ_o Γ_o E((ŵ_o − w_o)ᵀ x)²
/// ```
///
/// Γ_o being the squared derivatives by what the map gives, summed over steps, so that the second term
/// is what the change would do to the logits were it noise. Outputs are rounded one after the
/// other, each in its own metric J_oᵀ J_o + ρ Γ_o E x xᵀ, and what is left of one is for those that
/// follow.
struct LogitRounding {
    /// For each output (inputs + 1) × R, the bias last.
    slopes: Vec<DMatrix<f32>>,
    /// J_oᵀ J_o.
    products: Vec<DMatrix<f64>>,
    /// Γ.
    noise: Vec<f64>,
    /// E x xᵀ with 1 after the inputs.
    second: DMatrix<f64>,
    left: DVector<f64>,
}

/// A rounded map.
struct RoundedRows {
    matrix: RoundedMatrix,
    bias: Vec<f64>,
}

/// A model with one more map rounded.
pub(super) struct RoundedForLogits {
    pub(super) model: Model,
    pub(super) storage: MapStorage,
    /// Relative change of the logits over the sequences that check.
    pub(super) change: f64,
}

/// The model with the map of one layer rounded for the logits at the best price; `None` where the
/// logits are not pooled, the map has no bias, or it is too large.
pub(super) fn rounded_for_logits(
    reduction: &CalibratedReduction<'_>,
    place: MapPlace<'_>,
    choice: MapChoice,
) -> Result<Option<RoundedForLogits>, TargetError> {
    let MapPlace {
        model,
        layer,
        compared,
    } = place;
    let block = &model.blocks()[layer];
    let pooled = model.head().and_then(|head| head.pooling).is_some();
    let output = block
        .output()
        .filter(|output| pooled && output.linear.bias.is_some());
    let (Some(output), Some(bits)) = (output, choice.entries.bits()) else {
        return Ok(None);
    };
    let linear = &output.linear;
    let combinations = Combinations {
        classes: model.classes().unwrap_or(0),
        most: COMBINATIONS_MAX,
    };
    let rows = reduction.sequences().len() * combinations.each();
    if rows.saturating_mul(linear.weight.len()) > SLOPES_MAX {
        return Ok(None);
    }
    let problem = LogitRounding::new(reduction, model, layer, combinations)?;
    let grid = Grid {
        bits,
        group: choice.group,
        scales: RoundedMatrix::best_scales(&linear.weight, bits, choice.group)?,
    };
    let mut best: Option<RoundedForLogits> = None;
    for price in PRICES {
        let Some(rounded) = problem.rounded(linear, &grid, price) else {
            continue;
        };
        let map = Linear {
            weight: rounded.matrix.weight().into(),
            bias: Some(rounded.bias),
        };
        // Numbers that are not finite make no model.
        let Ok(block) = with_map(block, map) else {
            continue;
        };
        let model = model.with_block(layer, block)?;
        let change = compared.change(&model)?;
        if best.as_ref().is_none_or(|best| change < best.change) {
            best = Some(RoundedForLogits {
                model,
                storage: MapStorage::Integers(rounded.matrix),
                change,
            });
        }
    }
    Ok(best)
}

/// The sequences that check what the others found, before the first layer of a model.
pub(super) fn checked<'a>(
    reduction: &'a CalibratedReduction<'a>,
    model: &Model,
) -> Result<Compared<'a>, TargetError> {
    Compared::new(reduction, model, checks)
}

/// Whether a sequence checks, instead of taking part in the rounding.
fn checks(index: usize) -> bool {
    (index + 1).is_multiple_of(CHECK_EVERY)
}

/// What entries can be.
struct Grid {
    bits: u32,
    group: usize,
    /// At the start, for each group of inputs and output.
    scales: DMatrix<f32>,
}

impl LogitRounding {
    fn new(
        reduction: &CalibratedReduction<'_>,
        model: &Model,
        layer: usize,
        combinations: Combinations,
    ) -> Result<Self, TargetError> {
        let network = Network::new(model, reduction.length(), InferPath::Auto)?;
        let all = 0..reduction.sequences().len();
        let fit: Vec<usize> = all.filter(|&index| !checks(index)).collect();
        let each = combinations.each();
        let count = fit.len() * each;
        let (inputs, outputs) = model.blocks()[layer]
            .output()
            .map_or((0, 0), |output| output.linear.weight.shape());
        let mut made = Self {
            slopes: vec![DMatrix::zeros(inputs + 1, count); outputs],
            products: Vec::new(),
            noise: vec![0.0; outputs],
            second: DMatrix::zeros(inputs + 1, inputs + 1),
            left: DVector::zeros(count),
        };
        for (first, some) in fit.chunks(TOGETHER).enumerate() {
            let own = some.par_iter().map(|&index| {
                let combinations = combinations.of(index);
                let sequence = reduction.sequences()[index];
                let (logits, slopes) = network.map_slopes(sequence, &combinations, layer)?;
                let left = left(&reduction.logits()[index], &logits, &combinations);
                Ok((slopes, left))
            });
            let own = own.collect::<Result<Vec<_>, InferError>>()?;
            for (s, (slopes, left)) in own.iter().enumerate() {
                let row = (first * TOGETHER + s) * each;
                made.left.rows_mut(row, each).copy_from(left);
                made.add(slopes, row);
            }
        }
        let steps = made.second[(inputs, inputs)];
        made.second /= f64::max(steps, 1.0);
        let products = made.slopes.par_iter().map(|slopes| {
            let wide = slopes.map(f64::from).transpose();
            gram_matrix(&wide)
        });
        made.products = products.collect();
        Ok(made)
    }

    /// What one sequence adds, its combinations from some row on.
    fn add(&mut self, slopes: &[MapSlopes], row: usize) {
        let combinations = slopes.iter().flat_map(|own| &own.rows);
        for (r, own) in combinations.enumerate() {
            let each = own.chunks_exact(self.second.nrows());
            for (output, own) in self.slopes.iter_mut().zip(each) {
                output.column_mut(row + r).copy_from_slice(own);
            }
        }
        for own in slopes {
            let noise = self.noise.iter_mut().zip(&own.squares);
            noise.for_each(|(sum, more)| *sum += more);
        }
        if let Some(first) = slopes.first() {
            self.second += &first.second;
        }
    }

    /// The metric of the weights and the bias of one output at a price.
    fn joint(&self, output: usize, price: f64) -> DMatrix<f64> {
        let inputs = self.second.nrows() - 1;
        let noise = price * self.noise[output];
        let mut joint = &self.products[output] + &self.second * noise;
        let ridge = RIDGE * noise * self.second.trace() / (inputs + 1) as f64;
        let ridge = if ridge > 0.0 { ridge } else { 1e-12 };
        (0..=inputs).for_each(|i| joint[(i, i)] += ridge);
        joint
    }

    /// All outputs rounded at one price; `None` where a metric is not positive definite.
    fn rounded(&self, linear: &Linear, grid: &Grid, price: f64) -> Option<RoundedRows> {
        let outputs = 0..self.products.len();
        let metrics = outputs.into_par_iter();
        let metrics = metrics.map(|output| Metric::new(&self.joint(output, price)));
        let metrics = metrics.collect::<Option<Vec<_>>>()?;
        let inputs = linear.weight.nrows();
        let mut left = self.left.clone();
        let columns = grid.scales.column_iter();
        let mut columns: Vec<RoundedColumn> = columns
            .map(|scales| RoundedColumn::new(grid.bits, grid.group, scales.into_owned()))
            .collect();
        // Changes of weights and bias so far.
        let mut moved: Vec<DVector<f64>> = vec![DVector::zeros(inputs + 1); columns.len()];
        let mut spreads = VecDeque::new();
        for round in 0..=ROUNDS {
            for (output, column) in columns.iter_mut().enumerate() {
                let (metric, slopes) = (&metrics[output], &self.slopes[output]);
                add_combined(&mut left, slopes, &moved[output]);
                let joint = metric.root.solve(&combined(slopes, &left));
                let original = linear.weight.column(output);
                let wanted = original + joint.rows(0, inputs);
                if round == 0 {
                    if spreads.is_empty() {
                        let some = &metrics[output..metrics.len().min(output + TOGETHER)];
                        spreads.par_extend(some.par_iter().map(Metric::spread));
                    }
                    column.round(&wanted, spreads.pop_front().as_ref());
                }
                column.improve(&wanted, &metric.weights(&self.joint(output, price)));
                let weights = column.values();
                let bias = joint[inputs] - metric.bias.dot(&(&weights - &wanted));
                let own = &mut moved[output];
                own.rows_mut(0, inputs).copy_from(&(weights - original));
                own[inputs] = bias;
                add_combined(&mut left, slopes, &-&*own);
            }
        }
        let bias = linear.bias.iter().flatten().zip(&moved);
        Some(RoundedRows {
            bias: bias.map(|(b, moved)| b + moved[inputs]).collect(),
            matrix: RoundedColumn::gathered(&columns),
        })
    }
}

/// left ← left + Jᵀ x, for J in single precision.
fn add_combined(left: &mut DVector<f64>, slopes: &DMatrix<f32>, x: &DVector<f64>) {
    let columns = slopes.as_slice().chunks_exact(slopes.nrows().max(1));
    for (left, column) in left.iter_mut().zip(columns) {
        *left += dot(column, x.as_slice());
    }
}

/// In lanes.
fn dot(a: &[f32], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (whole, left) = a.as_chunks::<LANES>();
    let (others, more) = b.as_chunks::<LANES>();
    for (a, b) in whole.iter().zip(others) {
        for ((sum, &a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += f64::from(a) * b;
        }
    }
    let rest = left.iter().zip(more).map(|(&a, b)| f64::from(a) * b);
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

/// J x, for J in single precision.
fn combined(slopes: &DMatrix<f32>, x: &DVector<f64>) -> DVector<f64> {
    let mut sums = DVector::zeros(slopes.nrows());
    for (column, &x) in slopes.column_iter().zip(x) {
        sums.zip_apply(&column, |sum, j| *sum += f64::from(j) * x);
    }
    sums
}

/// The metric of one output, its bias being free.
struct Metric {
    /// Of weights and bias.
    root: UpperRoot,
    /// How the bias answers to a change of the weights, less its sign.
    bias: DVector<f64>,
}

impl Metric {
    fn new(joint: &DMatrix<f64>) -> Option<Self> {
        let inputs = joint.nrows() - 1;
        let across = joint.view((0, inputs), (inputs, 1)) / joint[(inputs, inputs)];
        Some(Self {
            root: UpperRoot::new(joint)?,
            bias: DVector::from_column_slice(across.as_slice()),
        })
    }

    /// Of the weights, the bias being the best for them.
    fn weights(&self, joint: &DMatrix<f64>) -> DMatrix<f64> {
        let inputs = self.bias.len();
        let across = joint.view((0, inputs), (inputs, 1));
        joint.view((0, 0), (inputs, inputs)) - across * self.bias.transpose()
    }

    /// How an error of a weight is spread over those that follow: U of `weights`⁻¹ = Uᵀ U.
    fn spread(&self) -> DMatrix<f64> {
        // The bias is the last.
        let inputs = self.bias.len();
        self.root.inverse().remove_row(inputs).remove_column(inputs)
    }
}
