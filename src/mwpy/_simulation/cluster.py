"""A simulated computation: its master, its machines, and the faults that happen to them.

`Cluster(seed)` runs the loops that production uses (`MasterIo`, `Agent`), with their cores. Only the edges are
simulated: connections that delay and break; slave processes that compute, crash, hang and write nonsense; machines
whose agents are killed, frozen, evicted and started again; masters that crash, lose a part of what they just wrote, and
start again with the rest. The same seed always gives the same history.
Checkers look from outside: every task ends exactly once in each life of the master, nothing is delivered twice,
addressed tasks run in the right slave and in the right order, no task kills slaves forever, no death is charged to a
task that did not cause it, no excluded host gets work, no result waits for the next task, and no life computes what the
algorithm got in an earlier one. When the faults stop, all tasks must end, and then the master and all agents.

    >>> cluster = Cluster(seed=1)
    >>> cluster.run()
    >>> len(cluster.ended) == cluster.submitted
    True
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

from mwpy._core.agent.child import AgentSettings
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import MasterSettings, ShutDown
from mwpy._roles.master_io import FAREWELL_S, MasterIo
from mwpy._simulation.algorithm import Script, SimulatedAlgorithm
from mwpy._simulation.checkers import HistoryChecker, LifeChecker, SimulationFailure
from mwpy._simulation.lives import SimulatedRunStore, folder_for_databases
from mwpy._simulation.machines import (
    NO_HELLO,
    RUN_OFFERS,
    SIGKILL,
    AgentHost,
    AgentProcess,
    Life,
    Pace,
    SimulatedSlave,
    due,
)
from mwpy._simulation.network import Network
from mwpy._simulation.world import Alarm, World
from mwpy._values import messages, records
from mwpy._values.errors import ExitCode
from mwpy._values.messages import PART_BYTES
from mwpy._values.policy import MaxFailures
from mwpy._values.requires import Offers

# The process of the master, and of its local agents.


GRACE_S = 5.0
"""Seconds that agents get for their end."""

CHECKED_EVERY = 4
"""The figures that a core keeps are computed again after each fourth iteration: this costs more than an iteration."""


class SimulatedMaster:
    """One life of a master, and its algorithm. It takes the records itself, and checks them.

    Args:
        cluster: the computation.
        checker: checks this life.
    """

    def __init__(self, cluster: Cluster, checker: HistoryChecker) -> None:
        self._cluster = cluster
        self._world = world = cluster.world
        self._alarm = Alarm(world, self._iterate)
        self._checker = checker
        generation = f"g{checker.lives.life}"
        store = None if cluster.folder is None else SimulatedRunStore(world, cluster.folder, checker.lives.life)
        self._store = store
        self.network = Network(world, checker, self.wake, generation)
        settings = MasterSettings(
            "simulated",
            generation,
            task_group=world.random.choice([None, None, None, 1, 7]),
            max_call_bytes=1000,
            max_definition_bytes=world.random.choice([5000, 15_000, 1 << 20]),  # about one by value, three, and all
            max_failures=world.random.choice([None] * 5 + [MaxFailures(3), MaxFailures(2, True), MaxFailures(5, True)]),
            max_waiting_bytes=world.random.choice([1 << 30, 1 << 30, 2000]),
            run_offers=RUN_OFFERS,
            set_up=_set_up(world.seed, generation),
        )
        checker.set_up = "" if settings.set_up is None else settings.set_up.definition.name
        checker.most_waiting = settings.max_waiting_bytes
        core = MasterCore(settings)
        if store is not None:
            store.read_into(core)
        edges: Any = (self.network, self, world, None, store)  # it starts no local agents
        self.io = MasterIo(core, *edges)
        has_database = store is not None
        self.algorithm = SimulatedAlgorithm(world, self.io, checker, cluster.script, cluster.pace, has_database)
        if store is not None:
            store.writer.on_brought = self.io.committed.stored
            store.handed_over = self.algorithm.take_outcomes
        self._iterations = 0
        self.closing = False
        """Whether the algorithm has ended."""
        self.over = False
        """Whether the master has ended."""
        self.crashed = False
        """Whether it was killed, and the next one has not started."""

    def wake(self) -> None:
        """Make the master iterate as soon as it can."""
        self._alarm.set(self._world.now)

    def shut_down(self) -> None:
        """End the computation, because the algorithm has ended."""
        self.closing = True
        self.io.commands.append(ShutDown(True, GRACE_S))
        self.wake()

    def crash(self) -> None:
        """The process is killed."""
        assert self._store is not None, "nothing is left of it"
        self._checker.replay.check_end(self.io.core.state)
        self._store.crash()
        self.over = self.crashed = self.algorithm.is_over = self.network.is_down = True

    def write(self, happened: Sequence[records.Record], now: float) -> None:
        """Check the records."""
        for record in happened:
            self._checker.recorded(record, now)

    def close(self) -> None:
        """Do nothing: there is no file of records."""

    def end(self) -> None:
        """The history is over."""
        if self._store is not None:
            self._store.close()

    def _iterate(self) -> None:
        if self.over:
            return
        self.over = self.io.turn(self.io.link.poll(0.0, self._world.now))
        self._iterations += 1
        if self._iterations % CHECKED_EVERY == 0 or self.over:
            self.io.core.check()
        timeout_s = self.io.prepare_to_wait(self._world.now)
        self.algorithm.take_outcomes()
        if self.over:
            self._cluster._master_ended()
        else:
            self._alarm.set(due(self._world.now, timeout_s))


# The faults, and the computation.


SILENT_S = 31.0
"""For how long nothing was heard from an agent whose connection broke for this reason, in seconds."""


def _on_slave(fault: Callable[[AgentProcess, SimulatedSlave], None]) -> Callable[[AgentProcess], None]:
    """Make a fault of an agent of a fault of one of its slaves."""

    def strike(agent: AgentProcess) -> None:
        slaves = [slave for slave in agent.slaves.values() if slave.has_process and slave.code is None]
        if slaves:
            fault(agent, agent.world.random.choice(slaves))

    return strike


FAULTS: tuple[tuple[str, Callable[[AgentProcess], None]], ...] = (
    ("kill", lambda agent: agent.host.kill()),
    ("break", lambda agent: agent.disconnect(agent.world.random.choice((0.0, SILENT_S)))),
    ("cut", lambda agent: agent.disconnect(SILENT_S)),
    ("freeze", AgentProcess.freeze),
    ("full output", AgentProcess.fill_outlets),
    ("evict", AgentProcess.terminate),
    ("slave", _on_slave(lambda _, slave: slave.end(SIGKILL))),
    ("slave", _on_slave(lambda _, slave: slave.end(SIGKILL))),
    ("slave and agent", _on_slave(AgentProcess.kill_with)),
    ("template", AgentProcess.kill_template),
    ("hang", _on_slave(AgentProcess.hang)),
    ("nonsense", _on_slave(lambda _, slave: slave.channel.write_nonsense())),
)
"""Every kind of fault is equally likely: what happens to an agent, to its slaves, or to its connection."""

LIMIT_S = 4000.0
"""If a computation has not ended after this many simulated seconds, it hangs."""

LAST_S = 15.0
"""Every agent must end within this many seconds after the master: it may be frozen, and its slaves get some time."""

TRANSCRIPT_LINES = 400

CRASHES = 0.2
"""The share of histories in which the master crashes."""

CRASH_S = 10.0
"""The longest life of a master that crashes, in seconds."""

DOWN_S = 3.0
"""The longest time until it is started again, in seconds."""

PACE = Pace()


def offers_of(number: int, seed: int) -> Offers:
    """What a machine offers. The first one offers whatever a task may require."""
    random = Random(f"offers {seed} {number}")
    amounts = {"cpus": random.randint(1, 4), "gpus": random.randrange(3), "memory": random.randrange(10)}
    if not number:
        amounts = {"cpus": 4, "gpus": 2, "memory": 10}
    return Offers(amounts, {"python": "3.11", "host": f"host {number}"}, pins=True)


def _set_up(seed: int, generation: str) -> messages.SetUp | None:
    """What agents run before their slaves start. A few computations have this, and edit it between two lives."""
    if Random(f"set-up {seed}").random() < 0.7:
        return None
    name = Random(f"set-up {seed} {generation}").choice(["first", "first", "second"])
    return messages.SetUp(messages.AlgorithmDefinition(0, name, "", "", "3.11"))


class Cluster:
    """One simulated computation.

    Args:
        seed: names the history.
        agents: how many machines.
        tasks: how many tasks the algorithm submits.
        pace: how fast things happen.
        now: the simulated time at which it begins.
        bad: what each task does on the last of several machines: it kills its slave ("slave"), raises an exception
            ("error") or works well (""). By default, the seed decides.
        crashes: whether the master has a run database, crashes and starts again; None if the seed decides.
    """

    def __init__(
        self,
        seed: int,
        agents: int = 3,
        tasks: int = 60,
        pace: Pace = PACE,
        now: float = 0.0,
        bad: str | None = None,
        crashes: bool | None = None,
    ) -> None:
        self.seed = seed
        self.world = World(seed, pace.faulty_s, now)
        crashes = Random(f"crashes {seed}").random() < CRASHES if crashes is None else crashes
        self.folder = folder_for_databases(self) if crashes else None
        self.script = Script(self.world, seed, tasks)
        self.pace = pace
        self.hosts: list[AgentHost] = []
        self._begin_life(LifeChecker())
        random = self.world.random
        bad = Random(f"bad {seed}").choice(("", "", "", "slave", "error")) if bad is None else bad
        for number in range(agents):
            settings = AgentSettings(
                NO_HELLO,
                start_timeout_s=random.choice((1.0, 5.0, 300.0)),
                memory_bytes=random.choice((None, None, 900, 1200)),
                idle_exit_s=random.choice((None, None, 0.3, 3.0)),
                forks=random.random() < 0.7,  # some scripts leave something that must not be copied
                max_share_bytes=random.choice((1 << 30, 3 * PART_BYTES)),
            )
            host = AgentHost(
                f"host {number}",
                partial(self._start_again, number),
                settings=settings,
                max_tasks=random.choice((inf, inf, 1, 4, 15)),
                max_memory=random.choice((inf, inf, 2, 10)),
                lifetime_s=random.choice((None, None, 9.0, 15.0)),
                unsafe=random.random() < 0.2,
                returns_s=random.choice((0.0, 2.0, 60.0)),
                num_slaves=Random(f"slaves {seed} {number}").randint(2, 4) if number else 4,  # three may be ordered
                offers=offers_of(number, seed),
                has_tool=not number or Random(f"tools {seed} {number}").random() < 0.5,
                able=number == 0,
                bad=bad if number == agents - 1 > 0 else "",
            )
            self.hosts.append(host)
            self.world.after(random.random(), partial(self._start_agent, host))
        self._await_fault()

    # ---- the history ---------------------------------------------------------------------------------------

    @property
    def core(self) -> MasterCore:
        """The master's core."""
        return self.master.io.core

    @property
    def ended(self) -> dict[int, str]:
        """How each task ended, for tasks that have ended: `result` or `unrunnable`."""
        return self.checker.ended

    @property
    def submitted(self) -> int:
        """How many tasks were submitted so far."""
        return self.master.io.submissions.total

    @property
    def faulty(self) -> bool:
        """Whether faults still happen."""
        return self.world.faulty

    @property
    def complete(self) -> bool:
        """Whether all tasks have ended."""
        return self.master.algorithm.complete

    @property
    def transcript(self) -> list[str]:
        """What happened, a line each."""
        return self.world.transcript

    def run(self) -> None:
        """Run to the end.

        Raises:
            SimulationFailure: a checker found a fault.
        """
        try:
            self._step_until(lambda: self.complete, LIMIT_S, "there are tasks that never ended: it hangs")
            self.master.algorithm.check_end()
            self.master.shut_down()
            limit = self.world.now + GRACE_S + FAREWELL_S + 1.0
            self._step_until(lambda: self.master.over, limit, "the master does not end")
            limit = self.world.now + LAST_S
            self._step_until(lambda: not any(host.process for host in self.hosts), limit, "an agent does not end")
            self.checker.replay.check_end(self.core.state)
        except Exception as error:
            raise SimulationFailure(self.seed, self.transcript[-TRANSCRIPT_LINES:], repr(error)) from error
        finally:
            self.master.end()
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _step_until(self, reached: Callable[[], bool], limit: float, fault: str) -> None:
        while not reached():
            assert self.world.next_at <= limit, fault
            self.world.step()

    def run_until(self, time: float) -> None:
        """Simulate until this time. The algorithm ends as soon as it can."""
        while self.world.next_at <= time:
            self.world.step()
            if self.complete and not self.master.closing:
                self.master.algorithm.check_end()
                self.master.shut_down()
        self.world.now = time

    # ---- faults --------------------------------------------------------------------------------------------

    def _await_fault(self) -> None:
        self.world.after(self.world.random.random() * self.pace.fault_s, self._strike)

    def _strike(self) -> None:
        """Let a fault happen to an agent, and others later, as long as the world is faulty."""
        if not self.world.faulty:
            return
        host = self.world.random.choice(self.hosts) if self.hosts else None
        if host is not None and host.process is not None:
            kind, fault = self.world.random.choice(FAULTS)
            self.world.note(f"fault on {host.name}: {kind}")
            fault(host.process)
        self._await_fault()

    # ---- the lives of the master ---------------------------------------------------------------------------

    def _begin_life(self, lives: LifeChecker) -> None:
        """Start the master."""
        self.checker = HistoryChecker(lives)
        self.lives = lives.life
        """How many lives the master has had."""
        self.master = SimulatedMaster(self, self.checker)
        if self.folder is not None:
            self.world.after(self.world.random.random() * CRASH_S, self._crash)

    def _crash(self) -> None:
        """Kill the master, and start it again after a while. When faults have ended, it runs to its end."""
        if self.master.closing or not self.world.faulty:
            return
        self.world.note("the master crashes")
        self.master.crash()
        for host in self.hosts:
            host.cut_off()
        self.world.after(self.world.random.random() * DOWN_S, lambda: self._begin_life(self.checker.lives.next()))

    # ---- agents --------------------------------------------------------------------------------------------

    def add_agent(self, host: AgentHost) -> None:
        """Add a machine whose agent starts now; when the agent has ended, the machine is gone."""
        ended = host.ended

        def gone(code: ExitCode | None) -> None:
            self.hosts.remove(host)
            ended(code)

        host.ended = gone
        self.hosts.append(host)
        self._start_agent(host)

    def _start_agent(self, host: AgentHost) -> None:
        if host.process is not None:
            return
        if self.master.crashed:
            self.world.after(self.world.random.random(), partial(self._start_agent, host))
            return
        if self.master.over:  # the resource file says that the computation is finished
            self.world.after(0.0, lambda: host.ended(ExitCode.OK))
            return
        process = host.process = AgentProcess(host, self.world, self._newest_life, self.pace.start_s)
        self.world.note(f"{host.name} starts an agent, {process.connection.peer.decode()}")

    def _newest_life(self) -> Life:
        """The present life of the master, or the last one."""
        return Life(self.master.network, self.checker, self.master.algorithm.durations)

    def _start_again(self, number: int, code: ExitCode | None) -> None:
        if not self.master.closing:
            self.world.after(self.world.random.random() * 3, partial(self._start_agent, self.hosts[number]))

    def _master_ended(self) -> None:
        """The master has ended, and its agents hear it."""
        self.master.network.is_down = self.master.network.is_finished = True
        for host in self.hosts:
            host.cut_off()

    def needs(self, host: AgentHost) -> bool:
        """Whether a slave of this machine runs a task, or is reserved for tasks."""
        slaves = [] if host.process is None else host.process.slaves.values()
        kept = self.master.algorithm.kept
        return any(slave.code is None and (slave.running or slave.sid in kept) for slave in slaves)
