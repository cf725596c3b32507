//! Files and models: reading, and writing back in the layout a file came from.
//!
//! A checkpoint is read into the canonical [`Model`]; beside it stays the encoding, which knows
//! the container, the wrapper, the prefix, the layout of every layer and all original tensors. So
//! an unchanged model is written back bit for bit, and a reduced one differs only in the tensors
//! that hold its poles and residues.
//!
//! One file per layout in `layout/`, with `decode` beside `encode`; no convention of a layout leaks
//! out.

mod convert;
mod declared;
mod error;
mod layerwise;
mod layout;
mod parts;
mod refuse;
mod settle;
mod tensors;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub use convert::Family;
use declared::Metadata;
pub use declared::{Declared, Discretisation, DssVersion};
pub use error::{CheckpointError, Fault};
use hankelite_archive::{Archive, ArchiveError, Container, Dtype, RawTensor, TensorError};
use hankelite_control::DiagonalSystem;
pub use layerwise::{Layerwise, Rewrite, read_layerwise};
pub use layout::{Axes, Frequency, Hold, OwnLayout, Stored, Transform, layout_table};
use layout::{Dynamics, Encoded, Layout, Role};
use num_complex::Complex64;
use parts::Parts;
use tensors::Tensors;
use tree::Structure;

use crate::model::{Block, Model};

/// A model together with how its file encodes it.
#[derive(Clone)]
pub struct Checkpoint {
    /// The canonical model.
    pub model: Model,
    encoding: Arc<Encoding>,
}

/// Everything about a file that is not in the canonical model.
struct Encoding {
    archive: Archive,
    structure: Structure,
    /// Tensors around the layers that are not understood.
    carried: usize,
    /// What a person should know about the file.
    notes: Vec<String>,
}

/// Reads a checkpoint: safetensors, or a zip file of `torch.save`.
///
/// `declared` says what no tensor tells; the file's own metadata and the sidecar fill its gaps,
/// and where a public script has a default, that is taken and listed in
/// [`Checkpoint::assumptions`]. Tensors of any floating type are raised to f64 once.
///
/// # Errors
/// [`CheckpointError`] with file, tensor, what was found and what was expected.
pub fn read(path: &Path, declared: &Declared) -> Result<Checkpoint, CheckpointError> {
    read_parts(path, declared, Parts::Whole)
}

/// As [`read`], for layers in a layout of one's own. Without this function a description
/// `NAME.layout.toml` beside the checkpoint does the same. Files that are written later carry it.
///
/// # Errors
/// As [`read`].
pub fn read_own(
    path: &Path,
    layout: &OwnLayout,
    declared: &Declared,
) -> Result<Checkpoint, CheckpointError> {
    let archive = Archive::open(path)?;
    let read = read_archive(archive, Some(layout), declared, Parts::Whole);
    read.map_err(|fault| fault.at(path))
}

/// As [`read`], but the model holds the systems of every layer and nothing else: it can be
/// inspected, reduced and written, not run. All other tensors are checked one by one and stay in
/// the file, so memory is bounded by the dynamics and the largest tensor.
///
/// # Errors
/// As [`read`].
pub fn read_dynamics(path: &Path, declared: &Declared) -> Result<Checkpoint, CheckpointError> {
    read_parts(path, declared, Parts::Dynamics)
}

fn read_parts(
    path: &Path,
    declared: &Declared,
    parts: Parts,
) -> Result<Checkpoint, CheckpointError> {
    let archive = Archive::open(path)?;
    read_archive(archive, None, declared, parts).map_err(|fault| fault.at(path))
}

