//! Modal truncation: keep the modes that score highest.

use crate::control::ControlError;
use crate::ssm::DiagonalSystem;
use crate::ssm::StableSystem;
use crate::ssm::Time;

/// The peak gain of each mode on its own, the score of the pruning papers.
///
/// ```text
/// continuous: |c_i b_i| / |Re λ_i|        discrete: |c_i b_i| / (1 − |a_i|)
/// ```
///
/// # Errors
/// [`ControlError::System`] unless the system has one input and one output.
///
/// # References
/// Gwak et al., *Layer-adaptive state pruning for deep state space models* (LAST), 2024.
pub fn modal_scores(system: StableSystem<'_>) -> Result<Vec<f64>, ControlError> {
    let system = system.system();
    let residues = system.residues()?;
    let exponents = system.scaled_exponents();
    let scores = residues.iter().zip(exponents).map(|(residue, z)| {
        let decay = match system.time() {
            Time::Continuous => -z.re,
            Time::Discrete { .. } => -z.re.exp_m1(),
        };
        residue.norm() / decay
    });
    Ok(scores.collect())
}

/// Keeps the `order` modes with the highest [`modal_scores`], unchanged and in their old order.
/// Of equal scores the earlier mode stays.
///
/// # Errors
/// [`ControlError::Order`] for an order above the number of modes; as [`modal_scores`].
pub fn modal_truncation(
    system: StableSystem<'_>,
    order: usize,
) -> Result<DiagonalSystem, ControlError> {
    let scores = modal_scores(system)?;
    let system = system.system();
    if order > scores.len() {
        return Err(ControlError::Order {
            asked: order,
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
