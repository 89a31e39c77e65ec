"""Hands out the calls of results that are in doubt, so that they are computed again.

Only the algorithm knows whether it still needs them. So nothing is computed again before it asks. Then its thread
submits these calls as new tasks, which are lost, tried again and compared like all others. The only difference is that
an answer of a host that was outvoted does not count if nobody confirms it (see `Doubts.given`).
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.master.commands import CorrectResults
from mwpy._core.master.doubts import joined
from mwpy._core.master.kept_calls import ranges_of
from mwpy._core.master.state import MasterState
from mwpy._core.master.verification import Verification
from mwpy._values import records

__all__ = ["Corrections"]

_WAITING = (
    "results are in doubt that mw.corrections() cannot compute again now, because no slave can run their tasks on a "
    "host that was never outvoted: start slaves on other hosts, and call it again"
)


class Corrections(Struct, eq=False):
    """Answers the algorithm when it asks for corrections."""

    state: MasterState
    verification: Verification

    def answer(self, command: CorrectResults) -> None:
        """Hand out the calls that a slave on a host without fault can run now."""
        doubts = self.verification.doubts
        wrong = tuple(doubts.outvoted)
        able = [span for span in doubts.calls.doubted.values() if self.verification.can_repeat(span, wrong)]
        if able:
            self.state.record(records.ResultsRecomputed(joined(each for span in able for each in ranges_of(span))))
            self.state.actions.doubted += doubts.calls.hand_out(able)
        if doubts.calls.doubted:
            self.state.notice(_WAITING, key=_WAITING)
        self.state.actions.cancelled.append((command, []))
