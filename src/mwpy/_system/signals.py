"""Signals as something to wait for: a file descriptor that can be read when a signal was caught."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence

__all__ = ["Signals"]


class Signals:
    """Catches signals of this process. Make it in the main thread.

    Args:
        numbers: the signals to catch.
    """

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        self._caught: list[signal.Signals] = []
        self._bell_out, self._bell_in = socket.socketpair()
        for bell in (self._bell_out, self._bell_in):
            bell.setblocking(False)
        signal.set_wakeup_fd(self._bell_in.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda caught, _: self._caught.append(signal.Signals(caught)))

    def fileno(self) -> int:
        """What to wait for; call `clear` when it can be read."""
        return self._bell_out.fileno()

    def clear(self) -> None:
        """Make `fileno` wait for the next signal."""
        self._bell_out.recv(4096)

    def take(self) -> Sequence[signal.Signals]:
        """The signals that were caught since the last call, in order."""
        if not self._caught:
            return ()
        return [self._caught.pop(0) for _ in range(len(self._caught))]  # one by one: another may arrive now

    def close(self) -> None:
        """Stop waiting for signals."""
        signal.set_wakeup_fd(-1)
        self._bell_out.close()
        self._bell_in.close()
