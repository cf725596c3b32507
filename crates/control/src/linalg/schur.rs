//! Eigenvalues and vectors of small real matrices by Francis' double-shifted QR iteration: those that
//! truncations leave have a few dozen rows, where what a blocked solver prepares takes most of its time.
//!
//! # References
//! Golub and Van Loan, *Matrix Computations*, 4th edition (2013), sections 7.5 and 7.6; the shifts at
//! which a stalled iteration is broken up are those of LAPACK's `dlahqr`.

use nalgebra::{ComplexField, DMatrix};
use num_complex::Complex64;

use crate::linalg::Scalar;

/// Sweeps allowed for one eigenvalue.
const SWEEPS_MAX: usize = 60;

/// So many sweeps without an eigenvalue, and the next one has shifts of its own.
const STALLED: usize = 10;

/// Above this an unfinished eigenvector is scaled down.
const LARGE: f64 = 1e150;

/// A = Z T Zᵀ with orthogonal Z and quasi-triangular T: blocks of two rows on the diagonal have a pair of
/// complex eigenvalues.
pub(crate) struct Schur {
    t: DMatrix<f64>,
    z: DMatrix<f64>,
    /// Pairs are neighbours, the one with the positive imaginary part first.
    values: Vec<Complex64>,
}

impl Schur {
    /// Cost about 15 n³. `None` where the iteration does not end.
    pub(super) fn new(matrix: &DMatrix<f64>) -> Option<Self> {
        let size = matrix.nrows();
        let mut made = Self {
            t: matrix.clone(),
            z: DMatrix::identity(size, size),
            values: vec![Complex64::ZERO; size],
        };
        made.clear_below_subdiagonal();
        let mut end = size;
        let mut sweeps = 0;
        while end > 0 {
            let first = made.decoupled(end);
            if end - first <= 2 {
                match end - first {
                    1 => made.values[first] = made.t[(first, first)].into(),
                    _ => made.settle_pair(first),
                }
                (end, sweeps) = (first, 0);
                continue;
            }
            if sweeps == SWEEPS_MAX {
                return None;
            }
            sweeps += 1;
            let shifts = made.shifts(first, end, sweeps);
            made.sweep(first, end, shifts);
        }
        Some(made)
    }

    /// The eigenvalues.
    pub(super) fn values(&self) -> &[Complex64] {
        &self.values
    }

    /// The same, and the eigenvectors, of any length: one column of a real value, real and imaginary
    /// part of the first of a pair. Cost about 4 n³.
    pub(super) fn into_vectors(self) -> (Vec<Complex64>, DMatrix<f64>) {
        let size = self.values.len();
        let mut columns = DMatrix::zeros(size, size);
        let mut k = 0;
        while k < size {
            if self.values[k].im == 0.0 {
                let mut x = vec![0.0; k + 1];
                x[k] = 1.0;
                self.substitute(k, self.values[k].re, &mut x);
                self.turn_back(&x, columns.column_mut(k).as_mut_slice());
                k += 1;
                continue;
            }
            // (T − λ) x = 0 in the rows of the block, of which the larger entry off its diagonal decides.
            let value = self.values[k];
            let mut x = vec![Complex64::ZERO; k + 2];
            let [above, below] = [self.t[(k, k + 1)], self.t[(k + 1, k)]];
            if above.abs() >= below.abs() {
                (x[k], x[k + 1]) = (above.into(), value - self.t[(k, k)]);
            } else {
                (x[k], x[k + 1]) = (value - self.t[(k + 1, k + 1)], below.into());
            }
            self.substitute(k, value, &mut x);
            let parts: [fn(&Complex64) -> f64; 2] = [|x| x.re, |x| x.im];
            for (part, of) in parts.into_iter().enumerate() {
                let x: Vec<f64> = x.iter().map(of).collect();
                self.turn_back(&x, columns.column_mut(k + part).as_mut_slice());
            }
            k += 2;
        }
        (self.values, columns)
    }

