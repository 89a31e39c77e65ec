"""Why a task waits, or how it ended: what a master answers, and the sentences about it."""

from __future__ import annotations

import pytest
from tests.asked import Asked
from tests.spans import held_by

from mwpy._core.master import silence
from mwpy._core.master.silence import DEATHS_SHOWN, MISSING_NAMED
from mwpy._core.master.state import AllocateSlaves, CancelTasks, FreeSlave, Running, Vanished
from mwpy._values import messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messages import Explanation, Fate, Place, WaitReason, Why, explained
from mwpy._values.records import ReusedTasks
from mwpy._values.task import SlaveKind

SID = SlaveId("SLAVE-0")


@pytest.fixture
def asked() -> Asked:
    return Asked(task_group=1)


def _only(asked: Asked, task: int) -> WaitReason:
    """The only reason of agents why a task waits."""
    [reason] = asked.explain(task).agents
    return reason


# ---- tasks that wait for a slave ----


def test_without_slaves_a_task_waits_for_one(asked: Asked) -> None:
    """The tasks before it are counted, and never listed."""
    asked.submit(1, 10)
    answer = asked.explain(8)
    assert (answer.fate, answer.algorithm, answer.attempts, answer.agents) == (Fate.PENDING, "max", 0, [])
    assert answer.reasons == [WaitReason(Why.NO_AGENT), WaitReason(Why.TASKS_BEFORE, number=7)]
    assert explained(answer) == (
        "task 8 (max) waits to be sent to a slave\n"
        "  no slave is connected: start some, or search for faults with `mwpy doctor`\n"
        "  7 tasks of the same queue are sent before it"
    )


def test_slaves_are_busy_with_other_tasks(asked: Asked) -> None:
    """Agents with the same reason are counted, and the first few are named."""
    for number in range(7):
        asked.connect(b"%d" % number, f"node{number}")
    asked.submit(1, 8)
    reason = _only(asked, 8)
    assert (reason.why, reason.number, reason.count) == (Why.BUSY, 7, 7)
    assert reason.agents == [f"AGENT-{number} on node{number}" for number in range(5)]
    assert explained(asked.explain(8)).endswith("AGENT-4 on node4 and 2 more: all slaves are busy, with 7 tasks")


def test_an_agent_with_little_time_is_sent_no_long_task(asked: Asked) -> None:
    """The most time of these agents is named."""
    for peer, left_s in ((b"a", 30.0), (b"b", 50.0), (b"c", 40.0)):
        asked.receive(messages.Hello("m", "g", "node1", 1, "3.11", 1, seconds_left=left_s), peer)
        asked.receive(messages.SlaveReady(1), peer)
    asked.submit(1, seconds_expected=100.0)
    reason = _only(asked, 1)
    assert (reason.why, reason.number, reason.count) == (Why.NO_TIME, 49.0, 3)
    assert "too little time left: 48 s at most, and the task takes 100 s" in explained(asked.explain(1))


def test_ordered_slaves_get_no_task_of_no_address(asked: Asked) -> None:
    asked.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    asked.connect()
    asked.submit(1)
    assert _only(asked, 1).why is Why.OTHER_KIND


def test_an_addressed_task_waits_for_its_slave(asked: Asked) -> None:
    """The reasons are about its slave, also if it is freed and ends after the tasks that it holds."""
    asked.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    asked.connect(slaves=2)
    asked.submit(1, 3, sid=SID)
    answer = asked.explain(3)
    assert answer.reasons == [WaitReason(Why.ADDRESSED, "SLAVE-0"), WaitReason(Why.TASKS_BEFORE, number=1)]
    assert [reason.why for reason in answer.agents] == [Why.BUSY]
    asked.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    asked.connect(b"b")
    asked.submit(4, 2, sid=SlaveId("SLAVE-1"))
    assert asked.explain(5).reasons == [WaitReason(Why.ADDRESSED, "SLAVE-1")]
    asked.core.obey(FreeSlave(SID))
    asked.receive(messages.SlaveRetiring(1), b"a")
    asked.decide()
    assert _only(asked, 3).why is Why.ENDING


def test_a_suspect_waits_to_run_alone(asked: Asked) -> None:
    """Other tasks are there; then the agent is reserved."""
    for number in range(3):
        asked.connect(b"%d" % number)
        if not number:
            asked.submit(1)
        asked.core.handle(Vanished(b"%d" % number, 0.0), asked.now)
        asked.decide()
    asked.connect(b"last", "node9")
    assert held_by(asked.core, "SLAVE-3") == [1]
    asked.submit(2)
    assert _only(asked, 2).why is Why.RESERVED
    [place] = asked.explain(1).places
    assert place.attempt == 4
    assert len(asked.explain(1).deaths) == 3


# ---- tasks that wait for something else ----


