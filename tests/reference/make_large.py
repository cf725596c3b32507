"""Small files with the tensors of published models, with their kernels by the formula of the original code.

    python tests/reference/make_large.py           # writes tests/data/large/NAME.safetensors and truth.safetensors
    cargo test --release -p hankelite --test formats large:: -- --ignored   # writes NAME.reduced.safetensors beside them
    python tests/reference/make_large.py reduced   # adds what the reduced files hold

Each family's function is written after the code that it names and takes nothing from this project. It
sees the tensors of a file, and gives for each layer a system with all its modes: discrete poles a, B (modes,
inputs), C (outputs, modes) and D, y = Re Σ C a^l B; or a recurrence that is run as the code runs it. The
truth of a file, in double precision:

- NAME/LENGTH/forward, NAME/d: the kernels of all layers one after the other, outputs × inputs × L, with D at lag 0
  where the layer's own D is no part of the system that is read (neural-ssm, Laughing Hyena);
- NAME/LENGTH/backward: those that run backwards in time, where there are such;
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


class Recurrence:
    """A system by its matrices: x' = A x + B u, y = Re(C x') + D u, or Re(C x) + D u where the output is early."""

    def __init__(self, a, b, c, d, early=False):
        self.a, self.b, self.c, self.d, self.early = a, b, c, d, early

    def __getitem__(self, index):
        return (np.linalg.eigvals(self.a), self.b, self.c, np.zeros_like(self.d) if self.early else self.d)[index]

    def kernel(self, length):
        out, x = [], np.zeros_like(self.b)
        for step in range(length):
            entered = self.b if step == 0 else np.zeros_like(self.b)
            after = self.a @ x + entered
            now = (self.c @ (x if self.early else after)).real
            out.append(now + self.d if self.early and step == 0 else now)
            x = after
        return np.stack(out, -1)

    def proper(self, length):
        """The same from a state that holds the sample at hand."""
        if not self.early:
            return self.kernel(length)
        return Recurrence(self.a, self.b, self.c @ np.linalg.inv(self.a), self.d).kernel(length)

    def hankel(self):
        """Of the real system with real and imaginary parts of the states, by two Lyapunov equations."""
        rows = lambda m: np.block([[m.real, -m.imag], [m.imag, m.real]])
        a, b = rows(self.a.astype(complex)), np.concatenate([self.b.real, self.b.imag])
        c = self.c @ np.linalg.inv(self.a) if self.early else self.c
        c = np.concatenate([c.real, -c.imag], axis=1)
        gramian = lambda m, q: np.linalg.solve(np.eye(len(m) ** 2) - np.kron(m, m), q.ravel()).reshape(m.shape)
        values = np.linalg.eigvals(gramian(a, b @ b.T) @ gramian(a.T, c.T @ c))
        return np.sort(np.sqrt(np.abs(values)))[::-1]


def kernel(system, length):
    if isinstance(system, Recurrence):
        return system.kernel(length)
    a, b, c, _ = system
    powers = a[:, None] ** np.arange(length)
    return np.einsum("pn,nl,nm->pml", c, powers, b).real


def stacked(systems, length):
    """Outputs × inputs × L of systems side by side, whose inputs are their own."""
    return side_by_side([kernel(s, length) for s in systems], length)


def side_by_side(parts, length):
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
    if isinstance(system, Recurrence):
        return system.hankel()
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


# --- LinOSS -------------------------------------------------------------------------------------

def sliding(a, low, high):
    """a within bounds, as the difference of two rectifiers."""
    return low + np.maximum(a - low, 0) - np.maximum(a - high, 0)


def oscillators(t, form):
    """tk-rusch/linoss, models/LinOSS.py (LinOSSLayer), and jaredbmit/damped-linoss, models/LinOSS.py (the layers
    DampedIMEX1, DampedIMEX2, DampedIM and DampedEX), step by step."""
    layers = []
    for place in places(t, "A_diag"):
        a, b, c = (t[place + name] for name in ("A_diag", "B", "C"))
        b, c = b[..., 0] + 1j * b[..., 1], c[..., 0] + 1j * c[..., 1]
        damped = place + "G_diag" in t
        dt = sigmoid(t[place + ("dt" if damped else "steps")])
        if not damped:
            a, g = np.maximum(a, 0), np.zeros_like(a)
        else:
            g, square = t[place + "G_diag"], np.maximum(dt**2, 1e-6)
            if form == "imex":
                g = np.maximum(g, 0)
                root = 2 * np.sqrt(1 + dt * g)
                a = sliding(a, (2 + dt * g - root) / square, (2 + dt * g + root) / square)
            elif form == "imex2":
                g = np.maximum(g, 0)
                root = 2 * np.sqrt(1 - dt * g)
                a = sliding(a, (2 - dt * g - root) / square, (2 - dt * g + root) / square)
            else:
                low = -dt * a if form == "im" else dt * a
                g = low + np.maximum(g - low, 0)
                a = g**2 / 4 + np.maximum(a - g**2 / 4, 0)
        one = np.ones_like(a)
        if form == "im":
            s = 1 + dt * g + dt**2 * a
            m, f = [[1 / s, -dt * a / s], [dt / s, (1 + dt * g) / s]], [dt / s, dt**2 / s]
        elif form == "imex":
            s = 1 + dt * g
            m, f = [[1 / s, -dt * a / s], [dt / s, 1 - dt**2 * a / s]], [dt / s, dt**2 / s]
        elif form == "imex2":
            m, f = [[1 - dt * g, -dt * a], [dt * (1 - dt * g), 1 - dt**2 * a]], [dt, dt**2]
        else:
            m, f = [[1 - dt * g, -dt * a], [dt, one]], [dt, 0 * dt]
        state = np.block([[np.diag(m[0][0]), np.diag(m[0][1])], [np.diag(m[1][0]), np.diag(m[1][1])]])
        entering = np.concatenate([f[0][:, None] * b, f[1][:, None] * b])
        layers.append([Recurrence(state, entering, np.concatenate([0 * c, c], axis=1), np.diag(t[place + "D"]))])
    return layers


def make_oscillators(rng, h, p, form, damped):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"linear_encoder.weight": f(h, 2), "linear_layer.weight": f(2, h)}
    for i in range(2):
        module = "layer" if damped else "ssm"
        place = f"blocks.{i}.{module}."
        dt = rng.uniform(-0.5, 1, p)
        a = rng.uniform(0, 1, p)
        if damped:
            g = rng.uniform(0.05, 0.5, p)
            if form == "ex":
                g = g + sigmoid(dt) * a
            # In front of the bounds, behind them, and damping below its own, which decays no more.
            a[0], a[1] = 0.0, {"imex": 30.0, "imex2": 30.0}.get(form, 1.5)
            g[-1] = -0.3 if i == 1 else g[-1]
            t[place + "G_diag"] = g.astype(np.float32)
        t[place + "A_diag"] = a.astype(np.float32)
        t[place + ("dt" if damped else "steps")] = dt.astype(np.float32)
        t[place + "B"], t[place + "C"], t[place + "D"] = f(p, h, 2) / 2, f(h, p, 2) / 2, f(h)
        t[f"blocks.{i}.glu.w1.weight"] = f(h, h)
    return t


# --- Megalodon ----------------------------------------------------------------------------------

def megalodon(t):
    """XuezheMax/megalodon, megalodon/modules/complex_exponential_moving_average.py."""
    layers = []
    for place in places(t, "theta"):
        p, delta = sigmoid(t[place + "alpha"][..., 0]), sigmoid(t[place + "delta"][..., 0])
        n = p.shape[1]
        turn = sigmoid(t[place + "theta"][:, 0]) * (2 * np.pi / n)
        q = (1 - p * delta) * np.exp(1j * turn * np.arange(1, n + 1))
        if place + "gamma" in t:
            gamma = t[place + "gamma"][..., 0] + 1j * t[place + "gamma"][..., 1]
        else:
            gamma = t[place + "gamma_real"] + 1j * t[place + "gamma_imag"]
        layers.append(bank(q, p * gamma * np.sqrt(1 / n), t[place + "omega"].ravel()))
    return layers


def make_megalodon(rng, h, n, parted):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"model.embed.weight": f(8, h)}
    for i in range(2):
        place = f"model.layers.{i}.attn.cema."
        t[place + "alpha"], t[place + "delta"] = f(h, n, 1) / 5, f(h, n, 1) / 5 - 1
        t[place + "theta"] = f(h, 1, 1)
        gamma = f(h, n, 2)
        if parted:
            t[place + "gamma_real"], t[place + "gamma_imag"], t[place + "omega"] = gamma[..., 0], gamma[..., 1], f(h)
        else:
            t[place + "gamma"], t[place + "omega"] = gamma, f(h, 1)
        t[f"model.layers.{i}.attn.gamma"] = f(2, h)
    return t


# --- MEGA with heads ----------------------------------------------------------------------------

def mega_heads(t, direction=""):
    """lucidrains/Mega-pytorch, mega_pytorch/mega_pytorch.py (MultiHeadedEMA)."""
    layers = []
    for place in places(t, "expansion"):
        alphas, dampen = (sigmoid(t[place + direction + name]) for name in ("alphas", "dampen_factors"))
        rows = slice(len(alphas), None) if direction else slice(0, len(alphas))
        weights = (t[place + "expansion"] * t[place + "reduction"])[rows]
        residues = (alphas[:, None] * weights).T
        poles = np.repeat(((1 - alphas) * dampen)[None], len(residues), axis=0)
        layers.append(bank(poles, residues, np.zeros(len(residues))))
    return layers


def make_mega_heads(rng, d, h, both):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"token_emb.weight": f(8, d)}
    for i in range(2):
        place = f"layers.{i}.0.multi_headed_ema."
        t[place + "expansion"], t[place + "reduction"] = f(2 * h if both else h, d), f(2 * h if both else h, d)
        for direction in ("", "reverse_") if both else ("",):
            t[place + direction + "alphas"], t[place + direction + "dampen_factors"] = f(h) - 2, f(h) + 2
        t[f"layers.{i}.0.Wh"] = f(d, d)
    return t


# --- LRU of neural-ssm --------------------------------------------------------------------------

def early_lru(t):
    """neural-ssm 0.44, neural_ssm/ssm/cells/lti/lru.py: the output sees the states before the sample."""
    layers = []
    for place in places(t, "Bp"):
        a = np.exp(-np.exp(t[place + "nu_log"]) + 1j * np.exp(t[place + "theta_log"]))
        b = np.exp(t[place + "gamma_log"])[:, None] * t[place + "Bp"]
        layers.append([Recurrence(np.diag(a), b, t[place + "C"], t[place + "D"], early=True)])
    return layers


def make_early_lru(rng, h, n):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    z = lambda *shape: (f(*shape) + 1j * f(*shape)).astype(np.complex64)
    t = {"encoder.weight": f(h, 2), "decoder.weight": f(2, h)}
    for i in range(2):
        place = f"blocks.{i}.lru."
        a = rng.uniform(0.7, 0.99, n)
        t[place + "nu_log"] = np.log(-np.log(a)).astype(np.float32)
        t[place + "theta_log"] = np.log(rng.uniform(0, 2 * np.pi, n)).astype(np.float32)
        t[place + "gamma_log"] = (0.5 * np.log(1 - a * a)).astype(np.float32)
        t[place + "Bp"], t[place + "C"], t[place + "D"] = z(n, h) / 2, z(h, n) / 4, f(h, h)
    return t


# --- BiGS ---------------------------------------------------------------------------------------

def bigs(t):
    """jxiw/BiGS, BiGS/modeling_bigs.py (S4DKernel), one kernel for each direction."""
    layers = []
    for place in places(t, "A_re"):
        lam = np.minimum(t[place + "A_re"], -1e-4) + 1j * t[place + "A_im"]
        step = np.exp(t[place + "log_step"])
        c = t[place + "C"][..., 0] + 1j * t[place + "C"][..., 1]
        residues = c * (np.exp(lam * step) - 1) / lam
        d = t[place.removesuffix("kernel.") + "D"]
        layers.append(bank(np.exp(lam * step)[None], residues[None], d))
    return layers


def make_bigs(rng, n, growing):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"bigs.embeddings.word_embeddings.weight": f(8, 4)}
    for i in range(2):
        for module in ("bs4", "fs4"):
            place = f"bigs.encoder.layer.{i}.{module}."
            t[place + "kernel.log_step"] = np.log(rng.uniform(0.02, 0.2, 1)).astype(np.float32)
            # One of them may grow, where the layer clips.
            decay = -rng.uniform(0.2, 0.8, n)
            decay[0] = 0.1 if growing else decay[0]
            t[place + "kernel.A_re"], t[place + "kernel.A_im"] = decay.astype(np.float32), (np.pi * np.arange(n)).astype(np.float32)
            t[place + "kernel.C"], t[place + "D"] = f(n, 2), f(1)
        t[f"bigs.encoder.layer.{i}.dv.weight"] = f(8, 4)
    return t


# --- Laughing Hyena -----------------------------------------------------------------------------

def laughing_hyena(t):
    """Zymrael/savanna, savanna/model/hyena.py (ParallelModalHyenaFilter, ParallelHyenaConv): the modes start at lag 1."""
    layers = []
    for place in places(t, "R_re"):
        a = t[place + "r"] * np.exp(1j * t[place + "theta"])
        weights = t[place + "R_re"] + 1j * t[place + "R_im"]
        bias = t.get(place.removesuffix("filter.") + "long_conv_bias", np.zeros(a.shape[1]))
        at = np.repeat(np.arange(a.shape[1]), len(bias) // a.shape[1])
        ones = np.ones((len(a), 1))
        first = t[place + "h_0"][0]
        channels = [
            Recurrence(np.diag(a[:, s]), ones, weights[None, :, s], np.array([[first[s] + b]]), early=True)
            for s, b in zip(at, bias)
        ]
        layers.append(channels)
    return layers


def make_laughing_hyena(rng, h, s, n, alone):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"sequential.0.word_embeddings.weight": f(8, h)}
    for i in (2, 3):
        place = f"sequential.{i}.mixer."
        r = rng.uniform(0.5, 0.97, (n, s))
        # Nothing keeps r positive.
        r[1] = -r[1] if alone else r[1]
        t[place + "filter.r"], t[place + "filter.theta"] = r.astype(np.float32), rng.uniform(0, 3, (n, s)).astype(np.float32)
        t[place + "filter.R_re"], t[place + "filter.R_im"] = f(n, s) / np.float32(n**0.5), f(n, s) / np.float32(n**0.5)
        t[place + "filter.h_0"] = f(1, s)
        if not alone:
            t[place + "long_conv_bias"] = f(h)
        t[place + "short_conv_weight"] = f(3, h, 1, 3)
        t[f"sequential.{i}.hyena_proj_conv.weight"] = f(3 * h, 1, 3)
    return t


# --- Event-SSM ----------------------------------------------------------------------------------

def event_ssm(t):
    """Efficient-Scalable-Machine-Learning/event-ssm, event_ssm/ssm.py (S5SSM), zoh, conj_sym, events one step apart."""
    layers = []
    for place in places(t, "log_step"):
        lam = t[place + "Lambda_re"] + 1j * t[place + "Lambda_im"]
        b, c = (t[place + name][..., 0] + 1j * t[place + name][..., 1] for name in ("B", "C"))
        a = np.exp(lam * np.exp(t[place + "log_step"][:, 0]))
        d = t[place + "D"]
        layers.append([(a, ((a - 1) / lam)[:, None] * b, 2 * c, d if d.ndim == 2 else np.diag(d))])
    return layers


def make_event_ssm(rng, h, p):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"encoder.encoder.embedding": f(9, h), "decoder.kernel": f(2 * h, 4)}
    # The first layer of the second stage has more outputs than inputs.
    for stage, layer, inputs, outputs in ((0, 0, h, h), (1, 0, h, 2 * h), (1, 1, 2 * h, 2 * h)):
        module = f"encoder.stages_{stage}.SequenceLayer_{layer}."
        place = module + "S5SSM_0."
        t[place + "Lambda_re"] = np.full(p, -0.5, np.float32)
        t[place + "Lambda_im"] = (np.pi * np.arange(p)).astype(np.float32)
        t[place + "log_step"] = rng.uniform(-3, -1, (p, 1)).astype(np.float32)
        t[place + "B"], t[place + "C"] = f(p, inputs, 2) / 2, f(outputs, p, 2) / 2
        t[place + "D"] = f(inputs) if inputs == outputs else f(outputs, inputs)
        t[module + "Dense_0.kernel"] = f(outputs, outputs)
        if inputs != outputs:
            t[module + "Dense_1.kernel"] = f(inputs, outputs)
    return t


# --- lrnnx ----------------------------------------------------------------------------------------

def lrnnx_s5(t, form="zoh"):
    """lrnnx 1.0, lrnnx/models/lti/s5.py (S5), lrnnx/core/discretization.py."""
    layers = []
    for place in places(t, "log_dt"):
        lam = -np.logaddexp(0, t[place + "A"][:, 0]) + 1j * t[place + "A"][:, 1]
        a = np.exp(lam * np.exp(t[place + "log_dt"]))
        gain = (a - 1) / lam if form == "zoh" else np.ones_like(a)
        c = t[place + "C"][..., 0] + 1j * t[place + "C"][..., 1]
        # The code has x @ D.
        layers.append([(a, gain[:, None] * t[place + "B"], c, t[place + "D"].T)])
    return layers


def make_lrnnx_s5(rng, h, p):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"embedding.weight": f(9, h)}
    for i in range(2):
        place = f"layers.{i}.mixer."
        turns = np.pi * (np.arange(p) + 0.25)
        t[place + "A"] = np.stack([rng.uniform(-1, 0.5, p), turns], -1).astype(np.float32)
        t[place + "log_dt"] = rng.uniform(-3, -1, p).astype(np.float32)
        t[place + "B"], t[place + "C"], t[place + "D"] = f(p, h), f(h, p, 2) / 2, f(h, h)
        t[f"layers.{i}.norm.weight"] = f(h)
    return t


def lrnnx_events(t):
    """lrnnx 1.0, lrnnx/models/ltv/s5.py (S5), the step in plain PyTorch, zoh, events one step apart."""
    layers = []
    for place in places(t, "log_dt"):
        lam = t[place + "A"][:, 0] + 1j * t[place + "A"][:, 1]
        a = np.exp(lam * np.exp(t[place + "log_dt"]))
        join = lambda x: x[..., 0] + 1j * x[..., 1]
        b, c = join(t[place + "B"]), join(t[place + "C"])
        layers.append([(a, ((a - 1) / lam)[:, None] * b, c, np.diag(t[place + "D"]))])
    return layers


def make_lrnnx_events(rng, h, p):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"embedding.weight": f(9, h)}
    for i in range(2):
        place = f"layers.{i}.mixer."
        t[place + "A"] = np.stack([-rng.uniform(0.3, 0.8, p), np.pi * np.arange(p)], -1).astype(np.float32)
        t[place + "log_dt"] = rng.uniform(-3, -1, p).astype(np.float32)
        t[place + "B"], t[place + "C"], t[place + "D"] = f(p, h, 2) / 2, f(h, p, 2) / 2, f(h)
    return t


def lrnnx_s4d(t):
    """lrnnx 1.0, lrnnx/ops/s4_kernel_interface.py (S4DKernel), zoh, its defaults."""
    layers = []
    for place in places(t, "inv_dt"):
        if place.endswith(".layer.kernel."):
            continue
        lam = -np.exp(t[place + "A_real"]) - 1j * t[place + "A_imag"]
        step = np.exp(t[place + "inv_dt"])
        b, c = (t[place + name][0, ..., 0] + 1j * t[place + name][0, ..., 1] for name in ("B", "C"))
        a = np.exp(lam * step)
        layers.append(bank(a, 2 * b * c * (a - 1) / lam, t[place + "D"][0]))
    return layers


def make_lrnnx_s4d(rng, h, n):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"embedding.weight": f(9, h)}
    for i in range(2):
        place = f"layers.{i}.mixer."
        own = {
            "inv_dt": rng.uniform(-3, -1, (h, 1)).astype(np.float32),
            "A_real": np.log(rng.uniform(0.3, 0.8, (h, n))).astype(np.float32),
            "A_imag": np.tile(np.pi * np.arange(n), (h, 1)).astype(np.float32),
            "B": f(1, h, n, 2),
            "C": f(1, h, n, 2),
        }
        # The module and its kernel hold the same parameters.
        for name, tensor in own.items():
            t[place + name] = t[place + "layer.kernel." + name] = tensor
        t[place + "D"], t[place + "output_linear.0.weight"] = f(1, h), f(h, h)
    return t


def centaurus(t):
    """lrnnx 1.0, lrnnx/models/lti/centaurus.py; each kernel alone in the modes dws and full."""
    layers = []
    for place in places(t, "log_delta"):
        step, poles, b, c = np.exp(t[place + "log_delta"]), t[place + "A"], t[place + "B"], t[place + "C"]
        n, m = poles.shape
        a, mixing = np.exp(step[:, None] * poles), t.get(place + "E")
        if b.ndim == 1:
            layers.append(bank(a, (step * b * c)[:, None] * mixing + 0j, np.zeros(n)))
            continue
        if mixing is not None:
            b, c = np.repeat(b, m, axis=0), np.repeat(c, m, axis=1) * mixing.ravel()
        b = np.repeat(step, m)[:, None] * b
        layers.append([(a.ravel(), b + 0j, c + 0j, np.zeros((len(c), b.shape[1])))])
    return layers


def make_centaurus(rng, h, n, m, mode):
    f = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    t = {"embedding.weight": f(9, h)}
    for i in range(2):
        place = f"layers.{i}.mixer."
        turns = np.pi * (np.arange(m) + rng.uniform(0.2, 1, (n, 1))) / m
        t[place + "A"] = (-rng.uniform(0.3, 0.8, (n, m)) + 1j * turns).astype(np.complex64)
        t[place + "log_delta"] = rng.uniform(-3, -1, n).astype(np.float32)
        if mode != "pointwise":
            t[place + "E"] = f(n, m)
        rows = n * m if mode == "pointwise" else n
        vector = mode in ("dws", "full")
        t[place + "B"], t[place + "C"] = (f(n), f(n)) if vector else (f(rows, h), f(h, rows))
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
    "linoss_im": (lambda t: oscillators(t, "im"), lambda rng: make_oscillators(rng, 3, 4, "im", False)),
    "linoss_imex": (lambda t: oscillators(t, "imex"), lambda rng: make_oscillators(rng, 3, 4, "imex", False)),
    "dlinoss_im": (lambda t: oscillators(t, "im"), lambda rng: make_oscillators(rng, 3, 4, "im", True)),
    "dlinoss_imex": (lambda t: oscillators(t, "imex"), lambda rng: make_oscillators(rng, 3, 4, "imex", True)),
    "dlinoss_imex2": (lambda t: oscillators(t, "imex2"), lambda rng: make_oscillators(rng, 3, 4, "imex2", True)),
    "dlinoss_ex": (lambda t: oscillators(t, "ex"), lambda rng: make_oscillators(rng, 3, 4, "ex", True)),
    "megalodon": (megalodon, lambda rng: make_megalodon(rng, 3, 8, False)),
    "megalodon_jax": (megalodon, lambda rng: make_megalodon(rng, 3, 8, True)),
    "mega_heads": (mega_heads, lambda rng: make_mega_heads(rng, 3, 6, False)),
    "mega_heads_both": (mega_heads, lambda rng: make_mega_heads(rng, 3, 6, True)),
    "early_lru": (early_lru, lambda rng: make_early_lru(rng, 3, 8)),
    "bigs": (bigs, lambda rng: make_bigs(rng, 16, False)),
    "bigs_clipped": (bigs, lambda rng: make_bigs(rng, 16, True)),
    "lrnnx_s5": (lrnnx_s5, lambda rng: make_lrnnx_s5(rng, 3, 8)),
    "lrnnx_s5_dirac": (lambda t: lrnnx_s5(t, "dirac"), lambda rng: make_lrnnx_s5(rng, 3, 8)),
    "lrnnx_events": (lrnnx_events, lambda rng: make_lrnnx_events(rng, 3, 8)),
    "lrnnx_s4d": (lrnnx_s4d, lambda rng: make_lrnnx_s4d(rng, 3, 8)),
    "centaurus_neck": (centaurus, lambda rng: make_centaurus(rng, 3, 4, 2, "neck")),
    "centaurus_pointwise": (centaurus, lambda rng: make_centaurus(rng, 3, 4, 2, "pointwise")),
    "centaurus_dws": (centaurus, lambda rng: make_centaurus(rng, 3, 3, 6, "dws")),
    "centaurus_full": (centaurus, lambda rng: make_centaurus(rng, 2, 4, 3, "full")),
    "laughing_hyena": (laughing_hyena, lambda rng: make_laughing_hyena(rng, 6, 3, 8, False)),
    "laughing_hyena_alone": (laughing_hyena, lambda rng: make_laughing_hyena(rng, 3, 3, 8, True)),
    "event_ssm": (event_ssm, lambda rng: make_event_ssm(rng, 3, 8)),
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


def truth_of(name, layers, truth, backward=()):
    for length in LENGTHS:
        parts = [stacked(systems, length).ravel() for systems in layers]
        truth[f"{name}/{length}/forward"] = np.concatenate(parts)
        if name.endswith("_both"):
            parts = [stacked(systems, length).ravel() for systems in backward]
            truth[f"{name}/{length}/backward"] = np.concatenate(parts)
    truth[f"{name}/d"] = np.concatenate([through(systems).ravel() for systems in layers])
    decays = all(np.all(np.abs(s[0]) < 1 - 1e-9) for systems in layers for s in systems)
    if decays:
        truth[f"{name}/hankel"] = np.concatenate([hankel(systems[0]) for systems in layers])


def error(full, small):
    proper = lambda s: s.proper(LONG) if isinstance(s, Recurrence) else kernel(s, LONG)
    whole = [side_by_side([proper(s) for s in systems], LONG) for systems in full]
    pairs = zip(whole, [stacked(f, LONG) for f in full], [stacked(s, LONG) for s in small])
    return np.array([np.linalg.norm(f - s) / np.linalg.norm(w) for w, f, s in pairs])


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
        both = name.endswith("_both")
        truth_of(name, full, truth, mega_heads(load(file), "reverse_") if both else ())
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
