"""Makes definitions and spans for tests, and finds tasks in spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.spans import Span
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.groups import PackedCalls
from mwpy._values.messages import AlgorithmDefinition
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import AlgorithmDefined


def defined(
    number: int,
    name: str,
    reference: str | None = None,
    function: bytes = b"",
    packages: dict[str, str] | None = None,
) -> AlgorithmDefined:
    """A definition on a master with Python 3.11; by default the algorithm is the builtin function of that name."""
    found = f"builtins:{name}" if reference is None else reference
    return AlgorithmDefined(AlgorithmDefinition(number, name, found, "", "3.11", packages or {}), function)


MAX, MIN = defined(0, "max"), defined(1, "min")


def span(
    first: int,
    algorithm: AlgorithmDefined,
    count: int = 1,
    payload: bytes = b"x",
    policy: TaskPolicy = DEFAULT_POLICY,
    tag: object = None,
    buffers: Sequence[bytes] = (),
    refers: Sequence[int] = (),
) -> Span:
    """`count` new tasks with the same arguments. They have counts of their own, not those of a core."""
    own = (buffers,) * count if buffers else ()
    calls, tags = (payload,) * count, (tag,) * count
    return Span(TaskId(first), count, Defined(algorithm), policy, calls, own, tags, refers=refers)


def portion(first: int, calls: PackedCalls, tag: object = None) -> Span:
    """The new tasks of a portion, with `max` as their algorithm."""
    return Span(TaskId(first), len(calls), Defined(MAX), DEFAULT_POLICY, calls, (), (tag,) * len(calls))


def ids_of(spans: Iterable[Span]) -> list[int]:
    """The ids of the tasks of spans, in their order."""
    return [number for each in spans for number in each.ids]


def held_by(core: MasterCore, sid: str) -> list[int]:
    """The ids of the tasks that a slave holds, in the order in which they were sent."""
    return ids_of(core.state.jar.held[SlaveId(sid)].spans)


def spans_in(core: MasterCore) -> list[Span]:
    """All spans that are pending in a master or held by its slaves."""
    return list(core.state.jar.spans())


def span_of(core: MasterCore, task: int) -> Span:
    """The span that a task is in."""
    return next(each for each in spans_in(core) if task in each.ids)
