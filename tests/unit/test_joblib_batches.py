"""The batches of a joblib backend: how many are submitted at once, how they end, and which arrays are shared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mwpy
import mwpy.joblib
from mwpy._roles.joblib_backend import Batches, RepeatedArrays
from mwpy.executor import Future

LARGE = 1 << 20


class FakeExecutor:
    """Keeps what is submitted, so that a test decides when it ends."""

    def __init__(self, num_slaves: int = 2) -> None:
        self.num_slaves = self.max_slaves = num_slaves
        self.futures: list[Future[Any]] = []
        self.arguments: list[Any] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self.futures.append(Future(None))
        self.arguments += arguments
        return self.futures[-1]


def batches_of(executor: Any, most: int) -> Batches:
    return Batches(executor, abs, most)


def test_with_more_slaves_than_jobs_a_batch_waits_until_another_has_ended() -> None:
    ended: list[Future[Any]] = []
    batches = batches_of(executor := FakeExecutor(num_slaves=3), most=2)
    for number in range(4):
        batches.add(number, ended.append)
    assert executor.arguments == [0, 1]
    executor.futures[1].set_result("one")
    assert executor.arguments == [0, 1, 2]
    assert [future.result() for future in ended] == ["one"]


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
    monkeypatch.delattr("mwpy._roles.joblib_backend", raising=False)
    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.setitem(sys.modules, "joblib.parallel", None)
    with pytest.raises(mwpy.UsageError, match=r"pip install 'mwpy-cluster\[joblib\]'"):
        mwpy.joblib.register()