fn read_archive(
    archive: Archive,
    own: Option<&OwnLayout>,
    declared: &Declared,
    parts: Parts,
) -> Result<Checkpoint, Fault> {
    let names: Vec<String> = archive.names().map(str::to_string).collect();
    let names = || names.iter().map(String::as_str);
    let (in_file, own_in_file) = Metadata::parse(archive.metadata())?;
    let own = match own {
        Some(own) => Some(own.clone()),
        None => OwnLayout::read(archive.path())?.or(own_in_file),
    };
    let in_sidecar = Declared::from_sidecar(archive.path())?;
    let declared = declared.or(in_file).or(in_sidecar);
    refuse::refuse_known(names(), declared.diagonalise.is_some())?;
    let structure = Structure::detect(names(), own, declared, archive.settings())?;
    let tensors = Tensors::new(&archive, &structure.prefix);
    let low_rank = structure.is_low_rank();
    let read = match (low_rank, parts) {
        // All systems are needed to write them as diagonal ones.
        (true, Parts::Outline) => Parts::Dynamics,
        _ => parts,
    };
    let (model, lost) = structure.decode(&tensors, read)?;
    let closed = structure.closed();
    tensors.require_all_used(closed.as_deref())?;
    let carried = tensors.unused(None).len();
    let mut notes = archive.notes().to_vec();
    notes.extend(lost);
    if carried > 0 {
        notes.push(carried_note(carried, structure.unknown.as_deref()));
    }
    let encoding = Arc::new(Encoding {
        archive,
        structure,
        carried,
        notes,
    });
    let checkpoint = Checkpoint { model, encoding };
    match low_rank {
        true => checkpoint.convert(Family::S4V4, parts),
        false => Ok(checkpoint),
    }
}

/// Writes a checkpoint in the layout it came from, whole or not at all.
///
/// The finished file is read once before it takes its place.
///
/// Tensors whose part of the model did not change are copied bit for bit; the others keep their
/// name and dtype, and those around the systems their shape. The container follows the ending of `path`, else that of the source. What was
/// declared or assumed goes into the metadata, so that the next command needs no flag.
///
/// # Errors
/// [`Fault::NotRepresentable`] where the layout cannot hold a pole; [`ArchiveError`] when the
/// file cannot be written. Nothing is left behind in either case.
pub fn write(checkpoint: &Checkpoint, path: &Path) -> Result<Written, CheckpointError> {
    let encoding = &checkpoint.encoding;
    let structure = &encoding.structure;
    let changed = checkpoint.changed_tensors()?;
    let container = Container::of_path(path).unwrap_or(encoding.archive.container());
    let metadata = Metadata::render(structure.settled, structure.own());
    let mut layers = Vec::new();
    // The systems are what encoding can spoil; all other numbers are only rounded.
    let accept = |written: &Path| {
        let archive = Archive::open(written).map_err(|error| not_readable(error.into(), path))?;
        let tensors = Tensors::new(&archive, &structure.prefix);
        for layout in &structure.layers {
            let dynamics = layout.decode(&tensors);
            let dynamics = dynamics.map_err(|fault| not_readable(fault.at(written), path))?;
            layers.push([dynamics.systems, dynamics.backward].concat());
        }
        Ok::<(), CheckpointError>(())
    };
    let archive = encoding.archive.with(changed)?;
    archive.write_checked(path, container, &metadata, accept)?;
    Ok(Written { layers })
}

fn carried_note(carried: usize, why: Option<&str>) -> String {
    let tensors = if carried == 1 { "tensor" } else { "tensors" };
    format!(
        "the network around the layers ({carried} {tensors}, kept as they are) is not known: the \
         model can be inspected, reduced and written, not run{}",
        why.map(|why| format!(": {why}")).unwrap_or_default()
    )
}

fn not_readable(source: CheckpointError, path: &Path) -> CheckpointError {
    let source = Box::new(source);
    Fault::NotReadable { source }.at(path)
}

/// What a written file holds, read back from it.
#[derive(Debug, Clone)]
pub struct Written {
    /// The systems of every layer and channel, as rounded to the file's number format, those
    /// backwards in time after the others.
    pub layers: Vec<Vec<DiagonalSystem>>,
}

impl Checkpoint {
    /// A new file for a model that came from none: S4D layers in the classifier `S4Model` of
    /// `example.py` (state-spaces/s4), in single precision. The checkpoint holds the model as
    /// rounded to that.
    ///
    /// # Errors
    /// [`Fault::Incomplete`] for a model without encoder, normalisation or head;
    /// [`Fault::Bidirectional`]; [`Fault::NotRepresentable`] for a pole that does not decay;
    /// [`Fault::Overflow`].
    pub fn new_s4d(model: &Model) -> Result<Self, CheckpointError> {
        new(model, None).map_err(|fault| fault.at(Path::new(NEW)))
    }

