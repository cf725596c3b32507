//! Whether inputs are scaled as they were in training, by what batch norms remember of them.

use nalgebra::DMatrix;

use crate::infer::{InferError, Network, Path};
use crate::model::{BatchNorm, Model, Norm, Placement, Sequence};

/// How inputs compare with those of training.
#[derive(Debug, Clone, PartialEq)]
pub struct InputScale {
    /// The first layer whose input comes out of a batch norm.
    pub layer: String,
    /// The mean square of that input about the mean of the training data, relative to their variance,
    /// the median over the channels. About 1 for data like those of training, k² for inputs that are k
    /// times as large.
    pub power: f64,
}

/// The scale of inputs of at most `length` steps. `None` where no input of a layer comes out of a batch
/// norm: a layer norm hides the scale. Costs a [`Network`] and its layers before that one.
///
/// # Errors
/// As [`Network::new`] and [`Network::logits`].
pub fn input_scale(
    model: &Model,
    sequences: &[Sequence<'_>],
    length: usize,
) -> Result<Option<InputScale>, InferError> {
    let Some((at, norm)) = first_batch_norm(model) else {
        return Ok(None);
    };
    let network = Network::new(model, length, Path::Auto)?;
    network.steps_of_all(sequences)?;
    let mut squares = vec![0.0; norm.mean.len()];
    let mut count = 0;
    network.visit_inputs(sequences, at, |_, layer, input, steps| {
        if layer == at {
            add_squares(&mut squares, &norm.bias, input, steps);
            count += steps;
        }
    })?;
    let channels = squares.iter().enumerate();
    let mut ratios: Vec<f64> = channels
        .map(|(h, sum)| {
            let kept = norm.variance[h] / (norm.variance[h] + norm.epsilon);
            sum / (count as f64 * norm.weight[h].powi(2) * kept)
        })
        .filter(|ratio| ratio.is_finite())
        .collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2);
    Ok(median.map(|&power| InputScale {
        layer: model.blocks()[at].name().to_string(),
        power,
    }))
}

/// The first layer whose input a batch norm gives, and that norm.
fn first_batch_norm(model: &Model) -> Option<(usize, &BatchNorm)> {
    let blocks = model.blocks();
    let before = |at: usize| match (blocks[at].norm(), at.checked_sub(1)) {
        (Some((norm, Placement::Pre)), _) => Some(norm),
        (_, Some(last)) => match blocks[last].norm() {
            Some((norm, Placement::Post)) => Some(norm),
            _ => None,
        },
        _ => None,
    };
    (0..blocks.len()).find_map(|at| match before(at) {
        Some(Norm::Batch(norm)) => Some((at, norm)),
        _ => None,
    })
}

/// Adds the squares of each channel (column) about its offset, of so many steps.
fn add_squares(sums: &mut [f64], offsets: &[f64], input: &DMatrix<f64>, steps: usize) {
    for (h, sum) in sums.iter_mut().enumerate() {
        let column = input.column(h);
        let squares = column.iter().take(steps);
        *sum += squares.map(|x| (x - offsets[h]).powi(2)).sum::<f64>();
    }
}
