"""Random number generators: those that all code of a process shares, and those that the user's code makes.

Many scripts seed the shared ones while they are loaded, for example with `random.seed(1)`. All slaves load the script.
So without this module, they would all draw the same numbers, and a thousand samples would be a few samples, repeated.
The same would happen if a function took a shared generator with it, as after `from random import gauss`.

mwpy does not know how the user's own generators should be seeded. It only says that all copies give the same numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

__all__ = [
    "PICKLE_MARKS",
    "generator_kinds",
    "is_without_state",
    "reduced",
    "reseed",
    "shared_generators",
    "undisturbed",
]

_GENERATORS = {
    "random": ("getstate", "setstate"),
    "numpy.random": ("get_state", "set_state"),
    "torch": ("get_rng_state", "set_rng_state"),
}
"""The modules with a shared generator, and their functions that read and restore its state."""


_KINDS = (
    ("random", "Random"),
    ("numpy.random", "Generator"),
    ("numpy.random", "RandomState"),
    ("numpy.random", "BitGenerator"),
    ("numpy.random", "SeedSequence"),
    ("torch", "Generator"),
)
"""Module and name of the types of generators."""

_SHARED = (("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator"))
"""Module and name of the shared generators: those that `reseed` seeds."""

PICKLE_MARKS = (b"\x8c\x06Random", b"__randomstate_ctor")
"""A pickle with a generator of the same type as a shared one, and so that of `random.gauss`, contains one of these."""


def generator_kinds() -> tuple[type, ...]:
    """Return the types of generators whose modules are loaded."""
    found = (_loaded(module, name) for module, name in _KINDS)
    return tuple(kind for kind in found if isinstance(kind, type))


def is_without_state(kind: type) -> bool:
    """Whether generators of a type ask the operating system for each number."""
    return kind is _loaded("random", "SystemRandom")


def shared_generators() -> list[object]:
    """Return the shared generators whose modules are loaded."""
    return [found for place in _SHARED if (found := _loaded(*place)) is not None]


def reduced(value: object) -> tuple[Callable[..., object], tuple[str, str]] | None:
    """Return how a shared generator is pickled by its name, as `object.__reduce__` does; None for any other object."""
    for place in _SHARED:
        if value is _loaded(*place):
            return shared, place
    return None


def shared(module: str, name: str) -> object:
    """Return the shared generator of this process."""
    return getattr(import_module(module), name)


def _loaded(module: str, name: str) -> object:
    return getattr(sys.modules.get(module), name, None)


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
