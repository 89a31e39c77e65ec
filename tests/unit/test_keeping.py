"""Values that stay at agents: where they are, which tasks use them, how they are lost, computed again and released."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.spans import MAX, span

from mwpy._core.master import relay
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.commands import CancelTasks, ReleaseResults, Running
from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.events import Confirmed, Received, Vanished
from mwpy._core.master.state import Actions
from mwpy._simulation.replay import Replay
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.causes import Cause
from mwpy._values.errors import DependencyFailed, ProtocolError, UsageError
from mwpy._values.explanations import explained
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.last_words import NO_WORDS
from mwpy._values.message_checks import check
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.references import ResultReference
from mwpy._values.share_messages import PART_BYTES, share_of_result, task_of
from mwpy._values.shares import places_of
from mwpy._values.task import KEPT, Result, UnrunnableTask, encoded_in

CODEC = Codec()
KEEP = TaskPolicy(keep=True)
SIZE = PART_BYTES + 5


class Master:
    """A master's core, with agents of one slave each. It compares its state with what its records build."""

    def __init__(self, agents: int = 2, settings: MasterSettings | None = None) -> None:
        self.core = MasterCore(settings or MasterSettings("m", "g", task_group=1))
        self.core.definitions.add(Defined(MAX))
        self.replay = Replay()
        self.num_tasks = self.now = 0
        self.records: list[records.Record] = []
        self.results: list[Result[Any]] = []
        self.unrunnable: list[UnrunnableTask] = []
        self.sent: list[tuple[str, messages.Message]] = []
        for number in range(agents):
            self.join(number)

    def join(self, number: int) -> None:
        """An agent connects; so does its slave."""
        self.hear(number, messages.Hello("m", "g", f"host {number}", number + 1, "3.11", 1))
        self.hear(number, messages.SlaveReady(1))

    def hear(self, number: int, message: messages.Message, *frames: Buffer) -> None:
        """A message of an agent arrives."""
        self.core.handle(Received(f"peer {number}".encode(), "here", message, frames), float(self.now))
        self.turn()

    def turn(self) -> Actions:
        """Decide, and check everything."""
        self.core.decide(float(self.now))
        self.core.check()
        actions = self.core.take_actions()
        for record in actions.records:
            self.replay.recorded(record)
        self.replay.check(self.core.state)
        self.records = actions.records
        self.results += actions.results
        self.unrunnable += actions.unrunnable
        self.sent = [(send.peer.decode(), send.message) for send in actions.sends]
        return actions

    def submit(self, *numbers: int, policy: TaskPolicy = DEFAULT_POLICY) -> int:
        """Submit a task that refers to these kept tasks. Return its id."""
        self.num_tasks += 1
        payload, buffers = CODEC.dumps_call(([ResultReference(number) for number in numbers],), {}, "max")
        own = [bytes(each) for each in buffers]
        self.core.submit([span(self.num_tasks, MAX, 1, payload, policy, buffers=own, refers=numbers)])
        self.turn()
        return self.num_tasks

    def obey(self, command: Any) -> None:
        """Give a command."""
        self.core.obey(command)
        self.turn()

    def holder(self, task: int) -> int:
        """The number of the agent that has a task."""
        [agent] = [
            slave.agent
            for slave in self.core.state.members.slaves.values()
            if any(task in each.ids for each in slave.held.spans)
        ]
        return int(agent.peer.split()[1])

    def attempt(self, task: int) -> int:
        return next(each.attempt for each in self.core.state.jar.spans() if task in each.ids)

    def answer(self, task: int, *, keeps: bool = False, fails: bool = False) -> int:
        """A task ends at its agent. Return the number of this agent."""
        number, attempt = self.holder(task), self.attempt(task)
        entry = CODEC.dumps_failure(OSError("disk full")) if fails else CODEC.dumps_value(None if keeps else task)[0]
        kept = [(0, SIZE)] if keeps else []
        group = messages.Results(1, [task], [1], [attempt], [0.1], [0] if fails else [], kept=kept)
        self.hear(number, group, groups.payload(1, [entry]))
        return number

    def vanish(self, number: int) -> None:
        """An agent is gone, and says so."""
        self.hear(number, messages.Goodbye("evicted", Cause.EVICTED))

    def keep(self, policy: TaskPolicy = KEEP) -> tuple[int, int]:
        """Submit a task whose value stays at an agent. Return the task and the agent."""
        task = self.submit(policy=policy)
        return task, self.answer(task, keeps=True)

    def of(self, kind: type[records.Record]) -> list[Any]:
        """What was recorded now."""
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def state(self) -> dict[str, list[int]]:
        jar = self.core.state.jar
        return {
            "kept": sorted(jar.kept.tasks),
            "again": sorted(jar.kept.again),
            "lost": sorted(jar.blocked.lost),
            "blocked": sorted(jar.blocked.tasks),
        }

    def sent_to(self, number: int, kind: type) -> list[Any]:
        """Messages of a kind to an agent that were sent now."""
        return [message for peer, message in self.sent if peer == f"peer {number}" and isinstance(message, kind)]


