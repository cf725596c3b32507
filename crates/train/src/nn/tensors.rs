//! Tensors from numbers of the host, and back.

use candle_core::{DType, Device, Result, Tensor, Var};

use crate::nn::{Group, Parameter};

/// The number type of tensors and where they are.
#[derive(Clone, Copy)]
pub(super) struct TensorType<'a> {
    pub(super) dtype: DType,
    pub(super) device: &'a Device,
}

impl<'a> TensorType<'a> {
    pub(super) fn of(tensor: &'a Tensor) -> Self {
        Self {
            dtype: tensor.dtype(),
            device: tensor.device(),
        }
    }
}

/// A variable with these numbers.
pub(super) fn var(values: &[f64], shape: &[usize], to: TensorType<'_>) -> Result<Var> {
    Var::from_tensor(&Tensor::from_slice(values, shape, to.device)?.to_dtype(to.dtype)?)
}

/// The numbers of a tensor.
pub(crate) fn host(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

pub(super) fn parameter(prefix: &str, name: &str, var: &Var, group: Group) -> Parameter {
    Parameter {
        name: format!("{prefix}{name}"),
        var: var.clone(),
        group,
    }
}
