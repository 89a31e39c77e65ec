"""`mwpy.Executor`: futures, cancelling, crashes, ends. CPython's own tests are in test_standard_executor.py."""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import signal
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.apps import chores
from tests.integration.apps.stage import PATIENCE_S, Running, Stage, until

import mwpy

MANY = 5000

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def executor() -> Iterator[mwpy.Executor]:
    with mwpy.Executor(slaves=2) as executor:
        yield executor


@pytest.fixture
def one() -> Iterator[mwpy.Executor]:
    """An executor with one slave."""
    with mwpy.Executor(slaves=1) as one:
        yield one


class Blocked:
    """An executor whose slave is blocked: the first future runs."""

    def __init__(self, executor: mwpy.Executor, folder: Path) -> None:
        self.gate = folder / "gate"
        self.futures = [executor.submit(chores.wait_for, str(self.gate), number) for number in range(5)]
        until(lambda: Path(f"{self.gate}.0.runs").exists() and self.futures[0].running(), "a task that runs")

    def release(self) -> None:
        self.gate.touch()


@pytest.fixture
def blocked(one: mwpy.Executor, tmp_path: Path) -> Iterator[Blocked]:
    blocked = Blocked(one, tmp_path)
    yield blocked
    blocked.release()


def test_futures_get_values_and_exceptions_with_their_tracebacks(executor: mwpy.Executor) -> None:
    """An exception keeps its type; its cause is a `TaskFailed`, which shows where in the slave it was raised."""
    assert executor.submit(divmod, 7, 2).result(PATIENCE_S) == (3, 1)
    assert executor.submit(lambda x: x + 1, 2).result(PATIENCE_S) == 3
    error = executor.submit(chores.fail_to_initialize).exception(PATIENCE_S)
    assert type(error) is LookupError
    assert error.args == ("no licence",)
    assert isinstance(error.__cause__, mwpy.TaskFailed)
    assert 'raise LookupError("no licence")' in str(error.__cause__)


def test_an_exception_of_an_own_class_with_an_own_constructor_keeps_its_type(executor: mwpy.Executor) -> None:
    future = executor.submit(chores.overheat, 4)
    with pytest.raises(chores.TooHot) as caught:
        future.result(PATIENCE_S)
    assert (str(caught.value), caught.value.degrees) == ("oven 4 is too hot", 300)
    assert isinstance(caught.value.__cause__, mwpy.TaskFailed)


def test_a_crash_breaks_only_its_own_future(executor: mwpy.Executor) -> None:
    """The other tasks run, and another slave replaces the one that crashed."""
    before = [executor.submit(abs, -number) for number in range(20)]
    crashing = executor.submit_call(mwpy.task(os._exit, 9), attempts_max=1)
    after = [executor.submit(abs, -number) for number in range(20)]
    assert [future.result(PATIENCE_S) for future in before + after] == [*range(20), *range(20)]
    assert isinstance(crashing.exception(PATIENCE_S), mwpy.TaskUnrunnable)


def test_what_cannot_be_pickled_breaks_only_its_own_future(executor: mwpy.Executor) -> None:
    """Arguments, functions, values, and values that raise SystemExit when they are read."""
    wrong: list[Callable[[], Future[object]]] = [
        lambda: executor.submit(print, threading.Lock()),
        lambda: executor.submit(threading.Lock().acquire),
        lambda: executor.submit(chores.hold_a_lock),
        lambda: executor.submit("no function"),  # type: ignore[arg-type]
    ]
    for submit in wrong:
        future = submit()
        assert "pickled" in str(future.exception(PATIENCE_S)) or "callable" in str(future.exception(PATIENCE_S))
    left = executor.submit(chores.give_what_leaves).exception(PATIENCE_S)
    assert isinstance(left, mwpy.TaskFailed)
    assert left.type_name == "SystemExit"
    assert executor.submit(abs, -1).result(PATIENCE_S) == 1


def test_a_callback_that_raises_breaks_nothing(executor: mwpy.Executor, tmp_path: Path) -> None:
    """Callbacks run in the thread of the executor, which must survive even SystemExit."""
    called = threading.Event()

    def call(future: Future[int]) -> None:
        called.set()
        raise SystemExit(4)

    future = executor.submit(chores.wait_for, str(tmp_path / "gate"), 1)
    future.add_done_callback(call)  # it is called in this thread if the future is done
    (tmp_path / "gate").touch()
    assert called.wait(PATIENCE_S)
    assert executor.submit(abs, -2).result(PATIENCE_S) == 2