NOTHING: dict[str, list[int]] = {"kept": [], "again": [], "lost": [], "blocked": []}


def test_a_result_is_named_by_its_task_and_attempt() -> None:
    share = share_of_result(7, 2, 100)
    assert (share.task, share.size, task_of(share.digest)) == (7, 100, 7)
    assert [task_of(each) for each in ("result", "result x 1", "result 7", "0a1b", "result 7 2 3")] == [0] * 5


def test_the_algorithm_gets_the_result_without_the_value() -> None:
    """The master tells the agent which values stay. The result says that there is a value, and where to use it."""
    master = Master()
    task = master.submit(policy=KEEP)
    [(_, sent)] = [each for each in master.sent if isinstance(each[1], messages.Tasks)]
    assert isinstance(sent, messages.Tasks)
    assert sent.keeps == [0]
    master.answer(task, keeps=True)
    [result] = master.results
    assert result.ok
    assert encoded_in(result)[0] is KEPT
    with pytest.raises(UsageError, match=r"task 1 \(max\) stays at its agent.*refer to it with mwpy.result\(1\)"):
        result.value  # noqa: B018
    assert result.to_dict()["value"] is None
    assert repr(KEPT) == "a value that stays at its agent"
    assert master.state == {**NOTHING, "kept": [1]}
    assert master.core.state.jar.runnable == 0


def test_values_do_not_stay_if_tasks_run_in_the_process_of_the_master() -> None:
    master = Master(settings=MasterSettings("m", "g", task_group=1, in_this_process=True))
    master.submit(policy=KEEP)
    assert [message.keeps for _, message in master.sent if isinstance(message, messages.Tasks)] == [[]]


def test_a_task_that_uses_a_value_names_it_and_prefers_the_agent_that_has_it() -> None:
    master = Master(3)
    task, agent = master.keep()
    user = master.submit(task)
    assert master.holder(user) == agent
    [sent] = master.sent_to(agent, messages.Tasks)
    assert sent.shares == [share_of_result(task, 1, SIZE)]
    other = master.submit(task)
    assert master.holder(other) != agent, "the agent with the value is busy"


def test_a_task_that_the_agent_with_the_value_cannot_run_goes_elsewhere() -> None:
    master = Master()
    task, agent = master.keep()
    master.hear(agent, messages.AlgorithmFailed(1, MAX.definition.number, "cannot", [], [], []))
    assert master.holder(master.submit(task)) != agent


def test_a_value_is_released_when_all_tasks_that_use_it_have_ended() -> None:
    """Its agent drops it. Until then, the task stays KEPT."""
    master = Master()
    task, agent = master.keep()
    user = master.submit(task)
    master.obey(ReleaseResults([task]))
    assert master.state == {**NOTHING, "kept": [task]}
    master.answer(user)
    assert master.of(records.ValuesReleased) == [records.ValuesReleased([task])]
    assert master.sent_to(agent, messages.ShareGone) == [messages.ShareGone(share_of_result(task, 1, SIZE).digest)]
    assert master.state == NOTHING
    assert master.core.state.jar.blocked.results == {}


