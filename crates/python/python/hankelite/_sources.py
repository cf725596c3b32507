"""What a model may come in: a path, a state dict, a torch module, a pytree."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from . import _core
from ._arrays import Packed, library, pack, unpack
from .errors import CheckpointError, InvalidSetting

#: Conventions that no tensor records, with the values that each takes.
DECLARED = {
    "norm": "'pre' or 'post'",
    "pooling": "'mean' or 'last'",
    "per_step": "True where the network has outputs at every step",
    "dss_version": "'softmax', 'exp', 'exp-re-im', 'exp-no-scale', 'clip' or 'clip-no-scale'",
    "length": "the steps of a sequence",
    "discretisation": "'zoh', 'bilinear' or 'dss'; of LinOSS 'im', 'imex', 'imex2' or 'ex'; of lrnnx 'dirac' too",
    "dt_transform": "'exp', 'softplus', ...",
    "real_transform": "'exp', 'softplus', 'relu', ...",
    "bandlimit": "a number",
    "conj_sym": "whether S5 stores one of each conjugate pair",
    "clip_eigs": "whether S5 cuts real parts",
    "half_gate": "'half-glu1' or 'half-glu2'",
    "gelu": "'exact' or 'tanh'",
    "diagonalise": "stored modes of each channel for S4 with its low-rank term",
    "part": "the set of weights to read, of a file that holds several, or 'all'",
}


def declared_json(declared: Mapping[str, Any]) -> str:
    """Keyword arguments as the core takes them."""
    for key in declared:
        if key not in DECLARED:
            expected = ", ".join(sorted(DECLARED))
            raise TypeError(f"unexpected keyword argument {key!r}; expected one of {expected}")
    return json.dumps({key: value for key, value in declared.items() if value is not None})


class Source:
    """Tensors by name, and how changed ones go back to where they were."""

    def __init__(self, checkpoint: _core.Checkpoint) -> None:
        self.checkpoint = checkpoint

    def state(self, checkpoint: _core.Checkpoint) -> Any:
        """What came in, with the tensors of another checkpoint."""
        tensors = checkpoint.tensors(True)
        return {packed[0]: unpack(packed, None) for packed in tensors}

    def converted(self, checkpoint: _core.Checkpoint) -> Source:
        """The source of a checkpoint with other names."""
        return Source(checkpoint)


class Tensors(Source):
    """A flat dictionary of arrays."""

    def __init__(self, values: Mapping[str, Any], declared: str, name: str) -> None:
        self.values = dict(values)
        packed = [pack(key, value) for key, value in self.values.items() if library(value)]
        if not packed:
            raise CheckpointError(f"{name} holds no arrays, expected those of a model by name")
        super().__init__(_core.Checkpoint.from_tensors(name, packed, declared))

    def changed(self, checkpoint: _core.Checkpoint) -> dict[str, Any]:
        """The arrays that differ, in the library, dtype and place of those that they replace."""
        tensors = checkpoint.tensors(False)
        return {packed[0]: unpack(packed, self.values[packed[0]]) for packed in tensors}

    def state(self, checkpoint: _core.Checkpoint) -> Any:
        return {**self.values, **self.changed(checkpoint)}

    def converted(self, checkpoint: _core.Checkpoint) -> Source:
        return _Converted(checkpoint, next(filter(library, self.values.values())))


class _Converted(Source):
    """Tensors under new names, in the library and place of one that was there before."""

    def __init__(self, checkpoint: _core.Checkpoint, like: Any) -> None:
        super().__init__(checkpoint)
        self.like = like

    def state(self, checkpoint: _core.Checkpoint) -> Any:
        def back(packed: Packed) -> Any:
            like = self.like.detach() if library(self.like) == "torch" else self.like
            return unpack(packed, like)

        return {packed[0]: back(packed) for packed in checkpoint.tensors(True)}


class Tree(Tensors):
    """A pytree: nested dictionaries, or whatever JAX can take apart."""

    def __init__(self, tree: Any, declared: str) -> None:
        self.tree = tree
        leaves, self.rebuild = _flatten(tree)
        separator = "." if any(library(leaf) == "torch" for _, leaf in leaves) else "/"
        self.names = [separator.join(path) for path, _ in leaves]
        self.leaves = [leaf for _, leaf in leaves]
        super().__init__(dict(zip(self.names, self.leaves)), declared, "the pytree")

    def state(self, checkpoint: _core.Checkpoint) -> Any:
        changed = self.changed(checkpoint)
        pairs = zip(self.names, self.leaves)
        return self.rebuild([changed.get(name, leaf) for name, leaf in pairs])


def _flatten(tree: Any) -> tuple[list[tuple[list[str], Any]], Any]:
    """Leaves with the keys that lead to them, and a function that rebuilds the tree."""
    jax = sys.modules.get("jax")
    if jax is not None:
        paths, shape = jax.tree_util.tree_flatten_with_path(tree)
        leaves = [([_key(key) for key in _shown(path)], leaf) for path, leaf in paths]
        return leaves, lambda values: jax.tree_util.tree_unflatten(shape, values)
    leaves = list(_walk(tree, []))

    def rebuild(values: list[Any]) -> Any:
        return _replace(tree, iter(values))

    return leaves, rebuild


def _shown(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """A path without the attribute in which flax.nnx keeps a variable's array."""
    ends = len(path) > 1 and getattr(path[-1], "name", None) == "value"
    return path[:-1] if ends else path


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _walk(tree: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _walk(value, [*path, str(key)])
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _walk(value, [*path, str(index)])
    else:
        yield path, tree


def _replace(tree: Any, values: Iterator[Any]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _replace(value, values) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_replace(value, values) for value in tree])
    return next(values)


