//! Several systems as one.

use nalgebra::DMatrix;

use crate::ssm::{DiagonalSystem, SystemError, Time};

/// Discrete systems as one, block by block: input columns follow each other, and output c of system
/// h of H is row c H + h. The common step is the geometric mean; poles do not change.
///
/// # Errors
/// [`SystemError::WrongTime`] for a continuous system; [`SystemError::Shape`] for systems with
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
