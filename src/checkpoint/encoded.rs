//! What the encoders of all layouts share: tensors to be written, and rectangular padding.

use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::ssm::DiagonalSystem;
use crate::ssm::SystemError;
use crate::ssm::Time;

/// The decay that an empty slot of a rectangular layout is given; its residue is zero.
const IDLE_EXPONENT: f64 = -0.5;

/// Which change of the systems makes a tensor be written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Poles and residues.
    Mode,
    /// The steps Δ.
    Step,
    /// The feedthrough D.
    Feedthrough,
    /// What stands around the systems: encoder, output maps, normalisations, head.
    Weight,
}

/// A tensor to be written, still in double precision.
pub(super) struct Encoded {
    pub(super) name: String,
    /// `None` keeps the shape of the file.
    pub(super) shape: Option<Vec<usize>>,
    pub(super) data: Vec<f64>,
    pub(super) role: Role,
}

impl Encoded {
    pub(super) fn mode(name: String, shape: Vec<usize>, data: Vec<f64>) -> Self {
        let (shape, role) = (Some(shape), Role::Mode);
        Self {
            name,
            shape,
            data,
            role,
        }
    }

    pub(super) fn step(name: String, shape: Vec<usize>, data: Vec<f64>) -> Self {
        let (shape, role) = (Some(shape), Role::Step);
        Self {
            name,
            shape,
            data,
            role,
        }
    }

    pub(super) fn weight(name: String, shape: Vec<usize>, data: Vec<f64>) -> Self {
        let (shape, role) = (Some(shape), Role::Weight);
        Self {
            name,
            shape,
            data,
            role,
        }
    }

    pub(super) fn feedthrough(name: String, data: Vec<f64>) -> Self {
        Self {
            name,
            shape: None,
            data,
            role: Role::Feedthrough,
        }
    }
}

/// The states that a rectangular layout stores for each channel: the largest order of any, and
/// one at least, since no public module takes none.
pub(super) fn stored_order(systems: &[DiagonalSystem]) -> usize {
    let orders = systems.iter().map(DiagonalSystem::order);
    orders.max().unwrap_or(0).max(1)
}

/// The step and the modes (λ, residue) of a channel, filled up to `order` with idle modes.
pub(super) fn padded_modes(
    layer: &str,
    channel: usize,
    system: &DiagonalSystem,
    order: usize,
) -> Result<(f64, Vec<(Complex64, Complex64)>), Fault> {
    let fault = |source| Fault::System {
        layer: layer.to_string(),
        channel,
        source,
    };
    let Time::Discrete { step } = system.time() else {
        return Err(fault(SystemError::WrongTime {
            found: "continuous",
            expected: "discrete",
        }));
    };
    let residues = system.residues().map_err(fault)?;
    let mut modes: Vec<_> = system.exponents().iter().copied().zip(residues).collect();
    modes.resize(order, (Complex64::from(IDLE_EXPONENT), Complex64::ZERO));
    Ok((step, modes))
}
