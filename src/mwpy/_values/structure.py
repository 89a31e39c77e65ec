"""Structural digests: a short number of bytes that says whether two values are the same.

`digest_of` walks over a value. Its result depends only on what the value consists of. It does not depend on the
process, on the hash seed, on the order of insertion into dicts and sets, on which parts are the same object, or on how
a pickle would look. The contract:

- Types count: 1, 1.0 and True have different digests, and so have a list and a tuple, a set and a frozenset.
- All nan are the same. 0.0 and -0.0 are different, because a calculation with them can differ.
- The order of a dict does not count; the order of an `OrderedDict` does.
- A NumPy array counts by its dtype, its shape and its elements. Its place and order in memory do not count.
- Any other object counts by its class and by its state: what `__reduce_ex__(4)` or `copyreg` says. Thus dataclasses,
  attrs and msgspec classes, exceptions (type, arguments, attributes) and most others are covered. This module has the
  classes for which Python says different things in different versions.
- Shared parts count as if each had its own copy. A reference back to an object that contains it counts by how many
  levels it leads up. So two cyclic values are the same if walking over both gives the same steps.
- Classes, functions, modules and references are *named*: the caller of the walk says how they count. By default, a
  class counts by its module and qualified name, and so does a function that can be imported under its name.

A value without such a structure raises `NoStructure`: open files, locks.

The walk uses a stack of generators instead of recursion, so a value may be nested to any depth. A generator yields the
parts of its value, gets their digests, and returns the digest of the value.
"""

from __future__ import annotations

import copyreg
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from enum import Enum
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from itertools import islice
from logging import Logger
from math import isnan
from pathlib import PurePath
from struct import pack
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from attrs import Factory, define
from msgspec import Struct

from mwpy._values.bounds import shortened
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, encode_sorted
from mwpy._values.shares import DIGEST_BYTES, Shared, hash_of, joined_digest, may_have_nan, plain_digest
from mwpy._values.task import Reference

Parts = Sequence[Any]

_KINDS: tuple[tuple[type, Callable[[Any], Parts]], ...] = (
    (Enum, lambda value: (value.value,)),
    (PurePath, lambda value: (str(value),)),
    (Fraction, lambda value: (value.numerator, value.denominator)),
    (MappingProxyType, lambda value: (dict(value),)),
    (Logger, lambda _: ()),
)
"""What objects consist of, beside their class, that say different things to pickle in different versions of Python. A
logger counts by its class alone: its name can be that of a module, and this is another one in the script."""


REVISITS_ALLOWED = 100_000
"""How often parts of cycles may be walked over again. Dense graphs of objects would need more steps than anybody can
wait for."""

OBJECTS_ALLOWED = 10_000_000
"""How many objects with parts a value may consist of. Walking over this many takes about a minute."""

_ADDRESS = re.compile(r" (at )?0x[0-9a-fA-F]+")

_RAW_KINDS = frozenset("biufcmMSU")
"""The kinds of NumPy's dtypes whose elements are in the array itself."""

_X87_MANTISSA_BITS, _X87_BYTES = 63, 10
"""A long double of x86 has this mantissa and this size; the other bytes of its place in memory are random."""

Steps = Generator[Any, bytes, bytes]
"""Yields the parts of a value, gets the digest of each, and returns the digest of the value."""


class NoStructure(Exception):
    """A value, or a part of it, has no structure that can be compared; the text says which type and why."""


Named = Callable[[Any], bytes | None]
"""Returns the digest of a class, function, method, module or reference. None: the walk goes into it."""


def by_name(value: Any) -> bytes | None:
    """Say that classes and functions count by their names, and the handles of shared objects by their content.

    Raises:
        NoStructure: a function cannot be imported under its name.
    """
    if isinstance(value, type):
        return _named(value)
    if isinstance(value, FunctionType | BuiltinFunctionType) and value.__module__:
        return _imported(value)
    if isinstance(value, Shared):
        return hash_of(b"shared", value.shared.share.digest.encode())
    return None


def digest_of(value: object, named: Named = by_name) -> bytes:
    """Return the structural digest of a value, `DIGEST_BYTES` long.

    Args:
        value: any object. It must not change during the call. Its `__reduce_ex__` and those of its parts are called.
        named: says how classes, functions, methods, modules and references count.

    Raises:
        NoStructure: the value has a part without structure; the caller's fault.

    Examples:
        >>> digest_of({"a": [1, 2], "b": None}) == digest_of({"b": None, "a": [1, 2]})
        True
        >>> digest_of(1) == digest_of(1.0)
        False
    """
    simple = _SIMPLE.get(type(value))
    digest = None if simple is None else simple(value)
    if digest is not None:
        return digest
    walk = _Walk(named)
    reply = walk.enter(value)
    while walk.stack:
        try:
            part = walk.stack[-1].steps.send(reply)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            reply = walk.leave(end.value)
        else:
            reply = walk.enter(part)
    assert reply is not None, "a walk ends with a digest"
    return reply


