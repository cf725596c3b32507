//! The classifiers of lindermanlab/S5 and minimal-LRU as flax stores them: `encoder`, `layers_{i}`
//! with `seq`, a norm and one map or two, `decoder`. Known by their names.

use std::collections::BTreeSet;
use std::sync::Arc;

use nalgebra::DMatrix;

use crate::checkpoint::declared::{Declared, HalfGate};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Encoded, Found, Kind};
use crate::checkpoint::tensors::Tensors;
use crate::model::{
    BatchNorm, BlockParts, Encoder, Gate, Head, LayerNorm, Linear, ModelParts, Nonlinearity, Norm,
    OutputLinear, Placement, Pooling,
};

/// ε of flax's LayerNorm, and of its BatchNorm.
const EPSILONS: [f64; 2] = [1e-6, 1e-5];

/// What the norm of a layer is called: in S5, in minimal-LRU.
const NORMS: [&str; 2] = ["norm", "normalization"];

/// Where the statistics of batch norms stand, and where everything else does.
const STATISTICS: [&str; 2] = ["params", "batch_stats"];

/// The names around the layers.
#[derive(Debug, Clone)]
pub(super) struct Flax {
    /// What the names of encoder and layers start with, e.g. `params/encoder/`.
    stem: String,
    /// The decoder's, e.g. `params/decoder/`.
    decoder: String,
    /// What stands between the parts of a name.
    separator: char,
    norm: &'static str,
    maps: Maps,
}

/// The maps behind the state spaces of every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maps {
    /// None: `gelu`.
    None,
    /// `out2`: `half_glu1` or `half_glu2`.
    Gate,
    /// `out1` and `out2`: `full_glu`.
    Both,
}

/// Looks for one of the classifiers; with one tensor more or less it is none, and the answer is
/// that tensor's name.
pub(super) fn recognise<'a>(
    names: impl Iterator<Item = &'a str>,
    layers: &[Found],
) -> Option<Result<Flax, String>> {
    let names: BTreeSet<&str> = names.collect();
    let first = layers.first()?;
    if !matches!(first.kind, Kind::S5 { torch: false } | Kind::Lru) {
        return None;
    }
    let separator = first.place.chars().last()?;
    let ending = format!("layers_0{separator}seq{separator}");
    let stem = first.place.strip_suffix(&ending)?.to_string();
    let above = stem.strip_suffix(&format!("encoder{separator}"))?;
    let has = |name: &str| names.contains(name);
    let layer = format!("{stem}layers_0{separator}");
    let map = |which: &str| has(&format!("{layer}{which}{separator}kernel"));
    let norm = |norm: &&&str| has(&format!("{layer}{norm}{separator}scale"));
    let made = Flax {
        decoder: format!("{above}decoder{separator}"),
        norm: NORMS.iter().find(norm).copied().unwrap_or(NORMS[0]),
        maps: match (map("out1"), map("out2")) {
            (true, _) => Maps::Both,
            (false, true) => Maps::Gate,
            (false, false) => Maps::None,
        },
        stem,
        separator,
    };
    Some(match made.unlike(&names, layers) {
        Some(why) => Err(why),
        None => Ok(made),
    })
}

impl Flax {
    fn join(&self, parts: &[&str]) -> String {
        parts.join(&self.separator.to_string())
    }

    fn layer(&self, index: usize) -> String {
        format!("{}layers_{index}{}", self.stem, self.separator)
    }

    /// Where the statistics of a batch norm stand.
    fn statistics(&self, norm: &str) -> String {
        norm.replacen(STATISTICS[0], STATISTICS[1], 1)
    }

    /// Everything that the network needs around the layers, but for what has two spellings.
    fn needed(&self, names: &BTreeSet<&str>, layers: usize) -> Vec<String> {
        let table = format!("{}{}", self.stem, self.join(&["encoder", "embedding"]));
        let dense = |head: String| [format!("{head}kernel"), format!("{head}bias")];
        let mut needed = Vec::from(dense(self.decoder.clone()));
        match names.contains(table.as_str()) {
            true => needed.push(table),
            false => needed.extend(dense(format!("{}encoder{}", self.stem, self.separator))),
        }
        let maps: &[&str] = match self.maps {
            Maps::None => &[],
            Maps::Gate => &["out2"],
            Maps::Both => &["out1", "out2"],
        };
        for index in 0..layers {
            let layer = self.layer(index);
            let norm = format!("{layer}{}{}", self.norm, self.separator);
            let statistics = self.statistics(&norm);
            if names.contains(format!("{statistics}mean").as_str()) {
                needed.extend(["mean", "var"].map(|part| format!("{statistics}{part}")));
            }
            needed.extend(["scale", "bias"].map(|part| format!("{norm}{part}")));
            let maps = maps.iter();
            needed.extend(maps.flat_map(|map| dense(format!("{layer}{map}{}", self.separator))));
        }
        needed
    }

