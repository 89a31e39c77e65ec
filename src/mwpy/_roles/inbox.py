"""What a master algorithm has not fetched yet, who may fetch it, and log records of slaves.

What a master algorithm has not fetched yet: results, unrunnable tasks, and slaves that connected or disconnected.

Ctrl-C can end each call here at any point, and a user of a notebook goes on afterwards. So no outcome may be lost or be
counted twice. Python runs a signal handler only when a call has returned, when a function begins, and when a loop
repeats. Where this module relies on that, a comment says so.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from itertools import chain
from math import inf
from operator import index
from queue import Empty
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from attrs import define

from mwpy._core.master.state import (
    Asking,
    CancelTasks,
    GiveResult,
    GoOn,
    HoldResults,
    LogGroup,
    ReleaseResults,
    Running,
    Waiting,
)
from mwpy._system import clock, process
from mwpy._values.bounds import Buffer, SlaveId, TaskId
from mwpy._values.errors import (
    CannotRun,
    DependencyFailed,
    InternalError,
    MwpyError,
    OutOfTime,
    TaskCancelled,
    TooManyFailures,
    UsageError,
)
from mwpy._values.groups import Ended, Stretch, count_of
from mwpy._values.messagepack import as_read, encode
from mwpy._values.messages import Report
from mwpy._values.policy import FailuresByKind
from mwpy._values.requires import within
from mwpy._values.task import (
    ReferringBuffers,
    Result,
    ResultReference,
    SlaveKind,
    UnrunnableTask,
    encoded_in,
    failed,
    in_one_line,
    stored_at,
)

if TYPE_CHECKING:
    from mwpy._core.master.state import Actions, MasterSettings, Stopped
    from mwpy._roles.master_io import MasterIo
    from mwpy._roles.users import OpenMap, User


# The way from a master algorithm's thread to the I/O thread; it is closed when the computation ends.
#
# Only one thread may use a master. Two threads would take each other's results, or wait for each other forever. A
# process that is forked from the master's process has a copy of the master, but no I/O thread, so it would wait
# forever.


USED_BY_A_TASK = "a task cannot use the master: return from the task what the master should do"

OVER = "the computation is over, and so is this master: start another (mwpy.open, mwpy.main)"

FORKED = (
    "this process was forked from the process of the master and has only a copy of the master: use the master in the "
    "process that made it, or start another one here with mwpy.open"
)


class Access:
    """Holds the I/O thread for all parts of the master that use it.

    Args:
        io: the I/O thread.
        owner: the thread that may use it.
        drive: runs tasks in this thread until there is an outcome, for a timeout in seconds or None; None if slaves run
            them.
    """

    def __init__(
        self,
        io: MasterIo,
        owner: threading.Thread,
        drive: Callable[[float | None], None] | None = None,
    ) -> None:
        self._io: MasterIo | None = io
        self._owner = owner.name
        self._ident = owner.ident
        self._closed = OVER
        self.drive = drive

    @property
    def usable(self) -> bool:
        """Whether this thread may use `io`: it is the owner, and the computation is not over."""
        return self._io is not None and threading.get_ident() == self._ident

    @property
    def io(self) -> MasterIo:
        """The I/O thread. Read this for every use, and store neither its value nor parts of it.

        Raises:
            UsageError: this thread may not use it; the caller's fault.
        """
        if threading.get_ident() != self._ident:
            here, owner = threading.current_thread().name, self._owner
            raise UsageError(
                f"this master belongs to the thread {owner}, and the thread {here} uses it: let {owner} do this, give "
                f"the other threads an executor of this master (mw.executor), or start a master in each thread with "
                f"mwpy.open"
            )
        if self._io is None:
            raise UsageError(self._closed)
        return self._io

    @property
    def user(self) -> User:
        """What the thread alone has of the master. Read it as `io`."""
        return self.io.users.algorithm

    def close(self, reason: str = OVER) -> None:
        """Make every later use of `io` a `UsageError` with this text."""
        self._io, self._closed = None, reason


# How many bytes of results the algorithm has received and not fetched.
#
# The sizes of single results are not known, because the core counts the bytes of whole groups. So each result counts
# for the mean of those that wait with it. Nothing is counted per result.


SHARE = 8
"""Below one in eight of the bytes that may wait, nothing is counted again. So small results cost nothing."""


@define(eq=False, repr=False)
class Unfetched:
    """Tells the I/O thread how much was fetched.

    Args:
        most: how many bytes may wait.
    """

    access: Access
    most: int
    _count: int = 0
    """How many results wait, and how many bytes they have."""
    _size: int = 0
    _total: int = 0
    """How many bytes have ever arrived."""
    is_much: bool = False
    """Whether so much may wait that it must be counted."""

    def arrived(self, outcome: Actions) -> None:
        """Results arrived."""
        count = len(outcome.results)
        if outcome.owned:
            count += sum(map(count_of, chain.from_iterable(outcome.owned.values())))
        if count:
            # no call from here on, so that no interrupt comes between
            size, outcome.result_bytes = outcome.result_bytes, 0
            self._total += size
            self._count += count
            self._size += size
            self.is_much = self._size * SHARE > self.most

    def settle(self, alone: Sized) -> None:
        """Count the results that wait. Those outside of maps are `alone`."""
        io = self.access.io
        count = len(alone) + sum(tasks.num_waiting for tasks in io.open_maps())
        if count < self._count:
            self._count, self._size = count, self._size * count // self._count
        self.is_much = self._size * SHARE > self.most
        self.access.user.fetched_bytes = self._total - self._size
        if io.holds_back:
            io.link.wake()


T = TypeVar("T")

RETURNS_IN_VAIN = 1000
"""After so many calls of `mw.loop()` that return at once, while nothing is fetched, the user is warned."""


SHOW_S = 0.5
"""While progress is shown, a thread that waits shows it again after this time, in seconds."""

FETCHES = (
    "unrunnable tasks with mw.results() or mw.unrunnable_tasks()",
    "results with mw.results()",
    "connected slaves with mw.connected_ordered_slaves()",
    "disconnected slaves with mw.disconnected_ordered_slaves()",
)
"""What can be fetched and how, in the order of `Inbox.counts`."""


class LoopCounts(NamedTuple):
    """What `Master.loop` returns: how much can be fetched."""

    unrunnable_tasks: int
    results: int
    connected_ordered_slaves: int
    disconnected_ordered_slaves: int


class Inbox:
    """Receives outcomes from the I/O thread, and separates those of maps from the others.

    Args:
        access: holds the I/O thread.
        settings: those of the master.
    """

    def __init__(self, access: Access, settings: MasterSettings) -> None:
        self.access = access
        self.settings = settings
        self.results: list[Result[Any]] = []
        self.unrunnable: list[UnrunnableTask] = []
        self.connected: list[SlaveId] = []
        self.disconnected: list[SlaveId] = []
        self.abandoned: dict[OpenMap, None] = {}
        """Closed maps whose tasks may not be cancelled yet."""
        self.reports: dict[SlaveId, tuple[OpenMap | None, Report]] = {}
        """The newest reports of tasks, by slave, with the maps of the tasks, after the core was asked for them."""
        self._received: deque[Actions | BaseException] = deque()
        """Outcomes that are not sorted yet."""
        self._logged: deque[LogGroup] = deque()
        """Records of `logging` that no handler has got yet."""
        self._asked: tuple[Asking, list[list[TaskId]]] | None = None
        """The last command that must be answered, and a list for its answer."""
        self._held: dict[int, bool] = {}
        """The tasks whose results the core keeps, and whether it surely does."""
        self._by_id: dict[int, Result[Any]] = {}
        """The results that could be fetched when this was last asked for, and the last one of them."""
        self._last: Result[Any] | None = None
        self._stopped: Stopped | None = None
        """That the run is stopped, until the algorithm knows it."""
        self._ends_at: float | None = None
        """When the master ends, if it is out of time."""
        self._failures = FailuresByKind()
        """The failures since the last stop, if there is a limit."""
        self.unfetched = Unfetched(access, settings.max_waiting_bytes)
        self._returns = 0
        """How many calls of `mw.loop()` returned at once since something was fetched."""

    # ---- receiving -----------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take over all outcomes that have arrived.

        Raises:
            CannotRun: no slave can run the tasks, or a limit of the system was reached.
            InternalError: the I/O thread died; our fault.
            OutOfTime: the master must end soon. It is raised once.
            TooManyFailures: the run was stopped. All results have arrived then.
            UsageError: the computation is over; the caller's fault.
        """
        self._receive()
        if self._stopped is not None or self._ends_at is not None:
            self._tell_of_stop()

    def _receive(self) -> None:
        if self.abandoned:
            self.end_abandoned()
        outcomes = self.access.user.outcomes
        if self.access.drive is not None and outcomes.empty():
            self.access.drive(0.0)
        while not outcomes.empty():
            self._take(None)
        while self._received:
            self._sort(self._received[0])
            self._received.popleft()
        if self.unfetched.is_much:
            self.unfetched.settle(self.results)
        if self.access.user.progress:
            self.access.user.progress.update()
        if self._logged:
            self._give_logged()

    def _give_logged(self) -> None:
        """Give records to the loggers. A handler of the user may use the master, so nothing else is half done now."""
        from mwpy._roles.log_records import give  # only here, because it loads logging

        while self._logged:
            give(self._logged.popleft(), self.access.io)

    def wait(self, timeout: float | None = None) -> None:
        """Like `receive`, but if no outcome has arrived, wait for one.

        Args:
            timeout: how long to wait at most, in seconds; None for as long as it takes. If the master is out of time,
                this is an `OutOfTime` each time.
        """
        if self._ends_at is not None and timeout is None:
            self._tell_of_end(self._ends_at)
        self._wait(timeout)
        if self._stopped is not None or self._ends_at is not None:
            self._tell_of_stop()

    def _wait(self, timeout: float | None = None) -> None:
        io, user = self.access.io, self.access.user
        if user.outcomes.empty() and not self._received:
            user.waiting = Waiting.FOREVER if timeout is None else Waiting.FOR_A_WHILE
            try:
                if io.holds_back:
                    io.link.wake()
                if user.progress:
                    self._take_and_show(timeout)
                else:
                    self._run_and_take(timeout)
            except Empty:
                return
            finally:
                user.waiting = Waiting.NOT
        self._receive()

    def _run_and_take(self, timeout: float | None) -> None:
        """Like `_take`, but if tasks run in this process, run them first."""
        if self.access.drive is not None:
            self.access.drive(timeout)
            timeout = 0.0
        self._take(timeout)

    def _take_and_show(self, timeout: float | None) -> None:
        """Like `_run_and_take`, but show the progress from time to time."""
        until = None if timeout is None else clock.monotonic() + timeout
        while True:
            left = SHOW_S if until is None else min(SHOW_S, max(0.0, until - clock.monotonic()))
            try:
                return self._run_and_take(left)
            except Empty:
                self.access.user.progress.update()
                if until is not None and clock.monotonic() >= until:
                    raise

    def _take(self, timeout: float | None) -> None:
        """Wait for an outcome and store it.

        One call does both, and Python code does not run in between. Otherwise an interrupt could lose the outcome.
        """
        self._received.extend(map(self.access.user.outcomes.get, (True,), (timeout,)))

    def loop(self, timeout: float | None) -> LoopCounts:
        """Wait until something can be fetched, and return how much. `Master.loop` explains the timeout and the errors.

        The user has called the caller of this method.
        """
        self.receive()
        counts = self.counts()
        if any(counts):
            self.returned_at_once(stacklevel=3)
        deadline = deadline_after(timeout)
        while not any(counts):
            left = None if deadline is None else deadline - clock.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
            counts = self.counts()
        return counts

    def cancel(self, task_ids: Iterable[TaskId], running: str) -> list[TaskId]:
        """Cancel tasks. `Master.cancel` explains the arguments, the result and the errors."""
        if running not in ("kill", "finish"):
            raise UsageError(f"running tasks cannot be treated as {running!r}: use 'kill' or 'finish'")
        try:
            ids = sorted({index(number) for number in task_ids})
        except TypeError:
            raise UsageError("mw.cancel needs the ids that mw.submit returned, in a list or another iterable") from None
        last = self.access.io.submissions.total
        if ids and not 1 <= ids[0] <= ids[-1] <= last:
            wrong = ids[0] if ids[0] < 1 else ids[-1]
            raise UsageError(f"there is no task {wrong} to cancel: the ids of the submitted tasks are 1 to {last}")
        return self.ask(CancelTasks.of(ids, Running(running)))

    def ask(self, command: Asking) -> list[TaskId]:
        """Send a command, and wait until the core answers which tasks it concerned."""
        answers: list[list[TaskId]] = []
        self._asked = command, answers
        self.access.io.command(command)
        while not answers:
            self._wait()
        return answers[0]

    def _tell_of_end(self, ends_at: float) -> NoReturn:
        self.access.user.interrupted = True
        raise OutOfTime(max(0.0, ends_at - clock.monotonic()), self.access.io.submissions.runnable())

    def _tell_of_stop(self) -> None:
        """If the run is stopped, wait until all tasks have ended, and raise. After an interrupt, the next call does."""
        if self._ends_at is not None and not self.access.user.interrupted:
            self._tell_of_end(self._ends_at)
        stopped = self._stopped
        if stopped is not None:
            task_ids = self.ask(GoOn())
            self._stopped = None
            limit, kinds = str(self.settings.max_failures), self._failures.take()
            raise TooManyFailures(limit, stopped.failed, stopped.ended, kinds, task_ids)

    def _sort(self, outcome: Actions | BaseException) -> None:
        """Sort an outcome. After an interrupt, the next call continues with what is left of it."""
        if isinstance(outcome, BaseException):
            raise_failure(outcome)
        if outcome.logged:
            logged, outcome.logged = outcome.logged, []
            self._logged.extend(logged)
        results, unrunnable = outcome.results, outcome.unrunnable
        if self.settings.max_failures is not None:
            _count_failures(self._failures, None, [*results, *unrunnable])
            for tasks, ended in outcome.owned.items():
                _count_failures(self._failures, tasks, ended)
        if self._held:
            self._give_arrived(outcome)
        for tasks, ended in outcome.owned.items():  # after an interrupt, the map may have them already
            tasks.arrive(ended)
        self.unfetched.arrived(outcome)
        # no interrupt comes between emptying a list and the end of the call after it
        outcome.owned = {}
        outcome.results = []
        self.results.extend(results)
        outcome.unrunnable = []
        self.unrunnable.extend(unrunnable)
        if outcome.connected or outcome.disconnected:
            connected, outcome.connected = outcome.connected, []
            self.connected.extend(connected)
            disconnected, outcome.disconnected = outcome.disconnected, []
            self.disconnected.extend(disconnected)
        if outcome.reports:
            self.reports.update((report.sid, (tasks, report)) for tasks, report in outcome.reports)
        for command, unended in outcome.cancelled:
            if self._asked is not None and command is self._asked[0]:
                self._asked[1].append(unended)
        self._stopped = outcome.stopped or self._stopped
        if outcome.ends_at is not None:
            self._ends_at = outcome.ends_at

    # ---- fetching ------------------------------------------------------------------------------------------

    def fetch(self, waiting: list[T]) -> list[T]:
        """Take everything out of one of the lists."""
        self.receive()
        fetched = waiting[:]
        waiting.clear()
        if self.unfetched.is_much:
            self.unfetched.settle(self.results)
        if fetched:
            self._returns = 0
        return fetched

    def counts(self) -> LoopCounts:
        """How much can be fetched."""
        return LoopCounts(len(self.unrunnable), len(self.results), len(self.connected), len(self.disconnected))

    def returned_at_once(self, stacklevel: int) -> None:
        """Count a call of `mw.loop()` that did not wait. Warn if such calls follow each other without a fetch.

        Args:
            stacklevel: how many calls the line of the user is away.
        """
        self._returns += 1
        if self._returns == RETURNS_IN_VAIN:
            left = ", ".join(f"{count} {what}" for count, what in zip(self.counts(), FETCHES, strict=True) if count)
            warnings.warn(
                f"mw.loop() has returned {RETURNS_IN_VAIN} times without waiting, and nothing was fetched in between. "
                f"It does not wait while something can be fetched. Fetch it: {left}",
                RuntimeWarning,
                stacklevel + 1,
            )

    # ---- results to which tasks may refer with `mwpy.result` -------------------------------------------------
    #
    # A task may refer to a result that is not fetched. The core must keep this result from then on, because the
    # algorithm may fetch it before the later task has it. The core is asked to keep the results of tasks that have not
    # ended, and nobody waits for the answer. Whatever arrives from then on is given back to the core, which takes it if
    # it was asked too late. Results that are here already are given at once.

    def refer(self, buffers: Sequence[Buffer]) -> Sequence[int]:
        """Make the core keep the results to which a task refers that is submitted next.

        Args:
            buffers: what `Codec.dumps_call` returned.

        Returns:
            The ids of their tasks.

        Raises:
            UsageError: there is no such task, its result was fetched, or it is a future; the caller's fault.
        """
        if not isinstance(buffers, ReferringBuffers):
            return ()
        references = [each for each in buffers.references if isinstance(each, ResultReference)]
        if any(type(each) is not ResultReference for each in references):
            raise UsageError(
                "a future is in the arguments: pass its value (future.result()), or submit to its executor"
            )
        numbers = sorted(each.task_id for each in references)
        new = [number for number in numbers if not self._held.get(number)]
        if new:
            last = self.access.io.submissions.total
            if not 1 <= new[0] <= new[-1] <= last:
                wrong = new[0] if new[0] < 1 else new[-1]
                known = f"the ids of the tasks that are submitted are 1 to {last}" if last else "none is submitted yet"
                raise UsageError(f"mwpy.result({wrong}): there is no such task; {known}")
            self._hold(new)
        return numbers

    def _hold(self, numbers: Sequence[int]) -> None:
        self._held.update(dict.fromkeys(numbers, False))
        io = self.access.io
        missing = {number for number in numbers if io.core.state.jar.ends.has(number)}
        io.command(HoldResults(numbers))
        missing = self._give(missing)
        if missing:
            self.receive()  # most are on their way since long, and a question would take a round trip
            missing = self._give(missing)
        if missing:
            self.ask(HoldResults(sorted(missing)))  # the answer comes behind all ends that the core has given out
            missing = self._give(missing)
        if missing:
            for number in missing:
                del self._held[number]
            raise UsageError(
                f"mwpy.result({min(missing)}): this result was fetched already, or belongs to a map, so the master "
                f"does not have it any more: pass its value itself, or refer to it before you call mw.results()"
            )
        self._held.update(dict.fromkeys(numbers, True))

    def _give(self, ended: set[int]) -> set[int]:
        """Give the core the results of these tasks that are here. Return the others."""
        here = self._by_id_of_results() if ended else {}
        found: list[Result[Any] | UnrunnableTask] = [here[number] for number in sorted(ended) if number in here]
        found += [task for task in self.unrunnable if task.task_id in ended]
        for each in found:
            self.access.io.command(given_by(each))
        return ended.difference(each.task_id for each in found)

    def _by_id_of_results(self) -> dict[int, Result[Any]]:
        """The results that can be fetched, by the ids of their tasks."""
        results, count = self.results, len(self._by_id)
        if results[count - 1 : count] != [self._last]:  # some were fetched meanwhile
            self._by_id, count = {}, 0
        self._by_id.update((result.task_id, result) for result in results[count:])
        self._last = results[-1] if results else None
        return self._by_id

    def _give_arrived(self, outcome: Actions) -> None:
        """Give the core what arrives of the results that it should keep. After an interrupt, it may get some twice."""
        ends: list[Result[Any] | UnrunnableTask] = [*outcome.results, *outcome.unrunnable]
        for each in ends:
            if each.task_id in self._held:
                self.access.io.command(given_by(each))
        for ended in chain.from_iterable(outcome.owned.values()):
            first = ended.first if isinstance(ended, Stretch) else ended.task_id
            for number in self._held.keys() & range(first, first + count_of(ended)):
                cause = f"the result of task {number} belongs to a map, which got it before a later task referred to it"
                self.access.io.command(GiveResult(number, (), cause, number))

    def fetched(self, ended: Iterable[Result[Any] | UnrunnableTask]) -> None:
        """The algorithm has fetched the ends of these tasks, so no later task refers to them."""
        if self._held and (numbers := [each.task_id for each in ended if each.task_id in self._held]):
            self.access.io.command(ReleaseResults(numbers, self.access.io.submissions.total))
            for number in numbers:
                del self._held[number]

    # ---- maps ----------------------------------------------------------------------------------------------

    def end_abandoned(self) -> None:
        """Cancel the tasks of closed maps.

        After an interrupt, the next call continues. The garbage collection of another thread can close a map, and then
        the next use of the master by its owner continues.
        """
        if not self.access.usable:
            return
        for tasks in list(self.abandoned):
            ids = tasks.ids(tasks.last)
            if ids:
                self.access.io.command(CancelTasks.of(ids, Running.DISCARD))
            self.access.io.unread_maps += not tasks.is_read
            tasks.forget()
            self.abandoned.pop(tasks, None)


