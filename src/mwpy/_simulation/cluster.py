"""A whole computation in one thread, on a simulated network and clock, with every fault on.

`Cluster(seed)` runs the master's loop and the agents' loops that ship (`MasterIo`, `Agent`), with their cores. Only the
edges are simulated: connections that delay, break and repeat; slave processes that compute, crash, hang and write
nonsense; machines whose agents are killed, frozen, evicted and started again; local agents that fail to start. One
seed is one history, always the same one. A checker looks from outside: every task ends exactly once, nothing is
delivered twice, addressed tasks run where and in the order that they should, no task kills for ever, no death is
charged that should not be. When the faults stop, all tasks must end, and then all agents.

    >>> cluster = Cluster(seed=1)
    >>> cluster.run()
    >>> len(cluster.ended) == cluster.submitted
    True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

from attrs import define

from mwpy._core.master.commands import AllocateSlaves, FreeSlave, ShutDown
from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._roles.edges import Process
from mwpy._roles.master_io import FAREWELL_S, MasterIo
from mwpy._simulation.checkers import HistoryChecker, SimulationFailure
from mwpy._simulation.machines import AgentHost, AgentProcess, Pace, due
from mwpy._simulation.network import Network
from mwpy._simulation.replay import Replay
from mwpy._simulation.slaves import SIGKILL
from mwpy._simulation.world import World
from mwpy._transport.codec import Codec
from mwpy._values import messages, records
from mwpy._values.errors import ExitCode
from mwpy._values.exits import describe_exit
from mwpy._values.ids import SlaveId
from mwpy._values.task import SlaveKind, TaskPolicy

__all__ = ["Cluster", "SimulationFailure"]

CODEC = Codec()

LIMIT_S = 4000.0
"""Simulated seconds after which a computation that has not ended hangs."""

GRACE_S = 5.0
"""Seconds that agents get at the end."""

LAST_S = 15.0
"""Seconds in which every agent ends when the master has ended: it may be frozen, and its slaves get some time."""

TRANSCRIPT_LINES = 400

FAULTS = (
    "kill",
    "break",
    "freeze",
    "full output",
    "evict",
    "garbage",
    "stranger",
    "slave",
    "slave",
    "slave and agent",
    "hang",
    "nonsense",
)
"""What happens to an agent, or to one of its slaves."""

PACE = Pace()


@define(eq=False)
class _LocalAgent:
    """The process of a local agent, as the master sees it."""

    kill: Callable[[], None]
    code: int | None = None
    pid: int = 1
    peak_bytes: int = 0

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self.code

    def describe_exit(self) -> str:
        """Its end in words."""
        assert self.code is not None, "it has not ended"
        return describe_exit(self.code)

    def close(self) -> None:
        """Do nothing."""


@define(eq=False)
class _Trail:
    """The master's audit file: checkers read the records."""

    _checker: HistoryChecker
    _replay: Replay

    def write(self, happened: Sequence[records.Record], now: float) -> None:
        """Check the records."""
        for record in happened:
            self._checker.recorded(record)
            self._replay.recorded(record)

    def close(self) -> None:
        """Do nothing: there is no file."""


