//! Bounds on the empirical Rademacher complexity of recurrent networks, from norms of their
//! weights: what a network with such norms may gain on its training sequences by chance.
//!
//! ```text
//! h_t^(1) = φ(W_1 h_{t−1} + U_1 x_t),   h_t^(l) = φ(W_l h_t^(l−1) + U_l x_t),   l = 1..n,  t = 1..L
//! α_l ≥ ‖W_l‖_{1,∞},  β_l ≥ ‖U_l‖_{1,∞}  (largest sum of magnitudes of a row)
//! Λ_l = α_{l+1} ⋯ α_n,  Λ_n = 1,  geo(q, k) = 1 + q + … + q^{k−1}
//! ```
//!
//! The classes are those of one real output coordinate; inputs are measured by B_x, where B_x² is
//! the largest mean square over the samples of any input coordinate at any step.
//!
//! # References
//! *A deep recurrent neural network via unfolding reweighted ℓ1-ℓ1 minimization* (key "Reweighted
//! ℓ1-ℓ1"), equations (14) to (18), (51) to (56). Two things differ from the print: geo takes its
//! limit k at q = 1, where the paper's quotients are 0/0; and (53), which is printed below (52) and
//! can be negative, is corrected ([`FastRnn::linear`]).

use std::f64::consts::LN_2;

use crate::bounds::{BoundError, Caveat};

/// What a bound depends on beside the weights.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct SequenceSizes {
    /// Training sequences n_s.
    pub samples: usize,
    /// Numbers in an input of one step.
    pub measurements: usize,
    /// Numbers in the state.
    pub hidden: usize,
    /// Steps L.
    pub length: usize,
}

/// How large the inputs and the state before the first step are.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Signals {
    /// B_x: the root of the largest mean square of an input coordinate at a step.
    pub input: f64,
    /// ‖h_0‖_∞; for bounds on one step B_h, which is to h_{t−1} what B_x is to x_t.
    pub state: f64,
}

/// The norms of the layers of an unfolded network, first to last.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct LayerNorms {
    alpha: Vec<f64>,
    beta: Vec<f64>,
}

/// A bound with what is to be known of it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[must_use]
pub struct Bound {
    /// The equation of the paper.
    pub equation: &'static str,
    /// The bound; infinite (null in JSON) where a double cannot hold it.
    pub value: f64,
    /// Assumptions that fail, and limits of the proof.
    pub caveats: Vec<Caveat>,
}

impl Bound {
    fn new(equation: &'static str, value: f64, mut caveats: Vec<Caveat>) -> Self {
        if !value.is_finite() {
            caveats.push(Caveat::Overflow);
        }
        Self {
            equation,
            value,
            caveats,
        }
    }
}

/// A number that may not be negative or infinite.
fn checked(name: &'static str, value: f64) -> Result<f64, BoundError> {
    match value >= 0.0 && value.is_finite() {
        true => Ok(value),
        false => Err(BoundError::value(name, value, "a finite number, 0 or more")),
    }
}

/// A number of (0, 1).
fn probability(name: &'static str, value: f64) -> Result<f64, BoundError> {
    match value > 0.0 && value < 1.0 {
        true => Ok(value),
        false => Err(BoundError::value(name, value, "between 0 and 1")),
    }
}

impl SequenceSizes {
    fn check(&self) -> Result<(), BoundError> {
        let all = [
            ("samples", self.samples),
            ("measurements", self.measurements),
            ("hidden", self.hidden),
            ("length", self.length),
        ];
        match all.into_iter().find(|(_, size)| *size == 0) {
            Some((name, size)) => Err(BoundError::value(name, size as f64, "1 or more")),
            None => Ok(()),
        }
    }

    /// 4 n L log 2 + log n_meas + log n_hid, over n_s.
    fn per_sample(&self, layers: usize, steps: usize) -> f64 {
        let classes = 4.0 * layers as f64 * steps as f64 * LN_2;
        let sizes = (self.measurements as f64).ln() + (self.hidden as f64).ln();
        (classes + sizes) / self.samples as f64
    }
}

impl Signals {
    fn check(&self) -> Result<(), BoundError> {
        checked("input", self.input)?;
        checked("state", self.state).map(drop)
    }
}

