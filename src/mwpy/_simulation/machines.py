"""Simulated machines: the real loop of an agent over simulated processes, templates, signals and links.

Each runs the real loop of an agent, with a simulated link, simulated slaves and signals.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Container, Sequence
from math import inf
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.agent.child import FAREWELL_S, AddressesFound, AgentSettings, ComputationOver
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.limits import EXIT_S, KILLED_TOO_S, NEARLY
from mwpy._core.agent.starts import ABORT_S
from mwpy._core.agent.traffic import HELD_BACK_S
from mwpy._roles.agent import Agent
from mwpy._roles.edges import AgentEdges, SlaveParts
from mwpy._simulation.checkers import HistoryChecker
from mwpy._simulation.network import ADDRESS, Connection, Network, SimulatedAgentLink, SimulatedOutlet
from mwpy._simulation.shares import SimulatedStore, Workload
from mwpy._simulation.slaves import GIVEN_BACK_S, PROMISED_S, SIGABRT, SIGKILL, SimulatedSlave, fail_to_load
from mwpy._simulation.world import Alarm, World
from mwpy._transport.channel import Answer
from mwpy._values import messages, records
from mwpy._values.errors import ExitCode, describe_exit

# Simulated templates: they load the script, fork slaves, and have all the troubles of processes.


ORDERS_FD = 4

TEMPLATE_PID = 1_000_000

FORK_S = 0.02
"""The longest fork, and the longest start of a slave after it, in seconds."""


class SimulatedTemplate:
    """A simulated template. While it starts a slave, it is also the process of this slave.

    Args:
        launcher: makes the slaves.
        link: its agent's link.
        edits: how often the script was edited before it is loaded.
        unsafe: whether the script leaves something that must not be copied.
    """

    pid = TEMPLATE_PID
    peak_bytes = 0
    out_of_memory = False
    limit_kills = 0

    def __init__(
        self, world: World, launcher: SimulatedLauncher, link: SimulatedAgentLink, edits: int, unsafe: bool
    ) -> None:
        self._world = world
        self._launcher = launcher
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
        slave = self._starts = self._launcher.make_slave(number, self._edits)
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
            self._launcher.owner.template_ended()

    def load(self, longest_s: float) -> None:
        """Begin to load the script. Sometimes this never ends."""
        if self._world.chance(0.05):
            self._hang()
        else:
            self._world.after(self._world.random.random() * longest_s, self._loaded)

    def _hang(self) -> None:
        if self._starts is not None:
            self._launcher.owner.check_start(self._starts)

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
            self._launcher.begin(slave, FORK_S)
        self._answers.append((answer, None if answer.failure else slave))
        self._link.readable(ORDERS_FD, True)
        if not self._unsafe and self._world.chance(0.03):  # before its agent reads the answer
            self.end(SIGKILL)


# Starts the simulated slaves of an agent, as the real launcher does: as fresh interpreters, or with a template.


class SimulatedLauncher(Struct, eq=False):
    """Starts the simulated slaves of an agent."""

    _world: World
    workload: Workload
    _link: SimulatedAgentLink
    _slaves: dict[int, SimulatedSlave]
    _unsafe: bool
    """Whether the script leaves something that must not be copied by a fork."""
    owner: AgentProcess
    """The process of the agent."""
    _template: SimulatedTemplate | None = None

    @property
    def is_starting(self) -> bool:
        """Whether the template just starts a slave, or hangs."""
        return self._template is not None and self._template.is_starting

    def start(self, number: int, welcome: messages.Welcome) -> SlaveParts:
        """Start a slave as a fresh interpreter; sometimes fail because memory is missing."""
        slave = self.make_slave(number, self.workload.checker.code.edits)
        if self._world.chance(0.05):
            slave.hang(closes=False)
            self.owner.check_start(slave)
        self.begin(slave, self.workload.start_s)
        return SlaveParts(slave, slave.channel, slave.outputs)

    def start_template(self, number: int, welcome: messages.Welcome) -> tuple[SimulatedTemplate, SlaveParts]:
        """Start a template and its first slave."""
        assert self._template is None or self._template.is_over, "there are two templates"
        template = SimulatedTemplate(self._world, self, self._link, self.workload.checker.code.edits, self._unsafe)
        parts = template.fork(number, welcome)
        template.load(self.workload.start_s)
        self._template = template
        return template, parts

    def reap(self, known: Container[int]) -> None:
        """Do nothing: simulated processes leave nothing behind."""

    def make_slave(self, number: int, edits: int) -> SimulatedSlave:
        """Make a slave that has no process yet; sometimes fail because memory is missing."""
        if self._world.chance(0.02):
            raise OSError("no memory")
        outlets, ended = self.owner.outlets, self.owner.slave_ended
        slave = self._slaves[number] = SimulatedSlave(number, self.workload, self._link, outlets, ended, edits)
        return slave

    def begin(self, slave: SimulatedSlave, longest_s: float) -> None:
        """The process of a slave begins. Its script is loaded after at most this many seconds."""
        slave.has_process = True
        self._world.after(self._world.random.random() * longest_s, slave.start)

    def kill_template(self) -> None:
        """Something kills the template."""
        if self._template is not None:
            self._template.end(SIGKILL)


# How a simulated agent finds its master again after its connection broke.


class Life(NamedTuple):
    """One life of the master, as its agents see it."""

    network: Network
    checker: HistoryChecker
    durations: Sequence[float]
    """How long tasks take."""


class SimulatedSearch(Struct, eq=False):
    """The resource file, and connections to the master that it names.

    Args:
        life: returns the newest life of the master. It may be over.
        reconnect: begins another connection of the agent, to a life.
    """

    life: Callable[[], Life]
    reconnect: Callable[[Life], SimulatedAgentLink]

    def ask(self) -> None:
        """Read the resource file."""

    def answer(self) -> AddressesFound | ComputationOver:
        """Return what the file says."""
        if self.life().network.is_finished:
            return ComputationOver("the master has ended", finished=True)
        return AddressesFound([ADDRESS])

    def connect(self, address: str) -> SimulatedAgentLink:
        """Connect to the master."""
        assert address == ADDRESS, "there is one address"
        return self.reconnect(self.life())


SIGNALS_FD = 3

EXITS_S = 0.05
"""Seconds between an agent's decision to exit and its end. In this time its last messages are sent."""

