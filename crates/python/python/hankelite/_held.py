"""Live modules trained at the bits that were chosen for them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Optional

import numpy as np
import torch
from torch.nn.utils import parametrize

from . import _core
from ._fit import _declared, _tensors, replaced
from ._model import Reduced
from ._round import KINDS, Rounded, _is_map, nearest
from ._sources import Module, declared_json, unwrapped
from .errors import CalibrationError, CheckpointError, InvalidSetting


def _through(value: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """A value, exactly, with the slopes of another."""
    return value.detach() + (slopes - slopes.detach())


class _Integers(torch.nn.Module):  # type: ignore[misc]
    """A weight (outputs, inputs, ...) at its nearest levels. With v = w / s and its level q, the
    slopes of s q are 1 by w and q - v by s within half a step of the levels, 0 and q beyond (Esser et
    al., Learned Step Size Quantization, 2020, equations 1 to 3 and 5)."""

    def __init__(self, entries: str, group: int, scales: torch.Tensor, like: torch.Tensor) -> None:
        super().__init__()
        self.entries, self.group = entries, group
        dtype = torch.promote_types(like.dtype, torch.float32)
        # The weight of the lowest level: of the size of weights, so that their rate suits it.
        first = KINDS[entries].lowest * scales.to(like.device, dtype)
        self.range = torch.nn.Parameter(first, requires_grad=like.requires_grad)

    def scales(self) -> torch.Tensor:
        """bfloat16 numbers, (outputs, groups)."""
        scales = self.range / KINDS[self.entries].lowest
        return _through(scales.bfloat16().to(scales), scales)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        matrix, each, at = self._in_scales(weight)
        level, is_within = nearest(at, self.entries)
        value = each * level
        slopes = torch.where(is_within, matrix + each * (level - at), value)
        return _through(value, slopes).reshape(weight.shape).to(weight.dtype)

    def rounded(self, weight: torch.Tensor) -> Rounded:
        """The integers that a weight stands for."""
        with torch.no_grad():
            level, _ = nearest(self._in_scales(weight)[2], self.entries)
            parts = level.to(torch.int8).cpu().numpy(), self.scales().float().cpu().numpy()
        return Rounded(self.entries, self.group, *parts)

    def _in_scales(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The weight as a matrix, the scale of each entry, and their quotients."""
        matrix = weight.flatten(1)
        each = self.scales().repeat_interleave(self.group, dim=1)[:, : matrix.shape[1]]
        return matrix, each, torch.where(each == 0, 0.0, matrix / each).detach()


