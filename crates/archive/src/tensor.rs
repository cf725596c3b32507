//! One tensor as it lies in a file: element type, shape, bytes.
//!
//! Nothing here computes with the numbers. A tensor that is only carried from one file to another
//! keeps its bytes; the conversions to `f64` and back are for the few tensors that are read or
//! replaced.

use std::ops::Range;

use half::{bf16, f16};
use num_complex::Complex;
pub use safetensors::Dtype;

const FLOATING: &str = "a floating-point dtype (F16, BF16, F32 or F64)";

/// Why a tensor cannot be built, or its elements not be read.
///
/// A tensor does not know its name; [`TensorError::of`] adds it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The bytes do not fill the shape.
    #[error("{found} bytes, which do not fill shape {shape:?} of {dtype}")]
    Bytes {
        /// The element type.
        dtype: Dtype,
        /// The shape.
        shape: Vec<usize>,
        /// Bytes there are.
        found: usize,
    },
    /// The values do not fill the shape.
    #[error("{found} values, which do not fill shape {shape:?}")]
    Values {
        /// The shape.
        shape: Vec<usize>,
        /// Values there are.
        found: usize,
    },
    /// Another element type is needed.
    #[error("dtype {found}, expected {expected}")]
    Dtype {
        /// The element type.
        found: Dtype,
        /// The types that would do.
        expected: &'static str,
    },
    /// An integer beyond the signed 64 bits.
    #[error("element {found}, expected at most {}", i64::MAX)]
    IntegerRange {
        /// The element.
        found: u64,
    },
}

/// A tensor in row-major order, little endian. Its bytes fill its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// What is known of a tensor without its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Type of each element.
    pub dtype: Dtype,
    /// Extent along each axis; empty for a scalar.
    pub shape: &'a [usize],
}

impl RawTensor {
    /// A tensor of these bytes: the elements, little endian, last axis fastest. `shape` is empty
    /// for a scalar.
    ///
    /// # Errors
    /// [`TensorError::Bytes`], unless the bytes are those of so many elements.
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Result<RawTensor, TensorError> {
        if byte_length(dtype, &shape) != Some(bytes.len()) {
            let found = bytes.len();
            return Err(TensorError::Bytes {
                dtype,
                shape,
                found,
            });
        }
        Ok(RawTensor {
            dtype,
            shape,
            bytes,
        })
    }

    /// Type of each element.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Extent along each axis; empty for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements, little endian, last axis fastest.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`RawTensor::bytes`], without a copy.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Some entries of the first axis, which must have them.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Result<RawTensor, TensorError> {
        let mut shape = self.shape.clone();
        let row = self.bytes.len() / shape.first().copied().unwrap_or(1).max(1);
        if let Some(extent) = shape.first_mut() {
            *extent = rows.len();
        }
        let bytes = self.bytes[rows.start * row..rows.end * row].to_vec();
        RawTensor::new(self.dtype, shape, bytes)
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// [`TensorError::Bytes`], unless they fill it.
    pub fn reshaped(self, shape: Vec<usize>) -> Result<RawTensor, TensorError> {
        RawTensor::new(self.dtype, shape, self.bytes)
    }

    /// Element type and shape, under a name.
    pub(crate) fn header<'a>(&'a self, name: &'a str) -> Header<'a> {
        Header {
            name,
            dtype: self.dtype,
            shape: &self.shape,
        }
    }

    /// The elements of a floating-point tensor. F16, BF16, F32 and F64 are widened exactly.
    ///
    /// # Errors
    /// [`TensorError::Dtype`] for any other element type.
    pub fn to_f64(&self) -> Result<Vec<f64>, TensorError> {
        let bytes = &self.bytes;
        match self.dtype {
            Dtype::F16 => Ok(elements(bytes, |b| f16::from_le_bytes(b).to_f64())),
            Dtype::BF16 => Ok(elements(bytes, |b| bf16::from_le_bytes(b).to_f64())),
            Dtype::F32 => Ok(elements(bytes, |b| f64::from(f32::from_le_bytes(b)))),
            Dtype::F64 => Ok(elements(bytes, f64::from_le_bytes)),
            _ => Err(self.wrong_dtype(FLOATING)),
        }
    }

