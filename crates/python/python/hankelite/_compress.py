"""The smallest model that does the same: one call for any model and any data."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Optional, Union

import numpy as np
import numpy.typing as npt

from ._data import Array, Cases, gather
from ._model import Floats, Model, Reduced, _open, read, reduce, to_smallest, to_target
from ._progress import Progress
from ._sources import module_of
from .errors import CalibrationError, HankeliteError, InvalidSetting, StreamError

if TYPE_CHECKING:
    from ._live import Live

Score = Callable[[Floats, Array], npt.ArrayLike]

#: How many times fewer states are tried in a network without an image.
_TIMES = (2, 3, 4, 6, 8, 12, 16)
#: Points of accuracy that may be lost where nothing else is asked for.
_WITHIN = 0.5
#: The largest change of the logits, in per cent, where no labels say what it costs.
_CHANGE = 5.0
#: Logits that differ by less are those of one network in two arithmetics.
_SAME = 1e-2
#: Points of accuracy by which other assumptions must be better to be taken.
_DOUBT = 10.0
#: Products of pairs of steps that are gathered at most.
_PRODUCTS = 1 << 27
#: What no tensor records and what a forward pass, or labels, tell apart.
_UNKNOWN = {"norm": ("pre", "post"), "pooling": ("mean", "last")}


def compress(
    model: Any,
    data: Any,
    *,
    times: Optional[float] = None,
    within: Optional[float] = None,
    max_bytes: Optional[int] = None,
    order: Optional[int] = None,
    forward: Optional[Callable[[Any, Any], Any]] = None,
    score: Optional[Score] = None,
    only: Optional[str] = None,
    progress: Progress = None,
    seed: int = 0,
    **declared: Any,
) -> Reduced:
    """A smaller model of a size that you name, or the smallest that keeps the accuracy.

    At most 100 sequences, drawn from ``data``, calibrate; the others measure. A network that the
    library runs loses states and bits until its image fits. Any other live torch module loses
    states, and bits of its linear maps, by its own forward pass.

    Args:
        model: a model in any form that :func:`hankelite.read` takes; a live torch module runs as it
            is used.
        data: sequences, with or without labels: an array, ``(x, y)``, a dictionary of ``inputs``
            and ``labels``, the path of a file, a torch Dataset or DataLoader, or any iterable of
            batches. The first 10,000 sequences count.
        times: so many times fewer bytes than :attr:`hankelite.Model.bytes`.
        within: without a size: points of accuracy that may be lost, 0.5 by default. Without labels
            the logits may change by 5 %.
        max_bytes: bytes of the image and of the state of one stream; of a network that the library
            does not run, bytes of its tensors with maps of few bits packed.
        order: stored states of every channel; weights keep their bits.
        forward: ``forward(module, x)`` gives logits (batch, outputs); by default ``module(x)``.
        score: ``score(logits, labels)`` gives one number between 0 and 1 for each sequence, 1 for
            right; by default whether the class of the largest logit is the label.
        only: ``all``, ``states`` or ``maps``: what becomes smaller.
        progress: ``progress(stage, done, total)``, or True for a bar.
        seed: draws the sequences that calibrate.
        declared: as for :func:`hankelite.read`.

    Returns:
        a model whose :meth:`hankelite.Reduced.apply_` puts it into the module that came in. Its
        ``choice`` says what was measured: ``scored`` (sequences), ``full_accuracy``, ``accuracy``,
        ``standard_error`` of their difference (all in per cent; ``None`` without labels), ``change``
        of the logits, ``tried``: ``times``, ``bytes``, ``accuracy`` and ``change`` of each size, and
        ``notes`` on a file of data.

    Raises:
        InvalidSetting: sizes that do not go together, inputs that the model does not take.
        CalibrationError: data that are no sequences, or no size that keeps the accuracy.

    >>> import hankelite as hk, numpy as np
    >>> turns = np.linspace(2, 20, 40)[:, None] * np.arange(256) / 256
    >>> small = hk.compress(example, np.sin(2 * np.pi * turns), max_bytes=8000)
    >>> small.bytes <= 8000, small.choice["scored"]
    (True, 10)
    """
    sizes = {"times": times, "max_bytes": max_bytes, "order": order, "within": within}
    size = {name: value for name, value in sizes.items() if value is not None}
    if len(size) > 1:
        named = " and ".join(f"{name}={value!r}" for name, value in size.items())
        raise InvalidSetting(f"{named}, expected one of them")
    _require(times=times, max_bytes=max_bytes, order=order)
    cases = gather(data, seed)
    used, scored = cases.split(seed)
    network = _network(model, used, forward, only, progress, declared)
    judge = _Judge(network, scored, score)
    if size and within is None:
        small = network.made(size)
        tried = [judge.row(small)]
        chosen = tried[0]
    else:
        small, chosen, tried = _smallest(network, judge, within)
    found = {**judge.summary, **chosen, "tried": tried, "notes": list(cases.notes)}
    small.choice = {**(small.choice or {}), **found}
    return small


class _Library:
    """A network that the library runs: states and bits come down together."""

    def __init__(self, model: Model, x: Array, only: Optional[str], progress: Progress) -> None:
        self.model, self.x, self.only, self.progress = model, x, only, progress
        try:
            self.full_bytes, self.streams = model.bytes, True
        except StreamError:
            self.full_bytes, self.streams = 4 * model.parameters, False

    def made(self, size: dict[str, Any]) -> Reduced:
        if "order" in size:
            if self.only is not None:
                raise InvalidSetting(f"only={self.only!r} with order={size['order']}, expected none")
            return reduce(self.model, calibrate=self.x, progress=self.progress, **size)
        return to_target(self.model, self.x, {**size, "only": self.only}, self.progress)

    def offer(self, accept: Callable[[Reduced], bool]) -> None:
        """Models from large to small. A network that has no image loses states only."""
        if self.streams:
            to_smallest(self.model, self.x, self.only, accept, self.progress)
            return
        _in_turn(
            (
                reduce(self.model, calibrate=self.x, budget=share, progress=self.progress)
                for share in _shares(self.model)
            ),
            accept,
        )

    def outputs(self, small: Optional[Reduced], x: Array) -> Floats:
        return (small or self.model).logits(x)

    def bytes(self, small: Reduced) -> int:
        return small.bytes if self.streams else 4 * small.parameters


class _ByItself:
    """A live network that runs by its own forward pass: its states and the bits of its linear maps
    come down."""

    def __init__(self, live: Live, only: Optional[str], progress: Progress) -> None:
        from ._round import Sizes

        if only not in (None, "all", "states", "maps"):
            raise InvalidSetting(f"only={only!r}, expected 'all', 'states' or 'maps'")
        self.live, self.only, self.progress = live, only, progress
        self.full_bytes = 4 * live.model.parameters
        self.sizes = Sizes(live, only, progress)

    def made(self, size: dict[str, Any]) -> Reduced:
        if "order" in size:
            if self.only is not None:
                raise InvalidSetting(f"only={self.only!r} with order={size['order']}, expected none")
            return self.live.reduce(**size, progress=self.progress)
        most = size.get("max_bytes", self.full_bytes / size.get("times", 1))
        return self.sizes.made(int(most))

    def offer(self, accept: Callable[[Reduced], bool]) -> None:
        """Models from large to small."""
        sizes = (int(self.full_bytes / times) for times in _TIMES)
        _in_turn(map(self.sizes.made, itertools.takewhile(self.sizes.reaches, sizes)), accept)

    def outputs(self, small: Optional[Reduced], x: Array) -> Floats:
        return self.live.outputs(small, x)

    def bytes(self, small: Reduced) -> int:
        return self.sizes.bytes(small)


def _in_turn(models: Iterable[Reduced], accept: Callable[[Reduced], bool]) -> None:
    for small in models:
        if not accept(small):
            return


def _shares(model: Model) -> list[float]:
    """Shares of the states, as long as every channel can have one."""
    channels = sum(len(order) for order in model.orders.values())
    return [1 / times for times in _TIMES if model.states >= times * channels]


def _require(**sizes: Any) -> None:
    for name, value in sizes.items():
        least = 1 if name == "times" else 0
        if value is not None and not value > least:
            raise InvalidSetting(f"{name}={value!r}, expected a number above {least}")


def _network(
    model: Any,
    used: Cases,
    forward: Optional[Callable[[Any, Any], Any]],
    only: Optional[str],
    progress: Progress,
    declared: Mapping[str, Any],
) -> Union[_Library, _ByItself]:
    """What runs the model: the library where it gives the same, else the live module itself."""
    opened = _open(model, declared)
    module = module_of(opened._source)
    if module is None:
        if forward is not None:
            raise InvalidSetting("forward= without a live torch module, expected none")
        if not opened.runs:
            raise CalibrationError(
                "the library knows only the layers of this network, expected the live torch module, "
                "which runs itself"
            )
        return _Library(_suiting(model, opened, used, declared), used.x, only, progress)
    from ._live import Live

    numbers = max(used.x.shape[1:]) ** 2 * sum(opened._core.channels)
    live = Live(module, used.x, forward, products=numbers <= _PRODUCTS, **declared)
    alike = _alike(live, opened, used.x[:4], declared) if opened.runs else None
    if alike is None:
        return _ByItself(live, only, progress)
    return _Library(alike, used.x, only, progress)


def _variants(model: Any, opened: Model, declared: Mapping[str, Any]) -> Iterator[Model]:
    """The model as it was read, and with the other values of what was assumed."""
    yield opened
    if isinstance(model, Model) or not opened.assumptions:
        return
    own = json.loads(opened._core.declared)
    names = [name for name in _UNKNOWN if own.get(name) is not None and name not in declared]
    for values in itertools.product(*(_UNKNOWN[name] for name in names)):
        given = dict(zip(names, values))
        if any(own[name] != value for name, value in given.items()):
            yield read(model, **{**declared, **given})


def _alike(
    live: Live, opened: Model, x: Array, declared: Mapping[str, Any]
) -> Optional[Model]:
    """The model that gives what the module gives, if there is one."""
    given = live.outputs(None, x)
    for model in _variants(live.module, opened, declared):
        try:
            found = model.logits(x)
        except HankeliteError:
            return None
        if found.shape == given.shape and _change(given, found) < _SAME:
            return model
    return None


def _suiting(model: Any, opened: Model, used: Cases, declared: Mapping[str, Any]) -> Model:
    """The model as read, or with other assumptions where the labels leave no doubt."""
    if used.y is None or not opened.assumptions:
        return opened
    variants = list(_variants(model, opened, declared))
    logits = [one.logits(used.x) for one in variants]
    y = _classes(used.y, logits[0])
    if y is None:
        return opened
    right = [100.0 * float(np.mean(_right(z, y))) for z in logits]
    best = int(np.argmax(right))
    if right[best] < right[0] + _DOUBT:
        return opened
    own = json.loads(variants[best]._core.declared)
    taken = ", ".join(f"{name}={own[name]!r}" for name in _UNKNOWN if name in own)
    warnings.warn(
        f"{taken} suits the labels ({right[best]:.1f} % right, {right[0]:.1f} % as assumed) and is "
        "taken; declare it to be sure",
        stacklevel=4,
    )
    return variants[best]


class _Judge:
    """Compares models on sequences that made none of them."""

    def __init__(
        self, network: Union[_Library, _ByItself], scored: Cases, score: Optional[Score]
    ) -> None:
        self.network, self.x, self.y = network, scored.x, scored.y
        self.score = score or _right
        self.full = network.outputs(None, self.x) if len(self.x) else np.zeros((0, 1))
        if score is None and self.y is not None:
            self.y = _classes(self.y, self.full) if len(self.x) else None
        if score is not None and self.y is None:
            raise InvalidSetting("score= without labels, expected data with them: (x, y)")
        self.values = self._scores(self.full)

    @property
    def summary(self) -> dict[str, Any]:
        return {
            "scored": len(self.x),
            "full_bytes": self.network.full_bytes,
            "full_accuracy": _per_cent(self.values),
        }

    def _scores(self, z: Floats) -> Optional[Floats]:
        if self.y is None or not len(self.x):
            return None
        values = np.asarray(self.score(z, self.y), dtype=np.float64)
        if values.shape != (len(z),):
            raise InvalidSetting(
                f"score= gave shape {values.shape}, expected one number for each of {len(z)} sequences"
            )
        return values

    def row(self, small: Reduced) -> dict[str, Any]:
        """What a smaller model takes and loses."""
        size = self.network.bytes(small)
        row = {"times": round(self.network.full_bytes / size, 2), "bytes": size}
        nothing: dict[str, Any] = {"accuracy": None, "standard_error": None, "change": None}
        if not len(self.x):
            return {**row, **nothing}
        z = self.network.outputs(small, self.x)
        values, change = self._scores(z), _change(self.full, z)
        if values is None or self.values is None:
            return {**row, **nothing, "change": change}
        # One more than was seen: no difference on few sequences proves little.
        apart = np.sqrt(np.sum((values - self.values) ** 2) + 1.0) / len(z)
        error = round(100.0 * float(apart), 3)
        return {**row, "accuracy": _per_cent(values), "standard_error": error, "change": change}

    def loses(self, row: Mapping[str, Any]) -> tuple[float, str]:
        """What chooses a size: points of accuracy, or the change of the logits in per cent."""
        full = _per_cent(self.values)
        if full is None:
            return 100.0 * float(row["change"]), "% of the logits"
        return full - float(row["accuracy"]), "points"


def _smallest(
    network: Union[_Library, _ByItself], judge: _Judge, within: Optional[float]
) -> tuple[Reduced, dict[str, Any], list[dict[str, Any]]]:
    """The smallest of several sizes that keeps the accuracy, its row, and all rows."""
    if within is not None and judge.values is None:
        raise InvalidSetting(f"within={within!r} without labels, expected data with them: (x, y)")
    if not len(judge.x):
        raise CalibrationError("no sequence is left to measure on, expected 10 or more different ones")
    most = (_CHANGE if judge.values is None else _WITHIN) if within is None else within
    kept: list[tuple[Reduced, dict[str, Any]]] = []
    tried: list[dict[str, Any]] = []

    def accept(small: Reduced) -> bool:
        tried.append(judge.row(small))
        accepted = judge.loses(tried[-1])[0] <= most
        if accepted:
            kept.append((small, tried[-1]))
        return accepted

    network.offer(accept)
    if not kept:
        _none_keeps(judge, tried, most)
    small, row = kept[-1]
    error = row["standard_error"]
    if error is not None and error > most:
        warnings.warn(
            f"{len(judge.x)} scored sequences tell differences of {error:.2g} points, expected enough "
            f"for {most:g}: give more data, or a larger within=",
            stacklevel=3,
        )
    return small, row, tried


def _none_keeps(judge: _Judge, tried: list[dict[str, Any]], most: float) -> NoReturn:
    if not tried:
        raise CalibrationError("every channel has one state, expected more to leave out")
    least, what = min(judge.loses(row) for row in tried)
    way = "within=" if what == "points" else "max_bytes= or order="
    raise CalibrationError(
        f"{len(tried)} sizes lose {least:.2g} {what} or more, expected at most {most:g}: say with {way} "
        "what is enough"
    )


def _per_cent(values: Optional[Floats]) -> Optional[float]:
    return None if values is None else round(100.0 * float(values.mean()), 3)


def _right(z: Floats, y: Array) -> npt.NDArray[np.bool_]:
    """Whether the class of the largest logit is the label; of one logit that of its sign."""
    found = z[:, 0] > 0 if z.shape[1] == 1 else z.argmax(axis=1)
    return np.asarray(found == y)


def _classes(y: Array, z: Floats) -> Optional[Array]:
    """Labels as one class for each sequence, if they are that."""
    if y.ndim == 2 and y.shape == z.shape and y.shape[1] > 1 and set(np.unique(y)) <= {0, 1}:
        return np.asarray(y.argmax(axis=1))
    whole = y.reshape(len(y)) if y.size == len(y) else None
    if whole is None or whole.dtype.kind not in "iubf" or (whole != np.floor(whole)).any():
        warnings.warn(
            f"labels of shape {y.shape} and type {y.dtype} are no classes, expected one for each "
            "sequence: the change of the logits decides; score= takes any labels",
            stacklevel=4,
        )
        return None
    classes = max(2, z.shape[1])
    if whole.min() < 0 or whole.max() >= classes:
        raise CalibrationError(
            f"labels from {whole.min()} to {whole.max()}, expected 0 to {classes - 1}: the model has "
            f"{z.shape[1]} outputs"
        )
    return np.asarray(whole, dtype=np.int64)


def _change(full: Floats, other: Floats) -> float:
    """The relative change of the centred logits."""
    apart, size = full - other, full
    if full.shape[1] > 1:
        apart, size = (z - z.mean(axis=1, keepdims=True) for z in (apart, size))
    norm = float(np.linalg.norm(size))
    return float(np.linalg.norm(apart)) / norm if norm else 0.0
