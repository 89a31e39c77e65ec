"""The agent's shell: it does what `AgentCore` decides, and reports to it what happens.

One thread runs one loop. It waits for the master, for streams and outputs of slaves, and for signals, all at once.
Nothing in it blocks on a slave. What a slave writes to standard output and error goes to the agent's own streams (see
`_system/streams`). The end of this output becomes the slave's last words, with its fault handler's report and peak
memory.

`Agent` touches the outside only through the edges that it is given, so the simulator runs the same loop over fakes.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from attrs import evolve
from msgspec.structs import replace

from mwpy._core.agent import child
from mwpy._core.agent.child import AgentSettings, DropShare, OpenShare, Resumed, ShareNotKept, ShareOpened, WriteShare
from mwpy._core.agent.core import AgentCore
from mwpy._core.holding import known
from mwpy._roles.edges import AgentEdges, MasterSearch, SlaveHandle
from mwpy._roles.sessions import SessionLink, hello_of_this_process
from mwpy._roles.slave_processes import Launcher, SlaveProcesses
from mwpy._system import clock, forks, memory, offers
from mwpy._system.process import Signals
from mwpy._system.streams import Outlet
from mwpy._transport import shared_objects, wire
from mwpy._transport.channel import SETTLE_S
from mwpy._transport.local_link import LocalAgentLink
from mwpy._values import groups, installed, messages, records
from mwpy._values.bounds import Buffer
from mwpy._values.causes import Cause
from mwpy._values.connections import Broken, Connected
from mwpy._values.errors import ExitCode, MasterUnreachable, ProtocolError
from mwpy._values.last_words import LAST_WORDS_BYTES, LastWords
from mwpy._values.options import MODULE_PATH, MasterStream, Options
from mwpy._values.requires import Offers
from mwpy.audit import AuditFile

if TYPE_CHECKING:
    from mwpy._transport.link import AgentLink

# How an agent gets its connection to the master: at its start, and when it joins again.


AGAIN_S = 1.0
"""Seconds from one attempt to join again to the next."""


class Contact(NamedTuple):
    """A connection to the master, and the first message on it."""

    link: AgentLink | LocalAgentLink
    hello: messages.Hello
    search: MasterSearch | None
    """Finds the master again; None if the agent ends with its master."""


def contact_of(options: Options, resumed: str = "") -> Contact | None:
    """Connect to the master that the options name; return None if the computation is finished.

    Args:
        resumed: the name that this agent had before it was stopped; empty if it was not.
    """
    from mwpy._roles.join import Search, connect, find_master  # only here, because it loads ZeroMQ

    found = find_master(options)
    if found is None:
        return None
    link, found = connect(found)
    session = os.urandom(16).hex()  # also if it does not come back: in a session, it confirms what it has handled
    hello = replace(found.hello(options.slave_processes), resumed=resumed)
    hello = replace(hello, session=session, returns_s=options.reconnect_seconds)
    return Contact(link, hello, Search(options, found, link.address))


def contact_again(options: Options, resumed: str) -> Contact | None:
    """As `contact_of`, but wait for a master that does not answer yet."""
    until = clock.monotonic() + options.reconnect_seconds
    while clock.monotonic() < until:
        with suppress(MasterUnreachable):
            return contact_of(options, resumed)
        clock.sleep(AGAIN_S)
    return contact_of(options, resumed)


def local_contact(options: Options, master: MasterStream) -> Contact:
    """Return the connection to the master that has started this process."""
    hello = hello_of_this_process(options.member_id, "", options.slave_processes)
    return Contact(LocalAgentLink(master, options.silence_s()), hello, None)


# The files of an agent's shared objects: does what the core decides, and reports what happened.


def changed(
    store: shared_objects.Store, changes: Sequence[OpenShare | WriteShare | DropShare]
) -> Iterator[ShareOpened | ShareNotKept]:
    """Change files in this order, and yield what the core must know."""
    for change in changes:
        try:
            match change:
                case OpenShare(share, content):
                    location, is_complete = store.open(share, content)
                    yield ShareOpened(replace(share, location=location), is_complete)
                case WriteShare(digest, start, part):
                    store.write(digest, start, part)
                case DropShare(digest):
                    store.drop(digest)
        except OSError as error:
            digest = change.share.digest if isinstance(change, OpenShare) else change.digest
            yield ShareNotKept(digest, f"a shared object cannot be kept at the agent: {error}")


# Notices that this process was stopped: then it looks at the clock later than it meant to.
#
# A batch system may suspend a job for hours, and a laptop may sleep. Then the time of the stop must not count: neither
# for the tasks that were stopped too, nor for the reason why the master has given this agent up.


LATE_S = 1.0
"""An agent that is later than this, in seconds, was stopped. Work that takes longer counts as a stop, too."""


FAREWELL_S = 1.0
"""Seconds at the end for writing the remaining output to the agent's own standard output and error."""

