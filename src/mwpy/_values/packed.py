"""The encoded calls of a portion, as one piece of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from msgspec import Struct

from mwpy._values.messagepack import LIST_OF_ONE, encode_entries, split_entries

__all__ = ["ARGUMENTS", "CALLS", "ROWS", "PackedCalls"]

ROWS = 1
"""Each entry is the list of a call's arguments."""

ARGUMENTS = 2
"""Each entry is the only argument of a call."""

CALLS = 3
"""Each entry is a call as `Codec.dumps_call` encodes it: the list of its arguments, or a pickle."""


class _Whole(Struct, eq=False):
    """What all parts of a portion share."""

    data: bytes
    count: int
    kind: int
    entries: Sequence[bytes] | None = None
    """The calls one by one, after they were needed for the first time."""

    def divided(self) -> Sequence[bytes]:
        """Each entry of `data`."""
        if self.entries is None:
            self.entries = split_entries(self.data, self.count)
        return self.entries


class PackedCalls(Sequence[bytes]):
    """Encoded calls that were encoded together. A slice is another `PackedCalls`, and costs the same for any size.

    The calls are divided only if a part of them is needed. If each call has one plain argument, the arguments alone are
    encoded. So the slave reads no list for each call.

    Args:
        whole: what it shares with its parts.
        start: the first of these calls.
        stop: the end of them.
    """

    __slots__ = ("_start", "_stop", "_whole")

    def __init__(self, whole: _Whole, start: int, stop: int) -> None:
        self._whole, self._start, self._stop = whole, start, stop

    @classmethod
    def from_data(cls, kind: int, data: bytes, count: int) -> PackedCalls:
        """Make them from what `data` returned."""
        return cls(_Whole(data, count, kind), 0, count)

    @classmethod
    def of(cls, kind: int, calls: Sequence[object]) -> PackedCalls:
        """Encode calls with plain arguments.

        Args:
            kind: what the calls are given as: `ROWS` or `ARGUMENTS`.

        Raises:
            Exception: one of `NOT_ENCODABLE`.
        """
        return cls.from_data(kind, encode_entries(calls), len(calls))

    @classmethod
    def of_encoded(cls, calls: Sequence[bytes]) -> PackedCalls:
        """Put calls together that are encoded one by one, because their arguments are not plain."""
        return cls.from_data(CALLS, b"".join(calls), len(calls))

    @property
    def kind(self) -> int:
        """What its entries are: `ROWS`, `ARGUMENTS` or `CALLS`."""
        return self._whole.kind

    @property
    def data(self) -> bytes:
        """The entries, one after the other."""
        return self._whole.data if len(self) == self._whole.count else b"".join(self._entries)

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return len(self._whole.data) if len(self) == self._whole.count else sum(map(len, self._entries))

    @property
    def _entries(self) -> Sequence[bytes]:
        return self._whole.divided()[self._start : self._stop]

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> PackedCalls: ...

    def __getitem__(self, at: int | slice) -> bytes | PackedCalls:
        if isinstance(at, int):
            return self._call(self._whole.divided()[range(self._start, self._stop)[at]])
        start, stop, _ = at.indices(len(self))
        return PackedCalls(self._whole, self._start + start, self._start + max(start, stop))

    def __iter__(self) -> Iterator[bytes]:
        return map(LIST_OF_ONE.__add__, self._entries) if self.kind == ARGUMENTS else iter(self._entries)

    def _call(self, entry: bytes) -> bytes:
        return LIST_OF_ONE + entry if self.kind == ARGUMENTS else entry
