//! The shallow transformer: m heads with one neuron each, and its gradient in closed form.

use std::array::from_fn;

use hankelite_data::Draw;

use crate::shallow::activation::{LANES, Lane, exp};
use crate::shallow::parameters::{lanes, put};
use crate::shallow::samples::{QUERY, SIGNS, START};
use crate::shallow::units::{Lookout, look_everywhere};
use crate::shallow::{Activation, Features, Parameters, ShallowError, Units};

/// Units and numbers of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransformerSize {
    /// m, heads of a transformer or units of an IndRNN.
    pub units: usize,
    /// d, numbers of a token.
    pub width: usize,
}

impl TransformerSize {
    /// Sizes for a start in matched pairs.
    pub(super) fn check_pairs(self) -> Result<Self, ShallowError> {
        if self.units == 0 || !self.units.is_multiple_of(2) {
            return Err(ShallowError::Units { found: self.units });
        }
        self.check()
    }

    pub(super) fn check(self) -> Result<Self, ShallowError> {
        let sizes = [
            ("the number of units", self.units),
            ("the width of a token", self.width),
        ];
        match sizes.into_iter().find(|(_, size)| *size == 0) {
            Some((what, _)) => Err(ShallowError::Empty { what }),
            None => Ok(self),
        }
    }
}

/// q, which is not trained. The theory needs ‖q‖ ≤ 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Query {
    /// The last token of the sequence.
    Last,
    /// The same for every sequence, d numbers.
    Fixed(Vec<f64>),
}

impl Query {
    /// A random unit vector.
    pub fn seeded(width: usize, seed: u64) -> Self {
        let mut draw = Draw::new(seed, QUERY);
        let mut q: Vec<f64> = (0..width).map(|_| draw.normal()).collect();
        let norm = q.iter().map(|x| x * x).sum::<f64>().sqrt();
        q.iter_mut().for_each(|x| *x /= norm);
        Self::Fixed(q)
    }

    pub(super) fn of<'a>(&'a self, tokens: &'a [f64], width: usize) -> &'a [f64] {
        match self {
            Self::Last => &tokens[tokens.len() - width..],
            Self::Fixed(q) => q,
        }
    }
}

/// f(X; φ) = m^(−1/2) Σ_i c_i act(U_iᵀ a_i), a_i = X softmax(Xᵀ W_i q).
///
/// Multi-head attention with one neuron for each head; keys and queries are one matrix.
///
/// # References
/// Arda, Cayci and Eryilmaz, (2) to (4); gradients (5) to (8).
#[derive(Debug, Clone, PartialEq)]
pub struct Transformer {
    width: usize,
    activation: Activation,
    query: Query,
    parameters: Parameters,
}

impl Transformer {
    /// The symmetric start: W_i and U_i of N(0, 1) entries, c_i = ±1 for the first half of the heads;
    /// the second half repeats them with −c_i, so that f ≡ 0.
    ///
    /// # Errors
    /// [`ShallowError::Units`] for an odd number of heads; [`ShallowError::Empty`];
    /// [`ShallowError::Shape`] for a query of another width.
    pub fn symmetric(
        size: TransformerSize,
        query: Query,
        activation: Activation,
        seed: u64,
    ) -> Result<Self, ShallowError> {
        let half = size.check_pairs()?.units / 2;
        let mut model = Self::empty(size, query, activation)?;
        fill(&mut model.parameters, half, seed);
        Ok(model)
    }

    /// Heads that are all independent, W_i and U_i of N(0, 1) entries, c_i = 1: draws for averages
    /// over the start.
    ///
    /// # Errors
    /// [`ShallowError::Empty`]; [`ShallowError::Shape`] for a query of another width.
    pub fn independent(
        size: TransformerSize,
        query: Query,
        activation: Activation,
        seed: u64,
    ) -> Result<Self, ShallowError> {
        let mut model = Self::empty(size.check()?, query, activation)?;
        fill(&mut model.parameters, size.units, seed);
        model.parameters.group_mut(0).fill(1.0);
        Ok(model)
    }

    fn empty(
        size: TransformerSize,
        query: Query,
        activation: Activation,
    ) -> Result<Self, ShallowError> {
        if let Query::Fixed(q) = &query
            && q.len() != size.width
        {
            return Err(ShallowError::Shape {
                what: "numbers in the query",
                found: q.len(),
                expected: size.width,
            });
        }
        let groups = [1, size.width, size.width * size.width];
        Ok(Self {
            width: size.width,
            activation,
            query,
            parameters: Parameters::zeros(size.units, groups),
        })
    }

    /// The same heads with other parameters, of the same shape.
    #[must_use]
    pub fn with_parameters(&self, parameters: Parameters) -> Self {
        Self {
            parameters,
            ..self.clone()
        }
    }

