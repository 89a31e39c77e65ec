"""The journal from both sides: a slave writes and empties it, and its agent reads it."""

from __future__ import annotations

import random
import sys

import pytest

from mwpy._transport.channel import CAPACITY, FAILED, JOURNAL_BYTES, Journal
from mwpy._transport.codec import Codec
from mwpy._values import groups
from mwpy._values.errors import ProtocolError
from mwpy._values.messages import check

Entry = tuple[int, int, float, bool, object]

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


def entries(journal: Journal) -> list[Entry] | None:
    """Return what the journal holds: task, attempt, seconds, whether it failed, and its value."""
    found = journal.read(7)
    if found is None:
        return None
    group, frames = found
    check(group, frames)
    assert (group.slave, group.buffers, len(frames)) == (7, [], 1)
    failed = [position in group.failed for position in range(len(group.seconds))]
    columns = (group.seconds, failed, groups.entries(group, frames)[0])
    return [(*name, *rest) for name, rest in zip(groups.each_task(group), zip(*columns, strict=True), strict=True)]


def test_an_addition_that_an_exception_ends_leaves_nothing(slave: Journal, agent: Journal) -> None:
    """A signal handler of a task may raise an exception at any time."""

    class Interrupted:
        """The column of times. A signal arrives when the slave writes into it."""

        def __setitem__(self, place: int, seconds: float) -> None:
            raise KeyboardInterrupt

    seconds = slave._seconds
    for _ in range(CAPACITY + 1):
        slave._seconds = Interrupted()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            slave.add_any(5, 1, 0.0, encoded(5), FAILED)
    slave._seconds = seconds
    assert entries(agent) == []
    assert slave.add(6, 1, 0.5, encoded(6))
    assert slave.add(7, 1, 0.5, encoded(7))
    assert entries(agent) == [(6, 1, 0.5, False, 6), (7, 1, 0.5, False, 7)]


def test_a_read_during_which_the_journal_was_emptied_is_discarded(slave: Journal, agent: Journal) -> None:
    slave.add(1, 1, 0.0, encoded("sent"))

    class Meddler:
        """The journal's memory. The slave empties and fills it during a read."""

        def __init__(self, memory: memoryview) -> None:
            self.memory = memory

        def __getitem__(self, part: slice) -> memoryview:
            slave.clear()
            slave.add(2, 1, 0.0, encoded("another"))
            return self.memory[part]

    memory = agent._memory
    agent._memory = Meddler(memory)  # type: ignore[assignment]
    assert agent.read(7) is None
    agent._memory = memory
    assert entries(agent) == [(2, 1, 0.0, False, "another")]


def test_the_number_of_the_filling_wraps_around(memory: bytearray, slave: Journal, agent: Journal) -> None:
    """After the largest number comes 0, and results are read before and after that."""

    def filling() -> int:
        return int.from_bytes(memory[:8], sys.byteorder) >> 32

    last = (1 << 32) - 1
    slave._number = last << 32
    slave.add(1, 1, 0.0, encoded(1))
    assert filling() == last
    assert entries(agent) == [(1, 1, 0.0, False, 1)]
    slave.clear()
    assert filling() == 0
    assert entries(agent) == []
    slave.add(2, 1, 0.0, encoded(2))
    assert filling() == 0
    assert entries(agent) == [(2, 1, 0.0, False, 2)]


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