    /// The elements of a complex tensor (C64: two `f32` each), widened exactly.
    ///
    /// # Errors
    /// [`TensorError::Dtype`] for any other element type.
    pub fn to_c64(&self) -> Result<Vec<Complex<f64>>, TensorError> {
        if self.dtype != Dtype::C64 {
            return Err(self.wrong_dtype("a complex dtype (C64)"));
        }
        let parts = elements(&self.bytes, |b| f64::from(f32::from_le_bytes(b)));
        let pairs = parts.chunks_exact(2);
        Ok(pairs.map(|pair| Complex::new(pair[0], pair[1])).collect())
    }

    /// The elements of an integer tensor, signed or unsigned, 8 to 64 bits.
    ///
    /// # Errors
    /// [`TensorError::Dtype`] for any other element type (Bool too);
    /// [`TensorError::IntegerRange`] for a U64 element above `i64::MAX`.
    pub fn to_i64(&self) -> Result<Vec<i64>, TensorError> {
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
                .map(|found| i64::try_from(found).map_err(|_| TensorError::IntegerRange { found }))
                .collect(),
            _ => Err(self.wrong_dtype("an integer dtype (I8 to I64 or U8 to U64)")),
        }
    }

    /// A floating-point tensor of the given values, each rounded to the nearest
    /// number of `dtype` (ties to even).
    ///
    /// # Errors
    /// [`TensorError::Dtype`] if `dtype` is not F16, BF16, F32 or F64; [`TensorError::Values`] if
    /// the values do not fill the shape.
    pub fn from_f64(
        dtype: Dtype,
        shape: Vec<usize>,
        values: &[f64],
    ) -> Result<RawTensor, TensorError> {
        require_filled(&shape, values.len())?;
        let bytes = match dtype {
            Dtype::F16 => encode(values, |x| f16::from_f32(round_to_odd(x)).to_le_bytes()),
            Dtype::BF16 => encode(values, |x| bf16::from_f32(round_to_odd(x)).to_le_bytes()),
            // The cast rounds to nearest, ties to even.
            Dtype::F32 => encode(values, |x| (x as f32).to_le_bytes()),
            Dtype::F64 => encode(values, f64::to_le_bytes),
            found => {
                let expected = FLOATING;
                return Err(TensorError::Dtype { found, expected });
            }
        };
        RawTensor::new(dtype, shape, bytes)
    }

    /// A complex tensor (C64) of the given values, each part rounded to the
    /// nearest `f32`.
    ///
    /// # Errors
    /// [`TensorError::Values`] if the values do not fill the shape.
    pub fn from_c64(shape: Vec<usize>, values: &[Complex<f64>]) -> Result<RawTensor, TensorError> {
        require_filled(&shape, values.len())?;
        let parts: Vec<f64> = values.iter().flat_map(|z| [z.re, z.im]).collect();
        let bytes = encode(&parts, |x| (x as f32).to_le_bytes());
        RawTensor::new(Dtype::C64, shape, bytes)
    }

    fn wrong_dtype(&self, expected: &'static str) -> TensorError {
        TensorError::Dtype {
            found: self.dtype,
            expected,
        }
    }
}

fn require_filled(shape: &[usize], found: usize) -> Result<(), TensorError> {
    let expected = shape.iter().copied().try_fold(1, usize::checked_mul);
    match expected == Some(found) {
        true => Ok(()),
        false => Err(TensorError::Values {
            shape: shape.to_vec(),
            found,
        }),
    }
}