def test_a_callback_may_submit_and_shut_down() -> None:
    """Neither waits for the thread that calls it."""
    executor = mwpy.Executor(slaves=1)
    later: list[Future[int]] = []

    def call(future: Future[int]) -> None:
        later.append(executor.submit(abs, -3))
        executor.shutdown()

    executor.submit(abs, -1).add_done_callback(call)
    executor._tasks.join()
    assert [future.result(0) for future in later] == [3]
    depths = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as refused:
            executor.submit(abs, -2)
        depths.append(len(refused.traceback))
    assert depths[0] == depths[1]


def test_a_map_reads_no_more_than_its_buffer(executor: mwpy.Executor) -> None:
    """With `buffersize`, an iterable may be endless. When the iterator is closed, its tasks are cancelled."""
    pulled = itertools.count()
    values = executor.map(abs, pulled, buffersize=3)
    assert next(pulled) == 3
    assert list(itertools.islice(values, 3)) == [0, 1, 2]
    assert next(pulled) == 7
    assert list(executor.map(pow, range(7), itertools.repeat(2), chunksize=3)) == [x * x for x in range(7)]
    assert list(executor.map(abs, range(7), chunksize=2, buffersize=1)) == [*range(7)]
    for wrong in (0, 1.5):
        with pytest.raises((TypeError, ValueError), match="buffersize"):
            executor.map(abs, [], buffersize=wrong)  # type: ignore[arg-type]


def test_a_running_task_can_be_killed(blocked: Blocked, one: mwpy.Executor) -> None:
    """Its slave is replaced, and the other tasks run. The callbacks are called once."""
    called: list[object] = []
    first = blocked.futures[0]
    first.add_done_callback(called.append)
    assert first.cancel(kill=True)
    assert first.cancel()
    assert first.cancel(kill=True)
    assert first.cancelled()
    assert called == [first]
    until(lambda: Path(f"{blocked.gate}.1.runs").exists(), "the next task")
    blocked.release()
    assert [future.result(PATIENCE_S) for future in blocked.futures[1:]] == [1, 2, 3, 4]
    assert not blocked.futures[1].cancel(kill=True)
    assert one.submit(abs, -1).result(PATIENCE_S) == 1


def test_tasks_can_be_cancelled_while_they_are_handed_over(one: mwpy.Executor) -> None:
    """Tasks are sent meanwhile. Each is done or cancelled afterwards."""
    futures = [one.submit(abs, -number) for number in range(MANY)]
    one.shutdown(cancel_futures=True)
    assert all(future.cancelled() or future.result(0) == number for number, future in enumerate(futures))


@pytest.mark.parametrize("method", ["terminate_workers", "kill_workers"])
def test_terminating_the_workers_cancels_all_tasks(blocked: Blocked, one: mwpy.Executor, method: str) -> None:
    """Also those that run."""
    getattr(one, method)()
    assert all(future.cancelled() for future in blocked.futures)
    one.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        one.submit(abs, 1)


def test_a_pending_future_is_small(blocked: Blocked, one: mwpy.Executor) -> None:
    """It takes less than 2.5 kB, with its task."""
    tracemalloc.start()
    try:
        futures = [one.submit(abs, number) for number in range(-1000, 0)]
        size = tracemalloc.get_traced_memory()[0] / len(futures)
    finally:
        tracemalloc.stop()
    assert size < 2500
    assert all(future.cancel() for future in futures)


def test_an_initializer_that_fails_breaks_the_tasks_and_not_the_executor() -> None:
    """Each task says why."""
    with mwpy.Executor(slaves=1, initializer=chores.fail_to_initialize) as executor:
        for _ in range(2):
            with pytest.raises(LookupError, match="no licence"):
                executor.submit(abs, -1).result(PATIENCE_S)


