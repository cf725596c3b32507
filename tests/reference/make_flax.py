"""Small classifiers of lindermanlab/S5 and minimal-LRU in the names of their flax trees.

    python tests/reference/make_flax.py    # writes tests/data/flax/NAME.safetensors and golden.safetensors

The weights are random; nothing is trained. `logits` follows the code of the two repositories in
numpy and double precision (s5/ssm.py, s5/layers.py, s5/seq_model.py; lru/model.py) and takes
nothing from this project. golden.safetensors has the inputs, the tokens, and NAME/logits.
NAME_stacked.msgpack holds the same layers stacked on a leading axis, as nn.scan has them.

Needs numpy and safetensors.
"""

import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent.parent / "data" / "flax"
H, P, LAYERS, CLASSES, LENGTH, BATCH, VOCABULARY = 4, 6, 2, 3, 24, 40, 7
random = np.random.default_rng(11)


def normal(*shape, scale=1.0):
    return (scale * random.standard_normal(shape)).astype(np.float32)


def dense(inputs, outputs):
    return {"kernel": normal(inputs, outputs, scale=1.2 / np.sqrt(inputs)), "bias": normal(outputs, scale=0.2)}


def s5_ssm():
    return {
        "Lambda_re": -np.exp(normal(P, scale=0.5)).astype(np.float32),
        "Lambda_im": np.linspace(0.5, 12, P).astype(np.float32),
        "B": normal(P, H, 2, scale=0.7),
        "C": normal(H, P, 2, scale=0.5),
        "D": normal(H),
        "log_step": random.uniform(-3, -1.5, (P, 1)).astype(np.float32),
    }


def lru_ssm():
    radius = random.uniform(0.6, 0.98, P)
    return {
        "nu_log": np.log(-np.log(radius)).astype(np.float32),
        "theta_log": np.log(np.linspace(0.1, 2.8, P)).astype(np.float32),
        "gamma_log": np.log(np.sqrt(1 - radius**2)).astype(np.float32),
        **{name: normal(*shape, scale=0.5) for name, shape in
           [("B_re", (P, H)), ("B_im", (P, H)), ("C_re", (H, P)), ("C_im", (H, P))]},
        "D": normal(H),
    }


def tree(ssm, maps, norm="norm", batch=False, tokens=False):
    params = {"decoder": dense(H, CLASSES)}
    statistics = {}
    encoder = {"encoder": {"embedding": normal(VOCABULARY, H)} if tokens else dense(2, H)}
    for i in range(LAYERS):
        layer = {"seq": ssm(), norm: {"scale": 1 + normal(H, scale=0.2), "bias": normal(H, scale=0.2)}}
        layer.update({name: dense(H, H) for name in maps})
        encoder[f"layers_{i}"] = layer
        if batch:
            var = (0.5 + random.uniform(size=H)).astype(np.float32)
            statistics[f"layers_{i}"] = {norm: {"mean": normal(H, scale=0.3), "var": var}}
    params["encoder"] = encoder
    out = {"params": params}
    if batch:
        out["batch_stats"] = {"encoder": statistics}
    return out


