"""How a master applies functions to items: their portions, and the order in which their results are given out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from operator import index, itemgetter
from typing import Any

from attrs import Factory, define

from mwpy._core.master.dispatch import learn
from mwpy._core.master.state import CancelTasks, MasterSettings, Running, Tell
from mwpy._roles.inbox import Access, Inbox
from mwpy._roles.progress import Figures, Progress
from mwpy._roles.submission import Calls, EncodedCall, Terms
from mwpy._roles.users import User
from mwpy._system import clock
from mwpy._transport.codec import Codec, any_large
from mwpy._values.errors import TaskCancelled, TaskFailed, TooManyFailures, UsageError
from mwpy._values.groups import ARGUMENTS, ROWS, Ended, PackedCalls, Stretch, count_of
from mwpy._values.items import Grid, KeywordItems, namer_of
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN
from mwpy._values.messages import MapStatus
from mwpy._values.policy import FailuresByKind, MaxFailures
from mwpy._values.requires import within
from mwpy._values.task import Result, UnrunnableTask, failed, in_one_line, size_of

# The items of a map, in portions.
#
# The core treats items with the same policy as one thing, unless they have large buffers or references. Plain items are
# encoded with one call. Reading, encoding and submitting such an item takes a tenth of the time that a single task
# needs. Other items are pickled one by one, so that an item that cannot be unpickled fails alone.
#
# A portion is up to 40 ms of work. Larger portions would not make an item cheaper. But a slave would hold so many items
# of the last portion that others would wait for it. Until it is known how long an item takes, and whether the iterable
# is fast, portions are small. At the end of an iterable with a known length, they become smaller again, so that all
# slaves end at about the same time.


Call = tuple[Terms, tuple[Any, ...], dict[str, Any]]
"""A task to submit: its terms, and its positional and keyword arguments."""

NO_KEYWORDS: dict[str, Any] = {}
"""The keyword arguments of the calls of a map, if its items are no dicts of them. Nobody changes it."""

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

OVERHEAD_S = 2e-7
"""Seconds that an item costs a slave in addition to its compute time."""


Read = tuple[Iterable[Any], PackedCalls | None, Sequence[EncodedCall]]
"""Items that were read, and their calls if they are encoded: together or one by one. If they are not, the items are
read one by one while they are submitted."""


def alone(item: Any) -> tuple[Any, ...]:
    """The arguments of a call whose only argument is an item."""
    return (item,)


@define(eq=False, repr=False)
class MapItems:
    """The items of a map, and the calls that they make.

    Args:
        items: what the user knows the tasks by, in order.
        call_of: makes the call of an item.
        args_of: makes its positional arguments, if it has no keyword arguments.
        terms: those of all items; None if they can differ, or if items cannot be treated as one thing.
        may_name: whether an item that is a dict has keyword arguments.
        tag_of: makes the tag of an item; None if it is the item.
    """

    items: Iterator[Any]
    call_of: Callable[[Any], Call]
    args_of: Callable[[Any], tuple[Any, ...]] = alone
    terms: Terms | None = None
    may_name: bool = False
    tag_of: Callable[[Any], Any] | None = None
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
        if self.terms is None or (only_plain and self._can_change):
            return self._each(count), None, ()
        some: Iterable[Any] = self._each(count)
        if not self._can_change:
            some = together = [*self._each(count)]
            packed = self.packed(together)
            self._can_change = packed is None
            if packed is not None or only_plain:
                return together, packed, ()
        items: list[Any] = []
        calls: list[EncodedCall] = []
        for item in some:
            _, args, kwargs = self.call_of(item)
            calls.append(codec.dumps_call(args, kwargs, self.terms[0].name))
            items.append(item)
        if any(buffers for _, buffers in calls):
            return items, None, calls
        return items, PackedCalls.of_encoded([call for call, _ in calls]), ()

    def _each(self, count: int) -> Iterator[Any]:
        """Read items one by one, until the iterable raises an exception."""
        try:
            yield from islice(self.items, count)
        except Exception as error:
            self.error = error

    def packed(self, items: Sequence[Any]) -> PackedCalls | None:
        """Encode the calls of items together; None if they are not plain, if one is large, or if none may be packed."""
        if self.terms is None:
            return None
        if self.may_name and any(issubclass(kind, Mapping) for kind in {*map(type, items)}):
            return None
        rows = items if self.args_of is alone else [*map(self.args_of, items)]
        kinds = {*map(type, items if rows is items else chain.from_iterable(rows))}
        if not kinds <= PLAIN or any_large(items if rows is items else chain.from_iterable(rows), kinds):
            return None
        try:
            return PackedCalls.of(ARGUMENTS if rows is items else ROWS, rows)
        except NOT_ENCODABLE:
            return None


def items_of(
    terms: Terms,
    function: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    settings: MasterSettings,
    *,
    star: bool = False,
) -> MapItems:
    """Return the items of a map of a function over iterables.

    Args:
        star: whether each item of the only iterable is a tuple or a dict of the arguments of a call.

    Raises:
        UsageError: there is no iterable, or one is none; the caller's fault.
    """
    if not iterables:
        raise UsageError("a map needs at least one iterable: mw.map(f, items)")
    for place, each in enumerate(iterables, 2):
        if not (star or hasattr(each, "__iter__") or hasattr(each, "__getitem__")):
            raise UsageError(
                f"argument {place} of the map is {each!r}, not an iterable: write itertools.repeat({each!r}) "
                f"for an argument that is the same for all items, and chunksize=... for the size of chunks"
            )
    one = iterables[0] if len(iterables) == 1 else None
    star = star or isinstance(one, Grid | KeywordItems)
    source = zip(*iterables, strict=False) if one is None else iter(one)
    args_of = alone if one is not None and not star else tuple
    tag_of = None if args_of is alone else namer_of(function, None if star else len(iterables))

    def call_of(item: Any) -> Call:
        if star and isinstance(item, Mapping):
            return terms, (), {**item}
        return terms, args_of(item), NO_KEYWORDS

    packable = terms if can_be_packed(terms, settings) else None
    return MapItems(source, call_of, args_of, packable, star, tag_of)


def can_be_packed(terms: Terms, settings: MasterSettings) -> bool:
    """Whether items with these terms can be treated as one thing: nothing is said about each of them."""
    _, policy, extras = terms
    fixed = settings.task_group is not None or settings.result_group
    special = policy.limits is not None or policy.sid is not None or policy.speculate or not policy.retry
    return extras is None and not fixed and not special


@define(eq=False, repr=False)
class PortionSizes:
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
        self._item_s = learn(self._item_s, seconds / count, OVERHEAD_S)


# The run of one map: which items are in flight, and in which order their results are given out.
#
# All maps of a master are such runs. A run reads its items lazily and keeps a bounded number of tasks and bytes, so the
# items may be endless. Several runs may be open at once.
#
# A run is a generator, and is closed with it: after its last result, by an exception, by `close`, or when nobody refers
# to the generator any more. Closing cancels the tasks that have not ended.


MAP_PENDING = 1000
"""How many of its tasks a map keeps pending in the master or finished, beyond the tasks that slaves hold. If they are
short, this is at least `PORTIONS_PENDING` portions for each slave."""

PORTIONS_PENDING = 2

MAP_BYTES = 256 << 20
"""Bytes of arguments in flight, and of results that wait for their turn, at which a map reads no more items."""

MAP_WINDOW = 250_000
"""How many items an ordered map may run ahead of the item that it waits for."""

READ_S = 0.05
"""Seconds after which reading items stops if results wait. So a slow iterable does not hold back the results of the
items that it has given already, and the call of a map returns soon."""

ALL_FAILED = 2
"""From this many items on, a map of results says that all of them failed."""

READ_EVERY = 100
"""After this many results, a map reads more items. So slaves stay busy while the user works on the results."""

READS = 5
"""Reading the items of a portion should take at most one in this many parts of `READ_S`."""

LOOK_S = 0.002
"""While values of a stretch are given out, a map reads more items at most this often, in seconds."""


def sizes_of(chunksize: int | None) -> PortionSizes:
    """Return what decides about portions of at most this many items.

    Raises:
        UsageError: it is not a positive number; the caller's fault.
    """
    most = within(1, math.inf, index, "a number of items from 1 on, or None")("chunksize", chunksize)
    return PortionSizes() if most is None else PortionSizes(most)


@define(eq=False, repr=False)
class Portion:
    """Items of a map that were submitted together; often only one. This object is the tag of their tasks."""

    first: int
    """The id of the first task."""
    position: int
    """The position of the first item in the map."""
    items: Sequence[Any]
    size: int
    """Bytes of arguments."""
    left: int
    """How many of the results were not taken from `MapRun.arrived`."""
    taken: list[tuple[int, int]] = Factory(list)
    """Which of the results were taken before the last: place and count."""

    @property
    def ids(self) -> range:
        """The ids of its tasks."""
        return range(self.first, self.first + len(self.items))

    def untaken(self) -> Iterator[tuple[int, Any]]:
        """The items whose results were not taken, with their positions."""
        taken = {place + at for place, count in self.taken for at in range(count)}
        return ((self.position + at, item) for at, item in enumerate(self.items) if at not in taken)


@define(eq=False, repr=False)
class MapRun:
    """The state of one run. It owns its tasks: their ends come to `arrive`.

    Args:
        source: the items.
        ordered: whether results are given out in the order of the items, or as they arrive.
        values: whether values are given out, and the first failure is raised; else results.
        progress: what shows the progress, or None.
        total: how many items there are, as the user says or the iterables know; None if this is unknown.
        max_failures: at how many failures the run stops; None for no limit. It needs results, not values.
        sizes: decides how many items a portion has.
    """

    access: Access
    inbox: Inbox
    calls: Calls
    source: MapItems
    ordered: bool
    values: bool = False
    progress: Progress | None = None
    _total: int | None = None
    max_failures: MaxFailures | None = None
    _sizes: PortionSizes = Factory(PortionSizes)
    user: User = Factory(lambda self: self.access.user, takes_self=True)
    """The thread of the algorithm, which gets what has ended."""
    open: dict[int, Portion] = Factory(dict)
    """The portions with results that were not taken from `arrived`, by the ids of their first tasks."""
    num_open: int = 0
    """How many results were not taken."""
    arrived: deque[Ended] = Factory(deque)
    """What arrived. An interrupt may leave something here twice."""
    _num_arrived: int = 0
    """About how many results this is."""
    _early: dict[int, Result[Any] | Stretch] = Factory(dict)
    """What was taken from `arrived` and waits for its turn, by position."""
    unread: int | None = 0
    """How many items were not read; None if this is unknown."""
    is_read: bool = False
    """Whether somebody has asked for a value, or cannot: the call was interrupted, or there are no items."""
    closed: bool = False
    """Whether nobody will take a result."""
    last: int = 0
    """The id of the last task that was submitted before the map was closed."""
    _submitted: int = 0
    _packs: bool = False
    """Whether the items that were submitted last are one portion."""
    _turn: int = 0
    """If results are given out in order: the position of the next one."""
    _look_at: float = 0.0
    """When to read more items while values are given out."""
    _bytes: int = 0
    """Bytes of arguments in flight."""
    _early_bytes: int = 0
    """Bytes of results that wait for their turn."""
    _exhausted: bool = False
    _failures: FailuresByKind = Factory(FailuresByKind)
    _num_failed: int = 0
    """How many results are failures."""
    _first_failure: TaskFailed | None = None
    _began: float = -math.inf
    """With a run database: when the run began. Results that ended before are from there."""
    _num_reused: int = 0
    """How many results are from the run database."""
    _stopped: TooManyFailures | None = None
    """What the run raises at its end, because it was stopped. Results of tasks that did not run are left out."""

    def __attrs_post_init__(self) -> None:
        if self.calls.keys is not None:
            self._began = clock.wall()
        if self.inbox.abandoned:
            self.inbox.end_abandoned()
        self.access.io.maps.add(self)

    # ---- for the inbox, and for what shows the state of the master ----

    def arrive(self, ended: Sequence[Ended]) -> None:
        """Some tasks have ended. After an interrupt, this may be called twice with the same ends."""
        if not self.closed:
            self.arrived.extend(ended)
            self._num_arrived += sum(map(count_of, ended))

    def item(self, task_id: int) -> Any:
        """The item of a task whose end was not given out; None if there is none."""
        return next((each.items[task_id - each.first] for each in self.open.values() if task_id in each.ids), None)

    @property
    def num_waiting(self) -> int:
        """How many results arrived and were not given out."""
        return sum(map(count_of, self.arrived)) + sum(map(count_of, self._early.values()))

    @property
    def status(self) -> MapStatus:
        """How far the run is. Any thread may ask."""
        terms = self.source.terms
        name = "calls" if terms is None else terms[0].name
        return MapStatus(name, self._submitted - self.num_open, self._num_items, self._num_failed)

    @property
    def _num_items(self) -> int | None:
        """How many items there are; None if this is unknown, because not all were read."""
        return self._submitted if self._exhausted else self._total

    def ids(self, last: int) -> list[int]:
        """The ids of the tasks that may not have ended, up to the id `last`."""
        return [number for portion in self.open.values() for number in portion.ids if number <= last]

    def forget(self) -> None:
        """Keep no items and results. The tasks that are still on their way refer to this object."""
        for portion in self.open.values():
            portion.items = ()
        self.open.clear()
        self.arrived.clear()
        self._early.clear()
        self.source = NO_ITEMS

    # ---- the run itself ----

    def start(self) -> Generator[Any, None, None]:
        """Submit the first items. Return the generator of the values or results."""
        given = self._run()
        try:
            next(given)
        except BaseException:
            self.is_read = True
            given.close()  # an interrupt that came between is raised here, not in the generator
            raise
        return given

    def _run(self) -> Generator[Any, None, None]:
        """Submit items and give out their results. The loops determine what an item costs, so they make few calls."""
        submissions, source, values = self.access.io.submissions, self.source, self.values
        shown = self.access.user.progress
        try:
            if self.progress is not None:
                shown.begin(self.progress, self._figures)
            self._read(at_call=True)
            self.is_read = self._exhausted and not self._submitted
            yield  # `start` takes it
            self.is_read = True
            not_run: list[Result[Any]] = []
            while self.open or not self._exhausted:
                self._receive()
                self._read()
                if not self.arrived and self.open:
                    self._receive(wait=True)
                for given in self._in_turn() if self.ordered else map(_ENDED, self._arrived()):
                    if isinstance(given, Stretch):
                        for some in self._parts_of(given):
                            yield from some
                    elif self._stopped is not None and isinstance(given.error, TaskCancelled):
                        not_run.append(given)
                    else:
                        yield given.value if values else given
            if self._stopped is not None:
                self._stopped.task_ids = self._stopped.task_ids or [result.task_id for result in not_run]
                self._stopped.remaining = self._left([result.tag for result in not_run])
                raise self._stopped
            if source.error is not None:
                raise source.error
            self._say_if_all_failed()
        finally:
            # no interrupt comes before the end of the third line, so an interrupt cannot leave the tasks running
            self.closed = True
            self.last = submissions.total
            self.inbox.abandoned[self] = None
            try:
                self.inbox.end_abandoned()
                if self.progress is not None:
                    shown.end(self.progress)
            finally:  # what has submitted tasks remembers their last owner, which should not keep the master
                del self.access, self.inbox, self.calls

    def _say_if_all_failed(self) -> None:
        """Results are rows of a table, in which nobody may look at the column of errors."""
        error = self._first_failure
        if error is not None and self._num_failed == self._submitted >= ALL_FAILED:
            first = in_one_line(error.type_name, error.text)
            remedy = f" ({error.remedy})" if error.remedy else ""
            what = f"all {self._submitted} items of the map of {error.algorithm} failed"
            self.access.io.command(Tell(f"{what}, the first one with {first}{remedy}"))

    def _figures(self) -> Figures:
        """How far the run is."""
        slaves = self.access.io.num_slaves if self.access.usable else 0
        return Figures(self._submitted - self.num_open, self._num_items, self._num_failed, slaves, self._num_reused)

    def _parts_of(self, stretch: Stretch) -> Iterator[Iterable[Any]]:
        """The values of a stretch, or its results, in parts. Read more items in between, if the user is slow."""
        tags, tag_of = stretch.tag, self.source.tag_of
        given = stretch.values if self.values else [*stretch.results(map(tag_of, tags) if tag_of else tags)]
        for start in range(0, len(given), READ_EVERY):
            some = range(start, min(start + READ_EVERY, len(given)))
            if stretch.plain or not self.values:
                yield given[some.start : some.stop]
            else:
                yield map(stretch.value_at, some, repeat(stretch.tag))
            if clock.monotonic() > self._look_at:
                self._receive(rest=stretch.tag[start + READ_EVERY :])
                self._read()
                self._look_at = clock.monotonic() + LOOK_S

    def _in_turn(self) -> Iterator[Result[Any] | Stretch]:
        """Keep what arrived early, and yield what has its turn."""
        early = self._early
        for position, given in self._arrived():
            if position != self._turn:
                early[position] = given
                self._early_bytes += _size(given)
                continue
            self._turn += count_of(given)
            yield given
            while early and (waited := early.pop(self._turn, None)) is not None:
                self._turn += count_of(waited)
                self._early_bytes -= _size(waited)
                yield waited

    def _receive(self, wait: bool = False, rest: Sequence[Any] = ()) -> None:
        """Let results arrive. If the whole computation is stopped, the run ends with the results that have arrived.

        Args:
            rest: the items of results that have arrived and have their turn.
        """
        try:
            if wait:
                self.inbox.wait()
            else:
                self.inbox.receive()
        except TooManyFailures as error:
            if self.values:
                error.remaining = self._left([*rest, *self._unended()])
                raise
            self._stopped, self._exhausted = error, True

    def _left(self, items: Iterable[Any]) -> Iterator[Any]:
        """These items and those that were not read."""
        left = chain(items, self.source.items)
        return KeywordItems(left) if self.source.may_name else left

    def _unended(self) -> list[Any]:
        """The items whose results were not given out, in their order."""
        found = [each for portion in self.open.values() for each in portion.untaken()]
        for position, given in self._early.items():
            found += enumerate(given.tag if isinstance(given, Stretch) else [given.tag], position)
        return [item for _, item in sorted(found, key=itemgetter(0))]

    def _read(self, at_call: bool = False) -> None:
        """Submit the next items, until the window is full, no item is left, or results should not wait longer."""
        if self._exhausted:
            return
        io, sizes = self.access.io, self._sizes
        link, slaves, began = io.link, io.num_slaves, clock.monotonic()
        until = began + READ_S
        largest = max(1, MAP_WINDOW // (4 * (slaves + 1)))  # so that each slave has several in the window
        usual = min(sizes.usual, largest)
        most = max(MAP_PENDING, PORTIONS_PENDING * (slaves + 1) * usual) if self._packs else MAP_PENDING
        while (room := self._room(most)) > 0 and (room_bytes := MAP_BYTES - self._bytes - self._early_bytes) > 0:
            left = None if self._total is None else self._total - self._submitted
            count = min(largest, sizes.next(left, room_bytes, slaves))
            if room < count and room < min(most, MAP_WINDOW) // 4 and self.open:
                return  # a portion would be too small
            count = min(room, count)
            before = self._submitted
            size = self._submit(count)
            num_read = self._submitted - before
            if num_read:
                now = clock.monotonic()
                sizes.read(num_read, size, now - began, READ_S / READS)
                began = now
            self._exhausted = num_read < count
            self.unread = 0 if self._exhausted else None if left is None else max(0, left - num_read)
            if link.asleep:  # the I/O thread has no work, as with a slow iterable
                link.wake()
                if began > until and (at_call or self.arrived or not self.access.user.outcomes.empty()):
                    return
            if self._exhausted:
                return

    def _submit(self, count: int) -> int:
        """Read and submit up to `count` items, together if they can be packed. Return the bytes of their arguments."""
        source, submissions, before = self.source, self.access.io.submissions, self._bytes
        read, packed, calls = source.read(count, self.calls.codec, only_plain=self.calls.keys is not None)
        self._packs = packed is not None
        if packed is None or source.terms is None:
            for item, call in zip(read, calls or repeat(None), strict=False):
                self._submit_alone(item, call)
        elif packed:
            items = [*read]
            defined, policy, _ = source.terms
            # first, so that an interrupt leaves no task that is not known here
            with self.access.io.submitting:
                portion = self._open(submissions.total + 1, items, packed.size)
                submissions.add_portion(defined, policy, packed, portion, self)
        return self._bytes - before

    def _submit_alone(self, item: Any, encoded: EncodedCall | None) -> None:
        """Submit one item as a task of its own. `encoded` is its encoded call, if it is known."""
        submissions = self.access.io.submissions
        terms, args, kwargs = self.source.call_of(item)
        payload, buffers, key, refers = self.calls.task(terms, args, kwargs, self._submitted, encoded)
        size = len(payload) + sum(map(len, buffers)) if buffers else len(payload)
        with self.access.io.submitting:
            portion = self._open(submissions.total + 1, (item,), size)
            submissions.add(terms[0], terms[1], payload, buffers, portion, key, refers, self)

    def _open(self, first: int, items: Sequence[Any], size: int) -> Portion:
        """Make a portion, whose tasks are submitted next."""
        count = len(items)
        portion = self.open[first] = Portion(first, self._submitted, items, size, count)
        self.num_open += count
        self._submitted += count
        self._bytes += size
        return portion

    def _room(self, most: int) -> int:
        """How many items may be submitted now, if `most` may be pending; at least one if no task is open."""
        pending = self.access.io.submissions.pending()  # of the whole master, so at most all open tasks are own ones
        room = most - min(pending + self._num_arrived, self.num_open)
        return min(room, MAP_WINDOW - (self._submitted - self._turn)) if self.ordered else room

    def _arrived(self) -> Iterator[tuple[int, Result[Any] | Stretch]]:
        """Take some of what arrived, each with its position. Its tag becomes its item or items."""
        for _ in range(min(len(self.arrived), READ_EVERY)):
            ended = self.arrived.popleft()
            count, portion = count_of(ended), ended.tag
            self._num_arrived -= count
            if type(portion) is not Portion:  # it was here twice
                continue
            place = (ended.first if isinstance(ended, Stretch) else ended.task_id) - portion.first
            ended.tag = portion.items[place : place + count] if isinstance(ended, Stretch) else portion.items[place]
            given = ended.result() if isinstance(ended, UnrunnableTask) else ended
            if self.source.tag_of is not None and not isinstance(given, Stretch):
                given.tag = self.source.tag_of(given.tag)
            self.num_open -= count
            portion.left -= count
            if portion.left:
                portion.taken.append((place, count))
            else:
                del self.open[portion.first]
                self._bytes -= portion.size
            if isinstance(given, Stretch):
                self._sizes.ended(count, given.total_s)
            else:
                self._sizes.ended(count, given.compute_seconds)
                self._num_reused += given.finished < self._began
                if failed(given):
                    self._fail(given)
            yield portion.position + place, given

    def _explain(self, result: Result[Any]) -> None:
        """Say what to write if the arguments of the function are the parts of the item."""
        if self.source.args_of is not alone or self.source.may_name or not isinstance(result.tag, tuple | list | dict):
            return
        error = result.error
        if error is not None and error.type_name == "TypeError" and "missing" in error.text:
            instead = "starmap" if self.values else "starmap_results"
            error.remedy = f"a map passes each item as one argument: mw.{instead} passes its parts as the arguments"

    def _fail(self, result: Result[Any]) -> None:
        """Count a failure, and stop the run at the last one that is allowed."""
        self._num_failed += 1
        self._explain(result)
        error, limit = result.error, self.max_failures
        self._first_failure = self._first_failure or error
        if limit is None or self._stopped is not None or error is None:
            return
        self._failures.add(error)
        ended = self._submitted - self.num_open
        if limit.is_reached(self._num_failed, ended):
            running = Running.FINISH if limit.finish else Running.KILL
            self.inbox.ask(CancelTasks.of(self.ids(self.access.io.submissions.total), running))
            self._stopped = TooManyFailures(str(limit), self._num_failed, ended, self._failures.take(), [])
            self._exhausted = True


NO_ITEMS = MapItems(iter(()), lambda item: item)
"""The items of a map that is closed."""

_ENDED = itemgetter(1)


def _size(given: Result[Any] | Stretch) -> int:
    return given.size if isinstance(given, Stretch) else size_of(given)
