//! The modal filters of Laughing Hyena (Zymrael/savanna, `savanna/model/hyena.py`,
//! ParallelModalHyenaFilter; the same tensors as LaughingHyenaModalFilter in
//! `savanna/model/operators/hyena/parametrization/implicit_complex_inner.py`), whose first sample is a
//! number of its own.
//!
//! ```text
//! a_n = r_n e^{i theta_n}    R_n = R_re + i R_im    modes × filters each, `h_0` 1 × filters
//! K[0] = h_0,    K[l] = Re Σ_n R_n a_n^{l−1},  l = 1, 2, …;    y = K ∗ u + b u
//! ```
//!
//! b is `long_conv_bias`, or `conv_bias`, beside the filter, with one number for each channel; it may be
//! missing. Here the weights are R/a, and D is h_0 + b without Re Σ R/a. The filter of a group is that of
//! each of its channels, as in StripedHyena.
//!
//! r may have any sign, and be 0: such a mode acts at lag 1 alone, and R/a has no value. Poles nearer to 0
//! than [`POLE_MIN`] are read as being that far from it.

use std::f64::consts::{PI, TAU};

use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::bank::{self, Modes};
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, Role};
use crate::checkpoint::tensors::Tensors;

/// The least |a| that is read: the kernel changes by as much, relative to R, which is below the rounding of
/// its single precision, and D, from which R/a is taken, keeps nine digits of h_0.
const POLE_MIN: f64 = 1e-7;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct LaughingHyena {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    /// Name of b.
    pub(in crate::checkpoint) bias: Option<String>,
}

/// The filters of a file.
struct Filters {
    /// ln a of the modes of each filter.
    exponents: Vec<Vec<Complex64>>,
    /// R/a.
    residues: Vec<Vec<Complex64>>,
    /// h_0 of each filter.
    first: Vec<f64>,
    /// Poles that are too near to 0.
    at_zero: usize,
}

/// Numbers of modes × filters.
#[derive(Default)]
struct Stored {
    radius: Vec<f64>,
    angle: Vec<f64>,
    weight: Vec<Complex64>,
}

/// What the modes give at the sample that enters them.
fn at_once(residues: &[Complex64]) -> f64 {
    residues.iter().map(|residue| residue.re).sum()
}

/// r and θ of a pole; a negative real one has a negative r, since π is no number in single precision.
fn polar(exponent: Complex64) -> (f64, f64) {
    let radius = exponent.re.exp();
    let turns = (exponent.im / TAU).round();
    let angle = exponent.im - turns * TAU;
    if angle.abs() == PI {
        return (-radius, 0.0);
    }
    (radius, angle)
}

impl LaughingHyena {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    fn filters(&self, tensors: &Tensors<'_>) -> Result<Filters, Fault> {
        let radii = tensors.real_matrix(&self.name("r"), [None, None])?;
        let (modes, count) = radii.shape();
        let read = |name: &str| tensors.real_matrix(&self.name(name), [Some(modes), Some(count)]);
        let (angles, re, im) = (read("theta")?, read("R_re")?, read("R_im")?);
        let first = tensors.real_matrix(&self.name("h_0"), [Some(1), Some(count)])?;
        let exponent = |n: usize, s: usize| {
            let radius: f64 = radii[(n, s)];
            let half_turn = if radius < 0.0 { PI } else { 0.0 };
            let decay = radius.abs().max(POLE_MIN).ln();
            Complex64::new(decay, angles[(n, s)] + half_turn)
        };
        let column = |s: usize| (0..modes).map(|n| exponent(n, s)).collect::<Vec<_>>();
        let exponents: Vec<_> = (0..count).map(column).collect();
        let residues = exponents.iter().enumerate().map(|(s, exponents)| {
            let modes = exponents.iter().enumerate();
            modes
                .map(|(n, z)| Complex64::new(re[(n, s)], im[(n, s)]) * (-z).exp())
                .collect()
        });
        Ok(Filters {
            residues: residues.collect(),
            exponents,
            first: first.as_slice().to_vec(),
            at_zero: radii.iter().filter(|r| r.abs() < POLE_MIN).count(),
        })
    }

    /// b of every channel, of which there are as many for each filter; zero where there is none.
    fn biases(&self, tensors: &Tensors<'_>, filters: usize) -> Result<Vec<f64>, Fault> {
        let Some(name) = &self.bias else {
            return Ok(vec![0.0; filters]);
        };
        let expected = format!("[a multiple of {filters}]");
        let found = tensors.values(name, &expected)?;
        match found.shape.as_slice() {
            &[channels] if channels > 0 && channels % filters == 0 => Ok(found.data),
            _ => Err(tensors.wrong_shape(name, found.shape, &expected)),
        }
    }

