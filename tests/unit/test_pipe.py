"""The channels, both ends in one process, and in two where a death or a fork matters."""

from __future__ import annotations

import os
import select
import struct
import threading
from collections.abc import Iterator
from itertools import product

import pytest

from mwpy import _pipe
from mwpy._pipe import AgentEnd, SlaveEnd, SlaveFds, open_channel, stream, task_of, tickets_of
from mwpy.errors import ProtocolError
from mwpy.task import Buffer

MEGABYTE = 1 << 20


@pytest.fixture
def ends() -> Iterator[tuple[AgentEnd, SlaveEnd]]:
    agent, fds = open_channel()
    slave = SlaveEnd(fds)
    yield agent, slave
    agent.close()
    if not slave.forked and slave._tickets >= 0:
        slave.close()


Ends = tuple[AgentEnd, SlaveEnd]


def receive(agent: AgentEnd, count: int) -> list[list[Buffer]]:
    messages: list[list[Buffer]] = []
    while len(messages) < count and not agent.eof:
        select.select([agent], [], [])
        messages += agent.receive()
    return messages


# ---- stream ----


@pytest.mark.parametrize(
    "frames",
    [
        [b"ab", b"header"],
        [b"ab", b"", b"x"],
        [b"x" * stream.LARGE_BYTES],
        [b"a", bytes(range(256)) * 4096, b"b", b"c" * (3 * MEGABYTE + 1)],
        [b"x" * (stream.LARGE_BYTES - 1)] * 20,
        [],
    ],
    ids=["small", "empty frame", "exactly large", "mixed", "many", "no frames"],
)
def test_messages_arrive_whole_both_ways(ends: Ends, frames: list[Buffer]) -> None:
    agent, slave = ends
    heard: list[list[Buffer] | None] = []
    listening = threading.Thread(target=lambda: heard.extend(slave.receive() for _ in range(3)))
    listening.start()
    for _ in range(3):
        agent.send(frames)
    while agent.wants_write:
        select.select([], [agent], [])
        agent.flush()
    listening.join()
    assert heard == [frames] * 3
    talking = threading.Thread(target=lambda: [slave.send(frames) for _ in range(3)])
    talking.start()
    assert receive(agent, 3) == [frames] * 3
    talking.join()


def test_large_frames_can_be_changed_in_place_by_who_receives_them(ends: Ends) -> None:
    agent, slave = ends
    agent.send([b"small", bytes(stream.LARGE_BYTES)])
    frames = slave.receive()
    assert frames is not None
    assert isinstance(frames[0], bytes)
    assert not memoryview(frames[1]).readonly


def test_a_message_may_arrive_byte_by_byte(ends: Ends) -> None:
    agent, slave = ends
    for piece in b"".join(stream.pack([b"ab", b"header"])):
        assert agent.receive() == []
        slave._stream.send(bytes([piece]))
    assert agent.receive() == [[b"ab", b"header"]]


def test_an_agent_never_waits_for_a_slave_that_does_not_read(ends: Ends) -> None:
    agent, slave = ends
    for _ in range(30):
        agent.send([b"x" * 100, b"y" * 100_000])
    assert agent.wants_write
    for _ in range(30):
        assert slave.receive() == [b"x" * 100, b"y" * 100_000]
        agent.flush()
    assert not agent.wants_write


def test_an_agent_reads_a_bounded_amount_at_a_time(ends: Ends) -> None:
    agent, slave = ends
    flood = threading.Thread(target=lambda: [slave.send([b"x" * 60_000]) for _ in range(200)])
    flood.start()
    first = len(agent.receive())
    assert first < 200
    assert len(receive(agent, 200 - first)) == 200 - first
    flood.join()


def test_the_slave_hears_of_messages_and_of_tickets_while_it_waits(ends: Ends) -> None:
    agent, slave = ends
    assert not slave.poll()
    agent.give_tickets([1])
    assert not slave.poll()
    assert not slave.poll(60.0, tickets=True)
    agent.send([b"a"])
    agent.send([b"b"])
    assert slave.poll(60.0)
    assert slave.receive() == [b"a"]
    assert slave.poll()
    assert slave.poll()
    assert slave.receive() == [b"b"]
    assert not slave.poll()


def test_each_side_hears_of_the_end_of_the_other(ends: Ends) -> None:
    agent, slave = ends
    slave.send([b"last words"])
    slave.close()
    assert (agent.receive(), agent.eof) == ([[b"last words"]], True)
    agent.send([b"too late"])
    assert not agent.wants_write


def test_a_slave_without_an_agent_is_told_so() -> None:
    agent, fds = open_channel()
    slave = SlaveEnd(fds)
    agent.give_tickets([1])
    agent.close()
    assert slave.take_ticket() == 1
    assert slave.take_ticket() is None
    assert slave.poll(60.0, tickets=True)
    assert slave.receive() is None
    assert not slave.send([b"x"])
    slave.close()


