"""The policy `retry_errors`: its check, and how it travels with the arguments of a task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mwpy._roles.definitions import Definitions
from mwpy._roles.submission import Calls
from mwpy._transport.codec import MAX_CONDITION_BYTES, Codec, extras_of, loads_call, loads_condition, with_extras
from mwpy._values.algorithm import algorithm_of
from mwpy._values.errors import ArgumentNotPicklable, UsageError
from mwpy._values.messagepack import decode
from mwpy._values.policy import TaskPolicy, condition_in

CODEC = Codec()


def is_timeout(error: Exception) -> bool:
    return "timeout" in str(error)


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        (OSError, (OSError,)),
        ((OSError, KeyError), (OSError, KeyError)),
        ([OSError], (OSError,)),
        (is_timeout, is_timeout),
        (None, None),
    ],
)
def test_a_condition_is_types_or_a_function(given: Any, condition: object) -> None:
    assert condition_in({"retry_errors": given}) == condition


@pytest.mark.parametrize("wrong", ["OSError", (), 3, int, BaseException, KeyboardInterrupt, [OSError, "x"], {OSError}])
def test_other_values_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="give a subclass of Exception, several in a tuple, or a function"):
        TaskPolicy.of(retry_errors=wrong)


def test_a_task_that_must_not_run_twice_cannot_have_a_condition() -> None:
    with pytest.raises(UsageError, match="retry=False and retry_errors contradict each other"):
        TaskPolicy.of(retry=False, retry_errors=OSError)
    assert TaskPolicy.of(retry=False, retry_errors=None) == TaskPolicy(retry=False)


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("args", [(1, "two"), ([1], 2)], ids=["plain", "pickled"])
def test_a_condition_travels_with_the_arguments_and_the_seed(args: tuple[Any, ...], seed: int | None) -> None:
    call, _ = CODEC.dumps_call(args, {}, "f")
    entry = decode(with_extras(call, seed, CODEC.dumps_condition((OSError,))))
    found, keywords = loads_call(entry)
    assert (tuple(found), keywords, extras_of(entry)[0]) == (args, {}, seed)
    assert loads_condition(extras_of(entry)[1]) == (OSError,)


def test_a_function_by_value_brings_its_variables() -> None:
    word = "timeout"
    condition = loads_condition(CODEC.dumps_condition(lambda error: word in str(error)))
    assert callable(condition)
    assert (condition(OSError("a timeout")), condition(OSError("no"))) == (True, False)


def test_a_condition_that_cannot_travel_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(ArgumentNotPicklable, match="retry_errors refers to"):
        CODEC.dumps_condition(lambda _: file.closed)
    for large in (b"x" * MAX_CONDITION_BYTES, np.zeros(MAX_CONDITION_BYTES)):
        with pytest.raises(UsageError, match="the limit is 65536 bytes, because it travels with each task"):
            CODEC.dumps_condition(_holder(large))


def _holder(large: Any) -> Callable[[Exception], bool]:
    return lambda _: len(large) == 0


def test_the_policy_of_all_tasks_travels_with_tasks_that_have_no_other() -> None:
    """A call can switch it off."""
    found = Calls(Definitions(CODEC), {"retry_errors": OSError}, lambda _: ())
    policy, extras = found.policy(algorithm_of(max), {})
    assert policy.retries_errors
    terms = found.terms(algorithm_of(max), {"seed": 7})
    assert extras is not None
    assert loads_condition(extras_of(decode(found.task(terms, (1,), {})[0]))[1]) == (OSError,)
    assert found.policy(algorithm_of(max), {"retry_errors": None}) == (TaskPolicy(), None)
