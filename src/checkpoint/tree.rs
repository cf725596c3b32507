//! The whole-model trees: the `S4Model` classifier of `example.py`, and one layer alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use nalgebra::DMatrix;

use crate::checkpoint::declared::Declared;
use crate::checkpoint::declared::DssVersion;
use crate::checkpoint::dss::Dss;
use crate::checkpoint::encoded::Encoded;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layer::LayerLayout;
use crate::checkpoint::parts::Parts;
use crate::checkpoint::s4d::S4d;
use crate::checkpoint::tensors::Tensors;
use crate::model::BatchNorm;
use crate::model::Block;
use crate::model::Encoder;
use crate::model::Head;
use crate::model::LayerNorm;
use crate::model::Linear;
use crate::model::Model;
use crate::model::Norm;
use crate::model::OutputLinear;
use crate::model::Placement;
use crate::model::Pooling;

/// ε of torch's LayerNorm and BatchNorm.
const NORM_EPSILON: f64 = 1e-5;

/// The longest sequence that is believed: kernels of this length still fit into memory.
pub(crate) const LENGTH_MAX: usize = 1 << 24;

/// What stands around the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tree {
    /// `encoder.*`, `s4_layers.{i}.*`, `norms.{i}.*`, `decoder.*`.
    Classifier,
    /// The tensors of one layer, or of its kernel only.
    LoneLayer,
}

/// The structure of a file: tree, prefix, layouts, and what was settled on the way.
pub(super) struct Structure {
    pub(super) tree: Tree,
    pub(super) prefix: String,
    pub(super) layers: Vec<LayerLayout>,
    pub(super) settled: Declared,
    pub(super) assumptions: Vec<String>,
}

/// Where the layers of a tree stand.
struct Found {
    tree: Tree,
    prefix: String,
    /// Name of each layer, relative to the prefix, with a trailing dot; empty for a lone layer.
    layers: Vec<String>,
}

fn find<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Result<Found, Fault> {
    let marked = |mark: &'static str| {
        let mut hits = names
            .clone()
            .filter_map(move |name| name.find(mark).map(|at| (name, at)));
        hits.next()
    };
    if let Some((name, at)) = marked("s4_layers.") {
        let prefix = name[..at].to_string();
        let head = format!("{prefix}s4_layers.");
        let numbers = names
            .clone()
            .filter_map(|name| name.strip_prefix(head.as_str()));
        let numbers = numbers.filter_map(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let count = numbers.collect::<BTreeSet<_>>().len();
        return Ok(Found {
            tree: Tree::Classifier,
            prefix,
            layers: (0..count).map(|i| format!("s4_layers.{i}.")).collect(),
        });
    }
    if let Some((name, at)) = marked("log_dt") {
        let head = &name[..at];
        let prefix = head.strip_suffix("kernel.").unwrap_or(head).to_string();
        return Ok(Found {
            tree: Tree::LoneLayer,
            prefix,
            layers: vec![String::new()],
        });
    }
    Err(Fault::NoLayer {
        tensors: names.clone().count(),
        first: names.clone().next().unwrap_or_default().to_string(),
    })
}

