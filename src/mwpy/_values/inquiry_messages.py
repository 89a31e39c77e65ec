"""The messages of inquirers, which ask a running master what it does. `messages.py` describes messages in general.

An inquirer is a member that runs no tasks. Its first message is a question. It asks the next question after the answer
to the last one. The master answers when it has time for it, so an answer may take some seconds.

All lists and tables of an answer have a limited length, however many tasks and slaves there are.
"""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._values.bounds import Name, Number
from mwpy._values.plain_enum import PlainEnum

__all__ = [
    "AlgorithmStatus",
    "AskStatus",
    "AskTask",
    "Explanation",
    "Fate",
    "HostStatus",
    "Notice",
    "Place",
    "Reason",
    "Status",
    "Why",
]


class AskStatus(Struct, frozen=True):
    """Inquirer to master: what do you do now?"""

    member_id: Name
    generation: Name
    """The generation in the resource file that it read."""


class AskTask(Struct, frozen=True):
    """Inquirer to master: why does this task wait, or how it ended?"""

    member_id: Name
    generation: Name
    task: Number


class AlgorithmStatus(Struct):
    """The tasks of the algorithms with one name."""

    pending: int = 0
    """They wait to be sent to a slave."""
    blocked: int = 0
    """They wait for the results of other tasks."""
    delayed: int = 0
    """They pause before their next attempt."""
    at_slaves: int = 0
    finished: int = 0
    """They have results, also failures."""
    failed: int = 0
    """Their results are failures."""
    seconds: float = 0.0
    """How long the finished tasks ran, together."""


class HostStatus(Struct):
    """The agents and slaves of one machine."""

    agents: int = 0
    starting: int = 0
    """Slaves that are not ready yet."""
    idle: int = 0
    busy: int = 0
    leaving: int = 0
    """Slaves that get no more tasks."""
    away: int = 0
    """Slaves of agents that have lost their connection, and may come back."""
    finished: int = 0
    """Tasks that have results from there."""
    failed: int = 0
    """Those of these results that are failures."""
    excluded: str = ""
    """Why the host gets no more work; empty if it gets work."""


class Notice(Struct, frozen=True):
    """A message that the master has shown."""

    age_s: float
    text: str


class Status(Struct, frozen=True):
    """Master to inquirer: what the master does."""

    member_id: str
    generation: str
    uptime_s: float
    tasks: dict[str, int]
    """How many tasks there are, by state. `failed` contains the unrunnable ones, and `cancelled` those that failed
    because a task failed whose result they need."""
    rate: float
    """How many tasks ended in a second, over the last minute."""
    slaves_wanted: int
    slaves_connected: int
    slaves_needed: int
    algorithms: dict[str, AlgorithmStatus]
    """By the name of the algorithm; those with most tasks."""
    hosts: dict[str, HostStatus]
    """By the name of the machine; those with most slaves."""
    failures: dict[str, int]
    """How many tasks failed, by the type of the exception; for unrunnable tasks, with the cause of the last loss."""
    lost: dict[str, int]
    """How many attempts were lost, by cause."""
    last_failure: str = ""
    """The last task that failed: id, algorithm, machine and error."""
    last_failure_age_s: float = 0.0
    notices: list[Notice] = field(default_factory=list)
    """The newest messages of the master, the oldest of them first."""
    waits: str = ""
    """Why no tasks are sent at all; empty if they are sent."""
    reused: int = 0
    """How many of the tasks that have ended were answered from the run database."""


class Fate(PlainEnum):
    """How far a task is."""

    PENDING = "pending"
    BLOCKED = "blocked"
    DELAYED = "delayed"
    AWAITED = "awaited"
    AT_SLAVE = "at a slave"
    CANCELLING = "cancelling"
    FAILED = "failed"
    ENDED = "ended"
    REUSED = "reused"
    """It was answered from the run database."""
    UNKNOWN = "unknown"
    """No task with this id was submitted."""


class Why(PlainEnum):
    """Why a task waits. `explanations.py` has a sentence for each."""

    TASKS_BEFORE = "tasks before"
    TURNS = "turns"
    HELD_BACK = "held back"
    STOPPED = "stopped"
    NO_AGENT = "no agent"
    RUNS_ALONE = "runs alone"
    ADDRESSED = "addressed"
    MISSING = "missing"
    PAUSE = "pause"
    HOST_EXCLUDED = "host excluded"
    LEAVING = "leaving"
    AWAY = "away"
    STARTING = "starting"
    ENDING = "ending"
    CANNOT_RUN = "cannot run"
    NO_TIME = "no time"
    RESERVED = "reserved"
    OTHER_KIND = "other kind"
    NOT_ALONE = "not alone"
    BUSY = "busy"
    IDLE = "idle"


class Reason(Struct, frozen=True):
    """Why a task waits, or why some agents are not sent it."""

    why: Why
    text: str = ""
    """What the master knows more."""
    number: float = 0.0
    agents: list[str] = field(default_factory=list)
    """The first few of these agents, with their machines."""
    count: int = 0
    """How many agents there are."""


class Place(Struct, frozen=True):
    """A slave that has a task."""

    sid: str
    agent: str
    host: str
    attempt: int
    before: int
    """How many tasks were sent to the slave before it and have no result yet."""
    seconds: float
    """How long ago the last result came from the slave, or its first task was sent."""


class Explanation(Struct, frozen=True):
    """Master to inquirer: why a task waits, or how it ended."""

    task: int
    fate: Fate
    algorithm: str = ""
    text: str = ""
    """How it failed; of an unknown task, how many tasks were submitted."""
    host: str = ""
    """Where it failed; empty if this is not known."""
    attempts: int = 0
    """How often it was sent to a slave."""
    needed_s: float | None = None
    """How long an attempt takes, as far as this is known."""
    reasons: list[Reason] = field(default_factory=list)
    """Why it waits, whatever the agents are."""
    agents: list[Reason] = field(default_factory=list)
    """Why each agent is not sent it, or when it will be."""
    places: list[Place] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    """Its last lost attempts, the oldest of them first."""
