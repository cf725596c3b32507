"""One S5 layer of P modes and P channels as it is initialised: eight blocks of HiPPO, random maps.

    python tests/reference/make_big_s5.py 512 big_s5.safetensors

What `reduce` and `inspect` take for a layer of published size without data is measured on it.
"""

import sys

import numpy as np
from safetensors.numpy import save_file

BLOCKS = 8


def hippo(states):
    """The normal part of HiPPO-LegS: its eigenvalues and eigenvectors."""
    n = np.sqrt(2 * np.arange(states) + 1.0)
    full = np.tril(np.outer(n, n)) - np.diag(np.arange(states))
    low_rank = np.sqrt(np.arange(states) + 0.5)
    return np.linalg.eig(-full + np.outer(low_rank, low_rank))


def layer(modes):
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape) + 1j * rng.standard_normal(shape)  # noqa: E731
    values, vectors = hippo(modes // BLOCKS)
    mix = np.kron(np.eye(BLOCKS), vectors)
    parts = {
        "Lambda": np.tile(values, BLOCKS),
        "B": np.linalg.solve(mix, draw(modes, modes)) / np.sqrt(2 * modes),
        "C": draw(modes, modes) @ mix / np.sqrt(2 * modes),
    }
    tensors = {name: np.stack([part.real, part.imag], axis=-1) for name, part in parts.items()}
    steps = rng.uniform(np.log(0.001), np.log(0.1), modes)
    tensors |= {"D": rng.standard_normal(modes), "log_step": steps}
    return {f"seq.{name}": tensor.astype(np.float32) for name, tensor in tensors.items()}


if __name__ == "__main__":
    save_file(layer(int(sys.argv[1])), sys.argv[2])
