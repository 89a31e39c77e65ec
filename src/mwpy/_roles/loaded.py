"""Loads the task algorithms of a slave; says why one cannot run there."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from mwpy._system.randomness import undisturbed
from mwpy._transport.codec import loads_function
from mwpy._values import messages
from mwpy._values.algorithm import PYTHON, find
from mwpy._values.errors import AlgorithmUnavailable
from mwpy._values.ids import Buffer
from mwpy._values.messages import LoadFailure

__all__ = ["NEVER_DEFINED", "Unavailable", "load_algorithm"]


class Unavailable(Struct, frozen=True):
    """Why an algorithm cannot run here."""

    reason: str
    failure: LoadFailure


NEVER_DEFINED = Unavailable("it was never defined", LoadFailure.SURE)


def load_algorithm(
    definition: messages.AlgorithmDefinition, pickled: Buffer | None
) -> Callable[..., Any] | Unavailable:
    """Load a task algorithm; if it cannot run here, return the reason."""
    try:
        if pickled is None:
            with undisturbed():
                return find(definition.reference, definition.digest)
        if definition.python != PYTHON:
            return Unavailable(
                f"{definition.name} travels by value, but the Pythons differ: {definition.python} (master) and "
                f"{PYTHON} (slave). Use the same minor version, or give the slave the script",
                LoadFailure.SURE,
            )
        with undisturbed():
            return loads_function(pickled)
    except AlgorithmUnavailable as error:
        return Unavailable(str(error), LoadFailure.SURE)
    except KeyboardInterrupt:  # only with `slaves=0`
        raise
    except BaseException as error:
        failure = LoadFailure.SURE if isinstance(error, ModuleNotFoundError) else LoadFailure.PASSING
        return Unavailable(f"{definition.name} cannot be loaded:\n{traceback.format_exc()}", failure)