def deadline_after(timeout: float | None) -> float | None:
    """Return when a wait ends, on the monotonic clock; None if it has no limit.

    Raises:
        UsageError: the timeout is not a number; the caller's fault.
    """
    try:
        return None if timeout is None else clock.monotonic() + timeout
    except TypeError:
        raise UsageError(f"the timeout must be a number of seconds or None, not {timeout!r}") from None


def raise_failure(error: BaseException) -> NoReturn:
    """Raise what a thread gets from the I/O thread in place of outcomes."""
    if isinstance(error, MwpyError):
        raise error
    if limit := process.named(error):
        raise CannotRun(f"the master cannot go on: {limit}") from error
    raise InternalError(f"the I/O thread of mwpy died: {error!r}; please report this") from error


def _count_failures(failures: FailuresByKind, tasks: OpenMap | None, all_ended: Iterable[Ended]) -> None:
    """Count the failures of tasks, which may be those of a map."""
    for ended in all_ended:
        result = ended.result() if isinstance(ended, UnrunnableTask) else ended
        if not isinstance(result, Result) or not failed(result):
            continue
        error = result.error
        if error is not None and not isinstance(error, TaskCancelled | DependencyFailed):
            if tasks is not None:
                error.item = tasks.item(result.task_id)
            failures.add(error)


