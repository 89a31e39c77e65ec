"""The tasks of a map, and their results on the way to it."""

from __future__ import annotations

from collections import deque
from typing import Any

from attrs import define, field

from mwpy._values.task import Result

__all__ = ["MapTasks"]


@define(eq=False)
class MapTasks:
    """The tasks of one map. This object is the tag of each of them."""

    open: dict[int, tuple[int, Any, int]] = field(factory=dict)
    """The tasks whose results were not taken from `arrived`, by id: position in the map, item, bytes of arguments."""
    arrived: deque[Result[Any]] = field(factory=deque)
    """Results that arrived. An interrupt may leave the result of one task here twice."""
    early: dict[int, Result[Any]] = field(factory=dict)
    """Results that were taken from `arrived` and wait for their turn, by position."""
    closed: bool = False
    """Whether nobody will take a result."""
    last: int = 0
    """The id of the last task that was submitted before the map was closed."""
