//! One block on a whole sequence: x is L × H, one contiguous column for each channel.

use std::borrow::Cow;
use std::sync::Arc;

use hankelite_control::{Convolver, DiagonalSystem};
use hankelite_kernels::{GeluForm, add_squares, gelu, gelu_backward, sigmoid as sigmoid_of};
use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;
use rayon::prelude::*;

use crate::infer::mimo::Mimo;
use crate::infer::{InferError, Path};
use crate::model::{Block, Gate, Linear, Nonlinearity, Norm, Placement};
use crate::progress::in_order;

/// A block with its channels prepared.
pub(super) struct Layer<'a> {
    block: &'a Block,
    systems: Systems,
    /// Those that run backwards in time.
    backward: Systems,
    convolver: Arc<Convolver>,
}

enum Systems {
    /// One for each channel.
    Bank(Vec<Channel>),
    /// Each with some of the channels, and its adjoint.
    Mimo(Vec<(Mimo, Mimo)>),
}

struct Channel {
    operator: Operator,
    feedthrough: f64,
}

/// What the way back through a layer needs.
#[derive(Default)]
pub(super) struct Trace {
    /// What the channels convolve.
    pub(super) input: DMatrix<f64>,
    /// What they give.
    pub(super) y: DMatrix<f64>,
    /// What the map that mixes channels gives, where there are gates in it.
    mixed: Option<DMatrix<f64>>,
    /// What is normalised.
    normed: DMatrix<f64>,
    /// The same, before factors and offsets.
    standard: DMatrix<f64>,
}

/// Derivatives by numbers that act at every step, one entry for each number.
#[derive(Default)]
pub(crate) struct StepSums {
    /// The sum over the steps: the derivative.
    pub(crate) sum: Vec<f64>,
    /// The sum of squares over the steps.
    pub(crate) squares: Vec<f64>,
}

impl StepSums {
    fn new(sums: impl Iterator<Item = [f64; 2]>) -> Self {
        let (sum, squares) = sums.map(|[sum, squares]| (sum, squares)).unzip();
        Self { sum, squares }
    }

    /// Adds rows of `width` numbers, each times that of `by`.
    pub(super) fn count(&mut self, rows: &[f32], by: Option<&[f32]>, width: usize) {
        self.sum.resize(width, 0.0);
        self.squares.resize(width, 0.0);
        if width == 0 {
            return;
        }
        add_squares(&mut self.sum, &mut self.squares, rows, by);
    }
}

/// The derivatives by a layer's input and by its numbers.
#[derive(Default)]
pub(super) struct Slopes {
    pub(super) below: DMatrix<f64>,
    /// By y, L × H.
    pub(super) output: DMatrix<f64>,
    /// By what the map between the channels gives, L × its outputs.
    pub(super) mixed: DMatrix<f64>,
    /// By the bias of the map between the channels.
    pub(super) bias: StepSums,
    /// By the factors of the norm.
    pub(super) factors: StepSums,
    /// By its offsets.
    pub(super) offsets: StepSums,
}

impl Slopes {
    /// Counts the derivative by what the norm gives.
    fn count_norm(&mut self, trace: &Trace, slope: &DMatrix<f64>) {
        let pairs = slope.column_iter().zip(trace.standard.column_iter());
        self.factors = StepSums::new(pairs.map(|(slope, unit)| {
            let values = slope.iter().zip(&unit).map(|(s, u)| s * u);
            [values.clone().sum(), values.map(|v| v * v).sum()]
        }));
        self.offsets = StepSums::new(
            slope
                .column_iter()
                .map(|slope| [slope.sum(), slope.norm_squared()]),
        );
    }
}

/// What follows the systems of a layer.
struct Mixed {
    /// What the map gives, where there are gates in it.
    mixed: Option<DMatrix<f64>>,
    /// What is added to the residual stream.
    branch: DMatrix<f64>,
}

enum Operator {
    Spectrum(Vec<Complex64>),
    Modes(Vec<(Complex64, Complex64)>),
}

impl Channel {
    fn new(
        system: &DiagonalSystem,
        length: usize,
        path: Path,
        convolver: &Convolver,
    ) -> Result<Self, InferError> {
        let operator = match path {
            Path::Auto | Path::Double | Path::Fft => {
                Operator::Spectrum(convolver.spectrum(&system.kernel(length)?))
            }
            Path::Recurrence => {
                let modes = system.poles().into_iter().zip(system.as_siso()?.residues());
                Operator::Modes(modes.collect())
            }
        };
        Ok(Self {
            operator,
            feedthrough: system.feedthrough()[(0, 0)],
        })
    }

