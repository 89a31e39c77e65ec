"""The channel between an agent and one of its slaves, and the orders to a template.

The channel between an agent and one of its slaves; it is made before the slave starts.

*The stream* is a socket pair. It carries messages both ways, in the same frames as on the network. The agent's end
never blocks: what the slave does not read waits in the agent. The slave's end does block, because a slave that waits
has nothing else to do.

*Starts and recalls* use shared memory. Before a slave starts a task, it writes the task's position (counted from 1 in
the order in which tasks are passed on to it), and then reads the number of recalls. To take tasks back, the agent
raises the number of recalls, waits a moment, and reads the position. All tasks behind that position were not started
and can be given away, even if the slave is deep in native code and answers nothing. When the slave comes to its next
task, it finds the number raised, and starts nothing until it has received the message that names the recalled tasks.

This is Dekker's mutual exclusion without a memory fence on the slave's side, which must be fast. The slave's write may
become visible after its read, but only some nanoseconds later, when it leaves the processor's store buffer. The agent
waits a millisecond (A. Morrison and Y. Afek, "Temporally Bounding TSO for Fence-Free Asymmetric Synchronization",
ASPLOS 2015).

*Feeding*: the agent measures how long a slave is silent. The silence begins when the agent sends tasks to a slave that
has none, and it begins again when the slave sends results. The slave can read the time of the feeding, so it knows how
long it may keep a result.

*The journal* holds finished results that were not sent yet; see `Journal`.

A task may fork. The child process inherits the channel. It could start tasks, answer for its parent, and keep the
stream open after its parent's death, so a forked child closes the channel at once (`SlaveEnd.forked`). A child that
native code forked does not close it. Therefore an agent relies on the exit of the slave, and not on the end of the
stream.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mwpy._system import clock
from mwpy._system.process import Child
from mwpy._system.time_left import Surroundings
from mwpy._transport.error_texts import encodable
from mwpy._transport.stream import MAX_BYTES, Passage, StreamEnd, make_passage
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer
from mwpy._values.messagepack import MALFORMED, PLAIN, encode_json, json_decoder
from mwpy._values.options import SlaveSettings

# The journal: results that a slave has finished and not sent, in memory that its agent can read.
#
# A slave writes its results into its journal, and sends the results of the journal as a group. If the slave dies, or
# falls silent in a long task, the agent reads the journal.
#
# The payloads are one after the other, so that they can be sent as they are. A table has a row for each *span*, where
# consecutive tasks begin. A failure has a span of its own. A result with large buffers never waits in the journal: the
# slave sends it at once.
#
# The journal's first 64-bit number says how many results there are, how many bytes their payloads have together, and
# which *filling* this is: emptying the journal begins a new filling.
#
# The slave first writes a result behind the others, and then changes the number. So an addition never disturbs a read,
# which leaves out the rows of a result that is not counted yet. A read during which the filling changed is repeated.
# One instruction stores the number. On x86, other processors see stores in their order. On other processors, reads are
# safe because the agent only reads the journal of a slave that is dead, or that has been silent for longer than it
# gathers results.


VALUE, FAILED, AGAIN = range(3)
"""What a result is: a value, a failure, or a failure after which the task is tried again if it has attempts left."""

LINE_BYTES = 64
"""The size of a cache line. The numbers have their own, because one side writes while the other reads."""

PAYLOAD_BYTES = 256 * 1024
"""The size of all payloads together."""

SPANS = 1024
"""The largest number of spans."""

_SPAN = struct.Struct("=QIII")
"""The first task of a span, its attempt, how many results precede it, and what its results are."""
_PAYLOADS = LINE_BYTES + SPANS * _SPAN.size
JOURNAL_BYTES = _PAYLOADS + PAYLOAD_BYTES

_BITS = 20
"""How many bits of the number say how many results there are. As many say how many bytes their payloads have."""
_COUNTS = 1 << _BITS


class Journal:
    """One side's view of a journal; only the slave writes.

    Args:
        memory: `JOURNAL_BYTES` of memory that both sides share.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._counter = memory[:8].cast("Q")
        self._rows = memory[8:16].cast("Q")
        """How many rows the table has."""
        self._seconds: memoryview[float] = memory[16:24].cast("d")
        """How long all its tasks took together."""
        self.count = 0
        """How many results the slave has written and not sent."""
        self._number = 0
        """What the slave wrote into the first number. It does not read the memory, which a task may overwrite."""
        self._num_rows = 0
        self._next, self._attempt = -1, 0
        """The task that would continue the last span, and the attempt of this span."""
        self._end = _PAYLOADS
        """Where the next payload is written."""

    def add(self, first: int, count: int, attempt: int, seconds: float, payloads: bytes, kind: int = VALUE) -> bool:
        """Write the results of consecutive tasks. Return False if there is no room. Each single task costs one call of
        this.

        Args:
            first: the id of the first task.
            seconds: how long the tasks took together.
            payloads: their results, one after the other.
            kind: `VALUE`, `FAILED` or `AGAIN`.
        """
        start, size, number = self._end, len(payloads), self.count + count
        end = start + size
        if end > JOURNAL_BYTES or number >= _COUNTS:
            return False
        if first != self._next or attempt != self._attempt or kind:
            if self._num_rows == SPANS:
                return False
            self._next, self._attempt = -1, attempt  # a signal handler may raise an exception before the end
            row = LINE_BYTES + self._num_rows * _SPAN.size
            _SPAN.pack_into(self._memory, row, first, attempt, self.count, kind)
            self._num_rows += 1
            self._rows[0] = self._num_rows
        self._memory[start:end] = payloads
        self._seconds[0] += seconds
        self.count, self._end, self._next = number, end, -1 if kind else first + count
        self._number += (size << _BITS) + count
        self._counter[0] = self._number
        return True

    def clear(self) -> None:
        """Empty the journal. Call this only after its results were sent."""
        self._number = ((self._number >> 2 * _BITS) + 1 << 2 * _BITS) % (1 << 64)
        self._counter[0] = self._number
        self._rows[0] = self.count = self._num_rows = 0
        self._next, self._end, self._seconds[0] = -1, _PAYLOADS, 0.0

    def read(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]] | None:
        """Read the results.

        Args:
            slave: the slave's number within its agent.

        Returns:
            A group of results, and its payload; None if there are none. If faulty code in the slave wrote into the
            memory, the checks of messages may reject it.
        """
        while True:
            number = self._counter[0]
            count, size = number % _COUNTS, (number >> _BITS) % _COUNTS
            rows, seconds = min(self._rows[0], SPANS), self._seconds[0]
            table = bytes(self._memory[LINE_BYTES : LINE_BYTES + rows * _SPAN.size])
            payload = groups.payload(count, [self._memory[_PAYLOADS : _PAYLOADS + size]])
            if self._counter[0] >> 2 * _BITS == number >> 2 * _BITS:
                break
        if not count:
            return None
        spans = {
            start: (first, attempt, kind) for first, attempt, start, kind in _SPAN.iter_unpack(table) if start < count
        }
        starts = sorted(spans)  # they are, unless faulty code wrote them
        counts = [end - start for start, end in pairwise((*starts, count))]
        firsts, attempts, kinds = ([spans[start][column] for start in starts] for column in range(3))
        failed = [start for start, kind in zip(starts, kinds, strict=True) if kind != VALUE]
        again = [start for start, kind in zip(starts, kinds, strict=True) if kind == AGAIN]
        return messages.Results(slave, firsts, counts, attempts, [seconds], failed, again=again), [payload]

    def close(self) -> None:
        """Release the memory."""
        for view in (self._counter, self._rows, self._seconds, self._memory):
            view.release()


