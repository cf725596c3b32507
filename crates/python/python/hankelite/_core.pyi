"""The compiled part. The public face is :mod:`hankelite`."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Optional, Union, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "Checkpoint",
    "IntegerEntries",
    "Stream",
    "__version__",
    "balanced_truncation",
    "best_scales",
    "h2_norm",
    "hankel_values",
    "hinf_norm",
    "integer_entries",
    "read_data",
    "read_statistics",
    "rounded_map",
    "write_statistics",
]

__version__: str

_Progress = Optional[Callable[[str, int, int], object]]
_TensorIn = tuple[str, str, Sequence[int], npt.NDArray[np.uint8]]
_TensorOut = tuple[str, str, list[int], npt.NDArray[np.uint8]]
_System = tuple[
    npt.NDArray[np.complex128],
    npt.NDArray[np.complex128],
    npt.NDArray[np.complex128],
    npt.NDArray[np.float64],
    float,
]
_SystemOut = tuple[
    npt.NDArray[np.complex128],
    npt.NDArray[np.complex128],
    npt.NDArray[np.complex128],
    npt.NDArray[np.float64],
    Optional[float],
]
_Spectrum = tuple[
    str, npt.NDArray[np.float64], list[int], list[float], list[float], list[list[int]]
]
_LayerIn = tuple[
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    int,
    npt.NDArray[np.float64],
    Optional[npt.NDArray[np.float64]],
]
_Sequences = Union[npt.NDArray[np.float32], npt.NDArray[np.uint32]]
_Targeted = tuple["Checkpoint", str, str, npt.NDArray[np.uint8]]

@final
class Checkpoint:
    @staticmethod
    def read(path: Union[str, PathLike[str]], declared: str) -> Checkpoint: ...
    @staticmethod
    def from_tensors(name: str, tensors: Sequence[_TensorIn], declared: str) -> Checkpoint: ...
    @property
    def family(self) -> str: ...
    @property
    def layers(self) -> list[str]: ...
    @property
    def orders(self) -> list[list[int]]: ...
    @property
    def channels(self) -> list[int]: ...
    @property
    def assumptions(self) -> list[str]: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def declared(self) -> str: ...
    @property
    def runs(self) -> bool: ...
    @property
    def tokens(self) -> Optional[bool]: ...
    @property
    def inputs(self) -> Optional[int]: ...
    def system_tensors(self, layer: int) -> list[str]: ...
    def systems(self, layer: int) -> list[_SystemOut]: ...
    def inspect(self, time: Optional[str], realisation: str, progress: _Progress) -> list[_Spectrum]: ...
    def reduce(self, plan: str, progress: _Progress) -> tuple[Checkpoint, str]: ...
    def reduce_by_statistics(
        self, layers: Sequence[_LayerIn], requested: str, progress: _Progress
    ) -> tuple[Checkpoint, str, str]: ...
    def reduce_by_sequences(
        self, sequences: _Sequences, requested: str, progress: _Progress
    ) -> tuple[Checkpoint, str, str]: ...
    def reduce_by_captured(
        self, tensors: Sequence[_TensorIn], requested: str, progress: _Progress
    ) -> tuple[Checkpoint, str, str]: ...
    def reduce_by_captured_file(
        self, path: Union[str, PathLike[str]], requested: str, progress: _Progress
    ) -> tuple[Checkpoint, str, str]: ...
    def reduce_to_target(
        self, sequences: _Sequences, wanted: str, progress: _Progress
    ) -> _Targeted: ...
    def reduce_to_smallest(
        self,
        sequences: _Sequences,
        wanted: str,
        accept: Callable[[Checkpoint, str, str, npt.NDArray[np.uint8]], bool],
        progress: _Progress,
    ) -> None: ...
    def trained(self, other: Checkpoint) -> tuple[Checkpoint, npt.NDArray[np.uint8]]: ...
    def image_size(self) -> tuple[int, int]: ...
    def logits(self, sequences: _Sequences, progress: _Progress) -> list[list[float]]: ...
    def tensors(self, all: bool) -> list[_TensorOut]: ...
    def write(self, path: Union[str, PathLike[str]]) -> None: ...
    def convert(self, family: str) -> Checkpoint: ...
    def parameters(self) -> int: ...
    def stream(self) -> Stream: ...
    def write_onnx(self, path: Union[str, PathLike[str]], sequence: bool) -> None: ...

def read_data(
    source: str,
) -> tuple[_Sequences, Optional[npt.NDArray[np.int64]], list[str]]: ...
def write_statistics(
    path: Union[str, PathLike[str]],
    names: Sequence[str],
    layers: Sequence[_LayerIn],
    origin: str,
) -> None: ...
def read_statistics(
    path: Union[str, PathLike[str]],
) -> tuple[
    list[
        tuple[
            str,
            npt.NDArray[np.float64],
            npt.NDArray[np.float64],
            int,
            npt.NDArray[np.float64],
        ]
    ],
    str,
]: ...
@final
class Stream:
    def step(self, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]: ...
    def step_token(self, token: int) -> npt.NDArray[np.float32]: ...
    def reset(self) -> None: ...
    @property
    def inputs(self) -> int: ...
    @property
    def tokens(self) -> bool: ...
    @property
    def outputs(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...

@final
class IntegerEntries:
    @property
    def bits(self) -> int: ...
    @property
    def lowest(self) -> int: ...
    @property
    def highest(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def factor(self) -> float: ...

def hankel_values(arrays: _System, complex: bool) -> npt.NDArray[np.float64]: ...
def balanced_truncation(
    arrays: _System, states: int, complex: bool
) -> tuple[_SystemOut, float, int, float]: ...
def h2_norm(arrays: _System) -> float: ...
def hinf_norm(arrays: _System, complex: bool) -> tuple[float, float, float]: ...
def integer_entries() -> dict[str, IntegerEntries]: ...
def best_scales(
    weight: npt.NDArray[np.float64], bits: int, group: int
) -> npt.NDArray[np.float32]: ...
def rounded_map(
    weight: npt.NDArray[np.float64],
    bias: Optional[npt.NDArray[np.float64]],
    moments: tuple[
        float,
        npt.NDArray[np.float64],
        npt.NDArray[np.float64],
        npt.NDArray[np.float64],
        npt.NDArray[np.float64],
    ],
    entries: str,
    group: int,
) -> tuple[
    npt.NDArray[np.float64],
    Optional[npt.NDArray[np.float64]],
    Optional[tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]],
    float,
]: ...
