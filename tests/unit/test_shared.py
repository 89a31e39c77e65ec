"""Sealed files, as their sender and their receiver see them."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mwpy._system.open_files import count
from mwpy._transport import mappings, shared
from mwpy._transport.in_place import IN_PLACE
from mwpy._transport.shared import LARGE_BYTES, SharedFile, lend, part_of, received, seal
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

LARGE = bytes(range(256)) * 256
assert len(LARGE) == LARGE_BYTES
MEGABYTE = 1 << 20
SHORTER = "a shared file that can get shorter"
ANOTHER = "not the one that the message names"


def open_files() -> int:
    """Count them without the files that wait for the next content."""
    gc.collect()
    IN_PLACE.look_up()  # opens a file once
    while shared._free:
        shared._close(shared._free.pop().fd)
    return count()


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before


Passed = tuple[int, int, int, int, list[tuple[int, int]]]


def file_of(views: list[memoryview] | None) -> SharedFile:
    assert views is not None
    part = part_of(views[0])
    assert part is not None
    return part.file


def passed(views: list[memoryview] | None) -> Passed:
    """Return what the receiver of a file gets."""
    file = file_of(views)
    assert views is not None
    assert file.fd is not None
    parts = [(part.start, len(view)) for view in views if (part := part_of(view)) is not None]
    return os.dup(file.fd), os.fstat(file.fd).st_ino, file.size, file.about_to_pass(), parts


def content(views: list[memoryview] | None) -> list[bytes]:
    return [bytes(view) for view in views or []]


def inode_of(views: list[memoryview] | None) -> int:
    return os.fstat(file_of(views).fd or 0).st_ino


@pytest.mark.parametrize("make", [seal, lend])
def test_what_a_receiver_writes_is_private(make: Callable[[list[Buffer]], list[memoryview] | None]) -> None:
    views = make([LARGE, b"second" * 20_000])
    one, two = (received(*passed(views), passes_on=False) for _ in range(2))
    assert one == two == [LARGE, b"second" * 20_000]
    one[0][:3] = b"new"
    assert bytes(one[0][:4]) == b"new\x03"
    assert two[0] == LARGE
    assert content(views) == [LARGE, b"second" * 20_000]


def test_a_released_file_is_written_again() -> None:
    views = lend([LARGE])
    inode = inode_of(views)
    (copy,) = received(*passed(views), passes_on=False)
    del views
    again = lend([LARGE[::-1]])
    assert inode_of(again) == inode
    assert copy == LARGE
    assert content(again) == [LARGE[::-1]]


def test_a_file_is_written_again_only_when_nobody_needs_its_content() -> None:
    """An agent passes it on to a slave. Both must have released it."""
    views = lend([LARGE])
    inode = inode_of(views)
    at_agent = received(*passed(views), passes_on=True)
    del views
    at_slave = passed(at_agent)
    others = lend([LARGE[::-1]])
    assert inode_of(others) != inode
    del at_agent, others
    second = lend([LARGE[::-1]])
    assert inode_of(second) != inode
    (copy,) = received(*at_slave, passes_on=False)
    del second
    found = [lend([LARGE[::-1]]) for _ in range(3)]
    assert inode in {inode_of(each) for each in found}
    assert copy == LARGE


def test_a_file_that_was_passed_twice_is_never_written_again() -> None:
    views = lend([LARGE])
    inode = inode_of(views)
    at_agent = received(*passed(views), passes_on=True)
    del views
    for _ in range(2):
        received(*passed(at_agent), passes_on=False)
    del at_agent
    found = [lend([LARGE]) for _ in range(10)]
    assert inode not in {inode_of(each) for each in found}


def test_a_fork_does_not_write_into_the_files_of_its_parent() -> None:
    views = lend([LARGE])
    inode = inode_of(views)
    kept = lend([LARGE])
    del views
    child = os.fork()
    if not child:
        del kept
        os._exit(bool(shared._free) or inode_of(lend([LARGE])) == inode)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert inode_of(lend([LARGE])) == inode
    assert content(kept) == [LARGE]


def test_a_large_content_is_sealed() -> None:
    views = lend([bytes(shared.REUSED_BYTES + 1)])
    assert file_of(views).about_to_pass() == 0
    received(*passed(views), passes_on=False)


def test_little_memory_is_kept() -> None:
    files = [lend([bytes(MEGABYTE)]) for _ in range(40)]
    copies = [received(*passed(each), passes_on=False) for each in files]
    files.clear()
    copies.clear()
    assert sum(free.size for free in shared._free) <= shared.FREE_BYTES * 2
    assert sum(pages.size for pages in mappings._Memory.spare) <= mappings.SPARE_BYTES


def num_mappings() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("mwpy-buffers")


def test_a_file_that_comes_again_is_still_mapped() -> None:
    """The receiver has then two mappings of it, because it can write the first page only."""
    shared._known.clear()
    counts = set()
    for number in range(5):
        views = lend([bytes([number]) * LARGE_BYTES])
        before = num_mappings()
        (copy,) = received(*passed(views), passes_on=False)
        counts.add(num_mappings() - before)
        assert copy == bytes([number]) * LARGE_BYTES
        del views
    assert counts == {2, 0}


def test_few_files_of_other_processes_stay_mapped() -> None:
    shared._known.clear()
    many = [lend([LARGE]) for _ in range(shared.KNOWN_FILES + 5)]
    large = [lend([bytes(2 * MEGABYTE)]) for _ in range(shared.KNOWN_BYTES // MEGABYTE // 2 + 5)]
    for views in many:
        received(*passed(views), passes_on=False)
    assert len(shared._known) == shared.KNOWN_FILES
    for views in large:
        received(*passed(views), passes_on=False)
    assert sum(each.size for each in shared._known.values()) <= shared.KNOWN_BYTES
    assert content(received(*passed(large[0]), passes_on=False)) == [bytes(2 * MEGABYTE)]


def test_the_files_of_others_are_not_mapped_in_a_fork() -> None:
    received(*passed(lend([LARGE])), passes_on=False)
    assert shared._known
    child = os.fork()
    if not child:
        os._exit(len(shared._known))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("passes_on", [True, False])
def test_a_file_that_cannot_be_written_is_read(passes_on: bool) -> None:
    shared._known.clear()
    views = lend([LARGE])
    fd, *facts = passed(views)
    only_read = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    (copy,) = received(only_read, *facts, passes_on=passes_on)  # type: ignore[arg-type]
    assert copy == LARGE
    assert part_of(copy) is None


def test_a_known_file_of_another_size_is_refused() -> None:
    views = lend([LARGE])
    received(*passed(views), passes_on=False)
    fd, inode, size, hop, parts = passed(views)
    with pytest.raises(ProtocolError, match=ANOTHER):
        received(fd, inode, size + 1, hop, parts, passes_on=False)


def test_a_sealed_file_is_a_copy_that_nobody_can_change() -> None:
    source = bytearray(LARGE)
    views = seal([source])
    assert views is not None
    source[0] = 7
    fd = file_of(views).fd
    assert views == [LARGE]
    assert views[0].readonly
    assert fd is not None
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)


def test_only_a_whole_view_of_a_sealed_file_is_passed_on() -> None:
    views = seal([LARGE])
    assert views is not None
    others: list[Buffer] = [views[0][1:], views[0][:-1], bytearray(LARGE), memoryview(LARGE), LARGE]
    assert [part_of(other) for other in others] == [None] * 5
    assert part_of(views[0]) is not None


def test_a_process_keeps_a_limited_number_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies further buffers into its own memory, and passes on files that it has received as copies."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (shared.FILES_SHARE * 4, hard))
    kept = [seal([LARGE]), seal([LARGE])]
    assert None not in kept
    assert seal([LARGE]) is None
    kept += [seal([LARGE], briefly=True), seal([LARGE], briefly=True)]
    assert seal([LARGE], briefly=True) is None
    (view,) = received(*passed(kept[0]), passes_on=True)
    assert view == LARGE
    assert part_of(view) is None
    del kept[1:]
    assert seal([LARGE]) is not None


def test_a_view_keeps_the_memory_of_its_file() -> None:
    (view,) = received(*passed(seal([LARGE])), passes_on=False)
    end = view[-10:]
    del view
    gc.collect()
    assert end == LARGE[-10:]


REVERSE = "a sealed file that is passed as a reused file, or the reverse"


class Reader:
    """An object of a user that refers to itself, and reads a view when it ends."""

    def __init__(self, view: memoryview, found: list[bytes]) -> None:
        self.view, self.found, self.itself = view, found, self

    def __del__(self) -> None:
        other = mappings.new_memory(len(self.view))
        other[:] = bytes(len(other))
        self.found.append(bytes(self.view))


@pytest.mark.parametrize("size", [LARGE_BYTES, MEGABYTE, 4 * MEGABYTE])
@pytest.mark.parametrize("passes_on", [True, False])
def test_the_garbage_collector_ends_the_memory_after_all_its_users(size: int, passes_on: bool) -> None:
    """It calls the finalizers of all objects of a cycle in any order, so it must not see what unmaps memory."""
    found: list[bytes] = []
    (view,) = received(*passed(lend([b"x" * size])), passes_on=passes_on)
    shared._known.clear()  # nothing else keeps the file mapped
    reader = Reader(view, found)
    del reader, view
    gc.collect()
    assert found == [b"x" * size]


def unsealed(seals: int, content: bytes = LARGE) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: unsealed(fcntl.F_SEAL_SHRINK), REVERSE),
        (lambda: unsealed(fcntl.F_SEAL_WRITE), SHORTER),
        (lambda: os.open("/proc/self/exe", os.O_RDONLY), "a descriptor that is no shared file"),
        (lambda: os.open("/dev/zero", os.O_RDWR), "a descriptor that is no shared file"),
        (lambda: os.open("/proc/self", os.O_PATH), "a descriptor that is no shared file"),
    ],
    ids=["can be written", "can be cut", "a program", "a device", "a path"],
)
def test_a_descriptor_of_anything_else_is_refused(make: object, reason: str) -> None:
    assert callable(make)
    fd = make()
    facts = os.fstat(fd)
    with pytest.raises(ProtocolError, match=reason):
        received(fd, facts.st_ino, facts.st_size, 0, [(0, 10)], passes_on=False)


@pytest.mark.parametrize(
    ("inode", "size", "length", "reason"),
    [(1, 0, 10, ANOTHER), (0, 1, 10, ANOTHER), (0, 0, LARGE_BYTES + 1, "beyond its end")],
    ids=["another file", "another size", "a part that is too long"],
)
def test_a_file_that_is_not_as_described_is_refused(inode: int, size: int, length: int, reason: str) -> None:
    fd, own_inode, own_size, _, _ = passed(seal([LARGE]))
    with pytest.raises(ProtocolError, match=reason):
        received(fd, own_inode + inode, own_size + size, 0, [(0, length)], passes_on=False)


def test_a_reused_file_without_space_for_its_first_bytes_is_refused() -> None:
    fd = unsealed(fcntl.F_SEAL_SHRINK, b"12")
    with pytest.raises(ProtocolError, match="first bytes"):
        received(fd, os.fstat(fd).st_ino, 2, 2, [(0, 1)], passes_on=False)


IN_BAND = """
import resource, sys
from mwpy._transport.shared import lend, seal
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
print(seal([bytes(200_000)]), lend([bytes(200_000)]))
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
from mwpy._transport.shared import SharedFile, part_of, received, seal
views = seal([bytes(100) + b"end"])
file = part_of(views[0]).file
inode, files = os.fstat(file.fd).st_ino, []
try:
    while True:
        files.append(SharedFile(os.dup(file.fd), file.size, passes_on=False))
except OSError as error:
    (view,) = received(os.dup(file.fd), inode, file.size, 0, [(98, 5)], passes_on=False)
    files.clear()
    print(error.errno, bytes(view), view.readonly)
"""


WITHOUT_MEMORY = """
import os, resource
from mwpy._transport.shared import HEAD_BYTES, lend, part_of, received
from mwpy._values.errors import ProtocolError
SIZE = 2 << 20
(view,) = lend([bytes(SIZE)])
file = part_of(view).file
facts = os.fstat(file.fd).st_ino, file.size, file.about_to_pass(), [(HEAD_BYTES, SIZE)]
kept = received(os.dup(file.fd), *facts, passes_on=False)
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
    assert done.stdout.startswith("a shared file cannot be read: MemoryError"), done


def test_a_process_with_too_many_mappings_reads_the_file() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("12 b'\\x00\\x00end' False\n", "")
