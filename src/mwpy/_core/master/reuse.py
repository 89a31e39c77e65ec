"""Answers tasks from what former generations have stored.

`apply` takes the entries of the run database, in their order. After that, `without_answered` divides new tasks into
those that were answered before and the others. An answered task ends at once: its record says where its result is, and
its result has the slave, the host and the compute time of its attempt. The value stays in the file until it is needed.

A task is the same as one of a former generation if its algorithm has the same name and code, its key is the same, and
it has the same position among the equal calls of its generation (see `occurrences.py`). `known_codes.py` decides when
other code counts, too. A task that must not run twice ends as unrunnable if a former generation sent it to a slave, and
the file has no answer of it. So does a task whose attempts are used up. Nothing is remembered about tasks that are new.
Each occurrence takes 18 bytes here beside those of its key, and each row of the file takes 20 bytes.

An agent can bring results of a former generation while this one runs (see `succession.py`). So the last generations are
kept, with 4 bytes for each task, and each task of this generation that waits for its answer takes 12 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

from msgspec import Struct, field

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.awaited import Awaited, is_holdable
from mwpy._core.master.former import FormerGeneration
from mwpy._core.master.handback import HandBack
from mwpy._core.master.known_codes import Compare, KnownCode, KnownCodes
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.earlier import (
    KEY_BYTES,
    Earlier,
    EarlierAlgorithm,
    EarlierAnswers,
    EarlierSent,
    EarlierTasks,
    EarlierUsedUp,
)
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.keys import NO_KEY
from mwpy._values.record_parts import ReusedTasks
from mwpy._values.stored import StoredAt
from mwpy._values.task import Origin, stored_result

__all__ = ["GENERATIONS_KEPT", "Answers", "Reuse"]

MOST_ATTEMPTS = 0x3FFF
"""More attempts of a task count as this many."""

MISSES = 20
"""If no former generation submitted the first tasks of an algorithm, this many, although the file has answers of it, a
notice says so: an argument is different at each start. Later tasks may be new for good reasons. The manual names this
number."""

GENERATIONS_KEPT = 3
"""The results of this number of former generations can be brought by agents. Agents miss a generation only if it ended
within seconds."""

MISSED = (
    "none of the first {misses} tasks of {name} has an answer in the run database, although it has answers of {count} "
    "tasks of {name} with the same code: their arguments are different. If they contain what changes at each "
    "start, such as a time, a temporary path or a random number, give the tasks a key (key=)"
)


FORBIDDEN = (
    "it was sent to a slave before the master was started again, the run database has no result of it, and its policy "
    "says retry=False. Find out what it has done. --mw-rerun failed runs it again"
)

USED_UP = "before the master was started again, {reason}. --mw-rerun failed runs it again"


class Answers(Struct, eq=False):
    """The answers of occurrences, by number."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    """The names of the rows of the file that have answers."""
    walls: array[float] = field(default_factory=lambda: array("d"))
    """For each row: when its results arrived."""
    origins: array[int] = field(default_factory=lambda: array("I"))
    """For each row: the place of its slave in `slaves`."""
    slaves: dict[tuple[SlaveId, str], int] = field(default_factory=dict)
    """The slaves, each with its host, and their numbers."""
    _row_of: array[int] = field(default_factory=lambda: array("I"))
    """For each occurrence: 1 more than the place of its row in `rows`; 0 if it has no answer."""
    _places: array[int] = field(default_factory=lambda: array("I"))
    _seconds: array[float] = field(default_factory=lambda: array("d"))
    _ends: array[int] = field(default_factory=lambda: array("H"))
    """For each occurrence: its attempts times 2, and 1 more if it failed. Without an answer: 1 if it may not run again.
    """
    used_up: dict[int, str] = field(default_factory=dict)
    """The occurrences without an answer whose attempts are used up, and why they became unrunnable."""

    def extend(self, count: int) -> None:
        """There are occurrences up to this number, the last ones without an answer."""
        more = count - len(self._row_of)
        for column in (self._row_of, self._places, self._seconds, self._ends):
            column.frombytes(bytes(more * column.itemsize))

    def answer(self, earlier: EarlierAnswers, numbers: Sequence[int]) -> None:
        """Results are in a row. A later answer of an occurrence replaces an earlier one.

        Args:
            numbers: the occurrence of each result; -1 for a task that is not known.
        """
        results, count = earlier.results, len(numbers)
        self.rows.append(earlier.row)
        self.walls.append(earlier.wall)
        self.origins.append(self.slaves.setdefault((earlier.sid, earlier.host), len(self.slaves)))
        seconds = results.seconds if len(results.seconds) == count else [results.seconds[0] / count] * count
        ends: list[int] = []
        for attempt, own in zip(results.attempts, results.counts, strict=True):
            ends += [min(attempt, MOST_ATTEMPTS) * 2] * own
        for place in results.failed:
            ends[place] += 1
        row, first = len(self.rows), numbers[0]
        if first >= 0 and numbers == [*range(first, first + count)]:  # the usual case, in a tenth of the time
            self._row_of[first : first + count] = array("I", [row]) * count
            self._places[first : first + count] = array("I", range(count))
            self._seconds[first : first + count] = array("d", seconds)
            self._ends[first : first + count] = array("H", ends)
            return
        for place, number in enumerate(numbers):
            if number >= 0:
                self._row_of[number], self._places[number] = row, place
                self._seconds[number], self._ends[number] = seconds[place], ends[place]

    def of(self, number: int) -> tuple[int, int, bool] | None:
        """The place of the row of an answer in `rows`, its place in the row, and whether it is a failure; None if there
        is no answer."""
        row = self._row_of[number]
        return (row - 1, self._places[number], bool(self._ends[number] & 1)) if row else None

    def set_sent(self, number: int, *, may_have_run: bool) -> None:
        """A task that must not run twice was sent to a slave, or came back before it started."""
        if not self._row_of[number]:
            self._ends[number] = may_have_run
            self.used_up.pop(number, None)

    def may_have_run(self, number: int) -> bool:
        """Whether an occurrence without an answer was sent to a slave although it must not run twice."""
        return not self._row_of[number] and bool(self._ends[number])

    def times(self, number: int) -> tuple[float, int]:
        """The compute time of an answer, in seconds, and the number of its attempts."""
        return self._seconds[number], self._ends[number] >> 1


class Reuse:
    """Ends tasks with stored answers.

    Args:
        state: what all parts share.
        read: reads a stored result, in any thread: by the name of its row and its place there.
        rerun_failed: whether tasks run again that failed in former generations.
        any_code: whether answers count that other code of the algorithm has computed.
        changes: says in what the parts of two codes differ, in sentences.
        captured: says, in the same way, in what the values differ that two codes have captured.
    """

    def __init__(
        self,
        state: MasterState,
        read: Callable[[int, int], tuple[Any, Sequence[Any]]],
        changes: Compare,
        captured: Compare,
        rerun_failed: bool = False,
        any_code: bool = False,
    ) -> None:
        self.state = state
        self.read = read
        self.rerun_failed = rerun_failed
        self.answers = Answers()
        self.names: Mapping[str, int] = {}
        """The numbers of the former generations, by their names."""
        self._hand_back = HandBack(state)
        self.awaited = Awaited(state, FORBIDDEN, rerun_failed)
        self._generation = 0
        """The generation that is read, or this one."""
        self._codes = KnownCodes(state, changes, captured, any_code)
        self._former: dict[int, FormerGeneration] = {}
        """The generation that is read, and the last ones before it, by number."""
        self._chosen: dict[int, KnownCode | None] = {}
        """For each algorithm of this generation: the code whose answers count."""
        self._waiting: list[EarlierTasks] = []
        """Tasks of the generation that is read, since its last answer."""
        self._task_of: array[int] = array("q")
        """For each occurrence: the task of this generation that has taken it, if it had no answer then; else 0. It is
        empty if there is no such task."""
        self._count = 0
        """How many occurrences there are."""

    # ---- reading what former generations left --------------------------------------------------------------

    def apply(self, entry: Earlier) -> None:
        """Take the next entry of the run database."""
        if entry.generation > self._generation:
            self._begin(entry.generation)
        match entry:
            case EarlierAlgorithm():
                self._former[entry.generation].define(entry)
            case EarlierTasks():
                self._waiting.append(entry)
            case EarlierSent():
                self._add_waiting()
                self._send(entry)
            case EarlierUsedUp():
                self._add_waiting()
                reason = entry.reason or "it lost all attempts that its policy allows by its own fault"
                numbers = self._former[entry.generation].numbers(entry.first, entry.count)
                self.answers.used_up.update((number, reason) for number in numbers if number >= 0)
            case _:
                self._add_waiting()
                self.answer(entry)

    @property
    def answered(self) -> int:
        """How many answers were read; a task that was answered in several generations counts several times."""
        return self._codes.answered

    def begin(self) -> None:
        """All entries were read. This generation begins."""
        self._begin(self._generation + 1)

    def _begin(self, generation: int) -> None:
        self._add_waiting()
        self._generation = generation
        self._former[generation] = FormerGeneration()
        for old in [*self._former][: -GENERATIONS_KEPT - 1]:
            del self._former[old]
        self._codes.begin(generation)

    def _add_waiting(self) -> None:
        """Add tasks in the order of their submission. Those that were answered at once were recorded before the others
        that were submitted with them."""
        for entry in sorted(self._waiting, key=attrgetter("first")):
            self._add(entry)
        self._waiting.clear()

    def _add(self, entry: EarlierTasks) -> None:
        former = self._former[entry.generation]
        algorithm = former.algorithm(entry.algorithm)
        if not (algorithm.code or self._codes.any_code) or len(entry.keys) != entry.count * KEY_BYTES:
            former.add(entry, repeat(-1, entry.count))
            return
        occurrences = self._codes.of(algorithm.name, algorithm.code).occurrences
        numbers = occurrences.take_or_add(entry.keys, self._count)
        former.add(entry, numbers)
        self._count = max(self._count, max(numbers) + 1)
        self.answers.extend(self._count)
        if entry.reused and self._codes.any_code and any(self.answers.of(number) is None for number in numbers):
            self._codes.adopt(algorithm)

    def _send(self, entry: EarlierSent) -> None:
        for number in self._former[entry.generation].numbers(entry.first, entry.count):
            if number >= 0:
                self.answers.set_sent(number, may_have_run=entry.may_have_run)

    def answer(self, entry: EarlierAnswers) -> list[int]:
        """Results of a former generation are in the file. Return the occurrence of each; -1 for a task that is not
        known.

        Results that were brought to a later generation answer only what had no answer: if that generation had computed
        the task itself, its algorithm has got this result.
        """
        former, results, numbers = self._former.get(entry.generation), entry.results, list[int]()
        if former is None:  # too many generations have been since then
            return numbers
        for first, count in zip(results.tasks, results.counts, strict=True):
            numbers += former.numbers(first, count)
            for algorithm, own in former.by_algorithm(first, count):
                self._codes.answer(algorithm, own)
        if entry.generation < self._generation:
            numbers = [-1 if number < 0 or self.answers.of(number) else number for number in numbers]
        self.answers.answer(entry, numbers)
        return numbers

    # ---- results that agents bring from former generations -----------------------------------------------------

    @property
    def last_generation(self) -> int:
        """The number of the generation before this one."""
        return self._generation - 1

    def former(self, name: str) -> tuple[int, FormerGeneration] | None:
        """The former generation with this name, and its number; None if it is not known, or was too long ago."""
        number = self.names.get(name)
        found = None if number is None else self._former.get(number)
        return None if number is None or found is None else (number, found)

    def waiting(self, numbers: Iterable[int]) -> dict[int, int]:
        """Which tasks of this generation have taken these occurrences without an answer: the occurrence of each task.
        Some of them may have ended."""
        return {task: number for number in numbers if self._task_of and (task := self._task_of[number])}

    def counts(self, number: int) -> bool:
        """Whether an occurrence has an answer that ends a task."""
        answer = self.answers.of(number)
        return answer is not None and not (answer[2] and self.rerun_failed)

    # ---- answering new tasks -------------------------------------------------------------------------------

    def without_answered(self, spans: Sequence[Span]) -> list[Span]:
        """End those tasks that have stored answers. Return the others."""
        others: list[Span] = []
        reused: list[ReusedTasks] = []
        for span in spans:
            if span.algorithm.number not in self._chosen:
                self._chosen[span.algorithm.number] = self._codes.choose(span.algorithm.record)
            known = self._chosen[span.algorithm.number]
            if known is None or not span.keys:
                others.append(span)
            else:
                self._divide(span, known, others, reused)
        if reused:
            self.state.record(records.ResultsReused(reused))
        return others

    def _divide(self, span: Span, known: KnownCode, others: list[Span], reused: list[ReusedTasks]) -> None:
        """Divide a span into tasks that are answered, that must not run again, and others."""
        numbers = self._numbers(span, known)
        kinds = [True if isinstance(number, int) else number for number in numbers]
        start = 0
        for end in range(1, span.count + 1):
            if end == span.count or kinds[end] != kinds[start]:
                part = span if end - start == span.count else span.between(start, end)
                kind = kinds[start]
                if kind is None:
                    others.append(part)
                elif isinstance(kind, str):
                    self._hand_back.forbid(part, kind)
                else:
                    answered = [number for number in numbers[start:end] if isinstance(number, int)]
                    reused.append(self.give_out(part, answered))
                start = end

    def _numbers(self, span: Span, known: KnownCode) -> list[int | str | None]:
        """For each task of a span: the number of its occurrence if that has an answer which counts, or why it must not
        run again."""
        keys, take, of = span.keys, known.occurrences.take, self.answers.of
        once, awaited = not span.policy.retry, self.awaited
        take_other = known.other.occurrences.take if known.other is not None else None
        can_wait, used_up = is_holdable(span), self.answers.used_up
        numbers: list[int | str | None] = []
        for at in range(0, len(keys), KEY_BYTES):
            key = keys[at : at + KEY_BYTES]
            number = None if key == NO_KEY else take(key)
            if take_other is not None and key != NO_KEY and (number is None or of(number) is None):
                other = take_other(key)
                number = other if other is not None and of(other) is not None else number
            if number is None:
                self._miss(span.algorithm, known, key)
                numbers.append(None)
                continue
            known.misses = MISSES
            answer = of(number)
            if answer is None and number in used_up and not self.rerun_failed:
                numbers.append(USED_UP.format(reason=used_up[number]))
                continue
            if answer is None:
                if not self._task_of:
                    self._task_of.frombytes(bytes(self._count * self._task_of.itemsize))
                self._task_of[number] = span.first + at // KEY_BYTES
            if answer is None or (answer[2] and self.rerun_failed):
                forbidden = once and not self.rerun_failed and self.answers.may_have_run(number)
                if can_wait and answer is None and (awaited.comes(number) or (forbidden and awaited.may_return)):
                    awaited.new[span.first + at // KEY_BYTES] = number
                    forbidden = False
                numbers.append(FORBIDDEN if forbidden else None)
            else:
                numbers.append(number)
        return numbers

    def _miss(self, defined: Defined, known: KnownCode, key: bytes) -> None:
        """No former generation submitted a task. Tasks that cannot be compared say nothing about the arguments."""
        known.misses += key != NO_KEY
        if known.misses == MISSES and key != NO_KEY and known.answering.answered:
            text = MISSED.format(misses=MISSES, name=defined.name, count=f"{known.answering.answered:,}")
            self.state.notice(text, key=f"misses {defined.name}")

    def give_out(self, span: Span, numbers: Sequence[int]) -> ReusedTasks:
        """Make the results of tasks that all have answers. Return what the record says of them."""
        answers, actions, name = self.answers, self.state.actions, span.algorithm.name
        slaves = list(answers.slaves)
        rows: list[int] = []
        places: list[int] = []
        failed: list[int] = []
        origins: dict[tuple[int, int], Origin] = {}
        for task, tag, number in zip(span.ids, span.tags, numbers, strict=True):
            found = answers.of(number)
            assert found is not None
            row, place, has_failed = found
            seconds, attempts = answers.times(number)
            origin = origins.get((row, attempts))
            if origin is None:
                sid, host = slaves[answers.origins[row]]
                origin = origins[row, attempts] = Origin(name, sid, host or None, attempts, answers.walls[row])
            if has_failed:
                failed.append(len(rows))
            rows.append(answers.rows[row])
            places.append(place)
            at = StoredAt(answers.rows[row], place, self.read)
            actions.results.append(stored_result(TaskId(task), origin, tag, seconds, has_failed, at))
        return ReusedTasks(span.first, span.count, span.algorithm.number, name, span.keys, rows, places, failed)
