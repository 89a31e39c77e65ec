"""Passages: sockets through which two processes of a host pass shared files beside their messages.

`fold` replaces the large frames of a message by references: it passes the files through the passage, and puts a
frame before the message that says which frame is which part of which file. `unfold` takes the files and restores the
message. The files are passed before the message is sent, so they are there when it is read. They survive their sender
in the passage, as the message does in its socket. So there is no message whose files are missing, and the sender keeps
nothing.

Buffers can also be passed before the message that contains them (`pass_ahead`). The journal of a slave names such
buffers by the number of their packet. So a result with large buffers can wait there for other results, and its agent
finds it even if the slave dies. Later, a message names the packets (`with_ahead`). The receiver keeps what it has taken
out of the passage until then, because it may need it twice: for the journal, and for the message.

If a file cannot be made or passed, the frames travel in the message. This happens if the passage is full, because its
reader is busy, or if too many files of the user are on their way.

A passage to a slave, or to an agent that a master starts, is made before that process starts. Another agent does not
know whether its master is on the same host. So it offers a passage: it listens on a socket of the kernel's abstract
namespace, and says its name before its first message. Only a process with the same network namespace can connect to it.
Each side checks that the other one has the same user.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Annotated

from msgspec import Meta, Struct

from mwpy._system import limits
from mwpy._transport.shared import HOPS, LARGE_BYTES, REUSED_BYTES, SharedFile, lend, part_of, received
from mwpy._values.bounds import Name, Number
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import MALFORMED, decoder, encode

__all__ = [
    "LAST_NUMBER",
    "Offer",
    "Passage",
    "connect",
    "is_folded",
    "make_passage",
    "read_references",
    "unfold",
    "with_ahead",
    "with_offer",
]

FOLDED = b"\0"
"""The first byte of a folded message. Other messages begin with the version of the protocol, which is not zero."""

MOST_FILES = 253
"""The largest number of files that the kernel passes at once (`SCM_MAX_FD`)."""

MOST_FOLDED = 2000
"""The largest number of frames that pass in files: the list of them is small enough for a frame of the message."""

MOST_AHEAD = 200
"""The largest number of packets that a receiver keeps for messages that have not named them. A sender has fewer."""

MOST_UNTAKEN = 500
"""The largest number of messages whose files a receiver keeps while it looks for a packet. A correct sender has fewer:
they were sent, and not read."""

PACKET_BYTES = 4096
"""The largest packet. The list of at most `REUSED_BYTES` that are passed ahead is smaller."""

LAST_NUMBER = (1 << 32) - 1
"""After this number of a packet comes 1 again."""

SLACK = 3
"""A file may be larger than its buffers, because it was larger before, but not more than so many times."""

_NAME = r"mwpy-[0-9a-f]{32}"
_CREDENTIALS = struct.Struct("3i")
_NUMBER = struct.Struct("=Q")

Hop = Annotated[int, Meta(ge=0, le=HOPS)]


class References(Struct, frozen=True, array_like=True):
    """What the frame before a folded message says."""

    files: Annotated[list[tuple[Number, Number, Hop]], Meta(max_length=MOST_FILES)]
    """Inode and size of each file, and which of its receivers this is (0 if the file is sealed), in the order in which
    they were passed."""
    frames: list[tuple[Number, Number, Number, Number]]
    """The place of each frame in the message, in ascending order; its file, its start there, and its size."""
    offer: Name = ""
    """The name of the passage that an agent offers; empty if it offers none."""
    ahead: Annotated[list[Number], Meta(max_length=MOST_AHEAD)] = []
    """The packets that were passed ahead with the last frames of the message, in their order."""


_decode = decoder(References)


class Passage:
    """One end of a passage.

    Args:
        end: the socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)
        self._numbered = 0
        """The number of the packet that this end passed ahead last."""
        self._untaken: deque[list[int]] = deque()
        """Descriptors that have arrived with messages that were not unfolded."""
        self._ahead: dict[int, list[memoryview]] = {}
        """What the other side has passed ahead, until a message names it, by the number of the packet."""
        self._named: set[int] = set()
        """The packets that a message has named: the last message that named any."""

    def fold(self, frames: Sequence[Buffer]) -> Sequence[Buffer]:
        """Pass the large frames of a message through the passage.

        Returns:
            The message that must be sent: the same one if it has no large frames or if they cannot be passed.
        """
        if max(map(len, frames), default=0) < LARGE_BYTES:
            return frames
        return self._fold(frames, [place for place, frame in enumerate(frames) if len(frame) >= LARGE_BYTES])

    def pass_ahead(self, buffers: Sequence[Buffer]) -> int:
        """Pass large buffers through the passage before the message that contains them, if they are not very large.

        Returns:
            The number of their packet, for `with_ahead`; 0 if they cannot be passed.
        """
        if sum(map(len, buffers)) > REUSED_BYTES:
            return 0
        number = self._numbered = self._numbered % LAST_NUMBER + 1
        return number if self._fold(buffers, range(len(buffers)), number) is not buffers else 0

    def _fold(self, frames: Sequence[Buffer], large: Sequence[int], number: int = 0) -> Sequence[Buffer]:
        """Pass the frames at these places. With the number of a packet, they are passed ahead, and all or none."""
        views = {place: frames[place] for place in large}
        loose = [place for place in large if part_of(frames[place]) is None]
        if loose:
            copies = lend([frames[place] for place in loose], briefly=True)
            if copies is None and number:
                return frames
            views.update(zip(loose, copies or (), strict=False))
        try:
            return self._passed(frames, views, number)
        except OSError:
            return frames

    def _passed(self, frames: Sequence[Buffer], views: Mapping[int, Buffer], number: int) -> Sequence[Buffer]:
        """Pass the files of these frames, given by their places. A file is passed twice if a part of it is in the
        message twice: then what the receiver writes into one frame does not change the other."""
        files: dict[tuple[int, int], tuple[int, SharedFile]] = {}
        uses: defaultdict[tuple[int, int], int] = defaultdict(int)
        folded: list[tuple[int, int, int, int]] = []
        for place, view in views.items():
            part = part_of(view)
            if part is not None and part.file.fd is not None:
                fd, use = part.file.fd, uses[part.file.fd, part.start]
                uses[fd, part.start] += 1
                place_of_file, _ = files.setdefault((fd, use), (len(files), part.file))
                folded.append((place, place_of_file, part.start, len(view)))
        if not 0 < len(files) <= MOST_FILES or len(folded) > MOST_FOLDED:
            return frames
        facts = [(os.fstat(fd).st_ino, file.size, file.about_to_pass()) for (fd, _), (_, file) in files.items()]
        first = FOLDED + encode(References(facts, folded))
        packet = _NUMBER.pack(number) + first if number else FOLDED
        socket.send_fds(self._socket, [packet], [fd for fd, _ in files])
        away = {place for place, *_ in folded}
        return [first, *(frame for place, frame in enumerate(frames) if place not in away)]

    def take(self, count: int) -> list[int]:
        """Take files that the other side has passed with a message.

        Returns:
            Their descriptors, which the caller closes.

        Raises:
            OSError: some code of this process has closed the passage.
            ProtocolError: there are not as many files; the other side's fault. Or this process has no descriptors left;
                then the text says so.
        """
        while not self._untaken and self._receive():
            pass
        fds = self._untaken.popleft() if self._untaken else []
        if len(fds) == count:
            return fds
        for fd in fds:
            os.close(fd)
        raise ProtocolError(f"a message with {count} shared files, but {len(fds)} were passed")

    def ahead(self, numbers: Sequence[int]) -> list[Buffer] | None:
        """Return the buffers that the other side has passed ahead in some packets. They can be passed on.

        Returns:
            The buffers; None if the last message that named packets has named one of these.

        Raises:
            OSError: as `take`.
            ProtocolError: they were not passed, or a packet is named twice; the other side's fault, as for `take`.
        """
        if not self._named.isdisjoint(numbers):
            return None
        if len({*numbers}) < len(numbers):
            raise ProtocolError("a packet that is named twice")
        found: list[Buffer] = []
        for number in numbers:
            while number not in self._ahead:
                if not self._receive():
                    raise ProtocolError("buffers that were not passed ahead")
            found += self._ahead[number]
        return found

    def name(self, numbers: Sequence[int]) -> list[Buffer]:
        """Return the buffers of packets that a message names, and forget them.

        Raises:
            OSError: as `take`.
            ProtocolError: as `ahead`.
        """
        found = self.ahead(numbers)
        if found is None:
            raise ProtocolError("a packet that is named twice")
        for number in numbers:
            del self._ahead[number]
        self._named = {*numbers}
        return found

    def _receive(self) -> bool:
        """Receive a packet. Return whether there was one."""
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            data, fds, flags, _ = self._received(flags)
        except BlockingIOError:
            return False
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            for fd in fds:
                os.close(fd)
            if len(fds) < MOST_FILES and not flags & socket.MSG_TRUNC:
                raise ProtocolError(f"its shared files cannot be received: {limits.named(OSError(errno.EMFILE, ''))}")
            fds = []
        if not data:
            return False
        if len(data) <= _NUMBER.size:
            self._untaken.append(fds)
            if len(self._untaken) > MOST_UNTAKEN:
                raise ProtocolError(f"shared files of more than {MOST_UNTAKEN} messages that did not arrive")
            return True
        try:
            references = read_references([data[_NUMBER.size :]], REUSED_BYTES)
            if len(fds) != len(references.files) or len(self._ahead) == MOST_AHEAD:
                raise ProtocolError(f"{len(self._ahead)} packets that no message names, or one without its files")
            (number,) = _NUMBER.unpack_from(data)
            self._ahead[number] = [view for _, view in _views(references, fds, passes_on=True)]
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _received(self, flags: int) -> tuple[bytes, list[int], int, object]:
        try:
            return socket.recv_fds(self._socket, PACKET_BYTES, MOST_FILES, flags)
        except ConnectionResetError:
            # The other process has ended, and had not taken everything out of its end. The kernel says this once. What
            # the process had passed is still here.
            return socket.recv_fds(self._socket, PACKET_BYTES, MOST_FILES, flags)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
        for fd in chain.from_iterable(self._untaken):
            os.close(fd)
        self._untaken.clear()
        self._ahead.clear()


