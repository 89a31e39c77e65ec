"""Uses of globals, classes, decorators and libraries, as people write them for `ProcessPoolExecutor`.

`uses.py HOW` runs all of them and prints a line for each: its name and its values. Each use says by its values whether
it found the objects of its own script: the same lock, the same class, the same registry.
"""

from __future__ import annotations

import abc
import concurrent.futures
import contextvars
import dataclasses
import enum
import functools
import inspect
import json
import multiprocessing
import operator
import sqlite3
import sys
import threading
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

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
VARIABLE = contextvars.ContextVar("VARIABLE", default=7)
DATABASE = sqlite3.connect(":memory:")
DATABASE.execute("create table numbers (x)")
DATABASE.execute("insert into numbers values (42)")
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

    def norm(self) -> int:
        return abs(self.x)

    @classmethod
    def make(cls, x: int) -> Point:
        assert cls is Point
        return cls(x)

    @staticmethod
    def twice(x: int) -> int:
        return 2 * x


@use(1, 2)
def lock(x: int) -> int:
    with LOCK:
        return x


@use(1)
def context_variable(_: int) -> int:
    return VARIABLE.get()


@use(1)
def connection(_: int) -> list[Any]:
    return DATABASE.execute("select x from numbers").fetchall()


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


@functools.singledispatch
def kind(_: object) -> str:
    return "object"


@kind.register
def _(_: Point) -> str:
    return "Point"


@use(1)
def dispatched(x: int) -> list[str]:
    return [kind(x), kind(Point(x))]


@use(1)
def all_globals(_: int) -> bool:
    return globals()["Point"] is Point and "use" in globals()


def annotated(point: Point) -> Point:
    return point


@use(1)
def type_hints(_: int) -> bool:
    return typing.get_type_hints(annotated)["point"] is Point


@use(1)
def source(_: int) -> list[str]:
    return [inspect.getsource(Point).splitlines()[0], inspect.getsource(read_global).splitlines()[1].strip()]


# ---- classes ---------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Row:
    x: int


class Pair(NamedTuple):
    a: int
    b: str = "b"


class Coded(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Shape(abc.ABC):
    KINDS: ClassVar[dict[str, type[Shape]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Shape.KINDS[cls.__name__] = cls

    @abc.abstractmethod
    def area(self) -> int: ...


class Square(Shape):
    def area(self) -> int:
        return 9


class Counted(type):
    made: ClassVar[list[str]] = []

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Counted:
        made = super().__new__(mcs, name, bases, namespace)
        Counted.made.append(name)
        return made


class OfMeta(metaclass=Counted):
    pass


class Single:
    def __new__(cls) -> Self:
        one: Self = globals().setdefault("ONE", super().__new__(cls))
        return one

    def __reduce__(self) -> Any:
        return Single, ()


@use(Color.RED, Color.BLUE)
def color(each: Color) -> list[bool]:
    return [each is Color.RED, isinstance(each, Color), Color(each.value) is each, each in {Color.RED: 1}]


@use(Color.RED, Point(3), Row(1), Pair(2), 5)
def matched(value: Any) -> str:
    match value:
        case Color.RED:
            return "red"
        case Point(x=3):
            return "point"
        case Row(x=1):
            return "row"
        case Pair(a=2):
            return "pair"
    return "nothing"


@use(Coded(4), ValueError())
def caught(error: Exception) -> str:
    try:
        raise error
    except Coded as own:
        return f"own {own.code}"
    except Exception as other:
        return f"other {type(other).__name__}"


@use("Square")
def registered(name: str) -> tuple[int, bool, list[str]]:
    return Shape.KINDS[name]().area(), Shape.KINDS[name] is Square, sorted(Shape.KINDS)


@use(Row(1))
def dataclass(row: Row) -> list[bool]:
    return [row == Row(1), isinstance(row, Row), dataclasses.replace(row, x=2) == Row(2)]


@use(OfMeta())
def of_metaclass(made: Any) -> tuple[bool, list[str]]:
    return type(type(made)) is Counted, Counted.made


@use(Single())
def singleton(one: Single) -> bool:
    return one is Single()


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
            return self.factor * x, isinstance(self, Times), VARIABLE.get()

    def method(self, point: Point) -> list[bool]:
        return [isinstance(point, Point), type(self) is Times, Color.RED is Color(1)]

    @classmethod
    def of_class(cls, point: Point) -> list[bool]:
        return [cls is Times, isinstance(point, Point)]


class MoreTimes(Times):
    def __call__(self, x: int) -> Any:
        return "more", super().__call__(x)


USES |= {
    "partial_of_enum": (functools.partial(equal, Color.RED), [Color.RED, Color.BLUE]),
    "partial_of_dataclass": (functools.partial(equal, Row(1)), [Row(1), Row(2)]),
    "partial_of_class": (functools.partial(equal, Point), [Point, Row]),
    "callable_object": (Times(3), [1, 2]),
    "object_of_subclass": (MoreTimes(3), [1]),
    "bound_method": (Times(1).method, [Point(1)]),
    "class_method": (Times.of_class, [Point(1)]),
    "static_method": (Point.twice, [1]),
    "constructor": (Point.make, [1, 2]),
    "class": (Row, [1]),
    "enum": (Color, [1, 2]),
    "method_of_class": (Point.norm, [Point(-1)]),
    "attribute": (operator.attrgetter("x"), [Point(1)]),
}


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: [isinstance(x, Point), LOCK.locked(), function(x)]


UNNAMED: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "lambda": (lambda each: [each is Color.RED, LOCK.locked(), VARIABLE.get(), HANDLERS["a"] is handle_a], [Color.RED]),
    "partial_of_lambda": (functools.partial(lambda one, other: equal(one, other), Row(1)), [Row(1)]),
    "closure": (doubled(kind), [Point(1)]),
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
