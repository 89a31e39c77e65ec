"""The connections of a master: streams to the agents that it starts, and the network if other agents can join.

A master that only its own agents can join opens no port, has no key, and does not load ZeroMQ.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from mwpy._system import process
from mwpy._system.own_code import OWN_CODE
from mwpy._transport.error_texts import encodable
from mwpy._transport.local_link import LocalMasterLink, Network, NoNetwork
from mwpy._values.messagepack import encode_json
from mwpy._values.options import AGENT_VARIABLE, MASTER_VARIABLE, Options

RESERVE_SHARE = 8
LEAST_RESERVE = 16
"""One in eight files, and at least 16, are left for the master algorithm; agents that are being refused may have half
of them."""


class AgentStarter(Struct, frozen=True):
    """Starts agents on this machine."""

    link: LocalMasterLink

    def __call__(self, command: Sequence[str], *, environment: Mapping[str, str]) -> process.Child:
        """Start an agent with a stream to this master.

        Raises:
            OSError: it cannot be started.
        """
        given = self.link.open()
        try:
            variables = {**environment, MASTER_VARIABLE: given.to_json()}
            return process.start(command, environment=variables, pass_fds=given.numbers())
        finally:
            for fd in given.numbers():
                os.close(fd)


class Connections(Struct, frozen=True):
    """The connections of a master that starts."""

    link: LocalMasterLink
    max_open_files: int
    """How many files this process may open."""
    room: int
    """How many agents there is room for."""
    key: str = ""
    """The key of the computation; empty if only agents of this master can join."""
    addresses: Sequence[str] = ()
    """Where other agents find the master."""
    port: int = 0
    """Their port; 0 if only agents of this master can join."""


def open_connections(options: Options, key: str | None) -> Connections:
    """Make the connections of a master.

    Args:
        key: the key of the computation; None for that of the last master of the run database, or a new one.

    Raises:
        UsageError: the host or the port cannot be used.
    """
    limit = process.raise_limit()
    if only_here(options) and options.master_port is None:
        return Connections(_with_streams(NoNetwork(), options), limit, limit)
    from mwpy._roles.network import FormerPlace, addresses, listen, recall  # only here, because it loads ZeroMQ
    from mwpy._transport.link import new_key

    OWN_CODE.remember()  # before a slave can join that loads files which were edited meanwhile
    former = FormerPlace() if options.run_database is None else recall(options.run_database)
    key = key or former.key or new_key()
    link = listen(options, key, only_here(options), former.port)
    reserve = max(LEAST_RESERVE, limit // RESERVE_SHARE)
    room = max(1, limit - process.count_open() - reserve)
    link.limit(room + reserve // 2)
    found = addresses(options, link.port, only_here(options))
    return Connections(_with_streams(link, options), limit, room, key, found, link.port)


def _with_streams(network: Network, options: Options) -> LocalMasterLink:
    largest = max(options.max_read_buffer_size, options.max_write_buffer_size)
    return LocalMasterLink(network, options.silence_s(), largest)


def only_here(options: Options) -> bool:
    """Whether only local slaves can join, because others would have neither a resource file nor the key."""
    return not (options.resource_file or options.master_host or options.key_file or options.key)


def directions(options: Options, slaves: int) -> dict[str, str]:
    """Return the variables that make a process an agent of this master, with this many slaves."""
    words = ["--mw-slave", "--mw-member-id", encodable(options.member_id)]
    words += ["--mw-slave-processes", str(slaves), "--mw-audit-file", os.devnull]
    words += ["--mw-grace-period", str(options.grace_period)]
    words += ["--mw-client-timeout", str(options.silence_s()), *options.for_agents(local=True)]
    return {AGENT_VARIABLE: encode_json(words).decode()}
