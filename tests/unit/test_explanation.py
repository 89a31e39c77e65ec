"""Why a task waits, or how it ended: what a master answers, and the sentences about it."""

from __future__ import annotations

import pytest
from tests.asked import Asked
from tests.spans import held_by

from mwpy._core.master import silence
from mwpy._core.master.silence import DEATHS_SHOWN
from mwpy._core.master.state import AllocateSlaves, CancelTasks, FreeSlave, Running, Vanished
from mwpy._values import messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS
from mwpy._values.records import ReusedTasks
from mwpy._values.task import SlaveKind

SID = SlaveId("SLAVE-0")


@pytest.fixture
def asked() -> Asked:
    return Asked(task_group=1)


def _last(asked: Asked, task: int) -> str:
    """The last reason why a task waits."""
    return asked.explain(task).reasons[-1]


# ---- tasks that wait for a slave ----


def test_without_slaves_a_task_waits_for_one(asked: Asked) -> None:
    """The tasks before it are counted, and never listed."""
    asked.submit(1, 10)
    assert str(asked.explain(8)) == (
        "task 8 (max) waits to be sent to a slave\n"
        "  no slave is connected: start some, or search for faults with `mwpy doctor`\n"
        "  7 tasks of the same queue are sent before it"
    )


def test_slaves_are_busy_with_other_tasks(asked: Asked) -> None:
    """Agents with the same reason are counted, and the first few are named."""
    for number in range(7):
        asked.connect(b"%d" % number, f"node{number}")
    asked.submit(1, 8)
    named = ", ".join(f"AGENT-{number} on node{number}" for number in range(5))
    assert asked.explain(8).reasons == [f"{named} and 2 more: all slaves are busy, with 7 tasks"]


def test_an_agent_with_little_time_is_sent_no_long_task(asked: Asked) -> None:
    """The most time of these agents is named."""
    for peer, left_s in ((b"a", 30.0), (b"b", 50.0), (b"c", 40.0)):
        asked.receive(messages.Hello("m", "g", "node1", 1, "3.11", 1, seconds_left=left_s), peer)
        asked.receive(messages.SlaveReady(1), peer)
    asked.submit(1, seconds_expected=100.0)
    named = "AGENT-0 on node1, AGENT-1 on node1, AGENT-2 on node1"
    assert asked.explain(1).reasons == [f"{named}: too little time left: 49 s at most, and the task takes 100 s"]


def test_ordered_slaves_get_no_task_of_no_address(asked: Asked) -> None:
    asked.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    asked.connect()
    asked.submit(1)
    assert "all slaves are ordered or freed" in _last(asked, 1)


def test_an_addressed_task_waits_for_its_slave(asked: Asked) -> None:
    """The reasons are about its slave, also if it is freed and ends after the tasks that it holds."""
    asked.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    asked.connect(slaves=2)
    asked.submit(1, 3, sid=SID)
    addressed = "it is addressed to {}, so no other slave is sent it"
    before, busy = "1 task of the same queue are sent before it", "AGENT-0 on node1: all slaves are busy, with 1 task"
    assert asked.explain(3).reasons == [addressed.format("SLAVE-0"), before, busy]
    asked.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    asked.connect(b"b")
    asked.submit(4, 2, sid=SlaveId("SLAVE-1"))
    assert asked.explain(5).reasons[:-1] == [addressed.format("SLAVE-1")]
    asked.core.obey(FreeSlave(SID))
    asked.receive(messages.SlaveRetiring(1), b"a")
    asked.decide()
    assert "its slaves get no more tasks, and end" in _last(asked, 3)


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
    assert "reserved for another task, which runs alone" in _last(asked, 2)
    place, *lost = asked.explain(1).reasons
    assert place.startswith("attempt 4 is on SLAVE-3 of AGENT-3 (node9)")
    assert [each.partition(":")[0] for each in lost] == ["lost"] * 3


# ---- tasks that wait for something else ----