/// 1 + q + … + q^{k−1} for q ≥ 0: (q^k − 1)/(q − 1), and k at q = 1. Near 1 nothing cancels: both
/// powers go through e^x − 1 and log(1 + x), right to a few roundings.
pub fn geometric(q: f64, k: usize) -> f64 {
    grown(q - 1.0, k)
}

/// geo(1 + x, k) for x ≥ −1.
fn grown(x: f64, k: usize) -> f64 {
    if k == 0 || x == 0.0 {
        return k as f64;
    }
    (k as f64 * x.ln_1p()).exp_m1() / x
}

impl LayerNorms {
    /// From α_l and β_l, first layer to last.
    ///
    /// # Errors
    /// [`BoundError::Layers`] for different numbers of both or none; [`BoundError::Value`].
    pub fn new(alpha: Vec<f64>, beta: Vec<f64>) -> Result<Self, BoundError> {
        if alpha.len() != beta.len() || alpha.is_empty() {
            let (alpha, beta) = (alpha.len(), beta.len());
            return Err(BoundError::Layers { alpha, beta });
        }
        for &value in &alpha {
            checked("alpha", value)?;
        }
        for &value in &beta {
            checked("beta", value)?;
        }
        Ok(Self { alpha, beta })
    }

    /// Layers n.
    pub fn layers(&self) -> usize {
        self.alpha.len()
    }

    /// α_l.
    pub fn alpha(&self) -> &[f64] {
        &self.alpha
    }

    /// β_l.
    pub fn beta(&self) -> &[f64] {
        &self.beta
    }

    /// Λ_l = α_{l+1} ⋯ α_n for l = 0..n; Λ_n = 1.
    pub fn products(&self) -> Vec<f64> {
        let mut products = vec![1.0; self.layers() + 1];
        for (l, alpha) in self.alpha.iter().enumerate().rev() {
            products[l] = alpha * products[l + 1];
        }
        products
    }

    /// Λ_0, what one step does to a change of the state.
    pub fn step_gain(&self) -> f64 {
        self.products()[0]
    }

    /// Σ_l β_l Λ_l, what one step does to a change of the input.
    pub fn input_gain(&self) -> f64 {
        let products = self.products();
        let pairs = self.beta.iter().zip(&products[1..]);
        pairs.map(|(beta, product)| beta * product).sum()
    }

    /// How far two states can be driven apart in one step by equal inputs, in the sup norm, when
    /// the activation also depends on G h_{t−1} as in ℓ1-ℓ1 and reweighted networks:
    ///
    /// ```text
    /// ‖Δh_t^(l)‖ ≤ max(α_l ‖Δh_t^(l−1)‖, ‖G‖_{1,∞} ‖Δh_{t−1}‖)
    /// ‖Δh_t‖     ≤ max(Λ_0, ‖G‖ max_{l≥1} Λ_l) ‖Δh_{t−1}‖
    /// ```
    ///
    /// which is max(Λ_0, ‖G‖) where no α_l is above 1. It rests on
    /// |prox(u, ħ) − prox(u′, ħ′)| ≤ max(|u − u′|, |ħ − ħ′|); the paper's proof takes the
    /// activation for fixed and has Λ_0 alone. Below 1 the network forgets its start.
    ///
    /// # Errors
    /// [`BoundError::Value`].
    pub fn contraction(&self, correlation: f64) -> Result<f64, BoundError> {
        checked("correlation", correlation)?;
        let products = self.products();
        let through = products[1..].iter().fold(0.0, |most, &p| f64::max(most, p));
        Ok(products[0].max(correlation * through))
    }

