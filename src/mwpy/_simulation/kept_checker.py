"""Checks from outside the values that stay at agents: which are lost, released and computed again, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from msgspec import Struct, field

from mwpy._simulation.reference_checker import ReferenceChecker
from mwpy._values import groups, records

__all__ = ["KeptByAlgorithm", "KeptChecker"]


class KeptChecker(Struct, eq=False):
    """Follows values from the tasks that gave them to their release."""

    references: ReferenceChecker
    """Knows which tasks refer to which."""
    ended: Mapping[int, str]
    """The tasks that have ended, as the algorithm knows it."""
    wanted: dict[int, None] = field(default_factory=dict)
    """The tasks whose values should stay at agents."""
    released: dict[int, None] = field(default_factory=dict)
    """The values that the algorithm has released."""
    places: dict[int, str] = field(default_factory=dict)
    """The kept tasks, and the agents that have their values; empty if the value is lost."""
    again: dict[int, None] = field(default_factory=dict)
    """The tasks that run again."""
    num_again: int = 0
    """How often a task ran again."""
    _done: dict[int, None] = field(default_factory=dict)
    """The tasks with a result, as the master records it, or that will not run."""

    def recorded(self, record: records.Record) -> None:
        """The master states a fact."""
        match record:
            case records.ResultsReceived(_, results, _, agent):
                numbers = [task for task, _ in groups.each_task(results)]
                for task in numbers:
                    self._ends(task)
                for place, _ in results.kept:
                    self.places[numbers[place]] = agent
            case records.TasksGivenUp(tasks=tasks) | records.TasksFailed(tasks=tasks):
                for task in _each(tasks):
                    self._ends(task)
            case records.TasksCancelled(tasks=tasks):
                for task in _each(tasks):
                    if task in self.again:
                        self.places[task] = ""
                    self._ends(task)
            case records.ResultsReused(reused):
                self._done.update((each.first + place, None) for each in reused for place in range(each.count))
            case records.TasksForbidden(tasks):
                self._done.update(dict.fromkeys(_each([tasks])))
            case records.ValuesLost(agent, numbers):
                for task in numbers:
                    assert self.places[task] == agent, f"the value of task {task} is not at {agent}"
                    self.places[task] = ""
            case records.ValuesReleased(numbers, cause):
                for task in numbers:
                    self._released(task, cause)
            case records.TasksRecomputed(tasks):
                for task in _each(tasks):
                    self._runs_again(task)

    def _ends(self, task: int) -> None:
        self.again.pop(task, None)
        self._done[task] = None

    def _users(self, task: int) -> list[int]:
        """The tasks that refer to this one and have not ended."""
        users = [user for user, numbers in self.references.refers.items() if task in numbers]
        return [user for user in users if user not in self._done or user in self.again]

    def _released(self, task: int, cause: str) -> None:
        place = self.places.pop(task)
        if cause:
            assert not place, f"the value of task {task} is at {place}, but it is given up: {cause}"
            self.references.unsure[task] = None
            return
        assert task in self.released, f"the value of task {task} is released, and nobody wanted that"
        assert not self._users(task), f"the value of task {task} is released, but {self._users(task)} need it"

    def _runs_again(self, task: int) -> None:
        assert self.places.pop(task) == "", f"task {task} runs again, but its value is not lost"
        assert self._users(task), f"task {task} runs again, and nobody needs it"
        self.again[task] = self.references.unsure[task] = None
        self.num_again += 1

    def check_end(self) -> None:
        """All tasks have ended."""
        assert not self.again, f"tasks {[*self.again]} run again, and all tasks have ended"
        left = [task for task in self.places if task in self.released and not self._users(task)]
        assert not left, f"the values of tasks {left} were released, and are still kept"


class KeptByAlgorithm:
    """Which values the algorithm leaves at agents, uses and releases; in some histories none.

    Args:
        seed: names the history.
        checker: learns it.
    """

    def __init__(self, seed: int, checker: KeptChecker) -> None:
        self.seed = seed
        self.checker = checker
        self._random = Random(f"keep {seed}")
        self._share = self._random.choice((0.0, 0.2, 0.8))
        """The share of tasks whose values stay at agents."""
        self._kept: dict[int, None] = {}
        """The tasks that were submitted so, and are not released."""

    def keep(self, task: int) -> bool:
        """Whether the value of the next task stays at its agent."""
        if self._random.random() >= self._share:
            return False
        self._kept[task] = self.checker.wanted[task] = None
        return True

    def some(self) -> list[int]:
        """Tasks whose values stay at agents, to which a task refers; often none."""
        if not self._kept or self._random.random() < 0.6:
            return []
        return sorted(self._random.sample([*self._kept], min(len(self._kept), self._random.randint(1, 3))))

    def released(self) -> list[int]:
        """Release some values, and return their tasks."""
        released = [number for number in self._kept if self._random.random() < 0.1]
        for number in released:
            del self._kept[number]
            self.checker.released[number] = None
        return released


def _each(tasks: Sequence[records.TaskRange]) -> list[int]:
    """The ids of all tasks."""
    return [each.first + place for each in tasks for place in range(each.count)]
