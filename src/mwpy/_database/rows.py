"""Which rows of which tables a record becomes, how they are packed, and the files that hold large values.

Which rows of which tables a record becomes.

Some records are left out: changes of a slave between idle and busy, tasks that were taken back
before they started, states that tasks leave for their next attempts, and figures that follow from other records.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from pathlib import Path
from reprlib import Repr
from typing import Any

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from mwpy._system.locks import sync_folder
from mwpy._values import records
from mwpy._values.bounds import Buffer, SlaveId, shortened
from mwpy._values.errors import RunDatabaseError
from mwpy._values.groups import each_task
from mwpy._values.messagepack import FAILURE, MALFORMED, Pickled, decode, decoder, encode, encode_json, split_list
from mwpy._values.messages import Results
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import Charge, TaskRange
from mwpy._values.task import Failure, read_failure
from mwpy.audit import text_of

# How rows are collected and groups of results are packed before they are written.
#
# How a group of results is kept in a row: its head, and its frames one after the other.


REMEDY = "Start again, and its task runs again"


class Damaged(RunDatabaseError):
    """A result in a row is not what was written."""


class StoredResults(Results, frozen=True, array_like=True):
    """Results as the head of a row has them: without the names of the fields."""

    sizes: list[int] = field(default_factory=list)
    """The size of each frame."""


_read_head = decoder(StoredResults)


def head_of(results: Results, frames: Sequence[Buffer]) -> bytes:
    """Return the head of a group of results."""
    fields = *astuple(results), [len(frame) for frame in frames]
    return encode(StoredResults(*fields))


def content_checksum(head: bytes, *frames: Buffer) -> int:
    """Return the checksum of the head and the frames of a group."""
    checksum = zlib.crc32(head)
    for frame in frames:
        checksum = zlib.crc32(frame, checksum)
    return checksum


def read_head(head: bytes) -> StoredResults:
    """Return the results of a group.

    Raises:
        Damaged: the head is damaged.
    """
    try:
        return _read_head(head)
    except MALFORMED as error:
        raise Damaged(f"a result in the run database is damaged: {error}. {REMEDY}") from error


def unpack(head: bytes, content: bytes, checksum: int) -> tuple[Results, list[Buffer]]:
    """Read a group of results.

    Raises:
        Damaged: it is damaged.
    """
    results = read_head(head)
    if content_checksum(head, content) != checksum or sum(results.sizes) != len(content):
        raise Damaged(f"a result in the run database is damaged: its checksum is wrong. {REMEDY}")
    view = memoryview(content)
    return results, [view[start:end] for start, end in pairwise(accumulate(results.sizes, initial=0))]


def each_attempt(ranges: Iterable[tuple[int, int, int]]) -> str:
    """Write the attempt of each task as JSON: an object with the ids of the tasks as its keys.

    Args:
        ranges: the first id, the count and the attempt of each range.
    """
    each = {first + at: attempt for first, count, attempt in ranges for at in range(count)}
    return encode_json(each).decode()


def columns_of(results: Results) -> tuple[object, ...]:
    """What the views unpack of a row with results, in the order of `RESULTS`; `schema.py` describes the columns."""
    firsts, counts, attempts, seconds = results.tasks, results.counts, results.attempts, results.seconds
    count, total_s = sum(counts), sum(seconds)
    if len(firsts) == 1:
        times = encode_json(seconds).decode() if len(seconds) == count else None
        return firsts[0], count, attempts[0], None, times, total_s
    ranges = [*zip(firsts, counts, attempts, strict=True)]
    ids = (task for first, count, _ in ranges for task in range(first, first + count))
    known = seconds if len(seconds) == count else repeat(total_s / max(1, count))
    times = encode_json(dict(zip(ids, known, strict=False))).decode()
    differ = attempts.count(attempts[0]) < len(attempts) if attempts else False
    return 0, count, attempts[0] if attempts else 0, each_attempt(ranges) if differ else None, times, total_s


# The rows of one commit.


TEXT_CHARACTERS = 2000
"""The longest message or reason that is kept, in characters. Of a longer one, the middle is left out."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "algorithms": ("number", "name", "reference", "code", "parts"),
    "submissions": ("at", "first", "count", "algorithm", "policy", "failed", "answers", "keys"),
    "allocations": ("at", "sid", "base", "count", "attempt", "attempts", "reason"),
    "once": ("first", "count", "may_have_run", "reason"),
    "failures": ("at", "task", "attempt", "sid", "type", "message", "traceback", "arguments"),
    "ends": ("at", "first", "count", "attempt", "state", "sid", "reason"),
    "losses": ("at", "sid", "first", "count", "attempt", "algorithm", "cause", "charged", "lost_s", "reason"),
    "agents": ("at", "agent", "host", "pid", "job", "address", "slaves", "python", "returns_s"),
    "slaves": ("at", "sid", "agent", "kind"),
    "events": ("at", "kind", "text"),
}
"""The columns of the rows in `Batch.rows`, after `seq` and `generation`. If the last one is `keys`, its value is the
place of bytes in `Batch.blob`."""

