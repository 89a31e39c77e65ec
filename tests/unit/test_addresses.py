"""The addresses that a master publishes, and their order, on hosts of many kinds."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from mwpy._transport import link
from mwpy._transport.link import candidate_hosts, candidates

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


def test_an_interface_without_an_address_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    known = link._interface_addresses()
    index = socket.if_nameindex()
    long_name = "a name longer than an interface may have"
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(998, "nowhere0"), *index, (999, long_name)])
    assert link._interface_addresses() == known
