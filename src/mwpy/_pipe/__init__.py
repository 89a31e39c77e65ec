"""The three channels between an agent and one of its slaves, made before the slave starts.

*Stream*: a socket pair that carries messages both ways, in the very frames of the wire, behind their number
and lengths. The agent's end never blocks: what the slave does not read waits in the agent. The slave's end
does block, for a slave has nothing else to do.

*Tickets*: a pipe. The agent writes a number for every task that it passes on, made of the task's id and its attempt;
the slave takes one ticket before it starts a task, and starts the task that the ticket names. The agent keeps a
reading end too, and a task whose ticket it reads back was not started and never will be: the kernel hands each ticket
to one of the two.
Thus tasks are taken back from a slave that is deep in native code and answers nothing. Tickets are written at
most `PIPE_BUF` bytes at a time, which a pipe takes whole or not at all, and read in multiples of 8, so none
is ever torn. Tasks reach the slave in the order of their tickets; so whatever it holds before the task of a
ticket was revoked. The attempt is part of a ticket because a task that was taken back may come again, while the
slave still holds what it was sent the first time.

*Journal*: shared memory. The slave gathers small results and sends them in groups; until they are sent they
stand in the journal too, where the agent finds them if the slave falls silent in a long task, or dies. It
starts with one word: in its upper half the number of the current filling, in its lower half where the entries
end. An entry is written behind the end first, and counts once the word says so; emptying the journal is a new
filling. So an addition never disturbs a reading, and a reading during which the filling changed is no
reading. The word is stored by one instruction. x86 shows others the stores in their order; elsewhere the
system call that takes the next ticket does, so that no result can be missing once the next task runs.

A task may fork. The child inherits all three channels and would steal tickets, answer for its parent and keep
the stream open after its death; so a forked child closes them at once (`SlaveEnd.forked`). One forked by
native code does not, hence an agent trusts a slave's exit rather than the end of the stream.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from attrs import frozen

from mwpy._pipe.stream import Reader, drop, pack
from mwpy.task import Buffer

__all__ = ["AgentEnd", "JournalEntry", "SlaveEnd", "SlaveFds", "open_channel", "task_of", "tickets_of"]

JOURNAL_BYTES = 256 * 1024
"""Room for some thousand small results; more are in no group that is sent every 10 ms."""
TICKET_PIPE_BYTES = 256 * 1024
"""Wanted capacity of the ticket pipe: 32,768 tickets. More wait in the agent: Linux allows a user 64 MiB in all."""

READS = 16
"""Reads of one `AgentEnd.receive`, so that a slave with much to say does not keep the others waiting."""
SEND_BUFFERS = 512
"""Buffers given to one system call; Linux takes 1,024."""

_read = os.read
_unpack_ticket = struct.Struct("=Q").unpack
_TICKET_BYTES = 8
_ATTEMPT_BITS = 16
_ATTEMPTS = (1 << _ATTEMPT_BITS) - 1
_TICKETS_AT_ONCE = select.PIPE_BUF // _TICKET_BYTES
_WORD_BYTES = 8
_FILLING = 1 << 32
_ENTRY = struct.Struct("=QdIIB")
"""A journal entry's task, seconds, attempt, size of the payload that follows, and whether it is a failure."""
_pack_entry = _ENTRY.pack


@frozen
class SlaveFds:
    """The slave's ends, as file descriptors that it inherits."""

    stream: int
    tickets: int
    journal: int

    def numbers(self) -> tuple[int, int, int]:
        """All of them, for the call that starts the slave."""
        return self.stream, self.tickets, self.journal

    def close(self) -> None:
        """Close them in the agent, once the slave was started or could not be."""
        for fd in self.numbers():
            os.close(fd)


class JournalEntry(NamedTuple):
    """One finished result that stands in the journal."""

    task_id: int
    attempt: int
    seconds: float
    failed: bool
    payload: bytes


def tickets_of(tasks: Iterable[int], attempts: Iterable[int]) -> list[int]:
    """The ticket of each attempt at a task. That of the 65,536th attempt after it is the same."""
    return [task << _ATTEMPT_BITS | attempt & _ATTEMPTS for task, attempt in zip(tasks, attempts, strict=True)]


def task_of(ticket: int) -> int:
    """The id of the task that a ticket is for."""
    return ticket >> _ATTEMPT_BITS


