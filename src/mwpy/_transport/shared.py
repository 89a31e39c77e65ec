"""Sealed files: memory that passes from one process of a host to another without a copy.

The sender copies buffers into a file that has no name and exists only in memory (memfd), and seals it: nobody can
change or shorten it any more. So a receiver can rely on what it has checked, and reading never fails later. The
receiver maps the file. What it writes is private: the kernel then copies the page (see `MAP_PRIVATE`).

The files are not in /dev/shm, so its size is no limit. The kernel frees a file when no process has it open or mapped,
so nothing stays behind when processes are killed. `passage.py` passes the files on.

Most of the cost is the kernel's: a fresh page costs more than copying its content. Measured for 1 MB in a virtual
machine: write and seal 470 µs, map and read 100 µs. Without seals, pages could be used again for 20 µs. But then the
sender would have to know that no receiver has the old content any more, although a task may keep its arguments.

Python's `mmap` keeps a file descriptor for each mapping (before 3.13). A master may have 100,000 results, so the files
are mapped with the C function.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

from attrs import frozen

from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

__all__ = ["LARGE_BYTES", "Part", "SealedFile", "part_of", "received", "seal", "write_sealed"]

LARGE_BYTES = 64 * 1024
"""Buffers of this size and larger travel in sealed files."""

ALIGNMENT = 64
"""Each buffer begins at a multiple of this many bytes, because vector instructions are faster then."""

FILES_SHARE = 16
"""One in so many descriptors of this process may belong to sealed files. Beyond that, buffers are copied."""

_kept: set[int] = set()
"""The descriptors of the sealed files that this process may pass on."""

_reported: set[str] = set()
"""What was reported already."""


class SealedFile:
    """A sealed file that is mapped into this process. It exists as long as a view of it.

    Args:
        fd: the descriptor of the file. It belongs to this object as soon as it exists.
        size: the size of the file, in bytes.
        passes_on: whether this process may pass the file on. Its views are read-only then, and it keeps the descriptor
            if it has not too many.

    Raises:
        OSError: the kernel does not map it, because this process has too many mappings. The descriptor stays open.
    """

    def __init__(self, fd: int, size: int, *, passes_on: bool) -> None:
        self._address: int | None = None
        self._address = _map(fd, size, is_writable=not passes_on)
        self._is_writable = not passes_on
        self.size = size
        self.fd: int | None = None
        """The descriptor; None if this process does not keep it."""
        if passes_on and len(_kept) < _most_kept():
            self.fd = fd
            _kept.add(fd)
        else:
            os.close(fd)

    def view(self, start: int, size: int) -> memoryview:
        """Return a part of the content."""
        assert self._address is not None, "the file was not mapped"
        array: Any = (ctypes.c_ubyte * size).from_address(self._address + start)
        array.part = Part(self, start)
        view = memoryview(array).cast("B")
        return view if self._is_writable else view.toreadonly()

    def __del__(self) -> None:
        if self._address is None:
            return
        _munmap(self._address, self.size)
        if self.fd is not None:
            _kept.discard(self.fd)
            os.close(self.fd)


@frozen
class Part:
    """Where the memory of a view is."""

    file: SealedFile
    start: int


def part_of(buffer: Buffer) -> Part | None:
    """Return which part of a sealed file a buffer is; None if it is none, or if the file cannot be passed on."""
    if type(buffer) is not memoryview:
        return None
    array: Any = buffer.obj
    part = getattr(array, "part", None)
    if type(part) is not Part or part.file.fd is None or len(array) != buffer.nbytes:
        return None
    return part


def seal(buffers: Sequence[Buffer]) -> list[memoryview] | None:
    """Copy buffers into a sealed file.

    Returns:
        Read-only views of the copies, which can be passed on; None if there can be no such file, or no further one.
    """
    if len(_kept) >= _most_kept() or (written := write_sealed(buffers)) is None:
        return None
    fd, starts = written
    try:
        file = SealedFile(fd, _size(starts, buffers), passes_on=True)
    except OSError as error:
        os.close(fd)
        _report(error)
        return None
    return [file.view(start, len(buffer)) for start, buffer in zip(starts, buffers, strict=True)]


def write_sealed(buffers: Sequence[Buffer]) -> tuple[int, list[int]] | None:
    """Copy buffers into a sealed file.

    Returns:
        Its descriptor, which the caller closes, and where each buffer begins; None if there can be no such file.
    """
    if not hasattr(os, "memfd_create"):  # pragma: no cover (macOS)
        return None
    spaces = [-(-len(buffer) // ALIGNMENT) * ALIGNMENT for buffer in buffers]
    starts = [*accumulate(spaces[:-1], initial=0)]
    fd = -1
    try:
        fd = os.memfd_create("mwpy-buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        for start, buffer in zip(starts, buffers, strict=True):
            _write(fd, memoryview(buffer), start)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _seals() | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        _report(error)
        return None
    return fd, starts


def received(fd: int, inode: int, size: int, parts: Sequence[tuple[int, int]], *, passes_on: bool) -> list[memoryview]:
    """Map a file that another process says is sealed.

    Args:
        fd: its descriptor. It belongs to this function.
        inode: the number of the file, as the sender says.
        size: its size, as the sender says.
        parts: start and size of each part that is needed.
        passes_on: as for `SealedFile`.

    Returns:
        The parts. Unless the file is passed on, they are writable, and what is written there is private.

    Raises:
        ProtocolError: this is not that file, or it is not sealed; the sender's fault.
    """
    file = None
    try:
        _check(fd, inode, size)
        if any(start + length > size for start, length in parts):
            raise ProtocolError("a part of a sealed file that goes beyond its end")
        with suppress(OSError):  # this process has too many mappings
            file = SealedFile(fd, size, passes_on=passes_on)
        if file is None:
            return _read(fd, parts)
    finally:
        if file is None:
            os.close(fd)
    return [file.view(start, length) for start, length in parts]


def _check(fd: int, inode: int, size: int) -> None:
    try:
        facts, page_bytes = os.fstat(fd), os.fstatvfs(fd).f_bsize
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError(f"a descriptor that is no sealed file: {error}") from error
    if seals & _seals() != _seals() or page_bytes != mmap.PAGESIZE:
        raise ProtocolError("a file that is not sealed")
    if (facts.st_ino, facts.st_size) != (inode, size):
        raise ProtocolError("a sealed file that is not the one that the message names")


def _read(fd: int, parts: Sequence[tuple[int, int]]) -> list[memoryview]:
    try:
        return [memoryview(_pread(fd, start, size)) for start, size in parts]
    except (OSError, MemoryError) as error:
        raise ProtocolError(f"a sealed file cannot be read: {error}") from error


def _pread(fd: int, start: int, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = os.preadv(fd, [rest], start + size - len(rest))
        rest = rest[count:]
    return data


def _write(fd: int, data: memoryview, start: int) -> None:
    """Write all of a buffer: one call writes at most 2 GiB."""
    while data:
        count = os.pwrite(fd, data, start)
        data, start = data[count:], start + count


def _size(starts: Sequence[int], buffers: Sequence[Buffer]) -> int:
    return starts[-1] + len(buffers[-1])


def _seals() -> int:
    """The seals that a receiver requires: the content never changes, and the file never gets shorter."""
    return fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK


def _most_kept() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // FILES_SHARE


def _report(error: OSError) -> None:
    """Print once that buffers are copied through sockets, and why."""
    if str(error) not in _reported:
        _reported.add(str(error))
        text = f"mwpy: warning: no shared memory for large buffers ({error}): they are copied, which is slower"
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


# ---- the C functions -----------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_munmap = _libc.munmap
_FAILED = ctypes.c_void_p(-1).value


def _map(fd: int, size: int, *, is_writable: bool) -> int:
    protection = mmap.PROT_READ | mmap.PROT_WRITE if is_writable else mmap.PROT_READ
    address: int | None = _libc.mmap(None, size, protection, mmap.MAP_PRIVATE, fd, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address
