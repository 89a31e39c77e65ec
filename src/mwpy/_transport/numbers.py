"""Numbers of NumPy, encoded without a pickle: the type, and the bytes of the number.

NumPy pickles a number as a call with the description of its type. This takes five microseconds at each end, and this
encoding less than one. Items of a map over an array and the values of many functions are such numbers.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from mwpy._values.ids import Buffer
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, as_number, as_numbers, encode

__all__ = ["call_with_numbers", "encoded_number", "number_in"]

NAMES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
"""The types that are encoded here, as NumPy names them. All others are pickled."""

_TYPE_BYTES = 4
"""The size of the name of a type, with zeros at its end. The name contains the order of the bytes."""

_types: dict[type, bytes] = {}
"""The encoded name of each type, after NumPy was needed for the first time."""
_dtypes: dict[bytes, Any] = {}
"""The types by their encoded names."""


def encoded_number(value: object) -> bytes | None:
    """Encode a number of NumPy. Return None for everything else."""
    name = _types.get(type(value))
    if name is None:
        if _types or type(value).__module__ != "numpy":
            return None
        _learn_types(sys.modules["numpy"])
        name = _types.get(type(value))
    return None if name is None else name + value.tobytes()  # type: ignore[attr-defined]


def number_in(data: Buffer) -> Any:
    """Return the number that `encoded_number` encoded.

    Raises:
        ImportError: NumPy is not installed here.
        ValueError: these are not the bytes of a number; the sender's fault.
    """
    numpy: Any = importlib.import_module("numpy")
    if not _dtypes:
        _learn_types(numpy)
    data = bytes(data)  # with msgspec 0.19, a slice of a memoryview can go beyond its end
    name = data[:_TYPE_BYTES]
    dtype = _dtypes.get(name)
    if dtype is None or len(data) != _TYPE_BYTES + dtype.itemsize:
        raise ValueError("the bytes of a number of NumPy are damaged, or of a machine with another order of bytes")
    return numpy.frombuffer(data, dtype, offset=_TYPE_BYTES)[0]


def call_with_numbers(args: tuple[Any, ...]) -> bytes:
    """Encode a call with plain arguments and numbers of NumPy. Return nothing if there are others."""
    found: list[object] = []
    for value in args:
        if type(value) not in PLAIN:
            number = encoded_number(value)
            if number is None:
                return b""
            found.append(as_number(number))
        else:
            found.append(value)
    try:
        return encode(as_numbers(encode(found)))
    except NOT_ENCODABLE:
        return b""


def _learn_types(numpy: Any) -> None:
    for name in map(numpy.dtype, NAMES):
        encoded = name.str.encode().ljust(_TYPE_BYTES, b"\0")
        _dtypes[encoded] = name
        _types[name.type] = encoded
