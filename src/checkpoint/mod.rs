//! Files and models: reading, and writing back in the layout a file came from.
//!
//! A checkpoint is read into the canonical [`Model`]; beside it stays the encoding, which knows
//! the container, the wrapper, the prefix, the layout of every layer and all original tensors. So
//! an unchanged model is written back bit for bit, and a reduced one differs only in the tensors
//! that hold its poles and residues.
//!
//! One file per layout in `layout/`, with `decode` beside `encode`; no convention of a layout leaks
//! out.

mod configuration;
mod convert;
pub(crate) mod declared;
mod dtype;
pub(crate) mod encode;
pub(crate) mod encoded_layer;
mod error;
mod filters;
pub(crate) mod layerwise;
mod layout;
mod model_folder;
mod parts;
mod provenance;
mod raw;
pub(crate) mod reading;
mod refuse;
mod scanned;
mod sets;
mod settle;
mod tensors;
mod tree;
mod wrapped;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

pub use convert::Family;
pub(crate) use declared::AnyStep;
pub(crate) use declared::Declared;
use declared::Metadata;
pub use declared::{Discretisation, DssVersion, Gelu, HalfGate, PartName};
pub use encode::EncodedCheckpoint;
use error::Fault;
pub use error::{CheckpointError, ContentError};
use hankelite_archive::{Archive, ArchiveError, Dtype, RawTensor, ReadAt, WeightSet};
use hankelite_control::SystemClass;
use layout::{Dynamics, Encoded};
pub use layout::{OwnLayout, Transform};
pub use model_folder::{ConfiguredSize, FolderChanges};
use parts::Parts;
pub use provenance::Provenance;
use provenance::Record;
use raw::{floating, require_finite};
use scanned::Scanned;
use sets::Below;
use tensors::Tensors;
use tree::Structure;
use wrapped::Structured;

use crate::model::{Block, Model};
use crate::rounding::StorageChoice;

/// A model together with how its file encodes it.
#[derive(Clone)]
pub struct Checkpoint {
    /// The canonical model.
    pub model: Model,
    encoding: Arc<Encoding>,
    record: Arc<Record>,
}

/// Everything about a file that is not in the canonical model.
struct Encoding {
    archive: Archive,
    /// How the file holds layers that are apart in `archive`.
    scanned: Option<Scanned>,
    structure: Structure,
    /// The layers as the file holds them; of an outline, what was kept of them.
    stored: Vec<Block>,
    /// Tensors around the layers that are not understood.
    carried: Vec<String>,
    /// What a person should know about the file.
    notes: Vec<String>,
    /// Numbers in all tensors of the file that was read, or of the set of weights that was.
    elements: usize,
    /// Where the file holds several.
    sets: Vec<WeightSet>,
    /// The one that is read, where the others stay in the file.
    below: Option<Below>,
}

/// As [`crate::read`], for layers in a layout of one's own. Without this function a description
/// `NAME.layout.toml` beside the checkpoint does the same. Files that are written later carry it.
///
/// # Errors
/// As [`crate::read`].
pub fn read_own(
    path: impl AsRef<Path>,
    layout: &OwnLayout,
    declared: &Declared,
) -> Result<Checkpoint, CheckpointError> {
    let path = path.as_ref();
    let archive = opened(path, declared)?;
    let read = read_archive(archive, Some(layout), declared, Parts::Whole);
    read.map_err(|fault| fault.at(path))
}

/// As [`crate::read`], from tensors that are in no file; `name` stands for one in messages. Nothing
/// is looked up on disk.
///
/// # Errors
/// As [`crate::read`], but those of a file.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use hankelite::archive::{Dtype, RawTensor};
/// use hankelite::checkpoint::from_tensors;
/// use hankelite::Declared;
///
/// let tensor = |shape: &[usize], value: f64| {
///     let values = vec![value; shape.iter().product()];
///     RawTensor::from_f64(Dtype::F32, shape.to_vec(), &values)
/// };
/// let tensors = BTreeMap::from([
///     ("layer.D".to_string(), tensor(&[2], 1.0)?),
///     ("layer.kernel.log_dt".to_string(), tensor(&[2], -4.0)?),
///     ("layer.kernel.log_A_real".to_string(), tensor(&[2, 3], -0.7)?),
///     ("layer.kernel.A_imag".to_string(), tensor(&[2, 3], 3.0)?),
///     ("layer.kernel.C".to_string(), tensor(&[2, 3, 2], 0.5)?),
/// ]);
/// let checkpoint = from_tensors("the state dict", tensors, &Declared::default())?;
/// assert_eq!(checkpoint.model.blocks()[0].channels(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn from_tensors(
    name: &str,
    tensors: BTreeMap<String, RawTensor>,
    declared: &Declared,
) -> Result<Checkpoint, CheckpointError> {
    let archive = Archive::in_memory(name, tensors);
    let nowhere = Beside::default();
    let read = decode_archive(archive, nowhere, declared, Parts::Whole);
    read.map_err(|fault| fault.at(Path::new(name)))
}

