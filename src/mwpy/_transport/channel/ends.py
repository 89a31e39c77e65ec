"""The two ends of a channel: the agent's, which never blocks, and the slave's, which waits."""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from msgspec import Struct

from mwpy._system import clock
from mwpy._system.surroundings import Surroundings
from mwpy._transport.channel.memory import MEMORY_BYTES, SharedMemory, make_file
from mwpy._transport.passage import Passage, is_folded, make_passage, unfold
from mwpy._transport.stream import MAX_BYTES, Reader, StreamEnd, pack
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import PLAIN

__all__ = ["SETTLE_S", "AgentEnd", "SlaveEnd", "SlaveFds", "open_channel"]

SETTLE_S = 0.001
"""How long an agent waits after a recall before it reads `started`, in seconds."""

NO_SOCKET = (errno.EBADF, errno.ENOTSOCK)
"""The descriptor of a stream was closed, or it belongs to something else now."""


class SlaveFds(Struct, frozen=True):
    """The slave's end, as file descriptors that the slave process inherits."""

    stream: int
    memory: int
    passage: int

    def numbers(self) -> tuple[int, int, int]:
        """Return all of them, for the call that starts the slave."""
        return self.stream, self.memory, self.passage

    def close(self) -> None:
        """Close them in the agent, after the slave was started or could not be started."""
        for fd in self.numbers():
            os.close(fd)


def open_channel(max_bytes: int = MAX_BYTES) -> tuple[AgentEnd, SlaveFds]:
    """Make a channel. Start the slave with the `SlaveFds` inherited, then close them here.

    Args:
        max_bytes: the largest message that the agent accepts from the slave.

    Raises:
        OSError: out of file descriptors or memory.
    """
    agent, slave = socket.socketpair()
    passage, other = make_passage()
    memory = make_file()
    stream = StreamEnd(agent, passage, max_bytes, passes_on=True)
    return AgentEnd(stream, os.dup(memory)), SlaveFds(slave.detach(), memory, other.detach())


class AgentEnd:
    """The agent's end; made by `open_channel`. Nothing here ever blocks."""

    def __init__(self, stream: StreamEnd, file: int) -> None:
        self._file = file
        self._memory = SharedMemory(file)
        self._stream = stream
        self.fileno = stream.fileno
        self.send = stream.send
        self.flush = stream.flush
        self.receive = stream.receive
        self._recalls = 0
        self.journal = self._memory.journal

    @property
    def eof(self) -> bool:
        """Whether the slave's end of the stream is closed, by the slave and by every process that it forked."""
        return self._stream.eof

    @property
    def wants_write(self) -> bool:
        """Whether a message waits until the slave reads: call `flush` when the stream can be written."""
        return self._stream.wants_write

    def recall(self) -> None:
        """Stop the slave from starting another task until it has received a message that names the recalled tasks.

        After this call, wait `SETTLE_S`, read `started`, and send that message. Send nothing else before that message.
        """
        self._recalls += 1
        self._memory.recalls[0] = self._recalls

    def feed(self, now: float) -> None:
        """Record that tasks are about to be sent to a slave that has none, at a moment of the monotonic clock."""
        self._memory.fed[0] = now

    def end_at(self, moment: float) -> None:
        """Record when the tasks of the slave must have ended, on the monotonic clock."""
        self._memory.ends[0] = moment

    @property
    def started(self) -> int:
        """Position of the task that the slave started last; 0 if none. When `SETTLE_S` have passed after a recall, it
        changes no more."""
        return self._memory.started[0]

    @property
    def began(self) -> float:
        """When the slave started this task, on the monotonic clock. 0 if the task has no limit of time, or if it does
        not run any more."""
        return self._memory.began[0]

    def fault(self, most: int) -> bytes:
        """Return the last `most` bytes that the slave's fault handler wrote; usually it wrote nothing.

        Where a task has made the file longer without writing anything, it consists of zeros. They are left out.
        """
        end = os.fstat(self._file).st_size
        return os.pread(self._file, most, max(MEMORY_BYTES, end - most)).replace(b"\0", b"")

    def close(self) -> None:
        """Close the agent's end."""
        os.close(self._file)
        self._stream.close()
        self._memory.close()


