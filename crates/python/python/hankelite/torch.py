"""Live PyTorch modules: statistics by hooks, smaller parameters in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Optional, Union

import numpy as np
import torch

from ._fit import Fit, Floats, Forward, Slopes, evaluating, fit, importance
from ._held import Held, hold
from ._model import Model, Reduced, inspect, read, reduce
from ._progress import Progress
from ._round import Rounded
from ._sources import unwrapped
from .captured import Captured
from .errors import CalibrationError, CheckpointError, InvalidSetting
from .statistics import LayerStatistics, Statistics

__all__ = [
    "Applied",
    "Fit",
    "Held",
    "Listening",
    "Rounded",
    "apply_",
    "calibrate",
    "capture",
    "fit",
    "hold",
    "importance",
    "inspect",
    "listen",
    "rebuild_optimizer",
    "reduce",
]

#: Families whose layers take (batch, steps, channels), the others (batch, channels, steps), and
#: whose modules give the outputs y of their systems and nothing else.
_SHARED = ("S5", "LRU")


#: Sequences whose outputs are differentiated while listening.
_SCORED = 32

#: Numbers that are transformed at a time on a CPU: what its cache holds.
_CACHED = 1 << 17


def _module_name(tensors: list[str]) -> str:
    """The module of a layer: the innermost that holds its kernel and D."""
    paths = [name.split(".")[:-1] for name in tensors]
    common: list[str] = []
    for parts in zip(*paths):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    while common and common[-1] == "kernel":
        common.pop()
    return ".".join(common)


class _Sums:
    """What is summed for one layer, where its inputs are."""

    def __init__(self, channels: int, products: bool) -> None:
        self.channels = channels
        self.with_products = products
        self.length = 0
        self.sequences = 0
        self.done: Optional[LayerStatistics] = None
        self.power: Any = None
        self.total: Any = None
        self.pairs: Any = None

    def add(self, u: torch.Tensor) -> None:
        """Adds inputs (sequences, channels, steps)."""
        u = u.detach()
        u = u.float() if u.dtype in (torch.float16, torch.bfloat16) else u
        if u.shape[-1] != self.length:
            self.settle()
            self.length = u.shape[-1]
        many = max(1, _CACHED // max(1, u[0].numel())) if u.device.type == "cpu" else len(u)
        for part in u.split(many):
            # A product of two transforms of twice the length has no wrap-around.
            spectrum = torch.view_as_real(torch.fft.rfft(part, 2 * self.length))
            # At frequency zero stands the sum over the steps.
            total = spectrum[:, :, 0, 0].sum(dim=0).double()
            # The first axis by itself: ten times as fast as both at once.
            power = spectrum.square_().sum(dim=0).sum(dim=-1).double()
            self.power = power if self.power is None else self.power.add_(power)
            self.total = total if self.total is None else self.total.add_(total)
        if self.with_products:
            across = u.transpose(0, 1)
            pairs = torch.matmul(across.transpose(1, 2), across).double()
            self.pairs = pairs if self.pairs is None else self.pairs.add_(pairs)
        self.sequences += u.shape[0]

    def settle(self) -> Optional[LayerStatistics]:
        """Moves the sums to the host, added to those of other lengths."""
        if self.power is None:
            return self.done
        lags = torch.fft.irfft(self.power, 2 * self.length)[:, : self.length]
        pairs = None if self.pairs is None else self.pairs.cpu().numpy()
        own = LayerStatistics(
            np.ascontiguousarray(lags.cpu().numpy()),
            self.total.cpu().numpy(),
            self.sequences,
            pairs,
        )
        self.done = own if self.done is None else self.done + own
        self.power, self.total, self.pairs, self.sequences = None, None, None, 0
        return self.done


class Listening(Statistics):
    """Statistics that grow while their module runs; see :func:`listen`."""

    def __init__(self, model: Model, products: bool, origin: str) -> None:
        super().__init__({}, origin)
        sums = zip(model.layers, model._core.channels)
        self._sums = {name: _Sums(channels, products) for name, channels in sums}
        self._handles: list[Any] = []
        self._slopes: Optional[Slopes] = None

    @property
    def importance(self) -> Mapping[str, Floats]:  # type: ignore[override]
        """How much the output error of each channel counts, with ``score``; else empty."""
        if self._slopes is None or self._slopes.sequences == 0:
            return {}
        return self._slopes.importance(self)

    def _weigh(self, module: Any, args: Any, z: Any, score: Callable[[Any], Any]) -> None:
        slopes, outputs = self._slopes, score(z)
        if slopes is None or slopes.sequences >= _SCORED:
            return
        if not torch.is_tensor(outputs) or outputs.ndim != 2 or not outputs.requires_grad:
            shape = tuple(getattr(outputs, "shape", ())) or type(outputs).__name__
            raise CalibrationError(
                f"the network gave {shape} to be scored, expected (sequences, outputs) with "
                "gradients: leave torch.no_grad() out, or let `score` pick the outputs"
            )
        for one in outputs[: _SCORED - slopes.sequences]:
            slopes.add(one)

    def _hook(self, name: str, axis: Optional[int], family: str) -> Any:
        sums = self._sums[name]

        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            values = [*args, *kwargs.values()]
            u = next((v for v in values if torch.is_tensor(v) and v.is_floating_point()), None)
            if u is None:
                raise CalibrationError(f"layer `{name}` was called without a tensor of inputs")
            sums.add(_channels_first(u, sums.channels, axis, family, name))

        return hook

    def __getitem__(self, name: str) -> LayerStatistics:
        own = self._sums[name].settle()
        if own is None:
            raise CalibrationError(f"layer `{name}`: no sequence went through it")
        return own

    def __iter__(self) -> Iterator[str]:
        return iter(self._sums)

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def sequences(self) -> int:
        done = self._sums[next(iter(self._sums))].settle()
        return 0 if done is None else done.sequences


def _channels_first(
    u: torch.Tensor, channels: int, axis: Optional[int], family: str, name: str
) -> torch.Tensor:
    """Inputs as (sequences, channels, steps)."""
    if u.ndim == 2:
        u = u.unsqueeze(0)
    if u.ndim != 3:
        raise CalibrationError(
            f"layer `{name}` was called with a tensor of shape {tuple(u.shape)}, expected "
            f"(batch, {channels}, steps) or (batch, steps, {channels})"
        )
    if axis is None:
        fits = [at for at in (1, 2) if u.shape[at] == channels]
        if not fits:
            raise CalibrationError(
                f"layer `{name}` was called with a tensor of shape {tuple(u.shape)}, expected one "
                f"axis of {channels} channels"
            )
        axis = fits[0] if len(fits) == 1 else (2 if family.startswith(_SHARED) else 1)
    if u.shape[axis] != channels:
        raise CalibrationError(
            f"layer `{name}` has {u.shape[axis]} numbers on axis {axis}, expected {channels} channels"
        )
    return u.movedim(axis, 1)


@contextmanager
def listen(
    module: torch.nn.Module,
    *,
    products: bool = False,
    score: Union[bool, Callable[[Any], Any]] = False,
    channel_axis: Optional[int] = None,
    origin: str = "",
    **declared: Any,
) -> Iterator[Listening]:
    """Gathers the inputs of every recognised layer while the module runs, in any network.

    Forward pre-hooks add up the autocorrelation, the mean and the count; memory does not grow with
    the number of batches. The sums stay on the device of the inputs until they are used.

    Args:
        module: a ``torch.nn.Module``, also inside of ``torch.compile``, ``DataParallel`` or
            ``DistributedDataParallel``.
        products: gather the products of all pairs of steps, too (H L^2 numbers for each layer): the
            exact moments instead of a stationary spectrum, worth some tenths of a point at the
            smallest sizes.
        score: also gather gradients of what the module gives, for the importance of each channel
            (``budget``, ``max_error``): True for logits (sequences, outputs), or a function that
            makes such of what it gives. The first 32 sequences count, and cost a backward pass each
            for up to ten outputs; the module must run with gradients.
        channel_axis: the axis of the channels in the layers' inputs, 1 or 2; found by its size
            where it is not given.
        origin: where the sequences come from, for records.
        declared: as for :func:`hankelite.read`.

    Yields:
        statistics that :func:`hankelite.reduce` takes, also after the block has ended.

    Raises:
        CheckpointError: no known layers in the module.
        CalibrationError: a layer is called with something else than its inputs.
    """
    if channel_axis not in (None, 1, 2):
        raise InvalidSetting(f"channel_axis is {channel_axis}, expected 1 or 2")
    inner = unwrapped(module)
    model = read(inner, **declared)
    listening = Listening(model, products, origin)
    try:
        for name in model.layers:
            place = _module_name(model.tensors(name))
            layer = inner.get_submodule(place)
            hook = listening._hook(name, channel_axis, model.family)
            listening._handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
        if score:
            listening._slopes = Slopes(inner, model)
            picked: Callable[[Any], Any] = score if callable(score) else (lambda z: z)
            weigh = partial(listening._weigh, score=picked)
            listening._handles.append(inner.register_forward_hook(weigh))
        yield listening
    finally:
        for handle in listening._handles:
            handle.remove()
        if listening._slopes is not None:
            listening._slopes.close()


class _Watched:
    """The inputs of all layers in one forward pass, and the outputs of their systems."""

    def __init__(self, module: torch.nn.Module, model: Model, axis: Optional[int]) -> None:
        self.axis, self.family = axis, model.family
        self.channels = dict(zip(model.layers, model._core.channels))
        self.places = {
            name: module.get_submodule(_module_name(model.tensors(name))) for name in model.layers
        }
        self.u: dict[str, torch.Tensor] = {}
        self.y: dict[str, torch.Tensor] = {}
        self.handles = [
            place.register_forward_pre_hook(self._keeps_input(name), with_kwargs=True)
            for name, place in self.places.items()
        ]

    def watch_outputs(self, outputs: Optional[Mapping[str, torch.nn.Module]]) -> None:
        """Keeps y: what a layer's own module gives, or what another one takes."""
        if outputs is None:
            for name, place in self.places.items():
                self.handles.append(place.register_forward_hook(self._keeps_output(name)))
            return
        for name in self.places:
            if name not in outputs:
                raise CalibrationError(f"no module takes the output of layer `{name}` in `outputs`")
            self.handles.append(outputs[name].register_forward_pre_hook(self._keeps_taken(name)))

    def _keeps_input(self, name: str) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            values = [*args, *kwargs.values()]
            u = next((v for v in values if torch.is_tensor(v) and v.is_floating_point()), None)
            if u is None or name in self.u:
                found = "without a tensor of inputs" if u is None else "twice"
                raise CalibrationError(f"layer `{name}` was called {found}, expected one call")
            self.u[name] = self._steps_first(name, u).detach()

        return hook

    def _steps_first(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        first = _channels_first(tensor, self.channels[name], self.axis, self.family, name)
        return first.transpose(1, 2)

    def _kept(self, name: str, y: Any) -> torch.Tensor:
        if not torch.is_tensor(y) or not y.is_floating_point():
            raise CalibrationError(f"layer `{name}` gave {type(y).__name__}, expected real outputs y")
        y = y if y.requires_grad else y.detach().requires_grad_(True)
        self.y[name] = y
        return y

    def _keeps_output(self, name: str) -> Any:
        return lambda module, args, y: self._kept(name, y)

    def _keeps_taken(self, name: str) -> Any:
        return lambda module, args: (self._kept(name, args[0]), *args[1:])

    def slopes(self, z: torch.Tensor, combinations: int, seed: int) -> dict[str, torch.Tensor]:
        """Gradients of random combinations of the logits, (sequences, combinations, steps, outputs)."""
        if z.ndim != 2:
            raise CalibrationError(
                f"the forward pass gave shape {tuple(z.shape)}, expected (sequences, outputs)"
            )
        drawn = torch.Generator().manual_seed(seed)
        signs = 2.0 * torch.randint(0, 2, (combinations, z.shape[1]), generator=drawn) - 1.0
        if z.shape[1] > 1:
            signs = signs - signs.mean(dim=1, keepdim=True)
        made: dict[str, list[torch.Tensor]] = {name: [] for name in self.y}
        for row in signs.to(z):
            own = torch.autograd.grad((z * row).sum(), list(self.y.values()), retain_graph=True)
            for (name, parts), slope in zip(made.items(), own):
                parts.append(self._steps_first(name, slope))
        return {name: torch.stack(parts, dim=1) for name, parts in made.items()}


def capture(
    module: torch.nn.Module,
    inputs: Any,
    *,
    gradients: bool = True,
    outputs: Optional[Mapping[str, torch.nn.Module]] = None,
    combinations: int = 10,
    forward: Optional[Forward] = None,
    channel_axis: Optional[int] = None,
    origin: str = "",
    **declared: Any,
) -> Captured:
    """Keeps the inputs of every recognised layer on some sequences, in any network.

    What S5, LRU and bidirectional layers need; for layers with one system per channel
    :func:`listen` needs no memory for the sequences. Sequences x steps x channels numbers are kept
    for each layer, with gradients ``1 + combinations`` times as many.

    Args:
        module: the full network; it runs in evaluation mode.
        inputs: sequences, (sequences, ...), or a Dataset, a DataLoader, any batches of them; labels
            beside them are left alone.
        gradients: also keep derivatives of random combinations of the (centred) logits by the
            outputs y = k * u + D u of the layers' systems.
        outputs: for each layer the module that takes y as its first argument, usually an
            activation; where it is not given, y is what the layer's module gives (S5, LRU).
        combinations: of the logits, for each sequence.
        forward: ``forward(module, x)`` gives logits (sequences, outputs); by default ``module(x)``.
        channel_axis, origin, declared: as for :func:`listen`.

    Raises:
        CalibrationError: gradients of layers whose modules do not give y, without ``outputs``;
            layers that are called twice.
    """
    from ._live import pieces, tensors

    run: Forward = forward or (lambda network, x: network(x))
    inner = unwrapped(module)
    model = read(inner, **declared)
    if gradients and outputs is None and not model.family.startswith(_SHARED):
        raise CalibrationError(
            f"a module of {model.family} does more than its systems: name the modules that take "
            "their outputs (outputs={layer: activation}), or leave gradients out (gradients=False)"
        )
    kept: dict[str, list[Any]] = {name: [] for name in model.layers}
    slopes: dict[str, list[Any]] = {name: [] for name in model.layers}
    watched = _Watched(inner, model, channel_axis)
    try:
        if gradients:
            watched.watch_outputs(outputs)
        with evaluating(inner), torch.set_grad_enabled(gradients):
            for index, part in enumerate(pieces(tensors(inputs, inner))):
                watched.u.clear()
                watched.y.clear()
                z = run(inner, part)
                for name, u in watched.u.items():
                    kept[name].append(u.float().cpu().numpy())
                if gradients:
                    for name, own in watched.slopes(z, combinations, index).items():
                        slopes[name].append(own.float().cpu().numpy())
    finally:
        for handle in watched.handles:
            handle.remove()
    return _joined(kept, slopes if gradients else {}, origin)


def _joined(kept: dict[str, list[Any]], slopes: dict[str, list[Any]], origin: str) -> Captured:
    for name, parts in kept.items():
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) != 1:
            found = "no inputs" if not shapes else f"sequences of {len(shapes)} lengths"
            raise CalibrationError(f"layer `{name}` got {found}, expected sequences of one length")
    together = {name: np.concatenate(parts) for name, parts in kept.items()}
    return Captured(together, {n: np.concatenate(parts) for n, parts in slopes.items()}, origin)


