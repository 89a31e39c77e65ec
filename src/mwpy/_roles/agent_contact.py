"""How an agent gets its connection to the master: at its start, and when it joins again."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from mwpy._roles.edges import MasterSearch
from mwpy._roles.hello import hello_of_this_process
from mwpy._system import clock
from mwpy._transport.local_link import LocalAgentLink
from mwpy._values import messages
from mwpy._values.environment import MasterStream
from mwpy._values.errors import MasterUnreachable
from mwpy._values.options import Options

if TYPE_CHECKING:
    from mwpy._transport.link import AgentLink

__all__ = ["Contact", "contact_again", "contact_of", "local_contact"]

AGAIN_S = 1.0
"""Seconds from one attempt to join again to the next."""


class Contact(NamedTuple):
    """A connection to the master, and the first message on it."""

    link: AgentLink | LocalAgentLink
    hello: messages.Hello
    search: MasterSearch | None
    """Finds the master again; None if the agent ends with its master."""


def contact_of(options: Options, resumed: str = "") -> Contact | None:
    """Connect to the master that the options name; return None if the computation is finished.

    Args:
        resumed: the name that this agent had before it was stopped; empty if it was not.
    """
    from mwpy._roles.join import connect, find_master  # only here, because it loads ZeroMQ
    from mwpy._roles.search import Search

    found = find_master(options)
    if found is None:
        return None
    link, found = connect(found)
    session = os.urandom(16).hex()  # also if it does not come back: in a session, it confirms what it has handled
    hello = replace(found.hello(options.slave_processes), resumed=resumed)
    hello = replace(hello, session=session, returns_s=options.reconnect_seconds)
    return Contact(link, hello, Search(options, found, link.address))


def contact_again(options: Options, resumed: str) -> Contact | None:
    """As `contact_of`, but wait for a master that does not answer yet."""
    until = clock.monotonic() + options.reconnect_seconds
    while clock.monotonic() < until:
        with suppress(MasterUnreachable):
            return contact_of(options, resumed)
        clock.sleep(AGAIN_S)
    return contact_of(options, resumed)


def local_contact(options: Options, master: MasterStream) -> Contact:
    """Return the connection to the master that has started this process."""
    link = LocalAgentLink(master, options.silence_s())
    return Contact(link, hello_of_this_process(options.member_id, "", options.slave_processes), None)
