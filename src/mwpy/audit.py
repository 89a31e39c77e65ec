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
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from attrs import frozen

from mwpy._system import clock
from mwpy._system.background import TextWriter
from mwpy._system.lines import RotatedFile, WholeLines, put_on_stream
from mwpy._values import records
from mwpy._values.errors import UsageError
from mwpy._values.last_words import LastWords
from mwpy._values.phrases import amount, counted, first_of
from mwpy._values.records import ReusedTasks, TaskRange

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
    records.TasksForbidden,
)

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Characters that end a line, move the cursor, reverse the order of others or are not visible; except tab and newline.
"""

_UNSEEN = re.compile(f"[\\\\\t\n{_CONTROLS}]")
_UNSEEN_ON_SCREEN = re.compile(f"[{_CONTROLS}]")
_ESCAPE = re.compile(r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4})")
_END = re.compile(
    r"(?P<time>\S+) \[A\] (?P<sid>\S+) -> gone(?: while it ran (?P<running>task (?P<task>\d+)\b.*?, attempt \d+), "
    r"(?P<cause>[a-z -]+))?: (?P<reason>.*?)(?:; peak memory (?P<peak>[\d.]+ \w+))?"
)
_TOTAL = re.compile(
    r"\S+ \[A\] TOTAL (?P<algorithm>.*) on (?P<host>\S*): (?P<tasks>\d+) tasks?, (?P<failed>\d+) failed, "
    r"(?P<seconds>[\d.]+) s, longest (?P<longest_s>[\d.]+) s(?: of (?P<seconds_max>[\d.e+-]+) s)?"
    r"(?:, expected (?P<seconds_expected>[\d.e+-]+) s)?"
    r"(?:, memory (?P<memory_used>\d+) of (?P<memory_max>\d+) bytes)?"
    r"(?:; lost \d+ attempts?, (?P<lost_s>[\d.]+) s(?P<causes>.*))?"
)


def text_of(record: records.Record) -> str:
    """Describe a record in one line; empty for a record that the audit file does not show."""
    text = _escaped(
        _text_of_slaves(record) or _text_of_agents(record) or _text_of_tasks(record) or _text_of_values(record)
    )
    if isinstance(record, records.SlaveEnded):
        text += "".join(f"\t{name}: {_escaped(words)}" for name, words in record.words.streams)
    return text


def _escaped(text: str) -> str:
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _on_screen(text: str) -> str:
    """A message for standard error. Its text may come from other machines.

    Control characters cannot change the terminal. Further lines are indented, so that none looks like a message.
    """
    seen = _UNSEEN_ON_SCREEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return "mwpy: " + seen.replace("\n", "\n  ") + "\n"


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: found[0].encode().decode("unicode_escape"), text)


@frozen
class End:
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
        elif " [A] TOTAL " in line and (parts := _TOTAL.fullmatch(line.rstrip("\n"))) is not None:
            total = _total_of(parts)
            found[total.algorithm, total.host] = total
    return list(found.values())


def _total_of(parts: re.Match[str]) -> records.Total:
    causes = re.findall(r", (\d+) ([a-z -]+)", parts["causes"] or "")
    return records.Total(
        algorithm=_unescaped(parts["algorithm"]),
        host=_unescaped(parts["host"]),
        tasks=int(parts["tasks"]),
        failed=int(parts["failed"]),
        seconds=float(parts["seconds"]),
        longest_s=float(parts["longest_s"]),
        lost={cause: int(count) for count, cause in causes},
        lost_s=float(parts["lost_s"] or 0),
        seconds_max=float(parts["seconds_max"] or 0),
        seconds_expected=float(parts["seconds_expected"] or 0),
        memory_max=int(parts["memory_max"] or 0),
        memory_used=int(parts["memory_used"] or 0),
    )


def _lines(path: Path) -> Iterator[str]:
    """The lines of an audit file and its older parts, oldest first."""
    older = [Path(f"{path}.{number}") for number in range(KEPT, 0, -1)]
    try:
        for part in (*(each for each in older if each.exists()), path):
            with part.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                yield from lines
    except OSError as error:
        raise UsageError(
            f"cannot read the audit file {path}: {error.strerror}; a computation writes one when it is given "
            f"--mw-audit-file FILE"
        ) from error


def _end_of(line: str) -> End | None:
    text, *fields = line.removesuffix("\n").split("\t")
    found = _END.fullmatch(text)
    if found is None:
        return None
    parts = {name: _unescaped(value or "") for name, value in found.groupdict().items()}
    words = {name: _unescaped(words) for name, _, words in (field.partition(": ") for field in fields)}
    known = LastWords(words.get("stdout", ""), words.get("stderr", ""), words.get("fault", ""))
    task = int(parts["task"] or 0)
    return End(
        parts["time"], parts["sid"], parts["reason"], parts["running"], parts["cause"], task, parts["peak"], known
    )


def _text_of_slaves(record: records.Record) -> str:
    match record:
        case records.Started(role, member_id, detail):
            return f'INIT {role} "{member_id}" {detail}'
        case records.Ended(why, member_id):
            return f'FINI {why} "{member_id}"'
        case records.Notice(text):
            return f"NOTICE {text}"
        case records.TasksReceived(sid, count):
            return f"{sid} <- {counted(count, 'task')}"
        case records.ResultsSent(sid, count):
            return f"{sid} -> {counted(count, 'result')}"
        case records.SlaveStarted(slave, pid):
            return f"SLAVE PROCESS {slave} started, pid {pid}"
        case records.SlaveNamed(slave, sid):
            return f"SLAVE PROCESS {slave} is {sid}"
        case records.SlaveConnected(sid, agent, address, kind):
            return f"{sid} {address} -> connecting [{kind.value}] through {agent}"
        case records.SlaveChanged(sid, state, kind):
            return f"{sid} -> {state.value} [{kind.value}]"
        case records.SlaveEnded(sid, cause, reason, running, words):
            while_running = f" while it ran {running}, {cause.value}" if running else ""
            peak = f"; peak memory {amount(words.peak_bytes)}" if words.peak_bytes else ""
            return f"{sid} -> gone{while_running}: {reason}{peak}"
        case _:
            return ""


def _text_of_agents(record: records.Record) -> str:
    match record:
        case records.AgentConnected(agent, address, host, pid, job):
            return f"{agent} {address} -> connected, host {host}, pid {pid}{f', job {job}' if job else ''}"
        case records.AgentRefused(address, reason):
            return f"REFUSED {address}: {reason}"
        case records.AgentAway(agent, reason):
            return f"{agent} -> away: {reason}"
        case records.AgentBack(agent, address):
            return f"{agent} {address} -> back"
        case records.AgentLost(agent, reason):
            return f"{agent} -> lost: {reason}"
        case records.LossesExplained(agent, _, cause, reason):
            return f"{agent} was not lost but {cause.value}: {reason}"
        case records.HostExcluded(_, reason):
            return f"EXCLUDED {reason}"
        case records.HostReadmitted(host):
            return f"READMITTED host {host}"
        case records.AgentLeft(agent, reason):
            return f"{agent} -> left: {reason}"
        case records.PeerDropped(peer, reason):
            return f"DROPPED {peer}: {reason}"
        case records.AlgorithmRefused(agent, algorithm, reason, _, sid):
            return f"{sid or agent} cannot run {algorithm}: {reason}"
        case records.PackagesCompared(agent, same, different):
            versions = "; ".join([*([f"as the master {', '.join(same)}"] if same else []), *different])
            return f"{agent} has {versions}"
        case _:
            return ""


def _text_of_tasks(record: records.Record) -> str:
    match record:
        case records.TasksAllocated(sid, tasks):
            return f"{sid} <- {counted(_count(tasks), 'task')}"
        case records.AttemptsStarted(sid, tasks, beside, reason):
            named = ", ".join(f"attempt {each.attempt} of {each}" for each in tasks)
            return f"{sid} <- {named}, which {beside} has, too: {reason}"
        case records.AttemptsEnded(sid, tasks, reason, charges):
            ended = counted(_count(tasks), "attempt")
            return f"{sid} -> {ended} ended beside others ({_names(tasks)}){_causes(charges)}: {reason}"
        case records.ResultsReceived(sid, results, _, agent):
            kept = f", {counted(len(results.kept), 'value')} KEPT at {agent}" if results.kept else ""
            return f"{sid} -> {counted(sum(results.counts), 'result')}{kept}"
        case records.ResultsHandedOver(agent, _, generation, sid, results):
            return f"{agent} -> {counted(sum(results.counts), 'result')} of {sid} in generation {generation}"
        case records.TasksAnswered(_, tasks):
            return f"ANSWERED by an earlier generation: {_names(tasks)}"
        case records.ResultsReused(reused):
            return f"REUSED {counted(_count(reused), 'stored result')} ({_names(reused)})"
        case records.AnswersKept(sid, host, results):
            return f"{sid} -> {counted(sum(results.counts), 'result')} of {host} kept, to compare them"
        case records.AnswersGiven(tasks, verdict):
            return f"GIVEN {counted(_count(tasks), 'kept result')} ({_names(tasks)}): {verdict}"
        case records.TasksReturned(sid, tasks, reason, charges, pause_s):
            pause = f", delayed for {pause_s:g} s" if pause_s else ""
            return (
                f"{sid} -> {counted(_count(tasks), 'task')} back ({_names(tasks)}){_causes(charges)}{pause}: {reason}"
            )
        case records.TasksDue(tasks) | records.TasksAwaited(tasks):
            return f"{'DUE' if isinstance(record, records.TasksDue) else 'AWAITED'} {_names(tasks)}"
        case records.TasksGivenUp(_, _, tasks, reason):
            return f"UNRUNNABLE {_names(tasks)}: {reason}"
        case records.TasksCancelled(_, tasks, when):
            return f"CANCELLED {_names(tasks)} {when}"
        case records.TasksCancelling(sid, tasks):
            return f"{sid} must not start {_names(tasks)}: cancelled"
        case records.TaskCheckpointed(sid, task, frames):
            return f"{sid} -> state of {task}, {amount(sum(map(len, frames)))}"
        case records.TasksForbidden(tasks, _, reason):
            return f"UNRUNNABLE {tasks}: {reason}"
        case records.TasksFailed(tasks, reason):
            return f"FAILED {_names(tasks)}: {reason}"
        case records.TasksSubmitted(tasks):
            blocked = (each for each in tasks if each.refers)
            return "; ".join(f"BLOCKED task {each.first}: it needs {_results_of(each.refers)}" for each in blocked)
        case records.TasksUnblocked(tasks):
            return f"UNBLOCKED {_names(tasks)}"
        case records.ResultsHeld(numbers):
            return f"HELD for later tasks: {_results_of(numbers)}"
        case records.ResultGiven(number, frames, cause):
            return f"HELD for later tasks: {_results_of([number])}, {cause or amount(sum(map(len, frames)))}"
        case records.ResultsReleased(numbers):
            return f"RELEASED {_results_of(numbers)}"
        case records.Total():
            return _text_of_total(record)
        case records.AnswersDiffer(task, hosts, wrong):
            agreed = " / ".join(", ".join(group) for group in hosts)
            return f"DIFFERENT results of {task}: {agreed}; outvoted: {', '.join(wrong) or 'nobody'}"
        case records.ResultsDoubted(host, ranges, forgotten, missing, reasons):
            more = f" and {forgotten} more" if forgotten else ""
            why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
            lost = f"; cannot be computed again ({why}): tasks {_ids_in(missing)}" if missing else ""
            return f"DOUBTED results that only {host} computed: tasks {_ids_in(ranges)}{more}{lost}"
        case records.ResultsRecomputed(ranges):
            return f"CORRECTED results that are in doubt: new tasks compute them again, for tasks {_ids_in(ranges)}"
        case records.TasksUnaddressed(sid, tasks):
            return f"{counted(_count(tasks), 'task')} for {sid} may run anywhere ({_names(tasks)})"
        case _:
            return ""


def _text_of_values(record: records.Record) -> str:
    match record:
        case records.TasksBlocked(tasks):
            return f"BLOCKED again, because values are lost: {_names(tasks)}"
        case records.TasksRecomputed(tasks):
            return f"RECOMPUTE {_names(tasks)}: its value is lost and needed"
        case records.ValuesLost(agent, numbers, reason):
            return f"LOST {_values_of(numbers)} at {agent}: {reason}"
        case records.ValuesReleased(numbers, cause):
            return f"FORGOTTEN {_values_of(numbers)}{f': {cause}' if cause else ''}"
        case _:
            return ""


def _ids_in(ranges: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{first}-{first + count - 1}" if count > 1 else f"{first}" for first, count in ranges)


def _values_of(numbers: Sequence[int]) -> str:
    return f"the value of {first_of((f'task {number}' for number in numbers), len(numbers))}"


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


def _count(tasks: Sequence[TaskRange] | Sequence[ReusedTasks]) -> int:
    return sum(each.count for each in tasks)


def _names(tasks: Sequence[TaskRange] | Sequence[ReusedTasks]) -> str:
    named = (f"task {each.first + place} ({each.name})" for each in tasks for place in range(each.count))
    return first_of(named, _count(tasks))


def lines_of(happened: Sequence[records.Record], now: float, level: Level) -> str:
    """Describe records that happened at Unix time `now`, one line for each that the level shows."""
    texts = [text_of(record) for record in happened if level is Level.GROUPS or _is_event(record)]
    if not any(texts):
        return ""
    moment = clock.date(now, "milliseconds")
    return "".join(f"{moment} [A] {text}\n" for text in texts if text)


def _is_event(record: records.Record) -> bool:
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
            put = _put_on_standard_output if str(path) == "-" else _opened(Path(path), max_bytes).put
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
        self._say(f"lines are missing in the audit file, because it cannot be written: {error}")

    def close(self) -> None:
        """Wait until everything is written, but not for long."""
        if self._writer is not None and not self._writer.close(CLOSE_S):
            self._say("the last lines of the audit file are lost, because they could not be written in time")
        self._screen.close(CLOSE_S)


def _opened(path: Path, max_bytes: int) -> RotatedFile:
    try:
        return RotatedFile(path, max_bytes, KEPT)
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
