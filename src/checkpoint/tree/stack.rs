//! The networks of lindermanlab/S5, minimal-LRU and lru-reduction, as flax or torch stores them:
//! encoder, a stack of layers with a norm and one map or two, decoder. Known by their names.

use std::collections::BTreeSet;
use std::sync::Arc;

use hankelite_archive::Archive;
use nalgebra::DMatrix;

use crate::checkpoint::declared::{Declared, Gelu, HalfGate};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Encoded, Found, Kind};
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::tree::framework::{FLAX, Framework, TORCH};
use crate::model::{
    BlockParts, Gate, Head, Linear, Model, ModelParts, Nonlinearity, OutputLinear, Placement,
    Pooling,
};

/// What stands before and behind the number of a layer; `.` is whatever parts the names.
const NUMBERED: [[&str; 2]; 4] = [
    ["layers_", ""],
    ["layers.", ""],
    ["layers[", "]"],
    ["blocks.", ""],
];

/// What the state spaces of a layer are called.
const STATE_SPACES: [&str; 3] = ["seq", "seq.seq", "lru"];

/// What the norm of a layer is called: in S5, minimal-LRU, lru-reduction.
const NORMS: [&str; 3] = ["norm", "normalization", "ln"];

/// The names around the layers.
#[derive(Debug, Clone)]
pub(super) struct Stack {
    framework: &'static Framework,
    /// What the names of the encoder's tensors start with, e.g. `params/encoder/encoder/`.
    encoder: String,
    /// The decoder's, e.g. `params/decoder/`.
    decoder: String,
    /// What stands before the number of a layer, e.g. `params/encoder/layers_`.
    before: String,
    /// What stands behind it, with what parts the names.
    behind: String,
    state_spaces: String,
    norm: &'static str,
    maps: Maps,
    separator: char,
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
    /// Both in one, of lru-reduction.
    Glu,
}

impl Maps {
    fn names(self) -> &'static [&'static str] {
        match self {
            Maps::None => &[],
            Maps::Gate => &["out2"],
            Maps::Both => &["out1", "out2"],
            Maps::Glu => &["ff.output_linear.0"],
        }
    }
}

/// Looks for one of the networks; with one tensor more or less it is none, and the answer is that
/// tensor's name.
pub(super) fn recognise<'a>(
    archive: &Archive,
    names: impl Iterator<Item = &'a str>,
    layers: &[Found],
) -> Option<Result<Stack, String>> {
    let names: BTreeSet<&str> = names.collect();
    let made = Stack::around(&names, layers.first()?)?;
    let unlike = made.unlike(&names, layers);
    Some(
        match unlike.or_else(|| made.misshapen(archive, layers.len())) {
            Some(why) => Err(why),
            None => Ok(made),
        },
    )
}

impl Stack {
    /// The names around a first layer.
    fn around(names: &BTreeSet<&str>, first: &Found) -> Option<Self> {
        if !matches!(first.kind, Kind::S5 { .. } | Kind::Lru) {
            return None;
        }
        let separator = first.place.chars().last()?;
        let (stem, number, state_spaces) = parted(&first.place, separator)?;
        let framework = match TORCH.names(names.iter().copied()) {
            true => &TORCH,
            false => &FLAX,
        };
        let part = |name: &str| format!("{name}{separator}");
        let above = stem.strip_suffix(&part("encoder")).unwrap_or(stem);
        let has = |name: &str| names.contains(name);
        let beside = format!("{stem}{}", part("encoder"));
        let encoders = framework.encoder(&beside, has);
        let mut made = Self {
            framework,
            encoder: match encoders.iter().any(|name| has(name)) {
                true => beside,
                false => format!("{above}{}", part("encoder")),
            },
            decoder: format!("{above}{}", part("decoder")),
            before: format!("{stem}{}", number[0]),
            behind: part(&number[1]),
            state_spaces: part(&state_spaces),
            norm: NORMS[0],
            maps: Maps::None,
            separator,
        };
        let norm = |norm: &&&str| has(&framework.factors(&made.inside(0, norm)));
        made.norm = NORMS.iter().find(norm).copied().unwrap_or(NORMS[0]);
        let all = |maps: &&Maps| {
            let mut maps = maps.names().iter();
            maps.all(|map| has(&framework.map(&made.inside(0, map))[0]))
        };
        let known = [Maps::Glu, Maps::Both, Maps::Gate, Maps::None];
        made.maps = known.iter().find(all).copied().unwrap_or(Maps::None);
        Some(made)
    }

    fn layer(&self, index: usize) -> String {
        format!("{}{index}{}", self.before, self.behind)
    }

