//! The same systems in the tensors of another family.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hankelite_archive::{Archive, ArchiveError, Dtype, RawTensor};
use hankelite_control::{DiagonalSystem, side_by_side};

use crate::checkpoint::declared::{Declared, Discretisation, DssVersion};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Dynamics, Found, HyenaForm, Kind, Transform, Unfolded, Version};
use crate::checkpoint::parts::Parts;
use crate::checkpoint::raw::raw_tensor;
use crate::checkpoint::scanned::Scanned;
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::tree::{Shared, Structure, Tree};
use crate::checkpoint::{Checkpoint, CheckpointError, Encoding};
use crate::model::{Block, Model};

/// A family to convert to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// The standalone S4D of state-spaces/s4.
    S4d,
    /// The diagonal kernel of state-spaces/s4 v3, with zero-order hold.
    #[serde(rename = "s4v3")]
    S4V3,
    /// The diagonal kernel of state-spaces/s4 v4, with zero-order hold and `dt_transform` exp.
    #[serde(rename = "s4v4")]
    S4V4,
    /// DSS, version `exp`, with own poles for every channel.
    DssExp,
    /// DSS, version `softmax`, with own poles for every channel; needs the length.
    DssSoftmax,
    /// S5 (flax), with `conj_sym` and zero-order hold.
    S5,
    /// LRU, as minimal-LRU stores it.
    Lru,
    /// The moving average of MEGA.
    Mega,
    /// The modal filters of StripedHyena and Evo 1.
    #[serde(rename = "stripedhyena")]
    StripedHyena,
    /// Those of Evo 2, with positive real poles.
    Evo2,
}

impl Family {
    fn kind(self) -> Kind {
        match self {
            Family::S4d => Kind::S4d,
            Family::S4V3 => Kind::S4Repo(Version::V3),
            Family::S4V4 => Kind::S4Repo(Version::V4),
            Family::DssExp | Family::DssSoftmax => Kind::Dss,
            Family::S5 => Kind::S5 { torch: false },
            Family::Lru => Kind::Lru,
            Family::Mega => Kind::Ema {
                transformers: false,
            },
            Family::StripedHyena => Kind::Hyena(HyenaForm::Complex),
            Family::Evo2 => Kind::Hyena(HyenaForm::Logarithms),
        }
    }

    /// Where the kernel stands within its layer, and where D does.
    fn places(self) -> (&'static str, &'static str) {
        match self {
            Family::S4d | Family::DssExp | Family::DssSoftmax | Family::S4V4 => ("kernel.", "D"),
            Family::S4V3 => ("kernel.kernel.", "D"),
            Family::S5 | Family::Lru => ("", "D"),
            Family::Mega => ("", "omega"),
            Family::StripedHyena | Family::Evo2 => ("filter.", "filter.D"),
        }
    }

    /// What stays declared, and what is so for the family.
    fn declared(self, before: Declared) -> Declared {
        let around = Declared {
            norm: before.norm,
            pooling: before.pooling,
            per_step: before.per_step,
            length: before.length,
            half_gate: before.half_gate,
            gelu: before.gelu,
            part: before.part,
            ..Declared::default()
        };
        let held = Declared {
            discretisation: Some(Discretisation::Zoh),
            real_transform: Some(Transform::Exp),
            ..around
        };
        match self {
            Family::S4d | Family::Lru | Family::Mega | Family::StripedHyena | Family::Evo2 => {
                around
            }
            Family::S4V3 => held,
            Family::S4V4 => Declared {
                dt_transform: Some(Transform::Exp),
                ..held
            },
            Family::DssExp | Family::DssSoftmax => Declared {
                dss_version: Some(match self {
                    Family::DssExp => DssVersion::Exp,
                    _ => DssVersion::Softmax,
                }),
                ..around
            },
            Family::S5 => Declared {
                discretisation: Some(Discretisation::Zoh),
                conj_sym: Some(true),
                clip_eigs: Some(false),
                ..around
            },
        }
    }
}

impl Checkpoint {
    /// The same systems and network in the tensors of another family, in single precision; all
    /// other tensors are copied. The whole file is held in memory.
    ///
    /// # Errors
    /// [`CheckpointError::Content`] with the pole where the family cannot hold it;
    /// where it has other inputs or outputs; for a softmax without length.
    pub fn converted(&self, family: Family) -> Result<Checkpoint, CheckpointError> {
        let path = self.encoding.archive.path();
        let converted = self.convert(family, Parts::of(&self.model));
        converted.map_err(|fault| fault.at(path))
    }

