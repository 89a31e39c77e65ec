"""The journal: results that a slave has finished and not sent, in memory that its agent can read.

A slave writes each small result into its journal, and sends the results of the journal as a group. If the slave dies,
or falls silent in a long task, the agent reads the journal.

Most results are values of tasks that follow one another. So there is one column, of the times, and behind it the
payloads, one after the other, so that they can be sent as they are. Two tables have the rest: one has a row for each
*span*, where consecutive tasks begin. The other one has a row for each *failure*. A result with large buffers never
waits in the journal: the slave sends it at once.

The journal's first 64-bit number says, in its lower half, how many results there are, and how many bytes their payloads
have together. The upper half is the number of the current *filling*: emptying the journal begins a new filling.

The slave first writes a result behind the others, and then changes the number. So an addition never disturbs a read,
which leaves out the rows of a result that is not counted yet. A read during which the filling changed is discarded. One
instruction stores the number. On x86, other processors see stores in their order. On other processors, reads are safe
because the agent only reads the journal of a slave that is dead, or that has been silent for longer than it gathers
results.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from mwpy._values import groups, messages
from mwpy._values.bounds import MAX_TASKS
from mwpy._values.ids import Buffer

__all__ = ["AGAIN", "FAILED", "JOURNAL_BYTES", "VALUE", "Journal"]

VALUE, FAILED, AGAIN = range(3)
"""What a result is: a value, a failure, or a failure after which the task is tried again if it has attempts left."""

CAPACITY = MAX_TASKS
"""The largest number of results. A group that is sent every 20 ms has fewer."""
PAYLOAD_BYTES = 160 * 1024
"""The size of all payloads together."""

_SIZE_SHIFT = 14
"""The size of the payloads is in the bits above those that count the results."""
_COUNTS = 1 << _SIZE_SHIFT
_FILLING = 1 << 32

_LINE_BYTES = 64
"""The size of a cache line. The numbers have their own, because one side writes while the other reads."""
_SPAN = struct.Struct("=QII")
"""The first task of a span, its attempt, and how many results precede it."""
_FAILURE = struct.Struct("=QII")
"""Task and attempt of a failure, and whether the task is tried again."""
_SPANS = _LINE_BYTES + CAPACITY * 8
_FAILURES = _SPANS + CAPACITY * _SPAN.size
_PAYLOADS = _FAILURES + CAPACITY * _FAILURE.size
JOURNAL_BYTES = _PAYLOADS + PAYLOAD_BYTES


class Journal:
    """One side's view of a journal; only the slave writes.

    Args:
        memory: `JOURNAL_BYTES` of memory that both sides share.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._counter = memory[:8].cast("Q")
        self._rows = memory[8:24].cast("Q")
        """How many rows the tables of spans and of failures have."""
        self._seconds: memoryview[float] = memory[_LINE_BYTES:_SPANS].cast("d")
        self.count = 0
        """How many results the slave has written and not sent."""
        self._number = 0
        """What the slave wrote into the first number. It does not read the memory, which a task may overwrite."""
        self._last = [(0, -1), (0, -1)]
        """For each table: how many rows it has, and the position of the result to which the last one belongs."""
        self._next, self._attempt = -1, 0
        """The task that would continue the last span, and the attempt of this span."""
        self._end = _PAYLOADS
        """Where the next payload is written."""

    def add(self, task_id: int, attempt: int, seconds: float, payload: bytes) -> bool:
        """Write the value of a task. Return False if there is no room. Each single task costs one call of this."""
        count, start, size = self.count, self._end, len(payload)
        end = start + size
        if count == CAPACITY or end > JOURNAL_BYTES:
            return False
        if task_id != self._next or attempt != self._attempt:
            self._begin_span(task_id, attempt)
        self._seconds[count] = seconds
        self._memory[start:end] = payload
        self.count, self._end, self._next = count + 1, end, task_id + 1
        self._counter[0] = self._number = self._number + (size << _SIZE_SHIFT) + 1
        return True

    def _begin_span(self, task_id: int, attempt: int) -> None:
        self._next = -1  # until the result is written: a signal handler may raise an exception before
        self._attempt = attempt
        row = self._row(0)
        _SPAN.pack_into(self._memory, _SPANS + row * _SPAN.size, task_id, attempt, self.count)
        self._rows[0] = row + 1

    def _row(self, table: int) -> int:
        """Return the number of the next row of a table, which belongs to the next result."""
        rows, result = self._last[table]
        row = rows - (result == self.count)  # an exception ended the addition of this result
        self._last[table] = row + 1, self.count
        return row

    def add_any(self, task_id: int, attempt: int, seconds: float, payload: bytes, kind: int) -> bool:
        """Write a value or a failure. Return False if there is no room.

        Args:
            kind: `VALUE`, `FAILED` or `AGAIN`.
        """
        if self.count == CAPACITY or self._end + len(payload) > JOURNAL_BYTES:
            return False
        if kind:
            row = self._row(1)
            _FAILURE.pack_into(self._memory, _FAILURES + row * _FAILURE.size, task_id, attempt, kind)
            self._rows[1] = row + 1
        return self.add(task_id, attempt, seconds, payload)

    def clear(self) -> None:
        """Empty the journal. Call this only after its results were sent."""
        self._counter[0] = self._number = (self._number // _FILLING + 1) * _FILLING % _FILLING**2
        self._rows[0] = self._rows[1] = self.count = 0
        self._last = [(0, -1), (0, -1)]
        self._next, self._end = -1, _PAYLOADS

    def read(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]] | None:
        """Read the results.

        Args:
            slave: the slave's number within its agent.

        Returns:
            A group of results, and its payload. None if the slave sent the results itself and emptied the journal
            during the read. If faulty code in the slave wrote into the memory, `message_checks.check` may reject it.
        """
        number = self._counter[0]
        count, size = min(number % _COUNTS, CAPACITY), number % _FILLING >> _SIZE_SHIFT
        num_spans, num_failures = (min(rows, CAPACITY) for rows in self._rows)
        seconds: list[float] = self._seconds[:count].tolist()  # type: ignore[assignment]  # a stub of integers
        payload = groups.payload(count, [self._memory[_PAYLOADS : _PAYLOADS + size]])
        table = _SPAN.iter_unpack(self._memory[_SPANS : _SPANS + num_spans * _SPAN.size])
        spans = {start: (first, attempt) for first, attempt, start in table if start < count}
        table = _FAILURE.iter_unpack(self._memory[_FAILURES : _FAILURES + num_failures * _FAILURE.size])
        kinds = {(task_id, attempt): kind for task_id, attempt, kind in table}
        if self._counter[0] // _FILLING != number // _FILLING:
            return None
        starts = sorted(spans)  # they are, unless faulty code wrote them
        counts = [end - start for start, end in pairwise((*starts, count))]
        firsts, attempts = ([spans[start][column] for start in starts] for column in range(2))
        group = messages.Results(slave, firsts, counts, attempts, seconds, [])
        if not kinds:
            return group, [payload]
        each = [kinds.get(name, VALUE) for name in groups.each_task(group)]
        failed = [place for place, kind in enumerate(each) if kind != VALUE]
        return replace(group, failed=failed, again=[place for place in failed if each[place] == AGAIN]), [payload]

    def close(self) -> None:
        """Release the memory."""
        for view in (self._counter, self._rows, self._seconds, self._memory):
            view.release()
