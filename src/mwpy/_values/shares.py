"""Shared objects and their handles, and the keys of tasks, which are digests of plain values.

Shared objects: `mw.share` encodes an object once, and a handle stands for it in the arguments of tasks.

A shared object is known by the digest of its content. It lives in the master as long as a handle, a task or a function
by value refers to it: plain references count its uses. Agents fetch it in parts, see `_core/agent/traffic.py`.

Large read-only buffers of a result to which a task refers are shared objects, too. The slave that made them has chosen
their names at random: a digest would find equal outputs, but master and agents would have to compute it to believe it.
A name that exists is refused, so no slave can replace the output of another one. Buffers that can change are not
shared, because each task gets its own copy of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, repeat
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from msgspec import Struct, field

from mwpy._values.bounds import Buffer
from mwpy._values.earlier import KEY_BYTES
from mwpy._values.errors import SharedObjectMissing, UsageError
from mwpy._values.groups import PackedCalls
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, decode, encode
from mwpy._values.messages import Share
from mwpy._values.task import Reference, ReferringBuffers

# Digests of plain values: numbers, texts, bytes and None.
#
# They are encoded as MessagePack, which has one encoding for each of them: 1, 1.0 and True have different ones, and no
# encoding is the beginning of another one. An encoding of at most `DIGEST_BYTES` is the digest itself, filled up with
# zeros. This takes a tenth of the time of hashing it, and most arguments of tasks in great numbers are this short.
#
# A nan can have many bit patterns. All of them count as one.


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


# How the content of a shared object is laid out, and its handle.


SIZE_FORMAT = "Q"
"""How `struct` writes the number of the parts of a content and the size of each, at the beginning of the content."""

SIZE_BYTES = 8

LINE_BYTES = 64
"""Each part of a content begins at a multiple of this, the size of a cache line."""


def places_of(sizes: Sequence[int]) -> list[int]:
    """Return where the parts of a content begin that have these sizes, and the size of the content."""
    rounded = [-(-size // LINE_BYTES) * LINE_BYTES for size in (SIZE_BYTES * (1 + len(sizes)), *sizes)]
    return [*accumulate(rounded)]


class SharedObject(Struct, eq=False, weakref=True):
    """An encoded object that this process keeps. Its content never changes."""

    share: Share
    """How messages name it."""
    content: Buffer
    loaded: list[object] = field(default_factory=list)
    """The object itself, if it is unpickled; else empty."""
    reason: str = ""
    """Why there is no content; empty if there is."""
    structure: bytes = b""
    """The structural digest of the object; empty as long as no run needs it."""


class Shared(Reference):
    """The handle of a shared object. In a task, the object itself takes its place.

    Args:
        shared: what it stands for.
        load: the function that gives the object to a task, from its digest.
    """

    __slots__ = ("_load", "shared")

    def __init__(self, shared: SharedObject, load: Callable[[str], object]) -> None:
        self.shared = shared
        self._load = load

    def rebuilt_by(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what loads the object in a task."""
        return self._load, (self.shared.share.digest,)

    def value(self) -> object:
        """Return the object itself.

        Raises:
            Exception: any error of unpickling.
        """
        return self._load(self.shared.share.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shared) and other.shared is self.shared

    def __hash__(self) -> int:
        return hash(self.shared)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self!r} has no attribute {name!r}: only a task gets the object itself")

    def _refuse(self, *_: object) -> NoReturn:
        raise UsageError(
            f"{self!r} is not the object itself: pass the handle to a task, or use the object that you shared"
        )

    __len__ = __iter__ = __getitem__ = __setitem__ = __contains__ = __call__ = __array__ = _refuse
    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = __lt__ = __gt__ = _refuse

    def __repr__(self) -> str:
        return f"<handle of a shared object of {self.shared.share.size} bytes>"


def shares_in(buffers: Iterable[Sequence[Buffer]]) -> Iterator[SharedObject]:
    """The shared objects that calls need, whose large buffers are given."""
    for own in buffers:
        if isinstance(own, ReferringBuffers):
            yield from (each.shared for each in own.references if isinstance(each, Shared))
            yield from own.shared.values()


KNOWN: WeakValueDictionary[str, SharedObject] = WeakValueDictionary()
"""The shared objects of this process, by digest. It is global because an unpickled reference has no other way to find
its object, and because all masters of a process share what is equal."""


def known(digest: str) -> SharedObject:
    """Return a shared object of this process.

    Raises:
        SharedObjectMissing: it is not in this process.
    """
    shared = KNOWN.get(digest)
    if shared is None:
        raise SharedObjectMissing("a shared object is not in this process any more: share it again")
    if shared.reason:
        raise SharedObjectMissing(shared.reason)
    return shared


# The keys of tasks: equal calls of a task algorithm have the same key.
#
# A call with plain arguments alone has a key that follows from its encoding, so it costs almost nothing. MessagePack
# has one encoding for each plain value. An encoding that fits into a key is the key itself, filled up with zeros. The
# keys of many calls are made together, one after the other in one piece of bytes: no line of Python runs for each of
# them.


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
