"""The content of shared objects in this process: files in memory that nobody can change.

A file is made with `memfd_create`, filled, and sealed. Other processes of the same host open it through `/proc`, so
they all use the same memory. A location names a file: the boot of the host, the process and descriptor, and the number
of the file, which proves that the file is the right one.

The file contains the pickle of the object and its large buffers, each behind the other. So NumPy arrays use the memory
of the file. They are read-only. A task could change all other parts, so each task gets an object of its own, which is
cheap if the pickle is small. The tasks of a process use a larger object one after the other.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from stat import S_ISREG
from typing import TypeVar, cast
from weakref import WeakValueDictionary, finalize

from msgspec import Struct, field

from mwpy._system import memory
from mwpy._system.script import loaded_script
from mwpy._transport.codec import Codec, codec_of, loads_shared
from mwpy._transport.stream import SEALS, add_seals, write_all
from mwpy._values.bounds import Buffer
from mwpy._values.errors import SharedObjectMissing
from mwpy._values.messages import Share
from mwpy._values.phrases import amount
from mwpy._values.shares import SIZE_FORMAT, Shared, SharedObject, places_of

T = TypeVar("T")

DIGEST_DIGITS = 32
"""Hexadecimal digits of a digest. Two different contents never have the same digest."""

OWN_BYTES = 1 << 20
"""If the pickle of an object, without its large buffers, is smaller than this, each task gets an object of its own. To
unpickle so much takes up to about 10 ms. The manual names this number."""

UNPICKLED_BYTES = 256 << 20
"""Bytes of pickles, without their large buffers, whose objects a process keeps. Those that were used least recently are
unpickled again when a task needs them. The manual names this number."""

MAX_FILES = 500
"""How many shared objects an agent keeps at most that no task needs, if the limit of descriptors allows it. The manual
names this number."""

FILES_SHARE = 4
"""One in so many descriptors of a process may belong to them."""

_SIZE = struct.Struct(f"={SIZE_FORMAT}")

KNOWN: WeakValueDictionary[str, SharedObject] = WeakValueDictionary()
"""The shared objects of this process, by digest. It is global because an unpickled reference has no other way to find
its object, and because all masters of a process share what is equal."""


class _Loaded(threading.local):
    """What this thread has loaded."""

    own: int = 0
    """How many objects that belong to one task."""


LOADED = _Loaded()
"""It shows whether a function that was unpickled has captured such an object."""

_recent: OrderedDict[str, int] = OrderedDict()
"""The objects that are unpickled, and the sizes of their pickles. The first one was used least recently."""


# ---- the content of one object -------------------------------------------------------------------------------------


def share(obj: T) -> T:
    """Keep a large object for tasks of any master or executor of this process, and return a handle of it.

    It is as `Master.share`, which says what a task gets.

    Args:
        obj: it is pickled now: later changes do not reach the tasks.

    Returns:
        The handle; for type checkers, it has the type of the object. When it is gone, the object is dropped.

    Raises:
        ArgumentNotPicklable: the object cannot be pickled; the caller's fault.

    Examples:
        >>> table = mwpy.share(numpy.load("table.npy"))        # doctest: +SKIP
        >>> futures = [executor.submit(look_up, item, table) for item in items]       # doctest: +SKIP
    """
    return cast(T, handle_of(obj, codec_of(loaded_script())))


def handle_of(obj: object, codec: Codec) -> Shared:
    """Keep an object in this process, and return a handle of it.

    Raises:
        ArgumentNotPicklable: it cannot be pickled; the caller's fault.
        OSError: out of memory or file descriptors.
    """
    return obj if isinstance(obj, Shared) else Shared(keep(*codec.dumps_shared(obj)), load)


def keep(pickled: bytes, buffers: Sequence[Buffer]) -> SharedObject:
    """Keep an object in this process: what `Codec.dumps_shared` returned. Equal objects are kept once.

    Raises:
        OSError: out of memory or file descriptors.
    """
    import hashlib  # only here, because it loads OpenSSL, which no agent needs

    parts = [pickled, *buffers]
    sizes = [*map(len, parts)]
    places = places_of(sizes)
    head = b"".join(map(_SIZE.pack, (len(sizes), *sizes)))
    hasher = hashlib.sha256(head)
    for part in parts:
        hasher.update(part)
    digest = hasher.hexdigest()[:DIGEST_DIGITS]
    known = KNOWN.get(digest)
    if known is not None and not known.reason:
        return known
    file = _new_file(places[-1])
    try:
        for part, place in zip((head, *parts), (0, *places), strict=False):
            write_all(file, memoryview(part), place)
        add_seals(file)
        shared = _kept(Share(digest, places[-1], _location(file)), file)
        finalize(shared, os.close, file)  # until then, other processes find it at this descriptor
        return shared
    except BaseException:
        os.close(file)
        raise


def _new_file(size: int) -> int:
    """Make an empty file. The kernel would end processes if there is no room for its content, so check this first."""
    available = memory.available_bytes()
    if available is not None and size > available:
        text = f"{amount(size)} are needed, and this machine has {amount(available)} of memory left"
        raise OSError(errno.ENOMEM, text)
    file = os.memfd_create("mwpy-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    return file


def _kept(share: Share, file: int) -> SharedObject:
    """Map a complete file. This process knows the object from now on."""
    content = memoryview(mmap.mmap(file, share.size, prot=mmap.PROT_READ))
    return _known(SharedObject(share, content))


def _known(shared: SharedObject) -> SharedObject:
    KNOWN[shared.share.digest] = shared
    return shared


def is_for_each_slave(shared: Shared) -> bool:
    """Whether the tasks of a slave use one object, because it is large without its arrays."""
    return len(_parts(memoryview(shared.shared.content))[0]) >= OWN_BYTES


def load(digest: str) -> object:
    """Return the object itself: a new one, unless it is large or cannot be changed.

    Raises:
        SharedObjectMissing: its content is not in this process.
        Exception: any error of unpickling.
    """
    shared = KNOWN.get(digest)
    if shared is None:
        raise SharedObjectMissing("a shared object is not in this process any more: share it again")
    if shared.reason:
        raise SharedObjectMissing(shared.reason)
    if not shared.loaded:
        try:
            pickled, *buffers = _parts(memoryview(shared.content))
            loaded = loads_shared(pickled, buffers)
        except Exception as error:
            error.add_note("(mwpy.share: a shared object cannot be unpickled here)")
            raise
        is_read_only = not getattr(getattr(loaded, "flags", None), "writeable", True)  # an array of NumPy
        if len(pickled) < OWN_BYTES and not is_read_only:
            LOADED.own += 1
            return loaded
        shared.loaded.append(loaded)
        _recent[digest] = len(pickled)
        while sum(_recent.values()) > UNPICKLED_BYTES and len(_recent) > 1:
            unused = KNOWN.get(_recent.popitem(last=False)[0])
            if unused is not None:
                unused.loaded.clear()
    elif digest in _recent:
        _recent.move_to_end(digest)
    return shared.loaded[0]


def _parts(content: memoryview) -> list[memoryview]:
    """The pickle and the buffers in a file.

    Raises:
        ValueError: it contains something else; the fault of the agent from which it came.
    """
    try:
        (count,) = _SIZE.unpack_from(content)
        sizes = [_SIZE.unpack_from(content, _SIZE.size * (1 + place))[0] for place in range(count)]
    except struct.error:
        sizes = []
    places = places_of(sizes)
    if not sizes or places[-1] != len(content):
        raise ValueError(f"the content is damaged: its {len(content)} bytes do not begin with the sizes of its parts")
    return [content[place : place + size] for place, size in zip(places, sizes, strict=False)]


# ---- the same memory in several processes --------------------------------------------------------------------------


def _boot() -> str:
    """What names this run of the kernel; empty if the kernel does not say it."""
    return memory.read("/proc/sys/kernel/random/boot_id").strip()


def _location(file: int) -> str:
    return f"{_boot()}:{os.getpid()}:{file}:{os.fstat(file).st_ino}"


def _open(share: Share) -> int:
    """Open the sealed file at the location of a shared object.

    Raises:
        OSError: it is not on this host, or cannot be opened here.
    """
    try:
        boot, process, file, number = share.location.split(":")
        path = f"/proc/{int(process)}/fd/{int(file)}"
    except ValueError:
        raise FileNotFoundError(errno.ENOENT, "it has no location here") from None
    found = os.stat(path)
    if boot != _boot() or not S_ISREG(found.st_mode) or [str(found.st_ino), found.st_size] != [number, share.size]:
        raise FileNotFoundError(errno.ENOENT, "it is another file", path)
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) == SEALS and os.fstat(opened).st_ino == found.st_ino:
            return opened
        raise FileNotFoundError(errno.ENOENT, "it is another file", path)
    except OSError:
        os.close(opened)
        raise


def give(share: Share, reason: str) -> SharedObject:
    """Know a shared object in a slave from now on, as long as somebody refers to what this returns.

    Args:
        share: its location is that of its agent.
        reason: why it is missing; empty if it is not.
    """
    try:
        if not reason:
            file = _open(share)
            try:
                return _kept(share, file)
            finally:
                os.close(file)
    except OSError as error:
        reason = f"a shared object is at the agent, but this slave cannot open it through /proc: {error}"
    return _known(SharedObject(share, b"", reason=reason))


def is_known(digest: str) -> bool:
    """Whether a shared object is in this process, or will never be."""
    return digest in KNOWN


def most_files() -> int:
    """Return how many shared objects an agent may keep: each takes a descriptor here, and one in each of its slaves."""
    descriptors: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(MAX_FILES, descriptors // FILES_SHARE)


class Store(Struct, eq=False):
    """The files of an agent: it fetches shared objects, and its slaves use them."""

    _files: dict[str, int] = field(default_factory=dict)
    _missing: dict[str, int] = field(default_factory=dict)
    """How many bytes each file lacks that is not complete."""

    def open(self, share: Share) -> tuple[str, bool]:
        """Make room for a shared object. If it is on this host already, nothing is fetched.

        Returns:
            The location of its file, and whether the file is complete.

        Raises:
            OSError: out of file descriptors or memory.
        """
        try:
            file = _open(share)
        except OSError:
            file = _new_file(share.size)
            self._missing[share.digest] = share.size
        self._files[share.digest] = file
        return _location(file), share.digest not in self._missing

    def write(self, digest: str, start: int, part: Buffer) -> None:
        """Write a part into a file. The last part completes it.

        Raises:
            OSError: out of memory.
        """
        write_all(self._files[digest], memoryview(part), start)
        self._missing[digest] -= len(part)
        if not self._missing[digest]:
            del self._missing[digest]
            add_seals(self._files[digest])

    def drop(self, digest: str) -> None:
        """Drop a file, if there is one. Its memory is free as soon as no slave uses it."""
        self._missing.pop(digest, None)
        file = self._files.pop(digest, None)
        if file is not None:
            os.close(file)

    def close(self) -> None:
        """Drop all files."""
        for digest in [*self._files]:
            self.drop(digest)
