"""Makes the runs of a sweep, continues where it stopped, and writes its tables.

The folder of a sweep has the run database. A run is known there by the values of its row, by the digests of the
program, its inputs and its templates, and by how often the row was asked for again. So the same sweep continues where
it stopped, and rows that were added are the only ones that run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen
from msgspec import Struct, field

import mwpy
from mwpy import ExitCode, TaskId, UsageError
from mwpy.run_database import run_at_end
from mwpy.sweep.command import reason_in
from mwpy.sweep.files import File
from mwpy.sweep.job import RESOURCE, Job, make_folder, store, stored
from mwpy.sweep.results import typed, write_table
from mwpy.sweep.settings import Settings, Sweep
from mwpy.sweep.stages import Named, Ran, Row, Stage, digest_of, outcome_of

if TYPE_CHECKING:
    from mwpy.sweep.door import OpenDoor

WINDOW = 1000
"""How many runs are submitted and have not ended: more than slaves there are, and few enough for the memory."""

FEW = 20
"""How many rows with outputs are read at a time."""

LOOK_S = 0.5
"""How often a sweep looks for Ctrl-C and for runs that may start, in seconds."""

SHOWN_FAILURES = 5
SHOWN_COMMANDS = 5

STATE, DATABASE, ARCHIVES = "sweep.json", "run.db", "runs"


# What the folder of a sweep says about earlier starts.


class Known(Struct):
    """What the folder of a sweep says."""

    settings: Settings
    base: str
    digests: dict[str, str]
    """The digests of what the results depend on, by name."""
    again: dict[str, int] = field(default_factory=dict)
    """How often rows were asked for again, by the digest of their values."""
    all_again: int = 0
    is_complete: bool = False
    """Whether all runs had been made when the last start ended."""

    def digest(self, sweep: Sweep, number: int) -> str:
        """Return the digest of all that the outputs of a stage depend on, beside the values."""
        stage = sweep.stages[number]
        own = {name: digest for name, digest in self.digests.items() if name.endswith(_of(sweep, stage))}
        before = sorted({other for other, _ in stage.needs.values()})
        return digest_of([sorted(own.items()), [self.digest(sweep, other) for other in before]])

    def key_of(self, row: Mapping[str, Any], values: Mapping[str, Any], digest: str) -> tuple[str, str, int]:
        """Return by what a run is known.

        Args:
            row: the values of its row, and `values` those that the program gets.
            digest: the digest of its stage.
        """
        return json.dumps([_texts(row), _texts(values)]), digest, self.all_again + self.again.get(_row(row), 0)


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a row as texts: a study may have the number 5, and a command line has the text."""
    return {name: str(value) for name, value in row.items()}


def _row(row: Mapping[str, Any]) -> str:
    return digest_of(_texts(row))


def _of(sweep: Sweep, stage: Stage) -> str:
    """Return what follows the names of the digests of a stage."""
    return f" of the task {stage.name}" if len(sweep.stages) > 1 else ""


def digests_of(sweep: Sweep) -> dict[str, str]:
    """Return the digests of what the results of a sweep depend on, beside the values, by name."""
    return {f"{name}{_of(sweep, stage)}": digest for stage in sweep.stages for name, digest in stage.digests().items()}


@frozen
class Selection:
    """Which rows of a sweep run at one start."""

    first: int | None = None
    """Only this many of the first rows."""
    sample: float = 1.0
    """Only this part of the rows."""
    again: str = ""
    """Which rows run again: `failed`, `all`, or an expression of parameters."""
    accept: bool = False
    """Whether results of another program, input or template count."""

    def numbers(self, sweep: Sweep) -> Sequence[int]:
        """Return the numbers of the rows, counted from 0, in the order in which they start."""
        count = len(sweep.rows)
        numbers: Sequence[int] = range(count if self.first is None else min(self.first, count))
        if self.sample < 1:
            numbers = sorted(random.Random(0).sample(numbers, max(1, round(self.sample * len(numbers)))))
        return random.Random(0).sample(numbers, len(numbers)) if sweep.settings.order == "shuffled" else numbers