def test_a_blocked_task_waits_for_results(asked: Asked) -> None:
    """A long list is cut."""
    asked.submit(1, 8)
    asked.submit(9, refers=tuple(range(1, 9)))
    answer = asked.explain(9)
    assert (answer.fate, answer.reasons) == (Fate.BLOCKED, [WaitReason(Why.MISSING, "1, 2, 3, 4, 5", 8)])
    assert MISSING_NAMED == 5
    assert explained(answer).endswith("  8 tasks must end before it: 1, 2, 3, 4, 5")


def test_a_delayed_task_pauses(asked: Asked) -> None:
    asked.connect()
    asked.submit(1, after=7.0)
    asked.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed by\nsignal 11", NO_WORDS), b"a")
    asked.decide()
    answer = asked.explain(1)
    assert (answer.fate, answer.attempts) == (Fate.DELAYED, 1)
    assert answer.reasons == [WaitReason(Why.PAUSE, number=6.0)]
    assert explained(answer) == (
        "task 1 (max) pauses before its next attempt, as `after` in its policy says, after 1 attempt\n"
        "  its next attempt is possible in 6 s\n"
        "  lost: attempt 1 on SLAVE-0: crash: killed by signal 11"
    )


# ---- tasks that slaves have, and those that have ended ----


def test_a_running_task_is_named_with_its_slave(asked: Asked) -> None:
    asked.connect()
    asked.submit(1)
    asked.now += 40.0
    answer = asked.explain(1)
    assert (answer.fate, answer.places) == (Fate.AT_SLAVE, [Place("SLAVE-0", "AGENT-0", "node1", 1, 0, 41.0)])
    assert explained(answer) == (
        "task 1 (max) is at a slave, after 1 attempt\n"
        "  attempt 1 is on SLAVE-0 of AGENT-0 (node1), and has run there for at most 41 s"
    )


def test_a_task_behind_others_at_its_slave_has_not_started() -> None:
    asked = Asked(task_group=3)
    asked.connect()
    asked.submit(1, 3)
    [place] = asked.explain(3).places
    assert place.before == 2
    assert "behind 2 tasks; its last result came" in explained(asked.explain(3))


def test_a_task_that_may_finish_after_its_cancellation_says_so(asked: Asked) -> None:
    asked.connect()
    asked.submit(1)
    asked.core.obey(CancelTasks([(1, 1)], Running.FINISH))
    asked.decide()
    assert asked.explain(1).fate is Fate.CANCELLING


def test_the_end_of_a_task_is_explained(asked: Asked) -> None:
    """The master knows the newest failures only."""
    asked.connect()
    asked.submit(1, 2)
    asked.finish(1)
    asked.fail(ValueError("negative"), 2)
    assert explained(asked.explain(1)) == "task 1 has ended, and the master keeps nothing of it"
    assert explained(asked.explain(2)) == "task 2 (max) failed on node1: ValueError: negative"
    assert explained(asked.explain(3)) == "task 3 is unknown: 2 tasks were submitted so far, with ids from 1 on"
    assert asked.explain(0).fate is Fate.UNKNOWN


def test_a_task_that_was_answered_from_the_run_database_says_so(asked: Asked) -> None:
    asked.core.state.record(records.ResultsReused([ReusedTasks(1, 2, 0, "max", b"", [5, 5], [0, 1], [1])]))
    assert explained(asked.explain(2)) == "task 2 was answered from the run database, when it was submitted"
    assert asked.explain(3).fate is Fate.UNKNOWN
    status = asked.status
    assert (status.reused, status.tasks["succeeded"], status.tasks["failed"]) == (2, 1, 1)


# ---- limits ----


def test_different_reasons_of_agents_are_limited(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "REASONS_SHOWN", 3)
    for number in range(5):
        asked.connect(b"%d" % number)
        asked.receive(messages.Leaving(f"reason {number}", Cause.EVICTED), b"%d" % number)
    asked.submit(1)
    assert len(asked.explain(1).agents) == 3


def test_only_the_last_losses_are_shown(asked: Asked) -> None:
    asked.submit(1, attempts_max=20)
    for _ in range(DEATHS_SHOWN + 2):
        asked.connect(b"a")
        asked.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed", NO_WORDS), b"a")
        asked.decide()
        asked.receive(messages.Goodbye("it ends", Cause.CRASH), b"a")
        asked.decide()
    assert len(asked.explain(1).deaths) == DEATHS_SHOWN


def test_each_reason_and_fate_has_a_sentence() -> None:
    for why in Why:
        answer = Explanation(1, Fate.PENDING, "f", reasons=[WaitReason(why, "text", 2.0, ["AGENT-0 (node1)"], 1)])
        assert len(explained(answer).splitlines()) == 2
    for fate in Fate:
        assert explained(Explanation(1, fate, "f", "7")).startswith("task 1 (f) ")