    /// (15): the bound after L steps from h_0, for an activation with |φ(u) − φ(u′)| ≤ |u − u′| and
    /// φ(0) = 0 that depends on nothing else; at L = 1 it is (16), the bound of one step, with B_h
    /// for ‖h_0‖_∞.
    ///
    /// ```text
    /// √(2 (4 n L log 2 + log n_meas + log n_hid)/n_s)
    ///   · √((Σ_l β_l Λ_l)² geo(Λ_0, L)² B_x² + Λ_0^{2L} ‖h_0‖²)
    /// ```
    ///
    /// # Errors
    /// [`BoundError::Value`].
    pub fn unrolled(&self, sizes: &SequenceSizes, signals: &Signals) -> Result<Bound, BoundError> {
        sizes.check()?;
        signals.check()?;
        let (steps, gain) = (sizes.length, self.step_gain());
        let inputs = product(self.input_gain() * signals.input, geometric(gain, steps));
        let start = product(signals.state, power(gain, steps));
        let first = (2.0 * sizes.per_sample(self.layers(), steps)).sqrt();
        let equation = if steps == 1 { "(16)" } else { "(15)" };
        let value = first * inputs.hypot(start);
        Ok(Bound::new(equation, value, self.growth(steps)))
    }

    /// (15) and (16) of a reweighted or ℓ1-ℓ1 network, as published: [`LayerNorms::unrolled`] with
    /// what the proof leaves out. `correlation` is ‖G‖_{1,∞}, where it is known.
    ///
    /// # Errors
    /// [`BoundError::Value`].
    pub fn reweighted(
        &self,
        sizes: &SequenceSizes,
        signals: &Signals,
        correlation: Option<f64>,
    ) -> Result<Bound, BoundError> {
        let mut bound = self.unrolled(sizes, signals)?;
        if sizes.length > 1 {
            bound.caveats.push(Caveat::FixedActivation);
        }
        if let Some(norm) = correlation {
            let contraction = self.contraction(norm)?;
            if contraction >= 1.0 {
                bound.caveats.push(Caveat::NoContraction { contraction });
            }
        }
        Ok(bound)
    }

    /// (56): one layer from h_0 = 0, so only the first α and β count.
    ///
    /// ```text
    /// √((4 L log 2 + log n_meas + log n_hid)/n_s) · √2 β_1 geo(α_1, L) B_x
    /// ```
    ///
    /// # Errors
    /// [`BoundError::Value`]; [`BoundError::Layers`] for more than one layer.
    pub fn one_layer(&self, sizes: &SequenceSizes, input: f64) -> Result<Bound, BoundError> {
        sizes.check()?;
        checked("input", input)?;
        if self.layers() != 1 {
            return Err(BoundError::OneLayer {
                found: self.layers(),
            });
        }
        let sum = geometric(self.alpha[0], sizes.length);
        let value = (2.0 * sizes.per_sample(1, sizes.length)).sqrt();
        let value = product(value * self.beta[0] * input, sum);
        Ok(Bound::new("(56)", value, self.growth(sizes.length)))
    }

    fn growth(&self, steps: usize) -> Vec<Caveat> {
        let gain = self.step_gain();
        match steps > 1 && gain >= 1.0 {
            true => vec![Caveat::Growth { gain, steps }],
            false => Vec::new(),
        }
    }
}

/// q^k. `powi` takes an i32 and loses digits for large k.
fn power(q: f64, k: usize) -> f64 {
    q.powf(k as f64)
}

/// a b with 0 · ∞ = 0: nothing comes in, however much it would grow.
fn product(a: f64, b: f64) -> f64 {
    if a == 0.0 { 0.0 } else { a * b }
}

/// A network whose layers share their weights: W_1, U_1 first, then W_2, U_1 n − 1 times.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Tied {
    /// α_1 ≥ ‖W_1‖_{1,∞}.
    pub first: f64,
    /// α_2 ≥ ‖W_2‖_{1,∞}.
    pub later: f64,
    /// β_1 ≥ ‖U_1‖_{1,∞}.
    pub input: f64,
    /// β_2 ≥ ‖U_2‖_{1,∞}: from h_{t−1} to the later layers of Sista; 0 for ℓ1-ℓ1.
    pub skip: f64,
    /// Layers n.
    pub layers: usize,
}

