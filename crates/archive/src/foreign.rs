//! Formats that are known and not read, and how to get a file out of them that is.

use std::fmt;
use std::path::{Path, PathBuf};

/// A format that is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignFormat {
    /// A tar file that is not one of PyTorch before 1.6.
    Tar,
    /// A file compressed by gzip.
    Gzip,
    /// A program of `torch.export`.
    TorchExport,
    /// A folder of `torch.distributed.checkpoint`.
    TorchDistributed,
    /// A folder of orbax.
    Orbax,
    /// HDF5, as Keras writes it.
    Hdf5,
    /// The format of llama.cpp.
    Gguf,
    /// An image of this project, which devices run.
    Image,
}

/// The first member of a tar file of PyTorch before 0.1.12.
const LEGACY_MEMBERS: [&[u8]; 4] = [b"sys_info\0", b"pickle\0", b"storages\0", b"tensors\0"];

/// Whether a file that starts with these bytes is a tar file.
pub(crate) fn is_tar(start: &[u8]) -> bool {
    let magic = start.get(257..);
    magic.is_some_and(|rest| rest.starts_with(b"ustar"))
}

/// Whether a tar file that starts with these bytes is one of PyTorch.
pub(crate) fn is_legacy_tar(start: &[u8]) -> bool {
    is_tar(start) && LEGACY_MEMBERS.iter().any(|name| start.starts_with(name))
}

impl ForeignFormat {
    /// The format of a file by its first bytes.
    pub(crate) fn of_start(start: &[u8]) -> Option<ForeignFormat> {
        match start {
            _ if is_tar(start) => Some(ForeignFormat::Tar),
            [0x1f, 0x8b, ..] => Some(ForeignFormat::Gzip),
            _ if start.starts_with(b"\x89HDF\r\n\x1a\n") => Some(ForeignFormat::Hdf5),
            _ if start.starts_with(b"GGUF") => Some(ForeignFormat::Gguf),
            _ if start.starts_with(b"HKLE") => Some(ForeignFormat::Image),
            _ => None,
        }
    }

    /// The format of a folder by the files in it.
    pub(crate) fn of_folder(folder: &Path) -> Option<ForeignFormat> {
        let marks = [
            (".metadata", ForeignFormat::TorchDistributed),
            ("_CHECKPOINT_METADATA", ForeignFormat::Orbax),
            ("_METADATA", ForeignFormat::Orbax),
            ("manifest.ocdbt", ForeignFormat::Orbax),
        ];
        let mut marks = marks.into_iter();
        marks.find_map(|(name, format)| folder.join(name).is_file().then_some(format))
    }

    /// What to do with a file of this format, in one clause with a command for a shell.
    pub(crate) fn way(self, path: &Path) -> String {
        let output = |ending: &str| quoted(&beside(path, ending));
        let from = quoted(&match self {
            // What a manager of steps makes has the arrays one folder down.
            ForeignFormat::Orbax if path.join("default").is_dir() => path.join("default"),
            _ => path.to_owned(),
        });
        match self {
            ForeignFormat::Tar => {
                format!("unpack it with `tar -xf {from}` and give the checkpoint in it")
            }
            ForeignFormat::Gzip => format!("unpack it with `gzip -dc {from} > {}`", output("")),
            ForeignFormat::TorchExport => format!(
                "write its state dict with `{} {from} {}`",
                python(
                    "import sys, torch; torch.save(torch.export.load(sys.argv[1]).state_dict, \
                     sys.argv[2])"
                ),
                output("pth")
            ),
            ForeignFormat::TorchDistributed => format!(
                "make one file of it with `python -m torch.distributed.checkpoint.format_utils \
                 dcp_to_torch {from} {}`",
                output("pth")
            ),
            ForeignFormat::Orbax => format!(
                "write its arrays with `{} {from} {}`",
                python(
                    "import os, sys, flax.serialization as f, orbax.checkpoint as o; \
                     t = o.PyTreeCheckpointer().restore(os.path.abspath(sys.argv[1])); \
                     open(sys.argv[2], 'wb').write(f.to_bytes(t))"
                ),
                output("msgpack")
            ),
            ForeignFormat::Hdf5 => format!(
                "write its arrays with `{} {from} {}`",
                python(
                    "import sys, h5py, numpy; d = {}; h5py.File(sys.argv[1]).visititems(lambda n, \
                     o: d.update({n: o[()]}) if isinstance(o, h5py.Dataset) else None); \
                     numpy.savez(sys.argv[2], **d)"
                ),
                output("npz")
            ),
            ForeignFormat::Gguf => format!(
                "give the checkpoint that it was made of, or write its tensors with `{} {from} {}`",
                python(
                    "import sys, gguf, numpy; numpy.savez(sys.argv[2], **{t.name: \
                     gguf.dequantize(t.data, t.tensor_type) for t in \
                     gguf.GGUFReader(sys.argv[1]).tensors})"
                ),
                output("npz")
            ),
            ForeignFormat::Image => format!(
                "give the checkpoint it was made of; `compress-model stream {from}` runs it, \
                 `compress-model evaluate {from} --data DATA` scores it"
            ),
        }
    }
}

impl fmt::Display for ForeignFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ForeignFormat::Tar => "a tar file",
            ForeignFormat::Gzip => "compressed by gzip",
            ForeignFormat::TorchExport => "a program of torch.export",
            ForeignFormat::TorchDistributed => "a folder of torch.distributed.checkpoint",
            ForeignFormat::Orbax => "a folder of orbax",
            ForeignFormat::Hdf5 => "an HDF5 file, as Keras writes it",
            ForeignFormat::Gguf => "a GGUF file of llama.cpp",
            ForeignFormat::Image => "an image of hankelite for devices",
        })
    }
}

/// The path with another ending; never the same one.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let other = path.with_extension(ending);
    match other == path {
        true => path.with_file_name("unpacked").with_extension(ending),
        false => other,
    }
}

fn python(program: &str) -> String {
    format!("python -c \"{program}\"")
}

/// A path as a shell takes it.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=,+@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}
