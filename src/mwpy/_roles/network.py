"""What a master needs that agents of other machines can find and join: the network, and the first resource file.

This loads ZeroMQ, so a master that only its own agents can join does not load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from mwpy import resource_file
from mwpy._system import clock
from mwpy._transport import wire
from mwpy._transport.addresses import EVERYWHERE, candidates, ipv4_of
from mwpy._transport.link import MasterLink, member_keys, new_key, server_keys
from mwpy._values import messages
from mwpy._values.errors import UsageError
from mwpy._values.options import Options
from mwpy.resource_file import MemberKeys, ResourceFile

__all__ = ["addresses", "first_content", "listen", "new_key"]


def _published(options: Options) -> str | None:
    """The host that others use; None for all addresses of this machine."""
    return None if options.master_host in EVERYWHERE else options.master_host


def addresses(options: Options, port: int, only_here: bool) -> tuple[str, ...]:
    """Return where agents find the master, best first."""
    return candidates(port, "127.0.0.1" if only_here else _published(options))


def listen(options: Options, key: str, only_here: bool, former_port: int = 0) -> MasterLink:
    """Listen for agents on the published host; without one, on all addresses, or on loopback if nobody else can join.

    Args:
        former_port: the port to use if the options name none, and if it is free; 0 for any.

    Raises:
        UsageError: the host or the port cannot be used.
    """
    published = _published(options)
    host = "127.0.0.1" if only_here else "*" if published is None else ipv4_of(published)
    if host is None:
        raise UsageError(
            f"--mw-master-host {published}: no such host is known here; give a name or an IPv4 address of this machine"
        )
    largest = max(options.max_read_buffer_size, options.max_write_buffer_size)
    given = key, options.silence_s(), largest, wire.encode(messages.Probe())
    if options.master_port is None and former_port:
        with suppress(UsageError):  # another process may have it by now
            return MasterLink(host, former_port, *given)
    return MasterLink(host, options.master_port or 0, *given)


def first_content(
    options: Options, generation: str, addresses: Sequence[str], key: str, slave_command: Sequence[str]
) -> ResourceFile:
    """The content of the resource file before the first slave connects."""
    member = member_keys(key)
    return ResourceFile(
        computation_status=resource_file.IN_PROGRESS,
        timestamp=clock.wall(),
        update_interval=options.resource_file_update_interval,
        member_id=options.member_id,
        generation=generation,
        master_addresses=tuple(addresses),
        keys=MemberKeys(server_keys(key).public, member.public, member.secret),
        slaves_wanted=0,
        slaves_connected=0,
        slaves_needed=0,
        slave_executable=slave_command[0],
        slave_arguments=tuple(slave_command[1:]),
        client_timeout=options.silence_s(),
    )
