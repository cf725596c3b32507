//! B, C and the maps between the channels of layers that share modes, rounded one after the other.

use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::calibrate::{CalibratedReduction, states};
use crate::infer::{InferError, Network, Path as InferPath, Signal};
use crate::model::{Block, Model};
use crate::rounding::{
    Entries, MapChoice, MapMoments, RoundingError, SharedMaps, SharedStorage, Storage,
};
use crate::target::TargetError;
use crate::target::build::{ROUNDED_ON, by_moments, moments, rounded_map};
use crate::target::compared::{Compared, MapPlace};
use crate::target::rows::checked;

/// Steps that maps are rounded on, about.
const STEPS_MAX: usize = 20_000;

/// The entries of B and C, and of the maps between channels.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedChoice {
    pub(super) systems: MapChoice,
    pub(super) maps: MapChoice,
    /// Whether maps are rounded for the logits, too, and the better is taken.
    pub(super) for_logits: bool,
}

/// A model on its way to fewer bits.
struct Rounding<'a> {
    reduction: &'a CalibratedReduction<'a>,
    /// The model before.
    before: &'a Model,
    reference: Network<'a>,
    /// The layers so far are rounded.
    model: Model,
    storage: Storage,
    /// The sequences that check, before the next layer of the rounded model, where maps are rounded for
    /// the logits, too.
    compared: Option<Compared<'a>>,
    /// What goes into the next layer, in the rounded model and in the one before.
    pairs: Vec<[Signal; 2]>,
}

/// A model with B, C and the maps of all layers rounded for the second moments of what they take in the
/// model rounded so far, so that they give what they gave before; `storage` says how all else is
/// stored. Cost a few forward passes over at most 64 sequences.
pub(super) fn rounded(
    reduction: &CalibratedReduction<'_>,
    model: &Model,
    choice: SharedChoice,
    storage: Storage,
) -> Result<(Model, Storage), TargetError> {
    let length = reduction.length();
    let reference = Network::new(model, length, InferPath::Auto)?;
    let most = (STEPS_MAX / length.max(1)).clamp(1, ROUNDED_ON);
    let few = reduction.sequences().par_iter().take(most);
    let pairs = few.map(|&sequence| {
        let signal = reference.encode(sequence)?;
        Ok([signal.clone(), signal])
    });
    let mut rounding = Rounding {
        pairs: pairs.collect::<Result<_, InferError>>()?,
        compared: match choice.for_logits {
            true => Some(checked(reduction, model)?),
            false => None,
        },
        model: model.clone(),
        before: model,
        reduction,
        reference,
        storage,
    };
    for layer in 0..model.blocks().len() {
        rounding.round_systems(layer, choice.systems)?;
        rounding.round_map(layer, choice.maps)?;
    }
    let model = rounding.storage.applied(&rounding.model)?;
    Ok((model, rounding.storage))
}