def test_an_agent_that_dies_without_reading_is_gone_too() -> None:
    agent, fds = open_channel()
    slave = SlaveEnd(fds)
    slave.send([b"never read"])
    agent.close()  # unread data make the kernel say "reset"
    assert slave.receive() is None
    slave.close()


def test_an_agent_hears_a_reset_as_the_end(ends: Ends) -> None:
    agent, slave = ends
    agent.send([b"never read"])
    slave.close()
    assert (agent.receive(), agent.eof) == ([], True)


@pytest.mark.parametrize(
    "noise", [struct.pack("=I", 1 << 31), struct.pack("=IQ", 1, 1 << 40), b"print('hello, world')" * 10]
)
def test_what_is_no_message_is_the_slaves_fault_and_heard_once(ends: Ends, noise: bytes) -> None:
    agent, slave = ends
    slave._stream.send(noise)
    with pytest.raises(ProtocolError):
        agent.receive()
    slave._stream.send(noise)
    assert agent.receive() == []


# ---- tickets ----


def test_tickets_are_taken_one_by_one_in_their_order(ends: Ends) -> None:
    agent, slave = ends
    agent.give_tickets([5, 1 << 62, 7])
    assert [slave.take_ticket() for _ in range(4)] == [5, 1 << 62, 7, None]


@pytest.mark.parametrize(
    ("count", "taken", "left"),
    [(2, [4, 5], [1, 2, 3]), (5, [1, 2, 3, 4, 5], []), (9, [1, 2, 3, 4, 5], []), (0, [], [1, 2, 3, 4, 5])],
)
def test_the_last_tasks_are_taken_back_and_the_others_stay_in_order(
    ends: Ends, count: int, taken: list[int], left: list[int]
) -> None:
    agent, slave = ends
    agent.give_tickets(range(1, 6))
    assert agent.take_back(count) == taken
    assert [slave.take_ticket() for _ in left] == left
    assert slave.take_ticket() is None


def test_each_attempt_at_a_task_has_a_ticket_of_its_own() -> None:
    tickets = tickets_of(*zip(*product((1, 2, 1 << 47), (1, 2, 65535)), strict=True))
    assert len(set(tickets)) == len(tickets)
    assert {task_of(ticket) for ticket in tickets} == {1, 2, 1 << 47}


def test_a_ticket_that_was_taken_is_not_taken_back(ends: Ends) -> None:
    agent, slave = ends
    agent.give_tickets([1, 2, 3])
    slave.take_ticket()
    assert agent.take_back(2) == [2, 3]


