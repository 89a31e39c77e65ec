"""The journal from both sides: a slave writes and empties it, and its agent reads it."""

from __future__ import annotations

import random
import sys
import threading

import pytest

from mwpy._transport.channel import AGAIN, CAPACITY, FAILED, JOURNAL_BYTES, PAYLOAD_BYTES, VALUE, Journal
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages
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


def test_the_journal_holds_the_results_that_were_not_sent(slave: Journal, agent: Journal) -> None:
    assert entries(agent) == []
    assert slave.add(1 << 40, 2, 0.5, encoded("value"))
    assert slave.add_any(3, 1, 0.0, encoded(None), FAILED)
    assert entries(agent) == [(1 << 40, 2, 0.5, False, "value"), (3, 1, 0.0, True, None)]
    assert (slave.count, agent.count) == (2, 0)
    slave.clear()
    assert (entries(agent), slave.count) == ([], 0)
    slave.add(4, 1, 0.0, encoded("next"))
    assert entries(agent) == [(4, 1, 0.0, False, "next")]


def test_results_are_named_in_spans_and_stored_as_they_are_sent(slave: Journal) -> None:
    """The slave sends the group that it reads from its journal."""
    for task_id, attempt in ((5, 1), (6, 1), (7, 2), (9, 2)):
        slave.add_any(task_id, attempt, 0.5, encoded(task_id), FAILED if task_id in (6, 9) else VALUE)
    group = messages.Results(3, [5, 7, 9], [2, 1, 1], [1, 2, 2], [0.5] * 4, [1, 3])
    assert slave.read(3) == (group, [groups.payload(4, [bytes([5, 6, 7, 9])])])


def test_a_result_says_whether_it_is_a_failure_and_whether_the_task_is_tried_again(slave: Journal) -> None:
    """Another number is a failure: a task may have overwritten the memory."""
    for task_id, kind in enumerate((VALUE, AGAIN, FAILED, AGAIN, 77)):
        slave.add_any(task_id, 1, 0.5, encoded(task_id), kind)
    found = slave.read(3)
    assert found is not None
    check(*found)
    assert (found[0].failed, found[0].again) == ([1, 2, 3, 4], [1, 3])


@pytest.mark.parametrize("size", [0, 1000, PAYLOAD_BYTES - 5])
def test_a_full_journal_refuses_results_and_keeps_the_others(slave: Journal, agent: Journal, size: int) -> None:
    """A full journal has no room for a row or for a payload, perhaps because one large payload fills it."""
    value = "x" * size
    count = 0
    while slave.add(count, 1, 0.0, encoded(value)):
        count += 1
    assert not slave.add_any(count, 1, 0.0, encoded(value), FAILED)
    assert count == min(CAPACITY, PAYLOAD_BYTES // len(encoded(value)))
    assert slave.count == count
    assert entries(agent) == [(number, 1, 0.0, False, value) for number in range(count)]
    slave.clear()
    assert not slave.add(0, 1, 0.0, bytes(PAYLOAD_BYTES + 1))
    assert slave.add(0, 1, 0.0, encoded(value))


def test_a_journal_full_of_failures_has_all_of_them(slave: Journal, agent: Journal) -> None:
    for number in range(CAPACITY):
        assert slave.add_any(2 * number, 1, 0.0, encoded(number), FAILED)
    assert not slave.add_any(1, 1, 0.0, encoded(1), FAILED)
    assert entries(agent) == [(2 * number, 1, 0.0, True, number) for number in range(CAPACITY)]


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


def test_the_numbers_of_a_full_journal_do_not_reach_its_filling(slave: Journal, memory: bytearray) -> None:
    for number in range(CAPACITY):
        slave.add(number, 1, 0.0, bytes(PAYLOAD_BYTES // CAPACITY))
    assert slave.count == CAPACITY
    assert memory[4:8] == bytes(4)
    assert slave.read(1) == (
        messages.Results(1, [0], [CAPACITY], [1], [0.0] * CAPACITY, []),
        [groups.payload(CAPACITY, [bytes(PAYLOAD_BYTES)])],
    )


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


def test_an_addition_does_not_disturb_a_read(slave: Journal, agent: Journal) -> None:
    """While a slave adds results, each read gives the first of them in their order, and no read is discarded."""
    adding = threading.Thread(target=lambda: [slave.add(n, 1, float(n), encoded(n)) for n in range(3000)])
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


def test_a_closed_journal_releases_the_memory(memory: bytearray, slave: Journal) -> None:
    with pytest.raises(BufferError):
        memory.append(0)
    slave.close()
    memory.append(0)
    for use in (lambda: slave.add(1, 1, 0.0, b"x"), slave.clear, lambda: slave.read(7)):
        with pytest.raises((ValueError, TypeError)):
            use()