# The memory that an agent shares with one of its slaves.
#
# Its first part holds five numbers, each in a cache line of its own, because one side writes while the other reads:
#
# - `started`: the position of the task that the slave started last. Only the slave writes it.
# - `began`: when the slave started this task, if it runs and the tasks are timed one by one; else 0 or when their block
#   began. Only the slave writes it, before `started`.
# - `recalls`: how often the agent has recalled tasks. Only the agent writes it.
# - `fed`: when the agent last sent tasks to the slave while it had none. Only the agent writes it.
# - `ends`: when the tasks of the slave must have ended; 0 if this is not known. Only the agent writes it.
#
# A task can overwrite all of it, by accident or with intent. So the agent relies on none of it: the core checks the
# numbers that it reads. The file cannot be shortened, because reading memory that the file no longer has would kill the
# agent (SIGBUS).
#
# The journal follows; see `Journal`. Behind the memory, in the same file, Python's fault handler of the slave writes
# what it knows of a crash in native code. So this report is complete even if a task closed its standard error.


_STARTED, _RECALLS, _FED, _BEGAN, _ENDS, _JOURNAL = (line * LINE_BYTES for line in range(6))
MEMORY_BYTES = _JOURNAL + JOURNAL_BYTES
"""The size of the memory. In the file, the output of the fault handler follows."""


