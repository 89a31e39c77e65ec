"""The link between a master and the agents of its own machine, with both ends in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mwpy._transport.link import MasterLink
from mwpy._transport.local_link import (
    SILENT_LOOKS,
    LocalAgentLink,
    LocalMasterLink,
)
from mwpy._transport.stream import file_of, heartbeat_interval
from mwpy._values.bounds import LARGE_BYTES, Buffer
from mwpy._values.connections import Broken, Connected, Frames, Garbage, Happened, Vanished
from mwpy._values.errors import UsageError
from mwpy._values.options import MasterStream

CALM_S = 3000.0
"""A timeout so long that heartbeats and looks have no effect."""

PAYLOAD_BYTES = 1 << 20
PATIENCE_S = 120.0


class Pair:
    """The two ends of a stream, and what arrived at them."""

    def __init__(self, network: MasterLink | None, timeout_s: float = CALM_S) -> None:
        self.master = LocalMasterLink(network, CALM_S, PAYLOAD_BYTES)
        self.given = self.master.open()
        self.agent = LocalAgentLink(self.given, timeout_s)
        self.happened: list[Happened] = []
        self.fates: list[Connected | Broken] = []
        self.received: list[list[Buffer]] = []
        self.now = 0.0

        self._open: list[LocalMasterLink | LocalAgentLink] = [self.agent, self.master]

    def close(self, end: LocalMasterLink | LocalAgentLink, linger_s: float = 0.0) -> None:
        self._open.remove(end)
        end.close(linger_s)

    def close_all(self) -> None:
        for end in [*self._open]:
            self.close(end)

    def turn_master(self, timeout_s: float = 0.0) -> None:
        self.happened += self.master.poll(timeout_s, self.now)

    def turn_agent(self, timeout_s: float = 0.0) -> list[int]:
        fates, received, ready = self.agent.poll(timeout_s)
        self.fates += fates
        self.received += received
        return ready

    def until(self, condition: Callable[[], object], turn_agent: bool = True) -> None:
        """Poll both ends in turn until the condition is true."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + PATIENCE_S, f"{self.happened} {self.fates}"[:4000]
            self.now += 0.01  # a network sends probes until one fails, with pauses
            self.turn_master(0.001)
            if turn_agent:
                self.turn_agent(0.001)

    def hello(self) -> bytes:
        """Let the agent send a message. Return its name at the master."""
        self.agent.send([b"hello"])
        self.until(lambda: self.happened)
        [first] = self.happened
        assert isinstance(first, Frames)
        assert (first.address, first.frames) == ("localhost", [b"hello"])
        self.happened.clear()
        return first.peer


@pytest.fixture(params=["no network", "network"])
def network(request: pytest.FixtureRequest) -> MasterLink | None:
    """A master that only its own agents can join, and one that others can join, too."""
    return None if request.param == "no network" else listening()


def listening(key: str = "k") -> MasterLink:
    return MasterLink("127.0.0.1", 0, key, CALM_S, PAYLOAD_BYTES, [b"probe"])


@pytest.fixture
def pair(network: MasterLink | None) -> Iterator[Pair]:
    ends = Pair(network)
    yield ends
    ends.close_all()


def test_large_frames_pass_in_shared_files(pair: Pair) -> None:
    """The agent may pass them on to its slaves, so it keeps the file; those of the master are private."""
    peer = pair.hello()
    pair.master.send(peer, [b"a", bytes(4 * PAYLOAD_BYTES)])
    pair.agent.send([b"b", bytes(PAYLOAD_BYTES)])
    pair.until(lambda: pair.received and pair.happened)
    assert file_of(pair.received[0][1]) is not None
    [event] = pair.happened
    assert isinstance(event, Frames)
    assert not memoryview(event.frames[1]).readonly


def test_what_waits_leaves_before_an_end_is_closed(pair: Pair) -> None:
    """Then the end of the agent is reported, after its last message."""
    peer = pair.hello()
    for number in range(20):
        pair.agent.send([b"%d" % number, b"x" * (LARGE_BYTES - 1)])
    assert pair.agent._end.wants_write
    closing = threading.Thread(target=pair.close, args=(pair.agent, PATIENCE_S))
    closing.start()
    pair.until(lambda: Vanished(peer) in pair.happened, turn_agent=False)
    closing.join()
    *before, last = pair.happened
    assert [bytes(each.frames[0]) for each in before if isinstance(each, Frames)] == [b"%d" % n for n in range(20)]
    assert last == Vanished(peer)


