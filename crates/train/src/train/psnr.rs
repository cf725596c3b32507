//! How well a network gives images back.

use hankelite_data::{Dataset, Steps, Targets};

use crate::nn::SequenceModel;
use crate::train::TrainError;
use crate::train::batch::logits;

/// The peak signal-to-noise ratio in dB of a network that is to give its inputs back, numbers from 0
/// to 1, averaged over the sequences; sequences go through the network `size` at a time.
///
/// ```text
/// PSNR = mean over sequences of 10 log₁₀(1/MSE),   MSE over the numbers of all steps that count
/// ```
///
/// `None` for all other data: targets that are not the inputs, or inputs outside 0 to 1.
///
/// # Errors
/// [`TrainError`], where data and network do not suit each other.
pub fn psnr(
    network: &dyn SequenceModel,
    data: &Dataset,
    size: usize,
) -> Result<Option<f64>, TrainError> {
    let indices: Vec<usize> = (0..data.len()).collect();
    let mut sum = 0.0;
    if !indices.chunks(64).all(|some| gives_back(data, some)) {
        return Ok(None);
    }
    for some in indices.chunks(size.max(1)) {
        let outputs = logits(network, data, some)?;
        let Targets::StepValues {
            values,
            width,
            mask,
        } = data.batch(some).targets
        else {
            return Ok(None);
        };
        let length = data.length();
        let targets = values.chunks_exact(length * width);
        for (index, (output, target)) in outputs.iter().zip(targets).enumerate() {
            let mask = mask.as_ref().map(|mask| &mask[index * length..][..length]);
            sum -= 10.0 * squared_error(output, target, width, mask).log10();
        }
    }
    Ok(Some(sum / data.len() as f64))
}

/// Whether the targets of some sequences are their inputs, images with numbers from 0 to 1.
fn gives_back(data: &Dataset, indices: &[usize]) -> bool {
    if !matches!(data.targets(), Targets::StepValues { .. }) {
        return false;
    }
    let batch = data.batch(indices);
    match (&batch.steps, &batch.targets) {
        (Steps::Values(inputs), Targets::StepValues { values, .. }) => {
            inputs == values && values.iter().all(|x| (0.0..=1.0).contains(x))
        }
        _ => false,
    }
}

/// The mean over the steps that count.
fn squared_error(output: &[f64], target: &[f32], width: usize, mask: Option<&[bool]>) -> f64 {
    let steps = output
        .chunks_exact(width)
        .zip(target.chunks_exact(width))
        .enumerate();
    let counted = steps.filter(|(step, _)| mask.is_none_or(|mask| mask[*step]));
    let (mut sum, mut count) = (0.0, 0);
    for (_, (output, target)) in counted {
        let each = output.iter().zip(target);
        sum += each.map(|(x, y)| (x - f64::from(*y)).powi(2)).sum::<f64>();
        count += width;
    }
    sum / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_steps_that_count_are_compared() {
        let output = [0.5, 0.0, 1.0, 1.0];
        let target = [0.0, 0.5, 0.0, 0.0];
        assert_eq!(squared_error(&output, &target, 2, None), 0.625);
        let mask = [true, false];
        assert_eq!(squared_error(&output, &target, 2, Some(&mask)), 0.25);
    }
}
