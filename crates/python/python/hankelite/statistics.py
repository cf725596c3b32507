"""Statistics of the inputs of layers: sums that are gathered in any number of parts and places."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Optional, Union

import numpy as np
import numpy.typing as npt

from .errors import CalibrationError

if TYPE_CHECKING:
    from . import _core
    from ._model import Model

Floats = npt.NDArray[np.float64]

#: What the program calls its files of statistics.
FORMAT = "hankelite input statistics 1"

__all__ = ["LayerStatistics", "Statistics"]


@dataclass(frozen=True)
class LayerStatistics:
    """Sums over the inputs of one layer of H channels, in sequences of at most L steps.

    Shorter sequences count as padded with zeros to L.

    Attributes:
        lags: the sum over sequences of the products of an input and itself m steps later,
            shape (H, L).
        total: the sum of the inputs, shape (H,).
        sequences: how many sequences there were.
        products: the sum over sequences of the products of the inputs of all pairs of steps,
            shape (H, L, L); ``None`` where they were not gathered.
    """

    lags: Floats
    total: Floats
    sequences: int
    products: Optional[Floats] = None

    @property
    def channels(self) -> int:
        """H."""
        return int(self.lags.shape[0])

    @property
    def length(self) -> int:
        """L."""
        return int(self.lags.shape[1])

    @property
    def autocorrelation(self) -> Floats:
        """R(m) of every channel: the mean over sequences of the sum over steps by L, (H, L)."""
        return np.asarray(self.lags / (self.sequences * self.length))

    @property
    def mean(self) -> Floats:
        """The mean of every channel's input over sequences and L steps, (H,)."""
        return np.asarray(self.total / (self.sequences * self.length))

    def padded(self, length: int) -> LayerStatistics:
        """The same of sequences padded with zeros to ``length`` steps."""
        more = length - self.length
        products = self.products
        if products is not None:
            products = np.pad(products, ((0, 0), (0, more), (0, more)))
        return LayerStatistics(
            np.pad(self.lags, ((0, 0), (0, more))), self.total, self.sequences, products
        )

    def __add__(self, other: LayerStatistics) -> LayerStatistics:
        if self.channels != other.channels:
            raise CalibrationError(f"{self.channels} and {other.channels} channels, expected as many")
        length = max(self.length, other.length)
        a, b = self.padded(length), other.padded(length)
        both = a.products is not None and b.products is not None
        return LayerStatistics(
            a.lags + b.lags,
            a.total + b.total,
            a.sequences + b.sequences,
            a.products + b.products if both else None,  # type: ignore[operator]
        )

    @staticmethod
    def of(inputs: npt.ArrayLike, *, products: bool = False) -> LayerStatistics:
        """Of inputs at hand, shape (sequences, steps, channels).

        >>> import numpy as np
        >>> one = LayerStatistics.of(np.ones((4, 8, 3)))
        >>> one.mean, one.autocorrelation[0]
        (array([1., 1., 1.]), array([1.   , 0.875, 0.75 , 0.625, 0.5  , 0.375, 0.25 , 0.125]))
        """
        u = np.asarray(inputs, dtype=np.float64)
        if u.ndim != 3 or 0 in u.shape:
            raise CalibrationError(
                f"inputs of shape {u.shape}, expected (sequences, steps, channels)"
            )
        count, length, _ = u.shape
        power = (np.abs(np.fft.rfft(u, 2 * length, axis=1)) ** 2).sum(axis=0)
        lags = np.fft.irfft(power, 2 * length, axis=0)[:length].T
        pairs = np.einsum("nsh,nth->hst", u, u, optimize=True) if products else None
        return LayerStatistics(np.ascontiguousarray(lags), u.sum(axis=(0, 1)), count, pairs)


