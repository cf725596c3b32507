//! Rounding a map so that what it gives changes least, not its entries.

use hankelite_control::{UpperRoot, cross_gram, gram_matrix};
use nalgebra::{Cholesky, DMatrix, DVector};
use rayon::prelude::*;

use crate::model::Linear;
use crate::rounding::matrix::level;
use crate::rounding::{Entries, MapStorage, RoundedMatrix, RoundingError, same};

/// The share of the mean square of an input that every input has besides: directions that the
/// sequences do not show cost something, too.
const RIDGE: f64 = 0.01;

/// Rounds over all entries after the first one.
const ROUNDS: usize = 4;

/// Moments of the inputs x of a map, and of the inputs u that it had in the full network.
#[derive(Debug, Clone)]
pub struct MapMoments {
    count: f64,
    /// Σ x and Σ u.
    sums: [DVector<f64>; 2],
    /// Σ x xᵀ.
    own: DMatrix<f64>,
    /// Σ x uᵀ.
    cross: DMatrix<f64>,
}

/// A map and how it is stored.
#[derive(Debug, Clone)]
pub struct CompensatedMap {
    /// The entries.
    pub storage: MapStorage,
    /// The map that they stand for, with its bias.
    pub linear: Linear,
    /// √(E‖Wᵀu + b − Ŵᵀx − b̂‖²/E‖Wᵀu − E Wᵀu‖²).
    pub relative_error: f64,
}

impl MapMoments {
    /// Nothing yet, for a map of so many inputs.
    pub(crate) fn new(inputs: usize) -> Self {
        let zeros = || DVector::zeros(inputs);
        Self {
            count: 0.0,
            sums: [zeros(), zeros()],
            own: DMatrix::zeros(inputs, inputs),
            cross: DMatrix::zeros(inputs, inputs),
        }
    }

    /// Sums that were gathered elsewhere: Σ x and Σ u, Σ x xᵀ and Σ x uᵀ over so many steps.
    ///
    /// # Errors
    /// [`RoundingError::Matrix`] where they are not of the same inputs.
    pub fn of_sums(
        count: f64,
        sums: [DVector<f64>; 2],
        own: DMatrix<f64>,
        cross: DMatrix<f64>,
    ) -> Result<Self, RoundingError> {
        let expected = own.nrows();
        let sizes = [own.ncols(), cross.nrows(), cross.ncols()];
        let sizes = sizes.into_iter().chain(sums.iter().map(DVector::len));
        for found in sizes {
            same("second moments", "inputs", found, expected)?;
        }
        Ok(Self {
            count,
            sums,
            own,
            cross,
        })
    }

    /// Adds the steps of a sequence: x and u, steps × inputs. Cost O(steps · inputs²).
    ///
    /// # Errors
    /// [`RoundingError::Matrix`] for another number of inputs.
    pub(crate) fn add(&mut self, x: &DMatrix<f64>, u: &DMatrix<f64>) -> Result<(), RoundingError> {
        let expected = self.own.nrows();
        for found in [x.ncols(), u.ncols()] {
            same("second moments", "inputs", found, expected)?;
        }
        let steps = x.nrows().min(u.nrows());
        self.count += steps as f64;
        for (sum, values) in self.sums.iter_mut().zip([x, u]) {
            *sum += values.rows(0, steps).row_sum_tr();
        }
        let whole = |of: &DMatrix<f64>| of.rows(0, steps).into_owned();
        let x = whole(x);
        self.own += gram_matrix(&x);
        self.cross += cross_gram(&x, &whole(u));
        Ok(())
    }

