"""Files in memory: large buffers pass from one process of a host to another without a socket.

The sender copies buffers into a file that has no name and exists only in memory (memfd). Nobody can make it shorter any
more, so reading it never fails later. There are two kinds of files:

- *Sealed files* cannot be changed any more. The receiver maps the file. What it writes is private: the kernel then
  copies the page (see `MAP_PRIVATE`). Large buffers travel in them, so there is one copy.
- *Reused files* have up to `REUSED_BYTES`. The last receiver copies the content at once, and the sender may write the
  next buffers into the same file. Fresh pages are the reason. For 1 MB, the kernel needs 470 µs to write into a new
  file and 100 µs to map and read it, but 70 µs to write into an old file and 60 µs to read it into memory that was used
  before. So two copies are faster than one.

The files are not in /dev/shm, so its size is no limit. The kernel frees a file when no process has it open or mapped,
so nothing stays behind when processes are killed. `passage.py` passes the files on.

The first bytes of a reused file say who still needs its content. The first receiver, usually an agent, has byte 1, and
the process to which it passes the file on has byte 2. Before a file is passed, the byte of its receiver becomes `HELD`.
A receiver that does not need it any more writes `RELEASED`. Before a process passes a file a second time, it writes
byte 0, and the file is never used again. The byte of a receiver that was killed stays `HELD`, so its file is not used
again, either.

A receiver reads a reused file into memory that it uses again, too (see `mappings.py`).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

from attrs import frozen

from mwpy._transport.mappings import map_file, new_memory, unmap, view_of
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

__all__ = ["HOPS", "LARGE_BYTES", "Part", "SharedFile", "add_seals", "lend", "part_of", "received", "seal", "write_all"]

LARGE_BYTES = 64 * 1024
"""Buffers of this size and larger travel in files."""

ALIGNMENT = 64
"""Each buffer begins at a multiple of this many bytes, because vector instructions are faster then."""

SEAL_TRIES = 10
"""How often this process tries to seal a file."""

FILES_SHARE = 16
"""One in so many descriptors of this process may belong to these files, and half of them to the arguments of waiting
tasks. Beyond that, buffers are copied."""

REUSED_BYTES = 2 << 20
"""The largest content of a reused file. Copying more fills the caches of the processor, and takes memory twice."""

FREE_BYTES = 8 << 20
FREE_FILES = 32
"""How much memory and how many files a process keeps for its next buffers, beyond as many as it uses."""

HEAD_BYTES = mmap.PAGESIZE
"""The space for the first bytes of a reused file."""

HOPS = 2
"""A reused file has at most so many receivers, one after the other: an agent, and a slave or the master."""

HELD, RELEASED = b"\1", b"\2"
_AGAIN = b"\1"
_FREE = {bytes([0, first, second]) for first in (0, RELEASED[0]) for second in (0, RELEASED[0])}
"""The first bytes of a file whose content nobody needs."""

_kept: dict[int, int] = {}
"""The files that this process may pass on or write again, and their sizes, by their descriptors."""

_reported: set[str] = set()
"""What was reported already."""


class _Free(NamedTuple):
    """A file that its last receiver may still need."""

    fd: int
    address: int
    size: int


_free: deque[_Free] = deque()
"""The files of this process that it may write again when they are released."""


class SharedFile:
    """A file that is mapped into this process. It exists as long as a view of it.

    Args:
        fd: the descriptor of the file. It belongs to this object as soon as it exists.
        size: the size of the file, in bytes.
        passes_on: whether this process may pass the file on. Its views are read-only then, and it keeps the descriptor.
        hop: for a reused file, which of its receivers this process is; 0 for its sender.
        is_reused: whether it is a reused file.
        address: where it is mapped already; None if it is not mapped.

    Raises:
        OSError: the kernel does not map it, because this process has too many mappings. The descriptor stays open.
    """

    def __init__(
        self,
        fd: int,
        size: int,
        *,
        passes_on: bool,
        hop: int = 0,
        is_reused: bool = False,
        address: int | None = None,
    ) -> None:
        self._address: int | None = None
        self._address = map_file(fd, size, is_writable=not passes_on) if address is None else address
        self._is_writable = not passes_on
        self._hop = hop
        self._is_reused = is_reused
        self._passed = 0
        self._owner = os.getpid()
        self.size = size
        self.fd: int | None = None
        """The descriptor; None if this process does not keep it."""
        if passes_on:
            self.fd = fd
            _kept[fd] = size
        else:
            os.close(fd)

    def view(self, start: int, size: int) -> memoryview:
        """Return a part of the content."""
        assert self._address is not None, "the file was not mapped"
        view = view_of(self._address + start, size, Part(self, start))
        return view if self._is_writable else view.toreadonly()

    def about_to_pass(self) -> int:
        """Note that the file will be passed. Return which of its receivers the other process is; 0 if it is sealed."""
        if not self._is_reused:
            return 0
        assert self.fd is not None, "a file without a descriptor cannot be passed"
        os.pwrite(self.fd, *((_AGAIN, 0) if self._passed else (HELD, self._hop + 1)))
        self._passed += 1
        return self._hop + 1

    def __del__(self) -> None:
        if self._address is None:
            return
        if self.fd is None:
            unmap(self._address, self.size)
            return
        own = _Free(self.fd, self._address, self.size)
        is_own = self._is_reused and self._owner == os.getpid()  # the fork of a process has copies of its views
        if is_own and self._hop:
            _release(self.fd, self._hop)
        if is_own and not self._hop and self._passed < 2:
            _keep_free(own)
        else:
            _drop(own)


@frozen
class Part:
    """Where the memory of a view is."""

    file: SharedFile
    start: int


def part_of(buffer: Buffer) -> Part | None:
    """Return which part of a file a buffer is; None if it is none, or if the file cannot be passed on."""
    if type(buffer) is not memoryview:
        return None
    part = getattr(buffer.obj, "owner", None)
    if type(part) is not Part or part.file.fd is None or len(buffer.obj) != buffer.nbytes:  # type: ignore[arg-type]
        return None
    return part


def lend(buffers: Sequence[Buffer], *, briefly: bool = False) -> list[memoryview] | None:
    """Copy buffers into a file.

    Args:
        briefly: whether the views are dropped soon, so that there may be twice as many files.

    Returns:
        Read-only views of the copies, which can be passed on; None if there can be no such file, or no further one.
    """
    starts, size = _places(buffers, HEAD_BYTES)
    if size > REUSED_BYTES + HEAD_BYTES:
        return seal(buffers, briefly=briefly)
    free = _taken(size)
    if free is None:
        if not _may_keep(briefly=briefly) or (made := _made(-(-size // LARGE_BYTES) * LARGE_BYTES)) is None:
            return None
        fd, size, address = *made, None
    else:
        fd, address, size = free
    try:
        for start, buffer in zip(starts, buffers, strict=True):
            write_all(fd, memoryview(buffer), start)
        file = SharedFile(fd, size, passes_on=True, is_reused=True, address=address)
    except OSError as error:
        if address is not None:
            unmap(address, size)
        _kept.pop(fd, None)
        os.close(fd)
        _report(error)
        return None
    return [file.view(start, len(buffer)) for start, buffer in zip(starts, buffers, strict=True)]


def seal(buffers: Sequence[Buffer], *, briefly: bool = False) -> list[memoryview] | None:
    """Copy buffers into a sealed file, whatever their size: any number of processes can map it.

    Args:
        briefly: as for `lend`.

    Returns:
        As `lend`.
    """
    if not _may_keep(briefly=briefly) or not hasattr(os, "memfd_create"):
        return None
    starts, size = _places(buffers, 0)
    fd = -1
    try:
        fd = os.memfd_create("mwpy-buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        for start, buffer in zip(starts, buffers, strict=True):
            write_all(fd, memoryview(buffer), start)
        _fix_size(fd, fcntl.F_SEAL_WRITE)
        file = SharedFile(fd, size, passes_on=True)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        _report(error)
        return None
    return [file.view(start, len(buffer)) for start, buffer in zip(starts, buffers, strict=True)]


def _made(size: int) -> tuple[int, int] | None:
    """Make a reused file. Return its descriptor and size."""
    if not hasattr(os, "memfd_create"):  # pragma: no cover (macOS)
        return None
    fd = -1
    try:
        fd = os.memfd_create("mwpy-buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        _fix_size(fd, 0)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        _report(error)
        return None
    return fd, size


def _places(buffers: Sequence[Buffer], start: int) -> tuple[list[int], int]:
    """Return where each buffer begins in a file, and the size of the file."""
    spaces = [-(-len(buffer) // ALIGNMENT) * ALIGNMENT for buffer in buffers]
    starts = [*accumulate(spaces[:-1], initial=start)]
    return starts, starts[-1] + len(buffers[-1])


# ---- reused files ----------------------------------------------------------------------------------------------


def _taken(size: int) -> _Free | None:
    """Take a released file of this process that has room for this content, but not far too much."""
    for _ in range(min(FREE_FILES, len(_free))):
        try:
            free = _free.popleft()
        except IndexError:  # another thread took it
            return None
        if size <= free.size <= 2 * size + LARGE_BYTES and os.pread(free.fd, HOPS + 1, 0) in _FREE:
            os.pwrite(free.fd, bytes(HOPS + 1), 0)
            return free
        _free.append(free)
    return None


def _keep_free(free: _Free) -> None:
    _free.append(free)
    while len(_free) > FREE_FILES + len(_kept) // 2 or _free_bytes() > FREE_BYTES + sum([*_kept.values()]) // 2:
        try:
            _drop(_free.popleft())
        except IndexError:
            return


def _free_bytes() -> int:
    return sum(each.size for each in [*_free])


def _drop(file: _Free) -> None:
    unmap(file.address, file.size)
    _kept.pop(file.fd, None)
    os.close(file.fd)


def _release(fd: int, hop: int) -> None:
    with suppress(OSError):  # the sender has sealed it
        os.pwrite(fd, RELEASED, hop)


def _leave_to_parent() -> None:
    """In a fork: the files belong to the parent process."""
    while _free:
        _drop(_free.popleft())


os.register_at_fork(after_in_child=_leave_to_parent)


# ---- the side of the receiver ----------------------------------------------------------------------------------


def received(
    fd: int, inode: int, size: int, hop: int, parts: Sequence[tuple[int, int]], *, passes_on: bool
) -> list[memoryview]:
    """Map or read a file that another process has passed.

    Args:
        fd: its descriptor. It belongs to this function.
        inode: the number of the file, as the sender says.
        size: its size, as the sender says.
        hop: which receiver of a reused file this process is; 0 for a sealed file.
        parts: start and size of each part that is needed.
        passes_on: as for `SharedFile`. Without a descriptor for it, the file is copied.

    Returns:
        The parts. Unless the file is passed on, they are writable, and what is written there is private.

    Raises:
        ProtocolError: this is not that file, or it can get shorter; the sender's fault.
    """
    file = None
    try:
        is_sealed = _check(fd, inode, size)
        if is_sealed != (hop == 0):
            raise ProtocolError("a sealed file that is passed as a reused file, or the reverse")
        if any(start + length > size for start, length in parts):
            raise ProtocolError("a part of a file that goes beyond its end")
        passes_on = passes_on and _may_keep(briefly=True)
        if is_sealed or passes_on:
            with suppress(OSError):  # this process has too many mappings
                file = SharedFile(fd, size, passes_on=passes_on, hop=hop, is_reused=not is_sealed)
        if file is None:
            content = _read(fd, parts)
            if hop:
                _release(fd, hop)
            return content
    finally:
        if file is None:
            os.close(fd)
    return [file.view(start, length) for start, length in parts]


def _check(fd: int, inode: int, size: int) -> bool:
    """Check a file. Return whether it is sealed, so that nobody can change its content."""
    try:
        facts, page_bytes = os.fstat(fd), os.fstatvfs(fd).f_bsize
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError(f"a descriptor that is no shared file: {error}") from error
    if not seals & fcntl.F_SEAL_SHRINK or page_bytes != mmap.PAGESIZE:
        raise ProtocolError("a shared file that can get shorter")
    if (facts.st_ino, facts.st_size) != (inode, size):
        raise ProtocolError("a shared file that is not the one that the message names")
    return bool(seals & fcntl.F_SEAL_WRITE)


def _read(fd: int, parts: Sequence[tuple[int, int]]) -> list[memoryview]:
    try:
        return [_pread(fd, start, size) for start, size in parts]
    except (OSError, MemoryError) as error:
        raise ProtocolError(f"a shared file cannot be read: {error}") from error


def _pread(fd: int, start: int, size: int) -> memoryview:
    data = new_memory(size)
    rest = data
    while rest:
        count = os.preadv(fd, [rest], start + size - len(rest))
        if not count:
            raise OSError("it is shorter than it was")
        rest = rest[count:]
    return data


def write_all(fd: int, data: memoryview, start: int) -> None:
    """Write all of a buffer: one call writes at most 2 GiB."""
    while data:
        count = os.pwrite(fd, data, start)
        data, start = data[count:], start + count


def _fix_size(fd: int, more: int) -> None:
    add_seals(fd, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | more)


def add_seals(fd: int, seals: int) -> None:
    """Seal a memory file. The kernel refuses this while it moves one of the pages, after 0.15 s of waiting: try again.

    Raises:
        OSError: the kernel still refuses it.
    """
    for tries_left in reversed(range(SEAL_TRIES)):
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            if error.errno != errno.EBUSY or not tries_left:
                raise
        else:
            return


def _may_keep(*, briefly: bool) -> bool:
    """Whether this process may use another file. Free files do not count: they are few."""
    most: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // FILES_SHARE
    return len(_kept) - len(_free) < (most if briefly else most // 2)


def _report(error: OSError) -> None:
    """Print once that buffers are copied through sockets, and why."""
    if str(error) not in _reported:
        _reported.add(str(error))
        text = f"mwpy: warning: no shared memory for large buffers ({error}): they are copied, which is slower"
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
