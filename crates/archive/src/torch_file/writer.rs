//! Writing a zip file as `torch.save` would.

use std::collections::BTreeMap;
use std::io::{Seek, Write};
use std::path::Path;

use crate::contents::Contents;
use crate::error::ArchiveError;
use crate::pickle::Plain;
use crate::pickle::writer::PickleWriter;
use crate::strides::row_major;
use crate::tensor::Dtype;
use crate::torch_file::{Document, Item, METADATA_RECORD, STORAGES, TorchFile, UNTYPED};
use crate::zip_records::RecordWriter;

/// Writes the contents as `torch.save` lays them out, tensor by tensor.
///
/// What stood around the tensors in `source` is kept. Each tensor gets a storage of its own, so tensors that shared one no longer
/// do; their values are the same.
pub(crate) fn write(
    out: impl Write + Seek,
    path: &Path,
    contents: &Contents<'_>,
    source: Option<&TorchFile>,
) -> Result<(), ArchiveError> {
    let flat;
    let document = match source {
        Some(source) => &source.state_dict.document,
        None => {
            flat = Document::flat(contents.headers().map(|header| header.name));
            &flat
        }
    };
    let mut pickling = Pickling {
        path,
        tensors: contents
            .headers()
            .map(|header| (header.name, (header.dtype, header.shape)))
            .collect(),
        pickle: PickleWriter::new(),
        order: Vec::new(),
    };
    pickling.document(document)?;
    let (order, pickle) = (pickling.order, pickling.pickle.finish());
    let mut records = RecordWriter::new(path, out, format!("{}/", prefix_of(path)));
    let written = write_records(&mut records, &pickle, &order, contents);
    records.finish(written)
}

fn write_records<W: Write + Seek>(
    records: &mut RecordWriter<'_, W>,
    pickle: &[u8],
    order: &[&str],
    contents: &Contents<'_>,
) -> Result<(), ArchiveError> {
    records.write("data.pkl", &[pickle])?;
    records.write("byteorder", &[b"little"])?;
    for (key, name) in order.iter().enumerate() {
        let tensor = contents.tensor(name)?;
        records.write(&format!("data/{key}"), &[tensor.bytes()])?;
    }
    records.write("version", &[b"3\n"])?;
    if !contents.metadata.is_empty() {
        records.write(METADATA_RECORD, &[contents.metadata.as_bytes()])?;
    }
    Ok(())
}

/// `torch.save` calls the folder in the zip file after the file.
fn prefix_of(path: &Path) -> String {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    stem.unwrap_or("archive").to_owned()
}

/// The pickle of a document, and the storages it refers to by number.
struct Pickling<'a> {
    path: &'a Path,
    tensors: BTreeMap<&'a str, (Dtype, &'a [usize])>,
    pickle: PickleWriter,
    order: Vec<&'a str>,
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

    /// One call of `_rebuild_tensor_v2`, or of `_rebuild_tensor_v3` for an
    /// element type without a storage class.
    fn tensor(&mut self, name: &'a str) -> Result<(), ArchiveError> {
        let (dtype, shape) = self.tensors[name];
        let class = STORAGES.iter().find(|(.., found)| *found == dtype);
        let code = UNTYPED.iter().find(|(_, found)| *found == dtype);
        let count: usize = shape.iter().product();
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
        pickle.text(&self.order.len().to_string());
        pickle.text("cpu");
        pickle.size(length);
        pickle.instruction(b't');
        pickle.instruction(b'Q');
        pickle.size(0);
        pickle.sizes(shape);
        pickle.sizes(&row_major(shape));
        pickle.plain(&Plain::Bool(false));
        pickle.empty_dict(true);
        if let (Some((code, _)), "_rebuild_tensor_v3") = (code, rebuild) {
            pickle.global("torch", code);
        }
        pickle.instruction(b't');
        pickle.instruction(b'R');
        self.order.push(name);
        Ok(())
    }
}
