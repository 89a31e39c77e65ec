"""How long the task that runs in this process may go on, and what it must not leave to the next one.

How long the task that runs in this process may go on, and a warning before its end.

The warning is an exception in the main thread. Only the handler of a signal can raise it there, so a timer sends one.
The end may come nearer at any time, by an eviction, so the timer rings every `LOOK_S` seconds. A signal of the agent
instead would kill a process in which a task has changed the handler.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf
from typing import Any, ClassVar

from attrs import define

from mwpy._system import clock
from mwpy._system.process import handle_here
from mwpy._values.algorithm import AFTER_INITIALIZER
from mwpy._values.errors import EndIsNear, UsageError
from mwpy._values.task import RUNNING

LOOK_S = 0.25
"""How often the time is looked at, in seconds: a small part of the shortest usual grace period."""

SHORTEST_S = 0.001
"""The shortest time that is set on the timer, because 0 stops it."""


def seconds_left() -> float:
    """Return how long the task that calls this may still run.

    The time ends with the policy `seconds_max` of the task, and with the time of its agent: its lifetime, the time
    limit of its job, or the grace period after SIGTERM. So the number can shrink suddenly. When it is 0, the task is
    killed.

    Returns:
        Seconds; `math.inf` if no end is known, or if no task runs. In the process of the master (`slaves=0` and
        `mwpy.replay`), nobody ends a task, so it is `math.inf` there.

    Examples:
        >>> def search(space):                                 # doctest: +SKIP
        ...     while mwpy.seconds_left() > 60:
        ...         space.improve()
        ...     return space.best
    """
    return inf if RUNNING.end_at is None else max(0.0, RUNNING.end_at() - clock.monotonic())


def warned(seconds: float) -> AbstractContextManager[None]:
    """Raise `mwpy.EndIsNear` in a block of a task as soon as the task has less than this much time left.

    The exception interrupts Python code, `time.sleep` and other waits of Python. A call of C code, such as a large
    matrix product, ends first. It is raised once, also if the end comes nearer suddenly. If the task does not catch it,
    the attempt is lost when its time is over, as if the task had been killed then. So no task is charged for an
    eviction.

    The block uses the signal SIGALRM and the timer `signal.ITIMER_REAL` of its process. Do not use them in the block.

    Args:
        seconds: more than the task needs to save what it has.

    Raises:
        UsageError: this is not the main thread of the process, or `seconds` is not positive; the caller's fault.

    Examples:
        >>> def search(space):                                 # doctest: +SKIP
        ...     try:
        ...         with mwpy.warned(30):
        ...             space.improve()
        ...     except mwpy.EndIsNear:
        ...         mwpy.checkpoint(space)
        ...         raise
    """
    if not seconds > 0:
        raise UsageError(f"mwpy.warned({seconds!r}): give a number of seconds greater than 0")
    return _warned(float(seconds))


@define(eq=False, repr=False)
class _Warning:
    """An open block with a warning."""

    seconds: float
    end_at: Callable[[], float]
    """The end of the task that runs the block."""

    def check(self, left_s: float) -> None:
        """Raise the warning if it is due."""
        if left_s < self.seconds:
            raise EndIsNear(f"the task has {left_s:.1f} s left, less than the {self.seconds:g} s of mwpy.warned")


_open: list[_Warning] = []
"""The open blocks whose warning was not raised, the outermost first. They are global, as the timer of a process is."""


@contextmanager
def _warned(seconds: float) -> Iterator[None]:
    if RUNNING.end_at is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("mwpy.warned() in a thread that the task started: use it in the task's own thread")
    warning = _Warning(seconds, RUNNING.end_at)
    warning.check(seconds_left())
    handle_here(signal.SIGALRM, _look)
    _open.append(warning)
    try:
        _wait()
        yield
    finally:
        if warning in _open:
            _close(warning)


def _close(warning: _Warning) -> None:
    """End a block and those that are open within it."""
    del _open[_open.index(warning) :]
    _wait()


def _wait() -> None:
    """Let the timer ring at the next moment to look; stop it if no block is open.

    The handler stays: another thread may still get the signal.
    """
    most = max((each.seconds for each in _open), default=None)
    signal.setitimer(signal.ITIMER_REAL, 0.0 if most is None else max(SHORTEST_S, min(LOOK_S, seconds_left() - most)))


def _look(*_: object) -> None:
    """Handle the signal of the timer: raise the warning of the outermost block that is due.

    A block that its task has left open, for example in a generator, has no warning any more.
    """
    left_s = seconds_left()
    for warning in list(_open):
        if warning.end_at is not RUNNING.end_at:
            _close(warning)
        elif left_s < warning.seconds:
            _close(warning)
            warning.check(left_s)
    _wait()


# What a task must not leave to the next one in its slave: an alarm, other standard streams, no log handler.
#
# An alarm ends a task that knows nothing of it. Without the streams and the handler, what later tasks print and log is
# lost. So they are put back after each task, because this is cheap: comparing three attributes takes less than 0.1 µs.
# An alarm can only be stopped with a system call, which takes 0.1 to 0.3 µs. Everything else that a task changes stays.


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
        _open.clear()  # a task has left these blocks open, for example in a generator
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