/// As [`crate::read`], from the bytes of one file, which stay where they are until they are needed;
/// `name` stands for it in messages. `beside` holds, by their names, the files that an index lists.
/// Nothing is looked up on disk.
///
/// # Errors
/// As [`crate::read`].
pub fn read_files(
    name: impl AsRef<Path>,
    bytes: Box<dyn ReadAt>,
    beside: BTreeMap<String, Box<dyn ReadAt>>,
    declared: &Declared,
) -> Result<Checkpoint, CheckpointError> {
    let archive = Archive::from_files(name, bytes, beside)?;
    decode_given(archive, declared, Parts::Whole)
}

/// From an archive that no file on this machine stands for.
fn decode_given(
    archive: Archive,
    declared: &Declared,
    parts: Parts,
) -> Result<Checkpoint, CheckpointError> {
    let name = archive.path().to_path_buf();
    let read = decode_archive(archive, Beside::default(), declared, parts);
    read.map_err(|fault| fault.at(&name))
}

fn read_parts(
    path: &Path,
    declared: &Declared,
    parts: Parts,
) -> Result<Checkpoint, CheckpointError> {
    let archive = opened(path, declared)?;
    read_archive(archive, None, declared, parts).map_err(|fault| fault.at(path))
}

/// A file of which no set of weights may have a usual name, so that one has to be asked for.
fn opened(path: &Path, declared: &Declared) -> Result<Archive, ArchiveError> {
    if let Some(filters) = filters::open(path)? {
        return Ok(filters);
    }
    match (Archive::open(path), declared.part) {
        (Err(ArchiveError::SeveralStateDicts { .. }), Some(part)) => {
            Archive::open_set(path, part.as_str())
        }
        (opened, _) => opened,
    }
}

fn read_archive(
    archive: Archive,
    own: Option<&OwnLayout>,
    declared: &Declared,
    parts: Parts,
) -> Result<Checkpoint, Fault> {
    let beside = Beside {
        layout: match own {
            Some(own) => Some(own.clone()),
            None => OwnLayout::read(archive.path())?,
        },
        declared: Declared::from_sidecar(archive.path())?,
    };
    decode_archive(archive, beside, declared, parts)
}

/// What was given or found beside a file.
#[derive(Default)]
struct Beside {
    layout: Option<OwnLayout>,
    declared: Declared,
}

fn decode_archive(
    archive: Archive,
    beside: Beside,
    declared: &Declared,
    parts: Parts,
) -> Result<Checkpoint, Fault> {
    let metadata = Metadata::parse(archive.metadata())?;
    let own = beside.layout.or(metadata.layout).map(Arc::new);
    let asked = declared.part.or(beside.declared.part);
    let chosen = sets::choose(archive, asked, metadata.declared.part)?;
    let declared = Declared {
        part: chosen.part(),
        ..declared.or(metadata.declared).or(beside.declared)
    };
    refuse::refuse_known(chosen.archive.names(), declared.diagonalise.is_some())?;
    let mut notes = chosen.notes();
    let (archive, scanned) = match own {
        None => Scanned::apart(chosen.archive)?,
        Some(_) => (chosen.archive, None),
    };
    notes.extend(scanned.iter().map(Scanned::note));
    let Structured {
        archive,
        structure,
        note,
    } = match scanned {
        // Layers of one stack may be equal, and are not one for that.
        Some(_) => Structured::apart(archive, declared)?,
        None => Structured::find(archive, own.as_ref(), declared)?,
    };
    notes.extend(note);
    let tensors = Tensors::new(&archive, &structure.prefix);
    let low_rank = structure.is_low_rank();
    let (model, lost) = structure.decode(&tensors, parts.of_file(low_rank))?;
    for name in &structure.others {
        tensors.set_aside_whole(name);
    }
    let closed = structure.closed();
    tensors.require_all_used(closed.as_deref(), |name| structure.is_beside(name))?;
    let carried = tensors.unused(None);
    notes.extend(lost);
    notes.extend(shared_note(&archive));
    if !carried.is_empty() {
        notes.push(carried_note(carried.len(), structure.unknown.as_deref()));
    }
    let mut encoding = Encoding {
        elements: archive.elements(),
        archive,
        scanned,
        structure,
        stored: model.blocks().to_vec(),
        carried,
        notes,
        sets: chosen.sets,
        below: chosen.below,
    };
    let of_folder = encoding.folder_notes()?;
    encoding.notes.extend(of_folder);
    let checkpoint = Checkpoint {
        model,
        encoding: Arc::new(encoding),
        record: Arc::new(metadata.record),
    };
    match low_rank {
        true => as_diagonal(checkpoint, parts),
        false => checkpoint.unfolded(parts),
    }
}

