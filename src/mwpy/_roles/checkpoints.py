"""The states and the reports of the task that a slave runs: the state that an earlier attempt left, and what this one
leaves and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mwpy._system.clock import monotonic
from mwpy._transport import wire
from mwpy._transport.codec import Codec, loads_state
from mwpy._values import messages
from mwpy._values.errors import UsageError
from mwpy._values.ids import Buffer

if TYPE_CHECKING:
    from mwpy._roles.edges import SlaveChannel

__all__ = ["RunningTasks"]

_NOT_LOADED = object()


class FlushResults(Protocol):
    """`TaskRunner.flush`."""

    def __call__(self, *, in_task: bool) -> None: ...


class RunningTasks:
    """The tasks of one span, while a slave runs them one after the other.

    Args:
        end: the slave's channel to its agent. It knows which task runs.
        number: the slave's number within its agent.
        limit: the largest state, in bytes.
        codec: encodes states.
        flush: sends the results of earlier tasks.
    """

    def __init__(
        self,
        end: SlaveChannel,
        number: int,
        limit: int,
        codec: Codec,
        flush: FlushResults,
    ) -> None:
        self._end = end
        self._number = number
        self._limit = limit
        self._codec = codec
        self._flush = flush
        self._first = self._attempt = self._position = 0
        self._left: Sequence[Buffer] = ()
        self._restored: object = _NOT_LOADED
        self.began = 0.0
        """When the running task began, on the monotonic clock."""

    def begin(self, first: int, attempt: int, position: int, left: Sequence[Buffer]) -> RunningTasks:
        """The slave begins a span.

        Args:
            first: the id of its first task.
            attempt: the attempt of all its tasks.
            position: the position of its first task.
            left: the state that an earlier attempt left; empty if there is none. Such a task has a span of its own.
        """
        self._first, self._attempt, self._position, self._left = first, attempt, position, left
        self._restored = _NOT_LOADED
        self.began = monotonic()
        return self

    @property
    def running(self) -> int:
        """The id of the task that runs."""
        return self._first + self._end.position - self._position

    def leave(self, state: object) -> None:
        """Send a state of the running task. See `mwpy.checkpoint`."""
        if self._end.forked:
            raise UsageError("mwpy.checkpoint() in a process that the task forked: call it in the task's own process")
        entry, buffers = self._codec.dumps_state(state)
        size = len(entry) + sum(map(len, buffers))
        if size > self._limit:
            raise UsageError(
                f"the state is {size} bytes, the limit is {self._limit} bytes (--mw-max-read-buffer-size): leave less, "
                f"or write it to a file and leave the name, or raise the limit"
            )
        self._flush(in_task=True)  # a state ends the silence after which the agent reads them in the journal
        self._end.send(wire.encode(messages.Checkpoint(self._number, self.running, self._attempt), [entry, *buffers]))

    def report(self, values: dict[str, object]) -> None:
        """Send interim values of the running task. See `mwpy.report`."""
        if self._end.forked:
            raise UsageError("mwpy.report() in a process that the task forked: call it in the task's own process")
        entry = self._codec.dumps_report(values)
        seconds = max(0.0, monotonic() - self.began)
        message = messages.Reported(self._number, self.running, self._attempt, seconds)
        self._end.send(wire.encode(message, [entry]))

    def restored(self, default: object) -> object:
        """Return the state that an earlier attempt left. See `mwpy.restored`."""
        if not self._left:
            return default
        if self._restored is _NOT_LOADED:
            self._restored = loads_state(self._left)
        return self._restored