LONGEST_FREEZE_S = 5.0

MOMENT_S = 1.0
"""Seconds in which an agent kills a slave after its job was short of memory."""

REPLACED_S = 20.0
"""Seconds after the end of its last slave in which an agent has as many slaves as it should have, or has ended."""

SOON = 1000
"""If an agent iterates this often in a row without a pause, it is in an endless loop."""


class Pace(Struct, frozen=True):
    """How fast things happen, in simulated seconds."""

    durations: tuple[float, ...] = (1e-5, 1e-3, 0.05, 1.0)
    """How long tasks take. Each algorithm has one of these averages."""
    submit_s: float = 1.0
    """The longest pause between two submissions."""
    start_s: float = 0.2
    """The longest start of a slave."""
    fault_s: float = 1.5
    """The longest pause between two faults."""
    faulty_s: float = 20.0
    """When faults end."""


def due(now: float, timeout_s: float) -> float:
    """When a poller returns. It counts whole milliseconds, and rounds up."""
    return now + max(0.001, math.ceil(timeout_s * 1000) / 1000)


class Limits(Struct, frozen=True):
    """The limits of an agent and its slaves."""

    max_tasks: int | None = None
    """How many tasks a slave may run."""
    max_memory: int | None = None
    """How much memory a slave may have, in units of which a task leaks one on average."""
    start_timeout_s: float = 300.0
    idle_exit_s: float | None = None
    lifetime_s: float | None = None
    """After this time a batch system would end the agent. Agents that start when faults are over have no such limit."""
    memory_bytes: int | None = None
    """How much memory the slaves may use together."""
    forks: bool = True
    """Whether slaves are forked from a template."""
    unsafe: bool = False
    """Whether the script leaves something that must not be copied by a fork."""
    max_share_bytes: int = 1 << 30
    """When shared objects that no task needs are dropped."""
    returns_s: float = 0.0
    """For how long the agent looks for its master when its connection has broken."""


class _Signals(Struct, eq=False):
    """The signals of an agent process."""

    _link: SimulatedAgentLink
    _caught: list[signal.Signals] = field(default_factory=list)

    def catch(self, number: signal.Signals) -> None:
        """A signal arrives."""
        self._caught.append(number)
        self._link.readable(SIGNALS_FD, True)

    def fileno(self) -> int:
        """The file descriptor to wait for."""
        return SIGNALS_FD

    def clear(self) -> None:
        """Wait for the next signal."""
        self._link.readable(SIGNALS_FD, False)

    def take(self) -> Sequence[signal.Signals]:
        """The signals that were caught since the last call."""
        caught, self._caught = self._caught, []
        return caught

    def close(self) -> None:
        """Do nothing."""


