"""Constants of the finite-time analysis of shallow transformers, in 30 digits.

Arda, Cayci and Eryilmaz, Lemmas 2, 3 and 5, Theorem 1; m = 256, d = 8, rho = nu = (3, 3, 3),
n_s = 5000, delta = delta' = 0.05, tanh. Needs mpmath; prints the rows that stand in
src/bounds/finite_time.rs.
"""

from mpmath import log, mp, mpf, nstr, sqrt

mp.dps = 30
m, d, n_s, delta = mpf(256), mpf(8), mpf(5000), mpf(5) / 100
rho_c = rho_u = rho_w = nu_c = nu_u = nu_w = mpf(3)
a0, a1, a2 = mpf(1), mpf(1), 4 / (3 * sqrt(mpf(3)))

B_U = sqrt(d) + sqrt(2 * log(m / (2 * delta))) + rho_u / sqrt(m)
L1 = a1 * sqrt(1 + B_U**2)
L2 = a2 * (1 + B_U**2) + 8 * a1 * sqrt(1 + B_U**2)
move = sqrt(rho_u**2 + rho_w**2)
nu, rho = sqrt(nu_c**2 + nu_u**2 + nu_w**2), sqrt(rho_c**2 + rho_u**2 + rho_w**2)
B_lin = (L1 * rho_c * move + L2 * move**2) / sqrt(m)
B_app = 2 * (a0 * nu_c + a1 * nu_u + a1 * nu_w) * sqrt(2 * log(2 * n_s / delta) / m)
B_CoF = ((L1 + L2) * move + rho_c * L1) * (nu + rho) / sqrt(m)
A = a0 + (1 + rho_c / sqrt(m)) * L1
f_max = L1 * move + a0 * rho_c
y_max = a0 * nu_c + a1 * nu_u + a1 * sqrt(d) * nu_w
B_grad = 4 * (f_max + y_max) ** 2 * A**2
theorem = (nu**2 + B_grad) / (4 * sqrt(mpf(4000))) + (f_max + y_max) * (B_app + B_lin + B_CoF)

rows = [
    ("B_U", "neuron()", B_U),
    ("L1", "lipschitz()", L1),
    ("L2", "smoothness()", L2),
    ("B_lin", "linearisation()", B_lin),
    ("B_app", "approximation()", B_app),
    ("B_CoF", "drift()", B_CoF),
    ("A", "gradient()", A),
    ("f_max", "output()", f_max),
    ("y_max", "label()", y_max),
    ("B_grad", "loss_gradient()", B_grad),
    ("theorem", "least_loss(4000)", theorem),
    ("average", "average_iterate_loss(4000)", 4 * theorem + 6 * B_lin**2),
]
for name, call, value in rows:
    print(f'("{name}", bounds.{call}, {nstr(value, 16, min_fixed=-20, max_fixed=20)}),')
