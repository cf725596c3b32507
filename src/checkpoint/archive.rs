//! A checkpoint file as a set of named tensors, whatever its container.
//!
//! [`Archive::open`] reads what the file says about its tensors and leaves
//! their bytes where they are; [`Archive::tensor`] fetches one. So memory is
//! bounded by the largest tensor asked for. [`Archive::write`] copies the file
//! with some tensors replaced, into either container.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Seek;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use crate::checkpoint::archive_error::ArchiveError;
use crate::checkpoint::destination::Destination;
use crate::checkpoint::safetensors_file;
use crate::checkpoint::safetensors_file::SafetensorsFile;
use crate::checkpoint::tensor::Dtype;
use crate::checkpoint::tensor::RawTensor;
use crate::checkpoint::torch_file;
use crate::checkpoint::torch_file::Document;
use crate::checkpoint::torch_file::TorchFile;

/// Key under which our own text lies in a safetensors header.
pub(super) const METADATA_KEY: &str = "hankelite";

/// A file format for named tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// The safetensors format.
    Safetensors,
    /// The zip format of `torch.save`.
    Torch,
}

impl Container {
    /// The container that a file's extension stands for: `.safetensors`, or
    /// `.pt`, `.pth`, `.ckpt`, `.bin` in upper or lower case. `None` for others.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Container> {
        let extension = path.extension().and_then(OsStr::to_str)?;
        match extension.to_ascii_lowercase().as_str() {
            "safetensors" => Some(Container::Safetensors),
            "pt" | "pth" | "ckpt" | "bin" => Some(Container::Torch),
            _ => None,
        }
    }
}

/// The named tensors of one checkpoint file.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    source: Source,
    tensors: BTreeMap<String, (Dtype, Vec<usize>)>,
}

#[derive(Debug)]
enum Source {
    Safetensors(SafetensorsFile),
    Torch(TorchFile),
    /// No file yet.
    Memory(BTreeMap<String, RawTensor>),
}

impl Archive {
    /// Opens a checkpoint. Its first bytes decide the container, not its name.
    ///
    /// What the file says about its tensors is read and checked against the
    /// file's length; nothing in the file is ever run.
    ///
    /// # Errors
    /// [`ArchiveError`], with the file's path, for anything but a well-formed
    /// safetensors file or zip file of `torch.save` with one state dict in it.
    pub fn open(path: &Path) -> Result<Archive, ArchiveError> {
        let (file, start) = open_file(path)?;
        let source = if torch_file::is_zip(&start) {
            Source::Torch(TorchFile::open(path, file)?)
        } else if safetensors_file::is_safetensors(&start) {
            Source::Safetensors(SafetensorsFile::open(path, file)?)
        } else {
            return Err(foreign_format(path, &start));
        };
        let owned = |(name, dtype, shape): (&str, Dtype, &[usize])| {
            (name.to_owned(), (dtype, shape.to_vec()))
        };
        let tensors = match &source {
            Source::Safetensors(file) => file.tensors().map(owned).collect(),
            Source::Torch(file) => file.tensors().map(owned).collect(),
            Source::Memory(_) => BTreeMap::new(),
        };
        Ok(Archive {
            path: path.to_owned(),
            source,
            tensors,
        })
    }

    /// Tensors that are in no file yet; `name` stands for one in messages.
    pub(super) fn in_memory(name: &str, tensors: BTreeMap<String, RawTensor>) -> Archive {
        let entry = |(name, tensor): (&String, &RawTensor)| {
            (name.clone(), (tensor.dtype, tensor.shape.clone()))
        };
        Archive {
            path: name.into(),
            tensors: tensors.iter().map(entry).collect(),
            source: Source::Memory(tensors),
        }
    }

