//! The whole-model trees: the `S4Model` classifier of `example.py`, the sequence model of the full
//! state-spaces/s4 repository, and one layer alone.

mod classifier;
mod framework;
mod repository;
mod sharing;
mod stack;
mod weights;

use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) use sharing::Shared;
use stack::Stack;

use crate::checkpoint::declared::{Declared, Discretisation, DssVersion};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{
    Dss, Encoded, Found, Kind, Layout, OwnLayout, S4d, Transform, Version, find_layers, nearly,
};
use crate::checkpoint::parts::Parts;
use crate::checkpoint::refuse::refuse_others;
use crate::checkpoint::settle::Settling;
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::tree::weights::MapShape;
use crate::model::{Block, BlockParts, Head, Model, ModelParts, Nonlinearity, Placement, Pooling};

/// The longest sequence that is believed: kernels of this length still fit into memory.
pub(crate) const LENGTH_MAX: usize = 1 << 24;

/// What stands around the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tree {
    /// `encoder.*`, `s4_layers.{i}.*`, `norms.{i}.*`, `decoder.*`.
    Classifier,
    /// `encoder.0.*`, `model.layers.{i}.*`, `model.norm.norm.*`, `decoder.0.output_transform.*`.
    Repository,
    /// A network of lindermanlab/S5, minimal-LRU or lru-reduction.
    Stack,
    /// The tensors of one layer, or of its kernel only.
    LoneLayer,
    /// Layers within a network that is not known: it can be inspected, reduced and written, not
    /// run, and all else is copied.
    Layers,
}

/// The structure of a file: tree, prefix, layouts, and what was settled on the way.
pub(super) struct Structure {
    pub(super) tree: Tree,
    pub(super) prefix: String,
    /// The layers, with names after the prefix.
    pub(super) found: Vec<Found>,
    /// Other names of tensors that have one in the tree.
    pub(super) others: Vec<String>,
    /// The shapes of new output maps.
    maps: MapShape,
    pub(super) layers: Vec<Arc<dyn Layout>>,
    pub(super) settled: Declared,
    pub(super) assumptions: Vec<String>,
    /// The names of a stack.
    stack: Option<Stack>,
    /// Why the network around the layers is not known, where it looks like one that could be.
    pub(super) unknown: Option<String>,
}

impl Tree {
    /// Whether encoder, blocks and head are known.
    fn is_whole(self) -> bool {
        matches!(self, Tree::Classifier | Tree::Repository | Tree::Stack)
    }

    /// What the names of the encoder's tensors start with.
    fn encoder(self) -> &'static str {
        match self {
            Tree::Repository => "encoder.0.",
            _ => "encoder.",
        }
    }

    /// What the names of the decoder's tensors start with.
    fn decoder(self) -> &'static str {
        match self {
            Tree::Repository => "decoder.0.output_transform.",
            _ => "decoder.",
        }
    }

    /// What the names of a layer's tensors start with.
    fn layer(self, index: usize) -> String {
        match self {
            Tree::Classifier => format!("s4_layers.{index}."),
            Tree::Repository => format!("model.layers.{index}.layer."),
            Tree::Stack | Tree::LoneLayer | Tree::Layers => String::new(),
        }
    }

    /// What the names of a layer's normalisation start with.
    fn norm(self, index: usize) -> String {
        match self {
            Tree::Repository => format!("model.layers.{index}.norm.norm."),
            _ => format!("norms.{index}."),
        }
    }
}

/// What the names of the last normalisation start with.
const FINAL_NORM: &str = "model.norm.norm.";

/// Whether a file holds a network that is known.
enum Recognised {
    /// It does, and nothing else.
    Whole {
        /// What all names start with.
        at: String,
        /// The layers, with names after that.
        layers: Vec<Found>,
        /// Other names of its tensors.
        others: Vec<String>,
    },
    /// It looks like that, but for some things.
    Unlike {
        /// Those things.
        why: String,
    },
    /// It does not look like that.
    Other,
}

