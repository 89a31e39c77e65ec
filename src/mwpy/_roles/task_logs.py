"""What the tasks of a slave log: it is gathered, and sent before the results of the tasks.

The slave has the levels that the loggers of the master had at its start. So what the master would not show is not even
formatted. A task may log without end: only `MOST_A_SECOND` records a second are sent in the long run. The others are
counted.

In a short time, the first records are sent at once, so that a long task shows what it does. The others wait for the
next record, or for the end of the task. Only the thread that runs tasks sends, because the channel is for one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from mwpy._system.clock import monotonic
from mwpy._values.bounds import MAX_NAME, MAX_REASON, shortened
from mwpy._values.log_messages import MAX_LEVEL, MAX_PATH, MAX_ROWS, Logged, LogRow, size_of

if TYPE_CHECKING:
    from logging import Handler, LogRecord

    from mwpy._roles.checkpoints import RunningTasks
    from mwpy._roles.edges import SlaveChannel

__all__ = ["MOST_AT_ONCE", "MOST_A_SECOND", "Allowance", "TaskLogs"]

MOST_A_SECOND = 500
"""How many records a second a slave may send in the long run."""

MOST_AT_ONCE = MAX_ROWS
"""How many records a slave may send at once, after a silence."""

BYTES_A_SECOND = 256 * 1024
BYTES_AT_ONCE = 512 * 1024
"""The same for the bytes of the records."""

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


class TaskLogs(Struct, eq=False):
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
    _rows: list[LogRow] = field(default_factory=list)
    _size: int = 0
    _left_out: int = 0
    _said_at: float = 0.0
    _records: Allowance = field(default_factory=lambda: Allowance(MOST_A_SECOND, MOST_AT_ONCE))
    _bytes: Allowance = field(default_factory=lambda: Allowance(BYTES_A_SECOND, BYTES_AT_ONCE))
    _sends: Allowance = field(default_factory=lambda: Allowance(SENDS_A_SECOND, SENDS_AT_ONCE))
    _thread: int = field(default_factory=threading.get_ident)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _is_sending: bool = False
    """Whether a message is being made or sent. A finalizer of a task may log at any moment, also then."""
    _handler: Handler | None = None

    def begin(self, levels: Mapping[str, int] | None) -> None:
        """Take over what is logged from now on, if the master has given its levels. Only the first call does it."""
        if levels is not None and self._handler is None:
            from mwpy._roles import log_handler

            self._handler = log_handler.install(levels, self.note)

    def note(self, record: LogRecord) -> None:
        """Keep a record, or count it. Send it at once if the task has not sent much."""
        if self._end.forked:
            return
        with self._lock:
            now = monotonic()
            self.waiting = True
            if len(self._rows) >= MAX_ROWS or self._size >= BYTES_AT_ONCE or not self._records.take(1, now):
                self._left_out += 1
                return
            row = self._row(record)
            size = size_of(row)
            if not self._bytes.take(size, now):
                self._left_out += 1
                return
            self._rows.append(row)
            self._size += size
        if threading.get_ident() == self._thread and self._sends.take(1, now):
            self.send()

    def _row(self, record: LogRecord) -> LogRow:
        from mwpy._roles.log_handler import text_of, trace_of

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
