//! Sequential sparse reconstruction: Algorithm 1, on the host in double precision.

use nalgebra::{DMatrix, DVector};

use crate::nn::baseline::prox::prox2;

/// Why a sequence cannot be reconstructed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SparseError {
    /// A matrix or vector that does not fit the others.
    #[error("{what} is {found_rows} x {found_columns}, expected {rows} x {columns} ({why})")]
    Shape {
        /// Its name.
        what: &'static str,
        /// Its rows.
        found_rows: usize,
        /// Its columns.
        found_columns: usize,
        /// The rows it should have.
        rows: usize,
        /// The columns it should have.
        columns: usize,
        /// Where the expected size comes from.
        why: &'static str,
    },
    /// A constant out of its range.
    #[error("{what} is {found}, expected a finite number {expected}")]
    Constant {
        /// Its name.
        what: &'static str,
        /// Its value.
        found: f64,
        /// Its range.
        expected: &'static str,
    },
    /// An entry that is no finite number.
    #[error("{what} has the entry {found}, expected finite numbers only")]
    NotFinite {
        /// The matrix.
        what: &'static str,
        /// The first such entry.
        found: f64,
    },
    /// No layer to run.
    #[error("there are no layers, expected at least one: hint: name 1 or more iterations")]
    NoLayers,
}

/// One reweighting layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Reweighting {
    /// Z, codes × codes.
    pub matrix: DMatrix<f64>,
    /// g > 0, one for each code.
    pub weights: DVector<f64>,
}

/// What a step of the algorithm repeats.
#[derive(Debug, Clone, PartialEq)]
pub enum Iterations {
    /// So many with Z = I and g = 1: the proximal gradient method of the ℓ1-ℓ1 problem, exact.
    Plain(usize),
    /// One for each reweighting. With Z ≠ I this is a heuristic, no proximal gradient method of
    /// its problem: a true step would use Jᵀ(J Z h − x), the algorithm uses Z Jᵀ(J h − x).
    Reweighted(Vec<Reweighting>),
}

/// A sequence of sparse problems, each near the one before: with J = S Q_D,
///
/// ```text
/// min_h ½‖x_t − J Z h‖² + ω1‖g ∘ Z h‖₁ + ω2‖g ∘ (Z h − G_c h_{t−1})‖₁
/// ```
///
/// # References
/// Le, Luong and Deligiannis, equation (4).
#[derive(Debug, Clone, PartialEq)]
pub struct SparseProblem {
    /// S, measurements × signal.
    pub sensing: DMatrix<f64>,
    /// Q_D, signal × codes.
    pub dictionary: DMatrix<f64>,
    /// G_c, codes × codes: how a code follows from the one before.
    pub correlation: DMatrix<f64>,
    /// ω1 ≥ 0, the weight of sparsity.
    pub omega1: f64,
    /// ω2 ≥ 0, the weight of what the last code foretells.
    pub omega2: f64,
}

/// What was found for a sequence.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
#[non_exhaustive]
pub struct SparseSequence {
    /// h_t in column t, codes × L.
    pub codes: DMatrix<f64>,
    /// Q_D h_t in column t, signal × L.
    pub signals: DMatrix<f64>,
}

/// Algorithm 1 for one problem.
///
/// ```
/// use hankelite_train::nn::baseline::{Iterations, SparseProblem, SparseSolver, squared_norm};
/// use nalgebra::{DMatrix, DVector};
///
/// let problem = SparseProblem {
///     sensing: DMatrix::identity(2, 2),
///     dictionary: DMatrix::identity(2, 2),
///     correlation: DMatrix::identity(2, 2),
///     omega1: 0.25,
///     omega2: 0.0,
/// };
/// let step_constant = squared_norm(&problem.sensing);
/// let solver = SparseSolver::new(problem, step_constant, Iterations::Plain(1))?;
/// let measurements = DMatrix::from_column_slice(2, 1, &[1.0, 0.125]);
/// let found = solver.reconstruct(&measurements, &DVector::zeros(2))?;
/// assert!((found.signals[0] - 0.75).abs() < 1e-12 && found.signals[1] == 0.0);
/// # Ok::<(), hankelite_train::nn::baseline::SparseError>(())
/// ```
#[derive(Debug, Clone)]
pub struct SparseSolver {
    problem: SparseProblem,
    step_constant: f64,
    iterations: Iterations,
    /// J.
    map: DMatrix<f64>,
}