TABLES_BY_SEQ = (*COLUMNS, "results")
"""The tables that share one sequence of row numbers."""


RESULTS = (
    *("seq", "generation", "at", "sid", "base", "count", "attempt", "attempts", "seconds", "total_s", "failed"),
    *("host", "checksum"),
)
"""The columns of a group of results before its own checksum and its bytes."""


class StoredGroup(Struct, gc=False):
    """A row of the table `results`."""

    row: list[Any]
    """The columns `RESULTS`."""
    head: bytes
    frames: Sequence[Buffer]
    size: int
    """The size of all frames."""
    brought: records.ResultsHandedOver | None = None
    """The record, if an agent has brought these results from a former generation."""


class Batch(Struct, eq=False):
    """The rows of one commit."""

    rows: dict[str, list[list[Any]]] = field(default_factory=lambda: {table: [] for table in COLUMNS})
    """New rows, by table."""
    blob: bytearray = field(default_factory=bytearray)
    """The bytes in these rows."""
    groups: list[StoredGroup] = field(default_factory=list)
    calls: Mapping[int, bytes] = field(default_factory=dict)
    """The encoded arguments of tasks that failed, by id, as far as they are known."""
    changes: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """Statements that change earlier rows, and their parameters. They follow after all new rows."""


Maker = Callable[[Any, float, Batch], None]
"""Turns a record into rows; the time of the record is in Unix seconds."""


def short(text: str) -> str:
    """Return a text of limited length that SQLite can store, so without half a surrogate pair."""
    return shortened(text, TEXT_CHARACTERS).encode(errors="replace").decode()


TRACEBACK_CHARACTERS = 10_000
"""The longest traceback that is kept."""

WORDS_CHARACTERS = 10_000
"""The longest last words of a slave that are kept, in characters."""

ARGUMENTS_CHARACTERS = 1000
"""The longest text with the arguments of a task that is kept."""

_shown = Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = 200
_shown.maxlist = _shown.maxtuple = _shown.maxdict = 20


def failure_rows(
    group: Results, frames: Sequence[Buffer], calls: Mapping[int, bytes]
) -> Iterator[tuple[int, int, str, str, str, str | None]]:
    """Yield the task, the attempt, the type, the message, the traceback and the arguments of each failure in a group.

    Args:
        calls: the encoded arguments of tasks, by id, as far as they are known.
    """
    raw, named = split_list(frames[0]), list(each_task(group))
    for place in group.failed:
        task, attempt = named[place]
        failure = _read(raw[place])
        message = shortened(failure.text, TEXT_CHARACTERS)
        traceback = shortened(failure.traceback, TRACEBACK_CHARACTERS)
        yield task, attempt, failure.type_name, message, traceback, _arguments(calls.get(task))


def _read(entry: Buffer) -> Failure:
    try:
        value = decode(entry)
        if isinstance(value, Pickled) and value.kind == FAILURE:
            return read_failure(bytes(value.pickle))
    except MALFORMED:
        pass
    return Failure("unknown", "a failure that cannot be read", "", b"")


def _arguments(call: bytes | None) -> str | None:
    """The arguments as a text; None if they are unknown, or are a pickle, which is not loaded for this."""
    if call is None:
        return None
    try:
        value: Any = decode(call)
    except MALFORMED:
        return None
    if isinstance(value, Pickled):
        return None
    return shortened(", ".join(map(_shown.repr, value)), ARGUMENTS_CHARACTERS)


