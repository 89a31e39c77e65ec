"""Totals for each algorithm on each host, which failures there were, and whether there are too many to go on.

Totals: what was done, what was lost, and what was asked for and used, for each algorithm on each host.

They are counted per group of tasks. The master states them at its end, and from time to time, in case it has no end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from textwrap import fill
from typing import Any

from attrs import Factory, define, frozen
from msgspec.structs import replace

from mwpy._core.master.handback import HandBack
from mwpy._core.master.spans import Span
from mwpy._core.master.state import CancelTasks, GoOn, MasterState, Running, Stopped
from mwpy._values import records
from mwpy._values.bounds import Buffer, TaskId, shortened
from mwpy._values.causes import Cause
from mwpy._values.errors import DependencyFailed, TaskCancelled
from mwpy._values.messagepack import Pickled
from mwpy._values.phrases import amount, counted, duration, laid_out, squeezed
from mwpy._values.policy import KINDS_KEPT, OTHER_KINDS, SPARE, TaskPolicy
from mwpy._values.task import Result, UnrunnableTask, encoded_in, failed, headline, in_one_line

ROWS_KEPT = 10_000
"""How many pairs of algorithm and host are counted. More of them are counted together, as `OTHERS`."""

OTHERS = "(others)"

STATED_EVERY_S = 600.0
"""Seconds between two statements of all totals, if something happens."""


@define(eq=False, repr=False)
class Totals:
    """Counts what was done and what was lost."""

    state: MasterState
    rows: dict[tuple[str, str], records.Total] = Factory(dict)
    """By algorithm and host."""
    kinds: dict[tuple[str, str], dict[str, int]] = Factory(dict)
    """How many tasks failed, by the type of their exceptions, for each row."""
    _changed: dict[tuple[str, str], None] = Factory(dict)
    """The rows that have changed since they were stated."""
    state_at: float = 0.0
    """When to state the totals again, on the core's clock."""

    def _row(self, algorithm: str, host: str) -> records.Total:
        """Return a row that changes now."""
        key = algorithm, host
        if key not in self.rows and len(self.rows) >= ROWS_KEPT:
            key = OTHERS, OTHERS
        self._changed[key] = None
        return self.rows.setdefault(key, records.Total(*key))

    def _change(self, row: records.Total, **changes: Any) -> None:
        self.rows[row.algorithm, row.host] = replace(row, **changes)

    def finished(
        self, span: Span, host: str, total_s: float, longest_s: float, failed: int, kinds: Iterable[str] = ()
    ) -> None:
        """Count results: how long all tasks of a span took, and the longest of them, and how many of them failed.

        Args:
            kinds: the types of the exceptions of those that failed.
        """
        row = _asked(self._row(span.algorithm.name, host), span.policy)
        for kind in kinds:
            _count_kind(self.kinds.setdefault((row.algorithm, row.host), {}), kind)
        self._change(
            row,
            tasks=row.tasks + span.count,
            failed=row.failed + failed,
            seconds=row.seconds + total_s,
            longest_s=max(row.longest_s, longest_s),
        )

    def lost(self, span: Span, host: str, cause: Cause, attempts: int, seconds: float) -> None:
        """Count lost attempts, and for how long the lost slave had sent neither a result nor a state of the task."""
        row = _asked(self._row(span.algorithm.name, host), span.policy)
        lost = {**row.lost, cause.value: row.lost.get(cause.value, 0) + attempts}
        longest_s = max(row.longest_s, seconds) if cause.is_charged else row.longest_s
        self._change(row, lost=lost, lost_s=row.lost_s + seconds, longest_s=longest_s)

    def explained(self, algorithm: str, host: str, attempts: int, cause: Cause) -> None:
        """Correct the cause of lost attempts for which the network was blamed."""
        row = self._row(algorithm, host)
        lost = Counter(row.lost)
        lost[Cause.NETWORK.value] -= attempts
        lost[cause.value] += attempts
        self._change(row, lost={each: count for each, count in lost.items() if count})

    def measured(self, algorithm: str, host: str, used: int) -> None:
        """Note how much memory a task used at most, in bytes."""
        row = self._row(algorithm, host)
        self._change(row, memory_used=max(row.memory_used, used))

    def copies(self) -> list[tuple[records.Total, dict[str, int]]]:
        """Return all totals, and how many tasks failed with each type of exception. Another thread may call this."""
        return [(row, dict(self.kinds.get(key, ()))) for key, row in list(self.rows.items())]

    def decide(self, now: float) -> None:
        """State the totals if it is time."""
        if now >= self.state_at:
            self.state_at = now + STATED_EVERY_S
            self.state_all()

    def state_all(self) -> None:
        """State the totals that have changed."""
        for key in self._changed:
            self.state.record(self.rows[key])
        self._changed.clear()