/// A tree that was found.
struct Recognition {
    tree: Tree,
    /// What all names start with.
    prefix: String,
    /// The layers, with names after the prefix.
    found: Vec<Found>,
    /// Other names of tensors that have one in the tree.
    others: Vec<String>,
    /// The names of a stack.
    stack: Option<Stack>,
    /// Why the network around the layers is not known, where it looks like one that could be.
    unknown: Option<String>,
}

impl Recognition {
    /// Layers within a network that is not known may be those of a stack.
    fn or_stack(mut self, shared: &Shared, own: Option<&Arc<OwnLayout>>) -> Self {
        if self.tree != Tree::Layers {
            return self;
        }
        let archive = &shared.archive;
        let every = find_layers(archive.names(), "", own);
        let mut recognised = stack::recognise(archive, archive.names(), &every);
        match recognised {
            // Equal layers of one network are no second network.
            Some(Ok(_)) => (self.found, self.others) = (every, Vec::new()),
            _ => recognised = stack::recognise(archive, shared.once().into_iter(), &self.found),
        }
        match recognised {
            Some(Ok(stack)) => Self {
                tree: Tree::Stack,
                stack: Some(stack),
                unknown: None,
                ..self
            },
            Some(Err(why)) => Self {
                unknown: Some(why),
                ..self
            },
            None => self,
        }
    }
}

/// Looks for a whole network first, by the names and shapes of its tensors.
fn find(
    shared: &Shared,
    own: Option<&Arc<OwnLayout>>,
    declared: Declared,
) -> Result<Recognition, Fault> {
    let archive = &shared.archive;
    let whole = [
        (Tree::Classifier, classifier::recognise(archive, own)),
        (
            Tree::Repository,
            repository::recognise(archive, own, declared),
        ),
    ];
    let mut unknown = None;
    for (tree, recognised) in whole {
        match recognised {
            Recognised::Whole { at, layers, others } => {
                return Ok(Recognition {
                    tree,
                    prefix: at,
                    found: layers,
                    others,
                    stack: None,
                    unknown: None,
                });
            }
            Recognised::Unlike { why } => {
                unknown.get_or_insert(why);
            }
            Recognised::Other => {}
        }
    }
    let names = shared.once();
    let once: BTreeSet<&str> = names.iter().copied().collect();
    let others = archive.names().filter(|name| !once.contains(name));
    let (tree, prefix, found) = find_parts(names.iter().copied(), own)?;
    Ok(Recognition {
        tree,
        prefix,
        found,
        others: others.map(str::to_string).collect(),
        stack: None,
        unknown: unknown.filter(|_| tree == Tree::Layers),
    })
}

/// One layer or several, what all names start with, and the layers.
fn find_parts<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
    own: Option<&Arc<OwnLayout>>,
) -> Result<(Tree, String, Vec<Found>), Fault> {
    let found = find_layers(names.clone(), "", own);
    if let [one] = found.as_slice()
        && is_lone(one, names.clone())
    {
        let prefix = one.place.strip_suffix("kernel.").unwrap_or(&one.place);
        let prefix = prefix.to_string();
        let found = find_layers(names, &prefix, own);
        return Ok((Tree::LoneLayer, prefix, found));
    }
    if !found.is_empty() {
        return Ok((Tree::Layers, String::new(), found));
    }
    if let Some(own) = own {
        return Err(Fault::NoOwnLayer {
            nearly: nearly(names.clone(), own),
            tensors: own.marks().into_iter().map(str::to_string).collect(),
        });
    }
    // A kernel with some of the tensors is read, and what it lacks is named.
    let mut marked = names
        .clone()
        .filter_map(|name| Some((name, name.find("log_dt")?)));
    if let Some((name, at)) = marked.next() {
        let head = &name[..at];
        let prefix = head.strip_suffix("kernel.").unwrap_or(head);
        let kernel = head[prefix.len()..].to_string();
        let mut others = ["A_imag", "C"].iter();
        if others.any(|other| names.clone().any(|name| name == format!("{head}{other}"))) {
            let lone = unmarked(kernel);
            return Ok((Tree::LoneLayer, prefix.to_string(), vec![lone]));
        }
    }
    refuse_others(names.clone())?;
    Err(Fault::NoLayer {
        tensors: names.clone().count(),
        first: names.clone().next().unwrap_or_default().to_string(),
    })
}

