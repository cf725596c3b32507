//! The constants of the finite-time analysis of projected gradient descent for shallow
//! transformers, from plain numbers.
//!
//! None of them depends on the number of tokens. Their values are far above anything measured (the
//! right side of the theorem is 2·10⁴ where the labels vary by 10⁻²), so they serve for how things
//! scale, of order
//!
//! ```text
//! (d + log(m/δ'))²/√n_steps + √(log(n_s/δ)/m) + (d + log(m/δ'))/√m
//! ```
//!
//! # References
//! Arda, Cayci and Eryilmaz, *Finite-time analysis of gradient descent for shallow transformers*,
//! Lemmas 2, 3 and 5, Theorem 1.

/// One number for each group of parameters of a head: output weight c, neuron U, attention W. Of an
/// IndRNN: output weight c, input weights U, recurrent weight w.
///
/// As radii ρ of a trust region (of a head: ρ/√m) or as bounds ν of a transport.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Radii {
    /// Of the output weight.
    pub c: f64,
    /// Of the neuron.
    pub u: f64,
    /// Of the attention, or of the recurrent weight.
    pub w: f64,
}

impl Radii {
    /// The same for every group.
    pub const fn all(radius: f64) -> Self {
        Self {
            c: radius,
            u: radius,
            w: radius,
        }
    }

    /// ‖ρ‖₂ = √(ρ_c² + ρ_u² + ρ_w²).
    pub fn norm(&self) -> f64 {
        self.c.hypot(self.moved())
    }

    /// √(ρ_u² + ρ_w²), of what stands inside a head.
    pub fn moved(&self) -> f64 {
        self.u.hypot(self.w)
    }
}

/// Bounds of an activation and its first two derivatives: |act| ≤ a0, |act'| ≤ a1, |act''| ≤ a2.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Smoothness {
    /// a0.
    pub value: f64,
    /// a1.
    pub slope: f64,
    /// a2.
    pub curvature: f64,
}

impl Smoothness {
    /// Of tanh: 1, 1, 4/(3√3).
    pub const TANH: Self = Self {
        value: 1.0,
        slope: 1.0,
        curvature: 0.769_800_358_919_501,
    };

    /// Of 1/(1 + e^(−x)): 1, 1/4, 1/(6√3).
    pub const LOGISTIC: Self = Self {
        value: 1.0,
        slope: 0.25,
        curvature: 0.096_225_044_864_937_63,
    };
}

/// What the bounds are of. All numbers must be positive; a number that is not gives a bound that is
/// not finite, or none of meaning.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct FiniteTime {
    /// m, the heads.
    pub heads: usize,
    /// d, numbers of a token.
    pub width: usize,
    /// n_s, training samples.
    pub samples: usize,
    /// ρ, radii of the trust region.
    pub trust: Radii,
    /// ν, bounds of the transport behind the labels.
    pub transport: Radii,
    /// a0, a1, a2.
    pub activation: Smoothness,
    /// δ: the bound on the approximation error fails with at most this probability.
    pub failure: f64,
    /// δ': the bound on the neurons fails with at most this probability.
    pub failure_start: f64,
}

impl FiniteTime {
    fn root(&self) -> f64 {
        (self.heads as f64).sqrt()
    }

    /// B_U = √d + √(2 log(m/(2δ'))) + ρ_u/√m: no neuron in the trust region is longer, with
    /// probability 1 − δ'.
    pub fn neuron(&self) -> f64 {
        let tail = 2.0 * (self.heads as f64 / (2.0 * self.failure_start)).ln();
        (self.width as f64).sqrt() + tail.sqrt() + self.trust.u / self.root()
    }

    /// L1 = a1 √(1 + B_U²), of the gradient of a head.
    pub fn lipschitz(&self) -> f64 {
        self.activation.slope * 1f64.hypot(self.neuron())
    }

    /// L2 = a2 (1 + B_U²) + 8 a1 √(1 + B_U²), of the curvature of a head.
    pub fn smoothness(&self) -> f64 {
        self.activation.curvature * (1.0 + self.neuron().powi(2)) + 8.0 * self.lipschitz()
    }

    /// B_lin = (L1 ρ_c √(ρ_w² + ρ_u²) + L2 (ρ_w² + ρ_u²))/√m: the distance of the network to its
    /// linearisation at the start, anywhere in the trust region.
    pub fn linearisation(&self) -> f64 {
        self.remainder(self.smoothness())
    }

    /// The same with L2/2, as the proof (a Taylor remainder of second order) gives it.
    pub fn linearisation_tight(&self) -> f64 {
        self.remainder(0.5 * self.smoothness())
    }

    fn remainder(&self, smoothness: f64) -> f64 {
        let moved = self.trust.moved();
        let first = self.lipschitz() * self.trust.c * moved;
        (first + smoothness * moved * moved) / self.root()
    }

