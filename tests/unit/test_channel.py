"""The channel between agent and slave. Both ends are in one process, except where a death or a fork matters."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

import pytest

from mwpy._transport import stream
from mwpy._transport.channel import SETTLE_S, AgentEnd, SlaveEnd, open_channel
from mwpy._transport.stream import Passage
from mwpy._values.bounds import LARGE_BYTES, Buffer
from mwpy._values.errors import ProtocolError

MEGABYTE = 1 << 20


@pytest.fixture
def ends() -> Iterator[tuple[AgentEnd, SlaveEnd]]:
    agent, fds = open_channel()
    slave = SlaveEnd(fds)
    yield agent, slave
    agent.close()
    if slave._stream.fileno() >= 0:
        slave.close()


Ends = tuple[AgentEnd, SlaveEnd]


def receive(agent: AgentEnd, count: int) -> list[list[Buffer]]:
    received: list[list[Buffer]] = []
    while len(received) < count and not agent.eof:
        select.select([agent], [], [])
        received += agent.receive()
    return received


def send_often(slave: SlaveEnd, frames: list[Buffer], times: int) -> None:
    for _ in range(times):
        slave.send(frames)


# ---- stream ----


@pytest.mark.parametrize(
    "frames",
    [
        [b"ab", b"header"],
        [b"ab", b"", b"x"],
        [b"x" * LARGE_BYTES],
        [b"a", bytes(range(256)) * 4096, b"b", b"c" * (3 * MEGABYTE + 1)],
        [b"x" * (LARGE_BYTES - 1)] * 20,
        [],
    ],
    ids=["small", "empty frame", "exactly large", "mixed", "many", "no frames"],
)
def test_messages_arrive_complete_in_both_directions(ends: Ends, frames: list[Buffer]) -> None:
    agent, slave = ends
    received: list[list[Buffer]] = []

    def listen() -> None:
        while len(received) < 3:
            received.extend(slave.receive(60.0))

    listening = threading.Thread(target=listen)
    listening.start()
    for _ in range(3):
        agent.send(frames)
    while agent.wants_write:
        select.select([], [agent], [])
        agent.flush()
    listening.join()
    assert received == [frames] * 3
    talking = threading.Thread(target=send_often, args=(slave, frames, 3))
    talking.start()
    assert receive(agent, 3) == [frames] * 3
    talking.join()


def test_large_frames_pass_through_the_stream_if_they_cannot_be_passed_in_files(ends: Ends) -> None:
    agent, slave = ends
    agent._passage.close()
    slave._end._passage.close()
    test_messages_arrive_complete_in_both_directions(ends, [b"a", b"b" * MEGABYTE, b"c", b"d" * LARGE_BYTES])


@pytest.mark.parametrize("has_passage", [True, False])
def test_the_receiver_can_change_large_frames_in_place(ends: Ends, has_passage: bool) -> None:
    agent, slave = ends
    if not has_passage:
        agent._passage.close()
    agent.send([b"small", bytes(LARGE_BYTES)])
    [frames] = slave.receive()
    assert isinstance(frames[0], bytes)
    assert not memoryview(frames[1]).readonly


def test_an_agent_never_waits_for_a_slave_that_does_not_read(ends: Ends) -> None:
    agent, slave = ends
    for _ in range(30):
        agent.send([b"x" * 100, b"y" * 60_000])
    assert agent.wants_write
    received: list[list[Buffer]] = []
    while len(received) < 30:
        received += slave.receive()
        agent.flush()
    assert received == [[b"x" * 100, b"y" * 60_000]] * 30


def test_each_side_notices_the_end_of_the_other(ends: Ends) -> None:
    agent, slave = ends
    slave.send([b"last words"])
    slave.close()
    assert agent.receive() == [[b"last words"]]
    assert (agent.receive(), agent.eof) == ([], True)
    agent.send([b"too late"])
    assert not agent.wants_write


def test_a_slave_notices_that_its_agent_is_gone() -> None:
    agent, fds = open_channel()
    slave = SlaveEnd(fds)
    agent.close()
    assert slave.start(1)
    assert not slave.eof
    assert (slave.receive(60.0), slave.eof) == ([], True)
    slave.send([b"x"])
    slave.close()


def test_a_message_that_is_sent_within_another_one_follows_it(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer of a task logs while a message is being sent."""
    agent, slave = ends
    pack = stream.pack

    def pack_and_log(frames: Sequence[Buffer], passage: Passage | None = None) -> list[Buffer]:
        if frames == [b"outer"]:
            slave.send([b"inner"])
        [piece] = pack(frames, passage)
        return [piece[:10], piece[10:]]

    monkeypatch.setattr(stream, "pack", pack_and_log)
    slave.send([b"outer"])
    assert agent.receive() == [[b"outer"], [b"inner"]]


