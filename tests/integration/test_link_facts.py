"""Facts of ZeroMQ that the design of mwpy depends on, tested with the installed version.

If the ends of the link can show a fact, the tests use them. For behaviour that the ends avoid, the tests use bare
sockets.
"""

from __future__ import annotations

import ctypes
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zmq
from tests.integration.apps.stage import PATIENCE_S, Running, Stage, kill, until
from tests.loopback import Agent, Loopback, Master
from tests.strangers import GREETING, command
from zmq.utils.monitor import parse_monitor_message

from mwpy._transport import link
from mwpy._transport.link import (
    FRAME_BYTES,
    PIECE_BYTES,
    SILENT,
    CurvePair,
    MasterLink,
    member_keys,
    server_keys,
)
from mwpy._values.bounds import Buffer
from mwpy._values.connections import Connected, Frames, Garbage, Vanished

TIMEOUT_S = 1.0
"""The timeout of the link, in tests that depend on it."""

HELD_S = 2.5
"""How long a test holds the interpreter lock: more than two timeouts."""

AGENT = """if 1:
    import os, signal, sys
    from mwpy._values.connections import Broken
    from mwpy._transport.link import AgentLink, member_keys, server_keys
    key, port, timeout_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
    link = AgentLink(f"tcp://127.0.0.1:{port}", server_keys(key).public, member_keys(key), timeout_s)
    link.send([b"%d" % os.getpid()])
"""
"""A program that sends its process id to a master."""

FATE = """
    fates = []
    while not any(isinstance(fate, Broken) for fate in fates):
        fates += link.poll(None)[0]
    link.send([b"from the dead"])
    link.close(1.0)
    print(*[fate.fate for fate in fates if isinstance(fate, Broken)])
"""
"""The program then waits for the end of the connection, sends a message anyway, and prints how it ended."""

FORK = """
    link.poll(None)
    os.fork()
    signal.pause()
"""
"""When the program is connected, it forks."""

MASTER = """if 1:
    import sys, time
    from mwpy._transport.link import MasterLink
    link = MasterLink("127.0.0.1", 0, sys.argv[1], float(sys.argv[2]), 1 << 20, [b"probe"])
    print(link.port, flush=True)
    while True:
        link.poll(60.0, time.monotonic())
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage
    for running in stage._started:
        running.end()  # it was killed, but may still run


Socket = zmq.Socket[bytes]


class BareSockets:
    """Sockets without mwpy's settings, and their monitors. All of them have a timeout."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._opened: list[Socket] = []

    def open(self, kind: int, **options: object) -> tuple[Socket, Socket]:
        """Return a socket and its monitor."""
        made = self._context.socket(kind)
        for name, value in options.items():
            setattr(made, name, value)
        self._opened += (made, made.get_monitor_socket())
        for each in self._opened[-2:]:
            each.rcvtimeo = int(PATIENCE_S * 1000)
        return made, self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            each.close(0)
        self._context.term()


@pytest.fixture
def bare() -> Iterator[BareSockets]:
    sockets = BareSockets()
    yield sockets
    sockets.close()


def wait_for(monitor: Socket, *wanted: int) -> int:
    """Return the first of the wanted events."""
    while True:
        event = int(parse_monitor_message(monitor.recv_multipart())["event"])
        if event in wanted:
            return event


def program(stage: Stage, code: str, *arguments: object) -> Running:
    return stage.start("", *arguments, program=[sys.executable, "-c", code])


def remote_agent(stage: Stage, ends: Loopback, master: Master, code: str, timeout_s: float) -> tuple[Running, bytes]:
    """Start an agent in its own process. Return it and the name of its connection, after its first message."""
    running = program(stage, AGENT + code, ends.key, master.link.port, timeout_s)
    ends.until(lambda: master.received, "a message of the agent")
    assert master.messages == [[b"%d" % running.pid]]
    return running, master.received[0].peer


# ---- how a peer's end is noticed ------------------------------------------------------------------------------


def test_a_killed_agent_is_unreachable_long_before_any_timeout(stage: Stage, ends: Loopback) -> None:
    """The only event after its death is that it is unreachable."""
    master = ends.master()
    running, peer = remote_agent(stage, ends, master, "    signal.pause()", 3000.0)
    running.send(signal.SIGKILL)
    ends.until(lambda: len(master.events) > 1, "sign of its end")
    assert master.events[1:] == [Vanished(peer)]


