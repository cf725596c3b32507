//! Derivatives of the logits by the output of every channel: reverse mode over a whole sequence.

use hankelite_control::StatisticsError;
use nalgebra::DMatrix;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::infer::layer::{Trace, normalised_backward};
use crate::infer::{InferError, Network, Signal};
use crate::model::{Pooling, Sequence};
use crate::progress::Stage;

/// The input of one layer, and the gradient of a combination of the logits by its output.
#[derive(Debug, Clone)]
pub struct OutputGradients {
    /// u, L × H: what the channels convolve.
    pub input: DMatrix<f64>,
    /// J, L × H: the derivative by the channels' output y = k ∗ u + D u.
    pub gradient: DMatrix<f64>,
}

impl Network<'_> {
    /// The derivatives of Σ_c `combination`_c logit_c by the output of every channel of every
    /// layer. Cost about three forward passes; memory O(L H) for each layer.
    ///
    /// # Errors
    /// As [`Network::logits`].
    pub fn output_gradients(
        &self,
        sequence: Sequence<'_>,
        combination: &[f64],
    ) -> Result<Vec<OutputGradients>, InferError> {
        let mut layers = Vec::with_capacity(self.layers.len());
        let combination = combination.to_vec();
        self.differentiate(sequence, &[combination], |_, input, mut gradients| {
            let gradient = gradients.swap_remove(0);
            layers.push(OutputGradients { input, gradient });
        })?;
        layers.reverse();
        Ok(layers)
    }

    /// One forward pass, whose logits are returned, and one backward pass for n combinations of
    /// the logits. `show` gets the index of every layer, from the last one down, its input, and
    /// for each combination the derivative by its channels' output, all L × H. Cost about 1 + 2 n
    /// forward passes; memory O(L H) for each layer and each combination.
    ///
    /// # Errors
    /// As [`Network::logits`].
    pub(crate) fn differentiate(
        &self,
        sequence: Sequence<'_>,
        combinations: &[Vec<f64>],
        mut show: impl FnMut(usize, DMatrix<f64>, Vec<DMatrix<f64>>),
    ) -> Result<Vec<f64>, InferError> {
        let Signal { mut x, steps } = self.encode(sequence)?;
        let mut traces: Vec<Trace> = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let mut trace = Trace::default();
            x = layer.forward(x, Some(&mut trace));
            traces.push(trace);
        }
        let slopes = combinations.iter();
        let mut slopes: Vec<_> = slopes.map(|c| self.head_slope(&x, steps, c)).collect();
        let logits = self.head(x, steps);
        for (index, (layer, trace)) in self.layers.iter().zip(traces).enumerate().rev() {
            let passed = slopes.into_iter();
            let passed = passed.map(|slope| layer.backward(&trace, slope));
            let (below, own) = passed.unzip();
            show(index, trace.input, own);
            slopes = below;
        }
        Ok(logits)
    }

    /// The derivative of a combination of the logits by the last layer's output x.
    fn head_slope(&self, x: &DMatrix<f64>, steps: usize, combination: &[f64]) -> DMatrix<f64> {
        let slope = self.pooled_slope(x.nrows(), x.ncols(), steps, combination);
        match self.model.final_norm() {
            Some(norm) => normalised_backward(norm, x, &slope),
            None => slope,
        }
    }

    /// The derivative of a combination of the logits by what is pooled.
    fn pooled_slope(
        &self,
        length: usize,
        channels: usize,
        steps: usize,
        combination: &[f64],
    ) -> DMatrix<f64> {
        let head = self.model.head().expect("new() requested a head");
        let weight = head.linear.weight.as_ref();
        let pooled = weight * nalgebra::DVector::from_column_slice(combination);
        let mut slope = DMatrix::zeros(length, channels);
        let row = pooled.transpose();
        match head.pooling {
            Some(Pooling::Last) => slope.row_mut(steps - 1).copy_from(&row),
            // Without pooling the combination is taken at every step, and the sum counts.
            pooling => {
                let share = if pooling.is_some() { steps as f64 } else { 1.0 };
                let own = slope.row_iter_mut().take(steps);
                own.for_each(|mut out| out.copy_from(&(&row / share)));
            }
        }
        slope
    }
}

/// How sensitive the logits are to the output of every channel: the mean of J² over steps, sequences and
/// random combinations of the centred logits with weights ±1. An output error of mean square E
/// then moves the centred logits by about L · I · E (squares summed over the classes), to first
/// order and were errors of different steps independent.
///
/// One combination is drawn for each sequence, from its index alone. Cost about three forward
/// passes for each sequence.
///
/// # Errors
/// As [`Network::logits_of_all`]; [`InferError::NoSequences`]; [`InferError::Statistics`] where the
/// squares overflow.
pub fn importance(
    network: &Network<'_>,
    sequences: &[Sequence<'_>],
) -> Result<Vec<Vec<f64>>, InferError> {
    if sequences.is_empty() {
        return Err(InferError::NoSequences);
    }
    let classes = network.model.classes().unwrap_or(0);
    let observer = network.begin(Stage::Importance, sequences.len());
    let numbered = sequences.par_iter().enumerate();
    let squares = numbered.map(|(index, &sequence)| {
        observer.step()?;
        let layers = network.output_gradients(sequence, &combination(index, classes));
        let layers = layers.map_err(|source| InferError::Sequence {
            index,
            source: Box::new(source),
        })?;
        let channels = layers.iter().map(|layer| {
            let columns = layer.gradient.column_iter();
            columns.map(|j| j.norm_squared()).collect::<Vec<f64>>()
        });
        Ok(channels.collect::<Vec<_>>())
    });
    let squares = squares.collect::<Result<Vec<_>, InferError>>()?;
    let samples = (sequences.len() * network.length) as f64;
    let mut total: Vec<Vec<f64>> = squares[0].iter().map(|s| vec![0.0; s.len()]).collect();
    for sequence in &squares {
        for (total, layer) in total.iter_mut().flatten().zip(sequence.iter().flatten()) {
            *total += layer / samples;
        }
    }
    for (layer, of) in total.iter().enumerate() {
        if let Some(channel) = of.iter().position(|mean| !mean.is_finite()) {
            let what = "the gradient of the logits";
            let source = StatisticsError::NotFinite { channel, what };
            return Err(InferError::Statistics { layer, source });
        }
    }
    Ok(total)
}

/// Weights ±1, less their mean where there are several.
pub(crate) fn combination(index: usize, classes: usize) -> Vec<f64> {
    let mut random = ChaCha8Rng::seed_from_u64(index as u64);
    let signs = (0..classes).map(|_| if random.random() { 1.0 } else { -1.0 });
    let mut signs: Vec<f64> = signs.collect();
    if classes < 2 {
        return signs;
    }
    let mean = signs.iter().sum::<f64>() / classes as f64;
    signs.iter_mut().for_each(|sign| *sign -= mean);
    signs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_centred_and_not_all_alike() {
        let drawn: Vec<Vec<f64>> = (0..8).map(|index| combination(index, 10)).collect();
        for signs in &drawn {
            assert!(signs.iter().sum::<f64>().abs() < 1e-12);
        }
        assert!(drawn.iter().any(|signs| *signs != drawn[0]));
        assert_eq!(combination(3, 10), drawn[3]);
    }
}
