"""The channels between an agent and one of its slaves, made before the slave starts.

*Stream*: a socket pair that carries messages both ways, in the very frames of the wire, behind their number
and lengths. The agent's end never blocks: what the slave does not read waits in the agent. The slave's end
does block, for a slave has nothing else to do.

*Starts*: two words of shared memory. Before a slave starts a task it writes the task's position, counted from 1 in
the order in which tasks are passed on to it, and then looks whether the agent has raised the number of recalls. To
take tasks back, the agent raises that number, waits a moment, and reads what was started: what stands behind was
not, and can be given away, even if the slave is deep in native code and answers nothing. For when it comes to its
next task it finds the number raised, and starts nothing until it has read in the stream which tasks were taken.
This is Dekker's mutual exclusion, with no fence on the side that is in a hurry. What that side writes may become
visible after its looking, but later only by what a processor's store buffer holds, nanoseconds, and the agent
waits a millisecond (A. Morrison and Y. Afek, "Temporally Bounding TSO for Fence-Free Asymmetric Synchronization",
ASPLOS 2015).

*Feeding*: the moment at which the agent last sent tasks to a slave that had none. From there, and from when the slave
last sent results, the agent counts its silence; so from there, however late it wakes up, the slave counts for how long
it may keep a result to itself.

*Journal*: results that were finished and not yet sent, in the same shared memory; see `journal.py`.

*Fault*: what Python's fault handler says of a crash in native code. It is written behind that memory, into the same
file, and so survives whatever a task did to its standard error.

A task may fork. The child inherits the channels and would start tasks, answer for its parent and keep
the stream open after its death; so a forked child closes them at once (`SlaveEnd.forked`). One forked by
native code does not, hence an agent trusts a slave's exit rather than the end of the stream.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence

from attrs import frozen

from mwpy._transport.channel.journal import JOURNAL_BYTES, Journal
from mwpy._transport.channel.stream import Reader, pack
from mwpy._values.ids import Buffer

__all__ = ["SETTLE_S", "AgentEnd", "SlaveEnd", "SlaveFds", "open_channel"]

SETTLE_S = 0.001
"""Seconds between a recall and the reading of what was started."""

READS = 16
"""Reads of one `AgentEnd.receive`, so that a slave with much to say does not keep the others waiting."""

_LINE_BYTES = 64
"""A cache line: each word has one of its own, for each is written by one side and read by the other."""
_STARTED, _RECALLS, _FED, _JOURNAL = (line * _LINE_BYTES for line in range(4))
MEMORY_BYTES = _JOURNAL + JOURNAL_BYTES


@frozen
class SlaveFds:
    """The slave's ends, as file descriptors that it inherits."""

    stream: int
    memory: int

    def numbers(self) -> tuple[int, int]:
        """All of them, for the call that starts the slave."""
        return self.stream, self.memory

    def close(self) -> None:
        """Close them in the agent, once the slave was started or could not be."""
        for fd in self.numbers():
            os.close(fd)


def open_channel() -> tuple[AgentEnd, SlaveFds]:
    """Make the channels. Start the slave with the `SlaveFds` inherited, then close those here.

    Raises:
        OSError: out of file descriptors or memory.
    """
    ours, theirs = socket.socketpair()
    memory = _shared_memory()
    return AgentEnd(ours, os.dup(memory)), SlaveFds(theirs.detach(), memory)


def _word(memory: mmap.mmap, start: int) -> memoryview:
    return memoryview(memory)[start : start + 8].cast("Q")


def _moment(memory: mmap.mmap, start: int) -> memoryview[float]:
    return memoryview(memory)[start : start + 8].cast("d")


def _shared_memory() -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("mwpy-slave")
    else:  # pragma: no cover (macOS)
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, MEMORY_BYTES)
    return fd