def test_a_blocked_task_waits_for_results(asked: Asked) -> None:
    """A long list is cut."""
    asked.submit(1, 8)
    asked.submit(9, refers=tuple(range(1, 9)))
    assert str(asked.explain(9)) == (
        "task 9 (max) is blocked: it waits for the results of other tasks\n"
        "  8 tasks must end before it: 1, 2, 3, 4, 5 and 3 more"
    )


def test_a_delayed_task_pauses(asked: Asked) -> None:
    asked.connect()
    asked.submit(1, after=7.0)
    asked.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed by\nsignal 11", NO_WORDS), b"a")
    asked.decide()
    assert str(asked.explain(1)) == (
        "task 1 (max) pauses before its next attempt, as `after` in its policy says, after 1 attempt\n"
        "  its next attempt is possible in 6 s\n"
        "  lost: attempt 1 on SLAVE-0: crash: killed by signal 11"
    )


# ---- tasks that slaves have, and those that have ended ----


def test_a_running_task_is_named_with_its_slave(asked: Asked) -> None:
    asked.connect()
    asked.submit(1)
    asked.now += 40.0
    assert str(asked.explain(1)) == (
        "task 1 (max) is at a slave, after 1 attempt\n"
        "  attempt 1 is on SLAVE-0 of AGENT-0 (node1), and has run there for at most 41 s"
    )


def test_a_task_behind_others_at_its_slave_has_not_started() -> None:
    asked = Asked(task_group=3)
    asked.connect()
    asked.submit(1, 3)
    assert "behind 2 tasks; its last result came" in _last(asked, 3)


def test_a_task_that_may_finish_after_its_cancellation_says_so(asked: Asked) -> None:
    asked.connect()
    asked.submit(1)
    asked.core.obey(CancelTasks([(1, 1)], Running.FINISH))
    asked.decide()
    assert asked.explain(1).fate == "is at a slave and is cancelled unless it has started, after 1 attempt"


def test_the_end_of_a_task_is_explained(asked: Asked) -> None:
    """The master knows the newest failures only."""
    asked.connect()
    asked.submit(1, 2)
    asked.finish(1)
    asked.fail(ValueError("negative"), 2)
    assert str(asked.explain(1)) == "task 1 has ended, and the master keeps nothing of it"
    assert str(asked.explain(2)) == "task 2 (max) failed on node1: ValueError: negative"
    assert str(asked.explain(3)) == "task 3 is unknown: 2 tasks were submitted so far, with ids from 1 on"
    assert not asked.explain(0).is_known


def test_a_task_that_was_answered_from_the_run_database_says_so(asked: Asked) -> None:
    asked.core.state.record(records.ResultsReused([ReusedTasks(1, 2, 0, "max", b"", [5, 5], [0, 1], [1])]))
    assert str(asked.explain(2)) == "task 2 was answered from the run database, when it was submitted"
    assert not asked.explain(3).is_known
    status = asked.status
    assert (status.reused, status.tasks["succeeded"], status.tasks["failed"]) == (2, 1, 1)


# ---- limits ----


def test_different_reasons_of_agents_are_limited(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "REASONS_SHOWN", 3)
    for number in range(5):
        asked.connect(b"%d" % number)
        asked.receive(messages.Leaving(f"reason {number}", Cause.EVICTED), b"%d" % number)
    asked.submit(1)
    assert len(asked.explain(1).reasons) == 3


def test_only_the_last_losses_are_shown(asked: Asked) -> None:
    asked.submit(1, attempts_max=20)
    for _ in range(DEATHS_SHOWN + 2):
        asked.connect(b"a")
        asked.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed", NO_WORDS), b"a")
        asked.decide()
        asked.receive(messages.Goodbye("it ends", Cause.CRASH), b"a")
        asked.decide()
    assert sum(each.startswith("lost: ") for each in asked.explain(1).reasons) == DEATHS_SHOWN
