"""How an agent finds and connects to its master: through a resource file, through options, or through both."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mwpy import resource_file
from mwpy._roles.hello import hello_of_this_process
from mwpy._system import clock
from mwpy._transport import wire
from mwpy._transport.addresses import ipv4_of
from mwpy._transport.happened import Broken, Connected
from mwpy._transport.link import AgentLink, CurvePair, member_keys, server_keys
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.errors import MasterUnreachable, MwpyError, ProtocolError, Refused, UsageError
from mwpy._values.option_table import DEFAULT_CLIENT_TIMEOUT_S
from mwpy._values.options import Options
from mwpy._values.phrases import ASK_OWNER

__all__ = [
    "MasterContact",
    "connect",
    "contact_in",
    "find_master",
    "link_to",
    "read_key",
    "try_address",
    "try_all",
    "visit",
]

CONNECT_S = 5.0
"""Seconds in which one candidate address must answer."""

LATE_S = 3.0
"""A missing or torn resource file is read again for this many seconds. A shared file system may show it late or in
part."""

READ_AGAIN_S = 0.1

LINGER_S = 1.0
"""Seconds for sending the last message of a visit."""


class MasterContact(Struct, frozen=True):
    """The addresses of the master, and what the master requires from an agent."""

    addresses: Sequence[str]
    server_public: str
    member: CurvePair
    member_id: str
    generation: str
    client_timeout: float | None
    """After this silence of the network, in seconds, the master is gone. None if only the master knows the value."""

    masters_timeout: float = DEFAULT_CLIENT_TIMEOUT_S
    """The master's own value, as far as it is known: heartbeats must be frequent enough for it."""

    def hello(self, slaves: int) -> messages.Hello:
        """Return the first message of this process, which will start this many slaves."""
        return hello_of_this_process(self.member_id, self.generation, slaves)


def find_master(options: Options) -> MasterContact | None:
    """Return the contact from the resource file and the options; None if the computation is finished."""
    content = None
    if options.resource_file is not None:
        try:
            content = _read(options.resource_file)
        except MwpyError as error:
            if options.master_host is None or options.master_port is None:
                raise
            print(f"mwpy: warning: {error}; using --mw-master-host and --mw-master-port", file=sys.stderr)
    if content is None:
        return _from_options(options)
    if content.computation_status == resource_file.FINISHED:
        print(f"mwpy: the computation is finished, says {options.resource_file}", file=sys.stderr)
        return None
    if resource_file.is_stale(content, clock.wall()):
        age = clock.wall() - content.timestamp
        print(
            f"mwpy: warning: {options.resource_file} was written {age:.0f} s ago, though its master writes it every "
            f"{content.update_interval:.0f} s: the file may be an old copy, or its master may be dead",
            file=sys.stderr,
        )
    return contact_in(content, options)


def contact_in(content: resource_file.ResourceFile, options: Options) -> MasterContact:
    """Return the contact from the content of a resource file; some options may override it."""
    addresses: Sequence[str] = content.master_addresses
    if options.after_file & {"master_host", "master_port"}:
        addresses = _overridden(options, addresses)
    keys = content.keys
    member = CurvePair(keys.member_public, keys.member_secret)
    member_id = options.member_id if "member_id" in options.after_file else content.member_id
    silence_s = options.silence_s(content.client_timeout)
    published = content.client_timeout
    return MasterContact(addresses, keys.server_public, member, member_id, content.generation, silence_s, published)


def _read(path: str) -> resource_file.ResourceFile:
    deadline = clock.monotonic() + LATE_S
    while True:
        try:
            return resource_file.read(path)
        except resource_file.NotWhole:
            if clock.monotonic() >= deadline:
                raise
        clock.sleep(READ_AGAIN_S)


def _overridden(options: Options, addresses: Sequence[str]) -> list[str]:
    changed: list[str] = []
    for address in addresses:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        host = options.master_host if options.master_host and "master_host" in options.after_file else host
        port = str(options.master_port) if "master_port" in options.after_file else port
        changed.append(f"tcp://{host}:{port}")
    return list(dict.fromkeys(changed))


def _from_options(options: Options) -> MasterContact:
    if options.master_host is None or options.master_port is None:
        raise UsageError(
            "a slave needs to know its master: give --mw-resource-file FILE, or --mw-master-host, --mw-master-port "
            "and --mw-key-file"
        )
    key = read_key(options)
    if key is None:
        raise UsageError(
            "without a resource file a slave needs the master's key: give --mw-key-file FILE, or set MWPY_KEY"
        )
    address = f"tcp://{options.master_host}:{options.master_port}"
    keys = server_keys(key).public, member_keys(key)
    return MasterContact([address], *keys, options.member_id, "", options.client_timeout)


