"""The fixtures of make_large.py against the code that was published: each layer is built with the tensors of a
file, gets an impulse in every input, and has to answer with the kernels that the script wrote.

    python tests/reference/check_published.py linoss CLONE      # of tk-rusch/linoss
    python tests/reference/check_published.py megalodon-jax     # the package of that name

Needs numpy, jax and equinox, and what the code imports. Found, the largest difference over the largest number, in
single precision, with jax 0.10.2 and equinox 0.13.8:

    linoss_im 1.1e-07, linoss_imex 8.4e-08     tk-rusch/linoss at 83e6318
    megalodon_jax 7.8e-07                      megalodon-jax 0.2.2
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np

from make_large import HERE, load

LENGTH = 12


def module_of(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def places(tensors, mark):
    return sorted(name.removesuffix(mark) for name in tensors if name.endswith("." + mark))


def compare(name, layers):
    """Answers of each layer, outputs × inputs × L, with D at lag 0."""
    truth = load(HERE / "truth.safetensors")
    kernels, d = truth[f"{name}/{LENGTH}/forward"], truth[f"{name}/d"]
    at = [0, 0]
    worst = 0.0
    for answer in layers:
        size, through = answer.size, answer.shape[0] * answer.shape[1]
        expected = kernels[at[0] : at[0] + size].reshape(answer.shape).copy()
        expected[:, :, 0] += d[at[1] : at[1] + through].reshape(answer.shape[:2])
        worst = max(worst, np.abs(answer - expected).max() / np.abs(expected).max())
        at = [at[0] + size, at[1] + through]
    assert at == [len(kernels), len(d)], "layers are missing"
    print(f"{name}: {worst:.1e}")
    assert worst < 5e-6, name


def impulses(channels):
    """One for each input: steps × channels."""
    for channel in range(channels):
        u = np.zeros((LENGTH, channels), np.float32)
        u[0, channel] = 1
        yield u


def answers(layer, channels):
    """Of a function of (steps, channels)."""
    return np.stack([np.asarray(layer(u), np.float64).T for u in impulses(channels)], axis=1)


def with_arrays(layer, tensors, place, names):
    import equinox
    import jax.numpy as jnp

    for name in names:
        layer = equinox.tree_at(lambda l: getattr(l, name), layer, jnp.asarray(tensors[place + name], jnp.float32))
    return layer


def linoss(clone):
    import jax

    published = module_of(Path(clone) / "models" / "LinOSS.py", "published_linoss")
    for name, form in (("linoss_im", "IM"), ("linoss_imex", "IMEX")):
        tensors, layers = load(HERE / f"{name}.safetensors"), []
        for place in places(tensors, "A_diag"):
            states, h = tensors[place + "B"].shape[:2]
            layer = published.LinOSSLayer(states, h, form, key=jax.random.PRNGKey(0))
            layer = with_arrays(layer, tensors, place, ["A_diag", "B", "C", "D", "steps"])
            layers.append(answers(layer, h))
        compare(name, layers)


def channelwise(layer, channels):
    """Of a function of (steps, channels) whose channels do not meet: channels × channels × L is one kernel each."""
    return np.stack([answers(layer, channels)[c, c] for c in range(channels)])


def diagonal(kernels):
    out = np.zeros((len(kernels), *kernels.shape))
    out[np.arange(len(kernels)), np.arange(len(kernels))] = kernels
    return out


def megalodon_jax():
    import jax
    from megalodon_jax.layers.complex_ema import ComplexEMA

    tensors, layers = load(HERE / "megalodon_jax.safetensors"), []
    for place in places(tensors, "theta"):
        h, n, _ = tensors[place + "alpha"].shape
        layer = ComplexEMA(h, n, key=jax.random.PRNGKey(0))
        layer = with_arrays(layer, tensors, place, ["alpha", "delta", "theta", "gamma_real", "gamma_imag", "omega"])

        def run(u, layer=layer):
            answer = layer(jax.numpy.asarray(u.T[None]))
            return (answer[0] if isinstance(answer, tuple) else answer)[0].T

        layers.append(diagonal(channelwise(run, h)))
    compare("megalodon_jax", layers)


CHECKS = {"linoss": linoss, "megalodon-jax": megalodon_jax}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](*sys.argv[2:])
