"""How a master applies functions to items: `map` and its variants, and how large the portions of items are."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice, repeat
from operator import index, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeVar, TypeVarTuple, Unpack, overload

from msgspec import Struct

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.dispatch import learn
from mwpy._core.master.state import CancelTasks, MasterSettings, Running, TakeReports
from mwpy._roles.computation import MasterParts
from mwpy._roles.definitions import Extras, Terms, check_map_key
from mwpy._roles.inbox import Access, HeldResults, Inbox
from mwpy._roles.map_tasks import Arrived, Portion, count_of
from mwpy._roles.progress import Figures, Progress, ShowProgress, progress_of
from mwpy._roles.summary import summary_of
from mwpy._system import clock
from mwpy._transport.codec import Codec, any_large
from mwpy._values.algorithm import Algorithm, TaskCall, algorithm_of
from mwpy._values.bounds import LARGE_BYTES, Buffer, TaskId
from mwpy._values.errors import TaskCancelled, TooManyFailures, UsageError
from mwpy._values.groups import ARGUMENTS, ROWS, PackedCalls, Stretch
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN
from mwpy._values.messages import Report
from mwpy._values.policy import FailureLimit, FailuresByKind, MaxFailures, Policies, TaskPolicy
from mwpy._values.task import Result, failed, is_stored, seed_at, size_of

if TYPE_CHECKING:
    from mwpy._roles.task_keys import TaskKeys
    from mwpy.executor import Executor


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
        """Encode the calls of items together; None if they are not plain, if one is large, or if none may be packed."""
        if self.rows is None:
            return None
        rows = items if self.rows is zip else [*self.rows(items)]
        kinds = {*map(type, items if rows is items else chain.from_iterable(rows))}
        if not kinds <= PLAIN or any_large(items if rows is items else chain.from_iterable(rows), kinds):
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

LARGE_BYTES_OPEN = 16 << 20
LARGE_ITEMS_OPEN = 4
"""For items with large buffers: how many bytes of arguments may be in flight, and how many items for each slave. The
larger limit holds. More would need memory, and would not be faster."""

MAP_WINDOW = 250_000
"""How many items an ordered map may run ahead of the item that it waits for."""

READ_S = 0.05
"""Seconds after which reading items stops if results wait. So a slow iterable does not hold back the results of the
items that it has given already, and the call of a map returns soon."""

READ_EVERY = 100
"""After this many results, a map reads more items. So slaves stay busy while the user works on the results."""

READ_LARGE_EVERY = 2
"""The same for items with large buffers, because few of them are in flight."""

READS = 5
"""Reading the items of a portion should take at most one in this many parts of `READ_S`."""

LOOK_S = 0.002
"""While values of a stretch are given out, a map reads more items at most this often, in seconds."""


class MapOptions(Policies, total=False):
    """The keywords of `Master.map`, for type checkers."""

    chunksize: int | None
    progress: ShowProgress
    total: int | None


def algorithm_of_call(call: TaskCall[Any], method: str) -> Algorithm:
    """Return the algorithm of a task call. `method` is what the user called with it.

    Raises:
        UsageError: it is no task call; the caller's fault.
    """
    try:
        return call.algorithm
    except AttributeError:
        raise UsageError(
            f"{method} needs a call that was not made yet, not a {type(call).__qualname__}: write f.task(x), or "
            f"mwpy.task(f, x)"
        ) from None


def most_of(chunksize: object) -> int:
    """Return how many items a portion may have.

    Raises:
        UsageError: it is not a positive number; the caller's fault.
    """
    if chunksize is None:
        return MOST_ITEMS
    if not (isinstance(chunksize, SupportsIndex) and index(chunksize) > 0):
        raise UsageError(f"chunksize={chunksize!r}: give a number of items from 1 on, or None")
    return index(chunksize)


class MapRun:
    """The state of one run.

    Args:
        source: the items.
        ordered: whether results are given out in the order of the items, or as they arrive.
        values: whether values are given out, and the first failure is raised; else results.
        progress: what shows the progress, or None.
        max_failures: at how many failures the run stops; None for no limit. It needs results, not values.
        most: how many items a portion may have.
        keys: what makes the keys of tasks; None without a run database.
    """

    def __init__(
        self,
        access: Access,
        inbox: Inbox,
        held: HeldResults,
        codec: Codec,
        source: MapItems,
        ordered: bool,
        values: bool = False,
        progress: Progress | None = None,
        max_failures: MaxFailures | None = None,
        most: int = MOST_ITEMS,
        keys: TaskKeys | None = None,
    ) -> None:
        self.access = access
        self.inbox = inbox
        self.held = held
        self.codec = codec
        self.source = source
        self.ordered = ordered
        self.values = values
        self.progress = progress
        self.max_failures = max_failures
        self.most = most
        self.keys = keys
        self._tasks = inbox.open_map()
        self._sizes = PortionSizes(most)
        self._submitted = 0
        self._packs = False
        """Whether the items that were submitted last are one portion."""
        self._turn = 0
        """If results are given out in order: the position of the next one."""
        self._look_at = 0.0
        """When to read more items while values are given out."""
        self._bytes = 0
        """Bytes of arguments in flight."""
        self._early_bytes = 0
        """Bytes of results that wait for their turn."""
        self._exhausted = False
        self._failures = FailuresByKind()
        self._failed = 0
        """How many results are failures, if there is a limit."""
        self._num_failed = 0
        """How many results are failures, also those after the stop."""
        self._num_reused = 0
        """How many results are from the run database."""
        self._stopped: TooManyFailures | None = None
        """What the run raises at its end, because it was stopped."""

    def start(self) -> Generator[Any, None, None]:
        """Submit the first items. Return the generator of the values or results."""
        given = self._run()
        try:
            next(given)
        except BaseException:
            self._tasks.is_read = True
            given.close()  # an interrupt that came between is raised here, not in the generator
            raise
        stops = self.max_failures is not None or self.inbox.settings.max_failures is not None
        return self._until_stopped(given) if stops and not self.values else given

    def _run(self) -> Generator[Any, None, None]:
        """Submit items and give out their results. The loops determine what an item costs, so they make few calls."""
        tasks, submissions, values = self._tasks, self.access.io.submissions, self.values
        shown = self.access.user.progress
        try:
            if self.progress is not None:
                shown.begin(self.progress, self._figures)
            self._read(at_call=True)
            tasks.is_read = self._exhausted and not self._submitted
            yield  # `start` takes it
            tasks.is_read = True
            while tasks.open or not self._exhausted:
                self._receive()
                self._read()
                if not tasks.arrived and tasks.open:
                    self._receive(wait=True)
                arrived = self._arrived() if self.max_failures is None else self._counted()
                for given in self._in_turn(arrived) if self.ordered else map(_ARRIVED, arrived):
                    if isinstance(given, Stretch):
                        for some in self._parts_of(given):
                            yield from some
                    else:
                        yield given.value if values else given
            if self.source.error is not None:
                raise self.source.error
        finally:
            # no interrupt comes before the end of the third line, so an interrupt cannot leave the tasks running
            tasks.closed = True
            tasks.last = submissions.total
            self.inbox.abandoned[tasks] = None
            self.inbox.end_abandoned()
            if self.progress is not None:
                shown.end(self.progress)

    def _figures(self) -> Figures:
        """How far the run is."""
        total = None if self.progress is None else self.progress.total
        slaves = self.access.io.num_slaves if self.access.usable else 0
        return Figures(self._submitted - self._tasks.num_open, total, self._num_failed, slaves, self._num_reused)

    def _parts_of(self, stretch: Stretch) -> Iterator[Iterable[Any]]:
        """The values of a stretch, or its results, in parts. Read more items in between, if the user is slow."""
        given = stretch.values if self.values else [*stretch.results(stretch.tag)]
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

    def _in_turn(self, arrived: Iterator[tuple[int, Arrived]]) -> Iterator[Arrived]:
        """Keep what arrived early, and yield what has its turn."""
        early = self._tasks.early
        for position, given in arrived:
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
                error.remaining = chain(rest, self._tasks.unended(), self.source.items)
                raise
            self._stopped, self._exhausted = error, True

    def _counted(self) -> Iterator[tuple[int, Arrived]]:
        """Take some of the results that arrived, and stop at the last failure that is allowed."""
        limit, tasks = self.max_failures, self._tasks
        assert limit is not None
        for position, given in self._arrived():
            error = given.error if isinstance(given, Result) and failed(given) else None
            if error is not None and self._stopped is None:
                self._failures.add(error)
                self._failed += 1
                ended = self._submitted - tasks.num_open
                if limit.is_reached(self._failed, ended):
                    running = Running.FINISH if limit.finish else Running.KILL
                    self.inbox.ask(CancelTasks.of(tasks.ids(self.access.io.submissions.total), running))
                    self._stopped = TooManyFailures(str(limit), self._failed, ended, self._failures.take(), [])
                    self._exhausted = True
            yield position, given

    def _until_stopped(self, given: Generator[Result[Any], None, None]) -> Generator[Result[Any], None, None]:
        """Give out results. If the run is stopped, leave out those of tasks that did not run, and raise at the end."""
        not_run: list[tuple[TaskId, Any]] = []
        with closing(given):
            for result in given:
                if self._stopped is not None and isinstance(result.error, TaskCancelled):
                    not_run.append((result.task_id, result.tag))
                else:
                    yield result
        if self._stopped is not None:
            self._stopped.task_ids = self._stopped.task_ids or [task_id for task_id, _ in not_run]
            self._stopped.remaining = chain([item for _, item in not_run], self.source.items)
            raise self._stopped

    def _read(self, at_call: bool = False) -> None:
        """Submit the next items, until the window is full, no item is left, or results should not wait longer."""
        if self._exhausted:
            return
        io, sizes, source = self.access.io, self._sizes, self.source
        link, slaves, began = io.link, io.num_slaves, clock.monotonic()
        until = began + READ_S
        largest = max(1, MAP_WINDOW // (4 * (slaves + 1)))  # so that each slave has several in the window
        usual = min(sizes.usual, largest)
        most = max(MAP_PENDING, PORTIONS_PENDING * (slaves + 1) * usual) if self._packs else MAP_PENDING
        while (room := self._room(most)) > 0 and (room_bytes := self._room_bytes(slaves)) > 0:
            left = None if source.total is None else source.total - self._submitted
            count = min(largest, sizes.next(left, room_bytes, slaves))
            if room < count and room < min(most, MAP_WINDOW) // 4 and self._tasks.open:
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
            total = source.total if self.progress is None else self.progress.total
            self._tasks.unread = 0 if self._exhausted else None if total is None else max(0, total - self._submitted)
            if link.asleep:  # the I/O thread has no work, as with a slow iterable
                link.wake()
                if began > until and (at_call or self._tasks.arrived or not self.access.user.outcomes.empty()):
                    return
            if self._exhausted:
                return

    def _submit(self, count: int) -> int:
        """Read and submit up to `count` items, together if they can be packed. Return the bytes of their arguments."""
        source, submissions, before = self.source, self.access.io.submissions, self._bytes
        read = source.read(count, self.codec, only_plain=self.keys is not None)
        self._packs = read.packed is not None
        if read.packed is None or source.terms is None:
            for item, call in zip(read.items, read.calls or repeat(None), strict=False):
                self._submit_alone(item, call)
        elif read.packed:
            items = [*read.items]
            defined, policy, _ = source.terms
            # first, so that an interrupt leaves no task that is not known here
            with self.access.io.submitting:
                portion = self._open(submissions.total + 1, items, read.packed.size)
                submissions.add_portion(defined, policy, read.packed, portion)
        return self._bytes - before

    def _submit_alone(self, item: Any, call: tuple[bytes, Sequence[Buffer]] | None) -> None:
        """Submit one item as a task of its own. `call` is its encoded call with its large buffers, if it is known."""
        submissions = self.access.io.submissions
        [(defined, policy, extras, args, kwargs)] = self.source.calls([item])
        payload, buffers = call or self.codec.dumps_call(args, kwargs, defined.name)
        seed = None if extras is None or extras.seed is None else seed_at(extras.seed, self._submitted)
        key = None if self.keys is None else self.keys.of(defined, args, kwargs, payload, extras, seed)
        if extras is not None:
            payload = extras.add(payload, seed)
        size = len(payload) + sum(map(len, buffers)) if buffers else len(payload)
        refers = self.held.refer(buffers) if buffers else ()
        with self.access.io.submitting:
            portion = self._open(submissions.total + 1, (item,), size)
            submissions.add_keyed(defined, policy, payload, buffers, portion, key, refers)

    def _open(self, first: int, items: Sequence[Any], size: int) -> Portion:
        """Make a portion, whose tasks are submitted next."""
        tasks, count = self._tasks, len(items)
        portion = tasks.open[first] = Portion(tasks, first, self._submitted, items, size, count)
        tasks.num_open += count
        self._submitted += count
        self._bytes += size
        return portion

    def _room(self, most: int) -> int:
        """How many items may be submitted now, if `most` may be pending; at least one if no task is open."""
        tasks = self._tasks
        pending = self.access.io.submissions.pending()  # of the whole master, so at most all open tasks are own ones
        room = most - min(pending + tasks.num_arrived, tasks.num_open)
        return min(room, MAP_WINDOW - (self._submitted - self._turn)) if self.ordered else room

    def _room_bytes(self, slaves: int) -> int:
        """How many bytes of arguments may be submitted now."""
        item_bytes = self._sizes.item_bytes
        room = MAP_BYTES - self._bytes - self._early_bytes
        if item_bytes < LARGE_BYTES:
            return room
        return min(room, max(LARGE_BYTES_OPEN, int(LARGE_ITEMS_OPEN * (slaves + 1) * item_bytes)) - self._bytes)

    def _arrived(self) -> Iterator[tuple[int, Arrived]]:
        """Take some of what arrived, each with its position."""
        tasks = self._tasks
        most = READ_EVERY if self._sizes.item_bytes < LARGE_BYTES else READ_LARGE_EVERY
        for _ in range(min(len(tasks.arrived), most)):
            given = tasks.arrived.popleft()
            count, portion = count_of(given), given.tag
            tasks.num_arrived -= count
            if type(portion) is Portion:  # else it was here twice
                position = portion.take(given, count)
                if not portion.left:
                    self._bytes -= portion.size
                if isinstance(given, Stretch):
                    self._sizes.ended(count, given.total_s)
                else:
                    self._sizes.ended(count, given.compute_seconds)
                    self._num_failed += failed(given)
                    self._num_reused += is_stored(given)
                yield position, given


_ARRIVED = itemgetter(1)


def _size(given: Arrived) -> int:
    return given.size if isinstance(given, Stretch) else size_of(given)


def _is_wanted(report: Report) -> bool:
    """Whether somebody waits for the task of a report. The tag of an item becomes this item."""
    tag = report.tag
    if type(tag) is Portion:
        if tag.tasks.closed:
            return False
        report.tag = tag.item(report.task_id)
    return True


A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Maps:
    """The maps of a master, and what shows the state of its computation. `mwpy.Master` adds everything else that a
    master algorithm drives."""

    def __init__(self, parts: MasterParts) -> None:
        self._parts = parts
        self._progress: Progress | None = None
        self._followed: dict[tuple[TaskId, int, str], int] = {}
        """How many bytes of each file `follow` has returned, by task, attempt and name."""

    def progress(self, show: ShowProgress = True, *, total: int | None = None) -> None:
        """Show the progress of all tasks from now on, until the computation ends.

        It is shown while the master waits, as for `map`, or for a future of `executor`. `--mw-progress` calls this
        before the master algorithm starts.

        Args:
            show: as `progress` of `map`; False shows it no longer.
            total: how many tasks there will be; None counts those that were submitted and the items of open maps.

        Raises:
            UsageError: an argument has a wrong type; the caller's fault.

        Examples:
            >>> mw.progress(total=2000)                        # doctest: +SKIP
        """
        shown, io = progress_of(show, total, (), "tasks"), self._parts.access.io
        if self._progress is not None:
            io.users.algorithm.progress.end(self._progress)
        self._progress = shown

        def figures() -> Figures:
            jar, expected = io.core.state.jar, total
            if expected is None and (unread := io.unread_items()) is not None:
                expected = io.submissions.total + unread + io.users.queued()
            return Figures(jar.ended, expected, jar.failed, io.num_slaves, jar.reused.count)

        if shown is not None:
            shown.is_shared = not callable(show)
            io.users.algorithm.progress.begin(shown, figures)

    def reports(self) -> list[Report]:
        """Return what running tasks have sent with `mwpy.report` since the last call: the newest report of each.

        `loop` does not return for a report, because there may be many: wait with `mw.loop(timeout=1)`. In a map, call
        this between the results.

        Returns:
            The reports, oldest first, each once. Reports of attempts that have ended are left out, and so are those of
            executors. With `slaves=0` there are none, because this thread runs the tasks.

        Raises:
            TooManyFailures: `max_failures` stops the whole computation.

        Examples:
            >>> ids = [mw.submit(train.task(rate), tag=rate) for rate in rates]  # doctest: +SKIP
            >>> left = len(ids)                                # doctest: +SKIP
            >>> while left:                                    # doctest: +SKIP
            ...     mw.loop(timeout=1)
            ...     mw.cancel(report.task_id for report in mw.reports() if report.values["loss"] > 100)
            ...     left -= len(mw.results())
        """
        inbox = self._parts.inbox
        inbox.receive()
        inbox.ask(TakeReports())
        fetched, inbox.reports = inbox.reports, {}
        return [report for report in fetched.values() if _is_wanted(report)]

    def follow(self, task_id: TaskId) -> dict[str, bytes]:
        """Return what a running program has written since the last call, by the names in `follow` of its command.

        Its slave looks once a second. `loop` does not return for this: wait with `mw.loop(timeout=1)`. When the program
        has ended, the rest is in the result: `Outcome.followed` has the size and the end of each of these files.

        Args:
            task_id: a task of an `mwpy.command` with `follow`.

        Returns:
            The bytes, without the files that have not grown; empty if the task does not run. Of a file that grows by
            more than 48 KiB between two calls, a line says how many bytes are left out.

        Raises:
            UsageError: the task reports something else; the caller's fault.

        Examples:
            >>> sim = mwpy.command("simulate {alpha}", follow=["STDOUT"])          # doctest: +SKIP
            >>> task = mw.submit(sim.task(alpha=0.1))          # doctest: +SKIP
            >>> while not (results := mw.results()):           # doctest: +SKIP
            ...     mw.loop(timeout=1)
            ...     print(mw.follow(task).get("STDOUT", b"").decode(), end="")
        """
        inbox = self._parts.inbox
        inbox.receive()
        inbox.ask(TakeReports())
        found = [report for report in inbox.reports.values() if report.task_id == task_id]
        for report in found:
            del inbox.reports[report.sid]
        if not found:
            return {}
        newest = max(found, key=lambda report: report.attempt)
        if not all(isinstance(value, tuple) for value in newest.values.values()):
            raise UsageError(f"task {task_id} reports values of its own: mw.reports() returns them")
        return {name: self._new_part((task_id, newest.attempt, name), *grown) for name, grown in newest.values.items()}

    def _new_part(self, file: tuple[TaskId, int, str], size: int, end: bytes) -> bytes:
        new = size - self._followed.get(file, 0)
        self._followed[file] = size
        left_out = b"[%d bytes are left out]\n" % (new - len(end)) if new > len(end) else b""
        return left_out + end[max(0, len(end) - new) :]

    def summary(self) -> str:
        """Return what was done until now, as a text of several lines: for each algorithm on each host the tasks, their
        failures by kind, and the lost attempts by cause.

        `--mw-summary` writes it to standard error at the end.

        Examples:
            >>> print(mw.summary())                            # doctest: +SKIP
        """
        return summary_of(self._parts.access.io)

    @overload
    def map(
        self, function: Callable[[A], R], iterable: Iterable[A], /, **options: Unpack[MapOptions]
    ) -> Generator[R, None, None]: ...

    @overload
    def map(
        self,
        function: Callable[[A, B], R],
        iterable: Iterable[A],
        second: Iterable[B],
        /,
        **options: Unpack[MapOptions],
    ) -> Generator[R, None, None]: ...

    @overload
    def map(
        self,
        function: Callable[..., R],
        iterable: Iterable[Any],
        second: Iterable[Any],
        third: Iterable[Any],
        /,
        *more: Iterable[Any],
        **options: Unpack[MapOptions],
    ) -> Generator[R, None, None]: ...

    def map(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        chunksize: int | None = None,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Apply a function to each item on the slaves, and yield the values in the order of the items.

        The first items are submitted by this call. The others are read one after the other, and a limited number of
        them is in flight, so an iterable may be endless. The tasks end with the generator: when it is closed, when it
        raises, or when nobody refers to it any more, tasks that have not ended are cancelled.

        Args:
            function: a task algorithm or any other function.
            iterables: one iterable for each argument of the function. The shortest one ends the map.
            chunksize: the most items that may travel together, for code that was written for other pools. Each item is
                a task, and mwpy chooses how many of them travel together.
            progress: True shows a line on standard error if that is a terminal, a bar in a notebook, and lines at
                growing intervals in a log file; in a pipe it shows nothing. "text" writes these lines everywhere. A
                function `(done, total)` is called at most ten times a second, in this thread, while values are
                requested.
            total: how many items there are, for `progress`; None asks the iterables. It may be unknown.
            policy: the policies of `submit`. The seed of a task depends on `seed` and on the position of its item.

        Raises:
            UsageError: an argument or a policy is wrong, and the message names it. This call raises it.
            ArgumentNotPicklable: an item cannot be pickled. Raised when the item is read.
            TaskFailed: a task failed, when its value is requested. It names the item, the slave and the host. The map
                is closed then; use `map_results` to go on after failures.

        Examples:
            >>> sum(mw.map(square, range(1000)))               # doctest: +SKIP
            332833500
        """
        most = most_of(chunksize)
        items = self._items(function, iterables, policy)
        shown = progress_of(progress, total, iterables, algorithm_of(function).name)
        return self._run(items, ordered=True, values=True, progress=shown, most=most)

    def starmap(
        self,
        function: Callable[[Unpack[Ts]], R],
        tuples: Iterable[tuple[Unpack[Ts]]],  # noqa: UP044  # `*Ts` has another text in each version of Python
        chunksize: int | None = None,
        *,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Like `map`, but each item is a tuple of all arguments of a call.

        Examples:
            >>> list(mw.starmap(pow, [(2, 5), (3, 2)]))        # doctest: +SKIP
            [32, 9]
        """
        most, terms = most_of(chunksize), self._parts.terms.of_map(function, policy)
        items = with_terms(terms, iter(tuples), partial(map, tuple), self._parts.inbox.settings)
        shown = progress_of(progress, total, (tuples,), algorithm_of(function).name)
        return self._run(items, ordered=True, values=True, progress=shown, most=most)

    def imap_unordered(
        self,
        function: Callable[[A], R],
        iterable: Iterable[A],
        chunksize: int | None = None,
        *,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[R, None, None]:
        """Like `map` with one iterable, but yield the values as they arrive."""
        most, items = most_of(chunksize), self._items(function, (iterable,), policy)
        shown = progress_of(progress, total, (iterable,), algorithm_of(function).name)
        return self._run(items, ordered=False, values=True, progress=shown, most=most)

    @overload
    def map_results(
        self,
        function: Callable[[A], R],
        iterable: Iterable[A],
        /,
        *,
        ordered: bool = False,
        max_failures: FailureLimit = None,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]: ...

    @overload
    def map_results(
        self,
        function: Callable[..., R],
        iterable: Iterable[Any],
        second: Iterable[Any],
        /,
        *more: Iterable[Any],
        ordered: bool = False,
        max_failures: FailureLimit = None,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]: ...

    def map_results(
        self,
        function: Callable[..., R],
        *iterables: Iterable[Any],
        ordered: bool = False,
        max_failures: FailureLimit = None,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]:
        """Like `map`, but yield a `Result` for each item: it says how the task ended, and failures close nothing.

        Args:
            ordered: whether the results come in the order of the items, or as they arrive.
            max_failures: at how many failures the map stops: `10`, or a percentage such as "5%", which counts from 100
                ended tasks on. This kills the tasks that run; with "10,finish" they may finish. None for no limit.
            progress: as for `map`; so is `total`.

        Returns:
            A generator of results. The tag of each is its item; with several iterables, the tuple of its items.

        Raises:
            TooManyFailures: the map was stopped. All results that arrived were given out. `remaining` has the items
                that did not run: `mw.map_results(f, error.remaining)` continues.
        """
        limit, items = MaxFailures.of(max_failures), self._items(function, iterables, policy)
        shown = progress_of(progress, total, iterables, algorithm_of(function).name)
        return self._run(items, ordered=ordered, progress=shown, limit=limit)

    def as_completed(
        self,
        calls: Iterable[TaskCall[R]],
        max_failures: FailureLimit = None,
        *,
        progress: ShowProgress = None,
        total: int | None = None,
        **policy: Unpack[Policies],
    ) -> Generator[Result[R], None, None]:
        """Submit calls of any task algorithms, and yield their results as they arrive. Otherwise it is like `map`.

        Args:
            calls: what `f.task(...)` and `mwpy.task(f, ...)` made; it is read lazily.
            max_failures: as for `map_results`. `remaining` of the error has calls.
            progress: as for `map`; so is `total`.

        Returns:
            A generator of results. The tag of each is its call.

            Each call may have another function and other policies, so each is a task of its own. For many short calls
            of one function, `imap_unordered` and `map_results` are faster.

        Examples:
            >>> for result in mw.as_completed([square.task(2), cube.task(3)]):  # doctest: +SKIP
            ...     print(result.algorithm, result.value)
        """
        TaskPolicy.of(**policy)
        check_map_key(policy)

        def named(some: Sequence[TaskCall[R]]) -> Iterator[Call]:
            for call in some:
                terms = self._parts.terms.of(algorithm_of_call(call, "mw.as_completed"), policy)
                yield *terms, call.args, call.kwargs

        limit, shown = MaxFailures.of(max_failures), progress_of(progress, total, (calls,), "tasks")
        return self._run(MapItems(iter(calls), named), ordered=False, progress=shown, limit=limit)

    def executor(
        self,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        progress: ShowProgress = None,
        **policy: Unpack[Policies],
    ) -> Executor:
        """Return an executor of `concurrent.futures` that runs its tasks on the slaves of this master.

        It is like `mwpy.Executor`, and has a thread of its own. So any thread may use it, and this thread may wait for
        its futures, use maps and submit tasks meanwhile. Its tasks end only as futures: `results` and `loop` leave
        them out. `shutdown`, or the end of a `with` block, ends only the executor: the master keeps its slaves. When
        the master ends without an exception, it waits for the tasks of its executors; otherwise it cancels them.

        Args:
            initializer: called once in each slave, before the first task of this executor there.
            initargs: the arguments of the initializer.
            progress: as for `mwpy.Executor`.
            policy: the policies of all tasks of the executor. They override those of the master.

        Raises:
            UsageError: an argument is wrong, or the tasks of this master run in this thread (`slaves=0`).

        Examples:
            >>> with mw.executor() as executor:                # doctest: +SKIP
            ...     future = executor.submit(pow, 2, 10)
            ...     squares = list(mw.map(square, range(10)))
            ...     print(future.result())
            1024
        """
        from mwpy.executor import executor_of_master

        return executor_of_master(self._parts, initializer, initargs, progress, policy)

    def _items(self, function: Callable[..., Any], iterables: tuple[Iterable[Any], ...], policy: Policies) -> MapItems:
        return items_of(self._parts.terms.of_map(function, policy), iterables, self._parts.inbox.settings)

    def _run(
        self,
        items: MapItems,
        *,
        ordered: bool,
        values: bool = False,
        progress: Progress | None = None,
        limit: MaxFailures | None = None,
        most: int = MOST_ITEMS,
    ) -> Generator[Any, None, None]:
        parts = self._parts
        shared = parts.access, parts.inbox, parts.held, parts.codec
        return MapRun(*shared, items, ordered, values, progress, limit, most, parts.keys).start()
