//! A matrix of small integers and scales.

use nalgebra::DMatrix;

use crate::rounding::{Levels, RoundingError};

/// Multiples of the scale at which the largest entry takes the lowest level that are tried. Below 1
/// the largest entries are cut off, so that the others are rounded finer.
const SHARES: [f64; 12] = [
    1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72, 0.68, 0.64, 0.6, 1.05,
];

/// More of them for two bits.
const LOW_SHARES: [f64; 4] = [0.56, 0.52, 0.48, 0.44];

/// A matrix W (inputs × outputs) of b-bit integers, with a scale for each output and group of
/// consecutive inputs: w = s q, q being one of the [`Levels`].
///
/// Scales are bfloat16 numbers of either sign: that of the group's largest entry, so that it can
/// take the lowest level, which may have no opposite. Offsets beside the scales were tried and left
/// out: on trained maps they bring no more than smaller groups of the same bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundedMatrix {
    bits: u32,
    group: usize,
    levels: DMatrix<i8>,
    scales: DMatrix<f32>,
}

impl RoundedMatrix {
    /// The nearest levels, with the scales that leave the least sum of squared errors. A group of
    /// entries that are multiples of a scale already stays as it is.
    ///
    /// # Errors
    /// [`RoundingError::Matrix`].
    pub fn nearest(weight: &DMatrix<f64>, bits: u32, group: usize) -> Result<Self, RoundingError> {
        let scales = Self::best_scales(weight, bits, group)?;
        Self::with_scales(weight, bits, group, &scales.map(f64::from))
    }

    /// The nearest levels for these scales (groups of inputs × outputs), which are rounded to
    /// bfloat16.
    ///
    /// # Errors
    /// As [`RoundedMatrix::nearest`].
    ///
    /// # Panics
    /// If there is not one scale for each group and output.
    pub fn with_scales(
        weight: &DMatrix<f64>,
        bits: u32,
        group: usize,
        scales: &DMatrix<f64>,
    ) -> Result<Self, RoundingError> {
        check(weight, bits, group)?;
        let groups = weight.nrows().div_ceil(group);
        assert_eq!(scales.shape(), (groups, weight.ncols()), "one scale each");
        let scales = scales.map(|scale| half::bf16::from_f64(scale).to_f32());
        let levels = DMatrix::from_fn(weight.nrows(), weight.ncols(), |input, output| {
            level(
                weight[(input, output)],
                scales[(input / group, output)],
                bits,
            )
        });
        Ok(Self {
            bits,
            group,
            levels,
            scales,
        })
    }

    /// Levels and scales that were found elsewhere, as [`RoundedMatrix::best_scales`] lays them out.
    pub(super) fn from_parts(
        bits: u32,
        group: usize,
        levels: DMatrix<i8>,
        scales: DMatrix<f32>,
    ) -> Self {
        Self {
            bits,
            group,
            levels,
            scales,
        }
    }

    /// A scale for each group of inputs (rows) and output (columns): those of
    /// [`RoundedMatrix::nearest`].
    ///
    /// # Errors
    /// As [`RoundedMatrix::nearest`].
    pub fn best_scales(
        weight: &DMatrix<f64>,
        bits: u32,
        group: usize,
    ) -> Result<DMatrix<f32>, RoundingError> {
        check(weight, bits, group)?;
        let (inputs, outputs) = weight.shape();
        // Two bits have no zero: inputs that only pad, and meet zeros, are not to shrink a scale.
        let is_used = |input: usize| bits != 2 || weight.row(input).iter().any(|&w| w != 0.0);
        let is_used: Vec<bool> = (0..inputs).map(is_used).collect();
        Ok(DMatrix::from_fn(
            inputs.div_ceil(group),
            outputs,
            |of, output| {
                let own = of * group..inputs.min((of + 1) * group);
                let own = own.filter(|&input| is_used[input]);
                let entries: Vec<f64> = own.map(|input| weight[(input, output)]).collect();
                best_scale(&entries, bits)
            },
        ))
    }

    /// Bits of an entry.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Inputs that share a scale; the last group may have fewer.
    pub fn group(&self) -> usize {
        self.group
    }

    /// The integers, inputs × outputs.
    pub fn levels(&self) -> &DMatrix<i8> {
        &self.levels
    }

    /// The scales, groups × outputs: bfloat16 numbers.
    pub fn scales(&self) -> &DMatrix<f32> {
        &self.scales
    }

    /// The matrix that the integers stand for, inputs × outputs.
    pub fn weight(&self) -> DMatrix<f64> {
        let (inputs, outputs) = self.levels.shape();
        DMatrix::from_fn(inputs, outputs, |input, output| {
            let scale = self.scales[(input / self.group, output)];
            f64::from(scale) * f64::from(self.levels[(input, output)])
        })
    }
}

fn check(weight: &DMatrix<f64>, bits: u32, group: usize) -> Result<(), RoundingError> {
    if ![2, 3, 4, 8].contains(&bits) {
        let text = format!("entries of {bits} bits, expected 2, 3, 4 or 8");
        return Err(RoundingError::Matrix(text));
    }
    if group == 0 || !group.is_multiple_of(16) {
        let text = format!("groups of {group} inputs, expected a multiple of 16");
        return Err(RoundingError::Matrix(text));
    }
    let inputs = weight.nrows();
    for (at, &value) in weight.iter().enumerate() {
        if !(value as f32).is_finite() {
            return Err(RoundingError::Matrix(format!(
                "entry ({}, {}) is {value}, expected a finite number",
                at % inputs,
                at / inputs
            )));
        }
    }
    Ok(())
}