impl Rounding<'_> {
    fn network(&self) -> Result<Network<'_>, TargetError> {
        let length = self.reduction.length();
        Ok(Network::new(&self.model, length, InferPath::Auto)?)
    }

    /// B for the inputs, then C, and a dense D, for the states that this B makes.
    fn round_systems(&mut self, layer: usize, choice: MapChoice) -> Result<(), TargetError> {
        let MapChoice { entries, group } = choice;
        let block = &self.before.blocks()[layer];
        let [system] = block.systems() else {
            return Ok(());
        };
        if entries == Entries::Full || block.is_siso() || block.class().is_some() {
            return Ok(());
        }
        let inputs = {
            let network = self.network()?;
            let each = self.pairs.par_iter().map(|[own, before]| {
                let inputs = [
                    network.system_input(layer, &own.x)?,
                    self.reference.system_input(layer, &before.x)?,
                ];
                Ok(inputs.map(|u| u.rows(0, own.steps).into_owned()))
            });
            each.collect::<Result<Vec<_>, InferError>>()?
        };
        let mut maps = SharedMaps::of(system);
        let sums = moments(inputs.len(), system.input().ncols(), |i| {
            Ok(inputs[i].clone())
        })?;
        let input = sums.compensated(&maps.input, entries, group)?;
        maps.input = input.linear;
        let driven = block.with_systems(vec![made(&maps, block)?], Vec::new())?;
        let width = maps.output.weight.nrows();
        let sums = moments(inputs.len(), width, |i| {
            let [own, before] = &inputs[i];
            Ok([parts(&driven, own, width), parts(block, before, width)])
        })?;
        let output = sums.compensated(&maps.output, entries, group)?;
        maps.output = output.linear;
        self.storage.layers[layer].shared = SharedStorage {
            input: input.storage,
            output: output.storage,
        };
        let block = block.with_systems(vec![made(&maps, block)?], Vec::new())?;
        self.model = self.model.with_block(layer, block)?;
        Ok(())
    }

    /// The map, and all sequences past the layer.
    fn round_map(&mut self, layer: usize, choice: MapChoice) -> Result<(), TargetError> {
        let responses = self.responses(layer)?;
        if choice.entries != Entries::Full {
            let sums = self.map_moments(layer, &responses)?;
            (self.model, self.storage.layers[layer].map) = match &self.compared {
                Some(compared) => {
                    let place = MapPlace {
                        model: &self.model,
                        layer,
                        compared,
                    };
                    rounded_map(self.reduction, place, choice, &sums)?
                }
                None => by_moments(&self.model, layer, choice, &sums)?,
            };
        }
        let network = Network::new(&self.model, self.reduction.length(), InferPath::Auto)?;
        let each = self.pairs.par_iter_mut().zip(responses);
        each.try_for_each(|([own, before], [y, z])| {
            own.x = network.finished(layer, &own.x, &y)?;
            before.x = self.reference.finished(layer, &before.x, &z)?;
            Ok::<_, InferError>(())
        })?;
        drop(network);
        if let Some(compared) = &mut self.compared {
            compared.pass(&self.model)?;
        }
        Ok(())
    }

    fn responses(&self, layer: usize) -> Result<Vec<[DMatrix<f64>; 2]>, TargetError> {
        let network = self.network()?;
        let each = self.pairs.par_iter().map(|[own, before]| {
            let own = network.response(layer, &own.x)?;
            Ok([own, self.reference.response(layer, &before.x)?])
        });
        Ok(each.collect::<Result<_, InferError>>()?)
    }

    fn map_moments(
        &self,
        layer: usize,
        responses: &[[DMatrix<f64>; 2]],
    ) -> Result<MapMoments, TargetError> {
        let width = self.before.blocks()[layer].outputs();
        moments(responses.len(), width, |i| {
            let steps = self.pairs[i][0].steps;
            let activated = |y: &DMatrix<f64>| {
                let y = y.rows(0, steps).into_owned();
                self.reference.activated(layer, &y)
            };
            let [own, before] = &responses[i];
            Ok([activated(own)?, activated(before)?])
        })
    }
}

/// The system of these maps.
fn made(
    maps: &SharedMaps,
    block: &Block,
) -> Result<hankelite_control::DiagonalSystem, TargetError> {
    let made = maps.system(&block.systems()[0]);
    Ok(made.map_err(RoundingError::from)?)
}

/// What C takes: the parts of the states, zeros, and the channels beside a dense D.
fn parts(block: &Block, u: &DMatrix<f64>, width: usize) -> DMatrix<f64> {
    let mut all = DMatrix::zeros(u.nrows(), width);
    let states = states(block, u);
    all.columns_mut(0, states.ncols()).copy_from(&states);
    let padded = hankelite_edge::padded(states.ncols());
    if width > padded {
        all.columns_mut(padded, width - padded).copy_from(u);
    }
    all
}
