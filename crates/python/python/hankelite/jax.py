"""JAX pytrees: flax, flax.nnx, equinox, or plain dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._model import Model, inspect, read, reduce
from .captured import Captured
from .errors import CalibrationError
from .statistics import LayerStatistics, Statistics

__all__ = ["Capture", "capture", "inspect", "read", "reduce"]


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


def capture(
    forward: Callable[[Any, Any], Any],
    params: Any,
    inputs: Any,
    *,
    gradients: bool = True,
    combinations: int = 10,
    batch: int = 16,
    seed: int = 0,
    origin: str = "",
    **declared: Any,
) -> Captured:
    """Keeps the inputs of every recognised layer of flax.linen modules on some sequences, and the
    derivatives of random combinations of the logits by the layers' outputs.

    Args:
        forward: ``forward(params, x)`` gives the (outputs,) logits of one sequence, such as
            ``lambda params, x: model.apply(params, x)`` of a model without an axis for the batch.
        params: the full model's variables.
        inputs: unlabelled sequences, (sequences, ...).
        gradients: whether derivatives are kept, too.
        combinations: of the (centred) logits, for each sequence.
        batch: sequences that run at a time.
        seed: of the combinations.
        origin: where the sequences come from, for records.
        declared: as for :func:`hankelite.read`.

    Raises:
        CalibrationError: a layer of ``params`` that is not called as a flax.linen module.
    """
    model = read(params, **declared)
    run = _run(forward, params, {_place(model.tensors(name)): name for name in model.layers})
    x = jnp.asarray(inputs)
    (z, _), outputs = jax.eval_shape(run, {}, x[0])
    missing = [name for name in model.layers if name not in outputs]
    if missing or z.ndim != 1:
        raise CalibrationError(
            f"the forward pass gave logits of shape {z.shape} and called no module of layer "
            f"{', '.join(missing) or '(none is missing)'}, expected (outputs,) and all layers"
        )
    key = jax.random.key(seed)
    signs = 2.0 * jax.random.bernoulli(key, shape=(len(x), combinations, *z.shape)) - 1.0
    if z.shape[0] > 1:
        signs = signs - signs.mean(axis=-1, keepdims=True)

    def one(u: Any, rows: Any) -> tuple[Any, Any]:
        still = {name: jnp.zeros(y.shape, y.dtype) for name, y in outputs.items()}
        _, pull, layer_inputs = jax.vjp(lambda shifts: run(shifts, u)[0], still, has_aux=True)
        slopes = jax.vmap(lambda row: pull(row.astype(z.dtype))[0])(rows) if gradients else {}
        return layer_inputs, slopes

    many = jax.jit(jax.vmap(one))
    parts = [many(x[i : i + batch], signs[i : i + batch]) for i in range(0, len(x), batch)]
    kept = {n: np.concatenate([np.asarray(p[0][n]) for p in parts]) for n in model.layers}
    slopes = {n: np.concatenate([np.asarray(p[1][n]) for p in parts]) for n in parts[0][1]}
    return Captured(kept, slopes, origin)


def _run(forward: Callable[[Any, Any], Any], params: Any, places: dict[str, str]) -> Any:
    """A forward pass of one sequence: logits and the layers' inputs, then the layers' outputs.
    ``shifts`` are added to these."""
    from flax import linen

    def run(shifts: dict[str, Any], x: Any) -> tuple[tuple[Any, dict[str, Any]], dict[str, Any]]:
        inputs: dict[str, Any] = {}
        outputs: dict[str, Any] = {}

        def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
            layer = places.get("/".join(context.module.path))
            out = call(*args, **kwargs)
            if layer is None or context.method_name != "__call__" or not args:
                return out
            inputs[layer], outputs[layer] = args[0], out
            return out + shifts[layer] if layer in shifts else out

        with linen.intercept_methods(intercept):
            z = forward(params, x)
        return (z, inputs), outputs

    return run


def _place(tensors: list[str]) -> str:
    """The path of the flax module that holds a layer's tensors."""
    heads = [name.split("/")[:-1] for name in tensors]
    common = heads[0]
    for head in heads:
        same = [a == b for a, b in zip(common, head)]
        common = common[: same.index(False) if False in same else len(same)]
    return "/".join(common[1:] if common[:1] == ["params"] else common)
