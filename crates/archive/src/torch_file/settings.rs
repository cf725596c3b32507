//! The settings of a training run that stand beside the weights.
//!
//! PyTorch Lightning keeps them as `hyper_parameters` and `datamodule_hyper_parameters`: plain
//! dictionaries, namespaces, or the nodes of omegaconf, each of which is an object whose attributes
//! hold the value. They are read as they stand in the pickle; no class is ever loaded.

use std::collections::BTreeMap;
use std::fmt;

use crate::pickle::{Budget, Call, Id, PickleError, Value, Values};

/// Where settings stand. The first that has a key is believed.
pub(super) const PLACES: [&str; 6] = [
    "hyper_parameters",
    "hparams",
    "config",
    "cfg",
    "args",
    "datamodule_hyper_parameters",
];

/// Classes whose attributes are the settings.
const NAMESPACES: [&str; 4] = [
    "argparse.Namespace",
    "types.SimpleNamespace",
    "jsonargparse.namespace.Namespace",
    "jsonargparse._namespace.Namespace",
];

/// Attributes in which the nodes of omegaconf keep what they hold.
const HELD: [&str; 2] = ["_content", "_val"];
/// What omegaconf stores for a value that nobody gave.
const MISSING: &str = "???";
/// Settings that are named when they were not read.
const SHOWN: usize = 10;
/// More settings, longer names and longer texts than any run has. A pickle may share one text
/// among many keys, so the length of the file is no limit.
const COUNT_LIMIT: usize = 10_000;
const LENGTH_LIMIT: usize = 1000;

/// One setting of a training run.
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// A truth value.
    Bool(bool),
    /// A whole number of 64 bits.
    Whole(i64),
    /// Any other number.
    Number(f64),
    /// Text.
    Text(String),
}

impl Setting {
    /// The truth value, if it is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Setting::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The whole number, if it is one.
    #[must_use]
    pub fn as_whole(&self) -> Option<i64> {
        match self {
            Setting::Whole(value) => Some(*value),
            _ => None,
        }
    }

    /// The number, whole or not.
    #[must_use]
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Setting::Whole(value) => Some(*value as f64),
            Setting::Number(value) => Some(*value),
            _ => None,
        }
    }

    /// The text, if it is text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Setting::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Bool(value) => value.fmt(formatter),
            Setting::Whole(value) => value.fmt(formatter),
            Setting::Number(value) => value.fmt(formatter),
            Setting::Text(text) => write!(formatter, "\"{text}\""),
        }
    }
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) found: BTreeMap<String, Setting>,
    /// Name and class of what was not read.
    unread: Vec<(String, String)>,
}

impl Settings {
    /// Looks through the top object of a pickle.
    pub(super) fn read(values: &Values, budget: &mut Budget) -> Result<Settings, PickleError> {
        let mut reading = Reading {
            values,
            budget,
            settings: Settings::default(),
        };
        if let Value::Dict(top) = values.get(values.root()) {
            for place in PLACES {
                let mut entries = top.entries.iter();
                let entry = entries.find(|(key, _)| values.text(*key) == Some(place));
                if let Some((_, value)) = entry {
                    reading.add(*value, &[])?;
                }
            }
        }
        Ok(reading.settings)
    }

    /// A sentence about what was not read, if anything.
    pub(super) fn note(&self) -> Option<String> {
        let shown = self.unread.iter().take(SHOWN);
        let shown: Vec<String> = shown
            .map(|(name, class)| format!("`{name}` ({class})"))
            .collect();
        let more = match self.unread.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let list = shown.join(", ");
        (!list.is_empty())
            .then(|| format!("settings of unknown classes were not read: {list}{more}"))
    }

    fn set(&mut self, name: &[&str], setting: Setting) {
        let room = self.found.len() < COUNT_LIMIT && joined_length(name) <= LENGTH_LIMIT;
        if room && joined_length(name) > 0 {
            self.found.entry(name.join(".")).or_insert(setting);
        }
    }

    fn leave(&mut self, name: &[&str], class: &str) {
        let room = self.unread.len() < COUNT_LIMIT;
        if room && joined_length(name) <= LENGTH_LIMIT && class.len() <= LENGTH_LIMIT {
            let name = match name {
                [] => "all".to_owned(),
                keys => keys.join("."),
            };
            self.unread.push((name, class.to_owned()));
        }
    }
}

/// Bytes of a name once its keys are joined: long ones are not joined at all.
fn joined_length(name: &[&str]) -> usize {
    let keys: usize = name.iter().map(|key| key.len()).sum();
    keys + name.len().saturating_sub(1)
}

/// One look through a pickle. A name is the keys that lead to a value.
struct Reading<'a> {
    values: &'a Values,
    budget: &'a mut Budget,
    settings: Settings,
}

impl<'a> Reading<'a> {
    fn add(&mut self, id: Id, name: &[&str]) -> Result<(), PickleError> {
        self.budget.enter()?;
        match self.values.get(id) {
            Value::Bool(value) => self.settings.set(name, Setting::Bool(*value)),
            Value::Int(value) => self.settings.set(name, Setting::Whole(*value)),
            Value::Float(value) => self.settings.set(name, Setting::Number(*value)),
            Value::Text(text) if text != MISSING && text.len() <= LENGTH_LIMIT => {
                self.settings.set(name, Setting::Text(text.clone()));
            }
            Value::Dict(dict) => self.add_entries(&dict.entries, name)?,
            Value::List(items) | Value::Tuple(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.add(*item, &[name, &[&index.to_string()]].concat())?;
                }
            }
            Value::Call(call) => self.add_object(call, name)?,
            Value::Global(class) => self.settings.leave(name, class),
            _ => {}
        }
        self.budget.leave();
        Ok(())
    }

    fn add_entries(&mut self, entries: &[(Id, Id)], name: &[&str]) -> Result<(), PickleError> {
        for (key, value) in entries {
            let number;
            let key = match self.values.get(*key) {
                Value::Text(text) => text,
                Value::Int(value) => {
                    number = value.to_string();
                    &number
                }
                _ => continue,
            };
            self.add(*value, &[name, &[key]].concat())?;
        }
        Ok(())
    }

    fn add_object(&mut self, call: &'a Call, name: &[&str]) -> Result<(), PickleError> {
        let class = self.values.class(call);
        let attributes = call.state.map(|state| self.values.get(state));
        let attributes = match attributes {
            Some(Value::Dict(attributes)) => attributes.entries.as_slice(),
            _ => &[],
        };
        if class.starts_with("omegaconf.") {
            let held = |(key, _): &&(Id, Id)| {
                let key = self.values.text(*key);
                key.is_some_and(|key| HELD.contains(&key))
            };
            return match attributes.iter().find(held) {
                Some((_, value)) => self.add(*value, name),
                None => Ok(()),
            };
        }
        if NAMESPACES.contains(&class) {
            return self.add_entries(attributes, name);
        }
        // A subclass of `dict`, such as Lightning's AttributeDict.
        if !call.entries.is_empty() || class.ends_with(".AttributeDict") {
            return self.add_entries(&call.entries, name);
        }
        self.settings.leave(name, &self.values.described(call));
        Ok(())
    }
}
