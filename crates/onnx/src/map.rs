//! Linear maps, their weights as a storage has them.

use hankelite::advanced::RoundedMatrix;
use hankelite::model::Linear;
use hankelite::rounding::MapStorage;
use nalgebra::DMatrix;

use crate::OnnxError;
use crate::graph::Graph;
use crate::schema::{AttributeProto, Kind};

/// x W + b over the last axis of `x`. The numbers of `linear` are those that the storage stands for.
pub(crate) fn apply(
    graph: &mut Graph,
    name: &str,
    x: &str,
    (linear, storage): (&Linear, &MapStorage),
) -> Result<String, OnnxError> {
    let weight = weight(graph, &format!("{name}.weight"), linear, storage)?;
    let product = graph.node("MatMul", &[x, &weight]);
    let Some(bias) = &linear.bias else {
        return Ok(product);
    };
    let numbers = bias.iter().copied();
    let bias = graph.floats(&format!("{name}.bias"), &[bias.len()], numbers)?;
    Ok(graph.node("Add", &[&product, &bias]))
}

/// W, inputs × outputs.
fn weight(
    graph: &mut Graph,
    name: &str,
    linear: &Linear,
    storage: &MapStorage,
) -> Result<String, OnnxError> {
    let weight = linear.weight.as_ref();
    let dims = [weight.nrows(), weight.ncols()];
    match storage {
        MapStorage::Full => graph.floats(name, &dims, by_rows(weight)),
        MapStorage::Bf16 => {
            let bytes = by_rows(weight).flat_map(|w| half::bf16::from_f64(w).to_le_bytes());
            let halves = graph.constant(name, Kind::Bfloat16, &dims, bytes.collect());
            Ok(to_float(graph, &halves))
        }
        MapStorage::Integers(rounded) => Ok(dequantised(graph, name, rounded)),
    }
}

fn to_float(graph: &mut Graph, value: &str) -> String {
    let to = AttributeProto::int("to", Kind::Float as i64);
    graph.node_with("Cast", &[value], vec![to])
}

/// Integers times the scale of their group. One group takes all inputs where they are fewer.
fn dequantised(graph: &mut Graph, name: &str, rounded: &RoundedMatrix) -> String {
    let (levels, scales) = (rounded.levels(), rounded.scales());
    let dims = [levels.nrows(), levels.ncols()];
    let (kind, bytes) = match rounded.bits() {
        8 => (
            Kind::Int8,
            by_rows(levels).map(|level| level as u8).collect(),
        ),
        // Two bits have the levels −3 to 3.
        _ => (Kind::Int4, in_pairs(by_rows(levels))),
    };
    let integers = graph.constant(name, kind, &dims, bytes);
    let halves = by_rows(scales).flat_map(|scale| half::bf16::from_f32(scale).to_le_bytes());
    let halves = halves.collect();
    let (shape, attributes) = match scales.nrows() {
        1 => (vec![dims[1]], vec![AttributeProto::int("axis", 1)]),
        groups => (
            vec![groups, dims[1]],
            vec![
                AttributeProto::int("axis", 0),
                AttributeProto::int("block_size", rounded.group() as i64),
            ],
        ),
    };
    let scales = graph.constant(&format!("{name}.scales"), Kind::Bfloat16, &shape, halves);
    let scales = to_float(graph, &scales);
    graph.node_with("DequantizeLinear", &[&integers, &scales], attributes)
}

/// Two of four bits in each byte, the first in the lower half.
fn in_pairs(levels: impl Iterator<Item = i8>) -> Vec<u8> {
    let nibbles: Vec<u8> = levels.map(|level| level as u8 & 15).collect();
    let byte = |pair: &[u8]| pair[0] | pair.get(1).map_or(0, |upper| upper << 4);
    nibbles.chunks(2).map(byte).collect()
}

fn by_rows<T: nalgebra::Scalar + Copy>(matrix: &DMatrix<T>) -> impl Iterator<Item = T> {
    let (rows, columns) = matrix.shape();
    (0..rows).flat_map(move |row| (0..columns).map(move |column| matrix[(row, column)]))
}