class AgentEnd:
    """The agent's ends; made by `open_channel`. Nothing here ever blocks."""

    def __init__(self, stream: socket.socket, file: int) -> None:
        stream.setblocking(False)
        self._file = file
        memory = mmap.mmap(file, MEMORY_BYTES)
        self._stream = stream
        self._reader = Reader(stream)
        self._unsent: deque[memoryview] = deque()
        self._memory = memory
        self.journal = Journal(memoryview(memory)[_JOURNAL:])
        self._started = _word(memory, _STARTED)
        self._recalls = _word(memory, _RECALLS)
        self._fed = _moment(memory, _FED)
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
                piece = self._unsent[0]
                sent = self._stream.send(piece)
                if sent < len(piece):
                    self._unsent[0] = piece[sent:]
                else:
                    self._unsent.popleft()
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
                found = self._reader.read()
                if found is None:
                    self.eof = True
                    break
                messages += found
                if self._reader.emptied:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.eof = True
        return messages

    def recall(self) -> None:
        """Let the slave start no other task before it has received a message that says which were taken back.

        Send that message, and nothing else that a slave must know before it, once what it started was read.
        """
        self._recalls[0] += 1

    def feed(self, now: float) -> None:
        """Note that a slave that has no task is about to be sent some, at a moment of the clock that measures."""
        self._fed[0] = now

    @property
    def started(self) -> int:
        """Position of the last task that the slave started, 0 before the first; final `SETTLE_S` after a recall."""
        return self._started[0]

    def fault(self, most: int) -> bytes:
        """The last `most` bytes of what the slave's fault handler wrote; mostly nothing."""
        behind = os.fstat(self._file).st_size
        return os.pread(self._file, most, max(MEMORY_BYTES, behind - most))

    def close(self) -> None:
        """Close the agent's ends."""
        os.close(self._file)
        self._stream.close()
        self.journal.close()
        for word in (self._started, self._recalls, self._fed):
            word.release()
        self._memory.close()


class SlaveEnd:
    """The slave's ends. Receiving and sending block.

    Raises:
        OSError: the file descriptors are not those of a channel.
    """

    def __init__(self, fds: SlaveFds) -> None:
        for fd in fds.numbers():
            os.set_inheritable(fd, False)
        self._memory = mmap.mmap(fds.memory, MEMORY_BYTES)
        self.fault: int = fds.memory
        """A file descriptor for the fault handler, which the agent reads when the slave is gone; never closed."""
        os.lseek(self.fault, 0, os.SEEK_END)
        self.journal = Journal(memoryview(self._memory)[_JOURNAL:])
        self._started = _word(self._memory, _STARTED)
        self._recalls = _word(self._memory, _RECALLS)
        self._fed = _moment(self._memory, _FED)
        self._recalls_heard = 0
        self._stream = socket.socket(fileno=fds.stream)
        self._stream.setblocking(True)
        self._reader = Reader(self._stream)
        self._ready = select.poll()
        self._ready.register(fds.stream, select.POLLIN)
        self.eof = False
        """Whether the agent is gone."""
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

    def receive(self, timeout_s: float = 0.0) -> list[list[Buffer]]:
        """Wait for messages, and for all of one that has begun to come; sets `eof` when the agent is gone.

        Args:
            timeout_s: how long to wait for the first, in seconds.

        Returns:
            Those that are here, each as its frames; large ones are memoryviews, writable.
        """
        found: list[list[Buffer]] | None = []
        try:
            if self._ready.poll(timeout_s * 1000):
                while not found:
                    found = self._reader.read()
                    if found is None:
                        self.eof = True
                        return []
        except OSError:
            if self.forked:
                raise
            self.eof = True
        return found or []

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message; sets `eof` when the agent is gone."""
        try:
            for piece in pack(frames):
                self._stream.sendall(piece)
        except OSError:
            if self.forked:
                raise
            self.eof = True

    def start(self, position: int) -> bool:
        """Say which task starts now.

        Returns:
            False if tasks were recalled, perhaps this one: receive until the message that says which, call
            `recall_heard`, and start again.
        """
        self._started[0] = position
        return self._recalls[0] == self._recalls_heard

    @property
    def fed_at(self) -> float:
        """When the agent last sent tasks to this slave while it had none."""
        return self._fed[0]

    def recall_heard(self) -> None:
        """Tell that the message of one recall was received."""
        self._recalls_heard += 1

    def close(self) -> None:
        """Close the slave's ends."""
        self._stream.close()
        self.journal.close()
        for word in (self._started, self._recalls, self._fed):
            word.release()
        self._memory.close()
