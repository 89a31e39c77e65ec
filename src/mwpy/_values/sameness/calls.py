"""Digests of calls: whether a task has the same arguments as a task of an earlier run.

Arguments count by value. Objects of the user's own classes count with the code of their class, because a task can call
its methods; functions count by their code. The digest of plain arguments is that of their encoding, which a portion
has at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any

from attrs import define

from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, encode
from mwpy._values.packed import PackedCalls
from mwpy._values.references import ResultReference
from mwpy._values.sameness import homes
from mwpy._values.sameness.code import NotComparable, code_of, library_name, reason_of
from mwpy._values.sameness.plain import DIGEST_BYTES, hash_of, may_have_nan, short_digest, without_nan
from mwpy._values.sameness.structure import NoStructure, digest_of, full_name
from mwpy._values.shares import Shared

__all__ = ["NO_DIGEST", "Resolve", "call_digest", "call_digests", "portion_digests", "value_digest"]

NO_DIGEST = bytes(DIGEST_BYTES)
"""What `call_digests` has for a call that cannot be compared. No call has this digest."""

Resolve = Callable[[int], bytes]
"""Returns what identifies a task, from its id: in another run, the task with the same result."""


def call_digest(args: Sequence[Any], kwargs: dict[str, Any], resolve: Resolve | None = None) -> bytes:
    """Return the digest of the arguments of a call, `DIGEST_BYTES` long.

    Args:
        args, kwargs: the arguments. They must not change during the call.
        resolve: what identifies the tasks to which `mwpy.result` refers in them.

    Raises:
        NotComparable: an argument has no structure that could be compared; the text says which and why.
    """
    if not kwargs and PLAIN.issuperset(map(type, args)):
        try:
            entry = encode(args)
            return short_digest(encode(without_nan(args)) if may_have_nan(entry) else entry)
        except NOT_ENCODABLE:
            pass
    return _digest((tuple(args), kwargs), resolve)


def call_digests(calls: Sequence[Sequence[Any]], resolve: Resolve | None = None) -> bytes:
    """Return the digests of calls with positional arguments, joined.

    Args:
        calls: the arguments of each call.

    Returns:
        `DIGEST_BYTES` for each call: what `call_digest` returns, or `NO_DIGEST` if the call cannot be compared.
    """
    if PLAIN.issuperset(map(type, chain.from_iterable(calls))):
        try:
            entries = [*map(encode, calls)]
        except NOT_ENCODABLE:
            pass
        else:
            if not may_have_nan(b"".join(entries)):
                return _short_digests(entries)
    return b"".join([_digest_or_none(call, resolve) for call in calls])


def portion_digests(packed: PackedCalls) -> bytes:
    """Return what `call_digests` returns, for calls that are encoded already."""
    if may_have_nan(packed.data):
        from mwpy._values.messagepack import decode

        return call_digests([decode(call) for call in packed])  # type: ignore[misc]  # each is a list
    return _short_digests([*packed])


def _short_digests(entries: Sequence[bytes]) -> bytes:
    """Return what `short_digest` returns for each entry, joined. This takes half the time of calling it."""
    return b"".join(
        [
            entry.ljust(DIGEST_BYTES, b"\0")
            if len(entry) <= DIGEST_BYTES
            else blake2b(entry, digest_size=DIGEST_BYTES).digest()
            for entry in entries
        ]
    )


def _digest_or_none(call: Sequence[Any], resolve: Resolve | None) -> bytes:
    try:
        return call_digest(call, {}, resolve)
    except NotComparable:
        return NO_DIGEST


def value_digest(value: object) -> bytes:
    """Return the digest of a value that the user gives as the key of a task.

    Raises:
        NotComparable: as `call_digest`.
    """
    return _digest(value, None)


def _digest(value: object, resolve: Resolve | None) -> bytes:
    try:
        return digest_of(value, _Named(resolve))
    except NotComparable:
        raise
    except Exception as error:  # also one of the user's own methods
        raise NotComparable(reason_of(error)) from error


@define(eq=False)
class _Named:
    """Says how classes, functions and references count in arguments."""

    resolve: Resolve | None

    def __call__(self, thing: Any) -> bytes | None:
        if isinstance(thing, ResultReference):
            if self.resolve is None:
                raise NoStructure(f"{thing!r} has a meaning only in the arguments of a task")
            return hash_of(b"result", self.resolve(thing.task_id))
        if isinstance(thing, Shared):
            return hash_of(b"shared", thing.shared.share.digest.encode())
        if isinstance(thing, ModuleType):
            raise NoStructure(f"the module {thing.__name__} is no value")
        if isinstance(thing, type | FunctionType):
            name = thing.__globals__.get("__name__") if isinstance(thing, FunctionType) else thing.__module__
            if homes.home_of(str(name)) == homes.OWN or (isinstance(thing, FunctionType) and thing.__closure__):
                return code_of(thing).digest
            return hash_of(b"library", full_name(thing).encode())
        name = library_name(thing)
        return None if name is None else hash_of(b"library", name.encode())
