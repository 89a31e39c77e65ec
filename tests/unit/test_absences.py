"""Agents that are away: what happens to their slaves and tasks until they are back or given up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.spans import MAX, span

from mwpy._core.master.core import MasterCore
from mwpy._core.master.spans import Span
from mwpy._core.master.state import Actions, MasterSettings, Received, Returned, Vanished
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.messages import Why
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy

HELLO = messages.Hello("m", "g", "host", 1, "3.11", 1, session="s", returns_s=100.0)
AWAY_S = 31.0


@pytest.fixture
def core() -> MasterCore:
    return MasterCore(MasterSettings("m", "g"))


def join(core: MasterCore, peer: str, hello: messages.Hello = HELLO, now: float = 0.0) -> None:
    """An agent joins with one slave."""
    hear(core, peer, replace(hello, session=peer if hello.session else ""), now)
    hear(core, peer, messages.SlaveReady(1), now)


def hear(core: MasterCore, peer: str, message: messages.Message, now: float) -> Actions:
    core.handle(Received(peer.encode(), "here", message, []), now)
    return decide(core, now)


def decide(core: MasterCore, now: float) -> Actions:
    core.decide(now)
    core.check()
    return core.take_actions()


def vanish(core: MasterCore, peer: str, now: float, silent_s: float = AWAY_S) -> Actions:
    core.handle(Vanished(peer.encode(), silent_s), now)
    return decide(core, now)


def submit(core: MasterCore, first: int, policy: TaskPolicy | None = None) -> Span:
    new = span(first, MAX, 1, b"x", DEFAULT_POLICY if policy is None else policy)
    core.submit([new])
    return new


def kinds(actions: Actions) -> list[str]:
    return [type(record).__name__ for record in actions.records]


def notices(actions: Actions) -> list[str]:
    return [record.text for record in actions.records if isinstance(record, records.Notice)]


@pytest.mark.parametrize(
    ("hello", "silent_s"),
    [(replace(HELLO, returns_s=0.0), AWAY_S), (replace(HELLO, session=""), AWAY_S), (HELLO, 0.0)],
    ids=["does not return", "has no session", "was killed"],
)
def test_an_agent_that_will_not_come_back_is_lost_at_once(
    core: MasterCore, hello: messages.Hello, silent_s: float
) -> None:
    join(core, "a", hello)
    assert "AgentLost" in kinds(vanish(core, "a", 40.0, silent_s))


def test_if_all_that_is_left_waits_for_agents_that_are_away_the_user_learns_this(core: MasterCore) -> None:
    for number in range(5):
        join(core, str(number))
        submit(core, number + 1)
    decide(core, 0.0)
    for number in range(5):
        vanish(core, str(number), 40.0)
    decide(core, 44.0)
    assert notices(decide(core, 50.0)) == [
        "nothing has progressed for 10 s: the master waits for the return of 5 agents with 5 tasks (AGENT-0 on host, "
        "away for 41 s; AGENT-1 on host, away for 41 s; AGENT-2 on host, away for 41 s; and 2 more). The first one is "
        "given up in 90 s; then its tasks run elsewhere"
    ]


def test_a_new_agent_with_the_file_of_a_former_generation_is_refused(core: MasterCore) -> None:
    [send] = hear(core, "a", replace(HELLO, generation="former"), 1.0).sends
    assert isinstance(send.message, messages.Refused)
    assert (send.message.again, send.message.generation) == (False, core.state.settings.generation)
    assert core.admission.refusals == 1


def test_an_agent_of_a_former_generation_that_may_not_join_is_refused_for_good(core: MasterCore) -> None:
    [send] = hear(core, "a", replace(HELLO, member_id="other", generation="former", handled=7), 1.0).sends
    assert isinstance(send.message, messages.Refused)
    assert (send.message.again, send.message.generation) == (False, "")


def test_members_that_ask_learn_which_slaves_are_away_and_that_tasks_wait_for_them(core: MasterCore) -> None:
    join(core, "a")
    vanish(core, "a", 40.0)
    submit(core, 1)
    decide(core, 41.0)
    core.handle(Received(b"b", "here", messages.AskStatus("m", "g"), []), 41.0)
    core.handle(Received(b"c", "here", messages.AskTask("m", "g", 1), []), 41.0)
    answers = {send.peer: send.message for now in (42.0, 43.0, 44.0) for send in decide(core, now).sends}
    status, explanation = answers[b"b"], answers[b"c"]
    assert isinstance(status, messages.Status)
    assert status.hosts["host"].away == 1
    assert isinstance(explanation, messages.Explanation)
    assert [reason.why for reason in explanation.agents] == [Why.AWAY]


def away_with_tasks(core: MasterCore, tasks: int, policy: TaskPolicy | None = None) -> None:
    """The agent `a` gets tasks, and falls silent at 40 s. The agent `b` joins, with an idle slave."""
    join(core, "a")
    for number in range(1, tasks + 1):
        submit(core, number, policy)
    decide(core, 0.0)
    vanish(core, "a", 40.0)
    join(core, "b", now=41.0)


def begun(actions: Actions) -> list[int]:
    """The tasks that were sent to slaves."""
    started = [record for record in actions.records if isinstance(record, records.TasksAllocated)]
    return [each.first for record in started for each in record.tasks]


def answer(core: MasterCore, peer: str, task: int, attempt: int, now: float) -> Actions:
    results = messages.Results(1, [task], [1], [attempt], [0.1], [])
    core.handle(Received(peer.encode(), "here", results, [groups.payload(1, [bytes([task])])]), now)
    return decide(core, now)


def test_an_idle_slave_starts_a_task_again_when_its_agent_has_been_away_for_another_timeout(core: MasterCore) -> None:
    away_with_tasks(core, 1)
    assert begun(decide(core, 69.0)) == []
    assert (core.next_deadline() or 99.0) <= 70.0
    assert begun(decide(core, 70.0)) == [1]
    assert begun(decide(core, 99.0)) == []


def test_a_value_that_an_agent_brings_back_counts_also_if_its_task_was_given_to_others(core: MasterCore) -> None:
    """The task waits for a slave, because the only other one is busy."""
    away_with_tasks(core, 2)
    decide(core, 70.0)
    core.handle(Returned(b"a", "there"), 80.0)
    assert [result.task_id for result in answer(core, "a", 1, 1, 81.0).results] == [1]
    assert len(answer(core, "b", 2, 1, 82.0).results) == 1
    assert not [*core.state.jar.spans()]


def test_an_agent_that_is_back_has_its_tasks_again_if_nobody_else_got_them(core: MasterCore) -> None:
    """They go on as if their messages had only been late: nothing is said, and they are sent to no other slave."""
    join(core, "a")
    submit(core, 1)
    decide(core, 0.0)
    vanish(core, "a", 40.0)
    decide(core, 70.0)
    core.handle(Returned(b"a", "there"), 80.0)
    actions = decide(core, 80.0)
    assert (begun(actions), core.state.jar.pending.count) == ([], 0)
    join(core, "b", now=81.0)
    for now in (82.0, 90.0, 110.0):
        actions = decide(core, now)
        assert (begun(actions), notices(actions)) == ([], [])
    assert [result.task_id for result in answer(core, "a", 1, 1, 111.0).results] == [1]
    assert not [*core.state.jar.spans()]


def test_a_failure_that_an_agent_brings_back_does_not_count_if_its_task_runs_elsewhere(core: MasterCore) -> None:
    away_with_tasks(core, 1)
    assert begun(decide(core, 70.0)) == [1]
    core.handle(Returned(b"a", "there"), 80.0)
    failure = messages.Results(1, [1], [1], [1], [0.1], [0])
    core.handle(Received(b"a", "here", failure, [groups.payload(1, [Codec().dumps_failure(OSError())])]), 83.0)
    assert decide(core, 83.0).results == []
    assert len(answer(core, "b", 1, 2, 84.0).results) == 1


def test_a_task_that_must_not_run_twice_waits_for_its_agent(core: MasterCore) -> None:
    away_with_tasks(core, 1, TaskPolicy(retry=False))
    assert begun(decide(core, 99.0)) == []
    core.handle(Returned(b"a", "there"), 100.0)
    decide(core, 100.0)
    assert len(answer(core, "a", 1, 1, 101.0).results) == 1
