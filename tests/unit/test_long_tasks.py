"""Tasks that run for long are reported with slave and host, at growing intervals."""

from __future__ import annotations

from itertools import pairwise

from attrs import define, field
from tests.spans import MAX, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.silence import LONGEST_S
from mwpy._core.master.state import MasterSettings, Received
from mwpy._values import messages
from mwpy._values.records import Notice

DAY_S = 86400.0


def _core() -> MasterCore:
    core = MasterCore(MasterSettings("m", "g"))
    core.definitions.add(Defined(MAX))
    return core


@define
class _Master:
    """A core and its clock. The core decides at each deadline and after each event."""

    core: MasterCore = field(factory=_core)
    now: float = 1000.0
    tasks: int = 0
    reports: list[tuple[float, str]] = field(factory=list)
    """Each report: seconds since the start, and the text."""

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = due
            self.decide()
        self.now = until
        self.decide()

    def decide(self) -> None:
        self.core.decide(self.now)
        self.core.check()
        for record in self.core.take_actions().records:
            if isinstance(record, Notice):
                self.reports.append((self.now - 1000.0, record.text))

    def receive(self, message: messages.Message, frames: tuple[bytes, ...] = ()) -> None:
        self.core.handle(Received(b"a", "10.0.0.1", message, frames), self.now)
        self.decide()

    def connect(self, slaves: int) -> None:
        self.receive(messages.Hello("m", "g", "node1", 1, "3.11", slaves))
        for number in range(1, slaves + 1):
            self.receive(messages.SlaveReady(number))

    def submit(self, count: int = 1) -> None:
        for _ in range(count):
            self.tasks += 1
            self.core.submit([span(self.tasks, MAX)])
        self.decide()


def test_a_task_that_hangs_is_reported_at_growing_intervals() -> None:
    """The report says which task has run for how long, on which slave, and on which machine."""
    master = _Master()
    master.connect(1)
    master.submit()
    master.run(DAY_S)
    at = [moment for moment, _ in master.reports]
    assert at[:4] == [60.0, 240.0, 780.0, 2400.0]
    assert {later - earlier for earlier, later in pairwise(at[3:])} == {LONGEST_S}
    assert "task 1 (max) for 60 s on SLAVE-0 at node1" in master.reports[0][1]
    assert "task 1 (max) for 240 s on SLAVE-0 at node1" in master.reports[1][1]
    assert (
        "cancel it with mw.cancel, or kill the process of its slave; the policy seconds_max limits"
        in master.reports[0][1]
    )


def test_one_report_names_the_longest_tasks_of_many() -> None:
    master = _Master()
    master.connect(8)
    master.submit(2)
    master.run(5.0)
    master.submit(5)
    master.run(66.0)
    assert len(master.reports) == 1, "the report names only what runs for long at that moment"
    assert "task 2 (max) for 60 s on SLAVE-1" in master.reports[0][1]
    assert "task 3" not in master.reports[0][1]
    master.run(180.0)
    assert "task 5 (max) for 235 s on SLAVE-4 at node1 and 2 more" in master.reports[1][1]