def test_a_stopped_agent_is_unreachable_after_the_timeout_and_does_not_return(stage: Stage, ends: Loopback) -> None:
    """When the agent continues, it notices the loss. Its messages on the old connection never arrive."""
    master = ends.master(timeout_s=TIMEOUT_S)
    running, peer = remote_agent(stage, ends, master, FATE, TIMEOUT_S)
    running.send(signal.SIGSTOP)
    ends.until(lambda: master.gone, "end of the frozen agent")
    running.send(signal.SIGCONT)
    until(lambda: running.process.poll() is not None, "end of the thawed agent")
    assert (running.end(), running.out) == (0, "lost\n"), running.err
    other = ends.agent(master, timeout_s=TIMEOUT_S)
    ends.hello(other, master)
    assert [type(each) for each in master.events] == [Frames, Vanished, Frames]
    [unreachable] = [each for each in master.events if isinstance(each, Vanished)]
    assert unreachable.peer == peer
    assert unreachable.silent_s >= SILENT * TIMEOUT_S


def test_a_stopped_master_is_lost_after_the_timeout(stage: Stage, ends: Loopback) -> None:
    running = program(stage, MASTER, ends.key, TIMEOUT_S)
    until(lambda: running.out.endswith("\n") or running.process.poll() is not None, "port")
    agent = ends.agent(int(running.out), timeout_s=TIMEOUT_S)
    ends.until(lambda: agent.fates, "connection")
    assert agent.fates == [Connected()]
    running.send(signal.SIGSTOP)
    ends.until(lambda: agent.broken, "end of the frozen master")
    assert agent.broken == ["lost"]


def test_a_process_that_holds_the_interpreter_lock_is_not_lost(ends: Loopback) -> None:
    """ZeroMQ's own thread answers heartbeats while no Python code of either end can run for two timeouts."""
    master, agent, peer = ends.pair(timeout_s=TIMEOUT_S)
    began = time.monotonic()
    ctypes.PyDLL(None).usleep(int(HELD_S * 1_000_000))  # unlike CDLL, it keeps the interpreter's lock
    assert time.monotonic() - began > 2 * TIMEOUT_S
    assert ends.hello(agent, master, b"still here") == peer
    assert master.gone == []
    assert agent.fates == [Connected()]


def test_a_forked_child_keeps_a_connection_open_but_not_alive(stage: Stage, ends: Loopback) -> None:
    """The kernel keeps the connection while a child holds the socket. The missing heartbeats show its end."""
    master = ends.master(timeout_s=TIMEOUT_S)
    running, peer = remote_agent(stage, ends, master, FORK, TIMEOUT_S)
    until(lambda: len(stage.processes()) == 2, "child")
    running.send(signal.SIGKILL)
    running.end()
    (child,) = stage.processes()
    held = [str(entry.readlink()) for entry in Path(f"/proc/{child}/fd").iterdir()]
    assert [name for name in held if name.startswith("socket:")] != []
    ends.until(lambda: master.gone, "end of the agent")
    assert master.gone == [peer]
    assert stage.processes() == [child]


def test_a_stopped_agent_that_was_forgotten_leaves_no_connection(stage: Stage, ends: Loopback) -> None:
    """A connection without an end would hold a file descriptor of the master."""
    master = ends.master(timeout_s=TIMEOUT_S)
    running, peer = remote_agent(stage, ends, master, "    signal.pause()", TIMEOUT_S)
    master.link.forget(peer)
    assert len(master.link._open) == 1
    running.send(signal.SIGSTOP)
    ends.until(lambda: not master.link._open, "end of the connection")
    assert master.gone == []


def test_a_started_program_does_not_inherit_a_connection(ends: Loopback) -> None:
    """The connection ends with the agent, even if the agent has started programs. No heartbeat is needed."""
    master, agent, peer = ends.pair()
    with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
        try:
            ends.close(agent)
            ends.until(lambda: master.gone, "end of the agent")
            assert master.gone == [peer]
            assert child.poll() is None
        finally:
            kill(child.pid, signal.SIGKILL)


# ---- connections are not repaired -----------------------------------------------------------------------------


