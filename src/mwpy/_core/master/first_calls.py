"""Records the first calls of each task algorithm, to show later in what new calls differ from those of earlier runs.

The run database has only a digest of each call. If nothing matches after a restart, the user must learn which argument
is different. So outlines of the first calls are stored (see `_values/sameness/outline.py`): a script often makes the
same call first. Of several stored calls, the one counts that differs in the fewest parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.record_parts import Outline

__all__ = ["CALLS_OUTLINED", "FirstCalls"]

CALLS_OUTLINED = 5
"""How many calls of an algorithm have outlines."""


class FirstCalls(Struct, eq=False):
    """The outlines of calls of former generations and of this one.

    Args:
        state: what all parts share.
        changes: says in what two outlines differ, in sentences.
    """

    state: MasterState
    changes: Callable[[Mapping[str, str], Mapping[str, str]], Sequence[str]]
    _earlier: dict[tuple[str, str], tuple[int, list[Outline]]] = field(default_factory=dict)
    """For the name and the code of each algorithm: the newest generation that called it, and its calls."""
    _recorded: dict[int, int] = field(default_factory=dict)
    """How many calls of each algorithm of this generation are recorded."""

    def add(self, generation: int, name: str, code: str, outline: Outline) -> None:
        """A former generation made a call. Those of a later generation replace those of an earlier one."""
        known = self._earlier.get((name, code))
        if known is None or known[0] != generation:
            known = self._earlier[name, code] = generation, []
        known[1].append(outline)

    def record(self, defined: Defined) -> None:
        """Record the calls of an algorithm that are new."""
        count = self._recorded.get(defined.number, 0)
        if len(defined.calls) > count:
            new = defined.calls[count:]
            self._recorded[defined.number] = count + len(new)
            self.state.record(records.CallsOutlined(defined.number, new))

    def differences(self, name: str, code: str, defined: Defined) -> Sequence[str]:
        """Return in what the first calls of an algorithm differ from those of former generations with this name and
        code; empty if this is not known."""
        _, earlier = self._earlier.get((name, code), (0, []))
        found = [self.changes(old, new) for new in defined.calls for old in earlier]
        return min(filter(None, found), key=len, default=())
