"""The audit file: a text file of what happened, one line for each record, in CL-MW's words.

    2026-11-21T01:02:03.456Z [A] SLAVE-0 <- 10 tasks

The arrow shows the direction, as the process that writes the line sees it: to a slave, or from a slave.

A record is always one line. Characters that end a line, move the cursor or are not visible are written as Python writes
them in a string: a line feed is `\\n`, and a backslash is written twice. The line about the end of a slave also has the
slave's last words: for each stream a tab, the name of the stream, and the text. A tab in the text is `\\t`. So
`read_ends` returns exactly the same text.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from mwpy._system import clock
from mwpy._system.process import TextWriter
from mwpy._system.streams import RotatedFile, WholeLines, put_on_stream
from mwpy._values import records
from mwpy._values.errors import UsageError
from mwpy._values.last_words import LastWords
from mwpy._values.messagepack import from_plain
from mwpy._values.phrases import ASK_OWNER, amount, counted, first_of
from mwpy._values.records import ReusedTasks, TaskRange

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["AuditFile", "End", "Level", "read_ends", "read_totals", "text_of"]

KEPT = 4
"""How many old audit files are kept; FILE.1 is the newest."""

CLOSE_S = 2.0
"""How long the end of a process waits for a file or a stream that does not accept the last lines, in seconds."""


class Level(Enum):
    """Which records become lines."""

    EVENTS = "events"
    """What a person wants to see: agents that come and go, refusals, deaths, tasks that failed, notices."""
    GROUPS = "groups"
    """Everything, with a line for each group of tasks and results."""


_EVENTS = (
    records.Started,
    records.Ended,
    records.Notice,
    records.AgentConnected,
    records.AgentRefused,
    records.AgentAway,
    records.AgentBack,
    records.AgentLost,
    records.AgentLeft,
    records.PeerDropped,
    records.AlgorithmRefused,
    records.HostExcluded,
    records.HostReadmitted,
    records.TasksGivenUp,
    records.TasksFailed,
)

CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Characters that end a line, move the cursor, reverse the order of others or are not visible; except tab and newline.
"""

_UNSEEN_ON_SCREEN = re.compile(f"[{CONTROLS}]")
# These two are compiled when a file is read, because a process that writes one needs neither.
_END = (
    r"(?P<time>\S+) \[A\] (?P<sid>\S+) -> gone(?: while it ran (?P<running>task (?P<task>\d+)\b.*?, attempt \d+), "
    r"(?P<cause>[a-z -]+))?: (?P<reason>.*?)(?:; peak memory (?P<peak>[\d.]+ \w+))?"
)
_TOTAL = (
    r"\S+ \[A\] TOTAL (?P<algorithm>.*) on (?P<host>\S*): (?P<tasks>\d+) tasks?, (?P<failed>\d+) failed, "
    r"(?P<seconds>[\d.]+) s, longest (?P<longest_s>[\d.]+) s(?: of (?P<seconds_max>[\d.e+-]+) s)?"
    r"(?:, expected (?P<seconds_expected>[\d.e+-]+) s)?"
    r"(?:, memory (?P<memory_used>\d+) of (?P<memory_max>\d+) bytes)?"
    r"(?:; lost \d+ attempts?, (?P<lost_s>[\d.]+) s(?P<causes>.*))?"
)


def _on_screen(text: str) -> str:
    """A message for standard error. Its text may come from other machines.

    Control characters cannot change the terminal. Further lines are indented, so that none looks like a message.
    """
    seen = _UNSEEN_ON_SCREEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return "mwpy: " + seen.replace("\n", "\n  ") + "\n"


class End(Struct, frozen=True):
    """The end of one slave, as read from an audit file."""

    time: str
    sid: str
    reason: str
    running: str
    """The task that it ran and the attempt, as text; empty if it ran none."""
    cause: str
    """The cause of the loss of that task (see `_values/causes.py`); empty if it ran none."""
    task: int
    """The id of that task, or 0."""
    peak: str
    """Its peak memory, as text; empty if unknown."""
    words: LastWords


