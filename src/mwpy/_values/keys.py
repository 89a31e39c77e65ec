"""The keys of tasks: equal calls of a task algorithm have the same key.

A call with plain arguments alone has a key that follows from its encoding, so it costs almost nothing. MessagePack has
one encoding for each plain value. An encoding that fits into a key is the key itself, filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from mwpy._values.earlier import KEY_BYTES
from mwpy._values.messagepack import decode, encode

__all__ = ["NO_KEY", "combined_key", "plain_keys"]

NO_KEY = bytes(KEY_BYTES)
"""The key of a task that is never the same as another one. No other key is zero."""

_NAN = float("nan")


def plain_keys(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the keys of encoded calls with plain arguments alone. All nan are the same."""
    together = b"".join(payloads)
    if b"\xcb\x7f" in together or b"\xcb\xff" in together:  # there may be a nan
        payloads = [*map(_with_one_nan, payloads)]
    return [
        payload.ljust(KEY_BYTES, b"\0")
        if len(payload) <= KEY_BYTES
        else blake2b(payload, digest_size=KEY_BYTES).digest()
        for payload in payloads
    ]


def _with_one_nan(payload: bytes) -> bytes:
    call: Any = decode(payload)
    return encode([_NAN if value != value else value for value in call])


def combined_key(kind: bytes, *parts: bytes) -> bytes:
    """Return a key that depends on some bytes. All parts but the last must have a fixed size."""
    return blake2b(b"".join((kind, b":", *parts)), digest_size=KEY_BYTES).digest()
