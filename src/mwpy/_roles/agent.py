"""The agent's shell: it does what `AgentCore` decides, and tells it what happened.

One thread, one loop. It waits for the master, its slaves' streams, outputs and errors, and signals, all at once;
nothing in it blocks on a slave. What a slave writes to standard output and error goes on to the agent's own (see
`_streams`), and its end is kept as the slave's last words, with what its fault handler wrote and its peak memory.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
from collections.abc import Sequence

from attrs import define, field

from mwpy._core import agent as agent_core
from mwpy._core.agent import AgentCore, AgentSettings
from mwpy._roles.join import connect, find_master
from mwpy._system import clock, packages, process
from mwpy._system.streams import Inlet, Outlet
from mwpy._transport import wire
from mwpy._transport.channel import SETTLE_S, AgentEnd, open_channel
from mwpy._transport.link import AgentLink, Broken
from mwpy._values import messages, records
from mwpy._values.environment import FAULT_HANDLER, JOB_VARIABLE, SLAVE_VARIABLE, SlaveSettings
from mwpy._values.errors import ExitCode, ProtocolError
from mwpy._values.ids import Buffer
from mwpy._values.last_words import LAST_WORDS_BYTES, NO_WORDS, LastWords
from mwpy._values.options import Options
from mwpy.audit import AuditFile

__all__ = ["run"]

SILENT_S = 0.025
"""Seconds of a busy slave's silence after which its journal is read: half of what is promised for a result."""

HELD_BACK_S = 3.0
"""Seconds for which is held back what a starting slave writes to standard error: should it end as another did, that
was told already."""

HELD_BACK_BYTES = 64 * 1024
"""What it writes beyond is not held back."""

FAREWELL_S = 1.0
"""Seconds that the agent's own standard output and error get at its end to take what they have not."""

EXIT_S = 5.0
"""Seconds between a slave's closing of its stream and its exit, for its tear-down in Python."""

KILLED_TOO_S = 0.25
"""Seconds for which the end of a slave by SIGKILL is kept to oneself. Batch systems end a job by killing its processes
in any order: an agent that is killed too must not have charged its slave's task with a death."""

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def run(options: Options, audit: AuditFile, command: Sequence[str]) -> int:
    """Be an agent until its end.

    Args:
        command: the command line that starts a slave.

    Returns:
        The exit code.

    Raises:
        MwpyError: there was no computation to join; its `exit_code` says why.
    """
    ends_at = _ends_at(options)
    direction = find_master(options)
    if direction is None:
        return ExitCode.OK
    link = connect(direction, options.client_timeout)
    audit.write([records.Started("AGENT", direction.member_id, f"MASTER {link.address}")], clock.wall())
    settings = AgentSettings(
        direction.member_id,
        direction.generation,
        platform.node(),
        os.getpid(),
        PYTHON,
        options.slave_processes,
        options.grace_period,
        os.environ.get(JOB_VARIABLE, ""),
        ends_at,
    )
    agent = _Agent(AgentCore(settings), link, audit, command)
    try:
        return agent.run()
    finally:
        agent.close()


def _ends_at(options: Options) -> float | None:
    """When this agent will be ended, on the clock that measures; what the user says counts over the batch system."""
    if options.lifetime is not None:
        return clock.monotonic() + options.lifetime
    return None if options.job_end is None else clock.monotonic() + options.job_end - clock.wall()


@define(eq=False)
class _Running:
    """A slave process and the agent's ends of its channels."""

    number: int
    child: process.Child
    end: AgentEnd
    fds: set[int] = field(factory=set)
    inlets: dict[int, Inlet] = field(factory=dict)
    """Its standard output (1) and error (2)."""
    unsaid: bytearray = field(factory=bytearray)
    """What it wrote to standard error and the agent has not passed on."""
    came: bool = False
    """It sent something, so it is up."""
    heard: float = 0.0
    """When it last sent something, or was given tasks."""
    peeked: bool = False
    """Its journal was read since."""
    writable_watched: bool = False
    kill_at: float | None = None
    """When to kill it, as it closed its stream and so is of no use; mostly it ends by itself before."""
    bury_at: float | None = None
    """When to tell of its end."""


