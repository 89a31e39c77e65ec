"""Files in memory: large buffers pass from one process of a host to another without a socket.

The sender copies a buffer into a file that has no name and exists only in memory (memfd), and seals it: nobody can
change its content or its size any more, so reading it never fails later. The receiver maps the file, so there is one
copy. What it writes into a mapping is private, because the kernel then copies the page (`MAP_PRIVATE`).

The files are not in /dev/shm, so its size is no limit. The kernel frees a file when no process has it open or mapped,
so nothing stays behind when processes are killed. `passage.py` passes the files on.

They are mapped with the C function `mmap`. Python's own `mmap` keeps a file descriptor for each mapping (before 3.13),
and a master may have 100,000 results.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import sys
from contextlib import suppress
from typing import Any, ClassVar

from msgspec import Struct

from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

__all__ = ["LARGE_BYTES", "SEALS", "SharedFile", "add_seals", "file_of", "lend", "received", "write_all"]

LARGE_BYTES = 64 * 1024
"""Buffers of this size and larger travel in files."""

SEAL_TRIES = 10
"""How often this process tries to seal a file."""

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

FILES_SHARE = 16
"""One in so many descriptors of this process may belong to these files, and half of them to the arguments of waiting
tasks. Beyond that, buffers are copied."""

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


def lend(buffer: Buffer, *, briefly: bool = False) -> memoryview | None:
    """Copy a buffer into a sealed file.

    Args:
        briefly: whether the view is dropped soon, so that there may be twice as many files.

    Returns:
        A read-only view of the copy, which can be passed on; None if there can be no such file, or no further one.
    """
    if not _may_keep(briefly=briefly) or not hasattr(os, "memfd_create"):
        return None
    fd = -1
    try:
        fd = os.memfd_create("mwpy-buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        write_all(fd, memoryview(buffer), 0)
        add_seals(fd, SEALS)
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
        keeps = passes_on and _may_keep(briefly=True)
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
    """Whether this process may use another file."""
    most: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // FILES_SHARE
    return len(_kept) < (most if briefly else most // 2)


def _report(error: OSError) -> None:
    """Print once that buffers are copied through sockets, and why."""
    if str(error) not in _reported:
        _reported.add(str(error))
        text = f"mwpy: warning: no shared memory for large buffers ({error}): they are copied, which is slower"
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
