"""What former generations left: answers in the run database, agents that outlive them, and their results.

Answers tasks from what former generations have stored.

`apply` takes the entries of the run database, in their order. After that, `without_answered` divides new tasks into
those that were answered before and the others. An answered task ends at once: its record says where its result is, and
its result has the slave, the host and the compute time of its attempt. The value stays in the file until it is needed.

A task is the same as one of a former generation if its algorithm has the same name and code, its key is the same, and
it has the same position among the equal calls of its generation (see `Occurrence`). `KnownCodes` decides when
other code counts, too. A task that must not run twice ends as unrunnable if a former generation sent it to a slave, and
the file has no answer of it. So does a task whose attempts are used up. Nothing is remembered about tasks that are new.
What former generations submitted takes about 270 bytes a task. Smaller forms, such as columns of numbers, took a fifth
of that, and 100 lines more.

An agent can bring results of a former generation while this one runs (see `Succession`). So the last generations are
kept, with 8 bytes for each task, and the tasks of this generation that former ones had submitted without an answer.

An equal call could get its former id, so that all that agents hold stays valid. This was rejected. A master would still
have to know which calls are equal, which answers are in the file, and for which agents it waits. The last ids before a
kill are not in the file, because a task is sent before its submission is on the disk: in 40 simulated histories, 44 %
of the tasks that later lives ran had an id there. And an id must be known in the thread of the algorithm, where finding
it costs 15 times what `submit` costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, groupby
from math import inf
from operator import attrgetter
from typing import Any

from attrs import Factory, define
from msgspec import Struct
from msgspec.structs import replace

from mwpy._core import holding
from mwpy._core.holding import TaskIds
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.handback import NO_SLAVE, HandBack
from mwpy._core.master.members import ConnectedAgent
from mwpy._core.master.results import check_failures
from mwpy._core.master.spans import Span, named, numbers_in
from mwpy._core.master.state import MasterState
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer, SlaveId, TaskId
from mwpy._values.earlier import (
    KEY_BYTES,
    Earlier,
    EarlierAlgorithm,
    EarlierAnswers,
    EarlierSent,
    EarlierTasks,
    FormerAgent,
    each_key,
)
from mwpy._values.phrases import counted, duration, first_of
from mwpy._values.records import AlgorithmDefined, ResultsHandedOver, ReusedTasks, TaskRange
from mwpy._values.shares import NO_KEY
from mwpy._values.task import Origin, StoredAt, TaskState, stored_result

# The calls that former generations made.
#
# Equal calls have the same key. The first of them in one generation is the same task as the first of them in another
# generation, and so on. So each key has occurrences, in the order of submission. A generation takes them one after the
# other. It adds an occurrence when it makes an equal call more often than every generation before.


class Occurrence(Struct, eq=False, gc=False):
    """A call at its position among the equal calls of a generation. It refers to nothing that refers to it."""

    code: int
    """The place of its algorithm and code in `KnownCodes.each`."""
    taken_by: int
    """The last generation that has taken it."""
    answer: EarlierAnswers | None = None
    """The results among which its own is; None if it has none."""
    place: int = 0
    """The place of its result there."""
    has_failed: bool = False
    """Whether its result is a failure."""
    barred: str | None = None
    """If it has no answer and must not run again: why it became unrunnable when its attempts were used up; or an empty
    text if it was sent to a slave and must not run twice."""
    task: int = 0
    """The task of this generation that has taken it without an answer; 0 if none has."""


def occurrences_of(
    former: Sequence[Occurrence | None], firsts: Sequence[int], counts: Sequence[int]
) -> list[Occurrence | None]:
    """Return the occurrences of tasks of a generation, in ranges of ids; None for each task without one."""
    found: list[Occurrence | None] = []
    for first, count in zip(firsts, counts, strict=True):
        known = former[first : first + count] if first > 0 else ()
        found += known
        found += [None] * (count - len(known))
    return found


# The codes of task algorithms that former generations had, and the choice of one whose answers count now.
#
# The answers of an algorithm are those of its own code. If the user wants those of other code, too, they count only if
# the own code has none, and if it is clear which other code the algorithm had before: exactly one other code of the
# same name has answers. A code that has captured other values does not count. Otherwise the functions that one line of
# a loop makes, such as `lambda x: k * x`, would get each other's results.
#
# A generation that uses answers of other code also computes what they lack, so its own code has answers in the next
# generation. This one finds in the file that tasks were answered although their code had no answers. Then the other
# code still counts for what the own code lacks.


CODE_CHANGED = (
    "{name} has answers in the run database from other code: {changes}. They are not used, so its tasks run again. "
    "--mw-reuse-changed-code, or reuse_changed_code=True, uses them"
)

OF_SLAVES = (
    "{name} has answers in the run database that slaves computed with other values of variables than the master's. "
    "They are used, because slaves would compute the same again. If tasks need what the master has, pass it as an "
    "argument"
)

NOT_USED = (
    "{name} has answers in the run database only from other code, and --mw-reuse-changed-code does not use them: "
    "{reason}. So its tasks run"
)

SEVERAL_CODES = "they are from several versions of the code, or from several functions of this name"

OTHER_VALUES = "it has captured other values ({changes})"

Compare = Callable[[Mapping[str, str], Mapping[str, str]], Sequence[str]]
"""Says in what the parts of two codes differ, in sentences."""


@define(eq=False, repr=False)
class KnownCode:
    """What is known of one task algorithm with one code."""

    name: str
    code: str
    place: int
    """Its place in the list of all."""
    parts: Mapping[str, str] = Factory(dict)
    """The parts of the code."""
    first: dict[bytes, Occurrence] = Factory(dict)
    """The first occurrence of each key."""
    later: dict[bytes, list[Occurrence]] = Factory(dict)
    """The other occurrences of each key that has several."""
    taken: Counter[bytes] = Factory(Counter)
    """How many of these the present generation has taken."""
    answered: int = 0
    """How many answers it has."""
    since: int = 0
    """The generation that got the first of them."""
    other: KnownCode | None = None
    """Other code, whose answers count for tasks that have none here."""
    misses: int = 0
    """How many of the first tasks were not known. After one that was known, no more are counted."""

    @property
    def answering(self) -> KnownCode:
        """The code whose answers count: this one if it has any."""
        return self if self.answered or self.other is None else self.other

    def take(self, key: bytes, generation: int) -> Occurrence | None:
        """Return the next occurrence of a key; None if this generation has taken all."""
        first = self.first.get(key)
        if first is not None and first.taken_by < generation:
            first.taken_by = generation
            return first
        later, taken = self.later.get(key, ()), self.taken[key]
        if taken == len(later):
            return None
        self.taken[key] = taken + 1
        return later[taken]

    def take_or_add(self, key: bytes, generation: int) -> Occurrence:
        """Take the next occurrence of a key. If there is none, add one, which this generation takes."""
        found = self.take(key, generation)
        if found is None:
            found = Occurrence(self.place, generation)
            if self.first.setdefault(key, found) is not found:
                self.later.setdefault(key, []).append(found)
                self.taken[key] += 1
        return found


@define(eq=False, repr=False)
class KnownCodes:
    """All codes.

    Args:
        state: what all parts share.
        changes: compares two codes.
        captured: compares the values that two codes have captured.
        any_code: whether answers count that other code of the algorithm has computed.
    """

    state: MasterState
    changes: Compare
    captured: Compare
    any_code: bool
    _generation: int = 0
    """The generation that is read, or this one."""
    _codes: dict[tuple[str, str], KnownCode] = Factory(dict)
    """By the name and the code of the algorithm."""
    each: list[KnownCode] = Factory(list)
    """All codes."""
    _answered: dict[str, dict[str, KnownCode]] = Factory(dict)
    """For each name: its codes with answers. The one that was answered last is the last one."""

    @property
    def answered(self) -> int:
        """How many answers there are."""
        return sum(known.answered for known in self._codes.values())

    def begin(self, generation: int) -> None:
        """Another generation begins."""
        self._generation = generation
        for known in self._codes.values():
            known.taken.clear()

    def of(self, name: str, code: str, parts: Mapping[str, str]) -> KnownCode:
        """Return what is known of an algorithm, to which more can be added."""
        known = self._codes.get((name, code))
        if known is None:
            known = self._codes[name, code] = KnownCode(name, code, len(self.each), parts)
            self.each.append(known)
        return known

    def answer(self, known: KnownCode, count: int) -> None:
        """An algorithm has got answers."""
        if not known.answered:
            known.since = self._generation
        known.answered += count
        codes = self._answered.setdefault(known.name, {})
        codes.pop(known.code, None)
        codes[known.code] = known

    def adopt(self, known: KnownCode) -> None:
        """A generation has ended tasks of an algorithm with answers that its own code did not have."""
        if known.other is None:
            known.other = self._only(self._others(known.name, known.code), known.parts)

    def choose(self, record: AlgorithmDefined) -> KnownCode | None:
        """Return the code whose answers count for an algorithm of this generation; None if there is none. If only other
        code has answers, and they do not count, say so."""
        name, code = record.definition.name, record.code
        exact, of_slaves = self._codes.get((name, code)), self._codes.get((name, record.code_of_slaves))
        if of_slaves is not None and (exact is None or not exact.answered):
            exact, code = of_slaves, of_slaves.code
            self.state.notice(OF_SLAVES.format(name=name), key=f"of slaves {name}")
        others = self._others(name, code)
        if not others or (self.any_code and code and exact is not None and (exact.answered or exact.other)):
            return exact
        if not self.any_code:
            if exact is None:
                changes = self.changes(others[-1].parts, record.parts) or ["it is unknown what changed"]
                changes = first_of(changes, len(changes))
                self.state.notice(CODE_CHANGED.format(name=name, changes=changes), key=f"code {name} {code}")
            return exact
        other = self._only(others, record.parts)
        if other is None:
            captured = [self.captured(known.parts, record.parts) for known in others]
            reason = (
                OTHER_VALUES.format(changes=first_of(captured[-1], len(captured[-1])))
                if all(captured)
                else SEVERAL_CODES
            )
            self.state.notice(NOT_USED.format(name=name, reason=reason), key=f"code {name}")
            return exact
        if not code:
            return other
        exact = self.of(name, code, record.parts)
        exact.other = other
        return exact

    def _others(self, name: str, code: str) -> list[KnownCode]:
        """The other codes that had answers when this generation began. A code that is unknown can be any other."""
        answered = self._answered.get(name, {}).values()
        return [known for known in answered if known.since < self._generation and (known.code != code or not code)]

    def _only(self, others: Sequence[KnownCode], parts: Mapping[str, str]) -> KnownCode | None:
        """The code that has captured the same values, if there is exactly one."""
        same = [known for known in others if not self.captured(known.parts, parts)]
        return same[0] if len(same) == 1 else None


MISSES = 20
"""If no former generation submitted the first tasks of an algorithm, this many, although the file has answers of it, a
notice says so: an argument is different at each start. Later tasks may be new for good reasons."""

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
        self.names: Mapping[str, int] = {}
        """The numbers of all generations, by their names. This one is the last."""
        self.says_misses = True
        """Whether a message says that no task of an algorithm finds its answer."""
        self._hand_back = HandBack(state)
        self.succession = Succession(state, self, self._hand_back)
        """What agents of former generations have."""
        self.generation = 0
        """The generation that is read, or this one."""
        self._codes = KnownCodes(state, changes, captured, any_code)
        self._algorithms: dict[int, KnownCode] = {}
        """The algorithms of the generation that is read, by number."""
        self.former: dict[int, list[Occurrence | None]] = {}
        """The generation that is read, and the last ones before it, by number. For each task, by id: its occurrence, if
        it has one."""
        self._chosen: dict[int, KnownCode | None] = {}
        """For each algorithm of this generation: the code whose answers count."""
        self._forbidden: dict[int, str] = {}
        """The new tasks that must not run again, until they are in the jar; and why."""
        self._waiting: list[EarlierTasks] = []
        """Tasks of the generation that is read, since its last answer."""

    # ---- reading what former generations left --------------------------------------------------------------

    def apply(self, entry: Earlier) -> None:
        """Take the next entry of the run database."""
        if entry.generation > self.generation:
            self._begin(entry.generation)
        match entry:
            case EarlierAlgorithm():
                self._algorithms[entry.number] = self._codes.of(entry.name, entry.code, entry.parts)
            case EarlierTasks():
                self._waiting.append(entry)
            case EarlierSent():
                self._add_waiting()
                for each in occurrences_of(self.former[entry.generation], [entry.first], [entry.count]):
                    if each is not None and (entry.barred is None or each.answer is None):
                        each.barred = entry.barred
            case _:
                self._add_waiting()
                self.answer(entry)

    @property
    def answered(self) -> int:
        """How many answers were read; a task that was answered in several generations counts several times."""
        return self._codes.answered

    def begin(self) -> None:
        """All entries were read. This generation begins."""
        self._begin(self.generation + 1)

    def _begin(self, generation: int) -> None:
        self._add_waiting()
        self.generation = generation
        self._algorithms = {}
        self.former[generation] = []
        for old in [*self.former][: -GENERATIONS_KEPT - 1]:
            del self.former[old]
        self._codes.begin(generation)

    def _add_waiting(self) -> None:
        """Add tasks in the order of their submission. Those that were answered at once were recorded before the others
        that were submitted with them."""
        for entry in sorted(self._waiting, key=attrgetter("first")):
            self._add(entry)
        self._waiting.clear()

    def _add(self, entry: EarlierTasks) -> None:
        known, former = self._algorithms[entry.algorithm], self.former[entry.generation]
        former.extend([None] * (entry.first - len(former)))
        if not (known.code or self._codes.any_code) or len(entry.keys) != entry.count * KEY_BYTES:
            former.extend([None] * entry.count)
            return
        found = [known.take_or_add(key, entry.generation) for key in each_key(entry.keys)]
        former.extend(found)
        if entry.reused and self._codes.any_code and any(each.answer is None for each in found):
            self._codes.adopt(known)

    def answer(self, entry: EarlierAnswers) -> Sequence[Occurrence | None]:
        """Results of a former generation are in the file. Return the occurrence of each; None for a task that is not
        known, or that they do not answer.

        Results that were brought to a later generation answer only what had no answer: if that generation had computed
        the task itself, its algorithm has got this result. Otherwise a later answer replaces an earlier one.
        """
        former, results = self.former.get(entry.generation), entry.results
        if former is None:  # too many generations have been since then
            return ()
        found = occurrences_of(former, results.tasks, results.counts)
        for code, count in Counter(each.code for each in found if each is not None).items():
            self._codes.answer(self._codes.each[code], count)
        if entry.generation < self.generation:
            found = [None if each is None or each.answer is not None else each for each in found]
        failed = frozenset(results.failed)
        for place, each in enumerate(found):
            if each is not None:
                each.answer, each.place, each.has_failed, each.barred = entry, place, place in failed, None
        return found

    def counts(self, occurrence: Occurrence) -> bool:
        """Whether an occurrence has an answer that ends a task."""
        return occurrence.answer is not None and not (occurrence.has_failed and self.rerun_failed)

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
        start = 0
        keys = each_key(span.keys)
        answering = (self._answering(span, task, known, key) for task, key in zip(span.ids, keys, strict=True))
        for has_answers, run in groupby(answering, lambda each: each is not None):
            found = [*run]
            end = start + len(found)
            part = span if len(found) == span.count else span.between(start, end)
            start = end
            if has_answers:
                reused.append(self.give_out(part, [each for each in found if each is not None]))
            else:
                others.append(part)

    def _answering(self, span: Span, task: int, known: KnownCode, key: bytes) -> Occurrence | None:
        """Return the occurrence of a new task if that has an answer which counts. If not, note whether the task must
        not run again, or waits."""
        found = None if key == NO_KEY else known.take(key, self.generation)
        if known.other is not None and key != NO_KEY and (found is None or found.answer is None):
            other = known.other.take(key, self.generation)
            found = found if other is None or other.answer is None else other
        if found is None:
            self._miss(span.algorithm, known, key)
            return None
        known.misses = MISSES
        if found.answer is not None:
            return found if self.counts(found) else None
        barred = None if self.rerun_failed else found.barred
        if barred:
            self._forbidden[task] = USED_UP.format(reason=barred)
            return None
        found.task = task
        is_forbidden = barred is not None and not span.policy.retry
        if is_holdable(span) and (self.succession.comes(found) or (is_forbidden and self.succession.may_come)):
            self.succession.waits[task] = found
        elif is_forbidden:
            self._forbidden[task] = FORBIDDEN
        return None

    def submitted(self, spans: Sequence[Span]) -> None:
        """New tasks are in the jar: end those that must not run again, and let those wait for which agents may come.
        Those that are too large have ended."""
        ends, forbidden, self._forbidden = self.state.jar.ends, self._forbidden, {}
        ids = TaskIds(((task, 1) for task in forbidden if not ends.has(task)), joins=False)
        for state in (TaskState.PENDING, TaskState.BLOCKED):
            reasons: dict[str, list[TaskRange]] = {}
            for each in named([span for span in spans if span.state is state], ids):
                reasons.setdefault(forbidden[each.first], []).append(each)
            for reason, tasks in reasons.items():
                self._hand_back.give_up(NO_SLAVE, tasks, reason, held=False)
        self.succession.hold_new(spans)

    def _miss(self, defined: Defined, known: KnownCode, key: bytes) -> None:
        """No former generation submitted a task. Tasks that cannot be compared say nothing about the arguments."""
        known.misses += key != NO_KEY
        if self.says_misses and known.misses == MISSES and key != NO_KEY and known.answering.answered:
            text = MISSED.format(misses=MISSES, name=defined.name, count=f"{known.answering.answered:,}")
            self.state.notice(text, key=f"misses {defined.name}")

    def give_out(self, span: Span, occurrences: Sequence[Occurrence]) -> ReusedTasks:
        """Make the results of tasks that all have answers. Return what the record says of them."""
        results, name = self.state.actions.ended(span.owner), span.algorithm.name
        rows: list[int] = []
        failed: list[int] = []
        origins: dict[tuple[int, int], Origin] = {}
        columns: dict[int, tuple[Sequence[int], Sequence[float]]] = {}
        for task, tag, each in zip(span.ids, span.tags, occurrences, strict=True):
            answer, place = each.answer, each.place
            assert answer is not None, f"task {task} has no answer"
            if answer.row not in columns:
                columns[answer.row] = groups.attempts_and_seconds(answer.results)
            attempts, times = columns[answer.row]
            attempt, seconds = attempts[place], times[place]
            origin = origins.get((answer.row, attempt))
            if origin is None:
                origin = Origin(name, answer.sid, answer.host or None, attempt, answer.wall)
                origins[answer.row, attempt] = origin
            if each.has_failed:
                failed.append(len(rows))
            rows.append(answer.row)
            at = StoredAt(answer.row, place, self.read)
            results.append(stored_result(TaskId(task), origin, tag, seconds, each.has_failed, at))
        places = [each.place for each in occurrences]
        return ReusedTasks(span.first, span.count, span.algorithm.number, name, span.keys, rows, places, failed)


# What agents that have outlived the former master say about its tasks: their results, and which ones still run.
#
# An agent can outlive its master, and so can the tasks that its slaves run. It brings their results to the next
# generation (`Handover`). These results are stored as those of their own generation, as if its master had lived on.
# When they are in the file (the event `Stored`), they are answers like all others there: tasks that are submitted later
# end at once, and tasks that were submitted before end now, wherever they are. An attempt that runs elsewhere is
# killed, as if another attempt had answered.
#
# Results that do not count are left out: of tasks that the file does not know or that have an answer, and failures
# after which the task was to be tried again. An agent that outlives its master is the same process in the next
# generation. So nothing counts if its process was no agent of that generation. A member could lie about its process,
# but members are trusted: their results are unpickled in the master. This protects from mistakes.
#
# Such an agent also says which tasks its slaves still run (`FormerTasks`). An equal task of this generation then waits,
# and is not sent to another slave, until its result is in the file. It is pending again when the agent is lost, or when
# its slave has ended without a result.
#
# A task that must not run twice also waits if a former generation sent it to a slave, as long as an agent may return
# that ran it: until all agents of the last generations are back and have said what they have, or for the longest time
# that the missing ones look for their master. Without a result it then is unrunnable. If an agent says that its slave
# has not started the task, it is pending.
#
# Tasks that wait are DELAYED, without an end of their pause. The user may not expect that, so the master says soon
# which tasks wait, how long, for which agents, and how they run at once.


UNUSABLE = (
    "{agent} has brought {results} of tasks that an earlier life of the master had sent to it, and they are not used, "
    "because the run database does not know that it was an agent of that life"
)

LOST = (
    "a slave ran it when the master was started again, and has ended without a result, and its policy says retry=False"
)

SAY_S = 1.0
"""Seconds from the first task that waits until the master says so. Tasks that come until then are named, too."""


@define(eq=False, repr=False)
class Succession:
    """Knows what agents of former generations have, and lets tasks wait for them.

    Tasks that still run at such agents are DELAYED without an end: only the result, the end of the slave or the loss of
    the agent decides. A task that must not run twice waits in the same way, as long as agents are missing that may look
    for their master: the run database knows for how long each looks. It also knows their processes, and nothing counts
    that another process says about a former generation. Which task an agent had is not compared, because the last
    allocations before a kill may be missing in the file.

    A result that an agent brings is stored under its own generation, id and slave, as if the former master had written
    it, and answers nothing before it has a row. From then on it is like one that was there at the start. So a master
    that is killed again loses nothing, and gives no value twice.
    """

    state: MasterState
    reuse: Reuse
    handback: HandBack
    waits: dict[int, Occurrence] = Factory(dict)
    """The occurrences of new tasks for which agents may come, by task, until the tasks are in the jar."""
    _were_agents: set[tuple[int, str, int]] = Factory(set)
    """The generation, the machine and the process of each agent of the last generations."""
    _missing: dict[tuple[str, int], FormerAgent] = Factory(dict)
    """Those that look for their master, as far as the file knows, and have not said everything about their tasks; by
    machine and process."""
    _since: float | None = None
    """When the master began to wait for them, on the core's clock; None before the first iteration."""
    _comes: dict[Occurrence, str] = Factory(dict)
    """The occurrences that still run, and the name of the agent; the name is empty if the result was brought and is not
    in the file yet."""
    _held: dict[Occurrence, int] = Factory(dict)
    """The task of each occurrence that waits. Some of them have ended."""
    _say_at: float | None = None
    """When to say that tasks wait, on the core's clock; None if it was said of all of them."""

    def know(self, agents: Sequence[FormerAgent]) -> None:
        """These are all agents of the last generations, in their order."""
        for each in agents:
            self._were_agents.add((each.generation, each.host, each.pid))
            self._missing.pop((each.host, each.pid), None)
            if each.returns_s and not each.has_ended:
                self._missing[each.host, each.pid] = each

    def comes(self, occurrence: Occurrence) -> bool:
        """Whether an agent runs an occurrence, or has brought its result."""
        return occurrence in self._comes

    @property
    def may_come(self) -> bool:
        """Whether agents of former generations may come that have not come yet."""
        return bool(self._missing) and (self._since is None or self.state.now < self._until)

    @property
    def _until(self) -> float:
        """When the last of those that are missing has given up, on the core's clock."""
        since = self.state.now if self._since is None else self._since
        return since + max((each.returns_s for each in self._missing.values()), default=0.0)

    # ---- what agents say ---------------------------------------------------------------------------------------

    def receive(self, agent: ConnectedAgent, message: messages.Handover, frames: Sequence[Buffer]) -> None:
        """Take over the results that count, so that they are stored.

        Raises:
            ProtocolError: the frames are not what the message says; the agent's fault.
        """
        group = message.results
        values, _ = groups.entries(group, frames)
        check_failures(group, values)
        former = self._tasks_of(agent, message.generation)
        if former is None:
            results = counted(sum(group.counts), "result")
            self.state.notice(UNUSABLE.format(agent=agent.name, results=results), key=UNUSABLE)
            return
        found, again = occurrences_of(former, group.tasks, group.counts), frozenset(group.again)
        new = {
            each: place
            for place, each in enumerate(found)
            if each is not None and each.answer is None and place not in again
        }
        places = [*new.values()]
        self._comes |= dict.fromkeys(new, "")
        self._wait_for(new)
        self._end([each for each in found if each is not None and not self._is_stored(each)], LOST)
        if places:
            group, frames = groups.select(group, frames, places)
            generation, sid = self.reuse.names[message.generation], SlaveId(message.sid)
            self.state.record(ResultsHandedOver(agent.name, agent.host, generation, sid, group, frames))

    def hear(self, agent: ConnectedAgent, message: messages.FormerTasks) -> None:
        """An agent says how far tasks of a former generation are, or that it has no more to say."""
        former = self._tasks_of(agent, message.generation)
        if former is None:
            return
        if not message.tasks:
            self._missing.pop((agent.host, agent.pid), None)
        ranges = zip(message.tasks, message.counts, strict=True)  # an agent may name more tasks than there ever were
        found = chain.from_iterable(former[first : first + count] for first, count in ranges if first > 0)
        known = [each for each in found if each is not None and not self._is_stored(each)]
        match message.fate:
            case messages.FormerFate.RUNNING:
                running = [each for each in known if each.answer is None]
                self._comes |= dict.fromkeys(running, agent.name)
                self._wait_for(running)
            case messages.FormerFate.LOST:
                self._end(known, LOST)
            case _ if self.reuse.names[message.generation] == self.reuse.generation - 1:
                for each in known:  # a generation in between may have sent them elsewhere
                    each.barred = None
                self._end(known, None)

    def _tasks_of(self, agent: ConnectedAgent, generation: str) -> list[Occurrence | None] | None:
        """The occurrence of each task of a former generation; None if the file does not know that an agent was one of
        it."""
        number = self.reuse.names.get(generation, 0)
        return self.reuse.former.get(number) if (number, agent.host, agent.pid) in self._were_agents else None

    def _is_stored(self, occurrence: Occurrence) -> bool:
        """Whether the result of an occurrence is on its way into the file."""
        return self._comes.get(occurrence) == ""

    def stored(self, record: ResultsHandedOver, row: int) -> None:
        """Results are in the file: end the tasks that have waited for them."""
        entry = EarlierAnswers(record.generation, row, record.sid, record.host, self.state.wall, record.results)
        places = {each: place for place, each in enumerate(self.reuse.answer(entry)) if each is not None}
        if self.state.closing is None:
            self._answer(record, {each: place for each, place in places.items() if self.reuse.counts(each)})
            self._end(places, LOST)

    def _answer(self, record: ResultsHandedOver, places: Mapping[Occurrence, int]) -> None:
        """End the tasks that have waited for results.

        Args:
            places: the place of each occurrence with a result that counts.
        """
        waiting = _by_task(places)
        for holder, found in [*self.state.jar.places(TaskIds((task, 1) for task in waiting))]:
            ids = [*numbers_in(found)]
            own, frames = groups.select(record.results, record.frames, [places[waiting[task]] for task in ids])
            attempts = [each.attempt for each in found for _ in range(each.count)]
            own = replace(own, tasks=ids, counts=[1] * len(ids), attempts=attempts)
            for span in self.state.record(records.TasksAnswered(holder, found, own, frames)):
                self.reuse.give_out(span, [waiting[task] for task in span.ids])
            if holder is not None:
                self.state.cancel_elsewhere(self.state.members.slaves[holder], found)

    # ---- tasks ---------------------------------------------------------------------------------------------

    def hold_new(self, spans: Iterable[Span]) -> None:
        """New tasks are in the jar: let those wait for which agents may come."""
        ends, waits, self.waits = self.state.jar.ends, self.waits, {}
        if waits:
            self._hold(spans, {task: each for task, each in waits.items() if not ends.has(task)})

    def _wait_for(self, occurrences: Iterable[Occurrence]) -> None:
        """Let the pending tasks wait that have taken these occurrences."""
        if waiting := _by_task(occurrences):
            self._hold(self.state.jar.pending.spans(), waiting)

    def _hold(self, spans: Iterable[Span], waiting: Mapping[int, Occurrence]) -> None:
        """Let those of the tasks wait that are pending.

        Args:
            waiting: their occurrences, by task.
        """
        able = [span for span in spans if span.state is TaskState.PENDING and is_holdable(span)]
        if tasks := named(able, TaskIds((task, 1) for task in waiting)):
            self.state.record(records.TasksAwaited(tasks))
            self._held.update((waiting[task], task) for task in numbers_in(tasks))
            if self._say_at is None and not all(map(self.comes, self._held)):
                self._say_at = self.state.now + SAY_S

    def _end(self, occurrences: Iterable[Occurrence], reason: str | None) -> None:
        """Nobody will bring results of occurrences: their tasks are pending again, or unrunnable.

        Args:
            reason: why a task is unrunnable that must not run twice; None if it has not run.
        """
        for each in occurrences:
            self._comes.pop(each, None)
            task = self._held.pop(each, None)
            span = None if task is None else self.state.jar.delayed.get(task)
            if span is None or span.pause_s < inf:
                continue
            if reason is None or span.policy.retry or self.reuse.rerun_failed:
                self.state.record(records.TasksDue([span.whole], not_started=reason is None))
            else:
                self.handback.give_up(NO_SLAVE, [span.whole], reason, held=False)

    def decide(self, now: float) -> None:
        """Release the tasks for which nobody will come any more."""
        if self._since is None:
            self._since = now
        agents = self.state.members.agents
        self._end([each for each, name in self._comes.items() if name and name not in agents], LOST)
        if self._held and now >= self._until:
            self._end([each for each in self._held if not self.comes(each)], FORBIDDEN)
        if self._say_at is not None and now >= self._say_at:
            self._say_at = None
            if text := self._doubts(now):
                self.state.notice(text, key="tasks that may have run", lasts=True)

    def _doubts(self, now: float) -> str:
        """Which tasks wait of which no agent has said that it has them, and what the user can do; empty if none do."""
        delayed = self.state.jar.delayed
        tasks = [task for each, task in self._held.items() if task in delayed and not self.comes(each)]
        if not tasks:
            return ""
        spans = (self.state.jar.delayed[task] for task in tasks)
        names = first_of((f"task {span.first} ({span.algorithm.name})" for span in spans), len(tasks))
        processes = [f"process {pid} on {host}" for host, pid in self._missing]
        return (
            f"{counted(len(tasks), 'task')} with retry=False may have run before the master was started again, and the "
            f"run database has no results of them: {names}. They wait up to {duration(round(self._until - now))} for "
            f"{counted(len(processes), 'agent')} ({first_of(processes, len(processes))}) of the former master, which "
            f"may bring results. After that, those without a result are unrunnable. If they may run again, stop this "
            f"master, and start it with --mw-rerun failed: then they run at once"
        )

    @property
    def deadline(self) -> float | None:
        """When to decide even if nothing happens, on the core's clock; None if there is no need."""
        waits = not all(map(self.comes, self._held))
        return min(holding.known((self._until if waits else None, self._say_at)), default=None)

    def text(self, now: float) -> str:
        """What is waited for; empty if nothing is."""
        doubts = self._doubts(now)
        running = sum(map(bool, self._comes.values()))
        if not running:
            return doubts
        run = "still runs" if running == 1 else "still run"
        text = f"{counted(running, 'task')} {run} at slaves that have outlived the former master"
        return f"{text}. {doubts}" if doubts else text


def _by_task(occurrences: Iterable[Occurrence]) -> dict[int, Occurrence]:
    """The tasks of this generation that have taken these occurrences without an answer. Some of them may have ended."""
    return {each.task: each for each in occurrences if each.task}


def is_holdable(span: Span) -> bool:
    """Whether the tasks of a span may wait for an agent."""
    return span.policy.sid is None and not span.refers