    /// As [`Checkpoint::new_s4d`], with DSS layers, version `softmax`, for sequences of `length`
    /// steps: they hold poles that do not decay. Every channel has its own poles, which the public
    /// `dss.py` takes after a change of three lines (docs/training.md).
    ///
    /// # Errors
    /// As [`Checkpoint::new_s4d`]; [`Fault::Length`].
    pub fn new_dss_softmax(model: &Model, length: usize) -> Result<Self, CheckpointError> {
        new(model, Some(length)).map_err(|fault| fault.at(Path::new(NEW)))
    }

    /// The same file with another model in it, e.g. a reduced one.
    pub fn with_model(&self, model: Model) -> Self {
        Self {
            model,
            encoding: Arc::clone(&self.encoding),
        }
    }

    /// The family of the layers, e.g. `S4D` or `DSS`.
    pub fn family(&self) -> &'static str {
        let first = self.encoding.structure.layers.first();
        first.map_or("", |layout| layout.family())
    }

    /// What was declared, or assumed in its place.
    pub fn declared(&self) -> Declared {
        self.encoding.structure.settled
    }

    /// What was assumed because neither the file nor a person said it.
    pub fn assumptions(&self) -> &[String] {
        &self.encoding.structure.assumptions
    }

    /// Tensors around the layers of a network that is not known. They are written back as they
    /// are; where there are any, or the network is not known for other reasons, the model has
    /// neither encoder nor head.
    pub fn carried(&self) -> usize {
        self.encoding.carried
    }

    /// What the file held besides the model.
    pub fn notes(&self) -> &[String] {
        &self.encoding.notes
    }

    /// Real numbers in all tensors of the model, as it would be written.
    ///
    /// # Errors
    /// As [`write()`], where the model cannot be encoded.
    pub fn parameters(&self) -> Result<usize, CheckpointError> {
        let archive = &self.encoding.archive;
        let changed = self.changed_tensors()?;
        let sizes = archive.names().map(|name| {
            let changed = changed.get(name).map(RawTensor::shape);
            let shape = changed.or(archive.shape(name)).unwrap_or(&[]);
            shape.iter().product::<usize>()
        });
        Ok(sizes.sum())
    }

    /// Real numbers in the tensors of one layer of the file: its state space, feedthrough and
    /// output map.
    pub fn layer_parameters(&self, layer: usize) -> usize {
        let Encoding {
            archive, structure, ..
        } = self.encoding.as_ref();
        let head = structure.layer_prefix(layer);
        let names = archive.names().filter(|name| name.starts_with(&head));
        let shapes = names.filter_map(|name| archive.shape(name));
        shapes.map(|shape| shape.iter().product::<usize>()).sum()
    }

    /// The tensors that differ from those of the file.
    fn changed_tensors(&self) -> Result<BTreeMap<String, RawTensor>, CheckpointError> {
        let path = self.encoding.archive.path();
        self.encode().map_err(|fault| fault.at(path))
    }

    fn encode(&self) -> Result<BTreeMap<String, RawTensor>, Fault> {
        let Encoding {
            archive, structure, ..
        } = self.encoding.as_ref();
        require_equal("blocks", self.model.blocks.len(), structure.layers.len())?;
        let tensors = Tensors::new(archive, &structure.prefix);
        let mut changed = changed_weights(structure.encode(&self.model), archive, &tensors)?;
        for (block, layout) in self.model.blocks.iter().zip(&structure.layers) {
            encode_layer((block, layout.as_ref()), &tensors, archive, &mut changed)?;
        }
        Ok(changed)
    }
}

/// The tensors of one layer that differ from those of the file.
fn encode_layer(
    (block, layout): (&Block, &dyn Layout),
    tensors: &Tensors<'_>,
    archive: &Archive,
    changed: &mut BTreeMap<String, RawTensor>,
) -> Result<(), Fault> {
    let stored = layout.decode(tensors)?;
    require_equal("channels", block.systems.len(), stored.systems.len())?;
    let backward = "systems that run backwards in time";
    require_equal(backward, block.backward.len(), stored.backward.len())?;
    let dynamics = Dynamics::of(block);
    let roles = changed_roles(&dynamics, &stored);
    if roles.is_empty() {
        return Ok(());
    }
    for encoded in layout.encode(&dynamics, tensors)? {
        if !roles.contains(&encoded.role) {
            continue;
        }
        let name = tensors.full(&encoded.name);
        let dtype = archive.dtype(&name).unwrap_or(Dtype::F32);
        let stored_shape = archive.shape(&name).unwrap_or(&[]).to_vec();
        let shape = encoded.shape.unwrap_or(stored_shape);
        let tensor = raw_tensor(&name, dtype, shape, &encoded.data)?;
        changed.insert(name, tensor);
    }
    Ok(())
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
    for (block, layout) in model.blocks.iter().zip(&structure.layers) {
        let dynamics = Dynamics::causal(block.systems.clone());
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
        archive,
        structure,
        carried: 0,
        notes: Vec::new(),
    });
    Ok(Checkpoint { model, encoding })
}

