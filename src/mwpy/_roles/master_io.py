"""The I/O thread of a master: it does what the core decides, and tells it what happened.

It owns the core, the link, the audit file and the resource file. With the algorithm's thread it shares deques that one
appends to and the other empties, a queue of outcomes, and figures that are published as a whole: no lock.
"""

from __future__ import annotations

import shlex
import threading
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue

from attrs import define, evolve

from mwpy import resource_file
from mwpy._core.master.commands import Command, Definition, ShutDown
from mwpy._core.master.core import Actions, MasterCore
from mwpy._core.master.events import Garbage, Received, Stranger, Vanished
from mwpy._core.master.silence import Waiting
from mwpy._core.master.submissions import Submissions
from mwpy._system import clock, process
from mwpy._transport import wire
from mwpy._transport.link import Frames, MasterLink, StrangerSeen, Unreachable
from mwpy._values import records
from mwpy._values.errors import ExitCode, MwpyError, ProtocolError
from mwpy.audit import AuditFile
from mwpy.resource_file import ResourceFile

__all__ = ["LocalAgent", "MasterIo", "updated"]

TICK_S = 1.0
"""Seconds between two looks at the resource file and the local agents when nothing else happens."""

END_TICK_S = 0.02
"""The same during the end, when only the exit of a local agent may be waited for, of which nothing tells."""

EARLY_S = 10.0
"""A local agent that lives no longer than so many seconds had no use; a third in a row is not replaced."""

FAREWELL_S = 2.5
"""Seconds beyond the grace for the agents' goodbyes."""

EARLY_ENDS_ALLOWED = 3


@define(eq=False)
class LocalAgent:
    """An agent that the master itself started here."""

    command: Sequence[str]
    environment: dict[str, str]
    child: process.Child | None = None
    started_at: float = 0.0
    early_ends: int = 0
    """How many in a row ended soon after their start."""


def updated(content: ResourceFile, core: MasterCore, wall: float) -> ResourceFile:
    """What a resource file must say of this moment, Unix time `wall`."""
    counts = core.counts()
    finished = core.closing is not None and core.closing.finished
    return evolve(
        content,
        computation_status=resource_file.FINISHED if finished else resource_file.IN_PROGRESS,
        timestamp=wall,
        slaves_wanted=counts.slaves_wanted,
        slaves_connected=counts.slaves_connected,
        slaves_needed=counts.slaves_needed,
        connected_jobs=core.stable.jobs(),
    )


