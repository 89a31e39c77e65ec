"""`mw.cancel` with real slaves: what is killed, what may finish, and what happens to the other tasks."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.stage import PATIENCE_S, fetched, is_gone, until

import mwpy

LONG_S = 1000.0


def sleep(folder: str) -> None:
    """Write the process ids of this slave and of a child to a file, and sleep."""
    child = subprocess.Popen(["sleep", str(LONG_S)])
    temporary = Path(folder, f"pids of {os.getpid()}")
    temporary.write_text(f"{os.getpid()} {child.pid}")
    temporary.rename(Path(folder, "pids"))
    time.sleep(LONG_S)


def finish(folder: str) -> str:
    """Note that this task runs, and end when the test allows it."""
    Path(folder, "runs").touch()
    while not Path(folder, "enough").exists():
        time.sleep(0.01)
    return "finished"


def echo(word: object) -> object:
    return word


@pytest.fixture
def mw() -> Iterator[mwpy.Master]:
    """A master with one slave that knows how fast `echo` is."""
    with mwpy.local_master(slaves=1) as mw:
        for number in range(20):
            mw.submit(mwpy.task(echo, number))
        fetch(mw, 20)
        yield mw


def fetch(mw: mwpy.Master, count: int) -> dict[Any, mwpy.Result[Any]]:
    """Wait for results. Return them by their tags."""
    came = fetched(mw, count)
    assert len(came) == count
    return {result.tag: result for result in came}


def start_sleeping(mw: mwpy.Master, folder: Path) -> tuple[mwpy.TaskId, list[int]]:
    """Let the slave run a task that sleeps. Return its id, and the processes of the slave."""
    number = mw.submit(mwpy.task(sleep, str(folder)), tag="sleeps")
    until((folder / "pids").exists, "a task that sleeps")
    return number, [int(pid) for pid in (folder / "pids").read_text().split()]


def test_a_running_task_is_killed_and_the_tasks_behind_it_run_on_another_slave(mw: mwpy.Master, tmp_path: Path) -> None:
    """They run once even if they must not be tried again, and nobody is charged."""
    sleeping, pids = start_sleeping(mw, tmp_path)
    behind = [mw.submit(mwpy.task(echo, number), tag=number, retry=False) for number in range(50)]
    until(lambda: not mw.pending_tasks(), "tasks behind the one that sleeps")
    assert mw.cancel([sleeping]) == [sleeping]
    results = fetch(mw, 1 + len(behind))
    cancelled = results.pop("sleeps")
    assert isinstance(cancelled.error, mwpy.TaskCancelled)
    assert (cancelled.task_id, cancelled.sid) == (sleeping, "SLAVE-0")
    with pytest.raises(mwpy.TaskCancelled, match="it was cancelled while SLAVE-0 had it"):
        print(cancelled.value)
    assert [results[number].value for number in range(50)] == [*range(50)]
    assert {result.sid for result in results.values()} == {"SLAVE-1"}
    until(lambda: all(map(is_gone, pids)), "an end of the slave and of its child process")
    assert mw.unrunnable_tasks() == []


def test_a_task_that_runs_may_finish_and_those_behind_it_never_start(mw: mwpy.Master, tmp_path: Path) -> None:
    """The result of the running task counts. The slave stays."""
    running = mw.submit(mwpy.task(finish, str(tmp_path)), tag="runs")
    until((tmp_path / "runs").exists, "a task that runs")
    sent = mw.submit(mwpy.task(echo, "sent"), tag="sent")
    until(lambda: not mw.pending_tasks(), "a task behind the one that runs")
    behind = [mw.submit(mwpy.task(Path.touch, tmp_path / str(number)), tag=number) for number in range(5)]
    assert mw.cancel([running, *behind, sent], running="finish") == [running, sent, *behind]
    cancelled = fetch(mw, 6)
    assert all(isinstance(result.error, mwpy.TaskCancelled) for result in cancelled.values())
    assert sorted(map(str, cancelled)) == ["0", "1", "2", "3", "4", "sent"]
    (tmp_path / "enough").touch()
    finished = fetch(mw, 1)["runs"]
    assert (finished.value, finished.sid) == ("finished", "SLAVE-0")
    mw.submit(mwpy.task(echo, "more"), tag="more")
    assert fetch(mw, 1)["more"].sid == "SLAVE-0"
    assert not [number for number in range(5) if (tmp_path / str(number)).exists()]


def test_thousands_of_tasks_are_cancelled_at_once(mw: mwpy.Master, tmp_path: Path) -> None:
    """Every second task stays. Tasks that have ended are not cancelled, and nothing happens to them."""
    sleeping, _ = start_sleeping(mw, tmp_path)
    ids = [mw.submit(mwpy.task(echo, number), tag=number) for number in range(5000)]
    assert mw.cancel(ids[::2]) == ids[::2]
    assert mw.cancel(ids[::2]) == []
    assert mw.cancel([sleeping, ids[0], 1]) == [sleeping]  # type: ignore[list-item]
    results = fetch(mw, 5001)
    del results["sleeps"]
    assert [number for number in range(5000) if results[number].error is not None] == [*range(0, 5000, 2)]
    assert all(results[number].value == number for number in range(1, 5000, 2))
    assert mw.num_runnable_tasks() == 0
    assert mw.cancel(ids) == []
    assert mw.results() == []


def test_wrong_arguments_are_refused_at_that_line(mw: mwpy.Master) -> None:
    """An id that was never submitted, something that is no id, and an unknown treatment of running tasks."""
    for wrong in ([21], [0], [3, -1, 5]):
        with pytest.raises(mwpy.UsageError, match=r"there is no task (21|0|-1) to cancel: .* are 1 to 20"):
            mw.cancel(wrong)  # type: ignore[arg-type]
    for thing in (7, ["7"], [None]):
        with pytest.raises(mwpy.UsageError, match=r"the ids that mw\.submit returned"):
            mw.cancel(thing)  # type: ignore[arg-type]
    with pytest.raises(mwpy.UsageError, match="'discard': use 'kill' or 'finish'"):
        mw.cancel([], running="discard")  # type: ignore[arg-type]
    assert mw.cancel([]) == []


def test_a_task_that_ends_quickly_does_not_cost_its_slave(mw: mwpy.Master) -> None:
    """A slave gets a moment to finish a cancelled task: a fresh one would need longer to start."""
    for _ in range(30):
        ids = [mw.submit(mwpy.task(echo, number)) for number in range(200)]
        mw.cancel(ids)
    mw.submit(mwpy.task(echo, "last"), tag="last")
    until(lambda: bool(mw.loop(PATIENCE_S)) and mw.num_runnable_tasks() == 0, "no task left")
    [last] = [result for result in mw.results() if result.tag == "last"]
    assert last.sid == "SLAVE-0"
