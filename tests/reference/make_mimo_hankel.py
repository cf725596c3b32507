"""Hankel singular values of small diagonal systems with several inputs and outputs (mpmath).

    python tests/reference/make_mimo_hankel.py          # writes mimo_hankel.json

A system is a set of complex modes lambda_i with rows b_i of B (n x m), columns
c_i of C (p x n) and a step Delta; all inputs are binary64 numbers (decimals of
at most 6 digits, products of which are rounded once, see `rounded_parallel`).

Systems whose values are given
    continuous  G(t) = sum_i c_i b_i exp(lambda_i t)
    discrete    K[l] = sum_i c_i b_i a_i^l with a_i = exp(lambda_i Delta): here B
                is taken as it stands, as the input matrix of the discrete system
"complex" is that system with complex output, order n. "real" is the system with
output Re(.): poles lambda_i and conj(lambda_i), rows b_i and conj b_i, columns
c_i/2 and conj(c_i)/2. An exactly real pole has the residue Re(c_i b_i), whose
rank (1 or 2) is the number of its states.

Method: the Gramians are formed entry by entry, factored by Cholesky with
diagonal pivoting up to their rank, and the HSV are the singular values of the
product of the factors; balanced truncation by the square-root method. Values
below 1e-100 of the largest are exact zeros. Every system is computed at 320 and
at 380 digits, which have to agree to the digits printed.
"""

import json
import pathlib

import mpmath as mp
import numpy as np

DIGITS = 22
ZERO = mp.mpf(10) ** -100


def systems():
    """(name, note, lambda, B, C, Delta) of every system, from fixed seeds."""
    rng = np.random.Generator(np.random.PCG64(20241121))

    def short(x):
        return np.vectorize(lambda v: float(f"{v:.5e}"))(x)

    def normal(*shape):
        return short(rng.standard_normal(shape)) + 1j * short(rng.standard_normal(shape))

    def lin(n):
        return short(-0.5 * np.exp(0.3 * rng.standard_normal(n))) + 1j * short(
            np.pi * np.arange(n) + 0.3 * rng.standard_normal(n)
        )

    def ring(n):
        """The LRU initialisation: |a| in (0.9, 0.999), any phase, Delta = 1."""
        return short(np.log(rng.uniform(0.9, 0.999, n))) + 1j * short(rng.uniform(0, np.pi, n))

    yield "lin", "S4D-Lin scattered, 2 in 3 out", lin(6), normal(6, 2), normal(3, 6), 0.05
    yield "lru", "LRU ring, 4 in 4 out", ring(8), normal(8, 4), normal(4, 8), 1.0
    yield "wide", "more inputs than modes", lin(3), normal(3, 5), normal(4, 3), 0.05
    yield "one_input", "1 in 3 out", lin(5), normal(5, 1), normal(3, 5), 0.05
    yield "one_output", "3 in 1 out", lin(5), normal(5, 3), normal(1, 5), 0.05
    yield "real_rank_2", "real poles, complex rows: two states each", -np.arange(1.0, 5) + 0j, normal(4, 2), normal(2, 4), 0.1
    yield "real_rank_1", "real poles, real rows: one state each", -np.arange(1.0, 7) + 0j, normal(6, 2).real + 0j, normal(2, 6).real + 0j, 0.1
    b = normal(3, 1)
    yield "real_one_input", "real poles, one input: one state each", np.array([-1, -2, -7]) + 0j, b, normal(2, 3), 0.1
    yield "poor", "real poles -1..-12 of two inputs: values over many decades", -np.arange(1.0, 13) + 0j, normal(12, 2).real + 0j, normal(2, 12).real + 0j, 0.01
    l = np.repeat(np.array([-0.5 + 3j, -0.7 + 9j]), 4)
    l = l + short(1e-6 * rng.standard_normal(8)) + 1j * short(1e-6 * rng.standard_normal(8))
    yield "cluster", "two clusters of four poles, 1e-6 apart", l, normal(8, 2), normal(2, 8), 0.05
    l = np.array([-0.5 + 3j, -0.5 + 3j, -0.8 + 7j, -0.5 + 3j])
    yield "repeated", "one pole three times, two inputs: rank 3 of 4", l, normal(4, 2), normal(2, 4), 0.05
    l = np.array([-0.5 + 3j, -0.5 - 3j, -0.8 + 7j, -0.8 - 7j])
    b, c = normal(2, 2), normal(2, 2)
    b = np.array([b[0], b[0].conj(), b[1], b[1].conj()])
    c = np.array([c[:, 0], c[:, 0].conj(), c[:, 1], c[:, 1].conj()]).T
    yield "closed", "stored with all conjugates: real order 4", l, b, c, 0.05
    l, b = lin(6), normal(6, 2)
    for i in range(1, 6):  # rows parallel to the first but for their last bits
        factor = complex(*short(rng.standard_normal(2)))
        b[i] = b[0] * factor
    l[1:3] = l[0]
    yield "rounded_parallel", "rows of B parallel to rounding, one pole three times", l, b, normal(2, 6), 0.05
    b = normal(6, 2)
    b[:, 1] *= 1e-12
    yield "weak_input", "a second input of 1e-12", lin(6), short(b.real) + 1j * short(b.imag), normal(2, 6), 0.05
    l = lin(5)
    l[[0, 2]] = [-0.5 + 1e-8j, -0.9 - 1e-9j]
    yield "near_real", "two poles with tiny Im, general rows", l, normal(5, 2), normal(2, 5), 0.1
    b = normal(5, 2).real + 0j
    yield "near_real_real_rows", "the same with real B", l, b, normal(2, 5), 0.1
    l = lin(5)
    l[1] = -1e-8 + 3.3j
    yield "near_axis", "one pole with Re = -1e-8", l, normal(5, 2), normal(2, 5), 0.05
    l = ring(6)
    yield "tiny_step", "Delta = 1e-6", l, normal(6, 2), normal(2, 6), 1e-6
    yield "huge_step", "Delta = 50: poles near zero", l - 0.2, normal(6, 2), normal(2, 6), 50.0
    l = l + 1j * short(1e4 * rng.standard_normal(6))
    yield "aliased", "Im lambda Delta about 1e5", l, normal(6, 2), normal(2, 6), 10.0
    l = short(-(10.0 ** rng.uniform(-3, 3, 6))) + 1j * short(10.0 ** rng.uniform(-2, 3, 6))
    scale = 10.0 ** rng.uniform(-3, 3, 6)
    b = normal(6, 2) * scale[:, None]
    yield "scaled", "rates and weights over six decades", l, short(b.real) + 1j * short(b.imag), normal(2, 6), 0.01


