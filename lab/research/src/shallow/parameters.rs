//! The parameters of units that do not see each other.

use crate::shallow::activation::{LANES, Lane};

/// Parameters of m units in three groups: the output weight c (one number), the neuron U (d
/// numbers), and W (d × d numbers, row by row) or w (one number).
///
/// The values lie number by number, each of all units side by side: number p of unit i at p·m + i.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    units: usize,
    /// Numbers of each group: 1, d, and d² or 1.
    groups: [usize; 3],
    values: Vec<f64>,
}

impl Parameters {
    /// Zeros.
    pub(super) fn zeros(units: usize, groups: [usize; 3]) -> Self {
        Self {
            units,
            groups,
            values: vec![0.0; units * groups.iter().sum::<usize>()],
        }
    }

    /// Zeros of the same shape.
    #[must_use]
    pub fn zeros_like(&self) -> Self {
        Self::zeros(self.units, self.groups)
    }

    /// m, the units.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Numbers of each group of one unit: c, U, W.
    pub fn groups(&self) -> [usize; 3] {
        self.groups
    }

    /// All numbers, in the order of the type.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// All numbers, in the order of the type.
    pub fn values_mut(&mut self) -> &mut [f64] {
        &mut self.values
    }

    /// One group of all units, number by number.
    pub fn group(&self, group: usize) -> &[f64] {
        let first: usize = self.groups[..group].iter().sum();
        &self.values[first * self.units..(first + self.groups[group]) * self.units]
    }

    /// One group of all units, number by number.
    pub fn group_mut(&mut self, group: usize) -> &mut [f64] {
        let first: usize = self.groups[..group].iter().sum();
        &mut self.values[first * self.units..(first + self.groups[group]) * self.units]
    }

    /// self ← self + factor · other, of the same shape.
    pub fn add_scaled(&mut self, factor: f64, other: &Self) {
        let pairs = self.values.iter_mut().zip(&other.values);
        pairs.for_each(|(value, step)| *value += factor * step);
    }

    /// ⟨self, other⟩, of the same shape.
    pub fn dot(&self, other: &Self) -> f64 {
        dot(&self.values, &other.values)
    }

    /// The difference to other parameters of the same shape.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut result = self.clone();
        result.add_scaled(-1.0, other);
        result
    }

    /// ‖·‖₂ of all numbers.
    pub fn norm(&self) -> f64 {
        self.dot(self).sqrt()
    }

    /// ‖·‖₂ of a group of every unit: m numbers.
    pub fn group_norms(&self, group: usize) -> Vec<f64> {
        let mut squares = vec![0.0; self.units];
        for row in self.group(group).chunks_exact(self.units) {
            let pairs = squares.iter_mut().zip(row);
            pairs.for_each(|(square, value)| *square += value * value);
        }
        squares.into_iter().map(f64::sqrt).collect()
    }
}

/// Σ x y.
pub(super) fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Eight units of row `row` from unit `at` on; zeros behind the last unit.
#[inline(always)]
pub(super) fn lanes(values: &[f64], units: usize, row: usize, at: usize) -> Lane {
    let row = &values[row * units..(row + 1) * units];
    match row[at..].first_chunk::<LANES>() {
        Some(full) => *full,
        None => {
            let mut padded = [0.0; LANES];
            padded[..units - at].copy_from_slice(&row[at..]);
            padded
        }
    }
}

/// Puts eight units into their row; those behind the last unit are dropped.
#[inline(always)]
pub(super) fn put(values: &mut [f64], units: usize, row: usize, at: usize, lane: &Lane) {
    let row = &mut values[row * units..(row + 1) * units];
    match row[at..].first_chunk_mut::<LANES>() {
        Some(full) => *full = *lane,
        None => row[at..].copy_from_slice(&lane[..units - at]),
    }
}
