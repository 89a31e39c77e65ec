"""Tasks, results and errors: the values that an application sees."""

from __future__ import annotations

import math
import pickle
import re
import sys
from typing import Any

import numpy as np
import pytest

from mwpy._transport.codec import Codec
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.causes import Cause
from mwpy._values.errors import TaskFailed, TaskUnrunnable, UsageError
from mwpy._values.groups import Stretch
from mwpy._values.last_words import Death, LastWords
from mwpy._values.messagepack import FAILURE, Pickled, encode
from mwpy._values.policy import Limits, TaskPolicy, check_keywords
from mwpy._values.task import (
    Failure,
    Origin,
    Result,
    StoredAt,
    UnrunnableTask,
    failed,
    seed_at,
    size_of,
    stored_result,
)

SID = SlaveId("SLAVE-0")
ORIGIN = Origin("f", SID, "node7", 2, 1000.0)


def _result(value: object, failed: bool = False, payload: bytes | None = None) -> Result[Any]:
    pickled = Pickled(1, pickle.dumps(value) if payload is None else payload)
    return Result(TaskId(1), ORIGIN, "tag", 0.5, failed, pickled)


def _stretch(value: object) -> Stretch:
    return Stretch(TaskId(1), [Pickled(1, pickle.dumps(value))], "tag", ORIGIN, [0.1], 8, plain=False)


def test_a_value_is_unpickled_once_and_then_kept() -> None:
    """`.value` always returns the same object."""
    result = _result([1, 2])
    assert result.value == [1, 2]
    assert result.value is result.value
    assert result.error is None
    assert result.ok
    assert "ok, tag='tag'" in repr(result)


def test_whether_a_task_failed_is_known_without_unpickling() -> None:
    """A value that cannot be unpickled makes it a failure later."""
    assert failed(_result(None, failed=True, payload=b"not a pickle"))
    result = _result(None, payload=b"not a pickle")
    assert not failed(result)
    assert result.error is not None
    assert failed(result)


def test_a_failed_result_raises_with_the_remote_traceback() -> None:
    """`.value` raises the error that `.error` returns. The original exception is its cause."""
    cause = ValueError("seven")
    result = _result(("ValueError", "seven", "Traceback: remote", cause), failed=True)
    error = result.error
    assert isinstance(error, TaskFailed)
    assert isinstance(error.__cause__, ValueError)
    assert str(error).splitlines() == [
        "task 1 (f) failed on SLAVE-0 (node7), item 'tag': ValueError: seven",
        "Traceback: remote",
        "mwpy.replay(1) runs it again in this process",
    ]
    assert not result.ok
    with pytest.raises(TaskFailed) as caught:
        _ = result.value
    assert caught.value.type_name == "ValueError"
    assert "failed" in repr(result)


def test_a_result_says_where_and_when_its_task_ran() -> None:
    result = _result(None)
    assert (result.algorithm, result.sid, result.host, result.attempts) == ("f", SID, "node7", 2)
    assert (result.started, result.finished) == (999.5, 1000.0)


@pytest.mark.parametrize(
    ("value", "buffers", "size"),
    [(Pickled(1, b"1234"), (), 4), (Pickled(1, b"1234"), (b"12", b"1"), 7), (b"123", (), 3), ("12", (), 2), (7, (), 0)],
)
def test_a_result_knows_about_how_large_it_is(value: object, buffers: tuple[bytes, ...], size: int) -> None:
    assert size_of(Result(TaskId(1), ORIGIN, None, 0.5, False, value, buffers)) == size


class _Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        (5, ", item 5"),
        ((1, "a"), ", item (1, 'a')"),
        (None, ""),
        (np.zeros((2, 2)), ", item array([[0., 0.], [0., 0.]])"),
        ("x" * 1000, f", item '{'x' * 47}...{'x' * 48}'"),
        (_Unprintable(), ", item <_Unprintable instance at"),
    ],
)
def test_a_failure_names_its_item_in_one_short_line(item: object, shown: str) -> None:
    """Any object can be an item: large ones, those with line breaks in their text, and those without a text."""
    failure = TaskFailed("f", None, "ValueError", "seven")
    failure.item = item
    first, _, rest = str(failure).partition(": ValueError")
    assert first.startswith(f"task f failed{shown}")
    assert rest == ": seven"


class _Stop(BaseException):
    """Neither an exception nor an interrupt."""


def _raise(error: BaseException) -> None:
    raise error


