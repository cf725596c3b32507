"""More spellings of state space layers, with their kernels by the formula of the original code.

    python tests/reference/make_spellings.py      # writes tests/data/spellings

- `dplr_64.msgpack`, `dplr_128.msgpack`: S4 in diagonal-plus-low-rank form of annotated-s4 (flax), its complex
  numbers as complex64 and complex128; the second calls C `C_real_imag`. Kernels by `discrete_DPLR`, step by step.
- `product.safetensors`: a layer with B and C apart, real and imaginary parts in tensors of their own, steps and
  decays behind a softplus, bilinear; `product.layout.toml` describes it.

- `s4d_stacked.msgpack`, `dplr_stacked.msgpack`: layers of annotated-s4 stacked on a leading axis, as nn.scan has
  them; the second holds the layers of `dplr_64`.
- `mimo_dplr.safetensors`, `mimo_dplr_split.safetensors`: S4 in diagonal-plus-low-rank form with one system for all
  channels, as written by hand in torch, with P of rank two and one. Truth: (layers, H, H, 40).
- `s5_factored.safetensors`, `s5_factored_both.safetensors`: s5-pytorch with B = BP BHᵀ and C = CHᵀ CP, one
  direction and both. Truth: (layers, directions, H, H, 40).

The truth is in kernels.safetensors as NAME, (layers, H, 40), double precision. MessagePack is written here as
`flax.serialization.to_bytes` writes it. Needs numpy and safetensors.
"""

import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent.parent / "data" / "spellings"
LENGTH, STORED = 40, 32
rng = np.random.default_rng(5)


# --- MessagePack, as flax writes it ------------------------------------------------------------

def text(s):
    return bytes([0xA0 | len(s)]) + s.encode() if len(s) < 32 else b"\xd9" + bytes([len(s)]) + s.encode()


def packed(value):
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(text(k) + packed(v) for k, v in value.items())
    data = value.tobytes()
    shape = bytes([0x90 | value.ndim]) + b"".join(struct.pack(">BH", 0xCD, n) for n in value.shape)
    inner = b"\x93" + shape + text(value.dtype.name) + b"\xc6" + struct.pack(">I", len(data)) + data
    return b"\xc9" + struct.pack(">Ib", len(inner), 1) + inner


# --- annotated-s4 ------------------------------------------------------------------------------

def hippo(n):
    """DPLR_HiPPO: Lambda, P, B."""
    q = np.sqrt(1 + 2 * np.arange(n))
    a = -(np.tril(q[:, None] * q[None, :]) - np.diag(np.arange(n)))
    p, b = np.sqrt(np.arange(n) + 0.5), np.sqrt(2 * np.arange(n) + 1.0)
    s = a + p[:, None] * p[None, :]
    imag, v = np.linalg.eigh(s * -1j)
    return np.mean(np.diagonal(s)) + 1j * imag, v.conj().T @ p, v.conj().T @ b


def dplr(n, h, double, name):
    lam, p, b = hippo(n)
    scatter = lambda x: x[:, None] * np.exp(0.1 * rng.standard_normal((n, h)))
    kind = np.complex128 if double else np.complex64
    log_step = rng.uniform(np.log(0.02), np.log(0.1), (1, h)).astype(np.float32)
    c = (rng.standard_normal((n, h, 2)) * 0.5**0.5).astype(np.float32)
    lam = scatter(lam)
    return {
        "Lambda_re": lam.real.astype(np.float32),
        "Lambda_im": lam.imag.astype(np.float32),
        "P": scatter(p).astype(kind),
        "B": scatter(b).astype(kind),
        name: c,
        "D": rng.standard_normal((1, h)).astype(np.float32),
        "log_step": log_step,
    }


def dplr_kernel(t, name):
    """discrete_DPLR of annotated-s4 with L = STORED, then the powers one by one."""
    n, h = t["P"].shape
    out = np.zeros((h, LENGTH))
    for i in range(h):
        lam = np.minimum(t["Lambda_re"][:, i].astype(float), -1e-4) + 1j * t["Lambda_im"][:, i].astype(float)
        p, b = t["P"][:, i].astype(complex), t["B"][:, i].astype(complex)
        c = t[name][:, i, 0].astype(float) + 1j * t[name][:, i, 1].astype(float)
        step = np.exp(t["log_step"][0, i].astype(float))
        a = np.diag(lam) - np.outer(p, p.conj())
        a0 = 2 / step * np.eye(n) + a
        d = np.diag(1 / (2 / step - lam))
        q = p.conj()[None, :]
        a1 = d - d @ p[:, None] * (1 / (1 + q @ d @ p[:, None])) @ q @ d
        ab, bb = a1 @ a0, 2 * a1 @ b
        cb = c[None, :] @ np.linalg.inv(np.eye(n) - np.linalg.matrix_power(ab, STORED)).conj()
        row, state = cb.conj()[0], bb
        for l in range(LENGTH):
            out[i, l] = (row @ state).real
            state = ab @ state
    return out


