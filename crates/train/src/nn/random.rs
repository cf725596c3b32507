//! Models from scratch.

use std::f64::consts::PI;

use hankelite::model::{
    BatchNorm, Block, BlockParts, Encoder, Gate, Head, LayerNorm, Linear, Model, ModelParts,
    Nonlinearity, Norm, OutputLinear, Pooling,
};
use hankelite_control::{DiagonalSystem, SystemError, Time};
use nalgebra::{DMatrix, SymmetricEigen};
use num_complex::Complex64;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::nn::parameterisation::ModeForm;
use crate::nn::{
    Architecture, ArchitectureError, Initialisation, LayerKind, NetworkError, Normalisation,
    OutputKind, PoolingKind,
};

/// ε of torch's norms.
const NORM_EPSILON: f64 = 1e-5;

/// A model with random weights; the same for the same seed on every machine.
///
/// Poles by [`Initialisation`]; log Δ uniform between the logarithms of the smallest and the
/// largest step; C complex normal (S4D: variance ½ of each part, DSS: 1); D normal. Weights and
/// biases of the linear maps uniform within 1/√inputs and embeddings normal, as torch does.
/// `length` is the L of DSS-softmax.
///
/// # Errors
/// [`NetworkError::Architecture`]; [`NetworkError::System`] where a growing mode of DSS-softmax
/// is too fast for `length`.
pub fn random_model(
    architecture: &Architecture,
    length: usize,
    seed: u64,
) -> Result<Model, NetworkError> {
    architecture.check()?;
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
    let channels = architecture.channels;
    let encoder = match (architecture.inputs, architecture.vocabulary) {
        (Some(inputs), None) => Encoder::Linear(draw.linear(inputs, channels)),
        (None, Some(vocabulary)) => {
            let table = DMatrix::from_fn(channels, vocabulary, |_, _| draw.normal());
            Encoder::Embedding(table.into())
        }
        _ => return Err(ArchitectureError::Encoder.into()),
    };
    let start = Start::new(architecture, length);
    let blocks = 0..architecture.layers;
    let blocks = blocks.map(|index| block(&start, index, &mut draw));
    let blocks = blocks.collect::<Result<_, _>>()?;
    let pooling = match architecture.pooling {
        PoolingKind::Mean => Some(Pooling::Mean),
        PoolingKind::Last => Some(Pooling::Last),
        PoolingKind::None => None,
    };
    let linear = draw.linear(channels, architecture.outputs);
    Ok(Model::new(ModelParts {
        encoder: Some(encoder),
        blocks,
        final_norm: None,
        head: Some(Head { pooling, linear }),
    })?)
}

/// A model with poles and weights C drawn afresh, as [`random_model`] draws them for
/// `architecture`; its `states` may differ from those of the model. Steps Δ, feedthroughs D and
/// everything outside the state spaces stay: just what a reduction keeps, too.
///
/// # Errors
/// As [`random_model`].
pub fn with_fresh_dynamics(
    model: &Model,
    architecture: &Architecture,
    length: usize,
    seed: u64,
) -> Result<Model, NetworkError> {
    architecture.check()?;
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
    let start = Start::new(architecture, length);
    let mut fresh = Vec::with_capacity(model.blocks().len());
    for block in model.blocks() {
        let mut drawn = Vec::new();
        for (channel, system) in block.all_systems().enumerate() {
            let step = match system.time() {
                Time::Discrete { step } => Ok(step),
                Time::Continuous => Err(SystemError::WrongTime {
                    found: "continuous",
                    expected: "discrete",
                }),
            };
            let d = system.feedthrough()[(0, 0)];
            let system = step.and_then(|step| draw.system(&start, step, d));
            drawn.push(system.map_err(|source| NetworkError::System {
                layer: block.name().to_string(),
                channel,
                source,
            })?);
        }
        let backward = drawn.split_off(block.systems().len());
        fresh.push(block.with_systems(drawn, backward)?);
    }
    Ok(model.with_blocks(fresh)?)
}

/// What the state spaces of a network are drawn from.
struct Start<'a> {
    architecture: &'a Architecture,
    length: usize,
    /// The poles of all channels; empty for random ones.
    poles: Vec<Complex64>,
}