def matrix(x):
    x = np.atleast_2d(x)
    return mp.matrix([[mp.mpc(v) for v in row] for row in x.tolist()])


def real_part_factors(b, c):
    """Real rows B' and columns C' with C' B' = Re(c b), as many as its rank."""
    b1 = mp.matrix([[v.real for v in b], [v.imag for v in b]])
    c1 = mp.matrix([[v.real, -v.imag] for v in c])
    m, p = len(b), len(c)

    def rank_one(x, y):  # all 2 x 2 minors of two real vectors are zero
        return all(x[i] * y[j] == x[j] * y[i] for i in range(len(x)) for j in range(i))

    b_one = rank_one([v.real for v in b], [v.imag for v in b])
    c_one = rank_one([v.real for v in c], [v.imag for v in c])
    if not (b_one or c_one):
        return b1, c1
    if b_one:
        u = max(b, key=abs)
        u = u / abs(u) if u else mp.mpc(1)
        return (
            mp.matrix([[(v * mp.conj(u)).real for v in b]]),
            mp.matrix([[(v * u).real] for v in c]),
        )
    u = max(c, key=abs)
    u = u / abs(u) if u else mp.mpc(1)
    return (
        mp.matrix([[(v * u).real for v in b]]),
        mp.matrix([[(v * mp.conj(u)).real] for v in c]),
    )


def realisation(lam, b, c, real):
    """Poles (list), rows of B and columns of C (lists of lists)."""
    poles, rows, columns = [], [], []
    for i, l in enumerate(lam):
        l = mp.mpc(l)
        bi, ci = [mp.mpc(v) for v in b[i]], [mp.mpc(v) for v in c[:, i]]
        if not real:
            parts = [(l, bi, ci)]
        elif l.imag == 0:
            br, cr = real_part_factors(bi, ci)
            parts = [(l, [br[s, j] for j in range(br.cols)], [cr[j, s] for j in range(cr.rows)]) for s in range(br.rows)]
        else:
            half = [v / 2 for v in ci]
            parts = [(l, bi, half), (mp.conj(l), [mp.conj(v) for v in bi], [mp.conj(v) for v in half])]
        for pole, row, column in parts:
            poles.append(pole)
            rows.append(row)
            columns.append(column)
    return poles, mp.matrix(rows), mp.matrix(columns).T


def gramians(poles, b, c, discrete):
    n = len(poles)
    bb, cc = b * b.H, c.H * c
    p, q = mp.matrix(n, n), mp.matrix(n, n)
    for i in range(n):
        for j in range(n):
            x, y = poles[i], mp.conj(poles[j])
            gap = 1 - x * y if discrete else -(x + y)
            p[i, j] = bb[i, j] / gap
            x, y = mp.conj(poles[i]), poles[j]
            gap = 1 - x * y if discrete else -(x + y)
            q[i, j] = cc[i, j] / gap
    return p, q


