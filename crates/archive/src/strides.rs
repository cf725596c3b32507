//! The order of a tensor's elements.

/// Strides of a contiguous tensor. An empty axis counts as one, as in PyTorch.
pub(super) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    strides
}

/// Copies strided elements into row-major order. The caller has checked that
/// the last element lies within `bytes`.
pub(super) fn gather(bytes: &[u8], size: usize, shape: &[usize], strides: &[usize]) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let mut gathered = Vec::with_capacity(count * size);
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    for _ in 0..count {
        gathered.extend_from_slice(&bytes[at * size..][..size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            // The stride of an axis of extent one is arbitrary: it may wrap,
            // and the reset below undoes it.
            at = at.wrapping_add(strides[axis]);
            if index[axis] < shape[axis] {
                break;
            }
            at = at.wrapping_sub(strides[axis].wrapping_mul(shape[axis]));
            index[axis] = 0;
        }
    }
    gathered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_of_empty_axes_count_as_one() {
        assert_eq!(row_major(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(row_major(&[2, 0, 4]), [4, 4, 1]);
        assert_eq!(row_major(&[]), [0usize; 0]);
    }
}