ANSWER_S = 0.1
"""Seconds between two questions for the addresses of the master, which are found out in the background."""

LINGER_S = 1.0
"""Seconds for sending the last messages to the master."""


STDOUT, STDERR = 1, 2


class Again(NamedTuple):
    """How an agent joins again, as a new one."""

    resumed: str
    """The name that it had before it was stopped; empty if it was not."""
    brought: Sequence[Sequence[Buffer]]
    """The results that it brings to the next generation of the master, as messages."""


def run(
    options: Options,
    audit: AuditFile,
    launcher: Launcher,
    master: MasterStream | None = None,
) -> int:
    """Run this process as an agent until the agent ends.

    Args:
        launcher: starts its slaves. It is closed at the end.
        master: the stream to the master that has started this process; None if the options say where the master is.

    Returns:
        The exit code.

    Raises:
        MwpyError: there was no computation to join; its `exit_code` says why.
    """
    if options.forks and not forks.adopt_orphans():
        options = evolve(options, slave_start="spawn")
    has = offers.found(options, os.environ)
    if past := options.about_past_end(clock.wall()):
        audit.write([records.Notice(past)], clock.wall())
    left_s = options.seconds_left(clock.wall())
    ends_at = None if left_s is None else clock.monotonic() + left_s
    try:
        contact = contact_of(options) if master is None else local_contact(options, master)
        code, again = _serve(options, audit, launcher, has, ends_at, contact)
        while again is not None and master is None:  # a master that has started this agent starts another one
            contact = contact_again(options, again.resumed)
            code, again = _serve(options, audit, launcher, has, ends_at, contact, again.brought)
        return code
    finally:
        launcher.close()
        audit.close()


def _serve(
    options: Options,
    audit: AuditFile,
    launcher: Launcher,
    has: Offers,
    ends_at: float | None,
    contact: Contact | None,
    brought: Sequence[Sequence[Buffer]] = (),
) -> tuple[int, Again | None]:
    """Be an agent until it ends.

    Returns:
        The exit code, and how the agent joins again; None if it does not.
    """
    if contact is None:
        return ExitCode.OK, None
    link, hello, search = contact
    audit.write([records.Started("AGENT", hello.member_id, f"MASTER {link.address}")], clock.wall())
    settings = AgentSettings(
        replace(hello, offers=has),
        options.grace_period,
        ends_at,
        link.timeout_s,
        idle_exit_s=options.idle_exit,
        memory_bytes=options.job_memory and max(1, options.job_memory - memory.resident_bytes()),
        keeps_outputs=not isinstance(link, LocalAgentLink),
        max_share_files=shared_objects.most_files(),
        start_timeout_s=options.slave_start_timeout,
        forks=options.forks,
    )
    now = clock.monotonic()
    streams = ((STDOUT, sys.stdout, "standard output"), (STDERR, sys.stderr, "standard error"))
    edges = AgentEdges(
        link,
        launcher,
        {fd: Outlet(fd if file else None, name, now) for fd, file, name in streams},
        Signals((signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)),
        audit,
        clock,
        shared_objects.Store(),
        search,
    )
    core = AgentCore(settings)
    agent = Agent(core, edges, brought)
    try:
        code = agent.begin()
        while code is None:
            code = agent.iterate()
        return int(code), again_of(core, agent.link, brought) if core.departure.comes_back else None
    finally:
        agent.close()


def again_of(core: AgentCore, link: SessionLink, brought: Sequence[Sequence[Buffer]]) -> Again:
    """How an agent that has ended joins again.

    Args:
        brought: as in `Again`, for the agent that has ended.
    """
    welcome = core.welcome
    if welcome is None:  # the master has never accepted it
        return Again("", brought)
    return Again(welcome.agent if core.departure.was_stopped else "", link.handovers(welcome.generation))


