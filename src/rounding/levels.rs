//! The integers that entries of few bits stand for.

/// The levels of b-bit entries: −2^{b−1}, …, 2^{b−1} − 1 for three bits and more, and −3, −1, 1, 3 for
/// two. Four levels with a zero among them leave one side a single level: for normal weights the mean
/// squared error is a quarter larger.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Levels {
    /// The lowest level.
    pub lowest: f64,
    /// The highest level.
    pub highest: f64,
    /// From one level to the next.
    pub step: f64,
}

impl Levels {
    /// Those of entries of 2 to 8 bits.
    pub fn of(bits: u32) -> Self {
        let half = f64::from(1u32 << (bits - 1));
        match bits {
            2 => Self {
                lowest: -3.0,
                highest: 3.0,
                step: 2.0,
            },
            _ => Self {
                lowest: -half,
                highest: half - 1.0,
                step: 1.0,
            },
        }
    }

    /// The level nearest to a value; of two the one away from the middle.
    pub(crate) fn nearest(self, value: f64) -> f64 {
        // Two bits have no zero: their levels lie around 1.
        let middle = self.step - 1.0;
        let level = middle + self.step * ((value - middle) / self.step).round();
        level.clamp(self.lowest, self.highest)
    }

    /// Whether a value is within half a step of the levels.
    pub fn covers(self, value: f64) -> bool {
        let half = 0.5 * self.step;
        (self.lowest - half..self.highest + half).contains(&value)
    }

    /// The bits of a level: 0 for the lowest.
    pub(crate) fn code(self, level: i16) -> u8 {
        ((f64::from(level) - self.lowest) / self.step) as u8
    }

    /// All levels, those of the largest size first.
    pub(super) fn by_size(self) -> impl Iterator<Item = f64> {
        let count = -self.lowest as u32;
        let sizes = (1..=count).rev().step_by(self.step as usize).map(f64::from);
        let both = sizes.flat_map(|size| [size, -size]);
        both.filter(move |&level| level <= self.highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_bits_have_a_zero_and_two_bits_are_even() {
        let [two, three] = [2, 3].map(Levels::of);
        let near = |levels: Levels, values: &[f64]| -> Vec<f64> {
            values.iter().map(|&value| levels.nearest(value)).collect()
        };
        let values = [-9.0, -2.1, -1.9, -0.1, 0.1, 1.9, 2.1, 9.0];
        let found = near(two, &values);
        assert_eq!(found, [-3.0, -3.0, -1.0, -1.0, 1.0, 1.0, 3.0, 3.0]);
        let found = near(three, &values);
        assert_eq!(found, [-4.0, -2.0, -2.0, 0.0, 0.0, 2.0, 2.0, 3.0]);
        assert!(two.covers(3.9) && !two.covers(4.0) && two.covers(-4.0));
        assert!(three.covers(3.4) && !three.covers(3.5));
        let by_size: Vec<f64> = two.by_size().collect();
        assert_eq!(by_size, [3.0, -3.0, 1.0, -1.0]);
        let by_size: Vec<f64> = three.by_size().collect();
        assert_eq!(by_size, [-4.0, 3.0, -3.0, 2.0, -2.0, 1.0, -1.0]);
        assert_eq!([-3, -1, 1, 3].map(|level| two.code(level)), [0, 1, 2, 3]);
    }

    #[test]
    fn of_normal_numbers_two_bits_leave_what_a_uniform_quantiser_leaves() {
        // Max, Quantizing for Minimum Distortion, 1960, Table II: four levels one step of 0.9957 apart
        // leave 0.1188 of the variance.
        let levels = Levels::of(2);
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let scale = 0.5 * 0.9957;
        let error = |x: f64| (x - scale * levels.nearest(x / scale)).powi(2) * density(x);
        let sum: f64 = (-8000..8000).map(|at| error(1e-3 * f64::from(at))).sum();
        assert!((1e-3 * sum - 0.1188).abs() < 1e-4, "{}", 1e-3 * sum);
    }
}
