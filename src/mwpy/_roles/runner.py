"""Runs tasks in a slave process, one after the other, with their logs, states, shared objects and peaks.

The agent sends groups of tasks. Before the runner starts a task, it writes the task's position into shared memory, so
that the agent knows which task runs. When the task has ended, its result is written into the journal. For up to
`GATHER_S` results are gathered there, and then sent together. The agent reads the journal if this process dies, or if
it is busy with one task for long. A result with large buffers is sent at once.

Tasks run in blocks of two milliseconds, because what is done for each block costs as much as ten short tasks. Within a
block, each task is timed, and its result is kept before the next one starts. Very short tasks of portions are an
exception: the clock is read once for a block, and their results are kept together at its end, which halves what they
cost. If the slave dies in such a block, its finished tasks run again elsewhere, charged to nobody. If one of its tasks
runs for long, the tasks before it may run again elsewhere, too.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from math import inf
from typing import Any, NamedTuple, NoReturn

from attrs import Factory, define
from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.holding import count_of, take_named
from mwpy._system import memory, script, time_left
from mwpy._system.clock import monotonic
from mwpy._system.offers import Part
from mwpy._system.own_code import differences, other_values
from mwpy._system.packages import undisturbed
from mwpy._system.time_left import Surroundings
from mwpy._transport import shared_objects, wire
from mwpy._transport.channel import AGAIN, FAILED, PAYLOAD_BYTES, VALUE, Journal, SlaveChannel
from mwpy._transport.codec import (
    Codec,
    any_large,
    extras_of,
    loads_call,
    loads_condition,
    loads_function,
    loads_state,
    split_resumed,
)
from mwpy._transport.error_texts import describe_error
from mwpy._transport.shared_objects import LOADED
from mwpy._values import groups, messages
from mwpy._values.algorithm import PYTHON, REGISTRY, find, missing_module
from mwpy._values.bounds import MAX_NAME, MAX_REASON, MAX_TASKS, Buffer, SlaveId, TaskId, shortened
from mwpy._values.errors import REPLACED, AlgorithmUnavailable, EndIsNear, ExitCode, UsageError
from mwpy._values.groups import ARGUMENTS, ROWS
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, Encoded, as_encoded, encode_entries
from mwpy._values.messages import (
    MAX_LEVEL,
    MAX_PATH,
    MAX_ROWS,
    LoadFailure,
    Logged,
    LogRow,
    ModuleCode,
    size_of_records,
)
from mwpy._values.phrases import amount, counted, first_of
from mwpy._values.requires import Given
from mwpy._values.shares import SharedObject
from mwpy._values.sources import SOURCES
from mwpy._values.task import NOTHING_GIVEN, RUNNING

# The states and the reports of the task that a slave runs: the state that an earlier attempt left, and what this one
# leaves and reports.


_NOT_LOADED = object()


@define(eq=False, repr=False)
class RunningTasks:
    """The tasks of one span, while a slave runs them one after the other.

    Args:
        end: the slave's channel to its agent. It knows which task runs.
        number: the slave's number within its agent.
        limit: the largest state, in bytes.
        codec: encodes states.
    """

    _end: SlaveChannel
    _number: int
    _limit: int
    _codec: Codec
    _first: int = 0
    _attempt: int = 0
    _position: int = 0
    _left: Sequence[Buffer] = ()
    _restored: object = _NOT_LOADED

    def begin(self, first: int, attempt: int, position: int, left: Sequence[Buffer]) -> RunningTasks:
        """The slave begins a span.

        Args:
            first: the id of its first task.
            attempt: the attempt of all its tasks.
            position: the position of its first task.
            left: the state that an earlier attempt left; empty if there is none. Such a task has a span of its own.
        """
        self._first, self._attempt, self._position, self._left = first, attempt, position, left
        self._restored = _NOT_LOADED
        return self

    @property
    def running(self) -> int:
        """The id of the task that runs."""
        return self._first + self._end.position - self._position

    def this_attempt(self) -> messages.Attempt:
        """Return which attempt of which task runs. See `mwpy.this_attempt`."""
        return messages.Attempt(TaskId(self.running), self._attempt)

    def leave(self, state: object) -> None:
        """Send a state of the running task. See `mwpy.checkpoint`."""
        self._check_process("checkpoint")
        entry, buffers = self._codec.dumps_state(state)
        size = len(entry) + sum(map(len, buffers))
        if size > self._limit:
            raise UsageError(
                f"the state is {size} bytes, the limit is {self._limit} bytes (--mw-max-read-buffer-size): leave less, "
                f"or write it to a file and leave the name, or raise the limit"
            )
        self._end.send(wire.encode(messages.Checkpoint(self._number, self.running, self._attempt), [entry, *buffers]))

    def report(self, values: dict[str, object]) -> None:
        """Send interim values of the running task. See `mwpy.report`."""
        self._check_process("report")
        entry = self._codec.dumps_report(values)
        seconds = max(0.0, monotonic() - self._end.began)
        message = messages.Reported(self._number, self.running, self._attempt, seconds)
        self._end.send(wire.encode(message, [entry]))

    def _check_process(self, name: str) -> None:
        if self._end.forked:
            raise UsageError(f"mwpy.{name}() in a process that the task forked: call it in the task's own process")

    def restored(self, default: object) -> object:
        """Return the state that an earlier attempt left. See `mwpy.restored`."""
        if not self._left:
            return default
        if self._restored is _NOT_LOADED:
            self._restored = loads_state(self._left)
        return self._restored


# Tasks that have arrived at a slave and were not started.


class WaitingTasks(Struct, frozen=True, eq=False):
    """Tasks of one algorithm that arrived and were not started; see `holding`."""

    first: int
    count: int
    attempt: int
    position: int
    """The position of the first task, counted from 1 in the order in which tasks arrived."""
    number: int
    """The algorithm's number."""
    seconds_max: float | None
    """How long each of the tasks may run; None if they have no limit of time."""
    given: Given | None
    """What they are given; None if they require nothing."""
    calls: Sequence[Any]
    buffers: Sequence[Sequence[Buffer]]
    left: Sequence[Buffer] = ()
    """The state that an earlier attempt of the only task left; empty if there is none."""
    shares: Sequence[str] = ()
    """The digests of the shared objects that must be here before a task of their group starts."""
    kind: int = 0
    """If they are of a portion: what `calls` are, see `groups.py`; else 0."""

    def cut(self, count: int) -> tuple[WaitingTasks, WaitingTasks]:
        """Split into the first `count` tasks and the others."""
        first = replace(self, count=count, calls=self.calls[:count], buffers=self.buffers[:count])
        after = {"first": self.first + count, "position": self.position + count, "count": self.count - count}
        return first, replace(self, **after, calls=self.calls[count:], buffers=self.buffers[count:])


