"""A failed task runs again in the process of the master."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import mwpy

RAISED = 'raise ValueError(f"{array[0]} {mwpy.task_seed()} {len(array)}")'
"""A source line of a function by value."""


@pytest.fixture(scope="module", params=[0, 1], ids=["here", "slave"])
def mw(request: pytest.FixtureRequest) -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=request.param) as mw:
        yield mw


def failures(mw: mwpy.Master, function: Any, *items: object, **policy: Any) -> list[mwpy.TaskFailed]:
    results = mw.map_results(function, items, ordered=True, **policy)
    return [result.error for result in results if result.error is not None]


def divide(number: int) -> int:
    return 10 // number


def read(name: str) -> str:
    return (Path(name)).read_text()


def test_a_failure_names_the_call_that_shows_its_frames(mw: mwpy.Master) -> None:
    [error] = failures(mw, divide, 5, 0, 2)
    assert str(error).endswith(f"\nmwpy.replay({error.task_id}) runs it again in this process")
    assert error.task_id is not None
    with pytest.raises(ZeroDivisionError) as caught:
        mwpy.replay(error.task_id)
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
    assert (frames[-1].f_code.co_name, frames[-1].f_locals) == ("divide", {"number": 0})


def test_a_function_by_value_has_its_variables_its_seed_and_copies_of_the_arguments(mw: mwpy.Master) -> None:
    offset = 5

    def fail(array: Any) -> None:
        array[0] += offset
        raise ValueError(f"{array[0]} {mwpy.task_seed()} {len(array)}")

    mine = np.zeros(100_000)
    [error] = failures(mw, fail, mine, seed=3)
    offset = 6
    for _ in range(2):
        with pytest.raises(ValueError, match=r"5\.0 \d+ 100000") as caught:
            mwpy.replay(error.task_id or 0)
        assert str(caught.value) == error.text
        frame = traceback.extract_tb(caught.tb)[-1]
        assert (frame.filename, frame.line) == (__file__, RAISED)
    assert RAISED in error.remote_traceback
    assert mine[0] == 0.0


def test_a_task_whose_fault_was_corrected_gives_its_value_here(mw: mwpy.Master, tmp_path: Path) -> None:
    path = tmp_path / "input"
    [error] = failures(mw, read, str(path))
    path.write_text("corrected")
    assert mwpy.replay(error.task_id or 0) == "corrected"


def test_a_task_of_an_ended_master_runs_again(tmp_path: Path) -> None:
    with pytest.raises(mwpy.TaskFailed) as caught, mwpy.local_master(slaves=1) as mw:
        list(mw.map(lambda _: os.fspath(1), [0]))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="PathLike"):
        mwpy.replay(caught.value.task_id or 0)


def test_a_task_that_did_not_fail_cannot_run_again(mw: mwpy.Master) -> None:
    """Nor can a task that is unrunnable: no code of it has raised anything."""
    task_id = mw.submit(mwpy.task(divide, 5), sid=mwpy.SlaveId("SLAVE-99"))
    while not (results := mw.results()):
        mw.loop()
    assert "replay" not in str(results[0].error)
    with pytest.raises(mwpy.UsageError, match=f"task {task_id} cannot run again here"):
        mwpy.replay(task_id)
    with pytest.raises(mwpy.UsageError, match="task '1' cannot run again here"):
        mwpy.replay(cast("int", "1"))


def test_the_number_of_a_task_means_a_task_of_the_newest_master() -> None:
    """A task of another master fails under the same number, before and after the newest master starts."""
    with mwpy.local_master(slaves=0) as older:
        task_id = older.submit(mwpy.task(divide, 0))
        older.loop()
        with mwpy.local_master(slaves=0) as newest:
            assert newest.submit(mwpy.task(divide, 5)) == task_id
            newest.loop()
            newest.results()
            older.submit(mwpy.task(divide, 0))
            newest.submit(mwpy.task(divide, 5))
            newest.loop()
            while not older.results():
                older.loop()
    for number in (task_id, task_id + 1):
        with pytest.raises(mwpy.UsageError, match=f"task {number} cannot run again here: .* of the newest master"):
            mwpy.replay(number)
