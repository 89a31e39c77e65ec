"""Computes results again that are in doubt, when the master algorithm asks for it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mwpy._core.master.commands import CorrectResults
from mwpy._roles.access import Access
from mwpy._roles.inbox import Inbox, deadline_after
from mwpy._system import clock
from mwpy._values.keys import NO_KEY
from mwpy._values.task import Result

__all__ = ["Corrections"]


class Corrections(Struct, eq=False):
    """Submits the calls of such results once more, and waits for their second results."""

    access: Access
    inbox: Inbox

    def fetch(self, timeout: float | None) -> list[Result[Any]]:
        """Return second results. `Master.corrections` explains the timeout and the errors."""
        inbox, corrected = self.inbox, self.inbox.corrected
        deadline = deadline_after(timeout)
        inbox.receive()
        if corrected.calls:  # an interrupt came before they were submitted
            self._submit()
        begins = inbox.settings.verify > 0.0
        while begins or corrected.open:
            if not corrected.open:
                inbox.ask(CorrectResults())
                self._submit()
                begins = bool(corrected.open)  # what comes meanwhile may put other results in doubt
                continue
            left_s = None if deadline is None else deadline - clock.monotonic()
            if left_s is not None and left_s <= 0:
                break
            inbox.wait(left_s)
        return corrected.fetch()

    def _submit(self) -> None:
        io, corrected = self.access.io, self.inbox.corrected
        corrected.is_used = True
        while corrected.calls:
            call = corrected.calls[0]
            corrected.open[call] = None
            with io.submitting:
                if io.submissions.keyed:  # a stored result may be the one that is in doubt
                    io.submissions.add_keyed(call.algorithm, call.policy, call.payload, call.buffers, call, NO_KEY)
                else:
                    io.submissions.add(call.algorithm, call.policy, call.payload, call.buffers, call)
            corrected.calls.popleft()
        if io.link.asleep:
            io.link.wake()
