"""The addresses of this host that a remote slave can try, best first."""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["EVERYWHERE", "candidate_hosts", "candidates", "ipv4_of"]

EVERYWHERE = ("*", "0.0.0.0")
"""A master that binds this address listens at all addresses. Slaves cannot connect to this address."""

SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of a network interface; see netdevice(7)."""

_BRIDGES = ("docker", "virbr", "veth", "br-", "cni", "podman")
"""Interfaces with these names lead to containers and virtual machines of this host, rarely to another host."""


def candidates(port: int, host: str | None = None) -> tuple[str, ...]:
    """Return all endpoints worth trying, as `tcp://HOST:PORT`, best first; only that of `host` if it is given."""
    hosts = [host] if host else candidate_hosts()
    return tuple(f"tcp://{each}:{port}" for each in hosts)


def ipv4_of(host: str) -> str | None:
    """Return the IPv4 address of a host; None if the name is unknown here. An address is returned as it is."""
    try:
        return socket.gethostbyname(host) if host else None
    except (OSError, UnicodeError):
        return None


def candidate_hosts() -> list[str]:
    """Return the addresses of the default route, other interfaces and bridges, then the host's name, then loopback."""
    addresses = _interface_addresses()
    plain = [address for name, address in addresses if not name.startswith(_BRIDGES)]
    bridged = [address for name, address in addresses if name.startswith(_BRIDGES)]
    found = [address for address in (_default_route(), *plain, *bridged) if address]
    outside = [address for address in found if not address.startswith("127.")]
    return list(dict.fromkeys([*outside, *_own_name(outside), "127.0.0.1"]))


def _default_route() -> str | None:
    """Return the address that connections to other networks come from. A UDP connect sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
            address: str = probe.getsockname()[0]
        except OSError:
            return None
    return address


def _interface_addresses() -> list[tuple[str, str]]:
    addresses: list[tuple[str, str]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:  # the interface has no address, or this is not Linux
                continue
            addresses.append((name, socket.inet_ntoa(answer[20:24])))
    return addresses


def _own_name(addresses: list[str]) -> list[str]:
    """Return the full name of this host, if it resolves to an address that is not in the list yet."""
    name = socket.getfqdn()
    try:
        resolved = socket.gethostbyname(name)
    except OSError:
        return []
    return [name] if resolved not in addresses and not resolved.startswith("127.") else []
