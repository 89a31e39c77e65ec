"""What follows when records are in the run database: messages of the master, and news for its core.

A task that must not run twice leaves for its slave only when the file says so. Otherwise a master that is killed
between the two would leave a task that runs, and a file that knows nothing of it. All other tasks are sent at once,
because the next life of the master may run them again.

Later messages to the same agent wait behind such a task, because their order counts: a message may take tasks back that
an earlier one brings.

Results of a former generation that an agent has brought are answers as soon as they have a row in the file.

What was handled is said to the agents when it is in the file (see `sessions.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field

from mwpy._core.master.events import Send, Stored
from mwpy._roles.sessions import Said
from mwpy._values.messages import Handled
from mwpy._values.records import ResultsHandedOver

__all__ = ["CommittedSends"]


class CommittedSends(Struct, eq=False):
    """The messages that wait. The I/O thread calls all methods, except those that say otherwise.

    Args:
        wake: lets the I/O thread ask for messages that are due.
    """

    wake: Callable[[], None]
    held: int = 0
    """The number of the last messages that were held back."""
    _committed: int = 0
    """Up to this number, messages can be sent."""
    _waiting: dict[bytes, deque[tuple[int, Send]]] = field(default_factory=dict)
    """By peer: the messages that wait, in their order, each with its number."""
    _stored: deque[Stored] = field(default_factory=deque)
    """News for the core."""
    _said: deque[tuple[bytes, Handled]] = field(default_factory=deque)
    """What to say about handled messages, each with its peer."""
    _has_failed: bool = False
    _is_closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held to wake the I/O thread, which must not end meanwhile."""

    def add(self, sends: Sequence[Send]) -> Sequence[Send]:
        """Hold back those of the messages that must wait. Return the others."""
        if not self._waiting and not any(send.after_commit for send in sends):
            return sends
        others: list[Send] = []
        self.held += 1
        for send in sends:
            if send.after_commit or send.peer in self._waiting:
                self._waiting.setdefault(send.peer, deque()).append((self.held, send))
            else:
                others.append(send)
        return others

    def committed(self, number: int) -> None:
        """The records that came with messages are in the file. The writer's thread calls this.

        Args:
            number: `held` as it was after these messages.
        """
        self._committed = number
        self._wake()

    def stored(self, record: ResultsHandedOver, row: int) -> None:
        """Results that an agent has brought are in the file. The writer's thread calls this."""
        self._stored.append(Stored(record, row))
        self._wake()

    def handled(self, said: Said) -> None:
        """What these messages say is in the file. The writer's thread calls this."""
        self._said.extend(said)
        self._wake()

    def take_said(self) -> Said:
        """Return what can be said about handled messages, in order."""
        return [self._said.popleft() for _ in range(len(self._said))] if self._said else []

    def _wake(self) -> None:
        with self._lock:
            if not self._is_closed:
                self.wake()

    def take_stored(self) -> list[Stored]:
        """Return the news for the core."""
        return [self._stored.popleft() for _ in range(len(self._stored))] if self._stored else []

    def fail(self) -> None:
        """Nothing can be stored any more: tasks that wait are never sent. Any thread may call this."""
        self._has_failed = True

    def take_due(self) -> list[Send]:
        """Return the messages that can be sent now, in their order."""
        due: list[Send] = []
        for peer in [*self._waiting]:
            queue = self._waiting[peer]
            while queue and (self._has_failed or queue[0][0] <= self._committed or not queue[0][1].after_commit):
                number, send = queue.popleft()
                if number <= self._committed or not send.after_commit:
                    due.append(send)
            if not queue:
                del self._waiting[peer]
        return due

    def drop(self, peers: Iterable[bytes]) -> None:
        """Forget the messages to peers that are gone."""
        for peer in peers:
            self._waiting.pop(peer, None)

    def close(self) -> None:
        """Nothing is sent any more."""
        with self._lock:
            self._is_closed = True
