"""Digests of calls: whether a task has the same arguments as a task of an earlier run.

Arguments count by value. Objects of the user's own classes count with the code of their class, because a task can call
its methods; functions count by their code. The digest of plain arguments follows from their encoding, as the keys in
`_values/keys.py` do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from msgspec import Struct

from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, encode
from mwpy._values.plain import hash_of, may_have_nan, short_digest, without_nan
from mwpy._values.references import ResultReference
from mwpy._values.sameness import homes
from mwpy._values.sameness.code import NotComparable, code_of
from mwpy._values.sameness.structure import NoStructure, digest_of, full_name, reason_of
from mwpy._values.sameness.things import library_name, module_of
from mwpy._values.shares import Shared

__all__ = ["Resolve", "call_digest", "value_digest"]

LIBRARY_KEPT = 10_000
"""How many functions and classes of libraries have their digests kept."""

_LIBRARY: dict[int, tuple[object, bytes]] = {}
"""By the identity of functions and classes, which are kept, too."""

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
    digests = [_argument_digest(each, resolve) for each in args]
    digests.append(_argument_digest(kwargs, resolve))
    return hash_of(b"call", b"".join(digests))


def value_digest(value: object) -> bytes:
    """Return the digest of a value that the user gives as the key of a task. It replaces that of the arguments.

    Raises:
        NotComparable: as `call_digest`.
    """
    return hash_of(b"key", _argument_digest(value, None))


def _argument_digest(value: object, resolve: Resolve | None) -> bytes:
    """Return the digest of one argument.

    Raises:
        NotComparable: as `call_digest`.
    """
    try:
        return digest_of(value, _Named(resolve))
    except Exception as error:  # also one of the user's own methods
        raise NotComparable(reason_of(error)) from error


class _Named(Struct, eq=False):
    """Says how classes, functions and references count in arguments."""

    resolve: Resolve | None

    def __call__(self, thing: Any) -> bytes | None:
        if isinstance(thing, ResultReference):
            if self.resolve is None:
                raise NoStructure(f"{thing!r} has a meaning only in the arguments of a task")
            return hash_of(b"result", self.resolve(thing.task_id))
        if isinstance(thing, Shared):
            return self._shared(thing)
        if isinstance(thing, ModuleType):
            raise NoStructure(f"the module {thing.__name__} is no value")
        if isinstance(thing, type | FunctionType):
            known = _LIBRARY.get(id(thing))
            return self._code(thing) if known is None else known[1]
        name = library_name(thing)
        return None if name is None else hash_of(b"library", name.encode())

    def _code(self, thing: Any) -> bytes:
        """Return the digest of a function or class: by its name if it is one of a library, else by its code."""
        closure = isinstance(thing, FunctionType) and thing.__closure__
        if homes.home_of(module_of(thing)) == homes.OWN or closure:
            return code_of(thing).digest
        digest = hash_of(b"library", full_name(thing).encode())
        if len(_LIBRARY) >= LIBRARY_KEPT:
            _LIBRARY.clear()
        _LIBRARY[id(thing)] = thing, digest
        return digest

    def _shared(self, handle: Shared) -> bytes:
        """Return the digest of a shared object: that of its value, because its pickle can differ in another run."""
        shared = handle.shared
        if not shared.structure:
            shared.structure = hash_of(b"shared", digest_of(handle.value(), self))
        return shared.structure
