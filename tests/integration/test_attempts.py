"""Tasks that are tried again, go on from a state, or run once more in the process of the master: real processes."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.integration.apps.stage import Stage, fetched, until

import mwpy


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
    [result] = fetched(mw, 1)
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
    run = stage.run("several.py", "retrying", "--mw-local", 2)
    assert run.report == [[2, 2], [2, 2]]


STEPS = 60
"""Steps of the long task. They take longer together than several agents live."""

LIFETIME_S = 5
"""How long an agent may live, in seconds. It begins to leave in the middle of this time."""


def test_a_task_that_is_longer_than_each_agent_lives_finishes(stage: Stage) -> None:
    """Each attempt goes on where an earlier one was, also after the kill of an agent. Nobody is charged."""
    log = stage.folder / "log"
    master = stage.master("several.py", "longer", STEPS, log)
    agents = 0
    while master.process.poll() is None:
        before = len(stage.audited("-> state of task 1"))
        agent = stage.agent("several.py", "--mw-lifetime", LIFETIME_S, "--mw-grace-period", 0.5)
        agents += 1
        if agents == 2:
            until(
                lambda: (
                    len(stage.audited("-> state of task 1")) > before or agent.process.poll() is not None  # noqa: B023
                ),
                "a state of the killed agent",
            )
            agent.kill()
        agent.end()
    master.finish()
    begins = [*map(int, log.read_text().split())]
    assert begins == sorted(begins), "an attempt went back behind an earlier one"
    assert begins[0] == 0 < begins[-1]
    assert len(begins) >= 3, "no agent ended before the task"
    assert master.report["value"] == STEPS
    assert "UNRUNNABLE" not in stage.audit.read_text()
    stage.no_process_left()


class State:
    """A state of a class of one's own, with a large array."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.array = np.full(100_000, number)


def grow(least: int, error: bool) -> tuple[int, int]:
    """Add 1 to the state, and fail until it is large enough."""
    state = mwpy.restored(State(0))
    after = State(state.number + 1)
    mwpy.checkpoint(after)
    after.array[:] = -1  # what is changed after the call does not count
    if after.number < least:
        if error:
            raise OSError(f"only {after.number}")
        os._exit(1)
    return state.number, int(state.array.max())


def test_a_task_that_raised_an_exception_goes_on_from_its_state(mw: mwpy.Master) -> None:
    """Each task has its own state."""
    policy: dict[str, Any] = {"retry_errors": OSError, "attempts_max": 9}
    assert [*mw.map(grow, [4, 1, 3], [True] * 3, **policy)] == [(3, 3), (0, 0), (2, 2)]


def test_a_task_that_ended_its_slave_goes_on_from_its_state() -> None:
    """The newest state leaves the slave before the slave ends, however often the task leaves one."""
    with mwpy.local_master(slaves=2) as mw:
        assert [*mw.map(grow, [4, 1, 3], [False] * 3, attempts_max=9)] == [(3, 3), (0, 0), (2, 2)]


def fail_from(step: int) -> None:
    for number in range(mwpy.restored(0), step):
        mwpy.checkpoint(number + 1)
    raise ValueError(f"began at {mwpy.restored('the beginning')}")


def test_a_replay_begins_with_the_last_state(mw: mwpy.Master) -> None:
    """The states that it leaves itself change nothing."""
    [result] = mw.map_results(fail_from, [1000])
    assert result.error is not None
    assert result.error.text == "began at the beginning"
    for _ in range(2):
        with pytest.raises(ValueError, match="began at 1000"):
            mwpy.replay(result.task_id)


def leave_many(times: int) -> int:
    for number in range(times):
        mwpy.checkpoint(bytes(100_000) + bytes([number % 256]))
    return times


def test_a_task_may_leave_states_in_a_tight_loop(mw: mwpy.Master) -> None:
    """Neither the agent nor the master keeps more than the newest ones."""
    assert [*mw.map(leave_many, [2000, 10])] == [2000, 10]
    with pytest.raises(mwpy.UsageError, match=r"mwpy\.checkpoint\(\) works only in a task"):
        mwpy.checkpoint(1)


RAISED = 'raise ValueError(f"{array[0]} {mwpy.task_seed()} {len(array)}")'
"""A source line of a function by value."""


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
    assert "replay" not in str(fetched(mw, 1)[0].error)
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
