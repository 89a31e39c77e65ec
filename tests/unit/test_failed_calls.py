"""The calls of failed tasks: the newest are kept, within limits."""

from __future__ import annotations

import pytest
from tests.spans import MAX

from mwpy._core.master import failed_calls
from mwpy._core.master.failed_calls import FailedCall, FailedCalls


def _call(task_id: int, payload: bytes = b"12", buffer: bytes = b"345") -> FailedCall:
    return FailedCall(task_id, MAX, payload, [buffer])


def _kept(calls: FailedCalls) -> list[int]:
    return [task_id for task_id in range(10) if calls.get(task_id) is not None]


def test_the_oldest_calls_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_calls, "KEPT_CALLS", 3)
    calls = FailedCalls()
    for task_id in (1, 2, 3, 1, 4):
        calls.keep(_call(task_id))
    assert _kept(calls) == [1, 3, 4]


def test_the_oldest_calls_are_forgotten_when_their_arguments_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that replaces another one counts once. A call that is larger than the limit is not kept."""
    size = _call(1).size
    assert size == len(MAX.packed) + 5
    monkeypatch.setattr(failed_calls, "KEPT_BYTES", 3 * size)
    calls = FailedCalls()
    for task_id in (1, 2, 3, 3, 4):
        calls.keep(_call(task_id))
    assert _kept(calls) == [2, 3, 4]
    calls.keep(_call(5, buffer=bytes(3 * size)))
    assert _kept(calls) == []
