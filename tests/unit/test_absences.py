"""Agents that are away: what happens to their slaves and tasks until they are back or given up."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.driven import Driven

from mwpy._core.master.state import Actions, Returned, ShutDown
from mwpy._values import messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.connections import Vanished
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.task import SlaveState

HELLO = messages.Hello("m", "g", "host", 1, "3.11", 1, session="s", returns_s=100.0)
AWAY_S = 31.0


class Master(Driven):
    """A master with agents of one slave each, which come back unless they say something else."""

    def join(self, peer: bytes = b"a", slaves: int = 1, host: str = "host", **hello: Any) -> Actions:
        return super().join(peer, slaves, host, **{"session": peer.decode(), "returns_s": 100.0, **hello})

    def vanish(self, peer: bytes = b"a", silent_s: float = AWAY_S) -> Actions:
        return self.step(Vanished(peer, silent_s))

    def at(self, now: float) -> Actions:
        """Decide at a time."""
        self.now = now
        return self.step()


@pytest.fixture
def master() -> Master:
    return Master(task_group=None)


@pytest.mark.parametrize(
    ("hello", "silent_s"),
    [({"returns_s": 0.0}, AWAY_S), ({"session": ""}, AWAY_S), ({}, 0.0)],
    ids=["does not return", "has no session", "was killed"],
)
def test_an_agent_that_will_not_come_back_is_lost_at_once(
    master: Master, hello: dict[str, Any], silent_s: float
) -> None:
    master.join(**hello)
    master.now = 40.0
    master.vanish(silent_s=silent_s)
    assert master.of(records.AgentLost)


def test_if_all_that_is_left_waits_for_agents_that_are_away_the_user_learns_this(master: Master) -> None:
    for number in range(5):
        master.join(b"%d" % number)
        master.submit()
    master.now = 40.0
    for number in range(5):
        master.vanish(b"%d" % number)
    master.at(44.0)
    master.at(50.0)
    assert master.notices == [
        "nothing has progressed for 10 s: the master waits for the return of 5 agents with 5 tasks (AGENT-0 on host, "
        "away for 41 s; AGENT-1 on host, away for 41 s; AGENT-2 on host, away for 41 s; and 2 more). The first one is "
        "given up in 90 s; then its tasks run elsewhere"
    ]


def test_a_new_agent_with_the_file_of_a_former_generation_is_refused(master: Master) -> None:
    [send] = master.receive(replace(HELLO, generation="former")).sends
    assert isinstance(send.message, messages.Refused)
    assert (send.message.again, send.message.generation) == (False, master.core.state.settings.generation)
    assert master.core.admission.refusals == 1


def test_an_agent_of_a_former_generation_that_may_not_join_is_refused_for_good(master: Master) -> None:
    [send] = master.receive(replace(HELLO, member_id="other", generation="former", handled=7)).sends
    assert isinstance(send.message, messages.Refused)
    assert (send.message.again, send.message.generation) == (False, "")


def test_members_that_ask_learn_which_slaves_are_away_and_that_tasks_wait_for_them(master: Master) -> None:
    master.join()
    master.now = 40.0
    master.vanish()
    master.submit()
    master.now = 41.0
    sends = master.receive(messages.Ask("m", "g"), peer=b"b").sends
    sends += master.receive(messages.Ask("m", "g", 1), peer=b"c").sends
    answers = {send.peer: send.message for now in (42.0, 43.0, 44.0) for send in [*sends, *master.at(now).sends]}
    status, explanation = answers[b"b"], answers[b"c"]
    assert isinstance(status, messages.Status)
    assert status.hosts["host"].away == 1
    assert isinstance(explanation, messages.Explanation)
    assert "away: nothing is heard from it" in explanation.reasons[-1]


def away_with_tasks(master: Master, tasks: int, policy: TaskPolicy = DEFAULT_POLICY) -> None:
    """The agent `a` gets tasks, and falls silent at 40 s. The agent `b` joins, with an idle slave."""
    master.join()
    for _ in range(tasks):
        master.submit(policy=policy)
    master.now = 40.0
    master.vanish()
    master.now = 41.0
    master.join(b"b")


def test_an_idle_slave_starts_a_task_again_when_its_agent_has_been_away_for_another_timeout(master: Master) -> None:
    away_with_tasks(master, 1)
    master.at(69.0)
    assert master.sent == []
    assert (master.core.next_deadline() or 99.0) <= 70.0
    master.at(70.0)
    assert master.sent == [1]
    master.at(99.0)
    assert master.sent == []


def test_an_agent_that_is_back_has_its_tasks_again_if_nobody_else_got_them(master: Master) -> None:
    """They go on as if their messages had only been late: nothing is said, and they are sent to no other slave."""
    master.join()
    master.submit()
    master.now = 40.0
    master.vanish()
    master.at(70.0)
    master.now = 80.0
    master.step(Returned(b"a", "there"))
    assert (master.sent, master.core.state.jar.pending.count) == ([], 0)
    master.join(b"b")
    for now in (82.0, 90.0, 110.0):
        master.at(now)
        assert (master.sent, master.notices) == ([], [])
    assert [result.task_id for result in master.finish(1).results] == [1]
    assert not [*master.core.state.jar.spans()]


def test_an_agent_that_comes_back_to_a_host_that_was_excluded_meanwhile_is_let_go(master: Master) -> None:
    """Its slave may finish what it runs, and gets no other task."""
    master.join()
    master.submit()
    master.vanish()
    master.core.state.record(records.HostExcluded("host", "host host gets no more work"))
    [refused] = master.step(Returned(b"a", "there")).sends
    assert refused.message == messages.Refused("host host gets no more work", finish=True)
    assert master.core.state.members.slaves[SlaveId("SLAVE-0")].state is SlaveState.SHUTTING_DOWN
    assert len(master.finish(1).results) == 1


def test_the_end_waits_for_no_agent_that_is_away(master: Master) -> None:
    master.join()
    master.submit()
    master.vanish()
    actions = master.step(ShutDown(finished=True, grace_s=1.0))
    assert (actions.forget, [*master.core.state.members.agents]) == ([b"a"], [])
