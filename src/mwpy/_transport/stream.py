"""Messages on a stream socket, and large buffers that pass beside it in sealed files.

Messages on a stream socket: the number of frames, their lengths, and the frames as they travel on the network.

The small frames of a message are copied into one piece, which begins with the lengths of all frames. The large frames
follow. They are not copied: each is sent from its own memory and received into new memory. Between two processes of one
host, a passage beside the stream carries the large frames in shared files, as long as it can.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import resource
import select
import socket
import struct
import sys
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, ClassVar, Protocol

from msgspec import Meta, Struct

from mwpy._system import clock, process
from mwpy._values.bounds import LARGE_BYTES, Buffer, Number
from mwpy._values.errors import ProtocolError
from mwpy._values.messagepack import MALFORMED, decoder, encode

# Files in memory: large buffers pass from one process of a host to another without a socket.
#
# The sender copies a buffer into a file that has no name and exists only in memory (memfd), and seals it: nobody can
# change its content or its size any more, so reading it never fails later. The receiver maps the file, so there is one
# copy. What it writes into a mapping is private, because the kernel then copies the page (`MAP_PRIVATE`).
#
# The files are not in /dev/shm, so its size is no limit. The kernel frees a file when no process has it open or mapped,
# so nothing stays behind when processes are killed. A passage passes the files on. A reference to `/proc/PID/fd/N`
# would need a sender that keeps each file until it is opened, and would let an attacker name any file.
#
# An earlier version wrote buffers of up to 2 MiB into files that are used again, because a fresh page costs the kernel
# more than a copy of its content. Arrays of 1 MB had 1.7 times the rate. It was three times the code.
#
# They are mapped with the C function `mmap`. Python's own `mmap` keeps a file descriptor for each mapping (before
# 3.13), and a master may have 100,000 results.


SEAL_TRIES = 10
"""How often this process tries to seal a file."""

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

FILES_SHARE = 16
"""One in so many descriptors of this process may belong to these files. Beyond that, buffers are copied."""

_kept: set[int] = set()
"""The descriptors of the files that this process may pass on."""

_reported: set[str] = set()
"""What was reported already."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class SharedFile(Struct, gc=False, eq=False):
    """A file that is mapped into this process. It exists as long as a view of it.

    It is invisible to the garbage collector (`gc=False`). Of the objects of a cycle, the collector calls all finalizers
    first, in any order (PEP 442), and would end memory that the finalizer of another object still uses.
    """

    address: int
    size: int
    fd: int | None
    """The descriptor; None if this process may not pass the file on."""
    _unmap: ClassVar[Any] = _libc.munmap
    _close: ClassVar[Any] = os.close
    """Python forgets what a module has before it ends the last objects."""

    def __del__(self) -> None:
        self._unmap(self.address, self.size)
        if self.fd is not None:
            _kept.discard(self.fd)
            self._close(self.fd)