impl Tied {
    /// (18), one step of Sista-RNN; with β_2 = 0 it is (17), one step of ℓ1-ℓ1-RNN.
    ///
    /// ```text
    /// √(2 (4 n log 2 + log n_meas + log n_hid)/n_s)
    ///   · √(β_1² geo(α_2, n)² B_x² + (α_1 α_2^{n−1} + β_2 geo(α_2, n−1))² B_h²)
    /// ```
    ///
    /// `sizes.length` plays no part; above 1 it gives [`Caveat::OneStep`].
    ///
    /// # Errors
    /// [`BoundError::Value`].
    pub fn one_step(&self, sizes: &SequenceSizes, signals: &Signals) -> Result<Bound, BoundError> {
        sizes.check()?;
        signals.check()?;
        for (name, value) in [("alpha", self.first), ("alpha", self.later)] {
            checked(name, value)?;
        }
        for (name, value) in [("beta", self.input), ("beta", self.skip)] {
            checked(name, value)?;
        }
        if self.layers == 0 {
            return Err(BoundError::value("layers", 0.0, "1 or more"));
        }
        let input = self.input * geometric(self.later, self.layers);
        let path = self.first * power(self.later, self.layers - 1);
        let skip = self.skip * geometric(self.later, self.layers - 1);
        let first = (2.0 * sizes.per_sample(self.layers, 1)).sqrt();
        let moved = (input * signals.input).hypot((path + skip) * signals.state);
        let equation = if self.skip == 0.0 { "(17)" } else { "(18)" };
        let caveats = match sizes.length {
            1 => Vec::new(),
            steps => vec![Caveat::OneStep { steps }],
        };
        Ok(Bound::new(equation, first * moved, caveats))
    }
}

/// FastRNN (51): h̃ = φ(W h_{t−1} + U x_t), h_t = α_f h̃ + β_f h_{t−1}.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct FastRnn {
    /// α_f, 0 to 1.
    pub gate: f64,
    /// β_f, 0 to 1; the bounds assume 1 − α_f.
    pub keep: f64,
    /// α_F ≥ ‖W‖_F.
    pub recurrent: f64,
    /// β_F ≥ ‖U‖_F.
    pub input: f64,
}

impl FastRnn {
    fn check(&self) -> Result<(), BoundError> {
        for (name, value) in [("gate", self.gate), ("keep", self.keep)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(BoundError::value(name, value, "0 to 1"));
            }
        }
        checked("alpha", self.recurrent)?;
        checked("beta", self.input).map(drop)
    }

    /// x = α_f (2 α_F − 1).
    pub fn excess(&self) -> f64 {
        self.gate * (2.0 * self.recurrent - 1.0)
    }

    /// (52), for inputs with ‖x_t‖₂ ≤ B:
    ///
    /// ```text
    /// (2 α_f/√n_s) B β_F ((1 + x)^{L+1} − 1)/x,   x = α_f (2 α_F − 1)
    /// ```
    ///
    /// with L + 1 for the quotient at x = 0.
    ///
    /// # Errors
    /// [`BoundError::Value`].
    pub fn exponential(&self, sizes: &SequenceSizes, input: f64) -> Result<Bound, BoundError> {
        let scale = self.scale(sizes, input)?;
        let (excess, steps) = (self.excess(), sizes.length);
        let mut caveats = self.gates();
        if excess > 0.0 {
            let gain = 1.0 + excess;
            caveats.push(Caveat::Growth { gain, steps });
        }
        let value = product(2.0 * scale, grown(excess, steps + 1));
        Ok(Bound::new("(52)", value, caveats))
    }

    /// (53), corrected: linear in L, never below (52) where x ≤ 1/(2L).
    ///
    /// ```text
    /// (4 α_f/√n_s) B β_F (L + 1)      since (1 + x)^{L+1} ≤ 1 + 2 x (L + 1)
    /// ```
    ///
    /// The paper prints (2 α_f/√n_s) B β_F (2x(L + 1) − 1)/(2 α_F − 1), which is below (52) and can
    /// be negative, and its condition with the power L in place of the factor L.
    ///
    /// # Errors
    /// [`BoundError::Value`].
    pub fn linear(&self, sizes: &SequenceSizes, input: f64) -> Result<Bound, BoundError> {
        let scale = self.scale(sizes, input)?;
        let (excess, limit) = (self.excess(), 0.5 / sizes.length as f64);
        let mut caveats = self.gates();
        if excess > limit {
            caveats.push(Caveat::TooFast { excess, limit });
        }
        let value = 4.0 * scale * (sizes.length as f64 + 1.0);
        Ok(Bound::new("(53), corrected", value, caveats))
    }

    /// α_f B β_F/√n_s.
    fn scale(&self, sizes: &SequenceSizes, input: f64) -> Result<f64, BoundError> {
        self.check()?;
        sizes.check()?;
        checked("input", input)?;
        Ok(self.gate * input * self.input / (sizes.samples as f64).sqrt())
    }

    fn gates(&self) -> Vec<Caveat> {
        let sum = self.gate + self.keep;
        match (sum - 1.0).abs() > 1e-6 {
            true => vec![Caveat::Gates { sum }],
            false => Vec::new(),
        }
    }
}

