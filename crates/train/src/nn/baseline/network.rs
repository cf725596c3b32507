//! A body between its maps: the network that the trainer sees.

use candle_core::{DType, Device, Tensor, Var, bail};
use hankelite::model::{Linear, Pooling};
use nalgebra::DMatrix;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::nn::baseline::attention::Attention;
use crate::nn::baseline::body::{Body, Formed, Frame, matrix};
use crate::nn::baseline::dictionary::dct_dictionary;
use crate::nn::baseline::gates::Cell;
use crate::nn::baseline::product::rows_times;
use crate::nn::baseline::stacked::{Kind, Stack, Stacked};
use crate::nn::baseline::unfolded::{Solver, Start, Unfolded};
use crate::nn::baseline::{BaselineArchitecture, BaselineKind, BaselineOutput, SingleLayer};
use crate::nn::block::TrainableLinear;
use crate::nn::ends::{affine, pooling_weights};
use crate::nn::random::Draw;
use crate::nn::tensors::{TensorType, parameter, var};
use crate::nn::{Group, Mode, NetworkError, NetworkInput, Parameter, PoolingKind, SequenceModel};

/// Where ω1 and ω2 start.
const OMEGA: f64 = 0.1;

/// A trainable baseline.
///
/// ```text
/// x_t = S s_t,   h = body(x),   outputs = Q_D h_t,  or  W h + b  of every step or of the pooled h
/// ```
///
/// On the processor a recurrent cell is one operation over all steps with its own gradient, the same
/// bits for any number of threads; on other devices it is put together from candle's. Padding behind
/// a sequence's length does not enter the pooled outputs.
pub struct BaselineNetwork {
    pub(super) architecture: BaselineArchitecture,
    sensing: Option<Var>,
    body: Box<dyn Body>,
    dictionary: Option<Var>,
    head: Option<TrainableLinear>,
    parameters: Vec<Parameter>,
    dtype: DType,
    device: Device,
}

