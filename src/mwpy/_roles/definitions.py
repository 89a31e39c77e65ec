"""Makes the definition of each task algorithm before its first task, and again when the user has edited its code.

A function that travels by name is defined once. A function that travels by value is whatever its pickle contains: the
values of its globals, its closure, its instance. So it is pickled at each use, and the digest of the pickle says
whether this is a known algorithm or another one. To find out without a pickle that a function is unchanged was tried:
single submissions in a notebook had several times the rate, for 120 lines. The core decides which algorithms are kept
(see `_core/master/algorithms.py`); here they are only found by weak references.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, repeat
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from attrs import Factory, define
from msgspec.structs import replace

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.state import RenewSlaves
from mwpy._system import process
from mwpy._system.clock import monotonic
from mwpy._system.own_code import other_values, used_by
from mwpy._system.packages import UserModules, module_path
from mwpy._system.script import finds
from mwpy._transport.codec import Codec, has_code
from mwpy._values.algorithm import PYTHON, REGISTRY, Algorithm, algorithm_of
from mwpy._values.bounds import MAX_REASON
from mwpy._values.errors import UsageError
from mwpy._values.messages import AlgorithmDefinition, SetUp
from mwpy._values.phrases import first_of, text_of_other_values
from mwpy._values.policy import Policies
from mwpy._values.records import AlgorithmDefined
from mwpy._values.shares import Shared, SharedObject
from mwpy._values.task import Reference

if TYPE_CHECKING:
    from mwpy._roles.master_io import MasterIo


@define(eq=False, repr=False)
class CodeWatch:
    """Watches the modules of one interactive master."""

    _io: MasterIo
    _modules: UserModules = Factory(UserModules)
    only_here: bool = False
    """Whether all agents were started by this master, so that they are on its machine."""

    def __attrs_post_init__(self) -> None:
        self._modules.look()

    def look(self, function: Callable[..., Any], by_value: bool) -> bool:
        """Replace the slaves if a module was edited and loaded again, or if `sys.path` was changed.

        Returns:
            Whether they are replaced. Then the digests of all functions may have changed.

        Raises:
            UsageError: the function uses a module that was edited and not loaded again; the caller's fault.
        """
        reloaded = self._modules.look()
        path = module_path()
        moved = self.only_here and len(path) <= MAX_REASON and self._io.local.find_modules_in(path)
        if reloaded or moved:
            self._io.command(RenewSlaves(None, path if moved else ""))
        if self._modules.edited:
            for name in used_by(function, by_value).modules:
                if name in self._modules.edited:
                    raise UsageError(
                        f"{name} was edited after it was imported here, so this process still runs its old code, and "
                        f"new slaves would run the new code: load it again with importlib.reload({name}), and define "
                        f"again what uses it"
                    )
        return reloaded or moved

    def renew(self, refused: int) -> None:
        """Replace the slaves that could not run an algorithm.

        Args:
            refused: its number.
        """
        self._io.command(RenewSlaves(refused))


DIGEST_DIGITS = 32
"""Hexadecimal digits of the digest of a pickle. Two different pickles never have the same digest."""

LARGE_BYTES = 16 << 20
"""If a pickle is larger, a notice says so: it is pickled at each submission."""


COMPARED_SHARE = 0.05
"""Which part of the time the values of one algorithm are compared, if its tasks are submitted without a pause."""


class Prepared(Algorithm):
    """An algorithm as it was at one moment: the calls of one `map` are submitted with the same pickle."""

    def __init__(self, function: Callable[..., Any], defined: Defined, *, policy: Policies) -> None:
        super().__init__(function, policy=policy)
        self.defined = defined


@define(eq=False, repr=False)
class Definitions:
    """The definitions of one master.

    Args:
        numbers: gives numbers that no other algorithm of the master has.
    """

    codec: Codec
    watch: CodeWatch | None = None
    """What notices edited modules; None in a script."""
    with_code: Callable[[AlgorithmDefined, Callable[..., Any]], AlgorithmDefined] | None = None
    """Adds the digest of the code to a definition; None without a run database."""
    notice: Callable[[str], object] | None = None
    """Tells the user a text once; None if there is no user."""
    compares: bool = False
    """Whether slaves are other processes, which do not see what this one changes in its modules."""
    numbers: Iterator[int] = Factory(count)
    known: dict[Algorithm, Defined] = Factory(dict)
    """The algorithms that travel by name."""
    _digests: WeakValueDictionary[str, Defined] = Factory(WeakValueDictionary)
    """The algorithms that travel by value, by digest: those that the core keeps, or that something here refers to."""

    def prepare(self, algorithm: Algorithm) -> Algorithm:
        """Return an algorithm that stays as it is now: it is not pickled again for each of its tasks.

        Raises:
            ArgumentNotPicklable: it travels by value and cannot be pickled; the caller's fault.
        """
        if algorithm in self.known:
            self._look(algorithm.function, by_value=False)
            if not algorithm.reference:  # its module was loaded again, so the name belongs to another function
                self.known.pop(algorithm, None)
        defined = self.of(algorithm)
        if self.watch is not None and defined.refused and not isinstance(algorithm, Prepared):
            self.watch.renew(defined.number)
            self._forget(algorithm, defined)
            defined = self.define(algorithm)
        return Prepared(algorithm.function, defined, policy=algorithm.policy) if defined.size else algorithm

    def _look(self, function: Callable[..., Any], by_value: bool) -> bool:
        """Forget all definitions if a module was loaded again. Return whether this happened.

        Raises:
            UsageError: as `CodeWatch.look`.
        """
        if self.watch is None or not self.watch.look(function, by_value):
            return False
        self.known.clear()
        self._digests.clear()
        return True

    def _forget(self, algorithm: Algorithm, defined: Defined) -> None:
        """Forget a definition that slaves have refused, so that the next one is another algorithm for them."""
        self.known.pop(algorithm, None)
        self._digests.pop(defined.record.definition.digest, None)

    def of(self, algorithm: Algorithm) -> Defined:
        """Return the definition of an algorithm, at once if it never changes."""
        defined = self.known.get(algorithm) or self.define(algorithm)
        if self.compares and (now := monotonic()) >= defined.compare_at:
            self._compare(defined, now)
        return defined

    def _compare(self, defined: Defined, now: float) -> None:
        """Say which values this process has changed since the definition, which slaves have compared with theirs."""
        code = defined.record.definition.code
        if REGISTRY.slaves or not any(each.values for each in code.values()):
            defined.compare_at = inf
            return
        if (other := other_values(code, {})) and self.notice is not None:
            self.notice(text_of_other_values(defined.name, first_of(other, len(other))))
        defined.compare_at = now + (monotonic() - now) / COMPARED_SHARE

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
        reference = self.reference_of(algorithm)
        self._look(algorithm.function, by_value=not reference)
        if reference:
            defined = self.known[algorithm] = self._number(algorithm, reference, "", b"")
            return defined
        return self._by_value(algorithm)

    def reference_of(self, algorithm: Algorithm) -> str:
        """The name under which slaves find a function; empty if it travels by value."""
        reference = algorithm.reference
        if reference.startswith("__main__:") and not finds(algorithm.function, self.codec.found):
            return ""
        return reference

    def _by_value(self, algorithm: Algorithm) -> Defined:
        """Pickle an algorithm, and return the definition with this pickle."""
        references: dict[Reference, None] = {}
        generators: dict[type, None] = {}
        packed = self.codec.dumps_function(algorithm.function, algorithm.name, references, generators)
        if len(packed) > LARGE_BYTES and self.notice is not None:
            self.notice(
                f"{algorithm.name} travels by value with more than {LARGE_BYTES >> 20} MiB, which are pickled at each "
                f"submission and kept by each slave: give the tasks mw.share(...) of a large object as an argument"
            )
        digest = hashlib.sha256(packed).hexdigest()[:DIGEST_DIGITS]
        known = self._digests.get(digest)
        if known is None:
            if generators and self.notice is not None:
                self.notice(_text_of_copies(algorithm.name, next(iter(generators))))
            shares = [_captured(each, algorithm.name) for each in references]
            known = self._digests[digest] = self._number(algorithm, "", digest, packed, shares)
        return known

    def _number(
        self, algorithm: Algorithm, reference: str, digest: str, packed: bytes, shares: Sequence[SharedObject] = ()
    ) -> Defined:
        """Give a new algorithm the next number."""
        used = used_by(algorithm.function, by_value=not reference, found=self.codec.found)
        definition = AlgorithmDefinition(
            number=next(self.numbers),
            name=algorithm.name,
            reference=reference,
            digest=digest,
            python=PYTHON,
            packages=used.packages,
            code=used.code,
            is_portable=bool(packed) and not has_code(packed),
        )
        record = AlgorithmDefined(definition, packed)
        if self.with_code is not None:
            record = self.with_code(record, algorithm.function)
        return Defined(record, shares)


def _text_of_copies(name: str, generator: type) -> str:
    """Say that all slaves would draw the same random numbers."""
    return (
        f"{name} refers to a random number generator ({generator.__qualname__}): each slave gets a copy, and all "
        f"copies give the same numbers. Make it in the task, for example from mwpy.task_seed()"
    )


def _captured(reference: Reference, name: str) -> SharedObject:
    """Return the shared object that a function has captured.

    Raises:
        UsageError: it is another kind of reference; the caller's fault.
    """
    if isinstance(reference, Shared):
        return reference.shared
    raise UsageError(f"{name} has captured {reference!r}, which has a meaning only as an argument: pass it as one")


SETUP_BYTES = 4 << 20
"""How large the pickle of a set-up may be: each agent gets it with the first message of the master."""


def setup_of(codec: Codec) -> tuple[SetUp | None, bool]:
    """Return the set-up that the script declares, and whether the run ends if it fails; (None, False) without one.

    Raises:
        ArgumentNotPicklable: it travels by value and cannot be pickled; the caller's fault.
        UsageError: there is more than one, or it is too large; the caller's fault.
    """
    declared = REGISTRY.setup()
    if declared is None:
        return None, False
    function = partial(process.shell, declared.what) if isinstance(declared.what, str) else declared.what
    record = Definitions(codec, numbers=repeat(0)).of(Algorithm(function)).record
    if len(record.packed) > SETUP_BYTES:
        raise UsageError(
            f"the set-up {declared.name} travels by value with {len(record.packed) >> 20} MB: let it read what is "
            f"large from a file"
        )
    limits = declared.policy.seconds_max, declared.policy.memory_max
    return SetUp(replace(record.definition, name=declared.name), record.packed, *limits), declared.stops
