"""The warning before the end of a task, with the real timer of this process."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator, Iterator
from math import inf

import pytest

import mwpy
from mwpy._system import time_left
from mwpy._values.task import RUNNING

pytestmark = pytest.mark.timeout(100, method="thread")  # the other method uses the same timer

FAR_S = 1000.0


def _work() -> None:
    while True:
        pass


class Task:
    """A task whose end the test sets. It starts without a known end."""

    def __init__(self) -> None:
        self.end = inf

    def end_in(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def __call__(self) -> float:
        return self.end


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    """A running task."""
    running = Task()
    monkeypatch.setattr(RUNNING, "end_at", running)
    former = signal.getsignal(signal.SIGALRM)
    yield running
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "the timer goes on"
    signal.signal(signal.SIGALRM, former)


def test_a_task_with_enough_time_is_not_warned(task: Task) -> None:
    task.end_in(FAR_S)
    with mwpy.warned(FAR_S / 2):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0


def test_a_task_with_too_little_time_is_warned_at_once(task: Task) -> None:
    task.end_in(FAR_S / 4)
    with pytest.raises(mwpy.EndIsNear, match="less than the 500 s of"), mwpy.warned(FAR_S / 2):
        pytest.fail("the block began")


def test_a_sleeping_task_is_warned_when_its_end_comes_nearer(task: Task) -> None:
    """Without a known end at first. The former sleep goes on when the timer rings and the end is not near."""
    rings = []
    look = time_left.LOOK_S

    def come_nearer() -> None:
        rings.append(signal.getitimer(signal.ITIMER_REAL)[0])
        task.end_in(FAR_S / 4)

    other = threading.Timer(2.5 * look, come_nearer)
    other.start()
    with pytest.raises(mwpy.EndIsNear), mwpy.warned(FAR_S / 2):
        time.sleep(FAR_S)
    other.join()
    assert 0 < rings[0] <= look


def test_a_busy_task_is_warned_once(task: Task) -> None:
    """It can save what it has, however long this takes."""
    task.end_in(FAR_S + 0.25)
    with mwpy.warned(FAR_S):
        with pytest.raises(mwpy.EndIsNear):
            _work()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_outer_warning_is_raised_in_an_inner_block(task: Task) -> None:
    """The inner block then has no warning any more. If the outer one is left, its warning is not raised."""
    with mwpy.warned(FAR_S):
        task.end_in(FAR_S + 0.01)
        with pytest.raises(mwpy.EndIsNear, match="the 1000 s"), mwpy.warned(1.0):
            time.sleep(FAR_S)
        task.end_in(0.5)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_inner_warning_leaves_the_outer_block_open(task: Task) -> None:
    task.end_in(FAR_S + 0.01)
    with mwpy.warned(1.0):
        with pytest.raises(mwpy.EndIsNear, match="the 1000 s"), mwpy.warned(FAR_S):
            time.sleep(FAR_S)
        task.end_in(1.01)
        with pytest.raises(mwpy.EndIsNear, match="the 1 s"):
            time.sleep(FAR_S)


def test_a_block_that_a_task_left_open_warns_no_other_task(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_open() -> Generator[None, None, None]:
        with mwpy.warned(FAR_S):
            yield

    left = leave_open()
    next(left)
    next_task = Task()
    monkeypatch.setattr(RUNNING, "end_at", next_task)
    next_task.end_in(1.0)
    with mwpy.warned(0.001):
        signal.raise_signal(signal.SIGALRM)
    left.close()


def test_without_an_end_there_is_no_warning() -> None:
    """In the process of the master, the signal belongs to the user."""
    former = signal.getsignal(signal.SIGALRM)
    with mwpy.warned(FAR_S):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == former


def test_a_warning_needs_the_thread_of_the_task(task: Task) -> None:
    caught: list[BaseException] = []

    def use() -> None:
        try:
            with mwpy.warned(FAR_S):
                pass
        except mwpy.UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "in the task's own thread" in str(caught[0])
    assert task() == inf


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_warning_needs_a_positive_time(seconds: float) -> None:
    with pytest.raises(mwpy.UsageError, match="greater than 0"):
        mwpy.warned(seconds)