    fn note(&self, filters: &Filters) -> Option<String> {
        (filters.at_zero > 0).then(|| {
            format!(
                "`{}`: {} modes have |r| below {POLE_MIN:e} and act at lag 1 alone; they are read with \
                 |r| = {POLE_MIN:e}",
                self.layer, filters.at_zero
            )
        })
    }

    /// The tensors of the modes, with those of one filter in a column.
    fn encode_modes(&self, filters: &[(usize, Modes)]) -> Vec<Encoded> {
        let modes = filters.first().map_or(1, |(_, m)| m.exponents.len());
        let mut stored = Stored::default();
        for n in 0..modes {
            for (_, filter) in filters {
                let exponent = filter.step * filter.exponents[n];
                let (radius, angle) = polar(exponent);
                stored.radius.push(radius);
                stored.angle.push(angle);
                stored.weight.push(filter.residues[0][n] * exponent.exp());
            }
        }
        let part = |of: fn(&Complex64) -> f64| stored.weight.iter().map(of).collect();
        let (re, im) = (part(|weight| weight.re), part(|weight| weight.im));
        let parts = [
            ("r", stored.radius),
            ("theta", stored.angle),
            ("R_re", re),
            ("R_im", im),
        ];
        let made = parts.into_iter().map(|(name, data)| {
            let shape = vec![modes, filters.len()];
            Encoded::mode(self.name(name), shape, data)
        });
        made.collect()
    }
}

impl Layout for LaughingHyena {
    fn family(&self) -> &'static str {
        "Laughing Hyena"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let filters = self.filters(tensors)?;
        let biases = self.biases(tensors, filters.first.len())?;
        let each = biases.len() / filters.first.len();
        let through = biases.iter().enumerate().map(|(channel, bias)| {
            let filter = channel / each;
            filters.first[filter] - at_once(&filters.residues[filter]) + bias
        });
        let modes = (0..biases.len()).map(|channel| Modes {
            step: 1.0,
            exponents: filters.exponents[channel / each].clone(),
            residues: vec![filters.residues[channel / each].clone()],
        });
        Ok(Dynamics {
            note: self.note(&filters),
            ..bank::systems(&self.layer, modes, &[through.collect()])?
        })
    }

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let modes = bank::single_modes_of(&self.layer, dynamics)?;
        let channels = modes.len();
        let stored = tensors.shape(&self.name("r")).and_then(|s| s.get(1));
        let filters = bank::grouped(modes, channels / stored.copied().unwrap_or(channels).max(1));
        let each = channels / filters.len().max(1);
        let through = bank::feedthrough_of(dynamics);
        let biases = match self.bias {
            Some(_) => self.biases(tensors, 1)?,
            None => vec![0.0; channels],
        };
        let lag_0 = filters.iter().map(|(channel, modes)| {
            through[*channel] + at_once(&modes.residues[0]) - biases[*channel]
        });
        let lag_0: Vec<f64> = lag_0.collect();
        let mut encoded = self.encode_modes(&filters);
        // h_0 changes with the modes, and with D alone.
        encoded.extend([Role::Mode, Role::Feedthrough].map(|role| Encoded {
            role,
            ..Encoded::mode(self.name("h_0"), vec![1, lag_0.len()], lag_0.clone())
        }));
        if let Some(name) = &self.bias {
            let rest = through.iter().enumerate().map(|(channel, d)| {
                let filter = channel / each;
                d + at_once(&filters[filter].1.residues[0]) - lag_0[filter]
            });
            encoded.push(Encoded::feedthrough(name.clone(), rest.collect()));
        }
        Ok(encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pole_is_its_radius_and_angle() {
        for (radius, angle) in [(0.5, 0.0), (0.5, -3.0), (1.5, 3.0), (-0.5, 0.0)] {
            let half_turn = if radius < 0.0 { PI } else { 0.0 };
            let (r, theta) = polar(Complex64::new(f64::abs(radius).ln(), angle + half_turn));
            assert!((r - radius).abs() < 1e-15 && (theta - angle).abs() < 1e-15);
            let (_, theta) = polar(Complex64::new(0.0, angle + TAU));
            assert!((theta - angle).abs() < 1e-14);
        }
    }
}
