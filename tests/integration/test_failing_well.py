"""Runs that stop after too many failures, with real processes: what ran, what did not, and how the run is resumed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.apps.stage import Stage, until

import mwpy

TASKS = 1000


def mistyped(folder: str, number: int) -> int:
    """The first ten tasks fail at once. The others run until the run is resumed."""
    Path(folder, f"ran {number}").touch()
    while number >= 10 and not Path(folder, "corrected").exists():
        time.sleep(0.01)
    return number if Path(folder, "corrected").exists() else misspelt  # type: ignore[name-defined]  # noqa: F821


def first_is_long(folder: str, number: int) -> int:
    """The first task runs until ten others have failed."""
    while number == 0:
        Path(folder, "runs").touch()
        if len([*Path(folder).glob("failed *")]) >= 10:
            return 7
        time.sleep(0.01)
    Path(folder, f"failed {number}").touch()
    raise ValueError(number)


def fetch_all(mw: mwpy.Master, results: list[mwpy.Result[int]]) -> None:
    """Fetch results until each of the tasks has one."""
    while len(results) < TASKS:
        mw.loop()
        results += mw.results()


@pytest.fixture(params=[0, 2], ids=["in this process", "with slaves"])
def slaves(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_a_run_of_a_thousand_tasks_with_a_typo_stops_at_the_tenth_failure_and_is_resumed(tmp_path: Path) -> None:
    """Every task has an end, the summary names the typo, and the tasks that did not run come back with their tags."""
    with mwpy.local_master(slaves=2, max_failures=10) as mw:
        for number in range(TASKS):
            mw.submit(mwpy.task(mistyped, str(tmp_path), number), tag=number)
        results: list[mwpy.Result[int]] = []
        with pytest.raises(mwpy.TooManyFailures) as caught:
            fetch_all(mw, results)
        error = caught.value
        [kind] = error.kinds
        assert (error.failed, error.ended, kind.kind, kind.count) == (10, 10, "NameError", 10)
        assert (kind.example.item, kind.example.sid in ("SLAVE-0", "SLAVE-1")) == (kind.example.task_id - 1, True)  # type: ignore[operator]
        text = (
            f"the run was stopped: 10 of 10 ended tasks failed (max_failures=10). {TASKS - 10} submitted tasks did not"
        )
        assert str(error).startswith(text)
        assert "Example: task " in str(error)
        assert "NameError: name 'misspelt' is not defined" in str(error)
        assert len([*tmp_path.iterdir()]) <= 12, "a task started after the stop"
        assert error.task_ids == [*range(11, TASKS + 1)]
        results += mw.results()
        not_run = [result.tag for result in results if isinstance(result.error, mwpy.TaskCancelled)]
        assert sorted(not_run) == [*range(10, TASKS)]
        assert len(results) == TASKS
        (tmp_path / "corrected").touch()
        assert list(mw.starmap(mistyped, [(str(tmp_path), number) for number in not_run])) == not_run


def test_a_map_gives_all_results_before_it_raises_and_the_items_that_did_not_run(tmp_path: Path, slaves: int) -> None:
    """In this process, tasks run one after the other. The items may come from an iterator, which is read to its end."""
    folder, got = str(tmp_path), list[mwpy.Result[int]]()
    with mwpy.local_master(slaves=slaves) as mw:
        with pytest.raises(mwpy.TooManyFailures) as caught:
            got.extend(mw.map_results(mistyped, [folder] * 3000, iter(range(3000)), ordered=True, max_failures=10))
        assert [result.tag for result in got] == [(folder, number) for number in range(10)]
        assert (caught.value.failed, caught.value.ended) == (10, 10)
        (tmp_path / "corrected").touch()
        remaining = list(caught.value.remaining)
        assert remaining == [(folder, number) for number in range(10, 3000)]
        assert list(mw.starmap(mistyped, remaining)) == [*range(10, 3000)]


def test_the_calls_that_did_not_run_are_given_back_as_calls(tmp_path: Path) -> None:
    calls = [mwpy.task(mistyped, str(tmp_path), number) for number in range(TASKS)]
    with mwpy.local_master(slaves=2) as mw:
        with pytest.raises(mwpy.TooManyFailures) as caught:
            for _ in mw.as_completed(iter(calls), max_failures="10"):
                pass
        (tmp_path / "corrected").touch()
        again = list(mw.as_completed(caught.value.remaining))
        assert sorted(result.value for result in again) == [*range(10, TASKS)]


@pytest.mark.parametrize("whole", [True, False])
def test_with_finish_the_tasks_that_run_may_finish(tmp_path: Path, whole: bool) -> None:
    """The map gives their results, too, before it raises."""
    got: list[mwpy.Result[int]] = []
    folder, limit = str(tmp_path), "10,finish"

    def numbers() -> Iterator[int]:
        yield 0
        until((tmp_path / "runs").exists, "the first task")
        yield from range(1, TASKS)

    with mwpy.local_master(slaves=2, max_failures=limit if whole else None) as mw:
        results = mw.map_results(first_is_long, [folder] * TASKS, numbers(), max_failures=None if whole else limit)
        with pytest.raises(mwpy.TooManyFailures, match="times ValueError"):
            got.extend(results)
        [value] = [result.value for result in got if result.ok]
        assert value == 7
        assert list(mw.map(abs, [-1])) == [1]


def test_a_map_of_values_is_stopped_with_the_whole_computation(tmp_path: Path) -> None:
    """Failures of other tasks stop it. Its remaining items are those whose values were not given out."""
    with mwpy.local_master(slaves=2, max_failures=3) as mw:
        values = mw.starmap(mistyped, [(str(tmp_path), 10)])
        until((tmp_path / "ran 10").exists, "a task of the map")
        for number in range(3):
            mw.submit(mwpy.task(mistyped, str(tmp_path), number))
        with pytest.raises(mwpy.TooManyFailures) as caught:
            list(values)
        assert list(caught.value.remaining) == [(str(tmp_path), 10)]
        assert caught.value.kinds[0].count == 3


SCRIPT = """
import mwpy
with mwpy.open(slaves=2, max_failures="10%") as mw:
    for number in range(1000):
        mw.submit(mwpy.task(lambda _: misspelt, number))
    while True:
        mw.loop()
        mw.results()
"""


def test_a_script_that_does_not_expect_it_ends_with_the_summary(stage: Stage) -> None:
    ended = stage.run("", program=[sys.executable, "-c", SCRIPT], code=1)
    assert "mwpy.TooManyFailures: the run was stopped: " in ended.err
    assert "times NameError. Example: task " in ended.err
    stage.no_process_left()