/// Bytes that a tensor of this type and shape takes; `None` when the count
/// overflows or ends within a byte.
pub(crate) fn byte_length(dtype: Dtype, shape: &[usize]) -> Option<usize> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [Dtype; 4] = [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64];

    #[test]
    fn values_that_every_float_type_holds_survive_a_round_trip() {
        let values = [0.0, -0.0, 1.5, -2.0, f64::INFINITY, 0.0078125];
        for dtype in FLOATS {
            let tensor = RawTensor::from_f64(dtype, vec![2, 3], &values).unwrap();
            assert_eq!(tensor.to_f64().unwrap(), values, "{dtype}");
        }
    }

    #[test]
    fn values_are_rounded_once_to_the_nearest() {
        // Slightly above the midpoint of 1 and 1 + 2^-10: rounding to f32 first
        // would land on the midpoint and then go down to even.
        let value = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        let tensor = RawTensor::from_f64(Dtype::F16, vec![1], &[value]).unwrap();
        assert_eq!(tensor.to_f64().unwrap(), [1.0 + 2f64.powi(-10)]);
        let value = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        let tensor = RawTensor::from_f64(Dtype::BF16, vec![1], &[value]).unwrap();
        assert_eq!(tensor.to_f64().unwrap(), [1.0 + 2f64.powi(-7)]);
        // Beyond the largest number, and below the smallest.
        let values = [
            1e300,
            -65_520.0,
            65_519.9,
            2f64.powi(-25) * 1.000_000_001,
            -1e-300,
        ];
        let tensor = RawTensor::from_f64(Dtype::F16, vec![5], &values).unwrap();
        let expected = [
            f64::INFINITY,
            f64::NEG_INFINITY,
            65_504.0,
            2f64.powi(-24),
            -0.0,
        ];
        assert_eq!(tensor.to_f64().unwrap(), expected);
        let tensor = RawTensor::from_f64(Dtype::F32, vec![], &[0.1]).unwrap();
        assert_eq!(tensor.bytes, 0.1f32.to_le_bytes());
    }

    #[test]
    fn complex_values_survive_a_round_trip() {
        let values = [Complex::new(1.0, -2.0), Complex::new(0.5, 0.25)];
        let tensor = RawTensor::from_c64(vec![2], &values).unwrap();
        assert_eq!(tensor.bytes.len(), 16);
        assert_eq!(tensor.to_c64().unwrap(), values);
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
            let tensor = RawTensor::new(dtype, shape, bytes).unwrap();
            assert_eq!(tensor.to_i64().unwrap(), [expected], "{dtype}");
        }
    }

    #[test]
    fn an_integer_above_the_signed_range_is_refused() {
        let tensor = RawTensor::new(Dtype::U64, vec![], vec![0xff; 8]).unwrap();
        let error = tensor.to_i64().unwrap_err();
        assert!(matches!(error, TensorError::IntegerRange { .. }));
    }

    #[test]
    fn a_wrong_element_type_is_named() {
        let tensor = RawTensor::new(Dtype::I64, vec![1], vec![0; 8]).unwrap();
        let error = tensor.to_f64().unwrap_err();
        assert!(matches!(error, TensorError::Dtype { .. }));
        assert_eq!(
            error.of("layers.0.D").to_string(),
            "tensor `layers.0.D` has dtype I64, expected a floating-point dtype (F16, BF16, F32 or F64)"
        );
        let error = tensor.to_c64().unwrap_err();
        assert!(matches!(error, TensorError::Dtype { .. }));
    }

    #[test]
    fn bytes_that_do_not_fill_the_shape_are_refused() {
        for shape in [vec![3], vec![usize::MAX, 2]] {
            let error = RawTensor::new(Dtype::F32, shape.clone(), vec![0; 8]).unwrap_err();
            assert!(matches!(error, TensorError::Bytes { found: 8, .. }));
            let error = RawTensor::from_f64(Dtype::F64, shape, &[0.0; 2]).unwrap_err();
            assert!(matches!(error, TensorError::Values { found: 2, .. }));
        }
    }
}
