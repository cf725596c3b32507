//! Reduction of layers whose channels share modes (S5, LRU), of layers in both directions of time,
//! and of several kernels for each channel, for the inputs that they get.
//!
//! 1. Moments of the states in the full network, and of the adjoint states under gradients of the
//!    logits ([`hankelite_control::dense_moment_balance`]).
//! 2. Two starts: balanced truncation by these moments, and the best of the modes themselves.
//! 3. In the order of the layers, inputs come from the network reduced so far; the target is what
//!    the full network gives.
//! 4. C and D, B, and the poles are fitted in turn, in the metric of the gradients, and each step is
//!    taken only where the error on held-out sequences falls.
//! 5. The systems of all layers are fitted to the logits together.
//!
//! [`reduce_layer_jointly`] takes what is known of one layer alone: its inputs, or its inputs and gradients.
//! Without gradients every output counts the same; without the network steps 3 and 5 are left out.

mod curvature;
mod filtered;
mod fit;
mod in_class;
mod logits;
mod modes;
mod moments;
mod network;
mod place;
mod sample;
mod starts;
#[cfg(test)]
mod tests;
mod unit;

use hankelite_control::{ControlError, Refinement};
use in_class::cut_in_class;
use modes::Modes;
use nalgebra::DMatrix;
pub(super) use network::{SharedReduction, SharedSettings};
use sample::Sample;
use unit::Unit;

use crate::calibrate::CalibrateError;
use crate::compress::{CompressError, JointRecord, LayerRecord, record_of_joint};
use crate::model::Block;

/// What one layer got in some sequences, and what its outputs do.
#[derive(Debug, Clone)]
pub(super) struct LayerSequences {
    inputs: Vec<DMatrix<f64>>,
    gradients: Vec<Vec<DMatrix<f64>>>,
}

impl LayerSequences {
    /// The inputs of one layer, L × H for each sequence (L may differ), and for each sequence K
    /// derivatives by the layer's output, L × outputs, of random combinations of the centred logits;
    /// none at all where they are not known.
    ///
    /// # Errors
    /// [`CalibrateError::Other`] for no sequences, shapes that do not fit one another, and numbers
    /// that are not finite.
    pub(super) fn new(
        inputs: Vec<DMatrix<f64>>,
        gradients: Vec<Vec<DMatrix<f64>>>,
    ) -> Result<Self, CalibrateError> {
        let wrong = |what: String| Err(CalibrateError::Other(what));
        let Some(first) = inputs.first() else {
            return wrong("found no sequences, expected at least one".to_string());
        };
        if !gradients.is_empty() && gradients.len() != inputs.len() {
            let (found, expected) = (gradients.len(), inputs.len());
            return wrong(format!(
                "found gradients of {found} sequences, expected {expected}"
            ));
        }
        let all = inputs.iter().chain(gradients.iter().flatten());
        if all.flat_map(|m| m.iter()).any(|x| !x.is_finite()) {
            return wrong(
                "found a number that is not finite in the layer's inputs or gradients".into(),
            );
        }
        for (index, u) in inputs.iter().enumerate() {
            let own = gradients.get(index).into_iter().flatten();
            let mut lengths = own.map(DMatrix::nrows);
            if let Some(found) = lengths.find(|&length| length != u.nrows()) {
                let expected = u.nrows();
                return wrong(format!(
                    "sequence {index}: found gradients of {found} steps, expected {expected}"
                ));
            }
            if u.ncols() != first.ncols() {
                let (found, expected) = (u.ncols(), first.ncols());
                return wrong(format!(
                    "sequence {index}: found {found} channels, expected {expected}"
                ));
            }
        }
        Ok(Self { inputs, gradients })
    }

    /// Steps of the longest sequence.
    fn length(&self) -> usize {
        self.inputs.iter().map(DMatrix::nrows).max().unwrap_or(0)
    }
}

/// A layer reduced alone.
#[derive(Debug)]
pub(super) struct LayerReduction {
    /// The layer with fewer modes.
    pub(super) block: Block,
    /// What was done.
    pub(super) record: LayerRecord,
}

