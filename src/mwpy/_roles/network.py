"""What a master needs that agents of other machines can join: its network, its place, and the first resource file.

This loads ZeroMQ, so a master that only its own agents can join does not load it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from mwpy import resource_file
from mwpy._system import clock
from mwpy._system.locks import real_path
from mwpy._transport import wire
from mwpy._transport.link import EVERYWHERE, MasterLink, candidates, ipv4_of, member_keys, server_keys
from mwpy._values import messages
from mwpy._values.errors import UsageError
from mwpy._values.messagepack import encode_json, json_decoder
from mwpy._values.options import UNREADABLE, Options
from mwpy.resource_file import MemberKeys, ResourceFile

# The key and the port of a master with a run database, in a file beside it that only its owner can read.
#
# The next master of the run database takes both again. So an agent finds it although its resource file is a copy, such
# as the one that HTCondor transfers with a job.


class FormerPlace(Struct, frozen=True):
    """The content of the file."""

    key: str = ""
    """The key of the computation; empty if it is not known."""
    port: int = 0
    """The port of the last master; 0 if it is not known."""


def _beside(run_database: str) -> Path:
    path = real_path(run_database)
    return path.with_name(f"{path.name}.keys")


def recall(run_database: str) -> FormerPlace:
    """Read the key and the port of the last master of a run database. A file that others can read or have written does
    not count: they would know the key."""
    with suppress(OSError, *UNREADABLE):
        fd = os.open(_beside(run_database), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return json_decoder(FormerPlace)(file.read())
    return FormerPlace()


def keep(run_database: str, place: FormerPlace) -> None:
    """Write the key and the port of this master, for the next one.

    Raises:
        UsageError: the file cannot be written.
    """
    path = _beside(run_database)
    try:
        resource_file.replace_file(path, encode_json(place) + b"\n")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}, where the next master of the run database finds its keys: "
            f"{error.strerror or error}; make its directory writable and free some space"
        ) from error


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
