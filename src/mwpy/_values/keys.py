"""The keys of tasks: equal calls of a task algorithm have the same key.

A call with plain arguments alone has a key that follows from its encoding, so it costs almost nothing. MessagePack has
one encoding for each plain value. An encoding that fits into a key is the key itself, filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mwpy._values.earlier import KEY_BYTES
from mwpy._values.messagepack import decode, encode
from mwpy._values.plain import hash_of, may_have_nan, short_digest, without_nan

__all__ = ["NO_KEY", "combined_key", "plain_keys"]

NO_KEY = bytes(KEY_BYTES)
"""The key of a task that is never the same as another one. No other key is zero."""


def plain_keys(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the keys of encoded calls with plain arguments alone. All nan are the same."""
    if may_have_nan(b"".join(payloads)):
        calls: list[Any] = [*map(decode, payloads)]
        payloads = [encode(without_nan(call)) for call in calls]
    return [*map(short_digest, payloads)]


def combined_key(kind: bytes, *parts: bytes) -> bytes:
    """Return a key that depends on some bytes. All parts but the last must have a fixed size."""
    return hash_of(kind, b"".join(parts))