def _asked(row: records.Total, policy: TaskPolicy) -> records.Total:
    """Return a row with what a policy asks for."""
    if not (policy.seconds_max or policy.memory_max or policy.seconds_expected):
        return row
    return replace(
        row,
        seconds_max=max(row.seconds_max, policy.seconds_max or 0.0),
        seconds_expected=max(row.seconds_expected, policy.seconds_expected or 0.0),
        memory_max=max(row.memory_max, policy.memory_max or 0),
    )


def _count_kind(kinds: dict[str, int], kind: str) -> None:
    """Count a failure of a kind. If there are too many kinds, the others are counted together."""
    known = kind if kind in kinds or len(kinds) < KINDS_KEPT else OTHER_KINDS
    kinds[known] = kinds.get(known, 0) + 1


# What was done and lost, as text: for `--mw-summary`, `mw.summary()` and `mwpy logs --stats`.


WIDTH = 80
"""The longest line, in characters."""

NAME_WIDTH = 24
"""How long the names of algorithms and hosts are in sentences at most."""

AGENT_MIB = 50
"""How much memory an agent and the template of its slaves need, in MiB."""


def summary_of(kept: Totals) -> str:
    """Describe what a master has done until now. The thread of the algorithm may call this, also after the end."""
    jar, rows = kept.state.jar, kept.copies()
    ends = jar.ends
    totals = [total for total, _ in rows]
    tables = ["mwpy: summary", *table(totals)] if totals or ends.reused else ["mwpy: summary: no task has ended"]
    lines: list[str] = []
    for total, kinds in sorted(rows, key=lambda each: (each[0].algorithm, each[0].host)):
        where = f"{squeezed(total.algorithm, NAME_WIDTH)} on {squeezed(total.host, NAME_WIDTH)}"
        if kinds:
            lines.append(f"failures of {where}: {_numbers(kinds)}")
        if total.lost:
            lines.append(f"lost attempts of {where}: {_numbers(total.lost)}")
    if ends.reused:
        failed = f", {ends.reused_failed} of them with a failure" if ends.reused_failed else ""
        lines.append(f"{counted(ends.reused, 'task')} answered from the run database{failed}")
    ill = jar.failed - ends.reused_failed - sum(total.failed for total in totals)
    if ill > 0:
        lines.append(f"{counted(ill, 'task')} without a result, because they are unrunnable or could not be sent")
    if jar.cancelled:
        lines.append(f"{counted(jar.cancelled, 'task')} cancelled")
    return "\n".join([*tables, *(fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in lines)])


def table(totals: Sequence[records.Total]) -> Iterator[str]:
    """Yield a table of what was done on each host, for each algorithm, and one of what was asked for and used.

    The lines have at most 80 characters.
    """
    rows = [["algorithm", "host", "tasks", "failed", "time", "longest", "lost", "lost time"]]
    for total in sorted(totals, key=lambda each: (each.algorithm, each.host)):
        times = [duration(each) for each in (total.seconds, total.longest_s, total.lost_s)]
        counts = [str(each) for each in (total.tasks, total.failed, sum(total.lost.values()))]
        rows.append([total.algorithm, total.host, *counts[:2], *times[:2], counts[2], times[2]])
    yield from laid_out(rows, 2, WIDTH)
    yield from _limits(totals)