    fn run(&self, input: &[f64], convolver: &Convolver) -> Vec<f64> {
        let mut output = match &self.operator {
            Operator::Spectrum(spectrum) => convolver.convolve(spectrum, input),
            Operator::Modes(modes) => recur(modes, input),
        };
        for (y, u) in output.iter_mut().zip(input) {
            *y += self.feedthrough * u;
        }
        output
    }
}

impl Systems {
    fn new(
        systems: &[DiagonalSystem],
        length: usize,
        path: Path,
        convolver: &Convolver,
    ) -> Result<Self, InferError> {
        if systems.iter().any(|system| system.as_siso().is_err()) {
            if path == Path::Fft {
                let what = "a layer has systems with several inputs or outputs, which run by their \
                            recurrence; expected the path `auto` or `recurrence`";
                return Err(InferError::Other(what.to_string()));
            }
            let both = systems.iter();
            let both = both.map(|system| (Mimo::new(system), Mimo::transposed(system)));
            return Ok(Systems::Mimo(both.collect()));
        }
        let channels = systems.par_iter();
        let channels = channels.map(|system| Channel::new(system, length, path, convolver));
        Ok(Systems::Bank(in_order(channels)?))
    }

    /// L × outputs of L × inputs.
    fn run(&self, x: &DMatrix<f64>, convolver: &Convolver) -> DMatrix<f64> {
        match self {
            Systems::Bank(channels) => {
                let mut y = DMatrix::zeros(x.nrows(), channels.len());
                for (h, channel) in channels.iter().enumerate() {
                    let output = channel.run(x.column(h).as_slice(), convolver);
                    y.column_mut(h).copy_from_slice(&output);
                }
                y
            }
            Systems::Mimo(systems) => {
                let each = x.ncols() / systems.len().max(1);
                let inputs = |h| x.columns(h * each, each).into_owned();
                let runs = systems.iter().enumerate();
                let runs: Vec<_> = runs.map(|(h, (own, _))| own.run(&inputs(h))).collect();
                let outputs = runs.first().map_or(0, DMatrix::ncols);
                // Output c of system h is column c H + h.
                DMatrix::from_fn(x.nrows(), outputs * runs.len(), |t, column| {
                    runs[column % runs.len()][(t, column / runs.len())]
                })
            }
        }
    }

    /// The adjoint of [`Systems::run`], with time reversed on both sides.
    fn run_adjoint(&self, y: &DMatrix<f64>, convolver: &Convolver) -> DMatrix<f64> {
        match self {
            Systems::Bank(_) => self.run(y, convolver),
            Systems::Mimo(systems) => {
                let (count, outputs) = (systems.len(), y.ncols() / systems.len().max(1));
                let own =
                    |h: usize| DMatrix::from_fn(y.nrows(), outputs, |t, c| y[(t, c * count + h)]);
                let runs = systems.iter().enumerate();
                let runs: Vec<_> = runs.map(|(h, (_, adjoint))| adjoint.run(&own(h))).collect();
                let each = runs.first().map_or(0, DMatrix::ncols);
                DMatrix::from_fn(y.nrows(), each * count, |t, column| {
                    runs[column / each][(t, column % each)]
                })
            }
        }
    }
}

/// The rows in reversed order.
fn turned(x: &DMatrix<f64>) -> DMatrix<f64> {
    let last = x.nrows();
    DMatrix::from_fn(x.nrows(), x.ncols(), |t, h| x[(last - 1 - t, h)])
}

/// y_k = Re Σ w_i s_i, with s_i ← a_i s_i + u_k first.
fn recur(modes: &[(Complex64, Complex64)], input: &[f64]) -> Vec<f64> {
    let mut output = vec![0.0; input.len()];
    for &(pole, residue) in modes {
        let mut state = Complex64::ZERO;
        for (y, u) in output.iter_mut().zip(input) {
            state = pole * state + u;
            *y += residue.re * state.re - residue.im * state.im;
        }
    }
    output
}