def arrived(group: messages.Tasks, frames: Sequence[Buffer], before: int) -> Iterator[WaitingTasks]:
    """Read a group of tasks. Yield a span for each of its spans.

    Args:
        before: how many tasks arrived before these.
    """
    calls, buffers = groups.entries(group, frames)
    start = 0
    limits = group.limits or repeat(None, len(group.tasks))
    needed = [share.digest for share in group.shares]
    kinds = group.portions or repeat(0, len(group.tasks))
    columns = zip(group.tasks, group.counts, group.attempts, group.algorithms, limits, kinds, strict=True)
    for first, count, attempt, number, own_limits, kind in columns:
        own = slice(start, start + count)
        left: Sequence[Buffer] = ()
        seconds_max = None if own_limits is None else own_limits.seconds
        if not kind:
            calls[start], buffers[start], left = split_resumed(calls[start], buffers[start])
        position, terms = before + 1 + start, (number, seconds_max, group.given)
        rest: Any = calls[own], buffers[own], left, needed, kind
        yield WaitingTasks(first, count, attempt, position, *terms, *rest)
        start += count


# Loads the task algorithms of a slave; says why one cannot run there.


GARBAGE_BYTES = 32 << 20
"""After so many bytes of functions by value, what was forgotten is collected. Most functions of a notebook are in a
cycle: a function that is found by its name refers to its algorithm, and a recursive function to itself."""


class Unavailable(NamedTuple):
    """Why an algorithm cannot run here."""

    reason: str
    failure: LoadFailure


REMEDY = "give the slave the files with which the master was started, or start the computation again"

NEVER_DEFINED = Unavailable("it was never defined", LoadFailure.SURE)


def load_algorithm(
    definition: messages.AlgorithmDefinition, pickled: Buffer | None
) -> Callable[..., Any] | Unavailable:
    """Load a task algorithm; if it cannot run here, return the reason."""
    try:
        if pickled is None:
            with undisturbed():
                return _compared(definition, find(definition.reference))
        if definition.python != PYTHON and not definition.is_portable:
            return Unavailable(
                f"{definition.name} travels by value, but the Pythons differ: {definition.python} (master) and "
                f"{PYTHON} (slave). Use the same minor version, or give the slave the script",
                LoadFailure.SURE,
            )
        own_before = LOADED.own
        with undisturbed():
            loaded = _compared(definition, loads_function(pickled))
        has_own = LOADED.own > own_before and not isinstance(loaded, Unavailable)
        return partial(_call_with_own, bytes(pickled)) if has_own else loaded
    except AlgorithmUnavailable as error:
        return Unavailable(str(error), LoadFailure.SURE)
    except KeyboardInterrupt:  # only with `slaves=0`
        raise
    except BaseException as error:
        reason, failure = f"{definition.name} cannot be loaded:\n{traceback.format_exc()}", LoadFailure.PASSING
        if isinstance(error, ModuleNotFoundError):
            failure = LoadFailure.SURE
            reason += missing_module(error.name) if error.name else ""
        return Unavailable(reason, failure)


def _call_with_own(pickled: bytes, *args: Any, **kwargs: Any) -> Any:
    """Call a function that has captured shared objects: each task gets objects of its own."""
    with undisturbed():
        function = loads_function(pickled)
    return function(*args, **kwargs)


def _compared(
    definition: messages.AlgorithmDefinition, function: Callable[..., Any]
) -> Callable[..., Any] | Unavailable:
    """Return an algorithm, if this process has loaded the same code for it as the master."""
    other = differences(definition.code)
    if not other:
        return function
    reason = f"{first_of(other, len(other))} {'differs' if len(other) == 1 else 'differ'} from the master's"
    return Unavailable(f"{reason}: {REMEDY}", LoadFailure.OTHER_CODE)


