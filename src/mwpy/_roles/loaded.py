"""Loads the task algorithms of a slave; says why one cannot run there."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from mwpy._system.own_code import OWN_CODE
from mwpy._system.randomness import undisturbed
from mwpy._transport.codec import loads_function
from mwpy._values import messages
from mwpy._values.algorithm import PYTHON, find
from mwpy._values.errors import AlgorithmUnavailable
from mwpy._values.ids import Buffer
from mwpy._values.messages import LoadFailure
from mwpy._values.phrases import first_of

__all__ = ["NEVER_DEFINED", "Unavailable", "load_algorithm"]


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
                return _compared(definition, find(definition.reference), by_value=False)
        if definition.python != PYTHON:
            return Unavailable(
                f"{definition.name} travels by value, but the Pythons differ: {definition.python} (master) and "
                f"{PYTHON} (slave). Use the same minor version, or give the slave the script",
                LoadFailure.SURE,
            )
        with undisturbed():
            return _compared(definition, loads_function(pickled), by_value=True)
    except AlgorithmUnavailable as error:
        return Unavailable(str(error), LoadFailure.SURE)
    except KeyboardInterrupt:  # only with `slaves=0`
        raise
    except BaseException as error:
        failure = LoadFailure.SURE if isinstance(error, ModuleNotFoundError) else LoadFailure.PASSING
        return Unavailable(f"{definition.name} cannot be loaded:\n{traceback.format_exc()}", failure)


def _compared(
    definition: messages.AlgorithmDefinition, function: Callable[..., Any], by_value: bool
) -> Callable[..., Any] | Unavailable:
    """Return an algorithm, if this process has loaded the same code for it as the master."""
    other = OWN_CODE.differences(function, definition.code, by_value)
    if not other:
        return function
    reason = f"{first_of(other, len(other))} {'differs' if len(other) == 1 else 'differ'} from the master's"
    return Unavailable(f"{reason}: {REMEDY}", LoadFailure.OTHER_CODE)
