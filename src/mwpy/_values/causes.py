"""Causes: why an attempt of a task was lost. Each lost attempt has exactly one.

The cause decides whose fault the loss is. Nobody blames a task for a batch system that takes its machine back.
"""

from __future__ import annotations

from enum import Enum

# Enumerations whose members are quick keys of a dict.


class PlainEnum(Enum):
    """An enumeration whose members have the hash of plain objects. `Enum` hashes their names, in slow Python code."""

    __hash__ = object.__hash__


BLAMELESS_ALLOWED = 100
"""When a task was lost this many times without its fault, it is not tried again. The manual names this number."""


RESUMED_ALLOWED = 10_000
"""When a task was lost this many times without its fault, and had left a state each time, it is not tried again. The
manual names this number."""


class Cause(PlainEnum):
    """Why an attempt of a task was lost."""

    EVICTED = "evicted"
    """The batch system took the machine back, and said so."""
    WALLTIME = "walltime"
    """The time limit of the agent's job was near."""
    SUSPENDED = "suspended"
    """The agent was stopped for longer than the client timeout, and resumed."""
    NETWORK = "network"
    """Nothing was heard from the agent for the client timeout, or it sent nonsense."""
    AGENT_LOST = "agent lost"
    """The agent ended without notice. Each task that its slaves held may have ended it."""
    OUT_OF_MEMORY = "out of memory"
    """The task needed more memory than it may have."""
    CRASH = "crash"
    """The slave ended while it ran the task."""
    TIME_LIMIT = "time limit"
    """The task ran longer than its policy allows."""
    ERROR = "error"
    """The task raised an exception, and its policy says that such a task is tried again."""
    START_UP = "slave start-up"
    """The slave did not get as far as the task."""
    SET_UP = "set-up"
    """The set-up of the agent failed, so no slave of it was started."""
    SCALED_DOWN = "scaled down"
    """The agent was removed by a person, or because it was not needed."""
    CANCELLED = "cancelled"
    """The task was cancelled, or the computation ended."""

    @property
    def is_charged(self) -> bool:
        """Whether the task is charged with the loss, so that it counts for `attempts_max`."""
        return self in _CHARGED

    @property
    def is_blameless(self) -> bool:
        """Whether the task is not to blame. A task that was at an agent that vanished may be: it is a suspect."""
        return not (self in _CHARGED or self is Cause.AGENT_LOST)


_CHARGED = (Cause.OUT_OF_MEMORY, Cause.CRASH, Cause.TIME_LIMIT, Cause.ERROR)