class SharedMemory:
    """One side's view of the memory.

    Args:
        file: the descriptor of its file; -1 for memory that is not shared.
    """

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, MEMORY_BYTES)
        view = memoryview(self._memory)
        self.started = view[_STARTED : _STARTED + 8].cast("Q")
        self.recalls = view[_RECALLS : _RECALLS + 8].cast("Q")
        self.fed: memoryview[float] = view[_FED : _FED + 8].cast("d")
        self.began: memoryview[float] = view[_BEGAN : _BEGAN + 8].cast("d")
        self.ends: memoryview[float] = view[_ENDS : _ENDS + 8].cast("d")
        self.journal = Journal(view[_JOURNAL:])
        view.release()

    def close(self) -> None:
        """Give the memory back."""
        self.journal.close()
        for number in (self.started, self.recalls, self.fed, self.began, self.ends):
            number.release()
        self._memory.close()


# The two ends of a channel: the agent's, which never blocks, and the slave's, which waits.


SETTLE_S = 0.001
"""How long an agent waits after a recall before it reads `started`, in seconds."""

IMPOSSIBLE = (1 << 64) - 1
"""A position that no task can have."""

NO_SOCKET = (errno.EBADF, errno.ENOTSOCK)
"""The descriptor of a stream was closed, or it belongs to something else now."""


SlaveFds = tuple[int, int, int]
"""The slave's end, as file descriptors that the slave process inherits: of the stream, the memory and the passage."""


def open_channel(max_bytes: int = MAX_BYTES) -> tuple[AgentEnd, SlaveFds]:
    """Make a channel. Start the slave with the descriptors inherited, then close them here.

    Args:
        max_bytes: the largest message that the agent accepts from the slave.

    Raises:
        OSError: out of file descriptors or memory.
    """
    agent, slave = socket.socketpair()
    passage, other = make_passage()
    memory = os.memfd_create("mwpy-slave", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, MEMORY_BYTES)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    end = AgentEnd(agent, passage, max_bytes, os.dup(memory))
    return end, (slave.detach(), memory, other.detach())


