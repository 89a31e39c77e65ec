"""Makes the definition of each task algorithm that a master algorithm uses, before its first task.

A function that travels by name is defined once. A function that travels by value is whatever its pickle contains: the
values of its globals, its closure, its instance. So it is pickled at each use, and the digest of the pickle says
whether this is a known algorithm or another one. The core decides which algorithms are kept (see
`_core/master/algorithms.py`); here they are only found by weak references.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from attrs import define, field

from mwpy._core.master.algorithms import Defined
from mwpy._roles.code_watch import CodeWatch
from mwpy._system import packages
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import PYTHON, Algorithm, algorithm_of
from mwpy._values.errors import UsageError
from mwpy._values.messages import AlgorithmDefinition
from mwpy._values.records import AlgorithmDefined
from mwpy._values.references import Reference
from mwpy._values.shares import Shared, SharedObject

__all__ = ["Definitions", "Prepared"]

DIGEST_DIGITS = 32
"""Hexadecimal digits of the digest of a pickle. Two different pickles never have the same digest."""


@define(eq=False, repr=False)
class Prepared(Algorithm):
    """An algorithm as it was at one moment: the calls of one `map` are submitted with the same pickle."""

    defined: Defined


@define(eq=False)
class Definitions:
    """The definitions of one master.

    Args:
        main_by_value: whether what is defined in `__main__` travels by value.
        numbers: gives numbers that no other algorithm of the master has.
    """

    codec: Codec
    main_by_value: bool
    watch: CodeWatch | None = None
    """What notices edited modules; None in a script."""
    with_code: Callable[[AlgorithmDefined, Callable[..., Any]], AlgorithmDefined] | None = None
    """Adds the digest of the code to a definition; None without a run database."""
    numbers: Iterator[int] = field(factory=count, kw_only=True)
    known: dict[Algorithm, Defined] = field(factory=dict)
    """The algorithms that travel by name."""
    _by_value: WeakValueDictionary[str, Defined] = field(factory=WeakValueDictionary)
    """The algorithms that travel by value, by digest: those that the core keeps, or that something here refers to."""

    def prepare(self, algorithm: Algorithm) -> Algorithm:
        """Return an algorithm that stays as it is now: it is not pickled again for each of its tasks.

        Raises:
            ArgumentNotPicklable: it travels by value and cannot be pickled; the caller's fault.
        """
        if self.watch is not None and algorithm in self.known:
            if self.watch.look(algorithm.function, by_value=False):
                self.known.clear()
            elif not algorithm.reference:  # its module was loaded again, so the name belongs to another function
                del self.known[algorithm]
            elif self.known[algorithm].refused:
                self.watch.renew(self.known.pop(algorithm).number)
        defined = self.known.get(algorithm) or self.define(algorithm)
        return Prepared(algorithm.function, defined, policy=algorithm.policy) if defined.size else algorithm

    def define(self, algorithm: Algorithm) -> Defined:
        """Return the definition of an algorithm as it is now. `known` has the algorithms that never change.

        Raises:
            ArgumentNotPicklable: it travels by value and cannot be pickled; the caller's fault.
            UsageError: it has captured a reference to a result; the caller's fault.
        """
        if isinstance(algorithm, Prepared):
            return algorithm.defined
        algorithm = algorithm_of(algorithm.function)  # that of a call that was unpickled is a copy
        if algorithm in self.known:
            return self.known[algorithm]
        reference = algorithm.reference
        if self.main_by_value and reference.startswith("__main__:"):
            reference = ""
        if self.watch is not None and self.watch.look(algorithm.function, by_value=not reference):
            self.known.clear()
        if reference:
            defined = self.known[algorithm] = self._number(algorithm, reference, algorithm.digest, b"")
            return defined
        references: dict[Reference, None] = {}
        packed = self.codec.dumps_function(algorithm.function, algorithm.name, references)
        digest = hashlib.sha256(packed).hexdigest()[:DIGEST_DIGITS]
        known = self._by_value.get(digest)
        if known is None:
            shares = [_captured(each, algorithm.name) for each in references]
            known = self._by_value[digest] = self._number(algorithm, "", digest, packed, shares)
        return known

    def _number(
        self, algorithm: Algorithm, reference: str, digest: str, packed: bytes, shares: Sequence[SharedObject] = ()
    ) -> Defined:
        """Give a new algorithm the next number."""
        definition = AlgorithmDefinition(
            number=next(self.numbers),
            name=algorithm.name,
            reference=reference,
            digest=digest,
            python=PYTHON,
            packages=packages.used_by(algorithm.function, by_value=not reference),
        )
        record = AlgorithmDefined(definition, packed)
        if self.with_code is not None:
            record = self.with_code(record, algorithm.function)
        return Defined(record, shares)


def _captured(reference: Reference, name: str) -> SharedObject:
    """Return the shared object that a function has captured.

    Raises:
        UsageError: it is another kind of reference; the caller's fault.
    """
    if isinstance(reference, Shared):
        return reference.shared
    raise UsageError(f"{name} has captured {reference!r}, which has a meaning only as an argument: pass it as one")