def test_a_task_can_be_released_before_it_ends() -> None:
    master = Master()
    task = master.submit(policy=KEEP)
    master.obey(ReleaseResults([task]))
    master.answer(task, keeps=True)
    assert master.of(records.ValuesReleased)
    assert master.state == NOTHING


def test_a_value_that_does_not_fit_goes_to_the_master_and_can_be_used_until_it_is_released() -> None:
    master = Master()
    task = master.submit(policy=KEEP)
    master.answer(task)
    assert [result.value for result in master.results] == [task]
    user = master.submit(task)
    [span_of_user] = master.core.state.jar.spans()
    assert span_of_user.has_values
    assert not span_of_user.refers
    master.obey(ReleaseResults([task]))
    assert master.core.state.jar.blocked.results == {}
    master.answer(user)


def test_a_lost_value_is_not_computed_again_until_a_task_needs_it() -> None:
    """The algorithm gets no second result. The task counts as ended all the time."""
    master = Master(3)
    task, agent = master.keep()
    master.vanish(agent)
    assert [record.reason for record in master.of(records.ValuesLost)] == ["AGENT-0, which had it, is gone"]
    assert master.state == {**NOTHING, "kept": [task], "lost": [task]}
    user = master.submit(task)
    assert master.state == {**NOTHING, "again": [task], "blocked": [user]}
    assert (master.core.state.jar.runnable, master.core.state.jar.num_allocated) == (1, 1)
    again = master.answer(task, keeps=True)
    assert master.state == {**NOTHING, "kept": [task]}
    assert master.holder(user) == again
    [sent] = master.sent_to(again, messages.Tasks)
    assert sent.shares == [share_of_result(task, 2, SIZE)]
    master.answer(user)
    assert [result.task_id for result in master.results] == [task, user]


def test_a_task_fails_if_the_value_that_it_needs_is_lost_and_no_slave_can_compute_it_again() -> None:
    """The new agent has other code, and no other agent can join. The algorithm gets one result of each task."""
    master = Master(1, MasterSettings("m", "g", task_group=1, only_here=True))
    task, agent = master.keep()
    master.vanish(agent)
    master.join(1)
    user = master.submit(task)
    master.hear(1, messages.AlgorithmFailed(1, MAX.definition.number, "cannot", [task], [1], [master.attempt(task)]))
    assert [(result.task_id, type(result.error)) for result in master.results] == [
        (task, type(None)),
        (user, DependencyFailed),
    ]
    assert master.unrunnable == []


def test_a_lost_value_may_come_to_the_master_the_next_time() -> None:
    master = Master(3)
    task, agent = master.keep()
    master.vanish(agent)
    user = master.submit(task)
    master.answer(task)
    [waiting] = master.core.state.jar.spans()
    assert (waiting.first, waiting.has_values) == (user, True)
    assert master.state == NOTHING


def test_a_pending_task_whose_value_is_lost_is_blocked_again() -> None:
    """So is one that a slave gives back, because it has not started it. Then the value is computed again once."""
    master = Master(2)
    task, agent = master.keep()
    first, second, third = (master.submit(task) for _ in range(3))
    other = 1 - agent
    assert (master.holder(first), master.holder(second)) == (agent, other)
    master.vanish(agent)
    assert master.sent_to(other, messages.Cancel) == [messages.Cancel([second], [1], kill=False)]
    assert [each.first for record in master.of(records.TasksBlocked) for each in record.tasks] == [first, third]
    assert master.state == {**NOTHING, "again": [task], "blocked": [first, third]}
    master.hear(other, messages.Revoked(1, [second], [1], [1], cancelled=True))
    assert master.state["blocked"] == [first, second, third]
    assert master.holder(task) == other
    master.answer(task, keeps=True)
    for user in (first, second, third):
        master.answer(user)
    assert [result.task_id for result in master.results] == [1, first, second, third]


