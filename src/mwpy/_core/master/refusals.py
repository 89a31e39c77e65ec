"""Tasks that no slave will ever be able to run, because all slaves refuse their algorithm and no others can join.

If other slaves can join, for example from a batch system, such tasks wait for them, and `Silence` says so. A master
that only has slaves on its own machine would wait forever, so its tasks are handed back as unrunnable.

A slave that was not asked yet may be able to run the algorithm, for example because it loads a file that was
corrected. So nothing is handed back while slaves are started or replaced, unless their agent refuses the algorithm for
all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from mwpy._core.master.handback import HandBack
from mwpy._core.master.members import ConnectedAgent
from mwpy._core.master.state import MasterState
from mwpy._values.task import SlaveState

__all__ = ["Refusals"]

_STAYS = SlaveState.IDLE, SlaveState.BUSY


class Refusals(Struct, eq=False):
    """Hands back the tasks that all slaves refuse."""

    state: MasterState
    handback: HandBack

    def decide(self) -> None:
        """Hand back the pending tasks of all algorithms that every slave refuses, if no other slave can join."""
        pending, members = self.state.jar.pending, self.state.members
        if members.away or not (members.some_refused and pending.num_queued):
            return
        for number, reason in _refused_by_all(members.agents.values()).items():
            why = f"no slave can run it, and only slaves on this machine can join: {reason}"
            for span in pending.unaddressed(number):
                self.handback.give_up_unsent(span, why)


def _refused_by_all(agents: Iterable[ConnectedAgent]) -> dict[int, str]:
    """The numbers of the algorithms that every slave refuses, each with the reason of the first one."""
    tables = _refused(agents)
    common = next(tables, {})
    for table in tables:
        if not common:
            break
        common = {number: reason for number, reason in common.items() if number in table}
    return common


def _refused(agents: Iterable[ConnectedAgent]) -> Iterator[dict[int, str]]:
    """Yield what each slave refuses. What a slave refuses that is not ready yet, its agent knows."""
    for agent in agents:
        if agent.leaving:
            yield {}  # another one may replace it
        if agent.coming:
            yield agent.refused
        for slave in agent.slaves.values():
            yield slave.refused if slave.state in _STAYS else agent.refused