class _Trail(Struct, eq=False):
    """Takes an agent's records."""

    why: str = ""
    """Why the agent ended."""

    def write(self, happened: Sequence[records.Record], now: float) -> None:
        """Keep only the reason of the end."""
        for record in happened:
            if isinstance(record, records.Ended):
                self.why = record.why

    def close(self) -> None:
        """Do nothing."""


class _SettlingClock(Struct, eq=False):
    """An agent's clock. While the agent waits for its slaves to write which task they started, the slaves continue."""

    _world: World
    _slaves: dict[int, SimulatedSlave]

    def monotonic(self) -> float:
        """The simulated time."""
        return self._world.now

    def wall(self) -> float:
        """The simulated time."""
        return self._world.now

    def sleep(self, seconds: float, /) -> None:
        """Slaves that would finish their task during the sleep may finish it now."""
        for slave in list(self._slaves.values()):
            if self._world.random.random() < 0.5:
                slave.hurry(self._world.now + seconds)


class AgentProcess:
    """An agent from its start to its end.

    Args:
        host: the machine.
        life: returns the newest life of the master.
        start_s: how long the start of a slave may take.
    """

    def __init__(
        self,
        host: AgentHost,
        world: World,
        life: Callable[[], Life],
        start_s: float,
    ) -> None:
        self._host = host
        self._world = world
        network, checker, durations = life()
        self._network = network
        self._alarm = Alarm(world, self._iterate)
        limits = host.limits
        self.connection: Connection = network.connect(self.wake, repeats=not limits.returns_s)
        peer = self.connection.peer
        if not host.able:
            checker.unable[host.name] = None
        self._workload = Workload(
            world,
            checker,
            durations,
            start_s,
            host.able,
            host.bad,
            host.limits.max_tasks,
            host.limits.max_memory,
            host.name,
            peer,
            lambda: not self._over and world.now > self._frozen_until + PROMISED_S,
            lambda: _is_in_contact(self),
            lambda: max(self._frozen_until, self.connection.back_at),
            lambda moment: sum(max(0.0, end - max(begin, moment)) for begin, end in self._freezes),
            self._is_short,
            self._running,
            lambda: host.end(self, None),
            SimulatedStore(world),
        )
        self.slaves: dict[int, SimulatedSlave] = {}
        self.outlets = {fd: SimulatedOutlet(world) for fd in (1, 2)}
        self._signals = _Signals(self.connection.link)
        hello = messages.Hello("simulated", network.generation, host.name, 1, "3.11", host.num_slaves, host.job)
        if limits.returns_s:
            hello = replace(hello, session=f"{network.generation} {peer.decode()}", returns_s=limits.returns_s)
        lifetime_s = limits.lifetime_s if world.faulty else None
        self.core = AgentCore(_settings(hello, limits, None if lifetime_s is None else world.now + lifetime_s))
        self._trail = _Trail()
        self.launcher = SimulatedLauncher(world, self._workload, self.connection.link, self.slaves, limits.unsafe, self)
        clock = _SettlingClock(world, self.slaves)
        ends = self.connection.link, self.launcher, self.outlets, self._signals
        search = SimulatedSearch(life, self._reconnect)
        self._agent = Agent(self.core, AgentEdges(*ends, self._trail, clock, self._workload.store, search))
        self._over = False
        self._freezes: list[tuple[float, float]] = []
        """From when and until when it was frozen, each time."""
        checker.times.begins(peer, None if lifetime_s is None else lifetime_s - FAREWELL_S)
        self._short_at = -inf
        self._agent.begin()

    def _is_short(self) -> bool:
        """Whether the slaves used nearly all memory of their job a moment ago."""
        used = {slave: slave.used_memory(0) for slave in self.slaves.values()}
        has = self._host.limits.memory_bytes
        if has is not None and sum(used.values()) > NEARLY * has:
            self._short_at = self._world.now
            for slave, used_now in used.items():
                if used_now > has:
                    slave.work.checker.overruns.too_large(slave.work.peer, slave.number, slave.running)
        return self._world.now <= self._short_at + MOMENT_S

    def _running(self) -> list[int]:
        running = [slave for slave in self.slaves.values() if slave.running and slave.code is None]
        return [slave.running for slave in running if slave.work is self._workload]

    def check_start(self, slave: SimulatedSlave) -> None:
        """Check that a slave is killed whose start hangs."""
        limit = self._host.limits.start_timeout_s + ABORT_S + LONGEST_FREEZE_S + 1.0
        self._world.after(limit, lambda: self._check_killed(slave))

    def template_ended(self) -> None:
        """The agent gets a signal."""
        if not self._over:
            self._signals.catch(signal.SIGCHLD)

    def slave_ended(self, slave: SimulatedSlave) -> None:
        """The agent gets a signal."""
        if not self._over:
            name, running = f"slave {slave.number} on {self._host.name}", slave.running
            self._world.note(f"{name} ends: {slave.describe_exit()}, running {running}")
            self._signals.catch(signal.SIGCHLD)
            self._world.after(REPLACED_S, lambda: _check_replaced(self, slave))

    # ---- the loop ------------------------------------------------------------------------------------------

    def _reconnect(self, life: Life) -> SimulatedAgentLink:
        self._world.note(f"the agent on {self._host.name} looks for its master")
        welcome, generation = self.core.welcome, life.network.generation
        is_new = welcome is not None and welcome.generation != generation
        self._network = life.network
        self.connection = life.network.connect(self.wake, self.connection, is_new=is_new)
        if is_new and self.core.settings.hello.generation == generation:
            if self._workload.checker is not life.checker:
                self._follow(life)
            self._workload.peer = self.connection.peer
            ends_at = self.core.settings.tasks_end_at
            left_s = None if ends_at is None else ends_at - self._world.now
            life.checker.times.begins(self.connection.peer, left_s, connects=True)
        return self.connection.link

    def _follow(self, life: Life) -> None:
        """The agent has learned from the next life of the master which generation it is."""
        self._world.note(f"the agent on {self._host.name} knows {life.network.generation}")
        after = replace(self._workload, checker=life.checker, durations=life.durations)
        self._workload.successor = self._workload = self.launcher.workload = after
        if not self._host.able:
            life.checker.unable[self._host.name] = None

    def wake(self) -> None:
        """Make the agent iterate as soon as it can."""
        self._alarm.set(self._world.now)

    def _iterate(self) -> None:
        if self._over:
            return
        if self._world.now < self._frozen_until:
            self._alarm.set(self._frozen_until)
            return
        if self._agent.stops.looked_at >= self._frozen_until:  # it waited until now, and was not frozen
            self._agent.stops.looked_at = self._world.now
        self._is_short()
        for _ in range(SOON):
            code = self._agent.iterate()
            self.core.check()
            if code is not None:
                self._exit(code)
                return
            if not self.connection.link.pending:
                break
        else:
            raise AssertionError("an agent iterates without an end")
        timeout_s = self._agent.timeout(self._world.now)
        if timeout_s is not None:
            self._alarm.set(due(self._world.now, timeout_s))

    def _exit(self, code: ExitCode) -> None:
        self._world.note(f"the agent on {self._host.name} exits with {code.name}")
        self._check_output()
        forgotten = [slave.number for slave in self.slaves.values() if slave.channel.closed and slave.code is None]
        assert not forgotten, f"slaves {forgotten} live on, and their agent has forgotten them"
        if "no task for" in self._trail.why:
            self._check_idle()
        self._agent.close()
        self._over = True
        self._world.after(EXITS_S, lambda: self._host.end(self, code))

    def stop(self) -> None:
        """End the process, its slaves and its connection."""
        self._over = True
        self.launcher.kill_template()
        for slave in self.slaves.values():
            slave.end(SIGKILL)
        self._network.cut(self.connection)

    # ---- faults --------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """The batch system sends SIGTERM."""
        self._signals.catch(signal.SIGTERM)

    @property
    def _frozen_until(self) -> float:
        """Until when it was frozen the last time, or still is; 0 if it never was."""
        return self._freezes[-1][1] if self._freezes else 0.0

    def freeze(self) -> None:
        """Freeze the agent for a while. Messages that arrive in this time are read afterwards, in their order."""
        if self._world.now >= self._frozen_until:
            now = self._agent.stops.looked_at = self._world.now
            self._freezes.append((now, now + self._world.random.random() * LONGEST_FREEZE_S))

    def fill_outlets(self) -> None:
        """For a while, the agent's own standard streams accept nothing."""
        for outlet in self.outlets.values():
            outlet.full_until = self._world.now + self._world.random.random() * 20

    def hang(self, slave: SimulatedSlave) -> None:
        """A slave closes its stream and does not exit: the agent must kill it."""
        slave.hang()
        limit = EXIT_S + LONGEST_FREEZE_S + 1.0
        self._world.after(limit, lambda: self._check_killed(slave))

    def _check_killed(self, slave: SimulatedSlave) -> None:
        frozen = self._world.now < self._frozen_until + EXIT_S
        assert self._over or frozen or slave.code is not None, f"slave {slave.number} hangs and was not killed"

    def kill_with(self, slave: SimulatedSlave) -> None:
        """The batch system kills a slave and then the agent: this death must not be charged."""
        self._workload.checker.blameless(self.connection.agent, slave.number)
        slave.end(SIGKILL)
        delay = self._world.random.random() * 0.9 * KILLED_TOO_S
        self._world.after(delay, lambda: self._host.end(self, None))

    def _check_idle(self) -> None:
        """Check an agent that has left because its slaves had no task."""
        limit_s = self._host.limits.idle_exit_s
        assert limit_s is not None, "it has no idle exit"
        busy = [slave.number for slave in self.slaves.values() if self._world.now < slave.wear.busy_until + limit_s]
        assert not busy, f"it left, but slaves {busy} had tasks"

    # ---- what the user sees --------------------------------------------------------------------------------

    def _check_output(self) -> None:
        """Check that each slave's standard error was printed, and identical failures of starting slaves only once."""
        shown = self.outlets[2].data.decode()
        collected = [slave for slave in self.slaves.values() if slave.channel.closed and slave.printed]
        slow = [slave for slave in collected if slave.ended_at - slave.began_at >= HELD_BACK_S and not slave.is_up]
        for slave in collected:
            times = shown.count(slave.printed)
            assert times, f"the output of slave {slave.number} was not printed"
            assert times == 1 or slow or self._freezes, f"{slave.printed!r} was printed {times} times"


