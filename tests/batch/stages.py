"""What the applications `stages.py` and `failing.py` have written: how far they are, and what they have done twice."""

from __future__ import annotations

import json
from pathlib import Path

from attrs import define
from tests.batch.systems import until

TASKS = 60
"""The number of tasks in a stage."""

ENOUGH = 10
"""So many results of a stage show that the slaves work on it. Most of its tasks are still waiting or running."""


@define
class Stages:
    """A computation in stages that a test opens one after the other.

    Args:
        folder: where its files are.
        number: the number of stages.
    """

    folder: Path
    number: int

    @property
    def arguments(self) -> str:
        return f"{self.number} {TASKS} {self.folder}"

    @property
    def report(self) -> dict[str, object]:
        """What the master prints at the end if it has got all results."""
        tasks = self.number * TASKS
        return {"sum": sum(number * number for number in range(tasks)), "unrunnable": []}

    def open(self, stage: int) -> None:
        (self.folder / f"open.{stage}").touch()

    def reach(self, stage: int) -> None:
        """Open a stage, and wait until this life of the master has got some of its results."""
        self.open(stage)
        until(lambda: self._got(stage) >= ENOUGH, lambda: f"{ENOUGH} results of stage {stage}\n{self._end()}")

    def until_life(self, number: int) -> None:
        """Wait until the master algorithm has started for the given time, counted from 1."""
        until(lambda: self._lines().count("life") >= number, lambda: f"life {number} of the master\n{self._end()}")

    def computed_again(self) -> list[int]:
        """List the tasks that ran again although an earlier life of the master had got their results."""
        got: set[str] = set()
        stored: set[str] = set()
        again: list[int] = []
        for line in self._lines():
            kind, _, number = line.partition(" ")
            if kind == "life":
                stored |= got
            elif kind == "got":
                got.add(number)
            elif number in stored:
                again.append(int(number))
        return again

    def check(self, printed: str) -> None:
        """Assert that the last life of the master has printed the exact result, and that no stored task ran again."""
        assert json.loads(printed.splitlines()[-1]) == self.report
        assert self.computed_again() == []

    def _got(self, stage: int) -> int:
        lines = self._lines()
        life = len(lines) - lines[::-1].index("life") if "life" in lines else len(lines)
        numbers = [int(line.split()[1]) for line in lines[life:] if line.startswith("got ")]
        return sum(number // TASKS == stage for number in numbers)

    def _lines(self) -> list[str]:
        diary = self.folder / "diary"
        return diary.read_text().splitlines() if diary.exists() else []

    def _end(self) -> str:
        return "the end of its diary:\n" + "\n".join(self._lines()[-10:])


def ran_once(folder: Path) -> int:
    """Assert that each task of `apps/failing.py` ran once. Return the sum of their results."""
    ran = [int(line) for line in (folder / "ran").read_text().splitlines()]
    assert sorted(ran) == list(range(len(ran)))
    return sum(ran)
