"""Smaller diagonal state space models (S4D, DSS, S5, LRU) from trained ones.

A model in any form goes in (a file, a state dict, a live torch module, a JAX pytree), the same form
with fewer states comes out. See docs/python.md for a walk through.

>>> import hankelite as hk
>>> small = hk.reduce(example, order=8)
>>> int(small.orders["s4_layers.0"].max())
8
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from . import control, errors
from ._compress import compress
from ._core import __version__
from ._model import (
    Model,
    Reduced,
    Spectra,
    Spectrum,
    Stream,
    System,
    convert,
    inspect,
    read,
    reduce,
    stream,
    write,
)
from ._sweep import sweep
from .captured import Captured
from .errors import (
    CalibrationError,
    CheckpointError,
    ControlError,
    ExportError,
    HankeliteError,
    InvalidSetting,
    ReductionError,
    StreamError,
    UnstableModes,
)
from .statistics import LayerStatistics, Statistics

__all__ = [
    "CalibrationError",
    "Captured",
    "CheckpointError",
    "ControlError",
    "ExportError",
    "HankeliteError",
    "InvalidSetting",
    "LayerStatistics",
    "Model",
    "Reduced",
    "ReductionError",
    "Spectra",
    "Spectrum",
    "Statistics",
    "Stream",
    "StreamError",
    "System",
    "UnstableModes",
    "__version__",
    "compress",
    "control",
    "convert",
    "errors",
    "inspect",
    "read",
    "reduce",
    "stream",
    "sweep",
    "write",
]


#: Import their libraries, so they come when they are used.
_ON_DEMAND = ("jax", "torch")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ON_DEMAND])


def __getattr__(name: str) -> _Any:
    if name in _ON_DEMAND:
        return _import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
