"""Passages, with both ends in this process."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Iterator, Sequence

import pytest

from mwpy._system.open_files import count
from mwpy._transport import shared
from mwpy._transport.in_place import IN_PLACE
from mwpy._transport.passage import (
    FOLDED,
    LAST_NUMBER,
    MOST_AHEAD,
    MOST_FILES,
    MOST_UNTAKEN,
    Offer,
    Passage,
    connect,
    is_folded,
    make_passage,
    read_references,
    unfold,
    with_ahead,
    with_offer,
)
from mwpy._transport.shared import LARGE_BYTES, REUSED_BYTES, part_of, seal
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import encode

LARGE = bytes(range(256)) * 256
MOST_BYTES = 1 << 30


def open_files() -> int:
    gc.collect()
    IN_PLACE.look_up()  # opens a file once
    return count()


@pytest.fixture
def ends() -> Iterator[tuple[Passage, Passage]]:
    before = open_files() - len(shared._free)
    here, there = make_passage()
    other = Passage(there)
    yield here, other
    here.close()
    other.close()
    assert open_files() - len(shared._free) == before


Ends = tuple[Passage, Passage]


def restored(frames: Sequence[Buffer], passage: Passage | None, *, passes_on: bool = False) -> list[Buffer]:
    assert is_folded(frames)
    return unfold(frames, read_references(frames, MOST_BYTES), passage, passes_on=passes_on)


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


def test_a_message_without_large_frames_stays_as_it_is(ends: Ends) -> None:
    frames = [b"a" * (LARGE_BYTES - 1), b"b"]
    assert ends[0].fold(frames) is frames
    assert not is_folded(frames)
    assert not is_folded([])


def test_a_sealed_file_is_passed_on_without_a_copy(ends: Ends) -> None:
    """Its views stay in one file, also through a process that only passes it on."""
    views = seal([LARGE, LARGE[::-1]])
    assert views is not None
    part = part_of(views[0])
    assert part is not None
    assert part.file.fd is not None
    first = restored(ends[0].fold(views), ends[1], passes_on=True)
    again = ends[1].fold([first[1], b"between", first[0]])
    references = read_references(again, MOST_BYTES)
    assert references.files == [(os.fstat(part.file.fd).st_ino, part.file.size, 0)]
    assert restored(again, ends[0]) == [LARGE[::-1], b"between", LARGE]


def test_a_frame_that_is_in_a_message_twice_is_memory_of_its_own_each_time(ends: Ends) -> None:
    views = seal([LARGE, LARGE[::-1]])
    assert views is not None
    found = restored(ends[0].fold([views[0], views[1], views[0]]), ends[1])
    assert found == [LARGE, LARGE[::-1], LARGE]
    memoryview(found[0])[:3] = b"new"
    assert found[2] == LARGE


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


def test_more_files_than_the_kernel_passes_at_once_travel_in_the_message(ends: Ends) -> None:
    views = [seal([LARGE]) or [] for _ in range(MOST_FILES + 1)]
    frames = [view for own in views for view in own]
    assert len(frames) == MOST_FILES + 1
    assert ends[0].fold(frames) is frames
    assert restored(ends[0].fold(frames[1:]), ends[1]) == frames[1:]


# ---- buffers that are passed ahead ----


def named(numbers: Sequence[int], passage: Passage) -> list[Buffer]:
    return restored(with_ahead([b"header"], numbers), passage, passes_on=True)


def test_buffers_that_were_passed_ahead_are_the_last_frames_of_their_message(ends: Ends) -> None:
    first, second = ends[0].pass_ahead([LARGE, LARGE[::-1]]), ends[0].pass_ahead([LARGE * 2])
    assert named([second, first], ends[1]) == [b"header", LARGE * 2, LARGE, LARGE[::-1]]
    assert with_ahead([b"header"], []) == [b"header"]


def test_what_is_read_before_its_message_is_there_again_for_the_message(ends: Ends) -> None:
    """After that it is known that a message has named it."""
    numbers = [ends[0].pass_ahead([LARGE]), ends[0].pass_ahead([LARGE[::-1]])]
    for _ in range(2):
        assert ends[1].ahead(numbers) == [LARGE, LARGE[::-1]]
    third = ends[0].pass_ahead([LARGE * 2])
    assert ends[1].ahead([*numbers, third]) == [LARGE, LARGE[::-1], LARGE * 2]
    assert named(numbers, ends[1]) == [b"header", LARGE, LARGE[::-1]]
    assert ends[1].ahead(numbers) is None
    assert ends[1].ahead([]) == []
    assert ends[1].ahead([third]) == [LARGE * 2]


def test_what_is_passed_ahead_does_not_disturb_other_messages(ends: Ends) -> None:
    """Each is read before the other."""
    message = ends[0].fold([LARGE])
    number = ends[0].pass_ahead([LARGE[::-1]])
    later = ends[0].fold([LARGE * 2])
    assert ends[1].ahead([number]) == [LARGE[::-1]]
    assert restored(message, ends[1]) == [LARGE]
    assert restored(later, ends[1]) == [LARGE * 2]
    assert named([number], ends[1]) == [b"header", LARGE[::-1]]


def test_what_was_passed_ahead_survives_its_sender(ends: Ends) -> None:
    number = ends[0].pass_ahead([LARGE])
    ends[1].fold([LARGE])
    ends[0].close()
    assert ends[1].ahead([number]) == [LARGE]
    with pytest.raises(ProtocolError, match="not passed ahead"):
        ends[1].ahead([number + 1])


def test_what_was_not_taken_is_closed_with_the_passage(ends: Ends) -> None:
    """The fixture counts the open files."""
    ends[0].fold([LARGE])
    number = ends[0].pass_ahead([LARGE])
    assert ends[1].ahead([number]) == [LARGE]


def test_what_is_very_large_or_finds_no_room_is_not_passed_ahead(ends: Ends) -> None:
    assert ends[0].pass_ahead([bytes(REUSED_BYTES + 1)]) == 0
    numbers: list[int] = []
    while number := ends[0].pass_ahead([LARGE]):
        numbers.append(number)
    assert len({*numbers}) == len(numbers) > 0


def test_the_number_after_the_last_is_the_first(ends: Ends) -> None:
    ends[0]._numbered = LAST_NUMBER - 1
    numbers = [ends[0].pass_ahead([LARGE]) for _ in range(2)]
    assert numbers == [LAST_NUMBER, 1]
    assert ends[1].ahead(numbers) == [LARGE, LARGE]


# ---- hostile senders ----


def test_packets_that_no_message_names_are_limited(ends: Ends) -> None:
    for _ in range(MOST_AHEAD):
        ends[1].ahead([ends[0].pass_ahead([LARGE])])
    number = ends[0].pass_ahead([LARGE])
    with pytest.raises(ProtocolError, match="200 packets"):
        ends[1].ahead([number])


def test_files_of_messages_that_do_not_arrive_are_limited(ends: Ends) -> None:
    """A slave passes them while its agent looks for a packet: the agent does not keep them all."""
    for _ in range(MOST_UNTAKEN):
        ends[0].fold([LARGE])
        with pytest.raises(ProtocolError, match="not passed ahead"):
            ends[1].ahead([1])
    ends[0].fold([LARGE])
    with pytest.raises(ProtocolError, match=f"more than {MOST_UNTAKEN} messages that did not arrive"):
        ends[1].ahead([1])


def test_a_packet_is_named_once(ends: Ends) -> None:
    number = ends[0].pass_ahead([LARGE])
    with pytest.raises(ProtocolError, match="named twice"):
        named([number, number], ends[1])
    named([number], ends[1])
    with pytest.raises(ProtocolError, match="named twice"):
        named([number], ends[1])


def test_a_journal_names_a_packet_once(ends: Ends) -> None:
    """If many of its rows named the same packet, their agent would have as many copies of large buffers."""
    number = ends[0].pass_ahead([LARGE])
    with pytest.raises(ProtocolError, match="named twice"):
        ends[1].ahead([number, number])
    assert ends[1].ahead([number]) == [LARGE]


def test_only_a_process_that_passes_them_on_takes_packets(ends: Ends) -> None:
    number = ends[0].pass_ahead([LARGE])
    with pytest.raises(ProtocolError, match="does not pass them on"):
        restored(with_ahead([], [number]), ends[1])


@pytest.mark.parametrize("packet", [b"x" * 9, bytes(8) + b"\xc1", bytes(8) + FOLDED + b"\x91\xc0", bytes(5000)])
def test_a_malformed_packet_leaves_nothing_open(ends: Ends, packet: bytes) -> None:
    fds = os.pipe()
    socket.send_fds(ends[0]._socket, [packet], fds)
    for fd in fds:
        os.close(fd)
    with pytest.raises(ProtocolError):
        ends[1].ahead([1])


def test_a_packet_without_its_file_is_refused(ends: Ends) -> None:
    packet = (1).to_bytes(8, sys.byteorder) + bytes(message([(1, SIZE, 0)], [(0, 0, 0, SIZE)])[0])
    socket.send_fds(ends[0]._socket, [packet], [])
    with pytest.raises(ProtocolError, match="without its files"):
        ends[1].ahead([1])


def sent_file(passage: Passage) -> tuple[int, int]:
    """Pass a file without a message. Return its inode and size."""
    views = seal([LARGE])
    part = part_of(views[0]) if views else None
    assert part is not None
    assert part.file.fd is not None
    socket.send_fds(passage._socket, [FOLDED], [part.file.fd])
    return os.fstat(part.file.fd).st_ino, part.file.size


def message(files: object, frames: object) -> list[Buffer]:
    return [FOLDED + encode([files, frames]), b"header"]


SIZE = LARGE_BYTES


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([FOLDED], "a malformed list"),
        ([FOLDED + b"\xc1", b"header"], "a malformed list"),
        ([FOLDED + bytes(LARGE_BYTES)], "a list of shared files of 65537 bytes"),
        (message([(1, -1, 0)], []), "a malformed list"),
        (message([(1, 2**60, 0)], []), "a malformed list"),
        (message([(1, SIZE, 3)], []), "a malformed list"),
        (message([(1, 1, 0)] * (MOST_FILES + 1), []), "a malformed list"),
        (message([(1, 2**40, 0)], []), "shared files of 1099511627776 bytes for frames of 0 bytes"),
        (message([(1, SIZE, 0)], [(0, 0, 0, 0)]), "shared files of 65536 bytes for frames of 0 bytes"),
        (message([(1, SIZE, 0)], [(place, 0, 0, 2**29) for place in range(3)]), "for frames of 1610612736 bytes"),
        (message([(1, SIZE, 0)], [(2, 0, 0, 1)]), "does not fit its message"),
        (message([(1, SIZE, 0)], [(1, 0, 0, 1), (0, 0, 0, 1)]), "does not fit its message"),
        (message([(1, SIZE, 0)], [(0, 0, 0, 1), (0, 0, 0, 1)]), "does not fit its message"),
        (message([(1, SIZE, 0)], [(0, 1, 0, 1)]), "does not fit its message"),
        (message([], [(0, 0, 0, 1)]), "does not fit its message"),
    ],
)
def test_nonsense_is_refused_before_a_file_is_taken(frames: list[Buffer], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        restored(frames, None)


def test_files_that_were_not_passed_are_refused(ends: Ends) -> None:
    inode, size = sent_file(ends[0])
    for files in ([(inode, size, 0), (inode, size, 0)], [(inode, size, 0)]):
        with pytest.raises(ProtocolError, match=f"with {len(files)} shared files"):
            restored(message(files, []), ends[1])
    with pytest.raises(ProtocolError, match="without a passage"):
        restored(message([(inode, size, 0)], []), None)


def test_a_file_with_another_content_than_announced_is_refused(ends: Ends) -> None:
    inode, size = sent_file(ends[0])
    with pytest.raises(ProtocolError, match="not the one"):
        restored(message([(inode + 1, size, 0)], [(0, 0, 0, 1)]), ends[1])


def test_too_many_passed_files_leave_nothing_open(ends: Ends) -> None:
    fds = os.pipe()
    socket.send_fds(ends[0]._socket, [FOLDED], fds)
    for fd in fds:
        os.close(fd)
    with pytest.raises(ProtocolError, match="with 1 shared files"):
        restored(message([(1, 1, 0)], []), ends[1])


# ---- offers ----


def test_an_offer_is_accepted_once_by_a_process_of_this_host() -> None:
    offer = Offer()
    assert offer.accepted() is None
    (first, rest) = with_offer([b"hello"], offer)
    references = read_references([first, rest], MOST_BYTES)
    assert restored([first, rest], None) == [b"hello"]
    here = connect(references.offer)
    there = offer.accepted()
    offer.close()
    assert here is not None
    assert there is not None
    assert restored(here.fold([LARGE]), there) == [LARGE]
    assert connect(references.offer) is None
    here.close()
    there.close()


@pytest.mark.parametrize("name", ["", "mwpy-0", "mwpy-" + "g" * 32, "/tmp/.X11-unix/X0", "mwpy-" + "0" * 32])
def test_only_a_passage_of_mwpy_is_accepted(name: str) -> None:
    assert connect(name) is None


def test_a_process_of_another_user_has_no_passage(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = Offer()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert connect(offer.name) is None
    assert offer.accepted() is None
    offer.close()
