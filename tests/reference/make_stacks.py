"""Small networks of S5, minimal-LRU and lru-reduction in the names that torch gives them.

    python tests/reference/make_stacks.py    # writes tests/data/stacks

The weights are random; nothing is trained. `outputs` follows the layer code of the three repositories in
numpy and double precision (s5/layers.py, s5/seq_model.py; lru/model.py; lru/architectures.py of
lru-reduction) with the defaults of torch: GELU with the exact normal distribution unless said otherwise,
ε = 1e-5. It takes nothing from this project. golden.safetensors has the inputs, the tokens, and
NAME/logits; dlru/steps has the outputs of all steps of the network that has no pooling of its own.

Needs numpy, safetensors and torch (for the containers alone).
"""

import json
import math
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent.parent / "data" / "stacks"
H, P, LAYERS, CLASSES, LENGTH, BATCH, VOCABULARY = 4, 6, 2, 3, 24, 40, 7
random = np.random.default_rng(23)


def normal(*shape, scale=1.0):
    return (scale * random.standard_normal(shape)).astype(np.float32)


def cnormal(*shape, scale=1.0):
    return (normal(*shape, scale=scale) + 1j * normal(*shape, scale=scale)).astype(np.complex64)


def linear(inputs, outputs):
    return {"weight": normal(outputs, inputs, scale=1.2 / np.sqrt(inputs)), "bias": normal(outputs, scale=0.2)}


# --- tensors -----------------------------------------------------------------------------------

def s5_pairs():
    """S5 with its tensors as in flax, one of each conjugate pair."""
    return {
        "Lambda_re": -np.exp(normal(P, scale=0.5)).astype(np.float32),
        "Lambda_im": np.linspace(0.5, 12, P).astype(np.float32),
        "B": normal(P, H, 2, scale=0.7),
        "C": normal(H, P, 2, scale=0.5),
        "D": normal(H),
        "log_step": random.uniform(-3, -1.5, (P, 1)).astype(np.float32),
    }


