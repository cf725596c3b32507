//! The IndRNN: units with a recurrent weight of their own, and its gradient in closed form.

use std::array::from_fn;

use crate::shallow::activation::{LANES, Lane};
use crate::shallow::parameters::{lanes, put};
use crate::shallow::transformer::{add_product, combine, fill};
use crate::shallow::units::{Lookout, look_everywhere};
use crate::shallow::{Activation, Features, Parameters, ShallowError, TransformerSize, Units};

/// f(X; φ) = m^(−1/2) Σ_i c_i h_{i,L}, h_{i,t} = act(U_iᵀ X_t + w_i h_{i,t−1}), h_{i,0} = 0.
///
/// The gradient runs forward beside the state,
///
/// ```text
/// ∂h_t/∂w = act'(z_t) (h_{t−1} + w ∂h_{t−1}/∂w),   ∂h_t/∂U = act'(z_t) (X_t + w ∂h_{t−1}/∂U)
/// ```
///
/// which is exact, and needs memory for one step only, as the units do not see each other.
///
/// # References
/// Arda, Cayci and Eryilmaz, section 6 and the appendix on the IndRNN.
#[derive(Debug, Clone, PartialEq)]
pub struct IndRnn {
    width: usize,
    activation: Activation,
    parameters: Parameters,
}

impl IndRnn {
    /// The symmetric start: U_i of N(0, 1) entries, w_i = ±γ, c_i = ±1 for the first half of the
    /// units; the second half repeats them with −c_i, so that f ≡ 0.
    ///
    /// # Errors
    /// [`ShallowError::Units`] for an odd number of units; [`ShallowError::Empty`];
    /// [`ShallowError::Range`] for a γ that is not finite.
    pub fn symmetric(
        size: TransformerSize,
        gamma: f64,
        activation: Activation,
        seed: u64,
    ) -> Result<Self, ShallowError> {
        let units = size.check_pairs()?.units;
        if !gamma.is_finite() {
            return Err(ShallowError::Range {
                what: "gamma",
                found: gamma,
                expected: "a finite number",
            });
        }
        let mut parameters = Parameters::zeros(units, [1, size.width, 1]);
        fill(&mut parameters, units / 2, seed);
        // The sign of a normal number is a fair coin.
        let recurrent = parameters.group_mut(2).iter_mut();
        recurrent.for_each(|w| *w = gamma.copysign(*w));
        Ok(Self {
            width: size.width,
            activation,
            parameters,
        })
    }

    /// The same units with other parameters, of the same shape.
    #[must_use]
    pub fn with_parameters(&self, parameters: Parameters) -> Self {
        Self {
            parameters,
            ..self.clone()
        }
    }

    /// ∂h_{i,L}/∂w_i of a filled buffer, m numbers.
    pub fn recurrent_slopes<'a>(&self, features: &'a Features) -> &'a [f64] {
        &features.tangent[self.width * self.parameters.units()..]
    }
}

impl Lookout for IndRnn {
    /// Eight units of [`Units::look`]. `scratch` holds U and ∂h/∂U, d rows each.
    #[inline(always)]
    fn look_at(&self, tokens: &[f64], at: usize, features: &mut Features) {
        let (d, units) = (self.width, self.parameters.units());
        let (input, by_input) = features.scratch.split_at_mut(d);
        for (j, input) in input.iter_mut().enumerate() {
            *input = lanes(self.parameters.group(1), units, j, at);
        }
        by_input.fill([0.0; LANES]);
        let w = lanes(self.parameters.group(2), units, 0, at);
        let (mut h, mut by_recurrent) = ([0.0; LANES], [0.0; LANES]);
        for token in tokens.chunks_exact(d) {
            let from_token = combine(token, input);
            let z = from_fn(|i| from_token[i] + w[i] * h[i]);
            let (value, slope) = self.activation.value_and_slope(&z);
            let carried: Lane = from_fn(|i| slope[i] * w[i]);
            by_recurrent = from_fn(|i| slope[i] * h[i] + carried[i] * by_recurrent[i]);
            for (by_input, &x) in by_input.iter_mut().zip(token) {
                let before = *by_input;
                *by_input = from_fn(|i| carried[i] * before[i] + x * slope[i]);
            }
            h = value;
        }
        put(&mut features.response, units, 0, at, &h);
        for (j, row) in by_input.iter().enumerate() {
            put(&mut features.tangent, units, j, at, row);
        }
        put(&mut features.tangent, units, d, at, &by_recurrent);
    }
}

impl Units for IndRnn {
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
        Features::new(self.parameters.units(), self.width + 1)
    }

    /// Cost O(m d L).
    fn look(&self, tokens: &[f64], features: &mut Features) {
        features.scratch.resize(2 * self.width, [0.0; LANES]);
        look_everywhere(self, tokens, features);
    }

    fn add_gradient(
        &self,
        _tokens: &[f64],
        features: &Features,
        weight: f64,
        into: &mut Parameters,
    ) {
        let units = self.parameters.units();
        let weight = weight / (units as f64).sqrt();
        let (outer, inner) = into.values_mut().split_at_mut(units);
        let pairs = outer.iter_mut().zip(&features.response);
        pairs.for_each(|(sum, h)| *sum += weight * h);
        let rows = features.tangent.chunks_exact(units);
        for (sums, row) in inner.chunks_exact_mut(units).zip(rows) {
            add_product(sums, weight, self.parameters.group(0), row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recurrent_weights_are_gamma_with_both_signs() {
        let size = TransformerSize {
            units: 64,
            width: 3,
        };
        let model = IndRnn::symmetric(size, 0.7, Activation::Tanh, 1).unwrap();
        let w = model.parameters().group(2);
        assert!(w.iter().all(|w| w.abs() == 0.7));
        assert!(w.iter().any(|w| *w > 0.0) && w.iter().any(|w| *w < 0.0));
        assert_eq!(w[..32], w[32..]);
    }
}
