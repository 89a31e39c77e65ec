"""Moments on a core's clock, of which some are not known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import is_not

__all__ = ["known"]

known: Callable[[Iterable[float | None]], Iterator[float]] = partial(filter, partial(is_not, None))
"""Those of some moments that are not None. It makes no Python call for each of them."""
