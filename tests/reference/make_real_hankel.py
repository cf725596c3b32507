"""Hankel singular values of small real systems in high precision (mpmath).

    python tests/reference/make_real_hankel.py          # writes real_hankel.json

A system is a set of complex modes lambda_i with input b_i, output c_i and a
step Delta. All inputs are binary64 numbers: the decimals in the file have at
most 12 digits, and what counts is the binary64 number nearest to each.

Systems whose values are given
    continuous  g(t) = sum_i r_i exp(lambda_i t),  r_i = c_i b_i
    discrete    K[l] = sum_i rho_i a_i^l,          zero-order hold:
                a_i = exp(lambda_i Delta), rho_i = r_i (a_i - 1) / lambda_i
"complex" is that system with complex output, order N. "real" is the system
with output Re(.): its kernel is Re g or Re K, its poles are lambda_i and
conj(lambda_i) with residues r_i/2 and conj(r_i)/2; an exactly real pole
counts once, with residue Re r_i. Equal poles are merged before anything is
computed, so the realisation below is minimal; the lists of values are filled
up with exact zeros to `order` (N, or 2N less one per real pole).

Method: with input weights 1 the Gramians are
    discrete    P_jk = 1/(1 - a_j conj a_k),      Q_jk = conj(rho_j) P_kj rho_k
    continuous  P_jk = -1/(l_j + conj l_k),       Q_jk = conj(r_j) P_kj r_k
then Cholesky factors, SVD of their product, square-root balanced truncation,
and the eigenvalues of the reduced state matrix. H2 norms are double sums of
residues. Every system is computed at two precisions, which have to agree to
the digits printed.
"""

import json
import math
import pathlib

import mpmath as mp
import numpy as np

DIGITS = 30
TIE = mp.mpf("1e-3")  # an order is skipped when (s_q - s_{q+1})/s_q is smaller
FLOOR = mp.mpf("1e-12")  # ... or when s_q/s_1 is smaller


# --- systems -----------------------------------------------------------------


def decimal(x):
    """Round to 12 significant digits: a short decimal any JSON reader gets right."""
    return float(f"{x:.11e}")


def complexes(values):
    return [complex(decimal(z.real), decimal(z.imag)) for z in np.atleast_1d(values)]


def systems():
    """(name, note, lambda, b, c, Delta) of every system, from fixed seeds."""
    rng = np.random.Generator(np.random.PCG64(20240607))

    def normal(n):
        return rng.standard_normal(n) + 1j * rng.standard_normal(n)

    def lin(n, jitter=0.0):
        real = -0.5 * np.exp(jitter * rng.standard_normal(n))
        return real + 1j * (math.pi * np.arange(n) + jitter * rng.standard_normal(n))

    one = np.ones
    yield "one", "one complex mode", [-0.5 + 3.25j], one(1), normal(1), 0.01
    yield "one_real", "one real pole, complex weight", [-0.75 + 0j], normal(1), normal(1), 0.125
    yield "lin4", "S4D-Lin (first pole exactly real), random c", lin(4), one(4), normal(4), 0.05
    yield "lin8", "S4D-Lin (first pole exactly real), random c", lin(8), one(8), normal(8), 0.01
    yield "lin12", "S4D-Lin scattered, b with phases", lin(12, 0.3), normal(12), normal(12), 0.03
    l = lin(8, 0.4)
    l[[0, 2, 5]] = np.conj(l[[0, 2, 5]])
    yield "negative_imag", "three poles below the real axis", l, one(8), normal(8), 0.05
    l = lin(6, 0.2)
    l[[0, 3, 4]] = [-0.3, -1.7, -6.0]
    yield "some_real", "three exactly real poles among pairs", l, normal(6), normal(6), 0.1
    yield "all_real", "real poles -1..-6", -np.arange(1.0, 7) + 0j, one(6), normal(6), 0.1
    l = np.array([-0.5 + 1e-3j, -0.9 - 1e-3j, -0.4 + 3.1j, -0.6 + 6.5j])
    yield "near_real_3", "two poles with |Im| = 1e-3", l, one(4), normal(4), 0.1
    l = np.array([-0.5 + 1e-8j, -0.9 - 1e-8j, -0.4 + 3.1j, -0.6 + 6.5j])
    yield "near_real_8", "two poles with |Im| = 1e-8", l, one(4), normal(4), 0.1
    centre = np.repeat([-0.5 + 3j, -0.7 + 9j], 3)
    l = centre * (1 + 1e-6 * normal(6))
    yield "cluster", "two clusters of three poles, 1e-6 apart", l, normal(6), normal(6), 0.05
    l = np.array([-0.5 + 3j, -0.5 + 3j, -0.8 + 7j, -0.5 + 3j])
    yield "repeated", "one pole three times: real order 4", l, normal(4), normal(4), 0.05
    l = np.array([-0.5 + 3j, -0.5 - 3j, -0.8 + 7j, -0.3 + 0j])
    yield "conjugates", "a pole and its exact conjugate: real order 5", l, normal(4), normal(4), 0.05
    c = normal(3)
    c[1] = -np.conj(c[0])
    l = np.array([-0.5 + 3j, -0.5 - 3j, -0.8 + 7j])
    yield "conjugates_cancel", "as before, the pair cancels in Re: real order 2", l, one(3), c, 0.05
    l = lin(6, 0.2)
    b, c = one(6), normal(6)
    yield "tiny_step", "Delta = 1e-6", l, b, c, 1e-6
    yield "huge_step", "the same with Delta = 10", l, b, c, 10.0
    l = -(10.0 ** rng.uniform(-3, 3, 8)) + 1j * 10.0 ** rng.uniform(-2, 3, 8)
    b, c = normal(8) * 10.0 ** rng.uniform(-3, 3, 8), normal(8) * 10.0 ** rng.uniform(-3, 3, 8)
    yield "wide", "rates over six decades, residues over twelve", l, b, c, 0.01
    l = lin(4, 0.2)
    l[1] = -1e-8 + 3.3j
    yield "near_axis", "one pole with Re = -1e-8", l, one(4), normal(4), 0.05
    l = np.array([-1.6e4 + 2j, -0.5 + 3j, -0.6 + 7j])
    yield "stiff", "one mode gone after a step: exp(-1600)", l, one(3), normal(3), 0.1