def make_passage() -> tuple[Passage, socket.socket]:
    """Make a passage to a process that will be started: one end, and the socket of the other one.

    Raises:
        OSError: out of file descriptors.
    """
    here, there = socket.socketpair(socket.AF_UNIX, _kind())
    return Passage(here), there


def is_folded(frames: Sequence[Buffer]) -> bool:
    """Whether `unfold` must restore this message."""
    return bool(frames) and frames[0][:1] == FOLDED


def unfold(
    frames: Sequence[Buffer], references: References, passage: Passage | None, *, passes_on: bool
) -> list[Buffer]:
    """Restore a folded message.

    Args:
        references: what `read_references` returned.
        passage: the passage of its sender; None if there is none.
        passes_on: whether this process may pass the frames on. Otherwise they are private and writable.

    Raises:
        OSError: as `Passage.take`.
        ProtocolError: the sender's fault. It cannot be known what the next message means: drop the sender.
    """
    message = list(frames[1:])
    if not (references.files or references.ahead):
        return message
    if passage is None:
        raise ProtocolError("a message with shared files, but without a passage")
    if references.ahead and not passes_on:
        raise ProtocolError("buffers that were passed ahead to a process that does not pass them on")
    if references.files:
        fds = passage.take(len(references.files))
        try:
            for place, view in _views(references, fds, passes_on=passes_on):
                message.insert(place, view)
        finally:
            for fd in fds:
                os.close(fd)
    return message + passage.name(references.ahead) if references.ahead else message


