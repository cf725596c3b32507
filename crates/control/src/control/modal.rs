//! Modal truncation: keep the modes that score highest.

use crate::control::ControlError;
use crate::ssm::{DiagonalSystem, StableSystem, Time};

/// By which norm modes are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum ModalScore {
    /// The peak gain |c_i b_i|/(1 − |a_i|), the score of the pruning papers.
    Hinf,
    /// The ℓ2 norm |c_i b_i|/√(1 − |a_i|²) of the mode's complex kernel.
    H2,
}

/// The norm of each mode on its own.
///
/// ```text
///              H∞                       H2
/// continuous   |c_i b_i| / |Re λ_i|     |c_i b_i| / √(2 |Re λ_i|)
/// discrete     |c_i b_i| / (1 − |a_i|)  |c_i b_i| / √(1 − |a_i|²)
/// ```
///
/// Both are norms of the complex mode c_i a_i^l b_i. Its real part has at most the same H∞ norm,
/// and an H2 norm between 0 and the same: a score ranks, it does not measure the real output.
///
/// # Errors
/// [`ControlError::System`] unless the system has one input and one output.
///
/// # References
/// Gwak et al., *Layer-adaptive state pruning for deep state space models* (LAST), 2024, for H∞.
pub fn modal_scores(system: StableSystem<'_>, score: ModalScore) -> Result<Vec<f64>, ControlError> {
    let system = system.system();
    let residues = system.as_siso()?.residues();
    let exponents = system.scaled_exponents();
    let scores = residues.zip(exponents).map(|(residue, z)| {
        let size = residue.norm();
        match (score, system.time()) {
            (ModalScore::Hinf, Time::Continuous) => size / -z.re,
            (ModalScore::Hinf, Time::Discrete { .. }) => size / -z.re.exp_m1(),
            (ModalScore::H2, Time::Continuous) => size / (-2.0 * z.re).sqrt(),
            (ModalScore::H2, Time::Discrete { .. }) => size / (-(2.0 * z.re).exp_m1()).sqrt(),
        }
    });
    Ok(scores.collect())
}

/// Keeps the `order` modes with the highest [`modal_scores`], unchanged and in their old order.
/// Of equal scores the earlier mode stays.
///
/// The H∞ norm of the error is at most the sum of the H∞ scores of the modes that go, by
/// whichever score they were ranked.
///
/// # Errors
/// [`ControlError::Order`] for an order above the number of modes; as [`modal_scores`].
pub fn modal_truncation(
    system: StableSystem<'_>,
    order: usize,
    score: ModalScore,
) -> Result<DiagonalSystem, ControlError> {
    let scores = modal_scores(system, score)?;
    let system = system.system();
    if order > scores.len() {
        return Err(ControlError::Order {
            requested: order,
            most: scores.len(),
        });
    }
    let mut ranking: Vec<usize> = (0..scores.len()).collect();
    ranking.sort_by(|&i, &j| scores[j].total_cmp(&scores[i]));
    let mut kept = ranking[..order].to_vec();
    kept.sort_unstable();
    let exponents = kept.iter().map(|&i| system.exponents()[i]).collect();
    Ok(DiagonalSystem::new(
        system.time(),
        exponents,
        system.input().select_rows(&kept),
        system.output().select_columns(&kept),
        system.feedthrough().clone(),
    )?)
}

#[cfg(test)]
mod tests {
    use num_complex::Complex64;

    use super::*;

    const TIMES: [Time; 2] = [Time::Continuous, Time::Discrete { step: 0.1 }];

    fn sample(time: Time) -> DiagonalSystem {
        let exponents = [(-0.01, 3.0), (-5.0, 1.0), (-1.0, 0.0)];
        let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
        let residues = [0.03, 3.0, 1.0].map(Complex64::from);
        DiagonalSystem::siso(time, exponents, &residues, 0.5).unwrap()
    }

    #[test]
    fn the_h2_score_is_the_norm_of_the_modes_complex_kernel() {
        let system = sample(TIMES[1]);
        let scores = modal_scores(system.stable().unwrap(), ModalScore::H2).unwrap();
        for ((pole, residue), score) in system
            .poles()
            .iter()
            .zip(system.as_siso().unwrap().residues())
            .zip(&scores)
        {
            // 40000 steps of the slowest mode leave e^-80 of its energy.
            let terms = (0..40_000).map(|l| (residue * pole.powi(l)).norm_sqr());
            let direct = terms.sum::<f64>().sqrt();
            assert!((score / direct - 1.0).abs() < 1e-10, "{score} {direct}");
        }
        // |w|²/(2 |Re λ|), the integral over continuous time.
        let system = sample(TIMES[0]);
        let scores = modal_scores(system.stable().unwrap(), ModalScore::H2).unwrap();
        for (score, square) in scores.iter().zip([0.0009 / 0.02, 9.0 / 10.0, 1.0 / 2.0]) {
            assert!((score * score / square - 1.0).abs() < 1e-14, "{score}");
        }
    }

    #[test]
    fn the_h_infinity_score_is_the_gain_at_the_modes_own_frequency() {
        let system = sample(TIMES[1]);
        let scores = modal_scores(system.stable().unwrap(), ModalScore::Hinf).unwrap();
        for ((pole, residue), score) in system
            .poles()
            .iter()
            .zip(system.as_siso().unwrap().residues())
            .zip(&scores)
        {
            let direct = (residue / (1.0 - pole.norm())).norm();
            assert!((score / direct - 1.0).abs() < 1e-10, "{score} {direct}");
        }
        let system = sample(TIMES[0]);
        let scores = modal_scores(system.stable().unwrap(), ModalScore::Hinf).unwrap();
        assert!((scores[0] - 3.0).abs() < 1e-14 && (scores[1] - 0.6).abs() < 1e-15);
    }

    #[test]
    fn the_two_scores_can_rank_modes_differently() {
        for time in TIMES {
            let system = sample(time);
            let full = system.stable().unwrap();
            let peak = modal_truncation(full, 1, ModalScore::Hinf).unwrap();
            let energy = modal_truncation(full, 1, ModalScore::H2).unwrap();
            assert_eq!(peak.exponents()[0], system.exponents()[0]);
            assert_eq!(energy.exponents()[0], system.exponents()[1]);
            assert_eq!(energy.feedthrough(), system.feedthrough());
        }
    }

    #[test]
    fn an_order_above_the_number_of_modes_is_named() {
        let system = sample(TIMES[0]);
        let error = modal_truncation(system.stable().unwrap(), 4, ModalScore::H2).unwrap_err();
        assert_eq!(
            error,
            ControlError::Order {
                requested: 4,
                most: 3
            }
        );
    }
}
