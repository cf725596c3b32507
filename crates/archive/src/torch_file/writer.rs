//! Writing a zip file as `torch.save` would.

use std::collections::BTreeMap;
use std::io::{Cursor, Seek, Write};
use std::path::Path;

use crate::changes::Changes;
use crate::contents::Contents;
use crate::error::ArchiveError;
use crate::pickle::Plain;
use crate::pickle::writer::PickleWriter;
use crate::strides::row_major;
use crate::tensor::{Dtype, RawTensor};
use crate::torch_file::sharing::{Stretch, stretches};
use crate::torch_file::{
    Document, Item, METADATA_RECORD, STORAGES, StoredTensor, TorchFile, UNTYPED,
};
use crate::zip_records::RecordWriter;

/// Writes the contents as `torch.save` lays them out, tensor by tensor.
///
/// What stood around the tensors in `source` is kept. Tensors that are tied share a storage, and
/// unchanged ones that looked at common elements of one still do; every other tensor gets one of
/// its own.
pub(crate) fn write(
    out: impl Write + Seek,
    path: &Path,
    contents: &Contents<'_>,
    source: Option<&TorchFile>,
) -> Result<(), ArchiveError> {
    written(out, path, contents, source, Top::Dictionary)
}

/// A file of `torch.save` with one tensor and no dictionary, by the bytes of it; `path` is where it is to
/// stand.
///
/// # Errors
/// [`ArchiveError::NoDtype`] for an element type that PyTorch does not have.
pub fn tensor_file(path: &Path, tensor: RawTensor) -> Result<Vec<u8>, ArchiveError> {
    let shapes = [(String::new(), (tensor.dtype(), tensor.shape().to_vec()))];
    let tensors = BTreeMap::from([(String::new(), tensor)]);
    let contents = Contents {
        path,
        file: &tensors,
        changes: &Changes::InMemory(BTreeMap::new()),
        ties: &BTreeMap::new(),
        shapes: &shapes.into(),
        metadata: "",
    };
    let mut out = Cursor::new(Vec::new());
    written(&mut out, path, &contents, None, Top::Tensor)?;
    Ok(out.into_inner())
}

/// What a file holds at the top.
#[derive(Clone, Copy, PartialEq)]
enum Top {
    Dictionary,
    /// The only one.
    Tensor,
}

fn written(
    out: impl Write + Seek,
    path: &Path,
    contents: &Contents<'_>,
    source: Option<&TorchFile>,
    top: Top,
) -> Result<(), ArchiveError> {
    let flat;
    let document = match source {
        Some(source) => &source.state_dict.document,
        None => {
            flat = Document::flat(contents.headers().map(|header| header.name));
            &flat
        }
    };
    let unchanged = source.into_iter().flat_map(|source| {
        let tensors = source.state_dict.tensors.iter();
        tensors.filter(|(name, _)| !contents.is_changed(name))
    });
    let (stretches, places) = stretches(unchanged.map(|(name, stored)| (name.as_str(), stored)));
    let mut pickling = Pickling {
        path,
        contents,
        source: source.map(|source| &source.state_dict.tensors),
        stretches: &stretches,
        places,
        keys: BTreeMap::new(),
        tensors: contents
            .headers()
            .map(|header| (header.name, (header.dtype, header.shape)))
            .collect(),
        pickle: PickleWriter::new(),
        order: Vec::new(),
    };
    match contents.headers().next().filter(|_| top == Top::Tensor) {
        Some(header) => pickling.tensor(header.name)?,
        None => pickling.document(document)?,
    }
    let (order, pickle) = (pickling.order, pickling.pickle.finish());
    let mut records = RecordWriter::new(path, out, format!("{}/", prefix_of(path)));
    let bytes = |storage: &Storage<'_>| match (storage, source) {
        (Storage::Stretch(index), Some(source)) => source.stretch_bytes(&stretches[*index]),
        (Storage::Stretch(_), None) => unreachable!("stretches are those of a source"),
        (Storage::Tensor(name), _) => Ok(contents.tensor(name)?.into_owned().into_bytes()),
    };
    let written = write_records(&mut records, &pickle, &order, contents.metadata, bytes);
    records.finish(written)
}

