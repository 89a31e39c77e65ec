"""The future of a task: what `Executor.submit` returns."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import _base
from functools import partial
from typing import Any, TypeVar

from mwpy._system import live_line
from mwpy._values.errors import TaskFailed, shown_in_ipython
from mwpy._values.task import Result

T = TypeVar("T")


class Future(concurrent.futures.Future[T]):
    """The end of a task that an executor runs, as `concurrent.futures.Future` has it. `cancel` can also kill.

    Its attributes cost memory for each pending task, so those that most futures do not need are defaults of the class.
    """

    task_id: int | None = None
    """The id of the task in the master; None if it has not been handed over."""
    place: int = 0
    """Which one of the tasks of its executor it is, counted from 1."""
    _kill: Callable[[Future[Any]], None]
    """Tells the executor that a task is not wanted any more."""
    _condition: threading.Condition
    """The lock of the base class, which all changes of `_state` need."""
    _invoke_callbacks: Callable[[], None]

    def __init__(self, kill: Callable[[Future[Any]], None]) -> None:
        super().__init__()
        self._kill = kill

    def cancel(self, *, kill: bool = False) -> bool:
        """Cancel the task.

        Args:
            kill: whether a task that was sent is cancelled, too. The slave that runs it is replaced by another. Without
                this, a task that was sent goes on.

        Returns:
            Whether the task is cancelled.
        """
        if super().cancel():
            with self._condition:
                if self._state == _base.CANCELLED:  # those that wait learn it now, not when its turn would come
                    self.set_running_or_notify_cancel()
            return True
        if not kill:
            return False
        with self._condition:
            if self._state != _base.RUNNING:
                return self.cancelled()
            self._state = _base.CANCELLED
            self.set_running_or_notify_cancel()
            self._condition.notify_all()
        self._kill(self)
        self._invoke_callbacks()
        return True

    def start(self) -> bool:
        """The task is handed over to the master now. Return whether it is still wanted."""
        with self._condition:
            if self._state != _base.PENDING:
                return False
            self._state = _base.RUNNING
            return True

    def finish(self, result: Result[Any]) -> None:
        """The task has ended. Unpickling its value may raise anything, and this concerns no other task."""
        result.tag = None  # this future, which says nothing in an error
        try:
            value = result.value
        except TaskFailed as failure:
            self.end(error=exception_of(failure.with_traceback(None)))
        except BaseException as error:
            self.end(error=error)
        else:
            self.end(value)

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set the value or the error, unless the future is cancelled. A callback that raises harms no other future."""
        try:
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except (concurrent.futures.InvalidStateError, SystemExit):  # SystemExit ends a thread in silence elsewhere
            pass
        except BaseException as raised:
            own = threading.current_thread()
            threading.excepthook(threading.ExceptHookArgs((type(raised), raised, raised.__traceback__, own)))


def exception_of(failure: TaskFailed) -> BaseException:
    """Return the exception of the task itself, if it could be rebuilt here. Its cause is the `TaskFailed`.

    In IPython, it has one attribute more, because nothing else tells IPython which frames to show.
    """
    raised = failure.__cause__
    if raised is None or not failure.remote_traceback:
        return failure
    failure.__cause__, raised.__cause__ = None, failure
    if live_line.is_ipython() and not hasattr(raised, "_render_traceback_"):
        object.__setattr__(raised, "_render_traceback_", partial(shown_in_ipython, raised))
    return raised
