"""Agents that are reserved for suspects.

When an agent vanishes without notice, a task of its slaves may be the cause, and the master cannot know which one. So
all of them become suspects. A task that was at several agents when they vanished runs alone from then on: nothing else
runs on its agent. If that agent vanishes too, no other task is lost with it, and the task is given up.

A suspect gets an agent whose slaves are all idle. If there is none, one agent gets no more tasks until its slaves are
idle, and the other agents continue. Each iteration decides this again, so it does not matter which agents leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from mwpy._core.holding import count_of
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave
from mwpy._core.master.pending import Lane
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values.task import SlaveState

__all__ = ["Isolation"]

_SERVING = (SlaveState.IDLE, SlaveState.BUSY)


class Isolation(Struct, eq=False):
    """Reserves agents, each for one suspect."""

    state: MasterState
    reserved: list[ConnectedAgent] = field(default_factory=list)
    """The agents that are reserved: one suspect runs on each of them, and at most one waits until it is idle."""

    def places(self, now: float) -> list[tuple[ConnectedSlave, Lane]]:
        """Reserve agents for the pending suspects, and release those on which no suspect runs.

        Returns:
            Slaves, each alone on its agent, and the queue of the suspect that the caller must send to it now.
        """
        before, self.reserved = self.reserved, []
        for agent in before:
            agent.reserved = False
            if agent.runs_suspect:
                self._reserve(agent)
        found: list[tuple[ConnectedSlave, Lane]] = []
        empties_one = False
        for lane, queue in self.state.jar.pending.suspects.items():
            for _ in range(sum(map(count_of, queue))):
                slave = self._least_busy(queue[0], before, now)
                if slave is None or (empties_one and slave.agent.num_busy):
                    break
                self._reserve(slave.agent)
                if slave.agent.num_busy:
                    empties_one = True
                    break
                found.append((slave, lane))
        return found

    def _reserve(self, agent: ConnectedAgent) -> None:
        agent.reserved = True
        self.reserved.append(agent)

    def _least_busy(self, suspect: Span, before: Sequence[ConnectedAgent], now: float) -> ConnectedSlave | None:
        """A slave that can run a suspect, on the agent with the fewest busy slaves.

        Prefer agents that have finished a task. One that has finished none must first run another task, if one waits
        that it can run: if it vanishes, too, this says little about the suspect.

        If two agents have equally few, prefer one that was reserved before. So the choice changes only if another agent
        gets idle sooner, and some agent gets idle in the end.
        """
        pending = self.state.jar.pending
        best: tuple[bool, int, bool] | None = None
        found: ConnectedSlave | None = None
        for agent in self.state.members.agents.values():
            rank = not agent.is_proven, agent.num_busy, agent not in before
            if agent.reserved or (best is not None and rank >= best) or not agent.has_time(suspect, now):
                continue
            if not agent.is_proven and pending.first_turn(agent.refused, agent.ends_in_s(now)) is not None:
                continue
            number = suspect.algorithm.number
            slave = next((slave for slave in agent.slaves.values() if _may_run(slave, number)), None)
            if slave is not None:
                best, found = rank, slave
        return found

    def check(self) -> None:
        """Assert that a suspect is the only task of its agent, and that only agents for suspects are reserved."""
        for agent in self.state.members.agents.values():
            held = [span for slave in agent.slaves.values() for span in slave.held.spans]
            if agent.runs_suspect:
                assert agent.reserved, f"{agent.name} runs a suspect and is not reserved"
                assert sum(map(count_of, held)) == 1, f"a suspect is not alone on {agent.name}"
            assert agent.reserved == (agent in self.reserved), f"{agent.name} is reserved for nothing"


def _may_run(slave: ConnectedSlave, number: int) -> bool:
    """Whether a slave may be sent a suspect of this algorithm, if its agent is idle."""
    return slave.has_room and slave.state in _SERVING and number not in slave.refused
