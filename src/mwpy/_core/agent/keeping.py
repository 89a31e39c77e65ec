"""Takes values out of results that stay at the agent (the policy `keep`).

The master says with each group of tasks which of their results stay. The agent takes the value out of such a result,
and keeps it as a shared object (`shares.py`). The result goes on to the master without it. A value for which there is
no room goes to the master as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.agent.child import Child
from mwpy._core.agent.shares import Shares
from mwpy._values import groups, messages
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import encode, split_list
from mwpy._values.share_messages import share_of_result
from mwpy._values.shares import places_of

__all__ = ["Keeping"]

NOTHING = encode(None)
"""What a group has in place of a value that stays."""


class Keeping(Struct, eq=False):
    """Takes the values out of results."""

    _shares: Shares

    def passed_on(self, child: Child, group: messages.Tasks) -> None:
        """A slave was passed tasks whose results stay here."""
        tasks = [*groups.each_task(group)]
        child.keeps.update((tasks[place], None) for place in group.keeps)

    def take(
        self, child: Child, group: messages.Results, frames: Sequence[Buffer]
    ) -> tuple[messages.Results, Sequence[Buffer]]:
        """Take the values out of results of a slave that stay here. Return the group without them, and its frames."""
        wanted = child.keeps
        if not wanted:
            return group, frames
        tasks, failed = [*groups.each_task(group)], frozenset(group.failed)
        entries = split_list(frames[0])
        own = [*pairwise(accumulate(group.buffers or [0] * len(tasks), initial=1))]
        kept: dict[int, int] = {}
        for place, task in enumerate(tasks):
            if wanted.pop(task, task) is None and place not in failed:
                parts = [memoryview(entries[place]), *frames[slice(*own[place])]]
                size = places_of([*map(len, parts)])[-1]
                if self._shares.keep(share_of_result(*task, size), parts):
                    kept[place] = size
        if not child.held:
            wanted.clear()
        if not kept:
            return group, frames
        entries = [NOTHING if place in kept else entry for place, entry in enumerate(entries)]
        left = [frame for place in range(len(tasks)) if place not in kept for frame in frames[slice(*own[place])]]
        counts = [0 if place in kept else count for place, count in enumerate(group.buffers)]
        smaller = replace(group, kept=[*kept.items()], buffers=counts, plain=False)
        return smaller, [groups.payload(len(tasks), entries), *left]