    /// Adds other sums.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        for (sum, more) in self.sums.iter_mut().zip(&other.sums) {
            *sum += more;
        }
        self.own += &other.own;
        self.cross += &other.cross;
    }

    /// The map Ŵ, b̂ with entries of a kind that comes nearest to Wᵀu + b in the mean square.
    ///
    /// The best map of unrounded entries is Ŵ = (E x xᵀ)⁻¹ E x uᵀ W, moments about the mean where
    /// there is a bias to hold it. Its entries are rounded input by input, and what one takes away is
    /// spread over those that follow (the optimal brain surgeon, row by row); then levels and scales
    /// are improved one at a time while the error falls. Cost O(inputs² · outputs).
    ///
    /// # Errors
    /// As [`RoundedMatrix::nearest`]; [`RoundingError::Matrix`] for another number of inputs.
    ///
    /// # References
    /// Hassibi, Stork and Wolff, Optimal Brain Surgeon, 1993. Frantar and Alistarh, Optimal Brain
    /// Compression, 2022. Frantar et al., GPTQ, 2023, Algorithm 1.
    pub fn compensated(
        &self,
        linear: &Linear,
        entries: Entries,
        group: usize,
    ) -> Result<CompensatedMap, RoundingError> {
        let (found, expected) = (self.own.nrows(), linear.weight.nrows());
        same("second moments", "inputs", found, expected)?;
        let problem = self.problem(linear);
        let storage = match entries.bits() {
            None if entries == Entries::Bf16 => MapStorage::Bf16,
            None => MapStorage::Full,
            Some(bits) => MapStorage::Integers(problem.rounded(bits, group)?),
        };
        let weight = match &storage {
            MapStorage::Full => problem.best.clone(),
            MapStorage::Bf16 => problem.best.map(|w| half::bf16::from_f64(w).to_f64()),
            MapStorage::Integers(rounded) => rounded.weight(),
        };
        let bias = linear.bias.as_ref().map(|bias| {
            let [x, u] = self.sums.each_ref().map(|sum| sum / self.count.max(1.0));
            let offset = linear.weight.tr_mul(&u) - weight.tr_mul(&x);
            bias.iter().zip(&offset).map(|(b, o)| b + o).collect()
        });
        let relative_error = self.error(linear, &weight);
        Ok(CompensatedMap {
            storage,
            linear: Linear {
                weight: weight.into(),
                bias,
            },
            relative_error,
        })
    }

    fn problem(&self, linear: &Linear) -> Problem {
        let count = self.count.max(1.0);
        let (mut own, mut cross) = (&self.own / count, &self.cross / count);
        if linear.bias.is_some() {
            let [x, u] = self.sums.each_ref().map(|sum| sum / count);
            own -= &x * x.transpose();
            cross -= &x * u.transpose();
        }
        let inputs = own.nrows();
        let ridge = RIDGE * own.trace() / inputs.max(1) as f64;
        let ridge = if ridge > 0.0 { ridge } else { 1.0 };
        (0..inputs).for_each(|i| {
            own[(i, i)] += ridge;
            cross[(i, i)] += ridge;
        });
        let wanted = cross * linear.weight.as_ref();
        let best = Cholesky::new(own.clone()).map(|root| root.solve(&wanted));
        Problem {
            best: best.unwrap_or_else(|| linear.weight.as_ref().clone()),
            metric: own,
        }
    }

    /// The relative error of Ŵ in the place of W, with the best bias where there is one.
    fn error(&self, linear: &Linear, weight: &DMatrix<f64>) -> f64 {
        let Problem { metric, best } = self.problem(linear);
        let quadratic = |d: &DMatrix<f64>| (&metric * d).dot(d);
        let size = quadratic(&linear.weight);
        match size > 0.0 {
            true => (quadratic(&(weight - best)) / size).sqrt(),
            false => 0.0,
        }
    }
}

/// Least squares in the metric H: min (ŵ − w)ᵀ H (ŵ − w) for each output.
struct Problem {
    metric: DMatrix<f64>,
    best: DMatrix<f64>,
}

impl Problem {
    fn rounded(&self, bits: u32, group: usize) -> Result<RoundedMatrix, RoundingError> {
        let scales = RoundedMatrix::best_scales(&self.best, bits, group)?;
        let spread = spread(&self.metric);
        let columns = self.best.column_iter().zip(scales.column_iter());
        let columns: Vec<_> = columns.collect();
        let columns = columns.into_par_iter().map(|(wanted, scales)| {
            let mut column = RoundedColumn::new(bits, group, scales.into_owned());
            let wanted = wanted.into_owned();
            column.round(&wanted, spread.as_ref());
            column.improve(&wanted, &self.metric);
            column
        });
        Ok(RoundedColumn::gathered(&columns.collect::<Vec<_>>()))
    }
}

/// The upper factor U of H⁻¹ = Uᵀ U: row i is how an error of input i is spread over those that
/// follow. `None` where H is not positive definite.
fn spread(metric: &DMatrix<f64>) -> Option<DMatrix<f64>> {
    Some(UpperRoot::new(metric)?.inverse())
}

/// The entries of one output.
#[derive(Debug, Clone)]
pub(crate) struct RoundedColumn {
    bits: u32,
    group: usize,
    scales: DVector<f32>,
    levels: DVector<i8>,
}

