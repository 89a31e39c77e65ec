"""Sealed files, as their sender and their receiver see them."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from mwpy._system.process import count_open
from mwpy._transport import stream
from mwpy._transport.stream import SEALS, file_of, lend, received
from mwpy._values.bounds import LARGE_BYTES
from mwpy._values.errors import ProtocolError

LARGE = bytes(range(256)) * 256
assert len(LARGE) == LARGE_BYTES
CHANGES = "a shared file that can change"
NO_FILE = "a descriptor that is no shared file"


def open_files() -> int:
    gc.collect()
    return count_open()


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before


def passed(view: memoryview | None) -> tuple[int, int, int]:
    """Return what the receiver of a file gets."""
    assert view is not None
    file = file_of(view)
    assert file is not None
    assert file.fd is not None
    return os.dup(file.fd), os.fstat(file.fd).st_ino, file.size


def test_what_a_receiver_writes_is_private() -> None:
    view = lend(LARGE)
    one, two = (received(*passed(view), passes_on=False) for _ in range(2))
    assert [bytes(one), bytes(two)] == [LARGE] * 2
    one[:3] = b"new"
    assert bytes(one[:4]) == b"new\x03"
    assert [bytes(two), view] == [LARGE] * 2


def test_a_file_is_a_copy_that_nobody_can_change() -> None:
    source = bytearray(LARGE)
    view = lend(source)
    assert view is not None
    source[0] = 7
    assert view == LARGE
    assert view.readonly
    fd, _, _ = passed(view)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


def test_a_process_keeps_a_limited_number_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies further buffers into its own memory, and maps further files that it receives without keeping them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (stream.FILES_SHARE * 4, hard))
    kept = [lend(LARGE), lend(LARGE)]
    assert None not in kept
    assert lend(LARGE) is None
    kept += [lend(LARGE, briefly=True), lend(LARGE, briefly=True)]
    assert lend(LARGE, briefly=True) is None
    view = received(*passed(kept[0]), passes_on=True)
    assert view == LARGE
    assert file_of(view) is None
    del kept[1:]
    assert lend(LARGE) is not None


class Reader:
    """An object of a user that refers to itself, and reads a view when it ends."""

    def __init__(self, view: memoryview, found: list[bytes]) -> None:
        self.view, self.found, self.itself = view, found, self

    def __del__(self) -> None:
        self.found.append(bytes(self.view))


@pytest.mark.parametrize("passes_on", [True, False])
def test_the_garbage_collector_ends_the_memory_after_all_its_users(passes_on: bool) -> None:
    """It calls the finalizers of all objects of a cycle in any order, so it must not see what unmaps memory."""
    found: list[bytes] = []
    view = received(*passed(lend(LARGE)), passes_on=passes_on)
    reader = Reader(view, found)
    del reader, view
    gc.collect()
    assert found == [LARGE]


def sealed(seals: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, LARGE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: sealed(SEALS & ~fcntl.F_SEAL_WRITE), CHANGES),
        (lambda: sealed(SEALS & ~fcntl.F_SEAL_SHRINK), CHANGES),
        (lambda: os.open("/proc/self/exe", os.O_RDONLY), NO_FILE),
        (lambda: os.open("/dev/zero", os.O_RDWR), NO_FILE),
        (lambda: os.open("/proc/self", os.O_PATH), NO_FILE),
    ],
    ids=["can be written", "can be cut", "a program", "a device", "a path"],
)
def test_a_descriptor_of_anything_else_is_refused(make: Callable[[], int], reason: str) -> None:
    fd = make()
    facts = os.fstat(fd)
    with pytest.raises(ProtocolError, match=reason):
        received(fd, facts.st_ino, facts.st_size, passes_on=False)


IN_BAND = """
import resource
from mwpy._transport.stream import lend
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
print(lend(bytes(200_000)), lend(bytes(200_000)))
"""


def test_a_file_for_which_there_is_no_room_is_reported_once() -> None:
    """A limit of the size of files also holds for sealed files."""
    done = subprocess.run([sys.executable, "-c", IN_BAND], capture_output=True, text=True, check=True)
    assert done.stdout == "None None\n"
    assert done.stderr == (
        "mwpy: warning: no shared memory for large buffers ([Errno 27] File too large): they are copied, which is "
        "slower\n"
    )


WITHOUT_MEMORY = """
import os, resource
from mwpy._transport.stream import file_of, lend, received
from mwpy._values.errors import ProtocolError
SIZE = 2 << 20
view = lend(bytes(SIZE))
file = file_of(view)
facts = os.fstat(file.fd).st_ino, file.size
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used, used))
rest = []
try:
    while True:
        rest.append(bytearray(SIZE))  # the process may have memory that it does not use
except MemoryError:
    pass
try:
    received(os.dup(file.fd), *facts, passes_on=False)
except ProtocolError as error:
    print(error)
"""


def test_a_file_for_whose_content_there_is_no_memory_is_refused() -> None:
    """Otherwise the thread would end that reads the messages of all peers."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("cannot be read: MemoryError()\n"), done
