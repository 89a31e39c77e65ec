"""What a chaos run has lost, as a table."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from typing import Any

from attrs import frozen
from tests.chaos import journal
from tests.chaos.chaos_run import Chaos
from tests.chaos.faults import KINDS

AROUND_S = 1.0
"""A loss counts for each kind of fault that happened up to this long before the first execution of its task."""

SAYS_FULL = re.compile(r" full|No space left on device")

SHOWN = 20
"""How many losses of each kind are named."""


@frozen
class Loss:
    """A result that is missing, wrong or came twice, or a task that must not run twice and did."""

    what: str
    name: str


@frozen
class Verdict:
    """The outcome of a run."""

    chaos: Chaos
    journal: journal.Journal
    report: dict[str, Any]
    losses: list[Loss]
    failures: list[str]

    @property
    def is_good(self) -> bool:
        return not self.losses and not self.failures

    def text(self) -> str:
        """The table, and what else can be said."""
        return "\n".join([*self._table(), "", *self._facts(), *self._faults()])

    def _table(self) -> list[str]:
        happened = Counter(fault.kind for fault in self.chaos.faults if fault.begun is not None)
        blamed = Counter(kind for loss in self.losses for kind in self._blamed(loss))
        rows = [("kind of fault", "how many", "losses")]
        for kind in KINDS:
            is_left_out = kind in self.chaos.why
            rows.append(
                (kind, "left out" if is_left_out else str(happened[kind]), "" if is_left_out else str(blamed[kind]))
            )
        rows.append(("all", str(happened.total()), str(len(self.losses))))
        return [f"{name:<18}{count:>10}{lost:>8}" for name, count, lost in rows]

    def _blamed(self, loss: Loss) -> set[str]:
        """The kinds of faults that happened while a task was on its way."""
        executions = self.journal.executions.get(loss.name.partition(":")[0], [])
        deliveries = self.journal.deliveries.get(loss.name.partition(":")[0], [])
        first = min((each.began for each in executions), default=0.0) - AROUND_S
        last = max((each.moment for each in deliveries), default=float("inf"))
        begun = ((fault.kind, fault.begun, fault.ended or float("inf")) for fault in self.chaos.faults)
        return {kind for kind, begin, end in begun if begin is not None and begin <= last and end >= first}

    def _facts(self) -> list[str]:
        chaos, report, found = self.chaos, self.report, self.journal
        ends = [end for ends in chaos.agents.values() for end in ends]
        unasked = [end for end in ends if not end.asked]
        kills = [end.moment for end in chaos.master if end.asked == "master killed"]
        lines = [
            f"seed {chaos.seed}: {report.get('rounds', 0)} rounds with {report.get('results', 0)} results; the master "
            f"lived {len(chaos.master)} times",
            f"{found.count} executions of {len(found.executions)} tasks; the last life got {chaos.reused} results from "
            f"the run database, and earlier lives had got {found.came_before(len(found.lives))} results",
            f"agents were started again {len(ends)} times, {len(unasked)} of them though no fault ended them",
            f"{len(report.get('unrunnable', []))} tasks with retry=False are unrunnable because they may have run",
        ]
        for kill, following in pairwise([*kills, float("inf")]):
            if ages := found.repeated_work(kill, following):
                lines.append(
                    f"kill of the master: {len(ages)} finished tasks ran again; the oldest had ended {max(ages):.2f} s "
                    f"before"
                )
        lines += [f"left out: {kind}, because {reason}" for kind, reason in chaos.why.items()]
        return lines

    def _faults(self) -> list[str]:
        lines = [f"LOSS {loss.what}: {loss.name}" for loss in self.losses[:SHOWN]]
        return [*lines, *(f"FAILURE {failure}" for failure in self.failures[:SHOWN])]


def judge(chaos: Chaos) -> Verdict:
    """Compare what came with what should have come."""
    found, failures = journal.read(chaos.folder), [*chaos.failures]
    printed = chaos.out.splitlines()
    report = json.loads(printed[-1]) if printed and chaos.master and chaos.master[-1].code == 0 else {}
    if not report:
        failures.append("the last life of the master printed no report")
    losses = [Loss(what, name) for what in ("missing", "wrong", "twice") for name in report.get(what, [])]
    for end in chaos.master[:-1]:
        if not end.asked:
            failures.append(f"the master ended by itself with {end.code}: {end.words}")
        elif end.asked == "disk full" and (not SAYS_FULL.search(end.words) or "Traceback" in end.words):
            failures.append(f"the master did not say that the disk is full, and ended with {end.code}: {end.words}")
    losses += [Loss("more than one execution with retry=False", name) for name in found.ran_twice()]
    again = found.came_before(len(found.lives)) - chaos.reused
    if again > 0:
        failures.append(f"{again} tasks were computed again although an earlier life had got their results")
    return Verdict(chaos, found, report, losses, failures)
