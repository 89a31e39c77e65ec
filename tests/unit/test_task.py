"""Tasks, results and errors: the values that an application sees."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from mwpy._transport.codec import Codec
from mwpy._values.errors import TaskFailed, UsageError
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.last_words import Death, LastWords
from mwpy._values.messagepack import Pickled
from mwpy._values.task import Result, TaskPolicy, UnrunnableTask

SID = SlaveId("SLAVE-0")


def _result(value: object, failed: bool = False, payload: bytes | None = None) -> Result[Any]:
    return Result(
        TaskId(1), "f", SID, "tag", 0.5, failed, Pickled(1, pickle.dumps(value) if payload is None else payload)
    )


def test_a_value_is_unpickled_once_and_then_kept() -> None:
    """`.value` always returns the same object."""
    result = _result([1, 2])
    assert result.value == [1, 2]
    assert result.value is result.value
    assert result.error is None
    assert "ok, tag='tag'" in repr(result)


def test_a_failed_result_raises_with_the_remote_traceback() -> None:
    """`.value` raises the error that `.error` returns. The original exception is its cause."""
    cause = ValueError("seven")
    result = _result(("ValueError", "seven", "Traceback: remote", cause), failed=True)
    error = result.error
    assert isinstance(error, TaskFailed)
    assert isinstance(error.__cause__, ValueError)
    assert str(error) == "task f failed on SLAVE-0: ValueError: seven\nTraceback: remote"
    with pytest.raises(TaskFailed) as caught:
        _ = result.value
    assert caught.value.type_name == "ValueError"
    assert "failed" in repr(result)


def test_a_value_that_cannot_be_unpickled_is_a_failure() -> None:
    """The message says that unpickling failed, and `.error` agrees with `.value`."""
    result = _result(None, payload=b"no pickle")
    assert result.error is not None
    assert "cannot be unpickled here" in str(result.error)
    with pytest.raises(TaskFailed):
        _ = result.value


def test_the_failure_of_a_task_that_was_not_sent_names_no_slave() -> None:
    """Without a slave and a traceback, the message is one line."""
    assert str(TaskFailed("f", None, "TaskTooLarge", "too large")) == "task f failed: TaskTooLarge: too large"


def test_an_unknown_policy_is_named() -> None:
    """The error of a misspelt policy is raised at once."""
    assert TaskPolicy.of(retry=False) == TaskPolicy(retry=False)
    with pytest.raises(UsageError, match="unknown task policy 'retries'"):
        TaskPolicy.of(retries=3)


def test_a_policy_says_only_whether_there_is_a_seed() -> None:
    """So tasks with different seeds can be in one span."""
    assert TaskPolicy.of(seed=0) == TaskPolicy.of(seed=2**100) == TaskPolicy(seeded=True) != TaskPolicy.of(seed=None)
    with pytest.raises(UsageError, match=r"seed=0\.5: give a whole number"):
        TaskPolicy.of(seed=0.5)  # type: ignore[arg-type]


def test_an_unrunnable_task_has_its_arguments_and_its_history() -> None:
    """These values are enough to submit the task again, or to explain why it cannot run."""
    death = Death(SID, 2, "killed by signal 11")
    payload, _ = Codec().dumps_call((1,), {"b": 2}, "f")
    task = UnrunnableTask(TaskId(3), "f", None, "tag", "it kills", (death,), payload, ())
    assert task.arguments == ((1,), {"b": 2})
    assert str(task.deaths[0]) == "attempt 2 on SLAVE-0: killed by signal 11"
    assert repr(task) == "<UnrunnableTask 3 (f): it kills, tag='tag'>"


def test_an_unrunnable_task_shows_the_last_words_of_the_last_slave_that_died() -> None:
    """Printing the task shows the last words. Without last words, the text is one line."""
    first = Death(SID, 1, "exit code 1", LastWords("first"))
    last = Death(SID, 2, "killed by signal 11", LastWords("a\n", "b", "Fatal\n", 3 << 20))
    shown = [
        str(UnrunnableTask(TaskId(3), "f", None, "tag", "it kills", deaths, b"", ()))
        for deaths in ((first, last), (Death(SID, 1, "exit code 1"),), ())
    ]
    line = "task 3 (f) is unrunnable: it kills"
    assert shown == [f"{line}\nThe last words of SLAVE-0:\nfault:\nFatal\nstderr:\nb\nstdout:\na", line, line]
    assert str(last) == "attempt 2 on SLAVE-0 (peak memory 3.0 MiB): killed by signal 11"