def known_of(sweep: Sweep, selection: Selection) -> tuple[Known, list[str]]:
    """Return what the folder of a sweep says, with the changes of this start, and the names of what has changed.

    Raises:
        UsageError: the folder is of another sweep, or cannot be read, or `again` is wrong.
    """
    now = digests_of(sweep)
    found = stored(sweep.folder / STATE, Known, damaged(sweep.folder))
    if found is not None and found.settings.command != sweep.settings.command and sweep.settings.unnamed:
        raise UsageError(f"{sweep.folder} is of another sweep ({found.settings.command}): give another --folder")
    known = Known(sweep.settings, str(sweep.base), now)
    if found is None:
        return known, []
    known.again, known.all_again = found.again, found.all_again
    changed = sorted(name for name in {*found.digests, *now} if found.digests.get(name) != now.get(name))
    if selection.accept:
        known.digests = found.digests
    starts_again = sweep.settings.unnamed and found.is_complete and not selection.again
    if selection.again == "all" or starts_again:  # in the current folder, the files may have changed since
        known.all_again += 1
    elif selection.again not in ("", "failed"):
        for number in selection.numbers(sweep):
            row = sweep.rows.row(number)
            if _matches(selection.again, row):
                known.again[_row(row)] = known.again.get(_row(row), 0) + 1
    return known, changed


def damaged(folder: Path) -> str:
    """Return what to do if the folder of a sweep does not say any more which rows were asked for again."""
    return f"without it, old results could count: remove {folder}"


def _matches(expression: str, row: Mapping[str, Any]) -> bool:
    values = {name: typed(value) if isinstance(value, str) else value for name, value in row.items()}
    try:
        return bool(eval(expression, {"__builtins__": {}}, values))
    except Exception as error:
        raise UsageError(
            f"--again {expression!r} cannot be evaluated for the row {shown(row)} ({error}): write failed, all, or an "
            f"expression such as 'alpha > 0.3'"
        ) from error


def shown(row: Mapping[str, Any]) -> str:
    """Return the values of a row as a short text."""
    named = {name: value for name, value in row.items() if name}  # the empty name has all unnamed values
    return ", ".join(str(value) if name.isdigit() else f"{name}={value}" for name, value in named.items())


# The runs.


def run(sweep: Sweep, selection: Selection, collect: Callable[[], object], job: Job) -> list[Row]:
    """Make the runs of a sweep that were not made before, write its tables, and return the rows that have ended.

    Args:
        collect: makes the collections of the sweep.
        job: gets the exit code and the summary.

    Raises:
        UsageError: a setting is wrong.
    """
    if job.pid and selection.again != "failed":  # it starts once more, and the rows that were asked for are known
        selection = evolve(selection, again="")
    known, changed = known_of(sweep, selection)
    for name in changed if not selection.accept else ():
        _say(f"mwpy sweep: {name} has changed, so its runs are made again (--accept keeps their results)")
    numbers = selection.numbers(sweep)
    make_folder(sweep.folder)
    with _interrupts() as interrupts:
        with _master(sweep, "failed" if selection.again == "failed" else None, bool(job.mark)) as mw:
            store(sweep.folder / STATE, known)  # only now, because nobody else makes runs in this folder
            remove_archives(sweep.folder)  # those of runs that stay failed are in the run database
            total = len(numbers) * len(sweep.stages)
            job.begin(sweep.folder, total)
            mw.progress(not sweep.settings.unnamed, total=total)
            door = _opened_door(mw, sweep)
            if door is None and sweep.settings.page is not None:
                _show_page(mw, sweep.settings.page)
            rows = _Runs(mw, sweep, known, interrupts).make(numbers)
            if door is not None:
                door.close()
        write_tables(sweep, rows)
    if not interrupts:
        known.is_complete = True
        store(sweep.folder / STATE, known)
        collect()
    job.summary = summary_of(sweep, rows, len(numbers))
    _end(sweep, rows, job.summary)
    job.code = int(ExitCode.INTERRUPTED) if interrupts else 1 if job.summary["failed"] else int(ExitCode.OK)
    return rows