impl Structure {
    /// Finds tree, prefix and layers from the names, and settles what the names leave open.
    pub(super) fn detect<'a>(
        names: impl Iterator<Item = &'a str> + Clone,
        declared: Declared,
    ) -> Result<Self, Fault> {
        if let Some(found) = declared.length
            && !(1..=LENGTH_MAX).contains(&found)
        {
            let most = LENGTH_MAX;
            return Err(Fault::Length { found, most });
        }
        let found = find(names.clone())?;
        let known: BTreeSet<&str> = names.clone().collect();
        let mut structure = Self {
            tree: found.tree,
            prefix: found.prefix,
            layers: Vec::new(),
            settled: declared,
            assumptions: Vec::new(),
        };
        for layer in &found.layers {
            let layout = structure.layer(&known, layer)?;
            structure.layers.push(layout);
        }
        structure.require_one_family(&found.layers)?;
        structure.check_settled()?;
        if structure.tree == Tree::Classifier {
            structure.settle_placement();
        }
        Ok(structure)
    }

    fn layer(&mut self, known: &BTreeSet<&str>, layer: &str) -> Result<LayerLayout, Fault> {
        let has = |name: &str| known.contains(format!("{}{name}", self.prefix).as_str());
        let inside = format!("{layer}kernel.");
        let kernel = if has(&format!("{inside}log_dt")) || !has(&format!("{layer}log_dt")) {
            inside
        } else {
            layer.to_string()
        };
        let feedthrough = Some(format!("{layer}D")).filter(|name| has(name));
        let name = layer.trim_end_matches('.');
        let name = if name.is_empty() { "layer" } else { name }.to_string();
        let dss = ["W", "Lambda", "Lambda_log_neg_re"];
        if dss.iter().any(|tensor| has(&format!("{kernel}{tensor}"))) {
            let version = self.dss_version(known, &kernel)?;
            return Ok(LayerLayout::Dss(Dss {
                layer: name,
                kernel,
                feedthrough,
                version,
                length: self.settled.length,
            }));
        }
        // A kernel with none of the distinguishing tensors is read as S4D and told what it lacks.
        if self.tree == Tree::LoneLayer
            && !S4d::TENSORS[1..]
                .iter()
                .any(|t| has(&format!("{kernel}{t}")))
        {
            return Err(Fault::NoLayer {
                tensors: known.len(),
                first: known.first().copied().unwrap_or_default().to_string(),
            });
        }
        Ok(LayerLayout::S4d(S4d {
            layer: name,
            kernel,
            feedthrough,
        }))
    }

    fn dss_version(&mut self, known: &BTreeSet<&str>, kernel: &str) -> Result<DssVersion, Fault> {
        let has = |name: &str| known.contains(format!("{}{kernel}{name}", self.prefix).as_str());
        let (possible, default): (&[DssVersion], _) = if has("Lambda_log_im") {
            (&[DssVersion::ExpReIm], DssVersion::ExpReIm)
        } else if has("Lambda_log_neg_re") {
            (&[DssVersion::Exp, DssVersion::ExpNoScale], DssVersion::Exp)
        } else {
            let versions = &[
                DssVersion::Softmax,
                DssVersion::Clip,
                DssVersion::ClipNoScale,
            ];
            (versions, DssVersion::Softmax)
        };
        let version = match self.settled.dss_version {
            Some(version) if possible.contains(&version) => version,
            Some(version) => {
                return Err(Fault::Contradiction {
                    declared: format!("DSS version `{}`", version.name()),
                    tensor: format!("{}{kernel}{}", self.prefix, poles_name(&has)),
                });
            }
            None => {
                if possible.len() > 1 {
                    self.assumptions.push(format!(
                        "DSS version `{}` (the file fits {}; --dss-version says otherwise)",
                        default.name(),
                        listed(possible),
                    ));
                }
                default
            }
        };
        self.settled.dss_version = Some(version);
        if version == DssVersion::Softmax && self.settled.length.is_none() {
            return Err(Fault::Undeclared {
                what: "the sequence length L",
                needed_for: "the softmax kernel of DSS",
                hint: "declare it with --length L, or `length = L` in the sidecar",
            });
        }
        Ok(version)
    }

    fn require_one_family(&self, names: &[String]) -> Result<(), Fault> {
        let first = self.layers.first().map_or("", LayerLayout::family);
        for (layout, name) in self.layers.iter().zip(names) {
            if layout.family() != first {
                return Err(Fault::MixedFamilies {
                    first: names[0].trim_end_matches('.').to_string(),
                    first_family: first,
                    other: name.trim_end_matches('.').to_string(),
                    other_family: layout.family(),
                });
            }
        }
        Ok(())
    }

    /// A DSS version declared for other layers would be carried along in the metadata.
    fn check_settled(&self) -> Result<(), Fault> {
        match (self.settled.dss_version, self.layers.first()) {
            (Some(version), Some(LayerLayout::S4d(layout))) => Err(Fault::Contradiction {
                declared: format!("DSS version `{}`", version.name()),
                tensor: format!("{}{}log_A_real", self.prefix, layout.kernel),
            }),
            _ => Ok(()),
        }
    }

    /// `example.py` says post-norm and mean pooling unless told otherwise; nothing in the file
    /// shows which was used.
    fn settle_placement(&mut self) {
        if self.settled.norm.is_none() {
            self.settled.norm = Some(Placement::Post);
            let text = "post-norm (the default of example.py; --norm pre says otherwise)";
            self.assumptions.push(text.to_string());
        }
        if self.settled.pooling.is_none() && !self.settled.per_step {
            self.settled.pooling = Some(Pooling::Mean);
            let text = "mean pooling (the default of example.py; --pooling last says otherwise)";
            self.assumptions.push(text.to_string());
        }
    }

    /// What the full names of a layer's tensors start with.
    pub(super) fn layer_prefix(&self, layer: usize) -> String {
        match self.tree {
            Tree::Classifier => format!("{}s4_layers.{layer}.", self.prefix),
            Tree::LoneLayer => self.prefix.clone(),
        }
    }

    /// Reads every tensor into the canonical model.
    ///
    /// With [`Parts::Dynamics`] all tensors are checked all the same, and those beside the
    /// systems are let go one by one.
    pub(super) fn decode(&self, tensors: &Tensors<'_>, parts: Parts) -> Result<Model, Fault> {
        let keep = parts == Parts::Whole;
        let mut blocks = Vec::with_capacity(self.layers.len());
        for (index, layout) in self.layers.iter().enumerate() {
            let systems = layout.decode(tensors)?;
            let systems = parts.of_layer(systems).map_err(|source| Fault::System {
                layer: self.layer_prefix(index),
                channel: 0,
                source,
            })?;
            let channels = systems.len();
            let place = match self.tree {
                Tree::Classifier => format!("s4_layers.{index}."),
                Tree::LoneLayer => String::new(),
            };
            let norm = match (self.tree, self.settled.norm) {
                (Tree::Classifier, Some(placement)) => {
                    Some((norm(tensors, index, channels)?, placement))
                }
                _ => None,
            };
            blocks.push(Block {
                name: place.trim_end_matches('.').to_string(),
                systems,
                backward: Vec::new(),
                output: output_linear(tensors, &place, channels)?.filter(|_| keep),
                norm: norm.filter(|_| keep),
            });
        }
        if self.tree == Tree::LoneLayer {
            blocks[0].name = "layer".to_string();
            return Ok(Model {
                encoder: None,
                blocks,
                head: None,
            });
        }
        let channels = blocks.first().map_or(0, Block::channels);
        for block in &blocks {
            if block.channels() != channels {
                let name = format!("{}.kernel.log_dt", block.name);
                let expected = format!("[{channels}] (the channels of layer 0)");
                return Err(tensors.wrong_shape(&name, vec![block.channels()], &expected));
            }
        }
        let encoder = Some(encoder(tensors, channels)?).filter(|_| keep);
        let head = Head {
            pooling: match self.settled.per_step {
                true => None,
                false => Some(self.settled.pooling.unwrap_or(Pooling::Mean)),
            },
            linear: decoder(tensors, channels)?,
        };
        Ok(Model {
            encoder,
            blocks,
            head: Some(head).filter(|_| keep),
        })
    }
}