def read_key(options: Options) -> str | None:
    """Return the key from the key file or the environment; None if there is neither.

    Raises:
        UsageError: the file cannot be read or is empty.
    """
    if options.key_file is None:
        return options.key
    try:
        key = Path(options.key_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        remedy = ASK_OWNER if isinstance(error, PermissionError) else "copy it from the master"
        raise UsageError(f"cannot read the key file {options.key_file}: {error}; {remedy}") from error
    if not key:
        raise UsageError(f"the key file {options.key_file} is empty: copy it from the master")
    return key


def connect(contact: MasterContact) -> tuple[AgentLink, MasterContact]:
    """Connect to the master. ZeroMQ needs the client timeout before it connects, so an unknown one is asked for first.

    Returns:
        The connection, and the contact with the client timeout.

    Raises:
        Refused: the program at one of the addresses did not accept this agent.
        MasterUnreachable: no address answered.
    """
    if contact.client_timeout is None:
        link = try_all(contact)
        answer = visit(link, contact, "it asked for the client timeout, and connects again")
        link.close(LINGER_S)
        if isinstance(answer, messages.Refused):
            raise Refused(f"the master refused this agent: {answer.reason}")
        if isinstance(answer, messages.Welcome):
            contact = replace(contact, client_timeout=answer.client_timeout_s, masters_timeout=answer.client_timeout_s)
    return try_all(contact), contact


def visit(link: AgentLink, contact: MasterContact, why: str) -> messages.Message | str:
    """Send the Hello of an agent without slaves, wait for the answer, and send Goodbye.

    Args:
        why: the reason of the visit, for the Goodbye.

    Returns:
        The answer of the master, or why there is none.
    """
    link.send(wire.encode(contact.hello(0)))
    answer = _answer(link)
    if isinstance(answer, messages.Welcome):
        link.send(wire.encode(messages.Goodbye(why, Cause.CANCELLED)))
    return answer


def _answer(link: AgentLink) -> messages.Message | str:
    deadline = clock.monotonic() + CONNECT_S
    while (left := deadline - clock.monotonic()) > 0:
        fates, received, _ = link.poll(left)
        for frames in received:
            try:
                return wire.decode(frames, wire.FROM_MASTER)[0]
            except ProtocolError as error:
                return str(error)
        if fates:
            return "it ended the connection"
    return f"no answer within {CONNECT_S:.0f} s, though it accepted the keys"


def try_all(contact: MasterContact) -> AgentLink:
    """Try the candidate addresses one after the other.

    Raises:
        Refused: the program at one of the addresses did not accept this process.
        MasterUnreachable: no address answered.
    """
    tried: list[str] = []
    refused = False
    for address in contact.addresses:
        found = try_address(contact, address)
        if isinstance(found, AgentLink):
            return found
        refused = refused or found.fate == "refused"
        tried.append(f"{address}: {found.reason}")
    error = Refused if refused else MasterUnreachable
    raise error(
        f"no master at any of its addresses ({'; '.join(tried)}): is it running, and is its resource file fresh?"
    )


def try_address(contact: MasterContact, address: str) -> AgentLink | Broken:
    """Connect to one candidate address; return the connection, or why there is none.

    The reason is a reason of the link, or `unknown host`.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    found = ipv4_of(host)
    if found is None:
        return Broken("unknown host", "no such host is known here")
    link = link_to(contact, f"tcp://{found}:{port}")
    fate = _first_fate(link)
    if isinstance(fate, Connected):
        return link
    link.close(0.0)
    return fate


def link_to(contact: MasterContact, address: str) -> AgentLink:
    """Begin to connect to an address, `tcp://` with the number of a host."""
    timeout_s = contact.client_timeout or DEFAULT_CLIENT_TIMEOUT_S
    return AgentLink(address, contact.server_public, contact.member, timeout_s, contact.masters_timeout)


def _first_fate(link: AgentLink) -> Connected | Broken:
    deadline = clock.monotonic() + CONNECT_S
    while (left := deadline - clock.monotonic()) > 0:
        fates, _, _ = link.poll(left)
        if fates:
            return fates[0]
    return Broken("unreachable", f"no answer within {CONNECT_S:.0f} s")
