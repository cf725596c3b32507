//! A square matrix kept through its singular value decomposition.

use candle_core::{DType, Device, Result, Tensor};

/// How far a singular value can be from 1.
pub(super) const BAND: f64 = 0.1;

/// Reflections in each of the two orthogonal factors, at most.
pub(super) const REFLECTIONS: usize = 32;

/// U diag(σ) Vᵀ with σ = 1 + r (2 sigmoid(s) − 1), so 1 − r < σ < 1 + r, r = [`BAND`]; U and V are
/// products of the Householder reflections of the columns of `left` and `right`, H × m each.
///
/// # References
/// Zhang, Lei and Dhillon 2018, *Stabilizing gradients for deep neural networks via efficient SVD
/// parameterization*, equations (6) to (8).
pub(super) fn from_factors(left: &Tensor, spread: &Tensor, right: &Tensor) -> Result<Tensor> {
    let sigma = (((spread * 0.5)?.tanh()? * BAND)? + 1.0)?;
    let (left, right) = (reflections(left)?, reflections(right)?);
    left.broadcast_mul(&sigma)?.matmul(&right.t()?)
}

/// The product of the reflections 1 − 2 y yᵀ/(yᵀy) of the columns, from the left to the right, by
/// its compact form with columns of length 1:
///
/// ```text
/// 1 − 2 Y (1 + N)⁻¹ Yᵀ,   N = twice the part of YᵀY above the diagonal,
/// (1 + N)⁻¹ = (1 − N)(1 + N²)(1 + N⁴)…, as N^m = 0
/// ```
///
/// # References
/// Likhosherstov, Davis, Choromanski and Weller 2021, *CWY parametrization*, theorem 2.
fn reflections(columns: &Tensor) -> Result<Tensor> {
    let (units, count) = columns.dims2()?;
    let (dtype, device) = (columns.dtype(), columns.device());
    let y = columns.broadcast_div(&columns.sqr()?.sum_keepdim(0)?.sqrt()?)?;
    let above = above_diagonal(count, dtype, device)?;
    let mut power = ((y.t()?.matmul(&y)? * above)? * -2.0)?;
    let one = Tensor::eye(count, dtype, device)?;
    let mut inverse = (&one + &power)?;
    let mut reached = 2;
    while reached < count {
        power = power.matmul(&power)?;
        inverse = inverse.matmul(&(&one + &power)?)?;
        reached *= 2;
    }
    let product = y.matmul(&inverse)?.matmul(&y.t()?)?;
    Tensor::eye(units, dtype, device)? - (product * 2.0)?
}

/// Ones above the diagonal.
fn above_diagonal(count: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let entry = |index: usize| f64::from(u8::from(index % count > index / count));
    let entries: Vec<f64> = (0..count * count).map(entry).collect();
    Tensor::from_vec(entries, (count, count), device)?.to_dtype(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compact_form_is_the_product_of_reflections() {
        for (units, count) in [(1, 1), (5, 1), (5, 4), (7, 7)] {
            let entries = (0..units * count).map(|i| ((i * i) as f64 * 0.7 + 0.3).sin());
            let columns: Vec<f64> = entries.collect();
            let tensor = Tensor::from_vec(columns.clone(), (units, count), &Device::Cpu).unwrap();
            let found = reflections(&tensor).unwrap().to_vec2::<f64>().unwrap();
            let columns = nalgebra::DMatrix::from_row_slice(units, count, &columns);
            let mut product = nalgebra::DMatrix::<f64>::identity(units, units);
            for y in columns.column_iter() {
                let reflection = nalgebra::DMatrix::identity(units, units)
                    - y * y.transpose() * (2.0 / y.norm_squared());
                product *= reflection;
            }
            for (i, row) in found.iter().enumerate() {
                for (j, entry) in row.iter().enumerate() {
                    assert!((entry - product[(i, j)]).abs() < 1e-13, "{units} {count}");
                }
            }
        }
    }

    /// However far the weights go, the singular values stay in the band.
    #[test]
    fn singular_values_stay_in_the_band() {
        let wave = |shape: &[usize], seed: f64, size: f64| {
            let count: usize = shape.iter().product();
            let entries = (0..count).map(|i| size * ((i * i) as f64 * 0.37 + seed).sin());
            Tensor::from_vec(entries.collect::<Vec<_>>(), shape, &Device::Cpu).unwrap()
        };
        for size in [0.01, 1.0, 100.0] {
            let (left, right) = (wave(&[40, 32], 0.1, size), wave(&[40, 32], 1.0, size));
            let matrix = from_factors(&left, &wave(&[40], 2.0, size), &right).unwrap();
            let rows = matrix.flatten_all().unwrap().to_vec1::<f64>().unwrap();
            let matrix = nalgebra::DMatrix::from_row_slice(40, 40, &rows);
            let sigma = matrix.singular_values();
            assert!(sigma.max() <= 1.0 + BAND + 1e-12 && sigma.min() >= 1.0 - BAND - 1e-12);
            let spread = sigma.max() - sigma.min();
            assert!(spread > 0.9 * BAND * size.min(1.0), "{size}: {spread}");
        }
    }
}
