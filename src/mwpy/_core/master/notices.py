"""Which notices the user sees.

Some texts come from members, and a member may send another text each time. These notices have keys: each key is shown
once, and a limited number of them in a minute.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct, field

from mwpy._values.phrases import counted

__all__ = ["KEYS_KEPT", "NOTICES_A_MINUTE", "NOTICES_KEPT", "Notices"]

KEYS_KEPT = 1000
"""How many keys of notices are remembered. When there are more, the oldest is forgotten, and may be said again."""

NOTICES_KEPT = 20
"""How many of the newest notices an inquirer gets."""

NOTICES_A_MINUTE = 100
"""How many notices with a key are shown in a minute."""


class Notices(Struct, eq=False):
    """Chooses the notices that are shown."""

    newest: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NOTICES_KEPT))
    """The newest notices, and when they were shown, by the monotonic clock."""
    _keys: dict[str, None] = field(default_factory=dict)
    """The keys of the notices that were shown; the oldest is first."""
    _shown_at: deque[float] = field(default_factory=deque)
    """When those of the last minute were shown."""
    _left_out: int = 0
    """How many notices were not shown since the last one that was."""

    def shown(self, text: str, now: float) -> None:
        """A notice is shown."""
        self.newest.append((now, text))

    def chosen(self, text: str, key: str, now: float) -> list[str]:
        """Return what is shown in place of a notice: the notice, or nothing.

        Args:
            key: notices with the same key are shown only once. It is empty for a notice that no member causes. Such a
                notice is always shown.
            now: the monotonic time.
        """
        if not key:
            return [text]
        if key in self._keys:
            return []
        while self._shown_at and self._shown_at[0] <= now - 60:
            self._shown_at.popleft()
        if len(self._shown_at) >= NOTICES_A_MINUTE:
            self._left_out += 1
            return []
        self._shown_at.append(now)
        self._keys[key] = None
        if len(self._keys) > KEYS_KEPT:
            del self._keys[next(iter(self._keys))]
        if not self._left_out:
            return [text]
        missing = f"{counted(self._left_out, 'message')} more came within a minute, and were left out"
        self._left_out = 0
        return [missing, text]