/// An S4D layer some of whose tensors are missing.
fn unmarked(place: String) -> Found {
    Found {
        place,
        kind: Kind::S4d,
        feedthrough: None,
        own: None,
    }
}

/// What weight normalisation puts into names: a map that is stored as direction and length.
const NORMALISED: [&str; 3] = ["weight_g", "weight_v", "parametrizations."];

/// Whether a file holds nothing but one layer of S4D or DSS: its kernel, D and output map, which is stored
/// as it is.
fn is_lone<'a>(layer: &Found, mut names: impl Iterator<Item = &'a str>) -> bool {
    let prefix = layer.place.strip_suffix("kernel.").unwrap_or(&layer.place);
    let own = |name: &str| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| {
            let map = rest.strip_prefix("output_linear.");
            let map = map.is_some_and(|map| !NORMALISED.iter().any(|part| map.contains(part)));
            rest == "D" || map || name.starts_with(&layer.place)
        })
    };
    matches!(layer.kind, Kind::S4d | Kind::Dss) && names.all(own)
}

fn require_one_family(found: &[Found], settled: Declared) -> Result<(), Fault> {
    let Some(first) = found.first() else {
        return Ok(());
    };
    let family = |layer: &Found| layer.layout(settled).family();
    for layer in found {
        if layer.kind != first.kind {
            return Err(Fault::MixedFamilies {
                first: first.layer(),
                first_family: family(first),
                other: layer.layer(),
                other_family: family(layer),
            });
        }
    }
    Ok(())
}

impl Structure {
    /// Finds tree, prefix and layers from the names and shapes, and settles what these leave open. No
    /// tensor is read.
    pub(super) fn detect(
        shared: &Shared,
        own: Option<&Arc<OwnLayout>>,
        declared: Declared,
    ) -> Result<Self, Fault> {
        if let Some(found) = declared.length
            && !(1..=LENGTH_MAX).contains(&found)
        {
            let most = LENGTH_MAX;
            return Err(Fault::Length { found, most });
        }
        let Recognition {
            tree,
            prefix,
            found,
            others,
            stack,
            unknown,
        } = find(shared, own, declared)?.or_stack(shared, own);
        let (archive, settings) = (&shared.archive, shared.archive.settings());
        let known: BTreeSet<&str> = archive.names().collect();
        let mut settling = Settling::new(declared, settings);
        for layer in &found {
            settling.layer(layer, archive, &prefix)?;
        }
        if tree == Tree::Classifier {
            settling.placement();
        }
        if tree == Tree::Repository {
            settling.repository(&known, &prefix)?;
        }
        require_one_family(&found, settling.declared)?;
        let mut structure = Self {
            tree,
            prefix,
            maps: match found.first().map(|layer| layer.kind) {
                Some(Kind::Dss) => MapShape::Column,
                _ => MapShape::Convolution,
            },
            found: Vec::new(),
            others,
            layers: Vec::new(),
            settled: settling.declared,
            assumptions: settling.assumptions,
            stack,
            unknown,
        };
        let layouts = found.iter().map(|layer| layer.layout(structure.settled));
        structure.layers = layouts.collect();
        structure.found = found;
        if tree.is_whole() {
            structure.settle_around();
        }
        Ok(structure)
    }

    /// `example.py` has post-norm and mean pooling by default; nothing in the file
    /// shows which was used. The full repository pools where its settings ask for it.
    fn settle_around(&mut self) {
        if let Some(stack) = &self.stack {
            stack.settle(&mut self.settled, &mut self.assumptions);
            return;
        }
        if self.settled.norm.is_none() {
            self.settled.norm = Some(Placement::Post);
            let text = "post-norm (the default of example.py; --norm pre overrides it)";
            self.assumptions.push(text.to_string());
        }
        if self.settled.pooling.is_none() && !self.settled.per_step {
            self.settled.pooling = Some(Pooling::Mean);
            self.assumptions.push(match self.tree {
                Tree::Repository => {
                    "mean pooling (decoder mode `pool`; --pooling last overrides it)".to_string()
                }
                _ => "mean pooling (the default of example.py; --pooling last overrides it)"
                    .to_string(),
            });
        }
    }