class _Level(Struct, eq=False):
    """An object that the walk is in."""

    value: object
    depth: int
    steps: Steps
    lowest: int
    """The lowest depth to which a reference in it leads back."""


@define(eq=False, repr=False)
class _Walk:
    """One walk over a value."""

    named: Named
    stack: list[_Level] = Factory(list)
    _depths: dict[int, int] = Factory(dict)
    """The depths of the objects that the walk is in, by the identity of the object."""
    _known: dict[int, bytes] = Factory(dict)
    """The digests of objects from which no reference leads back to an object that contains them."""
    _cyclic: dict[int, None] = Factory(dict)
    """The other objects that the walk has left."""
    _kept: list[object] = Factory(list)
    """All objects that the walk has left, so that no other object gets the identity of one of them."""
    _revisits: int = 0

    def enter(self, value: object) -> bytes | None:
        """Return the digest of a value if it is known; else return None, and put the value on the stack."""
        simple = _SIMPLE.get(type(value))
        digest = None if simple is None else simple(value)
        if digest is not None:
            return digest
        key, depth = id(value), len(self.stack)
        if key in self._known:
            return self._known[key]
        if key in self._depths:
            above = self.stack[-1]
            above.lowest = min(above.lowest, self._depths[key])
            return hash_of(b"back", str(depth - self._depths[key]).encode())
        if key in self._cyclic:
            self._revisits += 1
            if self._revisits > REVISITS_ALLOWED:
                raise NoStructure(f"its objects refer to each other in too many ways ({_shown(value)})")
        if len(self._kept) > OBJECTS_ALLOWED:
            raise NoStructure(f"it consists of more than {OBJECTS_ALLOWED:,} objects")
        self._depths[key] = depth
        self.stack.append(_Level(value, depth, _steps(value, self.named), depth))
        return None

    def leave(self, digest: bytes) -> bytes:
        """Take the topmost value from the stack, and return its digest."""
        level = self.stack.pop()
        key = id(level.value)
        del self._depths[key]
        self._kept.append(level.value)
        if level.lowest >= level.depth:
            self._known[key] = digest
        else:
            self._cyclic[key] = None
            self.stack[-1].lowest = min(self.stack[-1].lowest, level.lowest)
        return digest


# ---- simple values ------------------------------------------------------------------------------------------------


def full_name(value: Any) -> str:
    """Return the module and qualified name of a class or function."""
    module = "pathlib" if value.__module__ == "pathlib._local" else value.__module__  # in Python 3.13
    return f"{module}.{value.__qualname__}" if module != "builtins" else str(value.__qualname__)


def _named(value: Any) -> bytes:
    return hash_of(b"name", full_name(value).encode(errors="surrogatepass"))


def _shown(value: object) -> str:
    return full_name(type(value))


def _packed(value: float) -> bytes:
    return b"nan" if isnan(value) else pack(">d", value)


_CONSTANTS = {type(each): hash_of(b"constant", repr(each).encode()) for each in (Ellipsis, NotImplemented)}

_TEXT = frozenset({str})


def _plain_mapping(items: dict[Any, Any]) -> bytes | None:
    """Return the digest of a dict with texts as keys and plain values; None if it has others."""
    if not (_TEXT.issuperset(map(type, items)) and PLAIN.issuperset(map(type, items.values()))):
        return None
    try:
        entry = encode_sorted(items)
        return None if may_have_nan(entry) else hash_of(b"dict of plain", entry)
    except NOT_ENCODABLE:
        return None


_SIMPLE: dict[type, Callable[[Any], bytes | None]] = {
    **dict.fromkeys(PLAIN, plain_digest),
    complex: lambda value: hash_of(b"complex", _packed(value.real) + b"," + _packed(value.imag)),
    bytearray: lambda value: hash_of(b"bytearray", bytes(value)),
    memoryview: lambda value: hash_of(b"memoryview", value.tobytes()),
    list: partial(joined_digest, b"list of plain"),
    tuple: partial(joined_digest, b"tuple of plain"),
    dict: _plain_mapping,
    **{kind: lambda value: _CONSTANTS[type(value)] for kind in _CONSTANTS},
}
"""How values without parts get their digests, and lists, tuples and dicts of plain values; None for other ones."""


