"""Training digits as the LRU and the S5 of docs/results/shared-modes.md take them, without labels.

    python tests/reference/pool_digits.py MNIST OUT.safetensors

MNIST holds the idx files of the training part (plain or gzipped). Writes `inputs` (B, 196, 1): means of
2x2 pixels of every digit, and of every digit moved by up to two pixels, as those networks were trained.
Needs numpy and safetensors.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def digits(folder):
    """Pixels (B, 28, 28) in [0, 1]."""
    path = next(p for p in sorted(folder.glob("train*images-idx3-ubyte*")))
    opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    with opened as file:
        pixels = np.frombuffer(file.read()[16:], np.uint8)
    return pixels.reshape(-1, 28, 28) / np.float32(255)


def sequences(pixels):
    """Means of 2x2 pixels, row by row: (B, 196, 1)."""
    return pixels.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196, 1).astype(np.float32)


def shifted(random, pixels):
    """Every digit moved by up to two pixels."""
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
    moves = random.integers(0, 5, (len(pixels), 2))
    return np.stack([image[i : i + 28, j : j + 28] for image, (i, j) in zip(padded, moves)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist", type=Path)
    parser.add_argument("out", type=Path)
    settings = parser.parse_args()
    pixels = digits(settings.mnist)
    moved = shifted(np.random.default_rng(0), pixels)
    save_file({"inputs": sequences(np.concatenate([pixels, moved]))}, settings.out)


if __name__ == "__main__":
    main()