def test_names_of_connections_are_never_reused(ends: Loopback) -> None:
    """The master's end of the link generates the names, so a message for a dead peer reaches no other peer."""
    master = ends.master()
    peers: list[bytes] = []
    living: list[Agent] = []
    for number in range(30):
        agent = ends.agent(master)
        peers.append(ends.hello(agent, master, b"%d" % number))
        if number % 3:
            ends.close(agent)
            ends.until(lambda: peers[-1] in master.gone, "end")
        else:
            living.append(agent)
    assert len(set(peers)) == len(peers)
    for number, peer in enumerate(peers):
        master.link.send(peer, [b"for %d" % number])
    ends.until(lambda: all(agent.messages for agent in living), "word to each that lives")
    assert [agent.messages for agent in living] == [[[b"for %d" % number]] for number in range(0, 30, 3)]


def test_a_broken_connection_stays_broken(ends: Loopback, bare: BareSockets) -> None:
    """A DEALER with default settings connects to the next master on that port. An agent does not."""
    first, agent, _ = ends.pair()
    port, keys = first.link.port, member_keys(ends.key)
    control, monitor = bare.open(
        zmq.DEALER,
        reconnect_ivl=300,  # by default, it would reconnect after 100 ms
        curve_serverkey=server_keys(ends.key).public.encode(),
        curve_publickey=keys.public.encode(),
        curve_secretkey=keys.secret.encode(),
    )
    control.connect(f"tcp://127.0.0.1:{port}")
    control.send(b"control")
    ends.until(lambda: len(first.received) == 2, "word of the other")
    ends.close(first)
    ends.until(lambda: agent.broken, "end")
    wait_for(monitor, zmq.EVENT_DISCONNECTED)
    control.send(b"queued for the dead", zmq.NOBLOCK)
    agent.link.send([b"not queued"])
    second = ends.master(port=port)
    ends.until(lambda: second.received, "word of the one that comes back")
    ends.hello(ends.agent(second), second)
    assert second.messages == [[b"queued for the dead"], [b"hello"]]
    assert agent.broken == ["lost"]
    assert agent.messages == []


def test_an_agent_does_not_connect_twice_if_nothing_listens(ends: Loopback) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        agent = ends.agent(int(taken.getsockname()[1]))
        ends.until(lambda: agent.broken, "refusal")
        taken.listen()
        taken.settimeout(0.3)  # three times ZeroMQ's default interval
        with pytest.raises(TimeoutError):
            taken.accept()
    assert agent.broken == ["unreachable"]


# ---- closing --------------------------------------------------------------------------------------------------

CLOCK_S = 0.01
"""libzmq counts whole milliseconds of a clock of its own, so a limit may end that much earlier."""


def test_closing_does_not_wait_longer_than_its_limit(ends: Loopback) -> None:
    """The peer accepts the connection and reads nothing, so without a limit, closing would never end. Closing does wait
    as long as the caller allows."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for linger_s in (0.0, 0.5):
            agent = ends.agent(int(listener.getsockname()[1]))
            agent.link.send([b"never read"])
            began = time.monotonic()
            ends.close(agent, linger_s)
            assert time.monotonic() - began >= linger_s - CLOCK_S


# ---- refused peers --------------------------------------------------------------------------------------------

STRANGERS_KEY = secrets.token_hex(32)


def test_an_agent_that_expects_another_master_is_refused(ends: Loopback) -> None:
    """The wrong master gets no message, even if it has the membership key."""
    master = ends.master()
    agent = ends.agent(master, server=server_keys(STRANGERS_KEY).public)
    agent.link.send([b"for another"])
    ends.until(lambda: "lost" in agent.broken, "refusal")
    assert agent.broken[0] == "refused"
    assert "another computation" in str(agent.fates[0])
    ends.until(lambda: master.strangers, "sign of it at the master")
    assert "another computation" in master.strangers[0].reason
    only_members_are_received(ends, master)


def test_an_agent_with_another_membership_key_is_refused_on_both_sides(ends: Loopback) -> None:
    """The master reports the address of the agent, and the agent reports a remedy."""
    master = ends.master(host="*")
    agent = ends.agent(master, source="127.0.0.9:0;", member=member_keys(STRANGERS_KEY))
    agent.link.send([b"evil"])
    ends.until(lambda: "lost" in agent.broken and master.strangers, "refusal")
    assert agent.broken[0] == "refused"
    assert "fresh resource file" in str(agent.fates[0])
    assert [each.address for each in master.strangers] == ["127.0.0.9"]
    only_members_are_received(ends, master)


def test_the_address_of_a_stranger_is_known_although_the_master_is_slow(
    ends: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request for its admission waits, and its connection has ended before the master goes on."""
    admit = MasterLink._admit

    def admit_slowly(link: MasterLink) -> None:
        admit(link)
        time.sleep(0.2)

    monkeypatch.setattr(MasterLink, "_admit", admit_slowly)
    master = ends.master(host="*")
    ends.agent(master, source="127.0.0.9:0;", member=member_keys(STRANGERS_KEY)).link.send([b"evil"])
    assert select.select([master.link._requests_fd], [], [], PATIENCE_S)[0]
    ends.until(lambda: master.strangers, "refusal")
    assert [each.address for each in master.strangers] == ["127.0.0.9"]


