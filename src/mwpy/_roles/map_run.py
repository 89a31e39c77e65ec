"""The run of one map: which items are in flight, and in which order their results are given out.

All maps of a master are such runs. A run reads its items lazily and keeps a bounded number of tasks and bytes, so the
items may be endless. Several runs may be open at once.

A run is a generator, and is closed with it: after its last result, by an exception, by `close`, or when nobody refers
to the generator any more. Closing cancels the tasks that have not ended.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from operator import index, itemgetter
from typing import Any, SupportsIndex

from attrs import define, field

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.commands import CancelTasks, Running
from mwpy._roles.access import Access
from mwpy._roles.held_results import HeldResults
from mwpy._roles.inbox import Inbox
from mwpy._roles.map_tasks import MapTasks
from mwpy._roles.progress import Progress, Report
from mwpy._roles.terms import Extras, Terms
from mwpy._system import clock
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import Algorithm, TaskCall
from mwpy._values.errors import TaskCancelled, TooManyFailures, UsageError
from mwpy._values.ids import TaskId
from mwpy._values.max_failures import FailuresByKind, MaxFailures
from mwpy._values.policy import Policies, TaskPolicy
from mwpy._values.seeds import seed_at
from mwpy._values.task import Result, failed, size_of

__all__ = [
    "NO_KEYWORDS",
    "Call",
    "MapOptions",
    "MapRun",
    "algorithm_of_call",
    "calls_of",
    "check_chunksize",
]

Call = tuple[Defined, TaskPolicy, Extras | None, tuple[Any, ...], dict[str, Any], Any]
"""A task to submit: its terms, positional and keyword arguments, and the item that the user knows it by."""

NO_KEYWORDS: dict[str, Any] = {}
"""The keyword arguments of all calls of a map. Nobody changes it."""

MAP_PENDING = 1000
"""How many of its tasks a map keeps pending in the master or finished, beyond the tasks that slaves hold."""

MAP_BYTES = 256 << 20
"""Bytes of arguments in flight, and of results that wait for their turn, at which a map reads no more items."""

MAP_WINDOW = 20_000
"""How many items an ordered map may run ahead of the item that it waits for."""

READ_S = 0.05
"""Seconds after which reading items stops if results wait. So a slow iterable does not hold back the results of the
items that it has given already, and the call of a map returns soon."""

READ_EVERY = 100
"""After this many results, a map reads more items. So slaves stay busy while the user works on the results."""


class MapOptions(Policies, total=False):
    """The keywords of `Master.map`, for type checkers."""

    chunksize: int | None
    progress: bool | Report | None
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


def calls_of(terms: Terms, iterables: tuple[Iterable[Any], ...]) -> Iterator[Call]:
    """Make one call for each row of items.

    Raises:
        UsageError: there is no iterable; the caller's fault.
    """
    if not iterables:
        raise UsageError("a map needs at least one iterable: mw.map(f, items)")
    defined, policy, extras = terms
    rows = zip(*iterables, strict=False)
    if len(iterables) == 1:
        return ((defined, policy, extras, args, NO_KEYWORDS, args[0]) for args in rows)
    return ((defined, policy, extras, args, NO_KEYWORDS, args) for args in rows)


def check_chunksize(chunksize: object) -> None:
    """Check the size of the portions that a caller allows; each item is a task here, so every size is kept.

    Raises:
        UsageError: it is not a positive number; the caller's fault.
    """
    if chunksize is not None and not (isinstance(chunksize, SupportsIndex) and index(chunksize) > 0):
        raise UsageError(f"chunksize={chunksize!r}: give a number of items from 1 on, or None")


@define(eq=False)
class MapRun:
    """The state of one run.

    Args:
        calls: the tasks, in the order of the items.
        ordered: whether results are given out in the order of the items, or as they arrive.
        values: whether values are given out, and the first failure is raised; else results.
        progress: what shows the progress, or None.
        max_failures: at how many failures the run stops; None for no limit. It needs results, not values.
    """

    access: Access
    inbox: Inbox
    held: HeldResults
    codec: Codec
    calls: Iterator[Call]
    ordered: bool
    values: bool = False
    progress: Progress | None = None
    max_failures: MaxFailures | None = None
    _tasks: MapTasks = field(init=False)
    _submitted: int = 0
    _bytes: int = 0
    """Bytes of arguments in flight, and of early results."""
    _exhausted: bool = False
    _failures: FailuresByKind = field(factory=FailuresByKind)
    _failed: int = 0
    """How many results are failures."""
    _stopped: TooManyFailures | None = None
    """What the run raises at its end, because it was stopped."""

    @_tasks.default
    def _open_map(self) -> MapTasks:
        return self.inbox.open_map()

    def start(self) -> Generator[Any, None, None]:
        """Submit the first items. Return the generator of the values or results."""
        given = self._run()
        try:
            next(given)
        except BaseException:
            given.close()  # an interrupt that came between is raised here, not in the generator
            raise
        stops = self.max_failures is not None or self.inbox.settings.max_failures is not None
        return self._until_stopped(given) if stops and not self.values else given

    def _run(self) -> Generator[Any, None, None]:
        """Submit items and give out their results. The loops determine what an item costs, so they make few calls."""
        tasks, submissions = self._tasks, self.access.io.submissions
        values, early, turn = self.values, tasks.early, 0
        try:
            self._read(at_call=True)
            yield  # `start` takes it
            while tasks.open or not self._exhausted:
                self._receive()
                self._read()
                if self.progress is not None:
                    self.progress.update(self._submitted - len(tasks.open))
                if not tasks.arrived and tasks.open:
                    self._receive(wait=True)
                for position, result in self._arrived() if self.max_failures is None else self._counted():
                    if self.ordered and position != turn:
                        early[position] = result
                        self._bytes += size_of(result)
                        continue
                    turn += 1
                    yield result.value if values else result
                    while early and (waited := early.pop(turn, None)) is not None:
                        turn += 1
                        self._bytes -= size_of(waited)
                        yield waited.value if values else waited
        finally:
            # no interrupt comes before the end of the third line, so an interrupt cannot leave the tasks running
            tasks.closed = True
            tasks.last = submissions.total
            self.inbox.abandoned[tasks] = None
            self.inbox.end_abandoned()
            if self.progress is not None:
                self.progress.end(self._submitted - len(tasks.open))

    def _receive(self, wait: bool = False) -> None:
        """Let results arrive. If the whole computation is stopped, the run ends with the results that have arrived."""
        try:
            if wait:
                self.inbox.wait()
            else:
                self.inbox.receive()
        except TooManyFailures as error:
            if self.values:
                unended = [(position, item) for position, item, _ in self._tasks.open.values()]
                unended += [(position, result.tag) for position, result in self._tasks.early.items()]
                error.remaining = chain([item for _, item in sorted(unended, key=itemgetter(0))], self._unread())
                raise
            self._stopped, self._exhausted = error, True

    def _unread(self) -> Iterator[Any]:
        """The items that were not read."""
        return (item for *_, item in self.calls)

    def _counted(self) -> Iterator[tuple[int, Result[Any]]]:
        """Take some of the results that arrived, and stop at the last failure that is allowed."""
        limit, tasks = self.max_failures, self._tasks
        assert limit is not None
        for position, result in self._arrived():
            error = result.error if failed(result) else None
            if error is not None and self._stopped is None:
                self._failures.add(error)
                self._failed += 1
                ended = self._submitted - len(tasks.open)
                if limit.is_reached(self._failed, ended):
                    running = Running.FINISH if limit.finish else Running.KILL
                    self.inbox.ask(CancelTasks.of([*tasks.open], running))
                    self._stopped = TooManyFailures(str(limit), self._failed, ended, self._failures.take(), [])
                    self._exhausted = True
            yield position, result

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
        io, opened, dumps = self.access.io, self._tasks.open, self.codec.dumps_call
        submissions, link = io.submissions, io.link
        until, room = clock.monotonic() + READ_S, self._room()
        enough = self._submitted + room
        if room <= 0 or self._bytes >= MAP_BYTES:
            return
        for defined, policy, extras, args, kwargs, item in islice(self.calls, room):
            payload, buffers = dumps(args, kwargs, defined.name)
            if extras is not None:
                seed = None if extras.seed is None else seed_at(extras.seed, self._submitted)
                payload = extras.add(payload, seed)
            size = len(payload) + sum(map(len, buffers)) if buffers else len(payload)
            refers = self.held.refer(buffers) if buffers else ()
            # first, so that an interrupt leaves no task that is not known here
            opened[submissions.total + 1] = self._submitted, item, size
            if refers:
                submissions.add_referring(defined, policy, payload, buffers, self._tasks, refers)
            else:
                submissions.add(defined, policy, payload, buffers, self._tasks)
            self._submitted += 1
            self._bytes += size
            if self._bytes >= MAP_BYTES:
                return
            if link.asleep:  # the I/O thread has no work, as with a slow iterable
                link.wake()
                if clock.monotonic() > until and (at_call or self._tasks.arrived or not io.outcomes.empty()):
                    return
        self._exhausted = self._submitted < enough

    def _room(self) -> int:
        """How many items may be submitted now; at least one if no task is open."""
        tasks = self._tasks
        pending = self.access.io.submissions.pending()  # of the whole master, so at most all open tasks are own ones
        room = MAP_PENDING - min(pending + len(tasks.arrived), len(tasks.open))
        return min(room, MAP_WINDOW - len(tasks.open) - len(tasks.early)) if self.ordered else room

    def _arrived(self) -> Iterator[tuple[int, Result[Any]]]:
        """Take some of the results that arrived, each with its position."""
        arrived, opened = self._tasks.arrived, self._tasks.open
        for _ in range(min(len(arrived), READ_EVERY)):
            result = arrived.popleft()
            known = opened.pop(result.task_id, None)
            if known is not None:  # else it was here twice
                position, result.tag, size = known
                self._bytes -= size
                yield position, result