def test_policies_are_given_at_construction_and_with_a_call() -> None:
    """Those of a call override those of the executor."""
    with mwpy.Executor(slaves=1, seconds_max=0.1) as executor:
        future = executor.submit_call(mwpy.task(time.sleep, 0.3), seconds_max=60)
        assert future.result(PATIENCE_S) is None
        error = executor.submit_call(mwpy.task(time.sleep, 600), attempts_max=1).exception(PATIENCE_S)
        assert isinstance(error, mwpy.TaskUnrunnable)
        assert "seconds_max" in str(error)
        with pytest.raises(mwpy.UsageError, match="retri"):
            executor.submit_call(mwpy.task(abs, 1), retri=False)  # type: ignore[call-arg]


@pytest.mark.parametrize("chore", [chores.make_an_executor, chores.make_an_executor_in_a_fork])
def test_executors_are_refused_in_a_slave(executor: mwpy.Executor, chore: Callable[[], str]) -> None:
    """Also in a process that a task forks. Each would start slaves of its own."""
    assert "mwpy.Executor() was called in a slave" in executor.submit(chore).result(PATIENCE_S)


def test_wrong_arguments_are_refused() -> None:
    """The message says what to give instead."""
    for wrong in (0, 2.5, "2"):
        with pytest.raises(mwpy.UsageError, match=f"slaves={wrong!r}: give a whole number from 1"):
            mwpy.Executor(slaves=wrong)  # type: ignore[arg-type]
    with pytest.raises(mwpy.UsageError, match="give resource_file"):
        mwpy.Executor(system="local")
    with pytest.raises(mwpy.UsageError, match="give one of htcondor, slurm, sge, pbs, ssh, local"):
        mwpy.Executor(resource_file="executor.rsc", system="lsf")
    with pytest.raises(mwpy.UsageError, match="max_jobs=0"):
        mwpy.Executor(resource_file="executor.rsc", max_jobs=0)
    with pytest.raises(mwpy.UsageError, match="has no argument 'retri': write retry"):
        mwpy.Executor(slaves=1, retri=False)  # type: ignore[call-arg]
    for name, instead in (("max_workers", "slaves=2"), ("max_tasks_per_child", "slave_max_tasks=2")):
        with pytest.raises(mwpy.UsageError, match=f"has no argument '{name}': write {instead}"):
            mwpy.Executor(**{name: 2})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="initializer"):
        mwpy.Executor(slaves=1, initializer="no function")  # type: ignore[arg-type]


def test_an_executor_that_nobody_uses_ends_when_its_tasks_have_ended() -> None:
    """As those of the standard library do."""
    executor = mwpy.Executor(slaves=1)
    thread = executor._tasks.thread
    futures = [executor.submit(abs, -number) for number in range(10)]
    del executor
    gc.collect()
    thread.join()
    assert [future.result(0) for future in futures] == [*range(10)]


def test_a_forked_process_cannot_use_the_executor_of_its_parent(executor: mwpy.Executor) -> None:
    """Its thread is not there, so a future would never end."""
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            executor.submit(abs, 1)
        except mwpy.UsageError as error:
            os.write(theirs, str(error).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    assert b"forked" in os.read(ours, 1000)
    os.close(ours)
    assert executor.submit(abs, -1).result(PATIENCE_S) == 1


def test_nothing_keeps_a_value_that_was_given_out(executor: mwpy.Executor) -> None:
    """Neither the executor nor its map."""
    for value in executor.map(chores.Plain, range(10)):
        reference = weakref.ref(value)
        del value
        until(lambda seen=reference: seen() is None, "the end of a value")  # type: ignore[misc]


def test_a_progress_function_that_raises_concerns_no_task(capfd: pytest.CaptureFixture[str]) -> None:
    """The thread of the executor calls it. It is not called again, and one line says why."""
    called: list[int] = []

    def report(done: int, total: int | None) -> None:
        called.append(done)
        raise ValueError("a wrong report")

    with mwpy.Executor(slaves=1, progress=report) as executor:
        assert [*executor.map(abs, range(-5, 0))] == [5, 4, 3, 2, 1]
        until(lambda: bool(called), "a report")
        assert executor.submit(abs, -1).result(PATIENCE_S) == 1
    err = capfd.readouterr().err
    assert err == "mwpy: the progress is not shown any more, because showing it raised ValueError: a wrong report\n"
    assert len(called) == 1


def test_the_progress_counts_failures_and_not_cancelled_tasks(capfd: pytest.CaptureFixture[str]) -> None:
    """A function of the user that raises is one more failure, and no traceback is written."""
    with mwpy.Executor(slaves=1, progress="text") as executor:
        for number in range(6):
            executor.submit(divmod, 1, number % 2)
        executor.submit(time.sleep, 600).cancel(kill=True)
    err = capfd.readouterr().err
    assert "6 of 6 items" in err or "7 of 7 items" in err
    assert "3 failed" in err
    assert "Traceback" not in err


def test_an_interrupt_of_a_block_ends_its_tasks(tmp_path: Path) -> None:
    """It does not reach the slaves, and a task may run for long. Other exceptions wait for the tasks."""
    futures: list[Future[object]] = []

    def run(error: BaseException) -> None:
        with mwpy.Executor(slaves=1) as executor:
            futures.extend(executor.submit(chores.wait_for, str(tmp_path / "gate"), number) for number in range(4))
            until((tmp_path / "gate.0.runs").exists, "a task that runs")
            raise error

    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt())
    assert all(future.cancelled() for future in futures)
    futures.clear()
    (tmp_path / "gate").touch()
    with pytest.raises(LookupError):
        run(LookupError())
    assert [future.result(0) for future in futures] == [0, 1, 2, 3]