class AgentEnd(StreamEnd):
    """The agent's end of the stream, with its side of the memory; made by `open_channel`.

    Args:
        file: the descriptor of the file of the memory.
    """

    def __init__(self, stream: socket.socket, passage: Passage, max_bytes: int, file: int) -> None:
        super().__init__(stream, passage, max_bytes, passes_on=True)
        self._file = file
        self._memory = SharedMemory(file)
        self._recalls = 0
        self.journal = self._memory.journal

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
        changes no more. If a task has overwritten the number of recalls, this is `IMPOSSIBLE`: the slave may wait for
        a message about a recall that nobody has made."""
        return self._memory.started[0] if self._memory.recalls[0] == self._recalls else IMPOSSIBLE

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
        super().close()
        self._memory.close()


class SlaveChannel:
    """The slave's end of a channel, without a stream: it starts tasks, and keeps their results.

    Args:
        memory: what the slave shares with its agent.
        surroundings: what is put back after each task; None if nothing is.
    """

    def __init__(self, memory: SharedMemory, surroundings: Surroundings | None = None) -> None:
        self._memory = memory
        self._surroundings = surroundings
        self._started, self._began, self._recalls = memory.started, memory.began, memory.recalls
        self.journal = memory.journal
        self._recalls_heard = 0
        self.eof = False
        """Whether the agent is gone."""
        self.forked = False
        """Whether this process is a fork of the slave. A fork has no channel, and using it raises an error."""
        self._at_fork = 0, 0.0, 0.0
        """In a fork: which task ran at the fork, when it began and when tasks must end."""
        reference = weakref.ref(self)

        def after_fork() -> None:
            starts = reference()
            if starts is not None:
                starts._abandon()

        os.register_at_fork(after_in_child=after_fork)

    def _abandon(self) -> None:
        self._at_fork = self._memory.started[0], self._memory.began[0], self._memory.ends[0]
        self.forked = True
        self.close()

    def close(self) -> None:
        """Close the slave's end."""
        self._memory.close()

    def receive(self, timeout_s: float = 0.0) -> list[list[Buffer]]:
        """Wait for messages, and return their frames."""
        raise NotImplementedError

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message."""
        raise NotImplementedError

    @property
    def has_message(self) -> bool:
        """Whether a message has begun to arrive, or the agent is gone."""
        return False

    def is_open(self) -> bool:
        """Whether this process still has the stream."""
        return True

    def start(self, position: int) -> bool:
        """Record that the task at this position starts now.

        Returns:
            False if tasks were recalled, perhaps this one. Then do not run it: receive until the message that names
            the recalled tasks, call `recall_heard`, and start again.
        """
        self._started[0] = position
        return self._recalls[0] == self._recalls_heard

    def run_timed(
        self,
        function: Callable[..., Any],
        calls: Iterable[Any],
        are_rows: bool,
        position: int,
        keep: Callable[[Any, float], bool],
        until: float,
    ) -> None:
        """Start tasks one after the other, as `start` does, and run them. Keep the result of each before the next one
        starts. Stop when tasks are recalled. This loop determines what a single task costs.

        Args:
            function: the task algorithm.
            calls: the arguments of each task if `are_rows`, else its only argument.
            position: the position of the first task.
            keep: called with each value and the seconds of its task. It returns whether to go on.
            until: stop when a task has ended at this time or later, on the monotonic clock.

        Raises:
            BaseException: a task raised it.
        """
        monotonic, around = clock.monotonic, self._surroundings
        started, began, recalls, heard = self._started, self._began, self._recalls, self._recalls_heard
        began[0] = now = monotonic()
        for started[0], args in enumerate(calls, position):
            if recalls[0] != heard:
                return
            value = function(*args) if are_rows else function(args)
            goes_on = keep(value, monotonic() - now)
            value = None  # free it before the next task creates its own
            if around is not None:
                around.restore()
            began[0] = now = monotonic()
            if not goes_on or now >= until:
                return

    def run_block(
        self,
        function: Callable[..., Any],
        calls: Iterable[Any],
        are_rows: bool,
        position: int,
        values: list[Any],
        encode_last: Callable[[], bool],
    ) -> None:
        """Run very short tasks, as `run_timed` does. This loop determines what a task of a portion costs.

        Streams and handlers are put back after each task. The caller stops an alarm after the last task, because this
        would cost a short task too much.

        Args:
            values: where to append each value.
            encode_last: called when the last value is not plain. It returns whether to go on.

        Raises:
            BaseException: a task raised it. The values of the tasks before it were appended.
        """
        started, recalls, heard, append, plain = self._started, self._recalls, self._recalls_heard, values.append, None
        around = self._surroundings
        if around is not None:
            stdout, stderr, root, handlers = around.stdout, around.stderr, around.root, around.handlers
        for started[0], args in enumerate(calls, position):
            if recalls[0] != heard:
                return
            append(value := function(*args) if are_rows else function(args))
            if type(value) is not plain:
                if type(value) in PLAIN:
                    plain = type(value)
                elif not encode_last():
                    return
                value = None  # free it before the next task creates its own
            if around is not None and (
                sys.stdout is not stdout or sys.stderr is not stderr or root.handlers != handlers
            ):
                around.restore()

    def note_began(self, moment: float) -> None:
        """Record when the next task or block starts, before it starts; 0 when it has ended."""
        self._began[0] = moment

    @property
    def began(self) -> float:
        """When the running task or its block began, on the monotonic clock."""
        return self._began[0]

    @property
    def position(self) -> int:
        """Position of the task that was started last; 0 if none."""
        return self._at_fork[0] if self.forked else self._started[0]

    def task_ends_at(self, seconds_max: float | None) -> float:
        """When the running task must end, as far as it is known now; infinity if it is not.

        Args:
            seconds_max: the limit of time of this task, if it has one.
        """
        began, ends = self._at_fork[1:] if self.forked else (self._memory.began[0], self._memory.ends[0])
        return min(ends or inf, inf if seconds_max is None else began + seconds_max)

    @property
    def fed_at(self) -> float:
        """When the agent last sent tasks to this slave at a moment when the slave had none."""
        return self._memory.fed[0]

    def recall_heard(self) -> None:
        """Record that the message of one recall was received."""
        self._recalls_heard += 1


class SlaveEnd(SlaveChannel):
    """The slave's end with its stream. Receiving and sending block.

    Args:
        fds: its file descriptors.
        surroundings: as in `SlaveChannel`.

    Raises:
        OSError: the file descriptors are not those of a channel.
    """

    def __init__(self, fds: SlaveFds, surroundings: Surroundings | None = None) -> None:
        for fd in fds:
            os.set_inheritable(fd, False)
        stream, memory, passage = fds
        super().__init__(SharedMemory(memory), surroundings)
        self.fault = memory
        """A file descriptor for the fault handler, which the agent reads after the slave's exit; never closed."""
        os.lseek(self.fault, 0, os.SEEK_END)
        self._stream = socket.socket(fileno=stream)
        self._end = StreamEnd(self._stream, Passage(socket.socket(fileno=passage)), MAX_BYTES, passes_on=False)
        self._readable = select.poll()
        self._readable.register(stream, select.POLLIN)

    def receive(self, timeout_s: float = 0.0) -> list[list[Buffer]]:
        """Wait for a message, and for the rest of one that has begun to arrive; sets `eof` when the agent is gone.

        Args:
            timeout_s: how long to wait for the first message, in seconds.

        Returns:
            The messages that have arrived, each as its frames. Large frames are writable memoryviews, and what is
            written there is private.
        """
        self._check()
        found: list[list[Buffer]] = []
        if self._readable.poll(timeout_s * 1000):
            while not (found := self._end.receive()) and not self._end.eof:
                self._readable.poll()
            self.eof = self.eof or not found
        return found

    @property
    def has_message(self) -> bool:
        """Whether a message has begun to arrive, or the agent is gone."""
        return bool(self._readable.poll(0))

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message; sets `eof` when the agent is gone."""
        self._check()
        if not self.eof:
            self._end.send(frames)
            self._end.send_rest(inf)
            self.eof = bool(self._end.error)

    def _check(self) -> None:
        if self.forked:
            raise OSError(errno.EBADF, "a fork of a slave has no channel")

    @property
    def was_closed(self) -> bool:
        """Whether some code of this process closed or replaced the descriptor of the stream."""
        return self._end.error in NO_SOCKET

    def is_open(self) -> bool:
        """Whether this process still has the stream: a task may have closed or replaced its descriptor."""
        try:
            self._stream.getpeername()
        except OSError as error:
            self.eof, self._end.error = True, error.errno or 0
        return not self.eof

    def close(self) -> None:
        """Close the slave's end."""
        self._end.close()
        super().close()