class Statistics(Mapping[str, LayerStatistics]):
    """Statistics of the inputs of all layers of a model, by the layers' names.

    Parts add up: ``a + b`` is that of the sequences of both, whatever their lengths.

    >>> import numpy as np
    >>> part = Statistics({"layers.0": LayerStatistics.of(np.ones((4, 8, 3)))})
    >>> (part + part)["layers.0"].sequences
    8
    """

    #: How much the output error of each channel counts, (H,) for each layer; 1 where it is empty.
    importance: Mapping[str, Floats] = {}

    def __init__(self, layers: Mapping[str, LayerStatistics], origin: str = "") -> None:
        self._layers = dict(layers)
        self._origin = origin

    def weighed(self, importance: Mapping[str, npt.ArrayLike]) -> Statistics:
        """The same, with the importance of each channel for ``budget`` and ``max_error``."""
        weighed = Statistics(dict(self), self._origin)
        pairs = importance.items()
        weighed.importance = {name: np.asarray(own, dtype=np.float64) for name, own in pairs}
        return weighed

    @property
    def origin(self) -> str:
        """Where the sequences came from, for records."""
        return self._origin or f"{self.sequences} sequences of the caller"

    @property
    def sequences(self) -> int:
        """The sequences behind the first layer's statistics."""
        return next((layer.sequences for layer in self._layers.values()), 0)

    def __getitem__(self, name: str) -> LayerStatistics:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __add__(self, other: Statistics) -> Statistics:
        if set(self) != set(other):
            raise CalibrationError(
                f"statistics of layers {', '.join(self)} and of {', '.join(other)}, expected the same"
            )
        return Statistics({name: layer + other[name] for name, layer in self.items()}, self._origin)

    def all_reduce(self, group: Any = None) -> Statistics:
        """The sum over all processes of ``torch.distributed``: the same on every rank."""
        import torch
        from torch import distributed

        device = "cpu"
        if distributed.get_backend(group) == "nccl":
            device = f"cuda:{torch.cuda.current_device()}"

        def summed(array: npt.NDArray[Any], most: bool = False) -> npt.NDArray[Any]:
            tensor = torch.from_numpy(np.ascontiguousarray(array)).clone().to(device)
            kind = distributed.ReduceOp.MAX if most else distributed.ReduceOp.SUM
            distributed.all_reduce(tensor, kind, group=group)
            return np.asarray(tensor.cpu().numpy())

        layers = {}
        for name, own in self.items():
            shape = np.array([own.length, own.products is None], dtype=np.int64)
            length, without = (int(n) for n in summed(shape, most=True))
            own = own.padded(length)
            layers[name] = LayerStatistics(
                summed(own.lags),
                summed(own.total),
                int(summed(np.array([own.sequences], dtype=np.int64))[0]),
                None if without or own.products is None else summed(own.products),
            )
        return Statistics(layers, self._origin)

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the statistics, whole or not at all.

        A path that ends in ``.npz`` keeps everything that :meth:`load` needs, ``products`` included.
        Any other is written as ``compress-model calibrate`` writes statistics, for its
        ``--calibrate``: autocorrelations, means and importances, without products.
        """
        path = os.fspath(path)
        part = f"{path}.{os.getpid()}.part"
        try:
            with open(part, "wb") as out:
                write = self._save_npz if path.endswith(".npz") else self._save_program
                write(out)
            os.replace(part, path)
        except BaseException:
            if os.path.exists(part):
                os.remove(part)
            raise

    def _save_npz(self, out: BinaryIO) -> None:
        arrays: dict[str, npt.NDArray[Any]] = {"names": np.array(list(self))}
        for index, layer in enumerate(self.values()):
            arrays[f"{index}.lags"] = layer.lags
            arrays[f"{index}.total"] = layer.total
            arrays[f"{index}.sequences"] = np.array(layer.sequences)
            if layer.products is not None:
                arrays[f"{index}.products"] = layer.products
        np.savez_compressed(out, **arrays)  # type: ignore[arg-type]

    def _save_program(self, out: BinaryIO) -> None:
        arrays = {}
        for index, (name, layer) in enumerate(self.items()):
            arrays[f"{index}.autocorrelation"] = layer.autocorrelation
            arrays[f"{index}.mean"] = layer.mean
            if self.importance:
                own = self.importance.get(name, np.ones(layer.channels))
                arrays[f"{index}.importance"] = own
        described = {
            "format": FORMAT,
            "sequences": self.sequences,
            "layers": list(self),
            "origin": self.origin,
        }
        header: dict[str, Any] = {"__metadata__": {"hankelite": json.dumps(described)}}
        end = 0
        for name, array in arrays.items():
            start, end = end, end + 8 * array.size
            header[name] = {"dtype": "F64", "shape": array.shape, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        out.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            out.write(np.ascontiguousarray(array, dtype="<f8").tobytes())

    @staticmethod
    def load(path: Union[str, os.PathLike[str]]) -> Statistics:
        """Reads what :meth:`save` or ``compress-model calibrate`` wrote."""
        with open(path, "rb") as file:
            if file.read(2) != b"PK":
                file.seek(0)
                return _of_program(file.read(), os.fspath(path))
        with np.load(path, allow_pickle=False) as arrays:
            if "names" not in arrays:
                raise CalibrationError(f"{os.fspath(path)}: no statistics in it")
            layers = {}
            for index, name in enumerate(arrays["names"]):
                pairs = f"{index}.products"
                layers[str(name)] = LayerStatistics(
                    arrays[f"{index}.lags"],
                    arrays[f"{index}.total"],
                    int(arrays[f"{index}.sequences"]),
                    arrays[pairs] if pairs in arrays else None,
                )
        return Statistics(layers)

    def _for_core(self, model: Model) -> list[_core._LayerIn]:
        """What the core takes, in the order of the model's layers."""
        missing = [name for name in model.layers if name not in self]
        if missing:
            raise CalibrationError(
                f"no statistics of layer {', '.join(missing)}, found those of {', '.join(self)}"
            )
        layers: list[_core._LayerIn] = []
        for name, channels in zip(model.layers, model._core.channels):
            own = self[name]
            if own.channels != channels:
                raise CalibrationError(
                    f"layer `{name}`: statistics of {own.channels} channels, expected {channels}"
                )
            if own.sequences == 0:
                raise CalibrationError(f"layer `{name}`: no sequence went through it")
            pairs = own.products
            scale = 1.0 / (own.sequences * own.length)
            layers.append(
                (
                    np.ascontiguousarray(own.mean),
                    np.ascontiguousarray(own.autocorrelation),
                    own.sequences,
                    np.ascontiguousarray(self.importance.get(name, np.ones(channels))),
                    None if pairs is None else np.ascontiguousarray(pairs * scale),
                )
            )
        return layers


