//! Numbers as the tensors of a file: in its number format, and none that this does not reach.

use hankelite_archive::{ArchiveError, Dtype, RawTensor, TensorError};
use num_complex::Complex64;

use crate::checkpoint::error::Fault;

/// The tensor of a file: pairs on the last axis become complex numbers where it holds those.
pub(super) fn raw_tensor(
    name: &str,
    dtype: Dtype,
    mut shape: Vec<usize>,
    values: &[f64],
) -> Result<RawTensor, Fault> {
    if dtype != Dtype::C64 {
        let tensor = floating(name, dtype, shape, values)?;
        require_finite(name, &tensor, values)?;
        return Ok(tensor);
    }
    shape.pop();
    let pairs = values.chunks_exact(2);
    let pairs: Vec<_> = pairs.map(|pair| Complex64::new(pair[0], pair[1])).collect();
    let named = |error: TensorError| error.of(name);
    let tensor = RawTensor::from_c64(shape, &pairs).map_err(named)?;
    let rounded = tensor.to_c64().map_err(named)?;
    match rounded.iter().position(|value| !value.is_finite()) {
        None => Ok(tensor),
        Some(index) => Err(Fault::Overflow {
            tensor: name.to_string(),
            value: values[2 * index],
            dtype,
        }),
    }
}

pub(super) fn floating(
    name: &str,
    dtype: Dtype,
    shape: Vec<usize>,
    values: &[f64],
) -> Result<RawTensor, ArchiveError> {
    RawTensor::from_f64(dtype, shape, values).map_err(|error| error.of(name))
}

/// Rounding to the file's number format must not overflow.
pub(super) fn require_finite(name: &str, tensor: &RawTensor, values: &[f64]) -> Result<(), Fault> {
    let rounded = tensor.to_f64().map_err(|error| error.of(name))?;
    match rounded.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(Fault::Overflow {
            tensor: name.to_string(),
            value: values[index],
            dtype: tensor.dtype(),
        }),
    }
}
