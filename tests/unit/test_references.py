"""References in the arguments of tasks: which ones a call contains, and where they may be."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from attrs import frozen

from mwpy._transport.codec import Codec, extras_of, loads_call, with_extras
from mwpy._values.bounds import LARGE_BYTES, Buffer, TaskId
from mwpy._values.errors import ArgumentNotPicklable, UsageError
from mwpy._values.messagepack import as_pickle, as_read, decode, encode
from mwpy._values.task import Reference, ReferringBuffers, ResultReference, given_value, result

CODEC = Codec()


@frozen
class Stands(Reference):
    """Stands for the square of a number."""

    number: int

    def rebuilt_by(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return pow, (self.number, 2)


@dataclass
class Holder:
    """Something of the user's that contains something else."""

    content: object


def test_a_call_has_all_references_in_its_arguments_wherever_they_are() -> None:
    nested = [Stands(2), {"key": (Holder([Stands(3)]), Stands(2))}]
    payload, buffers = CODEC.dumps_call((1, nested), {"word": Stands(5)}, "f")
    assert isinstance(buffers, ReferringBuffers)
    assert buffers.references == (Stands(2), Stands(3), Stands(5))
    assert (bool(buffers), list(buffers)) == (True, [])
    args, kwargs = loads_call(decode(payload))
    assert (args, kwargs) == ((1, [4, {"key": (Holder([9]), 4)}]), {"word": 25})


def test_a_reference_is_found_beside_a_large_buffer_and_a_local_function() -> None:
    """A lambda makes plain pickle fail, perhaps after it met the reference. The buffer may change afterwards."""
    array = np.ones(LARGE_BYTES, np.uint8)
    _, buffers = CODEC.dumps_call((Stands(2), array, lambda: 1), {}, "f")
    array[:] = 0
    assert isinstance(buffers, ReferringBuffers)
    assert buffers.references == (Stands(2),)
    assert [*map(bytes, buffers)] == [b"\1" * LARGE_BYTES]


@pytest.mark.parametrize("args", [(1, "word"), ([1],), (np.ones(LARGE_BYTES),)])
def test_a_call_without_references_says_so(args: tuple[object, ...]) -> None:
    CODEC.dumps_call((Stands(2),), {}, "f")
    assert not isinstance(CODEC.dumps_call(args, {}, "f")[1], ReferringBuffers)


def test_a_reference_elsewhere_is_refused_also_after_a_call_that_failed() -> None:
    with pytest.raises(ArgumentNotPicklable):
        CODEC.dumps_call((Stands(2), threading.Lock()), {}, "f")
    with pytest.raises(UsageError, match=r"Stands\(number=3\) has a meaning only in the arguments of a task"):
        CODEC.dumps_value([Stands(3)])
    with pytest.raises(UsageError, match="only in the arguments"):
        pickle.dumps(Stands(3))


# ---- results ----


def values(*given: tuple[int, object]) -> list[Buffer]:
    """What the master adds to the buffers of a call."""
    frames: list[tuple[int, list[Buffer]]] = []
    for number, value in given:
        entry, large = CODEC.dumps_value(value)
        frames.append((number, [entry, *map(bytes, large)]))
    index = encode([(number, [""] * len(own)) for number, own in frames])
    return [index, *(frame for _, own in frames for frame in own)]


def test_a_result_in_the_arguments_becomes_its_value() -> None:
    """It is the same object at each place, beside large buffers of arguments and of values, a seed and a condition."""
    array, other = np.ones(LARGE_BYTES, np.uint8), np.zeros(LARGE_BYTES)
    first, second = result(TaskId(7)), result(TaskId(9))
    call, own = CODEC.dumps_call((array, [first, second]), {"again": Holder(result(TaskId(7)))}, "f")
    assert isinstance(own, ReferringBuffers)
    assert own.references == (ResultReference(7), ResultReference(9))
    entry = decode(with_extras(call, 5, b"condition"))
    args, kwargs = loads_call(entry, [*own, *values((7, [other, other + 1]), (9, "plain"))])
    np.testing.assert_array_equal(args[0], array)
    np.testing.assert_array_equal(args[1][0][1], other + 1)
    assert (args[1][1], extras_of(entry)[0]) == ("plain", 5)
    assert kwargs["again"].content is args[1][0]


def test_a_value_that_cannot_be_unpickled_names_its_task() -> None:
    """And no later call takes the values of this one."""
    call, own = CODEC.dumps_call((result(TaskId(7)),), {}, "f")
    broken = encode(as_pickle(b"broken"))
    with pytest.raises(pickle.UnpicklingError) as caught:
        loads_call(decode(call), [*own, encode([(7, [""])]), broken])
    assert caught.value.__notes__ == ["(mwpy.result: the result of task 7 cannot be unpickled here)"]
    with pytest.raises(UsageError, match=r"mwpy.result\(7\) stands for a value only in the arguments"):
        given_value(7)


@pytest.mark.parametrize("value", [1, "word", None, [1, {2}]])
def test_a_value_that_was_read_is_encoded_as_it_was(value: object) -> None:
    entry, _ = CODEC.dumps_value(value)
    assert encode(as_read(decode(entry))) == entry


def test_a_reference_needs_the_id_of_a_task() -> None:
    assert repr(result(TaskId(7))) == "mwpy.result(7)"
    with pytest.raises(UsageError, match=r"mwpy.result needs the id of a task, which mw.submit returned, not 'one'"):
        result("one")  # type: ignore[arg-type]
