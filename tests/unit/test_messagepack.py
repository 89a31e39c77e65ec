"""MessagePack: values are read as they were written, and all other bytes raise one of the listed errors."""

from __future__ import annotations

import pytest
from msgspec import Struct

from mwpy._values.messagepack import (
    LIST_PREFIX,
    MALFORMED,
    NOT_ENCODABLE,
    Pickled,
    as_pickle,
    decode,
    decode_list,
    decoder,
    encode,
    split_list,
)


class _Point(Struct):
    x: int
    y: float = 0.5


@pytest.mark.parametrize("value", [None, True, -(2**63), 2**64 - 1, 0.1, "ä", b"\0", [1, [2]], {"a": 1}])
def test_a_plain_value_is_read_as_it_was_written(value: object) -> None:
    assert decode(encode(value)) == value


def test_a_pickle_is_read_as_its_bytes() -> None:
    """This holds for single values and for lists. Nothing is unpickled."""
    read = decode(encode(as_pickle(b"bytes")))
    number, in_list = decode_list(encode([1, as_pickle(b"bytes")]))
    for each in (read, in_list):
        assert isinstance(each, Pickled)
        assert (each.kind, bytes(each.pickle)) == (1, b"bytes")  # older versions of msgspec give a view
    assert number == 1


def test_a_list_is_split_into_its_encoded_values() -> None:
    """The result is the same as with `decode_list` for each value."""
    values: list[object] = [1, "two", as_pickle(b"three"), None]
    parts = [encode(value) for value in values]
    written = b"".join((LIST_PREFIX, len(values).to_bytes(4, "big"), *parts))
    assert [bytes(part) for part in split_list(written)] == parts
    read = decode_list(written)
    assert [bytes(each.pickle) if isinstance(each, Pickled) else each for each in read] == [1, "two", b"three", None]


def test_a_struct_is_a_dict_of_its_fields() -> None:
    """A missing field gets its default, and an unknown field is ignored."""
    assert decode(encode(_Point(1))) == {"x": 1, "y": 0.5}
    assert decoder(_Point)(encode({"x": 2, "z": 3})) == _Point(2)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x81\xa1x", b"\x81\xa1x\xa1a", b"\x80", b"\x81\xa1\xff\x01", b"\x81\xa1z" + b"\x91" * 100_000],
    ids=["empty", "cut off", "a text for a number", "a field missing", "not UTF-8", "too deep"],
)
def test_what_is_no_such_struct_is_malformed(data: bytes) -> None:
    with pytest.raises(MALFORMED):
        decoder(_Point)(data)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800"])
def test_what_messagepack_cannot_hold_is_not_encodable(value: object) -> None:
    with pytest.raises(NOT_ENCODABLE):
        encode(value)
