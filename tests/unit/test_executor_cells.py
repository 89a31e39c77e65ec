"""Which tasks of an executor an interrupted cell of a notebook has submitted."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from mwpy._roles.executor_cells import ExecutorCells
from mwpy._roles.executor_future import Future
from mwpy._roles.executor_submission import Work


class Queue:
    """The queue of an executor."""

    def __init__(self) -> None:
        self.works: deque[Work] = deque()
        self.sent: dict[int, Future[Any]] = {}
        self.killed: list[Future[Any]] = []
        self.cells = ExecutorCells(self.works, self.sent, threading.RLock())

    def submit(self) -> Future[Any]:
        future: Future[Any] = Future(self.killed.append)
        self.works.append((future, abs, (), {}, {}))
        self.cells.submitted += 1
        return future

    def send(self) -> None:
        """Hand over the first task."""
        future = self.works.popleft()[0]
        self.cells.taken = future.place = self.cells.taken + 1
        if future.start():
            self.sent[future.place] = future


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_an_interrupt_cancels_the_tasks_of_its_cell(queue: Queue) -> None:
    """Those that were sent are killed. Tasks of earlier and of later cells stay."""
    earlier = [queue.submit() for _ in range(3)]
    queue.send()
    queue.cells.cell_begins()
    own = [queue.submit() for _ in range(4)]
    for _ in range(4):
        queue.send()
    queue.cells.cell_interrupted()
    queue.cells.cell_begins()
    later = queue.submit()
    queue.cells.cancel()
    assert [future.cancelled() for future in earlier + own + [later]] == [False] * 3 + [True] * 4 + [False]
    assert queue.killed == own[:2]


def test_tasks_that_wait_since_earlier_cells_stay(queue: Queue) -> None:
    """None of them was sent."""
    earlier = [queue.submit() for _ in range(3)]
    queue.cells.cell_begins()
    own = queue.submit()
    queue.cells.cell_interrupted()
    queue.cells.cancel()
    assert [future.cancelled() for future in [*earlier, own]] == [False, False, False, True]


def test_an_interrupt_wakes_the_thread_of_the_executor(queue: Queue) -> None:
    """Before its start, nothing waits."""
    woken: list[str] = []
    queue.cells.cell_interrupted()
    queue.cells.wake = lambda: woken.append("woken")
    queue.cells.cell_interrupted()
    assert woken == ["woken"]
