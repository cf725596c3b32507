//! The state dict inside a pickle: which dictionary it is, which tensors are in
//! it, where their elements lie, and what stands beside it.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::path::Path;

use crate::checkpoint::archive_error::ArchiveError;
use crate::checkpoint::pickle::Budget;
use crate::checkpoint::pickle::Call;
use crate::checkpoint::pickle::Dict;
use crate::checkpoint::pickle::Id;
use crate::checkpoint::pickle::PickleError;
use crate::checkpoint::pickle::Plain;
use crate::checkpoint::pickle::Value;
use crate::checkpoint::pickle::Values;
use crate::checkpoint::tensor::Dtype;
use crate::checkpoint::tensor::byte_length;
use crate::checkpoint::torch_file::Document;
use crate::checkpoint::torch_file::Item;
use crate::checkpoint::torch_file::STORAGES;
use crate::checkpoint::torch_file::Setting;
use crate::checkpoint::torch_file::StoredTensor;
use crate::checkpoint::torch_file::UNTYPED;
use crate::checkpoint::torch_file::settings::Settings;
use crate::checkpoint::zip_records::Record;

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
/// Largest tensor that is unfolded from fewer elements than it shows.
const EXPANSION_LIMIT: usize = 1 << 30;

/// Calls that stand for a tensor.
const TENSOR_CALLS: [&str; 4] = [
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_qtensor",
];

/// Calls that wrap a tensor, given as their first argument.
const PARAMETER_CALLS: [&str; 2] = [
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
];

/// Element types that no tensor here can have, and quantisation schemes: an
/// error names the tensor, or they stand beside the weights.
const OTHER_TYPES: [&str; 12] = [
    "complex32",
    "complex128",
    "quint8",
    "qint8",
    "qint32",
    "quint4x2",
    "quint2x4",
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
];

/// Names that stand beside weights in ordinary files. They are kept as records
/// of what was asked for, and what they make up is left out when writing.
const INERT: [&str; 48] = [
    "torch.Size",
    "torch.device",
    "torch.serialization._get_layout",
    "collections.OrderedDict",
    "collections.Counter",
    "collections.defaultdict",
    "collections.deque",
    "_codecs.encode",
    "__builtin__.set",
    "__builtin__.frozenset",
    "__builtin__.complex",
    "__builtin__.bytearray",
    "__builtin__.dict",
    "__builtin__.list",
    "builtins.set",
    "builtins.frozenset",
    "builtins.complex",
    "builtins.bytearray",
    "builtins.dict",
    "builtins.list",
    "__builtin__.bool",
    "__builtin__.long",
    "__builtin__.unicode",
    "__builtin__.float",
    "__builtin__.int",
    "__builtin__.object",
    "__builtin__.str",
    "__builtin__.tuple",
    "__builtin__.type",
    "__builtin__.slice",
    "__builtin__.range",
    "builtins.bool",
    "builtins.float",
    "builtins.int",
    "builtins.object",
    "builtins.str",
    "builtins.tuple",
    "builtins.type",
    "builtins.slice",
    "builtins.range",
    "numpy.dtype",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "argparse.Namespace",
    "pathlib.PosixPath",
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "lightning.fabric.utilities.data.AttributeDict",
];

/// Modules that a file of weights has no honest use for: what is in them runs programs, loads code
/// or looks around in Python itself. Nothing is run here, but the next reader of the file may.
const FORBIDDEN: [&str; 21] = [
    "__builtin__",
    "builtins",
    "code",
    "commands",
    "ctypes",
    "importlib",
    "marshal",
    "multiprocessing",
    "nt",
    "os",
    "pickle",
    "pip",
    "posix",
    "pty",
    "runpy",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "webbrowser",
];

/// Whether a name may stand in the pickle. Any class may, since it is only a name here.
fn allowed(name: &str) -> bool {
    let package = name.split('.').next().unwrap_or(name);
    is_known(name) || !FORBIDDEN.contains(&package)
}

