//! A trust region: every group of parameters stays in a ball round where it started.

use std::collections::BTreeMap;

use candle_core::{Tensor, Var};
use serde::{Deserialize, Serialize};

use crate::nn::{Parameter, SequenceModel, host};
use crate::train::recipe::within;
use crate::train::{RecipeError, TrainError};

/// What a radius is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Scale {
    /// The size at the start: the root mean square, over the balls of a tensor, of their centres'
    /// norms.
    #[default]
    Norm,
    /// 1/√r for r states of a channel.
    States,
}

/// The table `[trust]`: ρ for each group of parameters, 0 (frozen) to inf (free). One ball for each
/// channel, or for each row of a matrix and each entry of a vector outside the state spaces.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trust {
    /// ρ of the groups that are not named.
    #[serde(default = "free")]
    pub radius: f64,
    /// `norm` or `states`. Default `norm`.
    #[serde(default)]
    pub scale: Scale,
    /// ρ of log Δ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// ρ of the real parts of poles, as they are trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay: Option<f64>,
    /// ρ of their imaginary parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency: Option<f64>,
    /// ρ of C.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<f64>,
    /// ρ of D.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedthrough: Option<f64>,
    /// ρ of everything outside the state spaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
}

fn free() -> f64 {
    f64::INFINITY
}

impl Trust {
    /// Checks every radius.
    ///
    /// # Errors
    /// [`RecipeError::Range`].
    pub fn check(&self) -> Result<(), RecipeError> {
        let all = 0.0..=f64::INFINITY;
        within("radius", self.radius, all.clone())?;
        for group in GROUPS {
            within(group.name(), self.of(group), all.clone())?;
        }
        Ok(())
    }

    fn of(&self, group: Part) -> f64 {
        let own = match group {
            Part::Step => self.step,
            Part::Decay => self.decay,
            Part::Frequency => self.frequency,
            Part::Weights => self.weights,
            Part::Feedthrough => self.feedthrough,
            Part::Others => self.others,
        };
        own.unwrap_or(self.radius)
    }
}

/// A group of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Step,
    Decay,
    Frequency,
    Weights,
    Feedthrough,
    Others,
}

const GROUPS: [Part; 6] = [
    Part::Step,
    Part::Decay,
    Part::Frequency,
    Part::Weights,
    Part::Feedthrough,
    Part::Others,
];

impl Part {
    fn of(parameter: &str) -> Self {
        match parameter.rsplit('.').next() {
            Some("log_step") => Part::Step,
            Some("decay" | "log_decay") => Part::Decay,
            Some("frequency") => Part::Frequency,
            Some("weights") => Part::Weights,
            Some("feedthrough") => Part::Feedthrough,
            _ => Part::Others,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Part::Step => "step",
            Part::Decay => "decay",
            Part::Frequency => "frequency",
            Part::Weights => "weights",
            Part::Feedthrough => "feedthrough",
            Part::Others => "others",
        }
    }
}

/// Where the parameters of a network stood, and how far they have moved.
#[derive(Debug)]
pub struct Start(Vec<Tensor>);

impl Start {
    /// Copies of all parameters.
    ///
    /// # Errors
    /// candle's.
    pub fn of(network: &dyn SequenceModel) -> Result<Self, TrainError> {
        let copies = network.parameters().iter();
        let copies = copies.map(|parameter| parameter.var.as_tensor().copy());
        Ok(Self(copies.collect::<candle_core::Result<_>>()?))
    }

