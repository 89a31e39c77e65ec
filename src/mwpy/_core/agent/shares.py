"""The shared objects at the agent: it fetches them from the master, and its slaves use them.

A group of tasks names the shared objects that its tasks need. The group is passed on at once, and the slave waits with
it until the agent gives it these objects. So nothing here delays a recall. The agent asks for an object part by part,
and only a few parts are on their way at a time. So other messages pass between them.

The agent decides by itself what else it keeps: objects that tasks of its slaves need, and others up to a limit of bytes
and of open files, those that were used last. It fetches an object again that it has dropped. The master answers, and
says which objects are gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._core.agent.child import Child
from mwpy._core.agent.events import (
    DropShare,
    OpenShare,
    ShareNotKept,
    ShareOpened,
    WriteShare,
)
from mwpy._core.agent.state import AgentState
from mwpy._values import messages
from mwpy._values.ids import Buffer
from mwpy._values.phrases import amount
from mwpy._values.share_messages import PART_BYTES, Share

__all__ = ["PARTS_COMING", "Shares"]

PARTS_COMING = 4
"""How many parts are on their way at a time. Together, they are the longest wait for other messages."""


class _Kept(Struct, eq=False):
    """A shared object at the agent."""

    share: Share
    """Its location is that of the master's content. When the agent has made room for it: of the agent's content."""
    has_room: bool = False
    is_here: bool = False
    reason: str = ""
    """Why it cannot be kept; empty if it can."""
    asked: int = 0
    """The parts before this byte were asked for."""
    coming: dict[int, None] = field(default_factory=dict)
    """The parts that were asked for and have not arrived."""
    needed: dict[int, int] = field(default_factory=dict)
    """The slaves that were passed tasks that need it: the position of the last one of these tasks, by slave."""
    given: dict[int, None] = field(default_factory=dict)
    """The slaves that know it."""


class Shares(Struct, eq=False):
    """Decides which shared objects the agent fetches, gives to slaves and drops."""

    _state: AgentState
    _kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    """All of them, by digest. The first one was used least recently."""

    def passed_on(self, child: Child, group: messages.Tasks) -> None:
        """A slave was passed tasks that need shared objects."""
        for share in group.shares:
            kept = self._kept.get(share.digest)
            if kept is not None and kept.reason and not self._is_needed(kept):
                self._drop(kept)
                kept = None
            if kept is None:
                kept = self._kept[share.digest] = self._begin(share)
            self._kept.move_to_end(share.digest)
            kept.needed[child.number] = child.passed_on
            self._give(child, kept)

    def _begin(self, share: Share) -> _Kept:
        """Ask for room for a new one, and drop others that are not needed."""
        settings = self._state.settings
        here = [each.share.size for each in self._kept.values() if not each.reason]
        excess = sum(here) + share.size - settings.max_share_bytes
        too_many = len(here) + 1 - settings.max_share_files
        for kept in [*self._kept.values()]:
            if (excess > 0 or too_many > 0) and not self._is_needed(kept):
                excess -= kept.share.size
                too_many -= 1
                self._drop(kept)
        limit = settings.memory_bytes
        if limit is not None and share.size > limit:
            return _Kept(share, reason=_too_large(share.size, limit))
        self._state.actions.share_files.append(OpenShare(share))
        return _Kept(share)

    def _is_needed(self, kept: _Kept) -> bool:
        """Whether a slave holds a task that needs it."""
        for number, last in kept.needed.items():
            child = self._state.children.get(number)
            if child is not None and child.held and child.held[0].position <= last:
                return True
        return False

    def _drop(self, kept: _Kept) -> None:
        digest = kept.share.digest
        del self._kept[digest]
        self._state.actions.share_files.append(DropShare(digest))
        for child in self._state.living():
            if child.number in kept.given:
                self._state.to_slave(child, messages.ShareForgotten(digest))

    def begin_again(self) -> None:
        """Another generation of the master begins. Slaves keep what their running tasks use."""
        for digest in self._kept:
            self._state.actions.share_files.append(DropShare(digest))
        self._kept.clear()

    def slave_ended(self, child: Child) -> None:
        """A slave has ended: it needs and knows nothing more."""
        for kept in self._kept.values():
            kept.needed.pop(child.number, None)
            kept.given.pop(child.number, None)

    def reported(self, event: ShareOpened | ShareNotKept) -> None:
        """There is room for an object, or there is none."""
        if isinstance(event, ShareOpened):
            self._opened(event.share, event.is_complete)
        else:
            self._not_kept(event.digest, event.reason)

    def heard(self, message: messages.SharePart | messages.ShareGone, frames: Sequence[Buffer]) -> None:
        """The master has answered."""
        if isinstance(message, messages.SharePart):
            self._part(message, frames[1])
        else:
            self._gone(message.digest)

    def _opened(self, share: Share, is_complete: bool) -> None:
        """There is room for one, at the location of `share`. Fetch its content, unless it is complete."""
        kept = self._kept.get(share.digest)
        if kept is None:  # it was dropped meanwhile
            return
        kept.share, kept.has_room, kept.is_here = share, True, is_complete
        if is_complete:
            self._give_to_all(kept)
        else:
            self._ask()

    def _not_kept(self, digest: str, reason: str) -> None:
        """One cannot be kept. The tasks that need it fail."""
        kept = self._kept.get(digest)
        if kept is not None and not kept.reason:
            kept.reason = reason
            kept.coming.clear()
            self._give_to_all(kept)
            self._ask()

    def _part(self, message: messages.SharePart, part: Buffer) -> None:
        """A part has arrived. Ignore it if it was not asked for: the object was dropped meanwhile."""
        kept = self._kept.get(message.digest)
        if kept is None or message.start not in kept.coming:
            return
        del kept.coming[message.start]
        self._state.actions.share_files.append(WriteShare(message.digest, message.start, part))
        if kept.asked >= kept.share.size and not kept.coming:
            kept.is_here = True
            self._give_to_all(kept)
        self._ask()

    def _gone(self, digest: str) -> None:
        """The master sends no part of one, because its tasks have ended. If it is here, it is given up."""
        kept = self._kept.get(digest)
        if kept is None:
            return
        if not kept.is_here:
            self._drop(kept)
            self._ask()
        elif not self._is_needed(kept):
            self._drop(kept)

    def _ask(self) -> None:
        """Ask for the next parts."""
        room = PARTS_COMING - sum(len(kept.coming) for kept in self._kept.values())
        for kept in self._kept.values():
            if not kept.has_room or kept.is_here or kept.reason:
                continue
            while room > 0 and kept.asked < kept.share.size:
                self._state.to_master(messages.ShareWanted(kept.share.digest, kept.asked))
                kept.coming[kept.asked] = None
                kept.asked += PART_BYTES
                room -= 1

    def _give_to_all(self, kept: _Kept) -> None:
        for child in self._state.living():
            if child.number in kept.needed:
                self._give(child, kept)

    def _give(self, child: Child, kept: _Kept) -> None:
        """Give one to a slave that does not know it, if it is here, or if it never will be."""
        if (kept.is_here or kept.reason) and child.number not in kept.given:
            kept.given[child.number] = None
            self._state.to_slave(child, messages.ShareGiven(kept.share, kept.reason))

    def check(self) -> None:
        """Check that few parts are on their way, and that each object either is here or comes."""
        coming = [kept for kept in self._kept.values() if kept.has_room and not kept.is_here and not kept.reason]
        parts = sum(len(kept.coming) for kept in coming)
        assert parts <= PARTS_COMING, "too many parts are on their way"
        assert parts == PARTS_COMING or all(kept.asked >= kept.share.size for kept in coming), "a part is not asked for"


def _too_large(size: int, limit: int) -> str:
    return (
        f"a shared object of {amount(size)} does not fit into the {amount(limit)} of memory that the job of this agent "
        f"has: share a smaller object, or ask the batch system for more memory"
    )