impl Structure {
    /// The tree of a new classifier as `example.py` names it: S4D layers, or DSS-softmax layers
    /// for a length.
    pub(super) fn new(model: &Model, softmax: Option<usize>) -> Result<Self, Fault> {
        if model.blocks.iter().any(|block| !block.backward.is_empty()) {
            return Err(Fault::Bidirectional);
        }
        let placed = |block: &Block| block.norm.as_ref().map(|(_, placement)| *placement);
        let norm = model.blocks.first().and_then(placed);
        let whole = [
            ("encoder", model.encoder.is_some()),
            ("head", model.head.is_some()),
            ("layer", !model.blocks.is_empty()),
            (
                "output map of a layer",
                model.blocks.iter().all(|block| block.output.is_some()),
            ),
            (
                "normalisation, at one place in all layers",
                norm.is_some() && model.blocks.iter().all(|block| placed(block) == norm),
            ),
        ];
        if let Some((missing, _)) = whole.into_iter().find(|(_, there)| !there) {
            return Err(Fault::Incomplete { missing });
        }
        let pooling = model.head.as_ref().and_then(|head| head.pooling);
        let layers = (0..model.blocks.len()).map(|index| new_layer(index, softmax));
        Ok(Self {
            tree: Tree::Classifier,
            prefix: String::new(),
            layers: layers.collect(),
            settled: Declared {
                norm,
                pooling,
                per_step: pooling.is_none(),
                dss_version: softmax.map(|_| DssVersion::Softmax),
                length: softmax,
            },
            assumptions: Vec::new(),
        })
    }