def _opened_door(mw: mwpy.Master, sweep: Sweep) -> OpenDoor | None:
    """Let HTTP clients make the runs of a sweep, if its settings say so."""
    if sweep.settings.http is None:
        return None
    try:
        from mwpy.sweep.door import OpenDoor  # only here, because it needs the packages of the page
    except ImportError as error:
        raise UsageError(f"--http needs `pip install 'mwpy-cluster[page]'` ({error})") from None
    return OpenDoor(sweep, mw, sweep.settings.http)


def _show_page(mw: mwpy.Master, where: str | int) -> None:
    """Show a page. Without it, the sweep goes on."""
    try:
        mw.page(where)
    except mwpy.UsageError as error:
        _say(f"mwpy sweep: --page {where}: {error}. The sweep goes on without a page")


CLIENTS = 16
"""How many HTTP clients have runs at a time, by default."""


def remove_archives(folder: Path) -> None:
    """Remove the folders of runs from the folder of a sweep, and nothing else that is beside them."""
    for path in (folder / ARCHIVES).glob("[1-9]*.tar.gz"):
        path.unlink()
    with suppress(OSError):  # there are none, or the user has put something there
        (folder / ARCHIVES).rmdir()


def _master(sweep: Sweep, rerun: str | None, is_detached: bool) -> mwpy.LocalMaster:
    settings, slaves = sweep.settings, sweep.settings.slaves
    if settings.system is None and settings.unnamed and not is_detached:  # it shall start at once, and is over soon
        return mwpy.local_master(slaves, run_database=sweep.folder / DATABASE, run_database_notices=False, rerun=rerun)
    return mwpy.local_master(
        num_slaves(sweep) - (0 if settings.system is None else settings.max),
        resource_file=sweep.folder / RESOURCE,
        system=settings.system,
        max_jobs=settings.max,
        overseer_options=settings.oversee,
        run_database=sweep.folder / DATABASE,
        run_database_notices=False,
        rerun=rerun,
    )


def num_slaves(sweep: Sweep) -> int:
    """Return how many slaves a sweep has at most, here and in a batch system."""
    settings = sweep.settings
    if settings.http is not None:
        return CLIENTS if settings.slaves is None else settings.slaves
    if settings.system is None:
        return len(os.sched_getaffinity(0)) if settings.slaves is None else settings.slaves
    return (settings.slaves or 0) + settings.max


class Submission:
    """Submits the runs of rows to a master."""

    def __init__(self, mw: mwpy.Master, sweep: Sweep, known: Known) -> None:
        self._mw = mw
        self._sweep = sweep
        self._known = known
        self._algorithms = [Named(stage.name) for stage in sweep.stages]
        self._digests = [known.digest(sweep, number) for number in range(len(sweep.stages))]

    def row(self, number: int) -> list[TaskId]:
        """Submit the runs of a row. The tag of each is the number of the row and that of the stage."""
        row, ids = self._sweep.rows.row(number), list[TaskId]()
        for place, stage in enumerate(self._sweep.stages):
            values = self._sweep.values(number, stage)
            files = {name: mwpy.output(ids[other], output) for name, (other, output) in stage.needs.items()}
            call = mwpy.task(self._algorithms[place], stage, values, files)
            key = (stage.name, *self._known.key_of(row, values, self._digests[place]))
            policy: mwpy.Policies = {"retry_errors": mwpy.NotStarted, **stage.policy, "key": key}
            ids.append(self._mw.submit(call, tag=(number, place), **policy))
        return ids