    /// Zeros below the first subdiagonal, by Householder reflections.
    fn clear_below_subdiagonal(&mut self) {
        let size = self.t.nrows();
        let mut products = vec![0.0; size];
        for k in 1..size.saturating_sub(1) {
            let below = self.t.view((k, k - 1), (size - k, 1));
            let length = below.norm();
            if below.rows(1, size - k - 1).iter().all(|&x| x == 0.0) {
                continue;
            }
            // I − 2 v vᵀ turns the column below the diagonal into one entry.
            let mut v: Vec<f64> = below.iter().copied().collect();
            v[0] += length.copysign(v[0]);
            let scale = v.iter().map(|x| x * x).sum::<f64>().sqrt().recip();
            v.iter_mut().for_each(|x| *x *= scale);
            let rows = self.t.as_mut_slice().chunks_exact_mut(size).skip(k - 1);
            for column in rows {
                reflect(&v, &mut column[k..]);
            }
            for matrix in [&mut self.t, &mut self.z] {
                let right = &mut matrix.as_mut_slice()[k * size..];
                products.fill(0.0);
                for (column, v) in right.chunks_exact(size).zip(&v) {
                    add(&mut products, *v, column);
                }
                for (column, v) in right.chunks_exact_mut(size).zip(&v) {
                    add(column, -2.0 * v, &products);
                }
            }
            self.t.view_mut((k + 1, k - 1), (size - k - 1, 1)).fill(0.0);
        }
    }

    /// The first row of the last unreduced block of the rows before `end`.
    fn decoupled(&mut self, end: usize) -> usize {
        let mut first = end - 1;
        while first > 0 {
            let beside = self.t[(first - 1, first - 1)].abs() + self.t[(first, first)].abs();
            let size = if beside > 0.0 { beside } else { self.t.norm() };
            if self.t[(first, first - 1)].abs() <= f64::EPSILON * size {
                self.t[(first, first - 1)] = 0.0;
                break;
            }
            first -= 1;
        }
        first
    }

    /// The eigenvalues of a block of two rows, which becomes triangular where they are real.
    fn settle_pair(&mut self, k: usize) {
        let [a, b, c, d] = [(k, k), (k, k + 1), (k + 1, k), (k + 1, k + 1)].map(|at| self.t[at]);
        let half = 0.5 * (a - d);
        let square = half * half + b * c;
        if square < 0.0 {
            let middle = Complex64::from(d + half);
            self.values[k] = middle + Complex64::I * (-square).sqrt();
            self.values[k + 1] = self.values[k].conj();
            return;
        }
        // (far, c) is the eigenvector of d + far.
        let far = half + square.sqrt().copysign(half);
        let (sine, cosine) = match far.hypot(c) {
            0.0 => (0.0, 1.0),
            length => (c / length, far / length),
        };
        let size = self.t.nrows();
        for column in self.t.as_mut_slice().chunks_exact_mut(size).skip(k) {
            (column[k], column[k + 1]) = (
                cosine * column[k] + sine * column[k + 1],
                cosine * column[k + 1] - sine * column[k],
            );
        }
        for matrix in [&mut self.t, &mut self.z] {
            for row in 0..size {
                let [x, y] = [matrix[(row, k)], matrix[(row, k + 1)]];
                matrix[(row, k)] = cosine * x + sine * y;
                matrix[(row, k + 1)] = cosine * y - sine * x;
            }
        }
        self.t[(k + 1, k)] = 0.0;
        for at in [k, k + 1] {
            self.values[at] = self.t[(at, at)].into();
        }
    }

    /// Of the block of two rows whose eigenvalues are the shifts: its diagonal, and the product of the other
    /// two entries.
    fn shifts(&self, first: usize, end: usize, sweeps: usize) -> [f64; 3] {
        let t = |i: usize, j: usize| self.t[(i, j)];
        let (corner, [one, other]) = match sweeps % (2 * STALLED) {
            STALLED => (first, [t(first + 1, first), t(first + 2, first + 1)]),
            0 => (end - 1, [t(end - 1, end - 2), t(end - 2, end - 3)]),
            _ => {
                let product = t(end - 1, end - 2) * t(end - 2, end - 1);
                return [t(end - 1, end - 1), t(end - 2, end - 2), product];
            }
        };
        let size = one.abs() + other.abs();
        let diagonal = 0.75 * size + t(corner, corner);
        [diagonal, diagonal, -0.4375 * size * size]
    }