def s5_complex():
    """i404788/s5-pytorch: all modes."""
    half = -np.exp(normal(P // 2, scale=0.5)) + 1j * np.linspace(0.5, 9, P // 2)
    lam = np.concatenate([half, half.conj()]).astype(np.complex64)
    return {
        "Lambda": lam,
        "B": normal(P, H, 2, scale=0.7),
        "C": cnormal(H, P, scale=0.5),
        "D": normal(H),
        "log_step": random.uniform(-3, -1.5, P).astype(np.float32),
    }


def lru_tensors(split=False, dense=False):
    radius = random.uniform(0.6, 0.98, P)
    b, c = cnormal(P, H, scale=0.5), cnormal(H, P, scale=0.5)
    split_b = {"B_re": b.real.copy(), "B_im": b.imag.copy(), "C_re": c.real.copy(), "C_im": c.imag.copy()}
    return {
        "nu_log": np.log(-np.log(radius)).astype(np.float32),
        "theta_log": np.log(np.linspace(0.1, 2.8, P)).astype(np.float32),
        "gamma_log": np.log(np.sqrt(1 - radius**2)).astype(np.float32),
        **(split_b if split else {"B": b, "C": c}),
        "D": normal(H, H, scale=0.4) if dense else normal(H),
    }


def norm(batch):
    out = {"weight": 1 + normal(H, scale=0.2), "bias": normal(H, scale=0.2)}
    if batch:
        out |= {
            "running_mean": normal(H, scale=0.3),
            "running_var": (0.5 + random.uniform(size=H)).astype(np.float32),
            "num_batches_tracked": np.array(12, np.int64),
        }
    return out


def layer(ssm, maps, batch=False):
    return {"ssm": ssm, "norm": norm(batch), "maps": {name: linear(H, 2 * H if "." in name else H) for name in maps}}


def network(layers, tokens=False):
    return {
        "encoder": {"weight": normal(VOCABULARY, H)} if tokens else linear(2, H),
        "layers": layers,
        "decoder": linear(H, CLASSES),
    }


def named(net, at, encoder, numbered, ssm, norm):
    """The state dict."""
    out = OrderedDict((f"{at}{encoder}.{k}", v) for k, v in net["encoder"].items())
    for i, layer in enumerate(net["layers"]):
        place = f"{at}{numbered.format(i)}."
        out.update((f"{place}{ssm}.{k}", v) for k, v in layer["ssm"].items())
        out.update((f"{place}{norm}.{k}", v) for k, v in layer["norm"].items())
        for name, map_ in layer["maps"].items():
            out.update((f"{place}{name}.{k}", v) for k, v in map_.items())
    out.update((f"{at}decoder.{k}", v) for k, v in net["decoder"].items())
    return OrderedDict((k, torch.from_numpy(np.array(v))) for k, v in out.items())


# --- formulas ----------------------------------------------------------------------------------

def double(value):
    if isinstance(value, dict):
        return {k: double(v) for k, v in value.items()}
    if isinstance(value, list):
        return [double(v) for v in value]
    return value.astype(np.complex128 if np.iscomplexobj(value) else np.float64)


def pairs(x):
    return x if np.iscomplexobj(x) else x[..., 0] + 1j * x[..., 1]


def recur(a, bu):
    x, out = np.zeros(len(a), complex), []
    for row in bu:
        x = a * x + row
        out.append(x)
    return np.array(out)


def state_space(p, u):
    if "nu_log" in p:
        a = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
        b, c = (p[k] if k in p else p[f"{k}_re"] + 1j * p[f"{k}_im"] for k in "BC")
        d = p["D"] if p["D"].ndim == 2 else np.diag(p["D"])
        return (recur(a, u @ (np.exp(p["gamma_log"])[:, None] * b).T) @ c.T).real + u @ d.T
    factor = 1 if "Lambda" in p else 2
    lam = p["Lambda"] if "Lambda" in p else p["Lambda_re"] + 1j * p["Lambda_im"]
    a = np.exp(lam * np.exp(p["log_step"].reshape(-1)))
    b = ((a - 1) / lam)[:, None] * pairs(p["B"])
    return factor * (recur(a, u @ b.T) @ pairs(p["C"]).T).real + p["D"] * u


def exact_gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def apply(p, x):
    return x @ p["weight"].T + p["bias"]


def normalise(p, x):
    if "running_mean" in p:
        unit = (x - p["running_mean"]) / np.sqrt(p["running_var"] + 1e-5)
    else:
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return unit * p["weight"] + p["bias"]


def branch(maps, gelu, half_glu2, y):
    z = gelu(y)
    if "out1" in maps:
        return apply(maps["out1"], z) * sigmoid(apply(maps["out2"], z))
    if "out2" in maps:
        return (y if half_glu2 else z) * sigmoid(apply(maps["out2"], z))
    if maps:
        a, g = np.split(apply(maps["ff.output_linear.0"], z), 2, -1)
        return a * sigmoid(g)
    return z


def outputs(net, u, prenorm=True, gelu=exact_gelu, half_glu2=False, pool="mean"):
    x = apply(net["encoder"], u) if "bias" in net["encoder"] else net["encoder"]["weight"][u]
    for layer in net["layers"]:
        skip = x
        if prenorm:
            x = normalise(layer["norm"], x)
        x = skip + branch(layer["maps"], gelu, half_glu2, state_space(layer["ssm"], x))
        if not prenorm:
            x = normalise(layer["norm"], x)
    x = {"mean": lambda: x.mean(0), "last": lambda: x[-1], "none": lambda: x}[pool]()
    return apply(net["decoder"], x)


def sharded(tensors, folder):
    folder.mkdir(exist_ok=True)
    names, where = list(tensors), {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        where |= {name: file for name in part}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def main():
    HERE.mkdir(parents=True, exist_ok=True)
    t = np.arange(LENGTH)
    tones = [np.stack([np.sin(0.15 * (k % 9 + 1) * t + k), np.cos(0.4 * t + 2 * k)], -1) for k in range(BATCH)]
    inputs = (np.array(tones) + 0.3 * random.standard_normal((BATCH, LENGTH, 2))).astype(np.float32)
    tokens = random.integers(0, VOCABULARY, (BATCH, LENGTH))
    golden = {"inputs": inputs, "tokens": tokens.astype(np.int64)}
    twice = range(LAYERS)
    models = {
        "s5_full_glu": (
            network([layer(s5_pairs(), ["out1", "out2"], batch=True) for _ in twice]),
            ("", "encoder.encoder", "encoder.layers.{}", "seq", "norm"), {}),
        "s5_half_glu2": (
            network([layer(s5_complex(), ["out2"]) for _ in twice]),
            ("", "encoder", "layers.{}", "seq", "norm"), {"prenorm": False, "half_glu2": True}),
        "lru_gelu": (
            network([layer(lru_tensors(), []) for _ in twice]),
            ("", "encoder.encoder", "encoder.layers_{}", "seq", "norm"), {"pool": "last"}),
        "lru_tokens": (
            network([layer(lru_tensors(split=True), ["out1", "out2"]) for _ in twice], tokens=True),
            ("model.", "encoder", "layers.{}", "lru", "normalization"), {"gelu": tanh_gelu}),
        "dlru": (
            network([layer(lru_tensors(dense=True), ["ff.output_linear.0"]) for _ in twice]),
            ("", "encoder", "blocks.{}", "lru", "ln"), {}),
    }
    for name, (net, places, how) in models.items():
        tensors, wide = named(net, *places), double(net)
        if name in ("s5_full_glu", "dlru"):
            torch.save({"model": tensors, "epoch": 3}, HERE / f"{name}.pth")
        elif name == "lru_gelu":
            sharded(tensors, HERE / name)
        else:
            save_file(tensors, HERE / f"{name}.safetensors", metadata={"format": "pt"})
        sequences = tokens if name == "lru_tokens" else inputs.astype(np.float64)
        golden[f"{name}/logits"] = np.array([outputs(wide, u, **how) for u in sequences])
        if name == "dlru":
            golden["dlru/steps"] = np.array([outputs(wide, u, pool="none") for u in sequences])
    save_file({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in golden.items()}, HERE / "golden.safetensors")


if __name__ == "__main__":
    main()