    /// All tensors around the systems that the model holds, in the shapes of `example.py`. What a
    /// model read by [`Parts::Dynamics`] left out is not among them.
    pub(super) fn encode(&self, model: &Model) -> Vec<Encoded> {
        let mut out = Vec::new();
        if let Some(Encoder::Linear(linear)) = &model.encoder {
            encode_linear("encoder.", linear, &mut out);
        }
        if let Some(Encoder::Embedding(table)) = &model.encoder {
            let shape = vec![table.ncols(), table.nrows()];
            let data = table.as_slice().to_vec();
            out.push(Encoded::weight("encoder.weight".to_string(), shape, data));
        }
        for (index, block) in model.blocks.iter().enumerate() {
            let place = match self.tree {
                Tree::Classifier => format!("s4_layers.{index}."),
                Tree::LoneLayer => String::new(),
            };
            if let Some(output) = &block.output {
                encode_output(&place, output, &self.layers[index], &mut out);
            }
            if let Some((norm, _)) = &block.norm {
                encode_norm(index, norm, &mut out);
            }
        }
        if let Some(head) = &model.head {
            encode_linear("decoder.", &head.linear, &mut out);
        }
        out
    }
}

fn new_layer(index: usize, softmax: Option<usize>) -> LayerLayout {
    let layer = format!("s4_layers.{index}");
    let kernel = format!("{layer}.kernel.");
    let feedthrough = Some(format!("{layer}.D"));
    match softmax {
        None => LayerLayout::S4d(S4d {
            layer,
            kernel,
            feedthrough,
        }),
        Some(_) => LayerLayout::Dss(Dss {
            layer,
            kernel,
            feedthrough,
            version: DssVersion::Softmax,
            length: softmax,
        }),
    }
}

/// The map behind a layer: a convolution of width one behind S4D, a linear map whose bias is a
/// column behind DSS.
fn encode_output(place: &str, output: &OutputLinear, layout: &LayerLayout, out: &mut Vec<Encoded>) {
    let kind = if output.gated { "0." } else { "" };
    let first = out.len();
    encode_linear(&format!("{place}output_linear.{kind}"), &output.linear, out);
    let columns = match layout {
        LayerLayout::S4d(_) => &mut out[first..=first],
        LayerLayout::Dss(_) => &mut out[first + 1..],
    };
    for shape in columns
        .iter_mut()
        .filter_map(|tensor| tensor.shape.as_mut())
    {
        shape.push(1);
    }
}