def factor(w):
    """F with W = F F*: pivoted Cholesky, columns up to the rank."""
    n = w.rows
    w = w.copy()
    columns, top = [], max(w[i, i].real for i in range(n))
    active = list(range(n))
    while active:
        k = max(active, key=lambda i: w[i, i].real)
        if w[k, k].real <= top * ZERO:
            break
        column = [w[i, k] / mp.sqrt(w[k, k].real) if i in active else mp.mpc(0) for i in range(n)]
        for i in active:
            for j in active:
                w[i, j] -= column[i] * mp.conj(column[j])
        active.remove(k)
        columns.append(column)
    f = mp.matrix(n, len(columns))
    for j, column in enumerate(columns):
        for i in range(n):
            f[i, j] = column[i]
    return f


def text(x, digits=DIGITS):
    return mp.nstr(x, digits, min_fixed=0, max_fixed=0) if x else "0"


def markov(poles, b, c, count, real):
    """C A^l B for l < count, entries row by row."""
    out = []
    for l in range(count):
        value = c * mp.diag([p**l for p in poles]) * b
        out.append([text(v.real, 17) if real else text(v, 17) for v in value])
    return out


def solve(lam, b, c, step, real, cuts):
    poles, rows, columns = realisation(lam, b, c, real)
    out = {"order": len(poles)}
    for discrete in (False, True):
        nodes = [mp.exp(l * mp.mpf(step)) for l in poles] if discrete else poles
        p, q = gramians(nodes, rows, columns, discrete)
        fc, fo = factor(p), factor(q)
        u, s, vh = mp.svd_c(fo.H * fc)
        s = [x for x in s if x > s[0] * ZERO]
        h2 = mp.sqrt(mp.fsum(x.real for x in [(columns * p * columns.H)[i, i] for i in range(columns.rows)]))
        block = {"hsv": [text(x) for x in s] + ["0"] * (len(poles) - len(s)), "h2": text(h2)}
        if cuts and discrete and real:
            block["truncations"] = []
            for r in [r for r in cuts if r < len(s)]:
                scale = mp.diag([1 / mp.sqrt(x) for x in s[:r]])
                right = fc * vh[:r, :].H * scale
                left = scale * u[:, :r].H * fo.H
                a = left * mp.diag(nodes) * right
                br, cr = left * rows, columns * right
                kernel, power = [], mp.eye(r)
                for _ in range(6):
                    kernel.append([text(v.real, 17) for v in cr * power * br])
                    power = power * a
                # H2 error from the Gramian of the difference
                mu, v = mp.eig(a)
                bm, cm = mp.inverse(v) * br, cr * v
                allp = nodes + list(mu)
                allb = mp.matrix([[rows[i, j] for j in range(rows.cols)] for i in range(len(nodes))] + [[bm[i, j] for j in range(rows.cols)] for i in range(r)])
                allc = mp.matrix([[columns[i, j] for j in range(len(nodes))] + [-cm[i, j] for j in range(r)] for i in range(columns.rows)])
                w, _ = gramians(allp, allb, allc, True)
                error = mp.sqrt(mp.fsum((allc * w * allc.H)[i, i].real for i in range(allc.rows)))
                block["truncations"].append({"order": r, "h2_error": text(error, 17), "markov": kernel})
        out["discrete" if discrete else "continuous"] = block
    return out


def at_two_precisions(name, *arguments):
    results = []
    for digits in (320, 380):
        mp.mp.dps = digits
        results.append(solve(*arguments))
    assert results[0] == results[1], name
    return results[1]


def numbers(x):
    """Complex numbers as [re, im]."""
    return [[z.real, z.imag] for z in np.asarray(x).ravel()]


def main():
    out = []
    for name, note, lam, b, c, step in systems():
        lam, b, c = np.asarray(lam, complex), np.asarray(b, complex), np.asarray(c, complex)
        row = {"name": name, "note": note, "step": step, "inputs": b.shape[1], "outputs": c.shape[0]}
        row |= {"lambda": numbers(lam), "b": numbers(b), "c": numbers(c)}
        cuts = [2, 5] if name in ("lin", "lru", "real_rank_2", "one_input", "wide", "closed", "tiny_step") else []
        for kind in ("real", "complex"):
            row[kind] = at_two_precisions(name, lam, b, c, step, kind == "real", cuts)
        s = row["real"]["discrete"]["hsv"]
        print(f"{name:20} real order {row['real']['order']:2}  s_1 {s[0][:9]}  s_n {s[-1][:6]}...{s[-1][-5:]}", flush=True)
        out.append(row)
    about = (
        "Hankel singular values (descending, 22 digits), H2 norms and balanced truncations of diagonal systems with "
        "several inputs and outputs; made by make_mimo_hankel.py, which states the conventions. Numbers are the "
        "binary64 inputs as [re, im], B and C row by row; strings are results."
    )
    path = pathlib.Path(__file__).with_name("mimo_hankel.json")
    lines = ",\n".join(json.dumps(row) for row in out)
    path.write_text(f'{{"about": {json.dumps(about)},\n"systems": [\n{lines}\n]}}\n')
    print(f"{len(out)} systems, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