/// In a family that holds diagonal systems.
fn as_diagonal(checkpoint: Checkpoint, parts: Parts) -> Result<Checkpoint, Fault> {
    let family = match checkpoint.model.blocks().iter().all(Block::is_siso) {
        true => Family::S4V4,
        false => Family::S5,
    };
    checkpoint.convert(family, parts)
}

/// Which tensors stand for the same numbers.
fn shared_note(archive: &Archive) -> Option<String> {
    let mut tied = archive
        .names()
        .filter_map(|name| Some((name, archive.tied_to(name)?)));
    let (name, first) = tied.next()?;
    let more = match tied.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "tensors share their numbers (`{name}` with `{first}`{more}): they are reduced and counted \
         once, and stay equal"
    ))
}

fn carried_note(carried: usize, why: Option<&str>) -> String {
    let tensors = if carried == 1 { "tensor" } else { "tensors" };
    format!(
        "the network around the layers ({carried} {tensors}, kept as they are) is not known: the \
         model can be inspected, reduced and written, not run{}",
        why.map(|why| format!(": {why}")).unwrap_or_default()
    )
}

impl Encoding {
    /// The file, with stacked layers as it holds them.
    fn file(&self) -> &Archive {
        self.scanned.as_ref().map_or(&self.archive, Scanned::file)
    }
}

impl Checkpoint {
    /// A new file for a model that came from none: S4D layers in the classifier `S4Model` of
    /// `example.py` (state-spaces/s4), in single precision; layers in both directions of time are
    /// written as the diagonal kernels of version 4, which hold them. The checkpoint holds the model
    /// as rounded to that.
    ///
    /// # Errors
    /// [`CheckpointError::Content`] for a model without encoder, normalisation or head;
    /// where only some layers have both directions, or where the second one begins elsewhere than at
    /// the next step; where the directions of a channel have poles of their own; for a pole that does
    /// not decay, and for a number that single precision does not hold.
    pub fn new_s4d(model: &Model) -> Result<Self, CheckpointError> {
        new(model, None).map_err(|fault| fault.at(Path::new(NEW)))
    }

    /// As [`Checkpoint::new_s4d`], with DSS layers, version `softmax`, for sequences of `length`
    /// steps: they hold poles that do not decay. Every channel has its own poles, which the public
    /// `dss.py` takes after a change of three lines (docs/training.md).
    ///
    /// # Errors
    /// As [`Checkpoint::new_s4d`], and for a length that no sequence has.
    pub fn new_dss_softmax(model: &Model, length: usize) -> Result<Self, CheckpointError> {
        new(model, Some(length)).map_err(|fault| fault.at(Path::new(NEW)))
    }

    /// The same file with another model in it, e.g. a reduced one. What is noted of the
    /// first in its metadata is left out.
    pub fn with_model(&self, model: Model) -> Self {
        Self {
            model,
            encoding: Arc::clone(&self.encoding),
            record: Arc::default(),
        }
    }

    /// The network of the file for signals of another rate: every step Δ is multiplied by `factor`,
    /// so that a model of 16 kHz runs at 8 kHz with a factor of 2. The kernels are those of the same
    /// continuous systems, and all else stays.
    ///
    /// # Errors
    /// [`CheckpointError::Content`] for layouts that hold discrete systems (LRU), or continuous ones that are
    /// not discretised by a hold, and for a factor that is not positive.
    pub fn model_with_steps_times(&self, factor: f64) -> Result<Model, CheckpointError> {
        let Encoding {
            archive, structure, ..
        } = self.encoding.as_ref();
        let scaled = || {
            if !(factor.is_finite() && factor > 0.0) {
                return Err(Fault::StepFactor { factor });
            }
            let tensors = Tensors::new(archive, &structure.prefix).with_steps_times(factor);
            Ok(structure.decode(&tensors, Parts::Whole)?.0)
        };
        scaled().map_err(|fault| fault.at(archive.path()))
    }

