"""The journal of a simulated slave, which its agent can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from mwpy._transport.channel.journal import AGAIN, VALUE
from mwpy._values import groups, messages
from mwpy._values.ids import Buffer

__all__ = ["SimulatedJournal"]


class SimulatedJournal(Struct, eq=False):
    """The results that a slave has finished and not sent."""

    _sent_meanwhile: Callable[[], bool]
    results: list[tuple[int, int, float, int, bytes]] = field(default_factory=list)
    """Task, attempt and seconds of each, whether it is a value, a failure, or a reason to try again, and what it
    is."""
    num_read: int = 0
    """How many of these results the agent has read, counted from the first."""

    def read(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]] | None:
        """Read the journal. Sometimes the slave sends the results during the read."""
        if self._sent_meanwhile():
            return None
        self.num_read = len(self.results)
        return self.group(slave)

    def clear(self) -> None:
        """The slave has sent its results."""
        self.results, self.num_read = [], 0

    def group(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]]:
        """The results as a group."""
        columns = [list(column) for column in zip(*self.results, strict=True)] or [[]] * 5
        tasks, attempts, seconds, kinds, entries = columns
        failed = [place for place, kind in enumerate(kinds) if kind != VALUE]
        again = [place for place in failed if kinds[place] == AGAIN]
        group = messages.Results(slave, *groups.spans_of(tasks, attempts), seconds, failed, again=again)
        return group, [groups.payload(len(tasks), entries)]
