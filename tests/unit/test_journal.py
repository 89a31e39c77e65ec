"""The journal, seen from both sides: a slave that notes and empties, and its agent that reads."""

from __future__ import annotations

import random
import sys
import threading

import pytest

from mwpy._transport.channel.journal import CAPACITY, JOURNAL_BYTES, PAYLOAD_BYTES, Journal
from mwpy._transport.codec import Codec
from mwpy._values import messages
from mwpy._values.errors import ProtocolError

Entry = tuple[int, int, float, bool, object]

CODEC = Codec()


def encoded(value: object) -> bytes:
    """What stands for a value in a group."""
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
    """What is noted: task, attempt, seconds, whether it failed, and what came of it."""
    found = journal.read(7)
    if found is None:
        return None
    group, frames = found
    messages.check(group, frames)
    assert (group.slave, group.buffers, len(frames)) == (7, [], 1)
    failed = [position in group.failed for position in range(len(group.seconds))]
    columns = (group.seconds, failed, messages.entries(group, frames)[0])
    return [(*name, *rest) for name, rest in zip(messages.each_task(group), zip(*columns, strict=True), strict=True)]


def test_the_journal_holds_what_was_finished_and_not_sent(slave: Journal, agent: Journal) -> None:
    assert entries(agent) == []
    assert slave.add(1 << 40, 2, 0.5, False, encoded("value"))
    assert slave.add(3, 1, 0.0, True, encoded(None))
    assert entries(agent) == [(1 << 40, 2, 0.5, False, "value"), (3, 1, 0.0, True, None)]
    assert (slave.count, agent.count) == (2, 0)
    slave.clear()
    assert (entries(agent), slave.count) == ([], 0)
    slave.add(4, 1, 0.0, False, encoded("next"))
    assert entries(agent) == [(4, 1, 0.0, False, "next")]


def test_results_are_named_in_spans_and_stand_as_they_are_sent(slave: Journal) -> None:
    """The slave sends what it reads."""
    for task_id, attempt in ((5, 1), (6, 1), (7, 2), (9, 2)):
        slave.add(task_id, attempt, 0.5, task_id in (6, 9), encoded(task_id))
    group = messages.Results(3, [5, 7, 9], [2, 1, 1], [1, 2, 2], [0.5] * 4, [1, 3])
    assert slave.read(3) == (group, [messages.payload(4, [bytes([5, 6, 7, 9])])])


@pytest.mark.parametrize("size", [0, 1000, PAYLOAD_BYTES - 5])
def test_a_full_journal_takes_no_more_and_keeps_what_it_has(slave: Journal, agent: Journal, size: int) -> None:
    """Full of rows, full of payloads, or of a single payload that just fits."""
    value = "x" * size
    count = 0
    while slave.add(count, 1, 0.0, False, encoded(value)):
        count += 1
    assert count == min(CAPACITY, PAYLOAD_BYTES // len(encoded(value)))
    assert slave.count == count
    assert entries(agent) == [(number, 1, 0.0, False, value) for number in range(count)]
    slave.clear()
    assert not slave.add(0, 1, 0.0, False, bytes(PAYLOAD_BYTES + 1))
    assert slave.add(0, 1, 0.0, False, encoded(value))


def test_a_reading_during_which_the_journal_was_emptied_is_no_reading(slave: Journal, agent: Journal) -> None:
    slave.add(1, 1, 0.0, False, encoded("sent"))

    class Meddler:
        """The journal's memory, emptied and filled again by the slave just when it is read."""

        def __init__(self, memory: memoryview) -> None:
            self.memory = memory

        def __getitem__(self, part: slice) -> memoryview:
            slave.clear()
            slave.add(2, 1, 0.0, False, encoded("another"))
            return self.memory[part]

    memory = agent._memory
    agent._memory = Meddler(memory)  # type: ignore[assignment]
    assert agent.read(7) is None
    agent._memory = memory
    assert entries(agent) == [(2, 1, 0.0, False, "another")]


def test_an_addition_does_not_disturb_a_reading(slave: Journal, agent: Journal) -> None:
    """Readings beside a slave that only adds: each is a beginning of what was added, and none is refused."""
    adding = threading.Thread(target=lambda: [slave.add(n, 1, float(n), False, encoded(n)) for n in range(3000)])
    adding.start()
    readings = []
    while adding.is_alive():
        readings.append(entries(agent))
    adding.join()
    readings.append(entries(agent))
    assert len(readings[-1] or []) == 3000
    for reading in readings:
        assert reading == [(n, 1, float(n), False, n) for n in range(len(reading or []))]


def test_the_number_of_the_filling_wraps_around(memory: bytearray, slave: Journal, agent: Journal) -> None:
    """After the last number that fits into the word comes 0, and results are read before and after."""

    def word() -> int:
        return int.from_bytes(memory[:8], sys.byteorder)

    last = (1 << 64) - (1 << 32)
    slave._filling = last
    slave.add(1, 1, 0.0, False, encoded(1))
    assert word() == last + 1
    assert entries(agent) == [(1, 1, 0.0, False, 1)]
    slave.clear()
    assert word() == 0
    assert entries(agent) == []
    slave.add(2, 1, 0.0, False, encoded(2))
    assert word() == 1
    assert entries(agent) == [(2, 1, 0.0, False, 2)]


def test_a_journal_that_stray_code_wrote_over_is_read_and_does_not_pass_as_results(
    memory: bytearray, agent: Journal
) -> None:
    """Whatever stands there, nothing but the check of messages complains."""
    for noise in (random.Random(1).randbytes(JOURNAL_BYTES), b"\xff" * JOURNAL_BYTES):
        memory[:] = noise
        found = agent.read(7)
        assert found is not None
        with pytest.raises(ProtocolError):
            messages.check(*found)


def test_a_closed_journal_lets_go_of_the_memory(memory: bytearray, slave: Journal) -> None:
    with pytest.raises(BufferError):
        memory.append(0)
    slave.close()
    memory.append(0)
    for use in (lambda: slave.add(1, 1, 0.0, False, b"x"), slave.clear, lambda: slave.read(7)):
        with pytest.raises((ValueError, TypeError)):
            use()