def losses(totals: Sequence[records.Total]) -> Iterator[str]:
    """Yield a line for each cause of lost attempts."""
    causes = Counter[str]()
    for total in totals:
        causes.update(total.lost)
    for cause, count in causes.most_common():
        yield f"{counted(count, 'attempt')} lost: {cause}"


def _limits(totals: Sequence[records.Total]) -> Iterator[str]:
    """Yield a table of what was asked for and what was used, for each algorithm, and a request for a batch system."""
    by_algorithm: dict[str, list[records.Total]] = {}
    for total in sorted(totals, key=lambda each: each.algorithm):
        if total.seconds_max or total.seconds_expected or total.memory_max or total.memory_used:
            by_algorithm.setdefault(total.algorithm, []).append(total)
    lines = [["asked for and used", "seconds_max", "seconds_expected", "longest", "memory_max", "peak"]]
    for algorithm, rows in by_algorithm.items():
        asked = max(row.seconds_max for row in rows), max(row.seconds_expected for row in rows)
        memory = max(row.memory_max for row in rows), max(row.memory_used for row in rows)
        times = [*(duration(each or None) for each in asked), duration(max(row.longest_s for row in rows))]
        lines.append([algorithm, *times, *(amount(each) if each else "-" for each in memory)])
    if by_algorithm:
        yield from laid_out(lines, 1, WIDTH)
    largest = max((total.memory_used for total in totals), default=0)
    if largest:
        mebibytes = -(-int(SPARE * largest) // (10 << 20)) * 10
        yield f"a job needs about {mebibytes} MiB of memory for each slave, and {AGENT_MIB} MiB for its agent"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])))


# How many tasks fail and why, and whether there are too many of them to go on.
#
# Which kinds of failures there were, and which tasks failed last, for inquirers.
#
# The jar counts failures. Only when this count changes, the actions of the iteration are searched for failed tasks. So
# a task that succeeds costs nothing.


FAILURES_KEPT = 1000
"""How many of the newest failures are kept."""

EXAMPLE_BYTES = 64 << 10
"""How large an encoded exception is at most that is kept."""

TEXT_CHARACTERS = 500


@frozen
class RecentFailure:
    """How a task failed."""

    task: int
    algorithm: str
    host: str | None
    text: str
    at: float
    """When, on the core's clock."""

    @property
    def place(self) -> str:
        """Where it failed, as the end of a phrase; empty if this is not known."""
        return f" on {self.host}" if self.host else ""

    def __str__(self) -> str:
        return f"task {self.task} ({self.algorithm}){self.place}: {self.text}"


@define(eq=False, repr=False)
class RecentFailures:
    """Counts failures by kind, and keeps the newest ones."""

    state: MasterState
    kinds: dict[str, int] = Factory(dict)
    """How many tasks failed, by the type of the exception; for unrunnable tasks, with the cause of the last loss."""
    examples: dict[str, tuple[RecentFailure, bytes]] = Factory(dict)
    """The newest failure of each of these kinds, and its encoded exception; empty if it has none that is small."""
    newest: dict[int, RecentFailure] = Factory(dict)
    """The newest failures by the id of the task; the last one is the newest."""
    _seen: int = 0
    """How many failures the jar had counted when the actions were last searched."""

    def decide(self, now: float) -> None:
        """Search the actions of this iteration for tasks that failed."""
        if self.state.jar.failed == self._seen:
            return
        self._seen = self.state.jar.failed
        actions = self.state.actions
        for ended in chain(actions.results, actions.unrunnable, *actions.owned.values()):
            if isinstance(ended, UnrunnableTask):
                cause = f" ({ended.deaths[-1].cause.value})" if ended.deaths else ""
                place = ended.algorithm, ended.result().host
                self._add(f"TaskUnrunnable{cause}", RecentFailure(ended.task_id, *place, short(ended.reason), now))
            elif isinstance(ended, Result) and failed(ended):
                self._add_result(ended, now)

    def _add_result(self, result: Result[Any], now: float) -> None:
        value, _ = encoded_in(result)
        if isinstance(value, TaskCancelled | DependencyFailed):
            return  # the jar counts it as cancelled
        encoded = value.pickle if type(value) is Pickled else b""
        text = headline(encoded) if encoded else in_one_line(value.type_name, value.text)
        at = now - max(0.0, self.state.wall - result.finished)  # it may be from an earlier life of the master
        failure = RecentFailure(result.task_id, result.algorithm, result.host, text, at)
        self._add(text.partition(":")[0], failure, encoded if len(encoded) <= EXAMPLE_BYTES else b"")

    def _add(self, kind: str, failure: RecentFailure, encoded: Buffer = b"") -> None:
        _count_kind(self.kinds, kind)
        if kind in self.kinds:
            self.examples[kind] = failure, bytes(encoded)
        self.newest.pop(failure.task, None)
        self.newest[failure.task] = failure
        if len(self.newest) > FAILURES_KEPT:
            del self.newest[next(iter(self.newest))]

    @property
    def last(self) -> RecentFailure | None:
        """The newest failure; None if there is none."""
        return next(reversed(self.newest.values()), None)