class _Near(torch.nn.Module):  # type: ignore[misc]
    """A tensor at the nearest numbers of a float type; slopes pass."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind, self.most = kind, torch.finfo(kind).max

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return _through(weight.clamp(-self.most, self.most).to(self.kind).to(weight), weight)


class _Places(torch.nn.Module):  # type: ignore[misc]
    """Output weights whose unused places stay zero: those of states that a channel does not have."""

    used: torch.Tensor

    def __init__(self, used: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("used", used, persistent=False)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.used


class Held:
    """A module that is trained at few bits; see :func:`hold`. A context that ends with
    :meth:`finish`.

    Attributes:
        scales: the trained ranges of the integers, a parameter (outputs, groups) for each map: the
            weight of the lowest level, which is the scale times that level.
    """

    def __init__(self, module: torch.nn.Module, small: Reduced) -> None:
        self._module, self._small = module, small
        self._held: dict[str, torch.nn.Module] = {}
        self._is_done = False
        self.scales: list[torch.nn.Parameter] = []

    def _hold(self, name: str, kind: torch.nn.Module) -> None:
        owner, _, attribute = name.rpartition(".")
        parametrize.register_parametrization(self._module.get_submodule(owner), attribute, kind)
        self._held[name] = kind
        if isinstance(kind, _Integers):
            self.scales.append(kind.range)

    def finish(self) -> Reduced:
        """Ends the training: the module's tensors are plain parameters again, at the levels that were
        trained, and the model that is held becomes the trained one.

        Returns:
            that model. Its ``choice`` still has what was measured before the training. A second call
            changes nothing.

        Raises:
            CalibrationError: numbers that are not finite; the module keeps its last weights, not
                rounded, and the record is that of before.
        """
        if self._is_done:
            return self._small
        self._is_done = True
        storage, values = dict(self._small.storage), {}
        for name, kind in self._held.items():
            owner, _, attribute = name.rpartition(".")
            part = self._module.get_submodule(owner)
            values[name] = getattr(part, attribute).detach()
            original = getattr(part.parametrizations, attribute).original
            if isinstance(kind, _Integers) and name in storage:
                storage[name] = kind.rounded(original)
            parametrize.remove_parametrizations(part, attribute, leave_parametrized=False)
        bad = [name for name, value in values.items() if not torch.isfinite(value).all()]
        if bad:
            raise CalibrationError(f"`{bad[0]}` has numbers that are not finite, expected finite ones")
        with torch.no_grad():
            for name, value in values.items():
                _plain(self._module, name).copy_(value)
        _become(self._small, self._module, storage)
        return self._small

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.finish()


def hold(module: torch.nn.Module, small: Reduced) -> Held:
    """Holds a module at the bits of a smaller model while you train it, with your loss and optimiser.

    Every forward pass rounds the maps to the levels that ``small`` has, and what ``small`` keeps in
    half precision to halves; slopes pass the rounding into weights of full precision. The scales of the
    integers are trained, too. States that a channel does not have stay away. While the module is held,
    parameters stay the same objects, under other names in ``state_dict()``.

    An optimiser that you made before trains the weights; ``optimizer.add_param_group({"params":
    held.scales, "weight_decay": 0.0})`` hands it the scales. One that you make of
    ``module.parameters()`` afterwards has both.

    Args:
        module: a live module with ``small.apply_()`` in it, also inside of ``torch.compile`` or
            ``DataParallel``. DistributedDataParallel has to be wrapped around it afterwards: it then
            shares the gradients of the scales.
        small: what :func:`hankelite.compress` made of it. It becomes the trained model at the end.

    Returns:
        a context, which ends the training on the levels; or call its :meth:`Held.finish`.

    Raises:
        CheckpointError: tensors of other shapes than those of ``small``, or maps that are not found.
        InvalidSetting: a module that is held already, or rounded B and C of S5 or LRU.
        CalibrationError: a model that came from a file.
    """
    inner = unwrapped(module)
    _tensors(small)
    _require_applied(inner, small)
    kinds = list(_kinds(inner, small))
    held = Held(inner, small)
    for name, kind in kinds:
        held._hold(name, kind)
    return held


def _require_applied(module: torch.nn.Module, small: Reduced) -> None:
    for name, value in small.changed().items():
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
        shape = tuple(getattr(found, "shape", ()))
        if shape != tuple(value.shape):
            raise CheckpointError(
                f"`{name}` has shape {shape} in the module, expected {tuple(value.shape)}: apply_ puts "
                "it there"
            )


def _kinds(module: torch.nn.Module, small: Reduced) -> Iterator[tuple[str, torch.nn.Module]]:
    """How every tensor is held that is no plain number."""
    for name, (entries, group) in _entries(module, small).items():
        weight = _plain(module, name)
        if entries == "bf16":
            yield name, _Near(torch.bfloat16)
        elif entries != "full":
            own = small.storage.get(name)
            scales = _scales(weight, entries, group) if own is None else own.scales
            yield name, _Integers(entries, group, torch.from_numpy(scales), weight)
    for name in (small.choice or {}).get("halves", []):
        yield name, _Near(torch.float16)
    for layer in small.layers:
        for name in small._core.system_tensors(small._index(layer)):
            used = _used(module, name)
            if used is not None and not used.all():
                yield name, _Places(used)


def _plain(module: torch.nn.Module, name: str) -> torch.Tensor:
    owner, _, attribute = name.rpartition(".")
    part = module.get_submodule(owner)
    if parametrize.is_parametrized(part, attribute):
        raise InvalidSetting(f"`{name}` is held or parametrised, expected a plain parameter")
    tensor: torch.Tensor = getattr(part, attribute)
    return tensor


def _used(module: torch.nn.Module, name: str) -> Optional[torch.Tensor]:
    """The places of output weights that are not zero, where the channels may have places left."""
    if name.rpartition(".")[2] not in ("C", "W"):
        return None
    weight = _plain(module, name).detach()
    used = weight != 0
    return used if weight.is_complex() else used.any(dim=-1, keepdim=True)


def _scales(weight: torch.Tensor, entries: str, group: int) -> Any:
    matrix = weight.detach().flatten(1).T.double().cpu().numpy()
    scales = _core.best_scales(np.ascontiguousarray(matrix), KINDS[entries].bits, group)
    return np.ascontiguousarray(scales.T)


def _entries(module: torch.nn.Module, small: Reduced) -> dict[str, tuple[str, int]]:
    """The entries of every map and the inputs that share a scale, by the name of its weight."""
    if small.image is None or small.choice is None:
        return {name: (own.entries, own.group) for name, own in small.storage.items()}
    plan = small.choice["plan"]
    rest = [name for name, part in module.named_modules() if _is_map(part)]
    found: dict[str, Any] = {}
    for layer, choice in zip(small.layers, plan["layers"]):
        if (choice.get("systems") or {"entries": "full"})["entries"] != "full":
            raise InvalidSetting(
                f"layer `{layer}` has B and C of few bits, expected maps alone: compress-model retrain "
                "holds them"
            )
        own = [name for name in rest if name.startswith(f"{layer}.")]
        rest = [name for name in rest if name not in own]
        _take(found, own, choice["map"], f"layer `{layer}`")
    _take(found, rest[:1], plan["encoder"], "the encoder")
    _take(found, rest[-1:], plan["head"], "the head")
    return found


def _take(found: dict[str, Any], names: list[str], choice: Any, what: str) -> None:
    if choice is None or choice["entries"] == "full":
        return
    if len(names) != 1:
        raise CheckpointError(f"{what} has {len(names)} linear maps in the module, expected one")
    found[f"{names[0]}.weight"] = (choice["entries"], choice["group"])


def _become(small: Reduced, module: torch.nn.Module, storage: dict[str, Rounded]) -> None:
    """Turns a smaller model into the one that its module holds."""
    from .torch import _put

    start = copy.copy(small)
    trained = Module(module, declared_json(_declared(small)))
    if small.image is None:
        values = {name: value.detach().clone() for name, value in trained.values.items()}
        made = replaced(small, values)
    else:
        core, image = small._core.trained(trained.checkpoint)
        made = Reduced(small._source, core, small.records, small.choice)
        made.image = image.tobytes()
        _put(module, made)
    made._fitted_from, made.storage = small._fitted_from or start, storage
    vars(small).update(vars(made))