    /// The same with a note of how it came about, which is written into the file's metadata, in
    /// containers that have such: safetensors, npz, torch.
    pub fn with_provenance(mut self, provenance: Provenance) -> Self {
        Arc::make_mut(&mut self.record).provenance = Some(provenance);
        self
    }

    /// How the file came about, where it was reduced by this library and not changed since.
    pub fn provenance(&self) -> Option<&Provenance> {
        self.record.provenance.as_ref()
    }

    /// The same with a note, in the file's metadata, of how its tensors are meant to be stored in an
    /// image: the bits that a target chose, or that the maps were trained at.
    pub fn with_storage(mut self, storage: StorageChoice) -> Self {
        Arc::make_mut(&mut self.record).storage = Some(storage);
        self
    }

    /// How the file says that its tensors are meant to be stored in an image. One of another number
    /// of layers than the model has counts as none.
    pub fn storage(&self) -> Option<&StorageChoice> {
        let layers = self.model.blocks().len();
        let storage = self.record.storage.as_ref();
        storage.filter(|storage| storage.layers.len() == layers)
    }

    /// Whether the path still is that of the file that was read, as it was then: for notes that name
    /// it, such as [`Provenance`].
    ///
    /// # Errors
    /// [`ArchiveError::Read`], where it is not.
    pub fn require_in_place(&self) -> Result<(), hankelite_archive::ArchiveError> {
        self.encoding.file().require_in_place()
    }

    /// The family of the layers, e.g. `S4D` or `DSS`.
    pub fn family(&self) -> &'static str {
        let first = self.encoding.structure.layers.first();
        first.map_or("", |layout| layout.family())
    }

    /// The only systems that the layers can hold, where they cannot hold all, as those of Evo 2, MEGA,
    /// aTENNuate, LinOSS and Megalodon: they are reduced by [`Method::RealPoles`](crate::compress::Method)
    /// or [`Method::InLayout`](crate::compress::Method), and other methods seldom find such systems.
    pub fn system_class(&self) -> Option<SystemClass> {
        self.model.blocks().iter().find_map(Block::class)
    }

    /// Where the network runs its layers at other steps than those of the file, as FlowState
    /// (`scale_factor`) and Event-SSM (times between events) do, what their input is: a reduction in
    /// continuous time suits all steps. Else `None`.
    pub(crate) fn at_any_step(&self) -> Option<AnyStep> {
        let mut layers = self.encoding.structure.layers.iter();
        layers.find_map(|layout| layout.at_any_step())
    }

    /// The least and the largest step Δ of a layer whose modes have steps of their own in the file;
    /// `None` where a system has one, or is not that of the file.
    ///
    /// # Errors
    /// The file can no longer be read.
    ///
    /// # Panics
    /// If there is no layer of that index.
    pub fn steps_of_modes(&self, layer: usize) -> Result<Option<[f64; 2]>, CheckpointError> {
        let Encoding {
            archive, structure, ..
        } = self.encoding.as_ref();
        if self.model.blocks()[layer].systems() != self.encoding.stored[layer].systems() {
            return Ok(None);
        }
        let tensors = Tensors::new(archive, &structure.prefix);
        let steps = structure.layers[layer].steps_of_modes(&tensors);
        let steps = steps.map_err(|fault| fault.at(archive.path()))?;
        Ok(steps.map(|steps| {
            let (least, most) = (f64::INFINITY, 0.0_f64);
            let ends = |[least, most]: [f64; 2], step: &f64| [least.min(*step), most.max(*step)];
            steps.iter().fold([least, most], ends)
        }))
    }

    /// What was declared, or assumed in its place.
    pub fn declared(&self) -> Declared {
        self.encoding.structure.settled
    }

    /// What was assumed because neither the file nor a person declared it.
    pub fn assumptions(&self) -> &[String] {
        &self.encoding.structure.assumptions
    }

    /// The names of the tensors around the layers of a network that is not known. They are written back
    /// as they are; where there are any, or the network is not known for other reasons, the model has
    /// neither encoder nor head.
    pub fn carried(&self) -> &[String] {
        &self.encoding.carried
    }

    /// Whether the layers were read out of a network that is not known: they stand in the model one
    /// after the other, without what is between and around them. A file that holds one layer and
    /// nothing else is no such network.
    pub fn is_layers_alone(&self) -> bool {
        let known = self.encoding.structure.is_known();
        !known && (!self.carried().is_empty() || self.model.blocks().len() > 1)
    }

    /// Whether the file holds a whole network that is known: one that runs once all of it is read.
    pub fn is_network(&self) -> bool {
        self.encoding.structure.is_whole()
    }

    /// Two layers of the network that are one in the file, if there are such.
    pub fn tied_layers(&self) -> Option<[String; 2]> {
        let Encoding {
            archive, structure, ..
        } = self.encoding.as_ref();
        let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, layer) in structure.found.iter().enumerate() {
            let inside = archive.names().filter(|name| {
                let name = name.strip_prefix(structure.prefix.as_str());
                name.is_some_and(|name| layer.is_kernel(name))
            });
            for name in inside {
                let root = archive.tied_to(name).unwrap_or(name);
                let owner = *owners.entry(root).or_insert(index);
                if owner != index {
                    let name = |index: usize| self.model.blocks()[index].name().to_string();
                    return Some([owner, index].map(name));
                }
            }
        }
        None
    }

    /// Real numbers in all tensors of the file, before anything was made of them; those that several
    /// tensors share count once.
    pub fn parameters_of_file(&self) -> usize {
        self.encoding.elements
    }

    /// The sets of weights of the file, where there are several, with their sizes; `part` of
    /// [`Declared`] chooses one.
    pub fn weight_sets(&self) -> &[WeightSet] {
        &self.encoding.sets
    }

    /// What the file held besides the model.
    pub fn notes(&self) -> &[String] {
        &self.encoding.notes
    }

    /// The names, in the file, of the tensors of one layer's systems: those of its kernel, and D.
    ///
    /// # Panics
    /// If there is no layer of that index.
    pub fn system_tensors(&self, layer: usize) -> Vec<String> {
        let Encoding {
            archive, structure, ..
        } = self.encoding.as_ref();
        let (prefix, found) = (structure.prefix.as_str(), &structure.found[layer]);
        let holds = |name: &&str| name.strip_prefix(prefix).is_some_and(|n| found.holds(n));
        let names = archive.names().filter(holds);
        names
            .map(|name| archive.name_in_file(name).to_string())
            .collect()
    }

    /// Real numbers in the tensors of one layer of the file: its state space, feedthrough and
    /// output map.
    pub fn layer_parameters(&self, layer: usize) -> usize {
        let Encoding {
            archive, structure, ..
        } = self.encoding.as_ref();
        let head = structure.layer_prefix(layer);
        let names = archive.names().filter(|name| name.starts_with(&head));
        let mut seen = BTreeSet::new();
        let names = names.filter(|name| seen.insert(archive.tied_to(name).unwrap_or(name)));
        let shapes = names.filter_map(|name| archive.shape(name));
        shapes.map(|shape| shape.iter().product::<usize>()).sum()
    }
}

