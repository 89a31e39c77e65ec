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

from mwpy._transport.codec import OUT_OF_BAND_BYTES, Codec, loads_call
from mwpy._values.errors import ArgumentNotPicklable, UsageError
from mwpy._values.messagepack import decode
from mwpy._values.references import Reference, ReferringBuffers

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
    array = np.ones(OUT_OF_BAND_BYTES, np.uint8)
    _, buffers = CODEC.dumps_call((Stands(2), array, lambda: 1), {}, "f")
    array[:] = 0
    assert isinstance(buffers, ReferringBuffers)
    assert buffers.references == (Stands(2),)
    assert [*map(bytes, buffers)] == [b"\1" * OUT_OF_BAND_BYTES]


@pytest.mark.parametrize("args", [(1, "word"), ([1],), (np.ones(OUT_OF_BAND_BYTES),)])
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
