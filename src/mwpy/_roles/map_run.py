"""The run of one map: which items are in flight, and in which order their results are given out.

All maps of a master are such runs. A run reads its items lazily and keeps a bounded number of tasks and bytes, so the
items may be endless. Several runs may be open at once.

A run is a generator, and is closed with it: after its last result, by an exception, by `close`, or when nobody refers
to the generator any more. Closing cancels the tasks that have not ended.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, repeat
from operator import index, itemgetter
from typing import TYPE_CHECKING, Any, SupportsIndex

from mwpy._core.master.commands import CancelTasks, Running
from mwpy._roles.access import Access
from mwpy._roles.held_results import HeldResults
from mwpy._roles.inbox import Inbox
from mwpy._roles.map_tasks import Arrived, Portion, count_of
from mwpy._roles.meter import Figures
from mwpy._roles.portions import MOST_ITEMS, MapItems, PortionSizes
from mwpy._roles.progress import Progress, ShowProgress
from mwpy._system import clock
from mwpy._transport.codec import Codec
from mwpy._transport.shared import LARGE_BYTES
from mwpy._values.algorithm import Algorithm, TaskCall
from mwpy._values.errors import TaskCancelled, TooManyFailures, UsageError
from mwpy._values.ids import Buffer, TaskId
from mwpy._values.max_failures import FailuresByKind, MaxFailures
from mwpy._values.policy import Policies
from mwpy._values.seeds import seed_at
from mwpy._values.stretch import Stretch
from mwpy._values.task import Result, failed, is_stored, size_of

if TYPE_CHECKING:
    from mwpy._roles.task_keys import TaskKeys

__all__ = ["MapOptions", "MapRun", "algorithm_of_call", "most_of"]

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
        shown = self.access.io.progress
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
                error.remaining = chain(rest, self._tasks.unended(), self._unread())
                raise
            self._stopped, self._exhausted = error, True

    def _unread(self) -> Iterator[Any]:
        """The items that were not read."""
        return self.source.items

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
            self._stopped.remaining = chain([item for _, item in not_run], self._unread())
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
                if began > until and (at_call or self._tasks.arrived or not io.outcomes.empty()):
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
            if refers:
                submissions.add_referring(defined, policy, payload, buffers, portion, refers, key or b"")
            elif key is None:
                submissions.add(defined, policy, payload, buffers, portion)
            else:
                submissions.add_keyed(defined, policy, payload, buffers, portion, key)

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
