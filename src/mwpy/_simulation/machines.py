"""What a simulated computation runs on: machines with agents, their slaves, their connections; and at which pace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from attrs import define, field, frozen

from mwpy._core.agent.core import AgentCore
from mwpy._values.errors import ExitCode
from mwpy._values.ids import SlaveId

__all__ = ["AgentHost", "Connection", "Pace", "SlaveProcess"]


@frozen
class Pace:
    """How fast things happen, in simulated seconds."""

    durations: tuple[float, ...] = (1e-5, 1e-3, 0.05, 1.0)
    """What the tasks of an algorithm take on the average: one of these."""
    submit_s: float = 1.0
    """The longest pause between two submissions."""
    start_s: float = 0.2
    """The longest start of a slave."""
    fault_s: float = 1.5
    """The longest pause between two faults."""
    faulty_s: float = 20.0
    """When faults end."""


@define(eq=False)
class SlaveProcess:
    """A simulated slave: it holds tasks, runs one at a time, and gathers results."""

    number: int
    sid: SlaveId | None = None
    algorithms: dict[int, bool] = field(factory=dict)
    """The numbers of the algorithms that it knows, and whether it can run them."""
    tasks: deque[tuple[int, int, int, int]] = field(factory=deque)
    """Position, task, attempt and algorithm of what was passed on to it and not started."""
    passed_on: int = 0
    started: int = 0
    """Positions of the last task passed on to it, and of the last that it started."""
    running: int = 0
    gathered: list[tuple[int, int, float]] = field(factory=list)
    stopping: bool = False
    dead: bool = False


@define(eq=False)
class Connection:
    """A simulated connection: in order, delayed, until it breaks."""

    peer: bytes
    broken: bool = False
    to_master_at: float = 0.0
    to_agent_at: float = 0.0


@define(eq=False)
class AgentHost:
    """A simulated machine with an agent on it."""

    name: str
    ended: Callable[[ExitCode | None], None]
    """Called when the agent is gone, with what it exited with; None if it was killed."""
    num_slaves: int = 2
    job: str = ""
    able: bool = True
    """It can run every algorithm: were no host able, waiting for ever would be right."""
    core: AgentCore | None = None
    connection: Connection | None = None
    slaves: dict[int, SlaveProcess] = field(factory=dict)
    frozen_until: float = 0.0
