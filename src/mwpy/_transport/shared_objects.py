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
from contextlib import suppress
from stat import S_ISREG
from typing import TypeVar, cast
from weakref import finalize

from attrs import Factory, define
from msgspec.structs import replace

from mwpy._system import memory
from mwpy._system.script import loaded_script
from mwpy._transport.codec import Codec, codec_of, loads_shared
from mwpy._transport.stream import SEALS, add_seals, file_of, write_all
from mwpy._values.bounds import MAX_TASKS, Buffer
from mwpy._values.messages import OF_RESULT, Results, Share
from mwpy._values.phrases import amount
from mwpy._values.shares import KNOWN, SIZE_FORMAT, Shared, SharedObject, known, places_of

T = TypeVar("T")

DIGEST_DIGITS = 32
"""Hexadecimal digits of a digest. Two different contents never have the same digest."""

OWN_BYTES = 1 << 20
"""If the pickle of an object, without its large buffers, is smaller than this, each task gets an object of its own. To
unpickle so much takes up to about 10 ms. The manual names this number."""

UNPICKLED_BYTES = 256 << 20
"""Bytes of pickles, without their large buffers, whose objects a process keeps. Those that were used least recently are
unpickled again when a task needs them."""

MAX_FILES = 500
"""How many shared objects an agent keeps at most that no task needs, if the limit of descriptors allows it. The manual
names this number."""

FILES_SHARE = 4
"""One in so many descriptors of a process may belong to them."""

MEMORY_SHARE = 4
"""A file that would take more than one in so many parts of the memory that is left is on disk."""

DISK_BYTES = 16 << 20
"""A buffer of a result of this size or more is kept on disk at its host, and a smaller one in memory."""

SHARED_BYTES = 1 << 20
"""A smaller buffer of a result travels with each task that refers to it. The manual names this number."""

NAME_BYTES = 12
"""Random bytes in the name of a buffer."""

SCRATCH = "_CONDOR_SCRATCH_DIR"
"""HTCondor's variable with the folder for the files of a job."""

WRITABLE, READ_ONLY = 0o600, 0o400
"""The modes of a file on disk before and after it is complete. A file in memory is sealed instead."""

_SIZE = struct.Struct(f"={SIZE_FORMAT}")


class _Loaded(threading.local):
    """What this thread has loaded."""

    own: int = 0
    """How many objects that belong to one task."""


LOADED = _Loaded()
"""It shows whether a function that was unpickled has captured such an object."""

_spooled: set[int] = set()
"""The files of `spooled` that exist."""

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
    same = KNOWN.get(digest)
    if same is not None and not same.reason:
        return same
    file = _new_file(places[-1])
    try:
        for part, place in zip((head, *parts), (0, *places), strict=False):
            write_all(file, memoryview(part), place)
        _complete(file)
        shared = _kept(Share(digest, places[-1], _location(file)), file)
        finalize(shared, os.close, file)  # until then, other processes find it at this descriptor
        return shared
    except BaseException:
        os.close(file)
        raise


