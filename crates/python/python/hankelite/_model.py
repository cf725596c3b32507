"""Models, their spectra, and smaller models."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _core
from ._progress import Progress, following
from ._sources import Source, declared_json, module_of, open_source
from .captured import Captured
from .errors import InvalidSetting

if TYPE_CHECKING:
    from ._round import Rounded
    from .statistics import Statistics
    from .torch import Applied

Floats = npt.NDArray[np.float64]


class System(NamedTuple):
    """One system of a layer, x[k] = exp(poles step) x[k-1] + b u[k], y = Re(c x) + d u.

    Attributes:
        poles: exponents lambda in continuous time, shape (n,).
        b: input weights, shape (n, inputs).
        c: output weights, shape (outputs, n).
        d: feedthrough, shape (outputs, inputs).
        step: the time between two samples.
    """

    poles: npt.NDArray[np.complex128]
    b: npt.NDArray[np.complex128]
    c: npt.NDArray[np.complex128]
    d: Floats
    step: Optional[float]


class Spectrum:
    """The dynamics of one layer of H systems (1 for S5 and LRU) with at most N stored modes.

    Attributes:
        name: the layer's name.
        hankel: Hankel singular values, descending along the last axis, shape (H, 2N) (``(H, N)``
            for the complex realisation). Zeros behind the last value of a channel with real
            poles; NaN in a channel with modes that do not decay, which has none.
        states: stored modes of each channel, shape (H,).
        step: the step of each channel, shape (H,).
        slowest_pole: the largest absolute value of a pole of each channel, shape (H,).
        unstable_modes: for each channel the indices of the modes that do not decay.
    """

    def __init__(self, parts: _core._Spectrum) -> None:
        self.name = parts[0]
        self.hankel: Floats = parts[1]
        self.states: npt.NDArray[np.int64] = np.array(parts[2], dtype=np.int64)
        self.step: Floats = np.array(parts[3])
        self.slowest_pole: Floats = np.array(parts[4])
        self.unstable_modes = parts[5]

    @property
    def stable(self) -> npt.NDArray[np.bool_]:
        """Whether every mode of each channel decays, shape (H,)."""
        return np.array([not modes for modes in self.unstable_modes])

    def orders(self, energy: float) -> npt.NDArray[np.int64]:
        """Balanced states with which each channel keeps this share of its squared values, (H,)."""
        squares = np.cumsum(self.hankel**2, axis=1)
        total = squares[:, -1:]
        return np.asarray(1 + np.argmax(squares >= energy * total, axis=1), dtype=np.int64)

    def plot(self, ax: Any = None) -> Any:
        """Draws the values of every channel, relative to its largest, with matplotlib."""
        import matplotlib.pyplot as plt

        ax = plt.figure().add_subplot() if ax is None else ax
        relative = self.hankel / self.hankel[:, :1]
        ax.semilogy(1 + np.arange(relative.shape[1]), relative.T, color="C0", alpha=0.3, lw=0.8)
        ax.semilogy(1 + np.arange(relative.shape[1]), np.nanmedian(relative, axis=0), color="C1")
        ax.set(xlabel="state", ylabel="Hankel value / largest", title=self.name)
        return ax

    def __repr__(self) -> str:
        return f"<Spectrum {self.name}: hankel {self.hankel.shape}, states {self.states.max()}>"


class Spectra(Mapping[str, Spectrum]):
    """The spectra of all layers, by name and in order."""

    def __init__(self, layers: Iterable[Spectrum]) -> None:
        self._layers = {layer.name: layer for layer in layers}

    def __getitem__(self, name: str) -> Spectrum:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def plot(self) -> Any:
        """Draws one picture for each layer with matplotlib; gives the figure."""
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(1, len(self), squeeze=False, sharey=True)
        for ax, layer in zip(axes[0], self.values()):
            layer.plot(ax)
        return figure

    def __repr__(self) -> str:
        rows = ["layer  channels  states  step  stable"]
        for name, one in self.items():
            steps = f"{one.step.min():.3g}..{one.step.max():.3g}"
            stable = "yes" if one.stable.all() else f"no ({(~one.stable).sum()} channels)"
            rows.append(f"{name}  {len(one.states)}  {one.states.max()}  {steps}  {stable}")
        return "\n".join(rows)


class Model:
    """A model with how its tensors encode it: of a file, a state dict, a module or a pytree.

    >>> import hankelite as hk, numpy as np
    >>> model = hk.read(example)
    >>> model.family, model.layers
    ('S4D', ['s4_layers.0', 's4_layers.1'])
    >>> model.orders["s4_layers.0"]
    array([32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32])
    """

    def __init__(self, source: Source, core: _core.Checkpoint) -> None:
        self._source = source
        self._core = core

    @property
    def family(self) -> str:
        """The family of the layers, e.g. ``"S4D"``."""
        return self._core.family

    @property
    def layers(self) -> list[str]:
        """The names of the layers."""
        return self._core.layers

    @property
    def orders(self) -> dict[str, npt.NDArray[np.int64]]:
        """Stored states of every channel of each layer (of both directions), shape (H,)."""
        orders = zip(self._core.layers, self._stored())
        return {name: np.array(order, dtype=np.int64) for name, order in orders}

    @property
    def states(self) -> int:
        """Stored states of all channels together."""
        return sum(sum(order) for order in self._stored())

    def _stored(self) -> list[list[int]]:
        """Stored states of every channel of each layer."""
        return self._core.orders

    @property
    def parameters(self) -> int:
        """Real numbers in all tensors."""
        return self._core.parameters()

    @property
    def bytes(self) -> int:
        """Bytes that a device needs to run it: the image, all numbers in single precision, and the
        state of one stream.

        Raises:
            StreamError: the network is not known, or runs in both directions.
        """
        return sum(self._core.image_size())

    @property
    def assumptions(self) -> list[str]:
        """What was assumed because nothing recorded or declared it; read them once."""
        return self._core.assumptions

    @property
    def notes(self) -> list[str]:
        """What else a person should know of the model."""
        return self._core.notes

    @property
    def runs(self) -> bool:
        """Whether the whole network is known, so that this package can run it."""
        return self._core.runs

    def systems(self, layer: str) -> list[System]:
        """The systems of a layer: one for each channel, or one for all (S5, LRU)."""
        return [System(*parts) for parts in self._core.systems(self._index(layer))]

    def tensors(self, layer: str) -> list[str]:
        """The names of the tensors of a layer's systems: its kernel and D."""
        return self._core.system_tensors(self._index(layer))

    def _index(self, layer: str) -> int:
        try:
            return self._core.layers.index(layer)
        except ValueError:
            expected = ", ".join(self._core.layers)
            raise InvalidSetting(f"no layer `{layer}`, expected one of {expected}") from None

    def state_dict(self) -> Any:
        """All tensors, in what they came in: a dict, or the pytree; arrays of the library, dtype
        and device that they had, those that did not change being the same objects. NumPy arrays
        for a model from a file."""
        return self._source.state(self._core)

    def write(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes a checkpoint, whole or not at all. The ending names the container: .safetensors,
        .pt, .pth, .ckpt, .npz, .msgpack, .safetensors.index.json; else it is that of the file
        read. Where a folder was read, a name without an ending is a folder: with the number of
        states set in its configuration, a section in its model card, and all else copied."""
        self._core.write(os.fspath(path))

    def convert(self, family: str) -> Model:
        """The same systems in the tensors of another family.

        Args:
            family: ``s4d``, ``s4v3``, ``s4v4``, ``dss-exp``, ``dss-softmax``, ``s5``, ``lru`` or
                ``mega``.

        Raises:
            CheckpointError: the family cannot hold a pole, or has other inputs and outputs.
        """
        core = self._core.convert(family)
        return Model(self._source.converted(core), core)

    def logits(self, sequences: npt.ArrayLike, progress: Progress = None) -> Floats:
        """Logits of sequences that the library itself runs, where the network is known.

        Args:
            sequences: numbers of shape (sequences, steps) or (sequences, steps, inputs), or
                integer tokens (sequences, steps).

        Returns:
            shape (sequences, outputs).
        """
        with following(progress) as callback:
            return np.array(self._core.logits(_sequences(sequences, self), callback))

    def stream(self) -> Stream:
        """The model one sample at a time, in single precision, its state at zero.

        Raises:
            StreamError: the network is not known, or runs in both directions.
        """
        return Stream(self._core.stream())

    def to_onnx(self, path: Union[str, os.PathLike[str]], *, sequence: bool = False) -> None:
        """Writes an ONNX file, whole or not at all: the same graph as ``compress-model export``.

        Maps of few bits (``hk.reduce`` with a size in bytes) stay integers. docs/onnx.md has the names
        and shapes of what goes in and comes out.

        Args:
            path: the file, mostly ``*.onnx``.
            sequence: whole sequences in place of one step with its states. Layers in both directions
                need it.

        Raises:
            ExportError: the network around the layers is not known, or it is no graph of one step.
            CheckpointError: the file cannot be written.
        """
        self._core.write_onnx(os.fspath(path), sequence)

    def __repr__(self) -> str:
        family, layers = self.family, len(self.layers)
        return f"<{type(self).__name__} {family}: {layers} layers, {self.states} states>"


class Stream:
    """A model with its state: one sample in, the outputs after it out.

    >>> import hankelite as hk
    >>> stream = hk.stream(example)
    >>> [stream.step([0.5]).shape for _ in range(3)]
    [(10,), (10,), (10,)]
    """

    def __init__(self, core: _core.Stream) -> None:
        self._core = core

    def step(self, x: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """One more sample (inputs numbers, or a token): outputs of shape (outputs,)."""
        if self._core.tokens:
            return self._core.step_token(int(np.asarray(x).item()))
        return self._core.step(np.ascontiguousarray(x, dtype=np.float32).reshape(-1))

    def reset(self) -> None:
        """Sets the state to zero: a new signal begins."""
        self._core.reset()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a step reads."""
        return self._core.weight_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the state."""
        return self._core.state_bytes


class Reduced(Model):
    """A smaller model, with what was done.

    Attributes:
        records: one dictionary for each layer, as ``compress-model reduce --format json`` has
            them: ``name``, ``order_before``, ``order``, ``relative_h2_error``,
            ``relative_kernel_error``, ``relative_weighted_error`` (with statistics), ``condition``,
            and ``channels`` with the same of each. An infinite number is ``None``.
        choice: what calibration chose (states, relative error, ...); ``None`` without.
        image: with a target of the whole model, the bytes that ``compress-model stream`` and
            devices run; the tensors hold the same numbers.
        storage: of a network that runs by its own forward pass, the integers behind each weight
            that was rounded, by the weight's name; the tensors hold the same numbers.
    """

    image: Optional[bytes] = None

    def __init__(
        self,
        source: Source,
        core: _core.Checkpoint,
        records: list[dict[str, Any]],
        choice: Optional[dict[str, Any]],
    ) -> None:
        super().__init__(source, core)
        self.records = records
        self.choice = choice
        self.storage: dict[str, Rounded] = {}
        # Tensors that were fitted do not distinguish a mode without effect from one that is used.
        self._fitted_from: Optional[Reduced] = None

    def _stored(self) -> list[list[int]]:
        return self._core.orders if self._fitted_from is None else self._fitted_from._stored()

    @property
    def bytes(self) -> int:
        """Bytes that a device needs to run it: the image and the state of one stream."""
        if self.image is None or self.choice is None:
            return super().bytes
        return int(sum(self.choice["size"].values()))

    def changed(self) -> dict[str, Any]:
        """The tensors that differ from those of the full model, by name, as in
        :meth:`state_dict`. All of them for a model from a file."""
        changed = getattr(self._source, "changed", None)
        return dict(self._source.state(self._core) if changed is None else changed(self._core))

    def apply_(self, module: Any = None) -> Applied:
        """Puts the smaller parameters into a live torch module, in place: the same as
        :func:`hankelite.torch.apply_`. Without ``module`` into the one that was reduced."""
        from .torch import apply_

        module = module_of(self._source) if module is None else module
        if module is None:
            raise InvalidSetting("no module was reduced, expected the module to change")
        return apply_(module, self)

    def report(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes one page of HTML with the errors and orders of every layer."""
        with open(path, "w", encoding="utf-8") as out:
            out.write(_page(self))

    def __repr__(self) -> str:
        before = sum(c["order_before"] for layer in self.records for c in layer["channels"])
        return f"<Reduced {self.family}: {len(self.layers)} layers, {before} -> {self.states} states>"


def _page(small: Reduced) -> str:
    columns = ("relative_weighted_error", "relative_h2_error", "relative_kernel_error", "condition")
    heads = "".join(f"<th>{column.replace('_', ' ')}</th>" for column in columns)
    rows = []
    for layer in small.records:
        orders = [channel["order"] for channel in layer["channels"]]
        cells = [layer["name"], layer["order_before"], f"{min(orders)} to {max(orders)}"]
        numbers = [layer.get(column) for column in columns]
        cells += ["-" if number is None else f"{number:.4g}" for number in numbers]
        bars = "".join(
            f'<rect x="{4 * i}" y="{40 - 40 * n / layer["order_before"]:.1f}" width="3" '
            f'height="{40 * n / layer["order_before"]:.1f}"/>'
            for i, n in enumerate(orders)
        )
        picture = f'<svg width="{4 * len(orders)}" height="40" fill="#36c">{bars}</svg>'
        row = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
        rows.append(f"<tr>{row}<td>{picture}</td></tr>")
    choice = "" if small.choice is None else html.escape(json.dumps(small.choice, indent=1))
    return (
        "<!doctype html><meta charset='utf-8'><title>reduction</title>"
        "<style>body{font-family:sans-serif}td,th{padding:.2em .8em;text-align:left}</style>"
        f"<h1>{html.escape(repr(small)[1:-1])}</h1><table><tr><th>layer</th><th>states before</th>"
        f"<th>states</th>{heads}<th>states of each channel</th></tr>{''.join(rows)}</table>"
        f"<pre>{choice}</pre>\n"
    )


def _sequences(sequences: npt.ArrayLike, model: Model) -> Any:
    array = np.asarray(sequences)
    if model._core.tokens:
        return _tokens(array)
    inputs = model._core.inputs
    if inputs is not None and (array.ndim < 2 or array.shape[2:] != (inputs,)):
        if array.ndim != 2 or inputs != 1:
            raise InvalidSetting(_unlike(array, inputs))
    return np.ascontiguousarray(array.reshape(len(array), -1), dtype=np.float32)


def _tokens(array: npt.NDArray[Any]) -> Any:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
        raise InvalidSetting(
            f"inputs are {array.shape} of type {array.dtype}, this model takes (sequences, steps) of "
            "integer tokens"
        )
    return np.ascontiguousarray(array, dtype=np.uint32)


def _unlike(array: npt.NDArray[Any], inputs: int) -> str:
    """What the axes of inputs are, what they should be, and what to do where that is clear."""
    said = f"inputs are {array.shape}, this model takes (sequences, steps, {inputs})"
    if array.ndim == 3 and array.shape[1] == inputs:
        return f"{said}: transpose the last two axes"
    if array.ndim > 2 and inputs == 1:
        return f"{said}: flatten each sequence with x.reshape({len(array)}, -1, 1)"
    return said


def _open(source: Any, declared: Mapping[str, Any]) -> Model:
    if isinstance(source, Model):
        if declared:
            declared_json(declared)
            raise InvalidSetting("a model that is read already takes no declarations")
        return source
    opened = open_source(source, declared)
    return Model(opened, opened.checkpoint)


def read(source: Any, **declared: Any) -> Model:
    """Reads a model: a path, a state dict, a torch module or a pytree.

    Args:
        source: a path (.safetensors, .pt, .pth, .ckpt, .npz, .msgpack, a sharded index), a
            dictionary of NumPy, torch or JAX arrays, a ``torch.nn.Module``, or a pytree.
        declared: conventions that no tensor records: ``norm``, ``pooling``, ``per_step``,
            ``dss_version``, ``length``, ``discretisation``, ``dt_transform``, ``real_transform``,
            ``bandlimit``, ``conj_sym``, ``clip_eigs``, ``half_gate``, ``gelu``, ``diagonalise``,
            ``part`` (of several sets of weights the one to read).

    Raises:
        CheckpointError: no known layers, missing or wrong tensors, with name, what was found and
            what was expected.

    >>> import hankelite as hk
    >>> hk.read(example)
    <Model S4D: 2 layers, 1024 states>
    """
    return _open(source, declared)


def write(model: Any, path: Union[str, os.PathLike[str]], **declared: Any) -> None:
    """Writes a model, see :meth:`Model.write`; a state dict or a pytree is read first."""
    _open(model, declared).write(path)


def convert(model: Any, family: str, **declared: Any) -> Model:
    """The same systems in the tensors of another family, see :meth:`Model.convert`."""
    return _open(model, declared).convert(family)


def stream(model: Any, **declared: Any) -> Stream:
    """A model one sample at a time, see :meth:`Model.stream`."""
    return _open(model, declared).stream()


def inspect(
    source: Any,
    *,
    time: Optional[str] = None,
    realisation: str = "real",
    progress: Progress = None,
    **declared: Any,
) -> Spectra:
    """Hankel singular values and stability of every channel.

    Args:
        source: a model in any form that :func:`read` takes.
        time: ``"discrete"`` (as the network runs), ``"continuous"`` (before discretisation, the
            input held from sample to sample) or ``"impulses"`` (the same, each sample an impulse).
            By default discrete; for layers that run at any step continuous (FlowState) or impulses
            (Event-SSM).
        realisation: ``"real"`` (the real output, 2N values) or ``"complex"`` (N).
        progress: ``progress(stage, done, total)``, or True for a bar.

    Returns:
        for each layer its :class:`Spectrum`. A channel with modes that do not decay is no error:
        it has NaN.

    >>> import hankelite as hk
    >>> hk.inspect(example)["s4_layers.0"].hankel.shape
    (16, 64)
    """
    model = _open(source, declared)
    with following(progress) as callback:
        return Spectra(map(Spectrum, model._core.inspect(time, realisation, callback)))


def reduce(
    source: Any,
    *,
    order: Optional[int] = None,
    budget: Optional[float] = None,
    max_error: Optional[float] = None,
    energy: Optional[float] = None,
    tolerance: Optional[float] = None,
    max_bytes: Optional[int] = None,
    times: Optional[float] = None,
    max_change: Optional[float] = None,
    max_microseconds: Optional[float] = None,
    only: Optional[str] = None,
    statistics: Optional[Statistics] = None,
    captured: Union[Captured, str, os.PathLike[str], None] = None,
    calibrate: Optional[npt.ArrayLike] = None,
    method: Optional[str] = None,
    time: Optional[str] = None,
    realisation: str = "real",
    allocation: Optional[str] = None,
    importance: Optional[str] = None,
    refinement: Optional[str] = None,
    length: Optional[int] = None,
    unstable: bool = False,
    share_poles: bool = False,
    progress: Progress = None,
    **declared: Any,
) -> Reduced:
    """A smaller model.

    Without statistics every channel is balanced for white noise; one of ``order``, ``energy`` and
    ``tolerance`` gives the size. With ``statistics`` (of a live module, :func:`hankelite.torch.
    listen`), ``captured`` (the inputs themselves, which S5 and LRU need) or ``calibrate``
    (sequences, where :attr:`Model.runs`) it is balanced and refined for the inputs that its layers
    get; ``order``, ``budget`` or ``max_error`` give the size. With ``calibrate``, ``max_bytes``,
    ``times``, ``max_change`` and ``max_microseconds`` bring states and maps of the whole model down
    together; all that are given hold.

    Args:
        source: a model in any form that :func:`read` takes.
        order: stored states of every channel.
        budget: share of all states, shared among the layers (``allocation``); above 0, at most 1.
        max_error: the largest output error of all channels together, relative to their output.
        max_bytes: with ``calibrate``: the image of the whole model and the state of one stream
            together; states and bits come down, and :attr:`Reduced.image` holds the image.
        times: with ``calibrate``: so many times fewer bytes than :attr:`Model.bytes`.
        max_change: with ``calibrate``: the fewest bytes with which the logits of every fifth
            sequence, held out, change by at most this share.
        max_microseconds: with ``calibrate``: a step of the image on this machine.
        only: what these four make smaller: ``all``, ``states`` or ``maps``.
        energy: share of the squared Hankel singular values that every channel keeps.
        tolerance: the largest error bound of a channel, relative to its first Hankel value.
        statistics: of the inputs of the layers.
        captured: the inputs of the layers, and perhaps gradients; or the path of a file with them.
            For layers of any kind.
        calibrate: sequences as :meth:`Model.logits` takes them; then all channels are fitted to the
            logits in the end.
        method: without statistics ``balanced`` (the default), ``residualised``, ``modal-hinf``,
            ``modal-h2``, ``h2-optimal``, ``horizon``, ``hankel-norm``, ``real-poles`` (the default
            for layers that hold positive real poles only: Evo 2, MEGA) or ``in-layout`` (the
            default for other layers that cannot hold all systems, such as those of LinOSS).
        time, realisation: what is balanced without statistics, see :func:`inspect`; by default
            the same, and the real system. ``realisation="auto"`` takes the better one for each channel.
        allocation: with statistics ``model``, ``layer`` or ``channel``.
        importance: with statistics ``auto``, ``equal``, ``root`` or ``gradient``.
        refinement: with statistics ``none``, ``residues`` or ``full``.
        length: steps over which kernel errors are measured; also the declared one of :func:`read`.
        unstable: reduce channels with modes that do not decay over ``length`` steps.
        share_poles: give all channels of a layer the same poles.
        progress: ``progress(stage, done, total)``, or True for a bar. Ctrl-C ends the work.

    Raises:
        InvalidSetting: sizes that make no sense or do not go together.
        UnstableModes: a channel with modes that do not decay, with layer, channel and poles.
        CheckpointError: as :func:`read`.
        CalibrationError: statistics that do not fit the model.

    >>> import hankelite as hk
    >>> small = hk.reduce(example, order=8)
    >>> small
    <Reduced S4D: 2 layers, 1024 -> 256 states>
    >>> [round(layer["relative_h2_error"], 3) for layer in small.records]
    [0.337, 0.527]
    """
    if length is not None and not isinstance(source, Model):
        declared["length"] = length
    model = _open(source, declared)
    calibrated = {
        "order": order,
        "budget": budget,
        "max_error": max_error,
        "allocation": allocation,
        "importance": importance,
        "refinement": refinement,
        "length": length,
    }
    plan = {
        "order": order,
        "energy": energy,
        "tolerance": tolerance,
        "method": method,
        "time": time,
        "realisation": realisation,
        "length": length,
        "unstable": unstable,
        "share_poles": share_poles,
    }
    target = {
        "max_bytes": max_bytes,
        "times": times,
        "max_change": max_change,
        "max_microseconds": max_microseconds,
        "only": only,
    }
    wanted = {name: value for name, value in target.items() if value is not None}
    if wanted:
        _require_sequences(model, calibrate, wanted)
    if statistics is None and captured is None and calibrate is None:
        _refuse(calibrated, "without statistics", allowed=("order", "length"))
        with following(progress) as callback:
            core, records = model._core.reduce(json.dumps(plan), callback)
        return Reduced(model._source, core, json.loads(records), None)
    allowed = ("order", "length", "time", "realisation")
    _refuse(plan, "with statistics", allowed=allowed)
    if sum(source is not None for source in (statistics, captured, calibrate)) > 1:
        raise InvalidSetting("expected one of statistics, captured and calibrate")
    if wanted:
        _refuse(calibrated, "with a target of the whole model", allowed=())
        return to_target(model, calibrate, wanted, progress)
    with following(progress) as callback:
        if isinstance(captured, Captured):
            requested = json.dumps({**calibrated, "origin": captured.origin})
            tensors = captured._for_core()
            core, records, choice = model._core.reduce_by_captured(tensors, requested, callback)
        elif captured is not None:
            requested = json.dumps({**calibrated, "origin": os.fspath(captured)})
            core, records, choice = model._core.reduce_by_captured_file(captured, requested, callback)
        elif statistics is not None:
            requested = json.dumps({**calibrated, "origin": statistics.origin})
            layers = statistics._for_core(model)
            core, records, choice = model._core.reduce_by_statistics(layers, requested, callback)
        else:
            sequences = _sequences(calibrate, model)  # type: ignore[arg-type]
            requested = json.dumps({**calibrated, "origin": f"{len(sequences)} sequences"})
            core, records, choice = model._core.reduce_by_sequences(sequences, requested, callback)
    return Reduced(model._source, core, json.loads(records), json.loads(choice))


def _require_sequences(model: Model, calibrate: Any, wanted: Mapping[str, Any]) -> None:
    """A target of the whole model is met by the logits of sequences."""
    named = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
    if not model.runs:
        raise InvalidSetting(
            f"{named} for a network of which the library knows the layers only, expected order= or "
            "budget=: hk.compress(module, data) takes the size that keeps the accuracy"
        )
    if calibrate is None:
        raise InvalidSetting(
            f"{named} without sequences, expected some as calibrate=x: whole models are compared by "
            "their logits"
        )


def to_target(
    model: Model, sequences: Any, wanted: Mapping[str, Any], progress: Progress
) -> Reduced:
    """States and maps together, by sequences that the library runs: within a size."""
    sequences = _sequences(sequences, model)
    names = {"max_bytes": "bytes", "max_change": "change", "max_microseconds": "microseconds"}
    given = {names.get(name, name): value for name, value in wanted.items() if value is not None}
    requested = _wanted(given, given.pop("only", None), sequences)
    with following(progress) as callback:
        return _targeted(model, *model._core.reduce_to_target(sequences, requested, callback))


def to_smallest(
    model: Model,
    sequences: Any,
    only: Optional[str],
    accept: Callable[[Reduced], bool],
    progress: Progress,
) -> None:
    """The same from large to small, as long as sizes are accepted."""
    sequences = _sequences(sequences, model)
    requested = _wanted({}, only, sequences)
    with following(progress) as callback:
        model._core.reduce_to_smallest(
            sequences, requested, lambda *made: accept(_targeted(model, *made)), callback
        )


def _wanted(size: Mapping[str, Any], only: Optional[str], sequences: Any) -> str:
    return json.dumps(
        {"size": size, "only": only or "all", "origin": f"{len(sequences)} sequences"}
    )


def _targeted(
    model: Model, core: _core.Checkpoint, records: str, choice: str, image: npt.NDArray[np.uint8]
) -> Reduced:
    small = Reduced(model._source, core, json.loads(records), json.loads(choice))
    small.image = image.tobytes()
    return small


def _refuse(settings: Mapping[str, Any], when: str, allowed: tuple[str, ...]) -> None:
    for name, value in settings.items():
        if name not in allowed and value not in (None, False):
            raise InvalidSetting(f"{name}={value!r} {when}, expected none")
