//! The file formats, and which endings stand for them.

use std::ffi::OsStr;
use std::path::Path;

/// How the index of a sharded checkpoint ends.
const INDEX_ENDING: &str = ".index.json";
/// How it ends where its files are those of PyTorch.
const TORCH_INDEX_ENDING: &str = ".bin.index.json";

/// What an index is called.
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// What programs call the checkpoint in a folder, the first that is there.
pub(crate) const USUAL: [&str; 4] = [
    INDEX_NAME,
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
];

/// A file format for named tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Container {
    /// The safetensors format.
    Safetensors,
    /// Several safetensors files beside an index that names the file of each tensor.
    Sharded,
    /// The zip format of `torch.save`.
    Torch,
    /// The zip format of `numpy.savez`.
    Npz,
    /// The MessagePack format of `flax.serialization`.
    Msgpack,
}

impl Container {
    /// The container that a file's ending stands for, in upper or lower case: `.safetensors`;
    /// `.index.json`; `.pt`, `.pth`, `.ckpt`, `.bin`; `.npz`; `.msgpack`, `.flax`. `None` for
    /// others.
    #[must_use]
    pub fn of_path(path: impl AsRef<Path>) -> Option<Container> {
        let path = path.as_ref();
        let extension = path.extension().and_then(OsStr::to_str)?;
        match extension.to_ascii_lowercase().as_str() {
            "safetensors" => Some(Container::Safetensors),
            "json" if is_index(path) => Some(Container::Sharded),
            "pt" | "pth" | "ckpt" | "bin" => Some(Container::Torch),
            "npz" => Some(Container::Npz),
            "msgpack" | "flax" => Some(Container::Msgpack),
            _ => None,
        }
    }
}

/// Whether the files of an index are those of PyTorch, by its ending.
pub(crate) fn is_torch_index(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.to_ascii_lowercase().ends_with(TORCH_INDEX_ENDING))
}

/// Whether a path is that of the index of a sharded checkpoint, by its ending.
pub(crate) fn is_index(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.to_ascii_lowercase().ends_with(INDEX_ENDING))
}
