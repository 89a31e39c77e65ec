"""Functions that make spans and definitions for tests, and find tasks in spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mwpy._core.master.commands import Definition
from mwpy._core.master.core import MasterCore
from mwpy._values.algorithm import Algorithm
from mwpy._values.ids import TaskId
from mwpy._values.messages import AlgorithmDefinition
from mwpy._values.task import DEFAULT_POLICY, Span, TaskPolicy


def span(
    first: int,
    algorithm: Algorithm,
    count: int = 1,
    payload: bytes = b"x",
    policy: TaskPolicy = DEFAULT_POLICY,
    tag: object = None,
    buffers: Sequence[bytes] = (),
) -> Span:
    """Return a span of `count` new tasks with the same arguments."""
    return Span(
        TaskId(first), count, algorithm, policy, [payload] * count, [buffers] * count if buffers else [], [tag] * count
    )


def definition(
    number: int,
    algorithm: Algorithm,
    reference: str | None = None,
    function: bytes = b"",
    packages: dict[str, str] | None = None,
) -> Definition:
    """Return a definition by a master with Python 3.11. Its default reference is that of the algorithm."""
    found = algorithm.reference if reference is None else reference
    return Definition(
        algorithm, AlgorithmDefinition(number, algorithm.name, found, "", "3.11", packages or {}), function
    )


def ids_of(spans: Iterable[Span]) -> list[int]:
    """Return the task ids of spans, in order."""
    return [number for each in spans for number in each.ids]


def spans_in(core: MasterCore) -> list[Span]:
    """Return the spans that wait in a master or are at its slaves."""
    queues = [*core.jar.queues.values(), *core.jar.addressed.values()]
    return [each for held in (*queues, *(slave.outstanding for slave in core.stable.slaves.values())) for each in held]


def span_of(core: MasterCore, task: int) -> Span:
    """Return the span that contains a task."""
    return next(each for each in spans_in(core) if task in each.ids)