# --- a layer of one's own ----------------------------------------------------------------------

def softplus(x):
    return np.logaddexp(0, x)


def product(h, n):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    return {
        "raw_step": (f(h) - 3).astype(np.float32),
        "raw_decay": f(h, n),
        "omega": (3 * np.arange(n) + f(h, n)).astype(np.float32),
        "B_re": f(h, n), "B_im": f(h, n), "C_re": f(h, n), "C_im": f(h, n),
        "skip": f(h),
    }


def product_kernel(t):
    t = {k: v.astype(float) for k, v in t.items()}
    step = softplus(t["raw_step"])[:, None]
    lam = -softplus(t["raw_decay"]) + 1j * t["omega"]
    w = (t["B_re"] + 1j * t["B_im"]) * (t["C_re"] + 1j * t["C_im"])
    a, gain = (1 + lam * step / 2) / (1 - lam * step / 2), step / (1 - lam * step / 2)
    return 2 * np.einsum("hn,hnl->hl", w * gain, a[..., None] ** np.arange(LENGTH)).real


def s4d(n, h, rng):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    return {
        "A_re": -np.exp(0.3 * f(n, h)),
        "A_im": (np.pi * np.arange(n)[:, None] + 0.1 * f(n, h)).astype(np.float32),
        "C": f(n, h, 2),
        "D": f(1, h),
        "log_step": rng.uniform(np.log(0.02), np.log(0.1), (1, h)).astype(np.float32),
    }


def s4d_kernel(t):
    """s4/s4d.py of annotated-s4: zero-order hold, all modes stored."""
    t = {k: v.astype(float) for k, v in t.items()}
    lam, step = np.minimum(t["A_re"], -1e-4) + 1j * t["A_im"], np.exp(t["log_step"])
    w = (t["C"][..., 0] + 1j * t["C"][..., 1]) * (np.exp(lam * step) - 1) / lam
    return np.einsum("nh,nhl->hl", w, np.exp(lam * step)[..., None] ** np.arange(LENGTH)).real


def stacked(layers):
    return {"params": {"layers": {"seq": {k: np.stack([layer[k] for layer in layers]) for k in layers[0]}}}}


# --- diagonal plus low rank, one system for all channels ---------------------------------------

def mimo_dplr(n, h, rank, rng):
    lam, p, b = hippo(n)
    c = lambda *shape: rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    p = p[:, None] * np.exp(0.1 * rng.standard_normal((n, rank))) / np.sqrt(rank)
    return {
        "Lambda": lam.astype(np.complex64),
        "P": p.astype(np.complex64),
        "B": (b[:, None] * np.exp(0.3 * rng.standard_normal((n, h)))).astype(np.complex64),
        "C": c(h, n).astype(np.complex64),
        "D": rng.standard_normal(h).astype(np.float32),
        "log_step": np.array([np.log(0.05)], np.float32),
    }


def mimo_dplr_kernel(t):
    """Bilinear: K[l] = Re C dA^l dB."""
    t = {k: v.astype(complex) for k, v in t.items()}
    step, one = np.exp(t["log_step"][0]), np.eye(len(t["Lambda"]))
    a = np.diag(t["Lambda"]) - t["P"] @ t["P"].conj().T
    inverse = np.linalg.inv(one - step / 2 * a)
    da, state = inverse @ (one + step / 2 * a), inverse @ t["B"] * step
    out = []
    for _ in range(LENGTH):
        out.append((t["C"] @ state).real)
        state = da @ state
    return np.moveaxis(np.array(out), 0, -1)


def split(t):
    """The same in other names: real and imaginary parts apart, P of rank one as a vector."""
    out = {k: v for k, v in t.items() if k not in ("Lambda", "log_step")}
    out |= {"Lambda_re": t["Lambda"].real.copy(), "Lambda_im": t["Lambda"].imag.copy()}
    return out | {"P": t["P"][:, 0].copy(), "log_dt": t["log_step"][0]}