    /// The names of all tensors, sorted. A tensor of nested dictionaries is
    /// named by its keys, joined by dots.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of that name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a tensor, empty for a scalar.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, shape)| shape.as_slice())
    }

    /// The element type of a tensor.
    #[must_use]
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.tensors.get(name).map(|(dtype, _)| *dtype)
    }

    /// Reads one tensor from the file.
    ///
    /// # Errors
    /// No tensor of that name, or the file can no longer be read.
    pub fn tensor(&self, name: &str) -> Result<RawTensor, ArchiveError> {
        let tensor = match &self.source {
            Source::Safetensors(file) => file.tensor(name),
            Source::Torch(file) => file.tensor(name),
            Source::Memory(tensors) => tensors.get(name).cloned().map(Ok),
        };
        tensor.unwrap_or_else(|| Err(self.no_such_tensor(name)))
    }

    /// The text that [`Archive::write`] stored beside the tensors, if any.
    #[must_use]
    pub fn metadata(&self) -> Option<&str> {
        match &self.source {
            Source::Safetensors(file) => file.texts().get(METADATA_KEY).map(String::as_str),
            Source::Torch(file) => file.metadata(),
            Source::Memory(_) => None,
        }
    }

    /// The container the file is in.
    #[must_use]
    pub fn container(&self) -> Container {
        match self.source {
            Source::Safetensors(_) | Source::Memory(_) => Container::Safetensors,
            Source::Torch(_) => Container::Torch,
        }
    }

    /// The keys that lead from the top object to the state dict, joined by
    /// dots, such as `model`; `None` when the tensors stand at the top.
    #[must_use]
    pub fn wrapper(&self) -> Option<&str> {
        match &self.source {
            Source::Safetensors(_) | Source::Memory(_) => None,
            Source::Torch(file) => file.wrapper(),
        }
    }

    /// The file that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file holds that will be left out when it is written again, one
    /// sentence each, such as the state of an optimiser.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match &self.source {
            Source::Safetensors(_) | Source::Memory(_) => &[],
            Source::Torch(file) => file.notes(),
        }
    }

    /// Writes the checkpoint to `path` with the tensors in `changed` replaced;
    /// element type and shape may differ from those in the file.
    ///
    /// All other tensors keep their bytes. A Torch file made from a Torch file
    /// keeps its wrapper, the order and `_metadata` of its state dict, and the
    /// plain data beside it; a safetensors file made from a safetensors file
    /// keeps the texts in its header. Across containers only the tensors go.
    /// `metadata` takes the place of the text that [`Archive::metadata`] gave;
    /// when empty, none is stored.
    ///
    /// The file appears whole or not at all: it is written beside its place and
    /// then renamed, replacing a file that was there. Equal contents and file
    /// name give equal bytes.
    ///
    /// # Errors
    /// The path is that of the file being read, of a folder or in a missing
    /// folder; a changed tensor is not in the file, or its bytes do not fill its
    /// shape; the container cannot hold an element type or a name; reading or
    /// writing fails.
    pub fn write(
        &self,
        path: &Path,
        container: Container,
        changed: &BTreeMap<String, RawTensor>,
        metadata: &str,
    ) -> Result<(), ArchiveError> {
        self.write_accepted(path, container, (changed, metadata), |_| Ok(()))
    }

    /// As [`Archive::write`]; the finished file is shown to `accept`, under its temporary name,
    /// before it takes its place.
    pub(super) fn write_accepted<E: From<ArchiveError>>(
        &self,
        path: &Path,
        container: Container,
        (changed, metadata): (&BTreeMap<String, RawTensor>, &str),
        accept: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        for (name, tensor) in changed {
            if !self.contains(name) {
                return Err(self.no_such_tensor(name).into());
            }
            tensor.check(name)?;
        }
        let contents = Contents {
            archive: self,
            changed,
            metadata,
        };
        Destination::new(path, &[&self.path])?.write(
            |out| match container {
                Container::Safetensors => Ok(safetensors_file::write(out, path, &contents)?),
                Container::Torch => Ok(torch_file::writer::write(out, path, &contents)?),
            },
            accept,
        )
    }

    fn no_such_tensor(&self, name: &str) -> ArchiveError {
        ArchiveError::NoSuchTensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
        }
    }
}