_LEFT_OUT = (
    records.SlaveChanged,
    records.SlaveStarted,
    records.SlaveNamed,
    records.TasksReceived,
    records.ResultsSent,
    records.TasksAwaited,
    records.TasksUnblocked,
    records.TasksCancelling,
    records.TaskCheckpointed,
    records.ResultsHeld,
    records.ResultGiven,
    records.ResultsReleased,
    records.Total,
)


class _Held(Struct, gc=False):
    """The tasks of a slave."""

    count: int
    since: float
    """When it got the first of them, or when it sent the last results."""


class Rows:
    """Turns records into rows, and numbers the rows of all tables.

    Args:
        generation: the number of this life of the master.
        seq: the number of the last row that is in the file.
    """

    def __init__(self, generation: int, seq: int) -> None:
        self._generation = generation
        self._seq = seq
        self._held: dict[str, _Held] = {}
        """Slaves with tasks."""
        self._makers: dict[type, Maker] = {
            **dict.fromkeys(_LEFT_OUT, _leave_out),
            records.AlgorithmDefined: self._algorithm,
            records.TasksSubmitted: self._submitted,
            records.ResultsReused: self._reused,
            records.TasksAllocated: self._allocated,
            records.AttemptsStarted: self._allocated,
            records.ResultsReceived: self._received,
            records.ResultsHandedOver: self._results,
            records.TasksAnswered: self._answered,
            records.TasksReturned: self._returned,
            records.TasksDue: self._due,
            records.AttemptsEnded: self._lost,
            records.TasksGivenUp: self._given_up,
            records.TasksCancelled: self._cancelled,
            records.TasksFailed: self._failed,
            records.TasksForbidden: self._forbidden,
            records.LossesExplained: self._explained,
            records.AgentConnected: self._agent,
            records.AgentLost: self._agent_ended,
            records.AgentLeft: self._agent_ended,
            records.PackagesCompared: self._packages,
            records.SlaveConnected: self._slave,
            records.SlaveEnded: self._slave_ended,
            records.Ended: self._ended,
        }

    def add(self, record: records.Record, at: float, batch: Batch) -> None:
        """Add the rows of a record that was stated at the Unix time `at`."""
        self._makers.get(type(record), self._event)(record, at, batch)

    def _next(self) -> int:
        """Return the number of the next row."""
        self._seq += 1
        return self._seq

    def _add(self, batch: Batch, table: str, *values: Any, generation: int | None = None) -> None:
        """Add a row to a table.

        Args:
            generation: which one the row is about; None for the present one.
        """
        batch.rows[table].append([self._next(), generation or self._generation, *values])

    # ---- tasks ----------------------------------------------------------------------------------------------

    def _algorithm(self, record: records.AlgorithmDefined, _: float, batch: Batch) -> None:
        made = record.definition
        code, parts = record.code, json.dumps(record.parts)
        self._add(batch, "algorithms", made.number, made.name, made.reference, code, parts)

    def _submitted(self, record: records.TasksSubmitted, at: float, batch: Batch) -> None:
        rows = batch.rows["submissions"]
        last: list[Any] | None = None
        policy: TaskPolicy | None = None
        for each in record.tasks:
            start, size = len(batch.blob), len(each.keys)
            batch.blob += each.keys
            if (
                last is not None
                and last[3] + last[4] == each.first
                and last[5] == each.algorithm
                and (policy is each.policy or policy == each.policy)
                and bool(last[-1][1]) == bool(size)
            ):
                last[4] += each.count
                last[-1][1] += size
                continue
            place, kind = [start, size], _text_of_policy(each.policy)
            self._add(batch, "submissions", at, each.first, each.count, each.algorithm, kind, None, None, place)
            last, policy = rows[-1], each.policy

    def _reused(self, record: records.ResultsReused, at: float, batch: Batch) -> None:
        for each in record.tasks:
            place = [len(batch.blob), len(each.keys)]
            batch.blob += each.keys
            failed = json.dumps(list(each.failed)) if each.failed else None
            answers = json.dumps([*zip(each.rows, each.places, strict=True)], separators=(",", ":"))
            self._add(batch, "submissions", at, each.first, each.count, each.algorithm, None, failed, answers, place)

    def _allocated(self, record: records.TasksAllocated | records.AttemptsStarted, at: float, batch: Batch) -> None:
        sid, tasks = record.sid, record.tasks
        first, count = tasks[0], sum(each.count for each in tasks)
        reason = record.reason if isinstance(record, records.AttemptsStarted) else None
        held = self._held.get(sid)
        if held is None:
            self._held[sid] = _Held(count, at)
        else:
            held.count += count
        if len(tasks) == 1 or all(_continues(*two) for two in pairwise(tasks)):
            self._add(batch, "allocations", at, sid, first.first, count, first.attempt, None, reason)
        else:
            attempts = each_attempt((each.first, each.count, each.attempt) for each in tasks)
            self._add(batch, "allocations", at, sid, 0, count, first.attempt, attempts, reason)
        self._once(tasks, batch, may_have_run=True)

    def _once(self, tasks: Sequence[TaskRange], batch: Batch, *, may_have_run: bool) -> None:
        """Tasks that must not run twice were sent to a slave, or came back. A later generation must know this."""
        for each in tasks:
            if each.once:
                self._add(batch, "once", each.first, each.count, int(may_have_run), None)

    def _received(self, record: records.ResultsReceived, at: float, batch: Batch) -> None:
        self._results(record, at, batch)
        self._heard(record.sid, sum(record.results.counts), at)

    def _results(self, record: records.ResultsReceived | records.ResultsHandedOver, at: float, batch: Batch) -> None:
        """Add the rows of a group of results of a slave. The row has the generation that had sent it the tasks."""
        sid, results, frames = record.sid, record.results, record.frames
        brought = record if isinstance(record, records.ResultsHandedOver) else None
        generation = self._generation if brought is None else brought.generation
        host = None if brought is None else brought.host  # the file may not know the slave
        head = head_of(results, frames)
        ends = len(results.failed), host, content_checksum(head, *frames)
        row = [self._next(), generation, at, sid, *columns_of(results), *ends]
        batch.groups.append(StoredGroup(row, head, frames, sum(map(len, frames)), brought))
        if results.failed:
            for task, attempt, *texts in failure_rows(results, frames, {} if brought else batch.calls):
                self._add(batch, "failures", at, task, attempt, sid, *texts, generation=generation)

    def _answered(self, record: records.TasksAnswered, at: float, batch: Batch) -> None:
        failed, why = {*record.results.failed}, "its result came from an earlier life of the master"
        if failed:
            for place, one in enumerate(_singles(record.tasks)):
                self._end([one], "failed" if place in failed else "finished", record.sid, why, at, batch)
        else:
            self._end(record.tasks, "finished", record.sid, why, at, batch)
        if record.sid is not None:
            self._losses(record.sid, record.tasks, (), at, batch)

    def _heard(self, sid: SlaveId, count: int, at: float) -> None:
        """A slave holds fewer tasks than before."""
        held = self._held.get(sid)
        if held is not None:
            held.count -= count
            held.since = at
            if held.count <= 0:
                del self._held[sid]

    def _returned(self, record: records.TasksReturned, at: float, batch: Batch) -> None:
        self._lost(record, at, batch)
        self._once(record.tasks, batch, may_have_run=False)

    def _due(self, record: records.TasksDue, _: float, batch: Batch) -> None:
        if record.not_started:
            self._once(record.tasks, batch, may_have_run=False)

    def _lost(self, record: records.TasksReturned | records.AttemptsEnded, at: float, batch: Batch) -> None:
        self._losses(record.sid, record.tasks, record.charges, at, batch)

    def _losses(
        self, sid: SlaveId, tasks: Sequence[TaskRange], charges: Sequence[Charge], at: float, batch: Batch
    ) -> None:
        """A slave ran one task only. So the time since its last results was lost once, and the first row has it."""
        held = self._held.get(sid)
        lost_s = 0.0 if held is None else max(0.0, at - held.since)
        for charge in charges:
            what = charge.cause.value, int(charge.is_charged)
            for each in tasks:
                where = charge.sid, each.first, each.count, each.attempt, each.name
                self._add(batch, "losses", at, *where, *what, lost_s, short(charge.reason))
                lost_s = 0.0
        if held is not None:
            self._heard(sid, sum(each.count for each in tasks), at if charges else held.since)

    def _given_up(self, record: records.TasksGivenUp, at: float, batch: Batch) -> None:
        for each in record.tasks:
            self._end([each], "unrunnable", record.sid or None, record.reason, at, batch)
            if record.used_up:
                self._add(batch, "once", each.first, each.count, 1, short(record.reason))
        if record.held:
            self._losses(record.sid, record.tasks, record.charges, at, batch)

    def _cancelled(self, record: records.TasksCancelled, at: float, batch: Batch) -> None:
        self._end(record.tasks, "cancelled", record.sid, record.when, at, batch)
        if record.sid is not None:
            self._losses(record.sid, record.tasks, (), at, batch)

    def _failed(self, record: records.TasksFailed, at: float, batch: Batch) -> None:
        self._end(record.tasks, "failed", None, record.cause or record.reason, at, batch)

    def _forbidden(self, record: records.TasksForbidden, at: float, batch: Batch) -> None:
        each, place = record.tasks, [len(batch.blob), len(record.keys)]
        batch.blob += record.keys
        policy = _text_of_policy(TaskPolicy(retry=not each.once))
        self._add(batch, "submissions", at, each.first, each.count, each.algorithm, policy, None, None, place)
        self._end([each], "unrunnable", None, record.reason, at, batch)

    def _end(
        self, tasks: Sequence[TaskRange], state: str, sid: SlaveId | None, reason: str, at: float, batch: Batch
    ) -> None:
        for each in tasks:
            self._add(batch, "ends", at, each.first, each.count, each.attempt, state, sid, short(reason))

    # ---- agents and slaves, and what is only shown to people ------------------------------------------------

    def _explained(self, record: records.LossesExplained, at: float, batch: Batch) -> None:
        change = "UPDATE losses SET cause = ?, reason = ? WHERE generation = ? AND sid = ? AND cause = 'network'"
        what = record.cause.value, short(record.reason), self._generation
        batch.changes += [(change, (*what, sid)) for sid in record.sids]
        self._event(record, at, batch)

    def _agent(self, record: records.AgentConnected, at: float, batch: Batch) -> None:
        who = record.agent, record.host, record.pid, record.job, record.address
        self._add(batch, "agents", at, *who, record.slaves, record.python, record.returns_s)

    def _agent_ended(self, record: records.AgentLost | records.AgentLeft, at: float, batch: Batch) -> None:
        change = "UPDATE agents SET ended = ?, reason = ? WHERE generation = ? AND agent = ?"
        batch.changes.append((change, (at, short(record.reason), self._generation, record.agent)))

    def _packages(self, record: records.PackagesCompared, _: float, batch: Batch) -> None:
        packages = json.dumps({"same": list(record.same), "different": list(record.different)})
        change = "UPDATE agents SET packages = ? WHERE generation = ? AND agent = ?"
        batch.changes.append((change, (packages, self._generation, record.agent)))

    def _slave(self, record: records.SlaveConnected, at: float, batch: Batch) -> None:
        self._add(batch, "slaves", at, record.sid, record.agent, record.kind.value)

    def _slave_ended(self, record: records.SlaveEnded, at: float, batch: Batch) -> None:
        words = record.words
        change = (
            "UPDATE slaves SET ended = ?, cause = ?, reason = ?, running = ?, peak_bytes = ?, last_words = ? "
            "WHERE generation = ? AND sid = ?"
        )
        last = shortened(words.shown(None), WORDS_CHARACTERS) if record.running else None
        what = at, record.cause.value, short(record.reason), short(record.running), words.peak_bytes, last
        batch.changes.append((change, (*what, self._generation, record.sid)))

    def _ended(self, record: records.Ended, at: float, batch: Batch) -> None:
        change = "UPDATE generations SET ended = ?, why = ? WHERE generation = ?"
        batch.changes.append((change, (at, record.why, self._generation)))
        self._event(record, at, batch)

    def _event(self, record: records.Record, at: float, batch: Batch) -> None:
        """Add what people are shown of a record."""
        if text := text_of(record):
            self._add(batch, "events", at, type(record).__name__, shortened(text, WORDS_CHARACTERS))


