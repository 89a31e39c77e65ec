"""What travels between master and agent, and between agent and slave.

A message is a small header, one of the classes below, and payload frames that nobody on the way
looks into. Every message names tasks in spans: entry i of `tasks` is the first of `counts[i]` tasks with ids that
follow on one another, all in attempt `attempts[i]`. What differs from task to task is in lists
with an entry a task. The first payload frame is one of them, in MessagePack: of each task the arguments, or what came
of it, where a pickle is an extension type. The large buffers of such a pickle (protocol 5, out of band) are
the next `buffers[j]` of the frames that follow; an empty `buffers` means that no task of the group has any.

`check` holds a message against its frames, but for the first one's entries, which `entries` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from math import isfinite
from typing import Any

from msgspec import Struct, field

from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.last_words import LastWords
from mwpy._values.messagepack import LIST_PREFIX, MALFORMED, decode_list, split_list

__all__ = [
    "PROTOCOL_VERSION",
    "AlgorithmDefinition",
    "AlgorithmFailed",
    "Algorithms",
    "Goodbye",
    "Hello",
    "Installed",
    "Leaving",
    "Message",
    "Probe",
    "Refused",
    "Results",
    "Revoke",
    "Revoked",
    "Shutdown",
    "SlaveDied",
    "SlaveNamed",
    "SlaveReady",
    "Tasks",
    "Welcome",
    "check",
    "each_task",
    "entries",
    "payload",
    "select",
    "spans_of",
]

PROTOCOL_VERSION = 1
"""Changes whenever an older agent could misunderstand a newer master, or the other way round."""


class Hello(Struct, frozen=True):
    """Agent to master, first of all: who I am and which computation I was sent to."""

    member_id: str
    generation: str
    """The generation in the resource file that I read; empty if I was directed here by hand."""
    host: str
    pid: int
    python: str
    """`major.minor` of my interpreter."""
    slaves: int
    """How many slaves I shall start."""
    job: str = ""
    """Which job of a batch system I am, in its words; empty if nobody told me."""


class Welcome(Struct, frozen=True):
    """Master to agent: you are in, and these are the master's settings."""

    agent: str
    client_timeout_s: float
    result_group: int
    """How many results a slave sends at a time; 0 leaves it to the slave."""
    max_result_bytes: int


class Refused(Struct, frozen=True):
    """Master to agent: go away, and why."""

    reason: str


class AlgorithmDefinition(Struct, frozen=True):
    """How a slave finds a task algorithm: by its reference, or by value in a payload frame."""

    number: int
    name: str
    reference: str
    """`module:qualname`, or empty if the function is in the next payload frame."""
    digest: str
    python: str
    """`major.minor` of the master's interpreter: functions by value do not cross it."""
    packages: dict[str, str] = field(default_factory=dict)
    """The packages that its code imports, and their versions on the master."""


class Algorithms(Struct, frozen=True):
    """Master to agent to slave: definitions that later tasks refer to by number."""

    definitions: list[AlgorithmDefinition]


class Installed(Struct, frozen=True):
    """Agent to master: the versions here of packages that definitions named; empty for one that is not installed."""

    packages: dict[str, str]


class Tasks(Struct, frozen=True):
    """Master to agent to slave: a group of tasks for one slave, in the order to run them."""

    slave: int
    tasks: list[int]
    counts: list[int]
    attempts: list[int]
    algorithms: list[int]
    buffers: list[int] = field(default_factory=list)


class Results(Struct, frozen=True):
    """Slave to agent to master: a group of finished tasks of one slave, in the order they finished."""

    slave: int
    tasks: list[int]
    counts: list[int]
    attempts: list[int]
    seconds: list[float]
    failed: list[int]
    """Positions in this group, ascending, of the results that are failures."""
    buffers: list[int] = field(default_factory=list)


class Revoke(Struct, frozen=True):
    """Master to agent: take back up to `count` tasks that this slave has not started."""

    slave: int
    count: int


class Revoked(Struct, frozen=True):
    """Agent to master and to slave: these tasks were not started and will not be."""

    slave: int
    tasks: list[int]
    counts: list[int]
    attempts: list[int]


class SlaveReady(Struct, frozen=True):
    """Slave to agent to master: this slave process is up and wants tasks."""

    slave: int


class SlaveNamed(Struct, frozen=True):
    """Master to agent to slave: your name."""

    slave: int
    sid: SlaveId


class SlaveDied(Struct, frozen=True):
    """Agent to master: a slave process is gone. `running` is the task that it ran, or 0.

    From an agent that said `Leaving` it charges nothing to that task.
    """

    slave: int
    running: int
    cause: str
    words: LastWords


class AlgorithmFailed(Struct, frozen=True):
    """Slave to agent to master: I cannot run this algorithm; its tasks named here were not started."""

    slave: int
    number: int
    reason: str
    tasks: list[int]
    counts: list[int]
    attempts: list[int]


class Probe(Struct, frozen=True):
    """Master to agent: nothing; its being sent shows whether the agent can be reached."""


class Shutdown(Struct, frozen=True):
    """Master to agent to slave: the end.

    `finished` says whether the computation is complete: only then may the agent exit with 0.
    """

    finished: bool
    grace_s: float
    """How long a slave may take to end by itself before it is killed."""


class Leaving(Struct, frozen=True):
    """Agent to master: send no more tasks, and why. Unstarted ones come back next, running ones may still end."""

    reason: str


class Goodbye(Struct, frozen=True):
    """Agent to master: I am gone, and why. Whatever my slaves held is charged to no task."""

    reason: str


