//! One tensor as it lies in a checkpoint: element type, shape, bytes.
//!
//! Nothing here computes with the numbers. A tensor that is only carried from
//! one file to another keeps its bytes; the conversions to `f64` and back are
//! for the few tensors that a reduction reads or replaces.

use half::{bf16, f16};
use num_complex::Complex;
pub use safetensors::Dtype;

use crate::archive_error::ArchiveError;

/// A tensor in row-major order, little endian.
///
/// The fields are open, so they may disagree; every function that reads the
/// numbers first checks that the bytes are as many as shape and element type
/// ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTensor {
    /// Type of each element.
    pub dtype: Dtype,
    /// Extent along each axis; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements, last axis fastest.
    pub bytes: Vec<u8>,
}

impl RawTensor {
    /// The elements of a floating-point tensor.
    ///
    /// F16, BF16, F32 and F64 are widened exactly.
    ///
    /// # Errors
    /// Any other element type, or bytes that do not fill the shape. `name` is
    /// the tensor's name, for the message only.
    pub fn to_f64(&self, name: &str) -> Result<Vec<f64>, ArchiveError> {
        self.check(name)?;
        let bytes = &self.bytes;
        match self.dtype {
            Dtype::F16 => Ok(elements(bytes, |b| f16::from_le_bytes(b).to_f64())),
            Dtype::BF16 => Ok(elements(bytes, |b| bf16::from_le_bytes(b).to_f64())),
            Dtype::F32 => Ok(elements(bytes, |b| f64::from(f32::from_le_bytes(b)))),
            Dtype::F64 => Ok(elements(bytes, f64::from_le_bytes)),
            _ => Err(self.wrong_dtype(name, "a floating-point dtype (F16, BF16, F32 or F64)")),
        }
    }

    /// The elements of a complex tensor (C64: two `f32` each), widened exactly.
    ///
    /// # Errors
    /// Any other element type, or bytes that do not fill the shape.
    pub fn to_c64(&self, name: &str) -> Result<Vec<Complex<f64>>, ArchiveError> {
        self.check(name)?;
        if self.dtype != Dtype::C64 {
            return Err(self.wrong_dtype(name, "a complex dtype (C64)"));
        }
        let parts = elements(&self.bytes, |b| f64::from(f32::from_le_bytes(b)));
        let pairs = parts.chunks_exact(2);
        Ok(pairs.map(|pair| Complex::new(pair[0], pair[1])).collect())
    }

    /// The elements of an integer tensor, signed or unsigned, 8 to 64 bits.
    ///
    /// # Errors
    /// Any other element type (Bool too), bytes that do not fill the shape, or
    /// a U64 element above `i64::MAX`.
    pub fn to_i64(&self, name: &str) -> Result<Vec<i64>, ArchiveError> {
        self.check(name)?;
        let bytes = &self.bytes;
        match self.dtype {
            Dtype::I8 => Ok(elements(bytes, |b| i64::from(i8::from_le_bytes(b)))),
            Dtype::U8 => Ok(elements(bytes, |b| i64::from(u8::from_le_bytes(b)))),
            Dtype::I16 => Ok(elements(bytes, |b| i64::from(i16::from_le_bytes(b)))),
            Dtype::U16 => Ok(elements(bytes, |b| i64::from(u16::from_le_bytes(b)))),
            Dtype::I32 => Ok(elements(bytes, |b| i64::from(i32::from_le_bytes(b)))),
            Dtype::U32 => Ok(elements(bytes, |b| i64::from(u32::from_le_bytes(b)))),
            Dtype::I64 => Ok(elements(bytes, i64::from_le_bytes)),
            Dtype::U64 => elements(bytes, u64::from_le_bytes)
                .into_iter()
                .map(|value| i64::try_from(value).map_err(|_| integer_range(name, value)))
                .collect(),
            _ => Err(self.wrong_dtype(name, "an integer dtype (I8 to I64 or U8 to U64)")),
        }
    }

