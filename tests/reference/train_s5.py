"""Trains an S5 classifier on sequential MNIST with 2x2 means by the public formulas, in JAX.

    python tests/reference/train_s5.py MNIST OUT [--epochs 40] [--seed 0]

MNIST holds the four idx files (plain or gzipped). Writes OUT/model.safetensors in the names of
lindermanlab/S5's flax tree, OUT/calibration.safetensors (1,000 training digits, no labels) and
OUT/test.safetensors (the 10,000 test digits with labels), and prints the accuracy.

Formulas: s5/ssm.py (zero-order hold, one of each conjugate pair, HiPPO-LegS), s5/layers.py
(pre-norm, half_glu1), s5/seq_model.py (mean pooling). 3 layers, H = 32, P = 32 stored modes.
Needs jax, numpy and safetensors.
"""

import argparse
import gzip
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

H, P, LAYERS, CLASSES, BATCH = 32, 32, 3, 10, 50


def digits(folder, part):
    """Pixels (B, 28, 28) in [0, 1] and labels (B)."""
    arrays = []
    for name, head in [("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8)]:
        path = next(p for p in sorted(folder.glob(f"{part}*{name}*")))
        opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
        with opened as file:
            arrays.append(np.frombuffer(file.read()[head:], np.uint8))
    return arrays[0].reshape(-1, 28, 28) / np.float32(255), arrays[1].astype(np.int64)


def sequences(pixels):
    """Means of 2x2 pixels, row by row: (B, 196, 1)."""
    return pixels.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196, 1).astype(np.float32)


def shifted(random, pixels):
    """Every digit moved by up to two pixels."""
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
    moves = random.integers(0, 5, (len(pixels), 2))
    return np.stack([image[i : i + 28, j : j + 28] for image, (i, j) in zip(padded, moves)])


def hippo():
    """Stored eigenvalues (P) and eigenvectors (2P, P) of the normal part of HiPPO-LegS, 2P states."""
    p = np.sqrt(1 + 2 * np.arange(2 * P))
    a = p[:, None] * p[None, :]
    a = -(np.tril(a) - np.diag(np.arange(2 * P)))
    low = np.sqrt(np.arange(2 * P) + 0.5)
    normal = a + low[:, None] * low[None, :]
    frequencies, vectors = np.linalg.eigh(-1j * (normal - normal.T) / 2)
    upper = frequencies > 0
    return np.diagonal(normal).mean(), frequencies[upper], vectors[:, upper]


def parameters(random):
    real, frequencies, vectors = hippo()
    pairs = lambda x: np.stack([x.real, x.imag], -1).astype(np.float32)
    normal = lambda *shape: (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    dense = lambda i, o: {"kernel": normal(i, o), "bias": np.zeros(o, np.float32)}
    encoder = {"encoder": dense(1, H)}
    for i in range(LAYERS):
        b = vectors.conj().T @ random.standard_normal((2 * P, H)) / np.sqrt(H)
        c = random.standard_normal((H, 2 * P)) / np.sqrt(2 * P) @ vectors
        encoder[f"layers_{i}"] = {
            "seq": {
                "Lambda_re": np.full(P, real, np.float32),
                "Lambda_im": frequencies.astype(np.float32),
                "B": pairs(b),
                "C": pairs(c),
                "D": random.standard_normal(H).astype(np.float32),
                "log_step": random.uniform(np.log(1e-3), np.log(1e-1), (P, 1)).astype(np.float32),
            },
            "norm": {"scale": np.ones(H, np.float32), "bias": np.zeros(H, np.float32)},
            "out2": dense(H, H),
        }
    return {"encoder": encoder, "decoder": dense(H, CLASSES)}


def parallel(a, driven):
    """x_k = a x_(k-1) + driven_k, as the public module scans."""
    join = lambda left, right: (right[0] * left[0], right[0] * left[1] + right[1])
    return jax.lax.associative_scan(join, (jnp.tile(a, (len(driven), 1)), driven))[1]


def ssm(p, u, scan):
    """u (L, H) to y (L, H)."""
    lam = jnp.minimum(p["Lambda_re"], -1e-4) + 1j * p["Lambda_im"]
    a = jnp.exp(lam * jnp.exp(p["log_step"][:, 0]))
    b = ((a - 1) / lam)[:, None] * (p["B"][..., 0] + 1j * p["B"][..., 1])
    c = p["C"][..., 0] + 1j * p["C"][..., 1]
    return 2 * (scan(a, u @ b.T) @ c.T).real + p["D"] * u


def network(params, u, scan=parallel):
    """u (L, inputs) to logits."""
    apply = lambda p, x: x @ p["kernel"] + p["bias"]
    x = apply(params["encoder"]["encoder"], u)
    for i in range(sum(name.startswith("layers_") for name in params["encoder"])):
        p = params["encoder"][f"layers_{i}"]
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        z = jax.nn.gelu(ssm(p["seq"], unit * p["norm"]["scale"] + p["norm"]["bias"], scan))
        x = x + z * jax.nn.sigmoid(apply(p["out2"], z))
    return apply(params["decoder"], x.mean(0))


batched = jax.jit(jax.vmap(network, (None, 0)))


def loss(params, inputs, labels):
    logits = jax.vmap(network, (None, 0))(params, inputs)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


@partial(jax.jit, static_argnums=5)
def step(params, moments, inputs, labels, index, steps):
    """Adam, a quarter of the rate for the dynamics, warm-up and a cosine; gradients clipped to 1."""
    grads = jax.grad(loss)(params, inputs, labels)
    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g / jnp.maximum(1, norm), grads)
    rate = 4e-3 * jnp.minimum(index / 500, 0.5 * (1 + jnp.cos(jnp.pi * index / steps)))
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
    second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g**2, moments[1], grads)

    def move(path, p, m, v):
        slow = any(part.key in ("Lambda_re", "Lambda_im", "B", "log_step") for part in path)
        unit = m / (1 - 0.9**index) / (jnp.sqrt(v / (1 - 0.999**index)) + 1e-8)
        decay = 0 if slow else 0.01 * p
        return p - rate * (0.25 if slow else 1) * (unit + decay)

    return jax.tree_util.tree_map_with_path(move, params, first, second), (first, second)


