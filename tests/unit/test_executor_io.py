"""How the outcomes of a master are divided between its algorithm and the executors that share it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mwpy._core.master.commands import CancelTasks, Running, Waiting
from mwpy._core.master.failed_calls import FailedCall
from mwpy._core.master.state import Actions, LogGroup
from mwpy._core.master.submissions import Submissions
from mwpy._core.master.taskjar import Taskjar
from mwpy._roles.executor_future import Future
from mwpy._roles.executor_io import ExecutorIo, ExecutorIos
from mwpy._roles.master_io import MasterIo
from mwpy._roles.progress import OpenProgress
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.log_messages import LogRow, size_of
from mwpy._values.task import Origin, Result, UnrunnableTask

ORIGIN = Origin("max", SlaveId("SLAVE-0"), "node7", 1, 1000.0)


class Owner:
    """An executor."""

    broken = None
    works: Sequence[object] = ()

    def kill(self, future: Future[Any]) -> None: ...
    def close(self) -> None: ...
    def give_up(self) -> None: ...
    def join(self) -> None: ...


@pytest.fixture
def executors() -> ExecutorIos:
    return ExecutorIos()


def begin(executors: ExecutorIos, *ids: int) -> tuple[ExecutorIo, Future[Any]]:
    """Open an executor with some tasks."""
    io = SimpleNamespace(
        executors=executors,
        submissions=Submissions(Taskjar()),
        submitting=threading.RLock(),
        progress=OpenProgress(),
    )
    executor = ExecutorIo(cast(MasterIo, io), Owner())
    executors.begin(executor)
    executor.open_ids.update(ids)
    return executor, Future(executor.owner.kill)


def result(number: int, tag: object) -> Result[object]:
    return Result(TaskId(number), ORIGIN, tag, 0.0, False, [number])


def row(task: int) -> LogRow:
    return LogRow(task, "max", 0.0, 30, "root", f"of task {task}", "/app.py", 1, "f", "")


def received(executor: ExecutorIo) -> Actions:
    for queue, outcomes in executor.take():
        queue.put(outcomes)
    found = executor.outcomes.get_nowait()
    assert isinstance(found, Actions)
    return found


def test_each_outcome_goes_to_the_executor_of_its_task(executors: ExecutorIos) -> None:
    """What belongs to no executor is for the algorithm. The bytes are divided by the numbers of results."""
    (one, of_one), (other, of_other) = begin(executors, 2), begin(executors, 3, 4)
    lost = UnrunnableTask(TaskId(4), "max", None, of_other, "its slave died", (), b"", (), ORIGIN)
    failed = [FailedCall(number, cast(Any, None), b"", ()) for number in (1, 2)]
    actions = Actions(
        results=[result(1, "own"), result(2, of_one), result(3, of_other)],
        unrunnable=[lost],
        failed=failed,
        result_bytes=300,
    )
    executors.divide(actions, ended=4)
    assert [each.task_id for each in actions.results] == [1]
    assert (actions.unrunnable, actions.failed, actions.result_bytes) == ([], failed[:1], 100)
    own = received(one)
    assert ([each.task_id for each in own.results], own.failed) == ([2], failed[1:])
    theirs = received(other)
    assert ([each.task_id for each in theirs.results], theirs.unrunnable) == ([3], [lost])
    assert executors.open_ids() == set()
    assert executors.ended_others == 1


def test_answers_and_the_end_of_the_time_go_to_all(executors: ExecutorIos) -> None:
    """Each thread knows whether it has asked."""
    executor, _ = begin(executors)
    actions = Actions(cancelled=[(CancelTasks([], Running.KILL), [])], ends_at=5.0)
    executors.divide(actions, ended=0)
    own = received(executor)
    assert (own.cancelled, own.ends_at) == (actions.cancelled, actions.ends_at)


def test_records_of_logging_are_divided_by_their_tasks(executors: ExecutorIos) -> None:
    """Those that were left out are reported by the algorithm."""
    executor, _ = begin(executors, 2)
    rows, sid = [row(1), row(2)], SlaveId("SLAVE-0")
    size = size_of(rows[1])
    actions = Actions(
        logged=[
            LogGroup(sid, "node7", rows, 3, 1000),
            LogGroup(sid, "node7", rows[:1], 0, 100),
            LogGroup(sid, "node7", rows[1:], 0, 100),
        ]
    )
    executors.divide(actions, ended=0)
    assert [(each.rows, each.left_out, each.size) for each in received(executor).logged] == [
        (rows[1:], 0, size),
        (rows[1:], 0, 100),
    ]
    assert [(each.rows, each.left_out, each.size) for each in actions.logged] == [
        (rows[:1], 3, 1000 - size),
        (rows[:1], 0, 100),
    ]


def test_what_comes_after_the_end_of_an_executor_is_dropped(executors: ExecutorIos) -> None:
    """It is no result of the algorithm, and counts as ended."""
    executor, future = begin(executors, 1)
    executor.handled_log_bytes = 70
    executors.end(executor)
    actions = Actions(results=[result(1, future), result(2, None)])
    executors.divide(actions, ended=2)
    assert [each.task_id for each in actions.results] == [2]
    assert (executors.ended_others, executors.handled_log_bytes(), executors.owners()) == (1, 70, [])


def test_without_executors_nothing_is_divided(executors: ExecutorIos) -> None:
    actions = Actions(results=[result(1, None)])
    executors.divide(actions, ended=1)
    for queue, outcomes in executors.take():
        queue.put(outcomes)
    assert len(actions.results) == 1
    assert executors.ended_others == 0


@pytest.mark.parametrize(
    ("algorithm", "executor", "together"),
    [
        (Waiting.NOT, Waiting.NOT, Waiting.NOT),
        (Waiting.NOT, Waiting.FOREVER, Waiting.FOREVER),
        (Waiting.FOR_A_WHILE, Waiting.NOT, Waiting.FOR_A_WHILE),
    ],
)
def test_the_master_is_waited_for_as_long_as_by_the_most_patient(
    executors: ExecutorIos, algorithm: Waiting, executor: Waiting, together: Waiting
) -> None:
    begin(executors)[0].waiting = executor
    assert executors.waiting(algorithm) is together


def test_an_executor_learns_that_the_io_thread_died_and_that_slaves_changed(executors: ExecutorIos) -> None:
    executor, _ = begin(executors)
    error, called = OSError("full"), list[str]()
    executors.fail(error)
    assert executor.outcomes.get_nowait() is error
    executors.slaves_changed()
    executor.on_slaves = lambda: called.append("slaves")
    executors.slaves_changed()
    assert called == ["slaves"]