impl<'a> Layer<'a> {
    pub(super) fn new(
        block: &'a Block,
        length: usize,
        path: Path,
        convolver: &Arc<Convolver>,
    ) -> Result<Self, InferError> {
        let prepared = |systems| Systems::new(systems, length, path, convolver);
        Ok(Self {
            block,
            systems: prepared(block.systems())?,
            backward: prepared(block.backward())?,
            convolver: Arc::clone(convolver),
        })
    }

    /// The layer's output. What [`Layer::backward`] needs goes into `trace`, where one is given.
    pub(super) fn forward(&self, x: DMatrix<f64>, trace: Option<&mut Trace>) -> DMatrix<f64> {
        let input = self.input_of(&x);
        let y = self.convolved(&input);
        let Mixed { mixed, branch } = self.mixed(&y);
        let sum = match self.block.norm() {
            None => branch,
            Some(_) => branch + &x,
        };
        if let Some(trace) = trace {
            trace.input = input.into_owned();
            trace.y = y;
            trace.mixed = mixed;
            trace.normed = match self.block.norm() {
                Some((_, Placement::Post)) => sum.clone(),
                _ => x,
            };
            if let Some((norm, _)) = self.block.norm() {
                trace.standard = normalised(&standard(norm), trace.normed.clone());
            }
        }
        match self.block.norm() {
            Some((norm, Placement::Post)) => normalised(norm, sum),
            _ => sum,
        }
    }

    /// The derivatives by the layer's input and by its numbers, from that by the layer's output.
    pub(super) fn backward(&self, trace: &Trace, slope: DMatrix<f64>) -> Slopes {
        let mut made = Slopes::default();
        let slope = match self.block.norm() {
            Some((norm, Placement::Post)) => {
                made.count_norm(trace, &slope);
                normalised_backward(norm, &trace.normed, &slope)
            }
            _ => slope,
        };
        made.output = self.branch_backward(trace, &slope, &mut made.mixed);
        made.bias = StepSums::new(
            made.mixed
                .column_iter()
                .map(|column| [column.sum(), column.norm_squared()]),
        );
        let back = self
            .systems
            .run_adjoint(&turned(&made.output), &self.convolver);
        let mut input = turned(&back);
        if !self.block.backward().is_empty() {
            let ahead = self.backward.run_adjoint(&made.output, &self.convolver);
            let (from, kept) = self.overlap(input.nrows());
            let mut later = input.rows_mut(from, kept);
            later += ahead.rows(0, kept);
        }
        made.below = match self.block.norm() {
            None => input,
            Some((_, Placement::Post)) => input + slope,
            Some((norm, Placement::Pre)) => {
                made.count_norm(trace, &input);
                normalised_backward(norm, &trace.normed, &input) + slope
            }
        };
        made
    }

    /// The derivative by y from that by the branch's output; that by what the map gives goes into
    /// `mixed`, where there is one.
    fn branch_backward(
        &self,
        trace: &Trace,
        slope: &DMatrix<f64>,
        mixed: &mut DMatrix<f64>,
    ) -> DMatrix<f64> {
        let Some(output) = self.block.output() else {
            return self.activation_backward(slope.clone(), &trace.y);
        };
        let weight = &output.linear.weight;
        let by_map = |gates: &DMatrix<f64>| gates * weight.transpose();
        match (&trace.mixed, output.gate) {
            (Some(map), Gate::Halves) => {
                *mixed = gated_backward(map, slope);
                self.activation_backward(by_map(mixed), &trace.y)
            }
            (Some(map), Gate::Activated) => {
                let activated = self.activate(&trace.y);
                *mixed = gate_slope(map, &activated, slope);
                let own = by_map(mixed) + sigmoid(map).component_mul(slope);
                self.activation_backward(own, &trace.y)
            }
            (Some(map), Gate::Response) => {
                *mixed = gate_slope(map, &trace.y, slope);
                let own = self.activation_backward(by_map(mixed), &trace.y);
                own + sigmoid(map).component_mul(slope)
            }
            (None, _) | (_, Gate::None) => {
                *mixed = slope.clone();
                self.activation_backward(by_map(mixed), &trace.y)
            }
        }
    }

    /// The derivative by y from that by what the activation gives.
    fn activation_backward(&self, mut slope: DMatrix<f64>, y: &DMatrix<f64>) -> DMatrix<f64> {
        gelu_backward(y.as_slice(), slope.as_mut_slice(), self.gelu_form());
        slope
    }

