"""A function that a slave runs for an executor with an initializer."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import pytest

from mwpy._values.algorithm import Initialized
from mwpy._values.code import NotComparable, changes, code_of

marks = itertools.count()
"""Numbers of which each names another executor."""

given: list[int] = []


def _of_an_executor(
    function: Callable[..., object] = max, initializer: Callable[..., object] = given.append, *initargs: object
) -> Initialized:
    return Initialized(f"executor {next(marks)}", initializer, initargs, function)


def _prepare(size: int) -> int:
    return size + 1


def _prepare_otherwise(size: int) -> int:
    return size + 2


def test_an_initializer_that_failed_is_called_again() -> None:
    given.clear()

    def fail_at_first() -> float:
        given.append(1)
        return 1 / (len(given) - 1)

    tried = _of_an_executor(max, fail_at_first)
    with pytest.raises(ZeroDivisionError):
        tried(3, 4)
    assert (tried(3, 4), given) == (4, [1, 1])


def test_executors_with_the_same_initializer_have_the_same_code() -> None:
    one, other = _of_an_executor(max, _prepare, 1), _of_an_executor(max, _prepare, 1)
    assert code_of(one) == code_of(other)


def test_the_function_the_initializer_and_its_arguments_count() -> None:
    made = [
        _of_an_executor(max, _prepare, 1),
        _of_an_executor(min, _prepare, 1),
        _of_an_executor(max, _prepare_otherwise, 1),
        _of_an_executor(max, _prepare, 2),
    ]
    codes = [code_of(each) for each in made]
    assert len({code.digest for code in codes}) == len(codes)
    [text] = changes(codes[0].parts, codes[3].parts)
    assert text.startswith("arguments of the initializer changed")


def test_an_initializer_without_structure_has_no_code() -> None:
    with pytest.raises(NotComparable, match="has no structure"):
        code_of(_of_an_executor(max, _prepare, sys.stdout))
