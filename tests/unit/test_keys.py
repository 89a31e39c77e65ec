"""Unit tests of the keys of tasks."""

from __future__ import annotations

import struct

from mwpy._values.earlier import KEY_BYTES
from mwpy._values.groups import ARGUMENTS, ROWS, PackedCalls
from mwpy._values.messagepack import encode
from mwpy._values.shares import NO_KEY, combined_key, plain_keys

LONG = "a text with more than sixteen characters"


def _divided(keys: bytes) -> list[bytes]:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def test_equal_plain_calls_have_the_same_key_and_others_have_not() -> None:
    calls = [(1,), (1.0,), (True,), ("1",), (b"1",), (None,), (), (1, 1), (0.0,), (-0.0,), (LONG,), (LONG + "!",)]
    keys = plain_keys([encode(call) for call in calls])
    assert len({*_divided(keys), NO_KEY}) == len(calls) + 1
    assert keys == plain_keys([encode(call) for call in calls])
    assert len(keys) == KEY_BYTES * len(calls)


def test_short_calls_have_the_same_keys_alone_and_among_long_ones() -> None:
    short, long = encode((1,)), encode((LONG,))
    assert plain_keys([short, short]) == 2 * plain_keys([short])
    assert plain_keys([short, long]) == plain_keys([short]) + plain_keys([long])


def test_the_calls_of_a_portion_have_the_keys_that_they_have_singly() -> None:
    numbers, rows = PackedCalls.of(ARGUMENTS, [1, 2.5]), PackedCalls.of(ROWS, [(1,), (2.5,)])
    assert plain_keys(numbers) == plain_keys(rows) == plain_keys([encode((1,)), encode((2.5,))])


def test_all_nan_are_the_same() -> None:
    other = struct.unpack(">d", b"\xff\xf8\x00\x00\x00\x00\x00\x01")[0]
    assert other != other
    one, two, text = _divided(plain_keys([encode((float("nan"), 1)), encode((other, 1)), encode(("\x7f", 2))]))
    assert one == two != text


def test_a_combined_key_depends_on_its_kind_and_on_each_part() -> None:
    keys = {combined_key(b"seed", b"a", b"b"), combined_key(b"key", b"a", b"b"), combined_key(b"seed", b"a", b"c")}
    assert len(keys) == 3
    assert {*map(len, keys)} == {KEY_BYTES}
