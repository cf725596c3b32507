"""The fixtures of make_large.py against the code that was published: each layer is built with the tensors of a
file, gets an impulse in every input, and has to answer with the kernels that the script wrote.

    python tests/reference/check_published.py linoss CLONE      # of tk-rusch/linoss
    python tests/reference/check_published.py megalodon-jax     # the package of that name
    python tests/reference/check_published.py lrnnx SOURCE      # the unpacked source of lrnnx 1.0

Needs numpy, and jax and equinox, or torch and einops; and what the code imports. lrnnx imports extensions in CUDA,
for which empty modules stand. Its reduced files are loaded strictly into modules of their size, too. Found, the
largest difference over the largest number, in single precision, with jax 0.10.2 and equinox 0.13.8, and torch:

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


def without_cuda():
    """Empty modules in the place of extensions that are not there."""
    import types

    class Empty(types.ModuleType):
        __path__ = []

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return None

    own = ("", ".layer_norm", ".selective_state_update", ".simplified_state_update", ".softplus")
    triton = [f"lrnnx.ops.triton{name}" for name in own]
    for name in ("selective_scan_cuda", "simplified_scan_cuda", *triton):
        sys.modules[name] = Empty(name)


def lrnnx(source):
    sys.path.insert(0, str(source))
    without_cuda()
    from lrnnx.models.lti import S4D, Centaurus, S5
    from lrnnx.models.ltv import S5 as EventS5

    def s5(form):
        return lambda t: S5(t["B"].shape[1], t["A"].shape[0], form)

    def s4d(t):
        # The output of the system alone: what follows it is taken away.
        return S4D(t["D"].shape[1], d_state=2 * t["A_real"].shape[1], transposed=False, verbose=False)

    def cells(mode):
        def make(t):
            (n, m), h = t["A"].shape, len(t["C"])
            return Centaurus(int(h**0.5) if mode == "full" else h, n, m, mode=mode)

        return make

    files = {
        "lrnnx_s5": s5("zoh"),
        "lrnnx_s5_dirac": s5("dirac"),
        "lrnnx_events": lambda t: EventS5(len(t["D"]), len(t["A"]), use_fast_path=False),
        "lrnnx_s4d": s4d,
        "centaurus_neck": cells("neck"),
        "centaurus_pointwise": cells("pointwise"),
        "centaurus_dws": cells("dws"),
        "centaurus_full": cells("full"),
    }
    for name, make in files.items():
        for file in (name, f"{name}.reduced"):
            if (HERE / f"{file}.safetensors").exists():
                compare(file, [of_torch(name, make, own) for own in torch_layers(file)])


def torch_layers(file):
    """The tensors of each layer, by their names in it."""
    tensors = load(HERE / f"{file}.safetensors")
    heads = sorted({name[: name.index(".mixer.") + 7] for name in tensors if ".mixer." in name})
    for head in heads:
        yield {name.removeprefix(head): tensor for name, tensor in tensors.items() if name.startswith(head)}


def of_torch(name, make, own):
    import torch

    layer = make(own)
    kind = lambda x: torch.tensor(x, dtype=torch.complex64 if np.iscomplexobj(x) else torch.float32)
    state = {key: kind(value) for key, value in own.items() if not key.startswith("output_linear.")}
    if name == "lrnnx_s4d":
        layer.conv_activation = layer.mult_activation = layer.output_linear = torch.nn.Identity()
    layer.load_state_dict(state, strict=True)
    run = {"lrnnx_s4d": s4d_answer, "lrnnx_events": event_answer}.get(name, plain_answer)
    with torch.no_grad():
        out = answers(lambda u: run(layer, torch.tensor(u)[None]).numpy()[0], layer.d_model)
    if name in ("lrnnx_s4d", "centaurus_dws"):
        return diagonal(np.stack([out[c, c] for c in range(len(out))]))
    if name == "centaurus_full":
        return diagonal(out.reshape(-1, LENGTH))
    return out


def plain_answer(layer, u):
    return layer(u)


def s4d_answer(layer, u):
    return layer(u)[0]


def event_answer(layer, u):
    """By its step in plain PyTorch; the scan is in CUDA."""
    import torch

    cache = layer.allocate_inference_cache(1, LENGTH)
    cache["seqlen_offset"] = 0
    return torch.cat([layer.step(u[:, l : l + 1], cache)[0] for l in range(LENGTH)], dim=1)


CHECKS = {"linoss": linoss, "megalodon-jax": megalodon_jax, "lrnnx": lrnnx}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](*sys.argv[2:])
