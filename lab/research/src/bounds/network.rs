//! The Rademacher bounds of a trained network, on the norms of its own weights.

use nalgebra::DMatrix;

use crate::bounds::{
    Bound, BoundError, FastRnn, LayerNorms, SequenceSizes, Signals, SpectralRnn, Tied,
};

/// ‖M‖_{1,∞}: the largest sum of magnitudes of a row.
pub fn row_sum_norm(matrix: &DMatrix<f64>) -> f64 {
    let rows = matrix.row_iter();
    let sums = rows.map(|row| row.iter().map(|value| value.abs()).sum());
    sums.fold(0.0, larger)
}

/// The larger number; not a number if one of them is none, which `f64::max` would hide.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// ‖M‖_F.
pub fn frobenius_norm(matrix: &DMatrix<f64>) -> f64 {
    matrix.norm()
}

/// ‖M‖₂, the largest singular value; not a number where the matrix holds what is none. Cost O(n³).
pub fn spectral_norm(matrix: &DMatrix<f64>) -> f64 {
    if !matrix.iter().all(|value| value.is_finite()) {
        return f64::NAN;
    }
    let values = matrix.clone().svd(false, false).singular_values;
    values.iter().copied().fold(0.0, f64::max)
}

/// The weights of a recurrent network, each (outputs × inputs): W is n_hid × n_hid, U is
/// n_hid × n_meas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weights<'a> {
    /// Layers W_l, U_l of a reweighted network (or of ℓ1-ℓ1 with the tied ones repeated, or one
    /// plain layer), and G, where the activation depends on G h_{t−1}.
    Unfolded {
        /// W_1 … W_n.
        recurrent: &'a [DMatrix<f64>],
        /// U_1 … U_n.
        input: &'a [DMatrix<f64>],
        /// G, n_hid × n_hid.
        correlation: Option<&'a DMatrix<f64>>,
    },
    /// Sista-RNN: φ(W_1 h_{t−1} + U_1 x_t), then φ(W_2 h + U_1 x_t + U_2 h_{t−1}).
    Sista {
        /// W_1 and W_2.
        recurrent: [&'a DMatrix<f64>; 2],
        /// U_1.
        input: &'a DMatrix<f64>,
        /// U_2, n_hid × n_hid.
        skip: &'a DMatrix<f64>,
        /// Layers n.
        layers: usize,
    },
    /// FastRNN.
    FastRnn {
        /// W.
        recurrent: &'a DMatrix<f64>,
        /// U.
        input: &'a DMatrix<f64>,
        /// α_f and β_f.
        gates: [f64; 2],
    },
    /// SpectralRNN.
    Spectral {
        /// W.
        recurrent: &'a DMatrix<f64>,
        /// U.
        input: &'a DMatrix<f64>,
        /// Y, n_out × n_hid.
        output: &'a DMatrix<f64>,
    },
}

/// What a network was trained on.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct TrainingData {
    /// Sequences.
    pub samples: usize,
    /// Steps of each.
    pub length: usize,
    /// B_x of [`Signals`]; for FastRNN and SpectralRNN B ≥ ‖x_t‖₂.
    pub input: f64,
    /// ‖h_0‖_∞, or B_h for Sista, whose bound is of one step.
    pub state: f64,
    /// δ, for SpectralRNN.
    pub confidence: f64,
}

/// The bounds of a network with the norms that gave them.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[must_use]
pub struct NetworkBound {
    /// The norms by name, such as `alpha_1`, `Lambda_0`, `G`.
    pub norms: Vec<(String, f64)>,
    /// The constant of [`LayerNorms::contraction`]; absent where the activation is fixed.
    pub contraction: Option<f64>,
    /// The bounds, the tightest known first.
    pub bounds: Vec<Bound>,
}

/// The bounds of a trained network, on the row-sum, Frobenius or spectral norms of its own
/// weights; each names the assumption that fails.
///
/// # Errors
/// [`BoundError::Shape`] for weights that do not fit each other; [`BoundError::Value`] for
/// weights that are not finite.
pub fn of_network(
    weights: &Weights<'_>,
    training: &TrainingData,
) -> Result<NetworkBound, BoundError> {
    match *weights {
        Weights::Unfolded {
            recurrent,
            input,
            correlation,
        } => unfolded(recurrent, input, correlation, training),
        Weights::Sista {
            recurrent,
            input,
            skip,
            layers,
        } => {
            let [first, later] = recurrent;
            let sizes = sizes(first, input, training)?;
            let square = (sizes.hidden, sizes.hidden);
            shaped("W_2", later, square)?;
            shaped("U_2", skip, square)?;
            let tied = Tied {
                first: row_sum_norm(first),
                later: row_sum_norm(later),
                input: row_sum_norm(input),
                skip: row_sum_norm(skip),
                layers,
            };
            let bounds = vec![tied.one_step(&sizes, &training.signals())?];
            let norms = [
                ("alpha_1", tied.first),
                ("alpha_2", tied.later),
                ("beta_1", tied.input),
                ("beta_2", tied.skip),
            ];
            Ok(NetworkBound::new(&norms, bounds))
        }
        Weights::FastRnn {
            recurrent,
            input,
            gates,
        } => fast(recurrent, input, gates, training),
        Weights::Spectral {
            recurrent,
            input,
            output,
        } => spectral([recurrent, input, output], training),
    }
}

