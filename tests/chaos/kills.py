"""Kills the master of a computation at random moments, and measures what each kill costs.

The agents are no children of the master. A moment is drawn as a number of finished executions. One kill in four comes
soon after the start instead, while the master still matches tasks with the run database.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from bisect import bisect
from contextlib import ExitStack
from itertools import pairwise
from math import inf
from pathlib import Path

from attrs import define, field, frozen
from tests.chaos.supervision import Watched, wait_for
from tests.integration.apps.stage import SOURCES

APP = Path(__file__).parent / "apps" / "squares.py"

LINE = 52
"""The length of a line in the file of executions."""

SECONDS = 0.0005
"""How long each task sleeps."""

AGENTS, SLAVES = 2, 2
"""How many agents there are, and how many slaves each has."""

PAUSE_S = 0.3
EARLY_S = 2.0
"""A kill soon after the start comes within this time."""

REPEATED_S = 1.0
"""Only work that had finished this short a time before a kill may be repeated."""

TICK_S = 0.01
PATIENCE_S = 600.0
LEAVING_S = 60.0


@frozen
class Cost:
    """What a kill of the master has cost."""

    repeated: int
    """How many executions that had finished before ran again before the next kill."""

    oldest_s: float
    """How long before the kill the first of these had finished."""

    def __str__(self) -> str:
        return f"{self.repeated:>4} finished tasks ran again; the oldest had finished {self.oldest_s:.3f} s before"


@define(eq=False)
class Kills:
    """A computation whose master is killed.

    Args:
        folder: an empty folder for all its files.
        seed: of the moments.
        kills: how many.
        tasks: how many numbers are squared.
    """

    folder: Path
    seed: int
    kills: int
    tasks: int
    moments: list[float] = field(factory=list)
    costs: list[Cost] = field(factory=list)
    came: int = 0
    is_exact: bool = False
    agents_started: int = 0
    """How often agents were started again."""
    got: int = 0
    """How many different results the algorithm had got in all lives before the last one."""
    got_again: int = 0
    """How many of these were computed in a later life."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost, no result that the algorithm had got is computed again, and no agent was started
        again."""
        is_complete = self.is_exact and self.came == self.tasks
        return is_complete and not self.agents_started and self.got > 0 and not self.got_again

    @property
    def is_good(self) -> bool:
        """Whether it is whole, and each kill repeats at most the last second."""
        return self.is_whole and all(cost.oldest_s <= REPEATED_S for cost in self.costs)

    def run(self) -> None:
        """Run it to its end, and leave no process."""
        with ExitStack() as stack:
            resource = self.folder / "squares.rsc"
            variables = {"PYTHONPATH": str(SOURCES), "CHAOS_FOLDER": str(self.folder)}
            role = ("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-run-database", self.folder / "run.db")
            options = (*role, "--mw-resource-file", resource, "--mw-audit-file", self.folder / "audit")
            words = [sys.executable, APP, self.tasks, SECONDS, *options]
            master = self._watched("master", words, variables, stack)
            words = [sys.executable, APP, "--mw-slave", "--mw-resource-file", resource, "--mw-slave-processes", SLAVES]
            agents = [self._watched(f"agent{number}", words, variables, stack) for number in range(AGENTS)]
            master.start()
            wait_for(resource.exists, LEAVING_S, lambda: time.sleep(TICK_S))
            for agent in agents:
                agent.start()
            self._kill(master, agents)
            for agent in agents:
                agent.wait(LEAVING_S)
        report = json.loads(master.out.splitlines()[-1])
        self.came = report["came"]
        self.is_exact = report["total"] == sum(number * number for number in range(self.tasks))
        self.agents_started = sum(end.code != 0 for agent in agents for end in agent.ends)  # 0: the master ended it
        self.costs = costs(self.folder, self.moments)
        self.got, self.got_again = got_again(self.folder)

    def _watched(self, name: str, words: list[object], variables: dict[str, str], stack: ExitStack) -> Watched:
        made = Watched(name, [*map(str, words)], variables, self.folder, self.folder, PAUSE_S)
        stack.callback(made.destroy)
        return made

    def _kill(self, master: Watched, agents: list[Watched]) -> None:
        """Kill the master at each moment, and wait for the end of the last life."""
        dice, log = random.Random(self.seed), self.folder / "executions"
        points = sorted(dice.randrange(self.tasks) for _ in range(self.kills))
        early = [dice.uniform(0, EARLY_S) if dice.random() < 0.25 else None for _ in points]

        def is_due() -> bool:
            if not points or not master.pid:
                return False
            if (soon := early[-len(points)]) is not None and len(points) < self.kills:
                return time.monotonic() >= master.began + soon
            return log.exists() and log.stat().st_size >= points[0] * LINE

        def step() -> None:
            if is_due():
                points.pop(0)
                master.ask("master killed")
                master.send(signal.SIGKILL)
                self.moments.append(time.monotonic())
            for agent in agents:
                agent.watch()
            time.sleep(TICK_S)

        def is_finished() -> bool:
            master.watch()
            return bool(master.unasked)

        assert wait_for(is_finished, PATIENCE_S, step), (
            f"the master did not end within {PATIENCE_S:.0f} s: {master.err}"
        )


def costs(folder: Path, moments: list[float]) -> list[Cost]:
    """Find what ran again after each kill.

    A repetition is the cost of the kill that ended the life in which the first execution began. Slaves may run on for a
    moment after a kill; what they finish then is a cost of that kill, too. A task that had not finished is no cost.
    """
    ended: dict[int, list[tuple[float, float]]] = {}
    for line in (folder / "executions").read_text().splitlines():
        number, start, stop, _ = line.split()
        ended.setdefault(int(number), []).append((float(stop), float(start)))
    lives = [float(line) for line in (folder / "lives").read_text().splitlines()]
    repeated: dict[int, list[float]] = {}
    for executions in ended.values():
        executions.sort()
        for (end, began), (_, later) in pairwise(executions):
            if bisect(lives, began) != bisect(lives, later):  # else its result was late because of the load
                kill = bisect(moments, lives[bisect(lives, began) - 1])  # the end of the life of the first execution
                repeated.setdefault(kill, []).append(end)
    found = []
    for kill, moment in enumerate(moments):
        ends = repeated.get(kill, [])
        found.append(Cost(len(ends), max(0.0, moment - min(ends, default=moment))))
    return found


def got_again(folder: Path) -> tuple[int, int]:
    """How many results the algorithm had got in all lives before the last one, and how many of them a later life
    computed."""
    lives = [float(line) for line in (folder / "lives").read_text().splitlines()]
    next_life: dict[int, float] = {}
    for line in (folder / "got").read_text().splitlines():
        life, number = map(int, line.split())
        if life < len(lives):
            next_life.setdefault(number, lives[life])
    executions = (line.split() for line in (folder / "executions").read_text().splitlines())
    begun = [(int(number), float(start)) for number, start, _, _ in executions]
    return len(next_life), len({number for number, start in begun if start > next_life.get(number, inf)})


def text(kills: Kills) -> str:
    """Return the report."""
    lines = [f"kill {number:>2}, {cost}" for number, cost in enumerate(kills.costs, 1)]
    return "\n".join(
        [
            *lines,
            f"{kills.got} results came before the last life, and {kills.got_again} of them were computed again",
            f"{kills.came} of {kills.tasks} results came, and their sum is {'exact' if kills.is_exact else 'WRONG'}",
            f"agents were started again {kills.agents_started} times",
        ]
    )
