//! Projected gradient descent.

use hankelite_data::Draw;

use crate::bounds::Radii;
use crate::shallow::batch::{loss, loss_gradient};
use crate::shallow::samples::STEPS;
use crate::shallow::{Samples, ShallowError, UnitTrustRegion, Units};

/// What a step sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sampling {
    /// All samples: ProjGD.
    All,
    /// One sample, all equally likely: ProjSGD.
    One {
        /// Of the order of the samples.
        seed: u64,
        /// The loss over all samples is measured at every so many steps; at least 1.
        every: usize,
    },
}

/// Settings of a descent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Descent {
    /// n_steps, at least 1.
    pub steps: usize,
    /// lr, of the gradient of the mean squared error.
    pub rate: f64,
    /// What a step sees.
    pub sampling: Sampling,
    /// ρ of the trust region around the start; `None`: steps are free.
    pub radii: Option<Radii>,
}

impl Descent {
    /// As in the theorem: lr = 1/√n_steps, all samples.
    pub fn theory(steps: usize, radii: Option<Radii>) -> Self {
        Self {
            steps,
            rate: 1.0 / (steps as f64).sqrt(),
            sampling: Sampling::All,
            radii,
        }
    }

    fn check(&self) -> Result<(), ShallowError> {
        let every = match self.sampling {
            Sampling::All => 1,
            Sampling::One { every, .. } => every,
        };
        let sizes = [("the number of steps", self.steps), ("`every`", every)];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ShallowError::Empty { what });
        }
        let radii = self
            .radii
            .map_or([0.0; 3], |radii| [radii.c, radii.u, radii.w]);
        let numbers = [self.rate, radii[0], radii[1], radii[2]];
        match numbers.into_iter().find(|x| x.is_nan() || *x < 0.0) {
            Some(found) => Err(ShallowError::Range {
                what: "a step size or radius",
                found,
                expected: "zero or above",
            }),
            None => Ok(()),
        }
    }
}

/// What a descent came to.
#[derive(Debug, Clone, PartialEq)]
pub struct DescentRecord {
    /// The loss over all samples before the steps at which it was measured, in order: before every
    /// step of ProjGD.
    pub losses: Vec<f64>,
    /// The least of them.
    pub least: f64,
    /// The loss of the mean of the iterates before each step.
    pub average_iterate: f64,
    /// Projections of a group of a unit that moved it, over all steps.
    pub projected: usize,
}

/// φ ← Π(φ − lr ∇L) for so many steps, from where the model stands. `watch` sees the model before
/// every step.
///
/// # Errors
/// [`ShallowError::Empty`] for no steps; [`ShallowError::Range`] for a negative step size or radius;
/// [`ShallowError::Shape`] for tokens of another width.
///
/// # References
/// Arda, Cayci and Eryilmaz, Algorithms 1 and 2.
pub fn descend<M: Units>(
    model: &mut M,
    samples: &Samples,
    descent: &Descent,
    watch: &mut dyn FnMut(usize, &M),
) -> Result<DescentRecord, ShallowError> {
    descent.check()?;
    if samples.width() != model.width() {
        return Err(ShallowError::Shape {
            what: "numbers of a token",
            found: samples.width(),
            expected: model.width(),
        });
    }
    let region = descent
        .radii
        .map(|radii| UnitTrustRegion::new(model.parameters(), radii));
    let mut order = match descent.sampling {
        Sampling::One { seed, .. } => Draw::new(seed, STEPS),
        Sampling::All => Draw::new(0, STEPS),
    };
    let (mut losses, mut projected) = (Vec::new(), 0);
    let mut sum = model.parameters().zeros_like();
    for step in 0..descent.steps {
        watch(step, model);
        sum.add_scaled(1.0, model.parameters());
        let gradient = match descent.sampling {
            Sampling::All => {
                let (loss, gradient) = loss_gradient(model, samples);
                losses.push(loss);
                gradient
            }
            Sampling::One { every, .. } => {
                if step % every == 0 {
                    losses.push(loss(model, samples));
                }
                sample_gradient(model, samples, order.below(samples.len()))
            }
        };
        model.parameters_mut().add_scaled(-descent.rate, &gradient);
        projected += region
            .as_ref()
            .map_or(0, |region| region.project(model.parameters_mut()));
    }
    let mut average = model.clone();
    *average.parameters_mut() = sum.zeros_like();
    average
        .parameters_mut()
        .add_scaled(1.0 / descent.steps as f64, &sum);
    Ok(DescentRecord {
        least: losses.iter().copied().fold(f64::INFINITY, f64::min),
        average_iterate: loss(&average, samples),
        losses,
        projected,
    })
}

/// The gradient of (f(X) − y)² of one sample.
fn sample_gradient<M: Units>(
    model: &M,
    samples: &Samples,
    index: usize,
) -> crate::shallow::Parameters {
    let tokens = samples.sequence(index);
    let (mut features, mut gradient) = (model.features(), model.parameters().zeros_like());
    model.look(tokens, &mut features);
    let weight = 2.0 * (model.output_of(&features) - samples.labels()[index]);
    model.add_gradient(tokens, &features, weight, &mut gradient);
    gradient
}
