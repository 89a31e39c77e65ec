"""Where tasks with requirements run, what is kept for them, and what happens to those that fit nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from tests.driven import Driven
from tests.spans import MAX, MIN

from mwpy._core.master.state import CancelTasks, Running
from mwpy._values import messages, records
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import TaskPolicy
from mwpy._values.requires import Given, Offers
from mwpy._values.task import SlaveState


def offers(**amounts: int) -> Offers:
    texts = {"python": "3.11.2", "platform": "Linux-x86_64", "host": "node1"}
    return Offers(amounts, texts, pins=True)


def needing(**policy: Any) -> TaskPolicy:
    return TaskPolicy.of(**policy)


def given(driven: Driven) -> list[Given | None]:
    """What slaves are given with the tasks of the last step."""
    return [send.message.given for send in driven.actions.sends if isinstance(send.message, messages.Tasks)]


def test_a_slave_that_has_used_a_gpu_is_replaced_before_others_are_given_to_it() -> None:
    driven = Driven()
    driven.join(slaves=1, offers=offers(cpus=8, gpus=2))
    driven.submit(1, policy=needing(gpus=1))
    driven.finish(1, seconds=9.0)
    driven.submit(1, policy=needing(gpus=2))
    assert not driven.sent
    assert [send.message for send in driven.actions.sends] == [messages.Renew(slave=1)]
    driven.receive(messages.SlaveDied(1, 0, Cause.CANCELLED, "replaced", NO_WORDS))
    driven.receive(messages.SlaveReady(2))
    assert (driven.sent, given(driven)) == ([2], [Given({"cpus": 1, "gpus": 2}, [0], [0, 1])])


def test_a_task_for_a_slave_that_has_used_another_number_of_gpus_is_handed_back() -> None:
    """The slave is not replaced, because another one would not be the slave to which the task is addressed."""
    driven = Driven()
    driven.join(slaves=1, offers=offers(cpus=8, gpus=2))
    driven.submit(1, policy=needing(gpus=1, sid="SLAVE-0"))
    driven.finish(1, seconds=9.0)
    driven.submit(1, policy=needing(gpus=2, sid="SLAVE-0"))
    (task,) = driven.actions.unrunnable
    assert "SLAVE-0, to which it was addressed" in task.reason
    assert "its process has used 1 GPU, and cannot change to others" in task.reason
    driven.submit(1, policy=needing(gpus=1, sid="SLAVE-0"))
    assert driven.sent == [3]


def test_tasks_without_requirements_count_as_one_processor_beside_others() -> None:
    driven = Driven()
    driven.join(slaves=4, offers=offers(cpus=4))
    driven.submit(1, policy=needing(cpus=3))
    driven.submit(3, algorithm=MIN)
    assert driven.sent == [2]
    driven.finish(1, slave=1)
    assert driven.sent == [3, 4], "nothing is counted any more"


def test_without_requirements_each_slave_gets_a_task_whatever_its_agent_offers() -> None:
    driven = Driven()
    driven.join(slaves=4, offers=offers(cpus=1))
    driven.submit(4)
    assert driven.sent == [1, 2, 3, 4]


def test_a_wide_task_is_not_starved_by_small_ones() -> None:
    """Small tasks that wait are not sent to the processors that become free, but they fill those beside it."""
    driven = Driven()
    driven.join(slaves=8, offers=offers(cpus=8))
    driven.submit(100, policy=needing(cpus=1))
    assert driven.sent == [*range(1, 9)]
    driven.submit(1, algorithm=MIN, policy=needing(cpus=6))
    for task in range(1, 6):
        driven.finish(task, slave=task, seconds=9.0)
        assert driven.sent == []
    driven.finish(6, slave=6, seconds=9.0)
    assert driven.sent[0] == 101
    driven.finish(7, slave=7, seconds=9.0)
    assert set(driven.sent) <= {*range(9, 101)}
    assert driven.sent


def test_small_tasks_are_not_starved_by_wide_ones() -> None:
    driven = Driven()
    driven.join(slaves=8, offers=offers(cpus=8))
    driven.submit(100, policy=needing(cpus=8, seconds_expected=30))
    driven.submit(1, algorithm=MIN, policy=needing(cpus=1))
    for task in range(1, 5):
        driven.now += 30
        driven.finish(task, seconds=30.0)
        if driven.sent == [101]:
            break
    else:
        pytest.fail("the small task was never sent")


def test_tasks_of_a_higher_priority_are_sent_first_and_overtake_those_that_wait_at_slaves() -> None:
    driven = Driven()
    driven.join()
    driven.submit(1)
    driven.finish(1, seconds=100.0)
    driven.submit(4)
    assert driven.held() == [2, 3], "one runs and one waits there"
    driven.submit(1, algorithm=MIN, policy=needing(priority=1))
    assert [send.message for send in driven.actions.sends] == [messages.Revoke(1, 2)]
    driven.receive(messages.Revoked(1, [3], [1], [1]))
    driven.finish(2, seconds=100.0)
    assert driven.sent[0] == 6


def test_the_largest_costs_are_first_and_then_the_order_of_submission() -> None:
    driven = Driven()
    first = [driven.submit(1, policy=needing(cost=cost)) for cost in (2.0, 10.0, 5.0)]
    driven.join()
    order = driven.sent
    for place, _ in enumerate(first):
        driven.finish(order[place])
        order += driven.sent
    assert order == [2, 3, 1]


def test_of_tasks_that_require_the_same_those_that_took_longer_before_are_first() -> None:
    driven = Driven()
    driven.join(offers=offers(cpus=1))
    for algorithm, seconds in ((MAX, 1.0), (MIN, 50.0)):
        driven.finish(driven.submit(1, algorithm, needing(cpus=1)), seconds=seconds)
    busy = driven.submit(1, MAX, needing(cpus=1))
    driven.submit(1, MAX, needing(cpus=1))
    longer = driven.submit(1, MIN, needing(cpus=1))
    driven.finish(busy, seconds=1.0)
    assert driven.sent == [longer]


def test_what_the_whole_run_has_is_counted_over_all_agents() -> None:
    driven = Driven(run_offers={"licence": 2})
    driven.join(slaves=4, offers=offers(cpus=4))
    driven.join(peer=b"b", slaves=4, host="other", offers=offers(cpus=4))
    driven.submit(5, policy=needing(requires={"licence": 1}))
    assert driven.sent == [1, 2]
    driven.finish(2, slave=2, seconds=9.0)
    assert driven.sent[0] == 3
    assert sum(bool(driven.held(f"SLAVE-{number}")) for number in range(8)) == 2


def test_an_agent_is_asked_for_a_program_and_gets_the_task_if_it_has_it() -> None:
    driven = Driven()
    driven.join(offers=offers(cpus=1))
    driven.submit(1, policy=needing(requires={"gnuplot": True, "python": ">=3.10", "host": "node*"}))
    assert [send.message for send in driven.actions.sends] == [messages.OffersWanted(["gnuplot"])]
    assert not driven.pass_time(1.0).sends, "it is asked once"
    driven.receive(messages.Offered({"gnuplot": "/usr/bin/gnuplot", "lies": "yes"}))
    assert driven.sent == [1]


@pytest.mark.parametrize("requires", [{"python": ">=3.12"}, {"platform": "Darwin*"}, {"host": "gpu*"}, {"gpus": 1}])
def test_a_task_that_no_agent_can_run_waits_and_the_master_names_what_is_missing(requires: dict[str, Any]) -> None:
    driven = Driven()
    driven.join(offers=offers(cpus=4))
    driven.submit(1, policy=needing(requires=requires))
    said = [text for _ in range(3) for text in (driven.pass_time(5.0), driven.notices)[1]]
    (name,) = requires
    assert not driven.sent
    assert any("no agent offers" in text and name in text and "AGENT-0" in text for text in said), said


def test_a_task_is_unrunnable_when_it_has_waited_too_long_for_what_it_requires() -> None:
    driven = Driven()
    driven.join(offers=offers(cpus=4))
    driven.submit(1, policy=needing(gpus=1, wait_max=20))
    while driven.now < 30 and not driven.actions.unrunnable:
        driven.pass_time(5.0)
    assert driven.now >= 20
    (task,) = driven.actions.unrunnable
    assert "wait_max is 20 s" in task.reason
    assert "gpus 1 required, and it offers 0" in task.reason


def test_a_task_that_only_slaves_on_this_machine_could_run_is_handed_back() -> None:
    driven = Driven(only_here=True)
    driven.join(offers=offers(cpus=4))
    driven.submit(1, policy=needing(gpus=1))
    (task,) = driven.actions.unrunnable
    assert "only slaves on this machine can join" in task.reason


def test_an_agent_leaves_that_can_run_nothing_that_waits() -> None:
    driven = Driven()
    driven.join(offers=offers(cpus=4))
    driven.submit(1, policy=needing(gpus=1))
    while driven.now < 100 and not driven.of(records.AgentLeaving):
        driven.pass_time(5.0)
    assert 60 <= driven.now < 100
    assert "gpus 1" in driven.of(records.AgentLeaving)[0].reason
    (shutdown,) = [send.message for send in driven.actions.sends if isinstance(send.message, messages.Shutdown)]
    assert "gpus 1" in shutdown.unfit


def test_what_a_cancelled_task_was_given_is_free_when_its_slave_has_ended() -> None:
    driven = Driven()
    driven.join(slaves=2, offers=offers(cpus=2, gpus=1))
    driven.submit(2, policy=needing(gpus=1))
    assert driven.sent == [1]
    driven.step(CancelTasks([(1, 1)], Running.KILL))
    assert not driven.sent
    assert driven.core.state.members.slaves["SLAVE-0"].state is SlaveState.SHUTTING_DOWN  # type: ignore[index]
    driven.receive(messages.SlaveDied(1, 0, Cause.CANCELLED, "killed", NO_WORDS))
    assert driven.sent == [2]


def test_many_short_tasks_with_requirements_travel_together() -> None:
    driven = Driven()
    driven.join(slaves=2, offers=offers(cpus=4))
    driven.submit(1, policy=needing(cpus=4))
    driven.finish(1, seconds=0.0001)
    driven.submit(500, policy=needing(cpus=4))
    assert len(driven.sent) > 100
    assert len(given(driven)) <= 2


def test_what_a_cancelled_task_was_given_is_not_free_when_its_slave_gives_the_others_back() -> None:
    driven = Driven()
    driven.join(slaves=2, offers=offers(cpus=2, gpus=1))
    driven.submit(1, policy=needing(gpus=1))
    driven.finish(1, seconds=0.0001)
    driven.submit(3, policy=needing(gpus=1))
    assert driven.sent == [2, 3, 4]
    driven.step(CancelTasks([(2, 1)], Running.KILL))
    driven.receive(messages.Revoked(1, [3], [2], [1]))
    assert not driven.sent
    driven.receive(messages.SlaveDied(1, 0, Cause.CANCELLED, "killed", NO_WORDS))
    assert driven.sent == [3, 4]
