"""The processes of an agent: its slaves, and the template from which they are forked.

The agent's core decides which slaves start, and how. While the template starts a slave, the process of this slave is
the template: its output and its end are those of the slave.
"""

from __future__ import annotations

import os
import signal

from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.agent import events
from mwpy._core.agent.core import AgentCore
from mwpy._roles.agent_files import SlaveHandle, WatchedFiles
from mwpy._roles.edges import AgentEdges, SlaveParts, Template
from mwpy._roles.session_link import SessionLink
from mwpy._system import limits
from mwpy._values import messages, records
from mwpy._values.environment import MODULE_PATH
from mwpy._values.last_words import NO_WORDS

__all__ = ["SlaveProcesses"]


class SlaveProcesses(Struct, eq=False):
    """Starts slaves, and reports to the core when they run and end."""

    _core: AgentCore
    _edges: AgentEdges
    _link: SessionLink
    """The link that waits for the template's answers."""
    _slaves: dict[int, SlaveHandle]
    """The slaves that have been started, by number; the agent uses this table, too."""
    _watched: WatchedFiles
    _template: Template | None = None

    def start(self, number: int, now: float) -> None:
        """Start a slave as a fresh interpreter."""
        try:
            parts = self._edges.launcher.start(number, self._welcome)
        except OSError as error:
            self._cannot_start(number, error, now)
        else:
            self._has_process(self._add(number, parts))

    def fork(self, number: int, now: float) -> None:
        """Let the template start a slave. If there is no template, start one."""
        if self._template is not None and self._template.poll() is not None:
            self.leave_template()
        try:
            if self._template is None:
                self._template, parts = self._edges.launcher.start_template(number, self._welcome)
                self._link.watch(self._template.fileno())
            else:
                parts = self._template.fork(number, self._welcome)
        except OSError as error:
            self._cannot_start(number, error, now)
        else:
            self._add(number, parts)

    @property
    def _welcome(self) -> messages.Welcome:
        welcome = self._core.welcome
        assert welcome is not None, "a slave is started before the master has accepted the agent"
        return welcome

    def _cannot_start(self, number: int, error: OSError, now: float) -> None:
        why = f"cannot be started: {limits.named(error) or error}"
        self._core.handle(events.SlaveExited(number, why, NO_WORDS, 0), now)

    def _add(self, number: int, parts: SlaveParts) -> SlaveHandle:
        slave = self._slaves[number] = SlaveHandle(number, parts)
        if (tasks_end_at := self._core.settings.tasks_end_at) is not None:
            slave.channel.end_at(tasks_end_at)
        self._watched.add(slave)
        return slave

    def _has_process(self, slave: SlaveHandle) -> None:
        """Read the messages of a slave that has a process of its own now."""
        self._watched.add_stream(slave)
        happened = [records.SlaveStarted(slave.number, slave.parts.process.pid)]
        self._edges.audit.write(happened, self._edges.clock.wall())

    def hear_template(self, now: float) -> None:
        """Read the answers of the template. A slave that it has started may have ended already."""
        answers = () if self._template is None else self._template.answers()
        for answer, process in answers:
            slave = self._slaves[answer.slave]
            if process is None:
                slave.parts.process.close()
                self.forget(slave)
                self._core.handle(events.NotForked(slave.number, answer.failure), now)
                continue
            if answer.unsafe:
                self.leave_template()
            slave.parts = replace(slave.parts, process=process)
            self._has_process(slave)
            self._core.handle(events.Forked(slave.number, answer.unsafe, answer.own_bytes), now)
        if answers:
            self.look(now)

    def look(self, now: float) -> None:
        """Report the slaves whose processes have ended. One SIGCHLD may report several ends."""
        template_ended = self._template is not None and self._template.poll() is not None
        if template_ended:
            self.hear_template(now)  # or its end would be the end of a slave that it has started
        for slave in self._slaves.values():
            if not slave.exit_seen and (code := slave.parts.process.poll()) is not None:
                slave.exit_seen = True
                self._core.handle(events.ExitSeen(slave.number, code == -signal.SIGKILL), now)
        if template_ended:
            self.leave_template()
        if self._core.settings.forks and not self._is_forking:
            pids = [slave.parts.process.pid for slave in self._slaves.values()]
            self._edges.launcher.reap(pids if self._template is None else [self._template.pid, *pids])

    @property
    def _is_forking(self) -> bool:
        """Whether the template has an order that it has not answered. Until then, nobody knows which child of this
        process is the slave."""
        template = self._template
        return template is not None and any(slave.parts.process.pid == template.pid for slave in self._slaves.values())

    def renew(self, end_template: bool, module_path: str) -> None:
        """Let processes that start from now on find modules elsewhere, unless the path is empty."""
        if end_template:
            self.leave_template()
        if module_path:
            os.environ[MODULE_PATH] = module_path

    def leave_template(self) -> None:
        """Have no template any more: it has ended, it has become a slave, or it ends because it gets no more orders."""
        if self._template is not None:
            self._link.unwatch(self._template.fileno())
            self._template.close()
            self._template = None

    def forget(self, slave: SlaveHandle) -> None:
        """Close the files of a slave that has ended, and remove what it has left."""
        for fd in list(slave.fds):
            self._watched.remove(slave, fd)
        slave.channel.close()
        if slave.parts.clean_up is not None:
            slave.parts.clean_up()
        del self._slaves[slave.number]
