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
        scale: None,
    }
}

#[cfg(test)]
pub(super) mod waves {
    use super::*;

    /// A variable of numbers middle + size · sin(0.37 i² + seed).
    pub(in crate::nn) fn wave(shape: &[usize], [middle, size, seed]: [f64; 3]) -> Var {
        let count: usize = shape.iter().product();
        let numbers = (0..count).map(|i| middle + size * ((i * i) as f64 * 0.37 + seed).sin());
        let tensor = Tensor::from_vec(numbers.collect::<Vec<_>>(), shape, &Device::Cpu);
        Var::from_tensor(&tensor.unwrap()).unwrap()
    }

    /// The largest difference.
    pub(in crate::nn) fn worst(a: &Tensor, b: &Tensor) -> f64 {
        let apart = (a - b).unwrap().abs().unwrap().flatten_all().unwrap();
        apart.max(0).unwrap().to_scalar().unwrap()
    }
}
