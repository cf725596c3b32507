//! The folder of a model: what its configuration says of the layers, and what changes in it with
//! their states.

use std::collections::BTreeMap;
use std::path::Path;

use hankelite_control::{DiagonalSystem, SystemError};
use num_complex::Complex64;
use serde::Serialize;

use crate::checkpoint::configuration::{Configuration, Number};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::PADDING_EXPONENT;
use crate::checkpoint::provenance::{Provenance, Record};
use crate::checkpoint::{Checkpoint, CheckpointError, Encoding};
use crate::model::{Block, Model};

/// A number of a configuration that changes with the states of the layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ConfiguredSize {
    /// Name of the file.
    pub file: String,
    /// The key.
    pub key: String,
    /// The number of the source.
    pub before: usize,
    /// The number that its network needs now.
    pub after: usize,
}

/// What becomes of the files beside a checkpoint in its folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FolderChanges {
    /// Numbers that are set.
    pub numbers: Vec<ConfiguredSize>,
    /// Files that are copied.
    pub copied: usize,
    /// Files and folders that are not: other weights, hidden and linked folders.
    pub left_out: Vec<String>,
    /// What else a person should know.
    pub notes: Vec<String>,
}

/// What a configuration says of the states.
struct Sizes {
    configuration: Configuration,
    /// The stored states of every layer, where they are equal.
    stored: Option<usize>,
    /// Numbers that agree with that, and how many times it they are.
    agreeing: Vec<(Number, usize)>,
    /// Numbers that do not.
    others: Vec<Number>,
}

impl Encoding {
    /// The folder that was named, and what its configuration says.
    fn sizes(&self) -> Result<Option<Sizes>, Fault> {
        let Some(folder) = self.file().folder() else {
            return Ok(None);
        };
        let configuration = Configuration::read(folder).map_err(|source| {
            let path = folder.to_path_buf();
            hankelite_archive::ArchiveError::Read { path, source }
        })?;
        let kinds = self.structure.found.iter().map(|found| found.kind);
        let kind = one(kinds).filter(|_| self.structure.own().is_none());
        let stored = one(self.stored.iter().map(Block::order));
        let (mut agreeing, mut others) = (Vec::new(), Vec::new());
        if let (Some(kind), Some(stored)) = (kind, stored) {
            let keys = kind.size_keys();
            for number in configuration.numbers(&keys) {
                let mut factors = keys.factors.iter();
                match factors.find(|factor| **factor * stored == number.value) {
                    Some(factor) => agreeing.push((number, *factor)),
                    None => others.push(number),
                }
            }
        }
        Ok(Some(Sizes {
            configuration,
            stored,
            agreeing,
            others,
        }))
    }

    /// Where the configuration and the tensors of a folder disagree, and which other weights are in it.
    pub(super) fn folder_notes(&self) -> Result<Vec<String>, Fault> {
        let Some(sizes) = self.sizes()? else {
            return Ok(Vec::new());
        };
        let stored = sizes.stored.unwrap_or(0);
        let disagreeing = sizes.others.iter().map(|number| {
            let Number {
                file, key, value, ..
            } = number;
            format!("{file} disagrees with the tensors: `{key}` is {value}, the layers hold {stored} states")
        });
        let mut notes: Vec<String> = disagreeing.collect();
        let weights = other_weights(self.file())?;
        if !weights.is_empty() {
            let read = self.file().path().file_name().unwrap_or_default();
            notes.push(format!(
                "the folder holds other weights too ({}): {} is read, and a folder that is written has \
                 it alone",
                weights.join(", "),
                read.to_string_lossy()
            ));
        }
        Ok(notes)
    }

    /// Whether layers have different orders, and the configuration has one number for all.
    pub(super) fn needs_one_size(&self, orders: &[usize]) -> Result<bool, Fault> {
        if one(orders.iter()).is_some() {
            return Ok(false);
        }
        let sizes = self.sizes()?;
        Ok(sizes.is_some_and(|sizes| !sizes.agreeing.is_empty()))
    }