/// The level nearest to a weight, of so many bits; 0 where the scale is 0.
pub(super) fn level(weight: f64, scale: f32, bits: u32) -> i8 {
    if scale == 0.0 {
        return 0;
    }
    Levels::of(bits).nearest(weight / f64::from(scale)) as i8
}

/// The scale of one group.
fn best_scale(entries: &[f64], bits: u32) -> f32 {
    let largest = entries.iter().copied().fold(
        0.0,
        |most: f64, w| {
            if w.abs() > most.abs() { w } else { most }
        },
    );
    if let Some(scale) = exact_scale(entries, largest, bits) {
        return scale;
    }
    let error = |scale: f32| {
        let each = entries.iter().map(|&w| {
            let rounded = f64::from(scale) * f64::from(level(w, scale, bits));
            (w - rounded).powi(2)
        });
        each.sum::<f64>()
    };
    let lowest = Levels::of(bits).lowest;
    let shares = SHARES.iter().chain(LOW_SHARES.iter().filter(|_| bits == 2));
    let scales = shares.map(|share| half::bf16::from_f64(share * largest / lowest).to_f32());
    let mut best = (f64::INFINITY, 0.0);
    for scale in scales {
        let error = error(scale);
        if error < best.0 {
            best = (error, scale);
        }
    }
    best.1
}

/// The scale that the entries are multiples of, if there is one: entries that were rounded before,
/// their largest at whatever level.
fn exact_scale(entries: &[f64], largest: f64, bits: u32) -> Option<f32> {
    let scales = Levels::of(bits).by_size().filter_map(|level| {
        let scale = half::bf16::from_f64(largest / level).to_f32();
        (f64::from(scale) * level == largest).then_some(scale)
    });
    let is_multiple = |scale: f32, w: f64| f64::from(scale) * f64::from(level(w, scale, bits)) == w;
    let mut exact = scales.filter(|&scale| entries.iter().all(|&w| is_multiple(scale, w)));
    exact.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waves(inputs: usize, outputs: usize) -> DMatrix<f64> {
        DMatrix::from_fn(inputs, outputs, |i, o| {
            (0.7 * i as f64 + 1.3 * o as f64).sin()
        })
    }

    #[test]
    fn levels_are_within_half_a_scale_or_cut_off() {
        let weight = waves(48, 5);
        for bits in [2, 3, 4, 8] {
            let levels = Levels::of(bits);
            let rounded = RoundedMatrix::nearest(&weight, bits, 32).unwrap();
            assert_eq!(rounded.scales().shape(), (2, 5));
            for ((w, back), (at, level)) in weight
                .iter()
                .zip(&rounded.weight())
                .zip(rounded.levels().iter().enumerate())
            {
                let scale = rounded.scales()[(at % 48 / 32, at / 48)];
                let end = [levels.lowest, levels.highest].contains(&f64::from(*level));
                let half = 0.5 * levels.step * f64::from(scale.abs());
                assert!((w - back).abs() <= half + 1e-9 || end);
                assert_eq!(half::bf16::from_f32(scale).to_f32(), scale);
            }
        }
    }

    #[test]
    fn what_lies_on_the_levels_stays() {
        let weight = DMatrix::from_fn(16, 2, |i, o| 0.25 * ((i + o) % 16) as f64 - 2.0);
        let rounded = RoundedMatrix::nearest(&weight, 4, 16).unwrap();
        assert_eq!(rounded.weight(), weight);
    }

    #[test]
    fn what_was_rounded_with_other_scales_stays() {
        // The largest entry is at no end of the levels, and of either sign.
        for (bits, most) in [(2, 3), (3, 3), (4, 5), (8, 100)] {
            for sign in [-1, 1] {
                let scale = half::bf16::from_f32(0.0371).to_f64();
                let weight = DMatrix::from_fn(48, 3, |i, o| {
                    let level = (7 * i as i32 + o as i32) % (2 * most) - most;
                    // Levels of two bits are odd.
                    let level = if bits == 2 { level | 1 } else { level };
                    scale * f64::from(if level == -most { sign * most } else { level })
                });
                let rounded = RoundedMatrix::nearest(&weight, bits, 16).unwrap();
                assert_eq!(rounded.weight(), weight, "{bits} {sign}");
            }
        }
    }

    #[test]
    fn inputs_that_pad_change_no_scale() {
        let weight = waves(24, 3);
        let padded = weight.clone().resize_vertically(32, 0.0);
        for bits in [2, 3] {
            let [alone, beside] =
                [&weight, &padded].map(|weight| RoundedMatrix::nearest(weight, bits, 32).unwrap());
            assert_eq!(alone.scales(), beside.scales());
            assert_eq!(alone.weight(), beside.weight().rows(0, 24));
        }
    }

    #[test]
    fn more_bits_round_finer() {
        let weight = waves(64, 8);
        let error = |bits| {
            let rounded = RoundedMatrix::nearest(&weight, bits, 64).unwrap();
            (rounded.weight() - &weight).norm() / weight.norm()
        };
        let [three, four, eight] = [3, 4, 8].map(error);
        assert!(three < 0.2 && four < 0.6 * three && eight < 0.1 * four);
    }

    #[test]
    fn what_cannot_be_rounded_is_refused() {
        let weight = waves(16, 1);
        let bits = RoundedMatrix::nearest(&weight, 5, 16).unwrap_err();
        assert!(bits.to_string().contains("5 bits, expected 2, 3, 4 or 8"));
        let group = RoundedMatrix::nearest(&weight, 4, 12).unwrap_err();
        assert!(group.to_string().contains("groups of 12 inputs"));
        let infinite = DMatrix::from_element(16, 1, f64::INFINITY);
        let error = RoundedMatrix::nearest(&infinite, 4, 16).unwrap_err();
        assert!(error.to_string().contains("entry (0, 0) is inf"));
    }
}
