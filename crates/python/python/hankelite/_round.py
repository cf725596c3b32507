"""Weights of few bits in networks of the caller's, by their own forward pass."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import numpy.typing as npt
import torch

from . import _core
from ._fit import Floats, evaluating, logits_apart, replaced
from ._model import Reduced
from ._progress import Progress
from .errors import CalibrationError

if TYPE_CHECKING:
    from ._live import Live

#: The kinds of entries that are tried: their bits, their levels, and a factor on the measured changes.
KINDS = _core.integer_entries()
#: Inputs that share a scale, two bytes each.
_GROUP = 32
#: A map of fewer inputs is not worth its scales.
_INPUTS_MIN = 8
#: Sequences by which a choice is priced.
_PRICED = 32
#: Maps whose inputs are kept at a time.
_TOGETHER = 4
#: Times fewer states that are tried.
_TIMES = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Rounded:
    """The integers that a weight stands for: ``scales`` times ``levels``, group by group.

    Attributes:
        entries: ``int8``, ``int4``, ``int3`` or ``int2``.
        group: inputs that share a scale.
        levels: integers, (outputs, inputs).
        scales: bfloat16 numbers, (outputs, groups).
    """

    entries: str
    group: int
    levels: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]

    @property
    def bytes(self) -> int:
        """Packed integers, and two bytes for each scale."""
        return _bytes(self.levels.shape, self.entries)

    @property
    def weight(self) -> npt.NDArray[np.float32]:
        """What the integers stand for, (outputs, inputs)."""
        each = self.scales.repeat(self.group, axis=1)[:, : self.levels.shape[1]]
        return each * self.levels.astype(np.float32)


def nearest(at: torch.Tensor, entries: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest levels of numbers in units of their scales, and which numbers lie within half a
    step of the levels."""
    kind = KINDS[entries]
    first, last, step = kind.lowest, kind.highest, kind.step
    level = first + step * ((at - first) / step).round()
    is_within = (at >= first - step / 2) & (at < last + step / 2)
    return level.clamp(first, last), is_within