def start(stage: Stage, text: str, *arguments: object) -> Running:
    """Run a script with executors."""
    (stage.folder / "script.py").write_text(text)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    variables = {"PYTHONPATH": path, "XDG_STATE_HOME": str(stage.folder / "state")}
    return stage.start(str(stage.folder / "script.py"), *arguments, variables=variables)


WITHOUT_A_BLOCK = """
import sys
import mwpy
from tests.integration.apps import chores

executor = mwpy.Executor(slaves=1)
futures = [executor.submit(chores.wait_for, sys.argv[1], number) for number in range(4)]
futures[0].result()
"""


def test_without_a_block_the_end_waits_for_tasks_and_says_so_and_an_interrupt_cancels_them(stage: Stage) -> None:
    running = start(stage, WITHOUT_A_BLOCK, stage.folder / "gate")
    until((stage.folder / "gate.0.runs").exists, "a task that runs")
    running.send(signal.SIGINT)
    until(lambda: "mwpy: this process waits for 4 tasks of an executor; Ctrl-C cancels" in running.err, "the message")
    running.send(signal.SIGINT)
    running.end()
    stage.no_process_left()


OVERSEEN = """
import mwpy
from tests.integration.apps import chores

with mwpy.Executor(resource_file="executor.rsc", system="local", max_jobs=2) as executor:
    futures = [executor.submit(chores.meet, ".", number, 2) for number in range(2)]
    more = [executor.submit(abs, -number) for number in range(20)]
    print([future.result() for future in futures + more])
"""


OVERSEEN_MASTER = """
import mwpy
from tests.integration.apps import chores

with mwpy.local_master(resource_file="executor.rsc", system="local", max_jobs=2) as mw:
    met = list(mw.starmap(chores.meet, [(".", number, 2) for number in range(2)]))
    print([*met, *mw.map(lambda x: -x, range(0, -20, -1))])
"""


@pytest.mark.parametrize("script", [OVERSEEN, OVERSEEN_MASTER], ids=["executor", "local_master"])
def test_a_master_has_an_overseer_of_its_own(script: str, stage: Stage) -> None:
    """It asks for as many slaves as there are tasks: here, two tasks wait for each other. No job is left."""
    started = start(stage, script)
    assert started.end() == 0, started.err
    assert started.out == f"{[0, 1, *range(20)]}\n"
    assert "submits" in (stage.folder / "executor.rsc.overseer").read_text()
    stage.no_process_left()


def test_a_task_that_waits_for_a_slave_can_be_cancelled(stage: Stage) -> None:
    """There is none, because nobody oversees the resource file."""
    with mwpy.Executor(resource_file=stage.resource) as executor:
        future = executor.submit(abs, -1)
        until(lambda: json.loads(stage.resource.read_text())["slaves-needed"] == 1, "a slave that is needed")
        assert future.cancel()
    assert json.loads(stage.resource.read_text())["computation-status"] == "finished"


