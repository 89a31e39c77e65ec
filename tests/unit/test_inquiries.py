"""Members that ask a master what it does: who gets an answer, how often, and what the answer says."""

from __future__ import annotations

import pytest
from tests.asked import ASK, Asked
from tests.spans import MIN, defined, held_by, span

from mwpy._core.master import silence, totals
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.silence import (
    ALGORITHMS_SHOWN,
    HOSTS_SHOWN,
    INQUIRERS_MAX,
    OTHERS,
    PAUSE_S,
    Rate,
)
from mwpy._core.master.state import NOTICES_KEPT, CancelTasks, Running, ShutDown, Vanished
from mwpy._values import messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messages import HostStatus, Notice
from mwpy._values.policy import OTHER_KINDS


@pytest.fixture
def asked() -> Asked:
    return Asked()


# ---- who gets an answer ----


def test_an_inquirer_counts_nowhere(asked: Asked) -> None:
    """It is no agent, it has no slaves, nothing is recorded, and what the master publishes is the same."""
    asked.submit(1, 5)
    before = asked.core.counts()
    asked.recorded.clear()
    assert isinstance(asked.ask(), messages.Status)
    assert asked.core.counts() == before
    assert not asked.core.state.members.agents
    assert asked.recorded == []
    assert asked.core.admission.refusals == 0


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (messages.Ask("other", "g"), "is not this master's 'm'"),
        (messages.Ask("m", "old"), "generation old, this master is generation g"),
    ],
)
def test_an_inquirer_of_another_computation_is_refused(asked: Asked, question: messages.Ask, words: str) -> None:
    """The refusal is recorded. It does not count as the refusal of an agent."""
    asked.receive(question)
    asked.decide()
    [answer] = asked.sent[b"asks"]
    assert isinstance(answer, messages.Refused)
    assert words in answer.reason
    assert asked.recorded[-1] == records.AgentRefused("10.0.0.9", answer.reason)
    assert asked.core.admission.refusals == 0
    assert asked.core.admission.ignores(b"asks")


def test_a_master_that_ends_says_so(asked: Asked) -> None:
    asked.core.obey(ShutDown(True, 1.0))
    assert asked.ask() == messages.Shutdown(True, 1.0)


def test_a_question_that_was_not_answered_at_the_end_of_the_master_gets_the_end(asked: Asked) -> None:
    for peer in (b"1", b"2"):
        asked.receive(ASK, peer)
    asked.decide()
    asked.core.obey(ShutDown(True, 1.0))
    asked.decide()
    assert [type(message) for message in asked.sent[b"1"]] == [messages.Status]
    assert asked.sent[b"2"] == [messages.Shutdown(True, 1.0)]
    assert asked.core.admission.ignores(b"2")


def test_only_so_many_inquirers_wait(asked: Asked) -> None:
    """When one of them leaves, another one gets its place."""
    for number in range(INQUIRERS_MAX):
        asked.receive(ASK, b"%d" % number)
    asked.receive(ASK, b"one more")
    asked.core.handle(Vanished(b"7", 0.0), asked.now)
    asked.receive(ASK, b"the next")
    for _ in range(INQUIRERS_MAX):
        asked.now += PAUSE_S
        asked.decide()
    [answer] = asked.sent[b"one more"]
    assert isinstance(answer, messages.Refused)
    assert f"{INQUIRERS_MAX} others ask" in answer.reason
    assert [type(each) for each in asked.sent[b"the next"]] == [messages.Status]
    assert b"7" not in asked.sent


def test_questions_wait_in_a_queue_so_that_answers_cost_little(asked: Asked) -> None:
    """One is answered at a time, the oldest first, with a pause after each answer."""
    asked.connect()
    for peer in (b"1", b"2"):
        asked.receive(ASK, peer)
    asked.decide()
    assert [*asked.sent] == [b"a", b"1"]
    deadline = asked.core.next_deadline()
    assert deadline == asked.core.inquiries.deadline == asked.now + PAUSE_S
    asked.decide()
    assert b"2" not in asked.sent
    assert deadline is not None
    asked.now = deadline
    asked.decide()
    assert len(asked.sent[b"2"]) == 1
    assert asked.core.inquiries.deadline is None