@define(eq=False, repr=False)
class LoadedAlgorithms:
    """The algorithms that the master has defined, by number."""

    loaded: dict[int, Callable[..., Any] | Unavailable] = Factory(dict)
    """Their functions, or why they cannot run here."""
    names: dict[int, str] = Factory(dict)
    code: dict[int, Mapping[str, ModuleCode]] = Factory(dict)
    """What those use of the user's modules of which no task has run."""
    _packed: dict[int, tuple[messages.AlgorithmDefinition, Buffer]] = Factory(dict)
    """Those by value that were not used yet. Each is unpickled before its first task, because most slaves of an agent
    never run most of them."""
    _unpacked: int = 0
    """Bytes of those that were unpickled since the last garbage collection."""

    def define(self, message: messages.Algorithms, payload: Sequence[Buffer]) -> None:
        """Take over definitions, and forget what the master has forgotten."""
        for number in message.forgotten:
            for table in self.loaded, self._packed, self.names, self.code:
                table.pop(number, None)
        if message.forgotten and self._unpacked > GARBAGE_BYTES:
            self._unpacked = 0
            gc.collect()
        pickles = iter(payload)
        for definition in message.definitions:
            self.names[definition.number] = definition.name
            self.code[definition.number] = definition.code
            if definition.reference:
                self.loaded[definition.number] = load_algorithm(definition, None)
            else:
                self._packed[definition.number] = definition, next(pickles)

    def unpack(self, number: int) -> Callable[..., Any] | Unavailable:
        """Return an algorithm, or why it cannot run here. Unpickle it if it travels by value and was not used yet."""
        if number in self._packed:
            definition, pickled = self._packed.pop(number)
            self._unpacked += len(pickled)
            self.loaded[number] = load_algorithm(definition, pickled)
        return self.loaded.get(number, NEVER_DEFINED)

    def forget_all(self) -> str:
        """Another generation of the master defines its own. Return a file that was edited since it was loaded, if there
        is one."""
        for table in self.loaded, self._packed, self.names, self.code:
            table.clear()
        return SOURCES.edited()


# The most memory that a slave uses for each algorithm.
#
# The kernel keeps the highest mark of the resident memory, which no sample can miss. The mark begins again when tasks
# of another algorithm begin. It contains everything that is resident: the libraries, the shared objects that the tasks
# use, and what earlier tasks have left. A batch system counts nearly the same.


NEWS = 1.02
"""A peak is sent again when it is this many times as high."""


@define(eq=False, repr=False)
class PeakMemory:
    """Finds peaks, and sends those that are higher than before.

    Args:
        send: sends the number of an algorithm, and the bytes.
    """

    send: Callable[[int, int], None]
    _running: int | None = None
    """The number of the algorithm whose tasks run."""
    _known: dict[int, int] = Factory(dict)
    """The highest peak of each algorithm that was sent."""
    _programs: int = 0
    """The highest peak of a program when the tasks of this algorithm began."""

    def switch(self, algorithm: int) -> None:
        """Tasks of this algorithm run from now on."""
        if algorithm == self._running:
            return
        self.look()
        self._running = algorithm
        self._programs = memory.program_bytes()
        if memory.peak_bytes(self._known.get(algorithm, 0)):
            memory.forget_peak()

    def look(self) -> None:
        """Send the peak of the algorithm whose tasks have run, if it is higher than before."""
        if self._running is None:
            return
        known = int(self._known.get(self._running, 0) * NEWS)
        programs = memory.program_bytes()
        peak = max(memory.peak_bytes(known), programs if programs > self._programs else 0)
        if peak > known:
            self._known[self._running] = peak
            self.send(self._running, peak)

    def forget_all(self) -> None:
        """Another generation of the master gives its algorithms other numbers."""
        self._running = None
        self._known.clear()


# Results that a slave cannot send: they are larger than the limit of the master, or cannot be pickled.


class ResultTooLarge(Exception):
    """A result is larger than the master's limit."""

    __module__ = "mwpy.slave"  # users see the name in the results of their tasks


class ResultNotPicklable(Exception):
    """A result cannot be sent; the cause says why."""

    __module__ = "mwpy.slave"


def check_size(size: int, limit: int) -> None:
    """Check the size of an encoded result.

    Raises:
        ResultTooLarge: it is larger than the limit; the task's fault.
    """
    if size > limit:
        raise ResultTooLarge(
            f"its result is {size} bytes, the limit is {limit} bytes (--mw-max-read-buffer-size): "
            f"write it to a file and return the name, or raise the limit"
        )


def not_sendable(error: BaseException, value: object) -> BaseException:
    """The error for the failed result of a task that returned `value`: an error was raised after that."""
    if isinstance(error, ResultTooLarge) or not isinstance(error, Exception):
        return error
    failure = ResultNotPicklable(
        f"its result, a {type(value).__qualname__}, cannot be pickled ({error}): return what it is made from"
    )
    failure.__cause__ = error
    return failure


# Results that a slave has finished and not sent.


GATHER_S = 0.02
STRETCH_S = 0.035
"""Results of single tasks, and those of portions, are sent when the clock reaches a multiple of this many seconds. All
slaves of a machine have the same clock. So their messages arrive together, and wake up agent and master once: each
time, this takes about 0.5 ms of processor time in each of them. It is less than `SILENT_S`, after which the agent reads
the journal."""

SHORT_S = 0.003
"""If the last tasks took more than this, results are sent twice as often: the next task may take longer."""

TIMED_S = 20e-6
"""Tasks of portions that take less than this are not timed one by one, because that would cost too much."""

BLOCK_S = 0.002
"""About how many seconds the tasks of a block take, if they are short."""

MAX_BLOCK = 4096
"""The largest number of tasks in a block."""

BLOCK_BYTES = 4096
"""A block of tasks that are not timed ends after a value that takes more than this, unless it is plain."""

ENCODABLE = PLAIN | {Encoded}
"""The types of values that are encoded together."""

CAREFUL_ATTEMPT = 3
"""From this attempt on, the result of each task is kept before the next one starts: one of them may have harmed its
slave without ending it. Second attempts are common, because late tasks are run again."""


