"""The standard error of starting slaves, which is held back so that identical failures are printed once.

An agent on a machine that lacks a module starts three slaves, and each writes the same traceback. The agent holds back
the output of a starting slave until the slave is up, or ends, or `HELD_BACK_S` have passed. If the slave ends before
it is up, and an earlier slave left exactly the same last words, its output is not printed. The output of a slave that
is up is printed at once.
"""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._core.agent.child import Child
from mwpy._core.agent.state import AgentState
from mwpy._values.last_words import LastWords

__all__ = ["HELD_BACK_BYTES", "HELD_BACK_S", "StartOutput"]

HELD_BACK_S = 3.0
"""How long a starting slave's standard error is held back, in seconds."""

HELD_BACK_BYTES = 64 * 1024
"""How much of a starting slave's standard error is held back. When there is more, it is printed."""


class StartOutput(Struct, eq=False):
    """Holds back the standard error of starting slaves."""

    _state: AgentState
    _printed: dict[tuple[str, str], None] = field(default_factory=dict)
    """The last words (standard error, fault) of slaves that ended before they were up."""

    def wrote(self, child: Child, data: bytes, now: float) -> None:
        """A slave wrote to standard error."""
        child.unprinted += data
        print_at = child.started_at + HELD_BACK_S
        if child.is_up or len(child.unprinted) > HELD_BACK_BYTES or now >= print_at:
            self._print(child)
        else:
            child.print_at = print_at

    def is_up(self, child: Child) -> None:
        """A slave has sent a message."""
        child.is_up = True
        self._print(child)

    def ended(self, child: Child, words: LastWords, rest: bytes) -> None:
        """A slave ended: print the rest of its output, unless an earlier slave failed with the same last words."""
        child.unprinted += rest
        key = (words.stderr, words.fault)
        if key not in self._printed:
            self._print(child)
        if not child.is_up:
            self._printed[key] = None

    def decide(self, child: Child, now: float) -> None:
        """Print what was held back long enough."""
        assert child.print_at is not None, "nothing is held back"
        if now >= child.print_at:
            self._print(child)

    def _print(self, child: Child) -> None:
        child.print_at = None
        if child.unprinted:
            self._state.actions.error_output.append(bytes(child.unprinted))
            child.unprinted = bytearray()