def read_ends(path: Path) -> Iterator[End]:
    """Read the ends of slaves from an audit file and its older parts, oldest first.

    Args:
        path: the audit file.

    Raises:
        UsageError: the file cannot be read; the message says how to get one.
    """
    for line in _lines(path):
        if " -> gone" in line and (end := _end_of(line)) is not None:
            yield end


def read_totals(path: Path) -> list[records.Total]:
    """Read the totals of the last run from an audit file and its older parts: for each algorithm on each host.

    Args:
        path: the audit file.

    Raises:
        UsageError: the file cannot be read; the message says how to get one.
    """
    found: dict[tuple[str, str], records.Total] = {}
    for line in _lines(path):
        if " [A] INIT MASTER " in line:
            found.clear()
        elif " [A] TOTAL " in line and (parts := re.fullmatch(_TOTAL, line.rstrip("\n"))) is not None:
            total = _total_of(parts)
            found[total.algorithm, total.host] = total
    return list(found.values())


def _total_of(parts: re.Match[str]) -> records.Total:
    found = {name: unescaped(text) for name, text in parts.groupdict().items() if text is not None}
    lost = {cause: int(count) for count, cause in re.findall(r", (\d+) ([a-z -]+)", found.pop("causes", ""))}
    return from_plain({**found, "lost": lost}, records.Total, strict=False)


def _lines(path: Path) -> Iterator[str]:
    """The lines of an audit file and its older parts, oldest first."""
    older = [path.parent / f"{path.name}.{number}" for number in range(KEPT, 0, -1)]
    start = "a computation writes one when it is given --mw-audit-file FILE"
    try:
        for part in (*(each for each in older if each.exists()), path):
            with part.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                for number, line in enumerate(lines):
                    if not number and " [A] " not in line:
                        raise UsageError(f"{part} is not an audit file: {start}")
                    yield line
    except OSError as error:
        raise UsageError(
            f"cannot read the audit file {path}: {error.strerror}; "
            f"{ASK_OWNER if isinstance(error, PermissionError) else start}"
        ) from error


def _end_of(line: str) -> End | None:
    text, *fields = line.removesuffix("\n").split("\t")
    found = re.fullmatch(_END, text)
    if found is None:
        return None
    parts = {name: unescaped(value or "") for name, value in found.groupdict().items()}
    words = {name: unescaped(words) for name, _, words in (field.partition(": ") for field in fields)}
    known = LastWords(words.get("stdout", ""), words.get("stderr", ""), words.get("fault", ""))
    return End(task=int(parts.pop("task") or 0), words=known, **parts)


def lines_of(happened: Sequence[records.Record], now: float, level: Level) -> str:
    """Describe records that happened at Unix time `now`, one line for each that the level shows."""
    texts = [text_of(record) for record in happened if level is Level.GROUPS or is_event(record)]
    if not any(texts):
        return ""
    moment = clock.date(now, "milliseconds")
    return "".join(f"{moment} [A] {text}\n" for text in texts if text)


def is_event(record: records.Record) -> bool:
    """Whether a person wants to see a record. Of the ends of slaves, these are the deaths during a task."""
    return isinstance(record, _EVENTS) or (isinstance(record, records.SlaveEnded) and bool(record.running))


