//! Rescaling of layers by their generalisation measure, before a training.

use hankelite_control::DiagonalSystem;
use nalgebra::DMatrix;
use serde::{Deserialize, Serialize};

use crate::calibrate::{CalibrateError, layer_inputs};
use crate::infer::{InferError, Network, Path as InferPath};
use crate::measure::{StepStatistics, layer_measure};
use crate::model::{Block, Model, Sequence};
use crate::progress::{ProgressSink, Within, stage};

/// How a training starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rescale {
    /// As it is.
    #[default]
    None,
    /// τ = 1 in every layer: for networks from scratch. It changes what a pretrained network
    /// computes.
    Unit,
    /// τ as in the same layer of the network before its reduction; the identity where nothing was
    /// cut.
    Match,
}

/// What was done to one layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rescaled {
    /// The layer's name.
    pub name: String,
    /// τ before, for its input behind layers that are rescaled already.
    pub before: f64,
    /// τ that it has now.
    pub after: f64,
    /// What C and D were multiplied with.
    pub(crate) factor: f64,
}

/// How a network is rescaled.
pub struct Rescaling<'a> {
    /// τ that every layer gets.
    pub target: Rescale,
    /// The network before its reduction, for [`Rescale::Match`].
    pub like: Option<&'a Model>,
    /// Steps that sequences are padded to.
    pub length: usize,
    /// The sequences that the layers are measured on.
    pub sequences: &'a [Sequence<'a>],
    /// Follows the layers.
    pub observer: &'a dyn ProgressSink,
}

/// Multiplies C and D of every layer with one factor, layer by layer: each is measured for its
/// input behind those before it, which are rescaled already. A layer with τ = 0 stays.
///
/// τ is linear in C and D together, squared, so both are divided by √τ. (The papers print `C √τ`,
/// and leave D aside in the text.)
///
/// Cost two forward passes for each sequence and layer.
///
/// # Errors
/// [`CalibrateError::Infer`]; [`CalibrateError::Measure`]; [`CalibrateError::OtherModel`] where
/// `like` is missing or has other layers.
///
/// # References
/// Liu and Li, Algorithm 1.
pub fn rescale(
    model: &Model,
    rescaling: &Rescaling<'_>,
) -> Result<(Model, Vec<Rescaled>), CalibrateError> {
    let mut scaled = model.clone();
    let wanted = match rescaling.target {
        Rescale::None => return Ok((scaled, Vec::new())),
        Rescale::Match => rescaling.measures_like(model)?,
        Rescale::Unit => vec![1.0; model.blocks().len()],
    };
    rescaling.observer.begin(stage::RESCALING, wanted.len());
    let mut records = Vec::new();
    for (layer, wanted) in wanted.into_iter().enumerate() {
        rescaling.observer.step()?;
        let before = rescaling.measure(&scaled, layer)?;
        let factor = match before > 0.0 {
            true => (wanted / before).sqrt(),
            false => 1.0,
        };
        let block = &model.blocks()[layer];
        // Multiplying by exactly 1 would still cost the bits of a product of roots.
        if factor != 1.0 {
            scaled = scaled.with_block(layer, multiplied(block, factor)?)?;
        }
        records.push(Rescaled {
            name: block.name().to_string(),
            before,
            after: before * factor * factor,
            factor,
        });
    }
    Ok((scaled, records))
}

impl Rescaling<'_> {
    /// τ of every layer of the network before its reduction.
    fn measures_like(&self, model: &Model) -> Result<Vec<f64>, CalibrateError> {
        let shape = |model: &Model| {
            let channels = model.blocks().iter().map(Block::channels);
            format!("layers of {:?} channels", channels.collect::<Vec<_>>())
        };
        let like = self.like.filter(|like| shape(like) == shape(model));
        let Some(like) = like else {
            return Err(CalibrateError::OtherModel(format!(
                "no network before its reduction, or one of other layers, expected {}",
                shape(model)
            )));
        };
        let layers = 0..like.blocks().len();
        layers.map(|layer| self.measure(like, layer)).collect()
    }

    /// τ of one layer as the network stands.
    fn measure(&self, model: &Model, layer: usize) -> Result<f64, CalibrateError> {
        let within = Within(self.observer);
        let network = Network::new(model, self.length, InferPath::Double)?.observed(&within);
        let inputs: Vec<DMatrix<f64>> = layer_inputs(&network, self.sequences, layer)?;
        let fault = |fault| CalibrateError::Other(format!("the measure of layer {layer}: {fault}"));
        let statistics = StepStatistics::of(&inputs).map_err(fault)?;
        let measure = layer_measure(model.blocks()[layer].systems(), &statistics).map_err(fault)?;
        Ok(measure.tau)
    }
}

/// C and D of every channel, in both directions.
fn multiplied(block: &Block, factor: f64) -> Result<Block, CalibrateError> {
    let scaled = |system: &DiagonalSystem| {
        DiagonalSystem::new(
            system.time(),
            system.exponents().to_vec(),
            system.input().clone(),
            system.output() * num_complex::Complex64::from(factor),
            system.feedthrough() * factor,
        )
    };
    let all = |systems: &[DiagonalSystem]| systems.iter().map(scaled).collect::<Result<_, _>>();
    let forward = all(block.systems()).map_err(InferError::System)?;
    let backward = all(block.backward()).map_err(InferError::System)?;
    Ok(block.with_systems(forward, backward)?)
}