impl<'a> Start<'a> {
    fn new(architecture: &'a Architecture, length: usize) -> Self {
        Self {
            architecture,
            length,
            poles: fixed_poles(architecture),
        }
    }
}

fn fixed_poles(architecture: &Architecture) -> Vec<Complex64> {
    let states = architecture.states;
    match architecture.initialisation() {
        Initialisation::Lin => (0..states)
            .map(|n| Complex64::new(-0.5, PI * n as f64))
            .collect(),
        Initialisation::SkewHippo => {
            let frequencies = skew_hippo(states).into_iter();
            frequencies
                .map(|omega| Complex64::new(-0.5, omega))
                .collect()
        }
        Initialisation::Random => Vec::new(),
    }
}

/// The positive frequencies ω of the 2n × 2n normal part of HiPPO-LegS, whose eigenvalues are
/// −½ ± iω, ascending.
///
/// The normal part plus ½ is the real skew-symmetric S with S_jk = −½ √((2j+1)(2k+1)) for j > k,
/// and i S is Hermitian.
///
/// # References
/// Gu, Gupta, Goel and Ré, *On the parameterization and initialization of diagonal state space
/// models*, section 4; Ezoe and Sato, section III.
fn skew_hippo(n: usize) -> Vec<f64> {
    let hermitian = DMatrix::from_fn(2 * n, 2 * n, |j, k| {
        let size = 0.5 * (((2 * j + 1) * (2 * k + 1)) as f64).sqrt();
        match j.cmp(&k) {
            std::cmp::Ordering::Greater => Complex64::new(0.0, -size),
            std::cmp::Ordering::Equal => Complex64::ZERO,
            std::cmp::Ordering::Less => Complex64::new(0.0, size),
        }
    });
    // The iteration of a Hermitian matrix settles in a few steps per value; the cap is far off.
    let eigen = SymmetricEigen::try_new(hermitian, f64::EPSILON, 1000 * n.max(100));
    let values = eigen.expect("a Hermitian iteration settles").eigenvalues;
    let mut positive: Vec<f64> = values
        .iter()
        .copied()
        .filter(|&omega| omega > 0.0)
        .collect();
    positive.sort_by(f64::total_cmp);
    positive
}

fn block(start: &Start<'_>, index: usize, draw: &mut Draw) -> Result<Block, NetworkError> {
    let architecture = start.architecture;
    let channels = architecture.channels;
    let name = format!("blocks.{index}");
    let forward = {
        let one = |channel| {
            let d = draw.normal();
            let (low, high) = (architecture.step_min.ln(), architecture.step_max.ln());
            let step = draw.uniform(low, high).exp();
            let system = draw.system(start, step, d);
            system.map_err(|source| NetworkError::System {
                layer: name.clone(),
                channel,
                source,
            })
        };
        (0..channels).map(one).collect::<Result<Vec<_>, _>>()?
    };
    let backward = match architecture.bidirectional {
        true => turned(start, &name, &forward, draw)?,
        false => Vec::new(),
    };
    let (rows, gate) = match architecture.output {
        OutputKind::Glu => (2 * channels, Gate::Halves),
        OutputKind::Linear => (channels, Gate::None),
    };
    let (weight, bias, epsilon) = (vec![1.0; channels], vec![0.0; channels], NORM_EPSILON);
    let norm = match architecture.norm {
        Normalisation::Layer => Norm::Layer(LayerNorm {
            weight,
            bias,
            epsilon,
        }),
        Normalisation::Batch => Norm::Batch(BatchNorm {
            weight,
            bias,
            mean: vec![0.0; channels],
            variance: vec![1.0; channels],
            epsilon,
        }),
    };
    Ok(Block::new(BlockParts {
        name,
        systems: forward,
        backward,
        backward_from: 1,
        holds_feedthrough: true,
        class: None,
        activation: Nonlinearity::Gelu,
        output: Some(OutputLinear {
            linear: draw.linear(channels, rows),
            gate,
        }),
        norm: Some((norm, architecture.placement)),
    })?)
}

