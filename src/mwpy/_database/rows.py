"""Which rows of which tables a record becomes.

Some records are left out: changes of a slave between idle and busy, tasks that were taken back
before they started, states that tasks leave for their next attempts, and figures that follow from other records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mwpy._database.batch import USED_UP, Batch, Maker, RowNumbers, StoredGroup, short
from mwpy._database.failed import failure_rows
from mwpy._database.member_rows import MemberRows
from mwpy._database.packing import columns_of, each_attempt, pack
from mwpy._values import records
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.messages import Results
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import Charge, TaskRange

__all__ = ["Rows"]

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


class ResultRows(Struct, eq=False):
    """Turns groups of results into rows."""

    numbers: RowNumbers

    def add(
        self,
        sid: SlaveId,
        results: Results,
        frames: Sequence[Buffer],
        at: float,
        batch: Batch,
        *,
        brought: records.ResultsHandedOver | None = None,
    ) -> None:
        """Add the rows of a group of results of a slave."""
        packed, columns, failed = pack(results, frames), columns_of(results), len(results.failed)
        generation = self.numbers.generation if brought is None else brought.generation
        row = self.numbers.next()
        batch.groups.append(StoredGroup(row, at, sid, columns, failed, packed, generation, brought))
        if results.failed:
            for task, attempt, *texts in failure_rows(results, frames, {} if brought else batch.calls):
                self.numbers.add(batch, "failures", at, task, attempt, sid, *texts, generation=generation)

    def handed_over(self, record: records.ResultsHandedOver, at: float, batch: Batch) -> None:
        """Add the rows of results that an agent has brought."""
        self.add(record.sid, record.results, record.frames, at, batch, brought=record)


class TaskRows:
    """Turns records about tasks into rows."""

    def __init__(self, numbers: RowNumbers) -> None:
        self.numbers = numbers
        self.results = ResultRows(numbers)
        self._held: dict[str, _Held] = {}
        """Slaves with tasks."""
        self.makers: dict[type, Maker] = {
            records.AlgorithmDefined: self._algorithm,
            records.TasksSubmitted: self._submitted,
            records.ResultsReused: self._reused,
            records.TasksAllocated: self._allocated,
            records.AttemptsStarted: self._allocated,
            records.ResultsReceived: self._received,
            records.ResultsHandedOver: self.results.handed_over,
            records.TasksAnswered: self._answered,
            records.TasksReturned: self._returned,
            records.TasksDue: self._due,
            records.AttemptsEnded: self._lost,
            records.TasksGivenUp: self._given_up,
            records.TasksCancelled: self._cancelled,
            records.TasksFailed: self._failed,
            records.TasksForbidden: self._forbidden,
        }

    def _algorithm(self, record: records.AlgorithmDefined, _: float, batch: Batch) -> None:
        made = record.definition
        code, parts = record.code, json.dumps(record.parts)
        self.numbers.add(batch, "algorithms", made.number, made.name, made.reference, code, parts)

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
                and bool(last[7][1]) == bool(size)
            ):
                last[4] += each.count
                last[7][1] += size
                continue
            self.numbers.add(
                batch, "submissions", at, each.first, each.count, each.algorithm, _text_of_policy(each.policy)
            )
            last, policy = rows[-1], each.policy
            last.append([start, size])

    def _reused(self, record: records.ResultsReused, at: float, batch: Batch) -> None:
        for each in record.tasks:
            place = [len(batch.blob), len(each.keys)]
            batch.blob += each.keys
            failed = json.dumps(list(each.failed)) if each.failed else None
            answers = json.dumps([*zip(each.rows, each.places, strict=True)], separators=(",", ":"))
            self.numbers.add(batch, "reused", at, each.first, each.count, each.algorithm, failed, answers, place)

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
            self.numbers.add(batch, "allocations", at, sid, first.first, count, first.attempt, None, reason)
        else:
            attempts = each_attempt((each.first, each.count, each.attempt) for each in tasks)
            self.numbers.add(batch, "allocations", at, sid, 0, count, first.attempt, attempts, reason)
        self._once(tasks, batch, may_have_run=True)

    def _once(self, tasks: Sequence[TaskRange], batch: Batch, *, may_have_run: bool) -> None:
        """Tasks that must not run twice were sent to a slave, or came back. A later generation must know this."""
        for each in tasks:
            if each.once:
                self.numbers.add(batch, "once", each.first, each.count, int(may_have_run))

    def _received(self, record: records.ResultsReceived, at: float, batch: Batch) -> None:
        self.results.add(record.sid, record.results, record.frames, at, batch)
        self._heard(record.sid, sum(record.results.counts), at)

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
                self.numbers.add(batch, "losses", at, *where, *what, lost_s, short(charge.reason))
                lost_s = 0.0
        if held is not None:
            self._heard(sid, sum(each.count for each in tasks), at if charges else held.since)

    def _given_up(self, record: records.TasksGivenUp, at: float, batch: Batch) -> None:
        for each in record.tasks:
            self._end([each], "unrunnable", record.sid or None, record.reason, at, batch)
            if record.used_up:
                self.numbers.add(batch, "once", each.first, each.count, USED_UP)
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
        self.numbers.add(batch, "submissions", at, each.first, each.count, each.algorithm, policy, place)
        self._end([each], "unrunnable", None, record.reason, at, batch)

    def _end(
        self, tasks: Sequence[TaskRange], state: str, sid: SlaveId | None, reason: str, at: float, batch: Batch
    ) -> None:
        for each in tasks:
            self.numbers.add(batch, "ends", at, each.first, each.count, each.attempt, state, sid, short(reason))


class Rows:
    """Turns all records into rows."""

    def __init__(self, numbers: RowNumbers) -> None:
        self.numbers = numbers
        self._members = MemberRows(numbers)
        self._makers: dict[type, Maker] = {
            **TaskRows(numbers).makers,
            **self._members.makers,
            **dict.fromkeys(_LEFT_OUT, _leave_out),
        }

    def add(self, record: records.Record, at: float, batch: Batch) -> None:
        """Add the rows of a record that was stated at the Unix time `at`."""
        self._makers.get(type(record), self._members.event)(record, at, batch)


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