def test_an_inquirer_that_asks_again_before_its_answer_is_dropped(asked: Asked) -> None:
    """So a flood of questions costs one answer."""
    asked.receive(ASK)
    asked.receive(ASK)
    asked.decide()
    assert asked.sent[b"asks"] == [messages.Refused("protocol error: an inquirer asked again before it had its answer")]
    assert asked.core.admission.ignores(b"asks")
    assert asked.core.inquiries.deadline is None


# ---- what the answer says ----


def test_tasks_are_counted_by_state_and_algorithm(asked: Asked) -> None:
    asked.connect()
    asked.submit(1, 4)
    asked.finish(1)
    asked.submit(5, refers=(3,))
    asked.submit(6, refers=(4,))
    asked.submit(7, refers=(4,))
    asked.core.obey(CancelTasks([(7, 1)], Running.KILL))
    asked.core.submit([span(8, MIN, 9)])
    status = asked.status
    held = len(held_by(asked.core, "SLAVE-0"))
    pending = 3 - held + 9
    waiting = {"pending": pending, "blocked": 2, "delayed": 0, "at_slaves": held}
    assert status.tasks == {**waiting, "succeeded": 1, "failed": 0, "cancelled": 1}
    assert sum(each.pending for each in status.algorithms.values()) == pending
    assert sum(each.at_slaves for each in status.algorithms.values()) == held
    assert status.algorithms["max"].blocked == 2
    assert (status.algorithms["max"].finished, status.algorithms["max"].seconds) == (1, 0.5)


def test_slaves_are_counted_by_host_and_state(asked: Asked) -> None:
    asked.connect(b"a", "node1", slaves=3)
    asked.receive(messages.SlaveReady(2), b"a")
    asked.connect(b"b", "node2")
    asked.submit(1)
    asked.receive(messages.Leaving("evicted", Cause.EVICTED), b"b")
    asked.decide()
    status = asked.status
    assert status.hosts == {
        "node1": HostStatus(agents=1, starting=1, idle=1, busy=1),
        "node2": HostStatus(agents=1, leaving=1),
    }
    assert status.slaves_connected == 3
    asked.finish(1)
    assert asked.status.hosts["node1"] == HostStatus(agents=1, starting=1, idle=2, finished=1)
    asked.core.handle(Vanished(b"a", 0.0), asked.now)
    assert [*asked.status.hosts] == ["node2"]


def test_an_excluded_host_is_named_with_the_reason(asked: Asked) -> None:
    asked.core.state.record(records.HostExcluded("node9", "no disk"))
    asked.core.hosts._until["node9"], asked.core.hosts._jobs["node9"] = 1e9, {}
    asked.core.hosts.deadline = 1e9
    assert asked.status.hosts == {"node9": HostStatus(excluded="no disk")}


