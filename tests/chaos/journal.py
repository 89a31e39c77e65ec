"""What the tasks and the master algorithm of a chaos run have written, and what follows from it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from attrs import define, field, frozen


@define
class Execution:
    """One execution of a task."""

    began: float
    host: str
    ended: float | None = None


@frozen
class Delivery:
    """A result came to the master algorithm."""

    life: int
    moment: float
    has_ended: bool
    """Whether the task has ended; else it was unrunnable."""


@frozen
class Journal:
    """All executions and deliveries of a run.

    Moments are seconds of the clock that all processes of the machine share.
    """

    executions: dict[str, list[Execution]] = field(factory=dict)
    deliveries: dict[str, list[Delivery]] = field(factory=dict)
    lives: list[float] = field(factory=list)
    """When each life of the master algorithm began."""

    @property
    def count(self) -> int:
        return sum(map(len, self.executions.values()))

    def repeated_work(self, moment: float, until: float) -> list[float]:
        """How old each finished execution was at a moment, if its task ran again later.

        Args:
            moment: when the master was killed.
            until: when it was killed the next time.
        """
        found = []
        for executions in self.executions.values():
            ended = [each.ended for each in executions if each.ended is not None and each.ended < moment]
            again = any(moment < each.began < until for each in executions)
            if again and ended:
                found.append(moment - max(ended))
        return found

    def came_before(self, life: int) -> int:
        """How many tasks had ended in an earlier life than this one."""
        return sum(any(each.life < life and each.has_ended for each in found) for found in self.deliveries.values())

    def ran_twice(self) -> list[str]:
        """The tasks with retry=False that were started more than once."""
        return [name for name, found in self.executions.items() if "/once/" in name and len(found) > 1]


def read(folder: Path) -> Journal:
    """Read the files `executions`, `came` and `lives`."""
    executions: defaultdict[str, list[Execution]] = defaultdict(list)
    running: dict[tuple[str, str], Execution] = {}
    for line in lines(folder / "executions"):
        sign, name, moment, host, pid = line.split()
        if sign == "+":
            running[name, pid] = Execution(float(moment), host)
            executions[name].append(running[name, pid])
        else:
            running[name, pid].ended = float(moment)
    deliveries: defaultdict[str, list[Delivery]] = defaultdict(list)
    for line in lines(folder / "came"):
        life, name, moment, outcome = line.split()
        deliveries[name].append(Delivery(int(life), float(moment), outcome == "ended"))
    return Journal(dict(executions), dict(deliveries), [float(line) for line in lines(folder / "lives")])


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