    /// What the names of a part of a layer start with.
    fn inside(&self, index: usize, part: &str) -> String {
        let part = part.replace('.', &self.separator.to_string());
        format!("{}{part}{}", self.layer(index), self.separator)
    }

    /// Everything that the network needs around the layers.
    fn needed(&self, names: &BTreeSet<&str>, layers: usize) -> Vec<String> {
        let has = |name: &str| names.contains(name);
        let mut needed = self.framework.map(&self.decoder).to_vec();
        needed.extend(self.framework.encoder(&self.encoder, has));
        for index in 0..layers {
            needed.extend(self.framework.norm(&self.inside(index, self.norm), has));
            let maps = self.maps.names().iter();
            needed.extend(maps.flat_map(|map| self.framework.map(&self.inside(index, map))));
        }
        needed
    }

    /// How a file differs from the network, where it does.
    fn unlike(&self, names: &BTreeSet<&str>, layers: &[Found]) -> Option<String> {
        let place = |index: usize| self.layer(index) + &self.state_spaces;
        let mut counted = layers.iter().enumerate();
        if let Some((index, layer)) = counted.find(|(index, layer)| layer.place != place(*index)) {
            return Some(format!("`{}` is not layer {index}", layer.place));
        }
        let needed = self.needed(names, layers.len());
        if let Some(missing) = needed.iter().find(|name| !names.contains(name.as_str())) {
            return Some(format!("there is no tensor `{missing}`"));
        }
        let counts = |index: usize| self.framework.count(&self.inside(index, self.norm));
        let counts: BTreeSet<String> = (0..layers.len()).filter_map(counts).collect();
        let known = |name: &&str| {
            needed.iter().any(|known| known == name)
                || counts.contains(*name)
                || layers.iter().any(|layer| layer.holds(name))
        };
        let strange = names.iter().find(|name| !known(name))?;
        Some(format!(
            "tensor `{strange}` is none of the networks of S5, minimal-LRU and lru-reduction"
        ))
    }

    /// A tensor whose shape is none that the network has.
    fn misshapen(&self, archive: &Archive, layers: usize) -> Option<String> {
        let framework = self.framework;
        let has = |name: &str| archive.contains(name);
        let factors = framework.factors(&self.inside(0, self.norm));
        let channels = *archive.shape(&factors)?.first()?;
        let mut wanted = vec![framework.map_axes(&self.decoder, Some(channels), None)];
        let [matrix, bias] = framework.map(&self.encoder);
        if has(&bias) {
            wanted.push(framework.map_axes(&self.encoder, None, Some(channels)));
        } else if has(&matrix) && archive.shape(&matrix)?.last() != Some(&channels) {
            return Some(format!("there is no tensor `{bias}`"));
        }
        let columns = match self.maps {
            Maps::Glu => 2 * channels,
            _ => channels,
        };
        for index in 0..layers {
            let norm = framework.norm(&self.inside(index, self.norm), has);
            wanted.extend(norm.into_iter().map(|name| (name, vec![Some(channels)])));
            let maps = self.maps.names().iter().map(|map| self.inside(index, map));
            wanted.extend(maps.map(|map| framework.map_axes(&map, Some(channels), Some(columns))));
        }
        wanted.into_iter().find_map(|(name, axes)| {
            let found = archive.shape(&name)?;
            let fits = |(n, wanted): (&usize, &Option<usize>)| wanted.is_none_or(|w| w == *n);
            let same = found.len() == axes.len() && found.iter().zip(&axes).all(fits);
            let axes = axes.iter().map(|n| n.map_or("…".into(), |n| n.to_string()));
            let axes = axes.collect::<Vec<String>>().join(", ");
            (!same).then(|| format!("tensor `{name}` has shape {found:?}, expected [{axes}]"))
        })
    }

