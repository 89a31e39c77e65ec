"""Tasks that refer to results of other tasks, in the master: what they wait for, what they get, and how they fail."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.driven import Driven, Replayed
from tests.spans import MAX

from mwpy._core.master import handback
from mwpy._core.master.state import Actions, CancelTasks, Command, Event, HoldResults, ReleaseResults, Running
from mwpy._transport.codec import Codec, loads_call, loads_state, split_resumed
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer, SlaveId, TaskId
from mwpy._values.causes import Cause
from mwpy._values.errors import DependencyFailed
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messagepack import as_pickle, encode
from mwpy._values.messages import Share
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.task import ResultReference

CODEC = Codec()


class Master(Replayed):
    """A master whose slaves are sent one task at a time."""

    def __init__(self, **settings: Any) -> None:
        self.ended: dict[int, str] = {}
        """How the tasks ended that ended without a value."""
        super().__init__(task_group=1, **settings)

    def step(self, event: Event | Command | None = None) -> Actions:
        actions = super().step(event)
        for one in actions.results:
            self.ended[one.task_id] = "" if one.error is None else one.error.text
        self.ended |= {task.task_id: task.reason for task in actions.unrunnable}
        return actions

    def call(self, *args: object, policy: TaskPolicy = DEFAULT_POLICY, refers: Sequence[int] = ()) -> int:
        """Submit a task with these arguments, which refers to these results. Return its id."""
        payload, buffers = CODEC.dumps_call(args, {}, "max")
        return self.submit(payload=payload, policy=policy, buffers=[*map(bytes, buffers)], refers=refers)

    def answer(self, command: Command) -> list[int]:
        """Give a command. Return its answer, if it has one."""
        return [number for _, numbers in self.step(command).cancelled for number in numbers]

    def dependent(self, *numbers: int, policy: TaskPolicy = DEFAULT_POLICY) -> int:
        """Submit a task that refers to the results of unended tasks. Return its id."""
        assert self.answer(HoldResults(sorted(numbers))) == sorted(numbers)
        return self.call([ResultReference(number) for number in numbers], policy=policy, refers=sorted(numbers))

    def come(self) -> list[object]:
        """An agent joins. Return what it is sent: the first argument of each task."""
        return arguments(self.next_joins())

    def give(self, task: int, value: object) -> Actions:
        """The newest agent sends a value."""
        entry, large = CODEC.dumps_value(value)
        group = messages.Results(1, [task], [1], [1], [0.1], [], [len(large)] if large else [])
        return self.receive(group, groups.payload(1, [entry]), *map(bytes, large), peer=self.peer)


def arguments(actions: Actions) -> list[object]:
    found: list[object] = []
    for send in actions.sends:
        if isinstance(send.message, messages.Tasks):
            entries, buffers = groups.entries(send.message, send.frames)
            for entry, own in zip(entries, buffers, strict=True):
                call, rest, left = split_resumed(entry, own)
                (argument,), _ = loads_call(call, rest)
                found.append((argument, loads_state(left)) if left else argument)
    return found


OUTPUT = Share("result-1", 3)


def sends(actions: Actions, kind: type[messages.Message]) -> list[tuple[messages.Message, Sequence[Buffer]]]:
    return [(send.message, send.frames) for send in actions.sends if isinstance(send.message, kind)]


def finish_with_output(master: Master, share: Share = OUTPUT) -> Actions:
    """The newest agent sends the result of task 1, which is a read-only buffer with the bytes "abc"."""
    buffers: list[pickle.PickleBuffer] = []
    entry = encode(as_pickle(pickle.dumps(pickle.PickleBuffer(b"abc"), 5, buffer_callback=buffers.append)))
    group = messages.Results(1, [1], [1], [1], [0.1], [], [1], shares=[share])
    return master.receive(group, groups.payload(1, [entry]), b"abc", peer=master.peer)


def test_an_agent_that_gives_a_large_output_the_name_of_another_one_is_dropped() -> None:
    """Else a task could get the wrong content from an agent that has the other one."""
    master = Master()
    master.call("a")
    master.come()
    master.dependent(1)
    finish_with_output(master)
    finish_with_output(master)
    assert [record.reason for record in master.of(records.PeerDropped)] == [
        "Results: the name of a shared buffer is that of another one"
    ]


def test_a_task_gets_the_name_of_a_large_output_and_agents_fetch_it_in_parts() -> None:
    master = Master()
    master.call("a")
    master.come()
    assert master.dependent(1) == 2
    actions = finish_with_output(master)
    assert not sends(actions, messages.ShareGone), "the agent that made it keeps it"
    [(message, frames)] = sends(actions, messages.Tasks)
    assert isinstance(message, messages.Tasks)
    assert message.shares == [OUTPUT]
    assert b"abc" not in [*map(bytes, frames)]
    wanted = messages.ShareWanted("result-1", 0)
    [(part, content)] = sends(master.receive(wanted, peer=b"1"), messages.SharePart)
    assert (part, [*map(bytes, content)]) == (messages.SharePart("result-1", 0), [b"abc"])
    master.core.obey(ReleaseResults([1]))
    actions = master.finish(2, peer=b"1", value=encode("done"))
    assert sends(actions, messages.ShareGone) == [(messages.ShareGone("result-1"), ())]


def test_an_agent_drops_an_output_to_which_no_task_refers() -> None:
    master = Master()
    master.call("a")
    master.come()
    assert sends(finish_with_output(master), messages.ShareGone) == [(messages.ShareGone("result-1"), ())]


def test_an_agent_that_names_its_output_as_another_one_is_dropped() -> None:
    master = Master()
    master.call("a")
    master.call("b")
    master.come()
    assert master.dependent(1) == 3
    finish_with_output(master)
    entry, shares = CODEC.dumps_value("x")[0], [OUTPUT]
    group = messages.Results(1, [2], [1], [1], [0.1], [], [1], shares=shares)
    assert not master.receive(group, groups.payload(1, [entry]), b"xyz", peer=b"1").results
    assert not master.core.state.members.agents, "the second content was refused"


@pytest.fixture
def master() -> Master:
    """Two tasks, the first of which is at a slave, and a task that refers to both results."""
    master = Master()
    master.call("a")
    master.call("b")
    assert master.come() == ["a"]
    assert master.dependent(1, 2) == 3
    return master


END: dict[str, Callable[[Master], object]] = {
    "task 1 (max) failed: OSError: disk full": lambda master: master.finish(1, peer=b"1", error=OSError("disk full")),
    "task 1 (max) was cancelled while SLAVE-0 had it": lambda master: master.answer(
        CancelTasks([(1, 1)], Running.KILL)
    ),
    "task 1 (max) is unrunnable": lambda master: master.receive(
        messages.SlaveDied(1, 1, Cause.CRASH, "signal 11", NO_WORDS), peer=b"1"
    ),
    "task 2 (max) was cancelled before it was sent to a slave": lambda master: master.answer(
        CancelTasks([(2, 1)], Running.DISCARD)
    ),
}
"""How a task can end without a value."""


@pytest.mark.parametrize("cause", END)
def test_a_task_fails_at_once_if_one_of_the_others_ends_without_a_value(cause: str) -> None:
    """So do the tasks that refer to it. None of them ever runs, and each names the first cause."""
    master = Master()
    master.call("a", policy=TaskPolicy(retry=False))
    master.call("b")
    master.come()
    assert master.dependent(1, 2) == 3
    assert master.dependent(3) == 4
    jar = master.core.state.jar
    before = jar.failed
    END[cause](master)
    root = int(cause.split()[1])
    assert master.ended[3].startswith(f"it needs the result of task {root}, but {cause}")
    assert master.ended[4].startswith(f"it needs the result of task 3, but {cause}")
    failed = master.of(records.TasksFailed)
    assert [(each.tasks[0].first, each.dependency) for each in failed] == [(3, root), (4, root)]
    assert jar.failed - before <= 1, "only the first one counts for max_failures"
    assert not jar.blocked.tasks


def test_a_notice_names_the_tasks_of_a_long_chain_that_end_with_its_first_task() -> None:
    master = Driven([MAX])
    chain = [master.submit(payload=b"")]
    for _ in range(100):
        master.core.obey(HoldResults([chain[-1]]))
        chain.append(master.submit(payload=b"", refers=[chain[-1]]))
    actions = master.step(CancelTasks([(1, 1)], Running.KILL))
    assert [one.task_id for one in actions.results] == chain
    assert master.notices == [
        "task 1 (max) was cancelled before it was sent to a slave; 100 tasks that need its result will not run: "
        "2, 3, 4, 5, 6 and 95 more"
    ]


def test_the_error_of_a_task_that_never_ran_names_the_cause(master: Master) -> None:
    ended = {one.task_id: one.error for one in master.step(CancelTasks([(2, 1)], Running.KILL)).results}
    error = ended[TaskId(3)]
    assert isinstance(error, DependencyFailed)
    assert (error.task_id, error.dependency, error.sid) == (3, 2, None)
    assert error.cause == "task 2 (max) was cancelled before it was sent to a slave"


def test_a_task_that_is_too_large_together_with_the_values_fails() -> None:
    master = Master(max_call_bytes=2000)
    master.call("a")
    master.come()
    master.dependent(1)
    master.dependent(2)
    master.give(1, b"x" * 2000)
    assert master.ended[2].startswith("its arguments are 2")
    assert "together with the results that it needs, the limit is 2000 bytes" in master.ended[2]
    assert master.ended[3] == f"it needs the result of task 2, but task 2 (max) failed: {master.ended[2]}"


def test_a_blocked_task_for_a_slave_that_is_gone_meanwhile_is_handed_back() -> None:
    """Only then: as long as it is blocked, nothing is decided."""
    master = Master()
    master.call("a")
    master.come()
    master.dependent(1, policy=TaskPolicy(SlaveId("SLAVE-9")))
    assert master.ended == {}
    master.give(1, 1)
    assert master.ended[2] == "SLAVE-9, to which it was addressed, is gone or never was"


def test_blocked_tasks_are_wanted_by_no_slave_and_wait_for_those_that_pause() -> None:
    master = Master()
    master.call("a", policy=TaskPolicy(after=60.0))
    master.come()
    master.dependent(1)
    assert master.core.counts().slaves_wanted == 1
    master.receive(messages.SlaveDied(1, 1, Cause.CRASH, "signal 11", NO_WORDS), peer=b"1")
    assert master.core.counts().slaves_wanted == 0
    for master.now in (0.0, 5.0):
        master.step()
    [notice] = master.notices
    assert "all tasks that are left (1) pause before their next attempt" in notice
    assert "and 1 others need their results" in notice


def test_a_notice_says_that_the_results_take_much_memory(monkeypatch: pytest.MonkeyPatch, master: Master) -> None:
    monkeypatch.setattr(handback, "REFERENCES_BYTES", 1000)
    master.give(1, "x" * 2000)
    master.give(2, "y")
    assert any("mwpy.result take more than 1000 bytes" in str(each) for each in master.replay.taken)
