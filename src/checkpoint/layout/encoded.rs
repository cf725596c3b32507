//! Tensors to be written.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::tensors::interleave;

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

    /// Rows × columns.
    pub(in crate::checkpoint) fn matrix(name: String, matrix: &DMatrix<f64>) -> Self {
        let shape = vec![matrix.nrows(), matrix.ncols()];
        Self::mode(name, shape, matrix.transpose().as_slice().to_vec())
    }

    /// Rows × columns × 2, the last axis (re, im).
    pub(in crate::checkpoint) fn pairs(name: String, matrix: &DMatrix<Complex64>) -> Self {
        let shape = vec![matrix.nrows(), matrix.ncols(), 2];
        Self::mode(name, shape, interleave(matrix.transpose().as_slice()))
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

    /// D as a matrix, outputs × inputs.
    pub(in crate::checkpoint) fn dense(name: String, through: &DMatrix<f64>) -> Self {
        let shape = vec![through.nrows(), through.ncols()];
        Self::new_feedthrough(name, shape, through.transpose().as_slice().to_vec())
    }

    /// The diagonal of D.
    ///
    /// # Errors
    /// [`Fault::DenseFeedthrough`] where D has more.
    pub(in crate::checkpoint) fn diagonal(
        layer: &str,
        name: String,
        through: &DMatrix<f64>,
    ) -> Result<Self, Fault> {
        if let Some((row, column)) = off_diagonal(through) {
            let layer = layer.to_string();
            return Err(Fault::DenseFeedthrough { layer, row, column });
        }
        let diagonal = through.diagonal().as_slice().to_vec();
        Ok(Self::feedthrough(name, diagonal))
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

/// Where a matrix is not diagonal.
pub(in crate::checkpoint) fn off_diagonal(matrix: &DMatrix<f64>) -> Option<(usize, usize)> {
    let places = (0..matrix.ncols()).flat_map(|j| (0..matrix.nrows()).map(move |i| (i, j)));
    let mut off = places.filter(|&(i, j)| i != j && matrix[(i, j)] != 0.0);
    off.next()
}
