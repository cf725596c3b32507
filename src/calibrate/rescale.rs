//! Rescaling of layers by their generalisation measure, before a training.

use hankelite_control::DiagonalSystem;
use nalgebra::DMatrix;
use serde::Serialize;

use crate::calibrate::CalibrateError;
use crate::calibrate::statistics::layer_inputs;
use crate::infer::{InferError, Network, Path as InferPath};
use crate::measure::{StepStatistics, layer_measure};
use crate::model::{Block, Model, Sequence};
use crate::progress::{ProgressSink, Within, stage};

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

/// A model whose layers were rescaled.
#[derive(Debug, Clone)]
pub struct RescaledModel {
    /// The model.
    pub model: Model,
    /// What was done to each layer.
    pub records: Vec<Rescaled>,
}

/// Multiplies C and D of every layer with one factor, so that τ is 1, or that of the same layer in
/// the network before its reduction, `like`. It goes layer by layer: each is measured for its input
/// behind those before it, which are rescaled already. A layer with τ = 0 stays. The sequences are
/// padded to `length` steps.
///
/// τ is linear in C and D together, squared, so both are divided by √τ. (The papers print `C √τ`,
/// and leave D aside in the text.)
///
/// Cost two forward passes for each sequence and layer.
///
/// # Errors
/// [`CalibrateError::Infer`]; [`CalibrateError::OtherModel`] where `like` has other layers;
/// [`CalibrateError::Other`] for a layer that has no measure.
///
/// # References
/// Liu and Li, Algorithm 1.
pub fn rescale(
    model: &Model,
    like: Option<&Model>,
    sequences: &[Sequence<'_>],
    length: usize,
    observer: &dyn ProgressSink,
) -> Result<RescaledModel, CalibrateError> {
    let within = Within(observer);
    let measure = |model: &Model, layer: usize| {
        let network = Network::new(model, length, InferPath::Double)?.observed(&within);
        measure(model, layer, &layer_inputs(&network, sequences, layer)?)
    };
    let wanted = match like {
        None => vec![1.0; model.blocks().len()],
        Some(like) => {
            require_alike(model, like)?;
            let layers = (0..like.blocks().len()).map(|layer| measure(like, layer));
            layers.collect::<Result<_, CalibrateError>>()?
        }
    };
    observer.begin(stage::RESCALING, wanted.len());
    let (mut scaled, mut records) = (model.clone(), Vec::new());
    for (layer, wanted) in wanted.into_iter().enumerate() {
        observer.step()?;
        let before = measure(&scaled, layer)?;
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
    Ok(RescaledModel {
        model: scaled,
        records,
    })
}

/// Whether a network has the layers of another.
fn require_alike(model: &Model, like: &Model) -> Result<(), CalibrateError> {
    let [found, expected] = [like, model].map(|model| {
        let channels = model.blocks().iter().map(Block::channels);
        format!("layers of {:?} channels", channels.collect::<Vec<_>>())
    });
    match found == expected {
        true => Ok(()),
        false => Err(CalibrateError::OtherModel(format!(
            "{found} before the reduction, expected {expected}"
        ))),
    }
}

/// τ of one layer for its inputs.
fn measure(model: &Model, layer: usize, inputs: &[DMatrix<f64>]) -> Result<f64, CalibrateError> {
    let fault = |fault| CalibrateError::Other(format!("the measure of layer {layer}: {fault}"));
    let statistics = StepStatistics::of(inputs).map_err(fault)?;
    let measure = layer_measure(model.blocks()[layer].systems(), &statistics).map_err(fault)?;
    Ok(measure.tau)
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
