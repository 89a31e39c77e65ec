"""What a chaos run has lost, and how often each kind of fault happened."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from attrs import frozen
from tests.chaos.chaos_run import Chaos
from tests.chaos.faults import KINDS

SAYS_FULL = re.compile(r" full|No space left on device")

SHOWN = 20
"""How many losses and failures are named."""


@frozen
class Verdict:
    """The outcome of a run."""

    facts: list[str]
    losses: list[str]
    """Results that are missing, wrong or came twice, and tasks that must not run twice and did."""

    failures: list[str]

    @property
    def is_good(self) -> bool:
        return not self.losses and not self.failures

    def text(self) -> str:
        """The figures, and what was lost."""
        lost = [f"LOSS {loss}" for loss in self.losses[:SHOWN]]
        failed = [f"FAILURE {failure}" for failure in self.failures[:SHOWN]]
        return "\n".join([*self.facts, f"{'losses':<18}{len(self.losses):>10}", *lost, *failed])


def judge(chaos: Chaos) -> Verdict:
    """Compare what came with what should have come."""
    failures, printed = [*chaos.failures], chaos.out.splitlines()
    report = json.loads(printed[-1]) if printed and chaos.master and chaos.master[-1].code == 0 else {}
    if not report:
        failures.append("the last life of the master printed no report")
    losses = [f"{what}: {name}" for what in ("missing", "wrong", "twice") for name in report.get(what, [])]
    losses += [f"more than one execution with retry=False: {name}" for name in ran_twice(chaos.folder)]
    for end in chaos.master[:-1]:
        if not end.asked:
            failures.append(f"the master ended by itself with {end.code}: {end.words}")
        elif end.asked == "disk full" and (not SAYS_FULL.search(end.words) or "Traceback" in end.words):
            failures.append(f"the master did not say that the disk is full, and ended with {end.code}: {end.words}")
    before = came_before(chaos.folder)
    if before > chaos.reused:
        failures.append(f"{before} results came in earlier lives, but the last one computed {before - chaos.reused}")
    happened = Counter(fault.kind for fault in chaos.faults if fault.begun is not None)
    facts = [f"{kind:<18}{'left out' if kind in chaos.why else happened[kind]:>10}" for kind in KINDS]
    facts += [
        f"seed {chaos.seed}: {report.get('rounds', 0)} rounds with {report.get('results', 0)} results; the master "
        f"lived {len(chaos.master)} times; its last life got {chaos.reused} results from the run database",
        f"{len(report.get('unrunnable', []))} tasks with retry=False are unrunnable because they may have run",
        *(f"left out: {kind}, because {reason}" for kind, reason in chaos.why.items()),
    ]
    return Verdict(facts, losses, failures)


def ran_twice(folder: Path) -> list[str]:
    """The tasks with retry=False that were started more than once."""
    words = map(str.split, lines(folder / "executions"))
    starts = Counter(name for sign, name, *_ in words if sign == "+" and "/once/" in name)
    return [name for name, count in starts.items() if count > 1]


def came_before(folder: Path) -> int:
    """How many tasks had ended in an earlier life than the last one."""
    last = len(lines(folder / "lives"))
    words = map(str.split, lines(folder / "came"))
    return len({name for life, name, _, outcome in words if int(life) < last and outcome == "ended"})


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
