"""The processes of an agent: how slaves and the template are started, forked, heard and ended.

The processes of an agent: its slaves, and the template from which they are forked.

The agent's core decides which slaves start, and how. While the template starts a slave, the process of this slave is
the template: its output and its end are those of the slave.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial

from attrs import Factory, define

from mwpy._core.agent import child
from mwpy._core.agent.core import AgentCore
from mwpy._roles.edges import AgentEdges, SlaveHandle
from mwpy._system import forks, offers, process
from mwpy._system.locks import SlaveFolders
from mwpy._system.streams import Inlet
from mwpy._transport.channel import Template, open_channel, open_orders
from mwpy._values import messages, records
from mwpy._values.last_words import LAST_WORDS_BYTES, NO_WORDS
from mwpy._values.options import (
    FAULT_HANDLER,
    SLAVE_VARIABLE,
    InVariable,
    SlaveSettings,
    TemplateSettings,
    thread_limits,
)


@define(eq=False, repr=False)
class SlaveProcesses:
    """Starts slaves, and reports to the core when they run and end."""

    _core: AgentCore
    _edges: AgentEdges
    _slaves: dict[int, SlaveHandle]
    """The slaves that have been started, by number; the agent uses this table, too."""
    template: Template | None = None

    def start(self, number: int, now: float) -> None:
        """Start a slave as a fresh interpreter."""
        try:
            sets_up = self._core.children[number].sets_up is not None
            slave = self._edges.launcher.start(number, self._welcome, sets_up=sets_up)
        except OSError as error:
            self._cannot_start(number, error, now)
        else:
            self._add(slave)
            self._has_process(slave)

    def fork(self, number: int, now: float) -> None:
        """Let the template start a slave. If there is no template, start one."""
        if self.template is not None and self.template.poll() is not None:
            self.leave_template()
        try:
            if self.template is None:
                self.template = self._edges.launcher.start_template()
            slave = self._edges.launcher.fork(self.template, number, self._welcome)
        except OSError as error:
            self._cannot_start(number, error, now)
        else:
            self._add(slave)

    @property
    def _welcome(self) -> messages.Welcome:
        welcome = self._core.welcome
        assert welcome is not None, "a slave is started before the master has accepted the agent"
        return welcome

    def _cannot_start(self, number: int, error: OSError, now: float) -> None:
        why = f"cannot be started: {process.named(error) or error}"
        self._core.handle(child.SlaveExited(number, why, NO_WORDS, 0), now)

    def _add(self, slave: SlaveHandle) -> None:
        self._slaves[slave.number] = slave
        if (tasks_end_at := self._core.settings.tasks_end_at) is not None:
            slave.channel.end_at(tasks_end_at)

    def _has_process(self, slave: SlaveHandle) -> None:
        """Read the messages of a slave that has a process of its own now."""
        slave.has_process = True
        happened = [records.SlaveStarted(slave.number, slave.process.pid)]
        self._edges.audit.write(happened, self._edges.clock.wall())

    def hear_template(self, now: float) -> None:
        """Read the answers of the template. A slave that it has started may have ended already."""
        answers = () if self.template is None else self.template.answers()
        for answer, forked in answers:
            slave = self._slaves[answer.slave]
            if forked is None:
                slave.process.close()
                self.forget(slave)
                self._core.handle(child.Forked(slave.number, answer.failure), now)
                continue
            if answer.unsafe:
                self.leave_template()
            slave.process = forked
            self._has_process(slave)
            self._core.handle(child.Forked(slave.number, "", answer.unsafe, answer.own_bytes), now)
        if answers:
            self.look(now)

    def look(self, now: float) -> None:
        """Report the slaves whose processes have ended. One SIGCHLD may report several ends."""
        template_ended = self.template is not None and self.template.poll() is not None
        if template_ended:
            self.hear_template(now)  # or its end would be the end of a slave that it has started
        for slave in self._slaves.values():
            if not slave.exit_seen and (code := slave.process.poll()) is not None:
                slave.exit_seen = True
                self._core.handle(child.ExitSeen(slave.number, code == -signal.SIGKILL), now)
        if template_ended:
            self.leave_template()
        if self._core.settings.forks and not self._is_forking:
            pids = [slave.process.pid for slave in self._slaves.values()]
            self._edges.launcher.reap(pids if self.template is None else [self.template.pid, *pids])

    @property
    def _is_forking(self) -> bool:
        """Whether the template has an order that it has not answered. Until then, nobody knows which child of this
        process is the slave."""
        template = self.template
        return template is not None and any(slave.process.pid == template.pid for slave in self._slaves.values())

    def leave_template(self) -> None:
        """Have no template any more: it has ended, it has become a slave, or it ends because it gets no more orders."""
        if self.template is not None:
            self.template.close()
            self.template = None

    def forget(self, slave: SlaveHandle) -> None:
        """Close the files of a slave that has ended, and remove what it has left."""
        slave.channel.close()
        if slave.clean_up is not None:
            slave.clean_up()
        del self._slaves[slave.number]


# How an agent starts its slaves: as fresh interpreters, or with a template that forks them.


MESSAGE_SLACK = 2 << 20
"""Bytes of a slave's message beyond its results: the header, and the results that are not counted in it."""


