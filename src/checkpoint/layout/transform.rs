//! What a stored number goes through before it is a decay or a step.

use serde::{Deserialize, Serialize};

/// A function of a stored parameter, as `param_transform` of state-spaces/s4 names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transform {
    /// x.
    None,
    /// eˣ.
    Exp,
    /// max(x, 0), and 1e-4 more for the decays of version 3.
    Relu,
    /// 1/(1 + e^{−x}).
    Sigmoid,
    /// ln(1 + eˣ).
    Softplus,
}

impl Transform {
    /// The name in the public code's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Transform::None => "none",
            Transform::Exp => "exp",
            Transform::Relu => "relu",
            Transform::Sigmoid => "sigmoid",
            Transform::Softplus => "softplus",
        }
    }

    pub(super) fn apply(self, x: f64) -> f64 {
        match self {
            Transform::None => x,
            Transform::Exp => x.exp(),
            Transform::Relu => x.max(0.0),
            Transform::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            // F.softplus is linear above 20; there e^{−x} is below the rounding of f32 anyway.
            Transform::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        }
    }

    /// The parameter of a positive number, or why there is none.
    pub(super) fn invert(self, y: f64) -> Result<f64, &'static str> {
        let positive = y > 0.0;
        match self {
            Transform::None => Ok(y),
            Transform::Exp if positive => Ok(y.ln()),
            Transform::Exp => {
                Err("the layout stores the logarithm of −Re λ, which must be positive")
            }
            Transform::Relu if y >= 0.0 => Ok(y),
            Transform::Relu => Err("the layout stores −Re λ behind a ReLU, which is not negative"),
            Transform::Sigmoid if positive && y < 1.0 => Ok((y / (1.0 - y)).ln()),
            Transform::Sigmoid => {
                Err("the layout stores −Re λ behind a sigmoid, which lies between 0 and 1")
            }
            // ln(e^y − 1)
            Transform::Softplus if positive => Ok(y + (-(-y).exp_m1()).ln()),
            Transform::Softplus => {
                Err("the layout stores −Re λ behind a softplus, which must be positive")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Transform;

    #[test]
    fn the_inverse_undoes_the_transform() {
        let all = [
            Transform::None,
            Transform::Exp,
            Transform::Relu,
            Transform::Sigmoid,
            Transform::Softplus,
        ];
        for transform in all {
            for y in [1e-12, 1e-3, 0.5, 0.999] {
                let x = transform.invert(y).unwrap();
                let back = transform.apply(x);
                assert!((back / y - 1.0).abs() < 1e-13, "{transform:?} {y} {back}");
            }
            assert!(transform == Transform::None || transform.invert(-1.0).is_err());
        }
        assert!(Transform::Sigmoid.invert(1.5).is_err());
        assert_eq!(Transform::Softplus.apply(800.0), 800.0);
    }
}
