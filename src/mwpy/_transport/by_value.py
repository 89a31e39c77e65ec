"""Pickles by value, with cloudpickle. This module is imported only when it is needed, because cloudpickle loads slowly.

cloudpickle pickles a function of `__main__` by value, but a function with `functools.cache` or `functools.lru_cache` by
its name, which the slaves of a notebook do not have. So a *cached function* that slaves cannot find by its name is
pickled as the function below its cache and the parameters of the cache. The content of the cache does not travel: it
may be large, and its keys and values may be impossible to pickle.

After `from random import gauss`, a function has a method of the generator that all code of a process shares. This
generator travels by its name, because each slave has one that was seeded differently.
"""

from __future__ import annotations

import functools
import io
import sys
from collections import ChainMap
from collections.abc import Callable
from operator import attrgetter
from typing import IO, Any, ClassVar, TypeAlias

import cloudpickle

from mwpy._system.randomness import generator_kinds, reduced

__all__ = ["dumps"]

Cached: TypeAlias = "functools._lru_cache_wrapper[Any]"
KIND = functools._lru_cache_wrapper


def dumps(
    value: object,
    *,
    main_by_value: bool,
    keep_in_band: Callable[..., object] | None = None,
    generators: dict[type, None] | None = None,
) -> bytes:
    """Pickle an object in protocol 5. `pickle.loads` reads it.

    Args:
        main_by_value: whether cached functions of `__main__` travel by value, too. Other functions and classes of
            `__main__` always do.
        keep_in_band: whether a buffer stays in the pickle; None to keep all of them.
        generators: gets the types of the random number generators that are copied.

    Raises:
        Exception: any error of pickling; the object's fault.
    """
    file = io.BytesIO()
    kind = _PicklerWithoutMain if main_by_value else _Pickler
    pickler = kind(file, 5, buffer_callback=keep_in_band)
    pickler.dump(value)
    if generators is not None:
        generators.update(pickler.generators)
    return file.getvalue()


def _has_name(cached: Cached) -> bool:
    """Whether a cached function is found under its name in its module."""
    try:
        return attrgetter(cached.__qualname__)(sys.modules[cached.__module__]) is cached
    except (AttributeError, KeyError):
        return False


def _as_parts(cached: Cached) -> tuple[Any, ...]:
    state = {name: value for name, value in vars(cached).items() if name != "cache_parameters"}
    return with_cache, (cached.__wrapped__, cached.cache_parameters()), state


def _outside_main(cached: Cached) -> str | tuple[Any, ...]:
    return cached.__qualname__ if cached.__module__ != "__main__" and _has_name(cached) else _as_parts(cached)


def _anywhere(cached: Cached) -> str | tuple[Any, ...]:
    return cached.__qualname__ if _has_name(cached) else _as_parts(cached)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar = ChainMap({KIND: _anywhere}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, file: IO[bytes], protocol: int, buffer_callback: Callable[..., object] | None) -> None:
        super().__init__(file, protocol, buffer_callback=buffer_callback)
        self.generators: dict[type, None] = {}
        """The types of generators that were copied."""
        self._kinds = generator_kinds()

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if issubclass(kind, self._kinds):
            if (by_name := reduced(value)) is not None:
                return by_name
            self.generators[kind] = None
        return super().reducer_override(value)


class _PicklerWithoutMain(_Pickler):
    dispatch_table: ClassVar = ChainMap({KIND: _outside_main}, cloudpickle.Pickler.dispatch_table)


def with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Cached:
    """Add an empty cache to a function."""
    cached: Cached = functools.lru_cache(**parameters)(function)
    return cached
