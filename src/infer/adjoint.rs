//! Derivatives of the logits by the output of every channel: reverse mode over a whole sequence.

use hankelite_control::{DiagonalSystem, StatisticsError, gram_matrix, output_slopes};
use hankelite_kernels::SharedGradient;
use nalgebra::DMatrix;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::infer::layer::{StepSums, Trace, normalised_backward};
use crate::infer::single::{
    HeadSlopes, MapSums, NumberSlopes, Pulled, Single, VectorSlopes, Wanted,
};
use crate::infer::{InferError, Network, Signal};
use crate::model::{Block, Pooling, Sequence};
use crate::progress::stage;

/// The input of one layer, and the gradient of a combination of the logits by its output.
#[derive(Debug, Clone)]
pub struct OutputGradients {
    /// u, L × H: what the channels convolve.
    pub input: DMatrix<f64>,
    /// J, L × H: the derivative by the channels' output y = k ∗ u + D u.
    pub gradient: DMatrix<f64>,
}

/// Derivatives of some combinations of the logits by the numbers of one layer.
pub(crate) struct LayerSlopes {
    /// Index of the layer.
    pub(crate) layer: usize,
    /// u, L × H.
    pub(crate) input: DMatrix<f64>,
    /// What the map between the channels takes, GELU(y), L × H.
    pub(crate) activated: DMatrix<f64>,
    /// One for each combination.
    pub(crate) combinations: Vec<CombinationSlopes>,
}

/// Derivatives of one combination of the logits.
pub(crate) struct CombinationSlopes {
    /// By the channels' output, L × H.
    pub(crate) output: DMatrix<f64>,
    /// By what the map between the channels gives, L × its outputs.
    pub(crate) mixed: DMatrix<f64>,
    /// By the bias of the map between the channels.
    pub(crate) bias: StepSums,
    /// By the factors of the norm.
    pub(crate) factors: StepSums,
    /// By its offsets.
    pub(crate) offsets: StepSums,
}

/// Derivatives by the numbers of the systems of one layer.
pub(crate) enum SystemSlopes {
    /// By what the systems give, and what they take.
    Outputs(OutputGradients),
    /// By the numbers of the system that all channels share.
    Shared(SharedGradient<f32>),
}

impl SystemSlopes {
    /// Adds those of another sequence, where both are by the numbers of a system.
    pub(crate) fn add(&mut self, other: &Self) {
        if let (Self::Shared(sum), Self::Shared(own)) = (self, other) {
            sum.add(own);
        }
    }
}

/// Derivatives of some combinations of the logits by what the systems of one layer give.
pub(crate) struct OutputSlopes {
    /// Index of the layer.
    pub(crate) layer: usize,
    /// Whether some combinations of the layer were shown before.
    pub(crate) continued: bool,
    /// What the systems take, L × H.
    pub(crate) input: DMatrix<f64>,
    /// One for each combination, L × outputs.
    pub(crate) combinations: Vec<DMatrix<f64>>,
}

/// Derivatives of some combinations of the logits of one sequence by the map between the channels of a
/// layer.
pub(crate) struct MapSlopes {
    /// For each combination by entries and bias: outputs × (inputs + 1) by rows, the bias last.
    pub(crate) rows: Vec<Vec<f32>>,
    /// For each output the squared derivatives by what the map gives, summed over steps and
    /// combinations.
    pub(crate) squares: Vec<f64>,
    /// Σ x xᵀ over the steps, x being what the map takes with 1 behind.
    pub(crate) second: DMatrix<f64>,
}

