"""Loads the task algorithms of a slave; says why one cannot run there."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from mwpy._system.own_code import OWN_CODE
from mwpy._system.randomness import undisturbed
from mwpy._transport.codec import loads_function
from mwpy._transport.shared_objects import LOADED
from mwpy._values import messages
from mwpy._values.algorithm import PYTHON, find, missing_module
from mwpy._values.errors import AlgorithmUnavailable
from mwpy._values.ids import Buffer
from mwpy._values.messages import LoadFailure
from mwpy._values.phrases import first_of

__all__ = ["NEVER_DEFINED", "LoadedAlgorithms", "Unavailable", "load_algorithm"]

GARBAGE_BYTES = 32 << 20
"""After so many bytes of functions by value, what was forgotten is collected. Most functions of a notebook are in a
cycle: a function that is found by its name refers to its algorithm, and a recursive function to itself."""


class Unavailable(Struct):
    """Why an algorithm cannot run here."""

    reason: str
    failure: LoadFailure
    is_printed: bool = False

    def explained(self, name: str) -> str:
        """Return the reason. If the code differs, also print it once on the standard error of the slave."""
        if self.failure is LoadFailure.OTHER_CODE and not self.is_printed:
            self.is_printed = True
            text = f"mwpy: this slave has other code and runs no task of {name}: {self.reason}"
            print(text, file=sys.stderr, flush=True)
        return self.reason


REMEDY = "give the slave the files with which the master was started, or start the computation again"

NEVER_DEFINED = Unavailable("it was never defined", LoadFailure.SURE)


def load_algorithm(
    definition: messages.AlgorithmDefinition, pickled: Buffer | None
) -> Callable[..., Any] | Unavailable:
    """Load a task algorithm; if it cannot run here, return the reason."""
    try:
        if pickled is None:
            with undisturbed():
                return _compared(definition, find(definition.reference))
        if definition.python != PYTHON:
            return Unavailable(
                f"{definition.name} travels by value, but the Pythons differ: {definition.python} (master) and "
                f"{PYTHON} (slave). Use the same minor version, or give the slave the script",
                LoadFailure.SURE,
            )
        own_before = LOADED.own
        with undisturbed():
            loaded = _compared(definition, loads_function(pickled))
        has_own = LOADED.own > own_before and not isinstance(loaded, Unavailable)
        return partial(_call_with_own, bytes(pickled)) if has_own else loaded
    except AlgorithmUnavailable as error:
        return Unavailable(str(error), LoadFailure.SURE)
    except KeyboardInterrupt:  # only with `slaves=0`
        raise
    except BaseException as error:
        reason, failure = f"{definition.name} cannot be loaded:\n{traceback.format_exc()}", LoadFailure.PASSING
        if isinstance(error, ModuleNotFoundError):
            failure = LoadFailure.SURE
            reason += missing_module(error.name) if error.name else ""
        return Unavailable(reason, failure)


def _call_with_own(pickled: bytes, *args: Any, **kwargs: Any) -> Any:
    """Call a function that has captured shared objects: each task gets objects of its own."""
    with undisturbed():
        function = loads_function(pickled)
    return function(*args, **kwargs)


def _compared(
    definition: messages.AlgorithmDefinition, function: Callable[..., Any]
) -> Callable[..., Any] | Unavailable:
    """Return an algorithm, if this process has loaded the same code for it as the master."""
    other = OWN_CODE.differences(function, definition.code)
    if not other:
        return function
    reason = f"{first_of(other, len(other))} {'differs' if len(other) == 1 else 'differ'} from the master's"
    return Unavailable(f"{reason}: {REMEDY}", LoadFailure.OTHER_CODE)


class LoadedAlgorithms(Struct, eq=False):
    """The algorithms that the master has defined, by number."""

    functions: dict[int, Callable[..., Any]] = field(default_factory=dict)
    """Those that can run here."""
    unavailable: dict[int, Unavailable] = field(default_factory=dict)
    """Why others cannot run here."""
    names: dict[int, str] = field(default_factory=dict)
    _packed: dict[int, tuple[messages.AlgorithmDefinition, Buffer]] = field(default_factory=dict)
    """Those by value that were not used yet. Each is unpickled before its first task, because most slaves of an agent
    never run most of them."""
    _unpacked: int = 0
    """Bytes of those that were unpickled since the last garbage collection."""

    def define(self, message: messages.Algorithms, payload: Sequence[Buffer]) -> None:
        """Take over definitions, and forget what the master has forgotten."""
        tables: list[dict[int, Any]] = [self.functions, self._packed, self.unavailable, self.names]
        for number in message.forgotten:
            for table in tables:
                table.pop(number, None)
        if message.forgotten and self._unpacked > GARBAGE_BYTES:
            self._unpacked = 0
            gc.collect()
        pickles = iter(payload)
        for definition in message.definitions:
            self.names[definition.number] = definition.name
            if definition.reference:
                self._keep(definition.number, load_algorithm(definition, None))
            else:
                self._packed[definition.number] = definition, next(pickles)

    def unpack(self, number: int) -> Callable[..., Any] | None:
        """Unpickle an algorithm that travels by value and was not used yet; return None if it cannot run here."""
        if number in self._packed:
            definition, pickled = self._packed.pop(number)
            self._unpacked += len(pickled)
            self._keep(number, load_algorithm(definition, pickled))
        return self.functions.get(number)

    def forget_all(self) -> str:
        """Another generation of the master defines its own. Return a file that was edited since it was loaded, if there
        is one."""
        for table in self.functions, self._packed, self.unavailable, self.names:
            table.clear()
        return OWN_CODE.edited()

    def _keep(self, number: int, loaded: Callable[..., Any] | Unavailable) -> None:
        """Keep an algorithm, or the reason why it cannot run here."""
        if isinstance(loaded, Unavailable):
            self.unavailable[number] = loaded
        else:
            self.functions[number] = loaded
