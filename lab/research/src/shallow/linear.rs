//! The network's first-order part at its start, and the points at which the two are compared.

use hankelite_data::Draw;
use rayon::prelude::*;

use crate::bounds::Radii;
use crate::shallow::samples::DIRECTION;
use crate::shallow::{Parameters, Samples, UnitTrustRegion, Units};

/// f_lin(X; φ) = ⟨∇f(X; φ⁰), φ − φ⁰⟩, for a start with f(X; φ⁰) = 0.
#[derive(Debug, Clone)]
pub struct Linearised<M: Units> {
    start: M,
}

impl<M: Units> Linearised<M> {
    /// At a model's own parameters φ⁰.
    pub fn at(start: &M) -> Self {
        Self {
            start: start.clone(),
        }
    }

    /// f_lin(X; φ) of every sample, for φ of the shape of the start.
    pub fn outputs(&self, parameters: &Parameters, samples: &Samples) -> Vec<f64> {
        let step = parameters.minus(self.start.parameters());
        let indices: Vec<usize> = (0..samples.len()).collect();
        let look = |buffers: &mut (_, Parameters), &index: &usize| {
            let (features, gradient) = buffers;
            let tokens = samples.sequence(index);
            self.start.look(tokens, features);
            gradient.values_mut().fill(0.0);
            self.start.add_gradient(tokens, features, 1.0, gradient);
            gradient.dot(&step)
        };
        let buffers = || (self.start.features(), step.zeros_like());
        indices.par_iter().map_init(buffers, look).collect()
    }
}

/// max |x − y|.
pub fn largest_difference(x: &[f64], y: &[f64]) -> f64 {
    let pairs = x.iter().zip(y);
    pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
}

/// Which point on the boundary of the trust region. The paper leaves it open, and the answer
/// decides how the error of the linearisation falls with the width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// A random direction for every unit. The errors of the units average out: m⁻¹.
    Independent,
    /// One random direction for all units, with +ρ_c for every output weight: m^(−1/2).
    Shared,
    /// +∇h_i at the first sample, with +ρ_c for every output weight: m^(−1/2), and the largest of
    /// the three.
    Adversarial,
}

/// φ⁰ + δ with every group of every unit on the boundary of its ball.
pub fn boundary_point<M: Units>(
    model: &M,
    radii: Radii,
    boundary: Boundary,
    samples: &Samples,
    seed: u64,
) -> Parameters {
    let region = UnitTrustRegion::new(model.parameters(), radii);
    let mut direction = match boundary {
        Boundary::Independent => random(model.parameters(), seed),
        Boundary::Shared => {
            let mut direction = random(model.parameters(), seed);
            let units = direction.units();
            let rows = direction.values_mut().chunks_exact_mut(units);
            rows.for_each(|row| row.fill(row[0]));
            direction
        }
        Boundary::Adversarial => {
            // The gradient of Σ h_i: that of f with all output weights one.
            let mut ones = model.clone();
            ones.parameters_mut().group_mut(0).fill(1.0);
            ones.gradient(samples.sequence(0))
        }
    };
    if boundary != Boundary::Independent {
        direction.group_mut(0).fill(1.0);
    }
    for (group, radius) in region.unit_radii().into_iter().enumerate() {
        let norms = direction.group_norms(group);
        for row in direction.group_mut(group).chunks_exact_mut(norms.len()) {
            for (value, &norm) in row.iter_mut().zip(&norms) {
                *value *= if norm > 0.0 { radius / norm } else { 0.0 };
            }
        }
    }
    direction.add_scaled(1.0, model.parameters());
    direction
}

/// N(0, 1) numbers in the shape of the parameters.
fn random(like: &Parameters, seed: u64) -> Parameters {
    let mut draw = Draw::new(seed, DIRECTION);
    let mut direction = like.zeros_like();
    let values = direction.values_mut().iter_mut();
    values.for_each(|value| *value = draw.normal());
    direction
}
