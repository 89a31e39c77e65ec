"""How many bytes of results wait for the algorithm."""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, cast

import pytest

from mwpy._core.master.commands import Command
from mwpy._core.master.state import Actions, MasterSettings
from mwpy._roles.access import Access
from mwpy._roles.inbox import Inbox
from mwpy._roles.map_tasks import MapTasks, Portion
from mwpy._roles.master_io import MasterIo
from mwpy._roles.progress import OpenProgress
from mwpy._values.ids import TaskId
from mwpy._values.task import Origin, Result

ORIGIN = Origin("max", None, None, 1, 1000.0)


class _Io:
    """The parts of an I/O thread that an inbox uses. It is its own link."""

    def __init__(self) -> None:
        self.outcomes: SimpleQueue[Any] = SimpleQueue()
        self.commands: deque[Command] = deque()
        self.fetched_bytes = 0
        self.holds_back = False
        self.maps: set[MapTasks] = set()
        self.unread_maps = 0
        self.wakes = 0
        self.link = self
        self.progress = OpenProgress()

    def open_maps(self) -> list[MapTasks]:
        return [tasks for tasks in self.maps if not tasks.closed]

    def wake(self) -> None:
        self.wakes += 1

    def command(self, command: Command) -> None:
        self.commands.append(command)

    def put(self, size: int, *tags: object) -> None:
        """Results arrive, one for each tag."""
        results: list[Result[object]] = [Result(TaskId(1), ORIGIN, tag, 0.1, False, 7) for tag in tags]
        self.outcomes.put(Actions(results=results, result_bytes=size))


@pytest.fixture
def io() -> _Io:
    return _Io()


@pytest.fixture
def inbox(io: _Io) -> Inbox:
    access = Access(cast(MasterIo, io), threading.current_thread())
    return Inbox(access, MasterSettings("m", "g", max_waiting_bytes=800))


def test_results_count_until_they_are_fetched(io: _Io, inbox: Inbox) -> None:
    """The I/O thread is woken if it holds tasks back."""
    io.put(500, "a", "b")
    inbox.receive()
    assert io.fetched_bytes == 0
    io.holds_back = True
    inbox.fetch(inbox.results)
    assert io.fetched_bytes == 500
    assert io.wakes


def test_few_bytes_are_not_counted_at_once(io: _Io, inbox: Inbox) -> None:
    """So small results cost nothing. They count as soon as there are more."""
    io.put(100, "a")
    inbox.fetch(inbox.results)
    assert io.fetched_bytes == 0
    io.put(200, "b")
    inbox.fetch(inbox.results)
    assert io.fetched_bytes == 300


def test_results_of_a_map_count_until_they_are_given_out_or_the_map_is_closed(io: _Io, inbox: Inbox) -> None:
    """Each of them counts for their mean. Results that wait for their turn count, and other results count apart."""
    first, second = inbox.open_map(), inbox.open_map()
    a, b = (Portion(tasks, 1, 0, [1, 2, 3], 3, 3) for tasks in (first, second))
    io.put(1000, "a", a, a, a, b)
    inbox.receive()
    assert io.fetched_bytes == 0
    inbox.fetch(inbox.results)
    assert io.fetched_bytes == 200
    first.early[1] = first.arrived.popleft()
    inbox.receive()
    assert io.fetched_bytes == 200
    first.arrived.popleft()
    first.early.clear()
    inbox.receive()
    assert io.fetched_bytes == 600
    first.closed = True
    inbox.receive()
    assert io.fetched_bytes == 800
    second.arrived.clear()
    io.put(400, a)
    inbox.receive()
    assert io.fetched_bytes == 1400, "a result for a closed map is dropped"


def test_a_wait_wakes_an_io_thread_that_holds_tasks_back(io: _Io, inbox: Inbox) -> None:
    """It must learn that the algorithm waits."""
    io.holds_back = True
    inbox.wait(0.0)
    assert io.wakes == 1


def test_the_items_that_open_maps_have_not_read_are_added_up(io: _Io, inbox: Inbox) -> None:
    """If a map does not know how many there are, nobody does. A closed map reads no more."""
    first, second = inbox.open_map(), inbox.open_map()
    first.unread, second.unread = 3, 4
    whole = cast(MasterIo, io)
    assert MasterIo.unread_items(whole) == 7
    second.unread = None
    assert MasterIo.unread_items(whole) is None
    second.closed = True
    assert MasterIo.unread_items(whole) == 3
