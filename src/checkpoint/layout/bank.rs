//! Banks of channels with one input each: what S4D, DSS and the kernels of the full state-spaces
//! repository share. Several kernels of a channel, or its two directions, have the same poles.

use hankelite_control::{DiagonalSystem, SystemError, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::Dynamics;
use crate::checkpoint::layout::encoded::PADDING_EXPONENT;

/// Relative difference up to which poles are the same.
const SAME: f64 = 1e-9;

/// What a step of exactly 0 is read as, which a ReLU gives: such a mode holds no state and has the weight
/// 0, so that any step is as good.
pub(super) const STEP_OF_NONE: f64 = 0.5;

/// What a person should know of channels whose steps are all 0.
pub(super) fn note_of_no_step(layer: &str, steps: &[f64], channels: usize) -> Option<String> {
    let each = (steps.len() / channels).max(1);
    let channels = steps.chunks(each).enumerate();
    let dead = channels.filter(|(_, steps)| steps.iter().all(|step| *step == 0.0));
    let dead: Vec<String> = dead.map(|(h, _)| h.to_string()).collect();
    let plural = if dead.len() == 1 { "" } else { "s" };
    let dead = (!dead.is_empty()).then(|| dead.join(", "))?;
    Some(format!(
        "`{layer}`, channel{plural} {dead}: a step of 0, so no state"
    ))
}

/// Whether a channel whose step in the file is 0 has come to hold a state, for which it needs a step.
pub(super) fn is_revived(bank: &[Modes], stored: &[f64]) -> bool {
    let held = |modes: &Modes| {
        let mut residues = modes.residues.iter().flatten();
        residues.any(|residue| *residue != Complex64::ZERO)
    };
    let mut channels = stored.iter().zip(bank);
    channels.any(|(step, modes)| *step == 0.0 && held(modes))
}

/// The modes of one channel.
#[derive(Debug, Clone)]
pub(super) struct Modes {
    pub(super) step: f64,
    /// λ of the discrete pole e^{λΔ}.
    pub(super) exponents: Vec<Complex64>,
    /// For each kernel of the channel the residues.
    pub(super) residues: Vec<Vec<Complex64>>,
}

/// The systems of a bank. `feedthrough` holds one row for each output of a channel; twice as many
/// kernels as rows mean that the second half runs backwards in time, from the next sample on.
pub(super) fn systems(
    layer: &str,
    channels: impl Iterator<Item = Modes>,
    feedthrough: &[Vec<f64>],
) -> Result<Dynamics, Fault> {
    let outputs = feedthrough.len();
    let (mut systems, mut backward) = (Vec::new(), Vec::new());
    for (h, modes) in channels.enumerate() {
        let kernels = modes.residues.len();
        if kernels > outputs {
            let made = system(&modes, outputs..kernels, |_| 0.0);
            backward.push(made.map_err(|source| fault(layer, h, source))?);
        }
        let made = system(&modes, 0..outputs, |c| feedthrough[c][h]);
        systems.push(made.map_err(|source| fault(layer, h, source))?);
    }
    Ok(Dynamics {
        systems,
        backward,
        backward_from: 1,
        note: None,
    })
}

fn system(
    modes: &Modes,
    kernels: std::ops::Range<usize>,
    feedthrough: impl Fn(usize) -> f64,
) -> Result<DiagonalSystem, SystemError> {
    let order = modes.exponents.len();
    let own = &modes.residues[kernels];
    DiagonalSystem::new(
        Time::Discrete { step: modes.step },
        modes.exponents.clone(),
        DMatrix::from_element(order, 1, Complex64::ONE),
        DMatrix::from_fn(own.len(), order, |c, n| own[c][n]),
        DMatrix::from_fn(own.len(), 1, |c, _| feedthrough(c)),
    )
}

/// The modes of every channel, all filled up to the largest order (one at least, since no public
/// module takes none) with modes of residue zero.
pub(super) fn modes_of(layer: &str, dynamics: &Dynamics) -> Result<Vec<Modes>, Fault> {
    let orders = dynamics.systems.iter().map(DiagonalSystem::order);
    let order = orders.max().unwrap_or(0).max(1);
    let channels = dynamics.systems.iter().enumerate();
    let modes = channels.map(|(h, system)| {
        let Time::Discrete { step } = system.time() else {
            let (found, expected) = ("continuous", "discrete");
            return Err(fault(layer, h, SystemError::WrongTime { found, expected }));
        };
        if system.input().ncols() != 1 {
            return Err(Fault::OtherModel {
                what: "inputs of a system",
                found: system.input().ncols(),
                expected: 1,
            });
        }
        let backward = dynamics.backward.get(h);
        if backward.is_some_and(|b| b.exponents() != system.exponents()) {
            return Err(Fault::NotShared {
                layer: layer.to_string(),
                channel: h,
            });
        }
        let residues = std::iter::once(system).chain(backward).flat_map(residues);
        let mut modes = Modes {
            step,
            exponents: system.exponents().to_vec(),
            residues: residues.collect(),
        };
        modes.exponents.resize(order, PADDING_EXPONENT.into());
        for residues in &mut modes.residues {
            residues.resize(order, Complex64::ZERO);
        }
        Ok(modes)
    });
    modes.collect()
}

/// The same for layouts with one kernel per channel.
pub(super) fn single_modes_of(layer: &str, dynamics: &Dynamics) -> Result<Vec<Modes>, Fault> {
    super::require_causal(dynamics)?;
    let modes = modes_of(layer, dynamics)?;
    match modes.iter().map(|modes| modes.residues.len()).max() {
        Some(found) if found > 1 => Err(Fault::OtherModel {
            what: "kernels per channel",
            found,
            expected: 1,
        }),
        _ => Ok(modes),
    }
}

/// One filter for each group of so many channels where these have the same, with the first channel of each;
/// else one for each channel.
pub(super) fn grouped(modes: Vec<Modes>, each: usize) -> Vec<(usize, Modes)> {
    let each = each.max(1);
    let same = |group: &[Modes]| {
        let mut others = group.iter();
        others.all(|m| m.exponents == group[0].exponents && m.residues == group[0].residues)
    };
    let step = if modes.chunks(each).all(same) {
        each
    } else {
        1
    };
    modes.into_iter().enumerate().step_by(step).collect()
}

/// Whether all rows of poles are the same: they are then stored once where the file does so.
pub(super) fn all_same(poles: &[Complex64], order: usize) -> bool {
    let first = &poles[..order.min(poles.len())];
    let mut rows = poles.chunks(order.max(1));
    rows.all(|row| {
        let mut pairs = row.iter().zip(first);
        pairs.all(|(a, b)| (a - b).norm() <= SAME * b.norm())
    })
}

/// C ∘ B for each output.
fn residues(system: &DiagonalSystem) -> Vec<Vec<Complex64>> {
    let input = system.input().column(0);
    let rows = system.output().row_iter();
    rows.map(|row| row.iter().zip(&input).map(|(c, b)| c * b).collect())
        .collect()
}

/// D of all channels, one row for each output.
pub(super) fn feedthrough_of(dynamics: &Dynamics) -> Vec<f64> {
    let outputs = dynamics.systems.first().map_or(0, |s| s.output().nrows());
    let rows = (0..outputs).flat_map(|c| {
        let systems = dynamics.systems.iter();
        systems.map(move |system| system.feedthrough()[(c, 0)])
    });
    rows.collect()
}

pub(super) fn fault(layer: &str, channel: usize, source: SystemError) -> Fault {
    let layer = layer.to_string();
    Fault::System {
        layer,
        channel,
        source,
    }
}