    /// B_app = 2 (a0 ν_c + a1 ν_u + a1 ν_w) √(2 log(2 n_s/δ)/m): the distance of the linearised
    /// network, at the transported parameters, to the labels. The constant rests on a sub-Gaussian
    /// tail that the paper states without a proof.
    pub fn approximation(&self) -> f64 {
        let (a, nu) = (self.activation, self.transport);
        let tail = 2.0 * (2.0 * self.samples as f64 / self.failure).ln();
        let size = a.value * nu.c + a.slope * (nu.u + nu.w);
        2.0 * size * (tail / self.heads as f64).sqrt()
    }

    /// B_CoF = ((L1 + L2) √(ρ_u² + ρ_w²) + ρ_c L1) (‖ν‖ + ‖ρ‖)/√m: how far the gradients drift
    /// from those at the start, along the way to the transported parameters.
    pub fn drift(&self) -> f64 {
        let (first, second) = (self.lipschitz(), self.smoothness());
        let gradient = (first + second) * self.trust.moved() + self.trust.c * first;
        gradient * (self.transport.norm() + self.trust.norm()) / self.root()
    }

    /// A = a0 + (1 + ρ_c/√m) L1: no gradient of the network in the trust region is longer.
    pub fn gradient(&self) -> f64 {
        self.activation.value + (1.0 + self.trust.c / self.root()) * self.lipschitz()
    }

    /// f_max = L1 √(ρ_u² + ρ_w²) + a0 ρ_c, of the outputs in the trust region.
    pub fn output(&self) -> f64 {
        self.lipschitz() * self.trust.moved() + self.activation.value * self.trust.c
    }

    /// y_max = a0 ν_c + a1 ν_u + a1 √d ν_w, of the labels.
    pub fn label(&self) -> f64 {
        let (a, nu) = (self.activation, self.transport);
        a.value * nu.c + a.slope * (nu.u + (self.width as f64).sqrt() * nu.w)
    }

    /// B_grad = 4 (f_max + y_max)² A², of the squared gradient of the loss.
    pub fn loss_gradient(&self) -> f64 {
        4.0 * (self.output() + self.label()).powi(2) * self.gradient().powi(2)
    }

    /// The right side of Theorem 1: the least loss over `steps` steps of size 1/√steps is at most
    ///
    /// ```text
    /// (‖ν‖² + B_grad)/(4 √n_steps) + (f_max + y_max) (B_app + B_lin + B_CoF)
    /// ```
    ///
    /// in expectation also with one random sample for each step.
    pub fn least_loss(&self, steps: usize) -> f64 {
        let descent = self.transport.norm().powi(2) + self.loss_gradient();
        let errors = self.approximation() + self.linearisation() + self.drift();
        descent / (4.0 * (steps as f64).sqrt()) + (self.output() + self.label()) * errors
    }

    /// The loss of the average iterate: at most four times [`FiniteTime::least_loss`] (which also
    /// bounds the mean of the losses) plus 6 B_lin².
    pub fn average_iterate_loss(&self, steps: usize) -> f64 {
        4.0 * self.least_loss(steps) + 6.0 * self.linearisation().powi(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> FiniteTime {
        FiniteTime {
            heads: 256,
            width: 8,
            samples: 5000,
            trust: Radii::all(3.0),
            transport: Radii::all(3.0),
            activation: Smoothness::TANH,
            failure: 0.05,
            failure_start: 0.05,
        }
    }

    /// From tests/reference/finite_time.py, 30 digits, written down with 16.
    #[test]
    fn constants_are_those_of_an_independent_program() {
        let bounds = golden();
        let pairs = [
            ("B_U", bounds.neuron(), 6.977684951134272),
            ("L1", bounds.lipschitz(), 7.048977746970527),
            ("L2", bounds.smoothness(), 94.64172939584222),
            ("B_lin", bounds.linearisation(), 112.0793730313029),
            ("B_app", bounds.approximation(), 5.558472936337664),
            ("B_CoF", bounds.drift(), 293.9619731420961),
            ("A", bounds.gradient(), 9.3706610745275),
            ("f_max", bounds.output(), 32.90627979189559),
            ("y_max", bounds.label(), 14.48528137423857),
            ("B_grad", bounds.loss_gradient(), 788864.6271566801),
            ("theorem", bounds.least_loss(4000), 22624.72596437316),
            (
                "average",
                bounds.average_iterate_loss(4000),
                165869.6190120324,
            ),
        ];
        for (name, found, expected) in pairs {
            let relative = (found / expected - 1.0).abs();
            assert!(relative < 1e-13, "{name}: {found} beside {expected}");
        }
    }

    #[test]
    fn only_the_descent_term_falls_with_the_steps() {
        let bounds = golden();
        let rest = (bounds.output() + bounds.label())
            * (bounds.approximation() + bounds.linearisation() + bounds.drift());
        let term = |steps| bounds.least_loss(steps) - rest;
        assert!((term(400) / term(1600) - 2.0).abs() < 1e-9);
        let tight = bounds.linearisation_tight();
        assert!(tight > 0.5 * bounds.linearisation() && tight < bounds.linearisation());
    }
}