def _of_program(content: bytes, path: str) -> Statistics:
    """Statistics as the program writes them: safetensors."""
    try:
        count = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + count])
        described = json.loads(header["__metadata__"]["hankelite"])
        sequences, names = int(described["sequences"]), list(described["layers"])
        known = described["format"] == FORMAT
    except (KeyError, TypeError, ValueError) as error:
        raise CalibrationError(f"{path}: no statistics in it") from error
    if not known:
        raise CalibrationError(f"{path}: statistics of {described['format']!r}, expected {FORMAT!r}")
    data = memoryview(content)[8 + count :]

    def array(name: str) -> Floats:
        try:
            entry = header[name]
            start, end = entry["data_offsets"]
            values = np.frombuffer(data[start:end], dtype={"F64": "<f8", "F32": "<f4"}[entry["dtype"]])
            return values.reshape(entry["shape"]).astype(np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(f"{path}: tensor `{name}` is missing or damaged") from error

    layers, importance = {}, {}
    for index, name in enumerate(names):
        lags = array(f"{index}.autocorrelation")
        scale = sequences * lags.shape[-1]
        layers[name] = LayerStatistics(lags * scale, array(f"{index}.mean") * scale, sequences)
        if f"{index}.importance" in header:
            importance[name] = array(f"{index}.importance")
    return Statistics(layers, str(described.get("origin", ""))).weighed(importance)
