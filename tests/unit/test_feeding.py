"""Whether slaves are sent tasks at all."""

from __future__ import annotations

from typing import Any

from tests.driven import Driven

from mwpy._core.master.state import EndSoon, Waiting


def joined(**settings: Any) -> Driven:
    """A master with one agent and one slave."""
    master = Driven(**settings)
    master.join()
    return master


def test_a_master_whose_end_is_announced_sends_no_more_tasks() -> None:
    """A master without a known end has been asked by mistake, and goes on."""
    master = joined(task_group=1, feeds_until=1000.0, ends_at=1060.0)
    master.submit(5)
    assert master.step(EndSoon()).ends_at == 1060.0
    assert joined(task_group=1).step(EndSoon()).ends_at is None


def test_while_too_many_results_wait_no_task_is_sent_and_the_user_learns_why() -> None:
    """They may be fetched late, so the message comes only after some seconds."""
    master = joined(task_group=1, max_waiting_bytes=1000)
    master.submit(9)
    master.core.feeding.unfetched = 1001
    actions = master.finish(1)
    assert (master.held(), actions.sends) == ([], [])
    assert actions.result_bytes >= 200 * len(actions.results) > 0
    master.pass_time(1.0)
    assert master.notices == []
    master.pass_time(5.1)
    [notice] = master.notices
    assert notice.startswith("nothing has progressed")
    assert "results of about 1001 bytes wait for the master algorithm" in notice
    assert "Fetch them with mw.results() or from the maps that are open, or raise --mw-max-waiting-results" in notice
    master.core.feeding.unfetched = 1000
    master.step()
    assert master.held()


def test_an_algorithm_that_waits_is_never_blocked_by_results_that_wait() -> None:
    """It may wait for a task that was not sent yet. But while a slave works, it waits for that."""
    master = joined(task_group=4, max_waiting_bytes=1000)
    master.core.feeding.unfetched = 1001
    master.submit(9)
    assert master.held() == []
    master.core.waiting = Waiting.FOREVER
    master.step()
    assert master.held() == [1, 2, 3, 4]
    for task in (1, 2, 3):
        master.finish(task)
    assert master.held() == [4]
    master.finish(4)
    assert master.held() == [5, 6, 7, 8]