    /// What the full names of a layer's tensors start with.
    pub(super) fn layer_prefix(&self, layer: usize) -> String {
        match self.tree {
            Tree::Classifier | Tree::Repository | Tree::LoneLayer => {
                self.prefix.clone() + &self.tree.layer(layer)
            }
            Tree::Stack | Tree::Layers => self.prefix.clone() + &self.found[layer].place,
        }
    }

    /// Whether encoder, layers and head are known.
    pub(super) fn is_whole(&self) -> bool {
        self.tree.is_whole()
    }

    /// Whether what stands around the layers is known, or there is nothing.
    pub(super) fn is_known(&self) -> bool {
        self.tree != Tree::Layers
    }

    /// The prefixes below which every tensor must be understood; `None` for all.
    pub(super) fn closed(&self) -> Option<Vec<String>> {
        let found = self.found.iter();
        let places = || found.map(|layer| self.prefix.clone() + &layer.place);
        (self.tree == Tree::Layers).then(|| places().collect())
    }

    /// Whether a tensor, by its name in the file, stands at a kernel's place and is not of it.
    pub(super) fn is_beside(&self, name: &str) -> bool {
        let mut found = self.found.iter();
        let name = name.strip_prefix(self.prefix.as_str()).unwrap_or(name);
        found.any(|layer| layer.is_beside(name))
    }

    /// The description of the layers, where a person gave one.
    pub(super) fn own(&self) -> Option<&OwnLayout> {
        self.found.first().and_then(|layer| layer.own.as_deref())
    }

    /// Whether the layers are not diagonal in the file.
    pub(super) fn is_low_rank(&self) -> bool {
        let mut found = self.found.iter();
        found.any(|layer| {
            let kind = layer.kind;
            matches!(
                kind,
                Kind::Dplr { .. } | Kind::AnnotatedDplr | Kind::MimoDplr
            )
        })
    }

    fn block_name(&self, index: usize) -> String {
        match self.tree {
            Tree::Classifier => format!("s4_layers.{index}"),
            Tree::Repository => format!("model.layers.{index}"),
            Tree::LoneLayer => "layer".to_string(),
            Tree::Stack | Tree::Layers => self.found[index].layer(),
        }
    }

    /// The output map and normalisation of a layer.
    fn decode_around(
        &self,
        block: &mut BlockParts,
        tensors: &Tensors<'_>,
        index: usize,
        keep: bool,
    ) -> Result<(), Fault> {
        if let Some(stack) = &self.stack {
            stack.decode_around(block, tensors, index, &self.settled)?;
            if !keep {
                (block.output, block.norm) = (None, None);
            }
            return Ok(());
        }
        let (inputs, outputs) = (block.channels(), block.outputs());
        if let (true, Some(placement)) = (self.tree.is_whole(), self.settled.norm) {
            let norm = weights::norm(tensors, &self.tree.norm(index), inputs)?;
            block.norm = Some((norm, placement)).filter(|_| keep);
        }
        let place = self.tree.layer(index);
        let output = weights::output_linear(tensors, &place, inputs, outputs)?;
        block.output = output.filter(|_| keep);
        Ok(())
    }