@define(eq=False, repr=False)
class Unsent:
    """The results that a slave has finished and not sent. They are in its journal, except for large ones.

    Args:
        number: the slave's number within its agent.
        limit: the largest result that the master accepts, in bytes.
        group: how many results to send at a time; 0 to gather them for `GATHER_S`.
        codec: encodes results.
        end: the channel to the agent, and its journal.
        send: sends a message with its frames.
    """

    _number: int
    _limit: int
    group: int
    _codec: Codec
    _end: SlaveChannel
    _journal: Journal
    _send: Callable[[messages.Message, Sequence[Buffer]], None]
    silent_from: float = 0.0
    """Since when the agent has heard nothing, as far as is known here: when this slave was fed, or has sent results."""
    task: int = 0
    """The task whose result is next."""
    values: list[Any] = Factory(list)
    """The values of the block that runs, if its tasks are not timed."""
    _attempt: int = 0
    _times: list[float] = Factory(list)
    """How long each task took, in seconds, or each block whose tasks were not timed."""
    _num_plain: int = 0
    """How many of them are plain, and are of blocks."""
    _kinds: set[type] = Factory(set)
    """The types of these."""
    _has_failed: bool = False
    """Whether there is a failure among them."""

    @property
    def count(self) -> int:
        """How many results these are."""
        return self._journal.count

    @property
    def are_timed(self) -> bool:
        """Whether the time of each task is known."""
        return len(self._times) == self.count

    def begin(self, task: int, attempt: int) -> None:
        """Tasks with consecutive ids begin, in the same attempt."""
        self.task, self._attempt = task, attempt

    def keep(self, value: object, seconds: float) -> bool:
        """Keep the value of a task. Return whether the results can wait for that of the next task."""
        try:
            payload, large = self._codec.dumps_value(value)
            if large or len(payload) > self._limit:
                check_size(len(payload) + sum(map(len, large)), self._limit)
        except self._codec.interrupts:
            raise
        except BaseException as error:
            self.fail(self._codec.dumps_failure(not_sendable(error, value)), seconds)
            return False
        if not large and self._journal.add(self.task, 1, self._attempt, seconds, payload):
            self.task += 1
            self._times.append(seconds)
        else:
            self._add(1, seconds, payload, large=large)
        return not self.group or self.count < self.group

    def encode_last(self) -> bool:
        """Encode the last value of a block, which is not plain, before another task can change it. Return whether the
        block goes on. If the value cannot be part of a group, it stays as it is."""
        try:
            payload, large = self._codec.dumps_value(self.values[-1])
        except self._codec.interrupts:
            raise
        except BaseException:  # `keep` tries it again
            return False
        if large or len(payload) > self._limit:
            return False
        self.values[-1] = as_encoded(payload)
        return len(payload) < BLOCK_BYTES

    def keep_block(self, seconds: float) -> None:
        """Keep the values of a block."""
        values, self.values = self.values, []
        count, kinds = len(values), {*map(type, values)}
        try:
            data = encode_entries(values) if kinds <= ENCODABLE and not any_large(values, kinds) else b""
        except NOT_ENCODABLE:
            data = b""
        if data and len(data) <= min(self._limit, PAYLOAD_BYTES):
            self._add(count, seconds, data)
            self._num_plain += count if kinds <= PLAIN else 0
            self._kinds |= kinds
            return
        for value in values:
            if type(value) is Encoded:
                self._add(1, seconds / count, bytes(value))
            else:
                self.keep(value, seconds / count)

    def fail(self, failure: bytes, seconds: float, kind: int = FAILED) -> None:
        """Keep an encoded failure."""
        self._has_failed = True
        self._add(1, seconds, failure, kind)

    def _add(self, count: int, seconds: float, payload: bytes, kind: int = VALUE, large: Sequence[Buffer] = ()) -> None:
        """Keep results in the journal. If there is no room, send what is there first. One that is too large for the
        journal is sent at once."""
        first, self.task = self.task, self.task + count
        tasks = first, count, self._attempt
        if large or not self._journal.add(*tasks, seconds, payload, kind):
            self.send()
            if large or not self._journal.add(*tasks, seconds, payload, kind):
                failed, again = [0] if kind else [], [0] if kind == AGAIN else []
                columns = [first], [1], [self._attempt], [seconds], failed, [len(large)], again
                group = messages.Results(self._number, *columns, shares=shared_objects.shares_of(large))
                self._send(group, [groups.payload(1, [payload]), *large])
                return
        self._times.append(seconds)

    def is_due(self, now: float, every_s: float) -> bool:
        """Whether they should be sent now, if results are sent at the multiples of `every_s`. A failure does not wait
        for the next task, because it may stop the run."""
        if self.group:
            return self.count >= self.group
        return now // every_s > self.silent_from // every_s or self._has_failed

    def send(self) -> None:
        """Send them, if there are any. If they cannot be sent, they stay in the journal, where the agent finds them."""
        if not self.count or (noted := self._journal.read(self._number)) is None:
            return
        group, frames = noted
        seconds = self._times if self.are_timed and len(self._times) <= MAX_TASKS else group.seconds
        plain = self._num_plain == self.count and not self._kinds >= {str, bytes}
        self._send(replace(group, seconds=seconds, plain=plain), frames)
        if not self._end.eof:
            self._journal.clear()
        self._times, self._kinds, self._num_plain, self._has_failed = [], set(), 0, False
        self.silent_from = monotonic()