/// Reduces every system of a layer to at most `order` modes, for the inputs that it got. Systems of
/// several inputs and outputs, of several outputs for each channel, and of both directions of time
/// (with the same modes and input weights) are all taken.
///
/// Cost for P modes, H channels and T steps in all: O(T P (P + H)) for the moments, and for each of
/// at most eight rounds O(T (r H)²) with at most 8,192 steps for the step on B.
///
/// # Errors
/// [`CalibrateError::Other`] for inputs of other widths than the layer's, and for directions with
/// different modes; [`CalibrateError::Compress`] for modes that do not decay.
pub(super) fn reduce_layer_jointly(
    block: &Block,
    sequences: &LayerSequences,
    order: usize,
    refinement: Refinement,
) -> Result<LayerReduction, CalibrateError> {
    require_fitting(block, sequences, order)?;
    let mut units = units(block, sequences.length())?;
    for (index, u) in sequences.inputs.iter().enumerate() {
        let gradients = sequences
            .gradients
            .get(index)
            .map_or(&[][..], Vec::as_slice);
        for unit in &mut units {
            unit.add_input(u, u.nrows());
            unit.add_gradients(gradients, u.nrows());
        }
    }
    let samples = |unit: &Unit| -> Vec<Sample> {
        let inputs = sequences.inputs.iter();
        let inputs = inputs.map(|u| unit.inputs(u, u.nrows()).into_owned());
        let samples = inputs.map(|input| Sample {
            target: unit.modes.response(&input),
            input,
        });
        samples.collect()
    };
    let (block, joint) = cut_layer(block, &units, order, refinement, samples)?;
    Ok(LayerReduction {
        record: record_of_joint(&block[0], &block[1], joint, sequences.length())?,
        block: block[1].clone(),
    })
}

/// The states of the first system of a layer at every step of its input: the real parts of all modes,
/// then the imaginary ones.
pub(crate) fn states(block: &Block, input: &DMatrix<f64>) -> DMatrix<f64> {
    Modes::of(block, 0).states(input)
}

/// Whether a layer can be reduced to so many modes by what is known of it.
fn require_fitting(
    block: &Block,
    sequences: &LayerSequences,
    order: usize,
) -> Result<(), CalibrateError> {
    let (found, expected) = (sequences.inputs[0].ncols(), block.channels());
    let widths = sequences.gradients.iter().flatten().map(DMatrix::ncols);
    let outputs = block.outputs();
    if found != expected {
        let what = format!(
            "layer `{}`: found inputs of {found} channels, expected {expected}",
            block.name()
        );
        return Err(CalibrateError::Other(what));
    }
    if let Some(found) = widths.clone().find(|&width| width != outputs) {
        let what = format!(
            "layer `{}`: found gradients of {found} outputs, expected {outputs}",
            block.name()
        );
        return Err(CalibrateError::Other(what));
    }
    if order == 0 {
        return Err(CalibrateError::setting("the order", 0.0, "at least 1"));
    }
    if block.class().is_some() && !block.backward().is_empty() {
        return Err(CalibrateError::Other(format!(
            "layer `{}` runs in both directions, and its file holds some systems only; calibration takes \
             causal layers of such files: reduce it without data",
            block.name()
        )));
    }
    Ok(())
}

/// The systems of a layer.
fn units(block: &Block, length: usize) -> Result<Vec<Unit>, CalibrateError> {
    Unit::of(block, length).ok_or_else(|| {
        CalibrateError::Other(format!(
            "layer `{}` runs in both directions with different modes; calibration takes layers with \
             the same modes in both, or causal ones",
            block.name()
        ))
    })
}

/// A layer before and after, and what is recorded of its systems.
type CutLayer = ([Block; 2], Vec<JointRecord>);

/// Every system of a layer cut for its samples.
fn cut_layer(
    block: &Block,
    units: &[Unit],
    order: usize,
    refinement: Refinement,
    samples: impl Fn(&Unit) -> Vec<Sample>,
) -> Result<CutLayer, CalibrateError> {
    let (mut systems, mut backward, mut joint) = (Vec::new(), Vec::new(), Vec::new());
    for (index, unit) in units.iter().enumerate() {
        let fault = |source: ControlError| CompressError::channel(block, index, source);
        let cut = match block.class() {
            None => unit.cut(&samples(unit), order, refinement),
            Some(class) => {
                cut_in_class(unit, class, &samples(unit), order, refinement).map_err(fault)?
            }
        };
        let time = block.systems()[index].time();
        let mut made = match order >= unit.modes.order() {
            true => block.systems()[index..=index]
                .iter()
                .chain(block.backward().get(index))
                .cloned()
                .collect(),
            false => cut.modes.systems(time).map_err(|e| fault(e.into()))?,
        };
        backward.extend(made.drain(1..));
        systems.extend(made);
        joint.push(JointRecord {
            weighted: cut.record,
            notes: cut.notes,
        });
    }
    let reduced = block.with_systems(systems, backward)?;
    Ok(([block.clone(), reduced], joint))
}
