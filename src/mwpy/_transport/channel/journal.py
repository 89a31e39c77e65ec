"""The journal: results that a slave has finished and not sent, in memory that its agent can read.

A slave writes each small result into its journal, and sends the results of the journal as a group. If the slave dies,
or falls silent in a long task, the agent reads the journal.

Large buffers of results are not in the journal. The slave passes them to its agent ahead, and the row of the result
names the packet in which they are (see `passage.py`).

The journal is a table with one row for each result. The payloads follow, one after the other, so that they can be sent
as they are. The lower half of the journal's first 64-bit number is the number of results. The upper half is the number
of the current *filling*: emptying the journal begins a new filling.

The slave first writes a result behind the others, and then increases the number of results. So an addition never
disturbs a read. A read during which the filling changed is discarded. One instruction stores the number. On x86, other
processors see stores in their order. On other processors, reads are safe because the agent only reads the journal of a
slave that is dead, or that has been silent for longer than it gathers results.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mwpy._values import groups, messages
from mwpy._values.bounds import MAX_TASKS
from mwpy._values.ids import Buffer

__all__ = ["AGAIN", "FAILED", "JOURNAL_BYTES", "VALUE", "Journal"]

VALUE, FAILED, AGAIN = range(3)
"""What a result is: a value, a failure, or a failure after which the task is tried again if it has attempts left."""

CAPACITY = MAX_TASKS
"""The largest number of results. A group that is sent every 10 ms has fewer."""
PAYLOAD_BYTES = 160 * 1024
"""The size of all payloads together."""

_LINE_BYTES = 64
"""The size of a cache line. The number has its own, because one side writes while the other reads."""
_ROW = struct.Struct("=QdIIII")
"""Id, seconds, attempt, payload size, what it is, and the packet of its large buffers (0 if it has none). Each column
is read in one call. The number of its large buffers is in the bits above those of what it is."""
_KIND = 0xFF
_BUFFERS_SHIFT = 8
_PAYLOADS = _LINE_BYTES + CAPACITY * _ROW.size
JOURNAL_BYTES = _PAYLOADS + PAYLOAD_BYTES
_FILLING = 1 << 32
_ROW_BYTES = _ROW.size
_write_row = _ROW.pack_into


class Journal:
    """One side's view of a journal; only the slave writes.

    Args:
        memory: `JOURNAL_BYTES` of memory that both sides share.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._counter = memory[:8].cast("Q")
        with memory[_LINE_BYTES:_PAYLOADS] as rows:
            self._longs, self._ints = rows.cast("Q"), rows.cast("I")
            self._floats: memoryview[float] = rows.cast("d")
        self.count = 0
        """How many results the slave has written and not sent."""
        self._filling = 0
        """The number of the filling, in the upper half."""
        self._row, self._end = _LINE_BYTES, _PAYLOADS
        """Where the next row and the next payload are written."""

    def add(
        self,
        task_id: int,
        attempt: int,
        seconds: float,
        kind: int,
        payload: bytes,
        packet: int = 0,
        num_buffers: int = 0,
    ) -> bool:
        """Write a finished result: `VALUE`, `FAILED` or `AGAIN`. Return False if there is no room.

        Args:
            packet: the packet in which its large buffers were passed ahead; 0 if it has none.
            num_buffers: how many they are.
        """
        row, start = self._row, self._end
        end = start + len(payload)
        if row == _PAYLOADS or end > JOURNAL_BYTES:
            return False
        memory = self._memory
        _write_row(memory, row, task_id, seconds, attempt, end - start, kind | num_buffers << _BUFFERS_SHIFT, packet)
        memory[start:end] = payload
        self._row, self._end = row + _ROW_BYTES, end
        self.count += 1
        self._counter[0] = self._filling + self.count
        return True

    def has_room(self, size: int) -> bool:
        """Whether there is room for a result whose payload has this size."""
        return self._row < _PAYLOADS and self._end + size <= JOURNAL_BYTES

    def clear(self) -> None:
        """Empty the journal. Call this only after its results were sent."""
        self.count = 0
        self._counter[0] = self._filling = (self._filling + _FILLING) % _FILLING**2
        self._row, self._end = _LINE_BYTES, _PAYLOADS

    def read(self, slave: int) -> tuple[messages.Results, Sequence[Buffer], Sequence[int]] | None:
        """Read the results.

        Args:
            slave: the slave's number within its agent.

        Returns:
            A group of results, its payload, and the packets in which its large buffers were passed ahead. None if the
            slave sent the results itself and emptied the journal during the read. If faulty code in the slave wrote
            into the memory, `message_checks.check` may reject it.
        """
        number = self._counter[0]
        count = min(number % _FILLING, CAPACITY)
        ids = self._longs[: 4 * count : 4].tolist()
        seconds: list[float] = self._floats[1 : 4 * count : 4].tolist()  # type: ignore[assignment]  # a stub of integers
        attempts = self._ints[4 : 8 * count : 8].tolist()
        sizes = self._ints[5 : 8 * count : 8].tolist()
        kinds = self._ints[6 : 8 * count : 8].tolist()
        packets = [packet for packet in self._ints[7 : 8 * count : 8].tolist() if packet]
        payload = groups.payload(count, [self._memory[_PAYLOADS : _PAYLOADS + sum(sizes)]])
        if self._counter[0] // _FILLING != number // _FILLING:
            return None
        buffers = [kind >> _BUFFERS_SHIFT for kind in kinds] if packets else []
        kinds = [kind & _KIND for kind in kinds] if packets else kinds
        failed = [position for position, kind in enumerate(kinds) if kind] if any(kinds) else []
        again = [position for position in failed if kinds[position] == AGAIN]
        group = messages.Results(slave, *groups.spans_of(ids, attempts), seconds, failed, buffers, again)
        return group, [payload], packets

    def close(self) -> None:
        """Release the memory."""
        for view in (self._counter, self._longs, self._floats, self._ints, self._memory):
            view.release()
