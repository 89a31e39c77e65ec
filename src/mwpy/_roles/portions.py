"""The items of a map, in portions.

The core treats items with the same policy as one thing, unless they have large buffers or references. Plain items are
encoded with one call. Reading, encoding and submitting such an item takes a tenth of the time that a single task needs.
Other items are pickled one by one, so that an item that cannot be unpickled fails alone.

A portion is up to 40 ms of work. Larger portions would not make an item cheaper. But a slave would hold so many
items of the last portion that others would wait for it. Until it is known how long an item takes, and whether the
iterable is fast, portions are small. At the end of an iterable with a known length, they become smaller again, so that
all slaves end at about the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from msgspec import Struct

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.state import MasterSettings
from mwpy._roles.terms import Extras, Terms
from mwpy._transport.codec import Codec
from mwpy._values.errors import UsageError
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN
from mwpy._values.packed import ARGUMENTS, ROWS, PackedCalls
from mwpy._values.policy import TaskPolicy

__all__ = ["NO_KEYWORDS", "Call", "MapItems", "PortionSizes", "Read", "can_be_packed", "items_of"]

Call = tuple[Defined, TaskPolicy, Extras | None, tuple[Any, ...], dict[str, Any]]
"""A task to submit: its terms, and its positional and keyword arguments."""

NO_KEYWORDS: dict[str, Any] = {}
"""The keyword arguments of all calls of a map. Nobody changes it."""

PORTION_S = 0.04
"""Seconds of work in a portion."""

LEAST_S = 0.002
"""Seconds of work in the last portions of a map."""

MOST_ITEMS = 20_000
"""The largest number of items in a portion."""

FIRST_ITEMS = 25
"""The largest number of items in a portion before any result has arrived."""

PORTION_BYTES = 256 * 1024
"""The largest size of a portion, as far as the portion before it shows."""

GROWTH = 4
"""A portion has at most this many times as many items as the one before."""

LEARNING_RATE = 0.3
"""The weight of what arrived last in the mean time of an item."""

OVERHEAD_S = 2e-7
"""Seconds that an item costs a slave in addition to its compute time."""


class Read(NamedTuple):
    """Items that were read."""

    items: Iterable[Any]
    """All of them if they were encoded; else they are read now, one by one."""
    packed: PackedCalls | None = None
    """Their calls, if they are encoded together."""
    calls: Sequence[tuple[bytes, Sequence[Buffer]]] = ()
    """Their calls with their large buffers, if they are encoded one by one."""


class MapItems(Struct, eq=False):
    """The items of a map, and the calls that they make.

    Args:
        items: what the user knows the tasks by, in order.
        calls: makes the call of each item.
        rows: makes the positional arguments of each item; None if items can have different terms.
        terms: those of all items, if `rows` is given.
        total: how many items there are; None if this is not known.
    """

    items: Iterator[Any]
    calls: Callable[[Sequence[Any]], Iterable[Call]]
    rows: Callable[[Sequence[Any]], Iterable[tuple[Any, ...]]] | None = None
    terms: Terms | None = None
    total: int | None = None
    error: Exception | None = None
    """What the iterable raised. It is raised again after the values of the items before."""
    _can_change: bool = False
    """Whether there were items that are not plain."""

    def read(self, count: int, codec: Codec, *, only_plain: bool) -> Read:
        """Read up to `count` items, and encode their calls together if this is possible.

        An iterable may change an item when it is asked for the next one. So an item that can change is encoded before
        the next one is read. Plain items are read together, and so is the first portion with others: most often it has
        one item.

        Args:
            only_plain: whether only plain items may be encoded together.

        Raises:
            ArgumentNotPicklable: an argument cannot be pickled; the caller's fault.
        """
        if self.rows is None or self.terms is None or (only_plain and self._can_change):
            return Read(self._each(count))
        some: Iterable[Any] = self._each(count)
        if not self._can_change:
            some = together = self._together(count)
            packed = self.packed(together)
            self._can_change = packed is None
            if packed is not None or only_plain:
                return Read(together, packed)
        items: list[Any] = []
        calls: list[tuple[bytes, Sequence[Buffer]]] = []
        for item in some:
            [args] = self.rows([item])
            calls.append(codec.dumps_call(args, NO_KEYWORDS, self.terms[0].name))
            items.append(item)
        if any(buffers for _, buffers in calls):
            return Read(items, None, calls)
        return Read(items, PackedCalls.of_encoded([call for call, _ in calls]))

    def _together(self, count: int) -> Sequence[Any]:
        """Read items until the iterable raises an exception. This takes less time for each than `_each`."""
        items: list[Any] = []
        try:
            items.extend(islice(self.items, count))
        except Exception as error:
            self.error = error
        return items

    def _each(self, count: int) -> Iterator[Any]:
        """Do the same one by one."""
        try:
            yield from islice(self.items, count)
        except Exception as error:
            self.error = error

    def packed(self, items: Sequence[Any]) -> PackedCalls | None:
        """Encode the calls of items together; None if they are not plain, or may not be packed."""
        if self.rows is None:
            return None
        rows = items if self.rows is zip else [*self.rows(items)]
        if not PLAIN.issuperset(map(type, items if rows is items else chain.from_iterable(rows))):
            return None
        try:
            return PackedCalls.of(ARGUMENTS if rows is items else ROWS, rows)
        except NOT_ENCODABLE:
            return None


def items_of(
    terms: Terms,
    iterables: tuple[Iterable[Any], ...],
    settings: MasterSettings,
) -> MapItems:
    """Return the items of a map over iterables.

    Raises:
        UsageError: there is no iterable, or one is none; the caller's fault.
    """
    if not iterables:
        raise UsageError("a map needs at least one iterable: mw.map(f, items)")
    for place, each in enumerate(iterables, 2):
        if not (hasattr(each, "__iter__") or hasattr(each, "__getitem__")):
            raise UsageError(
                f"argument {place} of the map is {each!r}, not an iterable: write itertools.repeat({each!r}) "
                f"for an argument that is the same for all items, and chunksize=... for the size of chunks"
            )
    alone = len(iterables) == 1
    items = iter(iterables[0]) if alone else zip(*iterables, strict=False)
    rows: Callable[[Sequence[Any]], Iterable[tuple[Any, ...]]] = zip if alone else iter
    total = min(map(len, iterables)) if all(hasattr(each, "__len__") for each in iterables) else None  # type: ignore[arg-type]
    return with_terms(terms, items, rows, settings, total)


def with_terms(
    terms: Terms,
    items: Iterator[Any],
    rows: Callable[[Sequence[Any]], Iterable[tuple[Any, ...]]],
    settings: MasterSettings,
    total: int | None = None,
) -> MapItems:
    """Return items that all have the same terms."""
    defined, policy, extras = terms

    def calls(some: Sequence[Any]) -> Iterator[Call]:
        return ((defined, policy, extras, args, NO_KEYWORDS) for args in rows(some))

    return MapItems(items, calls, rows if can_be_packed(terms, settings) else None, terms, total)


def can_be_packed(terms: Terms, settings: MasterSettings) -> bool:
    """Whether items with these terms can be treated as one thing: nothing is said about each of them."""
    _, policy, extras = terms
    fixed = settings.task_group is not None or settings.result_group
    special = policy.limits is not None or policy.sid is not None or policy.speculate or not policy.retry
    return extras is None and not fixed and not special


class PortionSizes(Struct, eq=False):
    """Decides how many items the next portion has.

    Args:
        most: what the user allows.
        read_s: how long reading a portion may take, in seconds.
    """

    most: int = MOST_ITEMS
    _size: int = 1
    _item_s: float | None = None
    """How long an item takes in a slave, in seconds; None if no result has arrived."""
    item_bytes: float = 1.0
    """The mean size of the arguments of an item in the portion that was read last."""

    def next(self, left: int | None, max_bytes: int, slaves: int) -> int:
        """How many items the next portion has.

        Args:
            left: how many items were not read; None if this is not known.
            max_bytes: how many bytes of arguments may be submitted now.
            slaves: how many slaves share the items.
        """
        enough = self.usual
        if left is not None and self._item_s is not None:
            enough = min(enough, max(left // (2 * max(1, slaves)), int(LEAST_S / self._item_s)))
        fits = -int(-min(max_bytes, PORTION_BYTES) // self.item_bytes)
        return max(1, min(self._size, enough, fits, self.most))

    @property
    def usual(self) -> int:
        """How many items a portion has if nothing limits it but the time that they take."""
        return FIRST_ITEMS if self._item_s is None else min(MOST_ITEMS, int(PORTION_S / self._item_s) + 1)

    def read(self, count: int, size: int, seconds: float, most_s: float) -> None:
        """This many items of `size` bytes were read in some seconds. This should take `most_s` at most."""
        self.item_bytes = max(1.0, size / count)
        if seconds < most_s:
            self._size = max(self._size, min(count * GROWTH, MOST_ITEMS))
        else:
            self._size = max(1, int(count * most_s / seconds / 2))

    def ended(self, count: int, seconds: float) -> None:
        """This many items have taken some seconds together."""
        item_s = seconds / count + OVERHEAD_S
        self._item_s = item_s if self._item_s is None else self._item_s + LEARNING_RATE * (item_s - self._item_s)
