"""Algorithms: how they are declared, named and found again."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable

import pytest

import mwpy
from mwpy._values.algorithm import Registry, algorithm_of, find
from mwpy._values.errors import AlgorithmUnavailable, UsageError


def helper(x: int) -> int:
    return x + 1


@mwpy.task_algorithm
def marked(x: int) -> int:
    return x


def test_a_task_algorithm_with_a_policy_stays_a_function() -> None:
    """The calls that it makes carry the policy."""

    @mwpy.task_algorithm(seed=3, retry=False)
    def half(x: int) -> float:
        return x / 2

    assert half(3) == 1.5
    assert half.task(3).algorithm.policy == {"seed": 3, "retry": False}
    assert marked.task(3).algorithm.policy == {}


def test_a_wrong_policy_of_a_task_algorithm_raises_where_it_is_written() -> None:
    with pytest.raises(UsageError, match="'retries'"):
        mwpy.task_algorithm(retries=3)  # type: ignore[call-overload]


def test_a_marked_function_stays_a_function() -> None:
    """The function can be called as before, and it makes calls to submit."""
    assert marked(3) == 3
    function: object = marked
    assert isinstance(function, types.FunctionType)
    call = marked.task(3)
    assert (call.args, call.kwargs) == ((3,), {})
    assert call.algorithm is algorithm_of(marked)
    assert mwpy.task(marked, 4).algorithm is call.algorithm


def test_a_function_of_a_module_travels_by_name() -> None:
    algorithm = algorithm_of(helper)
    assert algorithm.reference == f"{__name__}:helper"
    assert find(algorithm.reference) is helper
    assert repr(algorithm) == f"<Algorithm {__name__}:helper>"


def test_a_wrapper_is_another_algorithm_than_the_wrapped_function() -> None:
    """`functools.wraps` copies the mark of the wrapped function. The copy does not count."""

    @functools.wraps(marked)
    def wrapper(x: int) -> int:
        return -x

    assert algorithm_of(wrapper).function is wrapper


def test_an_object_that_cannot_be_called_is_refused() -> None:
    """Coroutine functions are refused too, because a slave would never await them."""

    async def later() -> None: ...

    with pytest.raises(UsageError, match="not callable"):
        algorithm_of(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="coroutine"):
        algorithm_of(later)


def test_a_missing_function_or_module_is_reported_with_the_remedy() -> None:
    """The message says what to install, or how to start the slave."""
    with pytest.raises(AlgorithmUnavailable, match=r"install the module 'no_such_module' there.* open it again"):
        find("no_such_module:f")
    with pytest.raises(AlgorithmUnavailable, match="with the script of the master"):
        find("__main__:no_such_function")


def test_a_script_has_one_master_and_at_most_one_slave_algorithm() -> None:
    """Algorithms of the script itself override those of imported modules."""
    registry = Registry()
    with pytest.raises(UsageError, match="no master algorithm"):
        registry.master()
    assert registry.slave() is None

    def one(mw: object, argv: list[str]) -> int:
        return 0

    def two(mw: object, argv: list[str]) -> int:
        return 0

    registry.masters.append(one)
    registry.slaves.append(one)
    assert registry.master() is one
    assert registry.slave() is one
    registry.masters.append(two)
    with pytest.raises(UsageError, match="more than one master algorithm"):
        registry.master()
    two.__module__ = "__main__"
    assert registry.master() is two


class Scale:
    """An object with a method."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def times(self, number: int) -> int:
        return self.factor * number


def _renamed(name: str) -> Callable[..., object]:
    """A function that says it has a name in this module which it does not have."""
    renamed = types.FunctionType(helper.__code__, {}, name)
    renamed.__qualname__, renamed.__module__ = name, __name__
    return renamed


@pytest.mark.parametrize(
    ("function", "by_name"),
    [
        (abs, True),
        (str, True),
        (Scale, True),
        (Scale.times, True),
        (Scale(2).times, False),
        ("a-b".split, False),
        (functools.partial(max, 3), False),
        (lambda: Scale, False),
        (_renamed("helper"), False),
        (_renamed("nowhere"), False),
    ],
)
def test_a_function_that_is_found_by_its_name_has_one_algorithm(function: Callable[..., object], by_name: bool) -> None:
    """Another algorithm at each call would mean another definition for each task. Functions by value are known by their
    pickle, and nothing may keep them and what they refer to."""
    assert (algorithm_of(function) is algorithm_of(function)) is by_name
    assert bool(algorithm_of(function).reference) is by_name
    assert algorithm_of(function).function is function


def test_nothing_keeps_a_function_that_travels_by_value() -> None:
    """It may refer to large objects. So it must be gone with its last user, before a garbage collection."""

    def count() -> None: ...

    assert algorithm_of(count).function is count
    gone = weakref.ref(count)
    del count
    assert gone() is None


def test_a_function_without_attributes_and_hash_can_be_an_algorithm() -> None:
    class Odd:
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> int:
            return 7

    assert algorithm_of(Odd()).function() == 7