    /// What the activation makes of the outputs of the systems.
    pub(super) fn activate(&self, y: &DMatrix<f64>) -> DMatrix<f64> {
        let mut out = DMatrix::zeros(y.nrows(), y.ncols());
        gelu(y.as_slice(), out.as_mut_slice(), self.gelu_form());
        out
    }

    fn gelu_form(&self) -> GeluForm {
        match self.block.activation() {
            Nonlinearity::Gelu => GeluForm::Exact,
            Nonlinearity::GeluTanh => GeluForm::Tanh,
        }
    }

    /// Activation, map and gate.
    fn mixed(&self, y: &DMatrix<f64>) -> Mixed {
        let activated = self.activate(y);
        let Some(output) = self.block.output() else {
            let (mixed, branch) = (None, activated);
            return Mixed { mixed, branch };
        };
        let map = apply_linear(&output.linear, &activated);
        let branch = match output.gate {
            Gate::None => {
                let (mixed, branch) = (None, map);
                return Mixed { mixed, branch };
            }
            Gate::Halves => gated(&map),
            Gate::Activated => activated.component_mul(&sigmoid(&map)),
            Gate::Response => y.component_mul(&sigmoid(&map)),
        };
        let mixed = Some(map);
        Mixed { mixed, branch }
    }

    /// What the systems give, from the layer's input.
    pub(super) fn response(&self, x: &DMatrix<f64>) -> DMatrix<f64> {
        self.convolved(&self.input_of(x))
    }

    /// The layer's output from its input and from what its systems give.
    pub(super) fn finished(&self, x: &DMatrix<f64>, y: &DMatrix<f64>) -> DMatrix<f64> {
        let branch = self.mixed(y).branch;
        match self.block.norm() {
            None => branch,
            Some((norm, Placement::Post)) => normalised(norm, branch + x),
            Some((_, Placement::Pre)) => branch + x,
        }
    }

    /// What the channels convolve.
    pub(super) fn input_of<'x>(&self, x: &'x DMatrix<f64>) -> Cow<'x, DMatrix<f64>> {
        match self.block.norm() {
            Some((norm, Placement::Pre)) => Cow::Owned(normalised(norm, x.clone())),
            _ => Cow::Borrowed(x),
        }
    }

    fn convolved(&self, x: &DMatrix<f64>) -> DMatrix<f64> {
        let mut y = self.systems.run(x, &self.convolver);
        if !self.block.backward().is_empty() {
            // Of the output in reversed time, sample t + s belongs to step t: the kernel starts there.
            let output = turned(&self.backward.run(&turned(x), &self.convolver));
            let (from, kept) = self.overlap(y.nrows());
            let mut earlier = y.rows_mut(0, kept);
            earlier += output.rows(from, kept);
        }
        y
    }

    /// The lag at which kernels backwards in time start, and the steps that they reach.
    fn overlap(&self, length: usize) -> (usize, usize) {
        let from = self.block.backward_from().min(length);
        (from, length - from)
    }
}

/// Of every entry.
fn sigmoid(x: &DMatrix<f64>) -> DMatrix<f64> {
    let mut out = x.clone();
    sigmoid_of(out.as_mut_slice());
    out
}

/// The derivative by g of a ∘ sigmoid(g) from that by the product.
fn gate_slope(gates: &DMatrix<f64>, a: &DMatrix<f64>, slope: &DMatrix<f64>) -> DMatrix<f64> {
    let mut out = sigmoid(gates);
    out.zip_zip_apply(a, slope, |gate, a, slope| {
        *gate *= (1.0 - *gate) * a * slope
    });
    out
}

/// a ∘ sigmoid(g) of the halves (a, g).
fn gated(mixed: &DMatrix<f64>) -> DMatrix<f64> {
    let half = mixed.ncols() / 2;
    let mut out = mixed.columns(half, half).into_owned();
    sigmoid_of(out.as_mut_slice());
    out.component_mul_assign(&mixed.columns(0, half));
    out
}