    /// What nothing in the file shows: where the norms stand, the pooling, GELU, the kind of gate.
    pub(super) fn settle(&self, settled: &mut Declared, assumptions: &mut Vec<String>) {
        let mut assume = |text: &str| assumptions.push(text.to_string());
        let whose = match self.maps {
            Maps::Glu => "lru-reduction",
            _ => "S5 and of minimal-LRU",
        };
        if settled.norm.is_none() {
            settled.norm = Some(Placement::Pre);
            assume(&format!(
                "pre-norm (the default of {whose}; --norm post overrides it)"
            ));
        }
        if settled.pooling.is_none() && !settled.per_step {
            settled.per_step = self.maps == Maps::Glu;
            settled.pooling = Some(Pooling::Mean).filter(|_| !settled.per_step);
            assume(&match settled.per_step {
                true => format!(
                    "outputs at every step (the default of {whose}; --pooling overrides it)"
                ),
                false => {
                    format!("mean pooling (the default of {whose}; --pooling last overrides it)")
                }
            });
        }
        if settled.half_gate.is_none() && self.maps == Maps::Gate {
            settled.half_gate = Some(HalfGate::HalfGlu1);
            assume(
                "gates as `half_glu1` (the file fits half_glu1 and half_glu2; --half-gate overrides it)",
            );
        }
        if settled.gelu.is_none() && self.framework.gelu == Nonlinearity::Gelu {
            settled.gelu = Some(Gelu::Exact);
            assume(
                "GELU with the exact normal distribution, ε = 1e-5 in norms (the defaults of torch; \
                 --gelu tanh overrides the first)",
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
        let map = |which: usize, columns: usize| {
            let head = self.inside(index, self.maps.names()[which]);
            let framework = self.framework;
            framework.decode_map(tensors, &head, Some(outputs), Some(columns))
        };
        block.activation = match settled.gelu {
            Some(gelu) => gelu.function(),
            None => self.framework.gelu,
        };
        let output = |linear, gate| Some(OutputLinear { linear, gate });
        block.output = match self.maps {
            Maps::None => None,
            Maps::Gate => output(
                map(0, channels)?,
                match settled.half_gate {
                    Some(HalfGate::HalfGlu2) => Gate::Response,
                    _ => Gate::Activated,
                },
            ),
            Maps::Both => {
                let both = side_by_side(&map(0, channels)?, &map(1, channels)?);
                output(both, Gate::Halves)
            }
            Maps::Glu => output(map(0, 2 * channels)?, Gate::Halves),
        };
        let head = self.inside(index, self.norm);
        let norm = self.framework.decode_norm(tensors, &head, channels)?;
        block.norm = Some((norm, settled.norm.unwrap_or(Placement::Pre)));
        Ok(())
    }

    /// Encoder and head.
    pub(super) fn decode_ends(
        &self,
        model: &mut ModelParts,
        tensors: &Tensors<'_>,
        settled: &Declared,
    ) -> Result<(), Fault> {
        let framework = self.framework;
        let channels = model.blocks.first().map_or(0, |block| block.channels());
        model.encoder = Some(framework.decode_encoder(tensors, &self.encoder, channels)?);
        let pooling = match settled.per_step {
            true => None,
            false => Some(settled.pooling.unwrap_or(Pooling::Mean)),
        };
        let linear = framework.decode_map(tensors, &self.decoder, Some(channels), None)?;
        model.head = Some(Head { pooling, linear });
        Ok(())
    }

    /// All tensors around the layers that a model holds.
    pub(super) fn encode(&self, model: &Model) -> Vec<Encoded> {
        let (framework, mut out) = (self.framework, Vec::new());
        if let Some(encoder) = model.encoder() {
            framework.encode_encoder(&self.encoder, encoder, &mut out);
        }
        for (index, block) in model.blocks().iter().enumerate() {
            if let Some(OutputLinear { linear, .. }) = block.output() {
                let parts = match self.maps {
                    Maps::Both => halves(linear),
                    _ => vec![linear.clone()],
                };
                for (map, part) in self.maps.names().iter().zip(&parts) {
                    framework.encode_map(&self.inside(index, map), part, &mut out);
                }
            }
            if let Some((norm, _)) = block.norm() {
                framework.encode_norm(&self.inside(index, self.norm), norm, &mut out);
            }
        }
        if let Some(head) = model.head() {
            framework.encode_map(&self.decoder, &head.linear, &mut out);
        }
        out
    }
}

/// The place of a first layer: what stands before it, what is around its number, and what its state
/// spaces are called.
fn parted(place: &str, separator: char) -> Option<(&str, [String; 2], String)> {
    let spelt = |text: &str| text.replace('.', &separator.to_string());
    STATE_SPACES.iter().find_map(|state_spaces| {
        let state_spaces = spelt(state_spaces);
        let layer = place.strip_suffix(&format!("{separator}{state_spaces}{separator}"))?;
        NUMBERED.iter().find_map(|number| {
            let [before, behind] = number.map(spelt);
            let stem = layer.strip_suffix(&format!("{before}0{behind}"))?;
            let whole = stem.is_empty() || stem.ends_with(separator);
            whole.then(|| (stem, [before, behind], state_spaces.clone()))
        })
    })
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
fn halves(linear: &Linear) -> Vec<Linear> {
    let half = linear.weight.ncols() / 2;
    let part = |first: usize| Linear {
        weight: Arc::new(linear.weight.columns(first, half).into_owned()),
        bias: linear
            .bias
            .as_ref()
            .map(|bias| bias[first..first + half].to_vec()),
    };
    vec![part(0), part(half)]
}
