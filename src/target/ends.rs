//! Rounding the maps at both ends of a network.

use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::calibrate::CalibratedReduction;
use crate::infer::{InferError, Network, Path as InferPath};
use crate::model::{Encoder, Head, Linear, Model, ModelParts, Sequence};
use crate::rounding::{MapChoice, MapMoments, MapStorage, Numbers};
use crate::target::TargetError;
use crate::target::rows::checked;

/// The model with its encoder rounded for the moments of its inputs, and how it is stored. An
/// embedding stays as it is.
pub(super) fn rounded_encoder(
    reduction: &CalibratedReduction<'_>,
    model: &Model,
    choice: MapChoice,
) -> Result<(Model, MapStorage), TargetError> {
    let Some(Encoder::Linear(linear)) = model.encoder() else {
        return Ok((model.clone(), MapStorage::Full));
    };
    let inputs = linear.weight.nrows();
    let mut moments = MapMoments::new(inputs);
    for sequence in reduction.sequences() {
        if let Sequence::Values(values) = sequence {
            let wide = values.iter().map(|&value| f64::from(value));
            let u = DMatrix::from_row_iterator(values.len() / inputs, inputs, wide);
            moments.add(&u, &u)?;
        }
    }
    let with = |linear| {
        let encoder = Some(Encoder::Linear(linear));
        let parts = model.clone().into_parts();
        Ok(Model::new(ModelParts { encoder, ..parts })?)
    };
    rounded(reduction, linear, choice, &moments, with)
}

/// The model with its head rounded for the moments of its inputs, and how it is stored.
pub(super) fn rounded_head(
    reduction: &CalibratedReduction<'_>,
    model: &Model,
    choice: MapChoice,
) -> Result<(Model, MapStorage), TargetError> {
    let Some(head) = model.head() else {
        return Ok((model.clone(), MapStorage::Full));
    };
    let network = Network::new(model, reduction.length(), InferPath::Auto)?;
    let sequences = reduction.sequences();
    let features = sequences
        .par_iter()
        .map(|&sequence| network.pooled(sequence));
    let features = features.collect::<Result<Vec<_>, InferError>>()?;
    let mut moments = MapMoments::new(head.linear.weight.nrows());
    for x in &features {
        moments.add(x, x)?;
    }
    let with = |linear| {
        let pooling = head.pooling;
        let head = Some(Head { pooling, linear });
        let parts = model.clone().into_parts();
        Ok(Model::new(ModelParts { head, ..parts })?)
    };
    rounded(reduction, &head.linear, choice, &moments, with)
}

/// A map rounded for its moments or to the nearest entries, whichever changes the logits less on the
/// sequences that check.
fn rounded(
    reduction: &CalibratedReduction<'_>,
    linear: &Linear,
    choice: MapChoice,
    moments: &MapMoments,
    with: impl Fn(Linear) -> Result<Model, TargetError>,
) -> Result<(Model, MapStorage), TargetError> {
    let MapChoice { entries, group } = choice;
    let nearest = MapStorage::nearest(linear, entries, group)?;
    let by_nearest = with(nearest.applied(linear, Numbers::F32))?;
    let made = moments.compensated(linear, entries, group)?;
    let by_moments = with(made.linear)?;
    let change = |model: &Model| checked(reduction, model)?.change(model);
    match change(&by_moments)? < change(&by_nearest)? {
        true => Ok((by_moments, made.storage)),
        false => Ok((by_nearest, nearest)),
    }
}