/// The derivative by (a, g) from that by a ∘ sigmoid(g).
fn gated_backward(mixed: &DMatrix<f64>, slope: &DMatrix<f64>) -> DMatrix<f64> {
    let mut out = mixed.clone();
    let (own, gates) = out.as_mut_slice().split_at_mut(slope.len());
    sigmoid_of(gates);
    for ((a, gate), slope) in own.iter_mut().zip(gates).zip(slope) {
        let by_gate = *a * *gate * (1.0 - *gate);
        *a = slope * *gate;
        *gate = slope * by_gate;
    }
    out
}

/// The derivative by x from that by `normalised(x)`.
pub(super) fn normalised_backward(
    norm: &Norm,
    x: &DMatrix<f64>,
    slope: &DMatrix<f64>,
) -> DMatrix<f64> {
    let (weight, _, epsilon) = norm.affine();
    let mut out = slope.clone();
    if let Norm::Batch(batch) = norm {
        for (h, mut column) in out.column_iter_mut().enumerate() {
            column.scale_mut(weight[h] / (batch.variance[h] + epsilon).sqrt());
        }
        return out;
    }
    let channels = x.ncols() as f64;
    let mean = x.column_sum() / channels;
    let mut unit = x.clone();
    let mut scale = DVector::<f64>::zeros(x.nrows());
    for mut column in unit.column_iter_mut() {
        column -= &mean;
        scale.zip_apply(&column, |sum, value| *sum += value * value);
    }
    scale.apply(|sum| *sum = 1.0 / (*sum / channels + epsilon).sqrt());
    let (mut level, mut tilt) = (DVector::zeros(x.nrows()), DVector::zeros(x.nrows()));
    let columns = unit.column_iter_mut().zip(out.column_iter_mut());
    for ((mut unit, mut out), &weight) in columns.zip(weight) {
        unit.component_mul_assign(&scale);
        out *= weight / channels;
        level += &out;
        tilt.zip_zip_apply(&out, &unit, |sum: &mut f64, s, u| *sum += s * u);
    }
    for (unit, mut out) in unit.column_iter().zip(out.column_iter_mut()) {
        for (t, (out, unit)) in out.iter_mut().zip(&unit).enumerate() {
            *out = scale[t] * (*out * channels - level[t] - unit * tilt[t]);
        }
    }
    out
}

/// X W + b, for every row of X.
pub(super) fn apply_linear(linear: &Linear, x: &DMatrix<f64>) -> DMatrix<f64> {
    let mut out = x * linear.weight.as_ref();
    if let Some(bias) = &linear.bias {
        for (mut column, &offset) in out.column_iter_mut().zip(bias) {
            column.add_scalar_mut(offset);
        }
    }
    out
}

/// The norm with factors 1 and offsets 0.
fn standard(norm: &Norm) -> Norm {
    let mut norm = norm.clone();
    let (weight, bias) = match &mut norm {
        Norm::Layer(layer) => (&mut layer.weight, &mut layer.bias),
        Norm::Batch(batch) => (&mut batch.weight, &mut batch.bias),
    };
    weight.fill(1.0);
    bias.fill(0.0);
    norm
}

/// Every step normalised.
pub(super) fn normalised(norm: &Norm, x: DMatrix<f64>) -> DMatrix<f64> {
    match norm {
        Norm::Layer(_) => normalised_rows(norm, x),
        Norm::Batch(batch) => {
            let mut x = x;
            for (h, mut column) in x.column_iter_mut().enumerate() {
                let scale = batch.weight[h] / (batch.variance[h] + batch.epsilon).sqrt();
                let (mean, bias) = (batch.mean[h], batch.bias[h]);
                column.apply(|value| *value = (*value - mean) * scale + bias);
            }
            x
        }
    }
}

/// Normalises every row over the channels, with the population variance.
fn normalised_rows(norm: &Norm, mut x: DMatrix<f64>) -> DMatrix<f64> {
    let (weight, bias, epsilon) = norm.affine();
    let channels = x.ncols() as f64;
    let mean = x.column_sum() / channels;
    let mut square = DVector::zeros(x.nrows());
    for mut column in x.column_iter_mut() {
        column -= &mean;
        square.zip_apply(&column, |sum, value| *sum += value * value);
    }
    let scale = square.map(|sum: f64| 1.0 / (sum / channels + epsilon).sqrt());
    for (h, mut column) in x.column_iter_mut().enumerate() {
        let (weight, bias) = (weight[h], bias[h]);
        column.zip_apply(&scale, |value, s| *value = *value * s * weight + bias);
    }
    x
}