    /// How a file differs from the classifier, where it does.
    fn unlike(&self, names: &BTreeSet<&str>, layers: &[Found]) -> Option<String> {
        let seq = |index: usize| format!("{}seq{}", self.layer(index), self.separator);
        let mut counted = layers.iter().enumerate();
        if let Some((index, layer)) = counted.find(|(index, layer)| layer.place != seq(*index)) {
            return Some(format!("`{}` is not layer {index}", layer.place));
        }
        let needed = self.needed(names, layers.len());
        if let Some(missing) = needed.iter().find(|name| !names.contains(name.as_str())) {
            return Some(format!("there is no tensor `{missing}`"));
        }
        let known = |name: &&str| {
            needed.iter().any(|known| known == name) || layers.iter().any(|layer| layer.holds(name))
        };
        let strange = names.iter().find(|name| !known(name))?;
        Some(format!(
            "tensor `{strange}` is none of the classifiers of S5 and minimal-LRU"
        ))
    }

    /// What nothing in the file shows: where the norms stand, the pooling, the kind of gate.
    pub(super) fn settle(&self, settled: &mut Declared, assumptions: &mut Vec<String>) {
        let mut assume = |text: &str| assumptions.push(text.to_string());
        if settled.norm.is_none() {
            settled.norm = Some(Placement::Pre);
            assume("pre-norm (the default of S5 and of minimal-LRU; --norm post overrides it)");
        }
        if settled.pooling.is_none() && !settled.per_step {
            settled.pooling = Some(Pooling::Mean);
            assume(
                "mean pooling (the default of S5 and of minimal-LRU; --pooling last overrides it)",
            );
        }
        if settled.half_gate.is_none() && self.maps == Maps::Gate {
            settled.half_gate = Some(HalfGate::HalfGlu1);
            assume(
                "gates as `half_glu1` (the file fits half_glu1 and half_glu2; --half-gate overrides it)",
            );
        }
    }

    /// The output map and normalisation of a layer.
    pub(super) fn decode_around(
        &self,
        block: &mut BlockParts,
        tensors: &Tensors<'_>,
        index: usize,
        settled: &Declared,
    ) -> Result<(), Fault> {
        let (channels, outputs) = (block.channels(), block.outputs());
        let place = self.layer(index);
        let map = |name: &str| {
            let head = format!("{place}{name}{}", self.separator);
            dense(tensors, &head, outputs, Some(channels))
        };
        block.activation = Nonlinearity::GeluTanh;
        block.output = match self.maps {
            Maps::None => None,
            Maps::Gate => Some(OutputLinear {
                linear: map("out2")?,
                gate: match settled.half_gate {
                    Some(HalfGate::HalfGlu2) => Gate::Response,
                    _ => Gate::Activated,
                },
            }),
            Maps::Both => Some(OutputLinear {
                linear: side_by_side(&map("out1")?, &map("out2")?),
                gate: Gate::Halves,
            }),
        };
        let norm = self.decode_norm(tensors, &place, channels)?;
        block.norm = Some((norm, settled.norm.unwrap_or(Placement::Pre)));
        Ok(())
    }

    fn decode_norm(
        &self,
        tensors: &Tensors<'_>,
        place: &str,
        channels: usize,
    ) -> Result<Norm, Fault> {
        let head = format!("{place}{}{}", self.norm, self.separator);
        let statistics = self.statistics(&head);
        let read = |head: &str, part: &str| {
            let expected = format!("[{channels}]");
            let name = format!("{head}{part}");
            Ok::<_, Fault>(tensors.shaped(&name, &[&[channels]], &expected)?.data)
        };
        let (weight, bias) = (read(&head, "scale")?, read(&head, "bias")?);
        if !tensors.contains(&format!("{statistics}mean")) {
            let epsilon = EPSILONS[0];
            return Ok(Norm::Layer(LayerNorm {
                weight,
                bias,
                epsilon,
            }));
        }
        Ok(Norm::Batch(BatchNorm {
            weight,
            bias,
            mean: read(&statistics, "mean")?,
            variance: read(&statistics, "var")?,
            epsilon: EPSILONS[1],
        }))
    }

    /// Encoder and head.
    pub(super) fn decode_ends(
        &self,
        model: &mut ModelParts,
        tensors: &Tensors<'_>,
        settled: &Declared,
    ) -> Result<(), Fault> {
        let channels = model.blocks.first().map_or(0, |block| block.channels());
        let table = format!("{}{}", self.stem, self.join(&["encoder", "embedding"]));
        model.encoder = Some(match tensors.contains(&table) {
            true => {
                let expected = format!("[vocabulary, {channels}]");
                let found = tensors.values(&table, &expected)?;
                let &[rows, columns] = found.shape.as_slice() else {
                    return Err(tensors.wrong_shape(&table, found.shape, &expected));
                };
                if columns != channels || rows == 0 {
                    return Err(tensors.wrong_shape(&table, found.shape, &expected));
                }
                Encoder::Embedding(Arc::new(DMatrix::from_vec(columns, rows, found.data)))
            }
            false => {
                let head = format!("{}encoder{}", self.stem, self.separator);
                let kernel = tensors.values(&format!("{head}kernel"), "[inputs, channels]")?;
                let inputs = kernel.shape.first().copied().unwrap_or(0);
                Encoder::Linear(dense(tensors, &head, inputs, Some(channels))?)
            }
        });
        let pooling = match settled.per_step {
            true => None,
            false => Some(settled.pooling.unwrap_or(Pooling::Mean)),
        };
        let linear = dense(tensors, &self.decoder, channels, None)?;
        model.head = Some(Head { pooling, linear });
        Ok(())
    }

