//! What can be wrong with a container of tensors, or with the place for a new one.

use std::io;
use std::path::{Path, PathBuf};

use crate::foreign::{ForeignFormat, quoted};
use crate::msgpack_file::MsgpackError;
use crate::npz_file::NpyError;
use crate::pickle::PickleError;
use crate::sharded_file::ShardError;
use crate::tensor::{Dtype, TensorError};

/// What is understood, for messages.
const UNDERSTOOD: &str = "a safetensors file, the index of several files, a zip file of torch.save \
                          (PyTorch 1.6 or later) or numpy.savez, or MessagePack of flax";

/// Why a checkpoint cannot be read or written.
///
/// What the system or another crate reported is the error's source and not in
/// its message; print the whole chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The file cannot be opened or read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system reported.
        source: io::Error,
    },
    /// The path is that of a folder, and no checkpoint in it can be meant.
    #[error("{}: is a folder{}", path.display(), which(path, found))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The checkpoints in it, where there are several and none has a usual name.
        found: Vec<String>,
    },
    /// A folder to be written holds a checkpoint that would stand beside the new one.
    #[error(
        "{}: holds another checkpoint (`{file}`), expected a new folder, or one with the same files",
        path.display()
    )]
    OtherCheckpoint {
        /// The folder to be written.
        path: PathBuf,
        /// The checkpoint in it.
        file: String,
    },
    /// The path is that of something else than a folder.
    #[error("{}: is no folder, expected one for the files of a sharded checkpoint", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The file has no bytes.
    #[error("{}: the file is empty, expected {UNDERSTOOD}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is a pointer left by Git LFS instead of the checkpoint.
    #[error(
        "{}: is a Git LFS pointer, not the checkpoint itself; fetch it with `git lfs pull`",
        path.display()
    )]
    GitLfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by PyTorch before 1.6, or with its legacy format.
    #[error(
        "{}: is in the format of PyTorch before 1.6, expected {UNDERSTOOD}; convert it in a recent \
         PyTorch with `torch.save(torch.load(path), new_path)`",
        path.display()
    )]
    LegacyTorch {
        /// The file.
        path: PathBuf,
    },
    /// The file is a TorchScript program, not a state dict.
    #[error(
        "{}: is a TorchScript archive, expected a state dict; write one with \
         `torch.save(torch.jit.load(path).state_dict(), new_path)`",
        path.display()
    )]
    TorchScript {
        /// The file.
        path: PathBuf,
    },
    /// The file or folder is in a format that is known and not read.
    #[error("{}: is {format}, which is not read here; {}", path.display(), format.way(path))]
    ForeignFormat {
        /// The file or folder.
        path: PathBuf,
        /// Its format.
        format: ForeignFormat,
    },
    /// The file is in no format we know.
    #[error("{}: unknown format ({found}), expected {UNDERSTOOD}", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// How the file starts.
        found: String,
    },

    /// The header's length is beyond the file or beyond the format's limit.
    #[error(
        "{}: the safetensors header has {found} bytes, expected at most {limit}",
        path.display()
    )]
    SafetensorsHeaderLength {
        /// The file.
        path: PathBuf,
        /// The length declared.
        found: u64,
        /// What the file or the format leaves room for.
        limit: u64,
    },
    /// The header is malformed, or contradicts itself.
    #[error("{}: the safetensors header is malformed", path.display())]
    SafetensorsHeader {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The data are longer or shorter than the header declares.
    #[error(
        "{}: the file has {found} bytes of data, its safetensors header announces {expected}",
        path.display()
    )]
    SafetensorsData {
        /// The file.
        path: PathBuf,
        /// Bytes behind the header.
        found: u64,
        /// Bytes that the header announces.
        expected: u64,
    },
    /// A tensor's name is one that the safetensors format keeps for itself.
    #[error("{}: tensor `{tensor}` has a name that safetensors reserves", path.display())]
    ReservedName {
        /// The file to be written.
        path: PathBuf,
        /// The name.
        tensor: String,
    },

    /// The files of a sharded checkpoint do not make one.
    #[error("{}: the sharded checkpoint is incomplete or malformed", path.display())]
    Sharded {
        /// The index.
        path: PathBuf,
        /// What is wrong.
        source: Box<ShardError>,
    },
    /// An array of a file of `numpy.savez` cannot be read.
    #[error("{}: array `{array}` cannot be read", path.display())]
    Npy {
        /// The file.
        path: PathBuf,
        /// The array.
        array: String,
        /// What is wrong with it.
        source: Box<NpyError>,
    },
    /// The MessagePack file is malformed, or not as flax writes it.
    #[error("{}: the MessagePack file is not as flax writes it", path.display())]
    Msgpack {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<MsgpackError>,
    },

    /// The zip container is damaged, most often cut short.
    #[error("{}: the zip container is damaged or cut short", path.display())]
    Zip {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A record of the zip file cannot be read, or fails its checksum.
    #[error("{}: record `{record}` cannot be read", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The record.
        record: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A record of the zip file is compressed or encrypted.
    #[error(
        "{}: record `{record}` is compressed or encrypted, expected it stored plain, as torch.save \
         and numpy.savez (not savez_compressed) do",
        path.display()
    )]
    CompressedRecord {
        /// The file.
        path: PathBuf,
        /// The record.
        record: String,
    },
    /// A record claims to be longer than the file.
    #[error("{}: record `{record}` claims {expected} bytes, the file has {found}", path.display())]
    RecordLength {
        /// The file.
        path: PathBuf,
        /// The record.
        record: String,
        /// Bytes there are.
        found: u64,
        /// Bytes claimed.
        expected: u64,
    },
    /// Two records have the same name.
    #[error("{}: two records of the zip file have the same name", path.display())]
    DuplicateRecord {
        /// The file.
        path: PathBuf,
    },
    /// More than one pickle in the zip file.
    #[error("{}: the zip file has {found} records `data.pkl`, expected one", path.display())]
    SeveralPickles {
        /// The file.
        path: PathBuf,
        /// How many there are.
        found: usize,
    },
    /// The numbers are not little endian.
    #[error("{}: the byte order is `{found}`, expected `little`", path.display())]
    ByteOrder {
        /// The file.
        path: PathBuf,
        /// The order declared.
        found: String,
    },

    /// The pickle is longer than that of any checkpoint.
    #[error("{}: the pickle has {found} bytes, expected at most {limit}", path.display())]
    PickleLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The pickle is malformed.
    #[error("{}: the pickle is malformed", path.display())]
    Pickle {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: PickleError,
    },
    /// The pickle wants Python to import and call something.
    #[error(
        "{}: the file wants to call `{name}`, but hankelite never runs code from a checkpoint; \
         save the tensors only, with `torch.save(model.state_dict(), path)`",
        path.display()
    )]
    ForeignCode {
        /// The file.
        path: PathBuf,
        /// Module and name.
        name: String,
    },
    /// The top object, or a wrapper, is no dictionary.
    #[error("{}: the file holds a value of type `{found}`, expected a dictionary of tensors", path.display())]
    NotADict {
        /// The file.
        path: PathBuf,
        /// Python's word for it.
        found: &'static str,
    },
    /// No dictionary of tensors in the file.
    #[error(
        "{}: no tensors of a model found (the file has {found}), expected a state dict",
        path.display()
    )]
    NoTensors {
        /// The file.
        path: PathBuf,
        /// The keys there are.
        found: String,
    },
    /// Several dictionaries of tensors and none has a usual name.
    #[error(
        "{}: several entries hold tensors ({found}), expected one, or one called \
         `model_state_dict`, `state_dict`, `model`, `net` or `network`",
        path.display()
    )]
    SeveralStateDicts {
        /// The file.
        path: PathBuf,
        /// The entries.
        found: String,
    },
    /// No entry of the top object with tensors has the name that was asked for.
    #[error("{}: no set of weights is called `{set}`, expected one of {found}", path.display())]
    NoSuchSet {
        /// The file.
        path: PathBuf,
        /// The name.
        set: String,
        /// The entries.
        found: String,
    },
    /// A list in the state dict holds tensors.
    #[error(
        "{}: entry `{entry}` is a `{found}` with tensors in it, expected a tensor or a dictionary",
        path.display()
    )]
    TensorsInside {
        /// The file.
        path: PathBuf,
        /// The entry.
        entry: String,
        /// Python's word for it.
        found: &'static str,
    },
    /// A tensor has a key that is neither text nor a number.
    #[error("{}: a tensor in `{outer}` has a key of type `{found}`, expected text", path.display())]
    TensorKey {
        /// The file.
        path: PathBuf,
        /// Python's word for the key.
        found: &'static str,
        /// The dictionary it stands in; empty for the state dict itself.
        outer: String,
    },
    /// Two tensors have the same flat name.
    #[error("{}: two tensors are called `{tensor}`", path.display())]
    DuplicateTensor {
        /// The file.
        path: PathBuf,
        /// The name.
        tensor: String,
    },
    /// The description of a tensor is malformed.
    #[error("{}: tensor `{tensor}` is malformed: it has {found}", path.display())]
    TensorForm {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What it has.
        found: &'static str,
    },
    /// The elements of a tensor are of a type that is not supported.
    #[error(
        "{}: tensor `{tensor}` is stored as `{found}`, expected real elements, integers, booleans \
         or complex64",
        path.display()
    )]
    TensorStorage {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// PyTorch's name for the storage, type or function.
        found: String,
    },
    /// The bytes of a tensor are missing from the file.
    #[error("{}: tensor `{tensor}` lies in record `{record}`, which is missing", path.display())]
    MissingRecord {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The record.
        record: String,
    },
    /// A tensor reaches beyond its storage.
    #[error(
        "{}: tensor `{tensor}` of shape {shape:?} reaches beyond its record of {length} bytes",
        path.display()
    )]
    OutsideRecord {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes in the record.
        length: u64,
    },

    /// There is no tensor of that name.
    #[error("{}: there is no tensor `{tensor}`", path.display())]
    NoSuchTensor {
        /// The file.
        path: PathBuf,
        /// The name requested.
        tensor: String,
    },
    /// A tensor whose bytes do not fill its shape, or with other elements than are needed.
    #[error("tensor `{tensor}` has {fault}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        fault: TensorError,
    },
    /// The container has no such element type.
    #[error("{}: tensor `{tensor}` has dtype {found}, which {container} files lack", path.display())]
    NoDtype {
        /// The file to be written.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its element type.
        found: Dtype,
        /// The container.
        container: &'static str,
    },
    /// A tensor is longer than the container allows.
    #[error(
        "{}: tensor `{tensor}` has {found} bytes, more than a MessagePack file can hold in one piece",
        path.display()
    )]
    TensorTooLong {
        /// The file to be written.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its length.
        found: usize,
    },
    /// The folder to write into does not exist.
    #[error("{}: the folder {} does not exist", path.display(), folder.display())]
    MissingFolder {
        /// The file to be written.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// A device, a pipe or a socket where a file is meant.
    #[error("{}: is a device or a pipe, expected a regular file", path.display())]
    NotAFile {
        /// What is there.
        path: PathBuf,
    },
    /// The file to be written is the one being read.
    #[error("{}: is being read, expected another path to write to", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// The name of a file to be written is that of something else.
    #[error(
        "{}: the ending `.{ending}` stands for {what}, which is not written here, expected \
         .safetensors, .safetensors.index.json, .pt, .pth, .ckpt, .bin, .npz, .msgpack or .flax",
        path.display()
    )]
    ForeignEnding {
        /// The file to be written.
        path: PathBuf,
        /// In lower case, without its dot.
        ending: String,
        /// What it stands for.
        what: &'static str,
    },
    /// The file to be written is there, and nobody may write to it.
    #[error(
        "{}: is write-protected, expected a file that may be replaced; choose another name, or \
         allow it with `chmod u+w {}`",
        path.display(), quoted(path)
    )]
    WriteProtected {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written; nothing is left of the attempt.
    #[error("{}: cannot be written", path.display())]
    Write {
        /// The file to be written.
        path: PathBuf,
        /// What the system reported.
        source: io::Error,
    },
}

