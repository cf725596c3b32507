//! The state dict inside a pickle: which dictionary it is, which tensors are in
//! it, where their elements lie, and what stands beside it.

mod names;
mod sets;
mod siblings;
mod tensors;

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::ArchiveError;
use crate::pickle::{Budget, Call, Dict, Id, PickleError, Plain, Value, Values};
use crate::torch_file::settings::Settings;
use crate::torch_file::state_dict::names::{
    PARAMETER_CALLS, TENSOR_CALLS, allowed, is_known, python_name,
};
use crate::torch_file::{Document, Item, Setting, StoredTensor};
use crate::weight_set::WeightSet;
use crate::zip_records::Record;

/// Keys under which training scripts keep the weights, most telling first.
const WRAPPERS: [&str; 7] = [
    "model_state_dict",
    "state_dict",
    "model",
    "net",
    "network",
    "weights",
    "params",
];
/// Wrappers inside wrappers that are followed.
const WRAPPER_DEPTH: usize = 3;
/// Bytes of the longest name of a tensor. A pickle may share one text among many names.
const NAME_LIMIT: usize = 1000;
/// Characters of a key that a note shows.
const KEY_SHOWN: usize = 100;

/// The model in a pickle, and what stands beside it.
#[derive(Debug)]
pub(super) struct StateDict {
    pub(super) document: Document,
    /// Every tensor of the model under its flat name.
    pub(super) tensors: BTreeMap<String, StoredTensor>,
    /// Keys from the top object to the state dict, joined by dots.
    pub(super) wrapper: Option<String>,
    /// What will be left out when the file is written.
    pub(super) notes: Vec<String>,
    /// The settings of the training run.
    pub(super) settings: BTreeMap<String, Setting>,
    /// The dictionaries with tensors of the top object, where there are several.
    pub(super) sets: Vec<WeightSet>,
}

/// What the top object of a pickle may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Root {
    /// A dictionary.
    StateDict,
    /// That, or a tensor, or tensors in a tuple or list.
    Arrays,
}

impl StateDict {
    /// Reads the pickle and checks every tensor of the model against its record, which has this
    /// before its name. `set` is the entry of the top object to read; `None` for the most telling one.
    pub(super) fn read(
        path: &Path,
        pickle: &[u8],
        (records, prefix): (&BTreeMap<String, Record>, &str),
        (root, set): (Root, Option<&str>),
    ) -> Result<StateDict, ArchiveError> {
        let values = Values::read(pickle, allowed).map_err(|error| pickle_error(path, error))?;
        require_named_attributes(path, &values)?;
        let mut reading = Reading {
            path,
            values: &values,
            records,
            stored: records.values().map(|record| record.length).sum(),
            prefix,
            budget: Budget::of(pickle.len()),
            seen: vec![0; values.len()],
            walks: 0,
            tensors: BTreeMap::new(),
            notes: Vec::new(),
        };
        let listed = reading.listed().filter(|_| root == Root::Arrays);
        let (wrapper, document) = match listed {
            Some(tensors) => (Vec::new(), reading.sequence(&tensors)?),
            None => {
                let wrapper = reading.choose(set)?;
                let document = reading.document(values.root(), &wrapper)?;
                (wrapper, document)
            }
        };
        let sets = match wrapper.first() {
            Some(first) => reading.sets(first)?,
            None => Vec::new(),
        };
        let read = Settings::read(&values, &mut reading.budget);
        let settings = read.map_err(|error| pickle_error(path, error))?;
        reading.notes.extend(settings.note());
        Ok(StateDict {
            document,
            tensors: reading.tensors,
            wrapper: (!wrapper.is_empty()).then(|| wrapper.join(".")),
            notes: reading.notes,
            settings: settings.found,
            sets,
        })
    }
}

fn pickle_error(path: &Path, error: PickleError) -> ArchiveError {
    let path = path.to_owned();
    match error {
        PickleError::Global { name, .. } => ArchiveError::ForeignCode { path, name },
        source => ArchiveError::Pickle { path, source },
    }
}