impl MapSlopes {
    fn of_sums(sums: &MapSums) -> Self {
        let inputs = sums.sum.sum.len();
        let steps = sums.steps as f64;
        let rows = sums.entries.iter().zip(&sums.bias).map(|(entries, bias)| {
            let outputs = entries.chunks_exact(inputs).zip(&bias.sum);
            let rows = outputs.flat_map(|(own, &bias)| own.iter().copied().chain([bias as f32]));
            rows.collect()
        });
        let mut squares = vec![0.0; sums.bias.first().map_or(0, |bias| bias.squares.len())];
        for bias in &sums.bias {
            squares
                .iter_mut()
                .zip(&bias.squares)
                .for_each(|(sum, own)| *sum += own);
        }
        Self {
            rows: rows.collect(),
            squares,
            second: DMatrix::from_fn(inputs + 1, inputs + 1, |i, j| {
                match (i < inputs, j < inputs) {
                    (true, true) => f64::from(sums.second[i * inputs + j]),
                    (true, false) => sums.sum.sum[i],
                    (false, true) => sums.sum.sum[j],
                    (false, false) => steps,
                }
            }),
        }
    }

    /// In double precision.
    fn of_layer(layer: &LayerSlopes) -> Self {
        let inputs = layer.activated.ncols();
        let x = layer.activated.clone().insert_column(inputs, 1.0);
        let rows = layer.combinations.iter().map(|own| {
            let slopes = x.tr_mul(&own.mixed);
            slopes.iter().map(|&slope| slope as f32).collect()
        });
        let outputs = layer
            .combinations
            .first()
            .map_or(0, |own| own.mixed.ncols());
        let squares = (0..outputs).map(|output| {
            let squares = layer.combinations.iter();
            squares
                .map(|own| own.mixed.column(output).norm_squared())
                .sum()
        });
        Self {
            rows: rows.collect(),
            squares: squares.collect(),
            second: gram_matrix(&x),
        }
    }
}

/// Combinations of the logits of one sequence.
#[derive(Clone, Copy)]
struct Combined<'a> {
    sequence: Sequence<'a>,
    combinations: &'a [Vec<f64>],
}

