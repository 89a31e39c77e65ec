"""Sealed files, and passages with both ends in this process."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest

from mwpy._system.process import count_open
from mwpy._transport import stream
from mwpy._transport.stream import (
    FOLDED,
    MOST_FILES,
    SEALS,
    Passage,
    file_of,
    is_folded,
    lend,
    make_passage,
    received,
    unfold,
)
from mwpy._values.bounds import LARGE_BYTES, Buffer
from mwpy._values.errors import ProtocolError
from mwpy._values.messagepack import encode

LARGE = bytes(range(256)) * 256
MOST_BYTES = 1 << 30

Ends = tuple[Passage, Passage]


def open_files() -> int:
    gc.collect()
    return count_open()


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before


@pytest.fixture
def ends() -> Iterator[Ends]:
    here, there = make_passage()
    other = Passage(there)
    yield here, other
    here.close()
    other.close()


def passed(view: memoryview | None) -> tuple[int, int, int]:
    """Return what the receiver of a file gets."""
    assert view is not None
    file = file_of(view)
    assert file is not None
    assert file.fd is not None
    return os.dup(file.fd), os.fstat(file.fd).st_ino, file.size


def restored(frames: Sequence[Buffer], passage: Passage, *, passes_on: bool = False) -> list[Buffer]:
    assert is_folded(frames)
    return unfold([*frames], passage, MOST_BYTES, passes_on=passes_on)


@pytest.mark.parametrize(
    "frames",
    [
        [b"a", LARGE],
        [LARGE, LARGE[::-1] * 2, b"a", b""],
        [b"a", bytearray(LARGE + b"odd"), b"b", memoryview(LARGE), b"c"],
    ],
    ids=["last", "first", "between"],
)
def test_large_frames_pass_in_files(ends: Ends, frames: list[Buffer]) -> None:
    folded = ends[0].fold(frames)
    assert sum(map(len, folded)) < 1000
    assert restored(folded, ends[1]) == frames


def test_files_survive_the_process_that_passed_them(ends: Ends) -> None:
    folded = ends[0].fold([LARGE])
    ends[0].close()
    assert restored(folded, ends[1]) == [LARGE]


def test_files_survive_a_process_that_had_not_taken_its_own(ends: Ends) -> None:
    """The kernel first says that the connection was reset."""
    folded = ends[0].fold([LARGE])
    ends[1].fold([LARGE])
    ends[0].close()
    assert restored(folded, ends[1]) == [LARGE]


def test_frames_travel_in_the_message_when_the_passage_is_full_or_closed(ends: Ends) -> None:
    frames = [b"a", LARGE]
    folded: list[Sequence[Buffer]] = []
    while is_folded(sent := ends[0].fold(frames)):
        folded.append(sent)
    assert sent is frames
    assert all(restored(each, ends[1]) == frames for each in folded)
    ends[1].close()
    assert ends[0].fold(frames) is frames


# ---- hostile senders ----


def sent_file(passage: Passage) -> tuple[int, int, int]:
    """Pass a file without a message. Return how a message would name it."""
    fd, inode, size = passed(lend(LARGE))
    socket.send_fds(passage._socket, [FOLDED], [fd])
    os.close(fd)
    return 0, inode, size


def message(*files: tuple[int, int, int]) -> list[Buffer]:
    return [FOLDED + encode([files]), b"header"]


SIZE = LARGE_BYTES


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([FOLDED], "a malformed list"),
        ([FOLDED + b"\xc1", b"header"], "a malformed list"),
        ([FOLDED + bytes(LARGE_BYTES)], "a list of shared files of 65537 bytes"),
        (message((0, 1, -1)), "a malformed list"),
        (message((0, 1, 2**60)), "a malformed list"),
        (message(*[(0, 1, 1)] * (MOST_FILES + 1)), "a malformed list"),
        (message((0, 1, 2**40)), "shared files of 1099511627776 bytes"),
        (message((0, 1, 0)), "shared files of 0 bytes"),
        (message((0, 1, 2**29), (1, 1, 2**29), (2, 1, 2**29)), "shared files of 1610612736 bytes"),
        (message((2, 1, SIZE)), "does not fit its message"),
        (message((1, 1, SIZE), (0, 1, SIZE)), "does not fit its message"),
        (message((0, 1, SIZE), (0, 1, SIZE)), "does not fit its message"),
    ],
)
def test_nonsense_is_refused_before_a_file_is_taken(ends: Ends, frames: list[Buffer], reason: str) -> None:
    inode_and_size = sent_file(ends[0])
    with pytest.raises(ProtocolError, match=reason):
        restored(frames, ends[1])
    assert restored(message(inode_and_size), ends[1]) == [LARGE, b"header"]


def test_files_that_were_not_passed_are_refused(ends: Ends) -> None:
    _, inode, size = sent_file(ends[0])
    with pytest.raises(ProtocolError, match="a message with 2 shared files, but 1 were passed"):
        restored(message((0, inode, size), (1, inode, size)), ends[1])
    with pytest.raises(ProtocolError, match="a message with 1 shared files, but 0 were passed"):
        restored(message((0, inode, size)), ends[1])


@pytest.mark.parametrize("other", [(1, 0), (0, 1)], ids=["another file", "another size"])
def test_another_file_than_announced_is_refused(ends: Ends, other: tuple[int, int]) -> None:
    _, inode, size = sent_file(ends[0])
    with pytest.raises(ProtocolError, match="not the one"):
        restored(message((0, inode + other[0], size + other[1])), ends[1])


def test_too_many_passed_files_leave_nothing_open(ends: Ends) -> None:
    fds = os.pipe()
    socket.send_fds(ends[0]._socket, [FOLDED], fds)
    for fd in fds:
        os.close(fd)
    with pytest.raises(ProtocolError, match="with 1 shared files"):
        restored(message((0, 1, 1)), ends[1])


# ---- sealed files ----


CHANGES = "a shared file that can change"
NO_FILE = "a descriptor that is no shared file"


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
    kept = [lend(LARGE) for _ in range(4)]
    assert None not in kept
    assert lend(LARGE) is None
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
