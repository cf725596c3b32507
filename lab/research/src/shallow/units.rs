//! What the two models have in common.

use pulp::{Arch, Simd, WithSimd};

use crate::shallow::Parameters;
use crate::shallow::activation::{LANES, Lane};

/// The answer of a unit to one sequence and how that depends on its parameters, for all units. A buffer
/// that is used again for every sequence.
#[derive(Debug, Clone)]
pub struct Features {
    /// h_i, m numbers.
    pub(super) response: Vec<f64>,
    /// What the gradient of h_i is made of, some rows of m numbers.
    pub(super) tangent: Vec<f64>,
    /// Work space.
    pub(super) scratch: Vec<Lane>,
}

impl Features {
    /// A buffer for `units` units with `rows` rows of tangents.
    pub(super) fn new(units: usize, rows: usize) -> Self {
        Self {
            response: vec![0.0; units],
            tangent: vec![0.0; rows * units],
            scratch: Vec::new(),
        }
    }

    /// h_i of every unit.
    pub fn response(&self) -> &[f64] {
        &self.response
    }
}

/// A model f(X; φ) = m^(−1/2) Σ_i c_i h_i(X) of m units that do not see each other.
///
/// A sequence is L × d numbers, token by token; L may differ from call to call. Functions expect a
/// length that is a multiple of d and above zero.
pub trait Units: Clone + Send + Sync {
    /// d, numbers of a token.
    fn width(&self) -> usize;

    /// φ.
    fn parameters(&self) -> &Parameters;

    /// φ.
    fn parameters_mut(&mut self) -> &mut Parameters;

    /// A buffer for [`Units::look`].
    fn features(&self) -> Features;

    /// Fills the buffer for one sequence.
    fn look(&self, tokens: &[f64], features: &mut Features);

    /// into ← into + weight · ∇_φ f(X), for a buffer that [`Units::look`] filled with the same X.
    fn add_gradient(&self, tokens: &[f64], features: &Features, weight: f64, into: &mut Parameters);

    /// f(X) of a filled buffer. The two halves of the units are summed in matched pairs, so that a
    /// symmetric start gives zero to the last bit.
    fn output_of(&self, features: &Features) -> f64 {
        let c = self.parameters().group(0);
        let products: Vec<f64> = c
            .iter()
            .zip(&features.response)
            .map(|(c, h)| c * h)
            .collect();
        let (first, second) = products.split_at(products.len() / 2);
        let pairs: f64 = first.iter().zip(second).map(|(x, y)| x + y).sum();
        // The last of an odd number of units has no partner.
        let alone: f64 = second[first.len()..].iter().sum();
        (pairs + alone) / (c.len() as f64).sqrt()
    }

    /// f(X).
    fn output(&self, tokens: &[f64]) -> f64 {
        let mut features = self.features();
        self.look(tokens, &mut features);
        self.output_of(&features)
    }

    /// ∇_φ f(X).
    fn gradient(&self, tokens: &[f64]) -> Parameters {
        let (mut features, mut gradient) = (self.features(), self.parameters().zeros_like());
        self.look(tokens, &mut features);
        self.add_gradient(tokens, &features, 1.0, &mut gradient);
        gradient
    }
}

/// How a model looks at a sequence, eight units at a time.
pub(super) trait Lookout: Units {
    /// Fills the buffer for the units from `at` on. Inlined, so that it is compiled for each kind
    /// of vector unit.
    fn look_at(&self, tokens: &[f64], at: usize, features: &mut Features);
}

/// [`Lookout::look_at`] for all units, on the widest vectors of the machine. The operations and
/// their order are the same on all of them, and so is the result.
pub(super) fn look_everywhere<M: Lookout>(model: &M, tokens: &[f64], features: &mut Features) {
    Arch::new().dispatch(Look {
        model,
        tokens,
        features,
    });
}

struct Look<'a, M> {
    model: &'a M,
    tokens: &'a [f64],
    features: &'a mut Features,
}

impl<M: Lookout> WithSimd for Look<'_, M> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for at in (0..self.model.parameters().units()).step_by(LANES) {
            self.model.look_at(self.tokens, at, self.features);
        }
    }
}
