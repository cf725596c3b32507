"""Reads back, with the libraries they belong to, files that this project wrote.

    for end in npz msgpack pth safetensors index.json; do
        compress-model reduce tests/data/s4d_classifier.safetensors --order 3 --output OUT/small.$end
    done
    python tests/reference/check_containers.py OUT

All five must hold the same tensors.
"""

import json
import sys
from pathlib import Path

import flax.serialization
import numpy as np
import torch
from safetensors.numpy import load_file


def shards(path):
    weight_map = json.loads(path.read_text())["weight_map"]
    files = {name: load_file(path.parent / name) for name in set(weight_map.values())}
    return {tensor: files[file][tensor] for tensor, file in weight_map.items()}


def main(folder):
    small = folder / "small"
    found = {
        "safetensors": load_file(small.with_suffix(".safetensors")),
        "npz": dict(np.load(small.with_suffix(".npz"))),
        "msgpack": flax.serialization.msgpack_restore(small.with_suffix(".msgpack").read_bytes()),
        "pth": {k: v.numpy() for k, v in torch.load(small.with_suffix(".pth")).items()},
        "index.json": shards(folder / "small.index.json"),
    }
    expected = found["safetensors"]
    for container, tensors in found.items():
        assert tensors.keys() == expected.keys(), container
        for name, value in tensors.items():
            same = value.dtype == expected[name].dtype and np.array_equal(value, expected[name])
            assert same, (container, name)
        print(f"{container}: {len(tensors)} tensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