    pub(super) fn convert(&self, family: Family, parts: Parts) -> Result<Checkpoint, Fault> {
        let Encoding {
            archive, structure, ..
        } = self.encoding.as_ref();
        let declared = family.declared(structure.settled);
        if family == Family::DssSoftmax && declared.length.is_none() {
            return Err(Fault::Undeclared {
                what: "the sequence length L",
                needed_for: "the softmax kernel of DSS",
                hint: "declare it with --length L",
            });
        }
        let mut tensors = around(archive, structure)?;
        let nothing = Archive::in_memory("", BTreeMap::new());
        for (index, block) in self.model.blocks().iter().enumerate() {
            let kind = structure.found[index].kind;
            require_held(block, kind, family)?;
            let layer = new_layer(structure, index, family);
            let dynamics = match family {
                Family::S5 | Family::Lru => merged(Dynamics::of(block), block.name())?,
                _ => Dynamics::of(block),
            };
            let layout = layer.layout(declared);
            for encoded in layout.encode(&dynamics, &Tensors::new(&nothing, ""))? {
                let name = structure.prefix.clone() + &encoded.name;
                let shape = encoded.shape.unwrap_or(vec![encoded.data.len()]);
                let tensor = raw_tensor(&name, Dtype::F32, shape, &encoded.data)?;
                if tensors.contains_key(&name) {
                    return Err(taken(name));
                }
                tensors.insert(name, tensor);
            }
        }
        shape_outputs(structure, family, &mut tensors)?;
        let mut made = self.remade(tensors, declared, parts)?;
        if let others @ 1.. = structure.others.len() {
            made.notes.push(format!(
                "{others} other names of the same tensors are left out of what is converted"
            ));
        }
        Ok(Checkpoint::from(made))
    }

    /// The same with tensors for those that nothing written could keep, where there are such.
    pub(super) fn unfolded(self, parts: Parts) -> Result<Checkpoint, Fault> {
        let Encoding {
            archive, structure, ..
        } = self.encoding.as_ref();
        let stored = Tensors::new(archive, &structure.prefix);
        let unfolded = structure
            .layers
            .iter()
            .map(|layout| layout.unfolded(&stored));
        let unfolded: Vec<Unfolded> = unfolded
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()?;
        if unfolded.is_empty() {
            return Ok(self);
        }
        let all = archive
            .names()
            .map(|name| Ok((name.to_string(), archive.tensor(name)?)));
        let mut tensors = all.collect::<Result<BTreeMap<_, _>, ArchiveError>>()?;
        let mut notes = Vec::new();
        for of_layer in unfolded {
            for name in &of_layer.instead {
                tensors.remove(&stored.full(name));
            }
            for (encoded, dtype) in of_layer.tensors {
                let name = stored.full(&encoded.name);
                let shape = encoded.shape.unwrap_or(vec![encoded.data.len()]);
                tensors.insert(
                    name.clone(),
                    raw_tensor(&name, dtype, shape, &encoded.data)?,
                );
            }
            notes.push(of_layer.note);
        }
        let mut made = self.remade(tensors, structure.settled, parts)?;
        made.notes.extend(notes);
        made.structure
            .assumptions
            .clone_from(&structure.assumptions);
        Ok(Checkpoint::from(made))
    }

    /// Other tensors in the place of those of the file.
    fn remade(
        &self,
        mut tensors: BTreeMap<String, RawTensor>,
        declared: Declared,
        parts: Parts,
    ) -> Result<Remade, Fault> {
        let file = self.encoding.file();
        for name in file.unseen() {
            tensors.insert(name.to_string(), file.tensor(name)?);
        }
        let mut archive = Archive::in_memory(&file.path().to_string_lossy(), tensors);
        if let Some(below) = &self.encoding.below {
            archive = archive.below(&below.prefix);
        }
        let scanned = self.encoding.scanned.clone();
        let shared = match scanned {
            Some(_) => Shared::apart(archive),
            None => Shared::find(archive, None)?,
        };
        let structure = Structure::detect(&shared, None, declared)?;
        let archive = shared.archive;
        let tensors = Tensors::new(&archive, &structure.prefix);
        let (model, _) = structure.decode(&tensors, parts)?;
        let carried = tensors.unused(None);
        Ok(Remade {
            archive,
            scanned,
            structure,
            model,
            carried,
            notes: self.encoding.notes.clone(),
            source: Arc::clone(&self.encoding),
        })
    }
}

/// A checkpoint whose notes may still change.
struct Remade {
    archive: Archive,
    scanned: Option<Scanned>,
    structure: Structure,
    model: Model,
    carried: Vec<String>,
    notes: Vec<String>,
    /// Of what it is made.
    source: Arc<Encoding>,
}

impl From<Remade> for Checkpoint {
    fn from(made: Remade) -> Self {
        let encoding = Arc::new(Encoding {
            archive: made.archive,
            scanned: made.scanned,
            structure: made.structure,
            stored: made.model.blocks().to_vec(),
            carried: made.carried,
            notes: made.notes,
            elements: made.source.elements,
            sets: made.source.sets.clone(),
            below: made.source.below.clone(),
        });
        Checkpoint {
            model: made.model,
            encoding,
            record: Arc::default(),
        }
    }
}