# --- closed forms ------------------------------------------------------------


def merged(pairs):
    """Sum the residues of equal poles; drop poles whose residue is zero."""
    total = {}
    for pole, residue in pairs:
        total[pole] = total.get(pole, mp.mpc(0)) + residue
    pairs = [(p, r) for p, r in total.items() if r != 0]
    return [p for p, _ in pairs], [r for _, r in pairs]


def modes(lam, b, c, real):
    """Poles and residues (continuous) of the complex or the real system, merged, and its order."""
    pairs, order = [], 0
    for l, bi, ci in zip(lam, b, c):
        l, r = mp.mpc(l), mp.mpc(bi) * mp.mpc(ci)
        if not real:
            pairs.append((l, r))
        elif l.imag == 0:
            pairs.append((l, mp.mpc(r.real)))
        else:
            pairs += [(l, r / 2), (mp.conj(l), mp.conj(r) / 2)]
        order += 1 if not real or l.imag == 0 else 2
    return *merged(pairs), order


def hold(poles, residues, step):
    """Zero-order hold: poles a and kernel residues rho."""
    a = [mp.exp(l * mp.mpf(step)) for l in poles]
    return a, [r * mp.expm1(l * mp.mpf(step)) / l for l, r in zip(poles, residues)]


def cauchy(p, q, discrete):
    """1/(1 - p conj q) or -1/(p + conj q): inner product of two unit modes."""
    return 1 / (1 - p * mp.conj(q)) if discrete else -1 / (p + mp.conj(q))


def gramians(poles, residues, discrete):
    n = len(poles)
    p = mp.matrix(n, n)
    q = mp.matrix(n, n)
    for j in range(n):
        for k in range(n):
            p[j, k] = cauchy(poles[j], poles[k], discrete)
            q[j, k] = mp.conj(residues[j]) * residues[k] * cauchy(poles[k], poles[j], discrete)
    return p, q


def h2(poles, residues, discrete):
    """sqrt of sum |K|^2 or of the integral of |g|^2."""
    total = mp.mpf(0)
    for p, r in zip(poles, residues):
        for q, s in zip(poles, residues):
            total += (r * mp.conj(s) * cauchy(p, q, discrete)).real
    return mp.sqrt(total) if total > 0 else mp.mpf(0)


def balance(poles, residues, discrete):
    """Hankel values and the factors of the square-root method (none for an empty system)."""
    if not poles:
        return [], None
    p, q = gramians(poles, residues, discrete)
    lc, lo = mp.cholesky(p), mp.cholesky(q)
    u, s, vh = mp.svd_c(lo.H * lc)
    s = list(s)
    trace = (p * q)
    trace = mp.fsum(trace[i, i].real for i in range(len(s)))
    assert abs(trace - mp.fsum(x * x for x in s)) < mp.mpf(10) ** (-DIGITS) * trace
    return s, (lc, lo, u, vh)


def truncate(poles, s, factors, q):
    """Poles and residues of the balanced truncation to order q (input weights were 1)."""
    lc, lo, u, vh = factors
    scale = mp.diag([1 / mp.sqrt(x) for x in s[:q]])
    right = lc * vh[:q, :].H * scale
    left = scale * u[:, :q].H * lo.H
    n = len(poles)
    a = left * mp.diag(poles) * right
    b = left * mp.ones(n, 1)
    mu, v = mp.eig(a)
    return mu, right * v, mp.lu_solve(v, b)


