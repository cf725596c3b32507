"""What goes wrong: every class is a :class:`ValueError` with the library's own message."""

from __future__ import annotations

from typing import Optional

import numpy as np
import numpy.typing as npt

__all__ = [
    "CalibrationError",
    "CheckpointError",
    "ControlError",
    "ExportError",
    "HankeliteError",
    "InvalidSetting",
    "ReductionError",
    "StreamError",
    "UnstableModes",
]


class HankeliteError(ValueError):
    """The base of all errors of this package."""


class InvalidSetting(HankeliteError):
    """An argument that makes no sense, or none for this model."""


class CheckpointError(HankeliteError):
    """A file, or tensors, that do not make a model, or a model that cannot be written."""


class ReductionError(HankeliteError):
    """A channel that cannot be reduced."""


class CalibrationError(HankeliteError):
    """Statistics that do not fit the model, or a network that cannot be calibrated."""


class StreamError(HankeliteError):
    """A model that cannot be run one sample at a time."""


class ExportError(HankeliteError):
    """A network that cannot be an ONNX file."""


class ControlError(HankeliteError):
    """A system that does not suit a function of :mod:`hankelite.control`."""


class UnstableModes(ReductionError, ControlError):
    """Modes that do not decay, where decay is needed.

    Attributes:
        layer: the layer's name; ``None`` for a bare array.
        channel: index of the channel in the layer.
        modes: indices of the modes among the channel's.
        poles: their exponents lambda in continuous time (complex128), one for each of ``modes``.
    """

    layer: Optional[str] = None
    channel: int = 0
    modes: list[int] = []
    poles: npt.NDArray[np.complex128] = np.zeros(0, dtype=np.complex128)