def short(text: str) -> str:
    """Return a text in one line, with a limit."""
    return " ".join(shortened(text, TEXT_CHARACTERS).split())


# Stops the run when too many tasks have failed.
#
# The core does not wait for the master algorithm, which may be at work for a long time. It cancels all tasks at once,
# and also those that are submitted before the algorithm learns of the stop. When the algorithm knows, and all tasks
# have ended, the core answers which tasks did not run, and goes on with an empty jar and new counts.


@define(eq=False, repr=False)
class Stop:
    """Decides when the run stops, and when it goes on."""

    state: MasterState
    handback: HandBack
    stopped: bool = False
    """Whether each task is cancelled."""
    _asked: list[GoOn] = Factory(list)
    """The commands that were not answered yet."""
    _not_run: list[TaskId] = Factory(list)
    """The tasks that were cancelled since the stop."""
    _failed_before: int = 0
    """How many tasks had failed when the run went on after the last stop."""
    _ended_before: int = 0

    def go_on(self, command: GoOn) -> None:
        """The algorithm knows of the stop."""
        self._asked.append(command)

    def decide(self) -> None:
        """Stop the run if it is time, cancel the tasks of a stopped run, and go on with it if this is possible."""
        limit, jar = self.state.settings.max_failures, self.state.jar
        if limit is not None and not self.stopped:
            failed, ended = jar.failed - self._failed_before, self._num_ended - self._ended_before
            self.stopped = limit.is_reached(failed, ended)
            if self.stopped:
                self.state.actions.stopped = Stopped(failed, ended)
                self.state.notice(f"the run is stopped: {failed} of {ended} ended tasks failed (max_failures={limit})")
                self._cancel(jar.spans(), Running.FINISH if limit.finish else Running.KILL)
        if not self.stopped and not self._asked:
            return
        if jar.pending.count or jar.blocked.tasks or jar.delayed:
            waiting = [*jar.pending.spans(), *jar.blocked.tasks.values(), *jar.delayed.values()]
            self._cancel(waiting, Running.FINISH)
        for record in self.state.actions.records:
            if isinstance(record, records.TasksCancelled):
                self._not_run += [TaskId(each.first + at) for each in record.tasks for at in range(each.count)]
        if self._asked and not jar.num_allocated:
            self._answer()

    @property
    def _num_ended(self) -> int:
        """How many tasks have ended in a way that says something about their algorithm."""
        return self.state.jar.ended - self.state.jar.cancelled

    def _cancel(self, spans: Iterable[Span], running: Running) -> None:
        ranges = [*dict.fromkeys((span.first, span.count) for span in spans)]  # a task may have several attempts
        self.handback.cancel_some(CancelTasks(ranges, running))

    def _answer(self) -> None:
        self.state.actions.cancelled += [(command, sorted(self._not_run)) for command in self._asked]
        self.stopped, self._asked, self._not_run = False, [], []
        self._failed_before, self._ended_before = self.state.jar.failed, self._num_ended
