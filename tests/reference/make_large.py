"""Small files with the tensors of published models, with their kernels by the formula of the original code.

    python tests/reference/make_large.py           # writes tests/data/large/NAME.safetensors and truth.safetensors
    cargo test --release -p hankelite --test formats large:: -- --ignored   # writes NAME.reduced.safetensors beside them
    python tests/reference/make_large.py reduced   # adds what the reduced files hold

Each family's function is written after the code that it names and takes nothing from this project. It
sees the tensors of a file, and gives for each layer a system with all its modes: discrete poles a, B (modes,
inputs), C (outputs, modes) and D, y = Re Σ C a^l B. The truth of a file, in double precision:

- NAME/LENGTH/forward, NAME/d: the kernels of all layers one after the other, outputs × inputs × L;
- NAME/hankel: the Hankel singular values of the first system of each layer, by eigenvalues of the product of its
  Gramians, those of a single input and output by eigenvalues of the cross Gramian;
- NAME.reduced/error: ‖k − k_reduced‖/‖k‖ over 1024 steps of each layer, of the written file; error_at_quarter
  the same where the network runs its layers at a quarter of the step.

Needs numpy.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent.parent / "data" / "large"
LENGTHS = (12,)
LONG = 1024


# --- safetensors with bfloat16 and complex64 ---------------------------------------------------

class Bf16:
    """Numbers rounded to bfloat16, to the nearest, ties to even."""

    def __init__(self, values):
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        self.bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def wide(self):
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


NAMES = {"float32": "F32", "float64": "F64", "complex64": "C64", "int64": "I64"}


def save(path, tensors):
    header, data = {}, b""
    for name, tensor in sorted(tensors.items()):
        half = isinstance(tensor, Bf16)
        raw = np.ascontiguousarray(tensor.bits if half else tensor)
        kind = "BF16" if half else NAMES[raw.dtype.name]
        header[name] = {"dtype": kind, "shape": list(raw.shape), "data_offsets": [len(data), len(data) + raw.nbytes]}
        data += raw.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    """All tensors in double precision."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    body, tensors = raw[8 + size :], {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        kind = {"F32": "f4", "F64": "f8", "C64": "c8", "I64": "i8", "BF16": "u2"}[entry["dtype"]]
        values = np.frombuffer(body[first:last], "<" + kind)
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        wide = np.complex128 if kind == "c8" else np.float64
        tensors[name] = values.astype(wide).reshape(entry["shape"])
    return tensors


# --- systems -----------------------------------------------------------------------------------

def bank(a, residues, d):
    """One system for each channel: rows of poles and residues."""
    return [(a[h], np.ones((a.shape[1], 1)), residues[h : h + 1], np.array([[d[h]]])) for h in range(len(a))]


def kernel(system, length):
    a, b, c, _ = system
    powers = a[:, None] ** np.arange(length)
    return np.einsum("pn,nl,nm->pml", c, powers, b).real


def stacked(systems, length):
    """Outputs × inputs × L of systems side by side, whose inputs are their own."""
    parts = [kernel(s, length) for s in systems]
    rows, columns = sum(p.shape[0] for p in parts), sum(p.shape[1] for p in parts)
    out, r, c = np.zeros((rows, columns, length)), 0, 0
    for p in parts:
        out[r : r + p.shape[0], c : c + p.shape[1]] = p
        r, c = r + p.shape[0], c + p.shape[1]
    return out


def through(systems):
    return block_diagonal([s[3] for s in systems])


def block_diagonal(parts):
    rows, columns = sum(p.shape[0] for p in parts), sum(p.shape[1] for p in parts)
    out, r, c = np.zeros((rows, columns)), 0, 0
    for p in parts:
        out[r : r + p.shape[0], c : c + p.shape[1]] = p
        r, c = r + p.shape[0], c + p.shape[1]
    return out