    /// One sweep over the rows from `first` to `end`.
    fn sweep(&mut self, first: usize, end: usize, shifts: [f64; 3]) {
        let (start, mut v) = self.first_column(first, end, shifts);
        let size = self.t.nrows();
        for k in start..end - 1 {
            let rows = (end - k).min(3);
            if k > start {
                v = [0, 1, 2].map(|i| {
                    if i < rows {
                        self.t[(k + i, k - 1)]
                    } else {
                        0.0
                    }
                });
            }
            let largest = v.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            if largest == 0.0 {
                continue;
            }
            let reflector = Reflector::new(v.map(|x| x / largest));
            if k > start {
                self.t[(k, k - 1)] = reflector.image * largest;
                (k + 1..k + rows).for_each(|i| self.t[(i, k - 1)] = 0.0);
            } else if k > first {
                self.t[(k, k - 1)] *= 1.0 - reflector.own[0];
            }
            for column in self.t.as_mut_slice().chunks_exact_mut(size).skip(k) {
                reflector.on_rows(&mut column[k..k + rows]);
            }
            let top = (k + 4).min(end);
            reflector.on_columns(&mut self.t.as_mut_slice()[k * size..], size, top, rows);
            reflector.on_columns(&mut self.z.as_mut_slice()[k * size..], size, size, rows);
        }
    }

    /// The first column of (T − s₁)(T − s₂), up to a factor, from the row on at which a sweep may start:
    /// the last before which two small entries stand in a row.
    fn first_column(&self, first: usize, end: usize, [x, y, w]: [f64; 3]) -> (usize, [f64; 3]) {
        let t = |i: usize, j: usize| self.t[(i, j)];
        let mut m = end - 3;
        loop {
            let z = t(m, m);
            let (r, s) = (x - z, y - z);
            let column = [
                (r * s - w) / t(m + 1, m) + t(m, m + 1),
                t(m + 1, m + 1) - z - r - s,
                t(m + 2, m + 1),
            ];
            if m == first {
                return (m, column);
            }
            let [p, q, r] = column.map(f64::abs);
            let beside = t(m - 1, m - 1).abs() + z.abs() + t(m + 1, m + 1).abs();
            if t(m, m - 1).abs() * (q + r) < f64::EPSILON * p * beside {
                return (m, column);
            }
            m -= 1;
        }
    }

    /// Solves (T − λ) x = 0 for the first `k` entries of x, the others being given.
    fn substitute<S: Scalar>(&self, k: usize, value: S, x: &mut [S]) {
        let size = self.t.nrows();
        let columns = self.t.as_slice();
        let least = f64::EPSILON * self.t.norm().max(f64::MIN_POSITIVE);
        let off = |pivot: S| {
            if pivot.modulus() < least {
                real(least)
            } else {
                pivot
            }
        };
        for j in k..x.len() {
            let (sums, given) = x.split_at_mut(k);
            add(sums, real::<S>(-1.0) * given[j - k], &columns[j * size..]);
        }
        let mut i = k;
        while i > 0 {
            let single = self.values[i - 1].im == 0.0;
            i -= if single { 1 } else { 2 };
            if single {
                x[i] /= off(real::<S>(self.t[(i, i)]) - value);
            } else {
                // Elimination with a pivot: the determinant of a pair near λ has few digits.
                let [above, below] = [self.t[(i, i + 1)], self.t[(i + 1, i)]].map(real::<S>);
                let shifted = |i: usize| real::<S>(self.t[(i, i)]) - value;
                let mut rows = [[shifted(i), above, x[i]], [below, shifted(i + 1), x[i + 1]]];
                if rows[1][0].modulus() > rows[0][0].modulus() {
                    rows.swap(0, 1);
                }
                let [[a, b, p], [c, d, q]] = rows;
                x[i + 1] = (q - c / a * p) / off(d - c / a * b);
                x[i] = (p - b * x[i + 1]) / a;
            }
            let (sums, known) = x.split_at_mut(i);
            for (j, &known) in known[..if single { 1 } else { 2 }].iter().enumerate() {
                add(sums, -known, &columns[(i + j) * size..]);
            }
            let largest = x[i..]
                .iter()
                .fold(0.0, |most: f64, x| most.max(x.modulus()));
            if largest > LARGE {
                x.iter_mut().for_each(|x| *x /= real::<S>(largest));
            }
        }
    }

    /// Z x.
    fn turn_back(&self, x: &[f64], out: &mut [f64]) {
        for (column, &x) in self.z.as_slice().chunks_exact(out.len()).zip(x) {
            add(out, x, column);
        }
    }
}

/// I − v uᵀ with u = (1, q, r), orthogonal and symmetric.
struct Reflector {
    /// v.
    own: [f64; 3],
    /// (q, r).
    beside: [f64; 2],
    /// The first entry of what becomes of the vector that it was made for; the others are 0.
    image: f64,
}

