"""Tasks that a slave has finished, and whose results wait behind a long task.

The results of a portion's tasks wait in the slave, outside of its journal, until their stretch is sent. If a task of
the stretch runs for long, nobody would get the results before it. So if a silent slave stays at the same task, the
agent gives the tasks before it back to the master, and they may run again elsewhere. When the slave sends their results
after all, nobody holds the tasks any more, so the results are dropped.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from mwpy._core.agent.checkpoints import Checkpoints
from mwpy._core.agent.child import Child, HeldSpan
from mwpy._core.agent.state import AgentState
from mwpy._core.agent.watch import Watch
from mwpy._values import messages
from mwpy._values.bounds import MAX_TASKS

__all__ = ["LateResults"]


class LateResults(Struct, eq=False):
    """Gives late tasks back."""

    _state: AgentState
    _checkpoints: Checkpoints
    _watch: Watch

    def look(self, child: Child, started: int, now: float) -> None:
        """Look how far a silent slave is. If it was at the same task before, give the late tasks back; else look again.

        Args:
            started: position of the task that it started last.
        """
        stood, child.stood_at = child.stood_at == started, started
        if child.ended or not child.believes(started) or not _num_late(child, started):
            return
        if stood:
            self._checkpoints.send_newest(child)
            self._state.to_master(_take_late(child, started))
        else:
            self._watch.look_again(child, now)


def _num_late(child: Child, started: int) -> int:
    """How many tasks of portions a slave has finished and still holds."""
    spans = [span for span in child.held if span.is_portion]
    return sum(max(0, min(span.count, started - span.position)) for span in spans)


def _take_late(child: Child, started: int) -> messages.Revoked:
    """Remove these tasks from those that the slave holds, at most `MAX_TASKS` spans."""
    taken, kept = list[HeldSpan](), deque[HeldSpan]()
    for span in child.held:
        late = min(span.count, started - span.position) if span.is_portion and len(taken) < MAX_TASKS else 0
        if late <= 0:
            kept.append(span)
        elif late == span.count:
            taken.append(span)
        else:
            taken.append(span.cut(late)[0])
            kept.append(span.cut(late)[1])
    child.held = kept
    firsts, counts = [span.first for span in taken], [span.count for span in taken]
    return messages.Revoked(child.number, firsts, counts, [span.attempt for span in taken], late=True)