def _views(references: References, fds: list[int], *, passes_on: bool) -> list[tuple[int, memoryview]]:
    """Map or copy the parts of files, and return them with their places. Take the descriptors out of the list."""
    views: list[list[memoryview]] = []
    for file, (inode, size, hop) in enumerate(references.files):
        parts = [(start, length) for _, which, start, length in references.frames if which == file]
        views.append(received(fds.pop(0), inode, size, hop, parts, passes_on=passes_on))
    return [(place, views[file].pop(0)) for place, file, _, _ in references.frames]


def with_ahead(frames: Sequence[Buffer], numbers: Sequence[int]) -> Sequence[Buffer]:
    """Return a message whose last frames were passed ahead in these packets."""
    return [FOLDED + encode(References([], [], "", [*numbers])), *frames] if numbers else frames


def read_references(frames: Sequence[Buffer], most_bytes: int) -> References:
    """Read the first frame of a folded message, and compare it with the others.

    Args:
        most_bytes: the largest size of all large frames together.

    Raises:
        ProtocolError: it is malformed; the sender's fault.
    """
    if len(frames[0]) >= LARGE_BYTES:
        raise ProtocolError(f"a list of shared files of {len(frames[0])} bytes")
    try:
        references = _decode(memoryview(frames[0])[1:])
    except MALFORMED as error:
        raise ProtocolError(f"a malformed list of shared files: {error}") from error
    sizes = [size for _, size, _ in references.files], [size for *_, size in references.frames]
    if sum(sizes[0]) > SLACK * most_bytes or sum(sizes[1]) > most_bytes or 0 in (*sizes[0], *sizes[1]):
        raise ProtocolError(f"shared files of {sum(sizes[0])} bytes for frames of {sum(sizes[1])} bytes")
    places = [place for place, *_ in references.frames]
    is_in_order = places == sorted({*places}) and all(place < len(places) + len(frames) - 1 for place in places)
    if not is_in_order or any(file >= len(references.files) for _, file, _, _ in references.frames):
        raise ProtocolError("a list of shared files that does not fit its message")
    return references


