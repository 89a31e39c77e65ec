"""The master's core with random events in random order, compared with a small model.

Hypothesis plays the master algorithm and all agents: correct agents, and agents that send wrong messages. The model
knows which slave holds which attempt of which task, and which actions of the core this allows. It learns this only from
the actions of the core. It reads the state of the core only to compare it with its own state. At the end of each run, a
correct agent connects, and every task must have ended exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from msgspec.structs import replace
from tests.spans import MAX, MIN, ids_of, spans_in

from mwpy._core.master import dispatch
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.spans import LOST_AGENTS_ALLOWED, LOST_ALONE_ALLOWED
from mwpy._core.master.state import (
    Actions,
    AllocateSlaves,
    CancelTasks,
    DeallocateSlaves,
    Event,
    FreeSlave,
    Garbage,
    MasterSettings,
    Received,
    Running,
    Send,
    ShutDown,
    Stranger,
    Vanished,
    Waiting,
)
from mwpy._core.master.submissions import Submissions
from mwpy._transport.codec import Codec, split_resumed
from mwpy._values import groups, messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.errors import TaskCancelled
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messages import LoadFailure, check
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import SlaveKind

WORKED_S = 5.0
"""When slaves have worked for this many seconds, the work counts as progress."""

PAUSE_MAX_S = 3600.0
"""A pause grows up to this many seconds."""

FIRST_NOTICE_S = 10.0
"""When nothing can progress for this many seconds, there must be a notice."""

MOST_DEADLINES = 100
"""How many deadlines the core may have in one rule `time_passes`, in which nothing else happens."""

MAX_CALL_BYTES = 100

picks = st.integers(0, 60)
"""An index into a list: it is used modulo the length of the list."""

kinds = st.sampled_from(list(SlaveKind))


@define(eq=False)
class _Task:
    """What the model knows of a task."""

    number: int
    algorithm: int
    policy: TaskPolicy
    payload: bytes
    tag: object = field(factory=object)
    attempt: int = 0
    """How often it was sent to a slave."""
    answer: int = 0
    """The attempt that has answered; 0 before."""
    deaths: int = 0
    lost: int = 0
    """How many agents vanished without notice while it was at them."""
    due_at: float = 0.0
    """When its last pause ends."""
    delayed: bool = False
    """Whether it pauses before its next attempt."""
    may_have_started: bool = False
    """A slave that held it was lost, so it may have been running there."""
    outcome: str = ""
    """How it ended: "result", "unrunnable", "cancelled" or "discarded"; empty before."""
    state: tuple[bytes, ...] = ()
    """The state that it left; empty if it left none."""
    cancelling: bool = False
    """Whether it was cancelled while a slave held it, and may finish there."""


@define(eq=False)
class _Slave:
    """What the model knows of a slave."""

    agent: _Agent
    number: int
    sid: SlaveId
    kind: SlaveKind
    held: dict[int, _Task] = field(factory=dict)
    attempts: dict[int, int] = field(factory=dict)
    """The last attempt of each task that was sent to it."""
    freed: bool = False
    stopping: bool = False
    """Whether it could not load an algorithm, and its agent replaces it."""
    refused: dict[int, None] = field(factory=dict)
    """The algorithms that it alone cannot run."""
    just_sent: int = 0
    """The number of tasks that it was sent in the last iteration."""
    gave_back: bool = False
    """Whether it gave tasks back since its last result. Then it is not sent the same tasks again."""
    asked_back: int = 0
    """The number of tasks that it was asked to give back. It is 0 after the answer."""

    def can_run(self, algorithm: int) -> bool:
        """Whether it can load an algorithm."""
        return algorithm not in self.refused and algorithm not in self.agent.refused


@define(eq=False)
class _Agent:
    """What the model knows of an accepted agent."""

    name: bytes
    slaves: dict[int, _Slave] = field(factory=dict)
    known: dict[int, None] = field(factory=dict)
    """The algorithms that were sent to it."""
    refused: dict[int, None] = field(factory=dict)
    """The algorithms that its slaves cannot run."""
    started: int = 0
    """The number of slaves that it has started."""
    leaving: bool = False
    is_proven: bool = False
    """Whether a task has ended there, so that its end says something about the task that it ran."""


CODEC = Codec()


def _payload(task: _Task, attempt: int) -> bytes:
    """The result of an attempt of a task: the numbers of both. Every fifth task fails."""
    if task.number % 5 == 0:
        return CODEC.dumps_failure(ValueError("wrong"))
    payload, _ = CODEC.dumps_value(f"{attempt} of {task.number}")
    return payload


def _named(slave: _Slave, tasks: Sequence[_Task]) -> tuple[list[int], list[int], list[int]]:
    """How a message of a slave names tasks."""
    return groups.spans_of([task.number for task in tasks], [slave.attempts[task.number] for task in tasks])


class _MasterMachine(RuleBasedStateMachine):
    """A master, its algorithm and its agents, which take random actions."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tasks: list[_Task] = []
        self.agents: dict[bytes, _Agent] = {}
        self.names = 0
        self.sids: dict[SlaveId, _Slave] = {}
        """All slaves, including those that are gone."""
        self.replies: list[tuple[bytes, messages.Results]] = []
        self.due: dict[int, str] = {}
        """The outcome that each of these tasks must have after the last event."""
        self.cancels: dict[bytes, tuple[list[int], bool]] = {}
        """What each of these agents must be sent now: the tasks to cancel, and whether to kill those that run."""
        self.announced: dict[SlaveId, None] = {}
        """The ordered and intermingle slaves that the algorithm knows."""
        self.was_stuck = False
        """Whether nothing could progress after the last iteration."""
        self.looked_at = 0.0
        """The last time at which nothing could progress, or the time at which progress became possible again."""
        self.stuck_s = 0.0
        """The seconds in which nothing could progress, since the last progress."""
        self.progressed = False
        self.silence_notices = 0
        """The number of notices that nothing progresses, since the last progress."""
        self.sound = False
        """False while an event is handled. After a failed check it stays False, and the other checks are skipped."""

    @initialize(group=st.sampled_from([None, None, 1, 3]))
    def begin(self, group: int | None) -> None:
        settings = MasterSettings("m", "g", task_group=group, max_call_bytes=MAX_CALL_BYTES)
        self.core = MasterCore(settings)
        self.submissions = Submissions(self.core.state.jar)
        self.algorithms = [Defined(MAX), Defined(MIN)]
        for algorithm in self.algorithms:
            self.core.definitions.add(algorithm)
        self.group = group
        self.sound = True

    # What the model derives from its state

    @property
    def slaves(self) -> list[_Slave]:
        return [slave for agent in self.agents.values() for slave in agent.slaves.values()]

    @property
    def open(self) -> list[_Task]:
        return [task for task in self.tasks if not task.outcome]

    @property
    def pending(self) -> list[_Task]:
        """The tasks that wait to be sent to a slave."""
        held = {number for slave in self.slaves for number in slave.held}
        return [task for task in self.open if task.number not in held and not task.delayed]

    def others(self, task: _Task, slave: _Slave) -> list[_Slave]:
        """The other slaves that hold a task."""
        return [other for other in self.slaves if task.number in other.held and other is not slave]

    def is_connected(self, sid: SlaveId | None) -> bool:
        return any(slave.sid == sid for slave in self.slaves)

    def pick(self, number: int) -> _Slave | None:
        slaves = self.slaves
        return slaves[number % len(slaves)] if slaves else None

    def may_run_elsewhere(self, task: _Task) -> bool:
        """Whether the slave that a task is addressed to is gone or freed, or cannot run the algorithm."""
        slave = self.sids.get(task.policy.sid or SlaveId(""))
        if slave is None or not self.is_connected(slave.sid):
            return True
        return slave.freed or not slave.can_run(task.algorithm)

    # Events and iterations

    def receive(self, sender: bytes, message: messages.Message, frames: tuple[bytes, ...] = ()) -> None:
        check(message, frames)
        self.handle(Received(sender, "here", message, frames))

    def handle(self, event: Event) -> None:
        self.sound = False
        self.core.handle(event, self.now)
        self.core.check()

    def iterate(self) -> None:
        """Run one iteration of the master, and check all its actions."""
        self.sound = False
        for slave in self.slaves:
            slave.just_sent = 0
        if self.core.closing is None:
            for task in self.tasks:
                task.delayed = task.delayed and self.now < task.due_at
        self.core.decide(self.now)
        self.core.check()
        self.check_actions(self.core.take_actions())
        self.check_agreement()
        self.check_counts()
        self.sound = True

    def check_actions(self, actions: Actions) -> None:
        for record in actions.records:
            self.check_record(record)
        for send in actions.sends:
            self.check_send(send)
        assert not self.cancels, f"these agents were not sent what ends: {self.cancels}"
        for result in actions.results:
            task = self.tasks[result.task_id - 1]
            assert result.tag is task.tag
            if task.number in self.due and self.due[task.number] == "cancelled":
                assert isinstance(result.error, TaskCancelled)
                self.end(task, self.due.pop(task.number))
                continue
            assert self.due.pop(task.number, "") == "result", f"task {task.number} has a result that no slave sent"
            assert result.attempts == task.attempt, f"task {task.number} was sent {task.attempt} times"
            if len(task.payload) <= MAX_CALL_BYTES:
                expected = f"{task.answer} of {task.number}"
                assert result.error is not None if task.number % 5 == 0 else result.value == expected
            self.end(task, "result")
        for unrunnable in actions.unrunnable:
            task = self.tasks[unrunnable.task_id - 1]
            assert unrunnable.tag is task.tag
            causes = [death.cause for death in unrunnable.deaths]
            assert sum(death.is_charged for death in unrunnable.deaths) == task.deaths
            assert causes.count(Cause.AGENT_LOST) == task.lost
            assert self.may_be_given_up(task), (
                f"task {task.number} was given up without a valid reason: {unrunnable.reason}"
            )
            self.due.pop(task.number, None)
            self.end(task, "unrunnable")
        assert not self.due, f"these tasks should have ended: {self.due}"
        self.progressed = self.progressed or bool(actions.results or actions.unrunnable or actions.connected)
        for sid in actions.connected:
            assert sid not in self.announced, f"{sid} connected twice"
            self.announced[sid] = None
        for sid in actions.disconnected:
            assert not self.is_connected(sid), f"{sid} was reported as gone but is connected"
            del self.announced[sid]

    def end(self, task: _Task, outcome: str) -> None:
        assert not task.outcome, f"task {task.number} ended twice: {task.outcome}, {outcome}"
        assert not any(task.number in slave.held for slave in self.slaves), (
            f"task {task.number} ended while a slave holds it"
        )
        task.outcome = outcome

    def may_be_given_up(self, task: _Task) -> bool:
        if task.cancelling:
            return False
        if task.deaths >= task.policy.attempts_max or task.lost > LOST_AGENTS_ALLOWED:
            return True
        if task.may_have_started and not task.policy.retry:
            return True
        return task.policy.sid is not None and not task.policy.do_it_anyway and self.may_run_elsewhere(task)

    def check_record(self, record: records.Record) -> None:
        match record:
            case records.SlaveConnected(sid, _, _, kind):
                assert sid not in self.sids, f"the id {sid} was assigned twice"
                agent = self.agents[self.ready_at[0]]
                slave = _Slave(agent, self.ready_at[1], sid, kind)
                self.sids[sid] = agent.slaves[slave.number] = slave
            case records.SlaveChanged(sid, _, kind):
                slave = self.sids[sid]
                if slave.kind is not SlaveKind.UNORDERED and kind is SlaveKind.UNORDERED:
                    assert slave.freed, f"{sid} became unordered but was not freed"
                    assert not slave.held, f"{sid} became unordered before it had finished its tasks"
                    self.announced.pop(sid, None)
                slave.kind = kind
            case records.Notice(text) if text.startswith("nothing has progressed"):
                self.silence_notices += 1
                assert self.is_stuck(), f"there was a notice, but progress is possible: {text}"
                assert self.pending or not self.open, f"tasks pause, but there was a notice: {text}"
            case records.Notice(text) if "pause before their next attempt" in text:
                self.silence_notices += 1
                due_s = min(task.due_at for task in self.open) - self.now
                assert text.endswith(f" in {due_s:.0f} s"), f"the next attempt starts in {due_s} s: {text}"
                assert not self.pending, f"tasks wait to be sent, but there was a notice: {text}"

    def check_send(self, send: Send) -> None:
        if isinstance(send.message, messages.Refused):
            assert send.peer not in self.agents, f"{send.peer!r} is an accepted agent, but was refused"
            return
        if send.peer not in self.agents:
            return  # the agent left before this message was sent
        agent = self.agents[send.peer]
        check(send.message, send.frames)
        match send.message:
            case messages.Algorithms(definitions):
                agent.known.update((definition.number, None) for definition in definitions)
            case messages.Tasks():
                self.check_tasks(agent, send.message, send.frames)
            case messages.SlaveNamed(number, sid):
                assert agent.slaves[number].sid == sid
            case messages.Cancel(firsts, counts, kill):
                ids = [first + at for first, count in zip(firsts, counts, strict=True) for at in range(count)]
                assert self.cancels.pop(send.peer, None) == (ids, kill), "an agent got a wrong cancellation"
            case messages.Revoke(number, count):
                slave = agent.slaves[number]
                assert 0 < count <= len(slave.held), "the slave holds fewer tasks than it must give back"
                assert not slave.asked_back, f"{slave.sid} was asked to give tasks back again before it answered"
                slave.asked_back = count

    def check_tasks(self, agent: _Agent, group: messages.Tasks, frames: Sequence[Any]) -> None:
        assert group.tasks, "a message without tasks was sent"
        assert self.group is None or sum(group.counts) <= self.group, "the message has more tasks than a task group"
        slave = agent.slaves[group.slave]
        calls = zip(*groups.entries(group, frames), strict=True)
        numbers = chain.from_iterable(map(repeat, group.algorithms, group.counts))
        for (task_id, attempt), number, call in zip(groups.each_task(group), numbers, calls, strict=True):
            task = self.tasks[task_id - 1]
            payload, _, state = split_resumed(*call)
            assert (*state,) == task.state, f"task {task_id} was sent with the state {state}, not {task.state}"
            assert CODEC.dumps_value(payload)[0] == task.payload, (
                f"task {task_id} was sent with the arguments of another task"
            )
            assert number == task.algorithm, f"task {task_id} was sent with another algorithm"
            assert number in agent.known, f"task {task_id} was sent before its algorithm"
            self.check_send_is_allowed(task, slave)
            task.attempt += 1
            assert attempt == task.attempt, f"attempt {attempt} of task {task_id} is not the next attempt"
            slave.held[task_id] = task
            slave.attempts[task_id] = attempt
            slave.just_sent += 1

    def check_send_is_allowed(self, task: _Task, slave: _Slave) -> None:
        sending = f"task {task.number} was sent to {slave.sid}"
        assert not task.outcome, f"{sending}, but it had ended before: {task.outcome}"
        assert not task.cancelling, f"{sending}, but it is cancelled"
        assert not task.delayed, f"{sending} at {self.now}, but it pauses until {task.due_at}"
        for other in self.others(task, slave):
            self.check_second_attempt_is_allowed(task, slave, other)
        assert task.policy.retry or not task.may_have_started, f"{sending} again despite retry=False"
        assert task.deaths < task.policy.attempts_max, f"{sending} after it had killed {task.deaths} slaves"
        beside = [other for each in slave.agent.slaves.values() for other in each.held.values()]
        alone = [other.number for other in (task, *beside) if other.lost >= LOST_AGENTS_ALLOWED]
        assert not (alone and beside), f"{sending}, but {alone} must run alone on an agent"
        mine = task.policy.sid == slave.sid
        if task.policy.sid is not None and not mine:
            assert task.policy.do_it_anyway, f"{sending}, but it is addressed to {task.policy.sid}"
            assert self.may_run_elsewhere(task), f"{sending}, but {task.policy.sid} can run it"
        assert mine or slave.kind is not SlaveKind.ORDERED, (
            f"{sending}, which is ordered, but the task is not addressed to it"
        )
        assert slave.can_run(task.algorithm), f"{sending}, which cannot run it"
        assert not slave.agent.leaving, f"{sending}, which is leaving"
        assert not slave.stopping, f"{sending}, which is replaced"
        if mine and task.attempt == 0:
            overtaken = [other.number for other in self.tasks[: task.number - 1] if self.is_before(other, task)]
            assert not overtaken, f"{sending} before the tasks {overtaken}, which were submitted earlier"

    def check_second_attempt_is_allowed(self, task: _Task, slave: _Slave, other: _Slave) -> None:
        """Another slave holds the task."""
        sending = f"task {task.number} was sent to {slave.sid}, and {other.sid} holds it"
        assert task.policy.speculate, f"{sending}, and nobody wanted that"
        assert task.policy.retry, f"{sending}, but it may only run once"
        assert len(self.others(task, slave)) == 1, f"{sending} as others do"
        assert other.agent is not slave.agent, f"{sending} at the same agent"
        assert next(iter(other.held.values())) is task, f"{sending}, but cannot run it yet"
        assert not slave.held, f"{sending}, but the first was busy"
        assert task.deaths + 1 < task.policy.attempts_max, f"{sending}, but it may lose no attempt"
        assert task.lost + 1 < LOST_AGENTS_ALLOWED, f"{sending}, but it will soon have to run alone"
        waiting = [each.number for each in self.pending if each.policy.sid is None and each.number not in self.due]
        assert not waiting, f"{sending}, but the tasks {waiting} wait"

    def is_before(self, other: _Task, task: _Task) -> bool:
        """Whether an earlier task with the same address was never sent, but must be sent to that slave."""
        waits = other.policy.sid == task.policy.sid and not (other.outcome or other.attempt or other.number in self.due)
        return waits and not self.may_run_elsewhere(other)

    def check_agreement(self) -> None:
        """Check that model and core agree, that no slave is idle without need, and that silence causes a notice."""
        assert sorted({*ids_of(spans_in(self.core))}) == [task.number for task in self.open], (
            "a task was lost, or was kept after its end"
        )
        outstanding = {slave.sid: ids_of(slave.held.spans) for slave in self.core.state.members.slaves.values()}
        assert outstanding == {slave.sid: list(slave.held) for slave in self.slaves}
        pending = self.pending
        assert sum(self.core.state.jar.pending.counts.values()) == len(pending)
        if self.core.closing is None:
            self.check_no_slave_is_idle(pending)
            self.check_shares()
            self.check_taking_back()
        self.check_silence()

    def check_counts(self) -> None:
        """Check that the master algorithm sees the same number of pending and runnable tasks as the model."""
        submissions = self.submissions
        submissions.check()
        pending = self.pending
        for number, algorithm in enumerate(self.algorithms):
            assert submissions.pending(algorithm) == sum(task.algorithm == number for task in pending)
        assert (submissions.pending(), submissions.runnable()) == (len(pending), len(self.open))

    def check_silence(self) -> None:
        """Check that there was a notice if nothing could progress for `FIRST_NOTICE_S` since the last progress.

        Times in which slaves worked for a short while do not count.
        """
        if self.was_stuck:
            self.stuck_s += self.now - self.looked_at
        elif self.now >= self.looked_at + WORKED_S:
            self.progressed = True
        if self.progressed or not self.is_waited_for():
            self.stuck_s, self.silence_notices = 0.0, 0
        self.progressed = False
        if self.was_stuck != self.is_stuck() or self.was_stuck:
            self.looked_at = self.now
        self.was_stuck = self.is_stuck()
        assert self.silence_notices or self.stuck_s < FIRST_NOTICE_S, (
            f"nothing could progress for {self.stuck_s} s, and there was no notice"
        )

    def check_no_slave_is_idle(self, pending: list[_Task]) -> None:
        """Check that no slave is idle while it may run a pending task. Only a suspect keeps its agent's slaves idle,
        and may wait for an agent that has finished a task.

        A slave that was asked for tasks gets no addressed task before it answers.
        """
        suspects = [task for task in pending if task.lost >= LOST_AGENTS_ALLOWED]
        for slave in self.slaves:
            if self.is_reserved(slave):
                here = [task for each in slave.agent.slaves.values() for task in each.held.values()]
                assert here, f"nothing runs beside {slave.sid}, so the first suspect should run there"
                assert suspects or any(task.lost >= LOST_AGENTS_ALLOWED for task in here), "reserved for nothing"
                continue
            beside = any(each.held for each in slave.agent.slaves.values())
            for task in [] if slave.held or slave.agent.leaving or slave.stopping else pending:
                if task in suspects and (beside or not slave.agent.is_proven):
                    continue
                freed = slave.freed and slave.kind is SlaveKind.ORDERED
                mine = task.policy.sid == slave.sid and not (freed or slave.asked_back)
                unaddressed = task.policy.sid is None or not self.is_connected(task.policy.sid)
                allowed = slave.can_run(task.algorithm) and (
                    mine or (unaddressed and slave.kind is not SlaveKind.ORDERED)
                )
                assert not allowed, f"{slave.sid} is idle while task {task.number} waits"

    def check_shares(self) -> None:
        """Check that each slave has its share of the next algorithm, so that it does not wait for a round trip.

        The room at a slave may depend on the pace of other slaves, and the core does not compute it again when that
        changes. So a slave that holds two or more tasks is checked only if its own pace is known.
        """
        members, takers = self.core.state.members, [slave for slave in self.slaves if self.runs_unaddressed(slave)]
        for slave in takers:
            if slave.gave_back:
                continue
            known = members.slaves[slave.sid]
            queues = {queue[0].algorithm.number: queue for queue in self.core.state.jar.pending.queues.values()}
            able = [each for each in queues if slave.can_run(each)]
            waiting = sum(span.count for each in able for span in queues[each])
            if slave.just_sent * len(takers) < waiting:
                room = dispatch.room(members, known, able[0], self.group)
                certain = len(slave.held) < 2 or all(each in known.pace for each in (*known.held.load, able[0]))
                assert not (room and certain), (
                    f"{slave.sid} has room for {room} more tasks of algorithm {able[0]}, and {waiting} tasks wait"
                )

    def check_taking_back(self) -> None:
        """Check that at least one task is asked back for each idle slave, if a slave has tasks to give back."""
        if self.group is not None or self.core.state.jar.pending.queues:
            return
        free = [slave for slave in self.slaves if self.runs_unaddressed(slave)]
        able = [slave for slave in free if not slave.refused and not slave.agent.refused]
        idle = sum(not slave.held for slave in able)
        asked_back = sum(slave.asked_back for slave in self.slaves)
        victim, _ = dispatch.fullest(self.core.state.members, self.now)
        assert victim is None or asked_back >= idle, (
            f"{idle} slaves are idle, and {victim.sid} has tasks for them but is not asked to give any back"
        )

    def runs_unaddressed(self, slave: _Slave) -> bool:
        """Whether a slave may be sent tasks that are addressed to no slave."""
        ours = slave.kind is SlaveKind.UNORDERED or (slave.kind is SlaveKind.INTERMINGLE and not slave.freed)
        return ours and not slave.agent.leaving and not slave.stopping and not self.is_reserved(slave)

    def is_reserved(self, slave: _Slave) -> bool:
        """Whether the agent of a slave is reserved for a suspect."""
        return self.core.state.members.slaves[slave.sid].agent.reserved

    def is_stuck(self) -> bool:
        """Whether nothing can progress: no slave holds a task, but tasks are open or the algorithm waits."""
        return self.is_waited_for() and not any(slave.held for slave in self.slaves)

    def is_waited_for(self) -> bool:
        """Whether tasks are open, or the master algorithm waits in `mw.loop()` for something."""
        waits = self.core.waiting is Waiting.FOREVER
        misses = self.core.waiting is Waiting.FOR_A_WHILE and any(self.core.kinds.vacancies())
        return self.core.closing is None and (bool(self.open) or waits or misses)

    @invariant()
    def core_is_consistent(self) -> None:
        if self.sound:
            self.core.check()

    # Actions of the master algorithm

    @rule(
        count=st.integers(1, 4),
        algorithm=st.integers(0, 1),
        address=st.sampled_from(["", "", "here", "here", "gone", "unknown"]),
        pick=picks,
        retry=st.booleans(),
        anyway=st.booleans(),
        attempts=st.integers(1, 3),
        after=st.sampled_from([0.0, 0.0, 0.1, 5.0, 3000.0]),
        errors=st.booleans(),
        speculate=st.booleans(),
        memory=st.sampled_from([None, 1000]),
        too_large=st.integers(0, 9).map(lambda number: number == 9),
    )
    def submit(
        self,
        count: int,
        algorithm: int,
        address: str,
        pick: int,
        retry: bool,
        anyway: bool,
        attempts: int,
        after: float,
        errors: bool,
        speculate: bool,
        memory: int | None,
        too_large: bool,
    ) -> None:
        gone = [sid for sid in self.sids if not self.is_connected(sid)]
        here = self.pick(pick)
        sid = here.sid if address == "here" and here else None
        if address == "gone" and gone:
            sid = gone[pick % len(gone)]
        elif address == "unknown":
            sid = SlaveId("SLAVE-1000")
        policy = TaskPolicy(sid, retry, anyway, attempts_max=attempts, after=after, memory_max=memory)
        policy = replace(policy, retries_errors=errors and retry, speculate=speculate and retry)
        for _ in range(count):
            number = len(self.tasks) + 1
            payload, _ = CODEC.dumps_value("x" * MAX_CALL_BYTES if too_large else f"payload of {number}")
            task = _Task(number, algorithm, policy, payload)
            self.tasks.append(task)
            self.submissions.add(self.algorithms[algorithm], policy, payload, (), task.tag)
            if too_large:
                self.due[number] = "result"
            elif sid is not None and not anyway and not self.is_connected(sid):
                self.due[number] = "unrunnable"
        self.core.submit(self.submissions.take())
        self.core.check()
        self.iterate()

    @rule(amount=st.integers(1, 2), kind=kinds)
    def allocate_slaves(self, amount: int, kind: SlaveKind) -> None:
        self.core.obey(AllocateSlaves(amount, kind))
        self.iterate()

    @rule(amount=st.integers(1, 2), kind=kinds)
    def deallocate_slaves(self, amount: int, kind: SlaveKind) -> None:
        self.core.obey(DeallocateSlaves(amount, kind))
        self.iterate()

    @rule(pick=picks)
    def free_slave(self, pick: int) -> None:
        slave = self.pick(pick)
        if slave is not None:
            slave.freed = slave.freed or slave.kind is not SlaveKind.UNORDERED
            self.core.obey(FreeSlave(slave.sid))
        self.core.obey(FreeSlave(SlaveId("SLAVE-1000")))
        self.iterate()

    @precondition(lambda self: self.tasks)
    @rule(chosen=st.lists(picks, min_size=1, max_size=6, unique=True), running=st.sampled_from(Running))
    def cancel(self, chosen: list[int], running: Running) -> None:
        """Cancel tasks in any state. There is an answer, and one message to each agent that holds some of them."""
        numbers = sorted({1 + pick % len(self.tasks) for pick in chosen})
        tasks = [task for task in self.open if task.number in numbers]
        for agent in self.agents.values():
            held = [task for slave in agent.slaves.values() for task in slave.held.values() if task in tasks]
            if held:
                self.cancels[agent.name] = sorted(task.number for task in held), running is not Running.FINISH
        for task in tasks:
            holders = [slave for slave in self.slaves if task.number in slave.held]
            if holders and running is Running.FINISH:
                task.cancelling = True
                continue
            for slave in holders:
                del slave.held[task.number]
            if running is Running.DISCARD:
                task.outcome = "discarded"
            else:
                self.due[task.number] = "cancelled"
        command = CancelTasks([(number, 1) for number in [*numbers, 1000]], running)
        self.core.obey(command)
        self.core.check()
        assert self.core.state.actions.cancelled == [(command, [task.number for task in tasks])]
        self.iterate()

    @rule(waiting=st.sampled_from(Waiting))
    def algorithm_waits(self, waiting: Waiting) -> None:
        self.core.waiting = waiting
        self.iterate()

    @rule(seconds=st.sampled_from([0.01, 0.2, 3.0, 11.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        """Let time pass. As in a real master, the core decides at each of its deadlines, and at the end."""
        until = self.now + seconds
        for _ in range(MOST_DEADLINES):
            due = self.core.next_deadline()
            if due is None or due > until:
                break
            self.now = max(due, self.now + 0.001)
            self.iterate()
        else:
            raise AssertionError("the core sets one deadline after another, and does nothing")
        self.now = max(until, self.now)
        self.iterate()

    # Actions of correct agents

    def connect_agent(self) -> _Agent:
        self.names += 1
        agent = _Agent(b"agent %d" % self.names)
        self.receive(agent.name, messages.Hello("m", "g", "host", 1, "3.11", 1000))
        if self.core.closing is None:
            self.agents[agent.name] = agent
        return agent

    def slave_becomes_ready(self, agent: _Agent) -> None:
        if agent.leaving:
            return  # a leaving agent starts no slave
        agent.started += 1
        self.ready_at = (agent.name, agent.started)
        self.receive(agent.name, messages.SlaveReady(agent.started))
        self.iterate()

    @rule(slaves=st.integers(0, 2))
    def agent_connects(self, slaves: int) -> None:
        agent = self.connect_agent()
        self.iterate()
        for _ in range(slaves if agent.name in self.agents else 0):
            self.slave_becomes_ready(agent)

    @precondition(lambda self: self.agents)
    @rule(pick=picks)
    def slave_is_started(self, pick: int) -> None:
        self.slave_becomes_ready(list(self.agents.values())[pick % len(self.agents)])

    @precondition(lambda self: self.slaves)
    @rule(
        pick=picks,
        count=st.integers(1, 5),
        seconds=st.sampled_from([0.0001, 0.05, 1.0, 60.0]),
        again=st.booleans(),
    )
    def results_arrive(self, pick: int, count: int, seconds: float, again: bool) -> None:
        """Slaves say of all failures that the tasks are tried again, or of none. Not every policy has allowed it."""
        slave = self.slaves[pick % len(self.slaves)]
        self.finish(slave, list(slave.held.values())[:count], seconds, again)

    def finish(self, slave: _Slave, tasks: list[_Task], seconds: float, again: bool = False) -> None:
        """A slave sends the results of tasks that it holds."""
        failed = [position for position, task in enumerate(tasks) if task.number % 5 == 0]
        payloads = [_payload(task, slave.attempts[task.number]) for task in tasks]
        group = messages.Results(
            slave.number,
            *_named(slave, tasks),
            [seconds] * len(tasks),
            failed,
            again=failed if again else [],
        )
        for position, task in enumerate(tasks):
            del slave.held[task.number]
            retries = position in group.again and task.policy.retries_errors and not task.cancelling
            if retries and task.deaths + 1 < task.policy.attempts_max:
                task.deaths += 1
                if not self.others(task, slave):
                    self.pause(task)
            else:
                self.due[task.number], task.answer = "result", slave.attempts[task.number]
                self.end_others(task, slave)
        slave.gave_back = slave.gave_back and not tasks
        slave.agent.is_proven = slave.agent.is_proven or bool(tasks)
        self.replies.append((slave.agent.name, group))
        self.receive(slave.agent.name, group, (groups.payload(len(tasks), payloads),))
        self.iterate()

    def end_others(self, task: _Task, slave: _Slave) -> None:
        """A task has an answer. Its other attempt must be killed, and nobody is charged."""
        for other in self.others(task, slave):
            del other.held[task.number]
            killed, _ = self.cancels.setdefault(other.agent.name, ([], True))
            killed.append(task.number)
            killed.sort()

    @precondition(lambda self: any(slave.held for slave in self.slaves))
    @rule(pick=picks, place=st.integers(0, 3), frames=st.lists(st.binary(max_size=3), min_size=1, max_size=3))
    def task_leaves_a_state(self, pick: int, place: int, frames: list[bytes]) -> None:
        """Usually the first task of a slave leaves it, but a slave may name any task that it holds."""
        busy = [slave for slave in self.slaves if slave.held]
        slave = busy[pick % len(busy)]
        task = [*slave.held.values()][place % len(slave.held)]
        if not task.cancelling:
            task.state = (*frames,)
        self.receive(
            slave.agent.name, messages.Checkpoint(slave.number, task.number, slave.attempts[task.number]), (*frames,)
        )
        self.iterate()

    @precondition(lambda self: self.slaves)
    @rule(pick=picks, started=st.integers(0, 3), cause=st.sampled_from(Cause), allowed=st.sampled_from([0, 0, 300]))
    def slave_dies(self, pick: int, started: int, cause: Cause, allowed: int) -> None:
        """Usually the slave runs its first task. Sometimes it has started no task, or its job was short of memory."""
        cause = Cause.CRASH if cause is Cause.AGENT_LOST else cause
        slave = self.slaves[pick % len(self.slaves)]
        task = next(iter(slave.held.values()), None) if started else None
        charged = False
        if task is not None and not task.cancelling:
            before = task.deaths
            spared = cause is Cause.OUT_OF_MEMORY and allowed and task.policy.memory_max
            is_charged = cause.is_charged and not spared
            task.deaths += is_charged and not slave.agent.leaving and self.core.closing is None
            task.may_have_started = True
            charged = task.deaths > before
            if (charged and task.deaths >= task.policy.attempts_max) or not task.policy.retry:
                self.due[task.number] = "unrunnable"
        del slave.agent.slaves[slave.number]
        self.come_back(slave, slave.held.values())
        if task is not None and charged and task.number not in self.due and not self.others(task, slave):
            self.pause(task)
        running = task.number if task else 0
        died = messages.SlaveDied(slave.number, running, cause, "killed by signal 11", NO_WORDS, allowed=allowed)
        self.receive(slave.agent.name, died)
        self.iterate()

    def pause(self, task: _Task) -> None:
        """A task was charged with the loss of its attempt, and is tried again."""
        if task.policy.after:
            pause_s = min(task.policy.after * 2 ** (task.deaths - 1), PAUSE_MAX_S)
            task.delayed, task.due_at = True, self.now + pause_s
            if task.policy.sid and not (task.policy.do_it_anyway or self.is_connected(task.policy.sid)):
                self.due[task.number] = "unrunnable"

    def come_back(self, slave: _Slave, tasks: Iterable[_Task]) -> None:
        """Tasks come back unfinished. Those that are cancelled end now, unless another slave has them, too."""
        last = [task for task in tasks if not self.others(task, slave)]
        self.due.update((task.number, "cancelled") for task in last if task.cancelling)

    @precondition(lambda self: any(slave.held for slave in self.slaves))
    @rule(pick=picks, times=st.integers(1, 4))
    def a_task_kills_its_slaves(self, pick: int, times: int) -> None:
        """The same task kills one slave after the other. After each death, the agent starts another slave."""
        busy = [slave for slave in self.slaves if slave.held]
        task = next(iter(busy[pick % len(busy)].held.values()))
        for _ in range(times):
            slave = next((slave for slave in self.slaves if task.number in slave.held), None)
            if slave is None:
                return
            before = list(slave.held.values())
            self.finish(slave, before[: before.index(task)], 0.05)
            self.slave_dies(self.slaves.index(slave), 1, Cause.CRASH, 0)
            self.slave_becomes_ready(slave.agent)

    @precondition(lambda self: self.slaves)
    @rule(pick=picks, keep=st.integers(0, 3))
    def tasks_are_given_back(self, pick: int, keep: int) -> None:
        """A slave gives its last tasks back, whether the master asked or not. A started task is not among them."""
        slave = self.slaves[pick % len(self.slaves)]
        tasks = list(slave.held.values())[keep:]
        for task in tasks:
            del slave.held[task.number]
        self.come_back(slave, tasks)
        slave.asked_back = 0
        slave.gave_back = slave.gave_back or bool(tasks and slave.held)
        reply = messages.Revoked(slave.number, *_named(slave, tasks))
        self.receive(slave.agent.name, reply)
        self.iterate()

    @precondition(lambda self: any(slave.held for slave in self.slaves))
    @rule(pick=picks, failure=st.sampled_from(LoadFailure))
    def slave_refuses_an_algorithm(self, pick: int, failure: LoadFailure) -> None:
        """A slave reports that it cannot load the algorithm of its first task."""
        busy = [slave for slave in self.slaves if slave.held]
        slave = busy[pick % len(busy)]
        task = next(iter(slave.held.values()))
        del slave.held[task.number]
        self.come_back(slave, [task])
        if failure is LoadFailure.SURE:
            slave.agent.refused[task.algorithm] = None
        elif failure is LoadFailure.PASSING:
            slave.stopping = True
        else:
            slave.refused[task.algorithm] = None
        named = [task.number], [1], [slave.attempts[task.number]]
        reply = messages.AlgorithmFailed(slave.number, task.algorithm, "no module", *named, failure)
        self.receive(slave.agent.name, reply)
        self.iterate()

    @precondition(lambda self: self.agents)
    @rule(pick=picks)
    def agent_is_leaving(self, pick: int) -> None:
        agent = list(self.agents.values())[pick % len(self.agents)]
        agent.leaving = True
        self.receive(agent.name, messages.Leaving("evicted", Cause.EVICTED))
        self.iterate()

    @precondition(lambda self: self.agents)
    @rule(pick=picks, how=st.sampled_from(["vanish", "silence", "goodbye"]))
    def agent_disconnects(self, pick: int, how: str) -> None:
        agent = list(self.agents.values())[pick % len(self.agents)]
        self.lose_agent(agent, vanishes=how == "vanish")
        if how != "goodbye":
            self.handle(Vanished(agent.name, 31.0 if how == "silence" else 0.0))
        else:
            self.receive(agent.name, messages.Goodbye("evicted", Cause.EVICTED))
        self.iterate()

    @precondition(lambda self: self.core.closing is None and any(slave.held for slave in self.slaves))
    @rule(pick=picks, times=st.integers(1, 5), slaves=st.integers(1, 3))
    def a_task_kills_its_agents(self, pick: int, times: int, slaves: int) -> None:
        """The same task kills one agent after the other. After each end, another agent connects."""
        busy = [slave for slave in self.slaves if slave.held]
        task = next(iter(busy[pick % len(busy)].held.values()))
        for _ in range(times):
            slave = next((slave for slave in self.slaves if task.number in slave.held), None)
            if slave is None:
                return
            self.agent_disconnects(list(self.agents.values()).index(slave.agent), "vanish")
            self.agent_connects(slaves)

    def lose_agent(self, agent: _Agent, vanishes: bool = True) -> None:
        """Remove an agent from the model. The tasks of its slaves may have been started, and may have killed it."""
        del self.agents[agent.name]
        for slave in agent.slaves.values():
            for task in slave.held.values():
                task.may_have_started = True
                is_suspect = vanishes and not agent.leaving and self.core.closing is None
                task.lost += is_suspect
                allowed = LOST_AGENTS_ALLOWED + (0 if agent.is_proven else LOST_ALONE_ALLOWED)
                if (is_suspect and task.lost > allowed) or not task.policy.retry:
                    self.due[task.number] = "unrunnable"
            self.come_back(slave, slave.held.values())

    @precondition(lambda self: self.core.closing is None and len(self.agents) < 6)
    @rule(algorithm=st.integers(0, 1), errors=st.booleans(), seconds=st.sampled_from([2.0, 100.0]))
    def a_task_runs_for_long(self, algorithm: int, errors: bool, seconds: float) -> None:
        """It runs on when the tasks that were submitted with it have ended, and other agents have idle slaves."""
        plain: dict[str, Any] = {"retry": True, "anyway": True, "attempts": 3, "after": 0.0, "memory": None}
        self.submit(4, algorithm, "", 0, **plain, errors=errors, speculate=True, too_large=False)
        for _ in range(2):
            self.agent_connects(1)
        last = self.tasks[-1]
        for slave in self.slaves:
            self.finish(slave, [task for task in slave.held.values() if task is not last], 0.01)
        self.time_passes(seconds)

    # Actions of agents that are not correct, and of strangers

    @precondition(lambda self: self.agents)
    @rule(pick=picks, how=st.sampled_from(["garbage", "hello", "ready", "probe", "shutdown", "algorithm"]))
    def agent_sends_a_wrong_message(self, pick: int, how: str) -> None:
        """The master drops an agent that sends a wrong message, and ignores its later messages."""
        agent = list(self.agents.values())[pick % len(self.agents)]
        slave = next(iter(agent.slaves.values()), None)
        self.lose_agent(agent, vanishes=False)
        if how == "hello":
            self.receive(agent.name, messages.Hello("m", "g", "host", 1, "3.11", 1000))
        elif how == "ready" and slave:
            self.receive(agent.name, messages.SlaveReady(slave.number))
        elif how == "algorithm" and slave:
            self.receive(agent.name, messages.AlgorithmFailed(slave.number, 7, "", [], [], []))
        elif how == "shutdown":
            self.receive(agent.name, messages.Shutdown(True, 1.0))
        elif how == "probe":
            self.receive(agent.name, messages.Probe())
        self.handle(Garbage(agent.name, "here", "nonsense"))
        if slave and slave.held:
            task = next(iter(slave.held.values()))
            group = messages.Results(slave.number, [task.number], [1], [task.attempt], [0.1], [])
            self.receive(agent.name, group, (groups.payload(1, [b"x"]),))
        self.iterate()

    @rule(how=st.sampled_from(["member", "generation", "key", "nonsense", "results"]), vanishes=st.booleans())
    def stranger_connects(self, how: str, vanishes: bool) -> None:
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
            self.receive(name, messages.Results(1, [1], [1], [1], [0.1], []), (groups.payload(1, [b"x"]),))
        if vanishes:
            self.handle(Vanished(name, 0.0))
        self.iterate()

    @precondition(lambda self: self.replies)
    @rule(pick=picks)
    def results_arrive_again(self, pick: int) -> None:
        """An agent sends results again. The second message is ignored."""
        name, group = self.replies[pick % len(self.replies)]
        if name in self.agents:
            failure = CODEC.dumps_failure(ValueError("a lie"))
            self.receive(name, group, (groups.payload(sum(group.counts), [failure] * sum(group.counts)),))
            self.iterate()

    @precondition(lambda self: self.slaves and self.tasks)
    @rule(
        pick=picks,
        pick_task=picks,
        difference=st.integers(-2, 1),
        kind=st.sampled_from(["results", "revoked", "refused", "state", "unknown"]),
    )
    def agent_sends_a_wrong_task(self, pick: int, pick_task: int, difference: int, kind: str) -> None:
        """An agent names another attempt, a task that its slave does not hold, or an unknown task: it is ignored."""
        slave = self.slaves[pick % len(self.slaves)]
        task = self.tasks[pick_task % len(self.tasks)]
        held = list(slave.held.values())
        if held and pick_task % 2:
            task = held[pick_task % len(held)]
        task_id, attempt, number = task.number, task.attempt + difference, slave.number
        if kind == "unknown":
            task_id, number = task_id + 1000 * (pick_task % 2), number + 1000
        elif task.number in slave.held and attempt == slave.attempts[task.number]:
            attempt -= 3
        if kind == "revoked":
            slave.asked_back = 0
            self.receive(slave.agent.name, messages.Revoked(number, [task_id], [1], [attempt]))
        elif kind == "state":
            self.receive(slave.agent.name, messages.Checkpoint(number, task_id, attempt), (b"wrong",))
        elif kind == "refused":
            slave.agent.refused[task.algorithm] = None
            self.receive(
                slave.agent.name, messages.AlgorithmFailed(number, task.algorithm, "no", [task_id], [1], [attempt])
            )
        else:
            self.receive(
                slave.agent.name,
                messages.Results(number, [task_id], [1], [attempt], [0.1], []),
                (groups.payload(1, [b"x"]),),
            )
            self.receive(
                slave.agent.name, messages.SlaveDied(slave.number + 1000, task_id, Cause.CRASH, "exit code 1", NO_WORDS)
            )
        self.iterate()

    # The end of a run

    def teardown(self) -> None:
        """Check that every task ends when there is a correct agent and all slaves finish their tasks."""
        if not self.sound or self.core.closing is not None:
            return
        for kind in SlaveKind:
            self.core.obey(DeallocateSlaves(1000, kind))
        for agent in [agent for agent in self.agents.values() if agent.leaving]:
            self.lose_agent(agent, vanishes=False)
            self.receive(agent.name, messages.Goodbye("evicted", Cause.EVICTED))
            self.iterate()
        for slave in [slave for slave in self.slaves if slave.stopping]:
            self.slave_dies(self.slaves.index(slave), 0, Cause.START_UP, 0)
        if any(task.delayed for task in self.open):
            self.time_passes(PAUSE_MAX_S)
        correct = self.connect_agent()
        for _ in range(2):
            self.slave_becomes_ready(correct)
        for _ in range(2 * len(self.tasks) + 2):
            for slave in self.slaves:
                self.finish(slave, list(slave.held.values()), 0.01)
        assert not self.open, f"these tasks did not end: {[task.number for task in self.open]}"
        self.core.waiting = Waiting.NOT
        self.time_passes(1000.0)
        assert not self.silence_notices, "there was a notice that nothing progresses, but all tasks have ended"


class _EndingMasterMachine(_MasterMachine):
    """The same machine, but at some time the master algorithm shuts the computation down."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    @precondition(lambda self: self.core.closing is None)
    @rule(finished=st.booleans())
    def shut_down(self, finished: bool) -> None:
        self.steps += 1
        if self.steps < 2:
            return  # otherwise many runs would be shut down almost at once
        self.core.obey(ShutDown(finished, 1.0))
        actions = self.core.take_actions()
        receivers = [send.peer for send in actions.sends if send.message == messages.Shutdown(finished, 1.0)]
        assert receivers == list(self.agents), "the shutdown was not sent to all agents"
        self.check_actions(actions)
        self.iterate()

    def check_tasks(self, agent: _Agent, group: messages.Tasks, frames: Sequence[Any]) -> None:
        assert self.core.closing is None, "tasks were sent after the shutdown"
        super().check_tasks(agent, group, frames)

    def teardown(self) -> None:
        """Check that results still count during the shutdown, and that no slave is left when all agents have left."""
        super().teardown()
        if not self.sound or self.core.closing is None:
            return
        for position, slave in enumerate(self.slaves):
            self.finish(slave, list(slave.held.values()), 0.01)
            plain: dict[str, Any] = {"retry": True, "anyway": True, "attempts": 3, "after": 0.0, "memory": None}
            self.submit(1, 0, "here", position, **plain, errors=False, speculate=False, too_large=False)
        self.time_passes(100.0)
        assert not self.silence_notices, "there was a notice that nothing progresses during the shutdown"
        for number in range(len(self.agents)):
            self.agent_disconnects(0, "goodbye" if number % 2 else "vanish")
        assert not self.core.state.members.slaves


def _run(machine: type[RuleBasedStateMachine], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=50))


def test_each_task_ends_once_and_runs_only_where_it_may() -> None:
    """This holds for every order of events, and even if agents send wrong messages."""
    _run(_MasterMachine, 200)


def test_after_a_shutdown_no_task_is_sent_and_results_still_count() -> None:
    """The shutdown may come at any time."""
    _run(_EndingMasterMachine, 60)
