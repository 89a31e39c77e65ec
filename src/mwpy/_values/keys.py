"""The keys of tasks: equal calls of a task algorithm have the same key.

A call with plain arguments alone has a key that follows from its encoding, so it costs almost nothing. MessagePack has
one encoding for each plain value. An encoding that fits into a key is the key itself, filled up with zeros. The keys of
many calls are made together, one after the other in one piece of bytes: no line of Python runs for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from mwpy._values.earlier import KEY_BYTES
from mwpy._values.messagepack import decode, encode
from mwpy._values.packed import PackedCalls
from mwpy._values.plain import hash_of, may_have_nan, short_digest, without_nan

__all__ = ["NO_KEY", "PLAIN_CALLS", "combined_key", "plain_keys"]

NO_KEY = bytes(KEY_BYTES)
"""The key of a task that is never the same as another one. No other key is zero."""

PLAIN_CALLS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
"""The first bytes of encoded calls with plain arguments alone: those of a list."""


def plain_keys(payloads: Sequence[bytes]) -> bytes:
    """Return the keys of encoded calls with plain arguments alone, one after the other. All nan are the same."""
    encoded = payloads.data if isinstance(payloads, PackedCalls) else b"".join(payloads)
    if may_have_nan(encoded):
        payloads = [_with_one_nan(payload) if may_have_nan(payload) else payload for payload in payloads]
    keys = b"".join(map(bytes.ljust, payloads, repeat(KEY_BYTES), repeat(b"\0")))
    return keys if len(keys) == KEY_BYTES * len(payloads) else b"".join(map(short_digest, payloads))


def _with_one_nan(payload: bytes) -> bytes:
    call: Any = decode(payload)
    return encode(without_nan(call))


def combined_key(kind: bytes, *parts: bytes) -> bytes:
    """Return a key that depends on some bytes. All parts but the last must have a fixed size."""
    return hash_of(kind, b"".join(parts))
