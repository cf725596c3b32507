//! The tensors around the state space layers: encoder, output maps, norms and decoder.

use std::sync::Arc;

use nalgebra::DMatrix;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::Encoded;
use crate::checkpoint::tensors::Tensors;
use crate::model::{BatchNorm, Encoder, Gate, LayerNorm, Linear, Norm, OutputLinear};

/// ε of torch's LayerNorm and BatchNorm.
const NORM_EPSILON: f64 = 1e-5;

/// How the tensors of a new output map are shaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MapShape {
    /// A convolution of width one: behind S4D.
    Convolution,
    /// A linear map whose bias is a column: behind DSS.
    Column,
    /// A linear map: behind the kernels of the full repository.
    Linear,
}

/// The map behind a layer.
pub(super) fn encode_output(
    place: &str,
    output: &OutputLinear,
    maps: MapShape,
    out: &mut Vec<Encoded>,
) {
    let kind = if output.gate == Gate::Halves {
        "0."
    } else {
        ""
    };
    let first = out.len();
    encode_linear(&format!("{place}output_linear.{kind}"), &output.linear, out);
    let end = out.len();
    let longer = match maps {
        MapShape::Convolution => first..first + 1,
        MapShape::Column => first + 1..end,
        MapShape::Linear => end..end,
    };
    for shape in out[longer]
        .iter_mut()
        .filter_map(|tensor| tensor.shape.as_mut())
    {
        shape.push(1);
    }
}

pub(super) fn encode_norm(head: &str, norm: &Norm, out: &mut Vec<Encoded>) {
    let (weight, bias, _) = norm.affine();
    let mut parts = vec![("weight", weight), ("bias", bias)];
    if let Norm::Batch(norm) = norm {
        parts.extend([
            ("running_mean", &norm.mean[..]),
            ("running_var", &norm.variance[..]),
        ]);
    }
    for (part, data) in parts {
        let name = format!("{head}{part}");
        out.push(Encoded::weight(name, vec![data.len()], data.to_vec()));
    }
}

pub(super) fn encode_linear(head: &str, linear: &Linear, out: &mut Vec<Encoded>) {
    let (inputs, outputs) = linear.weight.shape();
    let data = linear.weight.as_slice().to_vec();
    let name = format!("{head}weight");
    out.push(Encoded::weight(name, vec![outputs, inputs], data));
    if let Some(bias) = &linear.bias {
        let name = format!("{head}bias");
        out.push(Encoded::weight(name, vec![outputs], bias.clone()));
    }
}

/// The transpose of a row-major (rows, columns) tensor, without moving a number.
fn transposed(rows: usize, columns: usize, data: Vec<f64>) -> Arc<DMatrix<f64>> {
    Arc::new(DMatrix::from_vec(columns, rows, data))
}

/// LayerNorm; a BatchNorm1d where there are running statistics.
pub(super) fn norm(tensors: &Tensors<'_>, head: &str, channels: usize) -> Result<Norm, Fault> {
    let expected = format!("[{channels}]");
    let read = |part: &str| {
        let name = format!("{head}{part}");
        Ok::<_, Fault>(tensors.shaped(&name, &[&[channels]], &expected)?.data)
    };
    let (weight, bias) = (read("weight")?, read("bias")?);
    if !tensors.contains(&format!("{head}running_mean")) {
        return Ok(Norm::Layer(LayerNorm {
            weight,
            bias,
            epsilon: NORM_EPSILON,
        }));
    }
    tensors.set_aside(&format!("{head}num_batches_tracked"));
    Ok(Norm::Batch(BatchNorm {
        weight,
        bias,
        mean: read("running_mean")?,
        variance: read("running_var")?,
        epsilon: NORM_EPSILON,
    }))
}