class AuditFile:
    """Writes records as lines to a file that rotates by size, to standard output, to standard error, or nowhere.

    Notices are also shown on standard error. No caller ever waits for a disk, a pipe or a terminal: lines that have no
    room are left out, and a line says how many. If the file cannot be written later, for example because the disk is
    full, a message says so once, and the computation goes on.

    Args:
        path: the file, to which lines are appended; `-` is standard output, and None is no file.
        level: which records become lines of the file.
        max_bytes: the size at which the file is rotated.
        shows_events: whether the other records of `Level.EVENTS` are shown on standard error, too.

    Raises:
        UsageError: the file cannot be written; the message names the option.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        level: Level = Level.GROUPS,
        max_bytes: int = 64 << 20,
        *,
        shows_events: bool = False,
    ) -> None:
        self._level = level
        self._shows_events = shows_events
        self._screen = TextWriter(_show, lambda count: f"mwpy: {count} lines are left out here\n", "mwpy-stderr")
        self._writer: TextWriter | None = None
        if path is not None and str(path) != os.devnull:
            put = _put_on_standard_output if str(path) == "-" else _opened(path, max_bytes).put
            self._writer = TextWriter(WholeLines(put, _gap, self._report).write, _gap, "mwpy-audit")

    def write(self, happened: Sequence[records.Record], now: float) -> None:
        """Write records that happened at Unix time `now`."""
        if self._writer is not None and (text := lines_of(happened, now, self._level)):
            self._writer.write(text)
        if records.Notice in map(type, happened):
            for record in happened:
                if isinstance(record, records.Notice):
                    self._say(record.text)
            happened = [record for record in happened if not isinstance(record, records.Notice)]
        if self._shows_events and (text := lines_of(happened, now, Level.EVENTS)):
            self._screen.write(text)

    def _say(self, text: str) -> None:
        self._screen.write(_on_screen(text))

    def _report(self, error: Exception) -> None:
        if isinstance(error, BrokenPipeError):  # the reader of standard output wants no more, as `head`
            return
        self._say(f"lines are missing in the audit file, because it cannot be written: {error}")

    def close(self) -> None:
        """Wait until everything is written, but not for long."""
        if self._writer is not None and not self._writer.close(CLOSE_S):
            self._say("the last lines of the audit file are lost, because they could not be written in time")
        self._screen.close(CLOSE_S)


def _opened(path: str | Path, max_bytes: int) -> RotatedFile:
    from pathlib import Path  # only here, because most processes have no audit file

    try:
        return RotatedFile(Path(path), max_bytes, KEPT)
    except OSError as error:
        raise UsageError(
            f"cannot write the audit file {path}: {error.strerror}; give another --mw-audit-file"
        ) from error


def _gap(count: int) -> str:
    return lines_of([records.Notice(f"{count} lines are missing here")], clock.wall(), Level.EVENTS)


def _put_on_standard_output(data: memoryview) -> int:
    return put_on_stream(sys.stdout, sys.__stdout__, data)


def _show(text: str) -> None:
    """Write to standard error. If that fails, nobody will ever read it."""
    data = memoryview(text.encode(errors="backslashreplace"))
    try:
        while data:
            data = data[put_on_stream(sys.stderr, sys.__stderr__, data) :]
    except (OSError, ValueError):
        return


# The text of a record: one line of the audit file.


_UNSEEN = re.compile(f"[\\\\\t\n{CONTROLS}]")
_ESCAPE = r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4})"


def text_of(record: records.Record) -> str:
    """Describe a record in one line; empty for a record that the audit file does not show."""
    describe = _TEXTS.get(type(record))
    text = "" if describe is None else escaped(describe(record))
    if isinstance(record, records.SlaveEnded):
        text += "".join(f"\t{name}: {escaped(words)}" for name, words in record.words.streams)
    return text


def escaped(text: str) -> str:
    """Return a text with all characters that cannot be seen as in a Python string."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def unescaped(text: str) -> str:
    """Return the text that `escaped` was given."""
    return re.sub(_ESCAPE, lambda found: found[0].encode().decode("unicode_escape"), text)


def _results_of(numbers: Sequence[int]) -> str:
    return f"the result of {first_of((f'task {number}' for number in numbers), len(numbers))}"


def _more(charge: records.Charge) -> str:
    return f", may use {amount(charge.more_memory)} now" if charge.more_memory else ""


