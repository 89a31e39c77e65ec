"""Content that its last receiver maps instead of copying it. Sender and receiver are in this process."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from mwpy._transport import in_place, shared
from mwpy._transport.in_place import COPIES, IN_PLACE, IN_PLACE_BYTES
from mwpy._transport.shared import lend, part_of, received
from mwpy._values.ids import Buffer

SIZE = 1 << 20


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    """Drop the files of earlier tests, and what the process has learnt from them."""
    gc.collect()
    assert not IN_PLACE._sizes
    IN_PLACE._num_copies, IN_PLACE._is_doubtful = 0, False
    while shared._free:
        shared._close(shared._free.pop().fd)
    shared._known.clear()


def content(number: int) -> bytes:
    return bytes([number]) * SIZE


def sent(number: int) -> tuple[int, memoryview]:
    """Pass a content to this process. Return the number of its file, and what is received."""
    views = lend([content(number)])
    part = part_of(views[0]) if views else None
    assert part is not None
    assert part.file.fd is not None
    inode, hop = os.fstat(part.file.fd).st_ino, part.file.about_to_pass()
    (view,) = received(os.dup(part.file.fd), inode, part.file.size, hop, [(part.start, SIZE)], passes_on=False)
    return inode, view


def is_released(inode: int) -> bool:
    """Whether the sender may write the file again."""
    free = next(free for free in shared._free if os.fstat(free.fd).st_ino == inode)
    return bytes(free.mapping.content[: shared.HOPS + 1]) in shared._FREE


def test_a_file_is_released_when_its_content_is_not_used_any_more() -> None:
    inode, view = sent(1)
    assert not is_released(inode)
    part = view[10:20]
    del view
    assert not is_released(inode)
    del part
    assert is_released(inode)


def test_a_mapping_shows_each_content_of_its_file() -> None:
    inodes = set()
    for number in range(1, 6):
        inode, view = sent(number)
        inodes.add(inode)
        assert view[number:] == content(number)[number:]
        del view
    assert len(inodes) == 1


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_what_the_receiver_has_written_is_not_in_the_next_content(place: int) -> None:
    inode, view = sent(1)
    assert view == content(1)
    view[place] = 77
    assert view[place] == 77
    del view
    IN_PLACE._num_copies = 0
    again, view = sent(2)
    assert again == inode
    assert IN_PLACE._sizes, "it was not mapped"
    assert view == content(2)


def test_what_the_receiver_writes_stays_private() -> None:
    """Also if the same file comes again while its first content is in use."""
    views = lend([content(1)])
    part = part_of(views[0]) if views else None
    assert views is not None
    assert part is not None
    assert part.file.fd is not None
    facts = os.fstat(part.file.fd).st_ino, part.file.size
    one, two = (
        received(os.dup(part.file.fd), *facts, part.file.about_to_pass(), [(part.start, SIZE)], passes_on=False)[0]
        for _ in range(2)
    )
    one[:3] = b"new"
    assert two == views[0] == content(1)
    two[:3] = b"own"
    assert bytes(one[:3]) == b"new"


def test_after_a_write_the_next_contents_are_copied() -> None:
    """Then one is tried, and if it is not written, all are mapped again."""
    _, view = sent(1)
    view[0] = 2
    del view
    for _ in range(COPIES):
        inode, view = sent(3)
        assert is_released(inode), "it was mapped"
        del view
    tried, view = sent(4)
    assert not is_released(tried)
    copied, second = sent(5)
    assert is_released(copied)
    del view, second
    views = [sent(number) for number in range(3)]
    assert not any(is_released(inode) for inode, _ in views)


def test_a_process_that_keeps_everything_maps_a_limited_amount() -> None:
    kept = [sent(number) for number in range(30)]
    mapped = [inode for inode, _ in kept if not is_free(inode)]
    assert 0 < len(mapped) * SIZE <= IN_PLACE_BYTES
    assert [view == content(number) for number, (_, view) in enumerate(kept)] == [True] * 30


def is_free(inode: int) -> bool:
    return any(os.fstat(free.fd).st_ino == inode and is_released(inode) for free in shared._free)


def test_small_contents_are_copied() -> None:
    views = lend([bytes(in_place.IN_PLACE_FROM // 2)])
    part = part_of(views[0]) if views else None
    assert part is not None
    assert part.file.fd is not None
    facts = os.fstat(part.file.fd).st_ino, part.file.size, part.file.about_to_pass()
    found: list[Buffer] = [*received(os.dup(part.file.fd), *facts, [(part.start, 1000)], passes_on=False)]
    assert found == [bytes(1000)]
    assert not IN_PLACE._sizes


def test_a_file_that_a_fork_may_read_is_not_released() -> None:
    inode, view = sent(1)
    child = os.fork()
    if not child:
        os._exit(bytes(view[:3]) != b"\1\1\1" or bool(IN_PLACE._sizes))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del view
    assert not is_released(inode)
    inode, view = sent(2)
    del view
    assert is_released(inode)


def test_a_fork_does_not_release_the_content_of_its_parent() -> None:
    inode, view = sent(1)
    child = os.fork()
    if not child:
        del view
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert view == content(1)
    assert not is_released(inode)


def test_without_the_page_map_of_the_kernel_everything_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IN_PLACE, "_page_map", -1)
    inode, view = sent(1)
    assert is_released(inode)
    assert view == content(1)


def test_a_page_map_that_was_closed_costs_only_time() -> None:
    """Some code of this process closed its descriptor, and perhaps another file has it now."""
    assert IN_PLACE.look_up()
    inode, view = sent(1)
    view[0] = 77
    closed = IN_PLACE._page_map
    assert closed is not None
    zeros = os.open("/dev/zero", os.O_RDONLY)
    os.dup2(zeros, closed)
    del view
    again, view = sent(2)
    assert (again, bytes(view[:3])) == (inode, b"\2\2\2")
    view[0] = 77
    os.close(zeros)
    os.close(closed)
    del view
    IN_PLACE._num_copies, IN_PLACE._page_map = 0, None
    again, view = sent(3)
    assert (again, bytes(view[:3])) == (inode, b"\3\3\3")
