"""Uses of globals, classes, decorators and libraries, as people write them for `ProcessPoolExecutor`.

`uses.py HOW` runs all of them and prints a line for each: its name and its values. Each use says by its values whether
it found the objects of its own script: the same lock, the same class, the same registry.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import enum
import functools
import json
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import mwpy

USES: dict[str, tuple[Callable[..., Any], list[Any]]] = {}
"""Functions and their items, by name."""

F = TypeVar("F", bound=Callable[..., Any])


def use(*items: Any) -> Callable[[F], F]:
    """Add a function with its items."""

    def added(function: F) -> F:
        USES[function.__name__] = function, list(items)
        return function

    return added


# ---- globals that cannot be pickled, or that a function changes ------------------------------------------------------

LOCK = threading.Lock()
COUNT = 0


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    def __hash__(self) -> int:
        return hash(self.x)

    def __repr__(self) -> str:
        return f"Point({self.x})"


@use(1, 2)
def lock(x: int) -> int:
    with LOCK:
        return x


@use(3)
def assigned_global(x: int) -> int:
    global COUNT  # noqa: PLW0603  # it is what is tested
    COUNT = x
    return read_global()


def read_global() -> int:
    return COUNT


def moved(point: Point) -> Point:
    return Point(point.x + 1)


@use(1)
def pool(x: int) -> list[Point]:
    with multiprocessing.get_context("fork").Pool(1) as workers:
        return workers.map(moved, [Point(x)])


@use(1)
def spawned_pool(x: int) -> bool:
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        return workers.map(moved, [Point(x)]) == [Point(x + 1)]


@use(1)
def main_module(_: int) -> tuple[str, bool]:
    import __main__

    return Path(__main__.__file__).name, __main__.Point is Point


# ---- classes ---------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Row:
    x: int


class Coded(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@use(Color.RED, Color.BLUE)
def color(each: Color) -> list[bool]:
    return [each is Color.RED, isinstance(each, Color), Color(each.value) is each, each in {Color.RED: 1}]


@use(Coded(4), ValueError())
def caught(error: Exception) -> str:
    try:
        raise error
    except Coded as own:
        return f"own {own.code}"
    except Exception as other:
        return f"other {type(other).__name__}"


@use(Row(1))
def dataclass(row: Row) -> list[bool]:
    return [row == Row(1), isinstance(row, Row), dataclasses.replace(row, x=2) == Row(2)]


@use(1)
def raised(x: int) -> None:
    raise Coded(x)


# ---- decorators, functions without a name, callable objects ----------------------------------------------------------

HANDLERS: dict[str, Callable[[int], Any]] = {}


def handles(name: str) -> Callable[[F], F]:
    def added(function: F) -> F:
        HANDLERS[name] = function
        return function

    return added


@handles("a")
def handle_a(x: int) -> Any:
    return "a", x


@use("a")
def handled(name: str) -> tuple[Any, bool]:
    return HANDLERS[name](1), HANDLERS[name] is handle_a


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return "logged", function(*args)

    return wrapper


@use(1)
@logged
def decorated(x: int) -> int:
    return x + 1


@functools.cache
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


USES["fibonacci"] = fibonacci, [20]


@use(1)
def arguments(_: int) -> bool:
    return sys.argv[1:] == ARGUMENTS


ARGUMENTS = sys.argv[1:]


def equal(one: object, other: object) -> list[bool]:
    return [one == other, one is other, type(one) is type(other), other in {one: 1}]


class Times:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, x: int) -> Any:
        with LOCK:
            return self.factor * x, isinstance(self, Times)

    def method(self, point: Point) -> list[bool]:
        return [isinstance(point, Point), type(self) is Times, Color.RED is Color(1)]

    @classmethod
    def of_class(cls, point: Point) -> list[bool]:
        return [cls is Times, isinstance(point, Point)]


USES |= {
    "partial_of_enum": (functools.partial(equal, Color.RED), [Color.RED, Color.BLUE]),
    "partial_of_dataclass": (functools.partial(equal, Row(1)), [Row(1), Row(2)]),
    "callable_object": (Times(3), [1, 2]),
    "bound_method": (Times(1).method, [Point(1)]),
    "class_method": (Times.of_class, [Point(1)]),
    "enum": (Color, [1, 2]),
}


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: [isinstance(x, Point), LOCK.locked(), function(x)]


UNNAMED: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "lambda": (lambda each: [each is Color.RED, LOCK.locked(), HANDLERS["a"] is handle_a], [Color.RED]),
    "partial_of_lambda": (functools.partial(lambda one, other: equal(one, other), Row(1)), [Row(1)]),
    "closure": (doubled(handle_a), [Point(1)]),
    "closure_of_class": (doubled(Times(1).method), [Point(1)]),
}
"""Functions that no pool can run, because they have no name."""


def run(map_: Callable[[Callable[..., Any], list[Any]], Iterable[Any]], uses: Iterable[str]) -> int:
    for name in uses:
        function, items = (USES | UNNAMED)[name]
        values: object
        try:
            values = [*map_(function, items)]
        except (Coded, mwpy.TaskFailed) as error:
            own = error if isinstance(error, Coded) else error.__cause__
            values = repr(own)
        print(json.dumps([name, repr(values)]), flush=True)
    return 0


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    return run(mw.map, [*USES, *UNNAMED])


if __name__ == "__main__":
    how = sys.argv[1]
    if how == "main":
        sys.exit(mwpy.main(sys.argv[2:]))
    elif how == "plain":
        run(map, [*USES, *UNNAMED])
    elif how == "executor":
        with mwpy.Executor(2) as executor:
            run(executor.map, [*USES, *UNNAMED])
    elif how == "local_master":
        with mwpy.local_master(2, slave_start=sys.argv[2]) as mw:
            run(mw.map, [*USES, *UNNAMED])
    elif how == "joblib":
        import joblib

        import mwpy.joblib

        mwpy.joblib.register()
        with joblib.parallel_config(backend="mwpy", slaves=2):
            run(lambda function, items: joblib.Parallel()(map(joblib.delayed(function), items)), [*USES, *UNNAMED])
    else:
        with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context(how)) as processes:
            run(processes.map, USES)