/// `output_linear.0.*` (a convolution of width one, or a linear layer before a GLU) or
/// `output_linear.*`; 2H rows mean a gate. A bare kernel has none.
pub(super) fn output_linear(
    tensors: &Tensors<'_>,
    place: &str,
    channels: usize,
    inputs: usize,
) -> Result<Option<OutputLinear>, Fault> {
    let names = ["output_linear.0.", "output_linear."].map(|head| format!("{place}{head}"));
    let Some(head) = names
        .iter()
        .find(|head| tensors.contains(&format!("{head}weight")))
    else {
        if place.is_empty() {
            return Ok(None);
        }
        return Err(Fault::Missing {
            tensor: tensors.full(&format!("{}weight", names[0])),
            expected: format!("[{}, {inputs}, 1]", 2 * channels),
        });
    };
    let (gate, rows) = match head.ends_with("0.") {
        true => (Gate::Halves, 2 * channels),
        false => (Gate::None, channels),
    };
    let weight_name = format!("{head}weight");
    let expected = format!("[{rows}, {inputs}, 1] or [{rows}, {inputs}]");
    let shapes: [&[usize]; 2] = [&[rows, inputs, 1], &[rows, inputs]];
    let weight = tensors.shaped(&weight_name, &shapes, &expected)?;
    let bias_name = format!("{head}bias");
    let bias = if tensors.contains(&bias_name) {
        let shapes: [&[usize]; 2] = [&[rows], &[rows, 1]];
        Some(
            tensors
                .shaped(&bias_name, &shapes, &format!("[{rows}] or [{rows}, 1]"))?
                .data,
        )
    } else {
        None
    };
    Ok(Some(OutputLinear {
        linear: Linear {
            weight: transposed(rows, inputs, weight.data),
            bias,
        },
        gate,
    }))
}

/// A linear encoder has a bias; an embedding has none and as many columns as channels.
pub(super) fn encoder(
    tensors: &Tensors<'_>,
    head: &str,
    channels: usize,
) -> Result<Encoder, Fault> {
    let expected = format!("[{channels}, inputs]");
    let [weight_name, bias_name] = ["weight", "bias"].map(|part| format!("{head}{part}"));
    let weight = tensors.values(&weight_name, &expected)?;
    let &[rows, columns] = weight.shape.as_slice() else {
        return Err(tensors.wrong_shape(&weight_name, weight.shape, &expected));
    };
    if !tensors.contains(&bias_name) && columns == channels {
        return Ok(Encoder::Embedding(transposed(rows, columns, weight.data)));
    }
    if rows != channels || columns == 0 {
        return Err(tensors.wrong_shape(&weight_name, weight.shape, &expected));
    }
    let bias = tensors.shaped(&bias_name, &[&[channels]], &format!("[{channels}]"))?;
    Ok(Encoder::Linear(Linear {
        weight: transposed(rows, columns, weight.data),
        bias: Some(bias.data),
    }))
}

pub(super) fn decoder(tensors: &Tensors<'_>, head: &str, channels: usize) -> Result<Linear, Fault> {
    let expected = format!("[classes, {channels}]");
    let [weight_name, bias_name] = ["weight", "bias"].map(|part| format!("{head}{part}"));
    let weight = tensors.values(&weight_name, &expected)?;
    let &[classes, columns] = weight.shape.as_slice() else {
        return Err(tensors.wrong_shape(&weight_name, weight.shape, &expected));
    };
    if columns != channels || classes == 0 {
        return Err(tensors.wrong_shape(&weight_name, weight.shape, &expected));
    }
    let bias = tensors.shaped(&bias_name, &[&[classes]], &format!("[{classes}]"))?;
    Ok(Linear {
        weight: transposed(classes, columns, weight.data),
        bias: Some(bias.data),
    })
}

/// An encoder as a map with bias, or as a table without.
pub(super) fn encode_encoder(head: &str, encoder: &Encoder, out: &mut Vec<Encoded>) {
    match encoder {
        Encoder::Linear(linear) => encode_linear(head, linear, out),
        Encoder::Embedding(table) => {
            let shape = vec![table.ncols(), table.nrows()];
            let data = table.as_slice().to_vec();
            out.push(Encoded::weight(format!("{head}weight"), shape, data));
        }
    }
}