def _prepared(function: Callable[..., Any], span: WaitingTasks, most: int) -> tuple[Callable[..., Any], Any, bool]:
    """Return what to call for each of the first tasks of a span, with what, and whether this is a list of arguments."""
    calls = span.calls[:most]
    if span.kind in (ROWS, ARGUMENTS):
        return function, calls, span.kind == ROWS
    if {*map(type, calls)} == {list}:
        return function, calls, True
    return partial(_call, function), [*zip(calls, span.buffers, strict=False)], True


def _call(function: Callable[..., Any], call: object, buffers: Sequence[Buffer]) -> Any:
    """Call a function with the arguments of an encoded call. `task_seed` returns the seed of this call."""
    RUNNING.seed, _ = extras_of(call)
    args, kwargs = loads_call(call, buffers)
    return function(*args, **kwargs)


# The handler of `logging` in a slave. Only slaves and their template import this module.


_FORMATTER = logging.Formatter()


class _ToMaster(logging.Handler):
    """Passes all records on."""

    def __init__(self, note: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        try:
            self._note(record)
        except Exception:
            self.handleError(record)


def install(levels: Mapping[str, int], note: Callable[[logging.LogRecord], None]) -> logging.Handler:
    """Let all loggers pass their records on, and `warnings`, too.

    The handlers that the script has added are those of the master, too. They would write each record twice, so they are
    removed. A handler that a task adds later stays.

    Args:
        levels: the levels of loggers by their names; that of the root logger has an empty name.
        note: receives the records.
    """
    handler = _ToMaster(note)
    root = logging.getLogger()
    known = [each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (root, *known):
        for own in logger.handlers[:]:
            logger.removeHandler(own)
        if logger is root or not logger.propagate:
            logger.addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    logging.captureWarnings(True)
    return handler


def text_of(record: logging.LogRecord) -> str:
    """Return the text of a record. The arguments may be objects whose text cannot be made."""
    try:
        return record.getMessage()
    except Exception as error:
        name, text, _ = describe_error(error)
        return f"{record.msg!r} % {type(record.args).__name__}: {name}: {text}"


def trace_of(record: logging.LogRecord) -> str:
    """Return the traceback and the stack of a record; empty if it has none."""
    trace = record.exc_text or ""
    if not trace and record.exc_info and record.exc_info[0] is not None:
        trace = _FORMATTER.formatException(record.exc_info)
    return "\n".join(filter(None, (trace, record.stack_info)))


# What the tasks of a slave log: it is gathered, and sent before the results of the tasks.
#
# The slave has the levels that the loggers of the master had at its start. So what the master would not show is not
# even formatted. A task may log without end: only `BYTES_A_SECOND` are sent in the long run. The others are counted.
#
# In a short time, the first records are sent at once, so that a long task shows what it does. The others wait for the
# next record, or for the end of the task. Only the thread that runs tasks sends, because the channel is for one thread.


BYTES_A_SECOND = 256 * 1024
BYTES_AT_ONCE = 512 * 1024
"""How many bytes of records a slave may send a second in the long run, and how many at once after a silence."""

LEAST_BYTES = 512
"""A record counts as at least this many bytes. So a slave may send about 500 records a second, and `MAX_ROWS` at once.
The manual names the first number."""

SENDS_A_SECOND = 10
SENDS_AT_ONCE = 20
"""How many messages with records a slave may send while a task runs."""

SAID_EVERY_S = 1.0
"""If records were only left out, this is reported at most once in this many seconds while tasks run."""


class Allowance:
    """How much may be used: some at once, and less in the long run."""

    def __init__(self, a_second: float, at_once: float) -> None:
        self.a_second = a_second
        self.at_once = at_once
        self._left = at_once
        self._at = 0.0

    def take(self, amount: float, now: float) -> bool:
        """Use an amount, if it is left. Return whether it is used."""
        self._left = min(self.at_once, self._left + (now - self._at) * self.a_second)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True


@define(eq=False, repr=False)
class TaskLogs:
    """Gathers what the tasks of one slave log.

    Args:
        end: the channel to the agent.
        number: the slave's number within its agent.
        tasks: know which task runs.
        put: sends a message.
    """

    _end: SlaveChannel
    _number: int
    _tasks: RunningTasks
    _put: Callable[[Logged], None]
    algorithm: str = ""
    """The name of the algorithm that runs; empty if none does."""
    waiting: bool = False
    """Whether there is something to send."""
    _rows: list[LogRow] = Factory(list)
    _size: int = 0
    _left_out: int = 0
    _said_at: float = 0.0
    _bytes: Allowance = Factory(lambda: Allowance(BYTES_A_SECOND, BYTES_AT_ONCE))
    _sends: Allowance = Factory(lambda: Allowance(SENDS_A_SECOND, SENDS_AT_ONCE))
    _thread: int = Factory(threading.get_ident)
    _lock: threading.RLock = Factory(threading.RLock)
    _is_sending: bool = False
    """Whether a message is being made or sent. A finalizer of a task may log at any moment, also then."""
    _handler: logging.Handler | None = None

    def begin(self, levels: Mapping[str, int] | None) -> None:
        """Take over what is logged from now on, if the master has given its levels. Only the first call does it."""
        if levels is not None and self._handler is None:
            self._handler = install(levels, self.note)

    def note(self, record: logging.LogRecord) -> None:
        """Keep a record, or count it. Send it at once if the task has not sent much."""
        if self._end.forked:
            return
        with self._lock:
            now = monotonic()
            self.waiting = True
            if len(self._rows) >= MAX_ROWS or self._size >= BYTES_AT_ONCE or not self._bytes.take(LEAST_BYTES, now):
                self._left_out += 1
                return
            row = self._row(record)
            size = size_of_records(row)
            if not self._bytes.take(max(0, size - LEAST_BYTES), now):
                self._left_out += 1
                return
            self._rows.append(row)
            self._size += size
        if threading.get_ident() == self._thread and self._sends.take(1, now):
            self.send()

    def _row(self, record: logging.LogRecord) -> LogRow:
        return LogRow(
            self._tasks.running if self.algorithm else 0,
            _sent(self.algorithm, MAX_NAME),
            max(0.0, record.created),
            min(MAX_LEVEL, max(0, record.levelno)),
            _sent(record.name, MAX_NAME),
            _sent(text_of(record)),
            _sent(record.pathname, MAX_PATH),
            max(0, record.lineno),
            _sent(record.funcName or "", MAX_NAME),
            _sent(trace_of(record)),
        )

    def send(self, *, everything: bool = False) -> None:
        """Send the records that wait. If all were left out, say so from time to time, or if `everything` is sent."""
        if self._end.forked or self._is_sending:
            return
        with self._lock:
            now = monotonic()
            if not (self._rows or (self._left_out and (everything or now >= self._said_at + SAID_EVERY_S))):
                return
            self._is_sending = True
            try:
                logged = Logged(self._number, self._rows, self._left_out)
                self._rows, self._size, self._left_out, self.waiting, self._said_at = [], 0, 0, False, now
                self._put(logged)
            finally:
                self._is_sending = False


def _sent(text: object, most: int = MAX_REASON) -> str:
    """A text as it is sent: a handler of the user may have left anything in a record."""
    text = str(text)
    return shortened(text if text.isascii() else text.encode(errors="backslashreplace").decode(), most)


FOREVER_S = 86400.0
"""How long a slave without tasks waits at most before it looks again, in seconds."""

MEASURE_S = 0.02
"""Seconds between two measurements of this process's memory. One takes about 10 µs."""

CODEC = Codec()


class TaskRunner:
    """The part of a slave that talks to the agent and runs tasks.

    Args:
        end: the channel to the agent.
        number: the slave's number within its agent.
        result_group: how many results to send at a time; 0 to gather results for `GATHER_S`.
        max_result_bytes: the largest result that the master accepts.
        codec: encodes results. Its interrupts are no failures of a task, and end the turn instead.
        wear: how many tasks this process may run, and how much memory it may have between two tasks, in bytes; 0 if
            there is no limit.
        is_own_process: whether this process only runs tasks, so that its memory is theirs.
        surroundings: what is put back after each task; None if nothing is.
    """

    def __init__(
        self,
        end: SlaveChannel,
        number: int,
        result_group: int,
        max_result_bytes: int,
        codec: Codec = CODEC,
        wear: tuple[int, int] = (0, 0),
        is_own_process: bool = True,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._end = end
        self._number = number
        self._max_tasks, self._max_memory_bytes = wear[0] or sys.maxsize, wear[1]
        self._measure_at = 0.0 if self._max_memory_bytes else inf
        """When to measure the memory of this process again."""
        self._grown_bytes = 0
        """How much memory it had when this was too much; 0 if it was not."""
        self._codec = codec
        self._algorithms = LoadedAlgorithms()
        self._compared: dict[tuple[str, str], str] = {}
        """The modules and names of variables whose values were compared with the master's."""
        self._shares: dict[str, SharedObject] = {}
        """The shared objects that the agent has given to this slave, by digest."""
        self._waiting: deque[WaitingTasks] = deque()
        """Tasks that arrived and were not started. The agent may have taken some of them back."""
        self._arrived = 0
        """How many tasks ever arrived; also the position of the last one."""
        self._unsent = Unsent(number, max_result_bytes, result_group, codec, end, end.journal, self._send_results)
        self._ran_last = 0, 0
        """The number of the algorithm whose tasks ran last, and their kind."""
        self._tasks = RunningTasks(end, number, max_result_bytes, codec)
        self._logs = TaskLogs(end, number, self._tasks, self._send)
        self._peaks = PeakMemory(self._send_peak) if is_own_process else None
        self._surroundings = surroundings
        self._part = Part() if is_own_process else None
        self._given: Given | None = None
        """What the tasks are given that run."""
        self._ready = False
        self.completed = 0
        """How many tasks were run."""
        self.shut_down = False
        """Whether the master shut this slave down, or it is worn and will be replaced."""
        self.sid: SlaveId | None = None
        """The id that the master gave this slave; None until it arrives."""

    @property
    def ended(self) -> bool:
        """Whether no task will run any more: this slave was shut down, or the agent is gone."""
        return self.shut_down or self._end.eof

    @property
    def num_waiting(self) -> int:
        """How many tasks arrived and were not started."""
        return sum(map(count_of, self._waiting))

    @property
    def num_unsent(self) -> int:
        """How many results are finished and not sent."""
        return self._unsent.count

    @property
    def result_group(self) -> int:
        """How many results are sent at a time; 0 if this slave decides."""
        return self._unsent.group

    def get_ready(self) -> None:
        """Read the definitions that have arrived, then report that this slave is ready for tasks. Only the first call
        does it.

        Definitions come first: if the import of a module ends the interpreter, this must happen before the agent counts
        this slave as started.
        """
        if not self._ready:
            self._ready = True
            while self.receive():
                pass
            self._send(messages.SlaveReady(self._number))

    def turn(self, timeout: float | None, most: int, *, again: bool = False) -> None:
        """Wait for tasks if there are none, then run up to `most` of the tasks that have arrived.

        Args:
            timeout: how long to wait, in seconds; None for as long as it takes.
            again: whether the next turn follows at once. Then results may wait for it.
        """
        self.get_ready()
        waiting, end, can_start = self._waiting, self._end, self._can_start
        if not can_start():
            self.receive()
        if not can_start():
            self.flush()
            if self._logs.waiting:
                self._logs.send(everything=True)
            if not self.ended and timeout != 0.0:
                self.receive(FOREVER_S if timeout is None else timeout)
        self._unsent.silent_from = max(self._unsent.silent_from, end.fed_at)
        most = min(most, self.num_waiting, self._max_tasks - self.completed)
        if self._surroundings is not None:
            self._surroundings.remember()
        while can_start() and most > 0 and not end.eof:
            span = waiting.popleft()
            messages.RUNNING.task = self._tasks.begin(span.first, span.attempt, span.position, span.left)
            self._logs.algorithm = self._algorithms.names.get(span.number, "")
            if span.given is not self._given:
                self._use(span.given)
            if self._peaks is not None:  # else it is the process of the master, where nobody ends a task
                RUNNING.end_at = partial(end.task_ends_at, span.seconds_max)
            try:
                ran = self._run(span, most)
            finally:
                messages.RUNNING.task = RUNNING.end_at = RUNNING.seed = None
                self._logs.algorithm = ""
            most -= ran
            if ran < span.count:
                waiting.appendleft(span.cut(ran)[1])
                if most > 0 and not self._grown_bytes and not end.eof:
                    self.flush()
                    self.receive(FOREVER_S)  # the agent has recalled tasks, and now sends a message that names them
        if self._grown_bytes or self.completed >= self._max_tasks:
            self._wear_out()
        if self.ended or not (self.result_group or (again and end.has_message)):
            self.flush()

    def _use(self, given: Given | None) -> None:
        """The next tasks have what they were given, and nothing else."""
        self._given = given
        RUNNING.given = NOTHING_GIVEN if given is None else given.amounts
        if self._part is not None:
            self._part.use(given)

    def _can_start(self) -> bool:
        """Whether a task waits that may run here, and the shared objects that it needs are in this process."""
        return bool(self._waiting and not self._grown_bytes) and all(
            map(shared_objects.is_known, self._waiting[0].shares)
        )

    def _run(self, span: WaitingTasks, most: int) -> int:
        """Run up to `most` tasks, and return how many were run; stop when tasks are recalled or the agent is gone."""
        if self._peaks is not None:
            self._peaks.switch(span.number)
        if self._ran_last != (span.number, span.kind) and not self._unsent.are_timed:
            self.flush()  # the sum of their times is of one algorithm
        self._ran_last = span.number, span.kind
        function = self._algorithms.loaded.get(span.number)
        if function is None or isinstance(function, Unavailable):
            if not self._end.start(span.position):  # if unpickling ends this process, the first task is charged
                return 0
            function = self._algorithms.unpack(span.number)
            if isinstance(function, Unavailable):
                return self._refuse(span, function)
        if span.number in self._algorithms.code:
            self._compare_values(span.number, self._algorithms.code.pop(span.number))
        ran = self._run_blocks(span, *_prepared(function, span, most))
        self.completed += ran
        return ran

    def _compare_values(self, number: int, code: Mapping[str, ModuleCode]) -> None:
        """Say which values that the tasks of an algorithm use were different here before the first task that may have
        changed them. With slave algorithms, this is unknown."""
        if not REGISTRY.slaves and (other := other_values(code, self._compared)):
            self._send(messages.OtherValues(self._number, number, shortened(first_of(other, len(other)))))

    def _run_blocks(
        self, span: WaitingTasks, function: Callable[..., Any], calls: Sequence[Any], are_rows: bool
    ) -> int:
        """Run tasks of a span in blocks; see `_prepared`. Return how many were run."""
        end, unsent, ran, goes_on = self._end, self._unsent, 0, True
        is_timed = all_timed = not span.kind or bool(unsent.group) or span.attempt >= CAREFUL_ATTEMPT
        block, gather_s = MAX_BLOCK if all_timed else 1, STRETCH_S if span.kind else GATHER_S
        while goes_on and not self._grown_bytes and ran < len(calls):
            first, error = span.first + ran, None
            what = function, calls[ran : ran + block], are_rows, span.position + ran
            unsent.begin(first, span.attempt)
            began = monotonic()
            try:
                if is_timed:
                    end.run_timed(*what, unsent.keep, began + BLOCK_S)
                else:
                    end.note_began(began)
                    end.run_block(*what, unsent.values, unsent.encode_last)
            except self._codec.interrupts:
                raise
            except BaseException as raised:
                error = raised
            if end.forked:
                _end_fork(self._tasks.running, error)
            now = monotonic()
            failed_s = (now - end.began) / (len(unsent.values) + 1)
            if self._surroundings is not None and (error is not None or not is_timed):
                self._surroundings.restore()
            if unsent.values:
                unsent.keep_block(now - began - (failed_s if error is not None else 0.0))
            if error is not None and end.position == span.position + unsent.task - span.first:
                self._fail(span.calls[unsent.task - span.first], error, failed_s)
            end.note_began(0.0)  # not before, because the agent must end a task that has given up
            count = unsent.task - first
            if not count and error is None:
                break  # tasks were recalled
            error = None  # its traceback keeps the objects of the task alive
            ran += count
            goes_on = not end.eof if all_timed else end.is_open()
            if unsent.is_due(now, gather_s if now - began <= count * SHORT_S else gather_s / 2):
                self.flush()
            is_timed = all_timed or now - began > count * TIMED_S
            block = MAX_BLOCK if all_timed else max(1, min(MAX_BLOCK, int(count * BLOCK_S / (now - began))))
        return ran

    def _refuse(self, span: WaitingTasks, why: Unavailable) -> int:
        """Give back the tasks of an algorithm that cannot run here, and return how many they are."""
        spans = [span.first], [span.count], [span.attempt]
        self._send(messages.AlgorithmFailed(self._number, span.number, shortened(why.reason), *spans, why.failure))
        return span.count

    def _fail(self, call: object, error: BaseException, seconds: float) -> None:
        """Keep a failure as the result of a task. Find out whether the task is tried again after it.

        Args:
            call: the task's arguments, which may have a condition.
            error: what the task raised.
            seconds: how long it took.
        """
        if isinstance(error, EndIsNear):
            self._give_up(error)
        again, remark = False, ""
        try:
            _, pickled = extras_of(call)
            again = bool(pickled) and isinstance(error, Exception) and _is_met(pickled, error)
        except self._codec.interrupts:
            raise
        except BaseException as second:
            type_name, text, _ = describe_error(second)
            remark = f"the task is not tried again, because retry_errors failed: {shortened(f'{type_name}: {text}')}"
        self._unsent.fail(self._codec.dumps_failure(error, remark), seconds, AGAIN if again else FAILED)

    def _give_up(self, error: EndIsNear) -> None:
        """If the end of a task is known, wait for it: the agent kills this process, or lets it end because it leaves.

        So the cause of the loss is the right one, and the task is not sent to the same agent again.
        """
        if RUNNING.end_at is None or time_left.seconds_left() == inf:
            return
        print(f"mwpy: task {self._unsent.task} gives up: {error}", file=sys.stderr, flush=True)
        self.flush()
        while not self.ended:
            self.receive(FOREVER_S)
        raise SystemExit(0)

    def flush(self) -> None:
        """Send the results that wait, if there are any."""
        self._unsent.send()

    def _send_results(self, message: messages.Message, frames: Sequence[Buffer]) -> None:
        """Send results. Before that, report the peak of memory, and check whether it is too much by now."""
        if self._peaks is not None:
            self._peaks.look()
        if self._measure_at != inf and (now := monotonic()) >= self._measure_at:
            self._measure_at = now + MEASURE_S
            resident_bytes = memory.resident_bytes()
            if resident_bytes > self._max_memory_bytes:
                self._measure_at, self._grown_bytes = inf, resident_bytes
        self._send(message, frames)

    def _wear_out(self) -> None:
        """End, because this process has run enough tasks, or has too much memory."""
        if not self.shut_down:
            self.flush()
            self.shut_down = True
            grown = f", because it had grown to {amount(self._grown_bytes)}" if self._grown_bytes else ""
            self._send(messages.SlaveWorn(self._number, f"{REPLACED} {counted(self.completed, 'task')}{grown}"))

    def _send_peak(self, algorithm: int, peak_bytes: int) -> None:
        self._send(messages.PeakMemory(self._number, algorithm, peak_bytes))

    # ---- messages -------------------------------------------------------------------------------------------

    def _send(self, message: messages.Message, frames: Sequence[Buffer] = ()) -> None:
        if self._logs.waiting:
            self._logs.send()
        self._end.send(wire.encode(message, frames))

    def receive(self, timeout: float = 0.0) -> bool:
        """Handle the messages that have arrived, and return whether there were any.

        Args:
            timeout: how long to wait for the first message, in seconds.
        """
        received = self._end.receive(timeout)
        for frames in received:
            self._handle(*wire.parse(frames))
        return bool(received)

    def _handle(self, message: messages.Message, payload: Sequence[Buffer]) -> None:
        match message:
            case messages.Tasks():
                for span in arrived(message, payload, self._arrived):
                    self._waiting.append(span)
                    self._arrived += span.count
            case messages.Revoked():
                self._end.recall_heard()
                take_named(self._waiting, message)
            case messages.Algorithms():
                self._algorithms.define(message, payload)
            case messages.ShareGiven():
                self._shares[message.share.digest] = shared_objects.give(message.share, message.reason)
            case messages.ShareForgotten():
                self._shares.pop(message.digest, None)
            case messages.SlaveNamed():
                self.sid = message.sid
                self._logs.begin(message.levels)
            case messages.NextGeneration():
                self._begin_again()
            case messages.Shutdown():
                self.shut_down = True
            case _:
                pass

    def _begin_again(self) -> None:
        """Another generation of the master begins. All tasks of the former one have ended."""
        self.flush()
        self._logs.send(everything=True)
        edited = self._algorithms.forget_all()
        self._shares.clear()
        if self._peaks is not None:
            self._peaks.forget_all()
        self.sid = None
        self._send(messages.NextGeneration(self._number, shortened(edited)))


def _is_met(pickled: bytes, error: Exception) -> bool:
    """Whether a pickled condition says that a task is tried again after an exception."""
    with undisturbed():
        condition = loads_condition(pickled)
    return isinstance(error, condition) if isinstance(condition, tuple) else bool(condition(error))


def _end_fork(task_id: int, error: BaseException | None) -> NoReturn:
    """End a child process that a task forked, if it comes back from the task: only the slave itself sends results.

    If it comes back by `sys.exit`, it ends as a plain process would.
    """
    if isinstance(error, SystemExit):
        code = script.code_of(error)
        os._exit(code & 255 if isinstance(code, int) else 1)
    text = f"mwpy: a process that task {task_id} forked came back from the task, and ends here: end it with os._exit"
    print(text, file=sys.stderr, flush=True)
    os._exit(ExitCode.FAILED)