/// Python 2 and PyTorch name some functions as attributes of a class, by a call of `getattr`. Of
/// anything else, and for what is inside Python itself, it is a way to code.
fn require_named_attributes(path: &Path, values: &Values) -> Result<(), ArchiveError> {
    for id in 0..values.len() {
        let Value::Call(call) = values.get(id) else {
            continue;
        };
        if python_name(&call.function) == Some("getattr") && values.attribute(call).is_none() {
            return Err(ArchiveError::ForeignCode {
                path: path.to_owned(),
                name: call.function.clone(),
            });
        }
    }
    Ok(())
}

/// The way from the values of a pickle to a document.
struct Reading<'a> {
    path: &'a Path,
    values: &'a Values,
    records: &'a BTreeMap<String, Record>,
    /// Bytes of all records.
    stored: u64,
    prefix: &'a str,
    budget: Budget,
    /// The last walk through the values that met each of them, and how many walks there were.
    seen: Vec<u32>,
    walks: u32,
    tensors: BTreeMap<String, StoredTensor>,
    notes: Vec<String>,
}

impl<'a> Reading<'a> {
    /// The top object, where it is a tensor, or tensors in a tuple or list.
    fn listed(&self) -> Option<Vec<Id>> {
        let root = self.values.root();
        let all = match self.values.get(root) {
            Value::Tuple(all) | Value::List(all) => all.clone(),
            _ => vec![root],
        };
        let tensors = !all.is_empty() && all.iter().all(|id| self.is_tensor(*id));
        tensors.then_some(all)
    }

    /// Tensors by their places.
    fn sequence(&mut self, all: &[Id]) -> Result<Document, ArchiveError> {
        for (place, id) in all.iter().enumerate() {
            let name = place.to_string();
            let stored = self.tensor(*id, &name)?;
            let held = stored.held() + 2 * name.len();
            self.pay(|budget| budget.hold(held))?;
            self.tensors.insert(name, stored);
        }
        Ok(Document::flat(self.tensors.keys().map(String::as_str)))
    }

    /// Finds the state dict, below an entry of the top object where one is given: the keys that lead
    /// to it from there.
    fn choose(&mut self, set: Option<&str>) -> Result<Vec<String>, ArchiveError> {
        let mut wrapper = Vec::new();
        let mut at = self.values.root();
        if let Some(set) = set {
            at = self.set(set)?;
            wrapper.push(set.to_owned());
        }
        while wrapper.len() < WRAPPER_DEPTH {
            let dict = self.dict(at)?;
            let direct = dict.entries.iter().any(|(_, value)| self.is_tensor(*value));
            if direct && !wrapper.is_empty() {
                break;
            }
            let groups = self.groups(dict)?;
            let known = WRAPPERS.iter().find_map(|name| groups.get_key_value(name));
            let next = match known {
                Some(known) => Some(known),
                None if direct || !wrapper.is_empty() => None,
                None => Some(self.only_group(dict, &groups)?),
            };
            let Some((name, value)) = next else { break };
            wrapper.push((*name).to_owned());
            at = *value;
        }
        Ok(wrapper)
    }

    /// Entries of a dictionary that are dictionaries with tensors in them.
    fn groups(&mut self, dict: &'a Dict) -> Result<BTreeMap<&'a str, Id>, ArchiveError> {
        let mut groups = BTreeMap::new();
        for (key, value) in &dict.entries {
            let Some(key) = self.values.text(*key) else {
                continue;
            };
            let is_dict = matches!(self.values.get(*value), Value::Dict(_));
            if is_dict && !key.starts_with("optimizer") && self.count_tensors(*value)? > 0 {
                groups.insert(key, *value);
            }
        }
        Ok(groups)
    }

    fn only_group<'b>(
        &self,
        dict: &Dict,
        groups: &'b BTreeMap<&'a str, Id>,
    ) -> Result<(&'b &'a str, &'b Id), ArchiveError> {
        let mut all = groups.iter();
        match (all.next(), all.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(ArchiveError::NoTensors {
                path: self.path.to_owned(),
                found: self.key_list(dict),
            }),
            _ => Err(ArchiveError::SeveralStateDicts {
                path: self.path.to_owned(),
                found: list(groups.keys().copied()),
            }),
        }
    }

