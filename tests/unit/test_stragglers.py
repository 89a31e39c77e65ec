"""Stragglers: which tasks get a second attempt, when and where, and what the end of each attempt means."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define, field
from msgspec.structs import replace
from tests.spans import MAX, MIN, held_by, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import Actions, CancelTasks, Event, MasterSettings, Received, Running, Vanished
from mwpy._roles.definitions import Definitions, TermsOf
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.algorithm import algorithm_of
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.errors import InternalError, TaskCancelled, UsageError
from mwpy._values.last_words import NO_WORDS, Death
from mwpy._values.options import parse
from mwpy._values.policy import MaxFailures, TaskPolicy

SPECULATE = TaskPolicy(speculate=True)
NOWHERE = records.TaskRange(9, 1, 2, 0, "max")
"""A task that no slave holds."""


def _core() -> MasterCore:
    core = MasterCore(MasterSettings("m", "g", max_failures=MaxFailures(3)))
    for algorithm in (MAX, MIN):
        core.definitions.add(Defined(algorithm))
    return core


@define(eq=False)
class Master:
    """A core, its clock and its agents. Slave `a1` is the first slave of the agent `a`."""

    core: MasterCore = field(factory=_core)
    now: float = 1000.0
    tasks: int = 0
    sids: dict[str, str] = field(factory=dict)
    actions: Actions = field(factory=Actions)
    """What the last step has caused."""

    def step(self, event: Event | None = None) -> Actions:
        if event is not None:
            self.core.handle(event, self.now)
            self.core.check()
        self.core.decide(self.now)
        self.core.check()
        self.actions = self.core.take_actions()
        return self.actions

    def receive(self, agent: str, message: messages.Message, *frames: bytes) -> Actions:
        return self.step(Received(agent.encode(), "here", message, frames))

    def agent(self, name: str, slaves: int = 1, host: str = "", left_s: float | None = None) -> None:
        hello = messages.Hello("m", "g", host or f"host of {name}", 1, "3.11", slaves, seconds_left=left_s)
        self.receive(name, hello)
        for number in range(1, slaves + 1):
            self.sids[f"{name}{number}"] = f"SLAVE-{len(self.sids)}"
            self.receive(name, messages.SlaveReady(number))

    def submit(self, policy: TaskPolicy = SPECULATE, count: int = 1) -> int:
        """Submit tasks. Return the id of the first."""
        first = self.tasks + 1
        self.tasks += count
        self.core.submit([span(first, MAX, count, policy=policy, tag="tag")])
        self.step()
        return first

    def answer(self, slave: str, task: int, attempt: int = 1, seconds: float = 0.1, *, fails: bool = False) -> Actions:
        """A slave sends the result of a task: the number of the attempt, or a failure that may be tried again."""
        value = Codec().dumps_failure(OSError("busy")) if fails else bytes([attempt])
        group = messages.Results(int(slave[1]), [task], [1], [attempt], [seconds], [0][:fails], again=[0][:fails])
        return self.receive(slave[0], group, groups.payload(1, [value]))

    def know(self, seconds: float = 0.1, count: int = 3) -> None:
        """Let tasks end, so that it is known how long they take. Slave `a1` is there, and no other."""
        for _ in range(count):
            self.answer("a1", self.submit(), seconds=seconds)

    def pass_time(self, seconds: float) -> Actions:
        self.now += seconds
        return self.step()

    def held(self, slave: str) -> list[int]:
        return held_by(self.core, self.sids[slave])

    def of(self, kind: type[records.Record]) -> list[Any]:
        """The records of a kind that the last step has caused."""
        return [record for record in self.actions.records if isinstance(record, kind)]

    def killed(self) -> list[tuple[bytes, messages.Message]]:
        """The cancellations that the last step has caused."""
        return [(send.peer, send.message) for send in self.actions.sends if isinstance(send.message, messages.Cancel)]

    def dies(self, slave: str, task: int, cause: Cause = Cause.CRASH) -> Actions:
        return self.receive(slave[0], messages.SlaveDied(int(slave[1]), task, cause, "it died", NO_WORDS))


@pytest.fixture
def master() -> Master:
    """A master with one slave that has run three tasks of 0.1 s."""
    master = Master()
    master.agent("a")
    master.know()
    return master


@pytest.fixture
def pair(master: Master) -> Master:
    """A master with task 4, which `a1` has in its first attempt and `b1` in its second."""
    assert master.submit() == 4
    master.agent("b")
    master.pass_time(1.0)
    assert (master.held("a1"), master.held("b1")) == ([4], [4])
    return master


# When and where


def test_a_straggler_gets_a_second_attempt_elsewhere_as_soon_as_it_is_one(master: Master) -> None:
    """The core asks to be called at that moment. The new slave gets the task as any other task."""
    task = master.submit()
    master.agent("b")
    assert master.core.next_deadline() == 1001.0
    master.pass_time(0.999)
    assert master.held("b1") == []
    actions = master.pass_time(0.001)
    assert (master.held("a1"), master.held("b1")) == ([task], [task])
    [started] = master.of(records.AttemptsStarted)
    assert (started.sid, started.beside) == ("SLAVE-1", "SLAVE-0")
    assert [(each.first, each.attempt) for each in started.tasks] == [(task, 2)]
    assert started.reason == "it has run for 1 s, and others took 0.1 s on average"
    definition, tasks = [send.message for send in actions.sends if send.peer == b"b"]
    assert isinstance(definition, messages.Algorithms)
    assert tasks == messages.Tasks(1, [task], [1], [2], [0])


def test_a_straggler_has_run_three_times_as_long_as_the_mean(master: Master) -> None:
    """The mean counts each task that has ended."""
    master.answer("a1", master.submit(), seconds=11.7)
    master.submit()
    master.agent("b")
    master.pass_time(8.9)
    assert master.held("b1") == []
    master.pass_time(0.2)
    assert master.held("b1") == [5]


def test_a_straggler_has_also_run_three_times_as_long_as_its_policy_says(master: Master) -> None:
    """So a task that is known to be long is none. The agent of the second attempt must have enough time left."""
    master.submit(replace(SPECULATE, seconds_expected=10.0))
    master.agent("b", left_s=39.9)
    master.agent("c", left_s=100.0)
    master.pass_time(29.9)
    assert (master.held("b1"), master.held("c1")) == ([], [])
    master.pass_time(0.1)
    assert (master.held("b1"), master.held("c1")) == ([], [4])


def test_nothing_is_a_straggler_while_too_few_tasks_have_ended() -> None:
    master = Master()
    master.agent("a")
    master.know(count=2)
    master.submit()
    master.agent("b")
    master.pass_time(1000.0)
    assert master.held("b1") == []


@pytest.mark.parametrize(
    "policy",
    [
        TaskPolicy(),
        replace(SPECULATE, retry=False),
        replace(SPECULATE, attempts_max=1),
        replace(SPECULATE, sid=SlaveId("SLAVE-0")),
    ],
    ids=["not wanted", "once", "no attempt to lose", "addressed"],
)
def test_some_tasks_never_get_a_second_attempt(master: Master, policy: TaskPolicy) -> None:
    master.submit(policy)
    master.agent("b")
    master.pass_time(1000.0)
    assert (master.held("a1"), master.held("b1")) == ([4], [])


def test_the_place_is_at_another_agent_and_best_on_another_host(master: Master) -> None:
    """Of several, it is the slave that has been idle for the longest time."""
    task = master.submit()
    for name, host in (("b", "host of a"), ("c", "far"), ("d", "far")):
        master.agent(name, host=host)
    master.pass_time(1.0)
    assert [master.held(f"{name}1") for name in "abcd"] == [[task], [], [task], []]


def test_without_another_host_another_agent_is_enough_and_the_same_agent_is_not(master: Master) -> None:
    task = master.submit()
    master.receive("a", messages.Goodbye("over", Cause.EVICTED))
    master.agent("b", slaves=2)
    master.agent("c", host="host of b")
    [holder] = [slave for slave in ("b1", "b2", "c1") if master.held(slave) == [task]]
    assert holder == "b1"
    master.receive("c", messages.Leaving("over", Cause.EVICTED))
    master.pass_time(5.0)
    assert (master.held("b2"), master.held("c1")) == ([], [])
    master.agent("d", host="host of b")
    assert master.held("d1") == [task]


def test_a_slave_that_cannot_run_the_algorithm_or_runs_only_addressed_tasks_gets_no_second_attempt(
    master: Master,
) -> None:
    task = master.submit()
    master.agent("b")
    master.receive("b", messages.AlgorithmFailed(1, 0, "no module", [], [], []))
    master.pass_time(5.0)
    assert master.held("b1") == []
    master.agent("c")
    assert master.held("c1") == [task]


def test_the_core_looks_again_when_the_first_of_several_tasks_becomes_a_straggler(master: Master) -> None:
    master.submit()
    master.agent("b")
    master.now += 0.5
    master.submit()
    master.agent("c")
    assert [master.held(slave) for slave in ("a1", "b1", "c1")] == [[4], [5], []]
    assert master.core.next_deadline() == 1001.0


def test_a_task_has_at_most_two_live_attempts(pair: Master) -> None:
    pair.agent("c")
    pair.pass_time(1000.0)
    assert pair.held("c1") == []
    assert pair.core.next_deadline() != pair.now


def test_no_second_attempt_starts_while_nothing_is_sent(master: Master) -> None:
    """Too many results wait. The core waits for the algorithm, and has no deadline in the past."""
    task = master.submit()
    master.agent("b")
    assert master.core.next_deadline() == 1001.0
    master.core.feeding.unfetched = 1 << 40
    master.pass_time(1000.0)
    assert master.held("b1") == []
    deadline = master.core.next_deadline()
    assert deadline is None or deadline > master.now
    master.core.feeding.unfetched = 0
    master.step()
    assert master.held("b1") == [task]


def test_no_second_attempt_starts_while_a_task_waits(master: Master) -> None:
    """It waits for a slave that can run its algorithm."""
    task = master.submit()
    master.agent("b")
    master.receive("b", messages.AlgorithmFailed(1, 1, "no module", [], [], []))
    other = span(5, MIN)
    master.core.submit([other])
    master.receive("a", messages.AlgorithmFailed(1, 1, "no module", [], [], []))
    master.pass_time(1000.0)
    assert (master.held("b1"), master.core.state.jar.pending.count) == ([], 1)
    master.core.obey(CancelTasks([(5, 1)], Running.KILL))
    master.step()
    assert master.held("b1") == [task]


def test_the_longest_running_task_is_first_and_those_behind_a_running_task_wait(master: Master) -> None:
    first = master.submit()
    master.agent("b")
    master.now += 0.5
    second, third = master.submit(), master.submit()
    assert (master.held("a1"), master.held("b1")) == ([first, third], [second])
    master.now += 100.0
    master.agent("c")
    assert master.held("c1") == [first]
    master.agent("d")
    assert master.held("d1") == [second]


# How attempts end


@pytest.mark.parametrize(("first", "other", "attempt"), [("a1", "b1", 1), ("b1", "a1", 2)])
def test_the_first_answer_wins_and_the_other_attempt_is_killed(
    pair: Master, first: str, other: str, attempt: int
) -> None:
    """A late result of the other attempt does not count. Its slave is free for other tasks."""
    [result] = pair.answer(first, 4, attempt).results
    assert (result.value, result.attempts, result.sid, result.tag) == (attempt, 2, pair.sids[first], "tag")
    assert pair.killed() == [(other[0].encode(), messages.Cancel([4], [1], kill=True))]
    [ended] = pair.of(records.AttemptsEnded)
    assert (ended.sid, ended.tasks[0].attempt, ended.charges) == (pair.sids[other], 3 - attempt, ())
    assert ended.reason == f"{pair.sids[first]} has answered"
    assert (pair.held("a1"), pair.held("b1"), pair.core.state.jar.runnable) == ([], [], 0)
    assert pair.answer(other, 4, 3 - attempt).results == []
    pair.dies(other, 0, Cause.CANCELLED)
    assert not pair.actions.unrunnable


def test_an_exception_is_an_answer(pair: Master) -> None:
    [result] = pair.answer("b1", 4, 2, fails=True).results
    assert not result.ok
    assert len(pair.killed()) == 1


def test_after_an_exception_that_may_pass_the_other_attempt_may_answer(master: Master) -> None:
    """The exception counts for `attempts_max`. The next attempt has a number of its own."""
    task = master.submit(replace(SPECULATE, retries_errors=True, after=5.0))
    master.agent("b")
    master.pass_time(1.0)
    assert master.answer("a1", task, 1, fails=True).results == []
    [ended] = master.of(records.AttemptsEnded)
    assert [charge.cause for charge in ended.charges] == [Cause.ERROR]
    assert (master.killed(), master.held("a1"), master.held("b1")) == ([], [], [task])
    [live] = master.core.state.jar.held[SlaveId("SLAVE-1")].spans
    assert (live.attempt, live.sent, live.charged) == (2, 2, 1)
    master.answer("b1", task, 2, fails=True)
    [returned] = master.of(records.TasksReturned)
    assert returned.pause_s == 10.0
    master.pass_time(10.0)
    assert master.held("a1") == [task]
    [result] = master.answer("a1", task, 3, fails=True).results
    assert (result.ok, result.attempts) == (False, 3)


def test_if_one_attempt_is_lost_the_other_goes_on_and_the_loss_counts(pair: Master) -> None:
    """Attempts are numbered in the order of their starts, also when the older one is the last."""
    pair.dies("b1", 4)
    [ended] = pair.of(records.AttemptsEnded)
    assert [charge.cause for charge in ended.charges] == [Cause.CRASH]
    assert (pair.held("a1"), pair.core.state.jar.pending.count) == ([4], 0)
    pair.agent("c")
    assert pair.held("c1") == [4]
    [third] = pair.core.state.jar.held[SlaveId("SLAVE-2")].spans
    assert (third.attempt, [(death.attempt, death.sid) for death in third.deaths]) == (3, [(2, "SLAVE-1")])
    pair.dies("c1", 4)
    pair.agent("d")
    assert pair.held("d1") == [], "one more loss would use up its attempts"
    [unrunnable] = pair.dies("a1", 4).unrunnable
    assert [death.attempt for death in unrunnable.deaths] == [2, 3, 1]
    assert unrunnable.result().attempts == 3


def test_an_attempt_that_is_lost_without_fault_leaves_the_other(pair: Master) -> None:
    """Only the loss of the last attempt makes the task pending."""
    pair.step(Vanished(b"a", 31.0))
    [ended] = pair.of(records.AttemptsEnded)
    assert [charge.cause for charge in ended.charges] == [Cause.NETWORK]
    assert pair.held("b1") == [4]
    pair.receive("b", messages.Goodbye("evicted", Cause.EVICTED))
    assert (pair.of(records.AttemptsEnded), len(pair.of(records.TasksReturned))) == ([], 1)
    pair.agent("c")
    [span] = pair.core.state.jar.held[SlaveId(pair.sids["c1"])].spans
    assert (span.attempt, [death.cause for death in span.deaths]) == (3, [Cause.NETWORK, Cause.EVICTED])


@pytest.mark.parametrize("how", ["revoked", "refused"])
def test_an_attempt_that_never_started_ends_without_a_charge(pair: Master, how: str) -> None:
    if how == "revoked":
        pair.receive("b", messages.Revoked(1, [4], [1], [2]))
    else:
        pair.receive("b", messages.AlgorithmFailed(1, 0, "no module", [4], [1], [2]))
    [ended] = pair.of(records.AttemptsEnded)
    assert (ended.sid, ended.charges, pair.held("a1")) == ("SLAVE-1", (), [4])
    assert pair.core.state.jar.pending.count == 0


def test_a_task_that_was_at_two_agents_that_vanished_gets_no_second_attempt(pair: Master) -> None:
    """After one more such loss it runs alone, and then it must not be anywhere else."""
    for name in "bc":
        pair.step(Vanished(name.encode(), 0.0))
        pair.agent("d" if name == "c" else "c")
    assert (pair.held("a1"), pair.held("d1")) == ([4], [])
    pair.step(Vanished(b"a", 0.0))
    assert pair.held("d1") == [4]
    assert pair.core.state.members.slaves[SlaveId(pair.sids["d1"])].agent.reserved


@pytest.mark.parametrize(
    ("cause", "losses", "left"),
    [(Cause.CRASH, 0, 2), (Cause.CRASH, 1, 1), (Cause.EVICTED, 97, 2), (Cause.AGENT_LOST, 1, 1)],
)
def test_how_many_attempts_a_task_can_lose_before_it_is_treated_otherwise(cause: Cause, losses: int, left: int) -> None:
    """One more of them makes it unrunnable, or lets it run alone."""
    one = span(1, MAX, policy=SPECULATE)
    one.deaths = tuple(Death(SlaveId("SLAVE-0"), 1, cause, "", NO_WORDS) for _ in range(losses))
    assert [one.can_lose(attempts) for attempts in (left, left + 1)] == [True, False]


def test_a_second_attempt_goes_on_from_the_state_that_the_first_left(master: Master) -> None:
    """The next attempt gets the state that any of them left last. The states are counted once."""
    task = master.submit()
    master.agent("b")
    state = b"a state"
    master.receive("a", messages.Checkpoint(1, task, 1), state)
    sent = master.pass_time(1.0).sends[-1]
    assert state in b"".join(map(bytes, sent.frames))
    jar, newer = master.core.state.jar, b"newer"
    master.receive("b", messages.Checkpoint(1, task, 2), newer)
    assert jar.left.bytes == len(newer)
    assert [span.left.frames for span in jar.spans() if span.left is not None] == [(newer,), (newer,)]
    master.receive("b", messages.Goodbye("evicted", Cause.EVICTED))
    [left] = jar.spans()
    assert left.left is not None
    assert (left.sid, left.left.num_lost) == ("SLAVE-0", 1)
    master.answer("a1", task)
    assert jar.left.bytes == 0


# Cancelling


@pytest.mark.parametrize("running", [Running.KILL, Running.DISCARD])
def test_cancelling_a_task_kills_both_attempts_and_gives_it_back_once(pair: Master, running: Running) -> None:
    pair.core.obey(CancelTasks([(4, 1)], running))
    actions = pair.step()
    assert [(command.running, ids) for command, ids in actions.cancelled if isinstance(command, CancelTasks)] == [
        (running, [4])
    ]
    assert [peer for peer, _ in pair.killed()] == [b"a", b"b"]
    assert len(actions.results) == (running is Running.KILL)
    assert all(isinstance(result.error, TaskCancelled) and result.attempts == 2 for result in actions.results)
    assert (pair.held("a1"), pair.held("b1"), pair.core.state.jar.runnable) == ([], [], 0)


def test_a_cancelled_task_may_finish_in_either_attempt(pair: Master) -> None:
    """An attempt that has not started ends. The other one answers."""
    pair.core.obey(CancelTasks([(4, 1)], Running.FINISH))
    [(_, ids)] = pair.step().cancelled
    assert ids == [4]
    pair.receive("b", messages.Revoked(1, [4], [1], [2], cancelled=True))
    assert (len(pair.of(records.AttemptsEnded)), pair.actions.results) == (1, [])
    [result] = pair.answer("a1", 4).results
    assert result.value == 1


def test_a_cancelled_task_that_may_finish_is_cancelled_when_both_attempts_are_lost(pair: Master) -> None:
    pair.core.obey(CancelTasks([(4, 1)], Running.FINISH))
    pair.step()
    assert pair.dies("a1", 4).results == []
    [result] = pair.dies("b1", 4).results
    assert isinstance(result.error, TaskCancelled)


def test_a_stop_because_of_failures_cancels_both_attempts_once(pair: Master) -> None:
    """The third failure stops the run."""
    for _ in range(3):
        task = pair.submit(TaskPolicy())
        [slave] = [slave for slave in ("a1", "b1") if task in pair.held(slave)]
        pair.answer(slave, task, fails=True)
    results = [result for result in pair.actions.results if result.task_id == 4]
    assert pair.actions.stopped is not None
    assert len(results) == 1
    assert [peer for peer, _ in pair.killed()] == [b"a", b"b"]


# The policy


def test_a_task_that_must_not_run_twice_cannot_have_a_second_attempt() -> None:
    with pytest.raises(UsageError, match="retry=False and speculate=True contradict each other"):
        TaskPolicy.of(retry=False, speculate=True)
    assert TaskPolicy.of(retry=False, speculate=False) == TaskPolicy(retry=False)
    assert TaskPolicy.of(speculate=True) == SPECULATE


def test_the_policy_for_all_tasks_leaves_out_those_that_may_run_only_once() -> None:
    """A call that says both itself is refused."""
    terms = TermsOf(Definitions(Codec()), {"speculate": True}, Codec())
    algorithm = algorithm_of(max)
    assert terms.policy(algorithm, {}) == (SPECULATE, None)
    assert terms.policy(algorithm, {"attempts_max": 2}) == (replace(SPECULATE, attempts_max=2), None)
    assert terms.policy(algorithm, {"retry": False}) == (TaskPolicy(retry=False), None)
    with pytest.raises(UsageError, match="contradict"):
        terms.policy(algorithm, {"retry": False, "speculate": True})


def test_the_option_is_a_policy_of_all_tasks() -> None:
    options, _ = parse(["--mw-speculate"])
    assert options.policies == {"speculate": True}


# Records


def test_records_that_contradict_the_live_attempts_are_refused(pair: Master) -> None:
    """An attempt ends beside others only if there are others, and starts only beside a live one."""
    jar, first = pair.core.state.jar, records.TaskRange(4, 1, 1, 0, "max")
    with pytest.raises(InternalError, match="not where the record says"):
        pair.core.state.record(records.AttemptsStarted(SlaveId("SLAVE-1"), [NOWHERE], SlaveId("SLAVE-0"), ""))
    pair.core.state.record(records.AttemptsEnded(SlaveId("SLAVE-1"), [records.TaskRange(4, 1, 2, 0, "max")], ""))
    assert not jar.allocated.several
    with pytest.raises(InternalError, match="no other attempt of it lives"):
        pair.core.state.record(records.AttemptsEnded(SlaveId("SLAVE-0"), [first], ""))
