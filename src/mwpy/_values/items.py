"""The items of maps that have several parts: grids of parameters, and tags in which each part has a name."""

from __future__ import annotations

import inspect
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import Any, overload

from attrs import frozen

from mwpy._values.errors import UsageError


@frozen(eq=False, repr=False)
class Grid(Sequence[dict[str, Any]]):
    """Every combination of the values of some parameters. A slice is another grid, and costs the same for any size."""

    values: Mapping[str, tuple[Any, ...]]
    """The values of each parameter. The last parameter varies fastest."""
    places: range
    """Which of all combinations these are."""

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, at: slice) -> Grid: ...

    def __getitem__(self, at: int | slice) -> dict[str, Any] | Grid:
        if isinstance(at, slice):
            return Grid(self.values, self.places[at])
        try:
            place = self.places[at]
        except IndexError:
            raise IndexError(f"there is no point {at}: the grid has {len(self)}") from None
        chosen: list[Any] = []
        for values in reversed([*self.values.values()]):
            place, own = divmod(place, len(values))
            chosen.append(values[own])
        return dict(zip(self.values, reversed(chosen), strict=True))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.places != range(prod(map(len, self.values.values()))):
            return map(self.__getitem__, range(len(self)))
        return (dict(zip(self.values, each, strict=True)) for each in product(*self.values.values()))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(values)}" for name, values in self.values.items())
        return f"<grid of {len(self)} points ({sizes})>"


def grid(**values: Iterable[Any]) -> Grid:
    """Return every combination of the values of some parameters, for a map over a function with these parameters.

    It is a sequence of dicts, which are made when they are read. The last parameter varies fastest. If it is the only
    iterable of a map, its items are keyword arguments: `mw.map(simulate, points)` calls `simulate(mass=1, charge=0)`.
    To pass the dicts themselves, map over `list(points)`.

    Args:
        values: the values of each parameter: any iterable, which is read now. An array of NumPy gives numbers of NumPy.

    Raises:
        UsageError: there is no parameter, a parameter has no values, or its values are one text or one number.

    Examples:
        >>> points = grid(mass=[1, 2], charge=range(3))
        >>> len(points), points[0], points[-1]
        (6, {'mass': 1, 'charge': 0}, {'mass': 2, 'charge': 2})
        >>> table = mwpy.to_frame(mw.map_results(simulate, points, progress=True))  # doctest: +SKIP
    """
    if not values:
        raise UsageError("a grid needs at least one parameter: mwpy.grid(mass=[1, 2], charge=range(3))")
    listed = {name: _listed(name, given) for name, given in values.items()}
    size = prod(map(len, listed.values()))
    if size > sys.maxsize:
        raise UsageError(f"the grid would have {size} points, and a map can have {sys.maxsize}: give fewer values")
    return Grid(listed, range(size))


def _listed(name: str, given: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(given, str | bytes):
        raise UsageError(f"{name}={given!r} is one value: write {name}=[{given!r}], or a list with several of them")
    try:
        iter(given)
    except TypeError:  # it may have an `__iter__` nevertheless, as an array without dimensions
        raise UsageError(f"{name}={given!r} is one value: write {name}=[{given!r}]") from None
    listed = tuple(given)
    if not listed:
        raise UsageError(f"{name} has no values, so the grid has no points: give at least one value, or leave it out")
    return listed


class KeywordItems(Iterator[Any]):
    """Items of which a dict is keyword arguments: those of a grid, or of a starmap, that are left over."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)

    def __next__(self) -> Any:
        return next(self._items)


# The tags of items that have several arguments: named tuples, so that a table of results has a column for each.


def namer_of(function: Callable[..., Any], count: int | None = None) -> Callable[[Any], Any]:
    """Return what makes the tag of an item, which is a tuple of the arguments of a call, or a dict.

    A tag is a named tuple with the names of the function's parameters. If there are none that can be names, it is the
    item. So is the tag of a dict.

    Args:
        count: how many arguments each item has; None if they differ.
    """
    names = _parameters_of(function)
    if count is not None:
        kind = _item_type(names[:count]) if count <= len(names) else None
        return _unchanged if kind is None else partial(tuple.__new__, kind)
    return partial(_named, names)


def _named(names: tuple[str, ...], item: Any) -> Any:
    if isinstance(item, Mapping) or not hasattr(item, "__len__") or len(item) > len(names):
        return item
    kind = _item_type(names[: len(item)])
    return item if kind is None else tuple.__new__(kind, item)


def _unchanged(item: Any) -> Any:
    return item


def _parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters that positional arguments of a function have; none if they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # as for many builtin functions
        return ()
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return tuple(each.name for each in parameters if each.kind in positional)


@lru_cache(maxsize=1000)
def _item_type(names: tuple[str, ...]) -> type[tuple[Any, ...]] | None:
    """The type of named tuples with these names; None if one of them is no name of a field."""
    try:
        kind = namedtuple("Item", names, module=__name__)  # type: ignore[misc]  # noqa: PYI024
    except ValueError:
        return None
    kind.__reduce__ = _reduced  # type: ignore[method-assign, assignment]
    return kind


def _reduced(item: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _restored, (item._fields, tuple(item))  # type: ignore[attr-defined]


def _restored(names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make the named tuple of a pickle: its type has no name under which another process would find it."""
    kind = _item_type(names)
    return values if kind is None else tuple.__new__(kind, values)