class _Runs:
    """Submits the runs of a sweep, and takes over how they end."""

    def __init__(self, mw: mwpy.Master, sweep: Sweep, known: Known, interrupts: Sequence[int]) -> None:
        self.mw = mw
        self.sweep = sweep
        self.submit = Submission(mw, sweep, known)
        self.interrupts = interrupts
        self.most = WINDOW if len(sweep.stages) == 1 else 2 * (num_slaves(sweep) + 1)
        """How many rows are submitted and have not ended. Files wait in the master between the runs of a row."""
        self.began = time.time()
        self.rows: dict[int, Row] = {}
        """The rows that have not ended."""
        self.ended: list[Row] = []
        self.waiting: set[TaskId] = set()
        self.unprinted: deque[int] = deque()
        """The rows whose outputs were not printed, in their order."""
        self.streams: dict[int, tuple[File, File] | None] = {}
        """The outputs of those that have ended."""
        self.seen: dict[tuple[TaskId, int, str], int] = {}
        """How many bytes of each file that grows were shown."""
        self.stopped = False
        self.pause_s, self.next_start = sweep.settings.pause_s(), 0.0
        """The least time between two starts, and when the next run may start, as of `time.monotonic`."""

    def _may_start(self) -> bool:
        """Whether another row may be submitted now. With a rate, none waits for a slave: it would start with others."""
        if self.interrupts or len(self.rows) >= self.most:
            return False
        if not self.pause_s:
            return True
        is_free = len(self.sweep.stages) > 1 or not self.mw.pending_tasks()
        return is_free and time.monotonic() >= self.next_start

    def make(self, numbers: Sequence[int]) -> list[Row]:
        """Make the runs of these rows, until all have ended or the user stops them. Return those that have ended."""
        rows, left = iter(numbers), len(numbers)
        if self.sweep.settings.unnamed:
            self.unprinted.extend(sorted(numbers))
        while self.waiting or (left and not self.interrupts):
            while self._may_start() and (number := next(rows, None)) is not None:
                self.waiting.update(self.submit.row(number))
                self.rows[number] = Row(number, len(self.sweep.stages))
                self.next_start = time.monotonic() + self.pause_s
                left -= 1
            if self.interrupts and not self.stopped:
                self.stopped = True
                _say("mwpy sweep: stops; what runs may finish (Ctrl-C again ends it)")
                self.mw.cancel([*self.waiting], running="finish")
            left_s = self.next_start - time.monotonic()
            self.mw.loop(timeout=min(LOOK_S, left_s if left_s > 0 else self.pause_s or LOOK_S))
            for report in self.mw.reports():
                self._show(report.tag[0], (report.task_id, report.attempt), report.values)
            for result in self.mw.results():
                self.waiting.discard(result.task_id)
                self._take(result)
        self._print(all_rows=True)
        return sorted(self.ended, key=lambda row: row.number)

    def _take(self, result: mwpy.Result[Ran]) -> None:
        """Take over how a run has ended, and perhaps its row."""
        number = result.tag[0]
        outcome, row = outcome_of(result), self.rows[number]
        if outcome is not None and result.finished >= self.began:
            self._show(number, (result.task_id, outcome.attempt), outcome.followed)
        row.take(result, self.sweep.stages)
        row.outputs.clear()  # they are in the run database
        if row.missing:
            return
        del self.rows[number]
        if row.is_cancelled:
            return
        row.reused = row.finished < self.began
        if row.reused:
            self.next_start = 0.0  # it did not start
        row.failure = row.failure or refusal(self.sweep, row)
        for name, archive in row.archives.items():
            folder = self.sweep.folder / ARCHIVES
            folder.mkdir(exist_ok=True)
            path = archive.save(folder / f"{number + 1}{name and '-'}{name}.tar.gz")
            row.failure += f"\nits folder is in {path}" if row.failure else ""
        if self.unprinted:
            self.streams[number] = row.streams
        self._print(all_rows=False)
        row.archives, row.streams = {}, None
        self.ended.append(row)

    def _print(self, *, all_rows: bool) -> None:
        """Print outputs in the order of the rows, up to a row that has not ended, or those of all rows."""
        while self.unprinted and (all_rows or self.unprinted[0] in self.streams):
            streams = self.streams.pop(self.unprinted.popleft(), None)
            for stream, output in zip((sys.stdout, sys.stderr), streams or (), strict=False):
                stream.buffer.write(output.content)
                stream.buffer.flush()

    def _show(self, number: int, run: tuple[TaskId, int], files: Mapping[str, tuple[int, bytes]]) -> None:
        """Print how files of a running program have grown, each line with its row.

        Args:
            number: that of the row.
            run: a task and its attempt.
            files: the size of each file and its last bytes.
        """
        where = shown(self.sweep.rows.row(number))
        for name, (size, end) in files.items():
            new = size - self.seen.get((*run, name), 0)
            self.seen[*run, name] = size
            if new > len(end):
                print(f"{where}: {name}: ({new - len(end)} bytes are not shown)")
            text = end[-new:].decode(errors="backslashreplace") if new > 0 else ""
            print(*(f"{where}: {line}" for line in text.splitlines()), sep="\n", flush=True)