def test_tickets_beyond_the_pipe_wait_in_the_agent_and_follow_in_order(ends: Ends) -> None:
    agent, slave = ends
    many = range(1, 3 * _pipe.TICKET_PIPE_BYTES // 8)
    agent.give_tickets(many)
    taken = []
    while (ticket := slave.take_ticket()) is not None:
        taken.append(ticket)
        if len(taken) % 1000 == 0:
            agent.receive()
    assert taken == list(many)


def test_tickets_that_wait_in_the_agent_are_taken_back_too(ends: Ends) -> None:
    agent, slave = ends
    many = list(range(1, 3 * _pipe.TICKET_PIPE_BYTES // 8))
    agent.give_tickets(many)
    assert agent.take_back(10) == many[-10:]
    slave.take_ticket()
    assert agent.unused_tickets() == many[1:-10]
    assert agent.unused_tickets() == []


def test_each_ticket_goes_to_one_side_only_however_they_race(ends: Ends) -> None:
    """The slave runs while the agent takes back and gives again; together they have each ticket once."""
    agent, slave = ends
    taken: list[int] = []
    over = threading.Event()

    def run() -> None:
        while True:
            last_look = over.is_set()
            ticket = slave.take_ticket()
            if ticket is not None:
                taken.append(ticket)
            elif last_look:
                return

    running = threading.Thread(target=run)
    running.start()
    returned: list[int] = []
    for start in range(0, 20_000, 1000):
        agent.give_tickets(range(start, start + 1000))
        returned += agent.take_back(100)
    over.set()
    running.join()
    assert sorted(taken + returned) == list(range(20_000))
    assert taken == sorted(taken)


# ---- journal ----


def test_the_journal_holds_what_was_finished_and_not_sent(ends: Ends) -> None:
    agent, slave = ends
    assert agent.journal() == []
    assert slave.journal_add(1 << 40, 2, 0.5, False, b"payload")
    assert slave.journal_add(3, 1, 0.0, True, b"")
    assert agent.journal() == [(1 << 40, 2, 0.5, False, b"payload"), (3, 1, 0.0, True, b"")]
    slave.journal_clear()
    assert agent.journal() == []
    slave.journal_add(4, 1, 0.0, False, b"next")
    assert agent.journal() == [(4, 1, 0.0, False, b"next")]


def test_a_full_journal_takes_no_more_and_keeps_what_it_has(ends: Ends) -> None:
    agent, slave = ends
    count = 0
    while slave.journal_add(count, 1, 0.0, False, b"x" * 1000):
        count += 1
    assert count > _pipe.JOURNAL_BYTES // 1100
    entries = agent.journal()
    assert entries is not None
    assert [entry.task_id for entry in entries] == list(range(count))
    assert not slave.journal_add(0, 1, 0.0, False, bytes(_pipe.JOURNAL_BYTES))


def test_a_reading_during_which_the_journal_was_emptied_is_no_reading(ends: Ends) -> None:
    agent, slave = ends
    slave.journal_add(1, 1, 0.0, False, b"sent")

    class Meddler:
        """The journal, emptied and filled again by the slave just when it is read."""

        def __init__(self, memory: object) -> None:
            self.memory = memory

        def __getitem__(self, part: slice) -> bytes:
            slave.journal_clear()
            slave.journal_add(2, 1, 0.0, False, b"another")
            return self.memory[part]  # type: ignore[index, no-any-return]

    memory = agent._journal
    agent._journal = Meddler(memory)  # type: ignore[assignment]
    assert agent.journal() is None
    agent._journal = memory
    assert agent.journal() == [(2, 1, 0.0, False, b"another")]


def test_an_addition_does_not_disturb_a_reading(ends: Ends) -> None:
    """Readings beside a slave that only adds: each is a beginning of what was added, and none is refused."""
    agent, slave = ends
    adding = threading.Thread(target=lambda: [slave.journal_add(n, 1, float(n), False, b"%d" % n) for n in range(3000)])
    adding.start()
    readings = []
    while adding.is_alive():
        readings.append(agent.journal())
    adding.join()
    for entries in readings:
        assert entries == [(n, 1, float(n), False, b"%d" % n) for n in range(len(entries or []))]


def test_the_number_of_fillings_starts_again_after_the_last(ends: Ends) -> None:
    agent, slave = ends
    slave._filling = (1 << 64) - (1 << 32)
    slave.journal_clear()
    slave.journal_add(1, 1, 0.0, False, b"")
    assert agent.journal() == [(1, 1, 0.0, False, b"")]


def test_a_journal_that_stray_code_wrote_over_raises_nothing(ends: Ends) -> None:
    agent, slave = ends
    slave._journal[:] = os.urandom(_pipe.JOURNAL_BYTES)
    agent.journal()
    slave._journal[:] = b"\xff" * _pipe.JOURNAL_BYTES
    agent.journal()


# ---- processes ----


def test_everything_that_was_finished_outlives_the_slave() -> None:
    agent, fds = open_channel()
    agent.give_tickets([1, 2, 3])
    if (pid := os.fork()) == 0:
        slave = SlaveEnd(fds)
        slave.take_ticket()
        slave.journal_add(1, 1, 0.25, False, b"done")
        slave.take_ticket()
        os.kill(os.getpid(), 9)
    fds.close()
    os.waitpid(pid, 0)
    assert (agent.receive(), agent.eof) == ([], True)
    assert agent.journal() == [(1, 1, 0.25, False, b"done")]
    assert agent.unused_tickets() == [3]
    agent.close()


def test_a_forked_child_has_no_channels(ends: Ends) -> None:
    """It can neither take tickets nor talk nor keep the stream open, and the slave does not notice it."""
    agent, slave = ends
    agent.give_tickets([1])
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        uses = (
            slave.take_ticket,
            slave.receive,
            lambda: slave.send([b"x"]),
            lambda: slave.journal_add(1, 1, 0.0, False, b"x"),
            slave.journal_clear,
        )
        refused = 0
        for use in uses:
            try:
                use()
            except (OSError, ValueError):
                refused += 1
        os.write(writing, b"%d%d" % (slave.forked, refused))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 10) == b"15"
    assert not slave.forked
    assert slave.take_ticket() == 1
    assert agent.journal() == []
    assert slave.send([b"fine"])
    assert agent.receive() == [[b"fine"]]
    os.close(reading)
    os.close(writing)


def test_the_channels_do_not_pass_to_other_programs_unasked() -> None:
    agent, fds = open_channel()
    assert not any(os.get_inheritable(fd) for fd in fds.numbers())
    for fd in fds.numbers():
        os.set_inheritable(fd, True)
    slave = SlaveEnd(fds)
    assert not any(os.get_inheritable(fd) for fd in (fds.stream, fds.tickets))
    slave.close()
    agent.close()


def test_file_descriptors_that_are_no_channel_are_refused() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        SlaveEnd(SlaveFds(1000, 1001, 1002))


def test_the_pipe_as_it_comes_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("fcntl.fcntl", refuse)
    agent, fds = open_channel()
    agent.give_tickets(range(100_000))
    assert agent.unused_tickets() == list(range(100_000))
    fds.close()
    agent.close()