class _Raises:
    """An object whose pickle raises an exception where it is read."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return _raise, (self.error,)


ENDS = pytest.mark.parametrize("error", [SystemExit(5), GeneratorExit(), _Stop("stop")], ids=repr)


@ENDS
def test_a_value_whose_pickle_ends_the_process_is_a_failure(error: BaseException) -> None:
    """Else a task could end its master with sys.exit, and nothing would name the task."""
    result = _result(_Raises(error))
    with pytest.raises(TaskFailed, match="cannot be unpickled here") as caught:
        _ = result.value
    assert (caught.value.task_id, caught.value.type_name) == (1, type(error).__name__)
    with pytest.raises(TaskFailed, match="cannot be unpickled here") as caught:
        _stretch(_Raises(error)).value_at(0, ["item"])
    assert (caught.value.task_id, caught.value.item) == (1, "item")


@ENDS
def test_an_exception_whose_pickle_ends_the_process_has_no_cause(error: BaseException) -> None:
    failure = Failure("Odd", "strange", "", pickle.dumps(_Raises(error)))
    found = _result(None, failed=True)
    found._value = Pickled(FAILURE, encode(failure))
    assert found.error is not None
    assert (found.error.text, found.error.__cause__) == ("strange", None)


def test_an_interrupt_while_a_value_is_unpickled_interrupts() -> None:
    """The value can be read again."""
    result = _result(_Raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        _ = result.value
    with pytest.raises(KeyboardInterrupt):
        _stretch(_Raises(KeyboardInterrupt())).value_at(0, ["item"])
    assert not failed(result)


class _Mute(Exception):
    def __str__(self) -> str:
        raise OSError


def test_an_error_of_unpickling_may_have_no_text() -> None:
    failure = _result(_Raises(_Mute())).error
    assert failure is not None
    assert failure.text.startswith("(its text is not available: __str__ raised OSError)")


def test_the_failure_of_a_task_that_was_not_sent_names_no_slave() -> None:
    """Without a slave and a traceback, the message is one line."""
    assert str(TaskFailed("f", None, "TaskTooLarge", "too large")) == "task f failed: TaskTooLarge: too large"


def test_an_unknown_policy_is_named() -> None:
    """The error of a misspelt policy is raised at once."""
    assert TaskPolicy.of(retry=False) == TaskPolicy(retry=False)
    with pytest.raises(UsageError, match=r"unknown task policy 'xyz': the policies are sid, retry, .* \(and tag\)"):
        TaskPolicy.of(xyz=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("timeout", "write seconds_max=2"),
        ("retries", "write attempts_max or retry_errors"),
        ("max_retries", "write attempts_max or retry_errors"),
        *((name, "write memory=2") for name in ("mem", "ram")),
        *((name, "write cpus=2") for name in ("ncpus", "num_cpus", "cores", "CPUs")),
        ("num_gpus", "write gpus=2"),
        ("second_max", "write seconds_max=2"),
        *((name, "give slaves to mwpy.open") for name in ("n_jobs", "workers")),
    ],
)
def test_a_policy_of_another_library_is_named_with_what_mwpy_calls_it(name: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=f"unknown task policy '{name}': {remedy}"):
        TaskPolicy.of(**{name: 2})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("slave", "write slaves=2"),
        *((name, "write slaves=2") for name in ("workers", "max_workers", "n_jobs", "processes")),
        ("cores", "write slaves or cpus"),
        ("timeout", "write seconds_max=2"),
        ("xyz", "its arguments are"),
    ],
)
def test_a_misspelt_keyword_of_a_call_is_named_with_what_may_be_meant(name: str, remedy: str) -> None:
    check_keywords("f()", ["slaves"], {"retry": True})
    with pytest.raises(UsageError, match=rf"f\(\) has no argument '{name}': {remedy}"):
        check_keywords("f()", ["slaves"], {"retry": True, name: 2})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (7, 7),
        ("7B", 7),
        ("7 bytes", 7),
        ("4 GB", 4 << 30),
        ("500 MiB", 500 << 20),
        ("1.5kb", 1536),
        (" 2 TiB ", 2 << 40),
    ],
)
def test_a_limit_of_memory_is_a_number_of_bytes_or_a_text_with_a_unit(value: int | str, count: int) -> None:
    assert TaskPolicy.of(memory_max=value).limits == Limits(None, count)
    assert TaskPolicy.of(memory_max=None).limits is None


def test_limits_and_pauses_are_numbers() -> None:
    """A limit of a call can be removed with None."""
    assert TaskPolicy.of(attempts_max=1) == TaskPolicy(attempts_max=1)
    assert TaskPolicy.of(seconds_max=2).limits == Limits(2.0)
    assert TaskPolicy.of(seconds_max=None).limits is None
    assert TaskPolicy.of(after=1).after == 1.0


NOT_A_LIMIT = (0, -1.5, "3", True, math.nan, math.inf)
NO_BYTES = (0, -1, 0.5, "", "4 IB", "-4 GB", "0 GB", "1e9 B", 10**16, object)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("attempts_max", (0, -1, 0.5, "3", None), "give a whole number"),
        ("seconds_max", NOT_A_LIMIT, "give a number of seconds greater than 0, or None"),
        ("memory_max", NO_BYTES, 'give a number of bytes, or a text such as "4 GB", or None'),
        ("after", (-1, 2e9, math.nan, "1", True, None), "give a number of seconds from 0 on"),
        ("sid", (["SLAVE-0"], 0), "give the id of a slave, which is a string such as 'SLAVE-0'"),
        ("retry", ("no", None), "give True or False"),
        ("do_it_anyway", ("False",), "give True or False"),
    ],
)
def test_a_wrong_value_of_a_policy_is_refused(name: str, values: tuple[object, ...], message: str) -> None:
    """A list as `sid` would end the I/O thread, and `retry="no"` would count as true."""
    for value in values:
        with pytest.raises(UsageError, match=re.escape(f"{name}={value!r}: {message}")):
            TaskPolicy.of(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_seed_that_is_too_long_to_be_written_is_refused(sign: int) -> None:
    """The longest one gives a seed also if Python converts as few digits as it can be set to."""
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    try:
        longest = sign * ((1 << 2048) - 1)
        assert TaskPolicy.of(seed=longest).seeded
        assert seed_at(longest, 0) != seed_at(sign, 0)
        with pytest.raises(UsageError, match="seed has 16610 bits: give a whole number of at most 2048 bits"):
            TaskPolicy.of(seed=sign * 10**5000)
    finally:
        sys.set_int_max_str_digits(digits)


def test_a_truth_value_of_numpy_is_a_policy() -> None:
    assert TaskPolicy.of(retry=np.bool_(False), do_it_anyway=np.bool_(True)) == TaskPolicy(  # type: ignore[arg-type]
        retry=False, do_it_anyway=True
    )


def test_an_unrunnable_task_has_its_arguments_and_its_history() -> None:
    """These values are enough to submit the task again, or to explain why it cannot run."""
    death = Death(SID, 2, Cause.CRASH, "killed by signal 11")
    payload, _ = Codec().dumps_call((1,), {"b": 2}, "f")
    task = UnrunnableTask(TaskId(3), "f", None, "tag", "it kills", (death,), payload, (), ORIGIN)
    assert task.arguments == ((1,), {"b": 2})
    assert str(task.deaths[0]) == "attempt 2 on SLAVE-0: crash: killed by signal 11"
    assert repr(task) == "<UnrunnableTask 3 (f): it kills, tag='tag'>"
    result = task.result()
    assert (result.task_id, result.tag, result.attempts, result.ok) == (3, "tag", 2, False)
    with pytest.raises(TaskUnrunnable, match=r"^task 3 \(f\) failed on SLAVE-0 \(node7\).*: it kills$") as caught:
        _ = result.value
    assert caught.value.deaths == (death,)


def test_an_unrunnable_task_shows_the_last_words_of_the_last_slave_that_died() -> None:
    """Printing the task shows the last words. Without last words, the text is one line."""
    first = Death(SID, 1, Cause.CRASH, "exit code 1", LastWords("first"))
    last = Death(SID, 2, Cause.CRASH, "killed by signal 11", LastWords("a\n", "b", "Fatal\n", 3 << 20))
    shown = [
        str(UnrunnableTask(TaskId(3), "f", None, "tag", "it kills", deaths, b"", (), ORIGIN))
        for deaths in ((first, last), (Death(SID, 1, Cause.CRASH, "exit code 1"),), ())
    ]
    line = "task 3 (f) is unrunnable: it kills"
    assert shown == [f"{line}\nThe last words of SLAVE-0:\nfault:\nFatal\nstderr:\nb\nstdout:\na", line, line]
    assert str(last) == "attempt 2 on SLAVE-0 (peak memory 3.0 MiB): crash: killed by signal 11"


def _stored(entry: object, buffers: tuple[bytes, ...] = (), failed: bool = False) -> tuple[Result[Any], list[str]]:
    """A result in the run database, and where it was read."""
    read: list[str] = []

    def load(row: int, place: int) -> tuple[object, tuple[bytes, ...]]:
        read.append(f"row {row}, place {place}")
        return entry, buffers

    return stored_result(TaskId(1), ORIGIN, "tag", 0.5, failed, StoredAt(7, 3, load)), read


def test_the_value_of_a_stored_result_is_read_once_and_only_when_it_is_asked_for() -> None:
    for entry, value in ((5, 5), (Pickled(1, pickle.dumps([1])), [1])):
        result, read = _stored(entry)
        assert (size_of(result), read) == (0, [])
        assert "ok" in repr(result)
        assert result.value == value
        assert result.value is result.value
        assert read == ["row 7, place 3"]


def test_a_stored_failure_is_known_before_it_is_read() -> None:
    failure = pickle.dumps(("ValueError", "seven", "Traceback: remote", None))
    result, read = _stored(Pickled(1, failure), failed=True)
    assert failed(result)
    assert read == []
    assert result.error is not None
    assert "ValueError: seven" in str(result.error)
