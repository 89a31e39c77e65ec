"""Slaves that are replaced between tasks, although nothing is wrong with them.

A slave may run a limited number of tasks (`slave_max_tasks`). The agent counts the tasks that it passes on to the
slave. It cuts the group that exceeds the limit, so the slave never has more tasks than it may run. The others go back
to the master. When the slave has no task left, it ends.

A slave may have a limited amount of memory between two tasks. It measures its own memory, and reports once that it has
grown too large. It then finishes the task that it runs by now, and ends. The agent takes the others back.

The agent tells the master at once that such a slave retires, so that the master sends it no more tasks. Tasks that are
already on their way go back as soon as they arrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct

from mwpy._core.agent.child import Child
from mwpy._core.agent.events import Outgoing
from mwpy._core.agent.state import UNBOUNDED, AgentState
from mwpy._values import groups, messages
from mwpy._values.bounds import MAX_TASKS
from mwpy._values.exits import REPLACED, describe_exit
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import split_list
from mwpy._values.phrases import amount, counted

__all__ = ["Wear", "divide", "reason_of"]


class Wear(Struct, eq=False):
    """Decides when a slave retires."""

    _state: AgentState

    @property
    def _max_tasks(self) -> int | None:
        """How many tasks a slave may run; None if there is no limit."""
        return self._state.settings.slave_max_tasks

    def admit(
        self, child: Child, group: messages.Tasks, received: Sequence[Buffer]
    ) -> tuple[messages.Tasks, Outgoing] | None:
        """Give those tasks of a group back to the master that a slave must not run.

        Returns:
            The other tasks, and the message for the slave; None if there are no other tasks.
        """
        if self._max_tasks is None and child.is_ready:
            return group, Outgoing(group, (), received)
        room, count = self._room(child), sum(group.counts)
        if room <= count and child.is_ready:
            self._retire(child)
        if room >= count:
            return group, Outgoing(group, (), received)
        if not room:
            self._give_back(child, group)
            return None
        kept, payload, rest = divide(group, received[1:], room)
        self._give_back(child, rest)
        return kept, Outgoing(kept, payload)

    def _room(self, child: Child) -> int:
        """How many more tasks a slave may get."""
        if child.retiring or not child.is_ready:
            return 0
        most = self._max_tasks
        return UNBOUNDED if most is None else most - child.passed_on + child.unrun

    def grown(self, child: Child, resident_bytes: int) -> None:
        """A slave has more memory than it may have between two tasks."""
        if child.is_ready:
            child.grown_bytes = resident_bytes
            self._retire(child)
            self._state.stop(child, finished=False)

    def settle(self, child: Child) -> None:
        """A slave that retires has fewer tasks: end it if it has none left."""
        if child.is_ready and not child.held:
            self._state.stop(child, finished=False)

    def _retire(self, child: Child) -> None:
        if not child.retiring:
            child.retiring = True
            self._state.to_master(messages.SlaveRetiring(child.number))

    def _give_back(self, child: Child, group: messages.Tasks | messages.Revoked) -> None:
        """Return tasks to the master that were not passed on. One message names at most `MAX_TASKS` spans."""
        for start in range(0, len(group.tasks), MAX_TASKS):
            some = slice(start, start + MAX_TASKS)
            columns = group.tasks[some], group.counts[some], group.attempts[some]
            self._state.to_master(messages.Revoked(child.number, *columns))


def reason_of(child: Child, reason: str) -> str:
    """Why a slave that retired ended, if its process ended for this reason."""
    ran = child.passed_on - child.unrun - child.num_held
    grown = f", because it had grown to {amount(child.grown_bytes)}" if child.grown_bytes else ""
    replaced = f"{REPLACED} {counted(ran, 'task')}{grown}"
    return replaced if reason == describe_exit(0) else f"{replaced} ({reason})"


def divide(
    group: messages.Tasks, frames: Sequence[Buffer], count: int
) -> tuple[messages.Tasks, list[Buffer], messages.Revoked]:
    """Divide a group of tasks behind its first `count` tasks, of which there are at least one and not all.

    Returns:
        The first tasks as a group, the payload frames of this group, and the spans of the other tasks.
    """
    whole = bisect_right([*accumulate(group.counts)], count)
    more = count - sum(group.counts[:whole])
    end, buffers = whole + bool(more), group.buffers[:count]
    counts = [*group.counts[:whole], more][:end]
    columns = counts, group.attempts[:end], group.algorithms[:end], buffers, group.limits[:end]
    kept = messages.Tasks(group.slave, group.tasks[:end], *columns, group.shares, group.portions[:end])
    payload_kept = groups.payload(count, split_list(frames[0])[:count])
    firsts = [group.tasks[whole] + more, *group.tasks[whole + 1 :]]
    rest = messages.Revoked(
        group.slave, firsts, [group.counts[whole] - more, *group.counts[whole + 1 :]], group.attempts[whole:]
    )
    return kept, [payload_kept, *frames[1 : 1 + sum(buffers)]], rest