    /// Reads every tensor into the canonical model, with notes of what was lost on the way.
    ///
    /// With [`Parts::Dynamics`] all tensors are checked all the same, and those beside the
    /// systems are let go one by one.
    pub(super) fn decode(
        &self,
        tensors: &Tensors<'_>,
        parts: Parts,
    ) -> Result<(Model, Vec<String>), Fault> {
        let keep = parts == Parts::Whole;
        let mut notes = Vec::new();
        let mut blocks = Vec::with_capacity(self.layers.len());
        for (index, layout) in self.layers.iter().enumerate() {
            let dynamics = layout.decode(tensors)?;
            if !tensors.is_at_rate() {
                let (layer, family) = (self.block_name(index), layout.family());
                return Err(Fault::OneRate { layer, family });
            }
            notes.extend(dynamics.note_of_phase(&self.block_name(index))?);
            let dynamics = parts.of_layer(dynamics);
            let dynamics = dynamics.map_err(|source| Fault::System {
                layer: self.layer_prefix(index),
                channel: 0,
                source,
            })?;
            notes.extend(dynamics.note);
            let mut block = BlockParts {
                name: self.block_name(index),
                systems: dynamics.systems,
                backward: dynamics.backward,
                backward_from: dynamics.backward_from,
                holds_feedthrough: self.found[index].holds_feedthrough(),
                class: layout.class(tensors),
                activation: Nonlinearity::Gelu,
                output: None,
                norm: None,
            };
            if self.tree != Tree::Layers {
                self.decode_around(&mut block, tensors, index, keep)?;
            }
            blocks.push(Block::new(block)?);
        }
        let mut model = ModelParts {
            encoder: None,
            blocks,
            final_norm: None,
            head: None,
        };
        if self.tree.is_whole() {
            self.decode_ends(&mut model, tensors, keep)?;
        }
        Ok((Model::new(model)?, notes))
    }

    /// Encoder, last normalisation and head.
    fn decode_ends(
        &self,
        model: &mut ModelParts,
        tensors: &Tensors<'_>,
        keep: bool,
    ) -> Result<(), Fault> {
        if let Some(stack) = &self.stack {
            stack.decode_ends(model, tensors, &self.settled)?;
            if !keep {
                (model.encoder, model.head) = (None, None);
            }
            return Ok(());
        }
        let channels = model.blocks.first().map_or(0, Block::channels);
        for (index, block) in model.blocks.iter().enumerate() {
            if block.channels() != channels {
                let name = format!("{}kernel.log_dt", self.tree.layer(index));
                let expected = format!("[{channels}] (the channels of layer 0)");
                return Err(tensors.wrong_shape(&name, vec![block.channels()], &expected));
            }
        }
        let encoder = weights::encoder(tensors, self.tree.encoder(), channels)?;
        let linear = weights::decoder(tensors, self.tree.decoder(), channels)?;
        if self.tree == Tree::Repository && self.settled.norm == Some(Placement::Pre) {
            let norm = weights::norm(tensors, FINAL_NORM, channels)?;
            model.final_norm = Some(norm).filter(|_| keep);
        }
        let pooling = match self.settled.per_step {
            true => None,
            false => Some(self.settled.pooling.unwrap_or(Pooling::Mean)),
        };
        model.encoder = Some(encoder).filter(|_| keep);
        model.head = Some(Head { pooling, linear }).filter(|_| keep);
        Ok(())
    }
}

impl Structure {
    /// The tree of a new classifier as `example.py` names it: S4D layers, DSS-softmax layers for a
    /// length, or, for layers in both directions of time, those of version 4.
    pub(super) fn new(model: &Model, softmax: Option<usize>) -> Result<Self, Fault> {
        let turns = |block: &Block| !block.backward().is_empty();
        let bidirectional = model.blocks().iter().any(turns);
        let held = |block: &Block| turns(block) && block.backward_from() == 1;
        if bidirectional && (softmax.is_some() || !model.blocks().iter().all(held)) {
            return Err(Fault::Bidirectional);
        }
        if model.final_norm().is_some() {
            return Err(Fault::FinalNorm);
        }
        let norm = require_whole(model)?;
        let pooling = model.head().and_then(|head| head.pooling);
        let settled = Declared {
            norm,
            pooling,
            per_step: pooling.is_none(),
            dss_version: softmax.map(|_| DssVersion::Softmax),
            length: softmax,
            ..Declared::default()
        };
        let (settled, maps) = match (bidirectional, softmax) {
            (true, _) => (version_4(settled), MapShape::Linear),
            (false, Some(_)) => (settled, MapShape::Column),
            (false, None) => (settled, MapShape::Convolution),
        };
        let layer = |index| match bidirectional {
            true => new_version_4(index),
            false => Found {
                feedthrough: Some(format!("s4_layers.{index}.D")),
                ..unmarked(format!("s4_layers.{index}.kernel."))
            },
        };
        let indices = || 0..model.blocks().len();
        Ok(Self {
            tree: Tree::Classifier,
            prefix: String::new(),
            found: indices().map(layer).collect(),
            others: Vec::new(),
            maps,
            layers: indices()
                .map(|index| match bidirectional {
                    true => new_version_4(index).layout(settled),
                    false => new_layer(index, softmax),
                })
                .collect(),
            settled,
            assumptions: Vec::new(),
            stack: None,
            unknown: None,
        })
    }