def _singles(tasks: Sequence[TaskRange]) -> Iterator[TaskRange]:
    """Each task alone."""
    for each in tasks:
        for first in range(each.first, each.first + each.count):
            yield replace(each, first=first, count=1)


def _continues(before: TaskRange, after: TaskRange) -> bool:
    return before.first + before.count == after.first and before.attempt == after.attempt


def _leave_out(record: records.Record, at: float, batch: Batch) -> None:
    """It is not stored."""


@lru_cache(maxsize=1000)
def _text_of_policy(policy: TaskPolicy) -> str | None:
    """The fields of a policy that are not the default, as JSON; None if all are."""
    if policy == DEFAULT_POLICY:
        return None
    names = TaskPolicy.__struct_fields__
    return json.dumps(
        {name: getattr(policy, name) for name in names if getattr(policy, name) != getattr(DEFAULT_POLICY, name)}
    )


# Large values are files beside the run database: FILE.values/DIGEST.
#
# A file has the frames of one group of results. Its name is the digest of its content, so equal values are stored once
# and damage is noticed. It is complete on the disk before a row names it.
#
# At a restart, each result whose file is missing, damaged or of another size does not count, and its task runs again.
# To find other damage, the files are read. This takes a second or two for each gigabyte, so only the newest
# `CHECKED_BYTES` are read: a crash of the machine damages what was written last. If an older file is found damaged
# later, when its value is asked for, it gets the suffix `.damaged` like the others. So the next restart computes its
# tasks again.


