"""Rademacher bounds in 40 digits, straight from the equations of the paper (specification,
section 7). The figures stand in tests/bounds.rs. Run: python tests/reference/bounds.py"""

from mpmath import mp, mpf, log, sqrt

mp.dps = 40
N, M, H = 8000, 51, 1024


def geo(q, k):
    return sum(mpf(q) ** i for i in range(k))


def first(layers, steps):
    return sqrt(2 * (4 * layers * steps * log(2) + log(M) + log(H)) / N)


def products(alpha):
    out = [mpf(1)]
    for a in reversed(alpha):
        out.insert(0, mpf(a) * out[0])
    return out


def bound_15(alpha, beta, steps, bx, h0):
    lam = products(alpha)
    gain = sum(mpf(b) * l for b, l in zip(beta, lam[1:]))
    inner = (gain * geo(lam[0], steps) * mpf(bx)) ** 2 + lam[0] ** (2 * steps) * mpf(h0) ** 2
    return first(len(alpha), steps) * sqrt(inner)


def bound_18(a1, a2, b1, b2, layers, bx, bh):
    a1, a2, b1, b2 = map(mpf, (a1, a2, b1, b2))
    state = a1 * a2 ** (layers - 1) + b2 * geo(a2, layers - 1)
    inner = (b1 * geo(a2, layers) * mpf(bx)) ** 2 + (state * mpf(bh)) ** 2
    return first(layers, 1) * sqrt(inner)


def bound_52(gate, recurrent, inputs, steps, b, n):
    x = mpf(gate) * (2 * mpf(recurrent) - 1)
    return 2 * mpf(gate) / sqrt(n) * mpf(b) * mpf(inputs) * geo(1 + x, steps + 1)


def bound_55(frobenius, spectral, outputs, steps, b, delta):
    w, u, y = map(mpf, spectral)
    zeta = max(w ** (2 * steps - 2), 1) * max(u * u, 1) * max(y * y, 1)
    xi = mpf(max(M, outputs, H))
    total = sum(mpf(f) ** 2 for f in frobenius)
    main = mpf(b) ** 2 * mpf(steps) ** 4 * xi * log(xi) * total * zeta
    return sqrt((main + log(N / mpf(delta))) / N)


def show(name, value):
    print(f"{name}: {mp.nstr(value, 16)}")


show("(16)", bound_15(["0.8", "0.9", "0.9"], ["0.5"] * 3, 1, 1, "1.2"))
show("(18)", bound_18("0.8", "0.9", "0.5", "0.3", 3, 1, "1.2"))
show("(56) alpha 0.9", first(1, 20) * mpf("0.5") * geo("0.9", 20))
show("(56) alpha 1", first(1, 20) * mpf("0.5") * geo(1, 20))
show("(15)", bound_15(["0.9"] * 3, ["0.5"] * 3, 20, 1, "0.1"))
show("(52)", bound_52("0.02", "0.9", "0.7", 20, "1.5", N))
show("(52) alpha_F 1/2", bound_52("0.02", "0.5", "0.7", 20, "1.5", N))
show("(55)", bound_55(["3", "2", "1"], ["1.1", "0.9", "1.2"], 10, 20, "1.5", "0.05"))
show("(14)", 2 * mpf("0.25") + 4 * 3 * sqrt(2 * log(4 / mpf("0.05")) / N))
show("geo(1 + 1e-9, 1000)", geo(mpf(1) + mpf(2) ** -30, 1000))