    /// All tensors around the systems that the model holds, in the shapes of `example.py`. What a
    /// model read by [`Parts::Dynamics`] left out is not among them.
    pub(super) fn encode(&self, model: &Model) -> Vec<Encoded> {
        if let Some(stack) = &self.stack {
            return stack.encode(model);
        }
        let mut out = Vec::new();
        if let Some(encoder) = model.encoder() {
            weights::encode_encoder(self.tree.encoder(), encoder, &mut out);
        }
        for (index, block) in model.blocks().iter().enumerate() {
            if let Some(output) = block.output() {
                let place = self.tree.layer(index);
                weights::encode_output(&place, output, self.maps, &mut out);
            }
            if let Some((norm, _)) = block.norm() {
                weights::encode_norm(&self.tree.norm(index), norm, &mut out);
            }
        }
        if let Some(norm) = model.final_norm() {
            weights::encode_norm(FINAL_NORM, norm, &mut out);
        }
        if let Some(head) = model.head() {
            weights::encode_linear(self.tree.decoder(), &head.linear, &mut out);
        }
        out
    }
}

/// The place of the normalisations of a model that has every part of the classifier.
fn require_whole(model: &Model) -> Result<Option<Placement>, Fault> {
    let placed = |block: &Block| block.norm().map(|(_, placement)| *placement);
    let norm = model.blocks().first().and_then(placed);
    let whole = [
        ("encoder", model.encoder().is_some()),
        ("head", model.head().is_some()),
        ("layer", !model.blocks().is_empty()),
        (
            "output map of a layer",
            model.blocks().iter().all(|block| block.output().is_some()),
        ),
        (
            "normalisation, at one place in all layers",
            norm.is_some() && model.blocks().iter().all(|block| placed(block) == norm),
        ),
    ];
    if let Some((missing, _)) = whole.into_iter().find(|(_, there)| !there) {
        return Err(Fault::Incomplete { missing });
    }
    Ok(norm)
}

/// A layer of the diagonal kernel of state-spaces/s4 version 4, which may have both directions.
fn new_version_4(index: usize) -> Found {
    Found {
        place: format!("s4_layers.{index}.layer.kernel."),
        kind: Kind::S4Repo(Version::V4),
        own: None,
        feedthrough: Some(format!("s4_layers.{index}.layer.D")),
    }
}

/// What that kernel leaves open, as it is written.
fn version_4(settled: Declared) -> Declared {
    Declared {
        discretisation: Some(Discretisation::Zoh),
        real_transform: Some(Transform::Exp),
        dt_transform: Some(Transform::Exp),
        ..settled
    }
}

fn new_layer(index: usize, softmax: Option<usize>) -> Arc<dyn Layout> {
    let layer = format!("s4_layers.{index}");
    let kernel = format!("{layer}.kernel.");
    let feedthrough = Some(format!("{layer}.D"));
    match softmax {
        None => Arc::new(S4d {
            layer,
            kernel,
            feedthrough,
        }),
        Some(_) => Arc::new(Dss {
            layer,
            kernel,
            feedthrough,
            version: DssVersion::Softmax,
            length: softmax,
        }),
    }
}
