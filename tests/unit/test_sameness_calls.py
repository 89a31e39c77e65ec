"""Which calls are the same: digests of arguments and of keys."""

from __future__ import annotations

import enum
import functools
import random
import sys
import threading
import types
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from math import inf, nan
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwpy._transport.codec import Codec
from mwpy._transport.shared_objects import handle_of as share
from mwpy._values import structure
from mwpy._values.bounds import TaskId
from mwpy._values.code import NotComparable, call_digest, value_digest
from mwpy._values.task import result

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
FACTOR = 2


class Color(enum.Enum):
    """An enum."""

    RED = 1
    BLUE = 2


@dataclass
class Point:
    """A dataclass with a method that a task can call."""

    x: float

    def scaled(self) -> float:
        return self.x * FACTOR


@attrs.define
class Slotted:
    """An attrs class."""

    x: float


class Message(msgspec.Struct):
    """A msgspec class."""

    x: float


class Named(set[str]):
    """A set with a name."""

    def __init__(self, elements: str, name: str = "") -> None:
        super().__init__(elements)
        self.name = name


Pair = namedtuple("Pair", "a b")  # noqa: PYI024


def double(x: int) -> int:
    return 2 * x


def digest(*args: Any, **kwargs: Any) -> bytes:
    return call_digest(args, kwargs)


@given(st.lists(PLAIN, min_size=1, max_size=3), st.lists(PLAIN, min_size=1, max_size=3))
@settings(max_examples=300)
def test_calls_with_different_plain_arguments_differ(one: list[Any], other: list[Any]) -> None:
    """Values are the same if they have the same type and the same notation."""
    same = [(type(each), repr(each)) for each in one] == [(type(each), repr(each)) for each in other]
    assert (digest(*one) == digest(*other)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (0, None),
        ("1", b"1"),
        ((1, 2), [1, 2]),
        (range(3), range(4)),
        (slice(1), slice(2)),
        (Color.RED, Color.BLUE),
        (Color.RED, 1),
        (Point(1), Point(2)),
        (Point(1), Slotted(1)),
        (Slotted(1), Slotted(2)),
        (Pair(1, 2), Pair(1, 3)),
        (Pair(1, 2), (1, 2)),
        (Path("a"), Path("b")),
        (Path("a"), "a"),
        (Decimal("1.0"), Decimal("1.00")),
        (Fraction(1, 2), Fraction(1, 3)),
        (1j, 2j),
        (bytearray(b"a"), bytearray(b"b")),
        (memoryview(b"a"), memoryview(b"b")),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (np.float32(1), np.float64(1)),
        (np.arange(3), np.arange(3.0)),
        (np.arange(4), np.arange(4).reshape(2, 2)),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (random.Random(1), random.Random(2)),
        ({"a": 1}, {"a": 1.0}),
        ({"a": {1, 2}}, {"a": {1, 3}}),
        (double, Point),
        (lambda x: x, lambda x: x + 1),
        (functools.partial(double, 1), functools.partial(double, 2)),
        (Point(1).scaled, Point(2).scaled),
        (len, max),
        (np.sin, np.cos),
        (random.random, random.randint),
        ([1].append, [2].append),
        (int, float),
        (2**64, 2**64 + 1),
        (-1, 255),
        ([1, [2]], [[1], 2]),
        (["a", "b"], ["ab", ""]),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        ({"a": 1}, OrderedDict(a=1)),
        (Slotted(1), Message(1)),
        (Message(1), Message(2)),
        (ValueError(1), ValueError(2)),
        (ValueError(1), TypeError(1)),
        (defaultdict(int), defaultdict(list)),
        (Named("ab"), Named("ac")),
        (Named("ab"), Named("ab", "x")),
        (Named("ab"), set("ab")),
        (None, ...),
    ],
)
def test_these_arguments_differ(one: object, other: object) -> None:
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)
    assert digest(key=one) != digest(key=other)


def test_equal_arguments_are_the_same() -> None:
    """The order in dicts and sets does not count, nor whether parts are one object, nor the sign of a nan."""
    part = [1]
    assert digest({"a": 1, "b": {"x", "y", "z"}}) == digest({"b": {"z", "y", "x"}, "a": 1})
    assert digest([part, part]) == digest([[1], [1]])
    assert digest(nan) == digest(-nan) != digest(inf)
    assert digest([nan], {"a": nan}) == digest([-nan], {"a": -nan})
    assert digest(-nan, inf) == digest(nan, inf) != digest(inf, nan)
    assert digest(1, b=2) == digest(1, b=2) != digest(1, 2)
    assert digest(2**70) != digest(2**71)
    assert digest("\ud800") != digest("\ud801")
    assert digest(complex(nan, 1)) == digest(complex(-nan, 1))
    payload = np.array([0x7FF8000000000001, 0x7FF8000000000000], "u8").view("f8")
    assert digest(payload) == digest(np.array([nan, -nan]))
    assert digest(Named("ab")) == digest(Named("ba"))


def test_the_code_of_a_class_of_the_user_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task can call its methods. A change is seen at once, also of a variable that they use."""
    before = digest(Point(1))
    assert digest(Point(1)) == before
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert digest(Point(1)) != before


def test_a_shared_object_counts_by_its_value() -> None:
    """Not by its pickle: that of a set depends on the hash seed, and that of a dict on its order."""
    one, same, other = (share(each, Codec()) for each in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}))
    assert one.shared.share.digest != same.shared.share.digest
    assert digest([one]) == digest([same]) != digest([other])
    assert digest([one]) == digest([one])
    assert structure.digest_of(one) != structure.digest_of(other)


def test_a_reference_counts_as_the_task_to_which_it_refers() -> None:
    keys = {3: b"three", 4: b"four"}
    digests = [call_digest((result(TaskId(each)),), {}, keys.__getitem__) for each in (3, 4)]
    assert digests[0] != digests[1]
    assert call_digest((result(TaskId(7)),), {}, lambda _: b"three") == digests[0]
    with pytest.raises(NotComparable, match=r"mwpy.result\(3\) has a meaning only in the arguments"):
        value_digest(result(TaskId(3)))


class Strange:
    """Raises wherever it can."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __reduce_ex__(self, protocol: object) -> str:
        raise KeyError("nothing at all")


class Stranger:
    """Says that it consists of something that it does not have."""

    def __reduce_ex__(self, protocol: object) -> Any:
        return 1, 2, 3, 4, 5, 6


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Strange(), "an object of the type .*Strange has no structure .'nothing at all'"),
        (lambda: Stranger(), "int"),
        (lambda: (each for each in ""), "an object of the type generator has no structure"),
        (lambda: types, "the module types is no value"),
        (lambda: threading.Lock(), "an object of the type _thread.lock has no structure"),
        (lambda: sys.stdout, "has no structure"),
    ],
)
def test_an_argument_that_cannot_be_compared_gives_the_reason(make: Callable[[], object], reason: str) -> None:
    value = make()
    with pytest.raises(NotComparable, match=reason):
        digest([value])


@given(PLAIN, PLAIN)
def test_keys_are_compared_by_value(one: Any, other: Any) -> None:
    """No key is the same as the arguments of a call."""
    same = (type(one), repr(one)) == (type(other), repr(other))
    assert (value_digest(one) == value_digest(other)) == same
    assert value_digest(one) not in (digest(one), digest(), bytes(16))