    /// A floating-point tensor of the given values, each rounded to the nearest
    /// number of `dtype` (ties to even).
    ///
    /// # Panics
    /// If `dtype` is not F16, BF16, F32 or F64, or if the values do not fill
    /// the shape: both are errors of the caller, not of a file.
    #[must_use]
    pub fn from_f64(dtype: Dtype, shape: Vec<usize>, values: &[f64]) -> RawTensor {
        assert_eq!(
            shape.iter().product::<usize>(),
            values.len(),
            "the values fill the shape"
        );
        let bytes = match dtype {
            Dtype::F16 => encode(values, |x| f16::from_f32(round_to_odd(x)).to_le_bytes()),
            Dtype::BF16 => encode(values, |x| bf16::from_f32(round_to_odd(x)).to_le_bytes()),
            // The cast rounds to nearest, ties to even.
            Dtype::F32 => encode(values, |x| (x as f32).to_le_bytes()),
            Dtype::F64 => encode(values, f64::to_le_bytes),
            other => panic!("{other} is not a floating-point dtype"),
        };
        RawTensor {
            dtype,
            shape,
            bytes,
        }
    }

    /// A complex tensor (C64) of the given values, each part rounded to the
    /// nearest `f32`.
    ///
    /// # Panics
    /// If the values do not fill the shape.
    #[must_use]
    pub fn from_c64(shape: Vec<usize>, values: &[Complex<f64>]) -> RawTensor {
        assert_eq!(
            shape.iter().product::<usize>(),
            values.len(),
            "the values fill the shape"
        );
        let parts: Vec<f64> = values.iter().flat_map(|z| [z.re, z.im]).collect();
        RawTensor {
            dtype: Dtype::C64,
            shape,
            bytes: encode(&parts, |x| (x as f32).to_le_bytes()),
        }
    }

    /// Checks that the bytes are as many as shape and element type ask for.
    pub fn check(&self, name: &str) -> Result<(), ArchiveError> {
        if byte_length(self.dtype, &self.shape) == Some(self.bytes.len()) {
            return Ok(());
        }
        Err(ArchiveError::TensorBytes {
            tensor: name.to_owned(),
            dtype: self.dtype,
            shape: self.shape.clone(),
            found: self.bytes.len(),
        })
    }

    fn wrong_dtype(&self, name: &str, expected: &'static str) -> ArchiveError {
        ArchiveError::TensorDtype {
            tensor: name.to_owned(),
            found: self.dtype,
            expected,
        }
    }
}

/// Bytes that a tensor of this type and shape takes; `None` when the count
/// overflows or ends within a byte.
pub(super) fn byte_length(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let count = shape.iter().copied().try_fold(1, usize::checked_mul)?;
    let bits = count.checked_mul(dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

fn elements<T, const N: usize>(bytes: &[u8], decode: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|chunk| decode(*chunk)).collect()
}

fn encode<const N: usize>(values: &[f64], one: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|value| one(*value)).collect()
}

/// Rounds to `f32` such that rounding on to a 16-bit type gives the same as
/// rounding once: what does not fit goes to the neighbour with odd last bit.
///
/// `half` drops the lower half of an `f64` before it rounds (version 2.7), so
/// values just above a midpoint would go down.
fn round_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    if back == x || !nearest.is_finite() {
        return nearest;
    }
    let bits = nearest.to_bits();
    let towards_zero = if back.abs() > x.abs() { bits - 1 } else { bits };
    f32::from_bits(towards_zero | 1)
}