class Cluster:
    """One simulated computation.

    Args:
        seed: names the history.
        agents: how many machines.
        tasks: how many tasks the algorithm submits.
        pace: how fast things happen.
        now: when it begins.
    """

    def __init__(self, seed: int, agents: int = 3, tasks: int = 60, pace: Pace = PACE, now: float = 0.0) -> None:
        self.seed = seed
        self._world = World(seed, pace.faulty_s, now)
        self._pace = pace
        self._total = tasks
        self.checker = HistoryChecker()
        self.replay = Replay()
        self._network = Network(self._world, self.checker, self._wake_master)
        random = self._world.random
        group = random.choice([None, None, None, 1, 7])
        settings = MasterSettings("simulated", "g1", task_group=group, max_call_bytes=1000)
        self.io = MasterIo(
            MasterCore(settings),
            self._network.master,
            _Trail(self.checker, self.replay),
            self._world,
            self._start_local,
        )
        self.over = False
        """Whether the master has ended."""
        self._wakes_at = inf
        self._alarm = 0
        """Number of the alarm of the master that counts; older ones do nothing."""
        self._algorithms = [messages.AlgorithmDefinition(n, f"work_{n}", f"app:work_{n}", "", "3.11") for n in range(2)]
        for definition in self._algorithms:
            self.io.definitions.append(records.AlgorithmDefined(definition, b""))
        self._durations = [random.choice(pace.durations) for _ in self._algorithms]
        if random.random() < 0.5:
            self.io.commands.append(AllocateSlaves(random.randint(1, 2), SlaveKind.ORDERED))
        if random.random() < 0.3:
            self.io.commands.append(AllocateSlaves(1, SlaveKind.INTERMINGLE))
        self._special: list[SlaveId] = []
        self._freed: dict[SlaveId, None] = {}
        self.hosts: list[AgentHost] = []
        for number in range(agents):
            host = AgentHost(f"host {number}", partial(self._start_again, number), able=number == 0)
            self.hosts.append(host)
            self._world.after(random.random(), partial(self._start_agent, host))
        if agents and random.random() < 0.3:
            self._world.after(random.random(), self._have_local_agent)
        self._world.after(0.0, self._algorithm)
        self._world.after(random.random() * pace.fault_s, self._fault)

    # ---- the history ---------------------------------------------------------------------------------------

    @property
    def core(self) -> MasterCore:
        """The master's core."""
        return self.io.core

    @property
    def now(self) -> float:
        """The simulated time, in seconds."""
        return self._world.now

    @property
    def ended(self) -> dict[int, str]:
        """How each task ended, of those that have ended: `result` or `unrunnable`."""
        return self.checker.ended

    @property
    def submitted(self) -> int:
        """How many tasks were submitted so far."""
        return self.io.submissions.total

    @property
    def faulty(self) -> bool:
        """Whether faults still happen."""
        return self._world.faulty

    @property
    def complete(self) -> bool:
        """Whether all tasks have ended."""
        return len(self.ended) == self._total

    @property
    def transcript(self) -> list[str]:
        """What happened, a line each."""
        return self._world.transcript

    @transcript.setter
    def transcript(self, lines: list[str]) -> None:
        self._world.transcript = lines

    def run(self) -> None:
        """Run to the end.

        Raises:
            SimulationFailure: a checker found a fault.
        """
        try:
            self._step_until(lambda: self.complete, LIMIT_S, "there are tasks that never ended: it hangs")
            self.checker.check_end(self._total)
            self._close()
            self._step_until(lambda: self.over, self.now + GRACE_S + FAREWELL_S + 1.0, "the master does not end")
            self._step_until(lambda: not self._agents_run, self.now + LAST_S, "an agent does not end")
            self.replay.check_end(self.core.state)
        except Exception as error:
            raise SimulationFailure(self.seed, self.transcript[-TRANSCRIPT_LINES:], repr(error)) from error

    @property
    def _agents_run(self) -> bool:
        return any(host.process is not None for host in self.hosts)

    def _step_until(self, reached: Callable[[], bool], limit: float, fault: str) -> None:
        while not reached():
            assert self._world.next_at <= limit, fault
            self._world.step()

    def run_until(self, time: float) -> None:
        """Let happen what happens until then; the algorithm ends as soon as it can."""
        while self._world.next_at <= time:
            self._world.step()
            if self.complete and self.core.closing is None:
                self.checker.check_end(self._total)
                self.replay.check_end(self.core.state)
                self._close()
        self._world.now = time

    def _close(self) -> None:
        self.io.commands.append(ShutDown(True, GRACE_S))
        self._turn_master()

    # ---- the algorithm -------------------------------------------------------------------------------------

    def _algorithm(self) -> None:
        """Submit some tasks of every policy, now and then."""
        self.replay.check(self.core.state)
        random = self._world.random
        first = self.submitted + 1
        for _ in range(min(self._total - self.submitted, random.randint(1, 25))):
            self._submit_one()
        if self.submitted >= first:
            self._world.note(f"submit tasks {first} to {self.submitted}")
        if self._special and random.random() < 0.1:
            sid = random.choice(self._special)
            self.io.commands.append(FreeSlave(sid))
            self._freed[sid] = None
        self._wake_master()
        if self.submitted < self._total:
            self._world.after(random.random() * self._pace.submit_s, self._algorithm)

    def _submit_one(self) -> None:
        random = self._world.random
        sid = random.choice(self._special) if self._special and random.random() < 0.4 else None
        policy = TaskPolicy(sid, retry=random.random() > 0.15, do_it_anyway=random.random() < 0.5)
        kills = random.random() < 0.02
        payload, _ = CODEC.dumps_value("x" * (2000 if random.random() < 0.02 else random.randint(0, 40)))
        algorithm = random.choice(self._algorithms)
        tag = self.checker.submitted(self.submitted + 1, policy, kills)
        self.io.submissions.add(algorithm, policy, payload, (), tag)

    def _take_outcomes(self) -> None:
        """Give the algorithm what the master has for it."""
        while not self.io.outcomes.empty():
            outcome = self.io.outcomes.get_nowait()
            assert not isinstance(outcome, BaseException), "only the thread reports errors"
            for result in outcome.results:
                self._world.note(f"task {result.task_id} ends: result")
                self.checker.finished(result)
            for task in outcome.unrunnable:
                self._world.note(f"task {task.task_id} ends: unrunnable, {task.reason}")
                self.checker.given_up(task)
            self._special.extend(outcome.connected)
            self._special = [sid for sid in self._special if sid not in outcome.disconnected]

    # ---- the master's loop ---------------------------------------------------------------------------------

    def _wake_master(self) -> None:
        self._set_alarm(self.now)

    def _set_alarm(self, time: float) -> None:
        if time < self._wakes_at:
            self._wakes_at = time
            self._alarm += 1
            self._world.at(time, partial(self._ring, self._alarm))

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm and not self.over:
            self._turn_master()

    def _turn_master(self) -> None:
        self._wakes_at = inf
        self.over = self.io.turn(self.io.link.poll(0.0, self.now))
        self.core.check()
        timeout_s = self.io.prepare_to_wait(self.now)
        self._take_outcomes()
        if self.over:
            for host in self.hosts:
                self.cut_off(host)
        else:
            self._set_alarm(due(self.now, timeout_s))

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
        if self.over:  # the resource file says that the computation is finished
            self._world.after(0.0, lambda: host.ended(ExitCode.OK))
            return
        arguments = self._world, self._network, self.checker, self._durations, self._pace.start_s
        process = host.process = AgentProcess(host, *arguments)
        self._world.note(f"{host.name} starts an agent, {process.connection.peer.decode()}")

    def _start_again(self, number: int, code: ExitCode | None) -> None:
        if self.core.closing is None:
            self._world.after(self._world.random.random() * 3, partial(self._start_agent, self.hosts[number]))

    def _have_local_agent(self) -> None:
        try:
            self.io.local.start(["agent"], {})
        except OSError:  # a user would see it, and start the master again
            self._world.after(1.0, self._have_local_agent)

    def _start_local(self, command: Sequence[str], environment: Mapping[str, str]) -> Process:
        """Start an agent on the master's machine; sometimes there is no memory."""
        if self._world.chance(0.2):
            raise OSError("no memory")

        def ended(code: ExitCode | None) -> None:
            process.code = SIGKILL if code is None else int(code)

        host = AgentHost("the master's machine", ended, able=False)
        process = _LocalAgent(lambda: self.end_agent(host))
        self.add_agent(host)
        return process

    def terminate(self, host: AgentHost, reason: str) -> None:
        """Send SIGTERM to an agent."""
        if host.process is not None:
            self._world.note(f"{host.name}: {reason}")
            host.process.terminate()

    def cut_off(self, host: AgentHost) -> None:
        """Break the connection of an agent. Both ends notice, each in its time; nothing in flight arrives."""
        if host.process is not None and not host.process.connection.broken:
            self._world.note(f"the connection of {host.name} breaks")
            self._network.cut(host.process.connection)

    def end_agent(self, host: AgentHost) -> None:
        """Kill an agent and its slaves."""
        if host.process is not None:
            host.end(host.process, None)

    def needs(self, host: AgentHost) -> bool:
        """Whether a slave of this machine runs a task, or is kept for some."""
        slaves = [] if host.process is None else host.process.slaves.values()
        kept = [sid for sid in self._special if sid not in self._freed]
        return any(slave.code is None and (slave.running or slave.sid in kept) for slave in slaves)

    # ---- faults --------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        if not self._world.faulty:
            return
        if self.hosts:
            host = self._world.random.choice(self.hosts)
            if host.process is not None:
                self._strike(host, host.process)
        self._world.after(self._world.random.random() * self._pace.fault_s, self._fault)

    def _strike(self, host: AgentHost, process: AgentProcess) -> None:
        """Let a fault happen to an agent or to one of its slaves."""
        kind = self._world.random.choice(FAULTS)
        self._world.note(f"fault on {host.name}: {kind}")
        match kind:
            case "kill":
                self.end_agent(host)
            case "break":
                self.cut_off(host)
            case "freeze":
                process.freeze()
            case "full output":
                process.fill_outlets()
            case "evict":
                process.terminate()
            case "garbage":
                self._network.send_garbage(process.connection)
            case "stranger":
                self._network.stranger()
            case _:
                self._strike_slave(process, kind)

    def _strike_slave(self, process: AgentProcess, kind: str) -> None:
        slaves = [slave for slave in process.slaves.values() if slave.code is None]
        if not slaves:
            return
        slave = self._world.random.choice(slaves)
        match kind:
            case "slave":
                slave.kill()
            case "slave and agent":
                process.kill_with(slave)
            case "hang":
                process.hang(slave)
            case "nonsense":
                slave.channel.write_nonsense()