def open_channel() -> tuple[AgentEnd, SlaveFds]:
    """Make the channels. Start the slave with the `SlaveFds` inherited, then close those here.

    Raises:
        OSError: out of file descriptors or memory.
    """
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # this user's pipes have used up their allowance
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, TICKET_PIPE_BYTES)
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    journal = _shared_memory()
    end = AgentEnd(ours, os.dup(reading), writing, mmap.mmap(journal, JOURNAL_BYTES))
    return end, SlaveFds(theirs.detach(), reading, journal)


def _shared_memory() -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("mwpy-journal")
    else:  # pragma: no cover (macOS)
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, JOURNAL_BYTES)
    return fd


class AgentEnd:
    """The agent's ends; made by `open_channel`. Nothing here ever blocks."""

    def __init__(self, stream: socket.socket, reading: int, writing: int, journal: mmap.mmap) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._reader = Reader(stream)
        self._unsent: deque[memoryview] = deque()
        self._reading = reading
        self._writing = writing
        self._ungiven: list[int] = []
        self._journal = journal
        self._word = memoryview(journal)[:_WORD_BYTES].cast("Q")
        self.eof = False
        """Whether the slave's end of the stream is closed by the slave and all that it forked."""

    def fileno(self) -> int:
        """The stream, to wait for."""
        return self._stream.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether a message waits until the slave reads: call `flush` when the stream can be written."""
        return bool(self._unsent)

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message, or what of it can be sent at once; the rest waits for `flush`.

        The frames are not copied: they must not change any more. To a slave that is gone nothing is sent, and
        no error tells so: its exit does.
        """
        self._unsent.extend(pack(frames))
        self.flush()

    def flush(self) -> None:
        """Send what the slave is ready to take."""
        try:
            while self._unsent:
                drop(self._unsent, self._stream.sendmsg(islice(self._unsent, SEND_BUFFERS)))
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()

    def receive(self) -> list[list[Buffer]]:
        """Receive what the slave sent; sets `eof` after the last of it.

        A bounded amount is read: if the stream can be read still, call it again when it is this slave's turn.

        Returns:
            The messages that are complete by now, each as its frames. Large frames are memoryviews, writable.

        Raises:
            ProtocolError: this is no stream of messages; some code in the slave wrote into it. Kill the
            slave.
        """
        messages: list[list[Buffer]] = []
        try:
            for _ in range(READS):
                if not self._reader.read():
                    self.eof = True
                    break
                while (message := self._reader.next()) is not None:
                    messages.append(message)
        except BlockingIOError:
            pass
        except OSError:
            self.eof = True
        self._write_tickets()
        return messages

    def give_tickets(self, tickets: Iterable[int]) -> None:
        """Allow the slave to start tasks, in this order, that of the messages which carry them.

        Give the tickets just before the message is sent: a slave that waits is woken by the message. What the
        pipe does not take is given with a later `receive`: a slave with so many tickets will have results
        first.
        """
        self._ungiven.extend(tickets)
        self._write_tickets()

    def _write_tickets(self) -> None:
        while self._ungiven:
            some = self._ungiven[:_TICKETS_AT_ONCE]
            try:
                os.write(self._writing, struct.pack(f"={len(some)}Q", *some))
            except BlockingIOError:
                return
            del self._ungiven[: len(some)]

    def take_back(self, count: int) -> list[int]:
        """Take tickets back that the slave has not taken; it will never start their tasks.

        Args:
            count: how many at most, the last ones.

        Returns:
            The tickets, in their order.
        """
        unused = self.unused_tickets()
        kept = max(0, len(unused) - count)
        self.give_tickets(unused[:kept])
        return unused[kept:]

    def unused_tickets(self) -> list[int]:
        """Take every ticket back that the slave has not taken: of a dead one, the tasks it never started."""
        unused = bytearray()
        with suppress(BlockingIOError):
            while True:
                unused += os.read(self._reading, TICKET_PIPE_BYTES)
        tickets = [*struct.unpack(f"={len(unused) // _TICKET_BYTES}Q", unused), *self._ungiven]
        self._ungiven.clear()
        return tickets

    def journal(self) -> list[JournalEntry] | None:
        """Read the results that the slave finished and has not sent, or is just sending.

        Returns:
            The results, oldest first; or None if the slave emptied the journal meanwhile, having sent them.
        """
        word = self._word[0]
        data = self._journal[_WORD_BYTES : word % _FILLING]
        if self._word[0] // _FILLING != word // _FILLING:
            return None
        return _entries(data)

    def close(self) -> None:
        """Close the agent's ends."""
        self._stream.close()
        os.close(self._reading)
        os.close(self._writing)
        self._word.release()
        self._journal.close()


