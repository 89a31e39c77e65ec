"""The random generators that Python and NumPy share between all code of a process.

Many scripts seed them while they are loaded, for example with `random.seed(1)`. All slaves load the script. So without
this module, they would all draw the same numbers, and a thousand samples would be a few samples, repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["reseed", "undisturbed"]

_GENERATORS = {
    "random": ("getstate", "setstate"),
    "numpy.random": ("get_state", "set_state"),
    "torch": ("get_rng_state", "set_rng_state"),
}
"""The modules with a shared generator, and their functions that read and restore its state."""


def reseed() -> None:
    """Seed the shared generators from the operating system. A module that was never imported does this itself."""
    for name in _GENERATORS:
        if name in sys.modules:
            sys.modules[name].seed()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the shared generators as they are, although modules that are imported inside may seed them."""
    states: dict[str, Any] = {}
    for name, (read, _) in _GENERATORS.items():
        if name in sys.modules:
            states[name] = getattr(sys.modules[name], read)()
    try:
        yield
    finally:
        for name, (_, restore) in _GENERATORS.items():
            if name in states:
                getattr(sys.modules[name], restore)(states[name])
            elif name in sys.modules:
                sys.modules[name].seed()