fn integer_range(name: &str, value: u64) -> ArchiveError {
    ArchiveError::IntegerRange {
        tensor: name.to_owned(),
        found: value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [Dtype; 4] = [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64];

    #[test]
    fn values_that_every_float_type_holds_survive_a_round_trip() {
        let values = [0.0, -0.0, 1.5, -2.0, f64::INFINITY, 0.0078125];
        for dtype in FLOATS {
            let tensor = RawTensor::from_f64(dtype, vec![2, 3], &values);
            assert_eq!(tensor.to_f64("x").unwrap(), values, "{dtype}");
        }
    }

    #[test]
    fn values_are_rounded_once_to_the_nearest() {
        // Slightly above the midpoint of 1 and 1 + 2^-10: rounding to f32 first
        // would land on the midpoint and then go down to even.
        let value = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        let tensor = RawTensor::from_f64(Dtype::F16, vec![1], &[value]);
        assert_eq!(tensor.to_f64("x").unwrap(), [1.0 + 2f64.powi(-10)]);
        let value = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        let tensor = RawTensor::from_f64(Dtype::BF16, vec![1], &[value]);
        assert_eq!(tensor.to_f64("x").unwrap(), [1.0 + 2f64.powi(-7)]);
        // Beyond the largest number, and below the smallest.
        let values = [
            1e300,
            -65_520.0,
            65_519.9,
            2f64.powi(-25) * 1.000_000_001,
            -1e-300,
        ];
        let tensor = RawTensor::from_f64(Dtype::F16, vec![5], &values);
        let expected = [
            f64::INFINITY,
            f64::NEG_INFINITY,
            65_504.0,
            2f64.powi(-24),
            -0.0,
        ];
        assert_eq!(tensor.to_f64("x").unwrap(), expected);
        let tensor = RawTensor::from_f64(Dtype::F32, vec![], &[0.1]);
        assert_eq!(tensor.bytes, 0.1f32.to_le_bytes());
    }

    #[test]
    fn complex_values_survive_a_round_trip() {
        let values = [Complex::new(1.0, -2.0), Complex::new(0.5, 0.25)];
        let tensor = RawTensor::from_c64(vec![2], &values);
        assert_eq!(tensor.bytes.len(), 16);
        assert_eq!(tensor.to_c64("x").unwrap(), values);
    }

    #[test]
    fn integers_of_each_width_are_widened() {
        let cases: [(Dtype, Vec<u8>, i64); 6] = [
            (Dtype::I8, vec![0xff], -1),
            (Dtype::U8, vec![0xff], 255),
            (Dtype::I16, vec![0xfe, 0xff], -2),
            (Dtype::U32, vec![0xff; 4], 4_294_967_295),
            (Dtype::I64, vec![0xff; 8], -1),
            (Dtype::U64, vec![1, 0, 0, 0, 0, 0, 0, 0], 1),
        ];
        for (dtype, bytes, expected) in cases {
            let shape = vec![1];
            let tensor = RawTensor {
                dtype,
                shape,
                bytes,
            };
            assert_eq!(tensor.to_i64("n").unwrap(), [expected], "{dtype}");
        }
    }

    #[test]
    fn an_integer_above_the_signed_range_is_refused() {
        let tensor = RawTensor {
            dtype: Dtype::U64,
            shape: vec![],
            bytes: vec![0xff; 8],
        };
        let error = tensor.to_i64("n").unwrap_err();
        assert!(matches!(error, ArchiveError::IntegerRange { .. }));
    }

    #[test]
    fn a_wrong_element_type_is_named() {
        let tensor = RawTensor {
            dtype: Dtype::I64,
            shape: vec![1],
            bytes: vec![0; 8],
        };
        let error = tensor.to_f64("layers.0.D").unwrap_err();
        assert!(matches!(error, ArchiveError::TensorDtype { .. }));
        assert_eq!(
            error.to_string(),
            "tensor `layers.0.D` has dtype I64, expected a floating-point dtype (F16, BF16, F32 or F64)"
        );
        let error = tensor.to_c64("x").unwrap_err();
        assert!(matches!(error, ArchiveError::TensorDtype { .. }));
    }

    #[test]
    fn bytes_that_do_not_fill_the_shape_are_refused() {
        for shape in [vec![3], vec![usize::MAX, 2]] {
            let tensor = RawTensor {
                dtype: Dtype::F32,
                shape,
                bytes: vec![0; 8],
            };
            let error = tensor.to_f64("x").unwrap_err();
            assert!(matches!(error, ArchiveError::TensorBytes { .. }));
        }
    }
}
