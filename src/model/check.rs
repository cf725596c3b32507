//! What makes a model whole.

use hankelite_control::{DiagonalSystem, Time};

use crate::model::ModelError;
use crate::model::parts::{BlockParts, Gate, Linear, Norm, OutputLinear};

/// Whether the systems of a layer are discrete, of one shape, and the same in both directions.
pub(super) fn systems(parts: &BlockParts) -> Result<(), ModelError> {
    let place = &parts.name;
    let Some(first) = parts.systems.first() else {
        let text = format!("{place}: found no systems, expected at least one");
        return Err(ModelError(text));
    };
    let count = parts.systems.len();
    if !parts.backward.is_empty() {
        size(
            place,
            "systems backwards in time",
            parts.backward.len(),
            count,
        )?;
    }
    for system in parts.systems.iter().chain(&parts.backward) {
        if system.time() == Time::Continuous {
            let text = format!("{place}: found a continuous system, expected discrete ones");
            return Err(ModelError(text));
        }
        size(place, "inputs of a system", shape(system).0, shape(first).0)?;
        size(
            place,
            "outputs of a system",
            shape(system).1,
            shape(first).1,
        )?;
    }
    let direct = |system: &DiagonalSystem| system.feedthrough().iter().any(|d| *d != 0.0);
    if parts.backward.iter().any(direct) {
        let text = format!("{place}: found a feedthrough backwards in time, expected none");
        return Err(ModelError(text));
    }
    size(
        place,
        "largest first lag backwards in time",
        parts.backward_from.max(1),
        1,
    )
}

fn shape(system: &DiagonalSystem) -> (usize, usize) {
    (system.input().ncols(), system.output().nrows())
}

/// Whether other systems take the place of those of a layer.
pub(super) fn same_shapes(stored: &BlockParts, parts: &BlockParts) -> Result<(), ModelError> {
    let place = &parts.name;
    size(place, "systems", parts.systems.len(), stored.systems.len())?;
    let backward = stored.backward.len();
    size(
        place,
        "systems backwards in time",
        parts.backward.len(),
        backward,
    )?;
    size(place, "channels", parts.channels(), stored.channels())?;
    size(place, "outputs", parts.outputs(), stored.outputs())
}

/// Whether the output map and the normalisation of a layer fit its systems.
pub(super) fn around(parts: &BlockParts) -> Result<(), ModelError> {
    let place = &parts.name;
    if let Some(OutputLinear { linear, gate }) = &parts.output {
        self::linear(place, linear, parts.outputs())?;
        let columns = linear.weight.ncols();
        match gate {
            Gate::None => {}
            Gate::Halves => size(
                place,
                "outputs of a gated map, of which half are gates,",
                columns,
                columns & !1,
            )?,
            Gate::Activated | Gate::Response => {
                size(place, "gates", columns, parts.outputs())?;
            }
        }
    }
    if let Some((norm, _)) = &parts.norm {
        size(
            place,
            "channels behind the layer",
            parts.width(),
            parts.channels(),
        )?;
        self::norm(place, norm, parts.channels())?;
    }
    Ok(())
}

pub(super) fn linear(place: &str, linear: &Linear, inputs: usize) -> Result<(), ModelError> {
    size(
        place,
        "inputs of the linear map",
        linear.weight.nrows(),
        inputs,
    )?;
    finite(place, "weight", linear.weight.as_slice())?;
    let Some(bias) = &linear.bias else {
        return Ok(());
    };
    size(
        place,
        "numbers in the bias",
        bias.len(),
        linear.weight.ncols(),
    )?;
    finite(place, "bias", bias)
}

pub(super) fn norm(place: &str, norm: &Norm, channels: usize) -> Result<(), ModelError> {
    let (weight, bias, epsilon) = norm.affine();
    let mut rows = vec![("norm weight", weight), ("norm bias", bias)];
    if let Norm::Batch(batch) = norm {
        rows.extend([
            ("norm mean", &batch.mean[..]),
            ("norm variance", &batch.variance[..]),
        ]);
    }
    for (what, numbers) in rows {
        size(place, what, numbers.len(), channels)?;
        finite(place, what, numbers)?;
    }
    finite(place, "norm epsilon", &[epsilon])
}

pub(super) fn size(
    place: &str,
    what: &str,
    found: usize,
    expected: usize,
) -> Result<(), ModelError> {
    if found == expected {
        return Ok(());
    }
    Err(ModelError(format!(
        "{place}: found {found} {what}, expected {expected}"
    )))
}

pub(super) fn finite(place: &str, what: &str, numbers: &[f64]) -> Result<(), ModelError> {
    match numbers.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(index) => Err(ModelError(format!(
            "{place}: number {index} of the {what} is not finite"
        ))),
    }
}