impl RoundedColumn {
    /// Scales for each group of inputs; all levels 0.
    pub(crate) fn new(bits: u32, group: usize, scales: DVector<f32>) -> Self {
        Self {
            bits,
            group,
            scales,
            levels: DVector::zeros(0),
        }
    }

    /// The matrix of some columns, one at least.
    pub(crate) fn gathered(columns: &[Self]) -> RoundedMatrix {
        let first = columns.first();
        let (bits, group) = first.map_or((8, 16), |column| (column.bits, column.group));
        let inputs = first.map_or(0, |column| column.levels.nrows());
        let groups = first.map_or(0, |column| column.scales.nrows());
        let levels = DMatrix::from_fn(inputs, columns.len(), |i, o| columns[o].levels[i]);
        let scales = DMatrix::from_fn(groups, columns.len(), |g, o| columns[o].scales[g]);
        RoundedMatrix::from_parts(bits, group, levels, scales)
    }

    /// The numbers that the levels stand for.
    pub(crate) fn values(&self) -> DVector<f64> {
        DVector::from_fn(self.levels.nrows(), |input, _| self.value(input))
    }

    fn value(&self, input: usize) -> f64 {
        f64::from(self.scales[input / self.group]) * f64::from(self.levels[input])
    }

    /// Rounds input by input; the error of each is made good by those that follow.
    pub(crate) fn round(&mut self, wanted: &DVector<f64>, spread: Option<&DMatrix<f64>>) {
        let mut rest = wanted.clone();
        self.levels = DVector::zeros(rest.nrows());
        for input in 0..rest.nrows() {
            let scale = self.scales[input / self.group];
            self.levels[input] = level(rest[input], scale, self.bits);
            let Some(spread) = spread else { continue };
            let error = (rest[input] - self.value(input)) / spread[(input, input)];
            for later in input + 1..rest.nrows() {
                rest[later] -= error * spread[(input, later)];
            }
        }
    }

    /// Moves single levels and scales while (ŵ − w)ᵀ H (ŵ − w) falls.
    pub(crate) fn improve(&mut self, wanted: &DVector<f64>, metric: &DMatrix<f64>) {
        // H (ŵ − w)
        let mut slope = metric * (self.values() - wanted);
        for _ in 0..ROUNDS {
            let mut moved = self.move_scales(metric, &mut slope);
            for input in 0..wanted.nrows() {
                moved |= self.move_level(input, metric, &mut slope);
            }
            if !moved {
                break;
            }
        }
    }

    /// The best level of one input, all others as they are.
    fn move_level(
        &mut self,
        input: usize,
        metric: &DMatrix<f64>,
        slope: &mut DVector<f64>,
    ) -> bool {
        let scale = self.scales[input / self.group];
        let (before, curvature) = (self.value(input), metric[(input, input)]);
        let known = self.levels[input];
        let best = level(before - slope[input] / curvature, scale, self.bits);
        if best == known {
            return false;
        }
        self.levels[input] = best;
        slope.axpy(self.value(input) - before, &metric.column(input), 1.0);
        true
    }