    /// ‖θ − θ₀‖/‖θ₀‖ of each group of parameters over the whole network: `step`, `decay`,
    /// `frequency`, `weights`, `feedthrough`, `others`.
    ///
    /// # Errors
    /// candle's.
    pub fn moved(&self, network: &dyn SequenceModel) -> Result<BTreeMap<String, f64>, TrainError> {
        let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for (parameter, start) in network.parameters().iter().zip(&self.0) {
            let (now, then) = (host(parameter.var.as_tensor())?, host(start)?);
            let sum = sums.entry(Part::of(&parameter.name).name()).or_default();
            for (now, then) in now.iter().zip(&then) {
                sum.0 += (now - then).powi(2);
                sum.1 += then * then;
            }
        }
        let shares = sums.into_iter().map(|(name, (moved, size))| {
            let share = if moved == 0.0 {
                0.0
            } else {
                (moved / size).sqrt()
            };
            (name.to_string(), share)
        });
        Ok(shares.collect())
    }
}

/// The balls of one tensor, all of one radius.
#[derive(Debug)]
struct Balls {
    centres: Tensor,
    /// Numbers of each.
    width: usize,
    radius: f64,
}

/// Balls round where a network stood. Each step of projected gradient descent ends with
///
/// ```text
/// θ ← θ₀ + (θ − θ₀) min(1, R/‖θ − θ₀‖)
/// ```
///
/// in every ball. The radius is R = ρ √(mean over the balls of a tensor of ‖θ₀‖²), or ρ/√r with r
/// the states of a channel (1 outside the state spaces). ρ = 0 puts back the very bits of the start,
/// and, where everything outside the state spaces is frozen, the running statistics of batch norms
/// too.
///
/// # References
/// Arda, Cayci and Eryilmaz, the set Ω_ρ and ProjGD.
#[derive(Debug)]
pub struct TrustRegion {
    balls: Vec<Option<Balls>>,
    /// State without a gradient that is to stay, with what it was.
    frozen: Vec<(Var, Tensor)>,
}

impl TrustRegion {
    /// Balls round the network as it stands.
    ///
    /// # Errors
    /// candle's; [`RecipeError::Range`].
    pub fn new(network: &dyn SequenceModel, trust: &Trust) -> Result<Self, TrainError> {
        trust.check()?;
        let states = states(network.parameters());
        let balls = network.parameters().iter().map(|parameter| {
            let part = Part::of(&parameter.name);
            let rho = trust.of(part);
            if rho == f64::INFINITY {
                return Ok(None);
            }
            let prefix = parameter
                .name
                .rsplit_once('.')
                .map_or("", |(prefix, _)| prefix);
            let own = states.get(prefix).filter(|_| part != Part::Others);
            let centres = parameter.var.as_tensor().copy()?;
            let count = centres.dims().first().copied().unwrap_or(1).max(1);
            let size = match trust.scale {
                Scale::States => 1.0 / (own.copied().unwrap_or(1) as f64).sqrt(),
                Scale::Norm => {
                    let squares: f64 = host(&centres)?.iter().map(|x| x * x).sum();
                    (squares / count as f64).sqrt()
                }
            };
            Ok(Some(Balls {
                width: centres.elem_count() / count,
                centres,
                radius: rho * size,
            }))
        });
        let frozen = match trust.of(Part::Others) == 0.0 {
            true => network.buffers(),
            false => &[],
        };
        let copied = frozen.iter().map(|buffer| {
            let value = buffer.var.as_tensor().copy()?;
            Ok((buffer.var.clone(), value))
        });
        Ok(Self {
            balls: balls.collect::<candle_core::Result<_>>()?,
            frozen: copied.collect::<candle_core::Result<_>>()?,
        })
    }

    /// Brings every parameter back into its ball; gives the share of balls that it had left.
    ///
    /// # Errors
    /// candle's.
    pub fn project(&self, parameters: &[Parameter]) -> Result<f64, TrainError> {
        let (mut active, mut all) = (0, 0);
        for (parameter, balls) in parameters.iter().zip(&self.balls) {
            let Some(balls) = balls else { continue };
            let centres = host(&balls.centres)?;
            let mut values = host(parameter.var.as_tensor())?;
            let left = project_all(&mut values, &centres, balls.width, balls.radius);
            all += values.len() / balls.width.max(1);
            active += left;
            if left == 0 {
                continue;
            }
            let var = &parameter.var;
            if balls.radius == 0.0 {
                var.set(&balls.centres)?;
                continue;
            }
            let back = Tensor::from_vec(values, var.shape(), var.device())?;
            var.set(&back.to_dtype(var.dtype())?)?;
        }
        for (var, value) in &self.frozen {
            var.set(value)?;
        }
        Ok(if all == 0 {
            0.0
        } else {
            active as f64 / all as f64
        })
    }
}

