"""Whether slaves are sent tasks at all."""

from __future__ import annotations

from tests.spans import MAX, held_by, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.commands import Waiting
from mwpy._core.master.core import Actions, MasterCore, MasterSettings
from mwpy._core.master.events import Received
from mwpy._values import messages


class Master:
    """A master with one agent and one slave, which is sent one task at a time."""

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
        self.receive(group, messages.payload(1, [value]))

    @property
    def held(self) -> list[int]:
        return held_by(self.core, "SLAVE-0")


def test_some_time_before_its_end_a_master_sends_no_more_tasks() -> None:
    """It says so once. Results still count, and no more slaves are needed."""
    master = Master(MasterSettings("m", "g", task_group=1, feeds_until=10.0, ends_at=15.0))
    master.core.submit([span(1, MAX, 5)])
    assert master.turn(9.0).ends_at is None
    held = len(master.held)
    assert held
    due = master.core.next_deadline()
    assert due is not None
    assert due <= 10.0
    assert master.core.counts().slaves_needed
    master.finish(1)
    actions = master.turn(10.0)
    assert (actions.ends_at, [result.task_id for result in actions.results]) == (15.0, [1])
    assert "the time of the master is nearly over, so no more tasks are sent" in str(actions.records)
    assert len(master.held) == held - 1
    for task in master.held:
        master.finish(task)
    master.core.waiting = Waiting.FOREVER
    actions = master.turn(1000.0)
    assert (actions.ends_at, master.held, actions.sends) == (None, [], [])
    assert "nothing has progressed" not in str(actions.records)
    assert (master.core.next_deadline(), master.core.counts().slaves_needed) == (None, 0)