    /// All tensors around the layers that a model holds.
    pub(super) fn encode(&self, model: &crate::model::Model) -> Vec<Encoded> {
        let mut out = Vec::new();
        let encoder = format!("{}encoder{}", self.stem, self.separator);
        match model.encoder() {
            Some(Encoder::Linear(linear)) => encode_dense(&encoder, linear, &mut out),
            Some(Encoder::Embedding(table)) => out.push(Encoded::weight(
                format!("{encoder}embedding"),
                vec![table.ncols(), table.nrows()],
                table.as_slice().to_vec(),
            )),
            None => {}
        }
        for (index, block) in model.blocks().iter().enumerate() {
            let place = self.layer(index);
            let head = |name: &str| format!("{place}{name}{}", self.separator);
            match block.output() {
                Some(OutputLinear { linear, gate }) if *gate == Gate::Halves => {
                    let [first, second] = halves(linear);
                    encode_dense(&head("out1"), &first, &mut out);
                    encode_dense(&head("out2"), &second, &mut out);
                }
                Some(output) => encode_dense(&head("out2"), &output.linear, &mut out),
                None => {}
            }
            if let Some((norm, _)) = block.norm() {
                self.encode_norm(&head(self.norm), norm, &mut out);
            }
        }
        if let Some(head) = model.head() {
            encode_dense(&self.decoder, &head.linear, &mut out);
        }
        out
    }

    fn encode_norm(&self, head: &str, norm: &Norm, out: &mut Vec<Encoded>) {
        let (weight, bias, _) = norm.affine();
        let statistics = self.statistics(head);
        let mut parts = vec![(head, "scale", weight), (head, "bias", bias)];
        if let Norm::Batch(batch) = norm {
            parts.push((&statistics, "mean", &batch.mean));
            parts.push((&statistics, "var", &batch.variance));
        }
        for (head, part, data) in parts {
            let name = format!("{head}{part}");
            out.push(Encoded::weight(name, vec![data.len()], data.to_vec()));
        }
    }
}

/// A `Dense` of flax: kernel (inputs, outputs), and a bias.
fn dense(
    tensors: &Tensors<'_>,
    head: &str,
    inputs: usize,
    outputs: Option<usize>,
) -> Result<Linear, Fault> {
    let shown = outputs.map_or("outputs".to_string(), |outputs| outputs.to_string());
    let expected = format!("[{inputs}, {shown}]");
    let [kernel_name, bias_name] = ["kernel", "bias"].map(|part| format!("{head}{part}"));
    let kernel = tensors.values(&kernel_name, &expected)?;
    let &[rows, columns] = kernel.shape.as_slice() else {
        return Err(tensors.wrong_shape(&kernel_name, kernel.shape, &expected));
    };
    if rows != inputs || columns == 0 || outputs.is_some_and(|outputs| outputs != columns) {
        return Err(tensors.wrong_shape(&kernel_name, kernel.shape, &expected));
    }
    let bias = tensors.shaped(&bias_name, &[&[columns]], &format!("[{columns}]"))?;
    Ok(Linear {
        weight: Arc::new(DMatrix::from_row_slice(rows, columns, &kernel.data)),
        bias: Some(bias.data),
    })
}

fn encode_dense(head: &str, linear: &Linear, out: &mut Vec<Encoded>) {
    let (inputs, outputs) = linear.weight.shape();
    let rows = linear.weight.transpose().as_slice().to_vec();
    out.push(Encoded::weight(
        format!("{head}kernel"),
        vec![inputs, outputs],
        rows,
    ));
    if let Some(bias) = &linear.bias {
        let name = format!("{head}bias");
        out.push(Encoded::weight(name, vec![outputs], bias.clone()));
    }
}

/// Two maps of the same inputs as one.
fn side_by_side(first: &Linear, second: &Linear) -> Linear {
    let (rows, columns) = first.weight.shape();
    let weight = DMatrix::from_fn(rows, columns + second.weight.ncols(), |i, j| {
        match j < columns {
            true => first.weight[(i, j)],
            false => second.weight[(i, j - columns)],
        }
    });
    let biases = first.bias.iter().chain(&second.bias).flatten();
    Linear {
        weight: Arc::new(weight),
        bias: Some(biases.copied().collect()),
    }
}

/// The inverse of [`side_by_side`] for two maps of as many outputs.
fn halves(linear: &Linear) -> [Linear; 2] {
    let half = linear.weight.ncols() / 2;
    [0, half].map(|first| Linear {
        weight: Arc::new(linear.weight.columns(first, half).into_owned()),
        bias: linear
            .bias
            .as_ref()
            .map(|bias| bias[first..first + half].to_vec()),
    })
}
