"""Many sizes of one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Optional

from ._model import Reduced, _open, reduce
from ._progress import Progress
from ._sources import DECLARED
from .statistics import Statistics


def sweep(
    source: Any,
    statistics: Optional[Statistics] = None,
    *,
    orders: Iterable[int] = (),
    budgets: Iterable[float] = (),
    score: Optional[Callable[[Reduced], Any]] = None,
    progress: Progress = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Reduces a model to several sizes: a list of dictionaries, ready for ``pandas.DataFrame``.

    Args:
        source: a model in any form that :func:`hankelite.read` takes.
        statistics: as for :func:`hankelite.reduce`.
        orders: orders, one row each; by default halves of the largest order.
        budgets: shares of all states, one row each; with statistics.
        score: called with each :class:`hankelite.Reduced`; what it gives stands under ``score``.
        progress, settings: as for :func:`hankelite.reduce`.

    >>> import hankelite as hk
    >>> [(row["order"], row["states"]) for row in hk.sweep(example, orders=[16, 8])]
    [(16, 512), (8, 256)]
    """
    names = [key for key in settings if key in DECLARED]
    model = _open(source, {key: settings.pop(key) for key in names})
    sizes: list[dict[str, Any]] = [{"order": order} for order in orders]
    sizes += [{"budget": budget} for budget in budgets]
    if not sizes:
        most = max(int(order.max()) for order in model.orders.values())
        sizes = [{"order": most >> k} for k in range(1, most.bit_length())]
    rows = []
    for size in sizes:
        small = reduce(model, statistics=statistics, progress=progress, **size, **settings)
        h2 = [layer["relative_h2_error"] for layer in small.records]
        row: dict[str, Any] = {
            "order": size.get("order"),
            "budget": size.get("budget"),
            "states": small.states,
            "parameters": small.parameters,
            "h2_error": None if None in h2 else max(h2),
            "weighted_error": None if small.choice is None else small.choice["relative_error"],
        }
        if score is not None:
            row["score"] = score(small)
        rows.append(row)
    return rows