def test_a_value_that_is_needed_no_longer_is_not_computed_to_the_end() -> None:
    """Its attempts end, and its slave is killed. It can be needed again."""
    master = Master(3)
    task, agent = master.keep()
    master.vanish(agent)
    user = master.submit(task)
    at = master.holder(task)
    master.obey(CancelTasks([(user, 1)], Running.KILL))
    assert master.sent_to(at, messages.Cancel) == [messages.Cancel([task], [1], kill=True)]
    assert master.state == {**NOTHING, "kept": [task], "lost": [task]}
    assert [result.task_id for result in master.results] == [task, user]
    master.submit(task)
    assert master.state["again"] == [task]


def test_a_second_computation_ends_before_it_begins_if_nobody_needs_it() -> None:
    """A pending, a delayed and a blocked task go back, too."""
    master = Master(1)
    inner, agent = master.keep()
    outer = master.submit(inner, policy=KEEP)
    master.answer(outer, keeps=True)
    master.vanish(agent)
    user = master.submit(outer)
    assert master.state == {**NOTHING, "again": [inner, outer], "blocked": [outer, user]}
    master.obey(CancelTasks([(user, 1)], Running.KILL))
    assert master.state == {**NOTHING, "kept": [inner, outer], "lost": [inner, outer]}


def test_a_delayed_second_computation_is_stopped() -> None:
    master = Master(3)
    task, agent = master.keep(replace(KEEP, after=5.0))
    master.vanish(agent)
    user = master.submit(task)
    died = messages.SlaveDied(1, task, Cause.CRASH, "it crashed", NO_WORDS)
    master.hear(master.holder(task), died)
    assert list(master.core.state.jar.delayed.tasks) == [task]
    master.obey(CancelTasks([(user, 1)], Running.KILL))
    assert master.state == {**NOTHING, "kept": [task], "lost": [task]}


def test_the_algorithm_cannot_cancel_a_task_that_runs_again() -> None:
    """For the algorithm it has ended. The others of the same command are cancelled."""
    master = Master(3)
    task, agent = master.keep()
    others = [master.submit() for _ in range(2)]
    master.vanish(agent)
    master.submit(task)
    command = CancelTasks([(1, 3)], Running.KILL)
    master.core.obey(command)
    [(_, unended)] = master.turn().cancelled
    assert unended == others
    assert master.state["again"] == [task]
    command = CancelTasks([(1, 1)], Running.KILL)
    master.core.obey(command)
    assert master.turn().cancelled == [(command, [])]


def test_the_algorithm_cancels_the_tasks_around_one_that_runs_again() -> None:
    master = Master(4)
    before = master.submit()
    task, agent = master.keep()
    after = master.submit()
    master.vanish(agent)
    master.submit(task)
    master.core.obey(CancelTasks([(before, 3)], Running.KILL))
    [(_, unended)] = master.turn().cancelled
    assert unended == [before, after]
    assert master.state["again"] == [task]


def test_a_release_waits_for_a_second_computation_that_is_needed() -> None:
    master = Master(3)
    task, agent = master.keep()
    master.vanish(agent)
    user = master.submit(task)
    master.obey(ReleaseResults([task]))
    assert master.state["again"] == [task]
    master.answer(task, keeps=True)
    master.answer(user)
    assert master.state == NOTHING


def test_a_value_is_released_while_it_is_computed_again_and_not_needed() -> None:
    master = Master(3)
    task, agent = master.keep()
    master.vanish(agent)
    user = master.submit(task)
    master.core.obey(ReleaseResults([task]))
    master.obey(CancelTasks([(user, 1)], Running.KILL))
    assert master.state == NOTHING


def _failed(master: Master, user: int) -> str:
    [result] = [result for result in master.results if result.task_id == user]
    assert isinstance(result.error, DependencyFailed)
    return str(result.error)


def test_tasks_fail_if_a_lost_value_must_not_be_computed_twice() -> None:
    master = Master(3)
    task, agent = master.keep(replace(KEEP, retry=False))
    master.vanish(agent)
    user = master.submit(task)
    assert "cannot run again: its policy says retry=False" in _failed(master, user)
    later = master.submit(task)
    assert "cannot run again" in _failed(master, later)
    master.obey(ReleaseResults([task]))
    assert master.core.state.jar.blocked.results == {}


