"""The last step of a calibrated reduction for any network: a fit to the logits by autograd."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import numpy.typing as npt
import torch

from . import _core
from ._model import Model, Reduced, read
from ._progress import Progress, following
from ._sources import Source, Tensors, unwrapped
from .errors import CalibrationError
from .statistics import LayerStatistics, Statistics

Floats = npt.NDArray[np.float64]
Forward = Callable[[Any, Any], torch.Tensor]

#: How little the gradients are trusted; all are tried.
_PRICES = (1000.0, 100.0, 10.0, 1.0)
#: Of more outputs than this, as many random combinations are used.
_COMBINATIONS = 10
#: Every so many sequences one is held out.
_CHECK_EVERY = 4
#: A step must bring the held-out logits nearer by this share.
_GAIN_MIN = 0.02
#: What every weight costs by itself, relative to its mode's own square.
_PARALLEL = 1e-4
#: Sequences that run at a time.
_TOGETHER = 32
#: Numbers in the gradients of a combination that are formed at a time.
_SLOPES = 1 << 22


@dataclass
class Fit:
    """What :func:`fit` did.

    Attributes:
        steps: Gauss-Newton steps that were taken.
        parameters: numbers that could move.
        before, after: relative change of the held-out logits.
    """

    steps: int
    parameters: int
    before: float
    after: float


class _Fitted(Source):
    """A source whose smaller tensors were moved after the reduction."""

    def __init__(self, tensors: Tensors, changed: dict[str, Any], core: _core.Checkpoint) -> None:
        super().__init__(core)
        self.tensors, self.replaced = tensors, changed
        self.module = getattr(tensors, "module", None)

    def changed(self, checkpoint: _core.Checkpoint) -> dict[str, Any]:
        return dict(self.replaced)

    def state(self, checkpoint: _core.Checkpoint) -> Any:
        return {**self.tensors.values, **self.replaced}


class _Layer:
    """The output weights C and feedthrough D of one layer, H channels of N stored modes.

    The residues of a channel are alpha C, with alpha a complex number for each mode that depends
    on the layout, the poles and the step.
    """

    def __init__(self, small: Model, state: dict[str, Any], name: str) -> None:
        tensors = {key.rpartition(".")[2]: key for key in small.tensors(name)}
        weights = tensors.get("C", tensors.get("W"))
        if weights is None or "D" not in tensors:
            found = ", ".join(tensors.values())
            raise CalibrationError(f"layer `{name}` has {found}, expected output weights and D")
        self.name, self.c, self.d = name, weights, tensors["D"]
        unit = torch.ones_like(state[weights])
        if not unit.is_complex():
            unit[..., 1] = 0
        ones = read({**state, weights: unit}, **_declared(small))
        self.systems = ones.systems(name)
        self.channels, self.modes = len(self.systems), len(self.systems[0].poles)
        pairs = state[weights].numel() * (2 if state[weights].is_complex() else 1)
        if pairs != 2 * self.channels * self.modes or state[self.d].numel() != self.channels:
            raise CalibrationError(
                f"layer `{name}`: `{weights}` has shape {tuple(state[weights].shape)}, expected one "
                f"weight for each of {self.channels} channels of {self.modes} modes"
            )

    @property
    def width(self) -> int:
        """Numbers of one channel."""
        return 2 * self.modes + 1

    def rows(self, c: torch.Tensor, d: torch.Tensor) -> Floats:
        """The numbers of every channel: (H, 2N + 1)."""
        return np.asarray(self.slopes(c.unsqueeze(0), d.unsqueeze(0))[0])

    def slopes(self, c: torch.Tensor, d: torch.Tensor) -> Floats:
        """The same of several tensors of each kind: (many, H, 2N + 1)."""
        pairs = torch.view_as_real(c.resolve_conj()) if c.is_complex() else c
        shape = (len(c), self.channels, -1)
        parts = [pairs.reshape(shape), d.reshape(shape)]
        return np.asarray(torch.cat(parts, dim=2).detach().double().cpu().numpy())

    def move(self, step: Floats, c: torch.Tensor, d: torch.Tensor) -> None:
        """Adds a step (H, 2N + 1) to the tensors, in place."""
        moved = torch.from_numpy(np.ascontiguousarray(step[:, :-1]))
        pairs = moved.reshape(self.channels, self.modes, 2)
        more = torch.view_as_complex(pairs) if c.is_complex() else pairs
        with torch.no_grad():
            c.add_(more.reshape(c.shape).to(c))
            through = torch.from_numpy(np.ascontiguousarray(step[:, -1]))
            d.add_(through.reshape(d.shape).to(d))

    def used(self, c: torch.Tensor, d: torch.Tensor) -> npt.NDArray[np.bool_]:
        """Which numbers of every channel stand for a mode that it has, (H, 2N + 1): a place that a
        channel does not use holds a weight of zero."""
        rows = self.rows(c, d)
        modes = (rows[:, :-1].reshape(self.channels, self.modes, 2) != 0.0).any(axis=2)
        return np.hstack([modes.repeat(2, axis=1), np.ones((self.channels, 1), dtype=bool)])

    def factors(
        self, lags: Floats, squares: Floats, used: npt.NDArray[np.bool_]
    ) -> list[Floats]:
        """For every channel a factor of the price of a step: what its change of the output would
        do to the logits were it noise. ``lags`` is R (H, L), ``squares`` the summed squares of the
        slopes (H,); numbers that are not ``used`` stay apart from the others."""
        length = lags.shape[1]
        even = np.concatenate([lags, np.zeros((len(lags), 1)), lags[:, :0:-1]], axis=1)
        spectra = np.fft.rfft(even, axis=1).real.clip(0.0)
        count = np.full(length + 1, 2.0)
        count[[0, -1]] = 1.0
        factors = []
        for system, spectrum, square, own_used in zip(self.systems, spectra, squares, used):
            powers = np.exp(np.outer(np.arange(length), system.poles * (system.step or 1.0)))
            slopes = powers * (system.b[:, 0] * system.c[0])
            basis = np.zeros((length, self.width))
            basis[:, 0:-1:2], basis[:, 1:-1:2] = slopes.real, -slopes.imag
            basis[0, -1] = 1.0
            basis[:, ~own_used] = 0.0
            image = np.fft.rfft(basis, 2 * length, axis=0)
            image = image * np.sqrt(count * spectrum / (2 * length))[:, None]
            gram = (image.conj().T @ image).real
            diagonal = np.diag(gram).copy()
            own = diagonal.copy()
            own[0:-1:2] += diagonal[1:-1:2]
            own[1:-1:2] += diagonal[0:-1:2]
            gram += np.diag(_PARALLEL * own + 1e-12 * diagonal.max() + 1e-300)
            gram *= max(square / np.trace(gram), 1e-300)
            factors.append(np.linalg.cholesky(gram))
        return factors


def _declared(model: Model) -> dict[str, Any]:
    import json

    return {k: v for k, v in json.loads(model._core.declared).items() if v not in (None, False)}


def _centred(z: torch.Tensor) -> torch.Tensor:
    return z if z.shape[-1] == 1 else z - z.mean(dim=-1, keepdim=True)


def _change(full: torch.Tensor, reduced: torch.Tensor) -> float:
    apart, size = _centred(full - reduced).norm(), _centred(full).norm()
    value = float(apart / size) if float(size) > 0 else 0.0
    return value if np.isfinite(value) else float("inf")


def _combinations(outputs: int, index: int) -> torch.Tensor:
    """Rows whose squares sum to that of the centred logits, at most ten."""
    if outputs <= _COMBINATIONS:
        return _centred(torch.eye(outputs, dtype=torch.float64))
    random = np.random.default_rng(index).integers(0, 2, (_COMBINATIONS, outputs))
    signs = torch.from_numpy(2.0 * random - 1.0) / _COMBINATIONS**0.5
    return _centred(signs)


def _slopes(z: torch.Tensor, rows: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of combinations of the outputs of one sequence, one row each."""
    try:
        return list(
            torch.autograd.grad(z, inputs, rows, retain_graph=True, is_grads_batched=True)
        )
    except RuntimeError:
        each = [torch.autograd.grad(z, inputs, row, retain_graph=True) for row in rows]
        return [torch.stack(parts) for parts in zip(*each)]