/// Whether it is understood what a name stands for.
fn is_known(name: &str) -> bool {
    INERT.contains(&name)
        || TENSOR_CALLS.contains(&name)
        || PARAMETER_CALLS.contains(&name)
        || name.strip_prefix("torch.").is_some_and(is_type_name)
}

/// Whether a name in `torch` is that of a storage class, an element type or a
/// quantisation scheme.
fn is_type_name(name: &str) -> bool {
    let typed = STORAGES.iter().map(|(_, dtype, _)| *dtype);
    let mut known = typed
        .chain(UNTYPED.map(|(dtype, _)| dtype))
        .chain(OTHER_TYPES);
    name.ends_with("Storage") || known.any(|known| known == name)
}

/// What the pickle says about the model and what stands beside it.
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
}

impl StateDict {
    /// Reads the pickle and checks every tensor of the model against its record.
    pub(super) fn read(
        path: &Path,
        pickle: &[u8],
        records: &BTreeMap<String, Record>,
        prefix: &str,
    ) -> Result<StateDict, ArchiveError> {
        let values = Values::read(pickle, allowed).map_err(|error| pickle_error(path, error))?;
        let mut reading = Reading {
            path,
            values: &values,
            records,
            prefix,
            budget: Budget::new(),
            tensors: BTreeMap::new(),
            notes: Vec::new(),
        };
        let wrapper = reading.choose()?;
        let document = reading.document(values.root(), &wrapper)?;
        let read = Settings::read(&values, &mut reading.budget);
        let settings = read.map_err(|error| pickle_error(path, error))?;
        reading.notes.extend(settings.note());
        Ok(StateDict {
            document,
            tensors: reading.tensors,
            wrapper: (!wrapper.is_empty()).then(|| wrapper.join(".")),
            notes: reading.notes,
            settings: settings.found,
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

/// The way from the values of a pickle to a document.
struct Reading<'a> {
    path: &'a Path,
    values: &'a Values,
    records: &'a BTreeMap<String, Record>,
    prefix: &'a str,
    budget: Budget,
    tensors: BTreeMap<String, StoredTensor>,
    notes: Vec<String>,
}

impl<'a> Reading<'a> {
    /// Finds the state dict: the keys that lead to it from the top object.
    fn choose(&mut self) -> Result<Vec<String>, ArchiveError> {
        let mut wrapper = Vec::new();
        let mut at = self.values.root();
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
            Value::Dict(dict) => Ok(dict),
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
            Value::Call(call) => Some(call),
            _ => None,
        }
    }

    /// Tensors anywhere inside a value.
    fn count_tensors(&mut self, id: Id) -> Result<usize, ArchiveError> {
        let mut seen = HashSet::from([id]);
        let mut open = vec![id];
        let mut count = 0;
        while let Some(id) = open.pop() {
            self.step()?;
            if self.is_tensor(id) {
                count += 1;
                continue;
            }
            for child in self.values.children(id) {
                if seen.insert(child) {
                    open.push(child);
                }
            }
        }
        Ok(count)
    }

    fn step(&mut self) -> Result<(), ArchiveError> {
        let paid = self.budget.step();
        paid.map_err(|error| pickle_error(self.path, error))
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

    /// Plain data beside the state dict; everything else is set aside.
    fn sibling(&mut self, key: Id, value: Id) -> Result<Option<Plain>, ArchiveError> {
        let tensors = self.count_tensors(value)?;
        let optimizer = self.is_optimizer(key);
        if tensors > 0 || optimizer {
            let plural = if tensors == 1 { "" } else { "s" };
            let reason = format!("({tensors} tensor{plural}) is not part of the model and");
            self.leave_out(key, &reason);
            return Ok(None);
        }
        let plain = self.plain(value)?;
        if plain.is_none() {
            self.leave_out(key, "holds Python objects and");
        }
        Ok(plain)
    }

    fn is_optimizer(&self, key: Id) -> bool {
        let text = self.values.text(key);
        text.is_some_and(|text| text.starts_with("optimizer"))
    }

    fn leave_out(&mut self, key: Id, reason: &str) {
        let kind = self.values.get(key).kind();
        let name = self.values.text(key).unwrap_or(kind);
        let note = format!("`{name}` {reason} is left out of what is written");
        self.notes.push(note);
    }

    /// Reads the state dict or a dictionary inside it. Names are joined by dots.
    fn state_dict(&mut self, id: Id, name: &str) -> Result<Document, ArchiveError> {
        let entered = self.budget.enter();
        entered.map_err(|error| pickle_error(self.path, error))?;
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
        if outer.is_empty() {
            return Ok(key);
        }
        Ok(format!("{outer}.{key}"))
    }
}

/// Up to twenty names in backticks.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 20;
    let all: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    let shown = all.iter().take(SHOWN).map(String::as_str);
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN {
        text.push_str(&format!(" and {} more", all.len() - SHOWN));
    }
    if text.is_empty() {
        text.push_str("no keys");
    }
    text
}

/// How a tensor is described in the pickle.
struct Description {
    storage: Id,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
    /// Name of the element type, where the storage has none.
    dtype: Option<Id>,
    flags: Option<Id>,
}

/// The storage of a tensor, as the pickle names it.
struct Storage<'a> {
    class: &'a str,
    key: &'a str,
}

/// Reading single tensors.
impl<'a> Reading<'a> {
    fn tensor(&self, id: Id, name: &str) -> Result<StoredTensor, ArchiveError> {
        let description = self.description(id, name)?;
        let storage = self.storage(description.storage, name)?;
        let dtype = self.dtype(&storage, description.dtype, name)?;
        let (conjugate, negative) = self.flags(description.flags);
        let complex = dtype == Dtype::C64;
        let floating = [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64].contains(&dtype);
        if conjugate && !complex || negative && !(complex || floating) {
            return Err(self.malformed(name, "a conjugate or negative view of such elements"));
        }
        let record = self.record(&storage, name)?;
        let span = self.span(&description, dtype, record, name)?;
        Ok(StoredTensor {
            dtype,
            shape: description.shape,
            strides: description.strides,
            record: record.clone(),
            first: description.offset,
            span,
            conjugate,
            negative,
        })
    }