fn shape(
    what: &'static str,
    found: &DMatrix<f64>,
    rows: usize,
    columns: usize,
    why: &'static str,
) -> Result<(), SparseError> {
    if found.shape() != (rows, columns) {
        return Err(SparseError::Shape {
            what,
            found_rows: found.nrows(),
            found_columns: found.ncols(),
            rows,
            columns,
            why,
        });
    }
    finite(what, found.as_slice())
}

fn length(what: &'static str, found: &DVector<f64>, codes: usize) -> Result<(), SparseError> {
    if found.len() != codes {
        return Err(SparseError::Shape {
            what,
            found_rows: found.len(),
            found_columns: 1,
            rows: codes,
            columns: 1,
            why: "a number for each code of the dictionary",
        });
    }
    finite(what, found.as_slice())
}

fn finite(what: &'static str, entries: &[f64]) -> Result<(), SparseError> {
    match entries.iter().find(|entry| !entry.is_finite()) {
        Some(&found) => Err(SparseError::NotFinite { what, found }),
        None => Ok(()),
    }
}

fn positive(what: &'static str, found: f64, or_zero: bool) -> Result<(), SparseError> {
    if found.is_finite() && (found > 0.0 || (or_zero && found == 0.0)) {
        return Ok(());
    }
    let expected = if or_zero { "of 0 or more" } else { "above 0" };
    Err(SparseError::Constant {
        what,
        found,
        expected,
    })
}

impl SparseProblem {
    fn check(&self) -> Result<(), SparseError> {
        let codes = self.dictionary.ncols();
        let (measurements, signal) = (self.sensing.nrows(), self.dictionary.nrows());
        shape(
            "the sensing matrix",
            &self.sensing,
            measurements,
            signal,
            "a column for each row of the dictionary",
        )?;
        finite("the dictionary", self.dictionary.as_slice())?;
        let why = "square, in the codes of the dictionary";
        shape("the correlation", &self.correlation, codes, codes, why)?;
        positive("omega1", self.omega1, true)?;
        positive("omega2", self.omega2, true)
    }
}

impl SparseSolver {
    /// A solver with the step constant c_s. With [`Iterations::Plain`] and
    /// c_s ≥ ‖J‖₂² ([`squared_norm`](super::squared_norm)) the objective falls with every
    /// iteration, and the codes converge to a minimum.
    ///
    /// # Errors
    /// [`SparseError`]: shapes that do not fit, c_s or a weight g that is not positive, a negative
    /// ω, entries that are not finite, no layers.
    pub fn new(
        problem: SparseProblem,
        step_constant: f64,
        iterations: Iterations,
    ) -> Result<Self, SparseError> {
        problem.check()?;
        positive("the step constant", step_constant, false)?;
        let codes = problem.dictionary.ncols();
        match &iterations {
            Iterations::Plain(0) => return Err(SparseError::NoLayers),
            Iterations::Plain(_) => {}
            Iterations::Reweighted(layers) if layers.is_empty() => {
                return Err(SparseError::NoLayers);
            }
            Iterations::Reweighted(layers) => {
                for layer in layers {
                    let why = "square, in the codes of the dictionary";
                    shape("a reweighting matrix", &layer.matrix, codes, codes, why)?;
                    length("a vector of weights", &layer.weights, codes)?;
                    for &weight in &layer.weights {
                        positive("a weight", weight, false)?;
                    }
                }
            }
        }
        Ok(Self {
            map: &problem.sensing * &problem.dictionary,
            problem,
            step_constant,
            iterations,
        })
    }

    /// The codes of a sequence of measurements (measurements × L), the first one starting from
    /// `initial_code` (h_0).
    ///
    /// Each step takes O(measurements · codes) for an iteration, O(codes²) more where it has a
    /// reweighting matrix.
    ///
    /// # Errors
    /// [`SparseError::Shape`], [`SparseError::NotFinite`].
    ///
    /// # References
    /// Le, Luong and Deligiannis, Algorithm 1.
    pub fn reconstruct(
        &self,
        measurements: &DMatrix<f64>,
        initial_code: &DVector<f64>,
    ) -> Result<SparseSequence, SparseError> {
        let steps = measurements.ncols();
        let why = "a row for each row of the sensing matrix";
        let rows = self.problem.sensing.nrows();
        shape("the measurements", measurements, rows, steps, why)?;
        length("the initial code", initial_code, self.map.ncols())?;
        let mut codes = DMatrix::zeros(self.map.ncols(), steps);
        let mut code = initial_code.clone();
        for (step, measured) in measurements.column_iter().enumerate() {
            code = self.code(&measured.into_owned(), &code);
            codes.set_column(step, &code);
        }
        let signals = &self.problem.dictionary * &codes;
        Ok(SparseSequence { codes, signals })
    }