@define(eq=False, repr=False)
class Launcher:
    """Starts real slave processes, each with a channel to this agent.

    Args:
        command: the command line of a slave.
        slaves: how many slaves share the cores of this agent.
        max_tasks: how many tasks a slave may run; 0 if there is no limit.
        max_memory_bytes: how much memory a slave may have between two tasks; 0 if there is no limit.
    """

    command: Sequence[str]
    slaves: int
    max_tasks: int = 0
    max_memory_bytes: int = 0
    _first: Template | None = None
    """A template that has no orders yet; None if there is none."""
    _folders: SlaveFolders = Factory(SlaveFolders)

    def _start(self, settings: InVariable, fds: Sequence[int]) -> process.Child:
        share = thread_limits(os.environ, process.count_cores(), self.slaves)
        environment = {SLAVE_VARIABLE: settings.to_json(), FAULT_HANDLER: "1", **share}
        return process.start(self.command, environment=environment, pass_fds=fds, keep_output=True)

    def start(self, number: int, welcome: messages.Welcome, *, sets_up: bool = False) -> SlaveHandle:
        """Start a slave of an agent that the master has accepted, or its set-up, as a fresh interpreter.

        Raises:
            OSError: it cannot be started.
        """
        return self._launch(number, welcome, lambda settings: self._start(settings, settings.fds), sets_up=sets_up)

    def fork(self, template: Template, number: int, welcome: messages.Welcome) -> SlaveHandle:
        """Let a template start a slave.

        Raises:
            OSError: as `Template.fork`.
        """
        return self._launch(number, welcome, template.fork)

    def _launch(
        self,
        number: int,
        welcome: messages.Welcome,
        begin: Callable[[SlaveSettings], process.Child],
        *,
        sets_up: bool = False,
    ) -> SlaveHandle:
        """Start a slave with a channel and a folder; `begin` starts its process."""
        channel, fds = open_channel(welcome.max_result_bytes + MESSAGE_SLACK)
        try:
            limits = welcome.result_group, welcome.max_result_bytes, self.max_tasks, self.max_memory_bytes
            folders = self._folders.make(), self._folders.for_set_up() if sets_up else ""
            child = begin(SlaveSettings(fds, number, os.getpid(), *limits, *folders))
        except OSError:
            channel.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)
        outputs = {each: Inlet(fd, LAST_WORDS_BYTES, os.isatty(each)) for each, fd in child.outputs.items()}
        return SlaveHandle(number, child, channel, outputs, partial(self._folders.remove, folders[0]))

    def prepare(self) -> None:
        """Start the first template now, although there is no master yet."""
        with suppress(OSError):  # `start_template` tries again
            self._first = self._new_template()

    def start_template(self) -> Template:
        """Start a template.

        Raises:
            OSError: it cannot be started.
        """
        first, self._first = self._first, None
        if first is not None and first.poll() is not None:  # the next one shows why
            first.kill()
            first = None
        return first or self._new_template()

    def _new_template(self) -> Template:
        orders, fd = open_orders()
        try:
            return Template(self._start(TemplateSettings(fd, os.getpid()), [fd]), orders)
        except OSError:
            orders.close()
            raise
        finally:
            os.close(fd)

    def programs(self, names: Sequence[str]) -> dict[str, str]:
        """Return where programs are that tasks require; an empty text for one that is not found."""
        return offers.programs(names)

    def renew(self, environment: Mapping[str, str]) -> None:
        """Start all processes with more environment variables from now on."""
        os.environ.update(environment)
        if self._first is not None:
            self._first.kill()
            self._first = None

    def reap(self, known: Container[int]) -> None:
        """Let the kernel forget children of this process that have ended, except for some that are watched."""
        forks.reap_orphans(known)

    def close(self) -> None:
        """End the first template if it was not used. Remove the folders of the slaves, which have ended."""
        self.renew({})
        self._folders.close()