LARGE_BYTES = 256 * 1024
"""Values of this size and more are files. SQLite is as quick as a file system up to about this size."""

CHECKED_BYTES = 2 << 30
"""How many bytes of the newest files are read at a restart."""

DAMAGED = ".damaged"


class ValueDamaged(RunDatabaseError):
    """The content of a value's file is not what was written.

    Args:
        name: the name of the file.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class ValueFiles:
    """The large values of one run database.

    Args:
        database: the run database.
    """

    def __init__(self, database: Path) -> None:
        self.folder = database.with_name(f"{database.name}.values")

    def write(self, frames: Sequence[Buffer]) -> str:
        """Write a value, and wait until it is on the disk. Return the name of its file. `sync` follows.

        Raises:
            OSError: it cannot be written.
        """
        name = _digest(*frames)
        path = self.folder / name
        if not path.exists():
            self.folder.mkdir(0o700, exist_ok=True)
            beside = self.folder / f"{name}.part"
            with beside.open("wb") as file:
                file.writelines(frames)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        return name

    def sync(self) -> None:
        """Make sure that the names of new files are on the disk."""
        for folder in (self.folder, self.folder.parent):
            sync_folder(folder)

    def read(self, name: str) -> bytes:
        """Return a value. The caller compares it with a checksum.

        Raises:
            RunDatabaseError: the file is missing or cannot be read.
        """
        path = self.folder / name
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise RunDatabaseError(
                f"a value of the run database is missing: {path}. Put it back; or start again, and its tasks run again"
            ) from error
        except OSError as error:
            raise self.damaged(name, f" ({error.strerror})") from error
        return content

    def damaged(self, name: str, why: str = "") -> ValueDamaged:
        """Return the error for a damaged file."""
        path = self.folder / name
        return ValueDamaged(
            f"a value of the run database is damaged: {path}{why}. Start again, and its tasks run again", name
        )

    def usable(self) -> dict[str, int]:
        """Return the sizes of the files that can be used, by name. Damaged files among the newest are set aside.

        The caller has made sure that nobody else writes the run database.
        """
        found = {name: (self.folder / name).stat() for name in self.names() if "." not in name}
        usable = {name: each.st_size for name, each in found.items()}
        size = 0
        for name in sorted(found, key=lambda name: found[name].st_mtime_ns, reverse=True):
            if size > CHECKED_BYTES:
                break
            size += found[name].st_size
            if not _is_right(self.folder / name):
                del usable[name]
                self.set_aside(name)
        return usable

    def set_aside(self, name: str) -> None:
        """Rename a damaged file, so that its value does not count any more and can be written again."""
        path = self.folder / name
        path.replace(f"{path}{DAMAGED}")

    def names(self) -> Iterator[str]:
        """Yield the name of each file."""
        if self.folder.exists():
            yield from (each.name for each in self.folder.iterdir())

    def remove(self, name: str) -> int:
        """Remove a file; return its size."""
        path = self.folder / name
        size = path.stat().st_size
        path.unlink()
        return size


def _is_right(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, _new_digest).hexdigest() == path.name
    except OSError:
        return False


def _new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=20)


def _digest(*frames: Buffer) -> str:
    digest = _new_digest()
    for frame in frames:
        digest.update(frame)
    return digest.hexdigest()