@dataclass
class Applied:
    """What :func:`apply_` changed.

    Attributes:
        parameters: names of the parameters and buffers that are smaller now.
        before, after: numbers in all parameters and buffers of the module.
    """

    parameters: list[str] = field(default_factory=list)
    before: int = 0
    after: int = 0


def _place(module: torch.nn.Module, name: str) -> tuple[Any, str]:
    owner, _, attribute = name.rpartition(".")
    try:
        return module.get_submodule(owner), attribute
    except AttributeError:
        raise CheckpointError(f"the module has no `{owner}`, expected tensor `{name}`") from None


def apply_(module: torch.nn.Module, small: Reduced) -> Applied:
    """Puts the tensors of a reduced model into a module, in place.

    Parameters stay the same objects: references to them (ties, optimisers, attributes such as
    ``_optim``), ``requires_grad``, device and dtype are kept, their gradients dropped. All tensors
    are looked up before the first is changed. Afterwards :func:`rebuild_optimizer` takes care of
    an optimiser, and DistributedDataParallel has to be wrapped again.

    Raises:
        CheckpointError: the module lacks a tensor, or has another one in its place, e.g. of another
            width.
    """
    _require_alike(unwrapped(module), small)
    return _put(module, small)


def _put(module: torch.nn.Module, small: Reduced) -> Applied:
    """The same for a module that is known to be like the one that was reduced."""
    inner = unwrapped(module)
    before = _count(inner)
    changes: list[tuple[str, Any, str, Any, Any]] = []
    for name, value in small.changed().items():
        owner, attribute = _place(inner, name)
        old: Any = getattr(owner, attribute, None)
        if not torch.is_tensor(old):
            raise CheckpointError(f"the module has no tensor `{name}`")
        value = torch.as_tensor(value)
        if value.ndim != old.ndim:
            raise CheckpointError(
                f"tensor `{name}` has shape {tuple(old.shape)} in the module, expected one of "
                f"{value.ndim} axes"
            )
        if value.shape != old.shape or not torch.equal(value.to(old), old):
            changes.append((name, owner, attribute, old, value.detach()))
    for _, owner, attribute, old, value in changes:
        # Poles and residues that half precision would change too much stay in the format they come in.
        half = old.dtype in (torch.bfloat16, torch.float16) and value.dtype == torch.float32
        # A copy: what trains the module leaves the model, and other modules that it is in, alone.
        new = value.to(device=old.device, dtype=value.dtype if half else old.dtype, copy=True)
        if attribute in owner._parameters:
            old.grad = None
        old.data = new
    return Applied([name for name, *_ in changes], before, _count(inner))