    /// Where the queries come from.
    pub fn query(&self) -> &Query {
        &self.query
    }

    /// The activation of the neurons.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// a_i of a filled buffer: d rows of m numbers; ‖a_i‖ is at most the longest token.
    pub fn attended<'a>(&self, features: &'a Features) -> &'a [f64] {
        let units = self.parameters.units();
        &features.tangent[units..(1 + self.width) * units]
    }

    /// M_i U_i of a filled buffer, d rows of m numbers; M_i = Σ_t α_t (X_t − a_i)(X_t − a_i)ᵀ is the
    /// covariance of the tokens under the attention.
    pub fn covariance_times_neuron<'a>(&self, features: &'a Features) -> &'a [f64] {
        &features.tangent[(1 + self.width) * self.parameters.units()..]
    }

    /// act'(U_iᵀ a_i) of a filled buffer, m numbers.
    pub fn slopes<'a>(&self, features: &'a Features) -> &'a [f64] {
        &features.tangent[..self.parameters.units()]
    }

    /// tr M_i = Σ_t α_t ‖X_t‖² − ‖a_i‖² of every head, which bounds ‖M_i‖_F.
    pub fn attention_traces(&self, tokens: &[f64]) -> Vec<f64> {
        let (d, units) = (self.width, self.parameters.units());
        let q = self.query.of(tokens, d);
        let mut scratch = vec![[0.0; LANES]; d];
        let mut traces = vec![0.0; units];
        for at in (0..units).step_by(LANES) {
            self.keys(q, at, &mut scratch);
            let mut scores: Vec<Lane> = tokens
                .chunks_exact(d)
                .map(|token| combine(token, &scratch))
                .collect();
            softmax(&mut scores);
            let mut trace = [0.0; LANES];
            let mut mean = vec![[0.0; LANES]; d];
            for (token, share) in tokens.chunks_exact(d).zip(&scores) {
                let square: f64 = token.iter().map(|x| x * x).sum();
                add(&mut trace, square, share);
                let pairs = mean.iter_mut().zip(token);
                pairs.for_each(|(mean, &x)| add(mean, x, share));
            }
            for mean in &mean {
                trace = from_fn(|i| trace[i] - mean[i] * mean[i]);
            }
            put(&mut traces, units, 0, at, &trace);
        }
        traces
    }

    /// keys ← W q for eight heads: d rows.
    #[inline(always)]
    fn keys(&self, q: &[f64], at: usize, keys: &mut [Lane]) {
        let (d, units) = (self.width, self.parameters.units());
        let w = self.parameters.group(2);
        for (j, key) in keys.iter_mut().enumerate() {
            *key = [0.0; LANES];
            for (k, &q) in q.iter().enumerate() {
                add(key, q, &lanes(w, units, j * d + k, at));
            }
        }
    }
}

impl Lookout for Transformer {
    /// Eight heads of [`Units::look`]. `scratch` holds W q, U, a and M U, d rows each, then the
    /// softmax and Xᵀ U, L rows each.
    #[inline(always)]
    fn look_at(&self, tokens: &[f64], at: usize, features: &mut Features) {
        let (d, units) = (self.width, self.parameters.units());
        let length = tokens.len() / d;
        let (vectors, rows) = features.scratch.split_at_mut(4 * d);
        let (keys, vectors) = vectors.split_at_mut(d);
        let (neuron, vectors) = vectors.split_at_mut(d);
        let (a, covariance) = vectors.split_at_mut(d);
        let (shares, products) = rows.split_at_mut(length);
        self.keys(self.query.of(tokens, d), at, keys);
        let u = self.parameters.group(1);
        for (j, neuron) in neuron.iter_mut().enumerate() {
            *neuron = lanes(u, units, j, at);
        }
        a.fill([0.0; LANES]);
        covariance.fill([0.0; LANES]);
        for (token, share) in tokens.chunks_exact(d).zip(&mut *shares) {
            *share = combine(token, keys);
        }
        softmax(shares);
        let mut z = [0.0; LANES];
        let steps = tokens.chunks_exact(d).zip(&*shares).zip(&mut *products);
        for ((token, share), product) in steps {
            *product = combine(token, neuron);
            z = from_fn(|i| z[i] + share[i] * product[i]);
            for (a, &x) in a.iter_mut().zip(token) {
                add(a, x, share);
            }
        }
        // M U = Σ_t α_t (X_tᵀU − aᵀU) X_t: no difference of large sums.
        let steps = tokens.chunks_exact(d).zip(&*shares).zip(&*products);
        for ((token, share), product) in steps {
            let weight = from_fn(|i| share[i] * (product[i] - z[i]));
            for (sum, &x) in covariance.iter_mut().zip(token) {
                add(sum, x, &weight);
            }
        }
        let (value, slope) = self.activation.value_and_slope(&z);
        put(&mut features.response, units, 0, at, &value);
        put(&mut features.tangent, units, 0, at, &slope);
        for (j, row) in a.iter().chain(&*covariance).enumerate() {
            put(&mut features.tangent, units, 1 + j, at, row);
        }
    }
}