def refusal(sweep: Sweep, row: Row) -> str:
    """Return why the results of a row whose runs succeeded are not valid; empty if they are."""
    for name, (low, high) in sweep.settings.bounds.items():
        found = row.results.get(name, "")
        if isinstance(found, str) or not low <= found <= high:
            return f"{name} is {found}, and not from {low} to {high}"
    if sweep.validate is None:
        return ""
    try:
        answer = sweep.validate(sweep.rows.row(row.number), row.results)
    except Exception as error:
        return f"{sweep.settings.validate} raised {type(error).__name__}: {error}"
    return reason_in(answer, f"{sweep.settings.validate} says that it is not valid")


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Give a list that is filled by the first Ctrl-C. The second one interrupts and says so, and so does SIGTERM."""
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1 or number == signal.SIGTERM:
            signal.default_int_handler(number, frame)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    except KeyboardInterrupt:
        what = "SIGTERM" if signal.SIGTERM in signals else "Ctrl-C"
        _say(f"mwpy sweep: ended by {what}; the same command continues it")
        raise
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# What a sweep writes at its end.


def write_tables(sweep: Sweep, rows: Sequence[Row]) -> None:
    """Write the tables: results in the order of the rows, failed rows, and where and how long each run ran."""
    failed = {row.number: [row.failure] for row in rows if row.failure}
    results = {row.number: row.in_columns(sweep.results) for row in rows if not row.failure}
    places = {row.number: row.place for row in rows}
    tables: list[tuple[str, Sequence[str], Mapping[int, Sequence[Any]]]] = [
        ("results.csv", sweep.results, results),
        ("failed.csv", ["error"], failed),
        ("runs.csv", ["host", "slave", "seconds", "attempts"], places),
    ]
    for name, columns, cells in tables:
        lines = ([*sweep.rows[number], *own] for number, own in cells.items())
        write_table(sweep.folder / name, [*sweep.columns, *columns], lines)


def reason_of(failure: str) -> str:
    """Return the first line of the text of a failure, without where and when it happened."""
    return failure.partition("\n")[0].partition(" (on ")[0]


def summary_of(sweep: Sweep, rows: Sequence[Row], total: int) -> dict[str, Any]:
    """Return how a sweep ended, ready for JSON."""
    hosts: dict[str, dict[str, float]] = {}
    for row in rows:
        host, _, seconds, _ = row.place
        entry = hosts.setdefault(host, {"runs": 0, "seconds": 0.0})
        entry["runs"] += 1
        entry["seconds"] += seconds
    failed = sum(bool(row.failure) for row in rows)
    return {
        "runs": total,
        "succeeded": len(rows) - failed,
        "failed": failed,
        "made before": sum(row.reused for row in rows),
        "hosts": dict(sorted(hosts.items())),
        "folder": str(sweep.folder),
    }


def _end(sweep: Sweep, rows: Sequence[Row], summary: Mapping[str, Any]) -> None:
    """Print the summary, and run the command that the user wants at the end."""
    before = f", {summary['made before']} of them before" if summary["made before"] else ""
    if not sweep.settings.unnamed or summary["failed"] or before:
        done = f"{summary['succeeded']} of {summary['runs']} runs succeeded{before}, {summary['failed']} failed"
        _say(f"{done}; the tables are in {sweep.folder}")
        for host, entry in summary["hosts"].items():
            _say(f"  {host}: {entry['runs']} runs, {entry['seconds']:.1f} s")
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        if row.failure:
            reasons.setdefault(reason_of(row.failure), []).append(row)
    for reason, failed in [*reasons.items()][:SHOWN_FAILURES]:
        where = "; ".join(shown(sweep.rows.row(row.number)) for row in failed[:SHOWN_FAILURES])
        more = f" and {len(failed) - SHOWN_FAILURES} more" if len(failed) > SHOWN_FAILURES else ""
        last = failed[0].failure.partition("its last lines:\n")[2].partition("\nto repeat it")[0]
        _say(f"  failed: {where}{more}: {reason}" + (f" ({last.splitlines()[-1]})" if last else ""))
    if summary["failed"] > 1:
        _say(f"  `mwpy sweep failed {sweep.folder}` shows all failures, and commands that repeat them")
    if sweep.settings.on_end is not None:
        run_at_end(sweep.settings.on_end, json.dumps(summary), sweep.folder / DATABASE, sweep.base)


# What can be asked without running anything.


def each_row(sweep: Sweep, known: Known, numbers: Sequence[int]) -> Iterator[Row]:
    """Yield the rows in their order, as far as they have ended. No run is made.

    The runs are submitted to a master without slaves. Those with a result in the run database end at once, and all
    others are cancelled.

    Raises:
        RunDatabaseError: the sweep runs just now.
    """
    count = len(sweep.stages)
    if not (sweep.folder / DATABASE).exists():
        yield from (Row(number, count, is_cancelled=True) for number in numbers)
        return
    with looking(sweep) as mw:
        submit = Submission(mw, sweep, known)
        many = FEW if any(stage.command.options.outputs for stage in sweep.stages) else WINDOW
        for start in range(0, len(numbers), many):
            rows = {number: Row(number, count) for number in numbers[start : start + many]}
            ids = [task for number in rows for task in submit.row(number)]
            mw.cancel(ids)
            ended = 0
            while ended < len(ids):
                mw.loop()
                for result in mw.results():
                    ended += 1
                    rows[result.tag[0]].take(result, sweep.stages)
            for row in rows.values():
                if not row.is_cancelled:
                    row.failure = row.failure or refusal(sweep, row)
                yield row


@contextmanager
def looking(sweep: Sweep) -> Iterator[mwpy.LocalMaster]:
    """Open a master that has the run database of a sweep, and no slaves.

    Raises:
        RunDatabaseError: the sweep runs just now.
    """
    path = sweep.folder / "look.rsc"
    try:
        database = sweep.folder / DATABASE
        with mwpy.local_master(0, resource_file=path, run_database=database, run_database_notices=False) as mw:
            yield mw
    finally:
        path.unlink(missing_ok=True)


def dry_run(sweep: Sweep, selection: Selection) -> dict[str, Any]:
    """Show the first commands, and how many runs are new, done, failed and changed. Return this, ready for JSON."""
    known, changed = known_of(sweep, selection)
    numbers = selection.numbers(sweep)
    counts = {"new": 0, "done": 0, "failed": 0}
    seconds: list[float] = []
    for row in each_row(sweep, known, numbers):
        counts["failed" if row.failure else "new" if row.is_cancelled else "done"] += 1
        if row.failure or not row.is_cancelled:
            seconds.append(row.place[2])
    commands: list[str] = []
    for number in numbers[:SHOWN_COMMANDS]:
        for stage in sweep.stages:
            line = stage.command.shown(**sweep.values(number, stage))
            is_hidden = {*stage.command.names} - {*stage.command.line.names}  # in a template, for example
            commands.append(f"{shown(sweep.rows.row(number))}: {line}" if is_hidden else line)
    print(*commands, sep="\n")
    if len(numbers) > SHOWN_COMMANDS:
        print(f"and {len(numbers) - SHOWN_COMMANDS} more")
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    for name in changed:
        print(f"{name} has changed" + (": the results are kept" if selection.accept else ": the runs are made again"))
    expected = counts["new"] * sum(seconds) / len(seconds) if seconds else None
    if expected:
        print(f"the new runs take about {expected:.0f} s of one slave")
    return {**counts, "changed": changed, "seconds": expected, "commands": commands}
