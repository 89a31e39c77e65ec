"""What was done and lost, as text: for `--mw-summary`, `mw.summary()` and `mwpy logs --stats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from mwpy._roles.master_io import MasterIo
from mwpy._values import records
from mwpy._values.phrases import amount, counted

SPARE = 1.2
"""A request for memory is this many times the largest peak that was measured: other tasks may need more."""

AGENT_MIB = 50
"""How much memory an agent and the template of its slaves need, in MiB."""


def summary_of(io: MasterIo) -> str:
    """Describe what a master has done until now. The thread of the algorithm may call this, also after the end."""
    state, reused = io.core.state, io.core.state.jar.reused
    rows = io.core.totals.copies()
    totals = [total for total, _ in rows]
    lines = ["mwpy: summary", *table(totals)] if totals or reused.count else ["mwpy: summary: no task has ended"]
    for total, kinds in sorted(rows, key=lambda each: (each[0].algorithm, each[0].host)):
        where = f"{total.algorithm} on {total.host}"
        if kinds:
            lines.append(f"failures of {where}: {_numbers(kinds)}")
        if total.lost:
            lines.append(f"lost attempts of {where}: {_numbers(total.lost)}")
    if reused.count:
        failed = f", {reused.failed} of them with a failure" if reused.failed else ""
        lines.append(f"{counted(reused.count, 'task')} answered from the run database{failed}")
    ill = state.jar.failed - reused.failed - sum(total.failed for total in totals)
    if ill > 0:
        lines.append(f"{counted(ill, 'task')} without a result, because they are unrunnable or could not be sent")
    if state.jar.cancelled:
        lines.append(f"{counted(state.jar.cancelled, 'task')} cancelled")
    return "\n".join(lines)


def table(totals: Sequence[records.Total]) -> Iterator[str]:
    """Yield a table of what was done on each host, for each algorithm, and one of what was asked for and used."""
    heads = f"{'tasks':>9} {'failed':>7} {'seconds':>11} {'longest':>9} {'lost':>6} {'lost s':>9}"
    yield f"{'algorithm':<24} {'host':<20} {heads}"
    for total in sorted(totals, key=lambda each: (each.algorithm, each.host)):
        lost = f"{sum(total.lost.values()):>6} {total.lost_s:>9.1f}"
        done = f"{total.tasks:>9} {total.failed:>7} {total.seconds:>11.1f} {total.longest_s:>9.3f}"
        yield f"{total.algorithm:<24} {total.host:<20} {done} {lost}"
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
    if by_algorithm:
        times = f"{'seconds_max':>13} {'seconds_expected':>17} {'longest':>11}"
        yield f"{'asked for and used':<24} {times} {'memory_max':>13} {'peak':>11}"
    for algorithm, rows in by_algorithm.items():
        asked = max(row.seconds_max for row in rows), max(row.seconds_expected for row in rows)
        memory = max(row.memory_max for row in rows), max(row.memory_used for row in rows)
        limit, expected = (f"{each:g} s" if each else "-" for each in asked)
        most, used = (amount(each) if each else "-" for each in memory)
        longest = f"{max(row.longest_s for row in rows):.3f} s"
        yield f"{algorithm:<24} {limit:>13} {expected:>17} {longest:>11} {most:>13} {used:>11}"
    largest = max((total.memory_used for total in totals), default=0)
    if largest:
        mebibytes = -(-int(SPARE * largest) // (10 << 20)) * 10
        yield f"a job needs about {mebibytes} MiB of memory for each slave, and {AGENT_MIB} MiB for its agent"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])))
