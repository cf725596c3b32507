"""The fixtures of make_large.py against the code that was published: each layer is built with the tensors of a
file, gets an impulse in every input, and has to answer with the kernels that the script wrote.

    python tests/reference/check_published.py linoss CLONE      # of tk-rusch/linoss
    python tests/reference/check_published.py megalodon-jax     # the package of that name
    python tests/reference/check_published.py lrnnx SOURCE      # the unpacked source of lrnnx 1.0
    python tests/reference/check_published.py event-ssm CLONE   # of Efficient-Scalable-Machine-Learning/event-ssm
    python tests/reference/check_published.py neural-ssm        # the package of that name
    python tests/reference/check_published.py attenuate         # the same
    python tests/reference/check_published.py lru-pytorch       # the same, and hankelite
    python tests/reference/check_published.py memax             # the same

Needs numpy, and jax and equinox, or torch and einops; and what the code imports. lrnnx imports extensions in CUDA,
for which empty modules stand, as they do for what attenuate imports beside its layers. Reduced files in torch are
loaded strictly into modules of their size, too. lru-pytorch and memax have no fixture: a module's weights are
written, read and cut by hankelite, and both files are loaded again. Found, the
largest difference over the largest number, in single precision, with jax 0.10.2 and equinox 0.13.8, and torch:

    linoss_im 1.1e-07, linoss_imex 8.4e-08     tk-rusch/linoss at 83e6318
    megalodon_jax 7.8e-07                      megalodon-jax 0.2.2
    event_ssm 1.1e-07, reduced 5.4e-08         Efficient-Scalable-Machine-Learning/event-ssm at d9ceb07
    early_lru 7.2e-08, reduced 4.2e-08         neural-ssm 0.44
    attenuate 3.8e-07, reduced 2.5e-07         attenuate 0.1.1
    lru-pytorch 6.3e-08, reduced 4.6e-08       lru-pytorch 0.1.3
    memax 1.7e-07, reduced 2.1e-07             memax 0.1.1
"""

import importlib.util
import os
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


def empty(*names):
    """Empty modules in the place of what is not there."""
    import types

    class Empty(types.ModuleType):
        __path__ = []

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return None

    for name in names:
        sys.modules[name] = Empty(name)


def lrnnx(source):
    sys.path.insert(0, str(source))
    own = ("", ".layer_norm", ".selective_state_update", ".simplified_state_update", ".softplus")
    triton = [f"lrnnx.ops.triton{name}" for name in own]
    empty("selective_scan_cuda", "simplified_scan_cuda", *triton)
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


def event_ssm(clone):
    """With events one step apart."""
    import jax.numpy as jnp

    sys.path.insert(0, str(clone))
    from event_ssm.ssm import S5SSM

    for file in ("event_ssm", "event_ssm.reduced"):
        tensors, layers = load(HERE / f"{file}.safetensors"), []
        for place in places(tensors, "log_step"):
            own = {name.removeprefix(place): t for name, t in tensors.items() if name.startswith(place)}
            (outputs, modes, _), inputs = own["C"].shape, own["B"].shape[1]
            sizes = (inputs, outputs, 2 * modes, 2 * modes)
            layer = S5SSM(*sizes, "lecun_normal", "async", 0.001, 0.1)
            apart = jnp.ones(LENGTH)
            layers.append(answers(lambda u: layer.apply({"params": own}, jnp.asarray(u), apart), inputs))
        compare(file, layers)


def neural_ssm():
    from neural_ssm import LRU

    for file in ("early_lru", "early_lru.reduced"):
        tensors, layers = load(HERE / f"{file}.safetensors"), []
        for place in places(tensors, "Bp"):
            own = {name.removeprefix(place): t for name, t in tensors.items() if name.startswith(place)}
            layer = loaded(LRU(own["D"].shape[1], len(own["D"]), len(own["nu_log"])), own)
            layers.append(impulse_answers(lambda u: layer(u)[0], own["D"].shape[1]))
        compare(file, layers)


def attenuate():
    beside = ("librosa", "torchaudio", "huggingface_hub")
    empty(*(name for name in beside if importlib.util.find_spec(name) is None))
    from attenuate.model import SSMLayer

    for file in ("attenuate", "attenuate.reduced"):
        tensors, layers = load(HERE / f"{file}.safetensors"), []
        for place in places(tensors, "log_dt"):
            own = {name.removeprefix(place): t for name, t in tensors.items() if name.startswith(place)}
            layer = loaded(SSMLayer(len(own["A"]), own["B"].shape[1], len(own["C"]), 1), own)
            layers.append(impulse_answers(lambda u: layer(u.mT).mT, own["B"].shape[1]))
        compare(file, layers)


def loaded(layer, tensors):
    import torch

    kind = lambda x: torch.tensor(x, dtype=torch.complex64 if np.iscomplexobj(x) else torch.float32)
    layer.load_state_dict({name: kind(tensor) for name, tensor in tensors.items()}, strict=True)
    return layer


def impulse_answers(run, channels):
    """Of a function of a batch of sequences."""
    import torch

    with torch.no_grad():
        return answers(lambda u: run(torch.tensor(u)[None]).numpy()[0], channels)


def read_and_cut(name, tensors, answer):
    """A layer's tensors as hankelite reads them, and with half the states, against the answers of the module."""
    import hankelite as hk

    full = hk.read(tensors)
    for what, model in (("full", full), ("reduced", hk.reduce(full, order=4))):
        [system] = model.systems(model.layers[0])
        powers = np.exp(system.poles[:, None] * system.step * np.arange(LENGTH))
        kernels = np.einsum("pn,nl,nm->pml", system.c, powers, system.b).real
        kernels[:, :, 0] += system.d
        worst = np.abs(answer(model.state_dict()) - kernels).max() / np.abs(kernels).max()
        print(f"{name}, {what}, {len(system.poles)} states: {worst:.1e}")
        assert worst < 5e-6, name


def lru_pytorch():
    import torch
    from LRU_pytorch import LRU

    def answer(tensors):
        layer = LRU(3, 4, len(tensors["nu_log"]))
        layer.load_state_dict(tensors, strict=True)
        return impulse_answers(layer, 3)

    torch.manual_seed(0)
    read_and_cut("lru-pytorch", LRU(3, 4, 8, rmin=0.7, rmax=0.99).state_dict(), answer)


def memax():
    # Its annotations take as many outputs as states only.
    os.environ["JAXTYPING_DISABLE"] = "1"
    import jax.numpy as jnp
    import jax.random as random
    from memax.equinox.semigroups.lru import LRU

    names = ["B_re", "B_im", "C_re", "C_im", "D", "nu_log", "theta_log", "gamma_log"]

    def answer(tensors):
        layer = LRU(len(tensors["nu_log"]), 3, random.PRNGKey(0))
        layer = with_arrays(layer, tensors, "", names)
        start = jnp.zeros(LENGTH, bool)
        return answers(lambda u: layer(layer.initialize_carry(), (jnp.asarray(u), start))[1], 3)

    layer = LRU(8, 3, random.PRNGKey(1))
    read_and_cut("memax", {name: np.asarray(getattr(layer, name)) for name in names}, answer)


CHECKS = {
    "linoss": linoss,
    "megalodon-jax": megalodon_jax,
    "lrnnx": lrnnx,
    "event-ssm": event_ssm,
    "neural-ssm": neural_ssm,
    "attenuate": attenuate,
    "lru-pytorch": lru_pytorch,
    "memax": memax,
}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](*sys.argv[2:])