def flat(tree, head):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{head}/{name}")
        else:
            yield f"{head}/{name}", np.ascontiguousarray(value)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mnist", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    random = np.random.default_rng(settings.seed)
    pixels, labels = digits(settings.mnist, "train")
    test_pixels, test_labels = digits(settings.mnist, "t10k")
    test = sequences(test_pixels)
    params = jax.tree.map(jnp.asarray, parameters(random))
    moments = (jax.tree.map(jnp.zeros_like, params),) * 2
    batches = len(pixels) // BATCH
    for epoch in range(settings.epochs):
        order = random.permutation(len(pixels))
        inputs = sequences(shifted(random, pixels))
        for k in range(batches):
            rows = order[k * BATCH : (k + 1) * BATCH]
            index = epoch * batches + k + 1
            params, moments = step(params, moments, inputs[rows], labels[rows], index, settings.epochs * batches)
        hits = sum((batched(params, test[i : i + 500]).argmax(1) == test_labels[i : i + 500]).sum() for i in range(0, len(test), 500))
        print(f"epoch {epoch + 1}: {100 * hits / len(test):.2f} % of the test digits", flush=True)
    for i in range(LAYERS):  # as the recurrence clips them
        seq = params["encoder"][f"layers_{i}"]["seq"]
        seq["Lambda_re"] = jnp.minimum(seq["Lambda_re"], -1e-4)
    settings.out.mkdir(parents=True, exist_ok=True)
    save_file(dict(flat(params, "params")), settings.out / "model.safetensors")
    save_file({"inputs": sequences(pixels[:1000])}, settings.out / "calibration.safetensors")
    save_file({"inputs": test, "labels": test_labels}, settings.out / "test.safetensors")


if __name__ == "__main__":
    main()