class SlaveEnd:
    """The slave's end. Receiving and sending block.

    Args:
        fds: its file descriptors.
        surroundings: what is put back after each task; None if nothing is.

    Raises:
        OSError: the file descriptors are not those of a channel.
    """

    def __init__(self, fds: SlaveFds, surroundings: Surroundings | None = None) -> None:
        self._surroundings = surroundings
        for fd in fds.numbers():
            os.set_inheritable(fd, False)
        self._memory = SharedMemory(fds.memory)
        self._started, self._recalls = self._memory.started, self._memory.recalls
        self.journal = self._memory.journal
        self.fault: int = fds.memory
        """A file descriptor for the fault handler, which the agent reads after the slave's exit; never closed."""
        os.lseek(self.fault, 0, os.SEEK_END)
        self._recalls_heard = 0
        self._stream = socket.socket(fileno=fds.stream)
        self._stream.setblocking(True)
        self._passage = Passage(socket.socket(fileno=fds.passage))
        self._reader = Reader(self._stream)
        self._unsent: deque[Sequence[Buffer]] = deque()
        """Messages that wait until another one is sent."""
        self._is_sending = False
        self._ready = select.poll()
        self._ready.register(fds.stream, select.POLLIN)
        self.eof = False
        """Whether the agent is gone."""
        self.was_closed = False
        """Whether some code of this process closed or replaced the descriptor of the stream."""
        self.forked = False
        """Whether this process is a fork of the slave. A fork has no channel, and using it raises an error."""
        self._at_fork = 0.0, 0.0
        """In a fork: what the shared memory contained at the fork, when the tasks must end and when the task began."""
        reference = weakref.ref(self)

        def after_fork() -> None:
            end = reference()
            if end is not None:
                end._abandon()

        os.register_at_fork(after_in_child=after_fork)

    def _abandon(self) -> None:
        self._at_fork = self._memory.ends[0], self._memory.began[0]
        self.forked = True
        self.close()

    def receive(self, timeout_s: float = 0.0) -> list[list[Buffer]]:
        """Wait for a message, and for the rest of one that has begun to arrive; sets `eof` when the agent is gone.

        Args:
            timeout_s: how long to wait for the first message, in seconds.

        Returns:
            The messages that have arrived, each as its frames. Large frames are writable memoryviews, and what is
            written there is private.
        """
        found: list[list[Buffer]] | None = []
        try:
            if self._ready.poll(timeout_s * 1000):
                while not found:
                    found = self._reader.read()
                    if found is None:
                        self.eof = True
                        return []
                found = [*map(self._restored, found)]
        except OSError as error:
            self._fail(error)
            return []
        return found or []

    @property
    def has_message(self) -> bool:
        """Whether a message has begun to arrive, or the agent is gone."""
        return bool(self._ready.poll(0))

    def _restored(self, frames: list[Buffer]) -> list[Buffer]:
        if not is_folded(frames):
            return frames
        return unfold(frames, self._passage, MAX_BYTES, passes_on=False)

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message; sets `eof` when the agent is gone.

        A finalizer or signal handler of a task may send while a message is being sent: then its message is the next.
        """
        self._unsent.append(frames)
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._unsent:
                for piece in pack(self._unsent.popleft(), self._passage):
                    self._stream.sendall(piece)
        except OSError as error:
            self._unsent.clear()
            self._fail(error)
        finally:
            self._is_sending = False

    def _fail(self, error: OSError) -> None:
        if self.forked:
            raise error
        self.eof = True
        self.was_closed = error.errno in NO_SOCKET

    def start(self, position: int) -> bool:
        """Record that the task at this position starts now.

        Returns:
            False if tasks were recalled, perhaps this one. Then do not run it: receive until the message that names
            the recalled tasks, call `recall_heard`, and start again.
        """
        self._started[0] = position
        return self._recalls[0] == self._recalls_heard

    def run_each(
        self,
        function: Callable[..., Any],
        calls: Iterable[Any],
        are_rows: bool,
        position: int,
        values: list[Any],
        kinds: set[type],
        encode_last: Callable[[], bool],
        ends: list[float] | None,
        until: float,
    ) -> None:
        """Start tasks one after the other, as `start` does, and run them. Stop when tasks are recalled. This loop
        determines what a task of a portion costs.

        Streams and handlers are put back after each task. An alarm is stopped after each task only if the ends are
        wanted, because this would cost a short task too much. The caller stops it after the last task.

        Args:
            function: the task algorithm.
            calls: the arguments of each task if `are_rows`, else its only argument.
            position: the position of the first task.
            values: where to append each value.
            kinds: where to add the types of the values.
            encode_last: called when the last value is not plain. It returns whether to go on.
            ends: where to append when each task ended, on the monotonic clock, except the one that stopped the others;
                None if nobody needs it.
            until: stop when a task has ended at this time or later, if the ends are wanted.

        Raises:
            BaseException: a task raised it. The values of the tasks before it were appended.
        """
        monotonic = clock.monotonic
        started, recalls, heard, append, plain = self._started, self._recalls, self._recalls_heard, values.append, None
        around = self._surroundings
        if around is not None:
            stdout, stderr, root, handlers = around.stdout, around.stderr, around.root, around.handlers
        for started[0], args in enumerate(calls, position):
            if recalls[0] != heard:
                return
            append(value := function(*args) if are_rows else function(args))
            if type(value) is not plain:
                kinds.add(type(value))
                if type(value) in PLAIN:
                    plain = type(value)
                elif not encode_last():
                    return
            if around is not None and (
                ends is not None or sys.stdout is not stdout or sys.stderr is not stderr or root.handlers != handlers
            ):
                around.restore()
            if ends is not None:
                ends.append(now := monotonic())
                if now >= until:
                    return

    def is_open(self) -> bool:
        """Whether this process still has the stream: a task may have closed or replaced its descriptor."""
        try:
            self._stream.getpeername()
        except OSError as error:
            self._fail(error)
        return not self.eof

    @property
    def position(self) -> int:
        """Position of the task that was started last; 0 if none."""
        return self._started[0]

    def start_timed(self, position: int) -> bool:
        """Do the same as `start` for a task with a limit of time, and record the time. Call `rest` afterwards."""
        self._memory.began[0] = clock.monotonic()
        return self.start(position)

    def rest(self) -> None:
        """Record that no task with a limit of time runs."""
        self._memory.began[0] = 0.0

    def task_ends_at(self, seconds_max: float | None) -> float:
        """When the running task must end, as far as it is known now; infinity if it is not.

        Args:
            seconds_max: the limit of time of this task, if it has one.
        """
        ends, began = self._at_fork if self.forked else (self._memory.ends[0], self._memory.began[0])
        return min(ends or inf, inf if seconds_max is None else began + seconds_max)

    @property
    def fed_at(self) -> float:
        """When the agent last sent tasks to this slave at a moment when the slave had none."""
        return self._memory.fed[0]

    def recall_heard(self) -> None:
        """Record that the message of one recall was received."""
        self._recalls_heard += 1

    def close(self) -> None:
        """Close the slave's end."""
        with suppress(OSError):  # some code has closed the descriptor
            self._stream.close()
        with suppress(OSError):
            self._passage.close()
        self._memory.close()
