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
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from attrs import frozen

from mwpy._values import records
from mwpy._values.errors import UsageError
from mwpy._values.last_words import LastWords
from mwpy._values.phrases import amount, counted, first_of
from mwpy._values.records import TaskRange

__all__ = ["AuditFile", "End", "read_ends", "text_of"]

KEPT = 4
"""How many old audit files are kept; FILE.1 is the newest."""

_UNSEEN = re.compile("[\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4})")
_END = re.compile(
    r"(?P<time>\S+) \[A\] (?P<sid>\S+) -> gone(?: while it ran (?P<running>task (?P<task>\d+)\b.*?, attempt \d+))?: "
    r"(?P<cause>.*?)(?:; peak memory (?P<peak>[\d.]+ \w+))?"
)


def text_of(record: records.Record) -> str:
    """Describe a record in one line; empty for a record that the audit file does not show."""
    text = _escaped(_text_of_slaves(record) or _text_of_agents(record) or _text_of_tasks(record))
    if isinstance(record, records.SlaveEnded):
        text += "".join(f"\t{name}: {_escaped(words)}" for name, words in record.words.streams)
    return text


def _escaped(text: str) -> str:
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: found[0].encode().decode("unicode_escape"), text)


@frozen
class End:
    """The end of one slave, as read from an audit file."""

    time: str
    sid: str
    cause: str
    running: str
    """The task that it ran and the attempt, as text; empty if it ran none."""
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
    older = [Path(f"{path}.{number}") for number in range(KEPT, 0, -1)]
    try:
        for part in (*(each for each in older if each.exists()), path):
            with part.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                yield from (end for line in lines if " -> gone" in line and (end := _end_of(line)) is not None)
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
    return End(parts["time"], parts["sid"], parts["cause"], parts["running"], task, parts["peak"], known)


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
        case records.SlaveEnded(sid, cause, running, words):
            while_running = f" while it ran {running}" if running else ""
            peak = f"; peak memory {amount(words.peak_bytes)}" if words.peak_bytes else ""
            return f"{sid} -> gone{while_running}: {cause}{peak}"
        case _:
            return ""


def _text_of_agents(record: records.Record) -> str:
    match record:
        case records.AgentConnected(agent, address, host, pid, job):
            return f"{agent} {address} -> connected, host {host}, pid {pid}{f', job {job}' if job else ''}"
        case records.AgentRefused(address, reason):
            return f"REFUSED {address}: {reason}"
        case records.AgentLost(agent, reason):
            return f"{agent} -> lost: {reason}"
        case records.AgentLeft(agent, reason):
            return f"{agent} -> left: {reason}"
        case records.PeerDropped(peer, reason):
            return f"DROPPED {peer}: {reason}"
        case records.AlgorithmRefused(agent, algorithm, reason):
            return f"{agent} cannot run {algorithm}: {reason}"
        case records.PackagesCompared(agent, same, different):
            versions = "; ".join([*([f"as the master {', '.join(same)}"] if same else []), *different])
            return f"{agent} has {versions}"
        case _:
            return ""


def _text_of_tasks(record: records.Record) -> str:
    match record:
        case records.TasksAllocated(sid, tasks):
            return f"{sid} <- {counted(_count(tasks), 'task')}"
        case records.ResultsReceived(sid, results):
            return f"{sid} -> {counted(sum(results.counts), 'result')}"
        case records.TasksReturned(sid, tasks, reason):
            return f"{sid} -> {counted(_count(tasks), 'task')} back ({_names(tasks)}): {reason}"
        case records.TasksGivenUp(_, _, tasks, reason):
            return f"UNRUNNABLE {_names(tasks)}: {reason}"
        case records.TasksFailed(tasks, reason):
            return f"FAILED {_names(tasks)}: {reason}"
        case records.TasksUnaddressed(sid, tasks):
            return f"{counted(_count(tasks), 'task')} for {sid} may run anywhere ({_names(tasks)})"
        case _:
            return ""


def _count(tasks: Sequence[TaskRange]) -> int:
    return sum(each.count for each in tasks)


def _names(tasks: Sequence[TaskRange]) -> str:
    named = (f"task {each.first + place} ({each.name})" for each in tasks for place in range(each.count))
    return first_of(named, _count(tasks))


class AuditFile:
    """Writes records as lines to a file that rotates by size, or to a stream, or nowhere.

    Notices are also printed on standard error. If the file cannot be written later, for example because the disk is
    full, a message says so once, and the computation goes on.

    Args:
        path: the file, to which lines are appended; None or the null device for no file.
        stream: a stream to write to instead of a file.
        max_bytes: the size at which the file is rotated.

    Raises:
        UsageError: the file cannot be written; the message names the option.
    """

    def __init__(self, path: Path | None, stream: TextIO | None = None, max_bytes: int = 64 << 20) -> None:
        self._path = path if path != Path(os.devnull) else None
        self._stream = stream
        self._max_bytes = max_bytes
        self._fd: int | None = None
        self._size = 0
        self._failing = False
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise UsageError(
                    f"cannot write the audit file {path}: {error.strerror}; give another --mw-audit-file"
                ) from error

    def write(self, happened: Sequence[records.Record], now: float) -> None:
        """Write records that happened at Unix time `now`, with one call of the operating system."""
        for record in happened:
            if isinstance(record, records.Notice):
                print(f"mwpy: {record.text}", file=sys.stderr, flush=True)
        if not happened or (self._path is None and self._stream is None):
            return
        moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines: list[str] = []
        for record in happened:
            if text := text_of(record):
                lines.append(f"{moment} [A] {text}\n")
        if lines:
            self._put("".join(lines))

    def _put(self, text: str) -> None:
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
            elif self._path is not None:
                data = text.encode(errors="backslashreplace")
                if self._size and self._size + len(data) > self._max_bytes:
                    self._rotate(self._path)
                if self._fd is None:
                    self._open(self._path)
                self._size += os.write(self._fd or 0, data)
            self._failing = False
        except (OSError, ValueError) as error:
            if not self._failing:
                self._failing = True
                print(
                    f"mwpy: lines are missing in the audit file, because it cannot be written: {error}", file=sys.stderr
                )

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self, path: Path) -> None:
        self.close()
        for number in range(KEPT, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            if newer.exists():
                os.replace(newer, older)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
