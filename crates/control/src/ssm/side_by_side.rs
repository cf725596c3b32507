//! Several systems as one.

use nalgebra::DMatrix;

use crate::ssm::{DiagonalSystem, SystemError, Time};

/// Discrete systems as one, block by block: input columns follow each other, and output c of system
/// h of H is row c H + h. The common step is the geometric mean; poles do not change.
///
/// # Errors
/// [`SystemError::WrongTime`] for a continuous system; [`SystemError::Size`] for systems with
/// different numbers of outputs.
pub fn side_by_side(systems: &[DiagonalSystem]) -> Result<DiagonalSystem, SystemError> {
    let steps = systems.iter().map(|system| match system.time() {
        Time::Discrete { step } => Ok(step.ln()),
        Time::Continuous => Err(SystemError::WrongTime {
            found: "continuous",
            expected: "discrete",
        }),
    });
    let logs = steps.collect::<Result<Vec<f64>, _>>()?;
    let step = (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp();
    let sum = |of: fn(&DiagonalSystem) -> usize| systems.iter().map(of).sum::<usize>();
    let order = sum(DiagonalSystem::order);
    let outputs = systems.first().map_or(0, |system| system.output().nrows());
    let mut exponents = Vec::with_capacity(order);
    let mut input = DMatrix::zeros(order, sum(|system| system.input().ncols()));
    let mut output = DMatrix::zeros(outputs * systems.len(), order);
    let mut through = DMatrix::zeros(output.nrows(), input.ncols());
    let (mut row, mut column) = (0, 0);
    for (h, system) in systems.iter().enumerate() {
        let (n, m) = (system.order(), system.input().ncols());
        system.require_size(m, outputs)?;
        input
            .view_mut((row, column), (n, m))
            .copy_from(system.input());
        for c in 0..outputs {
            let at = c * systems.len() + h;
            output
                .view_mut((at, row), (1, n))
                .copy_from(&system.output().row(c));
            let d = system.feedthrough().row(c);
            through.view_mut((at, column), (1, m)).copy_from(&d);
        }
        let scaled = system.scaled_exponents().into_iter();
        exponents.extend(scaled.map(|z| z / step));
        (row, column) = (row + n, column + m);
    }
    DiagonalSystem::new(Time::Discrete { step }, exponents, input, output, through)
}

#[cfg(test)]
mod tests {
    use num_complex::Complex64;

    use super::*;

    fn system(step: f64, order: usize, inputs: usize, outputs: usize) -> DiagonalSystem {
        let entry = |i: usize, j: usize| Complex64::new((i + 2 * j + 1) as f64, order as f64);
        DiagonalSystem::new(
            Time::Discrete { step },
            (0..order).map(|i| Complex64::new(-0.5, i as f64)).collect(),
            DMatrix::from_fn(order, inputs, entry),
            DMatrix::from_fn(outputs, order, entry),
            DMatrix::from_fn(outputs, inputs, |i, j| (10 * i + j + 1) as f64),
        )
        .unwrap()
    }

    /// D + Σ_j c_j b_j/(1 − a_j/z).
    fn transfer(system: &DiagonalSystem, z: Complex64) -> DMatrix<Complex64> {
        let gains = system.poles().into_iter().map(|a| (1.0 - a / z).inv());
        let mut weighted = system.input().clone();
        for (mut row, gain) in weighted.row_iter_mut().zip(gains) {
            row *= gain;
        }
        system.output() * weighted + system.feedthrough().map(Complex64::from)
    }

    #[test]
    fn each_system_stands_in_its_own_block() {
        let parts = [system(0.1, 2, 1, 3), system(0.4, 3, 2, 3)];
        let whole = side_by_side(&parts).unwrap();
        assert_eq!((whole.order(), whole.feedthrough().shape()), (5, (6, 3)));
        let Time::Discrete { step } = whole.time() else {
            panic!("discrete");
        };
        assert!((step - 0.2).abs() < 1e-15);
        let z = Complex64::from_polar(1.1, 0.7);
        let found = transfer(&whole, z);
        for (h, (part, columns)) in parts.iter().zip([0..1, 1..3]).enumerate() {
            let own = transfer(part, z);
            for c in 0..3 {
                for j in 0..3 {
                    let expected = if columns.contains(&j) {
                        own[(c, j - columns.start)]
                    } else {
                        Complex64::ZERO
                    };
                    assert!(
                        (found[(2 * c + h, j)] - expected).norm() < 1e-13,
                        "{h} {c} {j}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_system_is_empty_and_what_does_not_fit_is_named() {
        assert_eq!(side_by_side(&[]).unwrap().order(), 0);
        let found = side_by_side(&[system(0.1, 2, 1, 2), system(0.1, 2, 1, 3)]);
        assert!(matches!(found, Err(SystemError::Size { .. })), "{found:?}");
        let continuous = DiagonalSystem::siso(Time::Continuous, Vec::new(), &[], 0.0).unwrap();
        let found = side_by_side(&[continuous]);
        assert!(
            matches!(found, Err(SystemError::WrongTime { .. })),
            "{found:?}"
        );
    }
}