def test_tasks_fail_if_a_lost_value_refers_to_a_released_one() -> None:
    master = Master(3)
    inner, _ = master.keep()
    outer = master.submit(inner, policy=KEEP)
    agent = master.answer(outer, keeps=True)
    master.obey(ReleaseResults([inner]))
    assert master.state == {**NOTHING, "kept": [outer]}
    master.vanish(agent)
    user = master.submit(outer)
    assert f"it refers to the result of task {inner}, which is released" in _failed(master, user)


def test_a_lost_value_is_computed_from_other_lost_values() -> None:
    master = Master(2)
    inner, agent = master.keep()
    outer = master.submit(inner, policy=KEEP)
    assert master.answer(outer, keeps=True) == agent
    user = master.submit(outer)
    master.vanish(agent)
    assert master.state == {**NOTHING, "again": [inner, outer], "blocked": [outer, user]}
    master.answer(inner, keeps=True)
    master.answer(outer, keeps=True)
    master.answer(user)
    assert [result.task_id for result in master.results] == [inner, outer, user]


@pytest.mark.parametrize("how", ["fails", "dies"])
def test_tasks_fail_if_a_second_computation_does_not_end_well(how: str) -> None:
    """The algorithm has the first result, and gets neither another one nor an unrunnable task."""
    master = Master(3)
    task, agent = master.keep(replace(KEEP, attempts_max=1))
    master.vanish(agent)
    user = master.submit(task)
    if how == "fails":
        master.answer(task, fails=True)
    else:
        died = messages.SlaveDied(1, task, Cause.CRASH, "it crashed", NO_WORDS)
        master.hear(master.holder(task), died)
    assert f"it needs the result of task {task}, but task {task} (max)" in _failed(master, user)
    assert [result.task_id for result in master.results] == [task, user]
    assert (master.core.state.jar.failed, master.core.state.jar.cancelled) == (0, 1)


def test_a_blocked_second_computation_may_fail() -> None:
    """Its failure is not given to the algorithm."""
    master = Master(3)
    inner, _ = master.keep(replace(KEEP, attempts_max=1))
    outer = master.submit(inner, policy=KEEP)
    agent = master.answer(outer, keeps=True)
    master.vanish(agent)
    user = master.submit(outer)
    master.answer(inner, fails=True)
    assert f"task {inner} (max) failed: OSError: disk full" in _failed(master, user)
    assert [result.task_id for result in master.results] == [inner, outer, user]


def test_the_reports_of_a_second_computation_are_not_given_out() -> None:
    master = Master(3)
    task, agent = master.keep()
    master.vanish(agent)
    master.submit(task)
    master.hear(master.holder(task), messages.Reported(1, task, 2, 0.5), b"\x80")
    assert master.core.reports.bytes == 0


def test_a_second_computation_for_a_slave_that_is_gone_goes_on_as_its_policy_says() -> None:
    master = Master(2)
    sids = list(master.core.state.members.slaves)
    task, agent = master.keep(replace(KEEP, sid=SlaveId(sids[0]), do_it_anyway=True))
    master.vanish(agent)
    master.submit(task)
    assert master.holder(task) == 1 - agent
    assert master.of(records.TasksUnaddressed)


def test_a_task_that_is_too_large_leaves_no_task_waiting_for_its_value() -> None:
    master = Master(settings=MasterSettings("m", "g", max_call_bytes=150))
    master.num_tasks = 1
    master.core.submit([span(1, MAX, 1, b"\xc4\xc8" + bytes(200), KEEP)])
    master.turn()
    user = master.submit(1)
    assert "its arguments are" in _failed(master, user)
    master.obey(ReleaseResults([1]))
    assert master.core.state.jar.blocked.results == {}


