"""Both ends of the link on loopback: what they wait for, which events they return, and what they leave open."""

from __future__ import annotations

import gc
import ipaddress
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from tests.loopback import CALM_S, PATIENCE_S, PAYLOAD_BYTES, Loopback, Master, loopback

from mwpy._transport import link
from mwpy._transport.link import (
    MESSAGES_UNREAD,
    NO_MESSAGE,
    PIECE_BYTES,
    AgentLink,
    candidate_hosts,
    candidates,
    in_pieces,
    member_keys,
    new_key,
    server_keys,
)
from mwpy._transport.stream import FRAMES_SLACK
from mwpy._values.bounds import Buffer
from mwpy._values.connections import Garbage, TurnedAway, Vanished
from mwpy._values.errors import UsageError

SOON, LATER = 0.0, CALM_S
"""Two values of the clock for `MasterLink.poll`, with a look at the connections between them."""


@pytest.fixture
def ends() -> Iterator[Loopback]:
    with loopback() as ends:
        yield ends


def descriptors() -> set[str]:
    gc.collect()
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}


# ---- keys ----


def test_the_same_key_makes_the_same_pairs_everywhere() -> None:
    """The derivation must never change, because agents on other machines and other Pythons use it, too."""
    assert server_keys("k") == server_keys("k")
    assert server_keys("a key").public == "H4xUSZEk&LV[*DJa+oEF+Z)PZhKSo:r0T3]=a$tB"
    assert member_keys("a key").public == "-M{EVPLV$DaS9.N+Kt.LV!YEraC]!(Il=3aVyJdY"


def test_keys_purposes_and_halves_all_differ() -> None:
    pairs = [derive(key) for derive in (server_keys, member_keys) for key in ("one", "two", "")]
    assert len({text for pair in pairs for text in (pair.public, pair.secret)}) == 2 * len(pairs)


def test_no_two_computations_have_the_same_key() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(bytes.fromhex(key)) for key in keys} == {32}


# ---- binding ----


def test_a_port_in_use_is_a_usage_error_with_a_remedy(ends: Loopback) -> None:
    port = ends.master().link.port
    with pytest.raises(UsageError, match=f"port {port}.*in use.*another --mw-master-port"):
        ends.master(port=port)


@pytest.mark.parametrize("host", ["203.0.113.1", "nowhere0", "no.such.host.invalid"])
def test_an_address_of_another_host_is_a_usage_error(ends: Loopback, host: str) -> None:
    with pytest.raises(UsageError, match=f"{host}, port any.*another --mw-master-host"):
        ends.master(host=host)


def test_a_closed_masters_port_is_free_at_once(ends: Loopback) -> None:
    master, agent, _ = ends.pair()
    port = master.link.port
    ends.close(master)
    assert ends.master(port=port).link.port == port
    ends.until(lambda: agent.broken, "end of the old connection")


def test_closed_ends_leave_no_descriptor_open(ends: Loopback) -> None:
    before = descriptors()
    master, agent, _ = ends.pair()
    with pytest.raises(UsageError):
        ends.master(port=master.link.port)
    assert descriptors() > before
    ends.close(agent)
    ends.close(master)
    assert descriptors() == before


# ---- waiting in the master ----


