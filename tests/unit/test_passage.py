"""Passages, with both ends in this process."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator, Sequence

import pytest

from mwpy._system.process import count_open
from mwpy._transport.stream import (
    FOLDED,
    MOST_FILES,
    Passage,
    file_of,
    is_folded,
    lend,
    make_passage,
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


@pytest.fixture
def ends() -> Iterator[Ends]:
    before = open_files()
    here, there = make_passage()
    other = Passage(there)
    yield here, other
    here.close()
    other.close()
    assert open_files() == before


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
    file = file_of(view) if (view := lend(LARGE)) else None
    assert file is not None
    assert file.fd is not None
    socket.send_fds(passage._socket, [FOLDED], [file.fd])
    return 0, os.fstat(file.fd).st_ino, file.size


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