Message = (
    Hello
    | Welcome
    | Refused
    | Algorithms
    | Installed
    | Tasks
    | Results
    | Revoke
    | Revoked
    | SlaveReady
    | SlaveNamed
    | SlaveDied
    | AlgorithmFailed
    | Probe
    | Shutdown
    | Leaving
    | Goodbye
)


def check(message: Message, frames: Sequence[Buffer]) -> None:
    """Hold a message against its payload frames.

    Raises:
        ProtocolError: they do not fit together; the sender's fault.
    """
    match message:
        case Tasks():
            count = _num_tasks(message)
            _check_group(message, frames, count, len(message.algorithms) == len(message.tasks))
        case Results():
            count = _num_tasks(message)
            _check_group(message, frames, count, len(message.seconds) == count)
            failed = message.failed
            if failed and (failed != sorted(set(failed)) or not 0 <= failed[0] <= failed[-1] < count):
                raise ProtocolError("Results: `failed` names positions that the group does not have")
            if count and not (min(message.seconds) >= 0 and isfinite(sum(message.seconds))):
                raise ProtocolError("Results: a compute time is negative or no number")
        case Revoked() | AlgorithmFailed():
            _num_tasks(message)
            _no_frames(message, len(frames))
        case Algorithms():
            by_value = sum(not definition.reference for definition in message.definitions)
            if len(frames) != by_value:
                raise ProtocolError(f"Algorithms: {by_value} travel by value, but {len(frames)} frames came along")
        case _:
            _no_frames(message, len(frames))


def _num_tasks(group: Tasks | Results | Revoked | AlgorithmFailed) -> int:
    """How many tasks the spans have."""
    if not len(group.tasks) == len(group.counts) == len(group.attempts):
        raise ProtocolError(f"{type(group).__name__}: its lists are of different lengths")
    if group.counts and min(group.counts) < 1:
        raise ProtocolError(f"{type(group).__name__}: a span without tasks")
    return sum(group.counts)


def _check_group(group: Tasks | Results, frames: Sequence[Buffer], count: int, fits: bool) -> None:
    buffers = group.buffers
    if not fits or len(buffers) not in (0, count):
        raise ProtocolError(f"{type(group).__name__}: its lists are of different lengths")
    if len(frames) != 1 + sum(buffers) or (buffers and min(buffers) < 0):
        raise ProtocolError(f"{type(group).__name__}: {len(frames)} payload frames are not what its lists promise")


def _no_frames(message: Message, count: int) -> None:
    if count:
        raise ProtocolError(f"{type(message).__name__}: {count} payload frames where none belong")


def payload(count: int, parts: Iterable[Buffer]) -> bytes:
    """The first payload frame of a group: `count` encoded entries, one or more in each part."""
    return b"".join((LIST_PREFIX, count.to_bytes(4, "big"), *parts))


def entries(group: Tasks | Results, frames: Sequence[Buffer]) -> tuple[list[Any], list[Sequence[Buffer]]]:
    """Read a checked group's frames: what stands for each task, and its large buffers, in the group's order.

    Raises:
        ProtocolError: the first frame is no list, or has not one entry for each task; the sender's fault.
    """
    count = sum(group.counts)
    try:
        found = decode_list(frames[0])
    except MALFORMED as error:
        raise ProtocolError(f"{type(group).__name__}: a payload that cannot be read: {error}") from error
    if len(found) != count:
        raise ProtocolError(f"{type(group).__name__}: {len(found)} entries for {count} tasks")
    if not group.buffers:
        return found, [()] * count
    own = list(accumulate(group.buffers, initial=1))
    return found, [frames[start:end] for start, end in pairwise(own)]


def each_task(group: Tasks | Results | Revoked | AlgorithmFailed) -> Iterator[tuple[int, int]]:
    """Id and attempt of each task that a group names."""
    for first, count, attempt in zip(group.tasks, group.counts, group.attempts, strict=True):
        yield from zip(range(first, first + count), repeat(attempt), strict=False)


def spans_of(tasks: Sequence[int], attempts: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """First ids, counts and attempts of the spans that tasks form in their order."""
    count = len(tasks)
    if count and attempts.count(attempts[0]) == count and [*tasks] == [*range(tasks[0], tasks[0] + count)]:
        return [tasks[0]], [count], [attempts[0]]  # mostly, and quickly found
    firsts: list[int] = []
    counts: list[int] = []
    tried: list[int] = []
    for task, attempt in zip(tasks, attempts, strict=True):
        if firsts and task == firsts[-1] + counts[-1] and attempt == tried[-1]:
            counts[-1] += 1
        else:
            firsts.append(task)
            counts.append(1)
            tried.append(attempt)
    return firsts, counts, tried


def select(group: Results, frames: Sequence[Buffer], kept: Sequence[int]) -> tuple[Results, list[Buffer]]:
    """Make a smaller group of the results at these positions."""
    raw = split_list(frames[0])
    named = list(each_task(group))
    failed = frozenset(group.failed)
    firsts, counts, attempts = spans_of([named[at][0] for at in kept], [named[at][1] for at in kept])
    smaller = Results(
        slave=group.slave,
        tasks=firsts,
        counts=counts,
        attempts=attempts,
        seconds=[group.seconds[at] for at in kept],
        failed=[new for new, at in enumerate(kept) if at in failed],
        buffers=[group.buffers[at] for at in kept] if group.buffers else [],
    )
    own = list(pairwise(accumulate(group.buffers or [0] * len(raw), initial=1)))
    buffers = [buffer for at in kept for buffer in frames[slice(*own[at])]]
    return smaller, [payload(len(kept), [raw[at] for at in kept]), *buffers]
