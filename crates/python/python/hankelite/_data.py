"""Sequences in any form, with their classes where they have some."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import library
from .errors import CalibrationError

Array = npt.NDArray[Any]

#: Names of the entries of a dictionary.
_INPUTS = ("inputs", "x", "X", "input", "data", "features", "sequences", "input_ids")
_LABELS = ("labels", "y", "Y", "label", "target", "targets")
#: Sequences that are kept at most.
_MOST = 10_000
#: Sequences that calibrate at most, and their largest share of all.
_CALIBRATE, _SHARE = 100, 0.75
#: Fewer different sequences than this are warned of, and so many calibrate at least.
_FEW = 10


class Cases(NamedTuple):
    """Sequences (sequences, steps, ...), what belongs to each of them, and what was done to them."""

    x: Array
    y: Optional[Array]
    notes: tuple[str, ...] = ()

    def at(self, index: Any) -> Cases:
        """Some of them."""
        return Cases(self.x[index], None if self.y is None else self.y[index])

    def split(self, seed: int) -> tuple[Cases, Cases]:
        """The sequences that calibrate, and others, which are equal to none of them."""
        order = np.random.default_rng(seed).permutation(len(self.x))
        many = min(_CALIBRATE, max(_FEW, int(_SHARE * len(order))))
        used = {self.x[index].tobytes() for index in order[:many]}
        rest = [index for index in order[many:] if self.x[index].tobytes() not in used]
        return self.at(order[:many]), self.at(np.array(rest, dtype=np.int64))


def batches(data: Any, seed: Optional[int] = None) -> Iterable[Any]:
    """The batches of whatever a user may hand in; of a torch Dataset in random order with a seed."""
    if _is_batch(data):
        return [data]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.utils.data.Dataset):
        draw = None if seed is None else torch.Generator().manual_seed(seed)
        shuffle = draw is not None and hasattr(data, "__len__")
        loader: Iterable[Any] = torch.utils.data.DataLoader(
            data, batch_size=32, shuffle=shuffle, generator=draw
        )
        return loader
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        return data
    raise CalibrationError(
        f"data of type {type(data).__name__}, expected an array, (inputs, labels), a dictionary of "
        "them, a torch Dataset or DataLoader, or an iterable of batches"
    )


def _is_batch(data: Any) -> bool:
    if library(data) or isinstance(data, Mapping):
        return True
    if not isinstance(data, (tuple, list)) or len(data) != 2 or library(data[0]) is None:
        return False
    if isinstance(data, tuple):
        return True
    # A list may hold inputs and labels, or two batches, which have as many axes.
    x, y = data
    return library(y) is not None and len(x.shape) != len(y.shape) and len(x) == len(y)


def parts(batch: Any) -> tuple[Any, Any]:
    """Inputs and labels of a batch."""
    if library(batch):
        return batch, None
    if isinstance(batch, Mapping):
        x = _named(batch, _INPUTS)
        if x is None:
            found = ", ".join(map(str, batch))
            raise CalibrationError(f"a dictionary with {found}, expected `inputs` or `x`")
        return x, _named(batch, _LABELS)
    if isinstance(batch, (tuple, list)) and batch and library(batch[0]):
        return batch[0], batch[1] if len(batch) > 1 else None
    raise CalibrationError(
        f"a batch of type {type(batch).__name__}, expected an array, (inputs, labels) or a "
        "dictionary of them"
    )


def _named(batch: Mapping[Any, Any], names: tuple[str, ...]) -> Any:
    return next((batch[name] for name in names if name in batch), None)


def _numbers(value: Any) -> Array:
    """The numbers of an array on the host."""
    if library(value) == "torch":
        value = value.detach().cpu()
        half = value.is_floating_point() and value.element_size() < 4
        return np.asarray((value.float() if half else value).numpy())
    return np.asarray(np.from_dlpack(value) if library(value) == "dlpack" else value)


def gather(data: Any, seed: int) -> Cases:
    """Sequences of one length out of a file, an array or batches; ten thousand at most."""
    if isinstance(data, (str, os.PathLike)):
        x, y, notes = _core.read_data(os.fspath(data))
        order = np.random.default_rng(seed).permutation(len(x))[:_MOST]
        return _checked(x[order], None if y is None else y[order], tuple(notes))
    xs, ys, count = [], [], 0
    for batch in batches(data, seed):
        x, y = parts(batch)
        xs.append(_numbers(x))
        ys.append(None if y is None else _numbers(y))
        count += len(xs[-1])
        if count >= _MOST:
            break
    shapes = {x.shape[1:] for x in xs}
    if len(shapes) != 1:
        found = ", ".join(map(str, sorted(shapes))) or "none"
        raise CalibrationError(f"sequences of shapes {found}, expected one: pad or cut them")
    labels = [y for y in ys if y is not None]
    together = np.concatenate(labels)[:_MOST] if len(labels) == len(xs) else None
    return _checked(np.concatenate(xs)[:_MOST], together)


def _checked(x: Array, y: Optional[Array], notes: tuple[str, ...] = ()) -> Cases:
    """Refuses what no model can take, and warns of what calibrates badly."""
    if x.dtype.kind not in "fiub" or x.ndim < 2 or not x.size:
        raise CalibrationError(
            f"inputs of shape {x.shape} and type {x.dtype}, expected numbers (sequences, steps, ...)"
        )
    if y is not None and len(y) != len(x):
        raise CalibrationError(f"{len(x)} sequences and {len(y)} labels, expected as many")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        bad = int(np.argmin(np.isfinite(x.reshape(len(x), -1)).all(axis=1)))
        raise CalibrationError(f"sequence {bad} holds NaN or infinity, expected finite numbers")
    _warn_of_few(x)
    return Cases(x, y, notes)


def _warn_of_few(x: Array) -> None:
    different: set[bytes] = set()
    for row in x:
        different.add(row.tobytes())
        if len(different) >= _FEW:
            break
    if len(different) < _FEW:
        warnings.warn(
            f"{len(different)} different sequences out of {len(x)}, expected {_FEW} or more: the "
            "result may not suit other inputs",
            stacklevel=5,
        )
    flat = x.reshape(len(x), -1)
    constant = int((flat.min(axis=1) == flat.max(axis=1)).sum())
    if 2 * constant > len(x):
        warnings.warn(
            f"{constant} of {len(x)} sequences are constant, expected signals that change",
            stacklevel=5,
        )