def test_the_public_membership_key_alone_is_refused(ends: Loopback) -> None:
    master = ends.master()
    mixed = CurvePair(member_keys(ends.key).public, member_keys(STRANGERS_KEY).secret)
    agent = ends.agent(master, member=mixed)
    agent.link.send([b"evil"])
    ends.until(lambda: "lost" in agent.broken, "refusal")
    assert agent.broken[0] == "refused"
    only_members_are_received(ends, master)


@pytest.mark.parametrize(
    "options", [{}, {"plain_username": b"user", "plain_password": b"word"}], ids=["no mechanism", "a password"]
)
def test_a_peer_without_curve_is_not_received(ends: Loopback, bare: BareSockets, options: dict[str, object]) -> None:
    master = ends.master()
    stranger, monitor = bare.open(zmq.DEALER, reconnect_ivl=-1, **options)
    stranger.connect(f"tcp://127.0.0.1:{master.link.port}")
    with suppress(zmq.Again):  # it was already refused
        stranger.send(b"evil", zmq.NOBLOCK)
    assert wait_for(monitor, zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED) == zmq.EVENT_DISCONNECTED
    ends.until(lambda: master.strangers, "sign of it at the master")
    assert "is no agent" in master.strangers[0].reason
    only_members_are_received(ends, master)


def test_an_agent_sends_nothing_to_a_listener_without_curve(ends: Loopback, bare: BareSockets) -> None:
    """A resource file with the address of another program reveals nothing to that program."""
    router, _ = bare.open(zmq.ROUTER)
    agent = ends.agent(router.bind_to_random_port("tcp://127.0.0.1"))
    agent.link.send([b"secret"])
    ends.until(lambda: "lost" in agent.broken, "refusal")
    assert agent.broken[0] == "refused"
    assert not router.poll(0)


def only_members_are_received(ends: Loopback, master: Master) -> None:
    """Messages arrive in order. If a member's message arrives, an earlier message of a stranger was dropped."""
    ends.hello(ends.agent(master), master)
    assert master.messages == [[b"hello"]]
    assert master.gone == []


def test_the_address_of_a_peer_comes_from_its_connection(ends: Loopback) -> None:
    master = ends.master(host="*")
    for source in ("127.0.0.3", "127.0.0.4"):
        ends.hello(ends.agent(master, source=f"{source}:0;"), master, b"Peer-Address: 10.0.0.1")
    ends.hello(ends.agent(master), master)
    assert [frames.address for frames in master.received] == ["127.0.0.3", "127.0.0.4", "127.0.0.1"]


# ---- malformed input ---------------------------------------------------------------------------------------


def greeting(mechanism: bytes) -> bytes:
    """The first bytes of every ZMTP 3.0 connection."""
    return b"\xff\0\0\0\0\0\0\0\1\x7f\3\0" + mechanism.ljust(20, b"\0") + bytes(32)


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"\xff",
        b"GET / HTTP/1.1\r\nHost: master\r\n\r\n",
        b"\x01\x00" * 500,
        bytes(200_000),
        np.random.default_rng(0).bytes(200_000),
        greeting(b"CURVE")[:40],
        greeting(b"CURVE") + b"\x06" + b"\xff" * 8,
        greeting(b"CURVE") + b"\x04\xc8\x05HELLO" + bytes(194),
        greeting(b"CURVE") + b"\x04\x05\x05ERROR" * 100,
        greeting(b"NULL") + b"\x04\x06\x05READY" + b"\x00\x04evil",
    ],
    ids=[
        "nothing",
        "one byte",
        "a browser",
        "an old version's empty frames",
        "zeros",
        "chance",
        "half a greeting",
        "a frame of 2**64 bytes",
        "a false hello",
        "errors",
        "no mechanism",
    ],
)
def test_a_master_survives_noise_on_its_port(ends: Loopback, noise: bytes) -> None:
    """The connection is closed and reported once. No message arrives from it, and members are not affected."""
    master, agent, peer = ends.pair()
    with socket.create_connection(("127.0.0.1", master.link.port)) as stranger:
        try:
            stranger.sendall(noise)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65536):
                pass
        except OSError:
            pass  # the connection was closed during the sending
    assert ends.hello(agent, master, b"as before") == peer
    ends.hello(ends.agent(master), master, b"and new")
    ends.until(lambda: master.strangers, "sign of it")
    assert master.messages == [[b"hello"], [b"as before"], [b"and new"]]
    assert [each.address in ("127.0.0.1", "unknown address") for each in master.strangers] == [True]
    assert master.gone == []