def _require_alike(module: torch.nn.Module, small: Reduced) -> None:
    """Tensors that a reduction leaves as they are have the shapes that the module's have: one of another
    width would fail in its next forward pass only."""
    state, changed = small.state_dict(), small.changed()
    if not isinstance(state, Mapping):
        return
    for name, value in state.items():
        shape = getattr(value, "shape", None)
        if shape is None or name in changed:
            continue
        try:
            owner, attribute = _place(module, name)
        except CheckpointError:
            continue
        old: Any = getattr(owner, attribute, None)
        if torch.is_tensor(old) and tuple(old.shape) != tuple(shape):
            raise CheckpointError(
                f"tensor `{name}` has shape {tuple(old.shape)} in the module, expected {tuple(shape)} as in "
                "the model that was reduced"
            )


def _count(module: torch.nn.Module) -> int:
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() for tensor in tensors)


def calibrate(
    module: torch.nn.Module,
    inputs: Any,
    *,
    order: Optional[int] = None,
    budget: Optional[float] = None,
    products: bool = True,
    forward: Optional[Forward] = None,
    steps: int = 4,
    progress: Progress = None,
    **declared: Any,
) -> Reduced:
    """The whole of a calibrated reduction for any network, by its own forward pass.

    Listens to the layers (:func:`listen`), reduces, and fits all channels together to the logits
    (:func:`fit`). With ``budget`` three ways to weigh the channels are tried (:func:`importance`,
    its root, all equal), and the sharing that changes the logits least is taken.

    Layers whose channels share modes (S5, LRU) are reduced for captured inputs and gradients
    (:func:`capture`); their weights are not fitted to the logits afterwards.

    Args:
        module: the full network; it runs in evaluation mode, and is not changed.
        inputs: at least 8 sequences, (sequences, ...), or a Dataset, a DataLoader, any batches of
            them; labels beside them are left alone.
        order: stored states of every channel.
        budget: share of all states, shared among the layers.
        products: see :func:`listen`.
        forward: ``forward(module, x)`` gives logits (batch, outputs); by default ``module(x)``.
        steps: Gauss-Newton steps of the fit at most; 0 for none.
        progress, declared: as for :func:`hankelite.reduce`.
    """
    from ._live import Live

    live = Live(module, inputs, forward, products, **declared)
    return live.reduce(order=order, budget=budget, steps=steps, progress=progress)


def rebuild_optimizer(optimizer: torch.optim.Optimizer) -> list[str]:
    """Resets the state of parameters whose shape has changed since the optimiser last stepped.

    Moments of other shapes belong to other coordinates: a reduced pole has no predecessor, so they
    are dropped and start again; the state of all other parameters, and all settings of the groups,
    stay.

    Returns:
        for each parameter that was reset its place, ``"group.parameter"``.
    """
    reset = []
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group["params"]):
            state = optimizer.state.get(parameter, {})
            tensors = [value for value in state.values() if torch.is_tensor(value) and value.ndim]
            if any(value.shape != parameter.shape for value in tensors):
                del optimizer.state[parameter]
                reset.append(f"{g}.{p}")
    return reset