/// Projects all balls of a tensor; gives how many had been left.
fn project_all(values: &mut [f64], centres: &[f64], width: usize, radius: f64) -> usize {
    let mut left = 0;
    let width = width.max(1);
    for (values, centres) in values
        .chunks_exact_mut(width)
        .zip(centres.chunks_exact(width))
    {
        let squares = values.iter().zip(centres).map(|(x, c)| (x - c).powi(2));
        let distance = squares.sum::<f64>().sqrt();
        if distance > radius {
            left += 1;
            let share = radius / distance;
            let pairs = values.iter_mut().zip(centres);
            pairs.for_each(|(x, c)| *x = c + (*x - c) * share);
        }
    }
    left
}

/// States of a channel, for each name before the last point.
fn states(parameters: &[Parameter]) -> BTreeMap<&str, usize> {
    let poles = parameters.iter().filter_map(|parameter| {
        let (prefix, name) = parameter.name.rsplit_once('.')?;
        let width = parameter.var.dims().get(1)?;
        (name == "frequency").then_some((prefix, *width))
    });
    poles.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(index: usize) -> f64 {
        (12.9898 * index as f64).sin() * 3.0
    }

    fn distance(a: &[f64], b: &[f64]) -> f64 {
        let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
        squares.sum::<f64>().sqrt()
    }

    /// Feasible, idempotent, non-expansive, and the identity inside.
    #[test]
    fn the_projection_is_one() {
        let (width, radius) = (3, 1.5);
        let centres: Vec<f64> = (0..12).map(|i| number(i + 100)).collect();
        let points: Vec<Vec<f64>> = (0..20)
            .map(|p| {
                let size = 0.2 * p as f64;
                let point = centres.iter().enumerate();
                point.map(|(i, c)| c + size * number(12 * p + i)).collect()
            })
            .collect();
        let projected = |point: &[f64]| {
            let mut point = point.to_vec();
            let left = project_all(&mut point, &centres, width, radius);
            (point, left)
        };
        let mut once_inside = false;
        for a in &points {
            let (inside, left) = projected(a);
            for (x, c) in inside.chunks(width).zip(centres.chunks(width)) {
                assert!(distance(x, c) <= radius * (1.0 + 1e-12));
            }
            let far = a.chunks(width).zip(centres.chunks(width));
            let far = far.filter(|(x, c)| distance(x, c) > radius).count();
            assert_eq!(left, far);
            once_inside |= left == 0;
            assert!(left > 0 || inside == *a);
            assert!(distance(&projected(&inside).0, &inside) < 1e-12);
            for b in &points {
                let apart = distance(&inside, &projected(b).0);
                assert!(apart <= distance(a, b) + 1e-12);
            }
        }
        assert!(once_inside);
    }

    #[test]
    fn groups_follow_from_their_names() {
        let cases = [
            ("blocks.0.log_step", Part::Step),
            ("blocks.1.backward.decay", Part::Decay),
            ("blocks.1.log_decay", Part::Decay),
            ("blocks.0.frequency", Part::Frequency),
            ("blocks.0.weights", Part::Weights),
            ("blocks.0.feedthrough", Part::Feedthrough),
            ("blocks.0.output.weight", Part::Others),
            ("encoder.bias", Part::Others),
        ];
        for (name, part) in cases {
            assert_eq!(Part::of(name), part, "{name}");
        }
    }
}
