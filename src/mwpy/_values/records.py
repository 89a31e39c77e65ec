"""Records: the facts that the cores of master and agent state.

A record is one thing that happened, to a group of tasks, to a slave or to an agent. It is immutable and complete:
applying the records of a master in their order to an empty `MasterState` gives the same tasks, attempts, slaves and
counts. Tags are the exception: a tag is any object and never leaves the master. The audit file shows records as text.
Every other part that needs to know what happened also reads records.

Each class is tagged with its name, so `encode` and `decoder` can store a stream of records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from mwpy._values import messagepack
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.member_records import (
    AgentAway,
    AgentBack,
    AgentConnected,
    AgentLeaving,
    AgentLeft,
    AgentLost,
    AgentRefused,
    AlgorithmRefused,
    HostExcluded,
    HostReadmitted,
    LossesExplained,
    PackagesCompared,
    PeerDropped,
    SlaveChanged,
    SlaveConnected,
    SlaveEnded,
    SlaveNamed,
    SlaveStarted,
)
from mwpy._values.messages import AlgorithmDefinition, Results
from mwpy._values.record_parts import Charge, ReusedTasks, SubmittedTasks, TaskRange
from mwpy._values.reuse_records import ResultsHandedOver, ResultsReused, TasksAnswered, TasksAwaited, TasksForbidden

__all__ = [
    "AgentAway",
    "AgentBack",
    "AgentConnected",
    "AgentLeaving",
    "AgentLeft",
    "AgentLost",
    "AgentRefused",
    "AlgorithmDefined",
    "AlgorithmRefused",
    "AlgorithmsForgotten",
    "AttemptsEnded",
    "AttemptsStarted",
    "Charge",
    "Ended",
    "HostExcluded",
    "HostReadmitted",
    "LossesExplained",
    "Notice",
    "PackagesCompared",
    "PeerDropped",
    "Record",
    "ResultGiven",
    "ResultsHandedOver",
    "ResultsHeld",
    "ResultsReceived",
    "ResultsReleased",
    "ResultsReused",
    "ResultsSent",
    "ReusedTasks",
    "SlaveChanged",
    "SlaveConnected",
    "SlaveEnded",
    "SlaveNamed",
    "SlaveStarted",
    "Started",
    "SubmittedTasks",
    "TaskCheckpointed",
    "TaskRange",
    "TasksAllocated",
    "TasksAnswered",
    "TasksAwaited",
    "TasksCancelled",
    "TasksCancelling",
    "TasksDue",
    "TasksFailed",
    "TasksForbidden",
    "TasksGivenUp",
    "TasksReceived",
    "TasksReturned",
    "TasksSubmitted",
    "TasksUnaddressed",
    "TasksUnblocked",
    "Total",
    "decoder",
    "encode",
]


class AlgorithmDefined(Struct, frozen=True, tag=True):
    """A task algorithm got its number. `packed` is the pickled function if it travels by value, else empty."""

    definition: AlgorithmDefinition
    packed: bytes
    code: str = ""
    """The structural digest of its code; empty if it has none, or there is no run database."""
    parts: dict[str, str] = {}
    """What the code consists of, and the digest of each part."""


class AlgorithmsForgotten(Struct, frozen=True, tag=True):
    """The master forgot task algorithms that travel by value and have no runnable tasks."""

    numbers: Sequence[int]


class Started(Struct, frozen=True, tag=True):
    """A process began its role. `role` is `MASTER` or `AGENT`; `detail` names the addresses."""

    role: str
    member_id: str
    detail: str


class Ended(Struct, frozen=True, tag=True):
    """A process ends its role: `why` is `SHUTDOWN`, `INTERRUPTED`, or the fault that ended it."""

    why: str
    member_id: str


class Notice(Struct, frozen=True, tag=True):
    """A message for the user, also shown on standard error. It says what happened and what to do next."""

    text: str


class TasksSubmitted(Struct, frozen=True, tag=True):
    """The master algorithm submitted tasks. They are pending, or blocked if they refer to results."""

    tasks: Sequence[SubmittedTasks]


class TasksAllocated(Struct, frozen=True, tag=True):
    """Pending tasks were sent to a slave. Each range has the number of the new attempt."""

    sid: SlaveId
    tasks: Sequence[TaskRange]


class AttemptsStarted(Struct, frozen=True, tag=True):
    """Tasks that the slave `beside` holds were sent to the slave `sid`, too: now another attempt of each lives. Each
    range names one task, with the number of the new attempt."""

    sid: SlaveId
    tasks: Sequence[TaskRange]
    beside: SlaveId
    reason: str


class AttemptsEnded(Struct, frozen=True, tag=True):
    """Attempts of tasks that a slave held ended without an answer, and other attempts of the same tasks live. So these
    tasks stay allocated. `charges` are added to their histories."""

    sid: SlaveId
    tasks: Sequence[TaskRange]
    reason: str
    charges: tuple[Charge, ...] = ()


class ResultsReceived(Struct, frozen=True, tag=True):
    """Results of tasks arrived from the slave that held them.

    `results` names the tasks and has their compute times and failures; `frames` are the encoded values, as they
    arrived. Results that do not count are left out of both.
    """

    sid: SlaveId
    results: Results
    frames: Sequence[Any]


class TaskCheckpointed(Struct, frozen=True, tag=True):
    """A task that a slave holds left a state for its next attempt. The state replaces an earlier one."""

    sid: SlaveId
    task: TaskRange
    frames: Sequence[Any]
    """The encoded state and the large buffers of its pickle, as they arrived."""


class TasksFailed(Struct, frozen=True, tag=True):
    """Tasks failed before they were pending: at their submission, or while they were blocked."""

    tasks: Sequence[TaskRange]
    reason: str
    dependency: int = 0
    """The id of the task that did not end well, if they were blocked and failed for this reason; otherwise 0."""
    cause: str = ""
    """What happened to that task."""


class TasksUnblocked(Struct, frozen=True, tag=True):
    """Blocked tasks have the values of all results to which they refer; they are pending."""

    tasks: Sequence[TaskRange]


class ResultsHeld(Struct, frozen=True, tag=True):
    """Later tasks may refer to the results of these tasks, which have not ended. So the master will keep them."""

    numbers: Sequence[int]


class ResultGiven(Struct, frozen=True, tag=True):
    """The algorithm gave back the result of a task, because a later task refers to it. So the master keeps it."""

    number: int
    frames: Sequence[Any]
    """The encoded value and its large buffers; empty if there is no value."""
    cause: str
    """Why there is no value."""
    root: int
    """The id of the task that did not end well."""


class ResultsReleased(Struct, frozen=True, tag=True):
    """The algorithm has fetched the results of these tasks, so no later task refers to them."""

    numbers: Sequence[int]


class TasksReturned(Struct, frozen=True, tag=True):
    """Tasks that a slave held came back unfinished and are pending again. `charges` are added to their histories."""

    sid: SlaveId
    tasks: Sequence[TaskRange]
    reason: str
    charges: tuple[Charge, ...] = ()
    pause_s: float = 0.0
    """How long they are delayed before they are pending again, in seconds; 0 for no pause."""


class TasksDue(Struct, frozen=True, tag=True):
    """The pauses of tasks are over; the tasks are pending again."""

    tasks: Sequence[TaskRange]
    not_started: bool = False
    """Whether a former generation sent them to slaves, which have not started them."""


class TasksGivenUp(Struct, frozen=True, tag=True):
    """Tasks became unrunnable. `charges` are added to their histories."""

    sid: SlaveId
    """The slave that held the tasks, or that they were addressed to."""
    held: bool
    """Whether that slave held the tasks; otherwise they were pending."""
    tasks: Sequence[TaskRange]
    reason: str
    charges: tuple[Charge, ...] = ()
    used_up: bool = False
    """Whether the tasks lost these attempts by their own fault. Then they do not run again at a restart either."""


class TasksCancelled(Struct, frozen=True, tag=True):
    """Tasks were cancelled. No task is charged with anything. If a task ran again to compute a value that was lost,
    only this ends."""

    sid: SlaveId | None
    """The slave that held the tasks; None if they were pending."""
    tasks: Sequence[TaskRange]
    when: str
    """How far the tasks were, as the end of a sentence."""


class TasksCancelling(Struct, frozen=True, tag=True):
    """Tasks that a slave holds are cancelled unless they have started. They are not sent to a slave again."""

    sid: SlaveId
    tasks: Sequence[TaskRange]


class TasksUnaddressed(Struct, frozen=True, tag=True):
    """Pending tasks were addressed to a slave that cannot run them. Now any slave may run them."""

    sid: SlaveId
    tasks: Sequence[TaskRange]


class Total(Struct, frozen=True, tag=True):
    """What the tasks of one algorithm did on one host since the master started."""

    algorithm: str
    host: str
    tasks: int
    """How many tasks have results."""
    failed: int
    """How many of these results are failures."""
    seconds: float
    """How long these tasks ran, together."""
    longest_s: float
    """How long the longest of them ran."""
    lost: dict[str, int]
    """How many attempts were lost, by the value of their `Cause`."""
    lost_s: float
    """How long the lost attempts had run at most."""
    seconds_max: float = 0.0
    """The largest `seconds_max` of these tasks; 0 if none had one."""
    memory_max: int = 0
    """The largest `memory_max` of these tasks, in bytes; 0 if none had one."""
    memory_used: int = 0
    """The most memory that was measured while a task with `memory_max` ran, in bytes; 0 if nothing was measured."""
    seconds_expected: float = 0.0
    """The largest `seconds_expected` of these tasks; 0 if none had it."""


class TasksReceived(Struct, frozen=True, tag=True):
    """An agent forwarded tasks to a slave."""

    sid: SlaveId
    count: int


class ResultsSent(Struct, frozen=True, tag=True):
    """An agent forwarded results of a slave to the master."""

    sid: SlaveId
    count: int


Record = (
    AlgorithmDefined
    | AlgorithmsForgotten
    | Started
    | Ended
    | Notice
    | AgentConnected
    | AgentRefused
    | AgentAway
    | AgentBack
    | AgentLost
    | LossesExplained
    | HostExcluded
    | HostReadmitted
    | AgentLeft
    | AgentLeaving
    | PeerDropped
    | SlaveConnected
    | SlaveChanged
    | SlaveEnded
    | AlgorithmRefused
    | PackagesCompared
    | TasksSubmitted
    | TasksAllocated
    | AttemptsStarted
    | AttemptsEnded
    | ResultsReceived
    | ResultsReused
    | ResultsHandedOver
    | TasksAnswered
    | TaskCheckpointed
    | TasksFailed
    | TasksForbidden
    | TasksAwaited
    | TasksReturned
    | TasksDue
    | TasksGivenUp
    | TasksCancelled
    | TasksCancelling
    | TasksUnaddressed
    | TasksUnblocked
    | ResultsHeld
    | ResultGiven
    | ResultsReleased
    | Total
    | SlaveStarted
    | SlaveNamed
    | TasksReceived
    | ResultsSent
)

encode: Callable[[Record], bytes] = messagepack.encode
"""Encode a record, to store it."""


@cache
def decoder() -> Callable[[Buffer], Record]:
    """Return what reads what `encode` made. It raises one of `messagepack.MALFORMED` for everything else. It is made
    when it is needed, because this takes 4 ms and few processes need it."""
    return messagepack.decoder(Record)  # type: ignore[arg-type]  # a union of classes
