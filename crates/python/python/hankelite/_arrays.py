"""Arrays of NumPy, torch and JAX as bytes, and back in the library, dtype and place they had."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from .errors import CheckpointError

Bytes = npt.NDArray[np.uint8]
Packed = tuple[str, str, list[int], Bytes]

#: Element types that the core computes with or carries, by NumPy's name.
_NAMES = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
}
_NUMPY = {name: dtype for dtype, name in _NAMES.items() if dtype != "bfloat16"}


def library(value: Any) -> Optional[str]:
    """``"numpy"``, ``"torch"``, ``"jax"`` or ``"dlpack"`` for an array, else ``None``."""
    if isinstance(value, (np.ndarray, np.generic)):
        return "numpy"
    for kind in type(value).__mro__:
        head = kind.__module__.partition(".")[0]
        if head == "torch" and kind.__name__ == "Tensor":
            return "torch"
        if head in ("jax", "jaxlib") and kind.__name__ in ("Array", "ArrayImpl"):
            return "jax"
    # Of any other library: read by DLPack, and given back as NumPy.
    return "dlpack" if hasattr(value, "__dlpack__") else None


def _host(name: str, value: Any) -> tuple[str, npt.NDArray[Any]]:
    """The numbers of an array on the host, with NumPy's name of their type."""
    if library(value) != "torch":
        host = np.from_dlpack(value) if library(value) == "dlpack" else np.asarray(value)
        return host.dtype.name, host
    import torch

    if value.is_meta:
        raise CheckpointError(f"tensor `{name}` is on the meta device, expected numbers")
    if hasattr(value, "full_tensor"):
        raise CheckpointError(
            f"tensor `{name}` is sharded over processes (DTensor), expected a whole one: "
            "gather the state dict first"
        )
    tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    kind = str(tensor.dtype).partition(".")[2]
    if tensor.dtype == torch.bfloat16:
        return "bfloat16", tensor.view(torch.int16).numpy()
    try:
        return kind, tensor.numpy()
    except TypeError:
        raw = tensor.view(torch.uint8).numpy()
        return kind, raw


def pack(name: str, value: Any) -> Packed:
    """An array as the core takes it. Numbers that no layer has (float8, ...) are carried as bytes."""
    kind, host = _host(name, value)
    shape = list(host.shape)
    host = np.ascontiguousarray(host)
    if host.dtype.byteorder == ">" or (host.dtype.byteorder == "=" and np.little_endian is False):
        host = host.astype(host.dtype.newbyteorder("<"))
    if host.dtype.hasobject:
        raise CheckpointError(f"tensor `{name}` holds Python objects, expected numbers")
    raw: Bytes = host.reshape(-1).view(np.uint8)
    if kind == "complex128":
        # The core takes pairs of doubles for complex numbers everywhere.
        return name, "F64", [*shape, 2], raw
    if kind not in _NAMES:
        return name, "U8", [raw.size], raw
    return name, _NAMES[kind], shape, raw


def _bfloat16(raw: Bytes, shape: list[int]) -> npt.NDArray[Any]:
    """bfloat16 in NumPy: by ml_dtypes where that is present, else widened to float32."""
    try:
        import ml_dtypes
    except ImportError:
        wide = raw.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    half: npt.NDArray[Any] = raw.view(ml_dtypes.bfloat16)
    return half.reshape(shape)


def unpack(packed: Packed, like: Any) -> Any:
    """What the core gives, as an array of the library, dtype and device of ``like``."""
    _, kind, shape, raw = packed
    where = library(like)
    if kind == "F64" and where is not None and str(like.dtype).endswith("complex128"):
        kind, shape = "complex128", shape[:-1]
    if where == "torch":
        return _to_torch(kind, shape, raw, like)
    if kind == "BF16":
        array = _bfloat16(raw, shape)
    else:
        array = raw.view(_NUMPY.get(kind, kind)).reshape(shape)
    if where != "jax":
        return array
    import jax

    return jax.device_put(array, next(iter(like.devices())))


def _to_torch(kind: str, shape: list[int], raw: Bytes, like: Any) -> Any:
    import torch

    if kind == "BF16":
        tensor = torch.from_numpy(raw.view(np.int16).reshape(shape)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(raw.view(_NUMPY.get(kind, kind)).reshape(shape))
    tensor = tensor.to(like.device)
    if isinstance(like, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=like.requires_grad)
    return tensor
