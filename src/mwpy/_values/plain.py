"""Digests of plain values: numbers, texts, bytes and None.

They are encoded as MessagePack, which has one encoding for each of them: 1, 1.0 and True have different ones, and no
encoding is the beginning of another one. An encoding of at most `DIGEST_BYTES` is the digest itself, filled up with
zeros. This takes a tenth of the time of hashing it, and most arguments of tasks in great numbers are this short.

A nan can have many bit patterns. All of them count as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, encode

DIGEST_BYTES = 16
"""The size of a digest. Two of 10^15 different values have the same digest with a probability of 10^-9."""

_NAN = float("nan")


def hash_of(kind: bytes, content: bytes = b"") -> bytes:
    """Return the digest of content of a kind."""
    return blake2b(kind + b":" + content, digest_size=DIGEST_BYTES).digest()


def short_digest(entry: bytes) -> bytes:
    """Return the digest of an encoded plain value, or of an encoded list of them."""
    if len(entry) <= DIGEST_BYTES:
        return entry.ljust(DIGEST_BYTES, b"\0")
    return blake2b(entry, digest_size=DIGEST_BYTES).digest()


def plain_digest(value: Any) -> bytes:
    """Return the digest of a value whose type is one of `PLAIN`."""
    if value != value:
        value = _NAN
    try:
        return short_digest(encode(value))
    except NOT_ENCODABLE:
        return _unusual(value)


def _unusual(value: Any) -> bytes:
    """Return the digest of a plain value that MessagePack cannot encode."""
    if type(value) is int:
        return hash_of(b"int", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    return hash_of(b"str", value.encode(errors="surrogatepass"))


def joined_digest(kind: bytes, values: Sequence[Any]) -> bytes | None:
    """Return the digest of a sequence of plain values; None if one of them is not plain, or cannot be encoded."""
    if not PLAIN.issuperset(map(type, values)):
        return None
    try:
        entry = encode(values)
        return hash_of(kind, encode(without_nan(values)) if may_have_nan(entry) else entry)
    except NOT_ENCODABLE:
        return None


def may_have_nan(encoded: bytes) -> bool:
    """Whether encoded plain values can have a nan among them. It is always true if they have one."""
    return b"\xcb\x7f" in encoded or b"\xcb\xff" in encoded


def without_nan(values: Sequence[Any]) -> list[Any]:
    """Return plain values with one kind of nan."""
    return [_NAN if value != value else value for value in values]