class Agent:
    """The agent's loop.

    Args:
        core: the core, which decides.
        edges: the edges to the outside.
        brought: as in `Again`.
    """

    def __init__(self, core: AgentCore, edges: AgentEdges, brought: Sequence[Sequence[Buffer]] = ()) -> None:
        self._core = core
        self._edges = edges
        self.link = self._link = SessionLink(edges.link, edges.search, brought)
        self._outlets, self._clock = edges.outlets, edges.clock
        self._slaves: dict[int, SlaveHandle] = {}
        self._processes = SlaveProcesses(core, edges, self._slaves)
        self._watched: dict[int, tuple[int, Callable[[float], None]]] = {}
        """What it waits for, by file descriptor: flags of `select`, and what to call when it is ready."""
        self._full_until: float | None = None
        """When slaves are read again although one of the agent's own streams is full; None if none is full."""
        self.looked_at = edges.clock.monotonic()
        """When it last looked at the clock."""

    def begin(self) -> ExitCode | None:
        """Greet the master; call this once, before the first iteration."""
        now = self._clock.monotonic()
        self._link.greet(self._core.settings.hello_at(now))
        return self._act(now)

    def iterate(self) -> ExitCode | None:
        """Wait for something to happen, report it to the core, and do what the core decides.

        Returns:
            The exit code; None as long as the agent stays.
        """
        now = self._look()
        files = self.files(now)
        timeout_s = self.timeout(now)
        link_events, received, ready = self._link.poll(timeout_s, files)
        now = self._look(timeout_s)
        for frames in received:
            self._hear_master(frames, now)
        for event in link_events:
            self._hear_link(event, now)
        if (answer := self._link.answer()) is not None:
            self._core.handle(answer, now)
        for fd in ready:
            self._watched[fd][1](now)
        code = self._act(now)  # at once: the master or a slave waits for this
        caught = self._edges.signals.take()
        if caught and code is None:
            self._hear_signals(caught, now)
            code = self._act(now)
        if now >= self._link.say_at:
            self._link.say()
        return code

    def files(self, now: float) -> dict[int, int]:
        """Return the file descriptors to wait for, each with flags of `select`. Call this before `timeout`.

        The agent must not block, and must limit how much of its slaves' output it stores. So it reads no slave's output
        while its own stream is full. The slaves then wait, as they would without an agent. After a while
        (`Outlet.patience_until`) the agent reads them again, and drops output that its stream does not accept.
        """
        signals = self._edges.signals
        watched = self._watched = {signals.fileno(): (select.POLLIN, lambda _: signals.clear())}
        if self._processes.template is not None:
            watched[self._processes.template.fileno()] = select.POLLIN, self._processes.hear_template
        full: dict[int, float] = {}
        for number, outlet in self._outlets.items():
            until = outlet.patience_until()
            if until is not None and now < until:
                full[number] = until
            if outlet.waiting:
                watched[number] = select.POLLOUT, outlet.flush
        self._full_until = min(full.values(), default=None)
        listens = 0 if self._link.is_full else select.POLLIN
        for slave in self._slaves.values():  # one may have the number of an own stream that was closed
            channel = slave.channel
            wanted = listens | (select.POLLOUT if channel.wants_write else 0)
            if slave.has_process and not channel.eof and wanted:
                watched[channel.fileno()] = wanted, partial(self._hear_stream, slave)
            for output, pipe in slave.outputs.items():
                if output not in full and not pipe.ended:
                    watched[pipe.fileno()] = select.POLLIN, partial(self._hear_output, slave, output)
        return {fd: wanted for fd, (wanted, _) in watched.items()}

    def _look(self, waits_s: float = 0.0) -> float:
        """Return the time. Report a stop since the last look, whether the agent waited or worked.

        Args:
            waits_s: for how many seconds at most the agent meant to wait meanwhile.
        """
        now = self._clock.monotonic()
        late_s = now - self.looked_at - waits_s
        self.looked_at = now
        if late_s > LATE_S:
            self._core.handle(Resumed(late_s), now)
        return now

    def timeout(self, now: float) -> float:
        """How long to wait at most if nothing happens, in seconds. Only an agent that is late notices that it was
        stopped, so it never waits longer than a part of the client timeout."""
        latest = now + (ANSWER_S if self._link.asks else self._core.settings.client_timeout_s / 2)
        until = min(known((self._core.next_deadline(), self._full_until, self._link.say_at, latest)))
        return max(0.0, until - now)

    # ---- what happened -------------------------------------------------------------------------------------

    def _hear_link(self, event: Connected | Broken, now: float) -> None:
        core = self._core
        if isinstance(event, Connected):
            if not core.outage.is_over:
                self._link.greet(core.settings.hello_at(now))
        elif core.outage.is_over:
            self._link.end()
            core.handle(child.Disconnected(event.reason), now)
        else:
            core.handle(child.AttemptFailed(), now)

    def _hear_master(self, frames: Sequence[Buffer], now: float) -> None:
        try:
            message, _ = wire.decode(frames, wire.FROM_MASTER)
            if self._link.takes(message, frames, now):
                return
        except ProtocolError as error:
            if self._core.welcome is not None:
                reason = f"the master sent a malformed message: {error}"
                self._core.handle(child.Disconnected(reason, returns=False), now)
            else:  # most likely a refusal by a master of another version of mwpy
                self._core.handle(child.Heard(messages.Refused(str(error))), now)
        else:
            self._core.handle(child.Heard(message, frames), now)

    def _hear_stream(self, slave: SlaveHandle, now: float) -> None:
        if slave.number not in self._slaves:  # it has ended just now
            return
        if slave.channel.wants_write:
            slave.channel.flush()
        self._hear_slave(slave, now)
        if slave.channel.eof:
            self._core.handle(child.StreamEnded(slave.number), now)

    def _hear_slave(self, slave: SlaveHandle, now: float) -> bool:
        """Read the stream of a slave. Returns whether there was a message."""
        heard = False
        try:
            for frames in slave.channel.receive():
                message, payload = wire.decode(frames, wire.FROM_SLAVE)
                if isinstance(message, messages.Results):
                    # User code in the slave may have damaged this payload. The master drops an agent that sends a
                    # malformed payload. So the agent reads the payload, although it only passes it on.
                    groups.entries(message, payload)
                heard = True
                self._core.handle(child.SlaveHeard(slave.number, message, frames), now)
        except ProtocolError as error:
            self._core.handle(child.Nonsense(slave.number, child.UNREADABLE, str(error)), now)
            return False
        return heard

    def _hear_output(self, slave: SlaveHandle, output: int, now: float) -> None:
        if slave.number not in self._slaves:
            return
        data = slave.outputs[output].read()
        if output == STDOUT:
            self._outlets[STDOUT].pass_on(data, now)
        elif data:
            self._core.handle(child.ErrorOutput(slave.number, data), now)

    def _hear_signals(self, caught: Sequence[signal.Signals], now: float) -> None:
        if signal.SIGTERM in caught:
            is_limited = self._core.settings.memory_bytes is not None
            busy = [child.number for child in self._core.children.values() if child.held and is_limited]
            used = {number: self._slaves[number].process.used_memory(0) for number in busy}
            self._core.handle(child.Terminated("evicted (SIGTERM)", used=used), now)
        elif signal.SIGINT in caught:
            self._core.handle(child.Terminated("removed (SIGINT)", Cause.SCALED_DOWN), now)
        self._processes.look(now)

    # ---- what to do ----------------------------------------------------------------------------------------

    def _act(self, now: float) -> ExitCode | None:
        """Do what the core decides, until it decides nothing more."""
        core, link = self._core, self._link
        core.decide(now)
        while True:
            actions = core.take_actions()
            if actions.records:
                self._edges.audit.write(actions.records, self._clock.wall())
            for data in actions.error_output:
                self._outlets[STDERR].pass_on(data, now)
            if actions.end_template:
                self._processes.leave_template()
            if actions.module_path:
                os.environ[MODULE_PATH] = actions.module_path
            if actions.environment:
                self._edges.launcher.renew(actions.environment)
            for number in actions.start:
                self._processes.start(number, now)
            for number in actions.fork:
                self._processes.fork(number, now)
            for slave in self._alive(actions.feed):
                slave.channel.feed(now)
            if actions.end_at is not None:
                for slave in self._slaves.values():
                    slave.channel.end_at(actions.end_at)
            for number, most in actions.limit_memory:
                if number in self._slaves:
                    self._slaves[number].process.limit_memory(most)
            if actions.share_files:
                for report in changed(self._edges.shares, actions.share_files):
                    core.handle(report, now)
            for number, message in actions.to_slaves:
                self._send_to_slave(number, message)
            if actions.recall:
                self._recall(actions.recall, now)
            for slave in self._alive(actions.abort):
                slave.process.abort()
            for slave in self._alive(actions.kill):
                slave.process.kill()
            for slave in self._alive(actions.look):
                self._look_at(slave, now)
            for number, exact_above in actions.measure:
                if number in self._slaves:
                    self._measure(self._slaves[number], exact_above, now)
            for number in actions.collect:
                self._collect(self._slaves[number], now)
            link.post(actions.succeeds, actions.to_master)
            if actions.ask_addresses:
                link.asks = True
            if actions.connect_to is not None:
                link.connect(actions.connect_to)
            if actions.exit is not None:
                return actions.exit
            if actions.find:
                core.handle(child.Found(self._edges.launcher.programs(actions.find)), now)
            if actions.look_up:
                core.handle(child.LookedUp(installed.versions(actions.look_up)), now)
            looked = actions.look, actions.measure, actions.share_files, actions.find
            if not any((*looked, actions.recall, actions.start, actions.fork, actions.collect, actions.look_up)):
                return None

    def _alive(self, numbers: Sequence[int]) -> Iterator[SlaveHandle]:
        """The slaves with these numbers that have not ended."""
        return (self._slaves[number] for number in numbers if number in self._slaves)

    def _send_to_slave(self, number: int, message: child.Outgoing) -> None:
        slave = self._slaves.get(number)
        if slave is not None:
            slave.channel.send(message.received or wire.encode(message.message, message.payload))

    def _recall(self, recalls: Sequence[tuple[int, int | messages.Cancel | None]], now: float) -> None:
        """Stop slaves from starting tasks, and report what they have started. Slaves that have ended are skipped."""
        slaves = [(self._slaves[number], wanted) for number, wanted in recalls if number in self._slaves]
        for slave, _ in slaves:
            slave.channel.recall()
        if slaves:
            self._clock.sleep(SETTLE_S)
        for slave, wanted in slaves:
            if wanted is None:  # a task that is over its limit may have ended meanwhile
                self._hear_slave(slave, now)
            if slave.process.poll() is None:
                self._core.handle(child.Recalled(slave.number, slave.channel.started, wanted), now)

    def _look_at(self, slave: SlaveHandle, now: float) -> None:
        """Report how far a slave is.

        In this order: what a slave had finished when it started its last task is in its journal or in its stream, and
        it leaves the journal only after it was written into the stream.
        """
        channel = slave.channel
        started, began = channel.started, channel.began
        try:
            found = channel.journal.read(slave.number)
            frames = wire.encode(*found) if found is not None else []
            if found is not None:
                wire.decode(frames, wire.FROM_SLAVE)
                groups.entries(*found)  # for the same reason as in `_hear_slave`
        except ProtocolError as error:
            details = f"its unsent results are lost: {error}"
            self._core.handle(child.Nonsense(slave.number, child.OVERWROTE, details), now)
            return
        self._hear_slave(slave, now)
        later = self._look()  # the slave may have started the task after `now`
        results = None if found is None else found[0]
        self._core.handle(child.Looked(slave.number, started, began, results, frames), later)

    def _measure(self, slave: SlaveHandle, exact_above: int, now: float) -> None:
        """Report how much memory a slave uses."""
        process, started = slave.process, slave.channel.started  # first: the slave may go on meanwhile
        used = process.used_memory(exact_above)
        self._core.handle(child.Measured(slave.number, started, used, process.limit_kills), now)

    def _collect(self, slave: SlaveHandle, now: float) -> None:
        """Report the remaining results and output of an ended slave, and its exit."""
        while self._hear_slave(slave, now):
            pass
        self._look_at(slave, now)
        process, channel, outputs = slave.process, slave.channel, slave.outputs
        self._outlets[STDOUT].pass_on(outputs[STDOUT].read_rest(), now)
        error_output = outputs[STDERR].read_rest()
        fault = channel.fault(LAST_WORDS_BYTES)
        ends = outputs[STDOUT].end, outputs[STDERR].end, fault.decode(errors="replace")
        words = LastWords(*ends, process.peak_bytes)
        reason, started, code = process.describe_exit(), channel.started, process.poll()
        self._processes.forget(slave)
        process.close()
        how = process.out_of_memory, code
        end = child.SlaveExited(slave.number, reason, words, started, error_output + fault, *how)
        self._core.handle(end, now)

    def close(self) -> None:
        """Leave nothing behind: kill the slaves, and close the connection after the goodbye was sent."""
        self._processes.leave_template()
        for slave in self._slaves.values():
            slave.process.kill()
        for outlet in self._outlets.values():
            outlet.flush(self._clock.monotonic(), FAREWELL_S)
        self._link.close(LINGER_S)
        self._edges.shares.close()
        self._edges.signals.close()
