"""The functions for bare arrays against SciPy, slycot and python-control."""

import numpy as np
import pytest
from conftest import need

from hankelite import control, errors

linalg = need("scipy.linalg")


def random_system(n, inputs=1, outputs=1, seed=0, step=None):
    rng = np.random.default_rng(seed)
    poles = -rng.uniform(0.2, 2.0, n) + 1j * rng.uniform(0.5, 8.0, n)
    b = rng.normal(size=(n, inputs)) + 1j * rng.normal(size=(n, inputs))
    c = rng.normal(size=(outputs, n)) + 1j * rng.normal(size=(outputs, n))
    return (poles, b, c, step)


def real_matrices(poles, b, c, step):
    """The real system of twice the order whose output is Re(c x)."""
    a = poles if step is None else np.exp(poles * step)
    n = len(a)
    big = np.zeros((2 * n, 2 * n))
    big[:n, :n], big[n:, n:] = np.diag(a.real), np.diag(a.real)
    big[:n, n:], big[n:, :n] = -np.diag(a.imag), np.diag(a.imag)
    return big, np.vstack([b.real, b.imag]), np.hstack([c.real, -c.imag])


def scipy_values(poles, b, c, step):
    a, b, c = real_matrices(poles, b, c, step)
    solve = linalg.solve_discrete_lyapunov if step else linalg.solve_continuous_lyapunov
    sign = 1 if step else -1
    reach, observe = solve(a, sign * b @ b.T), solve(a.T, sign * c.T @ c)
    return np.sqrt(np.abs(np.sort_complex(linalg.eigvals(reach @ observe))[::-1]))


@pytest.mark.parametrize("step", [None, 0.1])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 3)])
def test_hankel_values_are_those_of_scipy(step, sizes):
    system = random_system(4, *sizes, step=step)
    ours, theirs = control.hankel_values(*system), scipy_values(*system)
    # SciPy forms the product of the Gramians: half the digits of the smallest values are gone.
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7 * theirs[0])


@pytest.mark.parametrize("step", [None, 0.1])
def test_hankel_values_are_those_of_slycot(step):
    slycot = need("slycot")
    poles, b, c, _ = random_system(6, 2, 2, seed=1, step=step)
    a, b_real, c_real = real_matrices(poles, b, c, step)
    dico = "D" if step else "C"
    *_, values = slycot.ab09ad(dico, "B", "N", len(a), 2, 2, a, b_real, c_real, nr=4)
    ours = control.hankel_values(poles, b, c, step)
    np.testing.assert_allclose(ours, values, rtol=1e-9, atol=1e-12 * ours[0])


def test_truncation_and_norms_are_those_of_python_control():
    peer = need("control")
    need("slycot")
    poles, b, c, _ = random_system(5, seed=2)
    full = peer.ss(*real_matrices(poles, b, c, None), np.zeros((1, 1)))
    values = control.hankel_values(poles, b, c)
    np.testing.assert_allclose(values, peer.hankel_singular_values(full), rtol=1e-6)
    cut = control.balanced_truncation(poles, b, c, states=4)
    theirs = peer.balanced_reduction(full, 4, method="truncate")
    frequencies = np.logspace(-1, 1.5, 40)
    ours = peer.ss(*real_matrices(cut.poles, cut.b, cut.c, None), cut.d)
    np.testing.assert_allclose(ours(1j * frequencies), theirs(1j * frequencies), rtol=1e-6, atol=1e-9)
    assert control.h2_norm(poles, b, c) == pytest.approx(peer.system_norm(full, 2), rel=1e-8)
    norm = control.hinf_norm(poles, b, c)
    assert norm.value == pytest.approx(peer.system_norm(full, "inf"), rel=1e-5)
    assert norm.value <= norm.upper <= norm.value * (1 + 1e-8)


def test_the_error_of_a_truncation_is_within_its_bound():
    poles, b, c, step = random_system(8, seed=3, step=0.05)
    for states in (2, 4, 8):
        cut = control.balanced_truncation(poles, b, c, step, states=states)
        both = np.concatenate([poles, cut.poles])
        weights = np.vstack([b, cut.b]), np.hstack([c, -cut.c])
        error = control.hinf_norm(both, *weights, step)
        assert error.value <= cut.error_bound * (1 + 1e-9)
        values = control.hankel_values(poles, b, c, step)
        assert cut.error_bound == pytest.approx(2 * values[states:].sum(), rel=1e-12)
        assert error.upper >= values[states]


def test_the_complex_realisation_has_one_value_for_each_mode():
    poles, b, c, _ = random_system(5, seed=4)
    values = control.hankel_values(poles, b, c, realisation="complex")
    reach = -(b @ b.conj().T) / (poles[:, None] + poles[None, :].conj())
    observe = -(c.conj().T @ c) / (poles[:, None].conj() + poles[None, :])
    theirs = np.sqrt(np.sort(np.linalg.eigvals(reach @ observe).real)[::-1])
    np.testing.assert_allclose(values, theirs, rtol=1e-6)


def test_the_smallest_values_keep_their_digits():
    # Two equal modes but for 1e-9: the second value is about that small, and SciPy's is noise.
    poles, c = np.array([-1.0, -1.0 - 1e-9]), np.array([1.0, -1.0])
    small = control.hankel_values(poles, c=c)
    # sigma1 sigma2 = |det| of the cross Gramian of these two modes, by hand.
    product = (1e-9 / (2 + 1e-9)) ** 2 / (4 * (1 + 1e-9))
    assert small[0] * small[1] == pytest.approx(product, rel=1e-6)


def test_what_is_wrong_is_said():
    with pytest.raises(errors.UnstableModes, match="1 of 2 modes do not decay") as caught:
        control.hankel_values([-1.0, 0.5 + 2j])
    assert caught.value.layer is None
    assert caught.value.modes == [1]
    assert caught.value.poles.tolist() == [0.5 + 2j]
    assert isinstance(caught.value, ValueError)
    with pytest.raises(errors.ControlError, match="shape"):
        control.hankel_values([-1.0, -2.0], b=np.ones((3, 1)))
    with pytest.raises(errors.ControlError, match="not finite"):
        control.hankel_values([-1.0, np.nan])
    with pytest.raises(errors.ControlError, match="step"):
        control.hankel_values([-1.0], step=-1.0)
    with pytest.raises(errors.InvalidSetting, match="realisation"):
        control.hankel_values([-1.0], realisation="imaginary")
    with pytest.raises(errors.InvalidSetting, match="states"):
        control.balanced_truncation([-1.0], states=0)
