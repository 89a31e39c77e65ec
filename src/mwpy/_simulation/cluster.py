"""A whole computation in one thread, on a simulated network and clock, with every fault on.

`Cluster(seed)` runs the real cores of a master and its agents. Only what is around them is simulated: connections
that delay, break and repeat, slaves that compute, crash and freeze, agents that are killed, evicted and come back. One
seed is one history, always the same one. A witness looks from outside (see `_witness`): every task ends exactly once,
nothing is delivered twice, addressed tasks run where and in the order that they should, no task kills for ever; and
when the faults stop, all must finish.

    >>> cluster = Cluster(seed=1)
    >>> cluster.run()
    >>> len(cluster.ended) == cluster.submitted
    True
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any

from mwpy._core.agent import events as agent_core
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.events import AgentSettings
from mwpy._core.master.commands import AllocateSlaves, FreeSlave, ShutDown
from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.events import Garbage, Received, Stranger, Vanished
from mwpy._core.master.submissions import Submissions
from mwpy._simulation.checkers import SimulationFailure, Witness
from mwpy._simulation.machines import AgentHost, Connection, Pace, SlaveProcess
from mwpy._transport import wire
from mwpy._transport.codec import Codec
from mwpy._values import messages
from mwpy._values.errors import ExitCode
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS
from mwpy._values.records import AlgorithmDefined
from mwpy._values.task import SlaveKind, TaskPolicy

__all__ = ["Cluster", "SimulationFailure"]

CODEC = Codec()

LIMIT_S = 4000.0
"""Simulated seconds after which a computation that has not ended hangs."""

TRANSCRIPT_LINES = 400

PACE = Pace()


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
        self.random = random.Random(seed)
        self.now = now
        self._pace = pace
        self._submissions = Submissions()
        self.witness = Witness()
        self.transcript: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._peers = 0
        group = self.random.choice([None, None, None, 1, 7])
        settings = MasterSettings("simulated", "g1", task_group=group, max_call_bytes=1000)
        self.core = MasterCore(settings)
        self._algorithms = [messages.AlgorithmDefinition(n, f"work_{n}", f"app:work_{n}", "", "3.11") for n in range(2)]
        for definition in self._algorithms:
            self.core.define(AlgorithmDefined(definition, b""))
        self.hosts: list[AgentHost] = []
        self._total = tasks
        self._durations = [self.random.choice(pace.durations) for _ in self._algorithms]
        if self.random.random() < 0.5:
            self.core.obey(AllocateSlaves(self.random.randint(1, 2), SlaveKind.ORDERED))
        if self.random.random() < 0.3:
            self.core.obey(AllocateSlaves(1, SlaveKind.INTERMINGLE))
        self._special: list[SlaveId] = []
        self._freed: dict[SlaveId, None] = {}
        for number in range(agents):
            host = AgentHost(f"host {number}", lambda _, number=number: self._start_again(number), able=number == 0)  # type: ignore[misc]
            self.hosts.append(host)
            self._after(self.random.random(), lambda host=host: self._start_agent(host))  # type: ignore[misc]
        self._after(0.0, self._algorithm)
        self._after(self.random.random() * pace.fault_s, self._fault)

    # ---- the simulated world -----------------------------------------------------------------------------

    @property
    def ended(self) -> dict[int, str]:
        """What became of each task that ended: `result` or `unrunnable`."""
        return self.witness.ended

    @property
    def faulty(self) -> bool:
        """Whether faults still happen."""
        return self.now < self._pace.faulty_s

    def run(self) -> None:
        """Run to the end.

        Raises:
            SimulationFailure: a checker found a fault.
        """
        try:
            while not self.complete:
                assert self._events and self.now <= LIMIT_S, "there are tasks that never ended: it hangs"
                self._step()
            self.witness.check_end(self._total)
        except Exception as error:
            raise SimulationFailure(self.seed, self.transcript[-TRANSCRIPT_LINES:], repr(error)) from error

    def run_until(self, time: float) -> None:
        """Let happen what happens until then; its algorithm ends as soon as it can."""
        while self._events and self._events[0][0] <= time:
            self._step()
            if self.complete and self.core.closing is None:
                self.witness.check_end(self._total)
                self.core.obey(ShutDown(True, 5.0))
                self._master_acts()
        self.now = time

    def _step(self) -> None:
        self.now, _, event = heapq.heappop(self._events)
        event()
        self.core.check()

    @property
    def complete(self) -> bool:
        """Whether all tasks have ended."""
        return len(self.ended) == self._total

    def _after(self, delay: float, event: Callable[[], None]) -> None:
        self._at(self.now + delay, event)

    def _at(self, time: float, event: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, event))

    def _tell(self, text: str) -> None:
        self.transcript.append(f"{self.now:10.4f} {text}")

    def _delay(self) -> float:
        return 0.0005 + self.random.expovariate(200.0)

    # ---- the algorithm -------------------------------------------------------------------------------------

    def _algorithm(self) -> None:
        """Submit some tasks of every policy, now and then."""
        for _ in range(min(self._total - self.submitted, self.random.randint(1, 25))):
            self._submit_one()
        if spans := self._submissions.take():
            self._tell(f"submit {', '.join(map(str, spans))}")
            self.core.submit(spans)
        if self._special and self.random.random() < 0.1:
            sid = self.random.choice(self._special)
            self.core.obey(FreeSlave(sid))
            self._freed[sid] = None
        self._master_acts()
        if self.submitted < self._total:
            self._after(self.random.random() * self._pace.submit_s, self._algorithm)

    @property
    def submitted(self) -> int:
        """How many tasks were submitted so far."""
        return self._submissions.total

    def _submit_one(self) -> None:
        sid = self.random.choice(self._special) if self._special and self.random.random() < 0.4 else None
        policy = TaskPolicy(sid, retry=self.random.random() > 0.15, do_it_anyway=self.random.random() < 0.5)
        kills = self.random.random() < 0.02
        payload, _ = CODEC.dumps_value("x" * (2000 if self.random.random() < 0.02 else self.random.randint(0, 40)))
        algorithm = self.random.choice(self._algorithms)
        tag = self.witness.submitted(self.submitted + 1, policy, kills)
        self._submissions.add(algorithm, policy, payload, (), tag)

    # ---- the master's shell ------------------------------------------------------------------------------

    def _master_hears(self, event: Received | Garbage | Vanished | Stranger) -> None:
        self.core.handle(event, self.now)
        self._master_acts()

    def _master_acts(self) -> None:
        self.core.decide(self.now)
        actions = self.core.take_actions()
        deque(map(self.witness.recorded, actions.records), maxlen=0)
        for send in actions.sends:
            if isinstance(send.message, messages.Refused):
                self.witness.unheard[send.peer] = None
            connection = next((host.connection for host in self.hosts if self._leads_to(host, send.peer)), None)
            if connection is None:
                self._after(0.0, lambda peer=send.peer: self._master_hears(Vanished(peer, "gone")))  # type: ignore[misc]
            else:
                self._to_agent(connection, wire.encode(send.message, send.frames))
        for result in actions.results:
            self._tell(f"task {result.task_id} ends: result")
            self.witness.finished(result)
        for task in actions.unrunnable:
            self._tell(f"task {task.task_id} ends: unrunnable, {task.reason}")
            self.witness.given_up(task)
        self._special.extend(actions.connected)
        self._special = [sid for sid in self._special if sid not in actions.disconnected]
        deadline = self.core.next_deadline()
        if deadline is not None:
            self._after(max(0.001, deadline - self.now), self._tick)

    def _tick(self) -> None:
        deadline = self.core.next_deadline()
        if deadline is not None and self.now >= deadline:
            self._master_acts()

    def _leads_to(self, host: AgentHost, peer: bytes) -> bool:
        return host.connection is not None and host.connection.peer == peer and not host.connection.broken

    # ---- the network ---------------------------------------------------------------------------------------

    def _to_agent(self, connection: Connection, frames: Sequence[Any]) -> None:
        connection.to_agent_at = max(connection.to_agent_at, self.now + self._delay())
        self._at(connection.to_agent_at, lambda: self._agent_receives(connection, frames))

    def _agent_receives(self, connection: Connection, frames: Sequence[Any]) -> None:
        host = next((host for host in self.hosts if host.connection is connection), None)
        if connection.broken or host is None or host.core is None:
            return
        if self.now < host.frozen_until:
            self._at(host.frozen_until, lambda: self._agent_receives(connection, frames))
            return
        message, _ = wire.decode(frames)
        host.core.handle(agent_core.Heard(message, frames), self.now)
        self._agent_acts(host)

    def _to_master(self, connection: Connection, frames: Sequence[Any]) -> None:
        connection.to_master_at = max(connection.to_master_at, self.now + self._delay())
        repeat = self.faulty and self.random.random() < 0.02
        for _ in range(2 if repeat else 1):
            self._at(connection.to_master_at, lambda: self._master_receives(connection, frames))

    def _master_receives(self, connection: Connection, frames: Sequence[Any]) -> None:
        if connection.broken:
            return
        message, payload = wire.decode(frames)
        self.witness.heard(connection.peer, message)
        self._master_hears(Received(connection.peer, "simulated", message, payload))

    def cut_off(self, host: AgentHost) -> None:
        """Both ends notice, each in its time; nothing in flight arrives."""
        connection = host.connection
        if connection is None or connection.broken:
            return
        self._tell(f"the connection of {host.name} breaks")
        connection.broken = True
        self.witness.unheard[connection.peer] = None
        self._after(self.random.random(), lambda: self._master_hears(Vanished(connection.peer, "broke")))
        if host.core is not None:
            self._after(self.random.random(), lambda core=host.core: self._agent_lost(host, core))  # type: ignore[misc]

    def _agent_lost(self, host: AgentHost, core: AgentCore) -> None:
        if host.core is core:
            core.handle(agent_core.Disconnected("broke"), self.now)
            self._agent_acts(host)

    # ---- agents and slaves ---------------------------------------------------------------------------------

    def add_agent(self, host: AgentHost) -> None:
        """Have an agent come that goes for good when it ends, or is told or made to."""
        self.hosts.append(host)
        self._start_agent(host)

    def terminate(self, host: AgentHost, reason: str) -> None:
        """Have an agent told to go."""
        if host.core is not None:
            host.core.handle(agent_core.Terminated(reason), self.now)
            self._agent_acts(host)

    def needs(self, host: AgentHost) -> bool:
        """Whether one of its slaves runs a task, or is kept for some."""
        slaves = [slave for slave in host.slaves.values() if not slave.dead]
        return any(slave.running or (slave.sid in self._special and slave.sid not in self._freed) for slave in slaves)

    def _start_again(self, number: int) -> None:
        self._after(self.random.random() * 3, lambda: self._start_agent(self.hosts[number]))

    def _start_agent(self, host: AgentHost) -> None:
        if host.core is not None:
            return
        self._peers += 1
        host.connection = Connection(f"peer {self._peers}".encode())
        host.slaves = {}
        host.frozen_until = 0.0
        settings = AgentSettings("simulated", "g1", host.name, 1, "3.11", slaves=host.num_slaves, job=host.job)
        host.core = AgentCore(settings)
        self._tell(f"{host.name} starts an agent, {host.connection.peer.decode()}")
        self._to_master(host.connection, wire.encode(host.core.hello()))

    def end_agent(self, host: AgentHost, code: ExitCode | None = None) -> None:
        """The process is gone, its slaves with it; if no code is given it was killed."""
        self.cut_off(host)
        for slave in host.slaves.values():
            slave.dead = True
        host.core = None
        if host.job:
            self.hosts.remove(host)
        host.ended(code)

    def _agent_acts(self, host: AgentHost) -> None:
        core = host.core
        while core is not None:
            core.check()
            core.decide(self.now)
            actions = core.take_actions()
            for number in actions.start:
                slave = host.slaves[number] = SlaveProcess(number)
                self._after(self.random.random() * self._pace.start_s, lambda slave=slave: self._slave_up(host, slave))  # type: ignore[misc]
            for number, outgoing in actions.to_slaves:
                self._slave_hears(host, host.slaves[number], outgoing.message)
            for number, amount in actions.recall:
                if number in core.slaves:
                    core.handle(agent_core.Recalled(number, host.slaves[number].started, amount), self.now)
            for number in actions.kill:
                self._slave_dies(host, host.slaves[number], "killed by its agent")
            for number in actions.read_journal:
                core.handle(agent_core.JournalRead(number, messages.Results(number, [], [], [], [], [])), self.now)
            for outgoing in actions.to_master:
                if host.connection is not None:
                    frames = outgoing.received or wire.encode(outgoing.message, outgoing.payload)
                    self._to_master(host.connection, frames)
            if actions.exit is not None:
                self._tell(f"the agent on {host.name} exits with {actions.exit.name}")
                self._after(0.05, partial(self._agent_exits, host, core, actions.exit))
                return
            if not (actions.recall or actions.start or actions.kill):
                break
        if core is not None and (deadline := core.next_deadline()) is not None:
            self._after(max(0.001, deadline - self.now), lambda: self._agent_tick(host, core))

    def _agent_exits(self, host: AgentHost, core: AgentCore, code: ExitCode) -> None:
        if host.core is core:
            self.end_agent(host, code)

    def _agent_tick(self, host: AgentHost, core: AgentCore | None) -> None:
        if host.core is core and core is not None:
            self._agent_acts(host)

    def _slave_up(self, host: AgentHost, slave: SlaveProcess) -> None:
        if slave.dead or host.core is None:
            return
        if self.faulty and self.random.random() < 0.1:
            self._slave_dies(host, slave, "exit code 1")
        else:
            self._agent_hears_slave(host, slave, messages.SlaveReady(slave.number))

    def _agent_hears_slave(self, host: AgentHost, slave: SlaveProcess, message: Any, frames: Any = ()) -> None:
        if host.core is not None and slave.number in host.core.slaves and host.slaves.get(slave.number) is slave:
            host.core.handle(agent_core.SlaveHeard(slave.number, message, wire.encode(message, frames)), self.now)
            self._agent_acts(host)

    def _slave_hears(self, host: AgentHost, slave: SlaveProcess, message: Any) -> None:
        match message:
            case messages.Algorithms(definitions):
                unable = self.faulty and not host.able and self.random.random() < 0.05
                slave.algorithms.update((definition.number, not unable) for definition in definitions)
            case messages.SlaveNamed(_, sid):
                slave.sid = sid
            case messages.Tasks():
                algorithms = chain.from_iterable(map(repeat, message.algorithms, message.counts))
                for (task, attempt), algorithm in zip(messages.each_task(message), algorithms, strict=True):
                    slave.passed_on += 1
                    slave.tasks.append((slave.passed_on, task, attempt, algorithm))
                self._slave_steps(host, slave)
            case messages.Revoked():
                taken = set(messages.each_task(message))
                slave.tasks = deque(one for one in slave.tasks if one[1:3] not in taken)
            case messages.Shutdown():
                slave.stopping = True
                if not slave.running:
                    self._after(0.01, lambda: self._slave_dies(host, slave, "exit code 0"))
            case _:
                pass

    def _slave_steps(self, host: AgentHost, slave: SlaveProcess) -> None:
        if slave.running or slave.dead:
            return
        if not slave.tasks:
            self._slave_flushes(host, slave)
            return
        slave.started, task, attempt, algorithm = slave.tasks.popleft()
        if not slave.algorithms[algorithm]:
            refusal = messages.AlgorithmFailed(slave.number, algorithm, "cannot", [task], [1], [attempt])
            self._agent_hears_slave(host, slave, refusal)
            self._after(0.0, lambda: self._slave_steps(host, slave))
            return
        slave.running = task
        if host.connection is not None:
            self.witness.started(task, slave.sid, host.connection.peer)
        seconds = self.random.expovariate(1.0) * self._durations[algorithm]
        if self.random.random() < 0.01:
            seconds += 30.0
        self._after(seconds, lambda: self._slave_finishes(host, slave, task, attempt, seconds))

    def _slave_finishes(self, host: AgentHost, slave: SlaveProcess, task: int, attempt: int, seconds: float) -> None:
        if slave.dead:
            return
        if task in self.witness.killers:
            self._slave_dies(host, slave, "killed by signal 11")
            return
        slave.running = 0
        slave.gathered.append((task, attempt, seconds))
        if self.random.random() < 0.3:
            self._slave_flushes(host, slave, keep=self.random.random() < 0.2)
        if slave.stopping:
            self._slave_dies(host, slave, "exit code 0")
        else:
            self._slave_steps(host, slave)

    def _slave_flushes(self, host: AgentHost, slave: SlaveProcess, keep: bool = False) -> None:
        """Send the gathered results; with `keep` the agent read them out of the journal, and they come again."""
        if not slave.gathered:
            return
        if self.now < host.frozen_until:
            self._at(host.frozen_until, lambda: self._slave_flushes(host, slave))
            return
        tasks, attempts, seconds = (list(column) for column in zip(*slave.gathered, strict=True))
        group = messages.Results(slave.number, *messages.spans_of(tasks, attempts), seconds, [])
        if not keep:
            slave.gathered = []
        self._agent_hears_slave(host, slave, group, [messages.payload(len(tasks), [bytes(len(tasks))])])

    def _slave_dies(self, host: AgentHost, slave: SlaveProcess, cause: str) -> None:
        if slave.dead or host.core is None or host.slaves.get(slave.number) is not slave:
            return
        if slave.number not in host.core.slaves:
            return
        slave.dead = True
        self._tell(f"slave {slave.number} on {host.name} dies: {cause}, running {slave.running}")
        self._exit_noticed(host, slave, cause)

    def _exit_noticed(self, host: AgentHost, slave: SlaveProcess, cause: str) -> None:
        """The agent first hears what is left in the journal, and then of the exit."""
        if self.now < host.frozen_until:
            self._at(host.frozen_until, lambda: self._exit_noticed(host, slave, cause))
            return
        self._slave_flushes(host, slave)
        if host.core is None or host.slaves.get(slave.number) is not slave or slave.number not in host.core.slaves:
            return
        event = agent_core.SlaveExited(slave.number, cause, NO_WORDS, slave.started)
        host.core.handle(event, self.now)
        self._agent_acts(host)

    # ---- faults ----------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        if not self.faulty:
            return
        if self.hosts:
            self._befall(self.random.choice(self.hosts))
        self._after(self.random.random() * self._pace.fault_s, self._fault)

    def _befall(self, host: AgentHost) -> None:
        kind = self.random.choice(["agent", "slave", "break", "freeze", "evict", "garbage", "stranger"])
        self._tell(f"fault on {host.name}: {kind}")
        if kind == "agent" and host.core is not None:
            self.end_agent(host)
        elif kind == "slave" and host.slaves:
            self._slave_dies(host, self.random.choice(list(host.slaves.values())), "killed by signal 9")
        elif kind == "break":
            self.cut_off(host)
        elif kind == "freeze":
            seconds = self.random.random() * 5
            if self.now >= host.frozen_until:  # what arrives while it is frozen is heard in its order at the end
                host.frozen_until = self.now + seconds
        elif kind == "evict":
            self.terminate(host, "evicted")
        elif kind == "garbage" and host.connection is not None:
            self._master_hears(Garbage(host.connection.peer, "simulated", "nonsense"))
            self.cut_off(host)
        elif kind == "stranger":
            self._master_hears(Stranger("simulated", "no key"))
