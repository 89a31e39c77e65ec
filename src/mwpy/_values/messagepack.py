"""MessagePack, the format of headers and values: the only module that encodes and decodes it.

Numbers, texts, bytes, None, lists and dicts are written as such. Every other object is written as a pickle, in an
extension type; reading it gives a `Pickled`, which is unpickled when its value is requested. A call with a seed has an
extension type of its own, with the seed and the encoded call. So has a call with the condition under which its task is
tried again, a call whose task left a state in an earlier attempt, a call that refers to the results of other tasks, and
the failure of a task (see `_transport/error_texts.py`).

The names are msgspec's own methods, without functions around them, because they are called for every message and value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from mwpy._values.bounds import Buffer

T = TypeVar("T")

PICKLE = 1
"""The number of the extension type of a pickle."""

EXTENDED = 2
"""The number of the extension type of a call with a seed or a condition: both, each empty if there is none, and the
encoded call."""

FAILURE = 3
"""The number of the extension type of a failure."""

RESUMED = 5
"""The number of the extension type of a call whose task left a state in an earlier attempt: a number of buffers and the
encoded call. The other buffers of the call are the state of its task."""

SIZE_BYTES = 4
"""The size of a number before other bytes in an extension type."""

# 6 is a value with its digest in run databases of earlier versions.

REFERRING = 7
"""The number of the extension type of a call that refers to the results of other tasks: a number of buffers and the
encoded call. The next buffer of the call is an index of the results to which it refers: the id of the task and the
number of buffers of each. These buffers follow."""

STORED = -1
"""The kind of a `Pickled` that replaces a value in the run database. It is never encoded."""

LIST_PREFIX = b"\xdd"
"""The first byte of a list whose length follows in four bytes, the most significant first."""

LIST_OF_ONE = b"\x91"
"""How a list begins that has one entry."""

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises when the bytes are not MessagePack, or not of the expected type."""

NOT_ENCODABLE = (OverflowError, UnicodeEncodeError)
"""What encoding raises for an integer of more than 64 bits and for half a surrogate pair."""


PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""The types of plain values."""


class Pickled(Struct, gc=False):
    """A pickle that replaces the object until the object is requested, a failure, or a call or value with something."""

    kind: int
    """The number of the extension type."""
    pickle: Buffer


encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
"""Encode a value, or a struct as a dict of its fields."""

encode_sorted: Callable[[object], bytes] = msgspec.msgpack.Encoder(order="deterministic").encode
"""Encode a value; the order of a dict does not count."""

encode_json: Callable[[object], bytes] = msgspec.json.Encoder().encode
"""Write plain values as JSON. It takes a tenth of the time that the module `json` needs, and no
process of a launch imports that module."""

to_plain = msgspec.to_builtins
"""Turn a struct into a dict of plain values, with the names that it has in a file."""

from_plain = msgspec.convert
"""Make a struct of a given type from a dict of plain values."""

as_pickle: Callable[[bytes], object] = partial(msgspec.msgpack.Ext, PICKLE)
"""Mark bytes as a pickle, to be encoded and to be read as `Pickled`."""

as_extension: Callable[[int, bytes], object] = msgspec.msgpack.Ext
"""Mark bytes as an extension type, to be encoded and to be read as `Pickled` of this kind."""


def as_read(value: object) -> object:
    """Return what can be encoded as it was before `decode` read it: a value, or the extension type of a `Pickled`."""
    return as_extension(value.kind, bytes(value.pickle)) if isinstance(value, Pickled) else value


decode: Callable[[Buffer], object] = msgspec.msgpack.Decoder(ext_hook=Pickled).decode
"""Read one value."""

decode_calls: Callable[[Buffer], list[tuple[Any, ...]]] = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode
"""Read a list of calls with plain arguments."""

_decode_texts: Callable[[Buffer], list[Any]] = msgspec.msgpack.Decoder(list[bool | int | float | str | None]).decode
_decode_bytes: Callable[[Buffer], list[Any]] = msgspec.msgpack.Decoder(list[bool | int | float | bytes | None]).decode

Encoded = msgspec.Raw
"""The type of a value that is encoded already, as part of what is encoded."""

as_encoded: Callable[[bytes], object] = msgspec.Raw
"""Mark bytes as such a value."""


def _copied(kind: int, data: memoryview) -> Pickled:
    """A pickle of its own: a view would keep the whole list, and the garbage collector looks at each view."""
    return Pickled(kind, bytes(data))


decode_list: Callable[[Buffer], list[object]] = msgspec.msgpack.Decoder(list, ext_hook=_copied).decode
"""Read a list of values."""

split_list: Callable[[Buffer], Sequence[Buffer]] = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
"""Split a list into the bytes of its values, which stay encoded."""


def decode_plain(data: Buffer) -> list[Any]:
    """Read a list of plain values, among which are no texts or no bytes. It never takes much more memory than they do.

    Raises:
        Exception: one of `MALFORMED`, also if it has other values.
    """
    try:
        return _decode_texts(data)
    except msgspec.ValidationError:
        return _decode_bytes(data)


def encode_entries(values: Sequence[object]) -> bytes:
    """Encode values one after the other, with one call.

    Raises:
        Exception: one of `NOT_ENCODABLE`.
    """
    data, count = encode(values), len(values)
    return data[1 if count < 16 else 3 if count < 1 << 16 else 5 :]


def split_entries(data: bytes, count: int) -> list[bytes]:
    """Divide values that were encoded one after the other."""
    return [*map(bytes, split_list(LIST_PREFIX + count.to_bytes(4, "big") + data))]


SMALL_BYTES = 64 * 1024
"""A list of at most this size is not examined: whatever it contains, reading it takes 15 ms and 5 MB."""

_CONTAINERS = frozenset({*range(0x80, 0xA0), *range(0xDC, 0xE0)})
"""The first bytes of lists and dicts."""


def has_containers(data: Buffer) -> bool:
    """Whether a list of more than `SMALL_BYTES` has an entry that is a list or dict; this does not read the entries.

    A list of empty lists takes 70 times as much memory as its MessagePack, and all other values take a few times as
    much.

    Raises:
        Exception: one of `MALFORMED`.
    """
    return any(memoryview(entry)[0] in _CONTAINERS for entry in split_list(data))


def decoder(kind: type[T]) -> Callable[[Buffer], T]:
    """Make a function that reads structs of one class; it raises one of `MALFORMED` for everything else."""
    return msgspec.msgpack.Decoder(kind).decode


def json_decoder(kind: type[T]) -> Callable[[Buffer | str], T]:
    """Make a function that reads one type from JSON; it raises one of `MALFORMED` for everything else."""
    return msgspec.json.Decoder(kind).decode
