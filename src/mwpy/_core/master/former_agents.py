"""The agents of the last generations, as the run database knows them.

An agent that outlives its master is the same process in the next generation. So only a process that was an agent of a
former generation can have tasks of that generation, or their results. A member could lie about its process, but members
are trusted: their results are unpickled in the master. This protects from mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence

from mwpy._core.master.members import ConnectedAgent
from mwpy._values.earlier import FormerAgent
from mwpy._values.phrases import counted, first_of

__all__ = ["FormerAgents"]


class FormerAgents:
    """Knows who may bring results of former generations.

    Args:
        agents: all agents of the last generations.
    """

    def __init__(self, agents: Sequence[FormerAgent] = ()) -> None:
        self.agents = agents
        self._processes = {(each.generation, each.host, each.pid): None for each in agents}
        """The generation, the machine and the process of each."""
        self._came: dict[tuple[str, int], None] = {}
        """The machine and the process of those that are back, and have said everything about their tasks."""
        self.returns_s = self._longest_s()
        """For how long one that is not back looks for its master at most, in seconds; 0 if there are none."""

    def had(self, generation: int, agent: ConnectedAgent) -> bool:
        """Whether an agent was one of this generation, too."""
        return (generation, agent.host, agent.pid) in self._processes

    def came(self, agent: ConnectedAgent) -> None:
        """An agent is back, and has said everything about its tasks of former generations."""
        self._came[agent.host, agent.pid] = None
        self.returns_s = self._longest_s()

    @property
    def outliving(self) -> list[FormerAgent]:
        """Those that look for their master, as far as the file knows, and are not back."""
        living = [each for each in self.agents if each.returns_s and not each.has_ended]
        return [each for each in living if (each.host, each.pid) not in self._came]

    def _longest_s(self) -> float:
        return max((each.returns_s for each in self.outliving), default=0.0)

    def names(self) -> str:
        """The processes that may return."""
        processes = [*dict.fromkeys(f"process {each.pid} on {each.host}" for each in self.outliving)]
        return f"{counted(len(processes), 'agent')} ({first_of(processes, len(processes))})"