/// The tensors around the systems that differ from those of the file, in its shapes and dtypes.
fn changed_weights(
    encoded: Vec<Encoded>,
    archive: &Archive,
    tensors: &Tensors<'_>,
) -> Result<BTreeMap<String, RawTensor>, Fault> {
    let mut changed = BTreeMap::new();
    for Encoded {
        name, shape, data, ..
    } in encoded
    {
        let found = shape.unwrap_or_default();
        let expected = format!("{found:?}, as in the model");
        let stored = tensors.values(&name, &expected)?;
        if stored.data == data {
            continue;
        }
        if stored.data.len() != data.len() {
            return Err(tensors.wrong_shape(&name, stored.shape, &expected));
        }
        let full = tensors.full(&name);
        let dtype = archive.dtype(&full).unwrap_or(Dtype::F32);
        let tensor = floating(&full, dtype, stored.shape, &data)?;
        require_finite(&full, &tensor, &data)?;
        changed.insert(full, tensor);
    }
    Ok(changed)
}

/// The tensor of a file: pairs on the last axis become complex numbers where it holds those.
fn raw_tensor(
    name: &str,
    dtype: Dtype,
    mut shape: Vec<usize>,
    values: &[f64],
) -> Result<RawTensor, Fault> {
    if dtype != Dtype::C64 {
        let tensor = floating(name, dtype, shape, values)?;
        require_finite(name, &tensor, values)?;
        return Ok(tensor);
    }
    shape.pop();
    let pairs = values.chunks_exact(2);
    let pairs: Vec<_> = pairs.map(|pair| Complex64::new(pair[0], pair[1])).collect();
    let named = |error: TensorError| error.of(name);
    let tensor = RawTensor::from_c64(shape, &pairs).map_err(named)?;
    let rounded = tensor.to_c64().map_err(named)?;
    match rounded.iter().position(|value| !value.is_finite()) {
        None => Ok(tensor),
        Some(index) => Err(Fault::Overflow {
            tensor: name.to_string(),
            value: values[2 * index],
            dtype,
        }),
    }
}

fn floating(
    name: &str,
    dtype: Dtype,
    shape: Vec<usize>,
    values: &[f64],
) -> Result<RawTensor, ArchiveError> {
    RawTensor::from_f64(dtype, shape, values).map_err(|error| error.of(name))
}

/// Rounding to the file's number format must not overflow.
fn require_finite(name: &str, tensor: &RawTensor, values: &[f64]) -> Result<(), Fault> {
    let rounded = tensor.to_f64().map_err(|error| error.of(name))?;
    match rounded.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(Fault::Overflow {
            tensor: name.to_string(),
            value: values[index],
            dtype: tensor.dtype(),
        }),
    }
}

fn require_equal(what: &'static str, found: usize, expected: usize) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    Err(Fault::OtherModel {
        what,
        found,
        expected,
    })
}

/// Which parts of a layer's systems are not those of the file.
fn changed_roles(new: &Dynamics, stored: &Dynamics) -> Vec<Role> {
    let pairs = || new.all().zip(stored.all());
    let modes = |a: &DiagonalSystem, b: &DiagonalSystem| {
        a.exponents() == b.exponents() && a.input() == b.input() && a.output() == b.output()
    };
    let mut roles = Vec::new();
    if pairs().any(|(new, old)| !modes(new, old)) {
        roles.push(Role::Mode);
    }
    if pairs().any(|(new, old)| new.time() != old.time()) {
        // Poles are stored per step: a new step changes what every mode tensor holds.
        roles.extend([Role::Mode, Role::Step]);
    }
    if pairs().any(|(new, old)| new.feedthrough() != old.feedthrough()) {
        roles.push(Role::Feedthrough);
    }
    roles
}