/// What messages call a model that is in no file yet.
const NEW: &str = "the new model";

fn new(model: &Model, softmax: Option<usize>) -> Result<Checkpoint, Fault> {
    if let Some(found) = softmax.filter(|length| !(1..=tree::LENGTH_MAX).contains(length)) {
        let most = tree::LENGTH_MAX;
        return Err(Fault::Length { found, most });
    }
    let structure = Structure::new(model, softmax)?;
    let mut encoded = structure.encode(model);
    let nothing = Archive::in_memory(NEW, BTreeMap::new());
    for (block, layout) in model.blocks().iter().zip(&structure.layers) {
        let dynamics = Dynamics::of(block);
        encoded.extend(layout.encode(&dynamics, &Tensors::new(&nothing, ""))?);
    }
    let mut tensors = BTreeMap::new();
    for Encoded {
        name, shape, data, ..
    } in encoded
    {
        let shape = shape.unwrap_or(vec![data.len()]);
        let tensor = floating(&name, Dtype::F32, shape, &data)?;
        require_finite(&name, &tensor, &data)?;
        tensors.insert(name, tensor);
    }
    let archive = Archive::in_memory(NEW, tensors);
    let (model, _) = structure.decode(&Tensors::new(&archive, ""), Parts::Whole)?;
    let encoding = Arc::new(Encoding {
        elements: archive.elements(),
        archive,
        scanned: None,
        structure,
        stored: model.blocks().to_vec(),
        carried: Vec::new(),
        notes: Vec::new(),
        sets: Vec::new(),
        below: None,
    });
    Ok(Checkpoint {
        model,
        encoding,
        record: Arc::default(),
    })
}