/// Writes one array of f64 as a safetensors file, whole or not at all.
///
/// # Errors
/// The path is that of a folder or in a missing folder; writing fails.
pub fn write_array(
    path: &Path,
    name: &str,
    shape: &[usize],
    values: &[f64],
) -> Result<(), ArchiveError> {
    let tensor = RawTensor::from_f64(Dtype::F64, shape.to_vec(), values);
    write_arrays(path, &[(name, tensor)])
}

/// Writes arrays as a safetensors file, whole or not at all.
///
/// # Errors
/// As [`write_array`]; also when bytes do not fill their shape.
pub fn write_arrays(path: &Path, arrays: &[(&str, RawTensor)]) -> Result<(), ArchiveError> {
    write_arrays_with(path, arrays, None)
}

/// As [`write_arrays`], with a text that [`Archive::metadata`] gives back.
///
/// # Errors
/// As [`write_arrays`].
pub fn write_arrays_with(
    path: &Path,
    arrays: &[(&str, RawTensor)],
    metadata: Option<&str>,
) -> Result<(), ArchiveError> {
    let destination = Destination::new(path, &[])?;
    let failed = |error| destination.failed(io::Error::other(error));
    let mut views = Vec::with_capacity(arrays.len());
    for (name, array) in arrays {
        let (dtype, shape) = (array.dtype, array.shape.clone());
        let view = safetensors::tensor::TensorView::new(dtype, shape, &array.bytes);
        views.push((*name, view.map_err(failed)?));
    }
    // One key: a map of several would be written in a random order.
    let metadata = metadata.map(|text| HashMap::from([(METADATA_KEY.into(), text.into())]));
    let bytes = safetensors::serialize(views, metadata).map_err(failed)?;
    destination.write(
        |out| {
            out.write_all(&bytes)
                .map_err(|error| destination.failed(error))
        },
        |_| Ok(()),
    )
}

/// Writes a text, whole or not at all.
///
/// # Errors
/// As [`write_array`].
pub fn write_text(path: &Path, text: &str) -> Result<(), ArchiveError> {
    let destination = Destination::new(path, &[])?;
    destination.write(
        |out| {
            out.write_all(text.as_bytes())
                .map_err(|error| destination.failed(error))
        },
        |_| Ok(()),
    )
}

/// What is to be written: an archive with some tensors replaced.
pub(super) struct Contents<'a> {
    archive: &'a Archive,
    changed: &'a BTreeMap<String, RawTensor>,
    metadata: &'a str,
}

impl<'a> Contents<'a> {
    /// Names, element types and shapes, sorted by name.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&'a str, Dtype, &'a [usize])> {
        let changed = self.changed;
        self.archive
            .tensors
            .iter()
            .map(move |(name, (dtype, shape))| match changed.get(name) {
                Some(tensor) => (name.as_str(), tensor.dtype, tensor.shape.as_slice()),
                None => (name.as_str(), *dtype, shape.as_slice()),
            })
    }

    /// One tensor, from the changes or from the file.
    pub(super) fn tensor(&self, name: &str) -> Result<Cow<'a, RawTensor>, ArchiveError> {
        match self.changed.get(name) {
            Some(tensor) => Ok(Cow::Borrowed(tensor)),
            None => self.archive.tensor(name).map(Cow::Owned),
        }
    }

    /// What surrounded the tensors in a Torch file.
    pub(super) fn document(&self) -> Option<&'a Document> {
        match &self.archive.source {
            Source::Safetensors(_) | Source::Memory(_) => None,
            Source::Torch(file) => Some(file.document()),
        }
    }

    /// The texts in the header of a safetensors file.
    pub(super) fn texts(&self) -> BTreeMap<&'a str, &'a str> {
        match &self.archive.source {
            Source::Safetensors(file) => file
                .texts()
                .iter()
                .map(|(key, text)| (key.as_str(), text.as_str()))
                .collect(),
            Source::Torch(_) | Source::Memory(_) => BTreeMap::new(),
        }
    }

    /// Our own text, empty when none is to be stored.
    pub(super) fn metadata(&self) -> &'a str {
        self.metadata
    }
}