    fn description(&self, id: Id, name: &str) -> Result<Description, ArchiveError> {
        let mut call = self.call(id).ok_or(self.malformed(name, "no tensor"))?;
        // A parameter wraps a tensor, never another parameter.
        if PARAMETER_CALLS.contains(&call.function.as_str()) {
            let inner = call.arguments.first().and_then(|inner| self.call(*inner));
            call = inner.ok_or(self.malformed(name, "a parameter without tensor"))?;
        }
        let arguments = &call.arguments;
        let (dtype, flags) = match call.function.as_str() {
            "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2" => {
                (None, arguments.get(6))
            }
            "torch._utils._rebuild_tensor_v3" => (arguments.get(6), arguments.get(7)),
            other => return Err(self.unsupported(name, other)),
        };
        let [storage, offset, shape, strides, ..] = arguments[..] else {
            return Err(self.malformed(name, "fewer than four arguments"));
        };
        let shape = self.sizes(shape, name)?;
        let strides = self.sizes(strides, name)?;
        if shape.len() != strides.len() {
            return Err(self.malformed(name, "a stride count that differs from its axes"));
        }
        Ok(Description {
            storage,
            offset: self.size(offset, name)?,
            shape,
            strides,
            dtype: dtype.copied(),
            flags: flags.copied(),
        })
    }

    fn sizes(&self, id: Id, name: &str) -> Result<Vec<usize>, ArchiveError> {
        match self.values.get(id) {
            Value::Tuple(items) | Value::List(items) => {
                items.iter().map(|item| self.size(*item, name)).collect()
            }
            Value::Call(call) if call.function == "torch.Size" => match call.arguments[..] {
                [inner] if self.call(inner).is_none() => self.sizes(inner, name),
                _ => Err(self.malformed(name, "a malformed torch.Size")),
            },
            _ => Err(self.malformed(name, "a shape or strides that are no tuple")),
        }
    }

