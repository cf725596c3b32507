"""``progress=``: a callable, or True for a bar."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Optional, Union

Callback = Callable[[str, int, int], object]
Progress = Union[bool, Callback, None]


class _Bar:
    """One tqdm bar for each stage, or a line on stderr where tqdm is not installed."""

    def __init__(self) -> None:
        self.stage = ""
        self.bar: Any = None
        try:
            from tqdm.auto import tqdm
        except ImportError:
            self.make: Any = None
        else:
            self.make = tqdm

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self.make is None:
            sys.stderr.write(f"\r{stage}: {done}/{total}" + ("\n" if done >= total else ""))
            sys.stderr.flush()
            return
        if stage != self.stage:
            self.close()
            self.stage, self.bar = stage, self.make(total=total, desc=stage)
        self.bar.n = done
        self.bar.refresh()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class following:
    """``with following(progress) as callback``: what the core calls, closed in the end."""

    def __init__(self, progress: Progress) -> None:
        self.bar = _Bar() if progress is True else None
        self.given = progress if callable(progress) else None

    def __enter__(self) -> Optional[Callback]:
        return self.bar or self.given

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
