"""`mw.executor()`: an executor on a computation that is open. CPython's own tests are in test_standard_executor.py."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, as_completed, wait
from pathlib import Path

import pytest
from tests.integration.apps import chores
from tests.integration.apps.stage import PATIENCE_S, fetched, until

import mwpy

MANY = 2000


@pytest.fixture(scope="module")
def mw() -> Iterator[mwpy.LocalMaster]:
    with mwpy.open(slaves=2) as mw:
        yield mw


@pytest.fixture
def executor(mw: mwpy.LocalMaster) -> Iterator[mwpy.Executor]:
    with mw.executor() as executor:
        yield executor


def square(number: int) -> int:
    return number * number


def test_a_script_may_mix_futures_maps_and_tasks(mw: mwpy.LocalMaster, executor: mwpy.Executor) -> None:
    """Each result comes back where it belongs, and the thread of the algorithm may wait for a future."""
    futures = [executor.submit(square, number) for number in range(MANY)]
    ids = [mw.submit(mwpy.task(square, number), tag=number) for number in range(100)]
    values = mw.map(square, range(MANY))
    assert [future.result(PATIENCE_S) for future in futures[:10]] == [*map(square, range(10))]
    assert [*values] == [*map(square, range(MANY))]
    assert {*as_completed(futures, PATIENCE_S)} == {*wait(futures, PATIENCE_S).done} == {*futures}
    assert [future.result(0) for future in futures] == [*map(square, range(MANY))]
    results = fetched(mw, 100)
    assert {result.task_id: result.value for result in results} == dict(zip(ids, map(square, range(100)), strict=True))


def test_other_threads_may_submit_while_the_master_does(mw: mwpy.LocalMaster, executor: mwpy.Executor) -> None:
    """No task gets the id of another one."""
    found: dict[int, list[int]] = {}

    def submit(number: int) -> None:
        futures = [executor.submit(divmod, number, at) for at in range(1, MANY // 4)]
        found[number] = [future.result(PATIENCE_S)[0] for future in futures]

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(MANY):
        mw.submit(mwpy.task(square, number), tag=number)
    assert [*mw.map(square, range(MANY))] == [*map(square, range(MANY))]
    assert sorted((result.tag, result.value) for result in fetched(mw, MANY)) == [(n, n * n) for n in range(MANY)]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == {number: [number // at for at in range(1, MANY // 4)] for number in range(4)}


def test_a_loop_of_the_master_does_not_wait_for_futures(
    mw: mwpy.LocalMaster, executor: mwpy.Executor, tmp_path: Path
) -> None:
    """Their tasks are not among the tasks of the master, and give it no results."""
    blocked = executor.submit(chores.wait_for, str(tmp_path / "gate"))
    until(blocked.running, "a task that is sent")
    mw.submit(mwpy.task(square, 3))
    assert [result.value for result in fetched(mw, 1)] == [9]
    assert mw.num_runnable_tasks() == 0
    (tmp_path / "gate").touch()
    assert blocked.result(PATIENCE_S) is None
    assert (mw.num_runnable_tasks(), mw.results(), mw.loop(0)) == (0, [], (0, 0, 0, 0))


def test_a_shutdown_leaves_the_slaves_to_the_master(mw: mwpy.LocalMaster) -> None:
    """It waits for the tasks of this executor only, and another executor can be made."""
    before = {*mw.map(chores.pid, range(20))}
    for _ in range(3):
        with mw.executor() as executor:
            assert executor.submit(chores.pid).result(PATIENCE_S) in before
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(abs, -1)
    assert {*mw.map(chores.pid, range(20))} <= before


def test_several_executors_share_a_master(mw: mwpy.LocalMaster) -> None:
    """Each has its own futures and policies; those of the master hold for all."""
    with mw.executor(seconds_max=0.1, attempts_max=1) as strict, mw.executor() as other:
        futures: list[Future[float]] = [each.submit(pow, 2, 5) for each in (strict, other)]
        assert [future.result(PATIENCE_S) for future in futures] == [32, 32]
        late = strict.submit(time.sleep, 600)
        assert other.submit(time.sleep, 0.2).result(PATIENCE_S) is None
        with pytest.raises(mwpy.TaskUnrunnable, match="seconds_max"):
            late.result(PATIENCE_S)


def test_terminating_the_workers_leaves_the_tasks_of_the_master(mw: mwpy.LocalMaster, tmp_path: Path) -> None:
    """Only the tasks of this executor are killed."""
    kept = mw.submit(mwpy.task(chores.wait_for, str(tmp_path / "kept"), 0))
    executor = mw.executor()
    killed = [executor.submit(chores.wait_for, str(tmp_path / "killed"), number) for number in range(5)]
    until(lambda: all((tmp_path / name).exists() for name in ("kept.0.runs", "killed.0.runs")), "tasks that run")
    executor.kill_workers()
    executor.shutdown()
    assert all(future.cancelled() for future in killed)
    (tmp_path / "kept").touch()
    assert [(result.task_id, result.value) for result in fetched(mw, 1)] == [(kept, 0)]


def test_what_fails_can_be_replayed(mw: mwpy.LocalMaster, executor: mwpy.Executor) -> None:
    """As a task of the master itself."""
    future = executor.submit(int, "no number")
    assert isinstance(future.exception(PATIENCE_S), ValueError)
    assert isinstance(future, mwpy.executor.Future)
    assert future.task_id is not None
    with pytest.raises(ValueError, match="no number"):
        mwpy.replay(future.task_id)


def test_records_of_tasks_come_before_their_futures_end(
    mw: mwpy.LocalMaster, executor: mwpy.Executor, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread of the executor gives them to the loggers, because the algorithm may wait for the future."""
    with caplog.at_level(logging.WARNING):
        executor.submit(chores.warn, "of a future").result(PATIENCE_S)
        assert "of a future" in caplog.text
        mw.submit(mwpy.task(chores.warn, "of the master"))
        executor.submit(chores.warn, "of another future").result(PATIENCE_S)
        fetched(mw, 1)
    assert {record.getMessage() for record in caplog.records} == {
        "of a future",
        "of the master",
        "of another future",
    }


