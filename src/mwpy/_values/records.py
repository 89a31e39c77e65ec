"""The closed set of facts that the cores of master and agent state.

A record is one thing that happened, to a group of tasks or to a slave, never one a task where a group
can be told of at once. `Taskjar.apply` changes tasks by them, the audit file is their text, and
whatever else wants to know what happened reads them and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._values.ids import SlaveId
from mwpy._values.last_words import Death, LastWords
from mwpy._values.task import SlaveKind, SlaveState, Span

__all__ = [
    "AgentConnected",
    "AgentLeft",
    "AgentLost",
    "AgentRefused",
    "AlgorithmRefused",
    "Ended",
    "Notice",
    "PackagesCompared",
    "PeerDropped",
    "Record",
    "ResultsReceived",
    "ResultsSent",
    "SlaveChanged",
    "SlaveConnected",
    "SlaveEnded",
    "SlaveNamed",
    "SlaveStarted",
    "Started",
    "TasksAllocated",
    "TasksFailed",
    "TasksGivenUp",
    "TasksReceived",
    "TasksReturned",
    "TasksSubmitted",
    "TasksUnaddressed",
]


class Started(Struct, frozen=True):
    """A process began its role. `role` is `MASTER` or `AGENT`; `detail` says where, or whereto."""

    role: str
    member_id: str
    detail: str


class Ended(Struct, frozen=True):
    """A process ends its role: `why` is `SHUTDOWN`, `INTERRUPTED`, or what went wrong."""

    why: str
    member_id: str


class Notice(Struct, frozen=True):
    """Something the user should know: shown on standard error too, with what to do next."""

    text: str


class AgentConnected(Struct, frozen=True):
    """An agent was let in."""

    agent: str
    address: str
    host: str
    pid: int
    job: str = ""


class AgentRefused(Struct, frozen=True):
    """Somebody was not let in."""

    address: str
    reason: str


class AgentLost(Struct, frozen=True):
    """The connection to an agent broke without a goodbye."""

    agent: str
    reason: str


class AgentLeft(Struct, frozen=True):
    """An agent said goodbye."""

    agent: str
    reason: str


class PeerDropped(Struct, frozen=True):
    """A peer sent what no correct peer sends; nothing more is heard from it."""

    peer: str
    reason: str


class SlaveConnected(Struct, frozen=True):
    """A slave is ready for tasks."""

    sid: SlaveId
    agent: str
    address: str
    kind: SlaveKind


class SlaveChanged(Struct, frozen=True):
    """A slave went to another state or kind."""

    sid: SlaveId
    state: SlaveState
    kind: SlaveKind


class SlaveEnded(Struct, frozen=True):
    """A slave is gone: `cause` says why, `running` which task it ran, `words` what it left."""

    sid: SlaveId
    cause: str
    running: str
    words: LastWords


class AlgorithmRefused(Struct, frozen=True):
    """The slaves of an agent cannot run a task algorithm."""

    agent: str
    algorithm: str
    reason: str


class PackagesCompared(Struct, frozen=True):
    """An agent told the versions of packages that algorithms import."""

    agent: str
    same: Sequence[str]
    """Name and version of those that the master has too."""
    different: Sequence[str]
    """Name, version there, and the master's."""


class TasksSubmitted(Struct, frozen=True):
    """The master algorithm handed over tasks."""

    tasks: Sequence[Span]


class TasksAllocated(Struct, frozen=True):
    """Tasks went to a slave, a new attempt each."""

    sid: SlaveId
    tasks: Sequence[Span]


class ResultsReceived(Struct, frozen=True):
    """Results of allocated tasks arrived from their slave."""

    sid: SlaveId
    tasks: Sequence[Span]


class TasksFailed(Struct, frozen=True):
    """Pending tasks failed before they left the master."""

    tasks: Sequence[Span]
    reason: str


class TasksReturned(Struct, frozen=True):
    """Allocated tasks came back unfinished and wait again; `deaths` is charged to each of them."""

    sid: SlaveId
    tasks: Sequence[Span]
    reason: str
    deaths: tuple[Death, ...] = ()


class TasksGivenUp(Struct, frozen=True):
    """Tasks became unrunnable; `deaths` is charged to each of them."""

    tasks: Sequence[Span]
    reason: str
    deaths: tuple[Death, ...] = ()


class TasksUnaddressed(Struct, frozen=True):
    """Pending tasks addressed to a slave that will not run them may run on any slave now."""

    sid: SlaveId
    tasks: Sequence[Span]


class SlaveStarted(Struct, frozen=True):
    """An agent started a slave process."""

    slave: int
    pid: int


class SlaveNamed(Struct, frozen=True):
    """The master gave an agent's slave its id."""

    slave: int
    sid: SlaveId


class TasksReceived(Struct, frozen=True):
    """An agent passed tasks on to a slave."""

    sid: SlaveId
    count: int


class ResultsSent(Struct, frozen=True):
    """An agent passed results of a slave on to the master."""

    sid: SlaveId
    count: int


Record = (
    Started
    | Ended
    | Notice
    | AgentConnected
    | AgentRefused
    | AgentLost
    | AgentLeft
    | PeerDropped
    | SlaveConnected
    | SlaveChanged
    | SlaveEnded
    | AlgorithmRefused
    | PackagesCompared
    | TasksSubmitted
    | TasksAllocated
    | ResultsReceived
    | TasksFailed
    | TasksReturned
    | TasksGivenUp
    | TasksUnaddressed
    | SlaveStarted
    | SlaveNamed
    | TasksReceived
    | ResultsSent
)
