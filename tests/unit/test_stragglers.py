"""Stragglers: which tasks get a second attempt, when and where, and what the end of each attempt means."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.driven import Driven

from mwpy._core.master.state import Actions
from mwpy._roles.definitions import Definitions
from mwpy._roles.submission import Calls
from mwpy._transport.codec import Codec
from mwpy._values import messages
from mwpy._values.algorithm import algorithm_of
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.errors import UsageError
from mwpy._values.options import parse
from mwpy._values.policy import MaxFailures, TaskPolicy

SPECULATE = TaskPolicy(speculate=True)
"""A task that no slave holds."""


class Master(Driven):
    """Slave `a1` is the first slave of the agent `a`."""

    def __init__(self) -> None:
        super().__init__(max_failures=MaxFailures(3))
        self.now = 1000.0
        self.sids: dict[str, str] = {}

    def tell(self, agent: str, message: messages.Message, *frames: bytes) -> Actions:
        return self.receive(message, *frames, peer=agent.encode())

    def agent(self, name: str, slaves: int = 1, host: str = "", left_s: float | None = None) -> None:
        self.join(name.encode(), slaves, host or f"host of {name}", seconds_left=left_s)
        for number in range(1, slaves + 1):
            self.sids[f"{name}{number}"] = f"SLAVE-{len(self.sids)}"

    def work(self, policy: TaskPolicy = SPECULATE, count: int = 1) -> int:
        return self.submit(count, policy=policy, tag="tag")

    def answer(self, slave: str, task: int, attempt: int = 1, seconds: float = 0.1, *, fails: bool = False) -> Actions:
        """A slave sends the result of a task: the number of the attempt, or a failure that may be tried again."""
        where, value = (slave[0].encode(), int(slave[1])), bytes([attempt])
        error = OSError("busy") if fails else None
        return self.finish(
            task, attempt, peer=where[0], slave=where[1], seconds=seconds, value=value, error=error, again=fails
        )

    def know(self, seconds: float = 0.1, count: int = 3) -> None:
        """Let tasks end, so that it is known how long they take. Slave `a1` is there, and no other."""
        for _ in range(count):
            self.answer("a1", self.work(), seconds=seconds)

    def held(self, sid: str = "a1") -> list[int]:
        return super().held(self.sids[sid])


@pytest.fixture
def master() -> Master:
    """A master with one slave that has run three tasks of 0.1 s."""
    master = Master()
    master.agent("a")
    master.know()
    return master


# When and where


def test_a_straggler_has_run_three_times_as_long_as_the_mean(master: Master) -> None:
    """The mean counts each task that has ended."""
    master.answer("a1", master.work(), seconds=11.7)
    master.work()
    master.agent("b")
    master.pass_time(8.9)
    assert master.held("b1") == []
    master.pass_time(0.2)
    assert master.held("b1") == [5]


def test_a_straggler_has_also_run_three_times_as_long_as_its_policy_says(master: Master) -> None:
    """So a task that is known to be long is none. The agent of the second attempt must have enough time left."""
    master.work(replace(SPECULATE, seconds_expected=10.0))
    master.agent("b", left_s=39.9)
    master.agent("c", left_s=100.0)
    master.pass_time(29.9)
    assert (master.held("b1"), master.held("c1")) == ([], [])
    master.pass_time(0.1)
    assert (master.held("b1"), master.held("c1")) == ([], [4])


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
    master.work(policy)
    master.agent("b")
    master.pass_time(1000.0)
    assert (master.held("a1"), master.held("b1")) == ([4], [])


def test_the_place_is_at_another_agent_and_best_on_another_host(master: Master) -> None:
    """Of several, it is the slave that has been idle for the longest time."""
    task = master.work()
    for name, host in (("b", "host of a"), ("c", "far"), ("d", "far")):
        master.agent(name, host=host)
    master.pass_time(1.0)
    assert [master.held(f"{name}1") for name in "abcd"] == [[], [], [task], []]


# How attempts end


def test_what_waits_behind_a_straggler_that_was_given_away_is_none(master: Master) -> None:
    """It has not begun. When the straggler has failed, its time begins."""
    master.core.state.settings = replace(master.core.state.settings, task_group=2)
    master.work(count=2)
    assert master.held("a1") == [4, 5]
    master.agent("b")
    master.agent("c")
    master.pass_time(1.1)
    assert (master.held("a1"), master.held("b1"), master.held("c1")) == ([5], [4], [])
    master.pass_time(1.1)
    assert (master.held("a1"), master.held("c1")) == ([5], [])
    master.answer("a1", 4, fails=True)
    master.answer("b1", 4, 2)
    master.pass_time(0.9)
    assert (master.held("b1"), master.held("c1")) == ([], [])
    master.pass_time(0.2)
    assert sorted(master.held("b1") + master.held("c1")) == [5]


def test_a_second_attempt_goes_on_from_the_state_that_the_first_left(master: Master) -> None:
    """What the first slave leaves later does not count. The next attempt gets the state of the second one."""
    task = master.work()
    master.agent("b")
    state = b"a state"
    master.tell("a", messages.Checkpoint(1, task, 1), state)
    sent = master.pass_time(1.0).sends[-1]
    assert state in b"".join(map(bytes, sent.frames))
    jar, newer = master.core.state.jar, b"newer"
    master.tell("b", messages.Checkpoint(1, task, 2), newer)
    master.tell("a", messages.Checkpoint(1, task, 1), b"late")
    assert jar.left_bytes == len(newer)
    master.tell("b", messages.Goodbye("evicted", Cause.EVICTED))
    [left] = jar.spans()
    assert left.left is not None
    assert (left.sid, left.left.num_lost) == (None, 1)
    master.answer("a1", task)
    assert jar.left_bytes == 0
    assert not [*jar.spans()]


# The policy


def test_a_task_that_must_not_run_twice_cannot_have_a_second_attempt() -> None:
    with pytest.raises(UsageError, match="retry=False and speculate=True contradict each other"):
        TaskPolicy.of(retry=False, speculate=True)
    assert TaskPolicy.of(retry=False, speculate=False) == TaskPolicy(retry=False)
    assert TaskPolicy.of(speculate=True) == SPECULATE


def test_the_policy_for_all_tasks_leaves_out_those_that_may_run_only_once() -> None:
    """A call that says both itself is refused."""
    terms = Calls(Definitions(Codec()), {"speculate": True}, lambda _: ())
    algorithm = algorithm_of(max)
    assert terms.policy(algorithm, {}) == (SPECULATE, None)
    assert terms.policy(algorithm, {"attempts_max": 2}) == (replace(SPECULATE, attempts_max=2), None)
    assert terms.policy(algorithm, {"retry": False}) == (TaskPolicy(retry=False), None)
    with pytest.raises(UsageError, match="contradict"):
        terms.policy(algorithm, {"retry": False, "speculate": True})


def test_the_option_is_a_policy_of_all_tasks() -> None:
    options, _ = parse(["--mw-speculate"])
    assert options.policies == {"speculate": True}