def hankel(system):
    """Of the system whose output is the real part: conjugate pairs in full, real modes once."""
    a, b, c, _ = system
    b, c = b.astype(complex), c.astype(complex)
    real = (a.imag == 0) & (np.abs(b.imag).max(1) == 0)
    pairs = ~real
    full_a = np.concatenate([a[real], a[pairs], a[pairs].conj()]).astype(complex)
    full_b = np.concatenate([b[real], b[pairs], b[pairs].conj()])
    full_c = np.concatenate([c[:, real].real, c[:, pairs] / 2, c[:, pairs].conj() / 2], axis=1)
    if full_b.shape[1] == 1 and full_c.shape[0] == 1:
        cross = full_b * full_c / (1 - full_a[:, None] * full_a[None, :])
        values = np.abs(np.linalg.eigvals(cross))
    else:
        reach = full_b @ full_b.conj().T / (1 - full_a[:, None] * full_a[None, :].conj())
        watch = full_c.conj().T @ full_c / (1 - full_a[:, None].conj() * full_a[None, :])
        values = np.sqrt(np.abs(np.linalg.eigvals(reach @ watch)))
    return np.sort(values)[::-1]


def places(t, mark):
    return sorted(name.removesuffix(mark) for name in t if name.endswith("." + mark))


def per_channel(filters, channels):
    return np.repeat(filters, channels // len(filters), axis=0)


# --- StripedHyena, Evo ------------------------------------------------------------------------

def striped_hyena(t):
    """togethercomputer/stripedhyena, stripedhyena/model.py (ParallelHyenaFilter) and engine.py."""
    layers = []
    for place in places(t, "poles"):
        poles, residues, d = (t[place + name] for name in ("poles", "residues", "D"))
        join = lambda x: per_channel(x[..., 0, 0] + 1j * x[..., 0, 1], len(d))
        layers.append(bank(join(poles), join(residues), d))
    return layers


def make_striped_hyena(rng, h, s, n, form, slow=None):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"backbone.embedding_layer.weight": Bf16(f(16, h)), "backbone.norm.scale": Bf16(f(h))}
    for i in (0, 2):
        p = rng.uniform(0.5, 0.97, (s, n)) * np.exp(1j * rng.uniform(0, 3, (s, n)))
        if slow is not None and i == 2:
            p[0, 0] = slow
        place = f"backbone.blocks.{i}."
        t[place + "filter.poles"] = form(np.stack([p.real, p.imag], -1)[:, :, None].astype(np.float32))
        t[place + "filter.residues"] = form(0.1 * f(s, n, 1, 2))
        t[place + "filter.D"] = Bf16(f(h))
        t[place + "filter.short_filter_weight"] = Bf16(f(3 * h, 1, 3))
        t[place + "filter.short_filter_bias"] = Bf16(f(3 * h))
        t[place + "projections.weight"] = Bf16(f(3 * h, h))
    t["backbone.blocks.1.inner_mha_cls.Wqkv.weight"] = Bf16(f(3 * h, h))
    return t


# --- Evo 2 ------------------------------------------------------------------------------------

def evo2(t):
    """Zymrael/vortex, vortex/model/model.py (HyenaInferenceFilter) and engine.py."""
    layers = []
    for place in places(t, "log_poles"):
        logs, residues, d = (t[place + name] for name in ("log_poles", "residues", "D"))
        layers.append(bank(per_channel(np.exp(logs[..., 0]), len(d)), per_channel(residues, len(d)), d))
    return layers