/// What a folder has too much of, or lacks.
fn which(path: &Path, found: &[String]) -> String {
    match found.first() {
        Some(first) => format!(
            " with several checkpoints ({}), expected one; name the one that is meant: `{}`",
            found.join(", "),
            quoted(&path.join(first))
        ),
        None => ", expected a file (to read, also a folder with one index `*.index.json`, one \
                 `*.safetensors` or a `pytorch_model.bin`)"
            .to_owned(),
    }
}

impl ArchiveError {
    /// A folder where a file is meant.
    pub(crate) fn folder(path: impl Into<PathBuf>) -> ArchiveError {
        ArchiveError::Folder {
            path: path.into(),
            found: Vec::new(),
        }
    }

    /// Whether the message names the file. A tensor in memory does not know where it came from.
    pub fn names_file(&self) -> bool {
        !matches!(self, ArchiveError::Tensor { .. })
    }

    /// The system could not read a file, or a part of it.
    pub(crate) fn read(path: &Path) -> impl Fn(io::Error) -> ArchiveError + '_ {
        |source| ArchiveError::Read {
            path: path.to_owned(),
            source,
        }
    }

    /// The system could not write a file.
    pub(crate) fn write(path: &Path) -> impl Fn(io::Error) -> ArchiveError + '_ {
        |source| ArchiveError::Write {
            path: path.to_owned(),
            source,
        }
    }
}

impl TensorError {
    /// The error with the name of the tensor.
    pub fn of(self, tensor: &str) -> ArchiveError {
        ArchiveError::Tensor {
            tensor: tensor.to_owned(),
            fault: self,
        }
    }
}