    fn key_list(&self, dict: &Dict) -> String {
        let keys = dict.entries.iter();
        list(keys.map(|(key, _)| {
            let kind = self.values.get(*key).kind();
            self.values.text(*key).unwrap_or(kind)
        }))
    }

    fn dict(&self, id: Id) -> Result<&'a Dict, ArchiveError> {
        match self.values.get(id) {
            Value::Dict(dict) => Ok(dict.as_ref()),
            _ if self.foreign(id).is_some() => Err(self.foreign_code(id)),
            other => Err(ArchiveError::NotADict {
                path: self.path.to_owned(),
                found: if self.is_tensor(id) {
                    "Tensor"
                } else {
                    other.kind()
                },
            }),
        }
    }

    /// The name of a class or function that is not understood, if the value is made by one.
    fn foreign(&self, id: Id) -> Option<&'a str> {
        let name = match self.values.get(id) {
            Value::Global(name) => name,
            Value::Call(call) => self.values.class(call),
            _ => return None,
        };
        (!is_known(name)).then_some(name)
    }

    fn foreign_code(&self, id: Id) -> ArchiveError {
        ArchiveError::ForeignCode {
            path: self.path.to_owned(),
            name: self.foreign(id).unwrap_or_default().to_owned(),
        }
    }

    fn is_tensor(&self, id: Id) -> bool {
        self.call(id).is_some_and(|call| {
            let function = call.function.as_str();
            TENSOR_CALLS.contains(&function) || PARAMETER_CALLS.contains(&function)
        })
    }

    fn call(&self, id: Id) -> Option<&'a Call> {
        match self.values.get(id) {
            Value::Call(call) => Some(call.as_ref()),
            _ => None,
        }
    }

    /// Tensors anywhere inside a value.
    fn count_tensors(&mut self, id: Id) -> Result<usize, ArchiveError> {
        self.walks += 1;
        self.seen[id] = self.walks;
        let mut open = vec![id];
        let mut count = 0;
        while let Some(id) = open.pop() {
            self.pay(|budget| budget.steps(1))?;
            if self.is_tensor(id) {
                count += 1;
                continue;
            }
            let children = self.values.children(id);
            // The same child may stand there again and again.
            self.pay(|budget| budget.steps(children.len()))?;
            for child in children {
                if self.seen[child] != self.walks {
                    self.seen[child] = self.walks;
                    open.push(child);
                }
            }
        }
        Ok(count)
    }

    fn pay(
        &mut self,
        pay: impl FnOnce(&mut Budget) -> Result<(), PickleError>,
    ) -> Result<(), ArchiveError> {
        pay(&mut self.budget).map_err(|error| pickle_error(self.path, error))
    }

    fn plain(&mut self, id: Id) -> Result<Option<Plain>, ArchiveError> {
        let plain = self.values.plain(id, &mut self.budget);
        plain.map_err(|error| pickle_error(self.path, error))
    }

    /// Cuts a dictionary on the way to the state dict.
    fn document(&mut self, id: Id, wrapper: &[String]) -> Result<Document, ArchiveError> {
        let Some((next, rest)) = wrapper.split_first() else {
            return self.state_dict(id, "");
        };
        let dict = self.dict(id)?;
        let mut document = self.empty_document(dict, "")?;
        for (key, value) in &dict.entries {
            let item = if self.values.text(*key) == Some(next) {
                Some(Item::Document(self.document(*value, rest)?))
            } else {
                self.sibling(*key, *value)?.map(Item::Plain)
            };
            self.keep(&mut document, *key, item)?;
        }
        Ok(document)
    }

    fn empty_document(&mut self, dict: &Dict, name: &str) -> Result<Document, ArchiveError> {
        let attributes = match dict.attributes {
            Some(id) => self.plain(id)?,
            None => None,
        };
        if dict.attributes.is_some() && attributes.is_none() {
            let holder = if name.is_empty() {
                "the state dict"
            } else {
                name
            };
            self.notes.push(format!(
                "attributes of `{holder}` are Python objects and are left out of what is written"
            ));
        }
        Ok(Document {
            ordered: dict.ordered,
            items: Vec::new(),
            attributes,
        })
    }

    fn keep(
        &mut self,
        document: &mut Document,
        key: Id,
        item: Option<Item>,
    ) -> Result<(), ArchiveError> {
        let Some(item) = item else { return Ok(()) };
        match self.plain(key)?.filter(Plain::is_hashable) {
            Some(key) => document.items.push((key, item)),
            None => self.leave_out(key, "is no plain key and"),
        }
        Ok(())
    }

    /// Reads the state dict or a dictionary inside it. Names are joined by dots.
    fn state_dict(&mut self, id: Id, name: &str) -> Result<Document, ArchiveError> {
        self.pay(Budget::enter)?;
        let dict = self.dict(id)?;
        let mut document = self.empty_document(dict, name)?;
        for (key, value) in &dict.entries {
            let item = self.state_item(*key, *value, name)?;
            self.keep(&mut document, *key, item)?;
        }
        self.budget.leave();
        Ok(document)
    }

    fn state_item(
        &mut self,
        key: Id,
        value: Id,
        outer: &str,
    ) -> Result<Option<Item>, ArchiveError> {
        if self.is_tensor(value) {
            let name = self.flat_name(outer, key)?;
            let stored = self.tensor(value, &name)?;
            // Dictionaries that are shared may show one tensor under many names.
            let held = stored.held() + 2 * name.len();
            self.pay(|budget| budget.hold(held))?;
            if self.tensors.insert(name.clone(), stored).is_some() {
                return Err(ArchiveError::DuplicateTensor {
                    path: self.path.to_owned(),
                    tensor: name,
                });
            }
            return Ok(Some(Item::Tensor(name)));
        }
        // What PyTorch makes among the weights may be a tensor of a kind that is not understood.
        if self
            .foreign(value)
            .is_some_and(|name| name.starts_with("torch"))
        {
            return Err(self.foreign_code(value));
        }
        let is_dict = matches!(self.values.get(value), Value::Dict(_));
        if outer.is_empty() && self.is_optimizer(key) || self.count_tensors(value)? == 0 {
            return Ok(self.sibling(key, value)?.map(Item::Plain));
        }
        let name = self.flat_name(outer, key)?;
        if !is_dict {
            return Err(ArchiveError::TensorsInside {
                path: self.path.to_owned(),
                entry: name,
                found: self.values.get(value).kind(),
            });
        }
        Ok(Some(Item::Document(self.state_dict(value, &name)?)))
    }

    fn flat_name(&self, outer: &str, key: Id) -> Result<String, ArchiveError> {
        let key = match self.values.get(key) {
            Value::Text(text) => text.clone(),
            Value::Int(number) => number.to_string(),
            other => {
                return Err(ArchiveError::TensorKey {
                    path: self.path.to_owned(),
                    found: other.kind(),
                    outer: outer.to_owned(),
                });
            }
        };
        if outer.len() + key.len() > NAME_LIMIT {
            let start: String = key.chars().take(KEY_SHOWN).collect();
            return Err(self.malformed(&start, "a name of more than 1000 bytes"));
        }
        if outer.is_empty() {
            return Ok(key);
        }
        Ok(format!("{outer}.{key}"))
    }
}

/// Up to twenty names in backticks.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 20;
    let mut names = names.peekable();
    let shown = names.by_ref().take(SHOWN);
    let shown: Vec<String> = shown.map(|name| format!("`{name}`")).collect();
    let mut text = shown.join(", ");
    if names.peek().is_some() {
        text.push_str(&format!(" and {} more", names.count()));
    }
    if text.is_empty() {
        text.push_str("no keys");
    }
    text
}

#[cfg(test)]
pub(super) mod tests;