@pytest.mark.parametrize("make", [mwpy.Executor, mwpy.local_master])
def test_a_master_whose_overseer_cannot_start_leaves_nothing(make: Callable[..., object], stage: Stage) -> None:
    """Its log file cannot be written, because a folder has its name."""
    before = {*threading.enumerate()}
    Path(f"{stage.resource}.overseer").mkdir()
    with pytest.raises(IsADirectoryError, match="overseer"):
        make(slaves=1, resource_file=stage.resource, system="local")
    names = {"mwpy-executor", "mwpy-io"}
    until(lambda: not any(each.name in names for each in {*threading.enumerate()} - before), "the end of the threads")


BLOCKED = """
import mwpy
from tests.integration.apps import chores

executor = mwpy.Executor(resource_file="executor.rsc", system="local", max_jobs=2)
executor.submit(chores.wait_for, "gate", 0).result()
"""


def test_an_overseer_ends_with_its_executor(stage: Stage) -> None:
    """Also if the process of the executor is killed. Its jobs look for their master, as those of each lost master."""
    started = start(stage, BLOCKED)
    until(lambda: (stage.folder / "gate.0.runs").exists(), lambda: f"a task that runs: {started.err}")
    assert any(" oversee " in command for command in stage.commands())
    started.send(signal.SIGKILL)
    started.end()
    until(lambda: not any(" oversee " in command for command in stage.commands()), "the end of the overseer")


# Futures as arguments


def _sum(*numbers: Any) -> Any:
    return sum(numbers)


def _fail(text: str) -> None:
    raise ValueError(text)


def _of(table: dict[str, list[int]]) -> int:
    return sum(table["all"])


def test_a_future_in_the_arguments_stands_for_its_value() -> None:
    """It may be deep in the arguments, may have ended already, and may be there twice."""
    with mwpy.Executor(slaves=2) as executor:
        one = executor.submit(_sum, 1, 2)
        two = executor.submit(_sum, one, one, 4)
        table: Any = {"all": [one, two, 5]}
        three = executor.submit(_of, table)
        assert (one.result(), two.result(), three.result()) == (3, 10, 18)
        assert executor.submit(_sum, two, three).result() == 28
        array: Any = executor.submit(np.ones, 1_000_000)
        assert executor.submit(np.sum, array).result() == 1_000_000


def test_a_task_whose_value_will_never_be_there_ends_with_the_task_that_failed() -> None:
    with mwpy.Executor(slaves=1) as executor:
        failed = executor.submit(_fail, "no")
        last = executor.submit(_sum, executor.submit(_sum, failed, 1), 1)
        with pytest.raises(mwpy.DependencyFailed, match="ValueError: no") as raised:
            last.result()
        assert raised.value.dependency == failed.task_id


def test_a_task_whose_value_was_cancelled_ends_with_it(blocked: Blocked, one: mwpy.Executor) -> None:
    last = one.submit(_sum, blocked.futures[-1])
    assert blocked.futures[-1].cancel()
    with pytest.raises(mwpy.DependencyFailed, match="was cancelled"):
        last.result(PATIENCE_S)
    blocked.release()


def test_a_future_of_another_executor_is_refused() -> None:
    with mwpy.Executor(slaves=1) as executor, mwpy.Executor(slaves=1) as other:
        with pytest.raises(mwpy.UsageError, match=r"pass its value \(future.result"):
            executor.submit(_sum, other.submit(_sum, 1)).result()
        with pytest.raises(mwpy.UsageError, match="only in the arguments of a task"):
            pickle.dumps(other.submit(_sum, 1))
    with mwpy.open(slaves=1) as mw, mw.executor() as own, pytest.raises(mwpy.UsageError, match="pass its value"):
        mw.submit(mwpy.task(_sum, own.submit(_sum, 1)))


def test_a_long_chain_of_futures_needs_no_recursion() -> None:
    """Neither if all its tasks succeed, nor if the first one fails."""
    with mwpy.Executor(slaves=1) as executor:
        for first, kind in ((executor.submit(_sum, 0), None), (executor.submit(_fail, "x"), mwpy.DependencyFailed)):
            last: Any = first
            for _ in range(2000):
                last = executor.submit(_sum, last, 1)
            assert (last.exception() and type(last.exception())) == kind
            assert kind or last.result() == 2000


def test_an_executor_that_is_shut_down_ends_the_tasks_that_wait_for_others() -> None:
    executor = mwpy.Executor(slaves=1)
    last = executor.submit(_sum, 1)
    for _ in range(20):
        last = executor.submit(_sum, last, 1)
    executor.shutdown()
    assert last.result() == 21
