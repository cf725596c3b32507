//! How the output of a channel moves with its residues and its feedthrough.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::metric::gram_of;
use crate::control::{ControlError, InputWeight};
use crate::ssm::{DiagonalSystem, SystemError};

/// The derivatives of y = k ∗ u + D u by Re w_n, Im w_n of every mode and, last, by D, for the
/// input u and `k[l] = Re Σ_n w_n e^{z_n l}`: L × (2r + 1).
///
/// ```text
/// ∂y/∂Re w = Re s,   ∂y/∂Im w = −Im s,   ∂y/∂D = u,   s_t = e^z s_{t−1} + u_t
/// ```
///
/// y is linear in them, so they hold for steps of any size. Cost O(r L).
pub fn output_slopes(system: &DiagonalSystem, input: &[f64]) -> DMatrix<f64> {
    let mut slopes = DMatrix::zeros(input.len(), 2 * system.order() + 1);
    for (n, z) in system.scaled_exponents().into_iter().enumerate() {
        let pole = z.exp();
        let mut state = Complex64::ZERO;
        for (t, &u) in input.iter().enumerate() {
            state = pole * state + u;
            slopes[(t, 2 * n)] = state.re;
            slopes[(t, 2 * n + 1)] = -state.im;
        }
    }
    slopes.column_mut(2 * system.order()).copy_from_slice(input);
    slopes
}

/// G, (2r + 1) × (2r + 1) and positive semidefinite: a step δ of a channel's residues and
/// feedthrough, in the order of [`output_slopes`], changes its output by δᵀ G δ in the weighted
/// square, with a little for what rings on behind the weight's last step. Cost O(r L + r²).
pub fn residue_gram(reduced: &DiagonalSystem, weight: &InputWeight) -> DMatrix<f64> {
    gram_of(weight, &reduced.scaled_exponents())
}

/// The channel with its residues and feedthrough moved by `step`, in the order of
/// [`output_slopes`].
///
/// # Errors
/// [`ControlError::System`] for more than one input or output, and where the step is not finite
/// or has not 2r + 1 entries.
pub fn with_moved_residues(
    system: &DiagonalSystem,
    step: &[f64],
) -> Result<DiagonalSystem, ControlError> {
    let order = system.order();
    let expected = 2 * order + 1;
    if step.len() != expected {
        return Err(ControlError::System(SystemError::Shape {
            matrix: "step",
            found: (step.len(), 1),
            expected: (expected, 1),
        }));
    }
    let siso = system.as_siso()?;
    let steps = step.chunks_exact(2);
    let residues = siso.residues().zip(steps);
    let residues: Vec<_> = residues
        .map(|(residue, own)| residue + Complex64::new(own[0], own[1]))
        .collect();
    let feedthrough = siso.feedthrough() + step[2 * order];
    let exponents = system.exponents().to_vec();
    Ok(DiagonalSystem::siso(
        system.time(),
        exponents,
        &residues,
        feedthrough,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::metric::square_by_sums;
    use crate::control::samples::pairs_and_real_poles;
    use crate::ssm::Time;

    fn respond(system: &DiagonalSystem, input: &[f64]) -> Vec<f64> {
        let kernel = system.kernel(input.len()).unwrap();
        let direct = system.feedthrough()[(0, 0)];
        let at = |t: usize| {
            let past = (0..=t).map(|l| kernel[l] * input[t - l]);
            past.sum::<f64>() + direct * input[t]
        };
        (0..input.len()).map(at).collect()
    }

    fn inputs(n: usize) -> DMatrix<f64> {
        DMatrix::from_fn(n, 40, |n, t| ((n + 1) as f64 * 0.61 * t as f64).sin() + 0.3)
    }

    fn sample() -> (DiagonalSystem, Vec<f64>) {
        let system = pairs_and_real_poles(Time::Discrete { step: 0.7 }, 0.2);
        let step = (0..=2 * system.order()).map(|i| (i as f64).cos()).collect();
        (system, step)
    }

    #[test]
    fn slopes_predict_how_the_output_moves() {
        let (system, step) = sample();
        let input: Vec<f64> = inputs(1).iter().copied().collect();
        let slopes = output_slopes(&system, &input);
        let moved = with_moved_residues(&system, &step).unwrap();
        let predicted = &slopes * nalgebra::DVector::from_vec(step);
        let (before, after) = (respond(&system, &input), respond(&moved, &input));
        for t in 0..input.len() {
            assert!(
                (after[t] - before[t] - predicted[t]).abs() < 1e-12 * predicted.norm(),
                "{t}"
            );
        }
    }

    #[test]
    fn the_gram_matrix_is_the_weighted_square_of_a_change() {
        let (system, step) = sample();
        let weight = InputWeight::moments(&inputs(3)).unwrap();
        let gram = residue_gram(&system, &weight);
        let moved = with_moved_residues(&system, &step).unwrap();
        let change = square_by_sums(&system, &moved, &weight);
        let delta = nalgebra::DVector::from_vec(step);
        let predicted = (delta.transpose() * &gram * &delta)[(0, 0)];
        assert!(
            (predicted / change - 1.0).abs() < 1e-9,
            "{change:e} {predicted:e}"
        );
    }
}
