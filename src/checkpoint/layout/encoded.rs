//! Tensors to be written.

/// The decay that an empty slot of a rectangular layout is given; its residue is zero.
pub(in crate::checkpoint) const PADDING_EXPONENT: f64 = -0.5;

/// Which change of the systems makes a tensor be written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::checkpoint) enum Role {
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
pub(in crate::checkpoint) struct Encoded {
    pub(in crate::checkpoint) name: String,
    /// `None` keeps the shape of the file.
    pub(in crate::checkpoint) shape: Option<Vec<usize>>,
    pub(in crate::checkpoint) data: Vec<f64>,
    pub(in crate::checkpoint) role: Role,
}

impl Encoded {
    pub(in crate::checkpoint) fn mode(name: String, shape: Vec<usize>, data: Vec<f64>) -> Self {
        let (shape, role) = (Some(shape), Role::Mode);
        Self {
            name,
            shape,
            data,
            role,
        }
    }

    pub(in crate::checkpoint) fn step(name: String, shape: Vec<usize>, data: Vec<f64>) -> Self {
        let (shape, role) = (Some(shape), Role::Step);
        Self {
            name,
            shape,
            data,
            role,
        }
    }

    /// A step that keeps the shape of the file.
    pub(in crate::checkpoint) fn unshaped_step(name: String, data: Vec<f64>) -> Self {
        let (shape, role) = (None, Role::Step);
        Self {
            name,
            shape,
            data,
            role,
        }
    }

    pub(in crate::checkpoint) fn weight(name: String, shape: Vec<usize>, data: Vec<f64>) -> Self {
        let (shape, role) = (Some(shape), Role::Weight);
        Self {
            name,
            shape,
            data,
            role,
        }
    }

    pub(in crate::checkpoint) fn new_feedthrough(
        name: String,
        shape: Vec<usize>,
        data: Vec<f64>,
    ) -> Self {
        let shape = Some(shape);
        Self {
            shape,
            ..Self::feedthrough(name, data)
        }
    }

    pub(in crate::checkpoint) fn feedthrough(name: String, data: Vec<f64>) -> Self {
        Self {
            name,
            shape: None,
            data,
            role: Role::Feedthrough,
        }
    }
}