def test_an_agent_must_drop_what_does_not_count() -> None:
    """A result of an attempt that ended meanwhile stays at the agent, and nobody needs it."""
    master = Master()
    task = master.submit(policy=KEEP)
    agent = master.holder(task)
    master.obey(CancelTasks([(task, 1)], Running.KILL))
    group = messages.Results(1, [task], [1], [1], [0.1], [], kept=[(0, SIZE)])
    frames = groups.payload(1, [b"\xc0"])
    gone = [messages.ShareGone(share_of_result(task, 1, SIZE).digest)]
    master.hear(agent, group, frames)
    assert master.sent_to(agent, messages.ShareGone) == gone
    master.hear(agent, messages.Results(9, [task], [1], [1], [0.1], [], kept=[(0, SIZE)]), frames)
    assert master.sent_to(agent, messages.ShareGone) == gone, "its slave is gone"


def test_an_agent_that_keeps_a_value_unasked_is_dropped() -> None:
    """The algorithm gets the value that another agent computes."""
    master = Master()
    task = master.submit()
    agent = master.answer(task, keeps=True)
    assert [each.reason for each in master.of(records.PeerDropped)] == [
        f"Results: a value of task {task} (max) stays at its agent, which was not asked to keep it"
    ]
    assert master.results == []
    assert master.answer(task) == 1 - agent
    assert [result.value for result in master.results] == [task]


def test_a_value_may_stay_beside_one_that_does_not() -> None:
    master = Master(1, MasterSettings("m", "g", task_group=2))
    plain, kept = master.submit(), master.submit(policy=KEEP)
    group = messages.Results(1, [kept, plain], [1, 1], [1, 1], [0.1, 0.1], [], kept=[(0, SIZE)])
    master.hear(0, group, groups.payload(2, [b"\xc0", b"\x07"]))
    assert [encoded_in(result)[0] for result in sorted(master.results, key=lambda each: each.task_id)] == [7, KEPT]


def test_a_value_cannot_stay_that_is_larger_than_a_result() -> None:
    """Else the tasks that need it would fail wherever they run. The alignment of its parts is allowed for."""
    limit = 70 << 20
    parts = [1 << 10, *[1 << 16] * ((limit >> 16) - 1), (1 << 16) - (1 << 10)]
    assert sum(parts) == limit
    honest, absurd = places_of(parts)[-1], 1 << 50
    for size, is_dropped in (honest, False), (absurd, True):
        master = Master(1, MasterSettings("m", "g", task_group=1, max_result_bytes=limit))
        task = master.submit(policy=KEEP)
        group = messages.Results(1, [task], [1], [1], [0.1], [], kept=[(0, size)])
        master.hear(0, group, groups.payload(1, [b"\xc0"]))
        assert [str(absurd) in each.reason for each in master.of(records.PeerDropped)] == [True] * is_dropped


def test_an_agent_may_say_that_it_has_no_room() -> None:
    """Only the agent that has the value can say so, and only about this attempt."""
    master = Master()
    task, agent = master.keep()
    digest = share_of_result(task, 1, SIZE).digest
    for number, name in ((1 - agent, digest), (agent, "result 1 7"), (agent, "0a1b")):
        master.hear(number, messages.ShareGone(name))
        assert master.state["lost"] == []
    master.hear(agent, messages.ShareGone(digest))
    assert master.state["lost"] == [task]
    assert master.of(records.ValuesLost)[0].reason.endswith("has no room for it")


# ---- the parts ---------------------------------------------------------------------------------------------


def test_the_parts_of_a_value_come_from_its_agent() -> None:
    """Each part comes once, however many agents ask for it."""
    master = Master(3)
    task, agent = master.keep()
    share = share_of_result(task, 1, SIZE)
    first, second = (number for number in range(3) if number != agent)
    master.hear(first, messages.ShareWanted(share.digest, PART_BYTES))
    assert master.sent_to(agent, messages.ShareWanted) == [messages.ShareWanted(share.digest, PART_BYTES)]
    master.hear(second, messages.ShareWanted(share.digest, PART_BYTES))
    assert master.sent == []
    part = messages.SharePart(share.digest, PART_BYTES)
    master.hear(second, part, b"12345")
    assert master.sent == [], "it comes from an agent that does not have it"
    master.vanish(second)
    master.hear(agent, part, b"12345")
    assert master.sent == [(f"peer {first}", part)]
    master.hear(agent, part, b"12345")
    assert master.sent == [], "nobody has asked for it"