/// The second direction of a layer, with the poles of the first, as files hold them.
fn turned(
    start: &Start<'_>,
    layer: &str,
    forward: &[DiagonalSystem],
    draw: &mut Draw,
) -> Result<Vec<DiagonalSystem>, NetworkError> {
    let one = |(channel, system): (usize, &DiagonalSystem)| {
        let Time::Discrete { step } = system.time() else {
            return Ok(system.clone());
        };
        let poles = system.exponents().to_vec();
        let residues = draw.residues(start, step, &poles);
        let system = DiagonalSystem::siso(system.time(), poles, &residues, 0.0);
        system.map_err(|source| NetworkError::System {
            layer: layer.to_string(),
            channel,
            source,
        })
    };
    forward.iter().enumerate().map(one).collect()
}

/// The source of all random numbers.
pub(super) struct Draw(pub(super) ChaCha8Rng);

impl Draw {
    pub(super) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.0.random::<f64>()
    }

    /// By Box and Muller; 1 − u keeps the logarithm finite.
    pub(super) fn normal(&mut self) -> f64 {
        let (u, v) = (self.0.random::<f64>(), self.0.random::<f64>());
        (-2.0 * (1.0 - u).ln()).sqrt() * (2.0 * PI * v).cos()
    }

    pub(super) fn linear(&mut self, inputs: usize, outputs: usize) -> Linear {
        let bound = 1.0 / (inputs as f64).sqrt();
        let weight = DMatrix::from_fn(inputs, outputs, |_, _| self.uniform(-bound, bound));
        let bias = (0..outputs).map(|_| self.uniform(-bound, bound)).collect();
        Linear {
            weight: weight.into(),
            bias: Some(bias),
        }
    }

    fn pole(&mut self, layer: LayerKind) -> Complex64 {
        let re = match layer {
            LayerKind::DssSoftmax => self.normal(),
            // 1 − u is never zero, so the mode decays.
            LayerKind::S4d | LayerKind::DssExp => self.0.random::<f64>() - 1.0,
        };
        Complex64::new(re, self.normal())
    }

    fn system(
        &mut self,
        start: &Start<'_>,
        step: f64,
        feedthrough: f64,
    ) -> Result<DiagonalSystem, SystemError> {
        let architecture = start.architecture;
        let poles = match &start.poles[..] {
            [] => (0..architecture.states)
                .map(|_| self.pole(architecture.layer))
                .collect(),
            fixed => fixed.to_vec(),
        };
        let residues = self.residues(start, step, &poles);
        DiagonalSystem::siso(Time::Discrete { step }, poles, &residues, feedthrough)
    }

    /// Random residues of modes with these poles.
    fn residues(&mut self, start: &Start<'_>, step: f64, poles: &[Complex64]) -> Vec<Complex64> {
        let architecture = start.architecture;
        let spread = match architecture.layer {
            LayerKind::S4d => std::f64::consts::FRAC_1_SQRT_2,
            LayerKind::DssExp | LayerKind::DssSoftmax => 1.0,
        };
        let form = ModeForm {
            kind: architecture.layer.parameterisation(),
            length: start.length,
            scaled: false,
        };
        let residue = |&lambda: &Complex64| {
            let weight = Complex64::new(self.normal(), self.normal()) * spread;
            weight * form.gain(lambda, step)
        };
        poles.iter().map(residue).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frequencies of the normal part of HiPPO-LegS to ten digits.
    #[test]
    fn the_frequencies_are_the_published_ones() {
        let golden: [&[f64]; 4] = [
            &[0.8660254038],
            &[0.5565011151, 4.6032930071],
            &[0.4274887123, 1.9577941509, 5.3542085150, 19.8574103710],
            &[
                0.3520179159,
                1.3719887819,
                2.8996682228,
                5.0900236297,
                8.3621045314,
                13.8343418191,
                25.6292264374,
                80.9660809245,
            ],
        ];
        for expected in golden {
            let found = skew_hippo(expected.len());
            assert_eq!(found.len(), expected.len());
            for (a, b) in found.iter().zip(expected) {
                assert!((a - b).abs() < 1e-9, "{a} {b}");
            }
        }
        assert!((skew_hippo(128)[127] / 128.0 / 128.0 - 1.27321).abs() < 1e-5);
    }
}