/// SpectralRNN (54): h_t = φ(W h_{t−1} + U x_t), y_t = Y h_t. Norms of W, U and Y in this order.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct SpectralRnn {
    /// Frobenius norms.
    pub frobenius: [f64; 3],
    /// Largest singular values.
    pub spectral: [f64; 3],
    /// Numbers in an output.
    pub outputs: usize,
}

impl SpectralRnn {
    /// (55), the order of the bound for classification; the constant in front is not published.
    ///
    /// ```text
    /// √((B² L⁴ ξ ln ξ (‖W‖_F² + ‖U‖_F² + ‖Y‖_F²) ζ + ln(n_s/δ))/n_s)
    /// ζ = max(‖W‖₂^{2L−2}, 1) max(‖U‖₂², 1) max(‖Y‖₂², 1),   ξ = max(n_meas, n_out, n_hid)
    /// ```
    ///
    /// # Errors
    /// [`BoundError::Value`].
    pub fn order(
        &self,
        sizes: &SequenceSizes,
        input: f64,
        confidence: f64,
    ) -> Result<Bound, BoundError> {
        sizes.check()?;
        checked("input", input)?;
        probability("confidence", confidence)?;
        for (frobenius, spectral) in self.frobenius.into_iter().zip(self.spectral) {
            checked("frobenius", frobenius)?;
            checked("spectral", spectral)?;
        }
        let (steps, samples) = (sizes.length as f64, sizes.samples as f64);
        let [w, u, y] = self.spectral;
        let recurrent = w.powf(2.0 * steps - 2.0).max(1.0);
        let zeta = recurrent * (u * u).max(1.0) * (y * y).max(1.0);
        let xi = sizes.measurements.max(sizes.hidden).max(self.outputs) as f64;
        let norms: f64 = self.frobenius.iter().map(|norm| norm * norm).sum();
        let main = product(input * input * norms, steps.powi(4) * xi * xi.ln() * zeta);
        let value = ((main + (samples / confidence).ln()) / samples).sqrt();
        let mut caveats = vec![Caveat::OrderOnly];
        if w > 1.0 && sizes.length > 1 {
            let steps = sizes.length - 1;
            caveats.push(Caveat::Growth { gain: w, steps });
        }
        Ok(Bound::new("(55)", value, caveats))
    }
}

/// The gap between risk and empirical risk of a class, with probability 1 − δ.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Risk {
    /// η_B: the loss is 1-Lipschitz and at most this.
    pub loss_max: f64,
    /// δ.
    pub confidence: f64,
}

impl Risk {
    /// (14): 2 𝔑 + 4 η_B √(2 log(4/δ)/n_s) from the complexity 𝔑 of the class. A gap of η_B or more
    /// is empty: [`Caveat::Vacuous`].
    ///
    /// # Errors
    /// [`BoundError::Value`].
    pub fn gap(&self, complexity: f64, samples: usize) -> Result<Bound, BoundError> {
        checked("loss_max", self.loss_max)?;
        probability("confidence", self.confidence)?;
        if samples == 0 {
            return Err(BoundError::value("samples", 0.0, "1 or more"));
        }
        let spread = (2.0 * (4.0 / self.confidence).ln() / samples as f64).sqrt();
        let value = 2.0 * complexity + 4.0 * self.loss_max * spread;
        let caveats = match value >= self.loss_max {
            true => vec![Caveat::Vacuous {
                loss_max: self.loss_max,
            }],
            false => Vec::new(),
        };
        Ok(Bound::new("(14)", value, caveats))
    }
}