def _entries(data: bytes) -> list[JournalEntry]:
    """Cut a journal into entries; what stray code in the slave made of it never raises."""
    entries: list[JournalEntry] = []
    start = 0
    while len(data) - start >= _ENTRY.size:
        task_id, seconds, attempt, size, failed = _ENTRY.unpack_from(data, start)
        start += _ENTRY.size
        entries.append(JournalEntry(task_id, attempt, seconds, bool(failed), data[start : start + size]))
        start += size
    return entries


class SlaveEnd:
    """The slave's ends. Receiving and sending block; taking a ticket does not.

    Raises:
        OSError: the file descriptors are not those of a channel.
    """

    def __init__(self, fds: SlaveFds) -> None:
        for fd in fds.numbers():
            os.set_inheritable(fd, False)
        self._journal = mmap.mmap(fds.journal, JOURNAL_BYTES)
        os.close(fds.journal)
        self._word = memoryview(self._journal)[:_WORD_BYTES].cast("Q")
        self._filling = 0
        self._used = _WORD_BYTES
        self._tickets = fds.tickets
        self._stream = socket.socket(fileno=fds.stream)
        self._stream.setblocking(True)
        self._reader = Reader(self._stream)
        self._ahead: list[Buffer] | None = None
        self._stream_ready = select.poll()
        self._stream_ready.register(fds.stream, select.POLLIN)
        self._either_ready = select.poll()
        self._either_ready.register(fds.stream, select.POLLIN)
        self._either_ready.register(fds.tickets, select.POLLIN)
        self.forked = False
        """Whether this process is a fork of the slave: it has no channels, and using them raises an error."""
        reference = weakref.ref(self)

        def after_fork() -> None:
            end = reference()
            if end is not None:
                end._abandon()

        os.register_at_fork(after_in_child=after_fork)

    def _abandon(self) -> None:
        self.forked = True
        self.close()

    def poll(self, timeout_s: float = 0.0, *, tickets: bool = False) -> bool:
        """Wait for a message.

        Args:
            timeout_s: how long at most, in seconds.
            tickets: whether a ticket ends the waiting too.

        Returns:
            Whether `receive` has something to tell: a message, or the agent's end.
        """
        if self._ahead is None:
            self._ahead = self._reader.next()
        if self._ahead is not None:
            return True
        waiting = self._either_ready if tickets else self._stream_ready
        stream = self._stream.fileno()
        return any(fd == stream for fd, _ in waiting.poll(timeout_s * 1000))

    def receive(self) -> list[Buffer] | None:
        """Wait for a message: its frames, large ones as writable memoryviews; None when the agent is gone."""
        message, self._ahead = self._ahead, None
        try:
            while message is None and (message := self._reader.next()) is None:
                if not self._reader.read():
                    return None
        except OSError:
            if self.forked:
                raise
            return None
        return message

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send a message; False when the agent is gone."""
        unsent = deque(pack(frames))
        try:
            while unsent:
                drop(unsent, self._stream.sendmsg(islice(unsent, SEND_BUFFERS)))
        except OSError:
            if self.forked:
                raise
            return False
        return True

    def take_ticket(self) -> int | None:
        """Take the next ticket, for the task to start now; None if there is no ticket at present."""
        try:
            ticket = _read(self._tickets, _TICKET_BYTES)
        except BlockingIOError:
            return None
        return _unpack_ticket(ticket)[0] if ticket else None  # nothing at all: the agent is gone

    def journal_add(self, task_id: int, attempt: int, seconds: float, failed: bool, payload: bytes) -> bool:
        """Write a finished result into the journal; False if there is no room."""
        start = self._used
        entry = _pack_entry(task_id, seconds, attempt, len(payload), failed) + payload
        end = start + len(entry)
        if end > JOURNAL_BYTES:
            return False
        self._journal[start:end] = entry
        self._word[0] = self._filling + end
        self._used = end
        return True

    def journal_clear(self) -> None:
        """Empty the journal; call it after its results were sent, never before."""
        self._filling = (self._filling + _FILLING) % _FILLING**2
        self._used = _WORD_BYTES
        self._word[0] = self._filling + self._used

    def close(self) -> None:
        """Close the slave's ends."""
        self._stream.close()
        os.close(self._tickets)
        self._tickets = -1
        self._word.release()
        self._journal.close()