@contextmanager
def evaluating(module: Any) -> Iterator[None]:
    """The module as it is used: without dropout, norms at rest. Every part is as before later."""
    parts = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in parts:
            part.training = training


class _Run(torch.nn.Module):  # type: ignore[misc]
    """A module with the caller's way to run it, so that its tensors can be replaced by name."""

    def __init__(self, inner: torch.nn.Module, run: Forward) -> None:
        super().__init__()
        self.inner, self.run = inner, run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.inner, x)


class _Problem:
    """Sequences, the logits of the full network, and a copy that is moved."""

    def __init__(self, module: Any, small: Reduced, inputs: Any, forward: Forward) -> None:
        from .torch import _put

        self.forward = forward
        self.module = copy.deepcopy(module).eval()
        sequences = _single(inputs, module)
        with torch.no_grad(), evaluating(module):
            full = self._logits(module, sequences)
        _put(self.module, small)
        held = [i for i in range(len(sequences)) if (i + 1) % _CHECK_EVERY == 0]
        rest = [i for i in range(len(sequences)) if (i + 1) % _CHECK_EVERY]
        self.fit = [(sequences[i], full[i]) for i in rest]
        self.check = [(sequences[i], full[i]) for i in held]

    def _logits(self, module: Any, sequences: list[Any]) -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        for some in _alike(sequences, _TOGETHER):
            z = self.forward(module, torch.cat(some))
            if not torch.is_tensor(z) or z.ndim != 2 or z.shape[0] != len(some):
                raise CalibrationError(
                    f"the forward pass gave shape {tuple(z.shape)} for {len(some)} sequences, "
                    f"expected ({len(some)}, outputs)"
                )
            made.extend(z)
        return made

    def change(self) -> float:
        with torch.no_grad():
            reduced = torch.stack(self._logits(self.module, [one for one, _ in self.check]))
        return _change(torch.stack([z for _, z in self.check]), reduced)

    def rows(self, layers: list[_Layer], numbers: list[torch.Tensor]) -> tuple[Floats, Floats]:
        """J, (sequences and combinations) x numbers, and what is left of the combinations."""
        names = [key for layer in layers for key in (layer.c, layer.d)]
        together = max(1, _SLOPES // sum(number.numel() for number in numbers))
        slopes, left = [], []
        for some in _alike(list(enumerate(self.fit)), min(together, _TOGETHER)):
            x = torch.stack([one for _, (one, _) in some])
            full = torch.stack([z for _, (_, z) in some])
            rows = torch.stack([_combinations(full.shape[1], index) for index, _ in some]).to(full)
            z, parts = self._slopes(dict(zip(names, numbers)), x, rows)
            apart = (rows @ (full - z.detach()).unsqueeze(-1)).squeeze(-1)
            left.append(apart.double().cpu().numpy().reshape(-1))
            flat = [part.flatten(0, 1) for part in parts]
            pairs = zip(layers, flat[0::2], flat[1::2])
            own = [layer.slopes(c, d).reshape(len(c), -1) for layer, c, d in pairs]
            slopes.append(np.concatenate(own, axis=1))
        return np.concatenate(slopes), np.concatenate(left)

    def _slopes(
        self, numbers: Mapping[str, torch.Tensor], x: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits of the sequences x (many, 1, ...), and for each number the slopes of combinations of
        them, (many, combinations, ...)."""
        try:
            return self._slopes_together(numbers, x, rows)
        except (RuntimeError, ValueError):
            # What no batch of gradients can pass: control flow by numbers, changes in place.
            made = []
            for one, own in zip(x, rows):
                (z,) = self._logits(self.module, [one])
                made.append((z, _slopes(z, own, list(numbers.values()))))
            parts = zip(*(slopes for _, slopes in made))
            return torch.stack([z for z, _ in made]), [torch.stack(part) for part in parts]

    def _slopes_together(
        self, numbers: Mapping[str, torch.Tensor], x: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        # A copy of the numbers for each sequence: one way back gives the slopes of each by itself.
        run, many = _Run(self.module, self.forward), len(x)
        copies = [
            number.detach().expand(many, *number.shape).clone().requires_grad_(True)
            for number in numbers.values()
        ]
        names = [f"inner.{name}" for name in numbers]

        def of_one(one: torch.Tensor, *own: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(run, dict(zip(names, own)), (one,))[0]

        z = torch.func.vmap(of_one)(x, *copies)
        made = [
            torch.autograd.grad((z * row).sum(), copies, retain_graph=True)
            for row in rows.unbind(dim=1)
        ]
        return z, [torch.stack(part, dim=1) for part in zip(*made)]


def _alike(sequences: list[Any], most: int) -> Iterator[list[Any]]:
    """Neighbours of one shape, at most so many together."""

    def shape(item: Any) -> tuple[int, ...]:
        one = item if torch.is_tensor(item) else item[1][0]
        return tuple(one.shape)

    for _, group in itertools.groupby(sequences, shape):
        items = list(group)
        yield from (items[at : at + most] for at in range(0, len(items), most))


def importance(
    module: torch.nn.Module,
    model: Model,
    inputs: Any,
    statistics: Statistics,
    *,
    forward: Optional[Forward] = None,
    sequences: int = 32,
) -> dict[str, Floats]:
    """How much the output error of each channel counts: an estimate of the mean square of the
    gradient of the (centred) logits with respect to the channel's output, by autograd.

    The gradients are taken with respect to the feedthroughs D, whose square is that of the output's
    gradient times the input's where both are independent.

    Args:
        module: the full network.
        model: the same as :func:`hankelite.read` gives it.
        inputs: unlabelled sequences, (sequences, ...) or batches of them.
        statistics: those of the layers' inputs.
        forward: as for :func:`fit`.
        sequences: that are used at most.

    Returns:
        for each layer positive numbers of shape (H,), with mean 1 over all channels.
    """
    run = forward or (lambda net, x: net(x))
    slopes = Slopes(module, model)
    try:
        with torch.enable_grad(), evaluating(module):
            for one in _single(inputs, module)[:sequences]:
                slopes.add(run(module, one)[0])
    finally:
        slopes.close()
    return slopes.importance(statistics)


class Slopes:
    """Squared gradients of the logits by the feedthrough D of every channel, summed."""

    def __init__(self, module: torch.nn.Module, model: Model) -> None:
        live = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.layers = model.layers
        self.through = [live[_through(model, name)] for name in model.layers]
        self.were = [tensor.requires_grad for tensor in self.through]
        self.sums = [np.zeros(tensor.numel()) for tensor in self.through]
        self.sequences = 0
        for tensor in self.through:
            tensor.requires_grad_(True)

    def add(self, z: torch.Tensor) -> None:
        """Of the outputs (outputs,) of one more sequence."""
        rows = _combinations(z.numel(), self.sequences).to(z)
        for total, own in zip(self.sums, _slopes(z, rows, self.through)):
            total += own.reshape(len(own), -1).double().square().sum(dim=0).cpu().numpy()
        self.sequences += 1

    def importance(self, statistics: Mapping[str, LayerStatistics]) -> dict[str, Floats]:
        """For each layer (H,), with mean 1 over all channels."""
        powers = [statistics[name].autocorrelation[:, 0] for name in self.layers]
        weights = [total / np.maximum(power, 1e-30) for total, power in zip(self.sums, powers)]
        mean = float(np.mean(np.concatenate(weights))) or 1.0
        return {name: weight / mean for name, weight in zip(self.layers, weights)}

    def close(self) -> None:
        """Leaves the module as it was."""
        for tensor, flag in zip(self.through, self.were):
            tensor.requires_grad_(flag)


def _through(model: Model, layer: str) -> str:
    for name in model.tensors(layer):
        if name.rpartition(".")[2] == "D":
            return name
    raise CalibrationError(f"layer `{layer}` has no D, expected one for each channel")


def logits_apart(module: Any, small: Reduced, parts: Sequence[Any], forward: Forward) -> float:
    """The relative change of the (centred) logits of batches when a model takes the module's
    place."""
    from .torch import _put

    other = copy.deepcopy(module).eval()
    _put(other, small)
    return change_between(module, other, parts, forward)


def change_between(module: Any, other: Any, parts: Sequence[Any], forward: Forward) -> float:
    """The same for another module."""
    with torch.no_grad(), evaluating(module), evaluating(other):
        full = torch.cat([forward(module, part) for part in parts])
        return _change(full, torch.cat([forward(other, part) for part in parts]))


def _single(inputs: Any, module: Any) -> list[Any]:
    from ._live import tensors

    return [one for batch in tensors(inputs, unwrapped(module)) for one in batch.split(1)]


def fit(
    module: torch.nn.Module,
    small: Reduced,
    inputs: Any,
    statistics: Statistics,
    *,
    forward: Optional[Forward] = None,
    steps: int = 4,
    progress: Progress = None,
) -> Reduced:
    """Fits the output weights and feedthroughs of all channels together to the logits.

    What ``hk.reduce(path, calibrate=...)`` does in the end for networks that the library knows, for
    any network, by the gradients of its own forward pass: Gauss-Newton steps on the squared
    difference of the (centred) logits, with a price on what a step changes in the layers' outputs.
    A quarter of the sequences is held out; it chooses the price, and ends the fit where no step
    brings its logits nearer by two per cent. No labels. The cost is that of one forward and some
    backward passes for each sequence and step.

    Args:
        module: the full network, as it was reduced; it is not changed.
        small: what :func:`hankelite.reduce` made of it, for layers with one system per channel.
        inputs: at least 8 unlabelled sequences, (sequences, ...) or batches of them.
        statistics: those that ``small`` was made with.
        forward: ``forward(module, x)`` gives logits (batch, outputs); by default ``module(x)``.
        steps: Gauss-Newton steps at most.
        progress: ``progress(stage, done, total)``, or True for a bar.

    Returns:
        a smaller model whose ``choice["fit"]`` is a :class:`Fit` as a dictionary.

    Raises:
        CalibrationError: too few sequences, no logits, layers without C (or W) and D.
    """
    tensors = _tensors(small)
    problem = _Problem(unwrapped(module), small, inputs, forward or (lambda net, x: net(x)))
    if not problem.check or len(problem.fit) + len(problem.check) < 8:
        found = len(problem.fit) + len(problem.check)
        raise CalibrationError(f"{found} sequences, expected at least 8")
    state = {name: value for name, value in problem.module.state_dict().items()}
    layers = [_Layer(small, state, name) for name in small.layers]
    live = dict(problem.module.named_parameters())
    live.update(problem.module.named_buffers())
    numbers = [live[key] for layer in layers for key in (layer.c, layer.d)]
    for number in numbers:
        number.requires_grad_(True)
    before = after = problem.change()
    done = 0
    with following(progress) as callback:
        while done < steps and after > 0.0:
            better = _step(problem, layers, numbers, statistics, after)
            if better is None:
                break
            after, done = better, done + 1
            if callback is not None:
                callback("steps of the fit to the logits", done, steps)
    changed = small.changed()
    for number, key in zip(numbers, (key for layer in layers for key in (layer.c, layer.d))):
        changed[key] = number.detach().to(tensors.values[key].device)
    pairs = zip(layers, numbers[0::2], numbers[1::2])
    record = Fit(done, sum(int(la.used(c, d).sum()) for la, c, d in pairs), before, after)
    fitted = replaced(small, changed)
    fitted.choice = {**(small.choice or {}), "fit": vars(record)}
    return fitted


def replaced(small: Reduced, values: Mapping[str, torch.Tensor]) -> Reduced:
    """A smaller model of a module with other tensors of the same shapes."""
    tensors = _tensors(small)
    changed = {**small.changed(), **values}
    core = read({**tensors.values, **changed}, **_declared(small))._core
    made = Reduced(_Fitted(tensors, changed, core), core, small.records, small.choice)
    made._fitted_from, made.storage = small, small.storage
    return made


def _tensors(small: Reduced) -> Tensors:
    source = small._source
    source = source.tensors if isinstance(source, _Fitted) else source
    if not isinstance(source, Tensors):
        raise CalibrationError("the model came from a file, expected one of a module")
    return source


def _step(
    problem: _Problem,
    layers: list[_Layer],
    numbers: list[torch.Tensor],
    statistics: Statistics,
    change: float,
) -> Optional[float]:
    """Takes the step of the best price; what is left of the change, or None where none is better."""
    slopes, left = problem.rows(layers, numbers)
    start, factors = 0, []
    for layer, c, d in zip(layers, numbers[0::2], numbers[1::2]):
        own = slopes[:, start : start + layer.channels * layer.width]
        used = layer.used(c, d)
        own *= used.reshape(-1)
        squares = (own**2).sum(axis=0).reshape(layer.channels, layer.width).sum(axis=1)
        factors.append(layer.factors(statistics[layer.name].autocorrelation, squares, used))
        start += layer.channels * layer.width
    flat = [factor for own in factors for factor in own]
    scaled, start = np.empty_like(slopes), 0
    for factor in flat:
        end = start + len(factor)
        scaled[:, start:end] = np.linalg.solve(factor, slopes[:, start:end].T).T
        start = end
    gram = scaled @ scaled.T
    known = [number.detach().clone() for number in numbers]
    best: Optional[tuple[float, list[torch.Tensor]]] = None
    for price in _PRICES:
        step = scaled.T @ np.linalg.solve(gram + price * np.eye(len(gram)), left)
        _move(layers, numbers, flat, step)
        after = problem.change()
        if after < (best[0] if best else change * (1.0 - _GAIN_MIN)):
            best = (after, [number.detach().clone() for number in numbers])
        _restore(numbers, known)
    if best is None:
        return None
    _restore(numbers, best[1])
    return best[0]


def _move(
    layers: list[_Layer], numbers: list[torch.Tensor], factors: list[Floats], step: Floats
) -> None:
    start, at = 0, 0
    for index, layer in enumerate(layers):
        rows = []
        for _ in range(layer.channels):
            rows.append(np.linalg.solve(factors[at].T, step[start : start + layer.width]))
            start, at = start + layer.width, at + 1
        layer.move(np.stack(rows), numbers[2 * index], numbers[2 * index + 1])


def _restore(numbers: list[torch.Tensor], known: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for number, value in zip(numbers, known):
            number.copy_(value)