def test_a_poll_takes_a_limited_number_of_messages_and_loses_none(
    ends: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MESSAGES_A_POLL", 3)
    master, agent, peer = ends.pair()
    sent: list[list[Buffer]] = [[b"%d" % number] for number in range(50)]
    for message in sent:
        agent.link.send(message)
        master.link.send(peer, message)
    batches: list[int] = []
    while len(master.received) <= len(sent):
        before = len(master.received)
        master.turn()
        batches.append(len(master.received) - before)
    while len(agent.messages) < len(sent):
        before = len(agent.messages)
        agent.turn()
        batches.append(len(agent.messages) - before)
    assert (master.messages[1:], agent.messages) == (sent, sent)
    assert max(batches) == 3


# ---- the end of connections ----


def silent_connection(master: Master) -> socket.socket:
    """Connect to a master and send nothing."""
    return socket.create_connection(("127.0.0.1", master.link.port))


def test_a_connection_is_ended_after_its_silence_even_if_no_message_was_read_from_it(ends: Loopback) -> None:
    """The handshake has a time limit of its own, which is longer here."""
    master = ends.master(timeout_s=1.0)
    with silent_connection(master) as silent:
        ends.until(lambda: master.strangers, "end of the silent connection")
        while silent.recv(1000):
            pass
    assert [each.reason for each in master.strangers] == [NO_MESSAGE]


def test_an_agent_can_wait_for_years(ends: Loopback) -> None:
    """The time limit of a job may be that long."""
    master, agent, peer = ends.pair()
    master.link.send(peer, [b"word"])
    assert agent.link.poll(1e9) != ([], [], [])


def test_a_lost_peer_is_reported_after_its_last_message(ends: Loopback) -> None:
    """And only once. Otherwise the last results and the goodbye of the peer would have no sender."""
    master, agent, peer = ends.pair()
    words = [[b"%d" % number] for number in range(3 * link.MESSAGES_A_POLL)]
    for word in words:
        agent.link.send(word)
    ends.close(agent, PATIENCE_S)
    ends.until(lambda: master.gone, "end")
    master.look()
    assert master.messages == [[b"hello"], *words]
    assert master.events[-1] == Vanished(peer)
    assert master.gone == [peer]


# ---- messages ----


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"a", b"", b"c"],
        [bytes([n]) for n in range(8, 38)],
        [b"x" * 70_000, b"", b"y" * 200_000],
        [b"x" * 9000] * 9,
    ],
    ids=["empty", "empty among others", "many", "large", "large in sum"],
)
def test_messages_arrive_unchanged_in_both_directions(ends: Loopback, frames: list[Buffer]) -> None:
    master, agent, peer = ends.pair()
    agent.link.send(frames)
    master.link.send(peer, frames)
    ends.until(lambda: len(master.received) == 2 and agent.messages, "message")
    assert (master.messages[1], agent.messages) == (frames, [frames])


# ---- the agent's end ----


def test_an_agent_waits_for_the_files_that_it_names(ends: Loopback) -> None:
    _, agent, _ = ends.pair()
    ends.until(lambda: agent.fates, "connection")
    reading, writing = os.pipe()
    try:
        both = {reading: select.POLLIN, writing: select.POLLIN | select.POLLOUT}
        assert agent.link.poll(None, both) == ([], [], [writing])
        os.write(writing, b"!")
        assert agent.link.poll(None, {reading: select.POLLIN, writing: select.POLLIN}) == ([], [], [reading])
        assert agent.link.poll(0.0) == ([], [], [])
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("address", ["tcp://*:1", "tcp://", "nonsense"])
def test_a_bad_address_is_a_usage_error_and_leaves_nothing_open(address: str) -> None:
    before = descriptors()
    with pytest.raises(UsageError, match="no address to connect to"):
        AgentLink(address, server_keys("k").public, member_keys("k"), CALM_S)
    assert descriptors() == before


def test_a_peer_can_be_disconnected(ends: Loopback) -> None:
    """Both sides see the end of the connection, and no other connection ends."""
    master, agent, name = ends.pair()
    other = ends.agent(master)
    ends.hello(other, master)
    master.link.disconnect(name)
    ends.until(lambda: master.gone and agent.broken, "end of the connection")
    assert (master.gone, agent.broken, other.broken) == ([name], ["lost"], [])
    master.link.disconnect(name)
    master.link.disconnect(b"nobody")
    ends.hello(other, master, b"still here")


def test_a_peer_whose_descriptor_belongs_to_another_connection_is_not_disconnected(ends: Loopback) -> None:
    """The kernel uses descriptors again. The host and port at the other end say whose connection it is."""
    master, agent, name = ends.pair()
    master.link._peers[name].connection.other_end = "127.0.0.1", 1
    master.link.disconnect(name)
    ends.hello(agent, master, b"still here")


