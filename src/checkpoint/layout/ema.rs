//! The moving average of MEGA (`fairseq/modules/exponential_moving_average.py`), the same in
//! huggingface/transformers (`modeling_mega.py`, MegaMultiDimensionDampedEma) under other names, and the
//! same kernel in state-spaces/s4: real poles between 0 and 1.
//!
//! ```text
//! p = σ(delta)   q = 1 − σ(delta) σ(alpha)   k[l] = Σ_n p β_n γ_n n^{−1/2} q_n^l
//! ```
//!
//! n is the number of modes, Σ their sum, ω the skip. With twice as many rows as ω the second half
//! runs backwards in time and includes the sample at hand.

use hankelite_control::{DiagonalSystem, SystemClass, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank, not_representable};
use crate::checkpoint::tensors::Tensors;

/// The decay of a slot that no mode fills; its γ is zero.
const PADDING_POLE: f64 = 0.5;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Ema {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    /// Whether tensors have the names of transformers.
    pub(in crate::checkpoint) transformers: bool,
    /// Name of ω, or D.
    pub(in crate::checkpoint) skip: Option<String>,
}

impl Ema {
    /// The name of a tensor, which is called here as in fairseq.
    fn name(&self, tensor: &str) -> String {
        let tensor = match (self.transformers, tensor) {
            (true, "delta") => "damping_factor",
            (true, "alpha") => "decay_factor",
            (true, "beta") => "ema_expansion_matrix",
            (true, "gamma") => "kernel_projection_matrix",
            _ => tensor,
        };
        format!("{}{tensor}", self.place)
    }

    fn channel(
        &self,
        modes: &[[f64; 4]],
        through: f64,
        at: usize,
    ) -> Result<DiagonalSystem, Fault> {
        let sigmoid = |x| Transform::Sigmoid.apply(x);
        let share = (modes.len() as f64).sqrt().recip();
        let (mut exponents, mut residues) = (vec![], vec![]);
        for &[delta, alpha, beta, gamma] in modes {
            let q = -sigmoid(delta) * sigmoid(alpha);
            exponents.push(Complex64::from(q.ln_1p()));
            residues.push(Complex64::from(sigmoid(delta) * beta * gamma * share));
        }
        DiagonalSystem::siso(Time::Discrete { step: 1.0 }, exponents, &residues, through)
            .map_err(|source| bank::fault(&self.layer, at, source))
    }

    fn stored(
        &self,
        system: &DiagonalSystem,
        at: usize,
        order: usize,
    ) -> Result<Vec<[f64; 4]>, Fault> {
        let siso = system.as_siso();
        let residues = siso
            .map_err(|e| bank::fault(&self.layer, at, e))?
            .residues();
        let root = (order as f64).sqrt();
        let mut modes = Vec::with_capacity(order);
        for (exponent, residue) in system.scaled_exponents().into_iter().zip(residues) {
            if exponent.im != 0.0 || exponent.re >= 0.0 {
                let why = "the layout holds real poles between 0 and 1 only; --method real-poles \
                           finds such (`compress-model reduce`), `convert --to s4d` writes a layout \
                           that holds all";
                return Err(not_representable("MEGA", &self.layer, at, exponent, why));
            }
            // σ(delta) = σ(alpha) = √(1 − q)
            let share = (-exponent.re.exp_m1()).sqrt();
            let parameter = Transform::Sigmoid.invert(share).unwrap_or(f64::INFINITY);
            modes.push([parameter, parameter, residue.re * root / share, 1.0]);
        }
        let unused = Transform::Sigmoid
            .invert((1.0 - PADDING_POLE).sqrt())
            .unwrap_or(0.0);
        modes.resize(order, [unused, unused, 0.0, 0.0]);
        Ok(modes)
    }
}

impl Layout for Ema {
    fn family(&self) -> &'static str {
        "MEGA moving average"
    }

    fn class(&self, _: &Tensors<'_>) -> Option<SystemClass> {
        Some(SystemClass::RealPoles)
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let gamma = tensors.values(&self.name("gamma"), "[rows, modes]")?;
        let &[rows, modes] = gamma.shape.as_slice() else {
            return Err(tensors.wrong_shape(&self.name("gamma"), gamma.shape, "[rows, modes]"));
        };
        let expected = format!("[{rows}, {modes}, 1]");
        // In state-spaces/s4 the modes of a row may have one delta.
        let shapes: [&[usize]; 2] = [&[rows, modes, 1], &[rows, 1, 1]];
        let read = |name: &str| {
            let shapes = if name == "delta" {
                &shapes[..]
            } else {
                &shapes[..1]
            };
            let values = tensors.shaped(&self.name(name), shapes, &expected)?.data;
            let each = rows * modes / values.len().max(1);
            let spread = values.into_iter().flat_map(|value| vec![value; each]);
            Ok::<_, Fault>(spread.collect::<Vec<_>>())
        };
        let (delta, alpha, beta) = (read("delta")?, read("alpha")?, read("beta")?);
        let skip = match &self.skip {
            None => vec![vec![0.0; rows]],
            Some(name) => {
                let found = tensors.values(name, "[channels]")?;
                if found.data.len() != rows && 2 * found.data.len() != rows {
                    let expected = format!("[{rows}], or half as many");
                    return Err(tensors.wrong_shape(name, found.shape, &expected));
                }
                vec![found.data]
            }
        };
        let channels = skip[0].len();
        let made = (0..rows).map(|k| {
            let own = (k * modes..(k + 1) * modes)
                .map(|i| [delta[i], alpha[i], beta[i], gamma.data[i]])
                .collect::<Vec<_>>();
            let through = skip[0].get(k).copied().unwrap_or(0.0);
            self.channel(&own, through, k)
        });
        let mut systems = made.collect::<Result<Vec<_>, Fault>>()?;
        let backward = systems.split_off(channels);
        Ok(Dynamics {
            systems,
            backward,
            backward_from: 0,
            note: None,
        })
    }

    fn encode(&self, dynamics: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let all = || dynamics.systems.iter().chain(&dynamics.backward);
        let order = all().map(DiagonalSystem::order).max().unwrap_or(0).max(1);
        let rows = all().count();
        let mut stored = DMatrix::zeros(4, rows * order);
        for (k, system) in all().enumerate() {
            let modes = self.stored(system, k, order)?;
            for (n, mode) in modes.iter().enumerate() {
                stored.column_mut(k * order + n).copy_from_slice(mode);
            }
        }
        let part = |index: usize| stored.row(index).iter().copied().collect::<Vec<f64>>();
        let column = vec![rows, order, 1];
        let mut encoded = vec![
            Encoded::mode(self.name("delta"), column.clone(), part(0)),
            Encoded::mode(self.name("alpha"), column.clone(), part(1)),
            Encoded::mode(self.name("beta"), column, part(2)),
            Encoded::mode(self.name("gamma"), vec![rows, order], part(3)),
        ];
        if let Some(name) = &self.skip {
            let through = dynamics.systems.iter();
            let through = through.map(|system| system.feedthrough()[(0, 0)]).collect();
            encoded.push(Encoded::feedthrough(name.clone(), through));
        }
        Ok(encoded)
    }
}