# ---- an agent and its master ---------------------------------------------------------------------------------


class Offer:
    """An agent's offer of a passage to its master.

    Raises:
        OSError: there can be none on this system.
    """

    def __init__(self) -> None:
        self.name = f"mwpy-{os.urandom(16).hex()}"
        self._listening = socket.socket(socket.AF_UNIX, _kind())
        try:
            self._listening.setblocking(False)
            self._listening.bind(f"\0{self.name}")
            self._listening.listen()
        except OSError:
            self._listening.close()
            raise

    def accepted(self) -> Passage | None:
        """Return the passage; None if the master has not connected."""
        try:
            while True:
                end, _ = self._listening.accept()
                if _is_same_user(end):
                    return Passage(end)
                end.close()
        except OSError:
            return None

    def close(self) -> None:
        """Take the offer back."""
        self._listening.close()


def with_offer(frames: Sequence[Buffer], offer: Offer) -> list[Buffer]:
    """Return a message that offers a passage to its receiver."""
    return [FOLDED + encode(References([], [], offer.name)), *frames]


def connect(name: str) -> Passage | None:
    """Accept the offer of an agent.

    Returns:
        The passage; None if the agent is on another host or has another user, or if this process is out of file
        descriptors.
    """
    if not re.fullmatch(_NAME, name):
        return None
    with suppress(OSError):
        end = socket.socket(socket.AF_UNIX, _kind())
        try:
            end.setblocking(False)
            end.connect(f"\0{name}")
            if _is_same_user(end):
                return Passage(end)
        except OSError:
            pass
        end.close()
    return None


def _is_same_user(end: socket.socket) -> bool:
    _, user, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())


def _kind() -> int:
    """The kind of socket: one that keeps the files of one message together, if the system has it."""
    return socket.SOCK_SEQPACKET if hasattr(socket, "SOCK_SEQPACKET") else socket.SOCK_STREAM
