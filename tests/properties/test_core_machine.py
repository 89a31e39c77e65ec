"""The master's core with events in any order, compared with a small model.

The machine acts as the algorithm and as all agents, correct and faulty. Its model knows which slave holds which attempt
of which task, and what may happen next. It learns this from the actions of the core, and reads the core's state only
for comparison. At the end, a correct agent connects, and every task must have ended once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.spans import MAX, MIN, ids_of, spans_in

from mwpy._core.master import allocation
from mwpy._core.master.commands import AllocateSlaves, DeallocateSlaves, FreeSlave, ShutDown, Waiting
from mwpy._core.master.core import Actions, MasterCore, MasterSettings
from mwpy._core.master.events import Event, Garbage, Received, Send, Stranger, Vanished
from mwpy._core.master.submissions import Submissions
from mwpy._transport.codec import Codec
from mwpy._values import messages, records
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS
from mwpy._values.task import SlaveKind, TaskPolicy

WORKED_S = 5.0
"""A slave that has worked for this many seconds has progressed."""

FIRST_NOTICE_S = 10.0
"""Seconds without possible progress after which the user must have a notice."""

MOST_DEADLINES = 100
"""How often the core may ask to be called while nothing happens, in any of the time spans of this test."""

MAX_CALL_BYTES = 100

picks = st.integers(0, 60)
"""Chooses one element of a list: the number modulo the length of the list."""

kinds = st.sampled_from(list(SlaveKind))


@define(eq=False)
class _Job:
    """A task in the model."""

    number: int
    algorithm: int
    policy: TaskPolicy
    payload: bytes
    tag: object = field(factory=object)
    attempt: int = 0
    deaths: int = 0
    may_have_started: bool = False
    """It was at a slave that was lost, and may have been running."""
    outcome: str = ""


@define(eq=False)
class _Worker:
    """A slave in the model."""

    peer: _Peer
    number: int
    sid: SlaveId
    kind: SlaveKind
    held: dict[int, _Job] = field(factory=dict)
    freed: bool = False
    just_sent: int = 0
    """How many tasks it was sent in the last iteration."""
    recalled: int = 0
    """How many tasks are being recalled from it."""


@define(eq=False)
class _Peer:
    """An agent that was accepted."""

    name: bytes
    workers: dict[int, _Worker] = field(factory=dict)
    known: dict[int, None] = field(factory=dict)
    refused: dict[int, None] = field(factory=dict)
    started: int = 0
    leaving: bool = False


CODEC = Codec()


def _payload(job: _Job) -> bytes:
    """Return the value of a task: its number and attempt, or a failure for each fifth task."""
    if job.number % 5 == 0:
        return CODEC.dumps_failure(ValueError("wrong"))
    payload, _ = CODEC.dumps_value(f"{job.attempt} of {job.number}")
    return payload


class _MasterMachine(RuleBasedStateMachine):
    """A master whose agents can do anything."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.jobs: list[_Job] = []
        self.submissions = Submissions()
        self.peers: dict[bytes, _Peer] = {}
        self.names = 0
        self.sids: dict[SlaveId, _Worker] = {}
        """All slaves, including lost slaves."""
        self.replies: list[tuple[bytes, messages.Results]] = []
        self.due: dict[int, str] = {}
        """The outcomes that the last event must have caused."""
        self.announced: dict[SlaveId, None] = {}
        """The ordered and intermingle slaves that the algorithm got as connected."""
        self.was_stuck = False
        self.looked_at = 0.0
        """The time when the state was last seen as stuck, or first seen as not stuck."""
        self.stuck_s = 0.0
        self.progressed = False
        self.notices = 0
        """The number of notices that nothing progresses, since the last progress."""
        self.sound = False
        """No fault was found so far. After a fault, further checks are useless."""

    @initialize(group=st.sampled_from([None, None, 1, 3]))
    def begin(self, group: int | None) -> None:
        settings = MasterSettings("m", "g", task_group=group, max_call_bytes=MAX_CALL_BYTES)
        self.core = MasterCore(settings)
        self.algorithms = [MAX, MIN]
        for algorithm in self.algorithms:
            self.core.define(algorithm)
        self.group = group
        self.sound = True

    # Facts of the model

    @property
    def workers(self) -> list[_Worker]:
        return [worker for peer in self.peers.values() for worker in peer.workers.values()]

    @property
    def open(self) -> list[_Job]:
        return [job for job in self.jobs if not job.outcome]

    def is_here(self, sid: SlaveId | None) -> bool:
        return any(worker.sid == sid for worker in self.workers)

    def pick(self, number: int) -> _Worker | None:
        workers = self.workers
        return workers[number % len(workers)] if workers else None

    def may_go_elsewhere(self, job: _Job) -> bool:
        """Return whether the slave that a task is addressed to is gone, freed or unable to run it."""
        worker = self.sids.get(job.policy.sid or SlaveId(""))
        if worker is None or not self.is_here(worker.sid):
            return True
        return worker.freed or job.algorithm in worker.peer.refused

    # Events

    def receive(self, peer: bytes, message: messages.Message, frames: tuple[bytes, ...] = ()) -> None:
        messages.check(message, frames)
        self.handle(Received(peer, "here", message, frames))

    def handle(self, event: Event) -> None:
        self.sound = False
        self.core.handle(event, self.now)
        self.core.check()

    def settle(self) -> None:
        """Run one iteration of the master: decide, and check all actions."""
        self.sound = False
        for worker in self.workers:
            worker.just_sent = 0
        self.core.decide(self.now)
        self.core.check()
        self.read(self.core.take_actions())
        self.agree()
        self.counts_agree()
        self.sound = True

    def read(self, actions: Actions) -> None:
        for record in actions.records:
            self.read_record(record)
        for send in actions.sends:
            self.read_send(send)
        for result in actions.results:
            job = self.jobs[result.task_id - 1]
            assert self.due.pop(job.number, "") == "result", f"no slave sent a result of task {job.number}"
            assert result.tag is job.tag
            if len(job.payload) <= MAX_CALL_BYTES:
                expected = f"{job.attempt} of {job.number}"
                assert result.error is not None if job.number % 5 == 0 else result.value == expected
            self.end(job, "result")
        for unrunnable in actions.unrunnable:
            job = self.jobs[unrunnable.task_id - 1]
            assert unrunnable.tag is job.tag
            assert len(unrunnable.deaths) == job.deaths
            assert self.may_be_unrunnable(job), f"task {job.number} became unrunnable without need: {unrunnable.reason}"
            self.due.pop(job.number, None)
            self.end(job, "unrunnable")
        assert not self.due, f"these should have ended: {self.due}"
        self.progressed = self.progressed or bool(actions.results or actions.unrunnable or actions.connected)
        for sid in actions.connected:
            assert sid not in self.announced, f"{sid} was announced twice"
            self.announced[sid] = None
        for sid in actions.disconnected:
            assert not self.is_here(sid), f"{sid} is connected but was reported as gone"
            del self.announced[sid]

    def end(self, job: _Job, outcome: str) -> None:
        assert not job.outcome, f"task {job.number} ended twice: {job.outcome}, {outcome}"
        assert not any(job.number in worker.held for worker in self.workers), f"task {job.number} ended but is held"
        job.outcome = outcome

    def may_be_unrunnable(self, job: _Job) -> bool:
        if job.deaths >= 3 or (job.may_have_started and not job.policy.retry):
            return True
        return job.policy.sid is not None and not job.policy.do_it_anyway and self.may_go_elsewhere(job)

    def read_record(self, record: records.Record) -> None:
        match record:
            case records.SlaveConnected(sid, _, _, kind):
                assert sid not in self.sids, f"{sid} was given twice"
                peer = self.peers[self.ready_at[0]]
                worker = _Worker(peer, self.ready_at[1], sid, kind)
                self.sids[sid] = peer.workers[worker.number] = worker
            case records.SlaveChanged(sid, _, kind):
                worker = self.sids[sid]
                if worker.kind is not SlaveKind.UNORDERED and kind is SlaveKind.UNORDERED:
                    assert worker.freed, f"{sid} became unordered by itself"
                    assert not worker.held, f"{sid} became unordered before it had finished"
                    self.announced.pop(sid, None)
                worker.kind = kind
            case records.Notice(text) if text.startswith("nothing has progressed"):
                self.notices += 1
                assert self.is_stuck(), f"a notice without need: {text}"

    def read_send(self, send: Send) -> None:
        if isinstance(send.message, messages.Refused):
            assert send.peer not in self.peers, f"{send.peer!r} was refused"
            return
        if send.peer not in self.peers:
            return  # the peer was lost while the message was on the way
        peer = self.peers[send.peer]
        messages.check(send.message, send.frames)
        match send.message:
            case messages.Algorithms(definitions):
                peer.known.update((definition.number, None) for definition in definitions)
            case messages.Tasks():
                self.read_group(peer, send.message, send.frames)
            case messages.SlaveNamed(number, sid):
                assert peer.workers[number].sid == sid
            case messages.Revoke(number, count):
                worker = peer.workers[number]
                assert 0 < count <= len(worker.held), "more tasks are recalled than were sent"
                assert not worker.recalled, f"{worker.sid} gets a second recall before it answered the first"
                worker.recalled = count

    def read_group(self, peer: _Peer, group: messages.Tasks, frames: Sequence[Any]) -> None:
        assert group.tasks, "an empty group was sent"
        assert self.group is None or sum(group.counts) <= self.group, "the group is larger than the option allows"
        worker = peer.workers[group.slave]
        payloads, _ = messages.entries(group, frames)
        numbers = chain.from_iterable(map(repeat, group.algorithms, group.counts))
        for (task, attempt), number, payload in zip(messages.each_task(group), numbers, payloads, strict=True):
            job = self.jobs[task - 1]
            assert CODEC.dumps_value(payload)[0] == job.payload, f"task {task} was sent with another's arguments"
            assert number == job.algorithm, f"task {task} was sent as another algorithm"
            assert number in peer.known, f"task {task} was sent before its algorithm"
            self.send_is_allowed(job, worker)
            job.attempt += 1
            assert attempt == job.attempt, f"attempt {attempt} of task {task} is not the next"
            worker.held[task] = job
            worker.just_sent += 1

    def send_is_allowed(self, job: _Job, worker: _Worker) -> None:
        sent = f"task {job.number} was sent to {worker.sid}"
        assert not job.outcome, f"{sent}, but ended before: {job.outcome}"
        assert not any(job.number in other.held for other in self.workers), f"{sent}, but another slave holds it"
        assert job.policy.retry or not job.may_have_started, f"{sent} again despite retry=False"
        assert job.deaths < 3, f"{sent} after it killed three slaves"
        mine = job.policy.sid == worker.sid
        if job.policy.sid is not None and not mine:
            assert job.policy.do_it_anyway, f"{sent}, but is addressed to {job.policy.sid}"
            assert self.may_go_elsewhere(job), f"{sent}, but {job.policy.sid} can run it"
        assert mine or worker.kind is not SlaveKind.ORDERED, f"{sent}, which is ordered and not its own"
        assert job.algorithm not in worker.peer.refused, f"{sent}, which cannot run it"
        assert not worker.peer.leaving, f"{sent}, which is leaving"
        if mine and job.attempt == 0:
            overtaken = [other.number for other in self.jobs[: job.number - 1] if self.is_before(other, job)]
            assert not overtaken, f"{sent} before {overtaken}"

    def is_before(self, other: _Job, job: _Job) -> bool:
        """Return whether an earlier task with the same address was never sent and must be sent to this slave first."""
        waits = other.policy.sid == job.policy.sid and not other.outcome and not other.attempt
        return waits and not self.may_go_elsewhere(other)

    def agree(self) -> None:
        """Model and core agree, no slave is idle that could work, and silence is reported."""
        assert sorted(ids_of(spans_in(self.core))) == [job.number for job in self.open], "a task was lost or kept"
        outstanding = {slave.sid: ids_of(slave.held.spans) for slave in self.core.state.members.slaves.values()}
        assert outstanding == {worker.sid: list(worker.held) for worker in self.workers}
        busy = {number for worker in self.workers for number in worker.held}
        pending = [job for job in self.open if job.number not in busy]
        assert sum(self.core.counts().pending.values()) == len(pending)
        if self.core.closing is None:
            self.no_slave_is_idle(pending)
            self.no_slave_waits_for_more_tasks()
            self.idle_slaves_get_a_share()
        self.look_for_silence()

    def counts_agree(self) -> None:
        """The master algorithm sees the same number of pending and runnable tasks as the model has."""
        jar, submissions = self.core.state.jar, self.submissions
        submissions.publish(jar.pending.counts, jar.runnable)
        submissions.check()
        held = {number for worker in self.workers for number in worker.held}
        pending = [job for job in self.open if job.number not in held]
        for number, algorithm in enumerate(self.algorithms):
            assert submissions.pending(algorithm.definition) == sum(job.algorithm == number for job in pending)
        assert (submissions.pending(), submissions.runnable()) == (len(pending), len(self.open))

    def look_for_silence(self) -> None:
        """A notice exists if nothing could progress for `FIRST_NOTICE_S` seconds since the last progress."""
        if self.was_stuck:
            self.stuck_s += self.now - self.looked_at
        elif self.now >= self.looked_at + WORKED_S:
            self.progressed = True
        if self.progressed or not self.is_waited_for():
            self.stuck_s, self.notices = 0.0, 0
        self.progressed = False
        if self.was_stuck != self.is_stuck() or self.was_stuck:
            self.looked_at = self.now
        self.was_stuck = self.is_stuck()
        assert self.notices or self.stuck_s < FIRST_NOTICE_S, (
            f"nothing progressed for {self.stuck_s} s without a notice"
        )

    def no_slave_is_idle(self, pending: list[_Job]) -> None:
        for worker in self.workers:
            for job in [] if worker.held or worker.peer.leaving else pending:
                mine = job.policy.sid == worker.sid
                anyones = job.policy.sid is None or not self.is_here(job.policy.sid)
                can = job.algorithm not in worker.peer.refused
                fault = f"{worker.sid} is idle while task {job.number} waits"
                assert not (can and (mine or (anyones and worker.kind is not SlaveKind.ORDERED))), fault

    def no_slave_waits_for_more_tasks(self) -> None:
        """A slave that has room for tasks of the next algorithm was just sent its share, without a round trip.

        The room can depend on the speed of other slaves. The core does not check a slave again when that changes.
        """
        members, takers = self.core.state.members, [worker for worker in self.workers if self.runs_unaddressed(worker)]
        for worker in takers:
            slave = members.slaves[worker.sid]
            able = [each for each in self.core.state.jar.pending.queues if each not in worker.peer.refused]
            waiting = sum(self.core.state.jar.pending.num_queued[each] for each in able)
            if worker.just_sent * len(takers) < waiting:
                room = allocation.room(members, slave, able[0], self.group)
                certain = len(worker.held) < 2 or all(each in slave.pace for each in (*slave.held.load, able[0]))
                fault = f"{worker.sid} has room for {room} more of algorithm {able[0]}, and {waiting} tasks wait"
                assert not (room and certain), fault

    def idle_slaves_get_a_share(self) -> None:
        """For each idle slave, at least one task is recalled from another slave, unless none can be recalled."""
        if self.group is not None or self.core.state.jar.pending.queues:
            return
        able = [worker for worker in self.workers if self.runs_unaddressed(worker) and not worker.peer.refused]
        idle = sum(not worker.held for worker in able)
        recalled = sum(worker.recalled for worker in self.workers)
        victim, _ = allocation.fullest(self.core.state.members, self.now)
        assert victim is None or recalled >= idle, (
            f"{idle} slaves are idle, and no tasks are recalled from {victim.sid}"
        )

    def runs_unaddressed(self, worker: _Worker) -> bool:
        """Return whether it may get tasks that are addressed to no slave."""
        ours = worker.kind is SlaveKind.UNORDERED or (worker.kind is SlaveKind.INTERMINGLE and not worker.freed)
        return ours and not worker.peer.leaving

    def is_stuck(self) -> bool:
        return self.is_waited_for() and not any(worker.held for worker in self.workers)

    def is_waited_for(self) -> bool:
        waits = self.core.waiting is Waiting.FOREVER
        misses = self.core.waiting is Waiting.FOR_A_WHILE and any(self.core.kinds.vacancies())
        return self.core.closing is None and (bool(self.open) or waits or misses)

    @invariant()
    def books_are_in_order(self) -> None:
        if self.sound:
            self.core.check()

    # Calls of the algorithm

    @rule(
        count=st.integers(1, 4),
        algorithm=st.integers(0, 1),
        address=st.sampled_from(["", "", "here", "here", "gone", "nobody"]),
        pick=picks,
        retry=st.booleans(),
        anyway=st.booleans(),
        too_large=st.integers(0, 9).map(lambda number: number == 9),
    )
    def submit(
        self, count: int, algorithm: int, address: str, pick: int, retry: bool, anyway: bool, too_large: bool
    ) -> None:
        gone = [sid for sid in self.sids if not self.is_here(sid)]
        here = self.pick(pick)
        sid = here.sid if address == "here" and here else None
        if address == "gone" and gone:
            sid = gone[pick % len(gone)]
        elif address == "nobody":
            sid = SlaveId("SLAVE-1000")
        policy = TaskPolicy(sid, retry, anyway)
        for _ in range(count):
            number = len(self.jobs) + 1
            payload, _ = CODEC.dumps_value("x" * MAX_CALL_BYTES if too_large else f"payload of {number}")
            job = _Job(number, algorithm, policy, payload)
            self.jobs.append(job)
            self.submissions.add(self.algorithms[algorithm].definition, policy, payload, (), job.tag)
            if too_large:
                self.due[number] = "result"
            elif sid is not None and not anyway and not self.is_here(sid):
                self.due[number] = "unrunnable"
        self.core.submit(self.submissions.take())
        self.core.check()
        self.settle()

    @rule(amount=st.integers(1, 2), kind=kinds)
    def want(self, amount: int, kind: SlaveKind) -> None:
        self.core.obey(AllocateSlaves(amount, kind))
        self.settle()

    @rule(amount=st.integers(1, 2), kind=kinds)
    def want_fewer(self, amount: int, kind: SlaveKind) -> None:
        self.core.obey(DeallocateSlaves(amount, kind))
        self.settle()

    @rule(pick=picks)
    def free(self, pick: int) -> None:
        worker = self.pick(pick)
        if worker is not None:
            worker.freed = worker.freed or worker.kind is not SlaveKind.UNORDERED
            self.core.obey(FreeSlave(worker.sid))
        self.core.obey(FreeSlave(SlaveId("SLAVE-1000")))
        self.settle()

    @rule(waiting=st.sampled_from(Waiting))
    def wait(self, waiting: Waiting) -> None:
        self.core.waiting = waiting
        self.settle()

    @rule(seconds=st.sampled_from([0.01, 0.2, 3.0, 11.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        """Call `decide` at each deadline, as the loop of the master does."""
        until = self.now + seconds
        for _ in range(MOST_DEADLINES):
            due = self.core.next_deadline()
            if due is None or due > until:
                break
            self.now = max(due, self.now + 0.001)
            self.settle()
        else:
            raise AssertionError("the core sets new deadlines without end, and does nothing")
        self.now = max(until, self.now)
        self.settle()

    # Actions of correct agents

    def hello(self) -> _Peer:
        self.names += 1
        peer = _Peer(b"peer %d" % self.names)
        self.receive(peer.name, messages.Hello("m", "g", "host", 1, "3.11", 2))
        if self.core.closing is None:
            self.peers[peer.name] = peer
        return peer

    def get_ready(self, peer: _Peer) -> None:
        if peer.leaving:
            return  # an agent that leaves starts no slave
        peer.started += 1
        self.ready_at = (peer.name, peer.started)
        self.receive(peer.name, messages.SlaveReady(peer.started))
        self.settle()

    @rule(slaves=st.integers(0, 2))
    def agent_comes(self, slaves: int) -> None:
        peer = self.hello()
        self.settle()
        for _ in range(slaves if peer.name in self.peers else 0):
            self.get_ready(peer)

    @precondition(lambda self: self.peers)
    @rule(pick=picks)
    def slave_comes(self, pick: int) -> None:
        self.get_ready(list(self.peers.values())[pick % len(self.peers)])

    @precondition(lambda self: self.workers)
    @rule(pick=picks, count=st.integers(1, 5), seconds=st.sampled_from([0.0001, 0.05, 1.0, 60.0]))
    def results_come(self, pick: int, count: int, seconds: float) -> None:
        worker = self.workers[pick % len(self.workers)]
        self.finish(worker, list(worker.held.values())[:count], seconds)

    def finish(self, worker: _Worker, jobs: list[_Job], seconds: float) -> None:
        payloads = list(map(_payload, jobs))
        group = messages.Results(
            worker.number,
            *messages.spans_of([job.number for job in jobs], [job.attempt for job in jobs]),
            [seconds] * len(jobs),
            [position for position, job in enumerate(jobs) if job.number % 5 == 0],
        )
        for job in jobs:
            del worker.held[job.number]
            self.due[job.number] = "result"
        self.replies.append((worker.peer.name, group))
        self.receive(worker.peer.name, group, (messages.payload(len(jobs), payloads),))
        self.settle()

    @precondition(lambda self: self.workers)
    @rule(pick=picks, started=st.integers(0, 3))
    def slave_dies(self, pick: int, started: int) -> None:
        """In most cases it was running its first task. In some cases it had started none."""
        worker = self.workers[pick % len(self.workers)]
        job = next(iter(worker.held.values()), None) if started else None
        if job is not None:
            job.deaths += not worker.peer.leaving and self.core.closing is None
            job.may_have_started = True
            if job.deaths >= 3 or not job.policy.retry:
                self.due[job.number] = "unrunnable"
        del worker.peer.workers[worker.number]
        running = job.number if job else 0
        self.receive(worker.peer.name, messages.SlaveDied(worker.number, running, "killed by signal 11", NO_WORDS))
        self.settle()

    @precondition(lambda self: any(worker.held for worker in self.workers))
    @rule(pick=picks, times=st.integers(1, 4))
    def a_task_kills_its_slaves(self, pick: int, times: int) -> None:
        """The slaves die one after the other, and the agent starts a new slave each time."""
        busy = [worker for worker in self.workers if worker.held]
        job = next(iter(busy[pick % len(busy)].held.values()))
        for _ in range(times):
            worker = next((worker for worker in self.workers if job.number in worker.held), None)
            if worker is None:
                return
            before = list(worker.held.values())
            self.finish(worker, before[: before.index(job)], 0.05)
            self.slave_dies(self.workers.index(worker), 1)
            self.get_ready(worker.peer)

    @precondition(lambda self: self.workers)
    @rule(pick=picks, keep=st.integers(0, 3))
    def tasks_are_given_back(self, pick: int, keep: int) -> None:
        """The last tasks are returned, recalled or not. Started tasks are not among them."""
        worker = self.workers[pick % len(self.workers)]
        jobs = list(worker.held.values())[keep:]
        for job in jobs:
            del worker.held[job.number]
        worker.recalled = 0
        spans = messages.spans_of([job.number for job in jobs], [job.attempt for job in jobs])
        reply = messages.Revoked(worker.number, *spans)
        self.receive(worker.peer.name, reply)
        self.settle()

    @precondition(lambda self: any(worker.held for worker in self.workers))
    @rule(pick=picks)
    def slave_cannot(self, pick: int) -> None:
        """A slave reports that it cannot run its first task."""
        busy = [worker for worker in self.workers if worker.held]
        worker = busy[pick % len(busy)]
        job = next(iter(worker.held.values()))
        del worker.held[job.number]
        worker.peer.refused[job.algorithm] = None
        reply = messages.AlgorithmFailed(worker.number, job.algorithm, "no module", [job.number], [1], [job.attempt])
        self.receive(worker.peer.name, reply)
        self.settle()

    @precondition(lambda self: self.peers)
    @rule(pick=picks)
    def agent_is_leaving(self, pick: int) -> None:
        peer = list(self.peers.values())[pick % len(self.peers)]
        peer.leaving = True
        self.receive(peer.name, messages.Leaving("evicted"))
        self.settle()

    @precondition(lambda self: self.peers)
    @rule(pick=picks, how=st.sampled_from(["vanish", "goodbye"]))
    def agent_goes(self, pick: int, how: str) -> None:
        peer = list(self.peers.values())[pick % len(self.peers)]
        self.lose(peer)
        if how == "vanish":
            self.handle(Vanished(peer.name, "the connection broke"))
        else:
            self.receive(peer.name, messages.Goodbye("evicted"))
        self.settle()

    def lose(self, peer: _Peer) -> None:
        del self.peers[peer.name]
        for worker in peer.workers.values():
            for job in worker.held.values():
                job.may_have_started = True
                if not job.policy.retry:
                    self.due[job.number] = "unrunnable"

    # Actions of faulty agents

    @precondition(lambda self: self.peers)
    @rule(pick=picks, how=st.sampled_from(["garbage", "hello", "ready", "probe", "shutdown", "algorithm"]))
    def agent_misbehaves(self, pick: int, how: str) -> None:
        """The agent loses its connection, whatever it sent before or sends later."""
        peer = list(self.peers.values())[pick % len(self.peers)]
        worker = next(iter(peer.workers.values()), None)
        self.lose(peer)
        if how == "hello":
            self.receive(peer.name, messages.Hello("m", "g", "host", 1, "3.11", 2))
        elif how == "ready" and worker:
            self.receive(peer.name, messages.SlaveReady(worker.number))
        elif how == "algorithm" and worker:
            self.receive(peer.name, messages.AlgorithmFailed(worker.number, 7, "", [], [], []))
        elif how == "shutdown":
            self.receive(peer.name, messages.Shutdown(True, 1.0))
        elif how == "probe":
            self.receive(peer.name, messages.Probe())
        self.handle(Garbage(peer.name, "here", "nonsense"))
        if worker and worker.held:
            job = next(iter(worker.held.values()))
            group = messages.Results(worker.number, [job.number], [1], [job.attempt], [0.1], [])
            self.receive(peer.name, group, (messages.payload(1, [b"x"]),))
        self.settle()

    @rule(how=st.sampled_from(["member", "generation", "key", "nonsense", "results"]), vanishes=st.booleans())
    def stranger_comes(self, how: str, vanishes: bool) -> None:
        self.names += 1
        name = b"stranger %d" % self.names
        if how in ("member", "generation"):
            member, generation = ("other", "g") if how == "member" else ("m", "old")
            self.receive(name, messages.Hello(member, generation, "host", 1, "3.11", 1))
            self.receive(name, messages.SlaveReady(1))
        elif how == "key":
            self.handle(Stranger("there", "no key of ours"))
        elif how == "nonsense":
            self.handle(Garbage(name, "there", "nonsense"))
        else:
            self.receive(name, messages.Results(1, [1], [1], [1], [0.1], []), (messages.payload(1, [b"x"]),))
        if vanishes:
            self.handle(Vanished(name, "gone"))
        self.settle()

    @precondition(lambda self: self.replies)
    @rule(pick=picks)
    def results_come_again(self, pick: int) -> None:
        """They have counted already, and do not count again."""
        name, group = self.replies[pick % len(self.replies)]
        if name in self.peers:
            failure = CODEC.dumps_failure(ValueError("a lie"))
            self.receive(name, group, (messages.payload(sum(group.counts), [failure] * sum(group.counts)),))
            self.settle()

    @precondition(lambda self: self.workers and self.jobs)
    @rule(
        pick=picks,
        task=picks,
        off=st.integers(-2, 1),
        kind=st.sampled_from(["results", "revoked", "cannot", "nobody"]),
    )
    def what_does_not_match_comes(self, pick: int, task: int, off: int, kind: str) -> None:
        """A report about another attempt, or about a task that the slave does not hold, is ignored."""
        worker = self.workers[pick % len(self.workers)]
        job = self.jobs[task % len(self.jobs)]
        held = list(worker.held.values())
        if held and task % 2:
            job = held[task % len(held)]
        number, attempt, slave = job.number, job.attempt + off, worker.number
        if kind == "nobody":
            number, slave = number + 1000 * (task % 2), slave + 1000
        elif job.number in worker.held and off == 0:
            attempt -= 1
        if kind == "revoked":
            worker.recalled = 0
            self.receive(worker.peer.name, messages.Revoked(slave, [number], [1], [attempt]))
        elif kind == "cannot":
            worker.peer.refused[job.algorithm] = None
            self.receive(
                worker.peer.name, messages.AlgorithmFailed(slave, job.algorithm, "no", [number], [1], [attempt])
            )
        else:
            self.receive(
                worker.peer.name,
                messages.Results(slave, [number], [1], [attempt], [0.1], []),
                (messages.payload(1, [b"x"]),),
            )
            self.receive(worker.peer.name, messages.SlaveDied(worker.number + 1000, number, "exit code 1", NO_WORDS))
        self.settle()

    # The end

    def teardown(self) -> None:
        """With one correct agent and all slaves at work, every task ends."""
        if not self.sound or self.core.closing is not None:
            return
        for kind in SlaveKind:
            self.core.obey(DeallocateSlaves(1000, kind))
        for peer in [peer for peer in self.peers.values() if peer.leaving]:
            self.lose(peer)
            self.receive(peer.name, messages.Goodbye("evicted"))
            self.settle()
        correct = self.hello()
        for _ in range(2):
            self.get_ready(correct)
        for _ in range(2 * len(self.jobs) + 2):
            for worker in self.workers:
                self.finish(worker, list(worker.held.values()), 0.01)
        assert not self.open, f"these never ended: {[job.number for job in self.open]}"
        self.core.waiting = Waiting.NOT
        self.time_passes(1000.0)
        assert not self.notices, "there is a notice although all tasks have ended"


class _EndingMasterMachine(_MasterMachine):
    """The same machine, but the computation is shut down at some time."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    @precondition(lambda self: self.core.closing is None)
    @rule(finished=st.booleans())
    def shut_down(self, finished: bool) -> None:
        self.steps += 1
        if self.steps < 2:
            return  # do not shut down at the first step
        self.core.obey(ShutDown(finished, 1.0))
        actions = self.core.take_actions()
        notified = [send.peer for send in actions.sends if send.message == messages.Shutdown(finished, 1.0)]
        assert notified == list(self.peers), "an agent did not get the shutdown"
        self.read(actions)
        self.settle()

    def read_group(self, peer: _Peer, group: messages.Tasks, frames: Sequence[Any]) -> None:
        assert self.core.closing is None, "tasks were sent after the shutdown"
        super().read_group(peer, group, frames)

    def teardown(self) -> None:
        """Results during the shutdown still count, and all agents leave."""
        super().teardown()
        if not self.sound or self.core.closing is None:
            return
        for position, worker in enumerate(self.workers):
            self.finish(worker, list(worker.held.values()), 0.01)
            self.submit(1, 0, "here", position, retry=True, anyway=True, too_large=False)
        self.time_passes(100.0)
        assert not self.notices, "there is a notice during the shutdown"
        for number in range(len(self.peers)):
            self.agent_goes(0, "goodbye" if number % 2 else "vanish")
        assert not self.core.state.members.slaves


def _run(machine: type[RuleBasedStateMachine], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=50))


def test_each_task_ends_once_and_runs_only_where_its_policy_allows() -> None:
    """This holds for correct and faulty agents and any order of events."""
    _run(_MasterMachine, 200)


def test_nothing_is_sent_after_the_shutdown_and_late_results_count() -> None:
    """This holds with a shutdown at any time."""
    _run(_EndingMasterMachine, 60)
