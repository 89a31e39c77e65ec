"""Memory from the C function `mmap`: files that are mapped, and memory that is used again.

Python's own `mmap` keeps a file descriptor for each mapping (before 3.13). A master may have 100,000 results.

A file that several processes write and read one after the other stays mapped in all of them (`Mapping`). To copy 1 MB
into or out of a mapping takes 85 µs. With `pwrite` and `preadv` it takes 150 µs, because the kernel looks up each page.
They also release the interpreter lock, and a thread of a master may then wait for milliseconds to get it back.

Memory that is given back to the kernel and requested again costs a page fault for each 4 KiB, 250 µs for 1 MB in a
virtual machine. This is four times as much as filling it. So a little of it is kept.

The objects that own memory are invisible to the garbage collector (`gc=False`). Of the objects of a cycle, it calls all
finalizers first, in any order (PEP 442). It would end memory that the finalizer of another object still uses. Such an
owner ends when nothing refers to it any more.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from typing import Any, ClassVar

from msgspec import Struct

__all__ = ["Mapping", "Pages", "drop_pages", "map_file", "new_memory", "view_of"]

UNIT_BYTES = 64 * 1024
"""Memory that is used again has a multiple of this size."""

SPARE_BYTES = 8 << 20
"""How much memory a process keeps for what it receives next."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


class Pages(Struct, gc=False, eq=False):
    """Mapped memory. It is unmapped when nothing refers to this object."""

    address: int
    size: int
    _unmap: ClassVar[Any] = _libc.munmap
    """Python forgets what a module has before it ends the last objects."""

    def __del__(self) -> None:
        self._unmap(self.address, self.size)


def map_file(fd: int, size: int, *, is_writable: bool) -> Pages:
    """Map a file privately.

    Raises:
        OSError: the process has too many mappings, or too little memory.
    """
    protection = mmap.PROT_READ | mmap.PROT_WRITE if is_writable else mmap.PROT_READ
    return _mapped(size, protection, mmap.MAP_PRIVATE, fd)


class Mapping:
    """A file as all processes see it that map it in this way: what one of them writes, the others read.

    Args:
        fd: its descriptor, which is not needed any more afterwards.
        size: the size of the file, in bytes. It cannot get shorter.
        writable_bytes: how much of the file this process may write, from the start; whole pages.

    Raises:
        OSError: the process has too many mappings, or it may not write this file.
    """

    def __init__(self, fd: int, size: int, writable_bytes: int) -> None:
        self.size = size
        self._private: Pages | None = None
        self.pages = _mapped(size, mmap.PROT_READ, mmap.MAP_SHARED, fd)
        if _libc.mprotect(self.pages.address, writable_bytes, mmap.PROT_READ | mmap.PROT_WRITE):
            raise _last_error()
        self.content = view_of(self.pages.address, size, None)
        """A view that does not keep the pages mapped."""

    def private(self, fd: int) -> Pages:
        """Return a second mapping of the file, which is private and can be written.

        Raises:
            OSError: as for `map_file`.
        """
        if self._private is None:
            self._private = map_file(fd, self.size, is_writable=True)
        return self._private


def drop_pages(pages: Pages) -> None:
    """Drop the pages of a private mapping: what was written there is lost, and it shows its file again."""
    _libc.madvise(pages.address, pages.size, mmap.MADV_DONTNEED)


def _mapped(size: int, protection: int, flags: int, fd: int) -> Pages:
    address: int | None = _libc.mmap(None, size, protection, flags, fd, 0)
    if address is None or address == _FAILED:
        raise _last_error()
    return Pages(address, size)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def view_of(address: int, size: int, owner: object) -> memoryview:
    """Return a view of mapped memory. It keeps the owner alive, which the garbage collector should not see."""
    array: Any = (ctypes.c_ubyte * size).from_address(address)
    array.owner = owner
    return memoryview(array).cast("B")


class _Memory(Struct, gc=False, eq=False):
    """Memory that is used again after its end."""

    pages: Pages
    spare: ClassVar[deque[Pages]] = deque()
    """Memory that nobody uses."""

    def __del__(self, most_bytes: int = SPARE_BYTES) -> None:
        self.spare.append(self.pages)
        while sum(pages.size for pages in [*self.spare]) > most_bytes:
            try:
                self.spare.popleft()
            except IndexError:  # another thread took it
                return


def new_memory(size: int) -> memoryview:
    """Return private memory with any content. It is used again when nobody has a view of it.

    Raises:
        MemoryError: there is none.
    """
    wanted = -(-size // UNIT_BYTES) * UNIT_BYTES
    spare = _Memory.spare
    for _ in range(len(spare)):
        try:
            pages = spare.popleft()
        except IndexError:  # another thread took it
            break
        if pages.size == wanted:
            return view_of(pages.address, size, _Memory(pages))
        spare.append(pages)
    try:
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = _mapped(wanted, mmap.PROT_READ | mmap.PROT_WRITE, anonymous, -1)
    except OSError:
        return memoryview(bytearray(size))  # this process has too many mappings
    return view_of(pages.address, size, _Memory(pages))
