//! What every format offers when it is read, and is given when it is written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use crate::changes::Changes;
use crate::error::ArchiveError;
use crate::tensor::{Dtype, Header, RawTensor};

/// Key under which our own text lies beside the tensors.
pub(crate) const METADATA_KEY: &str = "hankelite";

/// A tensor, borrowed where it is in memory already.
pub(crate) type Read<'a> = Result<Cow<'a, RawTensor>, ArchiveError>;

/// An open file of named tensors.
pub(crate) trait TensorFile: fmt::Debug + Send + Sync {
    /// Every tensor's header.
    fn headers(&self) -> Box<dyn Iterator<Item = Header<'_>> + '_>;

    /// Reads one tensor; `None` when there is none of that name.
    fn tensor(&self, name: &str) -> Option<Read<'_>>;

    /// Reads some entries of the first axis of one tensor; `None` when there is none of that name.
    /// The range lies within the tensor. A file without a quicker way reads all of it.
    fn rows(&self, name: &str, rows: Range<usize>) -> Option<Read<'_>> {
        let tensor = self.tensor(name)?;
        Some(tensor.and_then(|tensor| {
            let part = tensor.rows(rows).map_err(|error| error.of(name));
            part.map(Cow::Owned)
        }))
    }

    /// Our own text.
    fn metadata(&self) -> Option<&str> {
        None
    }

    /// What will be left out when the file is written again.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Tensors that are the same view of the same storage as one before them in the order of
    /// names, with that one.
    fn ties(&self) -> Ties {
        Ties::new()
    }

    /// Whether a tensor's numbers are those of one before it in the order of names, perhaps along
    /// other axes.
    fn repeats(&self, _name: &str) -> bool {
        false
    }
}

/// Names of tensors that stand for the same numbers as another, with that one's name.
pub(crate) type Ties = BTreeMap<String, String>;

/// Tensors in no file yet.
impl TensorFile for BTreeMap<String, RawTensor> {
    fn headers(&self) -> Box<dyn Iterator<Item = Header<'_>> + '_> {
        Box::new(self.iter().map(|(name, tensor)| tensor.header(name)))
    }

    fn tensor(&self, name: &str) -> Option<Read<'_>> {
        self.get(name).map(|tensor| Ok(Cow::Borrowed(tensor)))
    }
}

/// Element type and shape of every tensor.
pub(crate) type Shapes = BTreeMap<String, (Dtype, Vec<usize>)>;

/// What is to be written: the tensors of a file, some of them changed, and a text.
#[derive(Clone, Copy)]
pub(crate) struct Contents<'a> {
    /// The file that is read.
    pub(crate) path: &'a Path,
    pub(crate) file: &'a dyn TensorFile,
    pub(crate) changes: &'a Changes,
    pub(crate) ties: &'a Ties,
    /// With the changes.
    pub(crate) shapes: &'a Shapes,
    /// Our own text, empty when none is to be stored.
    pub(crate) metadata: &'a str,
}

impl<'a> Contents<'a> {
    /// Every tensor's header, sorted by name.
    pub(crate) fn headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let shapes = self.shapes.iter();
        shapes.map(|(name, (dtype, shape))| Header {
            name,
            dtype: *dtype,
            shape,
        })
    }

    /// The tensor that this one is tied to, itself where it stands alone.
    pub(crate) fn source_of<'n>(&'n self, name: &'n str) -> &'n str {
        self.ties.get(name).map_or(name, String::as_str)
    }

    /// Whether a tensor is not that of the file.
    pub(crate) fn is_changed(&self, name: &str) -> bool {
        self.changes.contains(self.source_of(name))
    }

    /// One tensor, from the changes or from the file.
    pub(crate) fn tensor(&self, name: &str) -> Read<'a> {
        let tensor = self.changes.tensor(self.source_of(name));
        let tensor = tensor.or_else(|| self.file.tensor(name));
        tensor.unwrap_or_else(|| {
            Err(ArchiveError::NoSuchTensor {
                path: self.path.to_owned(),
                tensor: name.to_owned(),
            })
        })
    }
}

/// A map of texts without its ownership.
pub(crate) fn borrowed(texts: &BTreeMap<String, String>) -> BTreeMap<&str, &str> {
    let texts = texts.iter();
    texts
        .map(|(key, text)| (key.as_str(), text.as_str()))
        .collect()
}