def _text_of_total(total: records.Total) -> str:
    causes = "".join(f", {count} {cause}" for cause, count in total.lost.items())
    lost = f"; lost {counted(sum(total.lost.values()), 'attempt')}, {total.lost_s:.1f} s{causes}" if causes else ""
    seconds = f" of {total.seconds_max:g} s" if total.seconds_max else ""
    seconds += f", expected {total.seconds_expected:g} s" if total.seconds_expected else ""
    memory = f", memory {total.memory_used} of {total.memory_max} bytes" if total.memory_max else ""
    return (
        f"TOTAL {total.algorithm} on {total.host}: {counted(total.tasks, 'task')}, {total.failed} failed, "
        f"{total.seconds:.1f} s, longest {total.longest_s:.3f} s{seconds}{memory}{lost}"
    )


def _causes(charges: Sequence[records.Charge]) -> str:
    return "".join(f", {charge.cause.value}{_more(charge)}" for charge in charges)


def _counted(tasks: Sequence[TaskRange] | Sequence[ReusedTasks], noun: str) -> str:
    return counted(sum(each.count for each in tasks), noun)


def _names(tasks: Sequence[TaskRange] | Sequence[ReusedTasks]) -> str:
    named = (f"task {each.first + place} ({each.name})" for each in tasks for place in range(each.count))
    return first_of(named, sum(each.count for each in tasks))


def _text_of_connected(record: records.AgentConnected) -> str:
    job = f", job {record.job}" if record.job else ""
    return f"{record.agent} {record.address} -> connected, host {record.host}, pid {record.pid}{job}"


def _text_of_slave(record: records.SlaveConnected) -> str:
    return f"{record.sid} {record.address} -> connecting [{record.kind.value}] through {record.agent}"


def _text_of_ended(record: records.SlaveEnded) -> str:
    while_running = f" while it ran {record.running}, {record.cause.value}" if record.running else ""
    peak = f"; peak memory {amount(record.words.peak_bytes)}" if record.words.peak_bytes else ""
    return f"{record.sid} -> gone{while_running}: {record.reason}{peak}"


def _text_of_refused(record: records.AlgorithmRefused) -> str:
    return f"{record.sid or record.agent} cannot run {record.algorithm}: {record.reason}"


def _text_of_packages(record: records.PackagesCompared) -> str:
    same = [f"as the master {', '.join(record.same)}"] if record.same else []
    return f"{record.agent} has {'; '.join([*same, *record.different])}"


def _text_of_offered(record: records.AgentOffered) -> str:
    each = (f"{name}: {text}" if text else f"no {name}" for name, text in record.texts.items())
    return f"{record.agent} has {', '.join(each)}"


def _text_of_reclaimed(record: records.TasksReclaimed) -> str:
    where = f", which {record.holder} had," if record.holder else ""
    return f"{record.sid} -> answers {_names(record.tasks)}{where} with attempt {record.attempt}"


def _text_of_returned(record: records.TasksReturned) -> str:
    pause = f", delayed for {record.pause_s:g} s" if record.pause_s else ""
    back = f"{_counted(record.tasks, 'task')} back ({_names(record.tasks)})"
    return f"{record.sid} -> {back}{_causes(record.charges)}{pause}: {record.reason}"


def _text_of_state(record: records.TaskCheckpointed) -> str:
    return f"{record.sid} -> state of {record.task}, {amount(sum(map(len, record.frames)))}"


def _text_of_submitted(record: records.TasksSubmitted) -> str:
    blocked = (each for each in record.tasks if each.refers)
    return "; ".join(f"BLOCKED task {each.first}: it needs {_results_of(each.refers)}" for each in blocked)


def _text_of_unaddressed(record: records.TasksUnaddressed) -> str:
    return f"{_counted(record.tasks, 'task')} for {record.sid} may run anywhere ({_names(record.tasks)})"


def _text_of_brought(record: records.ResultsHandedOver) -> str:
    results = counted(sum(record.results.counts), "result")
    return f"{record.agent} -> {results} of {record.sid} in generation {record.generation}"


def _text_of_given(record: records.ResultGiven) -> str:
    content = record.cause or amount(sum(map(len, record.frames)))
    return f"HELD for later tasks: {_results_of([record.number])}, {content}"