def _mapped(fd: int, size: int, *, passes_on: bool) -> memoryview:
    """Map a sealed file.

    Args:
        fd: its descriptor. If this process passes the file on, the file keeps it.
        size: its size, in bytes.
        passes_on: whether this process may pass the file on. Otherwise the view is private and writable.

    Raises:
        OSError: the process has too many mappings, or too little memory.
    """
    protection = mmap.PROT_READ if passes_on else mmap.PROT_READ | mmap.PROT_WRITE
    address: int | None = _libc.mmap(None, size, protection, mmap.MAP_PRIVATE, fd, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    array: Any = (ctypes.c_ubyte * size).from_address(address)
    array.file = SharedFile(address, size, fd if passes_on else None)
    if passes_on:
        _kept.add(fd)
    view = memoryview(array).cast("B")
    return view.toreadonly() if passes_on else view


def file_of(buffer: Buffer) -> SharedFile | None:
    """Return the file whose content a buffer is; None if it is none, or if this process may not pass it on."""
    file = getattr(buffer.obj, "file", None) if type(buffer) is memoryview else None
    return file if type(file) is SharedFile and file.fd is not None and file.size == len(buffer) else None


def lend(buffer: Buffer) -> memoryview | None:
    """Copy a buffer into a sealed file.

    Returns:
        A read-only view of the copy, which can be passed on; None if there can be no such file, or no further one.
    """
    if not _may_keep():
        return None
    fd = -1
    try:
        fd = os.memfd_create("mwpy-buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        write_all(fd, memoryview(buffer), 0)
        add_seals(fd)
        return _mapped(fd, len(buffer), passes_on=True)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        _report(error)
        return None


def received(fd: int, inode: int, size: int, *, passes_on: bool) -> memoryview:
    """Map a file that another process has passed.

    Args:
        fd: its descriptor. It belongs to this function.
        inode: the number of the file, as the sender says.
        size: its size, as the sender says; not 0.
        passes_on: whether this process wants to pass the file on. Otherwise the content is writable, and what is
            written there is private.

    Returns:
        The content.

    Raises:
        ProtocolError: this is not that file, or it is not sealed; the sender's fault. Or it cannot be read.
    """
    is_kept = False
    try:
        facts, seals = os.fstat(fd), fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if seals != SEALS or os.fstatvfs(fd).f_bsize != mmap.PAGESIZE:
            raise ProtocolError("a shared file that can change")
        if (facts.st_ino, facts.st_size) != (inode, size):
            raise ProtocolError("a shared file that is not the one that the message names")
        keeps = passes_on and _may_keep()
        try:
            view = _mapped(fd, size, passes_on=keeps)
        except OSError:  # this process has too many mappings
            return _copied(fd, size)
        is_kept = keeps
        return view
    except (OSError, MemoryError) as error:
        raise ProtocolError(f"a descriptor that is no shared file, or one that cannot be read: {error!r}") from error
    finally:
        if not is_kept:
            os.close(fd)


def _copied(fd: int, size: int) -> memoryview:
    """Read a file.

    Raises:
        OSError: it cannot be read.
        MemoryError: there is no memory for it.
    """
    data = rest = memoryview(bytearray(size))
    while rest:
        rest = rest[os.preadv(fd, [rest], size - len(rest)) :]
    return data


def write_all(fd: int, data: memoryview, start: int) -> None:
    """Write all of a buffer: one call writes at most 2 GiB."""
    while data:
        count = os.pwrite(fd, data, start)
        data, start = data[count:], start + count


def add_seals(fd: int) -> None:
    """Seal a memory file. The kernel refuses this while it moves one of the pages, after 0.15 s of waiting: try again.

    Raises:
        OSError: the kernel still refuses it.
    """
    for tries_left in reversed(range(SEAL_TRIES)):
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            if error.errno != errno.EBUSY or not tries_left:
                raise
        else:
            return


def _may_keep() -> bool:
    """Whether this process may use another file."""
    most: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // FILES_SHARE
    return len(_kept) < most


def _report(error: OSError) -> None:
    """Print once that buffers are copied through sockets, and why."""
    if str(error) not in _reported:
        _reported.add(str(error))
        text = f"mwpy: warning: no shared memory for large buffers ({error}): they are copied, which is slower"
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


# Passages: sockets through which two processes of a host pass shared files beside their messages.
#
# `fold` replaces the large frames of a message by references: it passes their files through the passage, and puts a
# frame before the message that says which file belongs where. `unfold` takes the files and restores the message. The
# files are passed before the message is sent, so they are there when it is read. They survive their sender in the
# passage, as the message does in its socket. So there is no message whose files are missing, and the sender keeps
# nothing.
#
# If a file cannot be made or passed, the frames travel in the message. This happens if the passage is full, because its
# reader is busy, or if too many files of the user are on their way.
#
# A passage to a slave, or to an agent that a master starts, is made before that process starts. Other agents have none:
# what they send and receive is encrypted.


FOLDED = b"\0"
"""The first byte of a folded message. Other messages begin with the version of the protocol, which is not zero."""

MOST_FILES = 253
"""The largest number of files that the kernel passes at once (`SCM_MAX_FD`)."""


class References(Struct, frozen=True, array_like=True):
    """What the frame before a folded message says."""

    files: Annotated[list[tuple[Number, Number, Number]], Meta(max_length=MOST_FILES)]
    """The place of each file in the message, in ascending order; its inode and its size. So they were passed."""


_decode = decoder(References)


class Passage:
    """One end of a passage.

    Args:
        end: the socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)

    def fold(self, frames: Sequence[Buffer]) -> Sequence[Buffer]:
        """Pass the large frames of a message through the passage.

        Returns:
            The message that must be sent: the same one if it has no large frames or if they cannot be passed.
        """
        if max(map(len, frames), default=0) < LARGE_BYTES:
            return frames
        lent: list[memoryview] = []  # until their files are passed
        files: dict[int, tuple[int, SharedFile]] = {}
        for place, frame in enumerate(frames):
            if len(frame) < LARGE_BYTES or len(files) == MOST_FILES:
                continue
            file = file_of(frame)
            if file is None and (copy := lend(frame)) is not None:
                lent.append(copy)
                file = file_of(copy)
            if file is not None and file.fd is not None:
                files[place] = file.fd, file
        if not files:
            return frames
        references = [(place, os.fstat(fd).st_ino, file.size) for place, (fd, file) in files.items()]
        try:
            socket.send_fds(self._socket, [FOLDED], [fd for fd, _ in files.values()])
        except OSError:
            return frames
        first = FOLDED + encode(References(references))
        return [first, *(frame for place, frame in enumerate(frames) if place not in files)]

    def take(self, count: int) -> list[int]:
        """Take the files that the other side has passed with a message.

        Returns:
            Their descriptors, which the caller closes.

        Raises:
            OSError: some code of this process has closed the passage.
            ProtocolError: there are not as many files; the other side's fault. Or this process has no descriptors left;
                then the text says so.
        """
        try:
            fds, flags = self._received()
        except BlockingIOError:
            fds, flags = [], 0
        if len(fds) == count:
            return fds
        for fd in fds:
            os.close(fd)
        if flags & socket.MSG_CTRUNC and len(fds) < MOST_FILES:
            raise ProtocolError(f"its shared files cannot be received: {process.named(OSError(errno.EMFILE, ''))}")
        raise ProtocolError(f"a message with {count} shared files, but {len(fds)} were passed")

    def _received(self) -> tuple[list[int], int]:
        receive = partial(socket.recv_fds, self._socket, len(FOLDED), MOST_FILES, socket.MSG_CMSG_CLOEXEC)
        try:
            _, fds, flags, _ = receive()
        except ConnectionResetError:
            # The other process has ended, and had not taken everything out of its end. The kernel says this once. What
            # the process had passed is still here.
            _, fds, flags, _ = receive()
        return fds, flags

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def make_passage() -> tuple[Passage, socket.socket]:
    """Make a passage to a process that will be started: one end, and the socket of the other one.

    Raises:
        OSError: out of file descriptors.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # the files of one message stay together
    return Passage(here), there


def is_folded(frames: Sequence[Buffer]) -> bool:
    """Whether `unfold` must restore this message."""
    return bool(frames) and frames[0][:1] == FOLDED


def unfold(frames: list[Buffer], passage: Passage, most_bytes: int, *, passes_on: bool) -> list[Buffer]:
    """Restore a message if it is folded. Others are returned as they are.

    Args:
        passage: the passage of its sender.
        most_bytes: the largest size of all its large frames together.
        passes_on: whether this process may pass the frames on. Otherwise they are private and writable.

    Raises:
        OSError: as `Passage.take`.
        ProtocolError: the sender's fault. It cannot be known what the next message means: drop the sender.
    """
    if not is_folded(frames):
        return frames
    references, message = _read(frames, most_bytes), frames[1:]
    fds = passage.take(len(references.files))
    try:
        for place, inode, size in references.files:
            message.insert(place, received(fds.pop(0), inode, size, passes_on=passes_on))
    finally:
        for fd in fds:
            os.close(fd)
    return message


def _read(frames: Sequence[Buffer], most_bytes: int) -> References:
    if len(frames[0]) >= LARGE_BYTES:
        raise ProtocolError(f"a list of shared files of {len(frames[0])} bytes")
    try:
        references = _decode(memoryview(frames[0])[1:])
    except MALFORMED as error:
        raise ProtocolError(f"a malformed list of shared files: {error}") from error
    places, sizes = [place for place, *_ in references.files], [size for *_, size in references.files]
    if sum(sizes) > most_bytes or 0 in sizes:
        raise ProtocolError(f"shared files of {sum(sizes)} bytes")
    if places != sorted({*places}) or any(place >= len(places) + len(frames) - 1 for place in places):
        raise ProtocolError("a list of shared files that does not fit its message")
    return references


# How long the links wait: for something to happen, and from one heartbeat to the next.


HEARTBEATS_A_TIMEOUT = 4
"""How many heartbeats there are within one timeout."""

SHORTEST_INTERVAL_S = 0.1
"""The shortest time between two heartbeats."""

LONGEST_POLL_MS = 2**31 - 1
"""The longest time that a poller accepts, three weeks."""


def heartbeat_interval(timeout_s: float) -> float:
    """Return the seconds between two heartbeats."""
    return max(SHORTEST_INTERVAL_S, timeout_s / HEARTBEATS_A_TIMEOUT)


def milliseconds(seconds: float) -> int:
    """Convert a time to milliseconds for a poller. It is limited, and rounded up so that no poll returns too early."""
    if seconds <= 0:
        return 0
    return math.ceil(seconds * 1000) if seconds < LONGEST_POLL_MS / 1000 else LONGEST_POLL_MS


READ_BYTES = 4 * LARGE_BYTES
"""The size of a stream's read buffer."""
MAX_BYTES = 1 << 36
"""The largest message, if the receiver sets no other limit."""
FRAMES_SLACK = 16
"""How many frames a message may have beyond the large ones: only large buffers have frames of their own."""
NO_SIGNAL = socket.MSG_NOSIGNAL
"""A write to a peer that is gone is an error, also if the script has changed what SIGPIPE does."""
READS = 16
"""One `StreamEnd.receive` reads at most this often, so that a peer that sends much does not delay the others."""

_HEAD = struct.Struct("=QI")
"""Two numbers: the size of the lengths and small frames that follow, and the number of frames."""
_HEAD_BYTES = _HEAD.size
_read_head = _HEAD.unpack_from


class Readable(Protocol):
    """What a stream can be read from: a socket."""

    def recv_into(self, room: memoryview, size: int = 0, flags: int = 0, /) -> int:
        """Read into this room, and return how many bytes; 0 at the end of the stream."""


class Reader:
    """Cuts a stream into messages. Small frames pass through a buffer; large ones are read into their own memory."""

    def __init__(self, stream: Readable, max_bytes: int = MAX_BYTES) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        """The largest message. Faulty code in a slave may write the lengths of a larger one."""
        self._most_frames = max_bytes // LARGE_BYTES + FRAMES_SLACK
        """A list of the lengths of many more frames would cost the receiver much time and memory."""
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._start = 0
        self._end = 0
        self._large = memoryview(b"")
        """The part of a large frame that was not received yet."""
        self._messages = self._cut()
        self.emptied = False
        """Whether the last `read` emptied the stream: it got fewer bytes than it had room for."""

    def read(self) -> list[list[Buffer]] | None:
        """Receive once. Return the messages that are complete by now, or None at the end of the stream.

        Raises:
            OSError: an error of the stream; also `BlockingIOError`.
            ProtocolError: the bytes are not a message.
        """
        if self._large:
            count = self._stream.recv_into(self._large, 0, socket.MSG_WAITALL)
            self.emptied = count < len(self._large)
            self._large = self._large[count:]
        else:
            if self._start == self._end:  # the usual case: the same memory again, which is in the processor's cache
                self._start = self._end = 0
            elif READ_BYTES - self._end < LARGE_BYTES:
                rest = bytes(self._buffer[self._start : self._end])
                self._buffer[: len(rest)] = rest
                self._start, self._end = 0, len(rest)
            count = self._stream.recv_into(self._buffer[self._end :])
            self._end += count
            self.emptied = self._end < READ_BYTES
        if not count:
            return None
        found: list[list[Buffer]] = []
        while (message := next(self._messages, None)) is not None:
            found.append(message)
            if self._start == self._end:
                break
        return found

    def _cut(self) -> Generator[list[Buffer] | None, None, None]:
        """Yield each message, and None whenever more bytes must be read first."""
        while True:
            while self._end - self._start < _HEAD_BYTES:
                yield None
            size, count = _read_head(self._buffer, self._start)
            place = 8 * count
            if size > self._max_bytes or place > size or count > self._most_frames:
                raise ProtocolError(f"a message of {count} frames in {size} bytes")
            small: Buffer
            if size < LARGE_BYTES:
                while self._end - self._start < _HEAD_BYTES + size:  # the head stays: it belongs to the message
                    yield None
                start = self._start + _HEAD_BYTES
                self._start = start + size
                small = bytes(self._buffer[start : start + size])
            else:
                self._start += _HEAD_BYTES
                small = yield from self._take_large(size)
            frames: list[Buffer] = []
            lengths = struct.unpack_from(f"={count}Q", small)
            if sum(lengths) > self._max_bytes:
                raise ProtocolError(f"a message of {sum(lengths)} bytes")
            for length in lengths:
                if length < LARGE_BYTES:
                    frames.append(small[place : place + length])
                    place += length
                else:
                    frames.append((yield from self._take_large(length)))
            if place != size:
                raise ProtocolError(f"{count} frames that do not fill their message")
            yield frames

    def _take_large(self, size: int) -> Generator[None, None, Buffer]:
        try:
            large = memoryview(bytearray(size))
        except MemoryError:
            raise ProtocolError(f"there is no memory for a frame of {size} bytes") from None
        have = min(size, self._end - self._start)
        large[:have] = self._buffer[self._start : self._start + have]
        self._start += have
        self._large = large[have:]
        while self._large:
            yield None
        return large


def pack(frames: Sequence[Buffer], passage: Passage | None = None) -> list[Buffer]:
    """Return the pieces to send for a message. All small frames are in the first piece.

    Args:
        passage: passes the large frames, as far as it can; None if there is none.
    """
    lengths = [*map(len, frames)]
    count = len(lengths)
    if max(lengths, default=0) < LARGE_BYTES:
        head = struct.pack(f"=QI{count}Q", 8 * count + sum(lengths), count, *lengths)
        return [b"".join((head, *frames))]
    if passage is not None:
        return pack(passage.fold(frames))
    small = [frame for frame in frames if len(frame) < LARGE_BYTES]
    head = struct.pack(f"=QI{count}Q", 8 * count + sum(map(len, small)), count, *lengths)
    return [b"".join((head, *small)), *(memoryview(frame) for frame in frames if len(frame) >= LARGE_BYTES)]


class StreamEnd:
    """One end of a stream with a passage. Nothing here blocks, except `send_rest`.

    Args:
        stream: the socket.
        passage: this end of the passage.
        max_bytes: the largest message that is accepted from the other side.
        passes_on: whether this process may pass large frames on. Otherwise they are private and writable.
    """

    def __init__(self, stream: socket.socket, passage: Passage, max_bytes: int, *, passes_on: bool) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._passage = passage
        self._max_bytes = max_bytes
        self._passes_on = passes_on
        self._reader = Reader(stream, max_bytes)
        self._unsent: deque[Sequence[Buffer]] = deque()
        """The messages that wait."""
        self._pieces: deque[Buffer] = deque()
        """The rest of the message that is being sent."""
        self._is_sending = False
        self.wants_write = False
        """Whether a message waits until the peer reads: call `flush` when the stream can be written."""
        self.eof = False
        """Whether the other end of the stream is closed, by the peer and by every process that the peer forked."""
        self.error = 0
        """The number of the error of the stream; 0 if there was none."""

    def fileno(self) -> int:
        """Return the descriptor of the stream, to wait for."""
        return self._stream.fileno()

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send as much of a message as can be sent at once; the rest waits for `flush`.

        Large frames are passed in shared files. The frames are not copied: do not change them any more. A message to a
        peer that is gone is dropped without an error, because its end is noticed anyway. A finalizer or signal handler
        may send while a message is being sent: then its message follows.
        """
        self._unsent.append(frames)
        self.flush()

    def flush(self) -> None:
        """Send what the peer is ready to take."""
        if self._is_sending:
            return
        unsent, pieces, self._is_sending = self._unsent, self._pieces, True
        try:
            while unsent or pieces:
                if not pieces:
                    pieces += pack(unsent[0], self._passage)
                    unsent.popleft()
                piece = pieces[0]
                sent = self._stream.send(piece, NO_SIGNAL)
                if sent < len(piece):
                    pieces[0] = memoryview(piece)[sent:]
                else:
                    del pieces[0]
        except BlockingIOError:
            pass
        except OSError as error:
            self.error = error.errno or 0
            unsent.clear()
            pieces.clear()
        finally:
            self._is_sending = False
            self.wants_write = bool(unsent or pieces)

    def receive(self) -> list[list[Buffer]]:
        """Receive what the peer sent; sets `eof` after the last byte.

        One call reads a limited amount. If the stream can still be read, call again when it is this peer's turn.

        Returns:
            The messages that are complete by now, each as its frames.

        Raises:
            ProtocolError: the bytes are no messages, because some code in the peer wrote into the stream. End it.
        """
        messages: list[list[Buffer]] = []
        try:
            for _ in range(READS):
                found = self._reader.read()
                if found is None:
                    self.eof = True
                    break
                for frames in found:
                    messages.append(unfold(frames, self._passage, self._max_bytes, passes_on=self._passes_on))
                if self._reader.emptied:
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self.eof, self.error = True, error.errno or 0
        return messages

    def end(self) -> None:
        """End the stream for both sides, and for every process that has a copy of it. Then `receive` finds the end."""
        with suppress(OSError):  # it has ended
            self._stream.shutdown(socket.SHUT_RDWR)

    def send_rest(self, until: float) -> None:
        """Wait until all messages have left, but not longer than until a moment of the monotonic clock."""
        ready = select.poll()
        ready.register(self._stream, select.POLLOUT)
        while self.wants_write and not self._is_sending and (left_s := until - clock.monotonic()) > 0:
            ready.poll(milliseconds(left_s))
            self.flush()

    def close(self) -> None:
        """Close this end, also if some code has closed a descriptor of it."""
        for each in (self._stream, self._passage):
            with suppress(OSError):
                each.close()
