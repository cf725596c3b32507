//! A system with several inputs or outputs on a whole sequence, by its recurrence.

use hankelite_control::DiagonalSystem;
use nalgebra::DMatrix;
use num_complex::Complex64;

/// A discrete system, with its matrices in real and imaginary parts.
pub(super) struct Mimo {
    poles: Vec<Complex64>,
    /// Bᵀ, inputs × modes.
    input: [DMatrix<f64>; 2],
    /// Cᵀ, modes × outputs.
    output: [DMatrix<f64>; 2],
    feedthrough: Feedthrough,
}

enum Feedthrough {
    /// D of each channel.
    Diagonal(Vec<f64>),
    /// Dᵀ, inputs × outputs.
    Full(DMatrix<f64>),
}

impl Feedthrough {
    fn of(transposed: DMatrix<f64>) -> Self {
        let is_diagonal =
            transposed.is_square() && transposed == DMatrix::from_diagonal(&transposed.diagonal());
        match is_diagonal {
            true => Self::Diagonal(transposed.diagonal().iter().copied().collect()),
            false => Self::Full(transposed),
        }
    }

    /// y += D u at every step.
    fn add(&self, u: &DMatrix<f64>, y: &mut DMatrix<f64>) {
        match self {
            Self::Diagonal(through) => {
                let channels = y.column_iter_mut().zip(u.column_iter());
                for ((mut y, u), d) in channels.zip(through) {
                    y.axpy(*d, &u, 1.0);
                }
            }
            Self::Full(through) => *y += u * through,
        }
    }
}

fn parts(matrix: &DMatrix<Complex64>) -> [DMatrix<f64>; 2] {
    [matrix.map(|z| z.re), matrix.map(|z| z.im)]
}

impl Mimo {
    pub(super) fn new(system: &DiagonalSystem) -> Self {
        Self {
            poles: system.poles(),
            input: parts(&system.input().transpose()),
            output: parts(&system.output().transpose()),
            feedthrough: Feedthrough::of(system.feedthrough().transpose()),
        }
    }

    /// The system whose run on reversed time is the adjoint of this one's.
    pub(super) fn transposed(system: &DiagonalSystem) -> Self {
        Self {
            poles: system.poles(),
            input: parts(system.output()),
            output: parts(system.input()),
            feedthrough: Feedthrough::of(system.feedthrough().clone()),
        }
    }

    /// L × outputs of L × inputs. Cost O(L (n m + n p)), and O(L m p) for a full D.
    pub(super) fn run(&self, u: &DMatrix<f64>) -> DMatrix<f64> {
        let [mut re, mut im] = [u * &self.input[0], u * &self.input[1]];
        for (n, pole) in self.poles.iter().enumerate() {
            let mut state = Complex64::ZERO;
            let (re, im) = (re.column_mut(n), im.column_mut(n));
            for (re, im) in re.into_iter().zip(im) {
                state = pole * state + Complex64::new(*re, *im);
                (*re, *im) = (state.re, state.im);
            }
        }
        let mut y = re * &self.output[0] - im * &self.output[1];
        self.feedthrough.add(u, &mut y);
        y
    }
}
