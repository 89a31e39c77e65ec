"""Takes over what tasks have logged, and gives it to the algorithm's thread.

The algorithm may work for long, and then nobody takes the records. So only some wait, and the others are counted.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.master.members import ConnectedAgent
from mwpy._core.master.state import LogGroup, MasterState
from mwpy._values.log_messages import Logged, size_of

__all__ = ["MOST_BYTES", "Logs"]

MOST_BYTES = 16 << 20
"""About how many bytes of records may wait for the algorithm."""


GROUP_BYTES = 200
"""About how many bytes a group takes without its records."""


class Logs(Struct, eq=False):
    """Takes over records."""

    state: MasterState
    handled: int = 0
    """About how many bytes of records the algorithm's thread has handled."""
    given: int = 0
    """About how many bytes it was given."""
    left_out: int = 0
    """How many records were left out since then."""

    def receive(self, agent: ConnectedAgent, logged: Logged) -> None:
        """Take over the records of a slave. A slave that is gone has logged nothing."""
        slave = agent.slaves.get(logged.slave)
        if slave is None:
            return
        size = sum(map(size_of, logged.rows), GROUP_BYTES)
        self.left_out += logged.left_out
        if self.given - self.handled + size > MOST_BYTES:
            self.left_out += len(logged.rows)
            return
        self.given += size
        self.state.actions.logged.append(LogGroup(slave.sid, agent.host, logged.rows, self.left_out, size))
        self.left_out = 0

    def check(self) -> None:
        """Assert that not too much waits."""
        assert 0 <= self.given - self.handled <= MOST_BYTES, "too many records wait, or they were miscounted"
