"""One small file for every layout, with its kernels by the formula of the original code.

    python tests/reference/make_layouts.py           # writes tests/data/layouts/NAME.safetensors
    cargo test --release -p hankelite --test formats layouts:: -- --ignored # writes NAME.reduced.safetensors beside them
    python tests/reference/make_layouts.py reduced   # adds the kernels of the reduced files

Each family's `kernel` is written after the code it names and takes nothing from this project. It
sees the tensors of a file and its settings, and gives the impulse response of the layer: for each
pair of output and input the forward and the backward kernel and D. The truth is kept in
tests/data/layouts/kernels.safetensors as NAME/LENGTH/{forward,backward,d}, in double precision, and
the settings in settings.json.

Needs torch and safetensors.
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent.parent / "data" / "layouts"
LENGTHS = (16, 50)
torch.manual_seed(7)


def r2c(x):
    return torch.view_as_complex(x.double().contiguous())


def c2r(x):
    return torch.view_as_real(x).float().contiguous()


def normal(*shape):
    return torch.randn(*shape)


def cnormal(*shape):
    return torch.complex(torch.randn(*shape), torch.randn(*shape)) / math.sqrt(2)


def diagonal(kernel):
    """(c, h, l) of one input per channel -> (c h, h, l)."""
    c, h, length = kernel.shape
    out = torch.zeros(c * h, h, length, dtype=torch.float64)
    for i in range(c):
        for j in range(h):
            out[i * h + j, j] = kernel[i, j]
    return out


def bank(kernel, d):
    """Kernels (c, h, l) with D (c', h): the second half runs backwards where c = 2 c'."""
    rows = kernel.shape[0] if d is None else d.shape[0]
    h = kernel.shape[1]
    out = {"forward": diagonal(kernel[:rows])}
    if kernel.shape[0] > rows:
        out["backward"] = diagonal(kernel[rows:])
    d = torch.zeros(rows, h) if d is None else d
    out["d"] = diagonal(d.double().unsqueeze(-1)).squeeze(-1)
    return out


# --- state-spaces/s4 -------------------------------------------------------------------------

def transform(x, kind):
    return {
        "none": lambda x: x,
        "exp": torch.exp,
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "softplus": torch.nn.functional.softplus,
    }[kind](x.double())


def log_vandermonde(v, x, length):
    return 2 * torch.einsum("chn,hnl->chl", v, torch.exp(x.unsqueeze(-1) * torch.arange(length))).real


def dss(c, a, dta, length):
    """SSKernelDiag.forward, disc == 'dss'."""
    p = dta.unsqueeze(-1) * torch.arange(length)
    positive = a.real > 0
    shift = dta * (length - 1)
    p = torch.where(positive.unsqueeze(-1), p - shift.unsqueeze(-1), p)
    s = p.exp()
    neg = torch.where(positive, -1.0, 1.0) * dta
    num = neg.exp() - 1
    den = (neg * length).exp() - 1
    x = den * a
    r = x.conj() / (x * x.conj() + 1e-7)
    return torch.einsum("chn,hnl->chl", c * num * r, s).real


def discretised(c, a, dt, disc, length, full_length=None):
    dta = dt * a
    if disc == "zoh":
        return log_vandermonde(c * (torch.exp(dta) - 1) / a, dta, length)
    if disc == "bilinear":
        c = c * dt / (1 - dta / 2)
        return log_vandermonde(c, ((1 + dta / 2) / (1 - dta / 2)).log(), length)
    return dss(c, a.expand_as(dta), dta, full_length)[..., :length]


def s4_v2(t, s, length):
    """standalone/s4d.py at v2.1."""
    k = "model.layers.0.layer.kernel.kernel."
    dt = t[k + "log_dt"].double().exp().unsqueeze(-1)
    a = -t[k + "log_w_real"].double().exp() + 1j * t[k + "w_imag"].double()
    a = a.repeat(dt.shape[0] // a.shape[0], 1)
    kernel = discretised(r2c(t[k + "C"]), a, dt, "zoh", length)
    return bank(kernel, t["model.layers.0.layer.D"])


def s4_v3(t, s, length):
    """SSKernelDiag of v3; the same in H3 and safari."""
    k = next(name for name in t if name.endswith("inv_A_real")).removesuffix("inv_A_real")
    d = t[k.removesuffix("kernel.kernel.") + "D"]
    dt = t[k + "log_dt"].double().exp().unsqueeze(-1)
    real = transform(t[k + "inv_A_real"], s.get("real_transform", "exp"))
    if s.get("real_transform") == "relu":
        real = real + 1e-4
    a = -real + 1j * t[k + "A_imag"].double()
    copies = dt.shape[0] // a.shape[0]
    a, b = a.repeat(copies, 1), r2c(t[k + "B"]).repeat(copies, 1)
    c = r2c(t[k + "C"]) * b
    kernel = discretised(c, a, dt, s.get("discretisation", "bilinear"), length, s.get("length"))
    return bank(kernel, d if d.dim() == 2 else d.unsqueeze(0))


def s4_v4(t, s, length):
    """SSMKernelDiag of v4."""
    k = next(name for name in t if name.endswith("inv_dt")).removesuffix("inv_dt")
    d = t[k.removesuffix("kernel.") + "D"]
    dt = transform(t[k + "inv_dt"], s["dt_transform"])
    real = transform(t[k + "A_real"], s.get("real_transform", "exp"))
    if k + "A_imag" in t:
        a = -real - 1j * t[k + "A_imag"].double()
        b, c = r2c(t[k + "B"]), r2c(t[k + "C"])
    else:
        a = (-real).to(torch.complex128)
        b, c = t[k + "B"].to(torch.complex128), t[k + "C"].to(torch.complex128)
    if s.get("bandlimit") is not None:
        a_rows = a.repeat(dt.shape[0] // a.shape[0], 1)
        freqs = dt * a_rows.imag.abs() / (2 * math.pi)
        c = c * (freqs < s["bandlimit"] * 0.5)
    copies = dt.shape[0] // a.shape[0]
    a, b = a.repeat(copies, 1), b.repeat(1, copies, 1)
    kernel = discretised(c * b, a, dt, s.get("discretisation", "zoh"), length, s.get("length"))
    return bank(kernel, d)


def dplr(t, s, length):
    """SSKernelNPLR of v3 and SSMKernelDPLR of v4, by their step mode: dense, with both halves of
    the conjugate pairs."""
    k = next(name for name in t if name.endswith(".P")).removesuffix("P")
    v4 = k + "inv_dt" in t
    if v4:
        dt = transform(t[k + "inv_dt"], s["dt_transform"]).flatten()
        a = -t[k + "A_real"].double().exp() - 1j * t[k + "A_imag"].double()
        stored = int(t[k + "l_kernel"])
        d = t[k.removesuffix("kernel.") + "D"]
    else:
        dt = t[k + "log_dt"].double().exp()
        a = -t[k + "inv_w_real"].double().exp() + 1j * t[k + "w_imag"].double()
        stored = int(t[k + "L"])
        d = t[k.removesuffix("kernel.kernel.") + "D"]
    p, b, c = (r2c(t[k + name]) for name in "PBC")
    h, n = dt.shape[0], a.shape[1]
    both = lambda x: torch.cat([x, x.conj()], -1)
    kernel = torch.zeros(c.shape[0], h, length, dtype=torch.float64)
    eye = torch.eye(2 * n, dtype=torch.complex128)
    for i in range(h):
        row = i % a.shape[0]
        full = torch.diag(both(a[row]))
        for r in range(p.shape[0]):
            q = both(p[r, row])
            full = full - torch.outer(q, q.conj())
        inverse = torch.linalg.inv(eye - dt[i] / 2 * full)
        da, db = inverse @ (eye + dt[i] / 2 * full), inverse @ (dt[i] * both(b.reshape(-1, n)[row]))
        for channel in range(c.shape[0]):
            out = both(c[channel, i])
            if stored:
                out = torch.linalg.solve((eye - torch.linalg.matrix_power(da, stored)).T, out)
            state = db
            for step in range(length):
                kernel[channel, i, step] = (out @ state).real
                state = da @ state
    return bank(kernel, d)


def make_dplr(h, n, c, rows, v4):
    place = "model.layers.0.layer." + ("layer." if v4 else "")
    k = place + ("kernel." if v4 else "kernel.kernel.")
    log_dt = torch.rand(h) * 2 - 3
    decay = torch.log(0.5 * torch.ones(h, n))
    imag = math.pi * torch.arange(n).float().repeat(h, 1) + 0.2 * normal(h, n)
    t = {
        k + "P": c2r(0.7 * cnormal(1, h, n)),
        k + "B": c2r(cnormal(1, h, n)),
        k + "C": c2r(cnormal(c, h, n)),
        place + "D": normal(rows, h),
        "model.layers.0.norm.norm.weight": normal(h),
    }
    if v4:
        names = {"inv_dt": log_dt.unsqueeze(-1), "A_real": decay, "A_imag": -imag}
        names["l_kernel"] = torch.tensor(50)
    else:
        names = {"log_dt": log_dt, "inv_w_real": decay, "w_imag": imag, "L": torch.tensor(0)}
    return t | {k + name: value for name, value in names.items()}


def make_v2(h, n, c, rows, copies):
    k = "model.layers.0.layer.kernel.kernel."
    return {
        k + "log_dt": torch.rand(h) * 2 - 3,
        k + "log_w_real": torch.log(0.5 * torch.ones(copies, n)) + 0.3 * normal(copies, n),
        k + "w_imag": math.pi * torch.arange(n).float().repeat(copies, 1) + 0.2 * normal(copies, n),
        k + "C": c2r(cnormal(c, h, n)),
        "model.layers.0.layer.D": normal(rows, h),
        "model.layers.0.norm.norm.weight": normal(h),
        "encoder.0.weight": normal(h, 1),
    }


def make_v3(h, n, c, rows, copies, place="model.layers.0.layer.", dead=True, real="exp"):
    k = place + "kernel.kernel."
    decay = 0.5 + 0.4 * torch.rand(copies, n)
    inverse = {
        "exp": torch.log(decay),
        "none": decay,
        "relu": decay,
        "sigmoid": torch.log(decay / (1 - decay)),
        "softplus": torch.log(torch.exp(decay) - 1),
    }[real]
    t = {
        k + "log_dt": torch.rand(h) * 2 - 3,
        k + "inv_A_real": inverse,
        k + "A_imag": math.pi * torch.arange(n).float().repeat(copies, 1) + 0.2 * normal(copies, n),
        k + "B": c2r(cnormal(copies, n)),
        k + "C": c2r(cnormal(c, h, n)),
        place + "D": normal(rows, h) if rows else normal(h),
        "decoder.0.output_transform.weight": normal(3, h),
    }
    if dead:
        t[k + "A"] = c2r(cnormal(copies, n))
    return t


def make_v4(h, n, c, rows, copies, tied=True, dt="exp", is_real=False):
    place = "model.layers.0.layer.layer."
    k = place + "kernel."
    log_dt = torch.rand(h, 1 if tied else n) * 2 - 3
    inv_dt = log_dt if dt == "exp" else torch.log(torch.exp(torch.exp(log_dt)) - 1)
    t = {
        k + "inv_dt": inv_dt,
        k + "A_real": torch.log(0.5 * torch.ones(copies, n)) + 0.3 * normal(copies, n),
        place + "D": normal(rows, h),
        "model.layers.0.norm.norm.weight": normal(h),
    }
    if is_real:
        t[k + "A_real"] = torch.log(1 + torch.arange(n).float()).repeat(copies, 1)
        t[k + "B"] = normal(1, copies, n)
        t[k + "C"] = normal(c, h, n)
    else:
        imag = math.pi * torch.arange(n).float().repeat(copies, 1) + 0.2 * normal(copies, n)
        t[k + "A_imag"] = -imag
        t[k + "B"] = c2r(cnormal(1, copies, n))
        t[k + "C"] = c2r(cnormal(c, h, n))
    return t


def flat(t, s, length):
    """A hand-written S4D: row 1 of state-spaces/s4 without `kernel.`."""
    out = {}
    for layer in ("s4_1.", "s4_2."):
        dt = t[layer + "log_dt"].double().exp().unsqueeze(-1)
        a = -t[layer + "log_A_real"].double().exp() + 1j * t[layer + "A_imag"].double()
        kernel = discretised(r2c(t[layer + "C"]).unsqueeze(0), a, dt, "zoh", length)
        for key, value in bank(kernel, t[layer + "D"].unsqueeze(0)).items():
            out[key] = torch.cat([out[key], value]) if key in out else value
    return out


def make_flat(h, n):
    t = {"fc.weight": normal(3, h), "fc.bias": normal(3)}
    for layer in ("s4_1.", "s4_2."):
        t[layer + "log_dt"] = torch.rand(h) * 2 - 3
        t[layer + "log_A_real"] = torch.log(0.5 * torch.ones(h, n))
        t[layer + "A_imag"] = math.pi * torch.arange(n).float().repeat(h, 1) + 0.1 * normal(h, n)
        t[layer + "C"] = c2r(cnormal(h, n))
        t[layer + "D"] = normal(h)
    return t


# --- DSS -------------------------------------------------------------------------------------

def dss_original(t, s, length):
    """ag1988/dss, src/models/sequence/ss/standalone/dss.py."""
    k = "model.layers.0.layer.kernel."
    version = s["dss_version"]
    full = s.get("length", length)
    if k + "Lambda" in t:
        lam = r2c(t[k + "Lambda"])
        if version.startswith("clip"):
            lam = torch.clamp(lam.real, max=1e-4) + 1j * lam.imag
    else:
        im = t[k + "Lambda_log_im"].double().exp() if version == "exp-re-im" else t[k + "Lambda_im"].double()
        lam = -t[k + "Lambda_log_neg_re"].double().exp() + 1j * im
    if lam.dim() == 1:
        lam = lam.unsqueeze(0)
    dt = t[k + "log_dt"].double().exp()
    if dt.dim() == 1:
        z = dt.unsqueeze(-1) * lam
    else:
        z = dt[:, :1] * lam.real + 1j * dt[:, 1:] * lam.imag
    w = r2c(t[k + "W"])
    lam = lam.expand_as(z)
    if version == "softmax":
        kernel = dss(w, lam, z, full)[..., :length]
    else:
        if not version.endswith("no-scale"):
            w = w * (z.exp() - 1) * lam.conj() / torch.clamp((lam * lam.conj()).real, min=1e-7)
        s_ = torch.exp(z.unsqueeze(-1) * torch.arange(length))
        kernel = torch.einsum("chn,hnl->chl", w, s_).real
    return bank(kernel, t["model.layers.0.layer.D"])


def make_dss(h, n, c, rows, version, separate=True):
    k = "model.layers.0.layer.kernel."
    im = math.pi * torch.arange(n).float() + 0.3
    t = {
        k + "log_dt": torch.rand(h, 2) * 2 - 3 if separate else torch.rand(h) * 2 - 3,
        k + "W": c2r(cnormal(c, h, n)),
        "model.layers.0.layer.D": normal(rows, h),
    }
    if version == "exp-re-im":
        t[k + "Lambda_log_neg_re"] = torch.log(0.5 + 0.2 * torch.rand(n))
        t[k + "Lambda_log_im"] = torch.log(im)
    elif version.startswith("exp"):
        t[k + "Lambda_log_neg_re"] = torch.log(0.5 + 0.2 * torch.rand(n))
        t[k + "Lambda_im"] = im
    else:
        t[k + "Lambda"] = torch.stack([-0.5 - 0.2 * torch.rand(n), im], -1)
    return t


# --- S5 --------------------------------------------------------------------------------------

def mimo(lam_bar, b_bar, c, d, factor, length):
    powers = lam_bar.unsqueeze(-1) ** torch.arange(length)
    return {
        "forward": factor * torch.einsum("pn,nl,nm->pml", c, powers, b_bar).real,
        "d": d.double(),
    }


def s5_discretised(lam, b, step, disc):
    if disc == "bilinear":
        bl = 1 / (1 - step / 2 * lam)
        return bl * (1 + step / 2 * lam), (bl * step).unsqueeze(-1) * b
    bar = torch.exp(lam * step)
    return bar, ((bar - 1) / lam).unsqueeze(-1) * b


def s5(t, s, length):
    """lindermanlab/S5, s5/ssm.py."""
    k = "params/encoder/encoder/layers_0/seq/"
    lam = t[k + "Lambda_re"].double() + 1j * t[k + "Lambda_im"].double()
    if s.get("clip_eigs"):
        lam = torch.clamp(lam.real, max=-1e-4) + 1j * lam.imag
    step = t[k + "log_step"].double().exp().flatten()
    bar, b = s5_discretised(lam, r2c(t[k + "B"]), step, s.get("discretisation", "zoh"))
    p = lam.shape[0]
    if k + "C1" in t:
        c = [r2c(t[k + "C1"]), r2c(t[k + "C2"])]
    else:
        c = list(r2c(t[k + "C"]).split(p, dim=1))
    factor = 2 if s.get("conj_sym", True) else 1
    out = mimo(bar, b, c[0], torch.diag(t[k + "D"]), factor, length)
    if len(c) == 2:
        out["backward"] = mimo(bar, b, c[1], torch.diag(t[k + "D"]), factor, length)["forward"]
    return out


def make_s5(h, p, bidirectional=None, full=False):
    k = "params/encoder/encoder/layers_0/seq/"
    im = math.pi * torch.arange(p).float() + 0.2
    if full:
        im[p // 2 :] = -im[: p // 2]
    t = {
        k + "Lambda_re": -0.5 - 0.2 * torch.rand(p),
        k + "Lambda_im": im,
        k + "B": c2r(cnormal(p, h)),
        k + "D": normal(h),
        k + "log_step": torch.rand(p, 1) * 2 - 3,
        "params/encoder/encoder/layers_0/norm/scale": normal(h),
        "params/encoder/decoder/kernel": normal(h, 3),
    }
    if bidirectional == "C1C2":
        t[k + "C1"], t[k + "C2"] = c2r(cnormal(h, p)), c2r(cnormal(h, p))
    else:
        t[k + "C"] = c2r(cnormal(h, 2 * p if bidirectional else p))
    return t


def s5_torch(t, s, length):
    """i404788/s5-pytorch."""
    k = "s5.seq."
    lam, c = t[k + "Lambda"].to(torch.complex128), t[k + "C"].to(torch.complex128)
    bar, b = s5_discretised(lam, r2c(t[k + "B"]), t[k + "log_step"].double().exp(), "zoh")
    factor = 2 if s.get("conj_sym") else 1
    return mimo(bar, b, c, torch.diag(t[k + "D"]), factor, length)


def make_s5_torch(h, p):
    half = make_s5(h, p, full=True)
    k = "params/encoder/encoder/layers_0/seq/"
    return {
        "s5.seq.Lambda": torch.complex(half[k + "Lambda_re"], half[k + "Lambda_im"]),
        "s5.seq.B": half[k + "B"],
        "s5.seq.C": cnormal(h, p),
        "s5.seq.D": half[k + "D"],
        "s5.seq.log_step": half[k + "log_step"].flatten().contiguous(),
        "attn_norm.weight": normal(h),
    }


# --- LRU -------------------------------------------------------------------------------------

def lru(t, s, length):
    """NicolasZucchet/minimal-LRU; Gothos/LRU-pytorch and forgi86/lru-reduction with complex B, C."""
    k = next(name for name in t if name.endswith("nu_log")).removesuffix("nu_log")
    lam = torch.exp(-t[k + "nu_log"].double().exp() + 1j * t[k + "theta_log"].double().exp())
    if k + "B" in t:
        b, c = t[k + "B"].to(torch.complex128), t[k + "C"].to(torch.complex128)
    else:
        b = t[k + "B_re"].double() + 1j * t[k + "B_im"].double()
        c = t[k + "C_re"].double() + 1j * t[k + "C_im"].double()
    b = t[k + "gamma_log"].double().exp().unsqueeze(-1) * b
    d = t[k + "D"]
    return mimo(lam, b, c, torch.diag(d) if d.dim() == 1 else d, 1, length)


def make_lru(h, n, dense, place):
    radius = torch.sqrt(0.25 + 0.6 * torch.rand(n))
    outputs = h + 1 if dense else h
    t = {
        place + "nu_log": torch.log(-torch.log(radius)),
        place + "theta_log": torch.log(math.pi * torch.rand(n)),
        place + "gamma_log": torch.log(torch.sqrt(1 - radius**2)) + 0.1 * normal(n),
    }
    b, c = cnormal(n, h), cnormal(outputs, n)
    if dense:
        t |= {place + "B": b, place + "C": c, place + "D": normal(outputs, h)}
    else:
        t |= {
            place + "B_re": b.real.contiguous(),
            place + "B_im": b.imag.contiguous(),
            place + "C_re": c.real.contiguous(),
            place + "C_im": c.imag.contiguous(),
            place + "D": normal(h),
        }
    return t


# --- MEGA ------------------------------------------------------------------------------------

def mega(t, s, length):
    """facebookresearch/mega, fairseq/modules/exponential_moving_average.py."""
    k = "layers.0.move."
    p = torch.sigmoid(t[k + "delta"].double())
    alpha = torch.sigmoid(t[k + "alpha"].double())
    q = 1 - p * alpha
    vander = torch.arange(length).view(1, 1, length) * torch.log(q)
    kernel = (p * t[k + "beta"].double()) * torch.exp(vander)
    scale = math.sqrt(1.0 / q.shape[1])
    kernel = torch.einsum("dnl,dn->dl", kernel, t[k + "gamma"].double() * scale)
    d = t[k + "omega"].shape[0]
    kernel = kernel.view(-1, d, length)
    out = {"forward": diagonal(kernel[:1]), "d": torch.diag(t[k + "omega"]).double()}
    if kernel.shape[0] == 2:
        out["backward"] = diagonal(kernel[1:])
    return out


def make_mega(d, n, bidirectional):
    k = "layers.0.move."
    rows = 2 * d if bidirectional else d
    return {
        k + "delta": normal(rows, n, 1),
        k + "alpha": normal(rows, n, 1),
        k + "beta": normal(rows, n, 1),
        k + "gamma": normal(rows, n),
        k + "omega": normal(d),
        "layers.0.q_proj.weight": normal(d, d),
    }


# --- annotated-s4 ----------------------------------------------------------------------------

def annotated_s4d(t, s, length):
    """srush/annotated-s4, s4/s4d.py: s4d_kernel_zoh, vmapped over axis 1."""
    k = "params/layers_0/seq/"
    a = torch.clamp(t[k + "A_re"].double(), max=-1e-4) + 1j * t[k + "A_im"].double()
    c = r2c(t[k + "C"])
    step = t[k + "log_step"].double().exp()
    terms = c * (torch.exp(step * a) - 1) / a
    kernel = (terms.unsqueeze(-1) * torch.exp((step * a).unsqueeze(-1) * torch.arange(length))).sum(0).real
    return bank(kernel.unsqueeze(0), t[k + "D"])


def annotated_dss(t, s, length):
    """srush/annotated-s4, s4/dss.py: dss_kernel with complex_softmax."""
    k = "params/layers_0/seq/"
    lam = t[k + "Lambda_re"].double() + 1j * t[k + "Lambda_im"].double()
    w = r2c(t[k + "W"])[0].T
    step = t[k + "log_step"].double().exp()
    x = (step * lam).unsqueeze(-1) * torch.arange(s["length"])
    top = torch.gather(x, -1, x.real.argmax(-1, keepdim=True))
    e = torch.exp(x - top)
    total = e.sum(-1, keepdim=True)
    soft = e * total.conj() / (total * total.conj() + 1e-7)
    kernel = ((w / lam).unsqueeze(-1) * soft).sum(0).real[..., :length]
    return bank(kernel.unsqueeze(0), t[k + "D"])


def make_annotated(n, h, is_dss):
    k = "params/layers_0/seq/"
    re, im = -0.5 - 0.2 * torch.rand(n, h), math.pi * torch.arange(n).float().unsqueeze(-1).repeat(1, h) + 0.2
    t = {k + "D": normal(1, h), k + "log_step": torch.rand(1, h) * 2 - 3}
    if is_dss:
        return t | {k + "Lambda_re": re, k + "Lambda_im": im, k + "W": c2r(cnormal(1, h, n))}
    return t | {
        k + "A_re": re,
        k + "A_im": im,
        k + "B_re": torch.ones(n, h),
        k + "B_im": torch.zeros(n, h),
        k + "C": c2r(cnormal(n, h)),
    }


FAMILIES = {
    "s4_v2": (s4_v2, {}, lambda: make_v2(4, 6, 1, 1, 2)),
    "s4_v2_bidirectional": (s4_v2, {}, lambda: make_v2(4, 6, 2, 1, 4)),
    "s4_v3_bilinear": (s4_v3, {}, lambda: make_v3(4, 6, 1, 1, 1)),
    "s4_v3_zoh_channels": (s4_v3, {"discretisation": "zoh"}, lambda: make_v3(4, 6, 2, 2, 2)),
    "s4_v3_dss": (
        s4_v3,
        {"discretisation": "dss", "length": 64},
        lambda: make_v3(4, 6, 1, 1, 1, dead=False),
    ),
    "s4_v3_relu": (s4_v3, {"real_transform": "relu"}, lambda: make_v3(4, 6, 1, 1, 1, real="relu")),
    "s4_v3_none": (s4_v3, {"real_transform": "none"}, lambda: make_v3(4, 6, 1, 1, 1, real="none")),
    "s4_v3_softplus": (
        s4_v3,
        {"real_transform": "softplus"},
        lambda: make_v3(4, 6, 1, 1, 1, real="softplus"),
    ),
    "h3": (
        s4_v3,
        {},
        lambda: make_v3(4, 6, 1, 0, 1, place="backbone.layers.1.mixer.", dead=False)
        | {
            "backbone.layers.1.mixer.ssm_k_kernel.kernel.B": normal(4, 3),
            "backbone.layers.1.mixer.ssm_k_kernel.kernel.C": normal(1, 4, 3),
            "backbone.layers.1.mixer.ssm_k_D": normal(4),
        },
    ),
    "s4_v4": (s4_v4, {"dt_transform": "exp"}, lambda: make_v4(4, 6, 1, 1, 1)),
    "s4_v4_softplus_bidirectional": (
        s4_v4,
        {"dt_transform": "softplus"},
        lambda: make_v4(4, 6, 2, 1, 2, dt="softplus"),
    ),
    "s4_v4_untied_bilinear_channels": (
        s4_v4,
        {"dt_transform": "exp", "discretisation": "bilinear"},
        lambda: make_v4(4, 6, 2, 2, 1, tied=False),
    ),
    "s4_v4_real": (s4_v4, {"dt_transform": "exp"}, lambda: make_v4(4, 4, 1, 1, 1, is_real=True)),
    "s4_v4_bandlimit": (
        s4_v4,
        {"dt_transform": "exp", "bandlimit": 0.9},
        lambda: make_v4(4, 6, 1, 1, 1),
    ),
    "s4_dplr_v4": (
        dplr,
        {"dt_transform": "exp", "diagonalise": 12},
        lambda: make_dplr(3, 6, 1, 1, True),
    ),
    "s4_dplr_v3_bidirectional": (dplr, {"diagonalise": 12}, lambda: make_dplr(3, 6, 2, 1, False)),
    "s4d_flat": (flat, {}, lambda: make_flat(3, 5)),
    "dss_exp_bidirectional": (
        dss_original,
        {"dss_version": "exp"},
        lambda: make_dss(4, 6, 2, 1, "exp"),
    ),
    "dss_softmax_channels": (
        dss_original,
        {"dss_version": "softmax", "length": 64},
        lambda: make_dss(4, 6, 2, 2, "softmax"),
    ),
    "dss_exp_re_im": (
        dss_original,
        {"dss_version": "exp-re-im"},
        lambda: make_dss(4, 6, 1, 1, "exp-re-im", separate=False),
    ),
    "dss_clip_no_scale": (
        dss_original,
        {"dss_version": "clip-no-scale"},
        lambda: make_dss(4, 6, 1, 1, "clip"),
    ),
    "s5": (s5, {}, lambda: make_s5(3, 6)),
    "s5_full": (s5, {"conj_sym": False, "discretisation": "bilinear"}, lambda: make_s5(3, 6, full=True)),
    "s5_clip": (s5, {"clip_eigs": True}, lambda: make_s5(3, 6)),
    "s5_bidirectional": (s5, {}, lambda: make_s5(3, 6, "C1C2")),
    "s5_bidirectional_one_c": (s5, {}, lambda: make_s5(3, 6, "one")),
    "s5_torch": (s5_torch, {}, lambda: make_s5_torch(3, 8)),
    "lru": (lru, {}, lambda: make_lru(3, 6, False, "params/encoder/layers_0/seq/")),
    "lru_dense": (lru, {}, lambda: make_lru(3, 6, True, "blocks.0.lru.")),
    "mega": (mega, {}, lambda: make_mega(3, 6, False)),
    "mega_bidirectional": (mega, {}, lambda: make_mega(3, 6, True)),
    "annotated_s4d": (annotated_s4d, {}, lambda: make_annotated(6, 3, False)),
    "annotated_dss": (annotated_dss, {"length": 64}, lambda: make_annotated(6, 3, True)),
}


def main():
    reduced = sys.argv[1:] == ["reduced"]
    HERE.mkdir(parents=True, exist_ok=True)
    truth_file = HERE / "kernels.safetensors"
    truth = load_file(truth_file) if reduced else {}
    ending = ".reduced" if reduced else ""
    for name, (kernel, settings, make) in FAMILIES.items():
        path = HERE / f"{name}{ending}.safetensors"
        if reduced and "dplr" in name:
            # Written as diagonal layers of v4.
            kernel, settings = s4_v4, {"dt_transform": "exp", "discretisation": "zoh"}
        if not reduced:
            tensors = {key: value.contiguous() for key, value in make().items()}
            save_file(tensors, path)
        tensors = load_file(path)
        for length in LENGTHS:
            for key, value in kernel(tensors, settings, length).items():
                truth[f"{name}{ending}/{length}/{key}"] = value.double().contiguous()
    save_file(truth, truth_file)
    if not reduced:
        # As PyTorch Lightning saves it: what the tensors cannot tell stands in hyper_parameters.
        tensors = load_file(HERE / "s4_v4_softplus_bidirectional.safetensors")
        layer = {"disc": "zoh", "dt_transform": "softplus", "bandlimit": None}
        hyper = {"model": {"layer": layer, "prenorm": True}, "train": {"seed": 0}}
        saved = {"state_dict": tensors, "hyper_parameters": hyper, "epoch": 3}
        torch.save(saved, HERE / "lightning.ckpt")
    settings = {name: family[1] for name, family in FAMILIES.items()}
    (HERE / "settings.json").write_text(json.dumps(settings, indent=1) + "\n")


if __name__ == "__main__":
    main()
