"""Simulated templates: they load the script, fork slaves, and have all the troubles of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mwpy._roles.edges import SlaveParts
from mwpy._simulation.network import SimulatedAgentLink
from mwpy._simulation.slaves import SIGABRT, SIGKILL, SimulatedSlave, fail_to_load
from mwpy._simulation.world import World
from mwpy._transport.orders import Answer
from mwpy._values import messages
from mwpy._values.exits import describe_exit

__all__ = ["SimulatedTemplate"]

ORDERS_FD = 4

TEMPLATE_PID = 1_000_000

FORK_S = 0.02
"""The longest fork, and the longest start of a slave after it, in seconds."""


class Nursery(Protocol):
    """Makes the slaves that a template forks: `SimulatedLauncher`."""

    def make_slave(self, number: int, edits: int) -> SimulatedSlave: ...
    def begin(self, slave: SimulatedSlave, longest_s: float) -> None: ...
    def check_start(self, slave: SimulatedSlave) -> None: ...
    def template_ended(self) -> None: ...


class SimulatedTemplate:
    """A simulated template. While it starts a slave, it is also the process of this slave.

    Args:
        nursery: makes the slaves.
        link: its agent's link.
        edits: how often the script was edited before it is loaded.
        unsafe: whether the script leaves something that must not be copied.
    """

    pid = TEMPLATE_PID
    peak_bytes = 0
    out_of_memory = False
    limit_kills = 0

    def __init__(self, world: World, nursery: Nursery, link: SimulatedAgentLink, edits: int, unsafe: bool) -> None:
        self._world = world
        self._nursery = nursery
        self._link = link
        self._edits = edits
        self._unsafe = unsafe
        self._code: int | None = None
        self._left = False
        """Whether it gets no orders any more."""
        self._is_loaded = False
        self._starts: SimulatedSlave | None = None
        """The slave that it starts."""
        self._answers: list[tuple[Answer, SimulatedSlave | None]] = []

    @property
    def is_over(self) -> bool:
        """Whether it has ended, is a slave now, or gets no orders any more."""
        return self._left or self._code is not None

    @property
    def is_starting(self) -> bool:
        """Whether it starts a slave, or hangs at it."""
        return self._starts is not None and not self.is_over

    # ---- as its agent sees it ------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The file descriptor to wait for."""
        return ORDERS_FD

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._code

    def describe_exit(self) -> str:
        """Its end in words."""
        assert self._code is not None, "it has not ended"
        return describe_exit(self._code)

    def fork(self, number: int, welcome: messages.Welcome) -> SlaveParts:
        """Start a slave."""
        assert self._starts is None, "it starts another slave"
        assert not self.is_over, "it takes no orders"
        slave = self._starts = self._nursery.make_slave(number, self._edits)
        if self._is_loaded:
            self._world.after(self._world.random.random() * FORK_S, self._fork)
        return SlaveParts(self, slave.channel, slave.outputs)

    def answers(self) -> Sequence[tuple[Answer, SimulatedSlave | None]]:
        """The answers that have arrived."""
        self._link.readable(ORDERS_FD, False)
        answers, self._answers = self._answers, []
        return answers

    def kill(self) -> None:
        """Its agent ends it."""
        self.end(SIGKILL)

    def abort(self) -> None:
        """Its agent ends it because it hangs. Sometimes only SIGKILL can end it."""
        if self._world.random.random() < 0.5:
            self.end(SIGABRT)

    def used_memory(self, exact_above: int) -> int:
        """How much memory it uses."""
        raise AssertionError("a template runs no tasks")

    def limit_memory(self, most: int | None) -> None:
        """Limit its memory."""
        raise AssertionError("a template runs no tasks")

    def close(self) -> None:
        """Its agent gives no orders any more."""
        self._left = True
        self._link.readable(ORDERS_FD, False)

    # ---- what it does --------------------------------------------------------------------------------------

    def end(self, code: int) -> None:
        """The process ends, and with it the slave that it starts."""
        if self._code is None and not self._left:
            self._world.note(f"the template ends: {describe_exit(code)}")
            self._code = code
            if self._starts is not None:
                self._starts.end(code)
            self._nursery.template_ended()

    def load(self, longest_s: float) -> None:
        """Begin to load the script. Sometimes this never ends."""
        if self._world.chance(0.05):
            self._hang()
        else:
            self._world.after(self._world.random.random() * longest_s, self._loaded)

    def _hang(self) -> None:
        if self._starts is not None:
            self._nursery.check_start(self._starts)

    def _loaded(self) -> None:
        self._is_loaded = True
        if self._code is None and self._starts is not None and self._world.chance(0.1):
            fail_to_load(self._starts, self._world.random)
            self.end(1)
        else:
            self._fork()

    def _fork(self) -> None:
        slave = self._starts
        if self._code is not None or slave is None:
            return
        if self._world.chance(0.03):
            self._hang()
            return
        self._starts = None
        if self._unsafe:
            answer = Answer(slave.number, self.pid, "the script has a random generator")
        elif self._world.chance(0.05):
            answer = Answer(slave.number, failure="no memory")
            slave.end(SIGKILL)
        else:
            answer = Answer(slave.number, slave.number)
        if slave.code is None:
            self._nursery.begin(slave, FORK_S)
        self._answers.append((answer, None if answer.failure else slave))
        self._link.readable(ORDERS_FD, True)
        if not self._unsafe and self._world.chance(0.03):  # before its agent reads the answer
            self.end(SIGKILL)