    /// What changes beside the tensors when layers have these states.
    fn changes(&self, orders: &[usize]) -> Result<Option<(Sizes, FolderChanges, Texts)>, Fault> {
        let (Some(sizes), Some(beside)) = (self.sizes()?, self.file().beside()?) else {
            return Ok(None);
        };
        let most = orders.iter().copied().max().unwrap_or(0);
        let mut set: Vec<(Number, usize)> = Vec::new();
        for (number, factor) in &sizes.agreeing {
            set.push((number.clone(), factor * most));
        }
        if set.iter().any(|(number, _)| number.key == FLOW_STATE) {
            // The network makes its poles in as many equal blocks.
            let blocks = sizes.configuration.under(FLOW_STATE_BLOCKS).into_iter();
            let uneven = blocks.filter(|blocks| blocks.value == 0 || most % blocks.value != 0);
            set.extend(uneven.map(|blocks| (blocks, 1)));
        }
        set.retain(|(number, value)| number.value != *value);
        let texts = sizes.configuration.with(&set).into_iter().collect();
        let numbers = set.into_iter().map(|(number, after)| ConfiguredSize {
            file: number.file,
            key: number.key.to_string(),
            before: number.value,
            after,
        });
        let changes = FolderChanges {
            numbers: numbers.collect(),
            copied: beside.copied.len(),
            left_out: beside
                .left_out
                .iter()
                .map(|p| p.display().to_string())
                .collect(),
            notes: notes(&sizes, orders, most),
        };
        Ok(Some((sizes, changes, texts)))
    }

    /// The texts of the files of a new folder that differ from the old ones.
    pub(super) fn folder_texts(&self, orders: &[usize], record: &Record) -> Result<Texts, Fault> {
        let Some((_, changes, mut texts)) = self.changes(orders)? else {
            return Ok(Texts::new());
        };
        if let (Some(made), Some(folder)) = (&record.provenance, self.file().folder()) {
            let card = folder.join(CARD);
            let text = std::fs::read_to_string(&card);
            let text = match text {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    format!("# {}\n", made.source)
                }
                text => text.map_err(|source| {
                    let path = card.clone();
                    hankelite_archive::ArchiveError::Read { path, source }
                })?,
            };
            let text = format!("{}\n\n{}", text.trim_end(), section(made, &changes));
            texts.insert(CARD.to_string(), text);
        }
        Ok(texts)
    }
}

type Texts = BTreeMap<String, String>;

/// The model card of a folder.
const CARD: &str = "README.md";

const FLOW_STATE: &str = "encoder_state_dim";
const FLOW_STATE_BLOCKS: &str = "encoder_num_hippo_blocks";

/// The one value of all; `None` where they differ, or there is none.
fn one<T: PartialEq>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Names of other weights in a folder.
fn other_weights(file: &hankelite_archive::Archive) -> Result<Vec<String>, Fault> {
    let left_out = file.beside()?.map(|beside| beside.left_out);
    let left_out = left_out.into_iter().flatten();
    let folder = file.folder().unwrap_or(Path::new("")).to_path_buf();
    let weights = left_out.filter(|place| folder.join(place).is_file());
    Ok(weights.map(|place| place.display().to_string()).collect())
}

/// What a person should know of the configuration of a new folder.
fn notes(sizes: &Sizes, orders: &[usize], most: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let all_equal = one(orders.iter()).is_some();
    if sizes.agreeing.is_empty() && sizes.stored != Some(most) {
        let files: Vec<&str> = sizes.configuration.names().collect();
        let place = match files.is_empty() {
            true => "the folder has no config.json".to_string(),
            false => format!(
                "{} has no number that is known to be the states",
                files.join(", ")
            ),
        };
        let before = sizes
            .stored
            .map_or("those before".to_string(), |n| n.to_string());
        notes.push(match all_equal {
            true => format!("{place}: make the network with {most} states in place of {before}"),
            false => format!("{place}: make the network with {orders:?} states, layer by layer"),
        });
    }
    if !sizes.agreeing.is_empty() && !all_equal {
        notes.push(format!(
            "the configuration has one number for all layers, which have {orders:?} states: they are filled \
             up to {most} with modes without weight; --allocate model gives all layers one number of states"
        ));
    }
    notes
}