def _new_file(size: int, *, on_disk: bool = False) -> int:
    """Make an empty file without a name: in memory, or on disk if it would take much of the memory that is left.

    The kernel would end processes if there were no room for its content. So the room is taken first.

    Args:
        on_disk: whether it is on disk in any case.
    """
    available = memory.available_bytes()
    if not on_disk and (available is None or size <= available // MEMORY_SHARE):
        file = os.memfd_create("mwpy-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        return file
    import tempfile  # only here, because most processes need no file on disk

    folder = os.environ.get(SCRATCH) or tempfile.gettempdir()
    with tempfile.TemporaryFile(dir=folder) as temporary:
        try:
            os.posix_fallocate(temporary.fileno(), 0, size)
        except OSError as error:
            text = f"there is no room for {amount(size)} in {folder} ({error.strerror}): set TMPDIR to another folder"
            raise OSError(error.errno, text) from None
        os.fchmod(temporary.fileno(), WRITABLE)
        return fcntl.fcntl(temporary.fileno(), fcntl.F_DUPFD_CLOEXEC, 0)


def _complete(file: int) -> None:
    """Nothing more is written into a file: seal it, or make it read-only if it is on disk."""
    if os.fstat(file).st_mode & 0o777 == WRITABLE:
        os.fchmod(file, READ_ONLY)
    else:
        add_seals(file)


def _is_complete(file: int) -> bool:
    """Whether nobody can change a file any more."""
    found = os.fstat(file)
    return (found.st_mode & 0o777, found.st_nlink) == (READ_ONLY, 0) or fcntl.fcntl(file, fcntl.F_GET_SEALS) == SEALS


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
    shared = known(digest)
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
        if _is_complete(opened) and os.fstat(opened).st_ino == found.st_ino:
            return opened
        raise FileNotFoundError(errno.ENOENT, "it is another file", path)
    except OSError:
        os.close(opened)
        raise


# ---- large buffers of results --------------------------------------------------------------------------------------
#
# A read-only buffer of a result, such as the content of a file, can be shared with later tasks that refer to the
# result. The agent of the slave keeps it while it has room, and the master writes it to disk.


def shares_of(buffers: Sequence[Buffer]) -> list[Share]:
    """Name those large buffers of a result that later tasks can share, as in `Results.shares`."""
    if len(buffers) > MAX_TASKS or not any(len(buffer) >= SHARED_BYTES for buffer in buffers):
        return []
    shares = [
        Share(OF_RESULT + os.urandom(NAME_BYTES).hex(), len(buffer))
        if len(buffer) >= SHARED_BYTES and memoryview(buffer).readonly
        else Share("", 0)
        for buffer in buffers
    ]
    return shares if any(share.size for share in shares) else []


def spooled(results: Results, frames: Sequence[Buffer]) -> tuple[Results, Sequence[Buffer]]:
    """Write the shared buffers of results to disk. What does not fit there stays in memory.

    Returns:
        The results, with the locations of these buffers, and the frames, with the contents of the files.
    """
    shares, contents = [*results.shares], [*frames]
    for place, share in enumerate(shares):
        if share.size and len(_spooled) < most_files():
            with suppress(OSError):
                content, location = _on_disk(contents[place + 1])
                shares[place], contents[place + 1] = replace(share, location=location), content
    return replace(results, shares=shares), contents


def _on_disk(buffer: Buffer) -> tuple[memoryview, str]:
    """Write a buffer to disk. Return a view of the file, which lasts as long as the view, and where it is.

    Raises:
        OSError: out of file descriptors, mappings or disk.
    """
    file = _stored(buffer, on_disk=True)
    try:
        mapped = mmap.mmap(file, len(buffer), prot=mmap.PROT_READ)
    except OSError:
        os.close(file)
        raise
    _spooled.add(file)
    finalize(mapped, _forget, file)
    return memoryview(mapped), _location(file)


def _forget(file: int) -> None:
    _spooled.discard(file)
    os.close(file)


def _stored(content: Buffer, *, on_disk: bool) -> int:
    """Put a buffer into a file that nobody can change. If another process has sent it in such a file, use this one.

    Raises:
        OSError: out of file descriptors, memory or disk.
    """
    sent = file_of(content)
    if not on_disk and sent is not None and sent.fd is not None:
        return fcntl.fcntl(sent.fd, fcntl.F_DUPFD_CLOEXEC, 0)
    file = _new_file(len(content), on_disk=on_disk)
    try:
        write_all(file, memoryview(content), 0)
        _complete(file)
    except OSError:
        os.close(file)
        raise
    return file


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


@define(eq=False, repr=False)
class Store:
    """The files of an agent: it fetches shared objects, and its slaves use them."""

    _files: dict[str, int] = Factory(dict)
    _missing: dict[str, int] = Factory(dict)
    """How many bytes each file lacks that is not complete."""

    def open(self, share: Share, content: Buffer = b"") -> tuple[str, bool]:
        """Make room for a shared object. If it is on this host already, nothing is fetched.

        Args:
            content: what a slave has sent as its content; empty if the content must be fetched.

        Returns:
            The location of its file, and whether the file is complete.

        Raises:
            OSError: out of file descriptors, memory or disk.
        """
        if content:
            file = _stored(content, on_disk=len(content) >= DISK_BYTES)
        else:
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
            _complete(self._files[digest])

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
