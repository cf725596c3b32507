//! Why a bound cannot be computed, and what fails where it can.

use std::fmt::Display;

use serde::{Serialize, Serializer};

/// Why a bound cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BoundError {
    /// A number that a norm, a size or a probability cannot be.
    #[error("{name} is {found}, expected {expected}")]
    Value {
        /// Which number.
        name: &'static str,
        /// What it is.
        found: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// Different numbers of α and β, or none.
    #[error("{alpha} values of alpha and {beta} of beta, expected one of each for every layer")]
    Layers {
        /// Values of α.
        alpha: usize,
        /// Values of β.
        beta: usize,
    },
    /// A bound for one layer, requested of more.
    #[error("{found} layers, expected one: the bound (56) is for one layer")]
    OneLayer {
        /// Layers there are.
        found: usize,
    },
    /// A weight of a shape that does not fit the others.
    #[error("{name} has shape {found:?}, expected {expected:?}")]
    Shape {
        /// Which matrix.
        name: String,
        /// Its rows and columns.
        found: (usize, usize),
        /// Those that fit.
        expected: (usize, usize),
    },
}

impl BoundError {
    pub(super) fn value(name: &'static str, found: f64, expected: &'static str) -> Self {
        Self::Value {
            name,
            found,
            expected,
        }
    }
}

/// An assumption that fails, or a limit of a proof. Serialised as its sentence.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Caveat {
    /// One step does not shrink a change of the state.
    #[error(
        "a step multiplies a change of the state by up to {} (1 or more): the bound grows with its power, here over {steps} steps",
        short(gain)
    )]
    Growth {
        /// The factor.
        gain: f64,
        /// Steps it is taken over.
        steps: usize,
    },
    /// The activation of ℓ1-ℓ1 networks depends on the state before.
    #[error(
        "the proof takes the activation for fixed, but it depends on G h_{{t-1}}: the norm of G is missing for more than one step; see the joint contraction"
    )]
    FixedActivation,
    /// States are not drawn together when the activation's own dependence counts.
    #[error(
        "the joint contraction is {} (1 or more): the network need not forget its start",
        short(contraction)
    )]
    NoContraction {
        /// The constant.
        contraction: f64,
    },
    /// A bound for one step, requested of a longer sequence.
    #[error("a bound on one step only: the {steps} steps of the sequence play no part")]
    OneStep {
        /// Steps of the sequence.
        steps: usize,
    },
    /// (53) is for slow gates only.
    #[error(
        "x = alpha_f (2 alpha_F - 1) = {} is above 1/(2L) = {}: (53) does not hold, use (52)",
        short(excess),
        short(limit)
    )]
    TooFast {
        /// x.
        excess: f64,
        /// 1/(2L).
        limit: f64,
    },
    /// The gates of FastRNN do not sum to one.
    #[error("alpha_f + beta_f = {}, but the proof assumes 1", short(sum))]
    Gates {
        /// Their sum.
        sum: f64,
    },
    /// A bound known up to a constant.
    #[error("an order only: the constant in front is not published, so compare growth, not size")]
    OrderOnly,
    /// A bound above what the loss can be.
    #[error("vacuous: the gap is not below the largest loss {}", short(loss_max))]
    Vacuous {
        /// η_B.
        loss_max: f64,
    },
    /// A bound that no double holds.
    #[error("larger than any double: the bound is empty")]
    Overflow,
}

impl Serialize for Caveat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Four digits.
fn short(value: &f64) -> impl Display {
    match *value != 0.0 && !(1e-3..1e4).contains(&value.abs()) {
        true => format!("{value:.3e}"),
        false => format!("{value:.4}"),
    }
}