/// N(0, 1) for groups 1 and 2 of the first `half` units and signs for their output weights; the
/// units behind them repeat these with the opposite sign.
pub(super) fn fill(parameters: &mut Parameters, half: usize, seed: u64) {
    let units = parameters.units();
    let [_, inner, outer] = parameters.groups();
    let (mut draw, mut signs) = (Draw::new(seed, START), Draw::new(seed, SIGNS));
    for i in 0..half {
        let sign = if signs.below(2) == 0 { 1.0 } else { -1.0 };
        let values: Vec<f64> = (0..inner + outer).map(|_| draw.normal()).collect();
        for (twin, sign) in [(i, sign), (i + half, -sign)] {
            if twin >= units {
                continue;
            }
            parameters.values_mut()[twin] = sign;
            for (row, &value) in values.iter().enumerate() {
                parameters.values_mut()[(1 + row) * units + twin] = value;
            }
        }
    }
}

/// sum ← sum + factor · lane.
#[inline(always)]
pub(super) fn add(sum: &mut Lane, factor: f64, lane: &Lane) {
    let before = *sum;
    *sum = from_fn(|i| before[i] + factor * lane[i]);
}

/// Σ_j token_j rows_j.
#[inline(always)]
pub(super) fn combine(token: &[f64], rows: &[Lane]) -> Lane {
    let mut sum = [0.0; LANES];
    for (&x, row) in token.iter().zip(rows) {
        add(&mut sum, x, row);
    }
    sum
}

/// Softmax down the rows, in place.
#[inline(always)]
fn softmax(rows: &mut [Lane]) {
    let mut largest = [f64::NEG_INFINITY; LANES];
    for row in &*rows {
        largest = from_fn(|i| {
            if row[i] > largest[i] {
                row[i]
            } else {
                largest[i]
            }
        });
    }
    let mut total = [0.0; LANES];
    for row in &mut *rows {
        *row = exp(&from_fn(|i| row[i] - largest[i]));
        total = from_fn(|i| total[i] + row[i]);
    }
    let share: Lane = from_fn(|i| 1.0 / total[i]);
    for row in rows {
        *row = from_fn(|i| row[i] * share[i]);
    }
}

impl Units for Transformer {
    fn width(&self) -> usize {
        self.width
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn features(&self) -> Features {
        Features::new(self.parameters.units(), 1 + 2 * self.width)
    }

    /// Cost O(m d (d + L)); neither the softmax's Jacobian nor M_i is formed.
    fn look(&self, tokens: &[f64], features: &mut Features) {
        let rows = 4 * self.width + 2 * (tokens.len() / self.width);
        features.scratch.resize(rows, [0.0; LANES]);
        look_everywhere(self, tokens, features);
    }

    /// ```text
    /// ∂f/∂c_i = m^(−1/2) h_i
    /// ∇_{U_i} f = m^(−1/2) c_i act'(U_iᵀ a_i) a_i
    /// ∇_{W_i} f = m^(−1/2) c_i act'(U_iᵀ a_i) (M_i U_i) qᵀ
    /// ```
    fn add_gradient(
        &self,
        tokens: &[f64],
        features: &Features,
        weight: f64,
        into: &mut Parameters,
    ) {
        let (d, units) = (self.width, self.parameters.units());
        let weight = weight / (units as f64).sqrt();
        let pairs = into.group_mut(0).iter_mut().zip(&features.response);
        pairs.for_each(|(sum, h)| *sum += weight * h);
        let steps = self.parameters.group(0).iter().zip(self.slopes(features));
        let steps: Vec<f64> = steps.map(|(c, slope)| weight * c * slope).collect();
        let attended = self.attended(features).chunks_exact(units);
        for (sums, row) in into.group_mut(1).chunks_exact_mut(units).zip(attended) {
            add_product(sums, 1.0, &steps, row);
        }
        let q = self.query.of(tokens, d);
        let covariance = self.covariance_times_neuron(features).chunks_exact(units);
        let matrices = into.group_mut(2).chunks_exact_mut(d * units);
        for (rows, moved) in matrices.zip(covariance) {
            for (sums, &q) in rows.chunks_exact_mut(units).zip(q) {
                add_product(sums, q, &steps, moved);
            }
        }
    }
}

/// sums ← sums + factor x y, number by number.
pub(super) fn add_product(sums: &mut [f64], factor: f64, x: &[f64], y: &[f64]) {
    let pairs = sums.iter_mut().zip(x.iter().zip(y));
    pairs.for_each(|(sum, (x, y))| *sum += factor * x * y);
}
