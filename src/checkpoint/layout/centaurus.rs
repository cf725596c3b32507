//! Centaurus, as lrnnx 1.0 has it (`lrnnx/models/lti/centaurus.py`): cosines in groups.
//!
//! ```text
//! Δ = e^{log_delta}, one for each group n    a_nm = e^{Δ_n A_nm}    k_n[l] = Σ_m E_nm Re a_nm^l
//! neck        K[l] = Σ_n C_n k_n[l] Δ_n B_n           B (N, H), C (H, N)
//! pointwise   K[l] = Σ_nm C_nm Re a_nm^l Δ_n B_nm     B (N M, H), C (H, N M), no E
//! dws, full   K_n[l] = C_n k_n[l] Δ_n B_n             B, C (N)
//! ```
//!
//! A is complex, all else real, and there is no feedthrough. The first two are systems with N M modes
//! for all inputs and outputs. The last two have a kernel for each group: `dws` one for each channel,
//! `full` one for each pair of an output and an input. No tensor tells these two apart where N is a
//! square.
//!
//! Modes are cosines without a phase, and those of `neck` share B and C in groups of M. What a
//! truncation makes has phases and no groups: nothing smaller is written.

use hankelite_control::{DiagonalSystem, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::bank::{self, Modes};
use crate::checkpoint::layout::{Dynamics, Encoded, Layout};
use crate::checkpoint::tensors::Tensors;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Centaurus {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
}

/// The cosines of a file.
struct Groups {
    steps: Vec<f64>,
    /// Δ A, N × M.
    exponents: DMatrix<Complex64>,
    /// N × M, where there are such.
    mixing: Option<DMatrix<f64>>,
}

impl Groups {
    /// The same of each mode, group by group.
    fn of_modes(&self, of: impl Fn(usize, usize) -> Complex64) -> Vec<Complex64> {
        let (groups, modes) = self.exponents.shape();
        let places = (0..groups).flat_map(|n| (0..modes).map(move |m| (n, m)));
        places.map(|(n, m)| of(n, m)).collect()
    }

    fn mixed(&self, n: usize, m: usize) -> f64 {
        self.mixing.as_ref().map_or(1.0, |mixing| mixing[(n, m)])
    }
}

impl Centaurus {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    fn groups(&self, tensors: &Tensors<'_>) -> Result<Groups, Fault> {
        let poles = tensors.complex_matrix(&self.name("A"), [None, None])?;
        let (groups, modes) = poles.shape();
        let expected = format!("[{groups}]");
        let logs = tensors.shaped(&self.name("log_delta"), &[&[groups]], &expected)?;
        let steps = tensors.at_rate(logs.data.into_iter().map(f64::exp).collect());
        let mixing = self.name("E");
        let axes = [Some(groups), Some(modes)];
        Ok(Groups {
            exponents: DMatrix::from_fn(groups, modes, |n, m| steps[n] * poles[(n, m)]),
            steps,
            mixing: match tensors.contains(&mixing) {
                true => Some(tensors.real_matrix(&mixing, axes)?),
                false => None,
            },
        })
    }

    /// One system for all inputs and outputs.
    fn joint(&self, tensors: &Tensors<'_>, groups: &Groups) -> Result<Dynamics, Fault> {
        let (count, modes) = groups.exponents.shape();
        // The row of B, and the column of C, of a mode.
        let each = if groups.mixing.is_some() { modes } else { 1 };
        let rows = Some(count * modes / each);
        let input = tensors.real_matrix(&self.name("B"), [rows, None])?;
        let output = tensors.real_matrix(&self.name("C"), [None, rows])?;
        let (inputs, outputs) = (input.ncols(), output.nrows());
        let all = count * modes;
        let b = DMatrix::from_fn(all, inputs, |k, j| {
            groups.steps[k / modes] * input[(k / each, j)]
        });
        let c = DMatrix::from_fn(outputs, all, |i, k| {
            output[(i, k / each)] * groups.mixed(k / modes, k % modes)
        });
        let system = DiagonalSystem::new(
            Time::Discrete { step: 1.0 },
            groups.of_modes(|n, m| groups.exponents[(n, m)]),
            b.map(Complex64::from),
            c.map(Complex64::from),
            DMatrix::zeros(outputs, inputs),
        );
        let system = system.map_err(|source| bank::fault(&self.layer, 0, source))?;
        Ok(Dynamics::causal(vec![system]))
    }

    /// A system for each group.
    fn apart(&self, tensors: &Tensors<'_>, groups: &Groups) -> Result<Dynamics, Fault> {
        let (count, modes) = groups.exponents.shape();
        let expected = format!("[{count}]");
        let read = |name: &str| tensors.shaped(&self.name(name), &[&[count]], &expected);
        let (input, output) = (read("B")?.data, read("C")?.data);
        let channels = (0..count).map(|n| {
            let weight = output[n] * input[n];
            let residues =
                (0..modes).map(|m| (weight * groups.steps[n] * groups.mixed(n, m)).into());
            Modes {
                step: groups.steps[n],
                exponents: (0..modes)
                    .map(|m| groups.exponents[(n, m)] / groups.steps[n])
                    .collect(),
                residues: vec![residues.collect()],
            }
        });
        let none = vec![vec![0.0; count]];
        Ok(Dynamics {
            note: self.note_of_pairs(count),
            ..bank::systems(&self.layer, channels, &none)?
        })
    }

    /// What a person should know where the kernels may be those of pairs.
    fn note_of_pairs(&self, count: usize) -> Option<String> {
        let side = count.isqrt();
        (count > 1 && side * side == count).then(|| {
            format!(
                "`{}`: read as one kernel for each of {count} channels (mode dws of Centaurus); in mode \
                 full they would be those from {side} inputs to {side} outputs, row by row, and no \
                 tensor tells which",
                self.layer
            )
        })
    }
}

impl Layout for Centaurus {
    fn family(&self) -> &'static str {
        "Centaurus"
    }

    fn steps_of_modes(&self, tensors: &Tensors<'_>) -> Result<Option<Vec<f64>>, Fault> {
        Ok(Some(self.groups(tensors)?.steps))
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let groups = self.groups(tensors)?;
        match tensors.rank(&self.name("B")) {
            Some(1) => self.apart(tensors, &groups),
            _ => self.joint(tensors, &groups),
        }
    }

    fn encode(&self, dynamics: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let exponents = dynamics
            .systems
            .first()
            .map(DiagonalSystem::scaled_exponents);
        let exponent = exponents.and_then(|exponents| exponents.first().copied());
        let joint = dynamics.systems.iter().any(|s| s.input().ncols() > 1);
        let why = if joint {
            "the layout holds cosines without a phase, in groups; `compress-model convert --to s5` writes \
             a layout that holds all"
        } else {
            "the layout holds cosines without a phase; `compress-model convert --to s4d` writes a layout \
             that holds all"
        };
        Err(super::not_representable(
            self.family(),
            &self.layer,
            0,
            exponent.unwrap_or_default(),
            why,
        ))
    }
}
