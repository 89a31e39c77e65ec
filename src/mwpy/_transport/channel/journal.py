"""The journal: results that a slave has finished and not yet sent, in memory that its agent can read.

A slave notes each small result here and sends them in groups from here; the agent finds them if the slave falls silent
in a long task, or dies. What is known of a result is a row of a table; the payloads stand behind the table, one after
the other, so that they are sent as they are. One word tells how many results stand there, in its lower half, and in
its upper half the number of the current filling. A result is written behind the others first, and counts once the word
says so; emptying the journal is a new filling. So an addition never disturbs a reading, and a reading during which the
filling changed is no reading. The word is stored by one instruction. x86 shows others the stores in their order;
elsewhere it counts that the agent reads the journal only of a slave that is dead or has been silent for longer than it
gathers results.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mwpy._values import messages
from mwpy._values.ids import Buffer

__all__ = ["JOURNAL_BYTES", "Journal"]

CAPACITY = 4096
"""Results; more are in no group that is sent every 10 ms."""
PAYLOAD_BYTES = 160 * 1024
"""Bytes of all their payloads."""

_LINE_BYTES = 64
"""The word has a cache line of its own, for each side writes or reads at its own time."""
_ROW = struct.Struct("=QdIII4x")
"""Id, seconds, attempt, size of the payload, and whether it is a failure; each is a column that is read at once."""
_PAYLOADS = _LINE_BYTES + CAPACITY * _ROW.size
JOURNAL_BYTES = _PAYLOADS + PAYLOAD_BYTES
_FILLING = 1 << 32
_ROW_BYTES = _ROW.size
_write_row = _ROW.pack_into


class Journal:
    """One side's view of a journal; only the slave writes.

    Args:
        memory: `JOURNAL_BYTES` that both sides share.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._word = memory[:8].cast("Q")
        with memory[_LINE_BYTES:_PAYLOADS] as rows:
            self._longs, self._ints = rows.cast("Q"), rows.cast("I")
            self._floats: memoryview[float] = rows.cast("d")
        self.count = 0
        """How many results the slave has noted and not sent."""
        self._filling = 0
        """What the word has besides."""
        self._row, self._end = _LINE_BYTES, _PAYLOADS
        """Where the next row and the next payload go."""

    def add(self, task_id: int, attempt: int, seconds: float, failed: bool, payload: bytes) -> bool:
        """Note a finished result; False if there is no room."""
        row, start = self._row, self._end
        end = start + len(payload)
        if row == _PAYLOADS or end > JOURNAL_BYTES:
            return False
        memory = self._memory
        _write_row(memory, row, task_id, seconds, attempt, end - start, failed)
        memory[start:end] = payload
        self._row, self._end = row + _ROW_BYTES, end
        self.count += 1
        self._word[0] = self._filling + self.count
        return True

    def clear(self) -> None:
        """Empty it; call this after its results were sent, never before."""
        self.count = 0
        self._word[0] = self._filling = (self._filling + _FILLING) % _FILLING**2
        self._row, self._end = _LINE_BYTES, _PAYLOADS

    def read(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]] | None:
        """Read what is noted.

        Args:
            slave: whose results these are, by the agent's number.

        Returns:
            A group of results and its payload; None if the slave emptied the journal meanwhile, having sent them. If
            stray code in the slave wrote into the memory, the group may be none that passes `messages.check`.
        """
        word = self._word[0]
        count = min(word % _FILLING, CAPACITY)
        ids = self._longs[: 4 * count : 4].tolist()
        seconds: list[float] = self._floats[1 : 4 * count : 4].tolist()  # type: ignore[assignment]  # a stub of integers
        attempts = self._ints[4 : 8 * count : 8].tolist()
        sizes = self._ints[5 : 8 * count : 8].tolist()
        failed = self._ints[6 : 8 * count : 8].tolist()
        payload = messages.payload(count, [self._memory[_PAYLOADS : _PAYLOADS + sum(sizes)]])
        if self._word[0] // _FILLING != word // _FILLING:
            return None
        failures = [position for position, flag in enumerate(failed) if flag] if any(failed) else []
        return messages.Results(slave, *messages.spans_of(ids, attempts), seconds, failures), [payload]

    def close(self) -> None:
        """Let go of the memory."""
        for view in (self._word, self._longs, self._floats, self._ints, self._memory):
            view.release()
