//! What makes a model whole.

use hankelite_control::{DiagonalSystem, Time};

use crate::model::block::BlockParts;
use crate::model::{Block, Encoder, Linear, ModelError, ModelParts, Norm, OutputLinear};

/// Whether the systems of a layer are discrete, of one shape, and the same in both directions.
pub(super) fn systems(parts: &BlockParts) -> Result<(), ModelError> {
    let place = &parts.name;
    let Some(first) = parts.systems.first() else {
        return Err(ModelError::Empty {
            place: place.clone(),
            what: "systems",
        });
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
            return Err(ModelError::Continuous {
                place: place.clone(),
            });
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
        return Err(ModelError::BackwardFeedthrough {
            place: place.clone(),
        });
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
pub(super) fn same_shapes(block: &Block, parts: &BlockParts) -> Result<(), ModelError> {
    let place = block.name();
    size(place, "systems", parts.systems.len(), block.systems().len())?;
    let backward = block.backward().len();
    size(
        place,
        "systems backwards in time",
        parts.backward.len(),
        backward,
    )?;
    size(place, "channels", parts.channels(), block.channels())?;
    size(place, "outputs", parts.outputs(), block.outputs())
}

/// Whether the output map and the normalisation of a layer fit its systems.
pub(super) fn around(parts: &BlockParts) -> Result<(), ModelError> {
    let place = &parts.name;
    if let Some(OutputLinear { linear, gated }) = &parts.output {
        self::linear(place, linear, parts.outputs())?;
        let columns = linear.weight.ncols();
        if *gated {
            size(
                place,
                "outputs of a gated map, of which half are gates,",
                columns,
                columns & !1,
            )?;
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

/// Whether encoder, layers, normalisation and head follow one another.
pub(super) fn network(parts: &ModelParts) -> Result<(), ModelError> {
    if let Some(encoder) = &parts.encoder {
        self::encoder(encoder)?;
    }
    let last = parts.blocks.last().map(|block| block.width());
    let width = last.or(parts.encoder.as_ref().map(Encoder::width));
    if let (Some(norm), Some(width)) = (&parts.final_norm, width) {
        self::norm("the last normalisation", norm, width)?;
    }
    if let (Some(head), Some(width)) = (&parts.head, width) {
        linear("the head", &head.linear, width)?;
    }
    // Layers out of a network that is not known need not follow one another.
    let Some(encoder) = &parts.encoder else {
        return Ok(());
    };
    let mut width = encoder.width();
    for block in &parts.blocks {
        size(block.name(), "channels", block.channels(), width)?;
        width = block.width();
    }
    Ok(())
}

fn encoder(encoder: &Encoder) -> Result<(), ModelError> {
    let place = "the encoder";
    match encoder {
        Encoder::Linear(map) => linear(place, map, map.weight.nrows()),
        Encoder::Embedding(table) => finite(place, "table", table.as_slice()),
    }
}

fn linear(place: &str, linear: &Linear, inputs: usize) -> Result<(), ModelError> {
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

fn norm(place: &str, norm: &Norm, channels: usize) -> Result<(), ModelError> {
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

fn size(place: &str, what: &'static str, found: usize, expected: usize) -> Result<(), ModelError> {
    if found == expected {
        return Ok(());
    }
    Err(ModelError::Size {
        place: place.to_string(),
        what,
        found,
        expected,
    })
}

fn finite(place: &str, what: &'static str, numbers: &[f64]) -> Result<(), ModelError> {
    match numbers.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(index) => Err(ModelError::NotFinite {
            place: place.to_string(),
            what,
            index,
        }),
    }
}
