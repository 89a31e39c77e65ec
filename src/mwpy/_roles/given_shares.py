"""The shared objects that an agent has given to this slave."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._roles.waiting_tasks import WaitingTasks
from mwpy._transport import shared_objects
from mwpy._values import messages
from mwpy._values.shares import SharedObject

__all__ = ["GivenShares"]


class GivenShares(Struct, eq=False):
    """Keeps them, and knows which tasks can start."""

    _given: dict[str, SharedObject] = field(default_factory=dict)

    def hear(self, message: messages.ShareGiven | messages.ShareForgotten) -> None:
        """Read a message of the agent."""
        if isinstance(message, messages.ShareGiven):
            self._given[message.share.digest] = shared_objects.give(message.share, message.reason)
        else:
            self._given.pop(message.digest, None)

    def forget_all(self) -> None:
        """Another generation of the master begins."""
        self._given.clear()

    def can_start(self, waiting: Sequence[WaitingTasks]) -> bool:
        """Whether a task waits, and the shared objects that the next one needs are in this process."""
        if not waiting:
            return False
        shares = waiting[0].shares
        return not shares or all(map(shared_objects.is_known, shares))