impl BaselineNetwork {
    /// A baseline with random weights in f32 or f64, the same for the same seed on every machine.
    ///
    /// S is normal with variance 1/measurements; cells and attention as in their papers
    /// (docs/training.md); the dictionary of stacked cells and the head uniform within 1/√hidden. Unfolded networks start as
    /// their solver with Q_D a DCT dictionary, Z = I, g = 1, G_c = I, h_0 = 0 and
    /// c_s = ‖S Q_D‖₂²; Sista with F = I/‖Q_D‖₂² and c_s = ‖S Q_D‖₂² + ω2 ‖Q_D‖₂².
    ///
    /// # Errors
    /// [`NetworkError::Architecture`]; [`NetworkError::Dtype`].
    pub fn random(
        architecture: &BaselineArchitecture,
        seed: u64,
        dtype: DType,
        device: &Device,
    ) -> Result<Self, NetworkError> {
        architecture.check()?;
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(NetworkError::Dtype { found: dtype });
        }
        let to = TensorType { dtype, device };
        let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
        let sensing = architecture.measurements.map(|rows| {
            let deviation = 1.0 / (rows as f64).sqrt();
            let count = rows * architecture.signal();
            let numbers: Vec<f64> = (0..count).map(|_| deviation * draw.normal()).collect();
            var(&numbers, &[rows, architecture.signal()], to)
        });
        let sensing = sensing.transpose()?;
        let dictionary = dictionary(architecture, &mut draw, to)?;
        let frame = Frame {
            sensing: sensing.as_deref(),
            dictionary: dictionary.as_deref(),
        };
        let body = body(architecture, &frame, &mut draw, to)?;
        let head = match architecture.output {
            BaselineOutput::Dictionary => None,
            BaselineOutput::Linear => {
                let linear = match architecture.layer {
                    BaselineKind::Transformer => signs(architecture, &mut draw),
                    _ => draw.linear(architecture.hidden, architecture.outputs),
                };
                Some(TrainableLinear::new(&linear, None, to)?)
            }
        };
        let mut network = Self {
            architecture: architecture.clone(),
            sensing,
            body,
            dictionary,
            head,
            parameters: Vec::new(),
            dtype,
            device: device.clone(),
        };
        network.list();
        Ok(network)
    }

    /// What the network looks like.
    pub fn architecture(&self) -> &BaselineArchitecture {
        &self.architecture
    }

    /// The matrices W and U of every layer of an unfolded network, which it never forms itself;
    /// `None` for stacked cells. O(layers · hidden³).
    ///
    /// # Errors
    /// [`NetworkError::Candle`].
    pub fn formed(&self) -> Result<Option<Formed>, NetworkError> {
        Ok(self.body.formed(&self.frame())?)
    }

    /// The matrices of a network of one recurrent layer without gates (RNN, IndRNN, FastRNN,
    /// SpectralRNN); `None` for all others.
    ///
    /// # Errors
    /// [`NetworkError::Candle`].
    pub fn single_layer(&self) -> Result<Option<SingleLayer>, NetworkError> {
        Ok(self.body.single_layer()?)
    }

    /// The matrix from codes to outputs, outputs × hidden: the head's, or the dictionary.
    ///
    /// # Errors
    /// [`NetworkError::Candle`].
    pub fn output(&self) -> Result<Option<DMatrix<f64>>, NetworkError> {
        let head = self.head.as_ref().map(|head| &head.weight);
        let map = head.or(self.dictionary.as_ref());
        Ok(map.map(|map| matrix(map.as_tensor())).transpose()?)
    }

    /// S, measurements × signal; `None` where the input of the layers is the signal itself.
    ///
    /// # Errors
    /// [`NetworkError::Candle`].
    pub fn sensing(&self) -> Result<Option<DMatrix<f64>>, NetworkError> {
        let sensing = self.sensing.as_ref();
        Ok(sensing.map(|map| matrix(map.as_tensor())).transpose()?)
    }

    fn frame(&self) -> Frame<'_> {
        Frame {
            sensing: self.sensing.as_deref(),
            dictionary: self.dictionary.as_deref(),
        }
    }

    /// Trainable numbers.
    pub fn numbers(&self) -> usize {
        let each = self.parameters.iter();
        each.map(|parameter| parameter.var.elem_count()).sum()
    }

    fn list(&mut self) {
        let one = |name: &str, var: &Var| parameter("", name, var, Group::Plain);
        let mut all: Vec<Parameter> = Vec::new();
        all.extend(self.sensing.iter().map(|var| one("sensing", var)));
        all.extend_from_slice(self.body.parameters());
        all.extend(self.dictionary.iter().map(|var| one("dictionary", var)));
        let head = self.head.iter();
        all.extend(head.flat_map(|head| head.parameters("head.")));
        self.parameters = all;
    }

    /// The steps as the rows of numbers that S takes.
    fn signal(&self, steps: &Tensor) -> candle_core::Result<Tensor> {
        let expected = self.architecture.signal();
        match (steps.dtype(), self.architecture.vocabulary) {
            (DType::U32, Some(vocabulary)) => {
                let tokens = steps.flatten_all()?;
                let found = tokens.to_vec1::<u32>()?.into_iter();
                if let Some(token) = found.max().filter(|&token| token as usize >= vocabulary) {
                    bail!("token {token} is outside the vocabulary of {vocabulary}");
                }
                let units = Tensor::eye(vocabulary, self.dtype, &self.device)?;
                let rows = units.index_select(&tokens, 0)?;
                rows.reshape((steps.dim(0)?, steps.dim(1)?, vocabulary))
            }
            (DType::U32, None) => bail!("the network takes numbers, not tokens"),
            (_, Some(_)) => bail!("the network takes tokens in u32, not numbers"),
            (_, None) => match steps.dims() {
                [_, _, width] if *width == expected => steps.to_dtype(self.dtype),
                found => bail!("the steps have shape {found:?}, expected batch x L x {expected}"),
            },
        }
    }

    /// The codes, pooled where the network pools.
    fn pooled(&self, codes: Tensor, lengths: Option<&[usize]>) -> candle_core::Result<Tensor> {
        let pooling = match self.architecture.pooling {
            PoolingKind::None => return Ok(codes),
            PoolingKind::Mean => Pooling::Mean,
            PoolingKind::Last => Pooling::Last,
        };
        let (batch, length, _) = codes.dims3()?;
        let weights = pooling_weights(pooling, batch, length, lengths)?;
        let weights = Tensor::from_vec(weights, (batch, 1, length), &self.device)?;
        weights.to_dtype(self.dtype)?.matmul(&codes)?.squeeze(1)
    }
}

