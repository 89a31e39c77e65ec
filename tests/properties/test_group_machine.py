"""The master's core with portions of maps, tasks that refer to results, and values that stay at agents.

Hypothesis plays the master algorithm and correct agents. The model knows which slave holds which attempt, where each
value is, and who may refer to it. It learns this from the actions of the core, and reads the state of the core only to
compare it. At the end of each run, an agent connects and all slaves answer: then each task must have ended once, and
when all values are released, none must be left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any
from weakref import ref

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace
from tests.spans import MAX, ids_of, spans_in

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.commands import CancelTasks, Command, GiveResult, HoldResults, ReleaseResults, Running
from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.events import Event, Received, Send, Vanished
from mwpy._core.master.spans import LOST_AGENTS_ALLOWED
from mwpy._core.master.submissions import Submissions
from mwpy._simulation.replay import Replay
from mwpy._transport.codec import Codec
from mwpy._transport.shared_objects import load
from mwpy._values import groups, messages
from mwpy._values.causes import Cause
from mwpy._values.errors import DependencyFailed, TaskCancelled
from mwpy._values.last_words import NO_WORDS
from mwpy._values.message_checks import check
from mwpy._values.messagepack import encode
from mwpy._values.packed import ARGUMENTS, ROWS, PackedCalls
from mwpy._values.policy import TaskPolicy
from mwpy._values.references import ReferringBuffers
from mwpy._values.share_messages import Share, share_of_result, task_of
from mwpy._values.shares import Shared, SharedObject
from mwpy._values.task import KEPT, UnrunnableTask, encoded_in

CODEC = Codec()
SIZE = 64
"""The size of each value that stays at an agent, in bytes."""

picks = st.integers(0, 60)
"""An index into a list: it is used modulo the length of the list."""

policies = st.builds(
    TaskPolicy, retry=st.sampled_from([True, True, True, False]), attempts_max=st.integers(1, 3), after=st.just(0.0)
)
causes = st.sampled_from([Cause.CRASH, Cause.CRASH, Cause.OUT_OF_MEMORY, Cause.SCALED_DOWN])


@define(eq=False)
class _Task:
    """What the model knows of a task."""

    number: int
    policy: TaskPolicy
    call: Any
    """What the message to the slave must contain."""
    kind: int = 0
    """How its portion is encoded; 0 if it is in none."""
    refers: Sequence[_Task] = ()
    shared: Share | None = None
    """The shared object among its arguments."""
    attempt: int = 0
    """How often it was sent to a slave."""
    deaths: int = 0
    lost: int = 0
    """How many agents vanished without notice while it was at them."""
    outcome: str = ""
    """How it ended: "value", "failed", "dependent", "cancelled" or "unrunnable"; empty before."""
    value: bytes = b""
    """The encoded value, unless it stays at an agent."""
    share: Share | None = None
    """The value that stays at an agent; None if there is none, or if it is lost."""
    is_held: bool = False
    """Whether the algorithm may submit more tasks that refer to it."""
    released: bool = False
    """Whether the algorithm has fetched or released its result."""
    cancelling: bool = False
    """Whether it was cancelled while a slave held it, and may finish there."""


@define(eq=False)
class _Slave:
    """What the model knows of a slave."""

    agent: _Agent
    number: int
    held: dict[int, _Task] = field(factory=dict)
    """The tasks in the order in which they were sent: it runs the first one."""


@define(eq=False)
class _Agent:
    """What the model knows of an agent."""

    name: bytes
    slaves: dict[int, _Slave] = field(factory=dict)
    values: dict[str, _Task] = field(factory=dict)
    """The values that it keeps, by the digests of their names."""


def _named(tasks: Iterable[_Task]) -> tuple[list[int], list[int], list[int]]:
    """How a message names tasks that a slave holds."""
    pairs = [(task.number, task.attempt) for task in tasks]
    return groups.spans_of([number for number, _ in pairs], [attempt for _, attempt in pairs])


class _GroupMachine(RuleBasedStateMachine):
    """A master, its algorithm and its agents, which take random actions."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tasks: list[_Task] = []
        self.agents: dict[bytes, _Agent] = {}
        self.names = 0
        self.replay = Replay()
        self.due: dict[int, str] = {}
        """The outcome that each of these tasks must have after the last event."""
        self.late: list[tuple[_Slave, _Task, int]] = []
        """Tasks that slaves had when they were killed there, with the attempt: an answer may be on its way."""
        self.handles: dict[Share, Shared] = {}
        """The shared objects that the algorithm still has."""
        self.shared: dict[Share, ref[SharedObject]] = {}
        """All shared objects."""
        self.parts: list[bytes] = []
        """The parts of shared objects that were sent now."""
        self.sound = False
        """False while an event is handled. After a failed check it stays False, and the other checks are skipped."""

    @initialize(group=st.sampled_from([None, None, 1, 3]))
    def begin(self, group: int | None) -> None:
        self.core = MasterCore(MasterSettings("m", "g", task_group=group))
        self.submissions = Submissions(self.core.state.jar)
        self.algorithm = Defined(MAX)
        self.core.definitions.add(self.algorithm)
        self.sound = True

    # What the model derives from its state

    @property
    def slaves(self) -> list[_Slave]:
        return [slave for agent in self.agents.values() for slave in agent.slaves.values()]

    @property
    def busy(self) -> list[_Slave]:
        return [slave for slave in self.slaves if slave.held]

    @property
    def open(self) -> list[_Task]:
        return [task for task in self.tasks if not task.outcome]

    def live(self) -> list[_Task]:
        """The tasks that may need results: those that have not ended, and those that run again."""
        again = self.core.state.jar.kept.again
        return [task for task in self.tasks if not task.outcome or task.number in again]

    # Events and iterations

    def receive(self, agent: _Agent, message: messages.Message, frames: tuple[bytes, ...] = ()) -> None:
        check(message, frames)
        self.handle(Received(agent.name, "here", message, frames))

    def handle(self, event: Event) -> None:
        self.sound = False
        self.core.handle(event, self.now)
        self.iterate()

    def obey(self, command: Command) -> None:
        self.sound = False
        self.core.obey(command)

    def iterate(self) -> None:
        """Run one iteration of the master, and check all its actions."""
        self.sound = False
        self.core.check()
        self.core.decide(self.now)
        self.core.check()
        actions = self.core.take_actions()
        for record in actions.records:
            self.replay.recorded(record)
        self.replay.check(self.core.state)
        for send in actions.sends:
            self.check_send(send)
        for result in actions.results:
            self.check_result(result)
        for stretch in actions.stretches:
            assert all(task.kind for task in self.tasks[stretch.first - 1 :][: stretch.count])
            for number, value in enumerate(stretch.values, stretch.first):
                self.check_value(self.tasks[number - 1], value)
        for unrunnable in actions.unrunnable:
            self.check_unrunnable(unrunnable)
        assert not self.due, f"these tasks should have ended: {self.due}"
        self.check_agreement()
        self.sound = True

    def end(self, task: _Task, outcome: str) -> None:
        assert not task.outcome, f"task {task.number} ended twice: {task.outcome}, {outcome}"
        assert self.due.pop(task.number, outcome) == outcome, f"task {task.number} ended as {outcome}"
        holders = [slave for slave in self.slaves if task.number in slave.held]
        assert not holders, f"task {task.number} ended while a slave holds it"
        task.outcome = outcome

    def check_result(self, result: Any) -> None:
        task = self.tasks[result.task_id - 1]
        match error := result.error:
            case None:
                self.check_value(task, KEPT if task.policy.keep else result.value)
                assert not task.policy.keep or encoded_in(result)[0] is KEPT
                return
            case TaskCancelled():
                assert task.number in self.due, f"task {task.number} was cancelled, and nobody wanted that"
                self.end(task, "cancelled")
            case DependencyFailed():
                root = self.tasks[error.dependency - 1]
                lost = root.policy.keep and root.share is None
                assert root.outcome not in ("", "value") or self.due.get(root.number) or lost, f"{error}"
                self.end(task, "dependent")
            case _:
                assert task.number in self.due, f"task {task.number} failed, and no slave said so"
                self.end(task, "failed")

    def check_value(self, task: _Task, value: object) -> None:
        assert task.number in self.due, f"task {task.number} has a result that no slave sent"
        assert value is KEPT or value == f"{task.attempt} of {task.number}"
        self.end(task, "value")

    def check_unrunnable(self, unrunnable: UnrunnableTask) -> None:
        task = self.tasks[unrunnable.task_id - 1]
        assert task.number in self.due, f"task {task.number} was given up without need: {unrunnable.reason}"
        assert sum(death.is_charged for death in unrunnable.deaths) == task.deaths
        self.end(task, "unrunnable")

    def check_send(self, send: Send) -> None:
        agent = self.agents.get(send.peer)
        if agent is None:
            return  # the agent left before this message was sent
        check(send.message, send.frames)
        match send.message:
            case messages.Tasks():
                self.check_tasks(agent, send.message, send.frames)
            case messages.Cancel(firsts, counts, True):
                ids = {first + at for first, count in zip(firsts, counts, strict=True) for at in range(count)}
                for slave in agent.slaves.values():
                    for number in ids & slave.held.keys():
                        task = slave.held.pop(number)
                        self.late.append((slave, task, task.attempt))
            case messages.SharePart():
                self.parts.append(bytes(send.frames[0]))
            case messages.ShareGone(digest) if task_of(digest):
                task = agent.values.pop(digest)
                task.share = None if task.share and task.share.digest == digest else task.share
            case messages.Refused(reason):
                raise AssertionError(f"a correct agent was refused: {reason}")

    def check_tasks(self, agent: _Agent, group: messages.Tasks, frames: Sequence[Any]) -> None:
        slave = agent.slaves[group.slave]
        calls, buffers = groups.entries(group, frames)
        kinds = chain.from_iterable(map(repeat, group.portions or [0] * len(group.counts), group.counts))
        expected: dict[Share, None] = {}
        keeps: list[int] = []
        columns = zip(groups.each_task(group), calls, buffers or repeat(()), kinds, strict=False)
        for place, ((number, attempt), call, own, kind) in enumerate(columns):
            task = self.tasks[number - 1]
            sending = f"task {number} was sent"
            assert not any(number in other.held for other in self.slaves), f"{sending}, and a slave holds it"
            ends = task.cancelling or number in self.due
            assert not ends, f"{sending}, but it is cancelled or has ended"
            again = task.policy.keep and task.outcome == "value" and task.share is None
            assert not task.outcome or again, f"{sending}, but it had ended: {task.outcome}"
            arguments = [*call] if kind == ROWS else call
            assert (arguments, kind) == (task.call, task.kind), f"{sending} with other arguments"
            assert task.deaths < task.policy.attempts_max, f"{sending} after it had killed {task.deaths} slaves"
            here = [each for each in task.refers if not each.policy.keep]
            values = [encode([(each.number, 1) for each in here]), *(each.value for each in here)] if here else []
            assert [bytes(each) for each in own] == values, f"{sending} without the values that it needs"
            for each in task.refers:
                if each.policy.keep:
                    assert each.share is not None, f"{sending}, but the value of task {each.number} is nowhere"
                    expected[each.share] = None
            if task.shared is not None:
                expected[task.shared] = None
            task.attempt += 1
            assert attempt == task.attempt, f"attempt {attempt} of task {number} is not the next attempt"
            slave.held[number] = task
            keeps += [place] if task.policy.keep else []
        assert ({*group.shares}, group.keeps) == ({*expected}, keeps)

    def check_agreement(self) -> None:
        """Check that model and core agree, and that no value is left that nobody needs."""
        jar, live = self.core.state.jar, self.live()
        spans = spans_in(self.core)
        assert sorted(ids_of(spans)) == [task.number for task in live], "a task was lost, or kept after its end"
        for span in spans:
            for task in (self.tasks[number - 1] for number in span.ids):
                assert span.charged == task.deaths, f"{task.number} is charged {span.charged} times, not {task.deaths}"
        held = {
            (slave.agent.peer, slave.number): ids_of(slave.held.spans)
            for slave in self.core.state.members.slaves.values()
        }
        assert held == {(slave.agent.name, slave.number): list(slave.held) for slave in self.slaves}
        used = {each.number for task in live for each in task.refers}
        needed = used | {task.number for task in self.tasks if task.is_held}
        assert jar.blocked.results.keys() <= needed, "a result is kept that nobody needs"
        assert jar.kept.tasks.keys() <= needed, "a task is kept that nobody needs"
        places = {number: each.share for number, each in jar.blocked.results.items() if each.share}
        assert places == {task.number: task.share for task in self.tasks if task.share}, "a value is elsewhere"
        at_agents = [digest for agent in self.agents.values() for digest in agent.values]
        assert sorted(at_agents) == sorted(share.digest for share in places.values()), "an agent keeps a useless value"
        self.submissions.check()

    # Actions of the master algorithm

    def submit(self) -> None:
        self.core.submit(self.submissions.take())
        self.iterate()

    @rule(count=st.integers(1, 6), kind=st.sampled_from([ROWS, ARGUMENTS]), policy=policies)
    def submit_a_portion(self, count: int, kind: int, policy: TaskPolicy) -> None:
        numbers = [len(self.tasks) + 1 + at for at in range(count)]
        items: list[Any] = [[number] for number in numbers] if kind == ROWS else numbers
        self.tasks += [_Task(number, policy, item, kind) for number, item in zip(numbers, items, strict=True)]
        self.submissions.add_portion(self.algorithm, policy, PackedCalls.of(kind, items), "tag")
        self.submit()

    @rule(policy=policies)
    def submit_a_task(self, policy: TaskPolicy) -> None:
        task = _Task(len(self.tasks) + 1, policy, f"call of {len(self.tasks) + 1}")
        self.tasks.append(task)
        self.submissions.add(self.algorithm, policy, CODEC.dumps_value(task.call)[0], (), "tag")
        self.submit()

    @rule(
        chosen=st.lists(picks, max_size=3),
        keep=st.booleans(),
        policy=policies,
    )
    def submit_a_task_that_refers(self, chosen: list[int], keep: bool, policy: TaskPolicy) -> None:
        """It refers to tasks whose results the algorithm has not fetched or released, or to none. Its own value may
        stay at its agent."""
        known = [task for task in self.tasks if not task.released]
        refers = [known[at] for at in sorted({pick % len(known) for pick in chosen})] if known else []
        self.hold([each for each in refers if not each.is_held])
        number = len(self.tasks) + 1
        task = _Task(number, replace(policy, keep=keep), f"call of {number}", refers=refers, is_held=keep)
        self.tasks.append(task)
        payload, _ = CODEC.dumps_value(task.call)
        if refers:
            numbers = [each.number for each in refers]
            self.submissions.add_referring(self.algorithm, task.policy, payload, (), "tag", numbers)
        else:
            self.submissions.add(self.algorithm, task.policy, payload, (), "tag")
        self.submit()

    def hold(self, tasks: Sequence[_Task]) -> None:
        """Tell the core which results will be referred to, as the algorithm's thread does."""
        unended = [task.number for task in tasks if not task.outcome]
        if unended:
            self.obey(HoldResults(unended))
            assert [answer for _, answer in self.core.state.actions.cancelled] == [unended]
        for task in tasks:
            task.is_held = True
            if task.outcome:
                frames, cause = ([task.value], "") if task.outcome == "value" else ([], f"task {task.number} failed")
                self.obey(GiveResult(task.number, frames, cause, 0 if frames else task.number))

    @rule(pick=st.integers(0, 3), policy=policies)
    def submit_a_task_with_a_shared_object(self, pick: int, policy: TaskPolicy) -> None:
        number = len(self.tasks) + 1
        if pick >= len(self.handles):
            share = Share(f"object {number}", SIZE)
            self.handles[share] = Shared(SharedObject(share, bytes([number % 256]) * SIZE), load)
            self.shared[share] = ref(self.handles[share].shared)
        share = [*self.handles][pick % len(self.handles)]
        task = _Task(number, policy, f"call of {number}", shared=share)
        self.tasks.append(task)
        buffers = ReferringBuffers((), [self.handles[share]])
        self.submissions.add(self.algorithm, policy, CODEC.dumps_value(task.call)[0], buffers, "tag")
        self.submit()

    @precondition(lambda self: self.handles)
    @rule(pick=picks)
    def forget_a_handle(self, pick: int) -> None:
        del self.handles[[*self.handles][pick % len(self.handles)]]

    @precondition(lambda self: any(task.shared for slave in self.slaves for task in slave.held.values()))
    @rule(pick=picks)
    def agent_asks_for_a_shared_object(self, pick: int) -> None:
        """An object that a task of its slaves needs is there, even if the algorithm has no handle any more."""
        needs = [(slave.agent, task.shared) for slave in self.slaves for task in slave.held.values() if task.shared]
        agent, share = needs[pick % len(needs)]
        self.parts.clear()
        self.receive(agent, messages.ShareWanted(share.digest, 0))
        assert self.parts == [bytes([int(share.digest.split()[1]) % 256]) * SIZE]

    @precondition(lambda self: any(task.is_held for task in self.tasks))
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        """The algorithm fetches a result, which has arrived, or releases a value that stays, at any time."""
        held = [task for task in self.tasks if task.is_held and (task.policy.keep or task.outcome)]
        if held:
            task = held[pick % len(held)]
            task.is_held, task.released = False, True
            self.obey(ReleaseResults([task.number]))
            self.iterate()

    @precondition(lambda self: self.open)
    @rule(chosen=st.lists(picks, min_size=1, max_size=4), running=st.sampled_from([Running.KILL, Running.FINISH]))
    def cancel(self, chosen: list[int], running: Running) -> None:
        numbers = sorted({1 + pick % len(self.tasks) for pick in chosen})
        tasks = [task for task in self.open if task.number in numbers]
        for task in tasks:
            if running is Running.FINISH and any(task.number in slave.held for slave in self.slaves):
                task.cancelling = True
            else:
                self.due[task.number] = "cancelled"
        command = CancelTasks.of(numbers, running)
        self.obey(command)
        assert self.core.state.actions.cancelled == [(command, [task.number for task in tasks])]
        self.iterate()

    @rule(seconds=st.sampled_from([0.1, 6.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.iterate()

    # Actions of agents

    @precondition(lambda self: len(self.agents) < 5)
    @rule(slaves=st.integers(1, 2))
    def agent_joins(self, slaves: int) -> None:
        self.names += 1
        agent = self.agents[b"agent %d" % self.names] = _Agent(b"agent %d" % self.names)
        self.receive(agent, messages.Hello("m", "g", "host", 1, "3.11", 1000))
        for number in range(1, slaves + 1):
            self.slave_starts(agent, number)

    def slave_starts(self, agent: _Agent, number: int) -> None:
        agent.slaves[number] = _Slave(agent, number)
        self.receive(agent, messages.SlaveReady(number))

    @precondition(lambda self: self.busy)
    @rule(pick=picks, start=st.sampled_from([0, 0, 1, 2]), count=st.integers(1, 5), failing=picks, summed=st.booleans())
    def slave_answers(self, pick: int, start: int, count: int, failing: int, summed: bool) -> None:
        """Usually it answers its first tasks. One of them may fail."""
        slave = self.busy[pick % len(self.busy)]
        tasks = [*slave.held.values()][start : start + count]
        self.answer(slave, tasks, failing, summed)

    def answer(self, slave: _Slave, tasks: Sequence[_Task], failing: int, summed: bool) -> None:
        failed = [place for place in range(len(tasks)) if place == failing]
        kept = [(place, SIZE) for place, task in enumerate(tasks) if task.policy.keep and place not in failed]
        entries: list[bytes] = []
        named = _named(tasks)
        for place, task in enumerate(tasks):
            del slave.held[task.number]
            entry, _ = CODEC.dumps_value(None if task.policy.keep else f"{task.attempt} of {task.number}")
            entries.append(CODEC.dumps_failure(ValueError("wrong")) if place in failed else entry)
            if not task.outcome:
                self.due[task.number] = "failed" if place in failed else "value"
            if (place, SIZE) in kept:
                task.share = share_of_result(task.number, task.attempt, SIZE)
                slave.agent.values[task.share.digest] = task
            elif place not in failed:
                task.value = entry
        seconds = [0.01 * len(tasks)] if summed and tasks else [0.01] * len(tasks)
        plain = not failed and not kept
        group = messages.Results(slave.number, *named, seconds, failed, plain=plain, kept=kept)
        self.receive(slave.agent, group, (groups.payload(len(tasks), entries),))

    @precondition(lambda self: self.slaves)
    @rule(pick=picks, place=st.integers(-1, 4), finished=st.integers(0, 3), cause=causes, reported=st.booleans())
    def slave_dies(self, pick: int, place: int, finished: int, cause: Cause, reported: bool) -> None:
        """It ran one of its tasks, or none. Tasks before may be answered; the others of them lost their results."""
        slave = self.slaves[pick % len(self.slaves)]
        place = min(place, len(slave.held) - 1)
        tasks = [*slave.held.values()][: place + 1]
        running = tasks.pop() if tasks else None
        self.answer(slave, tasks[:finished], -1, True)
        if running is not None and running.number not in slave.held:
            return  # it was killed while the others were answered
        lost = [each for each in tasks[finished:] if reported and each.number in slave.held]
        del slave.agent.slaves[slave.number]
        for task in slave.held.values():
            if task.cancelling:
                self.due[task.number] = "cancelled"
                continue
            task.deaths += task is running and cause.is_charged
            if (task is running and task.deaths >= task.policy.attempts_max and cause.is_charged) or (
                (task is running or task in lost) and not task.policy.retry
            ):
                self.gives_up(task)
        died = messages.SlaveDied(
            slave.number,
            0 if running is None else running.number,
            cause,
            "it died",
            NO_WORDS,
            [*zip(*_named(lost), strict=True)],
        )
        self.receive(slave.agent, died)
        self.slave_starts(slave.agent, max(slave.agent.slaves, default=slave.number) + slave.number + 1)

    def gives_up(self, task: _Task) -> None:
        if not task.outcome:
            self.due[task.number] = "unrunnable"

    @precondition(lambda self: self.busy)
    @rule(pick=picks, keeps=st.integers(0, 3), late=st.booleans())
    def tasks_are_given_back(self, pick: int, keeps: int, late: bool) -> None:
        """A slave gives its last tasks back, or its agent those whose results are late."""
        slave = self.busy[pick % len(self.busy)]
        held = [*slave.held.values()]
        tasks = held[:keeps] if late else held[keeps:]
        for task in tasks:
            del slave.held[task.number]
            if task.cancelling:
                self.due[task.number] = "cancelled"
        self.receive(slave.agent, messages.Revoked(slave.number, *_named(tasks), late=late))

    @precondition(lambda self: any(agent.values for agent in self.agents.values()))
    @rule(pick=picks)
    def agent_has_no_room(self, pick: int) -> None:
        """An agent loses a value. It is computed again if a task needs it."""
        values = [(agent, digest) for agent in self.agents.values() for digest in agent.values]
        agent, digest = values[pick % len(values)]
        agent.values.pop(digest).share = None
        self.receive(agent, messages.ShareGone(digest))

    @precondition(lambda self: self.agents)
    @rule(pick=picks, how=st.sampled_from(["vanishes", "is silent", "says goodbye"]))
    def agent_leaves(self, pick: int, how: str) -> None:
        agent = list(self.agents.values())[pick % len(self.agents)]
        del self.agents[agent.name]
        for task in agent.values.values():
            task.share = None
        for task in (task for slave in agent.slaves.values() for task in slave.held.values()):
            if task.cancelling:
                self.due[task.number] = "cancelled"
                continue
            task.lost += how == "vanishes"
            if task.lost > LOST_AGENTS_ALLOWED or not task.policy.retry:
                self.gives_up(task)
        if how == "says goodbye":
            self.receive(agent, messages.Goodbye("evicted", Cause.EVICTED))
        else:
            self.handle(Vanished(agent.name, 31.0 if how == "is silent" else 0.0))

    @precondition(lambda self: self.late)
    @rule(pick=picks)
    def late_answer_arrives(self, pick: int) -> None:
        """The agent had sent it before it read that the task was to be killed. It changes nothing."""
        slave, task, attempt = self.late.pop(pick % len(self.late))
        if slave.agent.name not in self.agents:
            return
        kept = [(0, SIZE)] if task.policy.keep else []
        if kept:
            slave.agent.values[share_of_result(task.number, attempt, SIZE).digest] = task
        group = messages.Results(slave.number, [task.number], [1], [attempt], [0.1], [], kept=kept)
        self.receive(slave.agent, group, (groups.payload(1, [b"\xc0"]),))

    # Several actions, because random ones seldom come in this order

    @precondition(lambda self: len(self.agents) < 5)
    @rule(chosen=st.lists(picks, max_size=2), keep=st.booleans(), policy=policies, pick=picks)
    def a_value_is_lost_that_a_task_needs(self, chosen: list[int], keep: bool, policy: TaskPolicy, pick: int) -> None:
        self.agent_joins(1)
        self.submit_a_task_that_refers(chosen, True, policy)
        task = self.tasks[-1]
        for slave in self.busy * 2:
            self.answer(slave, [*slave.held.values()], -1, True)
        self.agent_joins(1)
        place = [each for each in self.tasks if not each.released].index(task)
        self.submit_a_task_that_refers([place], keep, policy)
        places = [at for at, agent in enumerate(self.agents.values()) if task in agent.values.values()]
        if places and pick % 3:
            self.agent_leaves(places[0], "says goodbye" if pick % 2 else "vanishes")
        elif places:
            self.agent_has_no_room(pick)

    @rule(keep=st.booleans(), policy=policies)
    def an_answer_crosses_a_cancellation(self, keep: bool, policy: TaskPolicy) -> None:
        self.submit_a_task_that_refers([], keep, policy)
        self.cancel([len(self.tasks) - 1], Running.KILL)
        if self.late:
            self.late_answer_arrives(len(self.late) - 1)

    # The end of a run

    def teardown(self) -> None:
        """Check that all tasks end when an agent connects and all slaves answer, and that nothing is left then."""
        if not self.sound:
            return
        self.agent_joins(2)
        for _ in range(3 * len(self.tasks) + 3):
            self.time_passes(4000.0)
            for slave in self.busy:
                self.answer(slave, [*slave.held.values()], -1, False)
        assert not self.open, f"these tasks did not end: {[task.number for task in self.open]}"
        for task in self.tasks:
            if task.is_held:
                task.is_held = False
                self.obey(ReleaseResults([task.number]))
        self.iterate()
        jar = self.core.state.jar
        left = {*jar.blocked.results, *jar.kept.tasks, *jar.kept.again}
        assert not left, "a value is left, and nobody needs it"
        self.replay.check_end(self.core.state)
        self.handles.clear()
        del self.replay  # its records have the arguments of all tasks
        assert not any(each() for each in self.shared.values()), "a shared object is kept that no task needs"


def test_tasks_end_once_and_values_exist_as_long_as_a_task_needs_them() -> None:
    """This holds for every order of answers, deaths, cancellations and releases."""
    run_state_machine_as_test(_GroupMachine, settings=settings(max_examples=120, stateful_step_count=40))
