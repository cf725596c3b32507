//! Labels that the theory can reach: a teacher by transport of the random heads.

use crate::bounds::Radii;
use crate::shallow::{
    Activation, Linearised, Parameters, Query, Samples, ShallowError, Transformer, TransformerSize,
    Units,
};

/// v = (v_c, v_u, v_w), a bounded function of a random head (U, W): the mean over R anchors X^(r) of
///
/// ```text
/// v_c = (ν_c/a0) φ_c,   v_u = (ν_u/a1) φ_u,   v_w = φ_w, shortened to ‖v_w‖_F ≤ ν_w
/// φ_c = act(Uᵀa),       φ_u = act'(Uᵀa) a,    φ_w = act'(Uᵀa) (M U) qᵀ       at X^(r)
/// ```
///
/// |v_c| ≤ ν_c, ‖v_u‖ ≤ ν_u (for tokens of norm at most 1) and ‖v_w‖_F ≤ ν_w.
///
/// # References
/// Arda, Cayci and Eryilmaz, section 6.1. The number of anchors is not given there.
#[derive(Debug, Clone)]
pub struct Transport {
    anchors: Samples,
    bounds: Radii,
}

impl Transport {
    /// With anchors, whose labels do not count, and the bounds ν.
    pub fn new(anchors: Samples, bounds: Radii) -> Self {
        Self { anchors, bounds }
    }

    /// v of every head, which does not depend on the output weights.
    pub fn of(&self, heads: &Transformer) -> Parameters {
        // With c = 1 the gradient of f is m^(−1/2) times the features.
        let mut ones = heads.clone();
        ones.parameters_mut().group_mut(0).fill(1.0);
        let root = (heads.parameters().units() as f64).sqrt();
        let mut sum = heads.parameters().zeros_like();
        for anchor in self.anchors.sequences() {
            let mut features = ones.gradient(anchor);
            self.scale(&mut features, root, heads.activation());
            sum.add_scaled(1.0 / self.anchors.len() as f64, &features);
        }
        sum
    }

    /// √m ∇f ← v of one anchor.
    fn scale(&self, features: &mut Parameters, root: f64, activation: Activation) {
        let (nu, bounds) = (self.bounds, activation.smoothness());
        let c = features.group_mut(0).iter_mut();
        c.for_each(|value| *value *= root * nu.c / bounds.value);
        let u = features.group_mut(1).iter_mut();
        u.for_each(|value| *value *= root * nu.u / bounds.slope);
        let norms = features.group_norms(2);
        for row in features.group_mut(2).chunks_exact_mut(norms.len()) {
            for (value, norm) in row.iter_mut().zip(&norms) {
                *value *= root * (nu.w / (root * norm)).min(1.0);
            }
        }
    }

    /// The transported student of a symmetric start φ⁰,
    ///
    /// ```text
    /// c̃ = c⁰ + v_c/√m,   Ũ = U⁰ + c⁰ v_u/√m,   W̃ = W⁰ + c⁰ v_w/√m
    /// ```
    ///
    /// which lies in Ω_ν with ‖φ̃ − φ⁰‖ ≤ ‖ν‖, and whose linearisation tends to the teacher.
    pub fn student(&self, start: &Transformer) -> Parameters {
        let mut moved = self.of(start);
        let units = moved.units();
        let c = start.parameters().group(0).to_vec();
        for row in moved.values_mut()[units..].chunks_exact_mut(units) {
            row.iter_mut().zip(&c).for_each(|(value, c)| *value *= c);
        }
        let mut student = start.parameters().clone();
        student.add_scaled(1.0 / (units as f64).sqrt(), &moved);
        student
    }
}

/// f*(X) = E[φ_c v_c + ⟨φ_u, v_u⟩ + ⟨φ_w, v_w⟩] over random heads, as a mean over m̃ of them.
#[derive(Debug, Clone)]
pub struct TransportTeacher {
    heads: Transformer,
    /// φ̃ of the heads, whose linearisation is f*.
    moved: Parameters,
}

impl TransportTeacher {
    /// With m̃ = `heads` independent heads.
    ///
    /// # Errors
    /// As [`Transformer::independent`].
    pub fn new(
        transport: &Transport,
        heads: usize,
        query: &Query,
        activation: Activation,
        seed: u64,
    ) -> Result<Self, ShallowError> {
        let size = TransformerSize {
            units: heads,
            width: transport.anchors.width(),
        };
        let heads = Transformer::independent(size, query.clone(), activation, seed)?;
        let moved = transport.student(&heads);
        Ok(Self { heads, moved })
    }

    /// f*(X) of every sample.
    pub fn labels(&self, samples: &Samples) -> Vec<f64> {
        Linearised::at(&self.heads).outputs(&self.moved, samples)
    }
}