fn write_records<W: Write + Seek>(
    records: &mut RecordWriter<'_, W>,
    pickle: &[u8],
    order: &[Storage<'_>],
    metadata: &str,
    bytes: impl Fn(&Storage<'_>) -> Result<Vec<u8>, ArchiveError>,
) -> Result<(), ArchiveError> {
    records.write("data.pkl", &[pickle])?;
    records.write("byteorder", &[b"little"])?;
    for (key, storage) in order.iter().enumerate() {
        records.write(&format!("data/{key}"), &[&bytes(storage)?])?;
    }
    records.write("version", &[b"3\n"])?;
    if !metadata.is_empty() {
        records.write(METADATA_RECORD, &[metadata.as_bytes()])?;
    }
    Ok(())
}

/// `torch.save` calls the folder in the zip file after the file.
fn prefix_of(path: &Path) -> String {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    stem.unwrap_or("archive").to_owned()
}

/// A storage that is written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Storage<'a> {
    /// The elements of one tensor, last axis fastest.
    Tensor(&'a str),
    /// Elements of the source as they lie there, by number.
    Stretch(usize),
}

/// How a tensor looks at its storage.
struct Looks {
    key: usize,
    /// Elements of the storage.
    count: usize,
    offset: usize,
    strides: Vec<usize>,
}

/// The pickle of a document, and the storages it refers to by number.
struct Pickling<'a> {
    path: &'a Path,
    contents: &'a Contents<'a>,
    source: Option<&'a BTreeMap<String, StoredTensor>>,
    stretches: &'a [Stretch],
    /// The stretch of each tensor that has one.
    places: BTreeMap<&'a str, usize>,
    keys: BTreeMap<Storage<'a>, usize>,
    tensors: BTreeMap<&'a str, (Dtype, &'a [usize])>,
    pickle: PickleWriter,
    order: Vec<Storage<'a>>,
}

impl<'a> Pickling<'a> {
    fn document(&mut self, document: &'a Document) -> Result<(), ArchiveError> {
        self.pickle.empty_dict(document.ordered);
        self.pickle.instruction(b'(');
        for (key, item) in &document.items {
            self.pickle.plain(key);
            match item {
                Item::Tensor(name) => self.tensor(name)?,
                Item::Plain(plain) => self.pickle.plain(plain),
                Item::Document(document) => self.document(document)?,
            }
        }
        self.pickle.instruction(b'u');
        if let Some(attributes) = &document.attributes {
            self.pickle.plain(attributes);
            self.pickle.instruction(b'b');
        }
        Ok(())
    }

    /// The storage of a tensor, a new one where nothing else looks at it yet.
    fn looks(&mut self, name: &'a str, shape: &[usize]) -> Looks {
        let stored = self.source.and_then(|source| source.get(name));
        let (storage, looks) = match (self.places.get(name), stored) {
            (Some(&index), Some(stored)) => {
                let stretch = &self.stretches[index];
                let looks = (
                    stretch.span,
                    stored.first - stretch.first,
                    stored.strides.clone(),
                );
                (Storage::Stretch(index), looks)
            }
            _ => {
                let looks = (shape.iter().product(), 0, row_major(shape));
                (Storage::Tensor(self.contents.source_of(name)), looks)
            }
        };
        let next = self.order.len();
        let key = *self.keys.entry(storage.clone()).or_insert(next);
        if key == next {
            self.order.push(storage);
        }
        let (count, offset, strides) = looks;
        Looks {
            key,
            count,
            offset,
            strides,
        }
    }

    /// One call of `_rebuild_tensor_v2`, or of `_rebuild_tensor_v3` for an
    /// element type without a storage class.
    fn tensor(&mut self, name: &'a str) -> Result<(), ArchiveError> {
        let (dtype, shape) = self.tensors[name];
        let class = STORAGES.iter().find(|(.., found)| *found == dtype);
        let code = UNTYPED.iter().find(|(_, found)| *found == dtype);
        let Looks {
            key,
            count,
            offset,
            strides,
        } = self.looks(name, shape);
        let pickle = &mut self.pickle;
        let (rebuild, module, class, length) = match (class, code) {
            (Some((class, ..)), _) => ("_rebuild_tensor_v2", "torch", *class, count),
            (None, Some(_)) => {
                let bytes = count * (dtype.bitsize() / 8);
                (
                    "_rebuild_tensor_v3",
                    "torch.storage",
                    "UntypedStorage",
                    bytes,
                )
            }
            (None, None) => {
                return Err(ArchiveError::NoDtype {
                    path: self.path.to_owned(),
                    tensor: name.to_owned(),
                    found: dtype,
                    container: "PyTorch",
                });
            }
        };
        pickle.global("torch._utils", rebuild);
        pickle.instruction(b'(');
        pickle.instruction(b'(');
        pickle.text("storage");
        pickle.global(module, class);
        pickle.text(&key.to_string());
        pickle.text("cpu");
        pickle.size(length);
        pickle.instruction(b't');
        pickle.instruction(b'Q');
        pickle.size(offset);
        pickle.sizes(shape);
        pickle.sizes(&strides);
        pickle.plain(&Plain::Bool(false));
        pickle.empty_dict(true);
        if let (Some((code, _)), "_rebuild_tensor_v3") = (code, rebuild) {
            pickle.global("torch", code);
        }
        pickle.instruction(b't');
        pickle.instruction(b'R');
        Ok(())
    }
}