impl TrainingData {
    fn signals(&self) -> Signals {
        Signals {
            input: self.input,
            state: self.state,
        }
    }
}

impl NetworkBound {
    fn new(norms: &[(&str, f64)], bounds: Vec<Bound>) -> Self {
        let norms = norms.iter().map(|(name, norm)| (name.to_string(), *norm));
        Self {
            norms: norms.collect(),
            contraction: None,
            bounds,
        }
    }
}

fn shaped(
    name: impl Into<String>,
    matrix: &DMatrix<f64>,
    expected: (usize, usize),
) -> Result<(), BoundError> {
    let found = matrix.shape();
    if found != expected {
        let name = name.into();
        return Err(BoundError::Shape {
            name,
            found,
            expected,
        });
    }
    Ok(())
}

/// The sizes that W and U agree on.
fn sizes(
    recurrent: &DMatrix<f64>,
    input: &DMatrix<f64>,
    training: &TrainingData,
) -> Result<SequenceSizes, BoundError> {
    let hidden = recurrent.nrows();
    shaped("W_1", recurrent, (hidden, hidden))?;
    shaped("U_1", input, (hidden, input.ncols()))?;
    Ok(SequenceSizes {
        samples: training.samples,
        measurements: input.ncols(),
        hidden,
        length: training.length,
    })
}

fn unfolded(
    recurrent: &[DMatrix<f64>],
    input: &[DMatrix<f64>],
    correlation: Option<&DMatrix<f64>>,
    training: &TrainingData,
) -> Result<NetworkBound, BoundError> {
    let norms = |all: &[DMatrix<f64>]| all.iter().map(row_sum_norm).collect();
    let layers = LayerNorms::new(norms(recurrent), norms(input))?;
    let sizes = sizes(&recurrent[0], &input[0], training)?;
    let square = (sizes.hidden, sizes.hidden);
    for (l, (w, u)) in recurrent.iter().zip(input).enumerate().skip(1) {
        shaped(format!("W_{}", l + 1), w, square)?;
        shaped(format!("U_{}", l + 1), u, input[0].shape())?;
    }
    let mut named = Vec::new();
    for (l, (alpha, beta)) in layers.alpha().iter().zip(layers.beta()).enumerate() {
        named.push((format!("alpha_{}", l + 1), *alpha));
        named.push((format!("beta_{}", l + 1), *beta));
    }
    named.push(("Lambda_0".to_string(), layers.step_gain()));
    let signals = training.signals();
    let Some(correlation) = correlation else {
        return Ok(NetworkBound {
            norms: named,
            contraction: None,
            bounds: vec![layers.unrolled(&sizes, &signals)?],
        });
    };
    shaped("G", correlation, square)?;
    let norm = row_sum_norm(correlation);
    named.push(("G".to_string(), norm));
    Ok(NetworkBound {
        norms: named,
        contraction: Some(layers.contraction(norm)?),
        bounds: vec![layers.reweighted(&sizes, &signals, Some(norm))?],
    })
}

fn fast(
    recurrent: &DMatrix<f64>,
    input: &DMatrix<f64>,
    gates: [f64; 2],
    training: &TrainingData,
) -> Result<NetworkBound, BoundError> {
    let sizes = sizes(recurrent, input, training)?;
    let [gate, keep] = gates;
    let network = FastRnn {
        gate,
        keep,
        recurrent: frobenius_norm(recurrent),
        input: frobenius_norm(input),
    };
    let bounds = vec![
        network.exponential(&sizes, training.input)?,
        network.linear(&sizes, training.input)?,
    ];
    let norms = [("alpha_F", network.recurrent), ("beta_F", network.input)];
    Ok(NetworkBound::new(&norms, bounds))
}

fn spectral(
    [recurrent, input, output]: [&DMatrix<f64>; 3],
    training: &TrainingData,
) -> Result<NetworkBound, BoundError> {
    let sizes = sizes(recurrent, input, training)?;
    shaped("Y", output, (output.nrows(), sizes.hidden))?;
    let matrices = [recurrent, input, output];
    let network = SpectralRnn {
        frobenius: matrices.map(frobenius_norm),
        spectral: matrices.map(spectral_norm),
        outputs: output.nrows(),
    };
    let bounds = vec![network.order(&sizes, training.input, training.confidence)?];
    let names = ["|W|_F", "|U|_F", "|Y|_F", "|W|_2", "|U|_2", "|Y|_2"];
    let values = network.frobenius.into_iter().chain(network.spectral);
    let norms: Vec<_> = names.into_iter().zip(values).collect();
    Ok(NetworkBound::new(&norms, bounds))
}
