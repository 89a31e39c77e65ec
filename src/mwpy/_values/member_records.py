"""Records about agents, their hosts and their slaves. `records.py` says what records are, and has all others."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._values.causes import Cause
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import LastWords
from mwpy._values.task import SlaveKind, SlaveState

__all__ = [
    "AgentAway",
    "AgentBack",
    "AgentConnected",
    "AgentLeaving",
    "AgentLeft",
    "AgentLost",
    "AgentRefused",
    "AlgorithmRefused",
    "HostExcluded",
    "HostReadmitted",
    "LossesExplained",
    "PackagesCompared",
    "PeerDropped",
    "SlaveChanged",
    "SlaveConnected",
    "SlaveEnded",
    "SlaveNamed",
    "SlaveStarted",
]


class AgentConnected(Struct, frozen=True, tag=True):
    """The master accepted an agent."""

    agent: str
    address: str
    host: str
    pid: int
    job: str = ""
    """The id of the agent's job in a batch system; empty if unknown."""
    slaves: int = 0
    """How many slaves the agent announced."""
    python: str = ""
    """`major.minor` of its interpreter."""
    seconds_left: float | None = None
    """How long from then on a task could run at most, because then the agent's time is over; None if unknown."""
    returns_s: float = 0.0
    """For how long it looks for its master when its connection has ended; 0 if it ends then."""


class AgentRefused(Struct, frozen=True, tag=True):
    """The master refused a peer."""

    address: str
    reason: str


class AgentAway(Struct, frozen=True, tag=True):
    """Nothing is heard from an agent. It may come back with its running tasks."""

    agent: str
    reason: str


class AgentBack(Struct, frozen=True, tag=True):
    """An agent that was away came back, from this address."""

    agent: str
    address: str


class AgentLost(Struct, frozen=True, tag=True):
    """The connection to an agent broke before the agent said goodbye."""

    agent: str
    reason: str
    cause: Cause


class LossesExplained(Struct, frozen=True, tag=True):
    """The master learned why it had heard nothing from an agent: the tasks of these slaves were lost for this cause."""

    agent: str
    sids: Sequence[SlaveId]
    cause: Cause
    reason: str


class AgentLeft(Struct, frozen=True, tag=True):
    """An agent said goodbye; it is gone."""

    agent: str
    reason: str


class HostExcluded(Struct, frozen=True, tag=True):
    """A host gets no more work, because tasks fail there that succeed elsewhere."""

    host: str
    reason: str
    """The host, for how long it is excluded, and how many attempts failed there and elsewhere."""


class HostReadmitted(Struct, frozen=True, tag=True):
    """A host that was excluded may get work again."""

    host: str


class PeerDropped(Struct, frozen=True, tag=True):
    """A peer sent something that no correct peer sends. The master ignores it from now on."""

    peer: str
    reason: str


class AgentLeaving(Struct, frozen=True, tag=True):
    """An agent announced that it must leave: it gets no more tasks and starts no more slaves."""

    agent: str
    reason: str
    cause: Cause


class SlaveConnected(Struct, frozen=True, tag=True):
    """A slave is ready for tasks."""

    sid: SlaveId
    agent: str
    address: str
    kind: SlaveKind
    number: int = 0
    """The number that the agent gave this slave."""


class SlaveChanged(Struct, frozen=True, tag=True):
    """A slave changed its state or its kind."""

    sid: SlaveId
    state: SlaveState
    kind: SlaveKind


class SlaveEnded(Struct, frozen=True, tag=True):
    """A slave is gone. `running` names the task that it ran, `words` are its last words."""

    sid: SlaveId
    cause: Cause
    reason: str
    running: str
    words: LastWords


class AlgorithmRefused(Struct, frozen=True, tag=True):
    """The slaves of an agent, or one of them, cannot run a task algorithm."""

    agent: str
    algorithm: str
    reason: str
    number: int = 0
    """The number of the algorithm's definition."""
    sid: SlaveId | None = None
    """The slave, if the others of its agent may run it."""


class PackagesCompared(Struct, frozen=True, tag=True):
    """An agent reported the versions of packages that task algorithms import."""

    agent: str
    same: Sequence[str]
    """Name and version of each package that is the same on the master."""
    different: Sequence[str]
    """Each package that differs: its name, the version on the agent, and the version on the master."""


class SlaveStarted(Struct, frozen=True, tag=True):
    """An agent started a slave process."""

    slave: int
    pid: int


class SlaveNamed(Struct, frozen=True, tag=True):
    """The master gave an agent's slave its id."""

    slave: int
    sid: SlaveId
