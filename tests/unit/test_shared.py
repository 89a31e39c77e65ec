"""Sealed files, as their sender and their receiver see them."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mwpy._system.open_files import count
from mwpy._transport import shared
from mwpy._transport.shared import LARGE_BYTES, part_of, received, seal, write_sealed
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

LARGE = bytes(range(256)) * 256
assert len(LARGE) == LARGE_BYTES


def open_files() -> int:
    gc.collect()
    return count()


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before


def passed(*buffers: Buffer) -> tuple[int, int, int, list[tuple[int, int]]]:
    """Make a sealed file. Return what its receiver gets."""
    written = write_sealed(buffers)
    assert written is not None
    fd, starts = written
    facts = os.fstat(fd)
    return fd, facts.st_ino, facts.st_size, list(zip(starts, map(len, buffers), strict=True))


def test_what_a_receiver_writes_is_private() -> None:
    written = write_sealed([LARGE, b"second" * 20_000])
    assert written is not None
    fd, starts = written
    facts = os.fstat(fd)
    parts = [(starts[0], len(LARGE)), (starts[1], 120_000)]
    one, two = (received(os.dup(fd), facts.st_ino, facts.st_size, parts, passes_on=False) for _ in range(2))
    os.close(fd)
    assert one == two == [LARGE, b"second" * 20_000]
    one[0][:3] = b"new"
    assert bytes(one[0][:4]) == b"new\x03"
    assert two[0] == LARGE


def test_a_sealed_file_is_a_copy_that_nobody_can_change() -> None:
    source = bytearray(LARGE)
    views = seal([source])
    assert views is not None
    source[0] = 7
    part = part_of(views[0])
    assert views == [LARGE]
    assert views[0].readonly
    assert part is not None
    assert part.file.fd is not None
    with pytest.raises(PermissionError):
        os.pwrite(part.file.fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(part.file.fd, 0)


def test_only_a_whole_view_of_a_sealed_file_is_passed_on() -> None:
    views = seal([LARGE])
    assert views is not None
    others: list[Buffer] = [views[0][1:], views[0][:-1], bytearray(LARGE), memoryview(LARGE), LARGE]
    assert [part_of(other) for other in others] == [None] * 5
    assert part_of(views[0]) is not None


def test_a_process_keeps_a_limited_number_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies further buffers into its own memory, and passes on files that it has received as copies."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (shared.FILES_SHARE * 2, hard))
    kept = [seal([LARGE]), seal([LARGE])]
    assert None not in kept
    assert seal([LARGE]) is None
    (view,) = received(*passed(LARGE), passes_on=True)
    assert view == LARGE
    assert part_of(view) is None
    kept.pop()
    assert seal([LARGE]) is not None


def test_a_view_keeps_the_memory_of_its_file() -> None:
    (view,) = received(*passed(LARGE), passes_on=False)
    end = view[-10:]
    del view
    gc.collect()
    assert end == LARGE[-10:]


NOT_SEALED = "a file that is not sealed"
ANOTHER = "not the one that the message names"


def unsealed(seals: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, LARGE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: unsealed(fcntl.F_SEAL_SHRINK), NOT_SEALED),
        (lambda: unsealed(fcntl.F_SEAL_WRITE), NOT_SEALED),
        (lambda: os.open("/proc/self/exe", os.O_RDONLY), "a descriptor that is no sealed file"),
        (lambda: os.open("/dev/zero", os.O_RDWR), "a descriptor that is no sealed file"),
        (lambda: os.open("/proc/self", os.O_PATH), "a descriptor that is no sealed file"),
    ],
    ids=["can be written", "can be cut", "a program", "a device", "a path"],
)
def test_a_descriptor_of_anything_else_is_refused(make: object, reason: str) -> None:
    assert callable(make)
    fd = make()
    facts = os.fstat(fd)
    with pytest.raises(ProtocolError, match=reason):
        received(fd, facts.st_ino, facts.st_size, [(0, 10)], passes_on=False)


@pytest.mark.parametrize(
    ("inode", "size", "length", "reason"),
    [(1, 0, 10, ANOTHER), (0, 1, 10, ANOTHER), (0, 0, LARGE_BYTES + 1, "beyond its end")],
    ids=["another file", "another size", "a part that is too long"],
)
def test_a_file_that_is_not_as_described_is_refused(inode: int, size: int, length: int, reason: str) -> None:
    fd, own_inode, own_size, _ = passed(LARGE)
    with pytest.raises(ProtocolError, match=reason):
        received(fd, own_inode + inode, own_size + size, [(0, length)], passes_on=False)


IN_BAND = """
import resource, sys
from mwpy._transport.shared import seal
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
print(seal([bytes(200_000)]), seal([bytes(200_000)]))
"""


def test_a_file_for_which_there_is_no_room_is_reported_once() -> None:
    """A limit of the size of files also holds for sealed files."""
    done = subprocess.run([sys.executable, "-c", IN_BAND], capture_output=True, text=True, check=True)
    assert done.stdout == "None None\n"
    assert done.stderr == (
        "mwpy: warning: no shared memory for large buffers ([Errno 27] File too large): they are copied, which is "
        "slower\n"
    )


FULL = """
import os
from mwpy._transport.shared import SealedFile, received, write_sealed
fd, _ = write_sealed([bytes(100) + b"end"])
inode, size = os.fstat(fd).st_ino, os.fstat(fd).st_size
files = []
try:
    while True:
        files.append(SealedFile(os.dup(fd), size, passes_on=False))
except OSError as error:
    (view,) = received(os.dup(fd), inode, size, [(98, 5)], passes_on=False)
    files.clear()
    print(error.errno, bytes(view), view.readonly)
"""


def test_a_process_with_too_many_mappings_reads_the_file() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("12 b'\\x00\\x00end' False\n", "")
