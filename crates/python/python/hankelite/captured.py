"""Inputs of layers that are kept whole: what layers whose channels share modes (S5, LRU) need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np

from . import _core
from ._arrays import pack
from .errors import CalibrationError
from .statistics import LayerStatistics, Statistics

__all__ = ["Captured"]

#: What the name of a layer's gradients has behind that of the layer.
_GRADIENT = ".output_gradient"


class Captured:
    """The inputs of all layers on some sequences, and perhaps gradients of the logits.

    Statistics are sums and need no memory for the sequences; they are enough for layers with one
    system per channel. Layers with several inputs and outputs, and those that run in both
    directions, are reduced for the inputs themselves. :func:`hankelite.torch.capture` and
    :func:`hankelite.jax.capture` make one by a forward pass; :func:`hankelite.reduce` takes it as
    ``captured=``, and ``compress-model reduce --calibrate`` takes the file of :meth:`save`.

    Attributes:
        inputs: for each layer (sequences, steps, channels).
        gradients: for each layer (sequences, combinations, steps, outputs): the derivatives of
            random combinations of the centred logits by the outputs y = k * u + D u of the systems.
            Empty where they were not gathered.

    >>> import numpy as np
    >>> captured = Captured({"layers_0": np.ones((4, 8, 3))})
    >>> captured.sequences, captured.steps
    (4, 8)
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        gradients: Optional[Mapping[str, Any]] = None,
        origin: str = "",
    ) -> None:
        self.inputs = dict(inputs)
        self.gradients = dict(gradients or {})
        if not self.inputs:
            raise CalibrationError("inputs of no layer, expected those of all layers of a model")
        for name, u in self.inputs.items():
            if len(u.shape) != 3 or 0 in tuple(u.shape):
                raise CalibrationError(
                    f"layer `{name}`: inputs of shape {tuple(u.shape)}, expected (sequences, steps, "
                    "channels)"
                )
        missing = [name for name in self.inputs if self.gradients and name not in self.gradients]
        if missing:
            raise CalibrationError(f"no gradients of layer {', '.join(missing)}, found those of others")
        self._origin = origin

    @property
    def sequences(self) -> int:
        """Sequences of the first layer."""
        return int(next(iter(self.inputs.values())).shape[0])

    @property
    def steps(self) -> int:
        """Steps of the first layer."""
        return int(next(iter(self.inputs.values())).shape[1])

    @property
    def origin(self) -> str:
        """Where the sequences came from, for records."""
        return self._origin or f"{self.sequences} sequences of the caller"

    def statistics(self, *, products: bool = False) -> Statistics:
        """Their statistics, which add up; see :class:`hankelite.Statistics`."""
        layers = {
            name: LayerStatistics.of(np.asarray(u), products=products)
            for name, u in self.inputs.items()
        }
        return Statistics(layers, self.origin)

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes an .npz file that ``compress-model reduce --calibrate`` and ``captured=`` take."""
        path = os.fspath(path)
        if not path.endswith(".npz"):
            raise CalibrationError(f"{path}: expected a name that ends in .npz")
        with open(path, "wb") as out:
            arrays = {name: np.asarray(u) for name, u in self._named().items()}
            np.savez(out, **arrays)  # type: ignore[arg-type]

    def _named(self) -> dict[str, Any]:
        gradients = {name + _GRADIENT: g for name, g in self.gradients.items()}
        return {**self.inputs, **gradients}

    def _for_core(self) -> list[_core._TensorIn]:
        return [pack(name, u) for name, u in self._named().items()]

    def __repr__(self) -> str:
        more = " and gradients" if self.gradients else ""
        layers = len(self.inputs)
        return f"<Captured inputs{more}: {layers} layers, {self.sequences} x {self.steps} steps>"