/// A name that the new layers need and another tensor has, as D behind a gate (FlowState r1.1).
fn taken(tensor: String) -> Fault {
    Fault::Unsupported {
        what: "a layer beside which a tensor has a name that the other family needs",
        tensor,
        why: "it is no part of the layer's system and would be lost",
    }
}

/// Families have as many inputs as outputs, or one of each for every channel; S5 and LRU have a D of any
/// shape, but no input that is constant.
fn require_held(block: &Block, kind: Kind, family: Family) -> Result<(), Fault> {
    let (found, expected) = (block.channels(), block.outputs());
    let constant = kind == Kind::LruRec;
    let any = matches!(family, Family::S5 | Family::Lru) && !constant;
    if any || expected % found == 0 || block.systems().len() > 1 {
        return Ok(());
    }
    let what = match constant {
        true => "inputs (a constant one, the bias, among them)",
        false => "inputs of a layer",
    };
    Err(Fault::OtherModel {
        what,
        found,
        expected,
    })
}

/// The systems of a layer as one.
fn merged(dynamics: Dynamics, layer: &str) -> Result<Dynamics, Fault> {
    if dynamics.systems.len() <= 1 {
        return Ok(dynamics);
    }
    let merge = |systems: &[DiagonalSystem]| match systems {
        [] => Ok(Vec::new()),
        _ => side_by_side(systems).map(|one| vec![one]),
    };
    let fault = |source| Fault::System {
        layer: layer.to_string(),
        channel: 0,
        source,
    };
    Ok(Dynamics {
        systems: merge(&dynamics.systems).map_err(fault)?,
        backward: merge(&dynamics.backward).map_err(fault)?,
        ..dynamics
    })
}

/// All tensors but those of the kernels and D, each under one name.
fn around(archive: &Archive, structure: &Structure) -> Result<BTreeMap<String, RawTensor>, Fault> {
    let inside = |name: &str| {
        let name = name.strip_prefix(structure.prefix.as_str()).unwrap_or(name);
        let mut found = structure.found.iter();
        found.any(|layer| layer.holds(name))
    };
    let others: BTreeSet<&String> = structure.others.iter().collect();
    let is_other = |name: &str| others.contains(&name.to_string());
    let names = archive
        .names()
        .filter(|name| !inside(name) && !is_other(name));
    let tensors = names.map(|name| Ok((name.to_string(), archive.tensor(name)?)));
    tensors.collect()
}

/// Where a layer of the file stands as one of another family.
fn new_layer(structure: &Structure, index: usize, family: Family) -> Found {
    let found = &structure.found[index];
    let base = match (structure.tree, family) {
        // The public class of v4 wraps its kernel once more.
        (Tree::Classifier, Family::S4V4) => format!("s4_layers.{index}.layer."),
        (Tree::Classifier, _) => format!("s4_layers.{index}."),
        (Tree::Repository, Family::S4V4) => format!("model.layers.{index}.layer.layer."),
        (Tree::Repository, _) => format!("model.layers.{index}.layer."),
        _ => {
            let mut base = found.place.as_str();
            while let Some(shorter) = base.strip_suffix("kernel.") {
                base = shorter;
            }
            let filter = matches!(found.kind, Kind::Hyena(_) | Kind::LaughingHyena);
            base = match base.strip_suffix("filter.") {
                Some(shorter) if filter => shorter,
                _ => base,
            };
            base.to_string()
        }
    };
    let (kernel, d) = family.places();
    Found {
        place: format!("{base}{kernel}"),
        kind: family.kind(),
        own: None,
        feedthrough: Some(format!("{base}{d}")),
    }
}

/// The standalone S4D mixes channels by a convolution of width one, the others by a linear map: the
/// same numbers, with or without a last axis of one.
fn shape_outputs(
    structure: &Structure,
    family: Family,
    tensors: &mut BTreeMap<String, RawTensor>,
) -> Result<(), ArchiveError> {
    if structure.tree != Tree::Classifier {
        return Ok(());
    }
    let convolution = family == Family::S4d;
    for index in 0..structure.layers.len() {
        let name = format!(
            "{}s4_layers.{index}.output_linear.0.weight",
            structure.prefix
        );
        let Some(tensor) = tensors.get(&name) else {
            continue;
        };
        let shape = match (convolution, tensor.shape()) {
            (true, &[outputs, inputs]) => vec![outputs, inputs, 1],
            (false, &[outputs, inputs, _]) => vec![outputs, inputs],
            _ => continue,
        };
        let tensor = tensor.clone().reshaped(shape);
        let tensor = tensor.map_err(|error| error.of(&name))?;
        tensors.insert(name, tensor);
    }
    Ok(())
}