def reason_of(error: Exception) -> str:
    """Return the text of an error, without addresses in memory, or its type if it has no text."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return shortened(_ADDRESS.sub("", text) or type(error).__name__)


# ---- values with parts --------------------------------------------------------------------------------------------

COMPILED = frozenset({"cython_function_or_method", "fused_cython_function"})
"""The types of functions that Cython has compiled. Each module of Cython may have its own."""

_NAMED = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, Reference)


def _steps(value: Any, named: Named) -> Steps:
    """Choose how to walk over a value that is not simple."""
    kind = type(value)
    if kind is list or kind is tuple:
        return _sequence(kind.__name__.encode(), value)
    if kind is dict:
        return _mapping(value)
    if isinstance(value, set | frozenset):
        return _set(value)
    if isinstance(value, _NAMED) or kind.__name__ in COMPILED:
        digest = named(value)
        return _object(value) if digest is None else _without_parts(digest)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray:
        return _array(value, numpy, b"array")
    if numpy is not None and isinstance(value, numpy.generic):
        return _array(numpy.asarray(value), numpy, b"number")
    parts = next((parts for each, parts in _KINDS if isinstance(value, each)), None)
    return _object(value) if parts is None else _sequence(b"parts", (kind, *parts(value)))


def _without_parts(digest: bytes) -> Steps:
    yield from ()
    return digest


def _sequence(kind: bytes, items: Iterable[Any]) -> Steps:
    hasher = blake2b(kind + b":", digest_size=DIGEST_BYTES)
    for item in items:
        simple = _SIMPLE.get(type(item))  # this spares most values the way through the walk
        digest = None if simple is None else simple(item)
        hasher.update((yield item) if digest is None else digest)
    return hasher.digest()


def _mapping(items: dict[Any, Any]) -> Steps:
    pairs: list[bytes] = []
    for key, value in items.items():
        pairs.append((yield key) + (yield value))
    return hash_of(b"dict", b"".join(sorted(pairs)))


def _set(value: set[Any] | frozenset[Any]) -> Steps:
    elements: list[bytes] = []
    for element in value:
        elements.append((yield element))
    content = hash_of(b"elements", b"".join(sorted(elements)))
    kind = yield type(value)
    if type(value) in (set, frozenset):
        return hash_of(b"set", kind + content)
    return hash_of(b"set", kind + content + (yield _reduced(value)[2]))


def _imported(function: Any) -> bytes:
    """Return the digest of a function that can be imported under its name."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not function:
        raise NoStructure(f"the function {function.__qualname__} cannot be imported under its name")
    return _named(function)


def _object(value: Any) -> Steps:
    """Walk over what an object says to pickle."""
    kind = type(value)
    reduced = _reduced(value)
    if isinstance(reduced, str):
        if not all(map(str.isidentifier, reduced.split("."))):  # such as that of `numpy.frompyfunc`
            raise NoStructure(f"an object of the type {_shown(value)} is named {shortened(reduced)!r}")
        return hash_of(b"global", (yield kind) + reduced.encode(errors="surrogatepass"))
    function, args, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
    usual = function is copyreg.__newobj__ and len(args) == 1 and args[0] is kind  # type: ignore[attr-defined]
    hasher = blake2b(b"usual object:" if usual else b"object:", digest_size=DIGEST_BYTES)
    more = (setter, None if items is None else _bounded(items))
    for part in (kind, state, *more) if usual else (kind, function, args, state, *more):
        hasher.update((yield part))
    if pairs is not None:
        pairs = _bounded(pairs)
        hasher.update((yield pairs if isinstance(value, OrderedDict) else dict(pairs)))
    return hasher.digest()


def _bounded(items: Iterable[Any]) -> Sequence[Any]:
    found = [*islice(items, OBJECTS_ALLOWED + 1)]
    if len(found) > OBJECTS_ALLOWED:
        raise NoStructure(f"it consists of more than {OBJECTS_ALLOWED:,} objects")
    return found


def _reduced(value: Any) -> Any:
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        return value.__reduce_ex__(4) if reduce is None else reduce(value)
    except Exception as error:
        raise NoStructure(f"an object of the type {_shown(value)} has no structure ({reason_of(error)})") from error


def _array(array: Any, numpy: Any, kind: bytes) -> Steps:
    """Walk over an array, or over a scalar as an array without dimensions."""
    dtype = array.dtype
    hasher = blake2b(kind + b":", digest_size=DIGEST_BYTES)
    hasher.update((yield array.shape))
    if dtype.names is not None:  # between the fields, there may be bytes that mean nothing
        for name in dtype.names:
            hasher.update((yield name) + (yield array[name]))
        return hasher.digest()
    if dtype.kind not in _RAW_KINDS:
        hasher.update((yield f"{dtype.kind} elements") + (yield array.reshape(-1).tolist()))
        return hasher.digest()
    hasher.update((yield dtype.str))
    if array.size and dtype.itemsize:
        hasher.update(_raw(array, numpy))
    return hasher.digest()


def _raw(array: Any, numpy: Any) -> Any:
    """The bytes of an array's elements in C order, with one kind of nan."""
    flat = numpy.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    if flat.dtype.kind == "f":
        unknown = numpy.isnan(flat)
        if unknown.any():
            flat = numpy.where(unknown, flat.dtype.type("nan"), flat)
        if numpy.finfo(flat.dtype).nmant == _X87_MANTISSA_BITS:
            bytes_of = flat.view(numpy.uint8).reshape(len(flat), flat.dtype.itemsize)
            return bytes_of[:, :_X87_BYTES].tobytes()
    return flat.view(numpy.uint8)