/// Opens a file and reads the bytes that tell its format.
fn open_file(path: &Path) -> Result<(File, Vec<u8>), ArchiveError> {
    let read = |source| ArchiveError::Read {
        path: path.to_owned(),
        source,
    };
    // On some systems a folder can be opened, and only fails when it is read.
    if path.is_dir() {
        return Err(ArchiveError::Folder {
            path: path.to_owned(),
        });
    }
    // Opening a pipe without a writer would wait for ever.
    if std::fs::metadata(path).map_err(read)?.is_file() {
        let mut file = File::open(path).map_err(read)?;
        let start = first_bytes(&mut file).map_err(read)?;
        return match start.is_empty() {
            true => Err(ArchiveError::Empty {
                path: path.to_owned(),
            }),
            false => Ok((file, start)),
        };
    }
    Err(ArchiveError::NotAFile {
        path: path.to_owned(),
    })
}
/// Enough of a file to tell its format by.
fn first_bytes(file: &mut File) -> io::Result<Vec<u8>> {
    /// Up to the magic of a tar file.
    const START: u64 = 263;
    let mut start = Vec::new();
    file.take(START).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start)
}

/// Names a format that cannot be read, as precisely as its first bytes allow.
fn foreign_format(path: &Path, start: &[u8]) -> ArchiveError {
    /// The integer 0x1950a86a20f9469cfc6c, by which legacy files begin.
    const LEGACY: [u8; 12] = [
        0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19,
    ];
    let path = path.to_owned();
    // Behind the two bytes that declare the protocol.
    let is_legacy_pickle = start.first() == Some(&0x80)
        && start.get(2..).is_some_and(|rest| rest.starts_with(&LEGACY));
    let is_tar = start
        .get(257..)
        .is_some_and(|rest| rest.starts_with(b"ustar"));
    if is_legacy_pickle || is_tar {
        return ArchiveError::LegacyTorch { path };
    }
    if start.starts_with(b"version https://git-lfs") {
        return ArchiveError::GitLfsPointer { path };
    }
    let first = &start[..start.len().min(16)];
    let found = format!("it starts with \"{}\"", first.escape_ascii());
    ArchiveError::UnknownFormat { path, found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A safetensors file with an `f32` pair `a.w` and a 4-bit pair `b`.
    const SAMPLE: &str = r#"{"a.w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F4","shape":[2],"data_offsets":[8,9]}}"#;
    /// The same without `b`.
    const PORTABLE: &str = r#"{"a.w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

    fn sample(folder: &TempDir, header: &str, data: &[u8]) -> Archive {
        let path = folder.path().join("model.safetensors");
        let length = (header.len() as u64).to_le_bytes();
        std::fs::write(&path, [&length, header.as_bytes(), data].concat()).unwrap();
        Archive::open(&path).unwrap()
    }

    fn open_bytes(bytes: &[u8]) -> ArchiveError {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("model.pth");
        std::fs::write(&path, bytes).unwrap();
        Archive::open(&path).unwrap_err()
    }

    fn files_in(folder: &TempDir) -> Vec<String> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn none() -> BTreeMap<String, RawTensor> {
        BTreeMap::new()
    }

    #[test]
    fn extensions_stand_for_containers() {
        let cases = [
            ("a.safetensors", Some(Container::Safetensors)),
            ("a.PTH", Some(Container::Torch)),
            ("a.pt", Some(Container::Torch)),
            ("a.ckpt", Some(Container::Torch)),
            ("a.bin", Some(Container::Torch)),
            ("a.onnx", None),
            ("pth", None),
        ];
        for (path, expected) in cases {
            assert_eq!(Container::of_path(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn files_of_other_formats_are_told_apart() {
        assert!(matches!(open_bytes(b""), ArchiveError::Empty { .. }));
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
        assert!(matches!(
            open_bytes(pointer),
            ArchiveError::GitLfsPointer { .. }
        ));
        let legacy = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
        assert!(matches!(
            open_bytes(legacy),
            ArchiveError::LegacyTorch { .. }
        ));
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert!(matches!(open_bytes(&tar), ArchiveError::LegacyTorch { .. }));
        let hdf5 = b"\x89HDF\r\n\x1a\n\0\0\0";
        let error = open_bytes(hdf5);
        assert!(matches!(error, ArchiveError::UnknownFormat { .. }));
        let message = error.to_string();
        assert!(message.contains(r"\x89HDF\r\n\x1a\n\x00"), "{message}");
        assert!(matches!(
            open_bytes(b"\x80"),
            ArchiveError::UnknownFormat { .. }
        ));
    }

    #[test]
    fn a_folder_and_a_missing_file_are_told_apart() {
        let folder = TempDir::new().unwrap();
        let error = Archive::open(folder.path()).unwrap_err();
        assert!(matches!(error, ArchiveError::Folder { .. }));
        let error = Archive::open(&folder.path().join("no.pth")).unwrap_err();
        let missing = matches!(&error, ArchiveError::Read { source, .. }
            if source.kind() == io::ErrorKind::NotFound);
        assert!(missing, "{error}");
    }

    #[test]
    fn an_unknown_tensor_is_an_error_to_read_and_to_replace() {
        let folder = TempDir::new().unwrap();
        let archive = sample(&folder, PORTABLE, &[1; 8]);
        let error = archive.tensor("a").unwrap_err();
        assert!(matches!(error, ArchiveError::NoSuchTensor { .. }));
        let changed = BTreeMap::from([("a".to_owned(), archive.tensor("a.w").unwrap())]);
        let path = folder.path().join("out.pth");
        let error = archive.write(&path, Container::Torch, &changed, "");
        assert!(matches!(error, Err(ArchiveError::NoSuchTensor { .. })));
    }

    #[test]
    fn tensors_survive_every_way_between_the_containers() {
        let folder = TempDir::new().unwrap();
        let source = sample(&folder, PORTABLE, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let both = [Container::Safetensors, Container::Torch];
        for first in both {
            let one = folder.path().join("one");
            source.write(&one, first, &none(), "{\"r\":4}").unwrap();
            let one = Archive::open(&one).unwrap();
            assert_eq!(one.container(), first);
            for second in both {
                let two = folder.path().join("two");
                one.write(&two, second, &none(), "{}").unwrap();
                let two = Archive::open(&two).unwrap();
                assert_eq!(two.container(), second);
                assert_eq!(one.metadata(), Some("{\"r\":4}"));
                assert_eq!(two.metadata(), Some("{}"));
                assert!(two.names().eq(source.names()));
                assert_eq!(two.tensor("a.w").unwrap(), source.tensor("a.w").unwrap());
            }
        }
    }

    #[test]
    fn every_element_type_of_pytorch_survives_in_a_torch_file() {
        use Dtype::*;
        let all = [
            BOOL,
            U8,
            I8,
            I16,
            U16,
            I32,
            U32,
            I64,
            U64,
            F16,
            BF16,
            F32,
            F64,
            C64,
            F8_E4M3,
            F8_E5M2,
            F8_E8M0,
            F8_E4M3FNUZ,
            F8_E5M2FNUZ,
        ];
        let folder = TempDir::new().unwrap();
        let source = sample(&folder, PORTABLE, &[1; 8]);
        let path = folder.path().join("out.pth");
        for dtype in all {
            for shape in [vec![], vec![2, 3], vec![0, 2]] {
                let count: usize = shape.iter().product();
                let bytes = (0..count * dtype.bitsize() / 8).map(|i| i as u8).collect();
                let tensor = RawTensor {
                    dtype,
                    shape,
                    bytes,
                };
                let changed = BTreeMap::from([("a.w".to_owned(), tensor)]);
                source.write(&path, Container::Torch, &changed, "").unwrap();
                let read = Archive::open(&path).unwrap().tensor("a.w").unwrap();
                assert_eq!(read, changed["a.w"]);
            }
        }
    }

    #[test]
    fn equal_contents_give_equal_bytes() {
        let folder = TempDir::new().unwrap();
        let source = sample(&folder, PORTABLE, &[1; 8]);
        for container in [Container::Safetensors, Container::Torch] {
            let path = folder.path().join("out");
            source.write(&path, container, &none(), "{}").unwrap();
            let first = std::fs::read(&path).unwrap();
            source.write(&path, container, &none(), "{}").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), first);
        }
    }

    #[test]
    fn records_are_aligned_as_pytorch_aligns_them() {
        let folder = TempDir::new().unwrap();
        let source = sample(&folder, PORTABLE, b"alignedx");
        let path = folder.path().join("out.pth");
        source.write(&path, Container::Torch, &none(), "").unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(8).position(|eight| eight == b"alignedx");
        assert_eq!(at.unwrap() % 64, 0);
    }

    #[test]
    fn a_failed_attempt_leaves_nothing_behind() {
        let folder = TempDir::new().unwrap();
        let source = sample(&folder, SAMPLE, &[1; 9]);
        let path = folder.path().join("out.pth");
        let error = source.write(&path, Container::Torch, &none(), "");
        let lacking =
            matches!(&error, Err(ArchiveError::NoTorchDtype { tensor, .. }) if tensor == "b");
        assert!(lacking);
        // The source is cut short after it was opened.
        let cut = std::fs::OpenOptions::new().write(true).open(source.path());
        let cut = cut.unwrap();
        cut.set_len(cut.metadata().unwrap().len() - 1).unwrap();
        let error = source.write(&path, Container::Safetensors, &none(), "");
        assert!(matches!(error, Err(ArchiveError::Read { .. })));
        assert_eq!(files_in(&folder), ["model.safetensors"]);
    }

    #[test]
    fn destinations_that_cannot_be_are_refused() {
        let folder = TempDir::new().unwrap();
        let source = sample(&folder, PORTABLE, &[1; 8]);
        let write = |path: &Path| {
            let written = source.write(path, Container::Safetensors, &none(), "");
            written.unwrap_err()
        };
        let error = write(&folder.path().join("no/out.pth"));
        assert!(
            matches!(&error, ArchiveError::MissingFolder { folder, .. } if folder.ends_with("no"))
        );
        let error = write(folder.path());
        assert!(matches!(error, ArchiveError::Folder { .. }));
        let error = write(&folder.path().join("./model.safetensors"));
        assert!(matches!(error, ArchiveError::SameFile { .. }));
        assert_eq!(files_in(&folder), ["model.safetensors"]);
    }

    #[test]
    fn changed_tensors_must_fill_their_shape() {
        let folder = TempDir::new().unwrap();
        let source = sample(&folder, PORTABLE, &[1; 8]);
        let mut tensor = source.tensor("a.w").unwrap();
        tensor.shape = vec![3];
        let changed = BTreeMap::from([("a.w".to_owned(), tensor)]);
        let path = folder.path().join("out.pth");
        let error = source.write(&path, Container::Torch, &changed, "");
        assert!(matches!(error, Err(ArchiveError::TensorBytes { .. })));
    }

    #[test]
    fn an_archive_can_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Archive>();
    }

    #[cfg(unix)]
    #[test]
    fn the_umask_decides_who_may_read_the_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = TempDir::new().unwrap();
        let source = sample(&folder, PORTABLE, &[1; 8]);
        let path = folder.path().join("out.safetensors");
        source
            .write(&path, Container::Safetensors, &none(), "")
            .unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(source.path()));
    }
}
