"""Which rows a record becomes, how they are packed, and the files that hold large values.

A record that has no rows of its own is an event if a person wants to see it, as in the audit file, and else it is left
out. Of the totals of an algorithm on a host, only the memory is stored: all else follows from other records.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from reprlib import Repr
from typing import Any

from msgspec import field
from msgspec.structs import astuple

from mwpy._database.schema import RESTART_KINDS, row_checksum
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
from mwpy.audit import is_event, text_of

TEXT_CHARACTERS = 2000
"""The longest message or reason that is kept, in characters. Of a longer one, the middle is left out."""

TRACEBACK_CHARACTERS = 10_000
"""The longest traceback that is kept."""

WORDS_CHARACTERS = 10_000
"""The longest last words of a slave that are kept, in characters."""

ARGUMENTS_CHARACTERS = 1000
"""The longest text with the arguments of a task that is kept."""

_shown = Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = 200
_shown.maxlist = _shown.maxtuple = _shown.maxdict = 20


class StoredResults(Results, frozen=True, array_like=True):
    """Results as the `data` of a row has them: without the names of the fields."""

    sizes: list[int] = field(default_factory=list)
    """The size of each frame."""
    checksum: int = 0
    """The checksum of all frames."""


read_results = decoder(StoredResults)


def frames_checksum(frames: Iterable[Buffer]) -> int:
    """Return the checksum of the frames of a group of results."""
    checksum = 0
    for frame in frames:
        checksum = zlib.crc32(frame, checksum)
    return checksum


class Rows:
    """Turns records into the rows of a commit, and numbers the rows.

    Args:
        generation: the number of this life of the master.
        seq: the number of the last row that is in the file.
        files: gets large values at once.
    """

    def __init__(self, generation: int, seq: int, files: ValueFiles) -> None:
        self._generation = generation
        self._seq = seq
        self._files = files
        self._at = 0.0
        """When the present record was stated, in Unix seconds."""
        self._charge: Charge | None = None
        """The last one. Several records may have it."""
        self.calls: Mapping[int, bytes] = {}
        """The encoded arguments of tasks that failed, by id, as far as they are known."""
        self.has_ended = False
        """Whether the master has said why it ends."""
        self.begin()

    def begin(self) -> None:
        """Begin the next commit."""
        self.rows: list[list[Any]] = []
        """New rows."""
        self.changes: list[tuple[str, str, int, str | None, str | None]] = []
        """Changes of the bodies of earlier rows. They follow after all new rows."""
        self.brought: list[tuple[records.ResultsHandedOver, int]] = []
        """Results that an agent has brought from a former generation, with their rows."""
        self.once = False
        """Whether tasks leave after the commit that must not run twice."""

    def add(self, record: records.Record, at: float) -> None:
        """Add the rows of a record that was stated at the Unix time `at`."""
        self._at = at
        match record:
            case records.TasksSubmitted(submitted):
                for new in submitted:
                    body = {"algorithm": new.algorithm, **_shown_policy(new.policy)}
                    self._add("submissions", body, tasks=(new.first, new.count, None), data=new.keys)
            case records.TasksAllocated(sid, tasks):
                for sent in tasks:
                    self._add("allocations", {}, who=sid, tasks=(sent.first, sent.count, sent.attempt))
                self._once(tasks, may_have_run=True)
            case records.ResultsReceived(sid, results, frames):
                self._results(sid, results, frames)
            case records.ResultsReused(reused):
                for each in reused:
                    answers = [*zip(each.rows, each.places, strict=True)]
                    more = {"failed": each.failed} if each.failed else {}
                    body = {"algorithm": each.algorithm, **more, "answers": answers}
                    self._add("submissions", body, tasks=(each.first, each.count, None), data=each.keys)
            case records.AlgorithmDefined(made, code=code, parts=parts):
                body = {"name": made.name, "reference": made.reference, "code": code, "parts": parts}
                self._add("algorithms", body, tasks=(made.number, None, None))
            case _:
                self._add_rare(record)

    def _add_rare(self, record: records.Record) -> None:
        """Add the rows of a record of which there are few in a commit."""
        match record:
            case records.ResultsHandedOver(_, host, generation, sid, results, frames):
                self.brought.append((record, self._results(sid, results, frames, host, generation)))
            case records.TasksAnswered(sid, tasks, results):
                self._answered(sid, tasks, results)
            case records.TasksReturned(_, tasks, _, charges):
                self._losses(tasks, charges)
                self._once(tasks, may_have_run=False)
            case records.TasksDue(tasks, not_started):
                if not_started:
                    self._once(tasks, may_have_run=False)
            case records.TasksGivenUp():
                self._given_up(record)
            case records.TasksCancelled(sid, tasks, when):
                self._ends(tasks, "cancelled", sid, when)
            case records.TasksFailed(tasks):
                self._ends(tasks, "failed", None, record.cause or record.reason)
            case _:
                self._add_shown(record)

    def _add_shown(self, record: records.Record) -> None:
        """Add the rows of a record about agents or slaves, or of one that is only shown to people."""
        match record:
            case records.AgentConnected(agent, address, host, pid, job, slaves, python, _, returns_s, offers):
                body = {"host": host, "pid": pid, "job": job, "address": address, "slaves": slaves, "python": python}
                self._add("agents", {**body, "returns_s": returns_s, "offers": offers.amounts}, who=agent)
            case records.OtherValues(number, code, names):
                self._add("others", {"code": code, "names": names}, tasks=(number, None, None))
            case records.AgentLost(agent, reason) | records.AgentLeft(agent, reason):
                self._change("agents", agent, {"ended": self._at, "reason": short(reason)})
            case records.PackagesCompared(agent, same, different):
                self._change("agents", agent, {"packages": {"same": same, "different": different}})
            case records.SlaveConnected(sid, agent, _, kind):
                self._add("slaves", {"agent": agent, "kind": kind.value}, who=sid)
            case records.SlaveEnded(sid, cause, reason, running, words):
                body = {"ended": self._at, "cause": cause.value, "reason": short(reason), "running": short(running)}
                last = {"last_words": shortened(words.shown(None), WORDS_CHARACTERS)} if running else {}
                self._change("slaves", sid, {**body, "peak_bytes": words.peak_bytes, **last})
            case records.LossesExplained(_, sids, cause, reason):
                for sid in sids:
                    self._change("losses", sid, {"cause": cause.value, "reason": short(reason)}, "network")
                self._event(record)
            case records.Total(algorithm, host, memory_used=used):
                if used:
                    self._add("peaks", {"algorithm": algorithm, "host": host, "bytes": used})
            case records.Ended(why):
                self.end(self._at, {"why": why})
                self._event(record)
            case _ if is_event(record):
                self._event(record)

    def start(self, at: float, body: Mapping[str, object]) -> None:
        """This life of the master begins."""
        self._at = at
        self._add("generations", body)

    def end(self, at: float, more: Mapping[str, object]) -> None:
        """This life of the master ends."""
        self.has_ended = True
        self._change("generations", None, {"ended": at, **more})

    # ---- tasks ----------------------------------------------------------------------------------------------

    def _once(self, tasks: Sequence[TaskRange], *, may_have_run: bool) -> None:
        """Tasks that must not run twice were sent to a slave, or came back. A later generation must know this."""
        for each in tasks:
            if each.once:
                self.once = True
                self._add("once", {"may_have_run": int(may_have_run)}, tasks=(each.first, each.count, None))

    def _results(
        self, sid: SlaveId, results: Results, frames: Sequence[Buffer], host: str = "", generation: int | None = None
    ) -> int:
        """Add the rows of a group of results of a slave. Return the number of the row with the results.

        Args:
            host: the machine of the slave, if the file may not know the slave.
            generation: the one that had sent the tasks to the slave; None for the present one.
        """
        sizes = [len(frame) for frame in frames]
        head = encode(StoredResults(*astuple(results), sizes, frames_checksum(frames)))  # type: ignore[call-arg]
        tasks, more = _columns_of(results)
        body: dict[str, object] = {"total_s": sum(results.seconds), "failed": len(results.failed), **more}
        if host:
            body["host"] = host
        inside: Sequence[Buffer] | None = frames
        if sum(sizes) >= LARGE_BYTES:
            name, inside = str(self._seq + 1), None
            body["file"] = name
            self._files.write(name, frames)
        row = self._add("results", body, who=sid, tasks=tasks, generation=generation, data=head, frames=inside)
        if results.failed:
            for task, attempt, texts in failures(results, frames, {} if generation else self.calls):
                self._add("failures", texts, who=sid, tasks=(task, 1, attempt), generation=generation)
        return row

    def _answered(self, sid: SlaveId | None, tasks: Sequence[TaskRange], results: Results) -> None:
        failed, place, why = {*results.failed}, 0, "its result came from an earlier life of the master"
        for each in tasks:
            for first in range(each.first, each.first + each.count):
                state = "failed" if place in failed else "finished"
                self._end(state, sid, why, (first, 1, each.attempt))
                place += 1

    def _losses(self, tasks: Sequence[TaskRange], charges: Sequence[Charge]) -> None:
        """Add lost attempts. A slave ran one task only, so its time was lost once: the first row has it."""
        for charge in charges:
            lost_s, self._charge = 0.0 if charge is self._charge else charge.lost_s, charge
            body = {"cause": charge.cause.value, "charged": int(charge.is_charged), "reason": short(charge.reason)}
            for each in tasks:
                what = {"algorithm": each.name, **body, "lost_s": lost_s}
                self._add("losses", what, who=charge.sid, tasks=(each.first, each.count, each.attempt))
                lost_s = 0.0

    def _given_up(self, record: records.TasksGivenUp) -> None:
        reason = short(record.reason)
        self._ends(record.tasks, "unrunnable", record.sid or None, reason)
        if record.used_up:
            for each in record.tasks:
                self._add("once", {"may_have_run": 1, "reason": reason}, tasks=(each.first, each.count, None))
        if record.held:
            self._losses(record.tasks, record.charges)

    def _ends(self, tasks: Sequence[TaskRange], state: str, sid: SlaveId | None, reason: str) -> None:
        for each in tasks:
            self._end(state, sid, reason, (each.first, each.count, each.attempt))

    def _end(self, state: str, sid: SlaveId | None, reason: str, tasks: tuple[int, int, int]) -> None:
        self._add("ends", {"state": state, "reason": short(reason)}, who=sid, tasks=tasks)

    # ---- rows -----------------------------------------------------------------------------------------------

    def _event(self, record: records.Record) -> None:
        """Add what people are shown of a record."""
        text = shortened(text_of(record), WORDS_CHARACTERS)
        self._add("events", {"kind": type(record).__name__, "text": text})

    def _add(
        self,
        kind: str,
        body: Mapping[str, object],
        *,
        who: str | None = None,
        tasks: tuple[int | None, int | None, int | None] = (None, None, None),
        generation: int | None = None,
        data: bytes = b"",
        frames: Sequence[Buffer] | None = None,
    ) -> int:
        """Add a row, and return its number.

        Args:
            tasks: the first id, the number and the attempt of the tasks that it is about.
        """
        self._seq += 1
        generation = generation or self._generation
        row = [self._seq, generation, kind, who, *tasks, json_text(body), data or None]
        checksum = row_checksum(row) if kind in RESTART_KINDS else None
        self.rows.append([*row, checksum, self._at, None if frames is None else b"".join(frames)])
        return self._seq

    def _change(self, kind: str, who: str | None, body: Mapping[str, object], cause: str | None = None) -> None:
        """Add to the body of a row of this generation, or change it.

        Args:
            cause: only if the row has this cause.
        """
        self.changes.append((json_text(body), kind, self._generation, who, cause))


def json_text(value: object) -> str:
    """Return a value as JSON."""
    try:
        return encode_json(value).decode()
    except UnicodeEncodeError:  # half a surrogate pair, for example in the name of a file
        return json.dumps(value)


def short(text: str) -> str:
    """Return a text of limited length without half a surrogate pair."""
    return shortened(text, TEXT_CHARACTERS).encode(errors="replace").decode()


def _columns_of(results: Results) -> tuple[tuple[int, int, int], dict[str, object]]:
    """The first task, the count and the attempt of a row with results, and what more the views unpack."""
    firsts, counts, attempts, seconds = results.tasks, results.counts, results.attempts, results.seconds
    count = sum(counts)
    if len(firsts) == 1:
        return (firsts[0], count, attempts[0]), {"seconds": seconds} if len(seconds) == count else {}
    tasks = [*each_task(results)]
    known = seconds if len(seconds) == count else repeat(sum(seconds) / max(1, count))
    more: dict[str, object] = {"seconds": {task: s for (task, _), s in zip(tasks, known, strict=False)}}
    if len({*attempts}) > 1:
        more["attempts"] = dict(tasks)
    return (0, count, attempts[0] if attempts else 0), more


@lru_cache(maxsize=1000)
def _shown_policy(policy: TaskPolicy) -> dict[str, object]:
    """What a body has of a policy: the fields that are not the default; nothing if all are."""
    names = [name for name in TaskPolicy.__struct_fields__ if getattr(policy, name) != getattr(DEFAULT_POLICY, name)]
    return {"policy": {name: getattr(policy, name) for name in names}} if names else {}


def failures(
    group: Results, frames: Sequence[Buffer], calls: Mapping[int, bytes]
) -> Iterator[tuple[int, int, dict[str, object]]]:
    """Yield the task, the attempt, and the type, message, traceback and arguments of each failure in a group.

    Args:
        calls: the encoded arguments of tasks, by id, as far as they are known.
    """
    raw, named = split_list(frames[0]), list(each_task(group))
    for place in group.failed:
        task, attempt = named[place]
        failure = _read(raw[place])
        texts: dict[str, object] = {
            "type": failure.type_name,
            "message": shortened(failure.text, TEXT_CHARACTERS),
            "traceback": shortened(failure.traceback, TRACEBACK_CHARACTERS),
        }
        if (arguments := _arguments(calls.get(task))) is not None:
            texts["arguments"] = arguments
        yield task, attempt, texts


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


# Large values are files beside the run database: FILE.values/ROW.
#
# A file has the frames of one group of results, whose row has their sizes and checksum. It is complete on the disk
# before the row names it. If the row of a file is lost, because the master was killed, another row has its number and
# replaces the file.
#
# At a restart, each result whose file is missing or of another size does not count, and its task runs again. To find
# other damage, values are read. This takes a second or two for each gigabyte, so only the newest `CHECKED_BYTES` are
# read: a crash of the machine damages what was written last. If an older value is found damaged later, when it is asked
# for, its row is marked. So the next restart computes its tasks again.


LARGE_BYTES = 256 * 1024
"""Values of this size and more are files. SQLite is as quick as a file system up to about this size."""

CHECKED_BYTES = 2 << 30
"""How many bytes of the newest values are read at a restart, in the database and in files."""


class ValueFiles:
    """The large values of one run database.

    Args:
        database: the run database.
    """

    def __init__(self, database: Path) -> None:
        self.folder = database.with_name(f"{database.name}.values")
        self._is_synced = True

    def write(self, name: str, frames: Sequence[Buffer]) -> None:
        """Write a value, and wait until it is on the disk. `sync` follows.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(0o700, exist_ok=True)
        path = self.folder / name
        path.unlink(missing_ok=True)
        with path.open("wb") as file:
            file.writelines(frames)
            file.flush()
            os.fsync(file.fileno())
        self._is_synced = False

    def sync(self) -> None:
        """Make sure that the names of new files are on the disk."""
        if not self._is_synced:
            for folder in (self.folder, self.folder.parent):
                sync_folder(folder)
            self._is_synced = True

    def read(self, name: str) -> bytes:
        """Return a value; nothing if the file cannot be read. The caller compares it with a checksum.

        Raises:
            RunDatabaseError: the file is missing.
        """
        path = self.folder / name
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise RunDatabaseError(
                f"a value of the run database is missing: {path}. Put it back; or start again, and its tasks run again"
            ) from error
        except OSError:
            return b""

    def sizes(self) -> dict[str, int]:
        """Return the size of each file, by name."""
        return {each.name: each.stat().st_size for each in self.folder.iterdir()} if self.folder.exists() else {}

    def is_right(self, name: str, checksum: int) -> bool:
        """Whether a file can be read, and has this checksum."""
        try:
            with (self.folder / name).open("rb") as file:
                return frames_checksum(iter(lambda: file.read(1 << 20), b"")) == checksum
        except OSError:
            return False
