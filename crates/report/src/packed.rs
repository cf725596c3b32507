//! Many numbers in few characters, for curves that a page draws.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

/// How numbers are laid between the least and the largest level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Levels {
    /// By their values.
    Linear,
    /// By their logarithms to base 10; zero and less count as absent.
    Logarithmic,
}

/// Numbers of one kind, so many for each of several curves, each stored as one of 255 or 65535
/// levels, lowest byte first, in base64. Level 0 stands for a number that is absent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Packed {
    /// Numbers of each curve.
    width: usize,
    /// 1 or 2.
    bytes: usize,
    /// Whether levels stand for logarithms to base 10.
    log: bool,
    /// The number, or its logarithm, at level 1.
    low: f64,
    /// The same at the highest level.
    high: f64,
    data: String,
}

impl Packed {
    /// Packs curves, short ones filled up to the longest with absent numbers.
    ///
    /// The error of a number is at most half a level: (high − low)/508 with one byte, and 1/257 of
    /// that with two.
    pub fn new(curves: &[Vec<f64>], levels: Levels, bytes: usize) -> Self {
        let log = levels == Levels::Logarithmic;
        let scaled = |value: f64| match log {
            true => value.log10(),
            false => value,
        };
        let finite = || {
            let all = curves.iter().flatten().map(|&value| scaled(value));
            all.filter(|value| value.is_finite())
        };
        let (low, high) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        let (low, high) = if low <= high { (low, high) } else { (0.0, 0.0) };
        let width = curves.iter().map(Vec::len).max().unwrap_or(0);
        let most = if bytes == 1 { 255.0 } else { 65535.0 };
        let mut data = Vec::with_capacity(width * bytes * curves.len());
        for curve in curves {
            for index in 0..width {
                let value = curve.get(index).map_or(f64::NAN, |&value| scaled(value));
                let level = match value.is_finite() {
                    true if high > low => 1.0 + (value - low) / (high - low) * (most - 1.0),
                    true => 1.0,
                    false => 0.0,
                };
                let level = level.round() as u16;
                data.extend(&level.to_le_bytes()[..bytes]);
            }
        }
        Self {
            width,
            bytes,
            log,
            low,
            high,
            data: STANDARD.encode(data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(packed: &Packed) -> Vec<f64> {
        let bytes = STANDARD.decode(&packed.data).expect("it was encoded above");
        let level = |pair: &[u8]| {
            pair.iter()
                .rev()
                .fold(0.0, |v, &b| 256.0 * v + f64::from(b))
        };
        let most = 256f64.powi(packed.bytes as i32) - 2.0;
        let values = bytes.chunks(packed.bytes).map(|pair| match level(pair) {
            0.0 => f64::NAN,
            level => packed.low + (level - 1.0) / most * (packed.high - packed.low),
        });
        values.collect()
    }

    #[test]
    fn numbers_come_back_within_half_a_level_and_missing_ones_as_missing() {
        let curves = [vec![-1.0, 0.3, 2.0], vec![0.5, f64::NAN]];
        for (bytes, steps) in [(1, 254.0), (2, 65534.0)] {
            let packed = Packed::new(&curves, Levels::Linear, bytes);
            assert_eq!(packed.width, 3);
            let back = levels(&packed);
            for (index, expected) in [-1.0, 0.3, 2.0, 0.5].into_iter().enumerate() {
                let error = (back[index] - expected).abs();
                assert!(error <= 0.5 * 3.0 / steps + 1e-12, "{index} {error}");
            }
            assert!(back[4].is_nan() && back[5].is_nan());
        }
    }

    #[test]
    fn logarithms_span_decades_and_zero_is_missing() {
        let packed = Packed::new(&[vec![1e-12, 1.0, 0.0]], Levels::Logarithmic, 2);
        let back = levels(&packed);
        assert!((back[0] + 12.0).abs() < 1e-9 && back[1].abs() < 1e-9 && back[2].is_nan());
    }

    #[test]
    fn nothing_is_packed_into_nothing() {
        assert_eq!(Packed::new(&[], Levels::Linear, 1).data, "");
        assert!(levels(&Packed::new(&[vec![f64::NAN]], Levels::Linear, 1))[0].is_nan());
        let same = levels(&Packed::new(&[vec![3.0, 3.0]], Levels::Linear, 1));
        assert_eq!(same, [3.0, 3.0]);
    }
}
