"""Signals of this process: handled in it alone, as something to wait for, and held back while they would do damage."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

__all__ = ["HeldSignals", "Signals", "handle_here"]

Handler = Callable[[int, Any], object]

_HANDLERS: dict[int, Handler] = {}
"""What `handle_here` has set."""

_MASKS = threading.local()
"""The blocked signals of a thread that forks, as they were before."""


def handle_here(number: signal.Signals, handler: Handler) -> None:
    """Handle a signal in this process. Processes that it forks have the handler of a fresh Python process instead.

    Programs that it starts have the default handler, too. To ignore a signal, give a function that does nothing: they
    would inherit that a signal is ignored. During a fork the signal is blocked, because Python forgets one that arrives
    in the new process before that has its own handler. Then `Process.terminate` right after `start` has no effect.

    Raises:
        ValueError: this is not the main thread.
    """
    signal.signal(number, handler)
    if not _HANDLERS:
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_be_fresh)
    _HANDLERS[number] = handler


def _block() -> None:
    _MASKS.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLERS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _MASKS.before)


def _be_fresh() -> None:
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) == handler:  # the user has set no other one
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _unblock()


class HeldSignals:
    """Ctrl-C and SIGTERM, while they must not interrupt this thread. Only the main thread handles signals."""

    def __init__(self) -> None:
        self.held = False
        """Whether signals wait between `begin` and `end`. To set this is a single step, which no signal can divide."""
        self._handlers: dict[signal.Signals, Handler] = {}
        """The handlers that handle the signals otherwise."""
        self._caught: list[int] = []

    def begin(self) -> None:
        """Hold the signals back. Call `end` in any case, also if this raises an exception."""
        self.held = True
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler) and handler != self._handle:
                self._handlers[number] = handler
                handle_here(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.held:
            self._caught.append(number)
        else:
            self._handlers.get(signal.Signals(number), signal.default_int_handler)(number, frame)

    def let_through(self) -> None:
        """Handle the signals that wait, and those that come. A handler may raise an exception."""
        self.held = False
        caught, self._caught = self._caught, []
        for number in caught:
            signal.raise_signal(number)

    def end(self) -> None:
        """Let the signals through, and give them their handlers back, unless they have others by now."""
        for number, handler in reversed(self._handlers.items()):
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self.let_through()


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
