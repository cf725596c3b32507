//! Single tensors of a state dict: what describes them in the pickle, and where their elements lie.

use crate::error::ArchiveError;
use crate::pickle::{Id, Value};
use crate::tensor::{Dtype, byte_length};
use crate::torch_file::state_dict::{PARAMETER_CALLS, Reading};
use crate::torch_file::{STORAGES, StoredTensor, UNTYPED};
use crate::zip_records::Record;

/// Bytes of a tensor that is unfolded from fewer elements than it shows, beyond those of the file's
/// records: a short file does not fill the memory.
const EXPANSION_LIMIT: u64 = 1 << 25;

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
    pub(super) fn tensor(&self, id: Id, name: &str) -> Result<StoredTensor, ArchiveError> {
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
        let expanded = bytes as u64 > record.length;
        if expanded && bytes as u64 > EXPANSION_LIMIT.saturating_add(self.stored) {
            let found = "an expanded view larger than the file by more than 32 MiB";
            return Err(self.malformed(name, found));
        }
        Ok(span)
    }

    pub(super) fn malformed(&self, name: &str, found: &'static str) -> ArchiveError {
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