def given_by(result: Result[Any] | UnrunnableTask) -> GiveResult:
    if isinstance(result, UnrunnableTask):
        cause = f"task {result.task_id} ({result.algorithm}) is unrunnable: {result.reason}"
        return GiveResult(result.task_id, (), cause, result.task_id)
    if not failed(result) and (stored := stored_at(result)) is not None:
        return GiveResult(result.task_id, stored=stored)
    error = result.error if failed(result) else None
    number, name = result.task_id, result.algorithm
    if error is None:
        entry, buffers = encoded_in(result)
        return GiveResult(number, [encode(as_read(entry)), *buffers])
    if isinstance(error, DependencyFailed):
        return GiveResult(number, (), error.cause, error.dependency)
    what = in_one_line(error.type_name, error.text)
    return GiveResult(number, (), f"task {number} ({name}) failed: {what}", number)


# What a user says about slaves and numbers.


def whole_number(name: str, number: int) -> int:
    """Return a number that a user gives; 0 for a negative one.

    Raises:
        UsageError: it is not a whole number; the caller's fault.
    """
    return max(0, int(within(-inf, inf, index, "a whole number")(name, number)))


def kind_of_slave(kind: str) -> SlaveKind:
    """Return the kind of slave that a user names.

    Raises:
        UsageError: there is none; the caller's fault.
    """
    try:
        return SlaveKind(kind)
    except ValueError:
        raise UsageError(f"there is no kind of slave {kind!r}: ordered, intermingle or unordered") from None
