"""Statistics of the inputs of layers: sums that are gathered in any number of parts and places."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _core
from .errors import CalibrationError

if TYPE_CHECKING:
    from ._model import Model

Floats = npt.NDArray[np.float64]

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
        """Of given inputs, shape (sequences, steps, channels).

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
        """Writes the statistics.

        A path that ends in ``.npz`` keeps everything that :meth:`load` needs, ``products`` included.
        Any other is written as ``compress-model calibrate`` writes statistics, for its
        ``--calibrate``: autocorrelations, means and importances, without products.
        """
        path = os.fspath(path)
        if not path.endswith(".npz"):
            layers = [self._layer_in(name) for name in self]
            _core.write_statistics(path, list(self), layers, self.origin)
            return
        arrays: dict[str, npt.NDArray[Any]] = {"names": np.array(list(self))}
        for index, layer in enumerate(self.values()):
            arrays[f"{index}.lags"] = layer.lags
            arrays[f"{index}.total"] = layer.total
            arrays[f"{index}.sequences"] = np.array(layer.sequences)
            if layer.products is not None:
                arrays[f"{index}.products"] = layer.products
        with open(path, "wb") as out:
            np.savez_compressed(out, **arrays)  # type: ignore[arg-type]

    @staticmethod
    def load(path: Union[str, os.PathLike[str]]) -> Statistics:
        """Reads what :meth:`save` or ``compress-model calibrate`` wrote."""
        with open(path, "rb") as file:
            zipped = file.read(2) == b"PK"
        if not zipped:
            return _of_program(path)
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
        for name, channels in zip(model.layers, model._core.channels):
            found = self[name].channels
            if found != channels:
                raise CalibrationError(
                    f"layer `{name}`: statistics of {found} channels, expected {channels}"
                )
        return [self._layer_in(name) for name in model.layers]

    def _layer_in(self, name: str) -> _core._LayerIn:
        own = self[name]
        if own.sequences == 0:
            raise CalibrationError(f"layer `{name}`: no sequence went through it")
        pairs, scale = own.products, 1.0 / (own.sequences * own.length)
        return (
            np.ascontiguousarray(own.mean),
            np.ascontiguousarray(own.autocorrelation),
            own.sequences,
            np.ascontiguousarray(self.importance.get(name, np.ones(own.channels))),
            None if pairs is None else np.ascontiguousarray(pairs * scale),
        )


def _of_program(path: Union[str, os.PathLike[str]]) -> Statistics:
    """Statistics as the program writes them."""
    read, origin = _core.read_statistics(path)
    layers, importance = {}, {}
    for name, mean, lags, sequences, own in read:
        scale = sequences * lags.shape[1]
        layers[name] = LayerStatistics(lags * scale, mean * scale, sequences)
        if (own != 1.0).any():
            importance[name] = own
    return Statistics(layers, origin).weighed(importance)
