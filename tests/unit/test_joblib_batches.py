"""The batches of a joblib backend: how many are submitted at once, how they end, and which arrays are shared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mwpy
import mwpy.joblib
from mwpy._roles import joblib_batches
from mwpy._roles.executor_future import Future
from mwpy._roles.joblib_batches import Batches, Call, RepeatedArrays
from mwpy._values.shares import Shared

LARGE = 1 << 20


class FakeExecutor:
    """Keeps what is submitted, so that a test decides when it ends."""

    def __init__(self, num_slaves: int = 2) -> None:
        self.num_slaves = num_slaves
        self.futures: list[Future[Any]] = []
        self.arguments: list[Any] = []
        self.error: Exception | None = None
        self.killed = 0

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self.error is not None:
            raise self.error
        self.futures.append(Future(self._kill))
        self.arguments += arguments
        return self.futures[-1]

    def _kill(self, _future: Future[Any]) -> None:
        self.killed += 1


def batches_of(executor: Any, most: int) -> Batches:
    return Batches(executor, abs, most)


def test_all_batches_are_submitted_if_there_are_no_more_slaves_than_jobs() -> None:
    batches = batches_of(executor := FakeExecutor(num_slaves=2), most=2)
    for number in range(5):
        batches.add(number, id)
    assert executor.arguments == [0, 1, 2, 3, 4]


def test_with_more_slaves_than_jobs_a_batch_waits_until_another_has_ended() -> None:
    ended: list[Future[Any]] = []
    batches = batches_of(executor := FakeExecutor(num_slaves=3), most=2)
    for number in range(4):
        batches.add(number, ended.append)
    assert executor.arguments == [0, 1]
    executor.futures[1].set_result("one")
    assert executor.arguments == [0, 1, 2]
    assert [future.result() for future in ended] == ["one"]


def test_a_batch_that_cannot_be_submitted_has_ended_with_the_error() -> None:
    """Then the next one can be submitted."""
    ended: list[Future[Any]] = []
    batches = batches_of(executor := FakeExecutor(num_slaves=3), most=1)
    executor.error = RuntimeError("shut down")
    batches.add(0, ended.append)
    with pytest.raises(RuntimeError, match="shut down"):
        ended[0].result()
    executor.error = None
    batches.add(1, ended.append)
    assert executor.arguments == [1]


def test_cancelled_batches_never_start_and_those_that_run_are_killed() -> None:
    ended: list[Future[Any]] = []
    batches = batches_of(executor := FakeExecutor(num_slaves=3), most=2)
    for number in range(4):
        batches.add(number, ended.append)
    executor.futures[0].set_running_or_notify_cancel()
    batches.cancel()
    assert executor.arguments == [0, 1]
    assert [future.cancelled() for future in ended] == [True, True]
    assert executor.killed == 1
    batches.add(4, ended.append)
    assert executor.arguments == [0, 1, 4]


def test_a_batch_that_is_cancelled_while_it_is_submitted_ends() -> None:
    ended: list[Future[Any]] = []

    class Interrupted(FakeExecutor):
        def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
            batches.cancel()
            return super().submit(function, *arguments)

    batches = batches_of(Interrupted(), most=2)
    batches.add(0, ended.append)
    assert ended[0].cancelled()


def test_nothing_is_said_while_there_is_a_slave(capsys: pytest.CaptureFixture[str]) -> None:
    batches_of(executor := FakeExecutor(num_slaves=1), most=2).wait_for_slave()
    assert not executor.futures
    assert not capsys.readouterr().err


def test_a_call_without_slaves_says_so_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first slave comes when the message is written."""
    executor, written = FakeExecutor(num_slaves=0), []

    class Screen:
        def write(self, text: str) -> None:
            written.append(text)
            if not executor.futures[0].done():
                executor.futures[0].set_result(None)

    monkeypatch.setattr(joblib_batches, "PATIENCE_S", 0.001)
    monkeypatch.setattr(sys, "stderr", Screen())
    batches_of(executor, most=2).wait_for_slave()
    assert written[0].startswith("mwpy: joblib waits for a slave")


def test_an_array_is_shared_when_it_comes_again() -> None:
    arrays, first, second = RepeatedArrays(LARGE), np.zeros(LARGE), np.ones(LARGE)
    calls = [(abs, (first, 1), {}), (abs, (), {"x": second}), (abs, (first,), {"x": second})]
    shared = arrays.shared(calls)
    assert shared[0][1][0] is first
    assert shared[1][2]["x"] is second
    assert isinstance(shared[2][1][0], Shared)
    assert isinstance(shared[2][2]["x"], Shared)
    assert arrays.shared(calls[:1])[0][1] == (shared[2][1][0], 1)


def test_small_arrays_and_those_of_objects_are_not_shared() -> None:
    arrays = RepeatedArrays(1)
    small, objects = np.zeros(10), np.full(LARGE, "text", dtype=object)
    calls: list[Call] = [(abs, (small, objects), {})]
    arrays.shared(calls)
    assert arrays.shared(calls) == calls


def test_nothing_is_shared_without_a_size_or_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Call] = [(abs, (np.zeros(LARGE),), {})] * 2
    assert RepeatedArrays(None).shared(calls) == calls
    monkeypatch.delitem(sys.modules, "numpy")
    assert RepeatedArrays(1).shared(calls) == calls


def test_an_array_is_forgotten_when_it_is_gone() -> None:
    """Another array may get its `id`."""
    arrays = RepeatedArrays(LARGE)
    for _ in range(3):
        array = np.zeros(LARGE)
        [(_, (given,), _)] = arrays.shared([(abs, (array,), {})])
        assert given is array
        del array, given


def test_without_joblib_registering_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mwpy._roles.joblib_backend", raising=False)
    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.setitem(sys.modules, "joblib.parallel", None)
    with pytest.raises(mwpy.UsageError, match=r"pip install 'mwpy-cluster\[joblib\]'"):
        mwpy.joblib.register()