class MasterIo:
    """The I/O thread: the core, the link, the audit file, the resource file."""

    def __init__(self, core: MasterCore, link: MasterLink, audit: AuditFile) -> None:
        self.core = core
        self.link = link
        self.audit = audit
        self.submissions = Submissions()
        """Whoever adds to them wakes the link if it is asleep."""
        self.definitions: deque[Definition] = deque()
        self.commands: deque[Command] = deque()
        self.outcomes: SimpleQueue[Actions | BaseException] = SimpleQueue()
        self.waiting = Waiting.NOT
        self.resource_path: str | None = None
        self.resource: ResourceFile | None = None
        self.local: list[LocalAgent] = []
        self._news: Actions | None = None
        """What the algorithm's thread was not given yet."""
        self._written: ResourceFile | None = None
        self._tick_at = 0.0
        self._end_by: float | None = None
        self.thread = threading.Thread(target=self._run, name="mwpy-io", daemon=True)

    def _run(self) -> None:
        try:
            while not self._iterate():
                pass
        except BaseException as error:
            self.outcomes.put(error)
        finally:
            self._clean_up()

    def _iterate(self) -> bool:
        """One iteration: wait, note, decide, do. True at the end of all."""
        now = clock.monotonic()
        due = self.core.next_deadline()
        until = self._tick_at if due is None else min(due, self._tick_at)
        self.link.asleep = True  # whoever has work from here on wakes us
        timeout_s = 0.0 if self.submissions or self.commands else until - now
        self._deliver()  # last: who waits for it needs the interpreter lock, which is let go next
        for happened in self.link.poll(timeout_s, now):
            self._note(happened, now)
        now = clock.monotonic()
        self._take_commands()
        self.core.waiting = self.waiting
        self.core.decide(now)
        self._do(self.core.take_actions())
        if now >= self._tick_at:
            self._deliver()  # before files are written
            self._tick_at = now + (TICK_S if self.core.closing is None else END_TICK_S)
            self._write_resource_file()
            self._look_at_local_agents()
        if self.core.closing is None:
            return False
        self._deliver()
        self._end_by = self._end_by or now + self.core.closing.grace_s + FAREWELL_S
        return now > self._end_by or not (self.core.stable.agents or self._some_local_agent_runs())

    def _note(self, happened: object, now: float) -> None:
        match happened:
            case Frames(peer, address, frames):
                try:
                    message, payload = wire.decode(frames)
                except ProtocolError as error:
                    self.core.handle(Garbage(peer, address, str(error)), now)
                else:
                    self.core.handle(Received(peer, address, message, payload), now)
            case Unreachable(peer):
                self.core.handle(Vanished(peer, "the connection broke"), now)
            case StrangerSeen(address, reason):
                self.core.handle(Stranger(address, reason), now)

    def _take_commands(self) -> None:
        """Tasks first: what defines their algorithms was put into its deque before them."""
        spans = self.submissions.take()
        commands = [self.commands.popleft() for _ in range(len(self.commands))] if self.commands else []
        while self.definitions:
            self.core.define(self.definitions.popleft())
        if spans:
            self.core.submit(spans)
        for command in commands:
            self.core.obey(command)

    def _do(self, actions: Actions) -> None:
        self.audit.write(actions.records, clock.wall())
        for send in actions.sends:
            self.link.send(send.peer, wire.encode(send.message, send.frames))
        for peer in actions.forget:
            self.link.forget(peer)
        jar = self.core.jar
        self.submissions.publish(jar.pending, jar.runnable)
        if actions.results or actions.unrunnable or actions.connected or actions.disconnected:
            self._news = actions

    def _deliver(self) -> None:
        """Give out what the algorithm's thread may be waiting for."""
        if self._news is not None:
            self.outcomes.put(self._news)
            self._news = None

    # ---- resource file, local agents -----------------------------------------------------------------------

    def _write_resource_file(self, end: bool = False) -> None:
        if self.resource_path is None or self.resource is None:
            return
        new = updated(self.resource, self.core, clock.wall())
        if not resource_file.due(self._written, new):
            return
        try:
            resource_file.write(self.resource_path, new)
            self._written = new
        except MwpyError as error:
            if end or self._written is None or new.timestamp - self._written.timestamp > TICK_S * 60:
                self._notice(str(error))
                self._written = evolve(self._written or new, timestamp=new.timestamp)

    def _look_at_local_agents(self) -> None:
        for agent in self.local:
            if agent.child is None or self.core.closing is not None or agent.child.poll() is None:
                continue
            ended = agent.child.describe_exit()
            agent.child = None
            if ended == f"exit code {ExitCode.CANNOT_START}":
                continue  # it said why, and so does the core
            agent.early_ends = agent.early_ends + 1 if clock.monotonic() < agent.started_at + EARLY_S else 0
            if agent.early_ends < EARLY_ENDS_ALLOWED:
                self._notice(f"the local agent ended ({ended}); starting another")
                self.start_local(agent)
            else:
                self._notice(
                    f"{agent.early_ends} local agents in a row ended within seconds of their start ({ended}), so there "
                    f"are no slaves on this machine. An agent is started as `{shlex.join(agent.command)}`: does that "
                    f"come to mwpy.main() without standard input?"
                )

    def _some_local_agent_runs(self) -> bool:
        """Perhaps one that has yet to connect, and then goes when it hears of the end."""
        return any(agent.child is not None and agent.child.poll() is None for agent in self.local)

    def _notice(self, text: str) -> None:
        self.audit.write([records.Notice(text)], clock.wall())

    def start_local(self, agent: LocalAgent) -> None:
        agent.started_at = clock.monotonic()
        agent.child = process.start(agent.command, environment=agent.environment)

    def _clean_up(self) -> None:
        self._write_resource_file(end=True)
        for agent in self.local:
            if agent.child is not None:
                deadline = clock.monotonic() + FAREWELL_S
                while agent.child.poll() is None and clock.monotonic() < deadline:
                    threading.Event().wait(0.01)
                agent.child.kill()
                agent.child.poll()
        self.link.close(0.5)
        self.audit.close()

    def command(self, command: Command) -> None:
        """Have the core obey a command; from the algorithm's thread."""
        self.commands.append(command)
        self.link.wake()

    def end(self, finished: bool, grace_s: float) -> None:
        """End the computation and wait for the thread."""
        self._tick_at = 0.0
        self.command(ShutDown(finished, grace_s))
        self.thread.join(grace_s + 2 * FAREWELL_S + 1.0)