impl Reflector {
    /// For a vector that is not zero.
    fn new([p, q, r]: [f64; 3]) -> Self {
        let length = (p * p + q * q + r * r).sqrt().copysign(p);
        let first = p + length;
        Self {
            own: [first / length, q / length, r / length],
            beside: [q / first, r / first],
            image: -length,
        }
    }

    /// On two or three entries of a column.
    fn on_rows(&self, column: &mut [f64]) {
        let ([x, y, z], [q, r]) = (self.own, self.beside);
        match column {
            [a, b, c] => {
                let sum = *a + q * *b + r * *c;
                (*a, *b, *c) = (*a - sum * x, *b - sum * y, *c - sum * z);
            }
            [a, b] => {
                let sum = *a + q * *b;
                (*a, *b) = (*a - sum * x, *b - sum * y);
            }
            _ => {}
        }
    }

    /// From the right on the first `rows` rows of the first `count` columns, two or three, each of `size`
    /// entries.
    fn on_columns(&self, columns: &mut [f64], size: usize, rows: usize, count: usize) {
        let ([x, y, z], [q, r]) = (self.own, self.beside);
        let (first, rest) = columns.split_at_mut(size);
        let (second, third) = rest.split_at_mut(size);
        let pairs = first[..rows].iter_mut().zip(&mut second[..rows]);
        if count == 2 {
            for (a, b) in pairs {
                let sum = x * *a + y * *b;
                (*a, *b) = (*a - sum, *b - sum * q);
            }
            return;
        }
        for ((a, b), c) in pairs.zip(&mut third[..rows]) {
            let sum = x * *a + y * *b + z * *c;
            (*a, *b, *c) = (*a - sum, *b - sum * q, *c - sum * r);
        }
    }
}

/// x − 2 v (vᵀ x) for a unit vector v.
fn reflect(v: &[f64], x: &mut [f64]) {
    let product: f64 = v.iter().zip(&*x).map(|(v, x)| v * x).sum();
    add(x, -2.0 * product, v);
}

/// Adds a multiple of a column, as far as both go.
fn add<S: Scalar>(to: &mut [S], factor: S, column: &[f64]) {
    for (to, &x) in to.iter_mut().zip(column) {
        *to += ComplexField::scale(factor, x);
    }
}