def test_other_threads_may_use_the_executor_and_not_the_master(
    mw: mwpy.LocalMaster, executor: mwpy.Executor, tmp_path: Path
) -> None:
    """Neither may a callback, which the thread of the executor calls."""
    found: list[object] = []

    def use(_: object) -> None:
        try:
            mw.submit(mwpy.task(abs, -1))
        except mwpy.UsageError as error:
            found.append(str(error))
        found.append(executor.submit(abs, -1))

    future = executor.submit(chores.wait_for, str(tmp_path / "gate"), 1)
    future.add_done_callback(use)  # it is called in this thread if the future is done
    (tmp_path / "gate").touch()
    until(lambda: len(found) == 2, "the callback")
    text, submitted = found
    assert "belongs to the thread MainThread" in str(text)
    assert isinstance(submitted, Future)
    assert submitted.result(PATIENCE_S) == 1


def test_a_master_that_ends_waits_for_futures(tmp_path: Path) -> None:
    """Also for those that nobody refers to, and for those that were not sent."""
    with mwpy.open(slaves=1) as mw:
        executor = mw.executor(progress="text")
        for _ in range(50):
            executor.submit(chores.append, str(tmp_path / "written"), "x")
    assert (tmp_path / "written").read_text() == 50 * "x"
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, -1)


def test_a_master_that_an_exception_ends_cancels_futures(tmp_path: Path) -> None:
    """It does not wait for a task that may run for long."""
    futures: list[Future[object]] = []

    def fail() -> None:
        with mwpy.open(slaves=1) as mw:
            executor = mw.executor()
            futures.extend(executor.submit(chores.wait_for, str(tmp_path / "gate"), number) for number in range(5))
            until((tmp_path / "gate.0.runs").exists, "a task that runs")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert all(future.cancelled() for future in futures)


def test_an_executor_keeps_its_master() -> None:
    """If nothing else refers to the master. Both end with the executor."""
    executor = mwpy.open(slaves=1).executor()
    gc.collect()
    assert executor.submit(abs, -1).result(PATIENCE_S) == 1
    executor.shutdown()
    gc.collect()
    until(lambda: not any(each.name == "mwpy-io" for each in new_threads()), "the end of the master")


def new_threads() -> list[threading.Thread]:
    """The threads of masters other than that of this module."""
    return [each for each in threading.enumerate() if each.name == "mwpy-io"][1:]


def test_too_many_failures_stop_futures_too() -> None:
    """They end as cancelled tasks, and the next call of the master raises."""
    with mwpy.open(slaves=1, max_failures=2) as mw:
        executor = mw.executor()
        futures = [executor.submit(int, "no number") for _ in range(MANY)]
        kinds = {type(future.exception(PATIENCE_S)) for future in futures}
        assert kinds == {ValueError, mwpy.TaskCancelled}
        with pytest.raises(mwpy.TooManyFailures):
            mw.loop()
        assert executor.submit(abs, -1).result(PATIENCE_S) == 1


def test_futures_end_when_the_master_is_out_of_time() -> None:
    """So an algorithm that waits for one learns of it."""
    with mwpy.open(slaves=1, lifetime=0.5) as mw:
        executor = mw.executor()
        with pytest.raises(mwpy.OutOfTime):
            executor.submit(time.sleep, 600).result(PATIENCE_S)
        with pytest.raises(mwpy.OutOfTime):
            executor.submit(abs, -1)


def test_wrong_arguments_are_refused(mw: mwpy.LocalMaster) -> None:
    """Without slaves, no thread could run the tasks."""
    with pytest.raises(mwpy.UsageError, match="has no argument 'retri': write retry"):
        mw.executor(retri=False)  # type: ignore[call-arg]
    with pytest.raises(mwpy.UsageError, match=r"'max_workers': give slaves to mwpy\.open or"):
        mw.executor(max_workers=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="initializer"):
        mw.executor(initializer="no function")  # type: ignore[arg-type]
    with pytest.raises(mwpy.UsageError, match="progress=3"):
        mw.executor(progress=3)  # type: ignore[arg-type]
    with mwpy.open(slaves=0) as alone, pytest.raises(mwpy.UsageError, match="slaves=1"):
        alone.executor()
    closed = mwpy.open(slaves=1)
    closed.close()
    with pytest.raises(mwpy.UsageError, match="the computation is over"):
        closed.executor()
