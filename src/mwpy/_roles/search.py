"""How an agent finds its master again: it reads the resource file and looks up addresses in a thread of its own.

While the network fails, a file system may hang, and a name server may not answer. But the agent must serve its slaves.
"""

from __future__ import annotations

from attrs import define, field

from mwpy import resource_file
from mwpy._core.agent.events import AddressesFound, ComputationOver, NextMaster
from mwpy._roles.join import MasterContact, contact_in, link_to
from mwpy._system.background import Question
from mwpy._transport.addresses import ipv4_of
from mwpy._transport.link import AgentLink
from mwpy._values.errors import MwpyError
from mwpy._values.options import Options

__all__ = ["Search"]


@define(eq=False)
class Search:
    """Finds the master of an agent.

    Args:
        options: where to look.
        contact: where the master was.
        address: its address that answered then.
    """

    _options: Options
    _contact: MasterContact
    _address: str
    _question: Question[AddressesFound | NextMaster | ComputationOver] = field(init=False)

    @_question.default
    def _new_question(self) -> Question[AddressesFound | NextMaster | ComputationOver]:
        return Question(self._look, "mwpy-search")

    def ask(self) -> None:
        """Find out where the master may be now."""
        self.answer()

    def answer(self) -> AddressesFound | NextMaster | ComputationOver | None:
        """Return what was found out; None if this needs more time."""
        try:
            return self._question.ask(0.0)
        except TimeoutError:
            return None

    def _look(self) -> AddressesFound | NextMaster | ComputationOver:
        before, addresses = self._contact.generation, self._contact.addresses
        if self._options.resource_file is not None:
            try:
                content = resource_file.read(self._options.resource_file)
            except MwpyError:  # it may be torn, or its file system may be away
                content = None
            if content is not None:
                if content.computation_status == resource_file.FINISHED:
                    return ComputationOver("the resource file says that the computation is finished", finished=True)
                contact = contact_in(content, self._options)
                if content.generation != before and contact.member_id != self._contact.member_id:
                    return ComputationOver("the resource file is of another computation", finished=False)
                if content.generation != before:
                    self._contact = contact
                addresses = contact.addresses
        found = [self._address]
        for address in addresses:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            number = ipv4_of(host)
            if number is not None:
                found.append(f"tcp://{number}:{port}")
        if self._contact.generation != before:
            return NextMaster("the master was started again", self._contact.generation, found[1:])
        return AddressesFound([*dict.fromkeys(found)])

    def connect(self, address: str) -> AgentLink:
        """Begin to connect to one of these addresses."""
        return link_to(self._contact, address)
