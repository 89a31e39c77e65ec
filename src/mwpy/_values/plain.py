"""Small things of all layers: digests of plain values, phrases of messages, parsing, staleness.

Digests of plain values: numbers, texts, bytes and None.

They are encoded as MessagePack, which has one encoding for each of them: 1, 1.0 and True have different ones, and no
encoding is the beginning of another one. An encoding of at most `DIGEST_BYTES` is the digest itself, filled up with
zeros. This takes a tenth of the time of hashing it, and most arguments of tasks in great numbers are this short.

A nan can have many bit patterns. All of them count as one.
"""

from __future__ import annotations

import ast
import gc
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
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


# Phrases about numbers and lists, which several parts write in the same way.


NAMED = 5
"""How many members of a long list are named."""


ASK_OWNER = "run this as the user who owns the file, or ask that user for the right to read it"
"""What to do about a file that this user may not read."""


def counted(count: int, noun: str) -> str:
    """Return a number and its noun: `1 job`, `2 jobs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_of(names: Iterable[str], count: int) -> str:
    """Return the names of `count` things; of a long list, the first few and how many more there are."""
    more = f" and {count - NAMED} more" if count > NAMED else ""
    return ", ".join(islice(names, NAMED)) + more


def amount(count: int) -> str:
    """Return a number of bytes as a text for people."""
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


_AMOUNT = r"(\d+(?:\.\d+)?) ?(?:([KMGT])i?B?|B|bytes)?"  # compiled when it is used, because few processes use it


def bytes_in(text: str) -> int:
    """Return the number of bytes that a text such as `4000000000`, `512 MB` or `4 GB` names. A KB has 1024 bytes.

    Raises:
        ValueError: the text does not name a number of bytes.
    """
    found = re.fullmatch(_AMOUNT, text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError("must be a number of bytes, such as 4000000000, 512 MB or 4 GB")
    number, unit = found.groups()
    return int(float(number) * 1024 ** " KMGT".index((unit or " ").upper()))


# When a resource file counts as stale. Readers, overseers and the doctor share this one rule.


STALE_INTERVALS = 3
"""A file that missed this many updates was left by a master that is dead or stuck."""


def is_stale(age_s: float, interval_s: float) -> bool:
    """Whether a file of this age is stale, if its master should write it once per interval."""
    return age_s > STALE_INTERVALS * interval_s


# How Python sources are parsed while other threads parse, too.


_COMPILING = threading.RLock()


@contextmanager
def compiling() -> Iterator[None]:
    """Compile without warnings, which the source gave when it was loaded, and without garbage collection.

    Python 3.11 counts the depth of all syntax trees in one place. A finalizer that runs while a tree is built lets
    other threads run. If one of them builds a tree, too, Python raises SystemError, "AST constructor recursion depth
    mismatch" (python/cpython issue 106905). Without garbage collection no finalizer runs. The filters of warnings and
    the collector belong to the process, therefore only one thread at a time changes them.
    """
    with _COMPILING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def parsed(source: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Parse a source.

    Raises:
        SyntaxError, ValueError, RecursionError: it cannot be parsed.
    """
    with compiling():
        return ast.parse(source, name)