def _bytes(shape: tuple[int, ...], entries: str) -> int:
    outputs, inputs = shape[:2]
    scales = outputs * -(-inputs // _GROUP)
    return -(-outputs * inputs * KINDS[entries].bits // 8) + 2 * scales


def maps(module: torch.nn.Module, systems: set[str]) -> dict[str, torch.nn.Module]:
    """The linear maps of a network by the names of their modules: ``nn.Linear``, and ``nn.Conv1d``
    over one step. Not those of ``systems``, and none that is parametrised or shared."""
    once = _once(module)
    found = {}
    for path, part in module.named_modules():
        name = f"{path}.weight"
        weight = once.get(name)
        if weight is None or name in systems or not _is_map(part):
            continue
        if weight.shape[1] >= _INPUTS_MIN and weight.is_floating_point():
            found[path] = part
    return found


def _once(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that have one name each."""
    named = list(module.named_parameters(remove_duplicate=False))
    count = Counter(id(parameter) for _, parameter in named)
    return {name: parameter for name, parameter in named if count[id(parameter)] == 1}


def _halves(module: torch.nn.Module, others: set[str]) -> list[str]:
    """Parameters in single precision that half precision holds, but for others."""
    most = torch.finfo(torch.float16).max
    return [
        name
        for name, value in _once(module).items()
        if name not in others and value.dtype == torch.float32 and float(value.detach().abs().max()) < most
    ]


def _is_map(part: torch.nn.Module) -> bool:
    if type(part) is torch.nn.Conv1d:
        kernel, stride, padding = part.kernel_size, part.stride, part.padding
        return (kernel, stride, padding, part.groups) == ((1,), (1,), (0,), 1)
    return type(part) is torch.nn.Linear


@contextmanager
def _inputs(parts: Mapping[str, torch.nn.Module]) -> Iterator[dict[str, list[torch.Tensor]]]:
    """What the maps get, (steps, inputs) for each call."""
    kept: dict[str, list[torch.Tensor]] = {name: [] for name in parts}

    def keeps(name: str) -> Any:
        def hook(part: torch.nn.Module, args: tuple[Any, ...]) -> None:
            x = args[0].detach()
            x = x.movedim(-2, -1) if isinstance(part, torch.nn.Conv1d) else x
            kept[name].append(x.reshape(-1, x.shape[-1]).float())

        return hook

    handles = [part.register_forward_pre_hook(keeps(name)) for name, part in parts.items()]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


class _Moments:
    """Sums of the inputs x of a map, and of those u that it has in the full network."""

    def __init__(self) -> None:
        self.count = 0.0
        self.sums: list[Any] = []

    def add(self, x: torch.Tensor, u: torch.Tensor) -> None:
        if x.shape != u.shape:
            raise CalibrationError(
                f"a map got inputs of shape {tuple(x.shape)}, expected {tuple(u.shape)} as in the "
                "full network"
            )
        # Single precision within a batch, double precision over them.
        own = [x.sum(dim=0), u.sum(dim=0), x.T @ x, x.T @ u]
        own = [part.double() for part in own]
        self.sums = [a + b for a, b in zip(self.sums, own)] if self.sums else own
        self.count += len(x)

    def arrays(self) -> tuple[Any, ...]:
        return (self.count, *(part.cpu().numpy() for part in self.sums))


@dataclass
class _Map:
    """A map that was rounded."""

    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    integers: Rounded

    @classmethod
    def of(cls, part: torch.nn.Module, moments: _Moments, entries: str) -> _Map:
        weight, bias = part._parameters["weight"], part._parameters.get("bias")
        assert weight is not None
        matrix = weight.detach().reshape(weight.shape[:2]).T.double().cpu().numpy()
        known = None if bias is None else bias.detach().double().cpu().numpy()
        made, moved, integers, _ = _core.rounded_map(
            matrix, known, moments.arrays(), entries, _GROUP
        )
        assert integers is not None
        levels = np.ascontiguousarray(integers[0].T)
        scales = np.ascontiguousarray(integers[1].T)
        like = weight.detach()
        return cls(
            torch.from_numpy(np.ascontiguousarray(made.T)).reshape(like.shape).to(like),
            None if moved is None or bias is None else torch.from_numpy(moved).to(bias),
            Rounded(entries, _GROUP, levels, scales),
        )

    def put(self, part: torch.nn.Module) -> None:
        with torch.no_grad():
            part._parameters["weight"].copy_(self.weight)
            if self.bias is not None:
                part._parameters["bias"].copy_(self.bias)


@dataclass(frozen=True)
class _Plan:
    """A share of the states, the entries of each map, none for what stays as it is, and whether
    other parameters are halves."""

    times: int
    entries: Mapping[str, Optional[str]]
    halves: bool
    bytes: float
    change: float


class Sizes:
    """Smaller versions of a live network: what each choice does to its logits is measured once."""

    def __init__(self, live: Live, only: Optional[str], progress: Progress) -> None:
        self.live, self.only, self.progress = live, only, progress
        names = (live.model.tensors(name) for name in live.model.layers)
        self.systems = {tensor for layer in names for tensor in layer}
        self.some = live.some(_PRICED)

    @cached_property
    def parts(self) -> dict[str, torch.nn.Module]:
        """The maps that the forward pass calls, in the order in which it does."""
        found = {} if self.only == "states" else maps(self.live.module, self.systems)
        return self._called(found)

    @cached_property
    def others(self) -> list[str]:
        """Parameters that may be halves."""
        taken = self.systems | {f"{name}.weight" for name in self.parts}
        return [] if self.only == "states" else _halves(self.live.module, taken)

    def made(self, size: int) -> Reduced:
        """The network in at most ``size`` bytes.

        Raises:
            CalibrationError: more bytes than the fewest that it can take.
        """
        plan = self.plan(size)
        small = self._states[plan.times]
        wanted = {name: kind for name, kind in plan.entries.items() if kind is not None}
        tensors = self._others_rounded() if plan.halves else {}
        rounded = self._rounded(replaced(small, tensors), wanted)
        for name, own in rounded.items():
            tensors[f"{name}.weight"] = own.weight
            if own.bias is not None:
                tensors[f"{name}.bias"] = own.bias.half().to(own.bias) if plan.halves else own.bias
        small = self.live.fitted(replaced(small, tensors), steps=4, progress=self.progress)
        small.storage = {f"{name}.weight": own.integers for name, own in rounded.items()}
        small.choice = {
            **(small.choice or {}),
            "entries": {f"{name}.weight": kind for name, kind in wanted.items()},
            "halves": self.others if plan.halves else [],
        }
        return small

    def plan(self, size: float) -> _Plan:
        """The choice of at most ``size`` bytes whose changes of the logits have the least sum of squares:
        what several do is taken as independent."""
        fit = [plan for plan in self._plans if plan.bytes <= size]
        if not fit:
            least = int(min(plan.bytes for plan in self._plans))
            raise CalibrationError(
                f"{int(size)} bytes, expected at least {least}: the states, and of "
                f"{len(self.parts)} linear maps the weights, become smaller"
            )
        return min(fit, key=lambda plan: (plan.change, plan.bytes))

    def reaches(self, size: float) -> bool:
        """Whether any choice takes at most ``size`` bytes."""
        return any(plan.bytes <= size for plan in self._plans)

    @cached_property
    def _plans(self) -> list[_Plan]:
        return [self._cheapest(times, price) for times in self._states for price in _PRICES]

    def bytes(self, small: Reduced) -> int:
        """Of the numbers in single precision, and of the integers."""
        integers = sum(one.levels.size for one in small.storage.values())
        packed = sum(one.bytes for one in small.storage.values())
        state, halves = self.live.module.state_dict(), (small.choice or {}).get("halves", [])
        saved = 2 * sum(state[name].numel() for name in halves)
        return int(4 * (small.parameters - integers) + packed - saved)

    def _cheapest(self, times: int, price: float) -> _Plan:
        change, size = self._changes[times], 4.0 * self._states[times].parameters
        own, saved = self._half
        halves = bool(self.others) and own < price * saved
        if halves:
            change, size = change + own, size - saved
        entries: dict[str, Optional[str]] = {}
        for name, menu in self._menus.items():
            kind, own, saved = min(menu, key=lambda one: one[1] - price * one[2])
            entries[name] = kind
            change, size = change + own, size - saved
        return _Plan(times, entries, halves, size, change)

    @cached_property
    def _states(self) -> dict[int, Reduced]:
        model = self.live.model
        channels = sum(len(order) for order in model.orders.values())
        most = 1 if self.only == "maps" else model.states // channels
        return {
            times: self.live.reduce(budget=1 / times, allocation="layer", steps=min(1, times - 1))
            for times in _TIMES
            if times <= max(1, most)
        }

    @cached_property
    def _changes(self) -> dict[int, float]:
        live = self.live
        return {
            times: logits_apart(live.module, small, self.some, live.run) ** 2
            for times, small in self._states.items()
        }

    @cached_property
    def _half(self) -> tuple[float, float]:
        """The squared change of the logits when other parameters are halves, and the bytes saved."""
        live, moved = self.live, self._others_rounded()
        other = copy.deepcopy(live.module).eval()
        other.load_state_dict(moved, strict=False)
        saved = 2.0 * sum(tensor.numel() for tensor in moved.values())
        return live.apart(other, self.some) ** 2, saved

    def _others_rounded(self) -> dict[str, torch.Tensor]:
        parameters = dict(self.live.module.named_parameters())
        known = {name: parameters[name].detach() for name in self.others}
        return {name: tensor.half().to(tensor) for name, tensor in known.items()}

    @cached_property
    def _menus(self) -> dict[str, list[tuple[Optional[str], float, float]]]:
        """For each map its kinds of entries, the squared change of the logits and the bytes saved."""
        live, made = self.live, {}
        other = copy.deepcopy(live.module).eval()
        modules = dict(other.named_modules())
        for some in _chunks(list(self.parts), _TOGETHER):
            known = self._moments(live.module, some)
            for name in some:
                part = modules[name]
                weight = part._parameters["weight"]
                assert weight is not None
                menu: list[tuple[Optional[str], float, float]] = [(None, 0.0, 0.0)]
                before = {k: v.detach().clone() for k, v in part.state_dict().items()}
                for kind, integers in KINDS.items():
                    _Map.of(part, known[name], kind).put(part)
                    apart = live.apart(other, self.some) ** 2 * integers.factor
                    saved = 4 * weight.numel() - _bytes(tuple(weight.shape), kind)
                    menu.append((kind, apart, saved))
                    part.load_state_dict(before)
                made[name] = menu
        return made

    def _rounded(self, small: Reduced, wanted: Mapping[str, str]) -> dict[str, _Map]:
        """The maps, each for the inputs that those before it leave."""
        from .torch import _put

        other = copy.deepcopy(self.live.module).eval()
        _put(other, small)
        modules, made = dict(other.named_modules()), {}
        for some in _chunks([name for name in self.parts if name in wanted], 1):
            moments = self._moments(other, some)
            for name in some:
                made[name] = _Map.of(modules[name], moments[name], wanted[name])
                made[name].put(modules[name])
        return made

    def _moments(self, other: torch.nn.Module, names: list[str]) -> dict[str, _Moments]:
        live = self.live
        full, own = dict(live.module.named_modules()), dict(other.named_modules())
        sums = {name: _Moments() for name in names}
        with torch.no_grad(), evaluating(live.module), evaluating(other):
            for piece in live.pieces():
                with _inputs({name: full[name] for name in names}) as u:
                    live.run(live.module, piece)
                with _inputs({name: own[name] for name in names}) as x:
                    live.run(other, piece)
                for name, total in sums.items():
                    for a, b in zip(x[name], u[name]):
                        total.add(a, b)
        return sums

    def _called(self, found: Mapping[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
        order: list[str] = []
        handles = [
            part.register_forward_pre_hook(lambda _, __, name=name: order.append(name))
            for name, part in found.items()
        ]
        try:
            with torch.no_grad(), evaluating(self.live.module):
                self.live.run(self.live.module, next(self.live.pieces())[:1])
        finally:
            for handle in handles:
                handle.remove()
        return {name: found[name] for name in dict.fromkeys(order)}


#: Squared change of the logits for a byte.
_PRICES: Floats = np.concatenate([[0.0], np.geomspace(1e-14, 1.0, 200)])


def _chunks(names: list[str], most: int) -> Iterator[list[str]]:
    return (names[at : at + most] for at in range(0, len(names), most))
