"""How an agent finds its master again: it reads the resource file and looks up addresses in a thread of its own.

While the network fails, a file system may hang, and a name server may not answer. But the agent must serve its slaves.

The resource file may be of another generation of the master than the agent: a later one, or a former one if a network
file system shows an old file. So the agent tries the addresses in the file, and the address at which its master was. A
master that answers says which generation it is of.
"""

from __future__ import annotations

from mwpy import resource_file
from mwpy._core.agent.events import AddressesFound, ComputationOver
from mwpy._roles.join import MasterContact, contact_in, link_to
from mwpy._system.background import Question
from mwpy._transport.addresses import ipv4_of
from mwpy._transport.link import AgentLink
from mwpy._values.errors import MwpyError
from mwpy._values.options import Options

__all__ = ["Search"]

Places = dict[str, tuple[MasterContact, str]]
"""Where the master may be, by name: an address, and how to connect to it. Two generations may have the same address and
other keys."""


class Search:
    """Finds the master of an agent.

    Args:
        options: where to look.
        contact: where the master was.
        address: its address that answered then.
    """

    def __init__(self, options: Options, contact: MasterContact, address: str) -> None:
        self._options = options
        self._contact = contact
        """How the last connection was made."""
        self._address = address
        self._places: Places = {}
        """What was found out last."""
        self._question = Question(self._look, "mwpy-search")

    def ask(self) -> None:
        """Find out where the master may be now."""
        self.answer()

    def answer(self) -> AddressesFound | ComputationOver | None:
        """Return what was found out; None if this needs more time."""
        try:
            found = self._question.ask(0.0)
        except TimeoutError:
            return None
        if isinstance(found, ComputationOver):
            return found
        self._places = found
        return AddressesFound([*found])

    def _look(self) -> Places | ComputationOver:
        before, published = self._contact, self._published()
        if published is None:
            return _places(before, self._address)
        if published.computation_status == resource_file.FINISHED:
            return ComputationOver("the resource file says that the computation is finished", finished=True)
        contact = contact_in(published, self._options)
        if contact.generation == before.generation:
            return _places(contact, self._address)
        if contact.member_id != before.member_id:
            return ComputationOver("the resource file is of another computation", finished=False)
        places, former = _places(contact), _places(before, self._address)
        return places | {name: former[name] for name in former if name not in places}

    def _published(self) -> resource_file.ResourceFile | None:
        """The content of the resource file; None if there is none."""
        if self._options.resource_file is None:
            return None
        try:
            return resource_file.read(self._options.resource_file)
        except MwpyError:  # it may be torn, or its file system may be away
            return None

    def connect(self, address: str) -> AgentLink:
        """Begin to connect to one of these addresses."""
        self._contact, self._address = self._places[address]
        return link_to(self._contact, self._address)


def _places(contact: MasterContact, first: str | None = None) -> Places:
    """The places of a contact.

    Args:
        first: an address that has answered.
    """
    found = [] if first is None else [first]
    for address in contact.addresses:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        number = ipv4_of(host)
        if number is not None:
            found.append(f"tcp://{number}:{port}")
    return {f"{address} {contact.server_public}": (contact, address) for address in found}
