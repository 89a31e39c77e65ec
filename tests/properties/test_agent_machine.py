"""The agent's core with events in any order, compared with a small model.

The machine plays the master, the template and the slaves, with the memory and the files that slaves share with their
agent. Its model knows which tasks each slave really holds. From the messages to the master, it learns what happened to
each attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, cycle
from math import inf

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from mwpy._core.agent import child
from mwpy._core.agent.child import AgentActions, AgentSettings, Child, Outgoing
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.limits import AGAIN_S, LATE_S, LOOK_S, MEASURE_S
from mwpy._core.agent.traffic import FAILED_LOADS_ALLOWED, PARTS_COMING, SPARED_S
from mwpy._roles.runner import STRETCH_S
from mwpy._transport import wire
from mwpy._values import groups, messages
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.groups import ARGUMENTS
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.last_words import LastWords
from mwpy._values.messages import PART_BYTES, LoadFailure, Share
from mwpy._values.policy import Limits

picks = st.integers(0, 60)
"""Chooses one element of a list: the number modulo the length of the list."""

OBJECTS = (Share("small", 100), Share("other", 200), Share("large", 5 * PART_BYTES + 1))
"""The shared objects that tasks need."""

PART = memoryview(bytes(PART_BYTES))


@define(eq=False)
class _Process:
    """A slave process, and the tasks that it was sent."""

    number: int
    failed_before: int = 0
    """How many slaves in a row before it could not load an algorithm."""
    load_failed: bool = False
    """Whether it could not load an algorithm, and is replaced."""
    started_at: float = 0.0
    has_process: bool = True
    """Whether it has a process: the template may still have to fork it."""
    ready: bool = False
    ran: int = 0
    """How many tasks it has run, or runs."""
    unstarted: dict[int, int] = field(factory=dict)
    """Task and attempt of the tasks that it may start, in order."""
    positions: dict[int, int] = field(factory=dict)
    """The position of each task."""
    passed_on: int = 0
    """The position of the last task that it got."""
    started: int = 0
    """The position of the last task that it started."""
    limits: dict[int, float] = field(factory=dict)
    """For each task with a limit of time: this limit."""
    memory: dict[int, int] = field(factory=dict)
    """For each task with a limit of memory: this limit."""
    grown_at: float = inf
    """When the task that it runs began to use more memory than any limit."""
    began: float = 0.0
    """When it started the task that it runs."""
    running: tuple[int, int] | None = None
    done: dict[int, int] = field(factory=dict)
    """Tasks whose results are in its journal and were not sent."""
    portions: dict[int, None] = field(factory=dict)
    """The positions of tasks of portions."""
    stretch: dict[int, int] = field(factory=dict)
    """Tasks of portions whose results wait outside of its journal and were not sent."""
    silent_from: float = 0.0
    """Since when its agent has heard nothing of it."""
    needs: dict[int, Sequence[str]] = field(factory=dict)
    """The shared objects that tasks need, by the positions of the tasks."""
    knows: dict[str, str] = field(factory=dict)
    """The shared objects that it knows: why each is missing, or an empty text if it is here."""
    stopping: bool = False
    hung: bool = False
    """Whether the agent has ended it because it was not ready in time."""
    killed: bool = False
    ended: bool = False
    """Whether it has ended and was not yet collected by the agent."""

    def receive(self, sent: Iterable[tuple[int, int]], kinds: Iterable[int], shares: Sequence[Share]) -> None:
        for (task, attempt), kind in zip(sent, kinds, strict=True):
            self.passed_on += 1
            self.unstarted[task], self.positions[task] = attempt, self.passed_on
            self.needs[self.passed_on] = [share.digest for share in shares]
            self.portions |= {self.passed_on: None} if kind else {}

    @property
    def can_start(self) -> bool:
        """Whether there is a task that it has not started, and it knows everything that this task needs."""
        position = self.positions[next(iter(self.unstarted))] if self.unstarted else 0
        return bool(self.unstarted) and all(digest in self.knows for digest in self.needs[position])

    def is_of_portion(self, task: int) -> bool:
        return self.positions[task] in self.portions

    def start(self, now: float) -> tuple[int, int]:
        task = next(iter(self.unstarted))
        self.began, self.grown_at = now, inf
        self.started = self.positions[task]
        return task, self.unstarted.pop(task)

    def holds(self) -> dict[int, int]:
        return {**self.done, **self.stretch, **dict([self.running] if self.running else []), **self.unstarted}


def _heard(message: messages.Message, payload: Sequence[Buffer] = ()) -> child.Heard:
    """Encode a message of the master, as it arrives."""
    return child.Heard(message, wire.encode(message, payload))


def _sent(outgoing: Outgoing) -> tuple[messages.Message, Sequence[Buffer]]:
    """Decode a message as its receiver does."""
    return wire.decode(outgoing.received or wire.encode(outgoing.message, outgoing.payload))


def _held(child: Child) -> list[tuple[int, int, int]]:
    """Task, attempt and position of each task that a slave holds according to the agent, in order."""
    return [(span.first + at, span.attempt, span.position + at) for span in child.held for at in range(span.count)]


def _results_of(process: _Process, tasks: dict[int, int]) -> tuple[messages.Results, list[Buffer]]:
    """Results of a slave as a message. Of those of a portion, only the time of all together is known."""
    count, is_stretch = len(tasks), bool(tasks) and tasks is process.stretch
    spans = groups.spans_of([*tasks], [*tasks.values()])
    done = messages.Results(process.number, *spans, [0.1] if is_stretch else [0.1] * count, [], plain=is_stretch)
    return done, wire.encode(done, [groups.payload(count, [bytes(task % 128 for task in tasks)])])


class _AgentMachine(RuleBasedStateMachine):
    """An agent between a correct master and slaves that fail in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.processes: dict[int, _Process] = {}
        self.last_number = 0
        self.admitted: dict[int, None] = {}
        """The slaves that the master knows: they were reported as ready, and their end was not reported."""
        self.deaths: dict[int, tuple[int, dict[int, int]]] = {}
        """For each slave with an end that is not yet reported: the task that ran, and all tasks that it held."""
        self.fates: dict[tuple[int, int], str] = {}
        """The outcome of each attempt that a slave got."""
        self.killed_from: dict[tuple[int, int], float] = {}
        """The attempts that the master has cancelled, and when a slave may be killed that runs one."""
        self.killed: dict[int, None] = {}
        """The slaves that the agent has killed."""
        self.over: dict[int, Cause] = {}
        """The slaves that were killed because a task was over a limit, and the cause."""
        self.attempts: dict[int, int] = {}
        self.waiting: dict[int, None] = {}
        """Tasks that came back and may be sent again."""
        self.welcomed = False
        self.failed_starts = 0
        self.retiring: dict[int, None] = {}
        """The slaves to which the master sends nothing any more, because they will be replaced."""
        self.failures: list[LoadFailure] = []
        """Why slaves could not load an algorithm, as far as the master heard and the model did not expect it."""
        self.replaced: list[int] = []
        """For each slave that ended and is not yet replaced: how many in a row could not load an algorithm."""
        self.idle_from: float | None = None
        """Since when no slave has a task."""
        self.code: ExitCode | None = None
        """The expected exit code, when the agent must leave."""
        self.kill_from = 0.0
        """The earliest time at which slaves may be killed."""
        self.exited = False
        self.forking = 0
        """The slave that the template starts; 0 if it starts none."""
        self.template_must_end = False
        self.files: dict[str, set[int]] = {}
        """The parts that each shared object lacks at the agent."""
        self.asked: list[tuple[str, int]] = []
        """The parts that the agent has asked for: the object, and the first byte."""
        self.stale: list[tuple[str, int]] = []
        """The same, for objects that it has dropped since."""
        self.sound = False

    @initialize(
        slaves=st.integers(1, 3),
        ready=st.integers(0, 3),
        most=st.sampled_from([inf, inf, 1, 2, 5]),
        start_s=st.sampled_from([3.0, 1000.0]),
        idle_s=st.sampled_from([inf, inf, 2.0]),
        forks=st.booleans(),
        rooms=st.lists(st.sampled_from(["room", "room", "complete", "no room"]), min_size=1, max_size=4),
        most_bytes=st.sampled_from([1 << 30, 250]),
    )
    def begin(
        self,
        slaves: int,
        ready: int,
        most: float,
        start_s: float,
        idle_s: float,
        forks: bool,
        rooms: list[str],
        most_bytes: int,
    ) -> None:
        self.slaves, self.most, self.start_s, self.idle_s = slaves, most, start_s, idle_s
        self.forks, self.rooms = forks, cycle(rooms)
        agent_settings = AgentSettings(
            messages.Hello("m", "g", "host", 1, "3.11", slaves),
            grace_s=5.0,
            idle_exit_s=None if idle_s == inf else idle_s,
            slave_max_tasks=None if most == inf else int(most),
            start_timeout_s=start_s,
            max_share_bytes=most_bytes,
            forks=forks,
        )
        self.core = AgentCore(agent_settings)
        self.sound = True
        if ready:
            self.master_welcomes()
            for number in range(ready - 1):
                if self.forking:
                    self.template_answers("forked")
                self.slave_gets_ready(number)
                self.master_sends_tasks(number, 4, False, 4)

    # What the model derives

    @property
    def named(self) -> list[int]:
        """The slaves to which the master may send something; some of them have just ended."""
        return sorted({*self.admitted, *[number - 1 for number in self.admitted if number > 1]})

    def pick(self, number: int) -> _Process:
        return self.running[number % len(self.running)]

    def settle_fate(self, task: int, attempt: int, fate: str) -> None:
        key = (task, attempt)
        assert self.fates[key] == "held", f"attempt {attempt} of task {task} was {self.fates[key]} and is now {fate}"
        self.fates[key] = fate
        if fate in ("given back", "died", "refused"):
            self.waiting[task] = None

    def leave(self, code: ExitCode, grace_s: float) -> None:
        """The first reason decides the exit code; the shortest grace period counts."""
        until = self.now + grace_s
        self.kill_from = until if self.code is None else min(self.kill_from, until)
        self.code = code if self.code is None else self.code

    # What happens

    def happens(self, event: child.AgentEvent) -> None:
        self.sound = False
        self.core.handle(event, self.now)
        self.core.check()

    def act(self) -> None:
        """Do what the core decides until it decides nothing more, as the agent's loop does."""
        self.sound = False
        more = not self.exited
        while more:
            self.leave_if_idle()
            self.core.decide(self.now)
            self.core.check()
            actions = self.core.take_actions()
            self.start(actions)
            for change in actions.share_files:
                self.change_file(change)
            self.feed(actions)
            for number, wanted in actions.recall:
                if number in self.processes:
                    self.happens(child.Recalled(number, self.processes[number].started, wanted))
            for number in actions.abort:
                process = self.processes[number]
                assert not process.ready, f"slave {number} is ready, and is ended because of its start"
                assert self.now >= process.started_at + self.start_s, f"slave {number} had no time to start"
                process.hung = process.killed = True
            for number in actions.kill:
                if cause := self.over_limit(self.processes[number]):
                    self.over[number] = cause
                elif not (self.processes[number].hung or self.runs_cancelled_task(self.processes[number])):
                    assert self.code is not None, f"slave {number} was killed without a reason"
                    assert self.now >= self.kill_from, f"slave {number} was killed too early"
                self.processes[number].killed = True
                self.killed[number] = None
            for number in actions.read_journal:
                self.journal_of(self.processes[number])
            for number in actions.check_memory:
                process = self.processes[number]
                runs_timed = process.running is not None and process.running[0] in process.limits
                began = process.began if runs_timed else 0.0
                self.happens(child.MemoryRead(number, process.started, began))
            for number, exact_above in actions.measure:
                process = self.processes[number]
                used = 2 * exact_above if process.running is not None and self.now >= process.grown_at else 0
                self.happens(child.Measured(number, process.started, used, 0))
            for number in actions.collect:
                assert self.processes[number].ended, f"slave {number} is collected though it runs"
                self.exits(self.processes[number])
            for outgoing in actions.to_master:
                assert not self.exited
                self.master_hears(*_sent(outgoing), last=actions.exit is not None and outgoing is actions.to_master[-1])
            if actions.exit is not None:
                assert isinstance(actions.to_master[-1].message, messages.Goodbye), "it left without a goodbye"
                assert actions.exit is self.code, f"it exits with {actions.exit.name}"
                assert all(process.killed for process in self.processes.values()), "it left a slave behind"
                self.exited = True
            looked = actions.read_journal, actions.check_memory, actions.measure, actions.share_files
            started = actions.start, actions.fork
            more = any((*looked, *started, actions.recall, actions.collect)) and not self.exited
        if not self.exited:
            self.agree()
        self.sound = True

    def leave_if_idle(self) -> None:
        children = self.core.children.values()
        is_idle = any(child.is_ready for child in children) and not any(child.held for child in children)
        self.idle_from = None if not is_idle else self.now if self.idle_from is None else self.idle_from
        if self.code is None and self.idle_from is not None and self.now >= self.idle_from + self.idle_s:
            self.leave(ExitCode.OK, 5.0)

    def start(self, actions: AgentActions) -> None:
        if actions.end_template:
            assert not self.forking, "the template ends, and starts a slave"
            self.template_must_end = False
        assert not (actions.start if self.forks else actions.fork), f"{actions.start} and {actions.fork} start wrongly"
        for number in (*actions.start, *actions.fork):
            assert self.code is None, "a slave was started while the agent leaves"
            assert not self.forking, f"the template starts {self.forking}, and has to start {number}"
            assert number > self.last_number, f"slave {number} is not new"
            self.last_number = number
            failed_before = self.replaced.pop(0) if self.replaced else 0
            self.processes[number] = _Process(number, failed_before=failed_before, started_at=self.now)
            if number in actions.fork:
                self.forking, self.processes[number].has_process = number, False

    def change_file(self, change: object) -> None:
        """Do what the agent does with the file of a shared object."""
        match change:
            case child.OpenShare(share):
                assert share.digest not in self.files, f"the {share.digest} object is here"
                room = next(self.rooms)
                if room == "no room":
                    self.happens(child.ShareNotKept(share.digest, room))
                    return
                parts = range(0, share.size, PART_BYTES)
                self.files[share.digest] = set() if room == "complete" else {*parts}
                self.happens(child.ShareOpened(replace(share, location="here"), room == "complete"))
            case child.WriteShare(digest, start, part):
                assert start in self.files[digest], f"byte {start} of the {digest} object was written twice"
                whole = min(PART_BYTES, next(each.size for each in OBJECTS if each.digest == digest) - start)
                assert len(part) == whole, f"the part at byte {start} of the {digest} object is another"
                self.files[digest].remove(start)
            case child.DropShare(digest):
                users = [process.number for process in self.processes.values() if digest in self.needed(process)]
                assert not users, f"the {digest} object is dropped, but slaves {users} need it"
                self.files.pop(digest, None)
                self.stale += [each for each in self.asked if each[0] == digest]
                self.asked = [each for each in self.asked if each[0] != digest]
            case _:
                raise AssertionError(f"{change} was not wanted")

    def needed(self, process: _Process) -> set[str]:
        """The shared objects that tasks of a slave need."""
        if process.killed or process.ended:
            return set()
        return {digest for _, _, position in self.held(process) for digest in process.needs[position]}

    def feed(self, actions: AgentActions) -> None:
        for number in actions.feed:
            if number in self.processes:
                self.processes[number].silent_from = self.now
        for number, outgoing in actions.to_slaves:
            process = self.processes.get(number)
            message, _ = _sent(outgoing)
            if process is None:
                continue  # the slave ended in the same iteration
            match message:
                case messages.Tasks():
                    kinds = zip(message.portions or [0] * len(message.counts), message.counts, strict=True)
                    own = chain.from_iterable([kind] * count for kind, count in kinds)
                    process.receive(groups.each_task(message), own, message.shares)
                    for first, count, limits in zip(message.tasks, message.counts, message.limits, strict=False):
                        ids = range(first, first + count)
                        if limits is not None and limits.seconds is not None:
                            process.limits |= dict.fromkeys(ids, limits.seconds)
                        if limits is not None and limits.memory is not None:
                            process.memory |= dict.fromkeys(ids, limits.memory)
                case messages.Revoked():
                    for task, attempt in groups.each_task(message):
                        assert process.unstarted.pop(task) == attempt, f"task {task} was taken back in a wrong attempt"
                case messages.Shutdown():
                    process.stopping = True
                case messages.ShareGiven(share, reason):
                    assert share.digest not in process.knows, f"slave {number} gets the {share.digest} object again"
                    process.knows[share.digest] = reason
                case messages.ShareForgotten(digest):
                    del process.knows[digest]

    def master_hears(self, message: messages.Message, frames: Sequence[Buffer], last: bool) -> None:
        match message:
            case messages.SlaveReady(number):
                assert number not in self.admitted, f"slave {number} is reported ready twice"
                self.admitted[number] = None
            case messages.Results():
                assert message.tasks, "results of nothing"
                entries, _ = groups.entries(message, frames)
                killed = message.slave in self.killed
                for (task, attempt), entry in zip(groups.each_task(message), entries, strict=True):
                    if not (killed and self.fates[task, attempt] == "cancelled"):  # else the master ignores it
                        self.settle_fate(task, attempt, "finished")
                    assert entry == task % 128, f"task {task} has the result of another"
            case messages.Revoked():
                process = self.processes.get(message.slave)
                for task, attempt in groups.each_task(message):
                    self.settle_fate(task, attempt, "given back")
                    if message.late and process is not None:
                        waits = process.stretch.get(task) == attempt
                        assert waits, f"task {task} is given back because its result is late, but there is none"
            case messages.ShareWanted(digest, start):
                assert (digest, start) not in self.asked, f"byte {start} of the {digest} object is asked for twice"
                self.asked.append((digest, start))
                assert len(self.asked) <= PARTS_COMING, "too many parts are on their way"
            case messages.Checkpoint(_, task, attempt):
                assert self.fates[task, attempt] == "held", f"task {task} leaves a state, and has ended"
            case messages.AlgorithmFailed():
                self.failures.append(message.failure)
                for task, attempt in groups.each_task(message):
                    self.settle_fate(task, attempt, "refused")
            case messages.SlaveDied(number, running, cause):
                ran, held = self.deaths.pop(number)
                limited = cause if cause in (Cause.TIME_LIMIT, Cause.OUT_OF_MEMORY) else None
                assert limited is self.over.get(number), f"slave {number} ended: {cause}"
                assert running == ran, f"slave {number} ran {ran} when it died, and {running} is charged"
                assert not ran or self.fates[ran, held[ran]] == "held", f"task {ran} ran, and had another fate before"
                for task, attempt in held.items():
                    if self.fates[task, attempt] == "held":  # else the task was given back just before
                        self.settle_fate(task, attempt, "died")
                self.admitted.pop(number, None)
            case messages.SlaveRetiring(number):
                assert number in self.admitted, f"slave {number} retires, and the master does not know it"
                assert number not in self.retiring, f"slave {number} retires twice"
                self.retiring[number] = None
            case messages.Leaving():
                assert self.code is not None, "it leaves without a reason"
            case messages.Goodbye():
                assert last, "it said goodbye and went on"
            case _:
                raise AssertionError(f"{message} is not for a master")

    def agree(self) -> None:
        assert not self.deaths, f"the master did not hear of the end of {list(self.deaths)}"
        living = {number: process for number, process in self.processes.items() if not process.killed}
        held = {number: _held(child) for number, child in self.core.children.items() if number in living}
        mine = {number: self.held(process) for number, process in living.items()}
        assert held == mine, "the agent and its slaves disagree about the tasks that are held"
        for process in [process for process in living.values() if process.running and not process.ended]:
            assert not self.over_limit(process, 2 * LOOK_S, 2 * MEASURE_S), (
                f"slave {process.number} runs {process.running} for too long"
            )
            assert not self.runs_cancelled_task(process), f"slave {process.number} still runs {process.running}"
        for process in [process for process in living.values() if process.running and not process.ended]:
            late = [task for task, attempt in process.stretch.items() if self.fates[task, attempt] == "held"]
            stuck_from = max(process.silent_from, process.began)
            assert not late or self.now < stuck_from + LATE_S + AGAIN_S, f"the results of tasks {late} are late"
        assert not self.template_must_end, "the template cannot fork, and stays"
        for process in living.values():
            missing = self.needed(process) - process.knows.keys()
            assert not missing or self.asked or self.stale, f"slave {process.number} waits for {missing} forever"
            hangs = not process.ready and not process.ended and self.now >= process.started_at + self.start_s
            assert not hangs, f"slave {process.number} hangs in its start"
            waits = process.number in self.retiring and not process.stopping and not self.held(process)
            assert not waits, f"slave {process.number} retires, has nothing to do and does not end"
        if self.code is None:
            wait = self.slaves - len(self.processes) if self.forking else 0
            assert len(self.processes) + wait == (self.slaves if self.welcomed else 0), "there are too few slaves"
        else:
            assert self.processes, "it has no slaves and does not exit"
            late = [process.number for process in self.processes.values() if not process.killed]
            assert not late or self.now < self.kill_from, f"slaves {late} outlive their grace period"
            assert all(process.stopping for process in living.values()), "a slave was not asked to stop"
            assert not any(process.unstarted for process in living.values()), "it keeps unstarted tasks"

    def runs_cancelled_task(self, process: _Process) -> bool:
        """Whether the last task that a slave started, and perhaps finished, is cancelled and was spared long enough."""
        last = next((task for task, position in process.positions.items() if position == process.started), 0)
        return self.now >= self.killed_from.get((last, self.attempts.get(last, 0)), inf)

    def over_limit(self, process: _Process, late_s: float = 0.0, grown_s: float = 0.0) -> Cause | None:
        """The limit that the task of a slave exceeds: that of time for `late_s`, or that of memory for `grown_s`."""
        task = process.running[0] if process.running else 0
        if task in process.memory and self.now >= process.grown_at + grown_s:
            return Cause.OUT_OF_MEMORY
        late = task in process.limits and self.now >= process.began + process.limits[task] + late_s
        return Cause.TIME_LIMIT if late else None

    def held(self, process: _Process) -> list[tuple[int, int, int]]:
        """Task, attempt and position of the tasks that a slave holds, in order, except tasks that were reported."""
        held = [(task, attempt) for task, attempt in process.holds().items() if self.fates[task, attempt] == "held"]
        return sorted(((task, attempt, process.positions[task]) for task, attempt in held), key=lambda each: each[2])

    # What the master does

    @precondition(lambda self: not self.exited)
    @rule()
    def master_welcomes(self) -> None:
        self.welcomed = self.welcomed or self.code is None
        self.happens(_heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)))
        self.happens(_heard(messages.Algorithms([messages.AlgorithmDefinition(0, "f", "m:f", "", "3.11")])))
        self.act()

    @precondition(lambda self: not self.exited and self.named)
    @rule(
        pick=picks,
        count=st.integers(1, 4),
        again=st.booleans(),
        cut=st.integers(0, 4),
        limits=st.sampled_from([None, None, Limits(0.2), Limits(3.0), Limits(None, 500), Limits(3.0, 900)]),
        portions=st.sampled_from([(0, 0), (0, 0), (ARGUMENTS, ARGUMENTS), (ARGUMENTS, ARGUMENTS), (ARGUMENTS, 0)]),
        shares=st.sampled_from([[], [], [], [OBJECTS[0]], [OBJECTS[2]], [*OBJECTS[:2]]]),
    )
    def master_sends_tasks(
        self,
        pick: int,
        count: int,
        again: bool,
        cut: int,
        limits: Limits | None = None,
        portions: tuple[int, int] = (0, 0),
        shares: Sequence[Share] = (),
    ) -> None:
        """Send new tasks, or tasks that came back, in one or two groups of spans. The slave may already have ended.
        Tasks of portions have no limits."""
        number = self.named[pick % len(self.named)]
        tasks = list(self.waiting)[:count] if again else []
        tasks = tasks or [len(self.attempts) + position for position in range(1, count + 1)]
        for task in tasks:
            self.attempts[task] = self.attempts.get(task, 0) + 1
            self.waiting.pop(task, None)
            if number in self.processes:
                self.fates[task, self.attempts[task]] = "held"
            else:
                self.waiting[task] = None
        parts = [[(task, self.attempts[task]) for task in part] for part in (tasks[:cut], tasks[cut:])]
        spans = [groups.spans_of(*zip(*part, strict=True)) if part else ([], [], []) for part in parts]
        firsts, counts, attempts = map(list, map(chain.from_iterable, zip(*spans, strict=True)))
        column: list[Limits | None] = [limits] * len(firsts) if limits and not any(portions) else []
        kinds = [kind for kind, part in zip(portions, spans, strict=True) for _ in part[0]] if any(portions) else []
        group = messages.Tasks(
            number, firsts, counts, attempts, [0] * len(firsts), limits=column, shares=[*shares], portions=kinds
        )
        self.happens(_heard(group, (groups.payload(len(tasks), [bytes(len(tasks))]),)))
        self.act()

    @precondition(lambda self: not self.exited and self.named)
    @rule(pick=picks, count=st.integers(1, 3))
    def master_revokes(self, pick: int, count: int) -> None:
        number = self.named[pick % len(self.named)]
        self.happens(_heard(messages.Revoke(number, count)))
        self.act()

    @precondition(lambda self: not self.exited and "held" in self.fates.values())
    @rule(chosen=st.lists(picks, min_size=1, max_size=4), running=st.booleans(), kill=st.booleans())
    def master_cancels(self, chosen: list[int], running: bool, kill: bool) -> None:
        """Some tasks that slaves hold, often those that run; and a task that no slave holds."""
        runs = [process.running for process in self.processes.values() if process.running]
        keys = [key for key, fate in self.fates.items() if fate == "held" and (not running or key in runs)]
        cancelled = {keys[pick % len(keys)] for pick in chosen} if keys else set()
        if kill:
            for key in cancelled:
                self.fates[key] = "cancelled"
                self.killed_from[key] = self.now + SPARED_S
        tasks = sorted(task for task, _ in cancelled)
        firsts, counts, _ = groups.spans_of([*tasks, 10**6], [1] * (len(tasks) + 1))
        self.happens(_heard(messages.Cancel(firsts, counts, kill)))
        self.act()

    @precondition(lambda self: not self.exited and self.named)
    @rule(pick=picks)
    def master_names_and_defines(self, pick: int) -> None:
        number = self.named[pick % len(self.named)]
        definition = messages.AlgorithmDefinition(0, "max", "builtins:max", "", "3.11")
        self.happens(_heard(messages.SlaveNamed(number, SlaveId(f"SLAVE-{number}"))))
        self.happens(_heard(messages.Algorithms([definition])))
        self.act()

    @precondition(lambda self: not self.exited and (self.asked or self.stale))
    @rule(pick=picks, times=st.integers(1, 6))
    def master_sends_parts(self, pick: int, times: int) -> None:
        """Parts of shared objects arrive, usually in the order in which the agent has asked for them."""
        for _ in range(times):
            waiting = self.asked if self.asked and (pick % 4 or not self.stale) else self.stale
            if waiting:
                digest, start = waiting.pop(pick % len(waiting) if pick % 3 == 0 else 0)
                size = next(each.size for each in OBJECTS if each.digest == digest)
                self.happens(_heard(messages.SharePart(digest, start), [PART[: size - start]]))
                self.act()

    @precondition(lambda self: not self.exited)
    @rule(pick=picks)
    def master_has_no_shared_object(self, pick: int) -> None:
        """All tasks that need it have ended, as the master knows."""
        digest = OBJECTS[pick % len(OBJECTS)].digest
        if not any(digest in self.needed(process) for process in self.processes.values()):
            self.happens(_heard(messages.ShareGone(digest)))
            self.act()

    # What the template does; if it ends while it starts a slave, this is the end of the slave

    @precondition(lambda self: not self.exited and self.forking)
    @rule(how=st.sampled_from(["forked", "forked", "forked", "forked", "unsafe", "failed"]))
    def template_answers(self, how: str) -> None:
        """It has forked a slave, has become the slave because it must not fork, or cannot fork."""
        process = self.processes[self.forking]
        if process.ended:
            return
        self.forking, self.forks = 0, self.forks and how == "forked"
        process.has_process = True
        if how == "failed":
            process.ended = self.template_must_end = True
            self.is_gone(process)
            self.happens(child.NotForked(process.number, "no memory"))
            self.gives_up()
        else:
            process.started_at = process.started_at if process.hung else self.now
            self.happens(child.Forked(process.number, "it has a generator" if how == "unsafe" else ""))
        self.act()

    # What slaves do

    @precondition(lambda self: not self.exited and self.running)
    @rule(pick=picks)
    def slave_gets_ready(self, pick: int) -> None:
        starting = [process for process in self.running if process.has_process and not process.ready]
        if starting:
            self.gets_ready(starting[pick % len(starting)])
            self.act()

    @property
    def running(self) -> list[_Process]:
        return [process for process in self.processes.values() if not process.ended]

    def gets_ready(self, process: _Process) -> None:
        process.ready, process.silent_from = True, self.now
        self.failed_starts = self.failed_starts if process.stopping or process.killed else 0
        ready = messages.SlaveReady(process.number)
        self.happens(child.SlaveHeard(process.number, ready, wire.encode(ready)))

    @precondition(lambda self: not self.exited and self.running)
    @rule(pick=picks, times=st.integers(1, 3))
    def slave_works(self, pick: int, times: int) -> None:
        """A slave ends its task, if it runs one, and starts the next. The agent does not notice this, unless results
        must not wait."""
        process = self.pick(pick)
        for _ in range(times):
            if process.running is not None:
                task, attempt = process.running
                process.running = None
                (process.stretch if process.is_of_portion(task) else process.done)[task] = attempt
                if process.stretch and self.now // STRETCH_S > process.silent_from // STRETCH_S:
                    self.sends_results(process)
            if process.can_start:
                if process.done if process.is_of_portion(next(iter(process.unstarted))) else process.stretch:
                    self.sends_results(process)
                process.running = process.start(self.now)
                process.ran += 1
                assert process.ran <= self.most, f"slave {process.number} runs {process.ran} tasks"
                for digest in process.needs[process.started]:
                    here = process.knows[digest] or self.files.get(digest) == set()
                    assert here, f"slave {process.number} runs a task without the {digest} object"
        if process.running is None and process.stretch:  # it has nothing to do but to send them
            self.sends_results(process)
        if not self.sound:
            self.act()

    @property
    def idle(self) -> list[_Process]:
        """The slaves that hold no task, and get some if the master sends them."""
        return [process for process in self.running if process.number in self.admitted and not process.holds()]

    @precondition(lambda self: not self.exited and self.idle)
    @rule(pick=picks, count=st.integers(2, 4), seconds=st.sampled_from([0.02, 0.1]), states=st.booleans())
    def task_of_a_portion_takes_long(self, pick: int, count: int, seconds: float, states: bool) -> None:
        """The results of the tasks before it wait. It may leave states meanwhile."""
        process = self.idle[pick % len(self.idle)]
        self.master_sends_tasks(self.named.index(process.number), count, False, 4, None, (ARGUMENTS, ARGUMENTS))
        self.slave_works(self.running.index(process), count)
        for _ in range(3 if states else 1):
            self.time_passes(seconds)
            if states and not self.exited and process in self.running:
                self.task_leaves_a_state(self.running.index(process))

    @precondition(lambda self: not self.exited and self.idle)
    @rule(pick=picks, objects=st.lists(st.sampled_from(OBJECTS), min_size=1, max_size=4))
    def tasks_need_shared_objects(self, pick: int, objects: list[Share]) -> None:
        """A slave runs a task with each object, one after the other. The agent drops some of these objects."""
        process = self.idle[pick % len(self.idle)]
        for share in objects:
            if process in self.idle and process.number in self.named:
                self.master_sends_tasks(self.named.index(process.number), 1, False, 4, None, (0, 0), [share])
                while self.asked and not self.exited:
                    self.master_sends_parts(1, 6)
                if process in self.running:
                    self.slave_works(self.running.index(process), 2)
                    self.sends_results(process)
                    self.act()

    @precondition(lambda self: not self.exited and self.running)
    @rule(pick=picks)
    def task_leaves_a_state(self, pick: int) -> None:
        """A slave sends the results in its journal before, but not those of a stretch."""
        process = self.pick(pick)
        if process.running is not None:
            if not process.is_of_portion(process.running[0]):
                self.sends_results(process)
                process.silent_from = self.now
            state = messages.Checkpoint(process.number, *process.running)
            self.happens(child.SlaveHeard(process.number, state, wire.encode(state, [b"state"])))
            self.act()

    @precondition(lambda self: not self.exited and self.running)
    @rule(pick=picks)
    def slave_grows(self, pick: int) -> None:
        """A slave has too much memory, and reports it. It finishes its task, and ends."""
        process = self.pick(pick)
        if process.ready:
            self.sends_results(process)
            process.silent_from = self.now
            grown = messages.SlaveGrown(process.number, 1 << 30)
            self.happens(child.SlaveHeard(process.number, grown, wire.encode(grown)))
            self.act()
            assert process.stopping or process.killed, f"slave {process.number} has too much memory and stays"
            assert not process.unstarted or process.killed, f"slave {process.number} keeps unstarted tasks"

    @precondition(lambda self: not self.exited and self.running)
    @rule(pick=picks)
    def task_uses_memory(self, pick: int) -> None:
        self.pick(pick).grown_at = self.now

    @precondition(lambda self: not self.exited and self.running)
    @rule(pick=picks, rescued=st.booleans())
    def slave_sends_results(self, pick: int, rescued: bool) -> None:
        """The agent may also read the results in the journal. Then the slave sends them again later."""
        full = [process for process in self.running if process.done or process.stretch]
        process = full[pick % len(full)] if full else self.pick(pick)
        if rescued:
            self.journal_of(process)
        else:
            self.sends_results(process)
        self.act()

    def journal_of(self, process: _Process) -> None:
        """The agent reads the results in the journal, in the order in which the tasks ended."""
        done, frames = _results_of(process, process.done)
        self.happens(child.JournalRead(process.number, done, frames, process.started))

    def sends_results(self, process: _Process) -> None:
        """A slave sends the results in its journal and of its stretch."""
        for tasks in (process.done, process.stretch):
            if tasks:
                done, frames = _results_of(process, tasks)
                self.happens(child.SlaveHeard(process.number, done, frames))
                process.silent_from = self.now
        process.done, process.stretch = {}, {}

    @precondition(lambda self: not self.exited and self.running)
    @rule(pick=picks, failure=st.sampled_from([LoadFailure.SURE, LoadFailure.PASSING]))
    def slave_cannot(self, pick: int, failure: LoadFailure) -> None:
        """A slave whose failure may pass is stopped and replaced. After three in a row, the last one is kept."""
        process = self.pick(pick)
        if process.can_start and process.running is None:
            self.sends_results(process)
            process.silent_from = self.now
            stopping = process.stopping
            task, attempt = process.start(self.now)
            refusal = messages.AlgorithmFailed(process.number, 0, "no memory", [task], [1], [attempt], failure)
            self.happens(child.SlaveHeard(process.number, refusal, wire.encode(refusal)))
            self.act()
            if failure is LoadFailure.PASSING and process.failed_before < FAILED_LOADS_ALLOWED - 1:
                assert self.failures.pop() is failure, "a slave was kept that should be replaced"
                assert process.stopping, "a slave that will be replaced was not asked to stop"
                process.load_failed = process.load_failed or not stopping
            else:
                expected = LoadFailure.REPEATED if failure is LoadFailure.PASSING else LoadFailure.SURE
                assert self.failures.pop() is expected
                retires = process.number in self.retiring  # this was the last task that it could get
                assert process.stopping == stopping or retires, "a slave for other algorithms was asked to stop"

    @precondition(lambda self: not self.exited and self.running)
    @rule(times=st.integers(1, 4))
    def loads_fail_in_a_row(self, times: int) -> None:
        """The last slave and its replacements cannot load an algorithm."""
        for _ in range(times):
            if self.exited or not self.running:
                return
            process = self.running[-1]
            if not process.has_process:
                self.template_answers("forked")
            if not process.ready and process in self.running:
                self.gets_ready(process)
                self.act()
            if process.number not in self.named:
                return  # the agent leaves
            self.master_sends_tasks(self.named.index(process.number), 1, False, 1)
            self.slave_cannot(len(self.running) - 1, LoadFailure.PASSING)
            if process.stopping and process.number in self.processes:
                process.ended = True
                self.happens(child.ExitSeen(process.number, False))
                self.act()

    @precondition(lambda self: not self.exited and self.running)
    @rule(
        pick=picks,
        before=st.sampled_from(["", "", "", "revoke", "revoke", "ready", "ready", "evicted", "lost"]),
        holding=st.booleans(),
        killed=st.booleans(),
    )
    def slave_ends(self, pick: int, before: str, holding: bool, killed: bool) -> None:
        """A slave ends by itself, is killed or crashes, perhaps in the same iteration as another event."""
        process = self.pick(pick)
        if holding:
            process = max(self.running, key=lambda each: len(each.unstarted))
        elif process.has_process and not process.ready and pick % 3:
            self.gets_ready(process)
            self.act()
        if before == "revoke":
            self.happens(_heard(messages.Revoke(process.number, 2)))
        elif before == "ready" and process.has_process and not process.ready:
            self.gets_ready(process)
        elif before == "evicted":
            self.must_leave(child.Terminated("evicted"), ExitCode.EVICTED, 5.0)
        elif before == "lost":
            self.must_leave(child.Disconnected("broke"), ExitCode.FAILED, 2.0)
        process.ended = True
        self.happens(child.ExitSeen(process.number, killed))
        self.act()
        if process.number in self.processes:
            assert killed, f"slave {process.number} ended by itself, and is not collected at once"
            assert self.code is None, f"the agent leaves, and slave {process.number} is not collected at once"

    def exits(self, process: _Process) -> None:
        """The agent first reads the stream and the journal, and then reports the exit."""
        self.journal_of(process)
        process.done = {}
        self.is_gone(process)
        self.happens(
            child.SlaveExited(process.number, "killed by signal 9", LastWords(stderr="last words"), process.started)
        )
        self.gives_up()

    def is_gone(self, process: _Process) -> None:
        """The end of a slave will be reported to the master."""
        ran = process.running[0] if process.running and self.fates[process.running] == "held" else 0
        del self.processes[process.number]
        self.forking = 0 if process.number == self.forking else self.forking  # then it was the template that has ended
        self.replaced.append(process.failed_before + 1 if process.load_failed else 0)
        self.deaths[process.number] = (ran, process.holds())
        if self.code is None:
            self.failed_starts += not process.ready

    def gives_up(self) -> None:
        """The agent leaves if too many slaves in a row have failed to start."""
        if self.failed_starts >= 3:
            self.leave(ExitCode.CANNOT_START, 5.0)

    # The end

    def must_leave(self, event: child.AgentEvent, code: ExitCode, grace_s: float) -> None:
        self.leave(code, grace_s)
        self.happens(event)

    @precondition(lambda self: not self.exited)
    @rule(
        how=st.sampled_from(["evicted", "lost", "refused", "finished", "failed"]),
        grace_s=st.sampled_from([0.5, 4.0, 20.0]),
        really=st.integers(0, 7),
    )
    def agent_must_leave(self, how: str, grace_s: float, really: int) -> None:
        """The agent must leave, for one or several reasons. This is rare, so that other events happen before."""
        if self.code is None and really != 5:
            return
        if how == "evicted":
            self.must_leave(child.Terminated("evicted"), ExitCode.EVICTED, 5.0)
        elif how == "lost":
            self.must_leave(child.Disconnected("broke"), ExitCode.FAILED, 2.0)
        elif how == "refused":
            self.must_leave(_heard(messages.Refused("nonsense")), ExitCode.REFUSED, 2.0)
        else:
            code = ExitCode.OK if how == "finished" else ExitCode.FAILED
            self.must_leave(_heard(messages.Shutdown(how == "finished", grace_s)), code, grace_s)
        self.act()

    @rule(seconds=st.sampled_from([0.02, 0.1, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        while not self.exited and (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now + 0.001, due)
            self.act()
        self.now = max(until, self.now)
        self.act()

    def teardown(self) -> None:
        """An agent that must leave exits within its grace period, even if no slave ends by itself."""
        if not self.sound:
            return
        if not self.exited:
            self.must_leave(child.Terminated("evicted"), ExitCode.EVICTED, 5.0)
            self.act()
            self.time_passes(10.0)
        assert self.exited, "it must leave and does not exit"
        assert not self.deaths, f"the master did not hear of the end of {list(self.deaths)}"


def test_an_agent_loses_no_task_and_leaves_when_it_must() -> None:
    """Each task that the agent got is finished, given back or reported as lost exactly once, or the agent is gone."""
    run_state_machine_as_test(_AgentMachine, settings=settings(max_examples=250, stateful_step_count=60))
