"""Whether slaves are sent tasks at all."""

from __future__ import annotations

from tests.spans import MAX, held_by, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import Actions, EndSoon, MasterSettings, Received, Waiting
from mwpy._values import groups, messages


class Master:
    """A master with one agent and one slave."""

    def __init__(self, settings: MasterSettings) -> None:
        self.core = MasterCore(settings)
        self.core.definitions.add(Defined(MAX))
        self.receive(messages.Hello("m", "g", "host", 1, "3.11", 1))
        self.receive(messages.SlaveReady(1))

    def receive(self, message: messages.Message, *frames: bytes) -> None:
        self.core.handle(Received(b"a", "here", message, frames), 0.0)

    def turn(self, now: float = 0.0) -> Actions:
        self.core.decide(now)
        self.core.check()
        return self.core.take_actions()

    def finish(self, task: int, value: bytes = b"\x07") -> None:
        group = messages.Results(1, [task], [1], [1], [0.1], [])
        self.receive(group, groups.payload(1, [value]))

    @property
    def held(self) -> list[int]:
        return held_by(self.core, "SLAVE-0")


def test_a_master_whose_end_is_announced_sends_no_more_tasks() -> None:
    """A master without a known end has been asked by mistake, and goes on."""
    master = Master(MasterSettings("m", "g", task_group=1, feeds_until=1000.0, ends_at=1060.0))
    master.core.submit([span(1, MAX, 5)])
    master.turn(9.0)
    master.core.obey(EndSoon())
    assert master.turn(10.0).ends_at == 1060.0
    endless = Master(MasterSettings("m", "g", task_group=1))
    endless.core.obey(EndSoon())
    assert endless.turn(10.0).ends_at is None


def test_while_too_many_results_wait_no_task_is_sent_and_the_user_learns_why() -> None:
    """They may be fetched late, so the message comes only after some seconds."""
    master = Master(MasterSettings("m", "g", task_group=1, max_waiting_bytes=1000))
    master.core.submit([span(1, MAX, 9)])
    master.turn()
    master.core.feeding.unfetched = 1001
    for task in list(master.held):
        master.finish(task)
    actions = master.turn()
    assert (master.held, actions.sends) == ([], [])
    assert actions.result_bytes >= 200 * len(actions.results) > 0
    notices = [str(master.turn(now).records) for now in (1.0, 6.1)]
    assert ("nothing has progressed" in notices[0], "nothing has progressed" in notices[1]) == (False, True)
    assert "results of about 1001 bytes wait for the master algorithm" in notices[1]
    assert (
        "Fetch them with mw.results() or from the maps that are open, or raise --mw-max-waiting-results" in notices[1]
    )
    master.core.feeding.unfetched = 1000
    master.turn(7.0)
    assert master.held


def test_an_algorithm_that_waits_is_never_blocked_by_results_that_wait() -> None:
    """It may wait for a task that was not sent yet. But while a slave works, it waits for that."""
    master = Master(MasterSettings("m", "g", task_group=4, max_waiting_bytes=1000))
    master.core.submit([span(1, MAX, 9)])
    master.core.feeding.unfetched = 1001
    master.turn()
    assert master.held == []
    master.core.waiting = Waiting.FOREVER
    master.turn()
    assert master.held == [1, 2, 3, 4]
    for task in (1, 2, 3):
        master.finish(task)
        master.turn()
    assert master.held == [4]
    master.finish(4)
    master.turn()
    assert master.held == [5, 6, 7, 8]
