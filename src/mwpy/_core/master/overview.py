"""What each slave does, what failed and what was logged: more than a status has, for a page that somebody looks at.

Everything is derived from what the parts of the core keep anyway, when somebody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest

from attrs import Factory, define

from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.silence import Answers, Silence
from mwpy._core.master.state import MasterState
from mwpy._core.master.totals import Totals, short
from mwpy._values.bounds import SlaveId, shortened
from mwpy._values.messagepack import MALFORMED
from mwpy._values.messages import (
    AlgorithmAtHost,
    FailureExample,
    LogLine,
    LogRow,
    Overview,
    SlaveStatus,
)
from mwpy._values.task import read_failure

SLAVES_SHOWN = 2000
"""How many slaves an overview names: those that connected first. `mwpy.status` names this number."""

ROWS_SHOWN = 1000
"""How many pairs of algorithm and host it has: those with most tasks."""

LINES_KEPT = 200
"""How many of the newest records of `logging` it has."""

COMPARED, COMPARED_LEAST = 50, 3
"""The arguments of this many of the newest failures are compared. An argument is named if each of its values stands for
at least this many failures."""

ARGUMENTS_CHARACTERS = 500
"""How long a text about arguments is at most."""

TRACE_CHARACTERS = 8000
"""How long the traceback of an example is at most."""


@define(eq=False, repr=False)
class Overviews:
    """Says what each slave does, and what happened lately."""

    state: MasterState
    answers: Answers
    silence: Silence
    totals: Totals
    arguments: Callable[[int], Sequence[str]] = lambda _: ()
    """Returns the arguments of a task that failed, as texts; nothing if they are not known."""
    _lines: deque[LogLine] = Factory(lambda: deque(maxlen=LINES_KEPT))
    """The newest records of `logging`."""

    def logged(self, sid: SlaveId, host: str, rows: Iterable[LogRow]) -> None:
        """Keep the newest records that the tasks of a slave have logged."""
        for row in rows:
            names = sid, host, row.task, row.algorithm
            self._lines.append(LogLine(*names, row.created, row.level, row.logger, short(row.text)))

    def overview(self, now: float) -> Overview:
        """What the master and its slaves do at this time."""
        slaves = self.state.members.slaves
        shown = [slave for slave, _ in zip(slaves.values(), range(SLAVES_SHOWN), strict=False)]
        rows = nlargest(ROWS_SHOWN, self.totals.rows.values(), key=lambda row: row.tasks)
        return Overview(
            status=self.answers.status(now),
            stuck=self.silence.reason_now(now),
            slaves=[_slave(slave, now) for slave in shown],
            slaves_left_out=len(slaves) - len(shown),
            rows=[
                AlgorithmAtHost(
                    *(row.algorithm, row.host, row.tasks, row.failed, row.seconds, row.longest_s),
                    *(sum(row.lost.values()), row.lost_s, row.memory_used),
                )
                for row in rows
            ],
            examples=[*self._examples(now)],
            log=[*self._lines],
        )

    def _examples(self, now: float) -> Iterable[FailureExample]:
        """The newest failure of each kind, with its traceback; the most frequent kinds are first."""
        failures = self.answers.failures
        for kind, count in sorted(failures.kinds.items(), key=lambda each: -each[1]):
            if kind in failures.examples:
                one, encoded = failures.examples[kind]
                try:
                    trace = read_failure(encoded).traceback if encoded else ""
                except MALFORMED:
                    trace = ""
                arguments = shortened(", ".join(self.arguments(one.task)), ARGUMENTS_CHARACTERS)
                names = one.task, one.algorithm, one.host or "", one.text, arguments, self._common(kind)
                yield FailureExample(kind, count, *names, shortened(trace, TRACE_CHARACTERS), now - one.at)

    def _common(self, kind: str) -> str:
        """Which arguments the newest failures of a kind have in common: those with few values for many failures."""
        tasks = [each.task for each in self.answers.failures.newest.values() if each.text.partition(":")[0] == kind]
        known = [found for found in map(self.arguments, tasks[-COMPARED:]) if found]
        common = []
        for at, values in enumerate(zip(*known, strict=False), 1):
            different = dict.fromkeys(values)
            if len(known) >= COMPARED_LEAST * len(different):
                common.append(f"argument {at} is {' or '.join(different)}")
        return shortened(", ".join(common), ARGUMENTS_CHARACTERS)


def _slave(slave: ConnectedSlave, now: float) -> SlaveStatus:
    span = slave.held.spans[0] if slave.held.spans else None
    return SlaveStatus(
        sid=slave.sid,
        agent=slave.agent.name,
        host=slave.agent.host,
        job=slave.agent.job,
        state=slave.state.value,
        task=0 if span is None else span.first,
        algorithm="" if span is None else span.algorithm.name,
        running_s=0.0 if span is None else now - slave.last_heard,
        waiting=max(0, slave.held.count - 1),
        finished=slave.finished,
        busy_s=slave.busy_s,
        up_s=now - slave.connected_at,
        memory=slave.peak_bytes,
    )