def flat(tree, head=""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{head}{name}/")
        else:
            yield f"{head}{name}", value


def double(tree):
    return {k: double(v) if isinstance(v, dict) else v.astype(np.float64) for k, v in tree.items()}


def pairs(x):
    return x[..., 0] + 1j * x[..., 1]


def recur(a, bu):
    x, out = np.zeros(len(a), complex), []
    for row in bu:
        x = a * x + row
        out.append(x)
    return np.array(out)


def s5(p, u):
    """s5/ssm.py: zero-order hold, one of each conjugate pair."""
    lam = p["Lambda_re"] + 1j * p["Lambda_im"]
    step = np.exp(p["log_step"][:, 0])
    a = np.exp(lam * step)
    b = ((a - 1) / lam)[:, None] * pairs(p["B"])
    return 2 * (recur(a, u @ b.T) @ pairs(p["C"]).T).real + p["D"] * u


def lru(p, u):
    """lru/model.py."""
    a = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    b = np.exp(p["gamma_log"])[:, None] * (p["B_re"] + 1j * p["B_im"])
    c = p["C_re"] + 1j * p["C_im"]
    return (recur(a, u @ b.T) @ c.T).real + p["D"] * u


def gelu(x):
    """jax.nn.gelu, whose default is the tanh form."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def apply(p, x):
    return x @ p["kernel"] + p["bias"]


def normalise(p, statistics, x):
    if statistics is None:
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    else:
        unit = (x - statistics["mean"]) / np.sqrt(statistics["var"] + 1e-5)
    return unit * p["scale"] + p["bias"]


def branch(p, activation, y):
    if activation == "full_glu":
        z = gelu(y)
        return apply(p["out1"], z) * sigmoid(apply(p["out2"], z))
    if activation == "half_glu1":
        z = gelu(y)
        return z * sigmoid(apply(p["out2"], z))
    if activation == "half_glu2":
        return y * sigmoid(apply(p["out2"], gelu(y)))
    return gelu(y)


def stacked(tree):
    """`layers_0`, `layers_1`, … as one `layers`."""
    if not isinstance(tree, dict):
        return tree
    layers = [tree[f"layers_{i}"] for i in range(LAYERS)] if "layers_0" in tree else []
    out = {name: stacked(part) for name, part in tree.items() if not name.startswith("layers_")}
    if layers:
        out["layers"] = together(layers)
    return out


def together(parts):
    if isinstance(parts[0], dict):
        return {name: together([part[name] for part in parts]) for name in parts[0]}
    return np.stack(parts)


def text(s):
    return bytes([0xA0 | len(s)]) + s.encode()


def packed(value):
    """MessagePack, as `flax.serialization.to_bytes` writes it."""
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(text(k) + packed(v) for k, v in value.items())
    data = np.ascontiguousarray(value).tobytes()
    shape = bytes([0x90 | value.ndim]) + b"".join(struct.pack(">BH", 0xCD, n) for n in value.shape)
    inner = b"\x93" + shape + text(value.dtype.name) + b"\xc6" + struct.pack(">I", len(data)) + data
    return b"\xc9" + struct.pack(">Ib", len(inner), 1) + inner


def logits(tree, ssm, activation, prenorm, last, norm, u):
    params = tree["params"]
    encoder = params["encoder"]
    x = encoder["encoder"]["embedding"][u] if "embedding" in encoder["encoder"] else apply(encoder["encoder"], u)
    for i in range(LAYERS):
        layer = encoder[f"layers_{i}"]
        statistics = tree.get("batch_stats", {}).get("encoder", {}).get(f"layers_{i}", {}).get(norm)
        skip = x
        if prenorm:
            x = normalise(layer[norm], statistics, x)
        x = skip + branch(layer, activation, ssm(layer["seq"], x))
        if not prenorm:
            x = normalise(layer[norm], statistics, x)
    return apply(params["decoder"], x[-1] if last else x.mean(0))


# name: tensors, formula, activation, prenorm, last step, name of the norm
MODELS = {
    "s5_full_glu": (tree(s5_ssm, ["out1", "out2"], batch=True), s5, "full_glu", True, False, "norm"),
    "s5_half_glu2": (tree(s5_ssm, ["out2"]), s5, "half_glu2", False, False, "norm"),
    "s5_gelu": (tree(s5_ssm, []), s5, "gelu", True, True, "norm"),
    "lru_half_glu1": (tree(lru_ssm, ["out2"]), lru, "half_glu1", True, False, "norm"),
    "lru_tokens": (tree(lru_ssm, ["out1", "out2"], "normalization", tokens=True), lru, "full_glu", True, False, "normalization"),
}


def main():
    HERE.mkdir(parents=True, exist_ok=True)
    t = np.arange(LENGTH)
    tones = [np.stack([np.sin(0.15 * (k % 9 + 1) * t + k), np.cos(0.4 * t + 2 * k)], -1) for k in range(BATCH)]
    inputs = (np.array(tones) + 0.3 * random.standard_normal((BATCH, LENGTH, 2))).astype(np.float32)
    tokens = random.integers(0, VOCABULARY, (BATCH, LENGTH))
    golden = {"inputs": inputs, "tokens": tokens.astype(np.int64)}
    for name, (tensors, ssm, activation, prenorm, last, norm) in MODELS.items():
        save_file({k: np.ascontiguousarray(v) for k, v in flat(tensors)}, HERE / f"{name}.safetensors")
        if name in ("s5_full_glu", "lru_half_glu1"):
            (HERE / f"{name}_stacked.msgpack").write_bytes(packed(stacked(tensors)))
        wide = double(tensors)
        sequences = tokens if name == "lru_tokens" else inputs.astype(np.float64)
        golden[f"{name}/logits"] = np.array(
            [logits(wide, ssm, activation, prenorm, last, norm, u) for u in sequences])
    save_file(golden, HERE / "golden.safetensors")


if __name__ == "__main__":
    main()