def test_frames_that_no_message_can_have_are_dropped(ends: Loopback) -> None:
    """The memory for a message is limited, and the next message arrives as it was sent."""
    master, agent, _ = ends.pair()
    agent.link.send([b"x"] * 1000)
    agent.link.send([b"next"])
    ends.until(lambda: len(master.received) == 3, "both messages")
    assert [len(frames) for frames in master.messages] == [1, PAYLOAD_BYTES // PIECE_BYTES + FRAMES_SLACK - 1, 1]


def test_messages_that_the_master_has_no_time_to_read_wait_at_their_sender(ends: Loopback) -> None:
    """So they do not fill the master's memory. When it reads, all of them arrive."""
    master = ends.master()
    keys = member_keys(ends.key)
    with zmq.Context() as context, context.socket(zmq.DEALER) as member:
        member.linger = 0
        member.sndhwm = 1
        member.curve_serverkey = server_keys(ends.key).public.encode()
        member.curve_publickey, member.curve_secretkey = keys.public.encode(), keys.secret.encode()
        member.connect(f"tcp://127.0.0.1:{master.link.port}")
        member.send(b"first")
        ends.until(lambda: master.received, "the first message")
        sent = 1
        while member.poll(1000, zmq.POLLOUT):
            member.send(b"x" * 10_000)  # the kernel stores few of them
            sent += 1
            assert sent < 5 * MESSAGES_UNREAD, "the master takes everything"
        ends.until(lambda: len(master.received) == sent, "all messages")


CLIENTS = """if 1:
    import resource, socket, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    sockets = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(60)]
    print("connected", flush=True)
    sys.stdin.read()
"""
"""A program that connects sixty times."""


def test_connections_beyond_the_limit_are_turned_away_and_members_stay(ends: Loopback) -> None:
    """The master's script needs files too."""
    master, agent, _ = ends.pair()
    master.link.limit(8)
    clients = subprocess.Popen(
        [sys.executable, "-c", CLIENTS, str(master.link.port)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    ends.until(lambda: len(turned_away(master)) == 60 + 1 - 8, "connections that are turned away")
    assert {(each.address, each.reason) for each in turned_away(master)} == {("127.0.0.1", "Too many open files")}
    ends.hello(agent, master, b"still here")
    clients.communicate()
    ends.hello(ends.agent(master), master, b"there is room again")


def turned_away(master: Master) -> list[TurnedAway]:
    return [event for event in master.events if isinstance(event, TurnedAway)]


# ---- pieces of a large message ----


MARK = b"\1"


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([[b"x", b"y"]], "2 frames are no piece of a large message"),
        ([[b"\xff" * 12]], "a message of 4294967295 frames in 18446744073709551615 bytes"),
        ([[struct.pack("=QIQ", 8, 1, 1 << 40)]], "a message of 1099511627776 bytes"),
    ],
)
def test_pieces_that_are_no_message_are_malformed(ends: Loopback, pieces: list[list[bytes]], why: str) -> None:
    """A member may send anything. The master makes no room for more than it accepts, and others are not affected."""
    master, agent, peer = ends.pair()
    for frames in ([MARK], *pieces):
        agent.link._dealer.send_multipart(frames)
    ends.until(lambda: len(master.events) == 2, "sign of it")
    assert master.events[1] == Garbage(peer, "127.0.0.1", why)
    ends.hello(ends.agent(master), master, b"unharmed")


def test_a_message_of_which_a_piece_is_missing_when_its_sender_is_gone_takes_no_memory(ends: Loopback) -> None:
    master, agent, _ = ends.pair()
    announcement, first, *_ = in_pieces([bytes(PAYLOAD_BYTES)])
    agent.link._dealer.send(announcement)
    agent.link._dealer.send(first)
    ends.hello(ends.agent(master), master)
    peers = master.link._peers
    ends.until(lambda: any(each.messages._reader for each in peers.values()), "the announcement")
    ends.close(agent, 1.0)
    ends.until(lambda: master.gone, "its end")
    assert not any(each.messages._reader for each in peers.values())


# ---- the addresses that a master publishes, and their order, on hosts of many kinds ----


LOOPBACK = ("lo", "127.0.0.1")


def on_a_host(
    monkeypatch: pytest.MonkeyPatch,
    *,
    default: str | None = None,
    interfaces: tuple[tuple[str, str], ...] = (LOOPBACK,),
    name: str = "localhost",
    resolved: str | None = "127.0.0.1",
) -> None:
    """Give this host an address of the default route, interfaces, a name, and an address of that name if it has one."""

    def resolve(asked: str) -> str:
        assert asked == name
        if resolved is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolved

    monkeypatch.setattr(link, "_default_route", lambda: default)
    monkeypatch.setattr(link, "_interface_addresses", lambda: list(interfaces))
    monkeypatch.setattr(socket, "getfqdn", lambda: name)
    monkeypatch.setattr(socket, "gethostbyname", resolve)


def test_the_best_address_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order: the default route, other interfaces, bridges, the name if it has another address, loopback."""
    on_a_host(
        monkeypatch,
        default="10.0.0.7",
        interfaces=(LOOPBACK, ("docker0", "172.17.0.1"), ("ib0", "10.1.0.7"), ("eth0", "10.0.0.7")),
        name="node7.cluster",
        resolved="192.168.0.7",
    )
    assert candidate_hosts() == ["10.0.0.7", "10.1.0.7", "172.17.0.1", "node7.cluster", "127.0.0.1"]
    assert candidates(5555) == (
        "tcp://10.0.0.7:5555",
        "tcp://10.1.0.7:5555",
        "tcp://172.17.0.1:5555",
        "tcp://node7.cluster:5555",
        "tcp://127.0.0.1:5555",
    )


ETHERNET = ("eth0", "10.0.0.7")


@pytest.mark.parametrize(
    ("default", "interfaces", "expected"),
    [
        *[
            (None, ((bridge, "172.17.0.1"), ETHERNET), ["10.0.0.7", "172.17.0.1"])
            for bridge in ("docker0", "virbr0", "veth12ab", "br-0a1b2c", "cni0", "podman1")
        ],
        (None, (("eth1", "10.0.2.1"), ETHERNET, ("br0", "10.0.0.1")), ["10.0.2.1", "10.0.0.7", "10.0.0.1"]),
        ("10.0.0.7", (("eth0", "10.0.1.7"), ("br-lan", "10.0.0.7")), ["10.0.0.7", "10.0.1.7"]),
        ("10.0.0.7", (ETHERNET, ("macvlan0", "10.0.0.7"), LOOPBACK, LOOPBACK), ["10.0.0.7"]),
        ("127.0.0.1", (LOOPBACK, ("lo1", "127.0.0.53"), ETHERNET), ["10.0.0.7"]),
        (None, (LOOPBACK,), []),
    ],
)
def test_addresses_are_in_the_order_in_which_they_are_worth_trying(
    monkeypatch: pytest.MonkeyPatch, default: str | None, interfaces: tuple[tuple[str, str], ...], expected: list[str]
) -> None:
    """Those of containers come after those of hosts, loopback is the last, and none comes twice."""
    on_a_host(monkeypatch, default=default, interfaces=interfaces)
    assert candidate_hosts() == [*expected, "127.0.0.1"]


@pytest.mark.parametrize("resolved", ["10.0.0.7", "127.0.0.1", "127.0.1.1", None])
def test_a_name_without_another_address_is_not_published(monkeypatch: pytest.MonkeyPatch, resolved: str | None) -> None:
    on_a_host(monkeypatch, interfaces=(("eth0", "10.0.0.7"),), name="node7", resolved=resolved)
    assert candidate_hosts() == ["10.0.0.7", "127.0.0.1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "10.9.9.9", "login1.cluster"])
def test_a_given_address_is_the_only_one(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    on_a_host(monkeypatch, default="10.0.0.7", interfaces=(("eth0", "10.0.0.7"),))
    assert candidates(40000, host) == (f"tcp://{host}:40000",)


# ---- this host ----


def test_the_published_addresses_are_this_hosts() -> None:
    """Each address is an IPv4 address that can be bound here, or a name. Loopback is the last."""
    found = candidate_hosts()
    assert found[-1] == "127.0.0.1"
    assert len(set(found)) == len(found)
    for address in (each for each in found if each.replace(".", "").isdigit()):
        assert ipaddress.ip_address(address).version == 4
        with socket.socket(socket.AF_INET) as probe:
            probe.bind((address, 0))