fn encode_norm(index: usize, norm: &Norm, out: &mut Vec<Encoded>) {
    let (weight, bias, _) = norm.affine();
    let mut parts = vec![("weight", weight), ("bias", bias)];
    if let Norm::Batch(norm) = norm {
        parts.extend([
            ("running_mean", &norm.mean[..]),
            ("running_var", &norm.variance[..]),
        ]);
    }
    for (part, data) in parts {
        let name = format!("norms.{index}.{part}");
        out.push(Encoded::weight(name, vec![data.len()], data.to_vec()));
    }
}

fn encode_linear(head: &str, linear: &Linear, out: &mut Vec<Encoded>) {
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

fn poles_name(has: &dyn Fn(&str) -> bool) -> &'static str {
    let names = ["Lambda_log_im", "Lambda_log_neg_re"];
    names.into_iter().find(|name| has(name)).unwrap_or("Lambda")
}

fn listed(versions: &[DssVersion]) -> String {
    let names: Vec<&str> = versions.iter().map(|version| version.name()).collect();
    names.join(", ")
}

/// LayerNorm; a BatchNorm1d where there are running statistics.
fn norm(tensors: &Tensors<'_>, index: usize, channels: usize) -> Result<Norm, Fault> {
    let expected = format!("[{channels}]");
    let read = |part: &str| {
        let name = format!("norms.{index}.{part}");
        Ok::<_, Fault>(tensors.shaped(&name, &[&[channels]], &expected)?.data)
    };
    let (weight, bias) = (read("weight")?, read("bias")?);
    if !tensors.contains(&format!("norms.{index}.running_mean")) {
        return Ok(Norm::Layer(LayerNorm {
            weight,
            bias,
            epsilon: NORM_EPSILON,
        }));
    }
    tensors.set_aside(&format!("norms.{index}.num_batches_tracked"));
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
fn output_linear(
    tensors: &Tensors<'_>,
    place: &str,
    channels: usize,
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
            expected: format!("[{}, {channels}, 1]", 2 * channels),
        });
    };
    let gated = head.ends_with("0.");
    let rows = if gated { 2 * channels } else { channels };
    let weight_name = format!("{head}weight");
    let expected = format!("[{rows}, {channels}, 1] or [{rows}, {channels}]");
    let shapes: [&[usize]; 2] = [&[rows, channels, 1], &[rows, channels]];
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
            weight: transposed(rows, channels, weight.data),
            bias,
        },
        gated,
    }))
}

/// A linear encoder has a bias; an embedding has none and as many columns as channels.
fn encoder(tensors: &Tensors<'_>, channels: usize) -> Result<Encoder, Fault> {
    let expected = format!("[{channels}, inputs]");
    let weight = tensors.values("encoder.weight", &expected)?;
    let &[rows, columns] = weight.shape.as_slice() else {
        return Err(tensors.wrong_shape("encoder.weight", weight.shape, &expected));
    };
    if !tensors.contains("encoder.bias") && columns == channels {
        return Ok(Encoder::Embedding(transposed(rows, columns, weight.data)));
    }
    if rows != channels || columns == 0 {
        return Err(tensors.wrong_shape("encoder.weight", weight.shape, &expected));
    }
    let bias = tensors.shaped("encoder.bias", &[&[channels]], &format!("[{channels}]"))?;
    Ok(Encoder::Linear(Linear {
        weight: transposed(rows, columns, weight.data),
        bias: Some(bias.data),
    }))
}

fn decoder(tensors: &Tensors<'_>, channels: usize) -> Result<Linear, Fault> {
    let expected = format!("[classes, {channels}]");
    let weight = tensors.values("decoder.weight", &expected)?;
    let &[classes, columns] = weight.shape.as_slice() else {
        return Err(tensors.wrong_shape("decoder.weight", weight.shape, &expected));
    };
    if columns != channels || classes == 0 {
        return Err(tensors.wrong_shape("decoder.weight", weight.shape, &expected));
    }
    let bias = tensors.shaped("decoder.bias", &[&[classes]], &format!("[{classes}]"))?;
    Ok(Linear {
        weight: transposed(classes, columns, weight.data),
        bias: Some(bias.data),
    })
}