def test_a_long_table_names_only_the_largest_rows(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others are in one row, so that nothing is missing in the sums."""
    for number in range(2, ALGORITHMS_SHOWN + 5):
        asked.core.definitions.add(Defined(defined(number, f"f{number}", "m:f")))
    asked.core.submit([span(1, MIN, 7)])
    algorithms = asked.status.algorithms
    assert len(algorithms) == ALGORITHMS_SHOWN + 1
    assert next(iter(algorithms)) == "min"
    assert [*algorithms][-1] == OTHERS
    monkeypatch.setattr(silence, "HOSTS_SHOWN", 2)
    for number in range(5):
        asked.connect(b"%d" % number, f"node{number}", slaves=10 - number)
    hosts = asked.status.hosts
    assert [*hosts] == ["node0", "node1", OTHERS]
    assert (hosts[OTHERS].agents, hosts[OTHERS].busy, hosts[OTHERS].starting) == (3, 3, 7 + 6 + 5)
    assert HOSTS_SHOWN > 2


def test_failures_are_counted_by_kind(asked: Asked) -> None:
    """Results, unrunnable tasks and tasks that are too large count. Cancelled tasks and those that need a failed one do
    not."""
    asked.connect()
    asked.submit(1)
    asked.submit(2, refers=(1,))
    asked.fail(ValueError("negative"), 1)
    asked.submit(3, attempts_max=1)
    asked.receive(messages.SlaveDied(1, 3, Cause.CRASH, "killed by signal 11", NO_WORDS), b"a")
    asked.decide()
    assert asked.status.failures == {"ValueError": 1, "TaskUnrunnable (crash)": 1}
    asked.submit(4, sid=SlaveId("SLAVE-7"))
    status = asked.status
    assert status.failures == {"ValueError": 1, "TaskUnrunnable (crash)": 1, "TaskUnrunnable": 1}
    assert status.last_failure.startswith("task 4 (max): SLAVE-7, to which it was addressed, is gone")
    assert status.last_failure_age_s == 1.0
    assert status.tasks["failed"] == 3


def test_the_last_failure_names_the_task_and_its_host(asked: Asked) -> None:
    asked.connect()
    asked.submit(1)
    asked.fail(ValueError("negative"), 1)
    assert asked.status.last_failure == "task 1 (max) on node1: ValueError: negative"


def test_what_is_kept_of_failures_has_a_limit(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "FAILURES_KEPT", 5)
    monkeypatch.setattr(totals, "KINDS_KEPT", 3)
    asked.connect()
    failures = asked.core.answers.failures
    for number in range(1, 8):
        asked.submit(number)
        asked.fail(type(f"Error{number}", (Exception,), {})(), number)
    assert [*failures.newest] == [3, 4, 5, 6, 7]
    assert [*failures.kinds.values()] == [1, 1, 1, 4]
    assert [*failures.kinds][-1] == OTHER_KINDS


def test_the_newest_notices_are_in_a_status(asked: Asked) -> None:
    for number in range(NOTICES_KEPT + 1):
        asked.core.state.notice(f"notice {number}")
    notices = asked.status.notices
    assert len(notices) == NOTICES_KEPT
    assert notices[-1] == Notice(asked.now, f"notice {NOTICES_KEPT}")  # no event had come before


def test_a_status_says_why_no_tasks_are_sent(asked: Asked) -> None:
    asked.core.feeding.unfetched = 2 << 30
    assert asked.status.waits.startswith("results of about 2.0 GiB wait")
    late = Asked(feeds_until=100.5, ends_at=101.0)
    assert late.status.waits == "the time of the master is nearly over, so no more tasks are sent"


# ---- the rate ----


def test_the_rate_is_that_of_the_last_minute(asked: Asked) -> None:
    """Before the first sample it is zero, and in the first minute it is that since the start."""
    rate, jar = Rate(asked.core.state), asked.core.state.jar
    assert rate.at(5.0) == 0.0
    rates = []
    for second in range(200):
        jar.ended += 1 if second < 100 else 3
        rate.decide(float(second))
        rates.append(rate.at(float(second)))
    assert rates[0] == 0.0
    assert rates[50] == 1.0
    assert rates[-1] == 3.0
    assert len(rate._samples) < 20


def test_an_inquirer_gets_one_answer_on_a_connection(asked: Asked) -> None:
    """It may read none of the answers, which would fill the memory of the master."""
    for _ in range(2):
        asked.now += 1.0
        asked.receive(ASK)
        asked.decide()
    assert [type(each) for each in asked.sent[b"asks"]] == [messages.Status]
    assert asked.core.admission.ignores(b"asks")