/// What stands in the model card.
fn section(made: &Provenance, changes: &FolderChanges) -> String {
    let worst = made.errors.iter().copied().fold(0.0, f64::max);
    let change = match worst < 1e-4 {
        true => "less than 0.01 %".to_string(),
        false => format!("at most {:.2} %", 100.0 * worst),
    };
    let of = match made.calibration {
        Some(_) => "outputs of the layers for their own inputs",
        None => "kernels of the layers",
    };
    let numbers = changes.numbers.iter().map(|number| {
        let ConfiguredSize {
            file,
            key,
            before,
            after,
        } = number;
        format!("- `{key}` in `{file}`: {after} instead of {before}\n")
    });
    let calibration = made.calibration.iter();
    let calibration = calibration.map(|on| format!("- calibrated on: {on}\n"));
    format!(
        "## Fewer states\nThe state space layers of `{}` were made smaller by hankelite {}. All other tensors and \
         files are those of the source, and so are its licence and data.\n\n- method: {}\n{}- states of each \
         layer: {:?} instead of {:?}\n- {of} change by {change}\n{}",
        made.source,
        made.version,
        made.method,
        calibration.collect::<String>(),
        made.orders,
        made.orders_before,
        numbers.collect::<String>(),
    )
}

impl Checkpoint {
    /// The folder that was named in the place of a file.
    pub fn folder(&self) -> Option<&Path> {
        self.encoding.file().folder()
    }

    /// What a new folder changes beside the tensors, with so many states in every layer; `None` where no
    /// folder was named.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn folder_changes(
        &self,
        orders: &[usize],
    ) -> Result<Option<FolderChanges>, CheckpointError> {
        let changes = self.encoding.changes(orders);
        let changes = changes.map_err(|fault| fault.at(self.encoding.file().path()))?;
        Ok(changes.map(|(_, changes, _)| changes))
    }

    /// The model with all layers filled up to one size, where the network needs that.
    pub(super) fn filled(&self) -> Result<Option<Model>, Fault> {
        let orders: Vec<usize> = self.model.blocks().iter().map(Block::order).collect();
        if !self.encoding.needs_one_size(&orders)? {
            return Ok(None);
        }
        let size = orders.into_iter().max().unwrap_or(0);
        let blocks = self.model.blocks().iter();
        let blocks = blocks.map(|block| filled(block, size));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        self.model
            .with_blocks(blocks)
            .map(Some)
            .map_err(Fault::Model)
    }
}

/// A layer with modes without weight, up to a number of modes; the layout fills all channels up to
/// the largest.
fn filled(block: &Block, size: usize) -> Result<Block, Fault> {
    if block.order() == size {
        return Ok(block.clone());
    }
    let fill = |systems: &[DiagonalSystem]| -> Result<Vec<DiagonalSystem>, Fault> {
        let mut systems = systems.to_vec();
        if let Some(first) = systems.first_mut() {
            let made = with_modes(first, size);
            *first = made.map_err(|source| Fault::System {
                layer: block.name().to_string(),
                channel: 0,
                source,
            })?;
        }
        Ok(systems)
    };
    let (systems, backward) = (fill(block.systems())?, fill(block.backward())?);
    block.with_systems(systems, backward).map_err(Fault::Model)
}

fn with_modes(system: &DiagonalSystem, size: usize) -> Result<DiagonalSystem, SystemError> {
    let more = size.saturating_sub(system.order());
    let mut exponents = system.exponents().to_vec();
    exponents.extend(vec![Complex64::from(PADDING_EXPONENT); more]);
    let none = Complex64::from(0.0);
    let (input, output) = (system.input().clone(), system.output().clone());
    DiagonalSystem::new(
        system.time(),
        exponents,
        input.insert_rows(system.order(), more, none),
        output.insert_columns(system.order(), more, none),
        system.feedthrough().clone(),
    )
}