@pytest.mark.parametrize("start", [1, 2 * PART_BYTES])
def test_a_part_that_does_not_exist_ends_the_connection(start: int) -> None:
    master = Master()
    task, agent = master.keep()
    master.hear(1 - agent, messages.ShareWanted(share_of_result(task, 1, SIZE).digest, start))
    assert master.of(records.PeerDropped)


def test_a_part_of_a_wrong_size_ends_the_connection() -> None:
    master = Master()
    task, agent = master.keep()
    digest = share_of_result(task, 1, SIZE).digest
    master.hear(1 - agent, messages.ShareWanted(digest, 0))
    master.hear(agent, messages.SharePart(digest, 0), b"short")
    assert master.of(records.PeerDropped)
    assert master.sent_to(1 - agent, messages.ShareGone) == [messages.ShareGone(digest)], "the value is lost with it"


def test_an_agent_that_waits_for_a_lost_value_learns_it() -> None:
    """So does one that asks for it later."""
    master = Master(4)
    task, agent = master.keep()
    digest = share_of_result(task, 1, SIZE).digest
    first, second, third = (number for number in range(4) if number != agent)
    for number in (first, second):
        master.hear(number, messages.ShareWanted(digest, 0))
    master.vanish(second)
    master.vanish(agent)
    assert master.sent_to(first, messages.ShareGone) == [messages.ShareGone(digest)]
    master.hear(third, messages.ShareWanted(digest, 0))
    assert master.sent_to(third, messages.ShareGone) == [messages.ShareGone(digest)]


def test_a_value_whose_agent_is_gone_just_now_is_not_asked_for() -> None:
    """The loss of the value is decided after the messages of an iteration."""
    master = Master()
    task, agent = master.keep()
    digest = share_of_result(task, 1, SIZE).digest
    master.core.handle(Vanished(f"peer {agent}".encode(), 0.0), 0.0)
    master.hear(1 - agent, messages.ShareWanted(digest, 0))
    assert master.sent_to(1 - agent, messages.ShareGone) == [messages.ShareGone(digest)]


def test_few_parts_come_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PARTS_COMING", 1)
    master = Master()
    task, agent = master.keep()
    digest = share_of_result(task, 1, SIZE).digest
    master.hear(1 - agent, messages.ShareWanted(digest, 0))
    master.hear(1 - agent, messages.ShareWanted(digest, PART_BYTES))
    assert master.sent == []
    master.hear(agent, messages.SharePart(digest, 0), bytes(PART_BYTES))
    assert master.sent_to(agent, messages.ShareWanted) == [messages.ShareWanted(digest, PART_BYTES)]