    fn size(&self, id: Id, name: &str) -> Result<usize, ArchiveError> {
        let size = match self.values.get(id) {
            Value::Int(value) => usize::try_from(*value).ok(),
            _ => None,
        };
        size.ok_or(self.malformed(name, "a size that is no natural number"))
    }

    fn storage(&self, id: Id, name: &str) -> Result<Storage<'a>, ArchiveError> {
        let malformed = || self.malformed(name, "a malformed storage");
        let Value::Persistent(id) = self.values.get(id) else {
            return Err(malformed());
        };
        let Value::Tuple(parts) = self.values.get(*id) else {
            return Err(malformed());
        };
        let [tag, class, key, ..] = parts[..] else {
            return Err(malformed());
        };
        let Value::Global(class) = self.values.get(class) else {
            return Err(malformed());
        };
        match (self.values.text(tag), self.values.text(key)) {
            (Some("storage"), Some(key)) => Ok(Storage { class, key }),
            _ => Err(malformed()),
        }
    }

    fn dtype(
        &self,
        storage: &Storage<'_>,
        named: Option<Id>,
        name: &str,
    ) -> Result<Dtype, ArchiveError> {
        let class = storage.class;
        let short = class.rsplit('.').next().unwrap_or(class);
        let Some(named) = named else {
            let found = STORAGES.iter().find(|(storage, ..)| *storage == short);
            return found
                .map(|(.., dtype)| *dtype)
                .ok_or_else(|| self.unsupported(name, class));
        };
        let Value::Global(named) = self.values.get(named) else {
            return Err(self.malformed(name, "an element type that is no name"));
        };
        let typed = STORAGES.iter().map(|(_, dtype, code)| (*dtype, *code));
        let mut all = typed.chain(UNTYPED);
        all.find(|(dtype, _)| named.strip_prefix("torch.") == Some(*dtype))
            .map(|(_, code)| code)
            .ok_or_else(|| self.unsupported(name, named))
    }

    /// Whether the elements are to be conjugated, and negated, on use.
    fn flags(&self, id: Option<Id>) -> (bool, bool) {
        let Some(Value::Dict(dict)) = id.map(|id| self.values.get(id)) else {
            return (false, false);
        };
        let set = |name| {
            dict.entries.iter().any(|(key, value)| {
                self.values.text(*key) == Some(name)
                    && matches!(self.values.get(*value), Value::Bool(true))
            })
        };
        (set("conj"), set("neg"))
    }