LARGEST = 1 << 20


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        (struct.pack("=QI", 1 << 30, 1), "a message of 1 frames in 1073741824 bytes"),
        (struct.pack("=QI", 8, 2), "a message of 2 frames in 8 bytes"),
        (struct.pack("=QIQQ", 16, 2, 900_000, 900_000), "a message of 1800000 bytes"),
        (struct.pack("=QI", 8 << 14, 1 << 14) + bytes(8 << 14), "a message of 16384 frames in 131072 bytes"),
        (struct.pack("=QIQ", 9, 1, 2) + b"abc", "1 frames that do not fill their message"),
        (b"print('hello, world')" * 10, "a message of"),
    ],
)
def test_a_malformed_message_is_an_error_once(noise: bytes, reason: str) -> None:
    """Nonsense in the stream must not let the agent allocate memory for it."""
    agent, fds = open_channel(LARGEST)
    slave = SlaveEnd(fds)
    slave._stream.sendall(noise)
    with pytest.raises(ProtocolError, match=reason):
        receive(agent, 1)
    slave._stream.send(noise)
    assert agent.receive() == []
    slave.close()
    agent.close()


def test_a_frame_for_which_there_is_no_memory_is_a_protocol_error() -> None:
    agent, fds = open_channel(1 << 62)
    slave = SlaveEnd(fds)
    slave._stream.sendall(struct.pack("=QIQ", 8, 1, 1 << 61))
    with pytest.raises(ProtocolError, match="there is no memory for a frame of"):
        receive(agent, 1)
    slave.close()
    agent.close()


# ---- starts and recalls ----


def test_each_task_is_either_started_or_taken_back() -> None:
    """A slave process starts tasks as fast as it can while the agent recalls tasks."""
    agent, fds = open_channel()
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        agent.close()
        ran = _start_what_comes(SlaveEnd(fds))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(struct.pack(f"={len(ran)}Q", *ran))
        os._exit(0)
    for fd in fds:
        os.close(fd)
    os.close(writing)
    taken: list[int] = []
    for first in range(1, 200_000, 1000):
        agent.send([struct.pack("=BQQ", 1, first, first + 1000)])
        time.sleep(SETTLE_S * (first % 7) / 7)
        agent.recall()
        time.sleep(SETTLE_S)
        begin = max(first, agent.started + 1, first + 500)
        agent.send([struct.pack("=BQQ", 1, begin, 0)])
        taken += range(begin, first + 1000)
    agent._stream.shutdown(socket.SHUT_WR)
    with os.fdopen(reading, "rb") as pipe:
        ran = list(struct.unpack("=" + "Q" * (200_000 - len(taken)), pipe.read()))
    os.waitpid(pid, 0)
    assert taken
    assert sorted(ran + taken) == list(range(1, 200_001))
    assert ran == sorted(ran)
    agent.close()


def _start_what_comes(slave: SlaveEnd) -> list[int]:
    """Act as a slave that records its started tasks. A message is 1, as a version, and (first, end) of
    tasks, or (first taken back, 0)."""
    tasks: deque[int] = deque()
    ran: list[int] = []
    while not slave.eof:
        for [message] in slave.receive(60.0):
            _, first, end = struct.unpack("=BQQ", message)
            if end:
                tasks.extend(range(first, end))
            else:
                slave.recall_heard()
                while tasks and tasks[-1] >= first:
                    tasks.pop()
        while tasks and slave.start(tasks[0]):
            ran.append(tasks.popleft())
    return ran


# ---- processes ----


def test_a_forked_child_cannot_use_the_channel(ends: Ends) -> None:
    """The child cannot start tasks, send messages or keep the stream open. The slave is not affected."""
    agent, slave = ends
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        uses = (
            lambda: slave.start(1),
            slave.receive,
            lambda: slave.send([b"x"]),
            lambda: slave.journal.add(1, 1, 1, 0.0, b"x"),
            slave.journal.clear,
            lambda: slave.journal.read(7),
        )
        refused = 0
        for use in uses:
            try:
                use()
            except (OSError, ValueError, TypeError):
                refused += 1
        os.write(writing, b"%d%d" % (slave.forked, refused))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 10) == b"16"
    assert not slave.forked
    assert agent.started == 0
    assert slave.start(1)
    assert agent.journal.read(7) is None
    slave.send([b"fine"])
    assert agent.receive() == [[b"fine"]]
    os.close(reading)
    os.close(writing)


# ---- the shared file ----


def test_the_shared_file_cannot_be_made_shorter(ends: Ends) -> None:
    """Reading memory that the file no longer has would kill the agent. The fault handler may still append to it."""
    agent, slave = ends
    with pytest.raises(PermissionError):
        os.ftruncate(slave.fault, 0)
    os.write(slave.fault, b"Fatal Python error")
    assert agent.fault(100) == b"Fatal Python error"
    os.ftruncate(slave.fault, os.fstat(slave.fault).st_size + 50)  # a task makes it longer
    assert agent.fault(100) == b"Fatal Python error"
