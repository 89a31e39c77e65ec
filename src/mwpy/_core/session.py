"""One side of a session: the messages between a master and an agent, which survive the end of their connection.

When a connection ends, nobody knows which of the last messages arrived. So each side counts the messages of the other
side that it has handled, and keeps the messages that it has sent until the other side says that it has handled them. On
the next connection, each side first says how many it has handled. Then it sends the kept messages that the other side
has not handled, in their order. So each message is handled exactly once, and the cores compare nothing.

What is handled is said in a small message (`Handled`), at most once a second, or sooner when much was handled. Nothing
is said while nothing is handled. Messages about the connection itself are not counted (`UNCOUNTED`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import Factory, define

from mwpy._values import messages
from mwpy._values.bounds import Buffer
from mwpy._values.errors import ProtocolError

UNCOUNTED = frozenset({messages.Hello, messages.Welcome, messages.Handled, messages.Probe})
"""Messages that concern one connection only."""

SAY_S = 1.0
"""Seconds from a handled message until it is said how many were handled."""

SAY_MESSAGES = 256
"""After so many handled messages it is said at once."""

SAY_BYTES = 1 << 20
"""After so many bytes of handled messages it is said at once."""

KEPT_MESSAGES = 100_000
"""How many messages are kept at most. A correct peer says long before that what it has handled."""

KEPT_BYTES = 256 << 20
"""When the kept messages of an agent are larger, it reads no messages of its slaves, so that they wait."""


@define(eq=False, repr=False)
class Session:
    """One side of a session."""

    handled: int = 0
    """How many messages of the other side were handled."""
    say_at: float | None = None
    """When to say this; None if the other side knows it."""
    kept_bytes: int = 0
    """About how many bytes are kept."""
    _said: int = 0
    """How many messages the other side knows to be handled."""
    _handled_bytes: int = 0
    """About how many bytes were handled since it was last said."""
    _dropped: int = 0
    """How many messages the other side has handled, so that they are not kept."""
    _kept: deque[tuple[Sequence[Buffer], int]] = Factory(deque)
    """The messages that were sent after these, and their sizes."""

    # ---- what is sent --------------------------------------------------------------------------------------

    def keep(self, frames: Sequence[Buffer]) -> None:
        """Keep a message that is sent, or that will be sent when there is a connection."""
        size = sum(map(len, frames))
        self.kept_bytes += size
        self._kept.append((frames, size))

    def drop(self, handled: int) -> int:
        """The other side has handled this many messages: keep them no longer.

        Returns:
            The size of the payloads of those that were kept.

        Raises:
            ProtocolError: this cannot be; the fault of the other side.
        """
        kept = self._kept
        if not self._dropped <= handled <= self._dropped + len(kept):
            raise ProtocolError(
                f"it says that it has handled {handled} messages, not {self._dropped} to {self._dropped + len(kept)}"
            )
        payload_bytes = 0
        while self._dropped < handled:
            frames, size = kept.popleft()
            self.kept_bytes -= size
            self._dropped += 1
            payload_bytes += size - len(frames[0])
        return payload_bytes

    @property
    def sent(self) -> int:
        """How many messages were sent, also those that are not kept any more."""
        return self._dropped + len(self._kept)

    @property
    def kept(self) -> list[Sequence[Buffer]]:
        """The messages that are kept, the oldest first."""
        return [frames for frames, _ in self._kept]

    @property
    def is_full(self) -> bool:
        """Whether there are more messages than a correct peer leaves unhandled."""
        return len(self._kept) > KEPT_MESSAGES

    # ---- what is received ----------------------------------------------------------------------------------

    def note_handled(self, frames: Sequence[Buffer], now: float) -> None:
        """Count a message of the other side that was handled."""
        self.handled += 1
        self._handled_bytes += sum(map(len, frames))
        if self.handled >= self._said + SAY_MESSAGES or self._handled_bytes >= SAY_BYTES:
            self.say_at = now
        elif self.say_at is None:
            self.say_at = now + SAY_S

    def note_repeated(self, now: float) -> None:
        """A message came again that was handled: the other side does not know this."""
        if self.say_at is None:
            self.say_at = now + SAY_S

    def said(self) -> messages.Handled:
        """Return what to say now about the messages that were handled."""
        self._said, self._handled_bytes, self.say_at = self.handled, 0, None
        return messages.Handled(self.handled)

    # ---- the next connection -------------------------------------------------------------------------------

    def go_on(self, handled: int) -> list[Sequence[Buffer]]:
        """Go on with the session on another connection, on which both sides have said what they have handled.

        Args:
            handled: how many messages the other side has handled.

        Returns:
            The messages to send again, in their order.

        Raises:
            ProtocolError: this cannot be; the fault of the other side.
        """
        self.drop(handled)
        self.said()
        return self.kept
