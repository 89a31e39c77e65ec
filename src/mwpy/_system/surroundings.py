"""What a task must not leave to the next one in its slave: an alarm, other standard streams, no log handler.

An alarm ends a task that knows nothing of it. Without the streams and the handler, what later tasks print and log is
lost. So they are put back after each task, because this is cheap: comparing three attributes takes less than 0.1 µs.
An alarm can only be stopped with a system call, which takes 0.1 to 0.3 µs. Everything else that a task changes stays.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
from typing import Any, ClassVar

from mwpy._system import time_left
from mwpy._values.algorithm import AFTER_INITIALIZER


class _NoLogging:
    """Stands for the root logger as long as no code of this process has imported `logging`."""

    handlers: ClassVar[list[Any]] = []
    level = 0


class Surroundings:
    """The alarm, the standard streams and the log handlers of this process, as the next task should find them.

    Make one in a slave. From then on, `close` only flushes standard output and error, so that tasks cannot close them.
    What an initializer of an executor sets up stays, and so does what a slave algorithm sets up between two turns.
    """

    def __init__(self) -> None:
        for stream in {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}:
            if isinstance(stream, io.TextIOWrapper):
                for each in (stream, stream.buffer):
                    vars(each)["close"] = each.flush  # their files stay open after a real `close`, too
        self._alarm_handler = signal.getsignal(signal.SIGALRM)
        AFTER_INITIALIZER.append(self.remember)
        self.remember()

    def remember(self) -> None:
        """Take the present streams and handlers as those that tasks should find."""
        logging = sys.modules.get("logging")
        self.stdout: Any = getattr(sys, "stdout", None)
        self.stderr: Any = getattr(sys, "stderr", None)
        self.root: Any = _NoLogging if logging is None else logging.root
        """The root logger."""
        self.handlers = list(self.root.handlers)
        self._level = self.root.level

    def restore(self) -> None:
        """Put everything back after a task."""
        if signal.alarm(0):  # it stops `signal.setitimer(signal.ITIMER_REAL)`, too
            self._forget_alarm()
        if getattr(sys, "stdout", None) is not self.stdout:
            self.stdout = sys.stdout = _usable(self.stdout, getattr(sys, "stdout", None))
        if getattr(sys, "stderr", None) is not self.stderr:
            self.stderr = sys.stderr = _usable(self.stderr, getattr(sys, "stderr", None))
        if self.root.handlers != self.handlers:
            self._restore_handlers()

    def _forget_alarm(self) -> None:
        time_left.forget_warnings()
        if self._alarm_handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, signal.SIG_IGN)  # this also discards an alarm that has just gone off
            signal.signal(signal.SIGALRM, self._alarm_handler)

    def _restore_handlers(self) -> None:
        """Put back the handlers of the root logger if one is missing. Handlers that a task has only added stay."""
        if all(handler in self.root.handlers for handler in self.handlers):
            self.handlers = list(self.root.handlers)
        else:
            self.root.handlers[:] = self.handlers
            self.root.setLevel(self._level)  # `logging.basicConfig(force=True, level=...)` sets both


def _usable(former: Any, present: Any) -> Any:
    """Return the former stream, or the present one if that has taken the file of the former one (`detach`)."""
    try:
        getattr(former, "closed", False)
    except ValueError:
        return present
    return former
