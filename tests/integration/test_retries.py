"""Tasks that are tried again after an exception, with real slaves and in the master's own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.apps.stage import Stage

import mwpy
from mwpy._values.task import seed_at


@pytest.fixture(scope="module", params=[0, 1], ids=["here", "slave"])
def mw(request: pytest.FixtureRequest) -> Iterator[mwpy.Master]:
    """A master with one slave."""
    with mwpy.local_master(slaves=request.param) as mw:
        yield mw


class Busy(Exception):
    """A server has no time now."""


def attempt(log: Path, succeeds_at: int, name: str = "x") -> str:
    """Note each attempt in a file. Raise an error in all attempts before `succeeds_at`."""
    with log.open("a") as file:
        print(name, file=file)
    if log.read_text().split().count(name) < succeeds_at:
        raise Busy(f"{name} comes too early")
    return name


def attempts_in(log: Path) -> list[str]:
    return log.read_text().split()


def test_a_task_succeeds_at_its_third_attempt(mw: mwpy.Master, tmp_path: Path) -> None:
    log = tmp_path / "log"
    mw.submit(mwpy.task(attempt, log, 3), retry_errors=Busy)
    mw.loop()
    [result] = mw.results()
    assert (result.value, result.attempts, attempts_in(log)) == ("x", 3, ["x"] * 3)


def test_a_predicate_by_value_decides(mw: mwpy.Master, tmp_path: Path) -> None:
    """It may be a lambda. The other exceptions are failures at once."""
    word, log = "early", tmp_path / "log"
    calls = [mwpy.task(attempt, log, 2), mwpy.task(attempt, tmp_path / "no folder" / "log", 2)]
    results = list(mw.as_completed(calls, retry_errors=lambda error: word in str(error)))
    assert sorted((result.ok, result.attempts) for result in results) == [(False, 1), (True, 2)]


@pytest.mark.parametrize("most", [2, 3])
def test_a_task_without_attempts_left_has_failed_with_its_own_exception(
    mw: mwpy.Master, tmp_path: Path, most: int
) -> None:
    """By default, it has three attempts."""
    log, policy = tmp_path / "log", mwpy.Policies(retry_errors=(OSError, Busy))
    if most != 3:
        policy["attempts_max"] = most
    [result] = mw.map_results(attempt, [log], [9], **policy)
    assert (result.attempts, attempts_in(log)) == (most, ["x"] * most)
    error = result.error
    assert error is not None
    assert not isinstance(error, mwpy.TaskUnrunnable)
    assert isinstance(error.__cause__, Busy)
    with pytest.raises(mwpy.TaskFailed, match="x comes too early"):
        list(mw.map(attempt, [log], [99], **policy))


def test_a_map_gives_the_values_in_order_although_some_tasks_are_tried_again(mw: mwpy.Master, tmp_path: Path) -> None:
    def fragile(number: int) -> int:
        mark = tmp_path / str(number)
        if number % 7 == 0 and not mark.exists():
            mark.touch()
            raise Busy
        return number

    assert list(mw.map(fragile, range(300), retry_errors=Busy, after=0.05)) == [*range(300)]
    assert len([*tmp_path.iterdir()]) == 43


def test_each_attempt_has_the_same_seed(mw: mwpy.Master, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def draw() -> None:
        with log.open("a") as file:
            print(mwpy.task_seed(), file=file)
        raise Busy

    mw.submit(mwpy.task(draw), seed=5, retry_errors=Busy)
    mw.loop()
    assert [result.attempts for result in mw.results()] == [3]
    assert attempts_in(log) == [str(seed_at(5, 0))] * 3


def test_other_tasks_run_in_a_pause(mw: mwpy.Master, tmp_path: Path) -> None:
    """A delayed task is runnable, but not pending. It can be cancelled. The slave has one task at a time."""
    log = tmp_path / "log"
    delayed = mw.submit(mwpy.task(attempt, log, 2, "first"), retry_errors=Busy, after=1000)
    mw.submit(mwpy.task(attempt, log, 1, "second"))
    mw.loop()
    assert [result.value for result in mw.results()] == ["second"]
    assert (mw.num_runnable_tasks(), mw.pending_tasks()) == (1, 0)
    assert mw.cancel([delayed]) == [delayed]
    [result] = mw.results()
    assert isinstance(result.error, mwpy.TaskCancelled)
    assert "in the pause before its next attempt" in str(result.error)
    assert attempts_in(log) == ["first", "second"]


def test_a_condition_that_fails_is_named_in_the_failure(mw: mwpy.Master, tmp_path: Path) -> None:
    [result] = mw.map_results(attempt, [tmp_path / "log"], [2], retry_errors=lambda error: error.code == 3)  # type: ignore[attr-defined]
    assert result.attempts == 1
    assert "the task is not tried again, because retry_errors failed: AttributeError" in str(result.error)


def test_a_contradiction_is_an_error_of_the_caller(mw: mwpy.Master) -> None:
    with pytest.raises(mwpy.UsageError, match="retry=False and retry_errors contradict each other"):
        mw.submit(mwpy.task(abs, 1), retry=False, retry_errors=OSError)
    with pytest.raises(mwpy.ArgumentNotPicklable, match="retry_errors refers to an object that cannot be pickled"):
        mw.map(abs, [1], retry_errors=lambda _: bool(mw))


def test_a_script_names_its_own_exceptions(stage: Stage) -> None:
    """Types and functions of the script are those of the slave."""
    run = stage.start("retrying.py", "--mw-local", 2)
    assert run.end() == 0, run.err
    assert run.report == [[2, 2], [2, 2]]
