"""The journal from both sides: a slave writes and empties it, and its agent reads it."""

from __future__ import annotations

import random
import sys

import pytest

from mwpy._transport.channel import JOURNAL_BYTES, PAYLOAD_BYTES, SPANS, Journal
from mwpy._transport.codec import Codec
from mwpy._values import groups
from mwpy._values.errors import ProtocolError
from mwpy._values.messages import check

CODEC = Codec()


def encoded(value: object) -> bytes:
    """Return the entry of a value in a group."""
    return CODEC.dumps_value(value)[0]


@pytest.fixture
def memory() -> bytearray:
    return bytearray(JOURNAL_BYTES)


@pytest.fixture
def slave(memory: bytearray) -> Journal:
    return Journal(memoryview(memory))


@pytest.fixture
def agent(memory: bytearray) -> Journal:
    return Journal(memoryview(memory))


def values(journal: Journal) -> list[object]:
    """Return the values that the journal holds."""
    found = journal.read(7)
    if found is None:
        return []
    check(*found)
    return groups.entries(*found)[0]


def test_a_read_during_which_the_journal_was_emptied_is_repeated(slave: Journal, agent: Journal) -> None:
    slave.add(1, 1, 1, 0.0, encoded("sent"))

    class Meddler:
        """The journal's memory. The slave empties and fills it once during a read."""

        def __init__(self, memory: memoryview) -> None:
            self.memory = memory

        def __getitem__(self, part: slice) -> memoryview:
            if slave._next == 2:
                slave.clear()
                slave.add(2, 1, 1, 0.0, encoded("another"))
            return self.memory[part]

    agent._memory = Meddler(agent._memory)  # type: ignore[assignment]
    assert values(agent) == ["another"]


def test_the_number_of_the_filling_wraps_around(memory: bytearray, slave: Journal, agent: Journal) -> None:
    """After the largest number comes 0, and results are read before and after that."""

    def filling() -> int:
        return int.from_bytes(memory[:8], sys.byteorder) >> 40

    slave._number = (1 << 64) - (1 << 40)
    slave.add(1, 1, 1, 0.0, encoded(1))
    assert filling() == (1 << 24) - 1
    assert values(agent) == [1]
    slave.clear()
    assert filling() == 0
    assert values(agent) == []
    slave.add(2, 1, 1, 0.0, encoded(2))
    assert filling() == 0
    assert values(agent) == [2]


@pytest.mark.parametrize("is_long", [True, False])
def test_what_has_no_room_is_not_added(slave: Journal, agent: Journal, is_long: bool) -> None:
    """There is a limit for the bytes, and one for the spans."""
    added = 0
    while slave.add(2 * added, 1, 1, 0.0, encoded("x" * (PAYLOAD_BYTES // 6 if is_long else 1))):
        added += 1
    assert len(values(agent)) == added == (5 if is_long else SPANS)
    slave.clear()
    assert slave.add(1, 1, 1, 0.0, encoded(1))


def test_a_journal_that_faulty_code_overwrote_can_be_read_and_does_not_pass_as_results(
    memory: bytearray, agent: Journal
) -> None:
    """Reading any bytes raises no error. The check of messages rejects what was read."""
    for noise in (random.Random(1).randbytes(JOURNAL_BYTES), b"\xff" * JOURNAL_BYTES):
        memory[:] = noise
        found = agent.read(7)
        assert found is not None
        with pytest.raises(ProtocolError):
            check(*found)