_PARAMETRISED = ".parametrizations."


class Module(Tensors):
    """A live torch module, without the wrappers that run it."""

    def __init__(self, module: Any, declared: str) -> None:
        self.module = unwrapped(module)
        values: dict[str, Any] = {}
        parametrised: dict[str, str] = {}
        for name, value in self.module.state_dict().items():
            owner, mark, rest = name.rpartition(_PARAMETRISED)
            tensor, _, part = rest.partition(".")
            if mark and part == "original":
                parametrised[f"{owner}.{tensor}"] = name
                name = f"{owner}.{tensor}"
            values[name] = value
        super().__init__(values, declared, "the module's state dict")
        for layer in range(len(self.checkpoint.layers)):
            for name in self.checkpoint.system_tensors(layer):
                if name in parametrised:
                    raise CheckpointError(
                        f"tensor `{name}` is parametrised (`{parametrised[name]}`), expected a "
                        "plain parameter\nhint: torch.nn.utils.parametrize."
                        "remove_parametrizations makes it one"
                    )


def unwrapped(module: Any) -> Any:
    """The module inside of torch.compile, DataParallel and DistributedDataParallel."""
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif type(module).__name__ in ("DataParallel", "DistributedDataParallel"):
            module = module.module
        else:
            return module


def open_source(source: Any, declared: Mapping[str, Any]) -> Source:
    """Whatever a user may hand in."""
    text = declared_json(declared)
    if isinstance(source, (str, os.PathLike)):
        return Source(_core.Checkpoint.read(os.fspath(source), text))
    if hasattr(source, "state_dict") and hasattr(source, "named_parameters"):
        return Module(source, text)
    if isinstance(source, Mapping):
        flat = all(isinstance(key, str) and library(v) for key, v in source.items())
        if flat and source:
            return Tensors(source, text, "the state dict")
        return Tree(source, text)
    if library(source) is None and sys.modules.get("jax") is not None:
        return Tree(source, text)
    raise InvalidSetting(
        f"{type(source).__name__} is no model, expected a path, a torch module, a dictionary of "
        "arrays or a pytree"
    )


def module_of(source: Source) -> Optional[Any]:
    """The live module behind a source, if there is one."""
    return getattr(source, "module", None)