impl SequenceModel for BaselineNetwork {
    fn forward(&self, input: &NetworkInput, mode: Mode<'_>) -> candle_core::Result<Tensor> {
        let mut x = self.signal(&input.steps)?;
        if let Some(sensing) = &self.sensing {
            x = rows_times(&x, sensing.as_tensor())?;
        }
        let codes = self.body.codes(&x, &self.frame(), mode)?;
        match (&self.head, &self.dictionary) {
            (Some(head), _) => {
                let pooled = self.pooled(codes, input.lengths.as_deref())?;
                let mut shape = pooled.dims().to_vec();
                shape.pop();
                shape.push(self.architecture.outputs);
                let rows = pooled.reshape(((), self.architecture.hidden))?;
                affine(&rows, head)?.reshape(shape)
            }
            (None, Some(dictionary)) => rows_times(&codes, dictionary.as_tensor()),
            (None, None) => bail!("a network without an output map"),
        }
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn device(&self) -> &Device {
        &self.device
    }
}

/// Q_D, signal × codes: where it is the output, and in all unfolded networks.
fn dictionary(
    architecture: &BaselineArchitecture,
    draw: &mut Draw,
    to: TensorType<'_>,
) -> Result<Option<Var>, NetworkError> {
    let (signal, hidden) = (architecture.signal(), architecture.hidden);
    if architecture.layer.is_unfolded() {
        let start = dct_dictionary(signal, hidden).transpose();
        return Ok(Some(var(start.as_slice(), &[signal, hidden], to)?));
    }
    if architecture.output != BaselineOutput::Dictionary {
        return Ok(None);
    }
    if architecture.layer == BaselineKind::Transformer {
        let start = signs(architecture, draw).weight;
        return Ok(Some(var(start.as_slice(), &[signal, hidden], to)?));
    }
    let bound = 1.0 / (hidden as f64).sqrt();
    let numbers = (0..signal * hidden).map(|_| draw.uniform(-bound, bound));
    let numbers: Vec<f64> = numbers.collect();
    Ok(Some(var(&numbers, &[signal, hidden], to)?))
}

/// The head of a transformer, hidden × outputs: ±1 for the first half of the heads, the opposite for
/// their twins, so that all outputs are 0 at the start.
fn signs(architecture: &BaselineArchitecture, draw: &mut Draw) -> Linear {
    let (heads, outputs) = (architecture.hidden, architecture.outputs);
    let half = DMatrix::from_fn(heads / 2, outputs, |_, _| draw.uniform(-1.0, 1.0).signum());
    let weight = DMatrix::from_fn(heads, outputs, |head, output| match head < heads / 2 {
        true => half[(head, output)],
        false => -half[(head - heads / 2, output)],
    });
    Linear {
        weight: weight.into(),
        bias: Some(vec![0.0; outputs]),
    }
}

fn body(
    architecture: &BaselineArchitecture,
    frame: &Frame<'_>,
    draw: &mut Draw,
    to: TensorType<'_>,
) -> Result<Box<dyn Body>, NetworkError> {
    let kind = match architecture.layer {
        BaselineKind::Rnn => Kind::Torch(Cell::Tanh),
        BaselineKind::Lstm => Kind::Torch(Cell::Lstm),
        BaselineKind::Gru => Kind::Torch(Cell::Gru),
        BaselineKind::IndRnn => Kind::IndRnn,
        BaselineKind::FastRnn => Kind::FastRnn,
        BaselineKind::SpectralRnn => Kind::SpectralRnn,
        BaselineKind::Transformer => {
            let (heads, width) = (architecture.hidden, architecture.body_inputs());
            return Ok(Box::new(Attention::new(heads, width, draw, to)?));
        }
        BaselineKind::Sista => return unfolded(Solver::Sista, architecture, frame),
        BaselineKind::L1L1 => return unfolded(Solver::L1L1, architecture, frame),
        BaselineKind::Reweighted => return unfolded(Solver::Reweighted, architecture, frame),
    };
    let stack = Stack {
        hidden: architecture.hidden,
        layers: architecture.layers,
        inputs: architecture.body_inputs(),
    };
    Ok(Box::new(Stacked::new(kind, stack, draw, to)?))
}

fn unfolded(
    solver: Solver,
    architecture: &BaselineArchitecture,
    frame: &Frame<'_>,
) -> Result<Box<dyn Body>, NetworkError> {
    let start = Start {
        layers: architecture.layers,
        omega1: architecture.omega1.unwrap_or(OMEGA),
        omega2: architecture.omega2.unwrap_or(OMEGA),
    };
    Ok(Box::new(Unfolded::new(solver, start, frame)?))
}
