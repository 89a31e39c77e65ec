"""Second computations of results that are in doubt: what is on its way, and what has arrived.

Ctrl-C can end each call here at any point, and a user of a notebook goes on afterwards. So each step may be done twice:
a call is known by its object, and its second result counts once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from mwpy._core.master.kept_calls import DoubtedCall
from mwpy._roles.map_tasks import Portion
from mwpy._values.errors import TaskFailed
from mwpy._values.task import Result, renamed

__all__ = ["Corrected"]

ADVICE = "submit the task again when slaves on other hosts are connected"


class Corrected(Struct, eq=False):
    """The calls that are computed again."""

    calls: deque[DoubtedCall] = field(default_factory=deque)
    """Those that the core has handed out and that are not submitted yet."""
    open: dict[DoubtedCall, None] = field(default_factory=dict)
    """Those whose tasks have not ended."""
    is_used: bool = False
    """Whether results may be second results."""
    _arrived: dict[DoubtedCall, Result[Any]] = field(default_factory=dict)
    """The second results that were not fetched."""

    def without_own(self, results: Iterable[Result[Any]]) -> list[Result[Any]]:
        """Keep the second results among some results. Return the others."""
        others: list[Result[Any]] = []
        for result in results:
            call = result.tag
            if type(call) is not DoubtedCall:
                others.append(result)
            elif call in self.open:  # else an interrupt let it be submitted twice
                if is_known(call):
                    self._arrived[call] = result
                del self.open[call]
        return others

    def fetch(self) -> list[Result[Any]]:
        """Return the second results that have arrived, with the ids and tags of the first ones; each once."""
        arrived, self._arrived = self._arrived, {}
        return [_second(call, result) for call, result in arrived.items()]


def is_known(call: DoubtedCall) -> bool:
    """Whether the algorithm has got the first result: a map that was closed has dropped it."""
    return type(call.tag) is not Portion or bool(call.tag.items)


def _second(call: DoubtedCall, result: Result[Any]) -> Result[Any]:
    tag = call.tag.item(call.task_id) if type(call.tag) is Portion else call.tag
    failure = None
    if call.only:
        text = f"only {call.only} could compute it again, which computed other results wrongly: {ADVICE}"
        failure = TaskFailed(result.algorithm, result.sid, "InDoubt", text)
    return renamed(result, call.task_id, tag, failure)
