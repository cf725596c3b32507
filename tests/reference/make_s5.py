"""An S5 classifier as it is initialised: HiPPO-LegS, pre-norm, half_glu1, mean pooling, ten classes.

    python tests/reference/make_s5.py LAYERS CHANNELS MODES INPUTS OUT.safetensors

In the names of lindermanlab/S5's flax tree, like those that train_s5.py writes. Calibrated reduction of
sizes for which no trained network is at hand is measured on it. Needs numpy and safetensors.
"""

import sys

import numpy as np
from safetensors.numpy import save_file

CLASSES = 10


def hippo(modes):
    """Stored eigenvalues and eigenvectors of the normal part of HiPPO-LegS of twice as many states."""
    n = np.arange(2 * modes)
    p, low = np.sqrt(1 + 2 * n), np.sqrt(n + 0.5)
    normal = np.diag(n) - np.tril(np.outer(p, p)) + np.outer(low, low)
    frequencies, vectors = np.linalg.eigh(-1j * (normal - normal.T) / 2)
    upper = frequencies > 0
    return np.diagonal(normal).mean(), frequencies[upper], vectors[:, upper]


def tensors(layers, channels, modes, inputs):
    random = np.random.default_rng(0)
    real, frequencies, vectors = hippo(modes)
    made = {}

    def put(name, value):
        made[f"params/{name}"] = np.ascontiguousarray(value, np.float32)

    def dense(name, i, o):
        put(f"{name}/kernel", random.standard_normal((i, o)) / np.sqrt(i))
        put(f"{name}/bias", np.zeros(o))

    pairs = lambda x: np.stack([x.real, x.imag], -1)  # noqa: E731
    dense("encoder/encoder", inputs, channels)
    for i in range(layers):
        layer = f"encoder/layers_{i}"
        put(f"{layer}/seq/Lambda_re", np.full(modes, real))
        put(f"{layer}/seq/Lambda_im", frequencies)
        b = vectors.conj().T @ random.standard_normal((2 * modes, channels)) / np.sqrt(channels)
        c = random.standard_normal((channels, 2 * modes)) / np.sqrt(2 * modes) @ vectors
        put(f"{layer}/seq/B", pairs(b))
        put(f"{layer}/seq/C", pairs(c))
        put(f"{layer}/seq/D", random.standard_normal(channels))
        put(f"{layer}/seq/log_step", random.uniform(np.log(1e-3), np.log(1e-1), (modes, 1)))
        put(f"{layer}/norm/scale", np.ones(channels))
        put(f"{layer}/norm/bias", np.zeros(channels))
        dense(f"{layer}/out2", channels, channels)
    dense("decoder", channels, CLASSES)
    return made


if __name__ == "__main__":
    save_file(tensors(*map(int, sys.argv[1:5])), sys.argv[5])