def test_an_agent_reads_everything_before_the_end_of_its_master(pair: Pair) -> None:
    """The end is reported once, and then the agent waits for its other files without a pause between."""
    peer = pair.hello()
    for _ in range(3):
        pair.master.send(peer, [b"x"])
    pair.close(pair.master)
    while not pair.fates:
        pair.turn_agent(PATIENCE_S)
        assert len(pair.received) == 3 or not pair.fates
    assert pair.fates == [Broken("lost", "the connection broke")]
    pair.agent.send([b"nobody reads this"])
    pair.turn_agent()
    assert (len(pair.fates), len(pair.received)) == (1, 3)


def test_nonsense_of_an_agent_ends_its_connection(pair: Pair) -> None:
    """The master allocates no memory for the lengths that it reads there."""
    peer = pair.hello()
    pair.agent._end._stream.send(b"\xff" * 64)
    pair.until(lambda: pair.happened and pair.fates)
    [malformed, gone] = pair.happened
    assert isinstance(malformed, Garbage)
    assert malformed.peer == peer
    assert gone == Vanished(peer)


def test_nonsense_of_a_master_ends_its_agent(pair: Pair) -> None:
    peer = pair.hello()
    pair.master._ends[peer]._stream.send(b"\xff" * 64)
    pair.until(lambda: pair.fates)
    [fate] = pair.fates
    assert isinstance(fate, Broken)
    assert fate.reason.startswith("a message of the master cannot be read: a message of ")


def test_a_silent_agent_is_lost_after_five_looks(pair: Pair) -> None:
    """The master counts looks, not seconds: both processes may have been stopped for longer than the timeout."""
    peer = pair.hello()
    interval_s = heartbeat_interval(CALM_S)
    for _ in range(SILENT_LOOKS):
        assert pair.happened == []
        pair.now += 10 * CALM_S
        pair.turn_master()
    pair.turn_master()
    assert pair.happened == [Vanished(peer, SILENT_LOOKS * interval_s)]


def test_an_agent_that_starts_slowly_is_not_lost(pair: Pair) -> None:
    """Before its first message, it loads the script."""
    for _ in range(2 * SILENT_LOOKS):
        pair.now += heartbeat_interval(CALM_S)
        pair.turn_master()
    pair.hello()


@pytest.mark.parametrize("kind", ["closed", "no sockets"])
def test_an_agent_without_its_stream_says_what_may_be_wrong(kind: str) -> None:
    fds = os.pipe()
    if kind == "closed":
        for fd in fds:
            os.close(fd)
    with pytest.raises(UsageError, match="does the command that starts it close the file descriptors"):
        LocalAgentLink(MasterStream(fds, os.getpid()), CALM_S)
    if kind == "no sockets":
        for fd in fds:
            os.close(fd)


MASTER = """
import os, subprocess, sys, time
from mwpy._transport.local_link import LocalMasterLink
given = LocalMasterLink(None, 3000.0, 1000).open()
agent = subprocess.Popen([sys.executable, "-c", sys.argv[1], given.to_json()], pass_fds=given.fds)
copy = os.fork()
if not copy:
    time.sleep(1000)
print(copy, flush=True)
os.kill(os.getpid(), 9)
"""
AGENT = """
import sys
import tempfile
from mwpy._transport.local_link import LocalAgentLink
from mwpy._values.options import MasterStream
link, fates = LocalAgentLink(MasterStream.from_json(sys.argv[1]), 3000.0), []
while not fates:
    fates, _, _ = link.poll(None)
print(fates[0].reason, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no descriptors of processes")
def test_the_death_of_a_master_is_noticed_although_a_fork_has_its_end_of_the_stream() -> None:
    run = subprocess.Popen([sys.executable, "-c", MASTER, AGENT], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    try:
        copy = int(run.stdout.readline())
        assert run.stdout.readline() == "its process has ended\n"
    finally:
        os.kill(copy, signal.SIGKILL)
        run.wait()
        run.stdout.close()


def test_a_wake_ends_the_wait(pair: Pair) -> None:
    """A wake from another thread ends the wait, even if it comes just before the wait."""
    pair.turn_master()
    pair.master.wake()
    pair.turn_master(CALM_S)
    waiting = threading.Thread(target=pair.turn_master, args=(CALM_S,), daemon=True)
    waiting.start()
    pair.master.wake()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert pair.happened == []


def test_a_bell_that_is_rung_after_the_end_writes_into_no_other_file(network: MasterLink | None) -> None:
    """The computation may end while another thread is about to wake it."""
    master = LocalMasterLink(network, CALM_S, PAYLOAD_BYTES)
    master.close(0.0)
    with tempfile.TemporaryFile() as first, tempfile.TemporaryFile() as second:
        master.wake()
        assert [file.seek(0, os.SEEK_END) for file in (first, second)] == [0, 0]
