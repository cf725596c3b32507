//! Which names may stand in the pickle of a checkpoint, and of which it is known what they make.

use crate::torch_file::{STORAGES, UNTYPED};

/// Calls that stand for a tensor.
pub(super) const TENSOR_CALLS: [&str; 4] = [
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_qtensor",
];

/// Calls that wrap a tensor, given as their first argument.
pub(super) const PARAMETER_CALLS: [&str; 2] = [
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
/// of what was requested, and what they make up is left out when writing.
const INERT: [&str; 16] = [
    "torch.Size",
    "torch.device",
    "torch.serialization._get_layout",
    "collections.OrderedDict",
    "collections.Counter",
    "collections.defaultdict",
    "collections.deque",
    "_codecs.encode",
    "numpy.dtype",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "argparse.Namespace",
    "pathlib.PosixPath",
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "lightning.fabric.utilities.data.AttributeDict",
];

/// The modules of Python's own names, as Python 2 and Python 3 call them.
const BUILTINS: [&str; 2] = ["__builtin__", "builtins"];

/// Python's own names that settings hold: types, and functions that run no text as a program, open
/// nothing and change no object.
const HARMLESS: [&str; 47] = [
    "abs",
    "all",
    "any",
    "bool",
    "bytearray",
    "bytes",
    "callable",
    "chr",
    "complex",
    "dict",
    "divmod",
    "enumerate",
    "filter",
    "float",
    "format",
    "frozenset",
    "getattr",
    "hash",
    "int",
    "isinstance",
    "issubclass",
    "iter",
    "len",
    "list",
    "long",
    "map",
    "max",
    "min",
    "next",
    "object",
    "ord",
    "pow",
    "print",
    "range",
    "repr",
    "reversed",
    "round",
    "set",
    "slice",
    "sorted",
    "str",
    "sum",
    "tuple",
    "type",
    "unicode",
    "xrange",
    "zip",
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
pub(super) fn allowed(name: &str) -> bool {
    let package = name.split('.').next().unwrap_or(name);
    is_known(name) || !FORBIDDEN.contains(&package)
}

/// Whether it is understood what a name stands for.
pub(super) fn is_known(name: &str) -> bool {
    INERT.contains(&name)
        || python_name(name).is_some_and(|name| HARMLESS.contains(&name))
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

/// What one of Python's own names is called in its module.
pub(super) fn python_name(name: &str) -> Option<&str> {
    let (module, name) = name.split_once('.')?;
    BUILTINS.contains(&module).then_some(name)
}