# ---- large frames ---------------------------------------------------------------------------------------------


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a limit just above the largest payload, so that tests send little data."""
    monkeypatch.setattr(link, "MAX_SLACK", 1000)


def test_a_frame_that_is_too_large_breaks_the_senders_connection_before_it_is_stored(ends: Loopback) -> None:
    """The limit is one for members and strangers, during the handshake and after it, so it is as small as a piece."""
    master, agent, peer = ends.pair()
    other = ends.agent(master)
    ends.hello(other, master)
    agent.link._dealer.send(b"x" * PIECE_BYTES)
    ends.until(lambda: len(master.received) == 3, "largest frame")
    agent.link._dealer.send(b"x" * FRAME_BYTES)
    ends.until(lambda: agent.broken and master.gone, "end")
    assert agent.broken == ["lost"]
    assert master.gone == [peer]
    ends.hello(other, master, b"as before")
    assert other.broken == []


def test_a_stranger_can_store_no_more_than_a_piece(ends: Loopback) -> None:
    """libzmq compares the announced length of a frame with the limit, also during the handshake, before it makes room
    for the frame. With a length within the limit, it waits for the frame, and then refuses it."""
    master, agent, peer = ends.pair()
    for length, sent in (FRAME_BYTES + 1, 0), (1 << 30, 0), (1 << 62, 0), (FRAME_BYTES, FRAME_BYTES):
        with socket.create_connection(("127.0.0.1", master.link.port)) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.sendall(GREETING + command(length) + bytes(sent))
            with suppress(ConnectionResetError):
                while stranger.recv(65536):  # it ends although the stranger keeps the connection open
                    pass
    ends.until(lambda: len(master.strangers) == 4, "sign of them")
    assert ends.hello(agent, master, b"as before") == peer


def test_a_message_that_is_too_large_for_the_master_is_malformed(tight: None, ends: Loopback) -> None:
    """It is not stored. Its sender is reported, and other peers are not affected."""
    master, agent, _ = ends.pair(max_payload=100_000)
    other = ends.agent(master)
    ends.hello(other, master)
    agent.link.send([b"just right", bytes(100_000)])
    ends.until(lambda: len(master.received) == 3, "largest payload")
    agent.link.send([b"too large", bytes(102_000)])
    ends.until(lambda: any(isinstance(each, Garbage) for each in master.events), "sign of it")
    malformed = next(each for each in master.events if isinstance(each, Garbage))
    assert malformed.reason == "a message of 102009 bytes"
    other.link.send([b"as before"])
    ends.until(lambda: [b"as before"] in master.messages, "message of the other one")


@pytest.mark.parametrize("to_master", [True, False], ids=["to the master", "to an agent"])
def test_large_frames_arrive_in_writable_memory(ends: Loopback, to_master: bool) -> None:
    """The array of a result uses the memory where its pieces were joined, and the algorithm may change it."""
    sent = np.arange(500_000, dtype=np.float64)
    master, agent, peer = ends.pair(max_payload=8 << 20)
    frames: list[Buffer] = [b"header", sent.data.cast("B")]
    if to_master:
        agent.link.send(frames)
    else:
        master.link.send(peer, frames)
    ends.until(lambda: len(master.received) == 2 or agent.messages, "message")
    header, frame = master.messages[1] if to_master else agent.messages[0]
    assert header == b"header"
    assert isinstance(frame, memoryview)
    array = np.frombuffer(frame, dtype=np.float64)
    assert np.array_equal(array, sent)
    array += 1.0
    assert np.array_equal(np.frombuffer(frame, dtype=np.float64), sent + 1.0)
