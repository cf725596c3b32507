"""Kernels of layers at other rates, by the formula of state-spaces/s4: `rate` multiplies the step,

    dt = exp(log_dt) rate,   zoh: K[l] = 2 Re sum C (e^{dt A} - 1)/A e^{dt A l},
    bilinear: K[l] = 2 Re sum C dt/(1 - dt A/2) ((1 + dt A/2)/(1 - dt A/2))^l,

and a limit on frequencies keeps the modes with (dt/rate) |Im A|/(2 pi) below half of it (`kernel.py` and
`dplr.py` of models/s4, v3 and v4). lindermanlab/S5 has the same as `step_rescale`. NumPy alone.

    python tests/reference/make_rates.py        writes tests/reference/rates.json
"""

import json
import struct
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parent.parent
RATES, LENGTH = [0.5, 1.0, 2.0, 3.0], 24
# Lower than that of the fixture, so that some modes are left out; tests/rates.rs declares it.
LIMIT = 0.2


def read(name):
    """The tensors of a safetensors file of f32, without what all names start with."""
    data = (TESTS / "data" / name).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        assert entry["dtype"] == "F32", key
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[start:end], np.float32).astype(np.float64)
        tensors[key.rpartition("/")[2].rpartition(".")[2]] = values.reshape(entry["shape"])
    return tensors


def pairs(x):
    return x[..., 0] + 1j * x[..., 1]


def kernel(c, a, dt, bilinear):
    """One row for each channel."""
    z = dt * a
    if bilinear:
        gain, pole = dt / (1 - z / 2), (1 + z / 2) / (1 - z / 2)
    else:
        gain, pole = (np.exp(z) - 1) / a, np.exp(z)
    powers = pole[..., None] ** np.arange(LENGTH)
    return 2 * np.einsum("hn,hnl->hl", c * gain, powers).real


def s4d(t, rate):
    a = -np.exp(t["log_A_real"]) + 1j * t["A_imag"]
    return kernel(pairs(t["C"]), a, np.exp(t["log_dt"])[:, None] * rate, False)


def v3_bilinear(t, rate):
    a = -np.exp(t["inv_A_real"]) + 1j * t["A_imag"]
    c = pairs(t["C"])[0] * pairs(t["B"])
    return kernel(c, a, np.exp(t["log_dt"])[:, None] * rate, True)


def v4_limited(t, rate):
    a = -np.exp(t["A_real"]) - 1j * t["A_imag"]
    dt = np.exp(t["inv_dt"]) * rate
    below = dt / rate * np.abs(a.imag) / (2 * np.pi) < 0.5 * LIMIT
    assert below.any() and not below.all()
    return kernel(pairs(t["C"])[0] * pairs(t["B"])[0] * below, a, dt, False)


def s5(t, rate):
    """C_i of output i, B_j of input j: one row for each pair."""
    a = t["Lambda_re"] + 1j * t["Lambda_im"]
    step = np.exp(t["log_step"]).flatten() * rate
    gain = (np.exp(a * step) - 1) / a
    powers = np.exp(a * step)[:, None] ** np.arange(LENGTH)
    b, c = pairs(t["B"]) * gain[:, None], pairs(t["C"])
    return 2 * np.einsum("in,nl,nj->ijl", c, powers, b).real.reshape(-1, LENGTH)


FILES = {
    "s4d_layer.safetensors": s4d,
    "layouts/s4_v3_bilinear.safetensors": v3_bilinear,
    "layouts/s4_v4_bandlimit.safetensors": v4_limited,
    "layouts/s5.safetensors": s5,
}
truth = {
    name: [{"rate": rate, "kernels": formula(read(name), rate).tolist()} for rate in RATES]
    for name, formula in FILES.items()
}
(TESTS / "reference/rates.json").write_text(json.dumps(truth) + "\n")