def test_an_agent_that_does_not_read_its_parts_gets_no_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would fill the memory of the master. Other agents get theirs meanwhile, also the same ones."""
    monkeypatch.setattr(relay, "FEEDING_BYTES", 1)
    master = Master(3)
    task, agent = master.keep()
    digest = share_of_result(task, 1, SIZE).digest
    slow, quick = (number for number in range(3) if number != agent)
    first, last = messages.SharePart(digest, 0), messages.SharePart(digest, PART_BYTES)
    master.hear(slow, messages.ShareWanted(digest, 0))
    master.core.handle(Received(f"peer {agent}".encode(), "here", first, [bytes(PART_BYTES)]), 0.0)
    unread = master.turn().sends
    assert [(each.peer, each.message) for each in unread] == [(f"peer {slow}".encode(), first)]
    master.hear(slow, messages.ShareWanted(digest, PART_BYTES))
    assert master.sent == []
    master.hear(quick, messages.ShareWanted(digest, PART_BYTES))
    assert master.sent_to(agent, messages.ShareWanted) == [messages.ShareWanted(digest, PART_BYTES)]
    master.hear(agent, last, b"12345")
    assert master.sent == [(f"peer {quick}", last)]
    master.core.handle(Confirmed(f"peer {slow}".encode(), PART_BYTES), 0.0)
    master.turn()
    assert master.sent_to(agent, messages.ShareWanted) == [messages.ShareWanted(digest, PART_BYTES)]
    master.hear(agent, last, b"12345")
    assert master.sent == [(f"peer {slow}", last)]


def test_an_agent_that_is_gone_keeps_no_parts_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "FEEDING_BYTES", 1)
    master = Master()
    task, agent = master.keep()
    digest = share_of_result(task, 1, SIZE).digest
    master.hear(1 - agent, messages.ShareWanted(digest, 0))
    part = messages.SharePart(digest, 0)
    master.core.handle(Received(f"peer {agent}".encode(), "here", part, [bytes(PART_BYTES)]), 0.0)
    master.turn()
    master.hear(1 - agent, messages.ShareWanted(digest, PART_BYTES))
    master.vanish(1 - agent)
    master.hear(agent, messages.SharePart(digest, PART_BYTES), b"12345")
    assert not master.core.keeping.relay.asked


def test_the_explanation_of_a_kept_task_says_where_its_value_is() -> None:
    master = Master()
    task, agent = master.keep()
    answer = master.core.inquiries.explanations.explanation(task, 0.0)
    assert f"the value is at AGENT-{agent}" in explained(answer)
    master.vanish(agent)
    answer = master.core.inquiries.explanations.explanation(task, 0.0)
    assert "the value is lost: it is computed again when a task needs it" in explained(answer)


def test_positions_of_values_that_stay_must_fit_their_group() -> None:
    tasks = messages.Tasks(1, [1], [1], [1], [0], keeps=[1])
    with pytest.raises(ProtocolError, match="`keeps` names positions"):
        check(tasks, [groups.payload(1, [b"\x90"])])
    for failed, kept, plain in ([], [(0, 0)], False), ([0], [(0, 64)], False), ([], [(0, 64)], True):
        group = messages.Results(1, [1], [1], [1], [0.1], failed, kept=kept, plain=plain)
        with pytest.raises(ProtocolError):
            check(group, [groups.payload(1, [b"\xc0"])])
    check(messages.Results(1, [1], [1], [1], [0.1], [], kept=[(0, 64)]), [groups.payload(1, [b"\xc0"])])


def test_a_value_may_be_lost_while_a_blocked_task_waits_for_another_one() -> None:
    """Both are computed before the task runs."""
    master = Master(3)
    first, agent = master.keep()
    second, third = master.submit(policy=KEEP), master.submit(policy=KEEP)
    user = master.submit(first, second, third)
    assert master.state["blocked"] == [user]
    others = [number for number in (second, third) if master.holder(number) != agent]
    master.vanish(agent)
    assert master.state["again"] == [first]
    for number in (*others, first, *({second, third} - {*others})):
        master.answer(number, keeps=True)
    assert master.state["blocked"] == []
    master.answer(user)
    assert [result.task_id for result in master.results][-1] == user


def test_a_task_fails_if_one_value_is_lost_when_another_one_has_failed() -> None:
    """The lost one is not computed again for it."""
    master = Master(3)
    kept, agent = master.keep()
    two = [master.submit(policy=KEEP) for _ in range(2)]
    failing = next(number for number in two if master.holder(number) != agent)
    user = master.submit(kept, failing)
    failure = groups.payload(1, [CODEC.dumps_failure(OSError("disk full"))])
    group = messages.Results(1, [failing], [1], [master.attempt(failing)], [0.1], [0])
    events = (master.holder(failing), group, (failure,)), (agent, messages.Goodbye("evicted", Cause.EVICTED), ())
    for number, message, frames in events:
        master.core.handle(Received(f"peer {number}".encode(), "here", message, frames), 0.0)
    master.turn()
    assert f"task {failing} (max) failed: OSError: disk full" in _failed(master, user)
    assert master.state["again"] == []
