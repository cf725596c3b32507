"""Networks of the caller's, run by their own forward pass."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Optional

import numpy as np
import torch

from ._data import batches, parts
from ._fit import (
    Floats,
    Forward,
    change_between,
    evaluating,
    fit,
    importance,
    logits_apart,
)
from ._model import Reduced, read, reduce
from ._progress import Progress
from ._sources import unwrapped
from .captured import Captured
from .errors import CalibrationError, HankeliteError
from .statistics import Statistics
from .torch import _SHARED, _put, capture, listen

#: Sequences that run at a time.
_TOGETHER = 32


def tensors(data: Any, module: torch.nn.Module) -> list[torch.Tensor]:
    """The inputs of all batches, where the module is; numbers of NumPy in the module's precision."""
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(1))
    made = []
    for batch in batches(data):
        x, _ = parts(batch)
        if not torch.is_tensor(x):
            x = torch.as_tensor(x)
            x = x.to(like.dtype if x.is_floating_point() else torch.int64)
        made.append(x.to(like.device))
    return made


def pieces(inputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Batches of a size that any machine runs."""
    return (piece for batch in inputs for piece in batch.split(_TOGETHER))


class Live:
    """A live module. What its layers get is gathered once, for any number of sizes."""

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Any,
        forward: Optional[Forward],
        products: bool = True,
        **declared: Any,
    ) -> None:
        self.module = unwrapped(module)
        self.forward = forward or (lambda network, x: network(x))
        self.inputs = tensors(inputs, self.module)
        self.model = read(self.module, **declared)
        self.products, self.declared = products, declared

    def run(self, module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """The logits of a batch, with a sentence where there are none."""
        try:
            return self.forward(module, x)
        except HankeliteError:
            raise
        except Exception as error:
            raise CalibrationError(
                f"the network fails on inputs of shape {tuple(x.shape)}: {error}"
            ) from error

    @cached_property
    def captured(self) -> Captured:
        """Inputs and gradients, for layers whose channels share modes."""
        return capture(self.module, self.inputs, forward=self.run, **self.declared)

    @cached_property
    def statistics(self) -> Statistics:
        """Sums over the inputs, for layers with one system per channel."""
        listening = listen(self.module, products=self.products, **self.declared)
        with torch.no_grad(), evaluating(self.module), listening as statistics:
            for piece in pieces(self.inputs):
                self.run(self.module, piece)
        return statistics

    @cached_property
    def weighed(self) -> Statistics:
        """The same, with the importance of each channel."""
        own = importance(
            self.module, self.model, self.inputs, self.statistics, forward=self.run
        )
        return self.statistics.weighed(own)

    def reduce(
        self,
        *,
        order: Optional[int] = None,
        budget: Optional[float] = None,
        allocation: Optional[str] = None,
        steps: int = 4,
        progress: Progress = None,
    ) -> Reduced:
        """The network with fewer states, fitted to the logits in at most ``steps`` steps."""
        size: dict[str, Any] = {"order": order, "budget": budget, "progress": progress}
        if allocation is not None:
            size["allocation"] = allocation
        if self.model.family.startswith(_SHARED):
            return reduce(self.model, captured=self.captured, **size)
        if budget is None:
            small = reduce(self.model, statistics=self.statistics, **size)
        else:
            kinds = ("equal", "root", "gradient")
            tries = [
                reduce(self.model, statistics=self.weighed, importance=kind, **size)
                for kind in kinds
            ]
            some = list(self.pieces())
            small = min(tries, key=lambda one: logits_apart(self.module, one, some, self.run))
        return self.fitted(small, steps=steps, progress=progress)

    def fitted(self, small: Reduced, *, steps: int, progress: Progress = None) -> Reduced:
        """The same, fitted to the logits where channels have systems of their own."""
        if steps == 0 or self.model.family.startswith(_SHARED):
            return small
        return fit(
            self.module,
            small,
            self.inputs,
            self.statistics,
            forward=self.run,
            steps=steps,
            progress=progress,
        )

    def pieces(self) -> Iterator[torch.Tensor]:
        """The sequences that calibrate, in batches."""
        return pieces(self.inputs)

    def some(self, most: int) -> list[torch.Tensor]:
        """At most so many of them."""
        taken: list[torch.Tensor] = []
        for piece in self.pieces():
            left = most - sum(map(len, taken))
            if left <= 0:
                break
            taken.append(piece[:left])
        return taken

    def apart(self, other: torch.nn.Module, parts: list[torch.Tensor]) -> float:
        """The relative change of the logits of batches when another module takes this one's place."""
        return change_between(self.module, other, parts, self.run)

    def outputs(self, small: Optional[Reduced], inputs: Any) -> Floats:
        """The logits (sequences, outputs) of the network, or of a smaller one in its place."""
        module = self.module
        if small is not None:
            module = copy.deepcopy(module)
            _put(module, small)
        with torch.no_grad(), evaluating(module):
            made = [self.run(module, x) for x in pieces(tensors(inputs, module))]
        shapes = {tuple(z.shape[1:]) if torch.is_tensor(z) else type(z).__name__ for z in made}
        if len(shapes) != 1 or any(z.ndim != 2 for z in made):
            raise CalibrationError(
                f"the network gives {', '.join(map(str, shapes))} for a sequence, expected "
                "(outputs,): say with forward= what counts"
            )
        return np.asarray(torch.cat(made).double().cpu().numpy())
