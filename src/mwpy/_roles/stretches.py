"""Runs the tasks of portions in a slave, in stretches.

A stretch may have tasks of several portions of one algorithm. Their results are sent together, and nothing is noted in
the journal. So a task costs little more than its call. If the slave dies, the finished tasks of the stretch run again
elsewhere, charged to nobody. If one of its tasks runs for long, the tasks before it may run again elsewhere, too.

Tasks run in blocks of two milliseconds, because what is done for each block costs as much as ten short tasks. The
clock is read after each task, so that a long one ends its block. If the tasks of the block before were very short, the
clock is read after each block only; then only the time of all tasks of the stretch together is known.

Plain values are encoded when the stretch is sent, with one call. Every other value is encoded at once, because the next
task could change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import sub
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from mwpy._roles.unsendable import check_size, not_sendable
from mwpy._roles.waiting_tasks import WaitingTasks
from mwpy._system.clock import monotonic
from mwpy._transport.codec import Codec, loads_call
from mwpy._values import groups, messages
from mwpy._values.bounds import MAX_TASKS
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import NOT_ENCODABLE, PLAIN, Encoded, as_encoded, encode_entries
from mwpy._values.packed import CALLS, ROWS

if TYPE_CHECKING:
    from mwpy._roles.edges import RunEach

__all__ = ["STRETCH_S", "Stretches"]

STRETCH_S = 0.035
"""The results of stretches are sent when the clock reaches a multiple of this many seconds. All slaves of a machine
have the same clock. So their messages arrive together, and wake up agent and master once: each time, this takes about
0.5 ms of processor time in each of them. It is less than `LATE_S`: after this silence, the agent searches for late
results, and only if there are some, it searches again."""

SHORT_S = 0.003
"""If the last tasks took more than this, results are sent twice as often: the next task may take longer."""

STRETCH_BYTES = 256 * 1024
"""About how many bytes of results are sent together at most."""

TIMED_S = 20e-6
"""Tasks that take less than this are not timed one by one, because that would cost too much."""

BLOCK_S = 0.002
"""About how many seconds the tasks of a block take, if they are short."""

MAX_BLOCK = 1024
"""The largest number of tasks in a block."""

CAREFUL_ATTEMPT = 3
"""From this attempt on, each task is a block: one of them may have harmed its slave without ending it. Second attempts
are common, because tasks that are finished and not sent for long are run again."""


_NONE: Sequence[Buffer] = ()


class _Gathered(Struct, eq=False):
    """The results of a stretch that were not sent."""

    algorithm: int
    """The number of the algorithm of all their tasks."""
    silent_from: float
    """When the last message to the agent was sent before the first of these tasks began."""
    tasks: list[int] = field(default_factory=list)
    """The first tasks of ranges, in the order in which the tasks ran."""
    counts: list[int] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    kinds: set[type] = field(default_factory=set)
    """The types of these values."""
    failed: list[int] = field(default_factory=list)
    """The positions of the failures among them."""
    times: list[float] = field(default_factory=list)
    """How long each task took, in seconds, or each block whose tasks were not timed."""
    size: int = 0
    """About how many bytes the texts, bytes and encoded values take."""

    def add(self, first: int, count: int, attempt: int) -> None:
        """Add a range of tasks that have run."""
        if self.tasks and (self.tasks[-1] + self.counts[-1], self.attempts[-1]) == (first, attempt):
            self.counts[-1] += count
        else:
            self.tasks.append(first)
            self.counts.append(count)
            self.attempts.append(attempt)

    def is_due(self, now: float, every_s: float) -> bool:
        """Whether they should be sent now, if results are sent at the multiples of `every_s`. A failure does not wait
        for the next task, because it may stop the run."""
        is_time = now // every_s > self.silent_from // every_s
        return is_time or bool(self.failed) or self.size > STRETCH_BYTES or len(self.tasks) == MAX_TASKS


class Stretches(Struct, eq=False):
    """Runs tasks of portions.

    Args:
        number: the slave's number within its agent.
        limit: the largest result that the master accepts, in bytes.
        codec: encodes results.
        send: sends a message with its frames.
        look: called after each block, with the last task that has ended and its exception, if it raised one. It
            returns whether to go on, and does not return in a process that this task forked.
    """

    number: int
    limit: int
    codec: Codec
    send: Callable[[messages.Message, Sequence[Buffer]], None]
    look: Callable[[int, BaseException | None], bool]
    silent_from: float = 0.0
    """Since when the agent has heard nothing, as far as is known here: when this slave was fed, or has sent results."""
    _ended: float = 0.0
    """When the last block ended."""
    _gathered: _Gathered = field(default_factory=lambda: _Gathered(0, 0.0))
    _large: Sequence[Buffer] = _NONE
    """The large buffers of the last value."""

    def run(self, run_each: RunEach, function: Callable[..., Any], span: WaitingTasks, most: int) -> int:
        """Run up to `most` tasks, and return how many were run; stop when tasks are recalled. If all were run, the
        results that are not due wait for those of the next portion, or for `flush`."""
        calls, ran, block, is_timed, goes_on = span.calls[:most], 0, 1, True, True
        are_rows, now = span.portion == ROWS, monotonic()
        if span.portion == CALLS:
            function = partial(_call, function)
        if self._gathered.algorithm != span.number:
            self.flush()
        gathered = self._gathered if self._gathered.values else self._begin(span)
        while goes_on and ran < len(calls):
            some, before, error = calls[ran : ran + block], len(gathered.values), None
            ends: list[float] | None = [] if is_timed else None
            kept = gathered.values, gathered.kinds, self._encode_last
            try:
                run_each(function, some, are_rows, span.position + ran, *kept, ends, now + BLOCK_S)
            except BaseException as raised:
                error = raised
            began, now = now, monotonic()
            self._ended = now
            count = len(gathered.values) - before + (error is not None)
            if not count:
                break  # tasks were recalled
            goes_on = self.look(span.first + ran + count - 1, error)
            if error is not None:
                self._add_failure(gathered, error)
            if ends is None or len(ends) < count:
                ends = [*(ends or ()), now]
            gathered.times += map(sub, ends, [began, *ends])
            gathered.add(span.first + ran, count, span.attempt)
            ran += count
            large, self._large = self._large, _NONE
            if type(last := gathered.values[-1]) in (str, bytes):
                gathered.size += len(last)
            if large or gathered.is_due(now, STRETCH_S if now - began <= count * SHORT_S else STRETCH_S / 2):
                self.flush(large)
                gathered = self._begin(span)
            is_timed = now - began > count * TIMED_S
            if span.attempt < CAREFUL_ATTEMPT:
                block = min(2 * block, MAX_BLOCK) if now - began < BLOCK_S else max(1, block // 2)
        if ran < len(calls):  # tasks were recalled, or the agent is gone
            self.flush()
        return ran

    def _begin(self, span: WaitingTasks) -> _Gathered:
        self._gathered = _Gathered(span.number, self.silent_from)
        return self._gathered

    def _add_failure(self, gathered: _Gathered, error: BaseException) -> None:
        gathered.failed.append(len(gathered.values))
        gathered.values.append(as_encoded(self.codec.dumps_failure(error)))
        gathered.kinds.add(Encoded)

    def _encode_last(self) -> bool:
        """Encode the last value, which is not plain, before another task can change it. Return whether the results can
        wait for those of the next task."""
        gathered = self._gathered
        entry, self._large = self._encoded(gathered, len(gathered.values) - 1, gathered.values[-1])
        gathered.size += len(entry)
        gathered.values[-1] = as_encoded(entry)
        return not (self._large or gathered.failed or gathered.size > STRETCH_BYTES)

    def _encoded(self, gathered: _Gathered, at: int, value: object) -> tuple[bytes, Sequence[Buffer]]:
        """Encode a value, or the reason why it cannot be sent. Return its entry and its large buffers."""
        try:
            entry, large = self.codec.dumps_value(value)
            check_size(len(entry) + sum(map(len, large)), self.limit)
        except BaseException as error:
            gathered.failed.append(at)
            return self.codec.dumps_failure(not_sendable(error, value)), _NONE
        return entry, large

    def flush(self, large: Sequence[Buffer] = ()) -> None:
        """Send the results that were gathered, if there are any. `large` are the buffers of the last one."""
        gathered = self._gathered
        values, times, kinds = gathered.values, gathered.times, gathered.kinds
        count = len(values)
        if not count:
            return
        self._gathered = _Gathered(0, 0.0)
        self.silent_from = self._ended
        try:
            data = encode_entries(values)
        except NOT_ENCODABLE:
            data = b""
        if not data or len(data) > self.limit:
            data = b"".join(
                bytes(value) if type(value) is Encoded else self._encoded(gathered, at, value)[0]
                for at, value in enumerate(values)
            )
            gathered.failed.sort()
            kinds = {Encoded}
        plain = kinds <= PLAIN and not kinds >= {str, bytes}
        seconds = times if len(times) == count <= MAX_TASKS else [sum(times)]
        buffers = [0] * (count - 1) + [len(large)] if large else []
        spans = gathered.tasks, gathered.counts, gathered.attempts
        group = messages.Results(self.number, *spans, seconds, gathered.failed, buffers, plain=plain)
        self.send(group, [groups.payload(count, [data]), *large])


def _call(function: Callable[..., Any], call: object) -> Any:
    """Call a function with the arguments of an encoded call."""
    args, kwargs = loads_call(call)
    return function(*args, **kwargs)
