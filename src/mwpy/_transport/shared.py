"""Files in memory: large buffers pass from one process of a host to another without a socket.

The sender copies buffers into a file that has no name and exists only in memory (memfd). Nobody can make it shorter any
more, so reading it never fails later. There are two kinds of files:

- *Sealed files* cannot be changed any more. The receiver maps the file. What it writes is private: the kernel then
  copies the page (see `MAP_PRIVATE`). Large buffers travel in them, so there is one copy.
- *Reused files* have up to `REUSED_BYTES`. When the last receiver does not need the content any more, the sender may
  write the next buffers into the same file. Fresh pages are the reason. For 1 MB, the kernel needs 470 µs to write into
  a new file and 100 µs to map and read it. But a copy into an old file that is still mapped takes 85 µs, and so does a
  copy from such a file into memory that was used before. So even two copies are faster than one.

The files are not in /dev/shm, so its size is no limit. The kernel frees a file when no process has it open or mapped,
so nothing stays behind when processes are killed. `passage.py` passes the files on.

The first bytes of a reused file say who still needs its content. The first receiver, usually an agent, has byte 1, and
the process to which it passes the file on has byte 2. Before a file is passed, the byte of its receiver becomes `HELD`.
A receiver that does not need it any more writes `RELEASED`. Before a process passes a file a second time, it writes
byte 0, and the file is never used again. The byte of a receiver that was killed stays `HELD`, so its file is not used
again, either.

The last receiver maps the content privately as long as it uses it, if it is large enough and the receiver does not keep
much of it (see `in_place.py`). Else it copies the content into memory that it uses again, too (see `mappings.py`). It
leaves some of these files mapped, because they come again: a file with the same number on the same file system is the
same one, as long as it is mapped. Of a file of another process it can write only the first page.

A receiver reads the content, and then writes that it is released. No processor lets another one see these steps in the
reverse order, because thousands of instructions are between them.
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

from msgspec import Struct

from mwpy._transport.in_place import IN_PLACE
from mwpy._transport.mappings import Mapping, Pages, map_file, new_memory, view_of
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

__all__ = [
    "HOPS",
    "LARGE_BYTES",
    "REUSED_BYTES",
    "Part",
    "SharedFile",
    "add_seals",
    "lend",
    "part_of",
    "received",
    "seal",
    "settled",
    "write_all",
]

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

KNOWN_BYTES = 64 << 20
KNOWN_FILES = 64
"""How much memory and how many files of other processes a process leaves mapped. An agent with two slaves needs most of
it if a map passes arrays of 1 MB there and back."""

HEAD_BYTES = mmap.PAGESIZE
"""The space for the first bytes of a reused file."""

HOPS = 2
"""A reused file has at most so many receivers, one after the other: an agent, and a slave or the master."""

HELD, RELEASED = 1, 2
_AGAIN = 1
_FREE = {bytes([0, first, second]) for first in (0, RELEASED) for second in (0, RELEASED)}
"""The first bytes of a file whose content nobody needs."""

_kept: dict[int, int] = {}
"""The files that this process may pass on or write again, and their sizes, by their descriptors."""

_reported: set[str] = set()
"""What was reported already."""


class _Free(NamedTuple):
    """A file that its last receiver may still need."""

    fd: int
    mapping: Mapping

    @property
    def size(self) -> int:
        return self.mapping.size


_free: deque[_Free] = deque()
"""The files of this process that it may write again when they are released."""

_Key = tuple[int, int]
"""The file system and the inode of a file."""

_known: dict[_Key, Mapping] = {}
"""Reused files of other processes that are still mapped. The one that came last is at the end."""


class SharedFile:
    """A file that is mapped into this process. It exists as long as a view of it.

    Args:
        fd: the descriptor of the file. It belongs to this object as soon as it exists.
        size: the size of the file, in bytes.
        passes_on: whether this process may pass the file on. Its views are read-only then, and it keeps the descriptor.
        mapping: a reused file; None if it is a sealed file.
        hop: for a reused file, which of its receivers this process is; 0 for its sender.

    Raises:
        OSError: the kernel does not map it, because this process has too many mappings. The descriptor stays open.
    """

    def __init__(self, fd: int, size: int, *, passes_on: bool, mapping: Mapping | None = None, hop: int = 0) -> None:
        self._pages: Pages | None = None
        self._num_forks = IN_PLACE.num_forks
        if mapping is None:
            self._pages = map_file(fd, size, is_writable=not passes_on)
        else:
            self._pages = mapping.pages if passes_on else IN_PLACE.take(mapping, fd)
        self._is_writable = not passes_on
        self._mapping = mapping
        self._hop = hop
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

    @property
    def is_sealed(self) -> bool:
        """Whether nobody can change its content."""
        return self._mapping is None

    def view(self, start: int, size: int) -> memoryview:
        """Return a part of the content."""
        assert self._pages is not None, "the file was not mapped"
        view = view_of(self._pages.address + start, size, Part(self, start))
        return view if self._is_writable else view.toreadonly()

    def about_to_pass(self) -> int:
        """Note that the file will be passed. Return which of its receivers the other process is; 0 if it is sealed."""
        if self._mapping is None:
            return 0
        place, byte = (0, _AGAIN) if self._passed else (self._hop + 1, HELD)
        self._mapping.content[place] = byte
        self._passed += 1
        return self._hop + 1

    def __del__(self) -> None:
        if self._pages is None:
            return
        is_fork = self._owner != os.getpid()  # it has copies of the views
        if self._mapping is not None and not is_fork:
            if self._is_writable:
                IN_PLACE.give_back(self._pages)
            if self._hop:
                if not self._is_writable or self._num_forks == IN_PLACE.num_forks:
                    self._mapping.content[self._hop] = RELEASED
            elif self.fd is not None and self._passed < 2:
                _keep_free(_Free(self.fd, self._mapping))
                return
        if self.fd is not None:
            _close(self.fd)


class Part(Struct, frozen=True, gc=False):
    """Where the memory of a view is. It owns the memory of this view; see `mappings.py`."""

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
    free = _taken(size) or (_may_keep(briefly=briefly) and _made(-(-size // LARGE_BYTES) * LARGE_BYTES)) or None
    if free is None:
        return None
    content = free.mapping.content
    for start, buffer in zip(starts, buffers, strict=True):
        content[start : start + len(buffer)] = memoryview(buffer).cast("B")
    file = SharedFile(free.fd, free.size, passes_on=True, mapping=free.mapping)
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


def _made(size: int) -> _Free | None:
    """Make a reused file. It gets its memory now: without memory, a copy into the mapping would kill this process."""
    if not hasattr(os, "memfd_create"):  # pragma: no cover (macOS)
        return None
    fd = -1
    try:
        fd = os.memfd_create("mwpy-buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(fd, 0, size)
        _fix_size(fd, 0)
        return _Free(fd, Mapping(fd, size, size))
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        _report(error)
        return None


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
        if size <= free.size <= 2 * size + LARGE_BYTES and bytes(free.mapping.content[: HOPS + 1]) in _FREE:
            free.mapping.content[: HOPS + 1] = bytes(HOPS + 1)
            return free
        _free.append(free)
    return None


def _keep_free(free: _Free) -> None:
    _free.append(free)
    while len(_free) > FREE_FILES + len(_kept) // 2 or _free_bytes() > FREE_BYTES + sum([*_kept.values()]) // 2:
        try:
            _close(_free.popleft().fd)
        except IndexError:
            return


def _free_bytes() -> int:
    return sum(each.size for each in [*_free])


def _close(fd: int) -> None:
    _kept.pop(fd, None)
    os.close(fd)


def _leave_to_parent() -> None:
    """In a fork: the files belong to the parent process."""
    while _free:
        _close(_free.popleft().fd)
    _known.clear()
    IN_PLACE.leave_to_parent()


os.register_at_fork(before=IN_PLACE.about_to_fork, after_in_child=_leave_to_parent)


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
        key, is_sealed = _check(fd, inode, size)
        if is_sealed != (hop == 0):
            raise ProtocolError("a sealed file that is passed as a reused file, or the reverse")
        if hop and size <= HEAD_BYTES:
            raise ProtocolError("a reused file without space for its first bytes")
        if any(start + length > size for start, length in parts):
            raise ProtocolError("a part of a file that goes beyond its end")
        mapping = _mapping_of(key, fd, size) if hop else None
        passes_on = passes_on and _may_keep(briefly=True)
        with suppress(OSError):  # this process has too many mappings
            if is_sealed or (mapping is not None and (passes_on or IN_PLACE.is_possible(mapping, fd))):
                file = SharedFile(fd, size, passes_on=passes_on, mapping=mapping, hop=hop)
        if file is None:
            return _copied(fd, parts, mapping, hop)
    finally:
        if file is None:
            os.close(fd)
    return [file.view(start, length) for start, length in parts]


def settled(buffer: Buffer) -> Buffer:
    """Return a received buffer as a buffer that no other process can change: the same one, or a copy of a part of a
    reused file, whose sender may still write into it."""
    part = getattr(buffer.obj, "owner", None) if type(buffer) is memoryview else None
    return bytes(buffer) if type(part) is Part and not part.file.is_sealed else buffer


def _check(fd: int, inode: int, size: int) -> tuple[_Key, bool]:
    """Check a file. Return its key, and whether it is sealed, so that nobody can change its content."""
    try:
        facts = os.fstat(fd)
        key = facts.st_dev, facts.st_ino
        if (facts.st_ino, facts.st_size) == (inode, size) and key in _known:
            return key, False
        page_bytes, seals = os.fstatvfs(fd).f_bsize, fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError(f"a descriptor that is no shared file: {error}") from error
    if not seals & fcntl.F_SEAL_SHRINK or page_bytes != mmap.PAGESIZE:
        raise ProtocolError("a shared file that can get shorter")
    if (facts.st_ino, facts.st_size) != (inode, size):
        raise ProtocolError("a shared file that is not the one that the message names")
    return key, bool(seals & fcntl.F_SEAL_WRITE)


def _mapping_of(key: _Key, fd: int, size: int) -> Mapping | None:
    """Map a reused file of another process, unless it is still mapped. Return None if that is impossible."""
    mapping = _known.pop(key, None)
    if mapping is None:
        try:
            mapping = Mapping(fd, size, HEAD_BYTES)
        except OSError:  # this process has too many mappings, or may not write the file
            return None
        while len(_known) >= KNOWN_FILES or size + sum(each.size for each in [*_known.values()]) > KNOWN_BYTES:
            try:
                del _known[next(iter(_known))]
            except (KeyError, RuntimeError, StopIteration):  # another thread changes it; or there is none
                break
    _known[key] = mapping
    return mapping


def _copied(fd: int, parts: Sequence[tuple[int, int]], mapping: Mapping | None, hop: int) -> list[memoryview]:
    """Copy parts of a file, and release it."""
    try:
        content = [_pread(fd, *part) if mapping is None else _copy_of(mapping, *part) for part in parts]
    except (OSError, MemoryError) as error:
        raise ProtocolError(f"a shared file cannot be read: {error!r}") from error
    if mapping is not None:
        mapping.content[hop] = RELEASED
    elif hop:
        _release(fd, hop)
    return content


def _copy_of(mapping: Mapping, start: int, size: int) -> memoryview:
    copy = new_memory(size)
    copy[:] = mapping.content[start : start + size]
    return copy


def _release(fd: int, hop: int) -> None:
    with suppress(OSError):  # this process may not write the file
        os.pwrite(fd, bytes([RELEASED]), hop)


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
