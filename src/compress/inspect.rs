//! Looking at a model's dynamics without changing it.

use hankelite_control::{ControlError, DiagonalSystem, Realisation, Time, hankel_values};
use rayon::prelude::*;
use serde::Serialize;

use crate::compress::{CompressError, TimeBase};
use crate::model::{Block, Model};
use crate::progress::{ProgressSink, in_order, stage};

/// The dynamics of one layer.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LayerSpectrum {
    /// The layer's name.
    pub name: String,
    /// Stored states of each channel.
    pub order: usize,
    /// The smallest step Δ of any channel, or of any mode after [`LayerSpectrum::with_steps`].
    pub step_min: f64,
    /// The largest, of the same.
    pub step_max: f64,
    /// Whether every mode of every channel decays.
    pub(crate) stable: bool,
    /// The channels.
    pub channels: Vec<ChannelSpectrum>,
}

impl LayerSpectrum {
    /// The same with the least and the largest step of the modes, where they have their own: see
    /// [`Checkpoint::steps_of_modes`](crate::checkpoint::Checkpoint::steps_of_modes).
    #[must_use]
    pub fn with_steps(mut self, steps: Option<[f64; 2]>) -> Self {
        if let Some([least, most]) = steps {
            (self.step_min, self.step_max) = (least, most);
        }
        self
    }
}

/// The dynamics of one channel.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ChannelSpectrum {
    /// Index of the channel.
    pub index: usize,
    /// Stored states.
    pub states: usize,
    /// The step Δ.
    pub step: f64,
    /// Whether every mode decays.
    pub stable: bool,
    /// Indices of the modes that do not decay.
    pub unstable_modes: Vec<usize>,
    /// The largest |a| of any mode: how long the channel remembers.
    pub slowest_pole: f64,
    /// Jacobi rotations that the values took after an ordinary SVD; 0 for a mild spectrum.
    pub(crate) rotations: usize,
    /// All Hankel singular values, descending; empty for an unstable channel, which has none.
    pub hankel_singular_values: Vec<f64>,
}

/// Hankel singular values and stability of every channel of a model.
///
/// # Errors
/// [`CompressError::Channel`] when a factorisation fails; [`CompressError::Cancelled`]. An unstable
/// channel is no error: it is reported as such.
pub fn inspect(
    model: &Model,
    time: TimeBase,
    realisation: Realisation,
    observer: &dyn ProgressSink,
) -> Result<Vec<LayerSpectrum>, CompressError> {
    observer.begin(stage::SPECTRA, model.blocks().len());
    let layers = model.blocks().iter().map(|block| {
        observer.step()?;
        inspect_layer(block, time, realisation)
    });
    layers.collect()
}

/// Of one layer. Channels that run backwards in time follow the others.
fn inspect_layer(
    block: &Block,
    time: TimeBase,
    realisation: Realisation,
) -> Result<LayerSpectrum, CompressError> {
    let both = block
        .systems()
        .par_iter()
        .chain(block.backward().par_iter());
    let channels = both.enumerate();
    let channels = in_order(channels.map(|(index, system)| {
        inspect_channel(system, index, time, realisation)
            .map_err(|source| CompressError::channel(block, index, source))
    }))?;
    let steps = || channels.iter().map(|channel| channel.step);
    Ok(LayerSpectrum {
        name: block.name().to_string(),
        order: block.order(),
        step_min: steps().fold(f64::INFINITY, f64::min),
        step_max: steps().fold(0.0, f64::max),
        stable: channels.iter().all(|channel| channel.stable),
        channels,
    })
}

fn inspect_channel(
    system: &DiagonalSystem,
    index: usize,
    time: TimeBase,
    realisation: Realisation,
) -> Result<ChannelSpectrum, ControlError> {
    let (values, rotations) = if system.is_stable() {
        let base = time.of(system)?;
        let hankel = hankel_values(base.stable()?, realisation)?;
        (hankel.values().to_vec(), hankel.rotations())
    } else {
        (Vec::new(), 0)
    };
    let step = match system.time() {
        Time::Continuous => 1.0,
        Time::Discrete { step } => step,
    };
    let poles = system.poles();
    Ok(ChannelSpectrum {
        index,
        states: system.order(),
        step,
        stable: system.is_stable(),
        unstable_modes: system.unstable_modes().iter().map(|mode| mode.0).collect(),
        slowest_pole: poles.iter().map(|pole| pole.norm()).fold(0.0, f64::max),
        rotations,
        hankel_singular_values: values,
    })
}
