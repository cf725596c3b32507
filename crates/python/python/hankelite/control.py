"""Hankel theory for bare arrays: diagonal systems with any numbers of inputs and outputs.

A system is given by its poles and weights::

    continuous (step=None):  dx/dt = diag(poles) x + b u,         y = Re(c x) + d u
    discrete (step=T):       x[k]  = exp(poles T) x[k-1] + b u[k],  y = Re(c x) + d u

``poles`` has shape (n,) and is in both cases the exponent lambda in continuous time, so that
nothing is lost next to the unit circle; from discrete poles ``a`` it is ``log(a)`` with ``step=1``.
``b`` has shape (n,) or (n, inputs), ``c`` shape (n,) or (outputs, n); ones by default for ``b``.

With ``realisation="real"`` the system is the real one, Re(c x), of twice the order: what a network
uses when it stores one mode of each conjugate pair. ``realisation="complex"`` takes the modes as
they are.

>>> import numpy as np
>>> from hankelite import control
>>> control.hankel_values([-1.0], c=[1.0])
array([0.5])
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from . import _core
from .errors import InvalidSetting

__all__ = [
    "HinfNorm",
    "Truncation",
    "balanced_truncation",
    "h2_norm",
    "hankel_values",
    "hinf_norm",
]

_Complex = npt.NDArray[np.complex128]


class HinfNorm(NamedTuple):
    """The largest gain that was found, a certified upper bound, and where it is.

    ``frequency`` is in radians per unit of time, in discrete time in radians per sample; infinite
    where the gain rises to the feedthrough.
    """

    value: float
    upper: float
    frequency: float


class Truncation(NamedTuple):
    """A truncated system: one mode for each conjugate pair of the real realisation.

    Attributes:
        poles: exponents lambda, shape (r,).
        b: input weights, shape (r, inputs).
        c: output weights, shape (outputs, r).
        d: feedthrough, shape (outputs, inputs).
        error_bound: twice the sum of the discarded Hankel singular values.
        states: balanced states that were kept.
        condition: of the eigenvectors that made the result diagonal.
    """

    poles: _Complex
    b: _Complex
    c: _Complex
    d: npt.NDArray[np.float64]
    error_bound: float
    states: int
    condition: float


def _system(poles: Any, b: Any, c: Any, d: Any, step: Optional[float]) -> _core._System:
    exponents: _Complex = np.atleast_1d(np.asarray(poles, dtype=np.complex128))
    if exponents.ndim != 1:
        raise InvalidSetting(f"poles have shape {exponents.shape}, expected (n,)")
    n = exponents.size
    inputs: _Complex = np.ones(n, np.complex128) if b is None else np.asarray(b, np.complex128)
    outputs: _Complex = np.asarray(c, dtype=np.complex128)
    inputs = inputs.reshape(n, 1) if inputs.shape == (n,) else inputs
    outputs = outputs.reshape(1, n) if outputs.shape == (n,) else outputs
    if inputs.ndim != 2 or outputs.ndim != 2:
        raise InvalidSetting(
            f"b has shape {inputs.shape} and c {outputs.shape}, expected ({n},) or ({n}, inputs), "
            f"and ({n},) or (outputs, {n})"
        )
    shape = (outputs.shape[0], inputs.shape[1])
    through = np.zeros(shape) if d is None else np.asarray(d, dtype=np.float64)
    through = through.reshape(shape) if through.size == shape[0] * shape[1] else through
    if through.ndim != 2:
        raise InvalidSetting(f"d has shape {through.shape}, expected {shape}")
    return (
        np.ascontiguousarray(exponents),
        np.ascontiguousarray(inputs),
        np.ascontiguousarray(outputs),
        np.ascontiguousarray(through),
        math.nan if step is None else float(step),
    )


def _complex(realisation: str) -> bool:
    if realisation not in ("real", "complex"):
        raise InvalidSetting(f"realisation is {realisation!r}, expected 'real' or 'complex'")
    return realisation == "complex"


def hankel_values(
    poles: npt.ArrayLike,
    b: Optional[npt.ArrayLike] = None,
    c: Optional[npt.ArrayLike] = None,
    step: Optional[float] = None,
    *,
    realisation: str = "real",
) -> npt.NDArray[np.float64]:
    """Hankel singular values, descending, every digit of each.

    They come from factors of the Gramians (a Cauchy matrix), never from the Gramians themselves:
    values of 1e-16 of the largest are still right. O(n^3).

    Args:
        poles, b, c, step: the system, see the module.
        realisation: ``"real"`` (two values for each complex mode, one for each real pole) or
            ``"complex"``.

    Raises:
        UnstableModes: a mode does not decay.
        ControlError: shapes that do not fit, numbers that are not finite.

    >>> hankel_values([-1 + 3j, -2 + 1j], c=[1.0, 0.5]).round(4)
    array([0.3166, 0.1871, 0.0227, 0.0022])
    """
    c = np.ones(np.size(poles)) if c is None else c
    return _core.hankel_values(_system(poles, b, c, None, step), _complex(realisation))


def balanced_truncation(
    poles: npt.ArrayLike,
    b: Optional[npt.ArrayLike] = None,
    c: Optional[npt.ArrayLike] = None,
    step: Optional[float] = None,
    *,
    states: int,
    d: Optional[npt.ArrayLike] = None,
    realisation: str = "real",
) -> Truncation:
    """Keeps the ``states`` leading balanced states and makes the result diagonal.

    Raises:
        UnstableModes: a mode does not decay.
        ControlError: shapes that do not fit, a matrix without a full set of eigenvectors.

    >>> cut = balanced_truncation([-1 + 3j, -2 + 1j], c=[1.0, 0.5], states=2)
    >>> cut.poles.shape, cut.states, round(cut.error_bound, 4)
    ((1,), 2, 0.05)
    """
    c = np.ones(np.size(poles)) if c is None else c
    arrays = _system(poles, b, c, d, step)
    out, bound, kept, condition = _core.balanced_truncation(arrays, states, _complex(realisation))
    exponents, inputs, outputs, through, _ = out
    return Truncation(exponents, inputs, outputs, through, bound, kept, condition)


def h2_norm(
    poles: npt.ArrayLike,
    b: Optional[npt.ArrayLike] = None,
    c: Optional[npt.ArrayLike] = None,
    step: Optional[float] = None,
) -> float:
    """The H2 norm of the real output: the l2 (L2) norm of the kernel, feedthrough left out.

    Raises:
        UnstableModes: a mode does not decay.

    >>> round(h2_norm([-1.0]), 6)  # the root of the integral of exp(-2t)
    0.707107
    """
    c = np.ones(np.size(poles)) if c is None else c
    return _core.h2_norm(_system(poles, b, c, None, step))


def hinf_norm(
    poles: npt.ArrayLike,
    b: Optional[npt.ArrayLike] = None,
    c: Optional[npt.ArrayLike] = None,
    step: Optional[float] = None,
    *,
    d: Optional[npt.ArrayLike] = None,
    realisation: str = "real",
) -> HinfNorm:
    """The H-infinity norm, enclosed between a gain that was found and a certified bound.

    Raises:
        UnstableModes: a mode does not decay.

    >>> hinf_norm([-0.5]).value
    2.0
    """
    c = np.ones(np.size(poles)) if c is None else c
    return HinfNorm(*_core.hinf_norm(_system(poles, b, c, d, step), _complex(realisation)))
