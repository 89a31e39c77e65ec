"""The end of an attempt while other attempts of the same task live.

If an attempt is lost or given back, and another one lives, the task stays allocated. Its history gets the loss, so that
`attempts_max` counts it. Only the loss of the last attempt decides how the task goes on.

The first answer of any attempt ends the task. Then its other attempts are killed: nobody is charged, and what their
slaves still send for them does not count. Two attempts of a task are never at the same agent, so the id of the task
tells an agent what to kill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.ids import SlaveId
from mwpy._values.records import Charge, TaskRange

__all__ = ["without_extra"]

H = TypeVar("H", bound=Span | TaskRange)


def without_extra(
    state: MasterState, sid: SlaveId, held: Sequence[H], reason: str, charges: tuple[Charge, ...] = ()
) -> Sequence[H]:
    """End those attempts of a slave beside which another attempt of the same task lives. Return the last attempts.

    Args:
        held: tasks that the slave has held.
        reason: why it does not hold them any more.
        charges: what is added to the history of a task of which another attempt lives.
    """
    several = state.jar.allocated.several
    if not several:
        return held
    extra = [each.whole if isinstance(each, Span) else each for each in held if each.first in several]
    last = [each for each in held if each.first not in several]
    if extra:
        state.record(records.AttemptsEnded(sid, extra, reason, charges))
    return last