# --- s5-pytorch with factors -------------------------------------------------------------------

def s5_factored(p, h, k, both, rng):
    c = lambda *shape: (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)
    half = -np.exp(0.5 * rng.standard_normal(p // 2)) + 1j * np.linspace(0.5, 9, p // 2)
    return {
        "Lambda": np.concatenate([half, half.conj()]).astype(np.complex64),
        "BH": c(h, k), "BP": c(p, k), "CH": c(k, h), "CP": c(k, 2 * p if both else p),
        "D": rng.standard_normal(h).astype(np.float32),
        "log_step": rng.uniform(-3, -1.5, p).astype(np.float32),
    }


def s5_factored_kernel(t):
    """Zero-order hold, all modes stored, y = Re(C x)."""
    t = {k: v.astype(complex) for k, v in t.items()}
    b, c = t["BP"] @ t["BH"].T, t["CH"].T @ t["CP"]
    a = np.exp(t["Lambda"] * np.exp(t["log_step"]))
    b = ((a - 1) / t["Lambda"])[:, None] * b
    powers = a[:, None] ** np.arange(LENGTH)
    return np.stack([np.einsum("in,nj,nl->ijl", half, b, powers).real for half in np.split(c, c.shape[1] // len(a), 1)])


LAYOUT = """hold = "bilinear"
factor = 2.0
weight = [{ re = "B_re", im = "B_im" }, { re = "C_re", im = "C_im" }]
feedthrough = "skip"

[step]
name = "raw_step"
transform = "softplus"

[decay]
name = "raw_decay"
transform = "softplus"

[frequency]
name = "omega"
"""


def main():
    HERE.mkdir(exist_ok=True)
    truth = {}
    for name, double, c in (("dplr_64", False, "C"), ("dplr_128", True, "C_real_imag")):
        layers = [dplr(8, 3, double, c) for _ in range(2)]
        tree = {"params": {f"layers_{i}": {"seq": layer} for i, layer in enumerate(layers)}}
        tree["params"]["decoder"] = {"kernel": rng.standard_normal((3, 5)).astype(np.float32)}
        (HERE / f"{name}.msgpack").write_bytes(packed(tree))
        truth[name] = np.stack([dplr_kernel(layer, c) for layer in layers])
        if name == "dplr_64":
            (HERE / "dplr_stacked.msgpack").write_bytes(packed(stacked(layers)))
    layers = [product(3, 5) for _ in range(2)]
    tensors = {f"mix.{i}.{k}": v for i, layer in enumerate(layers) for k, v in layer.items()}
    save_file(tensors, HERE / "product.safetensors")
    (HERE / "product.layout.toml").write_text(LAYOUT)
    truth["product"] = np.stack([product_kernel(layer) for layer in layers])
    own = np.random.default_rng(17)
    for name, both in (("s5_factored", False), ("s5_factored_both", True)):
        layers = [s5_factored(8, 3, 2, both, own) for _ in range(2)]
        tensors = {f"layers.{i}.seq.{k}": v for i, layer in enumerate(layers) for k, v in layer.items()}
        tensors["head.weight"] = own.standard_normal((2, 3)).astype(np.float32)
        save_file(tensors, HERE / f"{name}.safetensors")
        truth[name] = np.stack([s5_factored_kernel(layer) for layer in layers])
    layers = [s4d(6, 3, own) for _ in range(2)]
    tree = stacked(layers)
    tree["params"]["decoder"] = {"kernel": own.standard_normal((3, 5)).astype(np.float32)}
    (HERE / "s4d_stacked.msgpack").write_bytes(packed(tree))
    truth["s4d_stacked"] = np.stack([s4d_kernel(layer) for layer in layers])
    for name, rank, spelt in (("mimo_dplr", 2, dict), ("mimo_dplr_split", 1, split)):
        layers = [mimo_dplr(8, 3, rank, own) for _ in range(2)]
        tensors = {f"blocks.{i}.{k}": np.asarray(v) for i, layer in enumerate(layers) for k, v in spelt(layer).items()}
        tensors["head.weight"] = own.standard_normal((2, 3)).astype(np.float32)
        save_file(tensors, HERE / f"{name}.safetensors")
        truth[name] = np.stack([mimo_dplr_kernel(layer) for layer in layers])
    save_file({k: np.ascontiguousarray(v) for k, v in truth.items()}, HERE / "kernels.safetensors")


if __name__ == "__main__":
    main()
