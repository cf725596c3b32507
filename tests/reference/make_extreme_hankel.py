"""Hankel values of a system whose weights differ by hundreds of orders of magnitude (mpmath, 900 digits).

    python tests/reference/make_extreme_hankel.py    # prints the values in crates/control/src/control/mirrored.rs

Eight modes lambda_k with inputs b_k and outputs c_k, one of them without weight, in continuous time and with
a step of 0.1 (x_k = a x_{k-1} + b u_k). "complex" is that system, "real" the one with output Re(.), whose
poles are lambda_k and conj(lambda_k) with residues halved; a real pole counts once.

Hankel values depend on the residues w = c b alone, so b = c = sqrt(w) are taken. Then the observability
Gramian is the conjugate of the controllability Gramian P, and the values are the square roots of the
eigenvalues of P conj(P).
"""

import mpmath as mp

mp.mp.dps = 900
SIZES = [1e-170, 1.0, 0.0, 1e140, 1e-3, 1.0, 1.0, 1e5]
POLES = [mp.mpc(-0.2 - 0.1 * float(k), float(3 * k % 7)) for k in range(8)]
INPUTS = [mp.mpc(size, -0.5 * size) for size in SIZES]
OUTPUTS = [mp.mpc(0.3, min(SIZES[7 - k], 1e10)) for k in range(8)]
STEP = mp.mpf(0.1)


def modes(real):
    for pole, b, c in zip(POLES, INPUTS, OUTPUTS):
        residue = b * c
        if residue == 0:
            continue
        if not real:
            yield pole, residue
        elif pole.imag == 0:
            yield pole, mp.mpc(residue.real)
        else:
            yield pole, residue / 2
            yield mp.conj(pole), mp.conj(residue) / 2


def values(real, discrete):
    all_modes = list(modes(real))
    gramian = mp.matrix(len(all_modes), len(all_modes))
    for i, (p, w) in enumerate(all_modes):
        for j, (q, v) in enumerate(all_modes):
            total = p + mp.conj(q)
            gap = -mp.expm1(total * STEP) if discrete else -total
            gramian[i, j] = mp.sqrt(w) * mp.conj(mp.sqrt(v)) / gap
    squares = mp.eig(gramian * gramian.apply(mp.conj), left=False, right=False)
    return sorted((mp.sqrt(abs(square)) for square in squares), reverse=True)


for discrete in (False, True):
    for real in (False, True):
        print("discrete" if discrete else "continuous", "real" if real else "complex")
        print("   ", ", ".join(mp.nstr(value, 17) for value in values(real, discrete)))
