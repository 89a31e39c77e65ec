"""Starts slave processes with the channel to their agent: as fresh interpreters, or with a template that forks them."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from functools import partial

from msgspec import Struct, field

from mwpy._roles.edges import SlaveParts
from mwpy._roles.slave_command import NewTemplate, SlaveCommand
from mwpy._system import forks, process
from mwpy._system.slave_folders import SlaveFolders
from mwpy._system.streams import Inlet
from mwpy._transport.channel import SlaveFds, open_channel
from mwpy._transport.orders import AgentOrders, Answer
from mwpy._values import messages
from mwpy._values.environment import SlaveSettings
from mwpy._values.last_words import LAST_WORDS_BYTES

__all__ = ["Launcher", "Template"]


MESSAGE_SLACK = 2 << 20
"""Bytes of a slave's message beyond its results: the header, and the results that are not counted in it."""


class Launcher(Struct, eq=False):
    """Starts real slave processes.

    Args:
        command: how a process is started.
        max_memory_bytes: how much memory a slave may have between two tasks; 0 if there is no limit.
        first: a template that was started before the agent had a master; None if there is none.
    """

    command: SlaveCommand
    max_memory_bytes: int = 0
    first: NewTemplate | None = None
    folders: SlaveFolders = field(default_factory=SlaveFolders)

    def start(self, number: int, welcome: messages.Welcome) -> SlaveParts:
        """Start a slave of an agent that the master has accepted, as a fresh interpreter.

        Raises:
            OSError: it cannot be started.
        """
        channel, fds = open_channel(welcome.max_result_bytes + MESSAGE_SLACK)
        try:
            settings = self.settings(number, welcome, fds)
            child = self.command.start(settings.to_json(), fds.numbers())
        except OSError:
            channel.close()
            raise
        finally:
            fds.close()
        return SlaveParts(child, channel, _inlets(child), partial(self.folders.remove, settings.folder))

    def start_template(self, number: int, welcome: messages.Welcome) -> tuple[Template, SlaveParts]:
        """Start a template, and let it start its first slave.

        Raises:
            OSError: it cannot be started.
        """
        new, self.first = self.first, None
        if new is not None and new.child.poll() is not None:  # the next one shows why
            new.kill()
            new = None
        template = Template(self, *(new or self.command.start_template()))
        try:
            return template, template.fork(number, welcome)
        except OSError:
            template.kill()
            template.close()
            raise

    def reap(self, known: Container[int]) -> None:
        """Let the kernel forget children of this process that have ended, except for some that are watched."""
        forks.reap_orphans(known)

    def settings(self, number: int, welcome: messages.Welcome, fds: SlaveFds) -> SlaveSettings:
        """Return the settings of a slave with a channel, and make its folder."""
        limits = welcome.result_group, welcome.max_result_bytes, self.max_memory_bytes
        return SlaveSettings(*fds.numbers(), number, os.getpid(), *limits, self.folders.make())

    def close(self) -> None:
        """End the first template if it was not used. Remove the folders of the slaves, which have ended."""
        if self.first is not None:
            self.first.kill()
            self.first = None
        self.folders.close()


def _inlets(child: process.Child) -> dict[int, Inlet]:
    return {number: Inlet(fd, LAST_WORDS_BYTES, os.isatty(number)) for number, fd in child.outputs.items()}


class Template:
    """A process that forks slaves. It starts one at a time.

    Args:
        launcher: gives the slaves their settings.
        child: the process.
        orders: what it forks.
    """

    def __init__(self, launcher: Launcher, child: process.Child, orders: AgentOrders) -> None:
        self._launcher = launcher
        self._child = child
        self._orders = orders
        self._is_new = True
        self._ordered: int | None = None
        """The slave that it was ordered to start; None after its answer."""
        self.pid: int = child.pid

    def fileno(self) -> int:
        """Return the descriptor from which its answers come, to wait for."""
        return self._orders.fileno()

    def poll(self) -> int | None:
        """Return how it ended, as `process.Child.poll` does; None while it runs."""
        return self._child.poll()

    def fork(self, number: int, welcome: messages.Welcome) -> SlaveParts:
        """Let it start a slave. Until its answer has arrived, the process of the slave stands for the template.

        Raises:
            OSError: there are too many open files, or the template has ended.
        """
        channel, fds = open_channel(welcome.max_result_bytes + MESSAGE_SLACK)
        outputs: Sequence[int] = ()
        try:
            if not self._is_new:
                outputs = self._child.open_outputs()
            self._is_new = False
            settings = self._launcher.settings(number, welcome, fds)
            self._orders.give(settings, [*fds.numbers(), *outputs])
            self._ordered = number
        except OSError:
            channel.close()
            raise
        finally:
            fds.close()
            for fd in outputs:
                os.close(fd)
        clean_up = partial(self._launcher.folders.remove, settings.folder)
        return SlaveParts(self._child, channel, _inlets(self._child), clean_up)

    def answers(self) -> Sequence[tuple[Answer, process.Child | None]]:
        """Return the answers that have arrived, each with the process of its slave, if there is one.

        An answer without its order is left out, because the script wrote it.
        """
        found: list[tuple[Answer, process.Child | None]] = []
        for answer in self._orders.answers():
            if answer.slave == self._ordered:
                self._ordered = None
                found.append((answer, self._process_of(answer)))
        return found

    def _process_of(self, answer: Answer) -> process.Child | None:
        if answer.unsafe:
            return self._child
        return self._child.pass_outputs_to(answer.pid) if answer.pid else None

    def kill(self) -> None:
        """Kill it."""
        self._child.kill()

    def close(self) -> None:
        """Let it end if it still waits for orders."""
        self._orders.close()