def make_evo2(rng, h, s, n):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"embedding_layer.weight": Bf16(f(16, h)), "norm.scale": Bf16(f(h))}
    t["blocks.0.filter.h"], t["blocks.1.filter.h"] = Bf16(f(2, 1, 7)), Bf16(f(2, 1, 16))
    t["blocks.1.filter.D"] = Bf16(f(h))
    for i in (2, 6):
        # As converted from the start of a training: log_poles = -e^p e^gamma.
        place = f"blocks.{i}."
        logs = -np.exp(rng.normal(-1, 0.5, (s, n, 1))) * rng.uniform(0.01, 0.1, (s, n, 1))
        t[place + "filter.log_poles"] = logs.astype(np.float32)
        t[place + "filter.residues"] = f(s, n) / 40
        t[place + "filter.D"] = Bf16(f(h))
        t[place + "filter.short_filter_weight"] = Bf16(f(3 * h, 1, 3))
        t[place + "mixer.mixer.filter.t"] = np.arange(16, dtype=np.float32).reshape(1, 1, 16)
    return t


def evo2_training(t):
    """NVIDIA/NeMo, nemo/collections/llm/gpt/model/megatron/hyena/hyena_utils.py (ImplicitModalFilter)."""
    layers = []
    for place in places(t, "gamma"):
        logs = -np.exp(t[place + "p"]) * np.exp(t[place + "gamma"])
        d = t[place.removesuffix("filter.") + "conv_bias"]
        layers.append(bank(per_channel(np.exp(logs), len(d)), per_channel(t[place + "R"], len(d)), d))
    return layers


def make_evo2_training(rng, h, n):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"sequential.0.word_embeddings.weight": f(8, h)}
    for i in (4, 8):
        place = f"sequential.{i}.mixer.mixer."
        t[place + "filter.p"] = (f(h, n) / 2 - 1).astype(np.float32)
        t[place + "filter.gamma"] = np.log(rng.uniform(0.01, 0.1, (h, n))).astype(np.float32)
        t[place + "filter.R"] = f(h, n) / 40
        t[place + "filter.t"] = np.arange(16, dtype=np.float32).reshape(1, 1, 16)
        t[place + "conv_bias"] = f(h)
    return t


# --- MEGA ---------------------------------------------------------------------------------------

def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def mega(t):
    """huggingface/transformers, modeling_mega.py (MegaMultiDimensionDampedEma), one direction."""
    layers = []
    for place in places(t, "damping_factor"):
        damping, decay, expansion = (
            t[place + name][..., 0] for name in ("damping_factor", "decay_factor", "ema_expansion_matrix")
        )
        projection, d = t[place + "kernel_projection_matrix"], t[place + "residual_weight"]
        p = sigmoid(damping)
        q = 1 - p * sigmoid(decay)
        layers.append(bank(q, p * expansion * projection * projection.shape[1] ** -0.5, d))
    return layers


def make_mega(rng, h, n):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"mega.embedding_layer.word_embeddings.weight": f(8, h)}
    for i in range(2):
        place = f"mega.layers.{i}.mega_layer.ema_gate."
        for name in ("damping_factor", "decay_factor", "ema_expansion_matrix"):
            t[place + name] = f(h, n, 1)
        t[place + "kernel_projection_matrix"] = f(h, n)
        t[place + "residual_weight"] = f(h)
        t[f"mega.layers.{i}.mega_layer.v_proj.weight"] = f(h, h)
    return t


# --- FlowState ----------------------------------------------------------------------------------

def flow_state(t, scale=1.0):
    """ibm-granite/granite-tsfm, tsfm_public/models/flowstate/modeling_flowstate.py."""
    layers = []
    for place in places(t, "log_Lambda_real"):
        lam = -np.exp(t[place + "log_Lambda_real"]) + 1j * t[place + "Lambda_imag"]
        a = np.exp(scale * lam * np.exp(t[place + "log_Delta"]))
        b = ((a - 1) / lam)[:, None] * (t[place + "B_tilde_r"] + 1j * t[place + "B_tilde_i"])
        c = t[place + "C_tilde_r"] + 1j * t[place + "C_tilde_i"]
        # Behind a gate D is not the feedthrough of the system.
        gated = place + "output_gate.weight" in t
        layers.append([(a, b, c, np.zeros((len(c), len(c))) if gated else np.diag(t[place + "D"]))])
    return layers


