"""Passages: sockets through which two processes of a host pass shared files beside their messages.

`fold` replaces the large frames of a message by references: it passes their files through the passage, and puts a frame
before the message that says which file belongs where. `unfold` takes the files and restores the message. The files are
passed before the message is sent, so they are there when it is read. They survive their sender in the passage, as the
message does in its socket. So there is no message whose files are missing, and the sender keeps nothing.

If a file cannot be made or passed, the frames travel in the message. This happens if the passage is full, because its
reader is busy, or if too many files of the user are on their way.

A passage to a slave, or to an agent that a master starts, is made before that process starts. Other agents have none:
what they send and receive is encrypted.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from mwpy._system import limits
from mwpy._transport.shared import LARGE_BYTES, SharedFile, file_of, lend, received
from mwpy._values.bounds import Number
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import MALFORMED, decoder, encode

__all__ = ["Passage", "is_folded", "make_passage", "unfold"]

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
            if file is None and (copy := lend(frame, briefly=True)) is not None:
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
            raise ProtocolError(f"its shared files cannot be received: {limits.named(OSError(errno.EMFILE, ''))}")
        raise ProtocolError(f"a message with {count} shared files, but {len(fds)} were passed")

    def _received(self) -> tuple[list[int], int]:
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            _, fds, flags, _ = socket.recv_fds(self._socket, len(FOLDED), MOST_FILES, flags)
        except ConnectionResetError:
            # The other process has ended, and had not taken everything out of its end. The kernel says this once. What
            # the process had passed is still here.
            _, fds, flags, _ = socket.recv_fds(self._socket, len(FOLDED), MOST_FILES, flags)
        return fds, flags

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def make_passage() -> tuple[Passage, socket.socket]:
    """Make a passage to a process that will be started: one end, and the socket of the other one.

    Raises:
        OSError: out of file descriptors.
    """
    kind = socket.SOCK_SEQPACKET if hasattr(socket, "SOCK_SEQPACKET") else socket.SOCK_STREAM
    here, there = socket.socketpair(socket.AF_UNIX, kind)  # the files of one message stay together
    return Passage(here), there


def is_folded(frames: Sequence[Buffer]) -> bool:
    """Whether `unfold` must restore this message."""
    return bool(frames) and frames[0][:1] == FOLDED


def unfold(frames: Sequence[Buffer], passage: Passage, most_bytes: int, *, passes_on: bool) -> list[Buffer]:
    """Restore a folded message.

    Args:
        passage: the passage of its sender.
        most_bytes: the largest size of all its large frames together.
        passes_on: whether this process may pass the frames on. Otherwise they are private and writable.

    Raises:
        OSError: as `Passage.take`.
        ProtocolError: the sender's fault. It cannot be known what the next message means: drop the sender.
    """
    references, message = _read(frames, most_bytes), list(frames[1:])
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