    /// The best scale of every group, all levels as they are.
    fn move_scales(&mut self, metric: &DMatrix<f64>, slope: &mut DVector<f64>) -> bool {
        let mut moved = false;
        for group in 0..self.scales.nrows() {
            let first = group * self.group;
            let count = self.group.min(self.levels.nrows() - first);
            let levels = self.levels.rows(first, count).map(f64::from);
            let along = metric.columns(first, count) * &levels;
            let curvature = along.rows(first, count).dot(&levels);
            if curvature <= 0.0 {
                continue;
            }
            let tilt = slope.rows(first, count).dot(&levels);
            let scale = f64::from(self.scales[group]);
            let best = half::bf16::from_f64(scale - tilt / curvature).to_f32();
            let step = f64::from(best) - scale;
            if 2.0 * step * tilt + step * step * curvature < 0.0 && best != 0.0 {
                self.scales[group] = best;
                slope.axpy(step, &along, 1.0);
                moved = true;
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs that depend on each other, as those of a network do.
    fn inputs(steps: usize, width: usize, phase: f64) -> DMatrix<f64> {
        DMatrix::from_fn(steps, width, |t, i| {
            let (t, i) = (t as f64, i as f64);
            (0.05 * t + 0.2 * i).sin() + 0.3 * (0.9 * t * (1.0 + 0.1 * i) + phase).sin() + 0.2
        })
    }

    fn map(inputs: usize, outputs: usize, bias: bool) -> Linear {
        let weight = DMatrix::from_fn(inputs, outputs, |i, o| {
            (1.7 * i as f64 + 2.3 * (o * o) as f64).sin()
        });
        Linear {
            weight: weight.into(),
            bias: bias.then(|| (0..outputs).map(|o| 0.1 * o as f64).collect()),
        }
    }

    fn moments(x: &DMatrix<f64>, u: &DMatrix<f64>) -> MapMoments {
        let mut moments = MapMoments::new(x.ncols());
        moments.add(x, u).unwrap();
        moments
    }

    fn output(linear: &Linear, x: &DMatrix<f64>) -> DMatrix<f64> {
        let mut out = x * linear.weight.as_ref();
        for (mut column, b) in out.column_iter_mut().zip(linear.bias.iter().flatten()) {
            column.add_scalar_mut(*b);
        }
        out
    }

    #[test]
    fn sums_that_were_gathered_elsewhere_do_the_same() {
        let (x, u) = (inputs(400, 32, 0.0), inputs(400, 32, 0.2));
        let (linear, sum) = (map(32, 5, true), |m: &DMatrix<f64>| m.row_sum_tr());
        let own = moments(&x, &u).compensated(&linear, Entries::Int4, 32);
        let gathered = MapMoments::of_sums(400.0, [sum(&x), sum(&u)], x.tr_mul(&x), x.tr_mul(&u));
        let made = gathered.unwrap().compensated(&linear, Entries::Int4, 32);
        assert_eq!(own.unwrap().storage, made.unwrap().storage);
        let other = MapMoments::of_sums(
            400.0,
            [sum(&x), sum(&u)],
            x.tr_mul(&x),
            DMatrix::zeros(32, 31),
        );
        let text = other.unwrap_err().to_string();
        assert_eq!(text, "second moments of 31 inputs, expected 32");
    }

    #[test]
    fn outputs_change_less_than_by_the_nearest_entries() {
        let x = inputs(400, 32, 0.0);
        for bias in [false, true] {
            let linear = map(32, 12, bias);
            let full = output(&linear, &x);
            for (bits, entries) in [(3, Entries::Int3), (4, Entries::Int4)] {
                let made = moments(&x, &x).compensated(&linear, entries, 32).unwrap();
                let error = (output(&made.linear, &x) - &full).norm();
                let nearest = RoundedMatrix::nearest(&linear.weight, bits, 32).unwrap();
                let nearest = (&x * nearest.weight() - &x * linear.weight.as_ref()).norm();
                assert!(error < 0.5 * nearest, "{bits} bits: {error} {nearest}");
            }
        }
    }

    #[test]
    fn other_inputs_are_made_good() {
        let u = inputs(400, 16, 0.0);
        let x = u.map(|u| 0.8 * u + 0.1);
        let linear = map(16, 5, true);
        let made = moments(&x, &u)
            .compensated(&linear, Entries::Full, 16)
            .unwrap();
        let full = output(&linear, &u);
        let error = (output(&made.linear, &x) - &full).norm() / full.norm();
        let kept = (output(&linear, &x) - &full).norm() / full.norm();
        assert!(error < 0.1 * kept, "{error} {kept}");
        assert_eq!(made.storage, MapStorage::Full);
    }

    #[test]
    fn sums_of_parts_are_those_of_the_whole() {
        let (x, u) = (inputs(300, 16, 0.0), inputs(300, 16, 0.5));
        let part = |matrix: &DMatrix<f64>, first| matrix.rows(first, 150).into_owned();
        let mut sum = moments(&part(&x, 0), &part(&u, 0));
        sum.merge(&moments(&part(&x, 150), &part(&u, 150)));
        let linear = map(16, 3, true);
        let whole = moments(&x, &u)
            .compensated(&linear, Entries::Full, 16)
            .unwrap();
        let sum = sum.compensated(&linear, Entries::Full, 16).unwrap();
        assert!((whole.linear.weight.as_ref() - sum.linear.weight.as_ref()).norm() < 1e-10);
    }

    #[test]
    fn inputs_that_are_always_zero_and_other_widths() {
        let x = DMatrix::zeros(10, 16);
        let linear = map(16, 3, true);
        let made = moments(&x, &x)
            .compensated(&linear, Entries::Int4, 16)
            .unwrap();
        assert!(made.linear.weight.iter().all(|w| w.is_finite()));
        let error = moments(&x, &x).compensated(&map(17, 3, true), Entries::Int4, 16);
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "second moments of 16 inputs, expected 17");
        let error = MapMoments::new(15).add(&x, &x).unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "second moments of 16 inputs, expected 15");
    }
}
