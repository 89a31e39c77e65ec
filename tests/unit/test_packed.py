"""The calls of a portion are one piece of bytes, until some of them are needed alone."""

from __future__ import annotations

import pytest

from mwpy._values.groups import ARGUMENTS, CALLS, ROWS, PackedCalls
from mwpy._values.messagepack import decode, decode_plain, encode


@pytest.mark.parametrize("count", [1, 15, 16, 1000, 70_000])
def test_calls_are_encoded_one_after_the_other(count: int) -> None:
    """Whatever MessagePack writes before them: the first byte of a list depends on its length."""
    calls = PackedCalls.of(ROWS, [(7, "x")] * count)
    assert len(calls) == count
    assert calls.data == b"\x92\x07\xa1x" * count
    assert calls.size == len(calls.data)


def _packed(kind: int) -> PackedCalls:
    if kind == CALLS:
        return PackedCalls.of_encoded([encode([number]) for number in range(10)])
    return PackedCalls.of(kind, [(number,) for number in range(10)] if kind == ROWS else [*range(10)])


@pytest.mark.parametrize("kind", [ROWS, ARGUMENTS, CALLS])
def test_each_call_and_each_part_can_be_had_alone(kind: int) -> None:
    """Also if only the arguments are encoded, a call is the list of its arguments."""
    calls = _packed(kind)
    part = calls[2:7][1:]
    assert [decode(call) for call in part] == [[3], [4], [5], [6]]
    assert (part.kind, decode(part[0]), decode(part[-1])) == (kind, [3], [6])
    assert part.data == (b"\x03\x04\x05\x06" if kind == ARGUMENTS else b"\x91\x03\x91\x04\x91\x05\x91\x06")
    assert part.size == len(part.data)
    assert len(calls[5:3]) == 0
    with pytest.raises(IndexError):
        part[4]


def test_a_list_of_plain_values_is_read_without_lists_in_it() -> None:
    assert decode_plain(b"\x94\x01\xc0\xa1x\xc3") == [1, None, "x", True]
    assert decode_plain(b"\x92\xc4\x01x\xcb\x3f\xf0\0\0\0\0\0\0") == [b"x", 1.0]
    for other in (b"\x91\x90", b"\x91\x80", b"\x91\xd4\x01x", b"\x92\xc4\x01x\xa1x"):
        with pytest.raises(Exception, match="Expected"):
            decode_plain(other)
