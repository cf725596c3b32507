"""JAX pytrees: flax, flax.nnx, equinox, or plain dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ._model import Model, inspect, read, reduce
from .errors import CalibrationError
from .statistics import LayerStatistics, Statistics

__all__ = ["Capture", "inspect", "read", "reduce"]


class Capture(Statistics):
    """Statistics of layer inputs that are captured while a flax.linen module runs.

    ``interceptor`` goes into ``flax.linen.intercept_methods``; it also works under ``jit`` and
    ``vmap``. Or :meth:`add` takes arrays that were captured by other means.

    >>> import numpy as np
    >>> capture = Capture(["layers_0"])
    >>> capture.add("layers_0", np.ones((4, 8, 3)))
    >>> capture["layers_0"].sequences
    4
    """

    def __init__(self, layers: Any, *, products: bool = False, origin: str = "") -> None:
        """``layers`` are the names of the layers, or the model (in any form) that has them."""
        self._places: dict[str, str] = {}
        if not isinstance(layers, list):
            model = layers if isinstance(layers, Model) else read(layers)
            layers = model.layers
            for name in layers:
                self._places[_place(model.tensors(name))] = name
        super().__init__({}, origin)
        self._names = list(layers)
        self._products = products

    def add(self, layer: str, inputs: Any) -> None:
        """Adds inputs of a layer, shape (sequences, steps, channels) or (steps, channels)."""
        if layer not in self._names:
            raise CalibrationError(f"no layer `{layer}`, expected one of {', '.join(self._names)}")
        u = np.asarray(inputs)
        u = u[None] if u.ndim == 2 else u
        own = LayerStatistics.of(u, products=self._products)
        known = self._layers.get(layer)
        self._layers[layer] = own if known is None else known + own

    def interceptor(
        self, call: Callable[..., Any], args: Any, kwargs: Any, context: Any
    ) -> Any:
        """For ``with flax.linen.intercept_methods(capture.interceptor): model.apply(...)``."""
        layer = self._places.get("/".join(context.module.path))
        if layer is not None and context.method_name == "__call__" and args:
            jax.debug.callback(lambda u: self.add(layer, u), args[0])
        return call(*args, **kwargs)


def _place(tensors: list[str]) -> str:
    """The path of the flax module that holds a layer's tensors."""
    heads = [name.split("/")[:-1] for name in tensors]
    common = heads[0]
    for head in heads:
        same = [a == b for a, b in zip(common, head)]
        common = common[: same.index(False) if False in same else len(same)]
    return "/".join(common[1:] if common[:1] == ["params"] else common)