# Orders from an agent to its template, and the answers: a socket pair that also carries file descriptors.
#
# An order has the settings of a slave, the descriptors of its channel and, if the slave is not the first one, those of
# its standard output and error. The agent gives one order at a time, and never waits for the answer.


MOST_BYTES = 1 << 16
"""The largest order or answer, in bytes."""

MOST_FDS = 5


class Answer(Struct, frozen=True):
    """What the template answers to an order."""

    slave: int
    pid: int = 0
    """The process id of the slave; 0 if there is none."""
    unsafe: str = ""
    """Why the template must not fork. If so, the template has become this slave."""
    own_bytes: int = 0
    """How much memory the template has, without files."""
    failure: str = ""
    """Why there is no slave."""


class Template:
    """A process that loads the script, and then forks slaves, one at a time. Nothing here ever blocks.

    Args:
        child: the process.
        orders: the agent's end of the orders.
    """

    def __init__(self, child: Child, orders: socket.socket) -> None:
        orders.setblocking(False)
        self._child = child
        self._orders = orders
        self._is_new = True
        self._ordered: int | None = None
        """The slave that it was ordered to start; None after its answer."""
        self.pid: int = child.pid
        self.poll = child.poll
        self.fileno = orders.fileno
        """Returns the descriptor from which its answers come, to wait for."""
        self.close = orders.close
        """Lets it end if it still waits for orders."""

    def fork(self, settings: SlaveSettings) -> Child:
        """Let it start a slave. Until its answer has arrived, the process of the slave stands for the template.

        Raises:
            OSError: there are too many open files, or the template has ended after its first slave.
        """
        is_first, self._is_new = self._is_new, False
        outputs = () if is_first else self._child.open_outputs()
        try:
            socket.send_fds(self._orders, [settings.to_json().encode()], [*settings.fds, *outputs])
        except BrokenPipeError:
            if not is_first:  # its own last words say why it has ended
                raise
        finally:
            for fd in outputs:
                os.close(fd)
        self._ordered = settings.slave
        return self._child

    def answers(self) -> Sequence[tuple[Answer, Child | None]]:
        """Return the answers that have arrived, each with the process of its slave, if there is one.

        What is no answer, or an answer without its order, is left out, because the script wrote it.
        """
        found: list[tuple[Answer, Child | None]] = []
        for answer in self._received():
            if answer.slave == self._ordered:
                self._ordered = None
                forked = self._child.pass_outputs_to(answer.pid) if answer.pid and not answer.unsafe else None
                found.append((answer, self._child if answer.unsafe else forked))
        return found

    def _received(self) -> Iterator[Answer]:
        with suppress(OSError):
            while data := self._orders.recv(MOST_BYTES):
                with suppress(*MALFORMED):
                    yield json_decoder(Answer)(data)

    def kill(self) -> None:
        """End it, although it has no orders."""
        self._child.kill()
        self._child.close()
        self.close()


class TemplateOrders:
    """The template's end. It waits for orders.

    Raises:
        OSError: the descriptor is not that of a socket.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def take(self) -> tuple[SlaveSettings, Sequence[int]] | None:
        """Wait for an order. Return the settings of the slave, whose channel has its own descriptors here, and the
        descriptors of its standard output and error, if it has any. Return None if the agent has ended.
        """
        data, fds = b"", list[int]()
        with suppress(OSError):
            data, fds, _, _ = socket.recv_fds(self._socket, MOST_BYTES, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return None
        stream, memory, passage, *outputs = fds
        return replace(SlaveSettings.from_json(data.decode()), fds=(stream, memory, passage)), outputs

    def answer(self, answer: Answer) -> None:
        """Answer the order. If the agent has ended, do nothing: the next `take` returns None."""
        sent = replace(answer, unsafe=encodable(answer.unsafe), failure=encodable(answer.failure))
        with suppress(OSError):
            self._socket.send(encode_json(sent))

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def open_orders() -> tuple[socket.socket, int]:
    """Return the agent's end, and the descriptor of the template's end. Close it here after the template was started.

    Raises:
        OSError: out of file descriptors.
    """
    agent, template = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return agent, template.detach()
