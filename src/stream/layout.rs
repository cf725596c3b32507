//! Numbers in the order that the runtime reads them.

use hankelite_edge::{LANES, padded};
use nalgebra::DMatrix;

/// One number for each channel, padded with zeros.
pub(super) fn lanes(numbers: &[f64]) -> Vec<f64> {
    let mut out = numbers.to_vec();
    out.resize(padded(numbers.len()), 0.0);
    out
}

/// The rows of W (inputs × outputs) sixteen side by side: for each group, for each input.
pub(super) fn tiles(weight: &DMatrix<f64>) -> Vec<f64> {
    let (inputs, outputs) = weight.shape();
    let mut out = Vec::with_capacity(inputs * padded(outputs));
    for tile in (0..outputs).step_by(LANES) {
        for input in 0..inputs {
            let row = tile..tile + LANES;
            out.extend(row.map(|o| match o < outputs {
                true => weight[(input, o)],
                false => 0.0,
            }));
        }
    }
    out
}

/// The channels by falling order, or `None` where all have the same.
pub(super) fn sorted(orders: &[usize]) -> Option<Vec<usize>> {
    if orders.iter().all(|order| *order == orders[0]) {
        return None;
    }
    let mut places: Vec<usize> = (0..orders.len()).collect();
    places.sort_by_key(|&channel| std::cmp::Reverse(orders[channel]));
    Some(places)
}

/// The nearest number whose lower sixteen bits are zero, ties to even, as its upper half.
pub(super) fn bf16(value: f64) -> u16 {
    half::bf16::from_f64(value).to_bits()
}

/// Entries −127 to 127 of sixteen rows, and the rows' scales: max |w| / 127.
pub(super) fn int8(rows: &[f64]) -> (Vec<i8>, [f64; LANES]) {
    let mut scales = [0.0f64; LANES];
    for row in rows.chunks_exact(LANES) {
        for (scale, w) in scales.iter_mut().zip(row) {
            *scale = scale.max(w.abs());
        }
    }
    // In single precision, so that the entries are rounded by the scale that is stored.
    let scales = scales.map(|largest| f64::from((largest / 127.0) as f32));
    let entries = rows.chunks_exact(LANES).flat_map(|row| {
        let each = row.iter().zip(scales);
        each.map(|(w, scale)| match scale > 0.0 {
            true => (w / scale).round().clamp(-127.0, 127.0) as i8,
            false => 0,
        })
    });
    (entries.collect(), scales)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int8_is_within_half_a_scale() {
        let rows: Vec<f64> = (0..64).map(|i| (0.7 * i as f64).sin()).collect();
        let (entries, scales) = int8(&rows);
        for (i, (w, entry)) in rows.iter().zip(entries).enumerate() {
            let back = f64::from(entry) * scales[i % LANES];
            assert!((w - back).abs() <= 0.5 * scales[i % LANES] + 1e-9);
        }
    }

    #[test]
    fn channels_are_sorted_only_where_orders_differ() {
        assert_eq!(sorted(&[3, 3]), None);
        assert_eq!(sorted(&[1, 3, 2, 3]), Some(vec![1, 3, 2, 0]));
    }
}