class _Agent:
    def __init__(self, core: AgentCore, link: AgentLink, audit: AuditFile, command: Sequence[str]) -> None:
        self._core = core
        self._link = link
        self._audit = audit
        self._command = list(command)
        self._slaves: dict[int, _Running] = {}
        self._by_fd: dict[int, tuple[_Running, Inlet | None]] = {}
        """Whose stream, output or error a file descriptor is."""
        self._result_group = 0
        self._max_result_bytes = 1 << 30
        self._signals: list[int] = []
        self._told: set[tuple[str, str]] = set()
        """The last words of slaves that never came to take a task."""
        now = clock.monotonic()
        streams = ((1, sys.stdout, "standard output"), (2, sys.stderr, "standard error"))
        self._outlets = {fd: Outlet(fd if file else None, name, now) for fd, file, name in streams}
        self._waited_for: set[int] = set()
        self._unread: dict[int, float] = {}
        """Own streams that are full, so that slaves are not read, and until when they have to wait."""
        self._bell_out, self._bell_in = socket.socketpair()
        for bell in (self._bell_out, self._bell_in):
            bell.setblocking(False)
        signal.set_wakeup_fd(self._bell_in.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda caught, _: self._signals.append(caught))
        link.watch(self._bell_out.fileno())

    def run(self) -> int:
        self._link.send(wire.encode(self._core.hello()))
        code = self._act(clock.monotonic())
        while code is None:
            fates, received, ready = self._link.poll(self._timeout(clock.monotonic()))
            now = clock.monotonic()
            for frames in received:
                self._hear_master(frames, now)
            for fate in fates:
                if isinstance(fate, Broken):
                    self._core.handle(agent_core.Disconnected(fate.reason), now)
            for fd in ready:
                self._hear_fd(fd, now)
            code = self._act(now)  # at once: somebody waits for what was heard
            if code is None:
                self._look_at_signals(now)
                self._look_after_slaves(now)
                self._look_after_outlets(now)
                self._rescue(now)
                code = self._act(now)
        return int(code)

    def _timeout(self, now: float) -> float | None:
        times = [*self._unread.values()]
        for running in self._slaves.values():
            if self._may_be_silent(running):
                times.append(running.heard + SILENT_S)
            if running.unsaid:
                times.append(running.heard + HELD_BACK_S)
            times += [time for time in (running.kill_at, running.bury_at) if time is not None]
        deadline = self._core.next_deadline()
        if deadline is not None:
            times.append(deadline)
        return max(0.0, min(times) - now) if times else None

    # ---- what happened --------------------------------------------------------------------------------------

    def _hear_master(self, frames: Sequence[Buffer], now: float) -> None:
        try:
            message, payload = wire.decode(frames)
        except ProtocolError as error:
            if self._core.agent:
                self._core.handle(agent_core.Disconnected(f"the master sent no proper message: {error}"), now)
            else:  # of another version of mwpy, most likely, which refused us in its own words
                self._core.handle(agent_core.Heard(messages.Refused(str(error))), now)
            return
        if isinstance(message, messages.Welcome):
            self._result_group = message.result_group
            self._max_result_bytes = message.max_result_bytes
        self._core.handle(agent_core.Heard(message, payload), now)

    def _hear_fd(self, fd: int, now: float) -> None:
        if fd == self._bell_out.fileno():
            self._bell_out.recv(4096)
            return
        if fd in self._waited_for:
            self._outlets[fd].flush(now)
            return
        running, inlet = self._by_fd.get(fd, (None, None))
        if running is None:
            return
        if inlet is not None:
            self._say_for(running, inlet, inlet.read(), now)
            if inlet.ended:
                self._unwatch(running, fd)
            return
        if running.writable_watched:
            running.end.flush()
            self._watch_writable(running)
        self._hear_slave(running, now)
        if running.end.eof:
            self._unwatch(running, fd)
            running.kill_at = now + EXIT_S

    def _hear_slave(self, running: _Running, now: float) -> bool:
        heard = False
        try:
            for frames in running.end.receive():
                message, payload = wire.decode(frames)
                if isinstance(message, messages.Results):
                    messages.entries(message, payload)
                heard = running.came = True
                running.heard, running.peeked = now, False
                self._core.handle(agent_core.SlaveHeard(running.number, message, payload), now)
                if running.unsaid:
                    self._say_unsaid(running, now)
        except ProtocolError as error:
            self._say(f"slave {running.number} wrote nonsense to its agent and is killed: {error}")
            running.child.kill()
            return False
        return heard

    def _say_for(self, running: _Running, inlet: Inlet, data: bytes, now: float) -> None:
        """Pass on what a slave wrote; of a starting one not at once what it wrote to standard error."""
        if inlet is running.inlets[1]:
            self._outlets[1].pass_on(data, now)
        else:
            running.unsaid += data
            if running.came or len(running.unsaid) > HELD_BACK_BYTES:
                self._say_unsaid(running, now)

    def _say_unsaid(self, running: _Running, now: float) -> None:
        data, running.unsaid = running.unsaid, bytearray()
        self._outlets[2].pass_on(data, now)

    def _look_at_signals(self, now: float) -> None:
        if not self._signals:
            return
        caught = [self._signals.pop(0) for _ in range(len(self._signals))]  # one by one: another may come meanwhile
        if signal.SIGTERM in caught or signal.SIGINT in caught:
            self._core.handle(agent_core.Terminated("evicted (SIGTERM)"), now)
        leaving = self._core.leaving
        for running in self._slaves.values():  # all: one SIGCHLD may stand for several ends
            code = running.child.poll()
            if code is not None and running.bury_at is None:
                running.bury_at = now + KILLED_TOO_S if code == -signal.SIGKILL and not leaving else now

    def _look_after_slaves(self, now: float) -> None:
        for running in list(self._slaves.values()):
            if running.unsaid and now >= running.heard + HELD_BACK_S:
                self._say_unsaid(running, now)
            if running.kill_at is not None and now >= running.kill_at:
                running.kill_at = None
                running.child.kill()
            if running.bury_at is not None and now >= running.bury_at:
                self._bury(running, now)

    def _look_after_outlets(self, now: float) -> None:
        """Wait for own streams that have not taken all, and read no slave into one that is full."""
        for number, outlet in self._outlets.items():
            if outlet.waiting != (number in self._waited_for):
                self._wait_for(number, outlet.waiting)
            until = outlet.patience_until()
            full = until is not None and now < until
            if full != (number in self._unread):
                for running in self._slaves.values():
                    self._listen(running, running.inlets[number], not full)
            self._unread.pop(number, None)
            if until is not None and full:
                self._unread[number] = until

    def _wait_for(self, number: int, wanted: bool) -> None:
        if wanted:
            self._waited_for.add(number)
            self._link.watch(number, writable=True, readable=False)
        else:
            self._waited_for.discard(number)
            self._link.unwatch(number)

    def _listen(self, running: _Running, inlet: Inlet, wanted: bool) -> None:
        if not wanted:
            self._unwatch(running, inlet.fileno())
        elif not inlet.ended:
            self._watch(running, inlet.fileno(), inlet)

    def _bury(self, running: _Running, now: float) -> None:
        """Hear all that a dead slave left, and tell of its end."""
        while self._hear_slave(running, now):
            pass
        self._deliver(running, now)
        words = self._last_words(running, now)
        cause = running.child.describe_exit()
        started = running.end.started
        for fd in list(running.fds):
            self._unwatch(running, fd)
        running.end.close()
        running.child.close()
        del self._slaves[running.number]
        self._core.handle(agent_core.SlaveExited(running.number, cause, words, started), now)

    def _last_words(self, running: _Running, now: float) -> LastWords:
        """What a dead slave left; it is passed on too, if no slave that never came left the very same."""
        for number, inlet in running.inlets.items():
            rest = inlet.read_rest()
            if number == 1:
                self._outlets[1].pass_on(rest, now)
            else:
                running.unsaid += rest
        fault = running.end.fault(LAST_WORDS_BYTES)
        running.unsaid += fault
        told = fault.decode(errors="replace")
        words = LastWords(running.inlets[1].end, running.inlets[2].end, told, running.child.peak_bytes)
        if (words.stderr, words.fault) not in self._told:
            self._say_unsaid(running, now)
        if not running.came:
            self._told.add((words.stderr, words.fault))
        return words

    # ---- results of a silent slave ----------------------------------------------------------------------------

    def _may_be_silent(self, running: _Running) -> bool:
        child = self._core.children.get(running.number)
        return not running.peeked and not self._result_group and child is not None and bool(child.held)

    def _rescue(self, now: float) -> None:
        for running in self._slaves.values():
            if self._may_be_silent(running) and now >= running.heard + SILENT_S:
                running.peeked = self._deliver(running, now)

    def _deliver(self, running: _Running, now: float) -> bool:
        """Take the results out of a journal; False if the slave emptied it meanwhile."""
        found = running.end.journal.read(running.number)
        if found is None:
            return False
        try:
            messages.check(*found)
            messages.entries(*found)
        except ProtocolError as error:
            self._say(f"slave {running.number} overwrote its unsent results, which are lost: {error}")
        else:
            self._core.handle(agent_core.SlaveHeard(running.number, *found), now)
        return True

    # ---- what must be done ---------------------------------------------------------------------------------------

    def _act(self, now: float) -> ExitCode | None:
        """Do what the core wants, until it wants nothing more."""
        self._core.decide(now)
        while True:
            actions = self._core.take_actions()
            self._audit.write(actions.records, clock.wall())
            for number in actions.start:
                self._start(number, now)
            for number, message, frames in actions.to_slaves:
                self._tell(number, message, frames, now)
            if actions.recall:
                self._recall(actions.recall, now)
            for number in actions.kill:
                if number in self._slaves:
                    self._slaves[number].child.kill()
            for message, frames in actions.to_master:
                self._link.send(wire.encode(message, frames))
            if actions.exit is not None:
                return actions.exit
            if actions.look_up:
                self._core.handle(agent_core.LookedUp(packages.versions(actions.look_up)), now)
            if not (actions.recall or actions.start or actions.look_up):
                return None

    def _recall(self, wanted: Sequence[tuple[int, int]], now: float) -> None:
        """Stop slaves from starting more, and tell what they have started; those that are gone are passed over."""
        there = [(self._slaves[number], count) for number, count in wanted if number in self._slaves]
        for running, _ in there:
            running.end.recall()
        if there:
            clock.sleep(SETTLE_S)
        for running, count in there:
            self._core.handle(agent_core.Recalled(running.number, running.end.started, count), now)

    def _start(self, number: int, now: float) -> None:
        end, fds = open_channel()
        settings = SlaveSettings(
            fds.stream,
            fds.memory,
            number,
            os.getpid(),
            self._result_group,
            self._max_result_bytes,
        )
        try:
            child = process.start(
                self._command,
                environment={SLAVE_VARIABLE: settings.to_json(), FAULT_HANDLER: "1"},
                pass_fds=fds.numbers(),
                keep_output=True,
            )
        except OSError as error:
            end.close()
            self._core.handle(agent_core.SlaveExited(number, f"cannot be started: {error}", NO_WORDS, 0), now)
            return
        finally:
            fds.close()
        running = _Running(number, child, end, heard=now)
        self._slaves[number] = running
        self._watch(running, end.fileno())
        for output, fd in child.outputs.items():
            running.inlets[output] = Inlet(fd, LAST_WORDS_BYTES)
            if output not in self._unread:
                self._watch(running, fd, running.inlets[output])
        self._audit.write([records.SlaveStarted(number, child.pid)], clock.wall())

    def _tell(self, number: int, message: messages.Message, frames: Sequence[Buffer], now: float) -> None:
        running = self._slaves.get(number)
        if running is None:
            return
        if isinstance(message, messages.Tasks):
            child = self._core.children[number]
            if child.num_held == sum(message.counts):
                running.heard, running.peeked = now, False
                running.end.feed(now)
        running.end.send(wire.encode(message, frames))
        self._watch_writable(running)

    def _watch_writable(self, running: _Running) -> None:
        if running.end.wants_write != running.writable_watched and running.end.fileno() in running.fds:
            running.writable_watched = running.end.wants_write
            self._link.watch(running.end.fileno(), running.writable_watched)

    def _watch(self, running: _Running, fd: int, inlet: Inlet | None = None) -> None:
        self._by_fd[fd] = running, inlet
        running.fds.add(fd)
        self._link.watch(fd)

    def _unwatch(self, running: _Running, fd: int) -> None:
        if fd in running.fds:
            running.fds.discard(fd)
            del self._by_fd[fd]
            self._link.unwatch(fd)

    def _say(self, text: str) -> None:
        self._audit.write([records.Notice(text)], clock.wall())

    def close(self) -> None:
        """Leave nothing behind: kill what runs, close the connection after the goodbye left."""
        for running in self._slaves.values():
            running.child.kill()
        signal.set_wakeup_fd(-1)
        for outlet in self._outlets.values():
            outlet.flush(clock.monotonic(), FAREWELL_S)
        self._link.close(1.0)
        self._bell_out.close()
        self._bell_in.close()
        self._audit.close()