    fn record(&self, storage: &Storage<'_>, name: &str) -> Result<&'a Record, ArchiveError> {
        let record = format!("{}data/{}", self.prefix, storage.key);
        self.records
            .get(&record)
            .ok_or_else(|| ArchiveError::MissingRecord {
                path: self.path.to_owned(),
                tensor: name.to_owned(),
                record,
            })
    }

    /// Elements from the first to the last one used, all within the record.
    fn span(
        &self,
        description: &Description,
        dtype: Dtype,
        record: &Record,
        name: &str,
    ) -> Result<usize, ArchiveError> {
        let Description { shape, strides, .. } = description;
        let outside = || ArchiveError::OutsideRecord {
            path: self.path.to_owned(),
            tensor: name.to_owned(),
            shape: shape.clone(),
            length: record.length,
        };
        let bytes = byte_length(dtype, shape).ok_or_else(outside)?;
        if bytes == 0 {
            return Ok(0);
        }
        let steps = shape.iter().zip(strides);
        let last = steps.clone().try_fold(0usize, |at, (extent, stride)| {
            at.checked_add((extent - 1).checked_mul(*stride)?)
        });
        let span = last.and_then(|last| last.checked_add(1));
        let span = span.ok_or_else(outside)?;
        let size = dtype.bitsize() / 8;
        let end = description.offset.checked_add(span);
        let end = end.and_then(|end| end.checked_mul(size));
        let end = end.ok_or_else(outside)?;
        if end as u64 > record.length {
            return Err(outside());
        }
        if bytes > EXPANSION_LIMIT && bytes as u64 > record.length {
            return Err(self.malformed(name, "an expanded view of more than 1 GiB"));
        }
        Ok(span)
    }

    fn malformed(&self, name: &str, found: &'static str) -> ArchiveError {
        ArchiveError::TensorForm {
            path: self.path.to_owned(),
            tensor: name.to_owned(),
            found,
        }
    }

    fn unsupported(&self, name: &str, found: &str) -> ArchiveError {
        ArchiveError::TensorStorage {
            path: self.path.to_owned(),
            tensor: name.to_owned(),
            found: found.to_owned(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::checkpoint::pickle::writer::PickleWriter;

    /// Writes a tensor into a pickle as PyTorch does.
    pub(in crate::checkpoint::torch_file) struct Sample {
        pub(in crate::checkpoint::torch_file) class: &'static str,
        pub(in crate::checkpoint::torch_file) key: &'static str,
        pub(in crate::checkpoint::torch_file) offset: usize,
        pub(in crate::checkpoint::torch_file) shape: Vec<usize>,
        pub(in crate::checkpoint::torch_file) strides: Vec<usize>,
        pub(in crate::checkpoint::torch_file) flag: Option<&'static str>,
    }

    impl Sample {
        /// Three consecutive `f32` in record 0.
        pub(in crate::checkpoint::torch_file) fn new() -> Sample {
            Sample {
                class: "FloatStorage",
                key: "0",
                offset: 0,
                shape: vec![3],
                strides: vec![1],
                flag: None,
            }
        }

        pub(in crate::checkpoint::torch_file) fn write(&self, pickle: &mut PickleWriter) {
            pickle.global("torch._utils", "_rebuild_tensor_v2");
            pickle.instruction(b'(');
            pickle.instruction(b'(');
            pickle.text("storage");
            pickle.global("torch", self.class);
            pickle.text(self.key);
            pickle.text("cpu");
            pickle.int(3);
            pickle.instruction(b't');
            pickle.instruction(b'Q');
            pickle.size(self.offset);
            pickle.sizes(&self.shape);
            pickle.sizes(&self.strides);
            pickle.plain(&Plain::Bool(false));
            pickle.empty_dict(true);
            let entries = self.flag.map(|flag| (text(flag), Plain::Bool(true)));
            pickle.plain(&Plain::Dict {
                ordered: false,
                entries: entries.into_iter().collect(),
            });
            pickle.instruction(b't');
            pickle.instruction(b'R');
        }
    }

    fn text(text: &str) -> Plain {
        Plain::Text(text.to_owned())
    }

    /// A key and what writes its value.
    type Entry<'a> = (&'a str, &'a dyn Fn(&mut PickleWriter));

    /// A dictionary whose values are written by the closures.
    fn dict(pickle: &mut PickleWriter, entries: &[Entry<'_>]) {
        pickle.empty_dict(false);
        pickle.instruction(b'(');
        for (key, value) in entries {
            pickle.text(key);
            value(pickle);
        }
        pickle.instruction(b'u');
    }

    fn tensor(pickle: &mut PickleWriter) {
        Sample::new().write(pickle);
    }

    fn weights(pickle: &mut PickleWriter) {
        dict(pickle, &[("w", &tensor)]);
    }

    /// Reads what the closure writes. Record 0 has twelve bytes.
    fn read(build: impl Fn(&mut PickleWriter)) -> Result<StateDict, ArchiveError> {
        let mut pickle = PickleWriter::new();
        build(&mut pickle);
        let record = Record {
            name: "x/data/0".to_owned(),
            index: 0,
            length: 12,
        };
        let records = BTreeMap::from([(record.name.clone(), record)]);
        StateDict::read(Path::new("x.pth"), &pickle.finish(), &records, "x/")
    }

    fn read_dict(entries: &[Entry<'_>]) -> Result<StateDict, ArchiveError> {
        read(|pickle| dict(pickle, entries))
    }

    fn read_sample(sample: &Sample) -> Result<StateDict, ArchiveError> {
        read_dict(&[("w", &|pickle| sample.write(pickle))])
    }

    fn names(state_dict: &StateDict) -> Vec<&str> {
        state_dict.tensors.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_flat_state_dict_has_no_wrapper() {
        let flat = read(weights).unwrap();
        assert_eq!(names(&flat), ["w"]);
        assert_eq!(flat.wrapper, None);
    }

    #[test]
    fn the_most_telling_wrapper_wins() {
        let other = |pickle: &mut PickleWriter| dict(pickle, &[("v", &tensor)]);
        let cases: [(&str, &str); 4] = [
            ("model_state_dict", "state_dict"),
            ("state_dict", "model"),
            ("model", "net"),
            ("network", "ema"),
        ];
        for (first, second) in cases {
            let found = read_dict(&[(second, &other), (first, &weights)]).unwrap();
            assert_eq!(found.wrapper.as_deref(), Some(first));
            assert_eq!(names(&found), ["w"]);
            let note = format!(
                "`{second}` (1 tensor) is not part of the model and is left out of what is written"
            );
            assert_eq!(found.notes, [note]);
        }
    }

    #[test]
    fn the_only_dictionary_of_tensors_is_the_wrapper_whatever_its_name() {
        let number = |pickle: &mut PickleWriter| pickle.int(3);
        let found = read_dict(&[("epoch", &number), ("ema", &weights)]).unwrap();
        assert_eq!(found.wrapper.as_deref(), Some("ema"));
    }

    #[test]
    fn a_loss_beside_a_known_wrapper_is_no_state_dict() {
        let found = read_dict(&[("model", &weights), ("loss", &tensor)]).unwrap();
        assert_eq!(names(&found), ["w"]);
        assert_eq!(found.notes.len(), 1);
    }

    #[test]
    fn wrappers_inside_wrappers_are_followed() {
        let inner = |pickle: &mut PickleWriter| dict(pickle, &[("state_dict", &weights)]);
        let found = read_dict(&[("model", &inner)]).unwrap();
        assert_eq!(found.wrapper.as_deref(), Some("model.state_dict"));
    }

    #[test]
    fn nested_dictionaries_give_dotted_names() {
        let by_number = |pickle: &mut PickleWriter| {
            pickle.empty_dict(false);
            pickle.int(0);
            tensor(pickle);
            pickle.instruction(b's');
        };
        let found = read_dict(&[("a", &tensor), ("b", &weights), ("c", &by_number)]).unwrap();
        assert_eq!(names(&found), ["a", "b.w", "c.0"]);
    }

    #[test]
    fn several_dictionaries_of_tensors_are_listed() {
        let error = read_dict(&[("a", &weights), ("b", &weights)]).unwrap_err();
        assert!(
            matches!(&error, ArchiveError::SeveralStateDicts { found, .. } if found == "`a`, `b`")
        );
    }

    #[test]
    fn without_tensors_the_keys_are_listed() {
        let number = |pickle: &mut PickleWriter| pickle.int(3);
        let error = read_dict(&[("acc", &number), ("optimizer", &weights)]).unwrap_err();
        let expected = "`acc`, `optimizer`";
        assert!(matches!(&error, ArchiveError::NoTensors { found, .. } if found == expected));
    }

    #[test]
    fn a_top_object_that_is_no_dictionary_is_named() {
        let error = read(|pickle| pickle.int(3)).unwrap_err();
        assert!(matches!(error, ArchiveError::NotADict { found: "int", .. }));
        let error = read(tensor).unwrap_err();
        assert!(matches!(
            error,
            ArchiveError::NotADict {
                found: "Tensor",
                ..
            }
        ));
    }

    #[test]
    fn plain_data_are_kept_and_objects_are_noted() {
        let number = |pickle: &mut PickleWriter| pickle.int(3);
        let object = |pickle: &mut PickleWriter| pickle.global("torch", "float32");
        let found = read_dict(&[
            ("epoch", &number),
            ("dtype", &object),
            ("model", &weights),
            ("optimizer_state_dict", &weights),
        ]);
        let found = found.unwrap();
        let kept: Vec<&Plain> = found.document.items.iter().map(|(key, _)| key).collect();
        assert_eq!(kept, [&text("epoch"), &text("model")]);
        let notes = [
            "`dtype` holds Python objects and is left out of what is written",
            "`optimizer_state_dict` (1 tensor) is not part of the model and is left out of what is written",
        ];
        assert_eq!(found.notes, notes);
    }

    #[test]
    fn a_tensor_in_a_list_is_not_skipped() {
        let list = |pickle: &mut PickleWriter| {
            pickle.instruction(b']');
            tensor(pickle);
            pickle.instruction(b'a');
        };
        let model = |pickle: &mut PickleWriter| dict(pickle, &[("w", &tensor), ("l", &list)]);
        let error = read_dict(&[("model", &model)]).unwrap_err();
        assert!(matches!(
            error,
            ArchiveError::TensorsInside { found: "list", .. }
        ));
    }

    #[test]
    fn two_tensors_of_one_name_are_refused() {
        let error = read_dict(&[("a.w", &tensor), ("a", &weights)]).unwrap_err();
        assert!(matches!(error, ArchiveError::DuplicateTensor { tensor, .. } if tensor == "a.w"));
    }

    #[test]
    fn a_tensor_under_a_key_that_is_no_name_is_refused() {
        let error = read(|pickle| {
            pickle.empty_dict(false);
            pickle.plain(&Plain::None);
            tensor(pickle);
            pickle.instruction(b's');
        });
        let error = error.unwrap_err();
        assert!(matches!(
            error,
            ArchiveError::TensorKey { found: "None", .. }
        ));
    }

    #[test]
    fn a_whole_module_is_refused_by_the_name_of_its_class() {
        let error = read(|pickle| pickle.global("torch.nn.modules.linear", "Linear")).unwrap_err();
        let expected = "torch.nn.modules.linear.Linear";
        assert!(matches!(&error, ArchiveError::ForeignCode { name, .. } if name == expected));
        assert!(error.to_string().contains("never runs code"), "{error}");
    }

    #[test]
    fn an_unknown_class_among_the_weights_is_left_out_unless_it_may_be_a_tensor() {
        let custom = |pickle: &mut PickleWriter| pickle.global("project.blocks", "Custom");
        let found = read_dict(&[("w", &tensor), ("x", &custom)]).unwrap();
        assert_eq!(found.tensors.len(), 1);
        let note = "`x` holds Python objects and is left out of what is written";
        assert_eq!(found.notes, [note]);
        let unknown = |pickle: &mut PickleWriter| {
            pickle.global("torch._tensor", "_rebuild_from_type_v2");
        };
        let error = read_dict(&[("w", &tensor), ("x", &unknown)]).unwrap_err();
        let expected = "torch._tensor._rebuild_from_type_v2";
        assert!(matches!(&error, ArchiveError::ForeignCode { name, .. } if name == expected));
        // Beside the weights too, what runs programs is not left out but refused.
        let system = |pickle: &mut PickleWriter| pickle.global("subprocess", "Popen");
        let error = read_dict(&[("w", &tensor), ("x", &system)]).unwrap_err();
        assert!(
            matches!(&error, ArchiveError::ForeignCode { name, .. } if name.ends_with("Popen"))
        );
    }

    #[test]
    fn parameters_are_unwrapped() {
        let parameter = |pickle: &mut PickleWriter| {
            pickle.global("torch._utils", "_rebuild_parameter");
            pickle.instruction(b'(');
            tensor(pickle);
            pickle.plain(&Plain::Bool(true));
            pickle.empty_dict(true);
            pickle.instruction(b't');
            pickle.instruction(b'R');
        };
        let found = read_dict(&[("w", &parameter)]).unwrap();
        assert_eq!(found.tensors["w"].shape, [3]);
    }

    #[test]
    fn views_must_lie_within_their_record() {
        let huge = usize::try_from(i64::MAX).unwrap();
        let cases: [(usize, Vec<usize>, Vec<usize>); 7] = [
            (1, vec![3], vec![1]),
            (0, vec![4], vec![1]),
            (0, vec![2, 2], vec![2, 2]),
            (huge, vec![1], vec![1]),
            (0, vec![3], vec![huge]),
            (0, vec![huge, huge], vec![0, 0]),
            (0, vec![huge, huge, huge], vec![1, 1, 1]),
        ];
        for (offset, shape, strides) in cases {
            let sample = Sample {
                offset,
                shape,
                strides,
                ..Sample::new()
            };
            let error = read_sample(&sample).unwrap_err();
            assert!(
                matches!(error, ArchiveError::OutsideRecord { .. }),
                "{error}"
            );
        }
        let empty = Sample {
            offset: huge,
            shape: vec![0, huge],
            strides: vec![huge, 1],
            ..Sample::new()
        };
        assert_eq!(read_sample(&empty).unwrap().tensors["w"].span, 0);
    }

    #[test]
    fn an_expansion_to_more_than_memory_is_refused() {
        let sample = Sample {
            shape: vec![1 << 40],
            strides: vec![0],
            ..Sample::new()
        };
        let error = read_sample(&sample).unwrap_err();
        assert!(matches!(error, ArchiveError::TensorForm { .. }), "{error}");
    }

    #[test]
    fn elements_of_an_unsupported_type_are_refused_with_the_tensor_named() {
        for class in ["ComplexDoubleStorage", "QInt8Storage"] {
            let sample = Sample {
                class,
                ..Sample::new()
            };
            let error = read_sample(&sample).unwrap_err();
            let expected = matches!(&error, ArchiveError::TensorStorage { tensor, found, .. }
                if tensor == "w" && found.ends_with(class));
            assert!(expected, "{error}");
        }
    }

    #[test]
    fn a_missing_record_is_named() {
        let sample = Sample {
            key: "7",
            ..Sample::new()
        };
        let error = read_sample(&sample).unwrap_err();
        assert!(
            matches!(error, ArchiveError::MissingRecord { record, .. } if record == "x/data/7")
        );
    }

    #[test]
    fn a_conjugate_of_real_numbers_is_refused() {
        let sample = Sample {
            flag: Some("conj"),
            ..Sample::new()
        };
        let error = read_sample(&sample).unwrap_err();
        assert!(matches!(error, ArchiveError::TensorForm { .. }));
    }

    #[test]
    fn a_dictionary_that_holds_itself_is_refused() {
        let error = read(|pickle| {
            dict(pickle, &[("w", &tensor)]);
            pickle.instruction(b'2');
            pickle.text("again");
            pickle.instruction(b'q');
            pickle.instruction(0);
            pickle.instruction(b'0');
            pickle.instruction(b'2');
            // Stack: dict, dict, dict; then key and the dict itself.
            pickle.instruction(b'q');
            pickle.instruction(1);
            pickle.instruction(b'h');
            pickle.instruction(0);
            pickle.instruction(b'h');
            pickle.instruction(1);
            pickle.instruction(b's');
        });
        let error = error.unwrap_err();
        let source = PickleError::TooDeep.to_string();
        let expected = matches!(&error, ArchiveError::Pickle { source: found, .. }
            if found.to_string() == source);
        assert!(expected, "{error}");
    }

    #[test]
    fn no_damaged_byte_can_upset_the_reading() {
        let mut pickle = PickleWriter::new();
        let number = |pickle: &mut PickleWriter| pickle.int(3);
        dict(&mut pickle, &[("model", &weights), ("epoch", &number)]);
        let pickle = pickle.finish();
        let record = Record {
            name: "data/0".to_owned(),
            index: 0,
            length: 12,
        };
        let records = BTreeMap::from([(record.name.clone(), record)]);
        let path = Path::new("x.pth");
        StateDict::read(path, &pickle, &records, "").unwrap();
        for at in 0..pickle.len() {
            for byte in 0..=u8::MAX {
                let mut damaged = pickle.clone();
                damaged[at] = byte;
                let _either_way = StateDict::read(path, &damaged, &records, "");
            }
        }
    }
}
