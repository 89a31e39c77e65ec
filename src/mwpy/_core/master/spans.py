"""Spans: how the master holds many tasks as one object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.holding import TaskIds
from mwpy._core.master.algorithms import Defined
from mwpy._values import messagepack
from mwpy._values.bounds import Buffer, SlaveId, TaskId
from mwpy._values.causes import BLAMELESS_ALLOWED, RESUMED_ALLOWED, Cause
from mwpy._values.earlier import KEY_BYTES
from mwpy._values.groups import PackedCalls
from mwpy._values.last_words import Death
from mwpy._values.policy import TaskPolicy
from mwpy._values.records import SubmittedTasks, TaskRange
from mwpy._values.task import TaskState, extended, travelling

LOST_AGENTS_ALLOWED = 3
"""A task that was at this many agents when they vanished runs alone on an agent from then on. The manual names this
number."""

LOST_ALONE_ALLOWED = 10
"""It is given up when it ran alone on an agent that vanished, and that had finished a task before. If the agent had
finished none, the agent may be the cause: then the task is given up only after this many more losses. At the end of a
run, each of them may cost a new job: with 30, a simulated pool needed more than two hours. The manual names this
number."""

PAUSE_MAX_S = 3600.0
"""The pauses of a task grow up to this many seconds, unless its policy says more. The manual names this number."""

DOUBLINGS_MAX = 60
"""A pause doubles at most this often, so that it stays a number."""


class LeftState(Struct, frozen=True, gc=False):
    """The state that a task left for its next attempt."""

    frames: Sequence[Buffer]
    """The encoded state and its large buffers."""
    attempt: int
    """The attempt that left it."""
    num_lost: int = 0
    """How many attempts of the task were lost without its fault after they had left a state."""

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return sum(map(len, self.frames))


class Span(Struct, eq=False, gc=False):
    """Tasks with consecutive ids that differ only in their arguments and tags.

    They share everything else, from their submission to their end. When a part of the tasks changes differently, the
    span is cut. Only the taskjar changes a span's state. The garbage collector does not track spans: only the
    master has references to them, so a tag cannot lead back to a span. Nor does it look through tuples of `bytes` more
    than once. With a million tasks at slaves, looking through lists took two fifths of the master's time.
    """

    first: TaskId
    count: int
    algorithm: Defined
    policy: TaskPolicy
    payloads: tuple[bytes, ...] | PackedCalls
    """The encoded arguments of each task. Those of a portion are packed."""
    buffers: tuple[Sequence[Buffer], ...]
    """The large buffers of each task's arguments, which travel out of band; empty if no task has any."""
    tags: tuple[Any, ...]
    state: TaskState = TaskState.NEW
    attempt: int = 0
    """The number of this attempt; if it is not at a slave: of its last one."""
    sid: SlaveId | None = None
    deaths: tuple[Death, ...] = ()
    sent: int = 0
    """How often its tasks were sent to a slave: the number of the last attempt, which may live elsewhere."""
    pause_s: float = 0.0
    """If it is delayed: its pause, in seconds; else 0."""
    left: LeftState | None = None
    """The state that its only task left; None if it left none."""
    refers: Sequence[int] = ()
    """The ids of the tasks to whose results the arguments of its only task refer, while it is blocked. Then the values
    of these results are among its buffers."""
    begun: bool = False
    """Whether its only task has referred to results of other tasks, which are among its buffers."""
    keys: bytes = b""
    """The key of each task, one after the other, while the tasks are new and there is a run database; else empty."""
    owner: Any = None
    """What gets the ends of its tasks, such as a map; None if the algorithm fetches them."""

    @property
    def ids(self) -> range:
        """The ids of its tasks."""
        return range(self.first, self.first + self.count)

    @property
    def charged(self) -> int:
        """How many of its attempts were lost by its own fault."""
        return sum(death.is_charged for death in self.deaths)

    @property
    def blameless(self) -> int:
        """How many of its attempts were lost without its fault."""
        return sum(death.is_blameless for death in self.deaths)

    @property
    def left_now(self) -> LeftState | None:
        """The state that its only task left in its current attempt; None if it left none."""
        return self.left if self.left is not None and self.left.attempt == self.attempt else None

    @property
    def is_last_attempt(self) -> bool:
        """Whether there is no other attempt if this one is lost by its own fault."""
        return self.charged + 1 >= self.policy.attempts_max or not self.policy.retry

    def can_lose(self, attempts: int) -> bool:
        """Whether this many attempts can be lost, for any reason, and still it is tried again like any other task."""
        charged, blameless = self.charged, self.blameless
        return (
            self.policy.retry
            and charged + attempts < self.policy.attempts_max
            and blameless + attempts < BLAMELESS_ALLOWED
            and (self.left is None or self.left.num_lost + attempts < RESUMED_ALLOWED)
            and len(self.deaths) - charged - blameless + attempts < LOST_AGENTS_ALLOWED
        )

    @property
    def next_pause_s(self) -> float:
        """How long its tasks pause if this attempt is lost by their own fault, in seconds."""
        after = self.policy.after
        return min(after * 2.0 ** min(self.charged, DOUBLINGS_MAX), max(after, PAUSE_MAX_S))

    @property
    def runs_alone(self) -> bool:
        """Whether nothing else may run on its agent: each of its tasks was at several agents when they vanished."""
        return sum(death.cause is Cause.AGENT_LOST for death in self.deaths) >= LOST_AGENTS_ALLOWED

    @property
    def needed_s(self) -> float | None:
        """How long an attempt of each task takes, in seconds, as far as this is known. A task that leaves state for its
        next attempt can use any time."""
        if self.algorithm.leaves_state:
            return None
        expected_s = self.policy.seconds_expected
        return self.algorithm.mean_s if expected_s is None else expected_s

    def sizes(self, most: int | None = None) -> list[int]:
        """The size of each task's encoded arguments, in bytes; with `most`, only of this many tasks at the head."""
        sizes = [*map(len, islice(self.payloads, most))]
        if not self.buffers:
            return sizes
        own = islice(self.buffers, most)
        return [size + sum(map(len, travelling(each))) for size, each in zip(sizes, own, strict=True)]

    def resumed(self, left: LeftState) -> tuple[bytes, Sequence[Buffer]]:
        """Return the call of its only task together with a state of the task: the encoded call, and the buffers."""
        buffers = self.buffers[0] if self.buffers else ()
        count = len(buffers).to_bytes(messagepack.SIZE_BYTES, "big")
        call = messagepack.encode(messagepack.as_extension(messagepack.RESUMED, count + self.payloads[0]))
        return call, extended(buffers, left.frames)

    def facts(self) -> SubmittedTasks:
        """Return the content of its submission record: everything but tags and owner, which never leave the master."""
        number, calls = self.algorithm.number, self.payloads
        if type(calls) is PackedCalls:
            packed = calls.kind
            return SubmittedTasks(self.first, self.count, number, self.policy, [calls.data], [], (), packed, self.keys)
        columns = calls, self.buffers, self.refers
        return SubmittedTasks(self.first, self.count, number, self.policy, *columns, keys=self.keys)

    def part(self, first: int, count: int, attempt: int) -> TaskRange:
        """Return the name that a record has for some of its tasks: `count` tasks from the id `first` on, in one
        attempt."""
        algorithm, policy = self.algorithm, self.policy
        return TaskRange(first, count, attempt, algorithm.number, algorithm.name, not policy.retry)

    @property
    def whole(self) -> TaskRange:
        """How a record names all its tasks, in their current attempt."""
        return self.part(self.first, self.count, self.attempt)

    def cut(self, count: int) -> tuple[Span, Span]:
        """Two spans: its first `count` tasks, and the others."""
        return self.between(0, count), self.between(count, self.count)

    def between(self, start: int, end: int) -> Span:
        """A span with some of its tasks, by their places."""
        return replace(
            self,
            first=TaskId(self.first + start),
            count=end - start,
            payloads=self.payloads[start:end],
            buffers=self.buffers[start:end],
            tags=self.tags[start:end],
            pause_s=0.0,
            keys=self.keys[start * KEY_BYTES : end * KEY_BYTES],
        )

    def singles(self) -> list[Span]:
        """A span for each task."""
        return [self.between(position, position + 1) for position in range(self.count)]

    def joins(self, other: Span) -> bool:
        """Whether `other` continues this span."""
        return (
            self.first + self.count == other.first
            and self.algorithm is other.algorithm
            and self.policy == other.policy
            and self.owner is other.owner
            and self.attempt == other.attempt
            and self.state is other.state
            and not (self.refers or other.refers)
            and not (portion_of(self) or portion_of(other))
            and not (self.buffers or other.buffers or self.deaths or other.deaths or self.left or other.left)
        )

    def join(self, other: Span) -> Span:
        """One span with its tasks and with the tasks of `other`, which continues it."""
        joined = self.between(0, self.count)
        joined.count += other.count
        joined.payloads = (*self.payloads, *other.payloads)
        joined.tags += other.tags
        return joined

    def __str__(self) -> str:
        last = f" to {self.first + self.count - 1}" if self.count > 1 else ""
        return f"task{'s' if last else ''} {self.first}{last} ({self.algorithm.name})"


def portion_of(span: Span) -> int:
    """How many tasks a span of a portion has; 0 if it is none. A portion is items of a map that travel together."""
    return span.count if type(span.payloads) is PackedCalls else 0


def size_of(span: Span, most: int | None = None) -> int:
    """The size of the encoded arguments of a span, in bytes; with `most`, only of this many tasks at the head. A
    portion has only one size."""
    payloads = span.payloads
    return payloads.size if type(payloads) is PackedCalls else sum(span.sizes(most))


def named(spans: Iterable[Span], ids: TaskIds) -> list[TaskRange]:
    """How a record names those tasks of spans that have these ids, in their order."""
    return [span.part(first, count, span.attempt) for span in spans for first, count in ids.among(span)]


def numbers_in(tasks: Iterable[TaskRange]) -> Iterator[int]:
    """Each id that a record names."""
    return (number for each in tasks for number in range(each.first, each.first + each.count))


def ids_in(tasks: Iterable[TaskRange]) -> TaskIds:
    """The ids of the tasks that a record names."""
    return TaskIds((each.first, each.count) for each in tasks)
