"""Small checkpoints in every container, written by the libraries that people write them with.

    python tests/reference/make_containers.py

needs torch, numpy, safetensors, flax (with jax and optax) and omegaconf; made with torch 2.15.0,
numpy 2.4.6, safetensors 0.8.0, flax 0.12.8, jax 0.10.2, optax 0.2.8 and omegaconf 2.4.0. Lightning
itself is not needed: its one class that stands in checkpoints is declared here under its own name.
"""

import json
import shutil
import sys
import types
from argparse import Namespace
from pathlib import Path

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax.training.train_state import TrainState
from omegaconf import OmegaConf
from safetensors.numpy import load_file, save_file

DATA = Path(__file__).parent.parent / "data"
OUT = DATA / "containers"
RNG = np.random.default_rng(20)


def arrays():
    """One array of each type and of several shapes, with names that hold dots and slashes."""
    normal = RNG.standard_normal
    found = {
        "a.f64": normal((2, 3)),
        "a.f32": normal((3, 2, 2)).astype(np.float32),
        "b/f16": normal(5).astype(np.float16),
        "b/c64": (normal((2, 2)) + 1j * normal((2, 2))).astype(np.complex64),
        "flag": np.array([True, False, True]),
        "scalar": np.array(1.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "one": np.ones((1,), np.float32),
    }
    for bits in (8, 16, 32, 64):
        found[f"i{bits}"] = RNG.integers(-100, 100, 4).astype(f"int{bits}")
        found[f"u{bits}"] = RNG.integers(0, 200, 4).astype(f"uint{bits}")
    return found


def make_npz():
    named = arrays()
    save({k: v.copy(order="C") for k, v in named.items()}, OUT / "arrays.safetensors")
    np.savez(OUT / "arrays.npz", **named)
    fortran = {k: v.copy(order="F") for k, v in named.items()}
    np.savez(OUT / "fortran.npz", **fortran)
    np.savez(OUT / "s4d_classifier.npz", **load_file(DATA / "s4d_classifier.safetensors"))
    np.savez_compressed(OUT / "compressed.npz", x=np.zeros(4, np.float32))
    np.savez(OUT / "objects.npz", x=np.array([None, {}], dtype=object))
    np.savez(OUT / "big_endian.npz", x=np.zeros(4, ">f4"))


def make_flax():
    """The state of a training run, and a plain tree with every kind of leaf."""

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            re = self.param("Lambda_re", nn.initializers.normal(), (3,))
            im = self.param("Lambda_im", nn.initializers.normal(), (3,))
            return nn.Dense(3, name="out2")(x * re + im)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for index in range(2):
                x = Layer(name=f"layers_{index}")(x)
            return x

    variables = Model().init(jax.random.PRNGKey(0), jnp.ones(3))
    state = TrainState.create(apply_fn=None, params=variables["params"], tx=optax.adam(1e-3))
    (OUT / "train_state.msgpack").write_bytes(flax.serialization.to_bytes(state))
    named = arrays()
    tree = {
        "params": {"nested": {name.replace("/", "|"): value for name, value in named.items()}},
        "batch_stats": {"bf16": jnp.arange(4, dtype=jnp.bfloat16)},
        "list": [np.float32(2.5), {"x": np.zeros((2, 2), np.float32)}],
        "long name " + 40 * "x": np.zeros(70_000, np.uint8),
        "step": 7,
        "complex": 1 + 2j,
        "nothing": None,
        "yes": True,
        "text": "text",
        "number": -1.5,
    }
    (OUT / "tree.msgpack").write_bytes(flax.serialization.msgpack_serialize(tree))
    # All but `batch_stats/bf16` (0, 1, 2, 3) and the array of zeros under the long name.
    plain = {
        f"params/nested/{name.replace('/', '|')}": value.copy(order="C")
        for name, value in named.items()
    }
    plain["list/0"] = np.array(2.5, np.float32)
    plain["list/1/x"] = np.zeros((2, 2), np.float32)
    save(plain, OUT / "tree.safetensors")


def make_sharded():
    """As the transformers library shards: an index and files of at most so many bytes."""
    folder = OUT / "sharded"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    named = load_file(DATA / "s4d_classifier.safetensors")
    names = sorted(named)
    third = len(names) // 3
    groups = [names[:third], names[third : 2 * third], names[2 * third :]]
    weight_map = {}
    for index, group in enumerate(groups):
        file = f"model-{index + 1:05}-of-00003.safetensors"
        save_file({name: named[name] for name in group}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in group})
    size = sum(value.nbytes for value in named.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (folder / "model.safetensors.index.json").write_text(text)


class AttributeDict(dict):
    """`lightning.fabric.utilities.data.AttributeDict`: a dict with attributes."""


class Custom:
    """A class that no reader of the file has."""

    def __init__(self):
        self.value = 3


def save(named, path):
    """With the permissions of any new file."""
    save_file(named, path)
    path.chmod(0o644)


def declare(module, cls):
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    setattr(sys.modules[module], cls.__name__, cls)
    cls.__module__ = module
    cls.__qualname__ = cls.__name__


def make_lightning():
    declare("lightning.fabric.utilities.data", AttributeDict)
    declare("project.optim", Custom)
    weights = torch.load(DATA / "flat_state_dict.pt")
    layer = {"mode": "diag", "disc": "zoh", "dt_transform": "softplus", "n_ssm": 2}
    layer["lr"] = {"dt": 1e-3}
    config = OmegaConf.create(
        {
            "layer": layer,
            "prenorm": True,
            "dropout": 0.1,
            "bidirectional": False,
            "stack": ["s4", {"n": 3}],
            "unset": None,
            "missing": "???",
            "linked": "${dropout}",
        }
    )
    nested = AttributeDict(model=config, name="run", seed=1, custom=Custom(), kind=Custom)
    data = Namespace(l_max=784, name="other", path=Path("data"))
    head = {"epoch": 3, "pytorch-lightning_version": "2.5.0"}
    state = {f"model.{name}": value for name, value in weights.items()}
    moments = {"state": {0: {"exp_avg": torch.zeros(4)}}, "param_groups": [{"lr": 1e-3}]}
    tail = {"optimizer_states": [moments], "callbacks": {"c": Custom()}, "loops": {"fit": {"n": 1}}}
    places = {"hyper_parameters": nested, "datamodule_hyper_parameters": data}
    torch.save({**head, "state_dict": state, **tail, **places}, OUT / "lightning.ckpt")
    places = {"hyper_parameters": config}
    torch.save({**head, "state_dict": state, **tail, **places}, OUT / "omegaconf.ckpt")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    make_npz()
    make_flax()
    make_sharded()
    make_lightning()