fn real<S: Scalar>(x: f64) -> S {
    ComplexField::from_real(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(size: usize) -> DMatrix<f64> {
        DMatrix::from_fn(size, size, |i, j| {
            ((3 * i + 7 * j * j + i * j + 1) as f64).sin()
        })
    }

    /// ‖A V − V diag(ν)‖ relative to ‖A‖, of vectors of length one.
    fn residual(matrix: &DMatrix<f64>, values: &[Complex64], parts: &DMatrix<f64>) -> f64 {
        let mut worst = 0.0_f64;
        for (k, value) in values
            .iter()
            .enumerate()
            .filter(|(_, value)| value.im >= 0.0)
        {
            let imaginary = if value.im > 0.0 {
                parts.column(k + 1).into_owned()
            } else {
                0.0 * parts.column(k)
            };
            let vector = parts.column(k).zip_map(&imaginary, Complex64::new);
            let rest = matrix.map(Complex64::from) * &vector - &vector * *value;
            worst = worst.max(rest.norm() / vector.norm());
        }
        worst / matrix.norm().max(f64::MIN_POSITIVE)
    }

    #[test]
    fn a_matrix_is_rebuilt_and_its_vectors_are_its_own() {
        for size in 1..=45 {
            let a = sample(size);
            let schur = Schur::new(&a).unwrap();
            let rebuilt = &schur.z * &schur.t * schur.z.transpose();
            assert!(
                (rebuilt - &a).norm() < 1e-14 * a.norm() * (size as f64).sqrt(),
                "{size}"
            );
            let unit = schur.z.tr_mul(&schur.z) - DMatrix::identity(size, size);
            assert!(unit.norm() < 1e-14 * size as f64, "{size}");
            for (i, j) in (0..size).flat_map(|i| (0..i).map(move |j| (i, j))) {
                let within_pair = i == j + 1 && schur.values[j].im > 0.0;
                assert!(within_pair || schur.t[(i, j)] == 0.0, "{size}: {i} {j}");
            }
            let trace: Complex64 = schur.values.iter().sum();
            assert!(trace.im == 0.0 && (trace.re - a.trace()).abs() < 1e-13 * size as f64);
            let (values, parts) = schur.into_vectors();
            let error = residual(&a, &values, &parts);
            assert!(error < 1e-14, "{size}: {error:e}");
        }
    }

    #[test]
    fn a_turn_round_a_circle_does_not_stall_the_iteration() {
        // Each sweep with the usual shifts returns the cyclic permutation as it was.
        for size in 3..=16 {
            let a = DMatrix::from_fn(size, size, |i, j| f64::from(i == (j + 1) % size));
            let (values, parts) = Schur::new(&a).unwrap().into_vectors();
            assert!(residual(&a, &values, &parts) < 1e-14);
            for value in values {
                let turned = (value.powu(size as u32) - 1.0).norm();
                assert!(turned < 1e-12, "{size}: {value}");
            }
        }
    }

    #[test]
    fn equal_defective_and_graded_values_keep_the_residual_small() {
        let jordan = DMatrix::from_fn(6, 6, |i, j| f64::from(i == j) + f64::from(i + 1 == j));
        let scale = |i: usize| (-3.0 * i as f64).exp();
        let graded = sample(9).map_with_location(|i, j, x| x * scale(i) * scale(j));
        let mut pairs = DMatrix::identity(8, 8) * -0.5;
        for k in [0, 2, 4, 6] {
            (pairs[(k, k + 1)], pairs[(k + 1, k)]) = (2.0, -2.0 - 1e-9 * k as f64);
        }
        let mixed = sample(8);
        let pairs = &mixed * pairs * mixed.clone().try_inverse().unwrap();
        let zero = DMatrix::zeros(5, 5);
        for (name, a) in [
            ("jordan", jordan),
            ("graded", graded),
            ("pairs", pairs),
            ("zero", zero),
        ] {
            let (values, parts) = Schur::new(&a).unwrap().into_vectors();
            let error = residual(&a, &values, &parts);
            assert!(error < 1e-13, "{name}: {error:e}");
            assert!(parts.iter().all(|x| x.is_finite()), "{name}");
        }
    }

    #[test]
    fn small_values_of_a_graded_matrix_keep_their_digits() {
        // Upper triangular with a small change: the product of the values is the determinant.
        let scale = |i: usize| (-4.0 * i as f64).exp();
        let a = DMatrix::from_fn(6, 6, |i, j| match i <= j {
            true => scale(j) * (1.0 + i as f64),
            false => 0.1 * scale(i) * scale(j),
        });
        let values = Schur::new(&a).unwrap().values;
        let product: Complex64 = values.iter().product();
        assert!(
            (product.re / a.determinant() - 1.0).abs() < 1e-9,
            "{product}"
        );
    }

    #[test]
    fn a_pair_of_any_size_beside_one_is_no_rounding() {
        for size in [1e-20, 1e12] {
            let pair = [1.0, 0.0, 0.0, 0.0, size, size, 0.0, -size, size];
            let schur = Schur::new(&DMatrix::from_row_slice(3, 3, &pair)).unwrap();
            let mut values: Vec<_> = schur.values().iter().map(|z| (z.re, z.im)).collect();
            values.sort_by(|x, y| x.1.total_cmp(&y.1));
            for (found, expected) in values.iter().zip([(size, -size), (1.0, 0.0), (size, size)]) {
                let error = (found.0 - expected.0).hypot(found.1 - expected.1);
                assert!(error <= 1e-15 * expected.0, "{values:?}");
            }
        }
    }

    #[test]
    fn vectors_that_grow_past_all_numbers_are_scaled() {
        let a = DMatrix::from_fn(40, 40, |i, j| match j.checked_sub(i) {
            Some(0) => i as f64,
            Some(1) => 1e12,
            _ => 0.0,
        });
        let (values, vectors) = Schur::new(&a).unwrap().into_vectors();
        for (value, vector) in values.iter().zip(vectors.column_iter()) {
            let left = &a * vector - vector * value.re;
            assert!(vector.norm() > 0.0 && left.norm() <= 1e-14 * a.norm() * vector.norm());
        }
    }

    #[test]
    fn what_is_not_a_number_ends_without_values() {
        let mut a = sample(7);
        a[(3, 4)] = f64::NAN;
        assert!(Schur::new(&a).is_none());
    }
}