impl NumberSlopes {
    /// From derivatives by the outputs of the channels, in double precision.
    fn of_layer(block: &Block, layer: LayerSlopes) -> Self {
        let bases = match block.is_siso() {
            true => block.systems(),
            false => &[],
        };
        let bases = bases.iter().enumerate().map(|(h, system)| {
            let input = layer.input.column(h);
            output_slopes(system, input.as_slice())
        });
        let bases: Vec<DMatrix<f64>> = bases.collect();
        let residues = layer.combinations.iter().map(|own| {
            let channels = bases.iter().zip(own.output.column_iter());
            let slopes = channels.map(|(basis, j)| basis.tr_mul(&j).iter().copied().collect());
            slopes.collect()
        });
        Self {
            layer: layer.layer,
            first: 0,
            residues: residues.collect(),
            vectors: layer
                .combinations
                .into_iter()
                .map(|own| VectorSlopes {
                    bias: own.bias,
                    factors: own.factors,
                    offsets: own.offsets,
                })
                .collect(),
        }
    }
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
        let mut layers = Vec::with_capacity(self.model.blocks().len());
        let combination = combination.to_vec();
        self.differentiate(sequence, &[combination], 0, |mut layer| {
            let gradient = layer.combinations.swap_remove(0).output;
            let input = layer.input;
            layers.push(OutputGradients { input, gradient });
        })?;
        layers.reverse();
        Ok(layers)
    }

    /// One forward pass, whose logits are returned, and one backward pass for n combinations of
    /// the logits. `show` gets the layers from the last one down to `lowest`. Cost about 1 + 2 n forward
    /// passes; memory O(L H) for each layer and each combination.
    ///
    /// # Errors
    /// As [`Network::logits`].
    pub(crate) fn differentiate(
        &self,
        sequence: Sequence<'_>,
        combinations: &[Vec<f64>],
        lowest: usize,
        mut show: impl FnMut(LayerSlopes),
    ) -> Result<Vec<f64>, InferError> {
        let Signal { mut x, steps } = self.encode(sequence)?;
        let layers = self.layers()?;
        let mut traces: Vec<Trace> = Vec::with_capacity(layers.len());
        for layer in layers {
            let mut trace = Trace::default();
            x = layer.forward(x, Some(&mut trace));
            traces.push(trace);
        }
        let slopes = combinations.iter();
        let mut slopes: Vec<_> = slopes.map(|c| self.head_slope(&x, steps, c)).collect();
        let logits = self.head(x, steps);
        for (index, (layer, trace)) in layers.iter().zip(traces).enumerate().rev() {
            let passed = slopes.into_iter();
            let passed = passed.map(|slope| layer.backward(&trace, slope));
            let (below, combinations) = passed
                .map(|slopes| {
                    let own = CombinationSlopes {
                        output: slopes.output,
                        mixed: slopes.mixed,
                        bias: slopes.bias,
                        factors: slopes.factors,
                        offsets: slopes.offsets,
                    };
                    (slopes.below, own)
                })
                .unzip();
            show(LayerSlopes {
                layer: index,
                input: trace.input,
                activated: layer.activate(&trace.y),
                combinations,
            });
            if index <= lowest {
                break;
            }
            slopes = below;
        }
        Ok(logits)
    }

    /// One forward pass, whose logits are returned, and one backward pass for n combinations of the
    /// logits: their derivatives by the residues and feedthroughs of every layer that has one system
    /// per channel, and with `vectors` by biases and norms. `show` gets the layers from the last one
    /// down to the first, for a few combinations at a time where sequences are long. Cost about 1 + n
    /// forward passes.
    ///
    /// # Errors
    /// As [`Network::logits`].
    pub(crate) fn number_slopes(
        &self,
        sequence: Sequence<'_>,
        combinations: &[Vec<f64>],
        vectors: bool,
        mut show: impl FnMut(NumberSlopes),
    ) -> Result<Vec<f64>, InferError> {
        let blocks = self.model.blocks();
        let Some(single) = &self.single else {
            return self.differentiate(sequence, combinations, 0, |layer| {
                show(NumberSlopes::of_layer(&blocks[layer.layer], layer));
            });
        };
        let wanted = Wanted {
            vectors,
            ..Wanted::default()
        };
        let combined = Combined {
            sequence,
            combinations,
        };
        self.pull_back(single, combined, wanted, |pulled| {
            let systems = blocks[pulled.layer].systems().iter();
            let orders: Vec<usize> = systems.map(DiagonalSystem::order).collect();
            show(NumberSlopes {
                layer: pulled.layer,
                first: pulled.first,
                residues: single.residue_slopes(&pulled, &orders),
                vectors: pulled.vectors,
            });
        })
    }

    /// The way forwards and back in single precision.
    fn pull_back(
        &self,
        single: &Single,
        Combined {
            sequence,
            combinations,
        }: Combined<'_>,
        wanted: Wanted,
        show: impl FnMut(Pulled<'_>),
    ) -> Result<Vec<f64>, InferError> {
        let steps = self.steps_of(sequence)?;
        let head = self.model.head().expect("new() requested a head");
        let weight = head.linear.weight.as_ref();
        let by_features = combinations.iter().map(|combination| {
            let slope = weight * nalgebra::DVector::from_column_slice(combination);
            slope.iter().copied().collect()
        });
        let by_features: Vec<Vec<f64>> = by_features.collect();
        let head = HeadSlopes {
            by_features: &by_features,
            pooling: head.pooling,
            steps,
        };
        let features = single.pull_back(sequence, head, wanted, show);
        Ok(self.read_out(&features))
    }

    /// Σ_t J² of every channel of every layer, J being the derivative of a combination of the
    /// logits by its output.
    fn squared_gradients(
        &self,
        sequence: Sequence<'_>,
        combination: Vec<f64>,
    ) -> Result<Vec<Vec<f64>>, InferError> {
        let mut layers = Vec::with_capacity(self.model.blocks().len());
        let Some(single) = &self.single else {
            for layer in self.output_gradients(sequence, &combination)? {
                let columns = layer.gradient.column_iter();
                layers.push(columns.map(|j| j.norm_squared()).collect());
            }
            return Ok(layers);
        };
        let combined = Combined {
            sequence,
            combinations: &[combination],
        };
        self.pull_back(single, combined, Wanted::default(), |pulled| {
            let channels = self.model.blocks()[pulled.layer].channels();
            let mut squares = vec![0.0; channels];
            for row in pulled.outputs.chunks_exact(channels) {
                for (sum, &j) in squares.iter_mut().zip(row) {
                    *sum += f64::from(j).powi(2);
                }
            }
            layers.push(squares);
        })?;
        layers.reverse();
        Ok(layers)
    }

    /// The derivatives of some combinations of the logits by what the systems of every layer give.
    /// `show` gets the layers from the last one down to the first, for a few combinations at a time
    /// where sequences are long. Cost as [`Network::number_slopes`].
    ///
    /// # Errors
    /// As [`Network::logits`].
    pub(crate) fn output_slopes(
        &self,
        sequence: Sequence<'_>,
        combinations: &[Vec<f64>],
        mut show: impl FnMut(OutputSlopes),
    ) -> Result<(), InferError> {
        let Some(single) = &self.single else {
            self.differentiate(sequence, combinations, 0, |layer| {
                let own = layer.combinations.into_iter();
                show(OutputSlopes {
                    layer: layer.layer,
                    continued: false,
                    input: layer.input,
                    combinations: own.map(|own| own.output).collect(),
                });
            })?;
            return Ok(());
        };
        let combined = Combined {
            sequence,
            combinations,
        };
        self.pull_back(single, combined, Wanted::default(), |pulled| {
            let gradients = pulled.outputs.chunks_exact(single.row());
            show(OutputSlopes {
                layer: pulled.layer,
                continued: pulled.first > 0,
                input: self.widened(pulled.input),
                combinations: gradients.map(|g| self.widened(g)).collect(),
            });
        })?;
        Ok(())
    }

    /// The logits of a sequence, and derivatives of some combinations of them by the map between the
    /// channels of a layer. Cost as [`Network::number_slopes`].
    ///
    /// # Errors
    /// As [`Network::logits`].
    pub(crate) fn map_slopes(
        &self,
        sequence: Sequence<'_>,
        combinations: &[Vec<f64>],
        layer: usize,
    ) -> Result<(Vec<f64>, Vec<MapSlopes>), InferError> {
        let mut made = Vec::new();
        let logits = match &self.single {
            None => self.differentiate(sequence, combinations, layer, |slopes| {
                if slopes.layer == layer {
                    made.push(MapSlopes::of_layer(&slopes));
                }
            })?,
            Some(single) => {
                let combined = Combined {
                    sequence,
                    combinations,
                };
                let wanted = Wanted {
                    lowest: layer,
                    map: true,
                    ..Wanted::default()
                };
                self.pull_back(single, combined, wanted, |pulled| {
                    made.extend(pulled.map.as_ref().map(MapSlopes::of_sums));
                })?
            }
        };
        Ok((logits, made))
    }

    /// One pass forwards and one backwards for a function of the logits and of the streams behind all
    /// layers, L × width by rows each. `slopes` gets both and gives the derivatives by them. Cost
    /// about three forward passes; memory O(L H) for each layer.
    ///
    /// # Errors
    /// As [`Network::logits`].
    pub(crate) fn pulled_back(
        &self,
        sequence: Sequence<'_>,
        slopes: impl FnOnce(&[f64], &[f32]) -> (Vec<f64>, Vec<f32>),
    ) -> Result<Vec<SystemSlopes>, InferError> {
        let Some(single) = &self.single else {
            return self.pulled_back_double(sequence, slopes);
        };
        let (steps, pooling) = (self.steps_of(sequence)?, self.pooling());
        let head = self.model.head().expect("new() requested a head");
        let weight = head.linear.weight.as_ref();
        let by_features = |features: &[f64], streams: &[f32]| {
            let (combination, by_streams) = slopes(&self.read_out(features), streams);
            let slope = weight * nalgebra::DVector::from_vec(combination);
            (slope.iter().copied().collect(), by_streams)
        };
        let mut pulled = Vec::with_capacity(self.model.blocks().len());
        single.pull_back_with(sequence, (steps, pooling), by_features, |mut layer| {
            pulled.push(match layer.systems.pop() {
                Some(own) => SystemSlopes::Shared(own),
                None => SystemSlopes::Outputs(OutputGradients {
                    input: self.widened(layer.input),
                    gradient: self.widened(layer.outputs),
                }),
            });
        });
        pulled.reverse();
        Ok(pulled)
    }

    /// [`Network::pulled_back`] in double precision.
    fn pulled_back_double(
        &self,
        sequence: Sequence<'_>,
        slopes: impl FnOnce(&[f64], &[f32]) -> (Vec<f64>, Vec<f32>),
    ) -> Result<Vec<SystemSlopes>, InferError> {
        let Signal { mut x, steps } = self.encode(sequence)?;
        let layers = self.layers()?;
        let mut traces: Vec<Trace> = Vec::with_capacity(layers.len());
        let mut streams = Vec::new();
        for layer in layers {
            let mut trace = Trace::default();
            x = layer.forward(x, Some(&mut trace));
            streams.extend(x.transpose().iter().map(|&x| x as f32));
            traces.push(trace);
        }
        let logits = self.head(x.clone(), steps);
        let (combination, by_streams) = slopes(&logits, &streams);
        let mut slope = self.head_slope(&x, steps, &combination);
        let mut pulled = Vec::with_capacity(traces.len());
        let mut left = by_streams.as_slice();
        for (layer, trace) in layers.iter().zip(traces).rev() {
            let own;
            (left, own) = left.split_at(left.len() - slope.len());
            let (length, width) = slope.shape();
            let own = DMatrix::from_fn(length, width, |t, h| f64::from(own[t * width + h]));
            let made = layer.backward(&trace, slope + own);
            slope = made.below;
            pulled.push(SystemSlopes::Outputs(OutputGradients {
                input: trace.input,
                gradient: made.output,
            }));
        }
        pulled.reverse();
        Ok(pulled)
    }

    /// The streams behind all layers, L × width by rows each.
    ///
    /// # Errors
    /// As [`Network::logits`].
    pub(crate) fn streams(&self, sequence: Sequence<'_>) -> Result<Vec<f32>, InferError> {
        if let Some(single) = &self.single {
            self.steps_of(sequence)?;
            return Ok(single.streams(sequence));
        }
        let Signal { mut x, .. } = self.encode(sequence)?;
        let mut streams = Vec::new();
        for layer in self.layers()? {
            x = layer.forward(x, None);
            streams.extend(x.transpose().iter().map(|&x| x as f32));
        }
        Ok(streams)
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
/// As [`Network::logits_of_all`]; [`InferError`] for no sequences; [`InferError::Statistics`] where the
/// squares overflow.
pub fn importance(
    network: &Network<'_>,
    sequences: &[Sequence<'_>],
) -> Result<Vec<Vec<f64>>, InferError> {
    importance_from(network, sequences, 0)
}

/// As [`importance`], of sequences that stand behind `first` others.
pub(crate) fn importance_from(
    network: &Network<'_>,
    sequences: &[Sequence<'_>],
    first: usize,
) -> Result<Vec<Vec<f64>>, InferError> {
    if sequences.is_empty() {
        return Err(InferError::no_sequences());
    }
    let classes = network.model.classes().unwrap_or(0);
    let observer = network.begin(stage::IMPORTANCE, sequences.len());
    let numbered = sequences.par_iter().enumerate();
    let squares = numbered.map(|(index, &sequence)| {
        observer.step()?;
        let channels = network.squared_gradients(sequence, combination(first + index, classes));
        channels.map_err(|fault| InferError::of_sequence(index, fault))
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
            return Err(InferError::of_input(layer, source));
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
    use crate::infer::{Setup, waves};
    use crate::model::{Model, Norm};

    /// Numbers of a layer that act at every step.
    #[derive(Debug, Clone, Copy)]
    enum Of {
        Bias,
        Factors,
        Offsets,
    }

    /// The model with one number of a layer moved.
    fn moved(model: &Model, layer: usize, of: Of, index: usize, by: f64) -> Model {
        let mut parts = model.blocks()[layer].clone().into_parts();
        let Some((Norm::Layer(norm), _)) = &mut parts.norm else {
            panic!("a layer norm");
        };
        match of {
            Of::Bias => {
                let output = parts.output.as_mut().unwrap();
                output.linear.bias.as_mut().unwrap()[index] += by;
            }
            Of::Factors => norm.weight[index] += by,
            Of::Offsets => norm.bias[index] += by,
        }
        model.with_block(layer, Block::new(parts).unwrap()).unwrap()
    }

    #[test]
    fn derivatives_by_biases_and_norms_are_those_of_differences() {
        let model = waves();
        let values: Vec<f32> = (0..64).map(|t| (0.3 * t as f32).sin()).collect();
        let weights = combination(5, 10);
        let value = |model: &Model| {
            let network = Network::new(model, 64, crate::infer::Path::Double).unwrap();
            let logits = network.logits(Sequence::Values(&values)).unwrap();
            logits.iter().zip(&weights).map(|(z, c)| z * c).sum::<f64>()
        };
        let network = Network::new(&model, 64, crate::infer::Path::Double).unwrap();
        let mut layers = Vec::new();
        let combinations = [weights.clone()];
        let sequence = Sequence::Values(&values);
        network
            .differentiate(sequence, &combinations, 0, |layer| layers.push(layer))
            .unwrap();
        assert_eq!(layers.len(), model.blocks().len());
        for found in &layers {
            let own = &found.combinations[0];
            for (of, sums) in [
                (Of::Bias, &own.bias),
                (Of::Factors, &own.factors),
                (Of::Offsets, &own.offsets),
            ] {
                for index in [0, 7, 13] {
                    let at = |by| value(&moved(&model, found.layer, of, index, by));
                    let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                    let error = (slope - sums.sum[index]).abs();
                    assert!(
                        error < 1e-6 * (1.0 + slope.abs()),
                        "{of:?} {index}: {slope}"
                    );
                    assert!(sums.squares[index] * 64.0 >= sums.sum[index].powi(2) * (1.0 - 1e-9));
                }
            }
        }
    }

    /// Of a sequence padded to 200 steps, and an odd number of combinations; with so many numbers of
    /// gradients at a time.
    fn slopes(path: crate::infer::Path, together: Option<usize>) -> (Vec<f64>, Vec<NumberSlopes>) {
        slopes_by(path, together, &Setup::default())
    }

    fn slopes_by(
        path: crate::infer::Path,
        together: Option<usize>,
        setup: &Setup,
    ) -> (Vec<f64>, Vec<NumberSlopes>) {
        let (model, mut layers) = (waves(), Vec::new());
        let values: Vec<f32> = (0..150).map(|t| (0.3 * t as f32).sin()).collect();
        let combinations: Vec<Vec<f64>> = (0..3).map(|k| combination(k, 10)).collect();
        let mut network = Network::with_setup(&model, 200, path, setup).unwrap();
        if let (Some(single), Some(together)) = (&mut network.single, together) {
            single.gradients = together;
        }
        let sequence = Sequence::Values(&values);
        let logits = network
            .number_slopes(sequence, &combinations, true, |layer| layers.push(layer))
            .unwrap();
        (logits, layers)
    }

    /// Two at a time, and the one that is left.
    #[test]
    fn gradients_that_go_back_a_few_at_a_time_are_those_of_all() {
        let path = crate::infer::Path::Auto;
        let ((logits, parts), (expected, all)) = (slopes(path, Some(1)), slopes(path, None));
        assert_eq!(logits, expected);
        assert_eq!(parts.len(), 2 * all.len());
        for part in &parts {
            let whole = &all[all.len() - 1 - part.layer];
            assert_eq!(part.residues.len(), [2, 1][part.first / 2]);
            for (k, residues) in part.residues.iter().enumerate() {
                assert_eq!(*residues, whole.residues[part.first + k]);
                let (own, other) = (&part.vectors[k], &whole.vectors[part.first + k]);
                assert_eq!(own.bias.sum, other.bias.sum);
                assert_eq!(own.factors.squares, other.factors.squares);
            }
        }
    }

    #[test]
    fn operators_that_are_formed_when_a_layer_runs_give_the_same_gradients() {
        let mut setup = Setup::default();
        setup.spectra_held = 0;
        let path = crate::infer::Path::Auto;
        let (held, formed) = (slopes(path, None), slopes_by(path, None, &setup));
        assert_eq!(held.0, formed.0);
        for (held, formed) in held.1.iter().zip(&formed.1) {
            assert_eq!(held.residues, formed.residues);
        }
    }

    #[test]
    fn state_spaces_that_run_again_on_the_way_back_give_the_same_gradients() {
        let model = waves();
        let values: Vec<f32> = (0..150).map(|t| (0.3 * t as f32).sin()).collect();
        let combinations: Vec<Vec<f64>> = (0..3).map(|k| combination(k, 10)).collect();
        let [kept, again] = [true, false].map(|keeps| {
            let mut network = Network::new(&model, 200, crate::infer::Path::Auto).unwrap();
            network.single.as_mut().unwrap().keeps_responses = keeps;
            let mut layers = Vec::new();
            let sequence = Sequence::Values(&values);
            network
                .number_slopes(sequence, &combinations, true, |layer| {
                    let norms = layer.vectors.iter().map(|own| own.factors.sum.clone());
                    layers.push((layer.residues, norms.collect::<Vec<_>>()));
                })
                .unwrap();
            layers
        });
        assert_eq!(kept, again);
        assert_eq!(kept.len(), model.blocks().len());
    }

    #[test]
    fn derivatives_in_single_precision_are_those_in_double() {
        let near = |what: &str, found: &[f64], expected: &[f64]| {
            assert_eq!(found.len(), expected.len(), "{what}");
            let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
            let pairs = found.iter().zip(expected);
            let far = pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            assert!(far < 2e-5 * size, "{what}: {far:e} of {size:e}");
        };
        let (found, expected) = (
            slopes(crate::infer::Path::Auto, None),
            slopes(crate::infer::Path::Double, None),
        );
        near("logits", &found.0, &expected.0);
        assert_eq!(found.1.len(), waves().blocks().len());
        for (found, expected) in found.1.iter().zip(&expected.1) {
            assert_eq!(found.layer, expected.layer);
            for k in 0..3 {
                let flat = |slopes: &NumberSlopes| slopes.residues[k].concat();
                near("residues", &flat(found), &flat(expected));
                let (own, other) = (&found.vectors[k], &expected.vectors[k]);
                for (own, other) in [
                    (&own.bias, &other.bias),
                    (&own.factors, &other.factors),
                    (&own.offsets, &other.offsets),
                ] {
                    near("sums", &own.sum, &other.sum);
                    near("squares", &own.squares, &other.squares);
                }
            }
        }
    }

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