def _settings(hello: messages.Hello, limits: Limits, ends_at: float | None) -> AgentSettings:
    return AgentSettings(
        hello,
        ends_at=ends_at,
        idle_exit_s=limits.idle_exit_s,
        slave_max_tasks=limits.max_tasks,
        memory_bytes=limits.memory_bytes,
        max_share_bytes=limits.max_share_bytes,
        start_timeout_s=limits.start_timeout_s,
        forks=limits.forks,
    )


def _is_in_contact(process: AgentProcess) -> bool:
    connection, frozen_until = process.connection, process._frozen_until
    if process._over or connection.broken or not connection.back_at:
        return False
    return process._world.now > max(frozen_until, connection.back_at) + GIVEN_BACK_S


def _check_replaced(process: AgentProcess, last: SimulatedSlave) -> None:
    """Check that another slave has started, unless more slaves have ended since, or one just starts."""
    slaves = process.slaves.values()
    if process._over or process._freezes or any(slave.ended_at > last.ended_at for slave in slaves):
        return
    living = [slave for slave in slaves if slave.code is None]
    starts = process.launcher.is_starting or not all(slave.is_up for slave in living)
    assert starts or len(living) == process._host.num_slaves, f"slave {last.number} was not replaced"


class AgentHost(Struct, eq=False):
    """A machine on which agents run, one after the other."""

    name: str
    ended: Callable[[ExitCode | None], None]
    """Called when the agent is gone, with its exit code; None if it was killed."""
    num_slaves: int = 2
    job: str = ""
    limits: Limits = Limits()
    able: bool = True
    """Whether it can run every algorithm. If no host can, it is correct that tasks wait forever."""
    bad: str = ""
    """What each task does here: it kills its slave ("slave"), raises an exception ("error") or works well ("")."""
    process: AgentProcess | None = None
    """The agent that runs now."""

    @property
    def core(self) -> AgentCore | None:
        """The core of the agent that runs now."""
        return None if self.process is None else self.process.core

    def end(self, process: AgentProcess, code: ExitCode | None) -> None:
        """End the process of an agent, unless it has already ended. Without an exit code, it was killed."""
        if self.process is process:
            process.stop()
            self.process = None
            self.ended(code)