def make_flow_state(rng, h, p, gated):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"model.embed.embed.weight": f(h, 2), "model.decoder.lin.weight": f(9, h)}
    for i in range(2):
        place = f"model.encoder.layers.{i}.ssm."
        turns = rng.uniform(1, 9, p // 2)
        t[place + "log_Lambda_real"] = np.log(rng.uniform(0.3, 0.8, p)).astype(np.float32)
        t[place + "Lambda_imag"] = np.concatenate([turns, -turns]).astype(np.float32)
        t[place + "log_Delta"] = rng.uniform(-3, -1, p).astype(np.float32)
        for name, shape in (("B_tilde_r", (p, h)), ("B_tilde_i", (p, h)), ("C_tilde_r", (h, p)), ("C_tilde_i", (h, p))):
            t[place + name] = f(*shape) / 4
        t[place + "D"] = f(h)
        if gated:
            t[place + "output_gate.weight"], t[place + "output_gate.bias"] = f(h, h), f(h)
        t[f"model.encoder.layers.{i}.norm.weight"] = f(h)
    return t


# --- aTENNuate ----------------------------------------------------------------------------------

def attenuate(t):
    """Brainchip-Inc/aTENNuate, attenuate/model.py."""
    layers = []
    for place in places(t, "log_dt"):
        step = np.exp(t[place + "log_dt"])
        a = np.exp(step * (-np.logaddexp(0, t[place + "A"][:, 0]) + 1j * t[place + "A"][:, 1]))
        b, c = step[:, None] * t[place + "B"], t[place + "C"]
        layers.append([(a, b + 0j, c + 0j, np.zeros((c.shape[0], b.shape[1])))])
    return layers


def make_attenuate(rng, m):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {}
    for place, channels in (("down_ssms.0.0.0.", 1), ("hid_ssms.0.1.", 3)):
        t[place + "log_dt"] = rng.uniform(-3, -1, m).astype(np.float32)
        t[place + "A"] = np.stack([np.full(m, -0.43), np.pi * np.arange(m)], -1).astype(np.float32)
        t[place + "B"], t[place + "C"] = f(m, channels), f(channels, m)
    t["hid_ssms.0.0.weight"], t["hid_ssms.0.2.layer_norm.weight"] = f(3, 1, 3), f(3)
    return t


# --- LRURec -------------------------------------------------------------------------------------

def lru_rec(t):
    """yueqirex/LRURec, model/lru.py (LRULayer), with the bias as the last input."""
    layers = []
    for place in places(t, "params_log"):
        nu, theta, gamma = np.exp(t[place + "params_log"])
        b = np.concatenate([t[place + "in_proj.weight"], t[place + "in_proj.bias"][:, None]], axis=1)
        c = t[place + "out_proj.weight"]
        d = np.zeros((c.shape[0], b.shape[1]))
        layers.append([(np.exp(-nu + 1j * theta), gamma[:, None] * b, c, d)])
    return layers


def make_lru_rec(rng, d, p):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    z = lambda *shape: (f(*shape) + 1j * f(*shape)).astype(np.complex64)
    t = {"embedding.token.weight": f(9, d), "model.bias": f(9)}
    for i in range(2):
        place = f"model.lru_blocks.{i}.lru_layer."
        a = rng.uniform(0.8, 0.99, p)
        rows = [np.log(-np.log(a)), np.log(rng.uniform(0, 2 * np.pi, p)), 0.5 * np.log(1 - a * a)]
        t[place + "params_log"] = np.stack(rows).astype(np.float32)
        t[place + "in_proj.weight"], t[place + "in_proj.bias"] = z(p, d) / 2, z(p) / 2
        t[place + "out_proj.weight"], t[place + "out_proj.bias"] = z(d, p) / 4, z(d)
        t[place + "layer_norm.weight"], t[place + "layer_norm.bias"] = f(d), f(d)
        t[f"model.lru_blocks.{i}.feed_forward.w_1.weight"] = f(2 * d, d)
    return t


FAMILIES = {
    "evo1": (striped_hyena, lambda rng: make_striped_hyena(rng, 4, 4, 8, np.float32)),
    "evo1_groups": (striped_hyena, lambda rng: make_striped_hyena(rng, 6, 3, 8, np.float32)),
    "evo1_f64": (striped_hyena, lambda rng: make_striped_hyena(rng, 2, 2, 8, np.float64)),
    "stripedhyena_bf16": (striped_hyena, lambda rng: make_striped_hyena(rng, 4, 4, 2, Bf16)),
    "evo1_bf16_slow": (striped_hyena, lambda rng: make_striped_hyena(rng, 2, 2, 4, Bf16, slow=0.9995)),
    "lrurec": (lru_rec, lambda rng: make_lru_rec(rng, 3, 6)),
    "evo2": (evo2, lambda rng: make_evo2(rng, 4, 4, 16)),
    "evo2_groups": (evo2, lambda rng: make_evo2(rng, 4, 2, 8)),
    "evo2_training": (evo2_training, lambda rng: make_evo2_training(rng, 3, 8)),
    "flowstate": (flow_state, lambda rng: make_flow_state(rng, 3, 8, False)),
    "flowstate_gate": (flow_state, lambda rng: make_flow_state(rng, 3, 8, True)),
    "attenuate": (attenuate, lambda rng: make_attenuate(rng, 6)),
    "mega_transformers": (mega, lambda rng: make_mega(rng, 3, 16)),
}

# A bank of Evo 2 of 64 channels as at the start of a training, to compare methods on.
BANK = "evo2_bank"


def make_bank():
    rng = np.random.default_rng(5)
    logs = -np.exp(rng.normal(-1, 0.5, (64, 16))) * rng.uniform(0.01, 0.1, (64, 16))
    residues = 0.1 * rng.standard_normal((64, 16)) / 4
    place = "blocks.2.filter."
    t = {place + "log_poles": logs[..., None], place + "residues": residues, place + "D": np.zeros(64)}
    return {name: value.astype(np.float32) for name, value in t.items()}


def truth_of(name, layers, truth):
    for length in LENGTHS:
        parts = [stacked(systems, length).ravel() for systems in layers]
        truth[f"{name}/{length}/forward"] = np.concatenate(parts)
    truth[f"{name}/d"] = np.concatenate([through(systems).ravel() for systems in layers])
    decays = all(np.all(np.abs(s[0]) < 1) for systems in layers for s in systems)
    if decays:
        truth[f"{name}/hankel"] = np.concatenate([hankel(systems[0]) for systems in layers])


def error(full, small):
    pairs = [(stacked(f, LONG), stacked(s, LONG)) for f, s in zip(full, small)]
    return np.array([np.linalg.norm(f - s) / np.linalg.norm(f) for f, s in pairs])


def main():
    reduced = sys.argv[1:] == ["reduced"]
    HERE.mkdir(parents=True, exist_ok=True)
    path = HERE / "truth.safetensors"
    truth = load(path) if reduced else {}
    for seed, (name, (systems, make)) in enumerate(FAMILIES.items()):
        file = HERE / f"{name}.safetensors"
        if not reduced:
            save(file, make(np.random.default_rng(seed)))
        full = systems(load(file))
        truth_of(name, full, truth)
        small = HERE / f"{name}.reduced.safetensors"
        if reduced and small.exists():
            cut = systems(load(small))
            truth_of(f"{name}.reduced", cut, truth)
            truth[f"{name}.reduced/error"] = error(full, cut)
            if systems is flow_state:
                other = [flow_state(load(f), 0.25) for f in (file, small)]
                truth[f"{name}.reduced/error_at_quarter"] = error(*other)
    if not reduced:
        save(HERE / f"{BANK}.safetensors", make_bank())
    save(path, truth)


if __name__ == "__main__":
    main()
