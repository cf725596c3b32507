//! Sums over all samples, in parallel, in an order that does not depend on the number of threads.

use rayon::prelude::*;

use crate::shallow::{Parameters, Samples, Units};

/// Groups of samples whose sums are formed one after the other.
const GROUPS: usize = 16;

/// f(X) of every sample.
pub fn outputs<M: Units>(model: &M, samples: &Samples) -> Vec<f64> {
    let indices: Vec<usize> = (0..samples.len()).collect();
    let look = |features: &mut _, &index: &usize| {
        model.look(samples.sequence(index), features);
        model.output_of(features)
    };
    indices
        .par_iter()
        .map_init(|| model.features(), look)
        .collect()
}

/// The mean of (f(X) − y)².
pub fn loss<M: Units>(model: &M, samples: &Samples) -> f64 {
    let pairs = outputs(model, samples).into_iter().zip(samples.labels());
    pairs.map(|(f, y)| (f - y).powi(2)).sum::<f64>() / samples.len() as f64
}

/// The mean of (f(X) − y)², and its gradient.
pub fn loss_gradient<M: Units>(model: &M, samples: &Samples) -> (f64, Parameters) {
    let count = samples.len() as f64;
    let (squares, gradient) = weighted(model, samples, |f, y| 2.0 * (f - y) / count);
    (squares / count, gradient)
}

/// The mean of ∇_φ f(X). Its parts for W and w are the Jacobian norms of the paper's comparison.
pub fn mean_gradient<M: Units>(model: &M, samples: &Samples) -> Parameters {
    weighted(model, samples, |_, _| 1.0 / samples.len() as f64).1
}

/// Σ (f − y)² and Σ weight(f, y) ∇_φ f.
fn weighted<M: Units>(
    model: &M,
    samples: &Samples,
    weight: impl Fn(f64, f64) -> f64 + Sync,
) -> (f64, Parameters) {
    let size = samples.len().div_ceil(GROUPS);
    let starts: Vec<usize> = (0..samples.len()).step_by(size).collect();
    let group = |&start: &usize| {
        let (mut features, mut sum) = (model.features(), model.parameters().zeros_like());
        let mut squares = 0.0;
        for index in start..(start + size).min(samples.len()) {
            let (tokens, y) = (samples.sequence(index), samples.labels()[index]);
            model.look(tokens, &mut features);
            let f = model.output_of(&features);
            squares += (f - y).powi(2);
            model.add_gradient(tokens, &features, weight(f, y), &mut sum);
        }
        (squares, sum)
    };
    let groups: Vec<_> = starts.par_iter().map(group).collect();
    let mut total = (0.0, model.parameters().zeros_like());
    for (squares, sum) in &groups {
        total.0 += squares;
        total.1.add_scaled(1.0, sum);
    }
    total
}