_TEXTS: dict[type[records.Record], Callable[[Any], str]] = {
    records.Started: lambda record: f'INIT {record.role} "{record.member_id}" {record.detail}',
    records.Ended: lambda record: f'FINI {record.why} "{record.member_id}"',
    records.Notice: lambda record: f"NOTICE {record.text}",
    records.TasksReceived: lambda record: f"{record.sid} <- {counted(record.count, 'task')}",
    records.ResultsSent: lambda record: f"{record.sid} -> {counted(record.count, 'result')}",
    records.SlaveStarted: lambda record: f"SLAVE PROCESS {record.slave} started, pid {record.pid}",
    records.SlaveNamed: lambda record: f"SLAVE PROCESS {record.slave} is {record.sid}",
    records.SlaveConnected: _text_of_slave,
    records.SlaveChanged: lambda record: f"{record.sid} -> {record.state.value} [{record.kind.value}]",
    records.SlaveEnded: _text_of_ended,
    records.AgentConnected: _text_of_connected,
    records.AgentOffered: _text_of_offered,
    records.AgentSetUp: lambda record: f"{record.agent} -> set up in {record.seconds:.1f} s",
    records.AgentRefused: lambda record: f"REFUSED {record.address}: {record.reason}",
    records.AgentAway: lambda record: f"{record.agent} -> away: {record.reason}",
    records.AgentBack: lambda record: f"{record.agent} {record.address} -> back",
    records.AgentLost: lambda record: f"{record.agent} -> lost: {record.reason}",
    records.LossesExplained: lambda record: f"{record.agent} was not lost but {record.cause.value}: {record.reason}",
    records.HostExcluded: lambda record: f"EXCLUDED {record.reason}",
    records.HostReadmitted: lambda record: f"READMITTED host {record.host}",
    records.AgentLeft: lambda record: f"{record.agent} -> left: {record.reason}",
    records.PeerDropped: lambda record: f"DROPPED {record.peer}: {record.reason}",
    records.AlgorithmRefused: _text_of_refused,
    records.OtherValues: lambda record: f"OTHER VALUES of {record.names} in slaves",
    records.PackagesCompared: _text_of_packages,
    records.TasksAllocated: lambda record: f"{record.sid} <- {_counted(record.tasks, 'task')}",
    records.TasksReclaimed: _text_of_reclaimed,
    records.TasksReturned: _text_of_returned,
    records.TasksDue: lambda record: f"DUE {_names(record.tasks)}",
    records.TasksAwaited: lambda record: f"AWAITED {_names(record.tasks)}",
    records.TasksGivenUp: lambda record: f"UNRUNNABLE {_names(record.tasks)}: {record.reason}",
    records.TasksCancelled: lambda record: f"CANCELLED {_names(record.tasks)} {record.when}",
    records.TasksCancelling: lambda record: f"{record.sid} must not start {_names(record.tasks)}: cancelled",
    records.TaskCheckpointed: _text_of_state,
    records.TasksFailed: lambda record: f"FAILED {_names(record.tasks)}: {record.reason}",
    records.TasksSubmitted: _text_of_submitted,
    records.TasksUnblocked: lambda record: f"UNBLOCKED {_names(record.tasks)}",
    records.Total: _text_of_total,
    records.TasksUnaddressed: _text_of_unaddressed,
    records.ResultsReceived: lambda record: f"{record.sid} -> {counted(sum(record.results.counts), 'result')}",
    records.ResultsHandedOver: _text_of_brought,
    records.TasksAnswered: lambda record: f"ANSWERED by an earlier generation: {_names(record.tasks)}",
    records.ResultsReused: lambda record: f"REUSED {_counted(record.tasks, 'stored result')} ({_names(record.tasks)})",
    records.ResultsHeld: lambda record: f"HELD for later tasks: {_results_of(record.numbers)}",
    records.ResultGiven: _text_of_given,
    records.ResultsReleased: lambda record: f"RELEASED {_results_of(record.numbers)}",
}
"""How each kind of record is described. The audit file does not show the others."""