    /// h_t from x_t and h_{t−1}.
    fn code(&self, measured: &DVector<f64>, last: &DVector<f64>) -> DVector<f64> {
        let side = &self.problem.correlation * last;
        let mut code = side.clone();
        match &self.iterations {
            Iterations::Plain(count) => {
                for _ in 0..*count {
                    code = self.descend(&code, measured);
                    self.threshold(&mut code, &side, |_| 1.0);
                }
            }
            Iterations::Reweighted(layers) => {
                for layer in layers {
                    code = &layer.matrix * self.descend(&code, measured);
                    self.threshold(&mut code, &side, |index| layer.weights[index]);
                }
            }
        }
        code
    }

    /// h − Jᵀ(J h − x)/c_s.
    fn descend(&self, code: &DVector<f64>, measured: &DVector<f64>) -> DVector<f64> {
        let residual = &self.map * code - measured;
        code - self.map.tr_mul(&residual) / self.step_constant
    }

    fn threshold(
        &self,
        code: &mut DVector<f64>,
        side: &DVector<f64>,
        weight: impl Fn(usize) -> f64,
    ) {
        let (omega1, omega2) = (self.problem.omega1, self.problem.omega2);
        for (index, entry) in code.iter_mut().enumerate() {
            let scale = weight(index) / self.step_constant;
            *entry = prox2(*entry, omega1 * scale, omega2 * scale, side[index]);
        }
    }

    /// ½‖x − J h‖² + ω1‖h‖₁ + ω2‖h − G_c h_{t−1}‖₁ for a measurement x, a code h and the code
    /// before: the objective of the ℓ1-ℓ1 problem (Z = I, g = 1).
    ///
    /// # Errors
    /// [`SparseError::Shape`], [`SparseError::NotFinite`].
    pub fn objective(
        &self,
        measured: &DVector<f64>,
        code: &DVector<f64>,
        last: &DVector<f64>,
    ) -> Result<f64, SparseError> {
        let (residual, side) = self.residual_and_side(measured, code, last)?;
        let near = (code - side).lp_norm(1);
        let problem = &self.problem;
        let penalties = problem.omega1 * code.lp_norm(1) + problem.omega2 * near;
        Ok(0.5 * residual.norm_squared() + penalties)
    }

    /// How far a code is from a minimum of [`SparseSolver::objective`]: the largest distance, over
    /// the codes, of 0 from Jᵀ(J h − x) + ω1 ∂|h| + ω2 ∂|h − G_c h_{t−1}|. It is 0 at a minimum
    /// and only there.
    ///
    /// # Errors
    /// [`SparseError::Shape`], [`SparseError::NotFinite`].
    pub fn optimality_residual(
        &self,
        measured: &DVector<f64>,
        code: &DVector<f64>,
        last: &DVector<f64>,
    ) -> Result<f64, SparseError> {
        let (residual, side) = self.residual_and_side(measured, code, last)?;
        let gradient = self.map.tr_mul(&residual);
        let distances = (0..code.len()).map(|index| {
            let (low, high) = subgradients(code[index], self.problem.omega1);
            let (near_low, near_high) =
                subgradients(code[index] - side[index], self.problem.omega2);
            let (low, high) = (low + near_low, high + near_high);
            let wanted = -gradient[index];
            (low - wanted).max(wanted - high).max(0.0)
        });
        Ok(distances.fold(0.0, f64::max))
    }

    /// J h − x and G_c h_{t−1}.
    fn residual_and_side(
        &self,
        measured: &DVector<f64>,
        code: &DVector<f64>,
        last: &DVector<f64>,
    ) -> Result<(DVector<f64>, DVector<f64>), SparseError> {
        let (rows, codes) = self.map.shape();
        if measured.len() != rows {
            return Err(SparseError::Shape {
                what: "the measurement",
                found_rows: measured.len(),
                found_columns: 1,
                rows,
                columns: 1,
                why: "a row for each row of the sensing matrix",
            });
        }
        finite("the measurement", measured.as_slice())?;
        length("the code", code, codes)?;
        length("the code before", last, codes)?;
        let side = &self.problem.correlation * last;
        Ok((&self.map * code - measured, side))
    }
}

/// The ends of ω ∂|v|.
fn subgradients(v: f64, omega: f64) -> (f64, f64) {
    match v {
        v if v > 0.0 => (omega, omega),
        v if v < 0.0 => (-omega, -omega),
        _ => (-omega, omega),
    }
}
