//! Endings that stand for files of another kind: nothing is written under such a name.

use std::ffi::OsStr;
use std::path::Path;

use crate::container::{is_index, is_torch_index};
use crate::error::ArchiveError;

/// A kind of file, by its endings in lower case.
struct Kind {
    endings: &'static [&'static str],
    what: &'static str,
}

const fn kind(endings: &'static [&'static str], what: &'static str) -> Kind {
    Kind { endings, what }
}

const KINDS: [Kind; 25] = [
    kind(&["onnx", "ort"], "ONNX"),
    kind(&["tflite"], "TensorFlow Lite"),
    kind(&["pb", "pbtxt", "meta"], "TensorFlow"),
    kind(&["h5", "hdf5", "hdf"], "HDF5"),
    kind(&["keras"], "Keras"),
    kind(&["gguf", "ggml"], "llama.cpp"),
    kind(&["mlmodel", "mlpackage", "mlmodelc"], "Core ML"),
    kind(&["pt2"], "torch.export"),
    kind(&["pte", "ptd"], "ExecuTorch"),
    kind(&["ptl", "torchscript", "jit"], "TorchScript"),
    kind(&["engine", "trt", "plan"], "TensorRT"),
    kind(&["xml"], "OpenVINO"),
    kind(&["pdparams", "pdmodel"], "PaddlePaddle"),
    kind(&["mat"], "MATLAB"),
    kind(&["npy"], "a single array of NumPy"),
    kind(&["pkl", "pickle", "joblib"], "pickled Python objects"),
    kind(
        &["h", "hpp", "hh", "c", "cc", "cpp", "rs", "py"],
        "source text",
    ),
    kind(
        &["a", "o", "so", "dll", "exe", "hex", "elf"],
        "machine code",
    ),
    kind(&["edge"], "an image for a device"),
    kind(
        &["html", "htm", "pdf", "md", "txt", "tex"],
        "text for a person",
    ),
    kind(&["svg", "png", "jpg", "jpeg"], "a picture"),
    kind(&["csv", "tsv", "parquet", "arrow"], "a table"),
    kind(
        &["json", "jsonl", "toml", "yaml", "yml"],
        "settings or a record",
    ),
    kind(
        &["tar", "tgz", "gz", "zip", "bz2", "xz", "zst", "7z"],
        "packed files",
    ),
    kind(&["wav", "flac", "mp3"], "sound"),
];

/// Refuses a name by which people and programs would take a checkpoint for something else.
pub(crate) fn require_own_ending(path: &Path) -> Result<(), ArchiveError> {
    let Some(name) = path.file_name().and_then(OsStr::to_str) else {
        return Ok(());
    };
    let name = name.to_ascii_lowercase();
    let Some(what) = foreign(&name) else {
        return Ok(());
    };
    let ending = Path::new(&name).extension().and_then(OsStr::to_str);
    Err(ArchiveError::ForeignEnding {
        path: path.to_owned(),
        ending: ending.unwrap_or_default().to_owned(),
        what,
    })
}

/// What a name in lower case stands for, if it is something else than tensors.
fn foreign(name: &str) -> Option<&'static str> {
    let name = Path::new(name);
    // An index that is written is one of safetensors files.
    if is_torch_index(name) {
        return Some("the index of several .bin files");
    }
    if is_index(name) {
        return None;
    }
    let ending = name.extension().and_then(OsStr::to_str)?;
    let found = KINDS.iter().find(|kind| kind.endings.contains(&ending));
    found.map(|kind| kind.what)
}