def kernel(poles, residues, count=16):
    return [mp.fsum((r * p**l).real for p, r in zip(poles, residues)) for l in range(count)]


def orders(s):
    """Up to three orders, spread out, at which truncation is well defined."""
    good = [q for q in range(1, len(s)) if s[q - 1] > FLOOR * s[0] and s[q - 1] - s[q] > TIE * s[q - 1]]
    return sorted({good[round(f * (len(good) - 1))] for f in (0.2, 0.5, 0.9)}) if good else []


# --- output ------------------------------------------------------------------


def text(x):
    return mp.nstr(x, DIGITS, min_fixed=0, max_fixed=1) if x else "0"


def values(s, order):
    return [text(x) for x in s] + ["0"] * (order - len(s))


def solve(lam, b, c, step, real):
    """All results for one system as strings."""
    poles, residues, order = modes(lam, b, c, real)
    s, _ = balance(poles, residues, False)
    out = {"order": order, "minimal_order": len(poles)}
    out["continuous"] = {"hsv": values(s, order), "h2": text(h2(poles, residues, False))}
    a, rho = hold(poles, residues, step)
    s, factors = balance(a, rho, True)
    disc = {"hsv": values(s, order), "h2": text(h2(a, rho, True))}
    if real:
        disc["kernel_0_15"] = [text(x) for x in kernel(a, rho)]
        disc["truncations"] = []
        for q in orders(s):
            mu, cv, vb = truncate(a, s, factors, q)
            cr = mp.matrix([rho]) * cv
            reduced = [cr[i] * vb[i] for i in range(q)]
            error = h2(list(a) + list(mu), list(rho) + [-r for r in reduced], True)
            row = {"order": q, "h2_error": text(error)}
            row["kernel_0_15"] = [text(x) for x in kernel(mu, reduced)]
            disc["truncations"].append(row)
    out["discrete"] = disc
    return out


def at_two_precisions(name, *arguments):
    """Solve at d and d + 60 digits; the printed digits must agree."""
    digits = 4000 if name == "stiff" else 260
    results = []
    for extra in (0, 60):
        mp.mp.dps = digits + extra
        results.append(solve(*arguments))
    assert results[0] == results[1], name
    return results[1]


def check_by_svd(system, result):
    """A well damped system: SVD of its (long) Hankel matrix, in double precision."""
    name, _, lam, b, c, _ = system
    step, size = 0.25, 512
    z = np.array(lam) * step
    rho = np.array(b) * np.array(c) * np.expm1(z) / np.array(lam)
    k = np.exp(np.outer(np.arange(2 * size), z)) @ rho
    for real in (True, False):
        response = k.real if real else k
        index = np.arange(size)
        s = np.linalg.svd(response[index[:, None] + index[None, :]], compute_uv=False)
        mp.mp.dps = 100
        disc = solve(lam, b, c, step, real)["discrete"]
        ours = np.array([float(x) for x in disc["hsv"]])
        worst = np.max(np.abs(ours - s[: len(ours)])) / s[0]
        assert worst < 1e-12 and s[len(ours)] < 1e-12 * s[0], worst
        assert abs(float(disc["h2"]) - np.linalg.norm(response)) < 1e-12 * np.linalg.norm(response)
    print(f"check: SVD of the {size} x {size} Hankel matrix of {name} agrees to {worst:.1e}")


def pairs(values):
    return [[z.real, z.imag] for z in values]


def main():
    out = []
    for name, note, lam, b, c, step in systems():
        lam, b, c = complexes(lam), complexes(b), complexes(c)
        system = (name, note, lam, b, c, step)
        row = {"name": name, "note": note, "step": step}
        row |= {"lambda": pairs(lam), "b": pairs(b), "c": pairs(c)}
        for kind in ("real", "complex"):
            row[kind] = at_two_precisions(name, lam, b, c, step, kind == "real")
        if name == "lin4":
            check_by_svd(system, row)
        s = row["real"]["discrete"]["hsv"]
        cut = [t["order"] for t in row["real"]["discrete"]["truncations"]]
        print(f"{name:18} real order {row['real']['order']:2}  s_1 {s[0][:8]}  s_n {s[-1][:5]}...{s[-1][-5:]}  cut at {cut}")
        out.append(row)
    about = (
        "Hankel singular values (descending, 30 digits, zeros for unreachable or unobservable states), H2 norms, "
        "balanced truncations (discrete, real) of diagonal systems; made by make_real_hankel.py, which states the "
        "conventions. Numbers are the binary64 inputs as [re, im]; strings are results."
    )
    path = pathlib.Path(__file__).with_name("real_hankel.json")
    lines = ",\n".join(json.dumps(row) for row in out)
    path.write_text(f'{{"about": {json.dumps(about)},\n"systems": [\n{lines}\n]}}\n')
    print(f"{len(out)} systems, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
