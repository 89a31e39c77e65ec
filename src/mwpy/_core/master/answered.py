"""Tasks with answers that are compared before the algorithm gets one of them. `verification.py` decides about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from mwpy._core.master.spans import Span
from mwpy._values import groups, messages, records
from mwpy._values.digested import mark_of
from mwpy._values.errors import InternalError
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.records import TaskRange
from mwpy._values.task import TaskState

__all__ = ["Answer", "AnsweredTasks"]

ANSWER_BYTES = 1000
"""About how many bytes an answer takes without its value."""

Place = tuple[int, float | None, tuple[str, ...]]
"""The number of an algorithm, how long a task of it takes as its policy says, and the hosts that have run this task."""


class Answer(Struct, frozen=True, eq=False):
    """What one slave answered to one task."""

    sid: SlaveId
    host: str
    attempt: int
    seconds: float
    failed: bool
    mark: str
    """What is compared; empty if this answer cannot be compared."""
    why_not: str
    """Why it cannot be compared."""
    result: messages.Results
    """A group with this result alone."""
    frames: Sequence[Buffer]

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return ANSWER_BYTES + sum(map(len, self.frames))


class AnsweredTasks(Struct, eq=False):
    """All tasks with answers. Only the taskjar adds and removes them."""

    tasks: dict[int, Span] = field(default_factory=dict)
    """The tasks, by id. Each has a span of its own."""
    answers: dict[int, list[Answer]] = field(default_factory=dict)
    """The answers to each of them, in the order of their arrival."""
    waiting: dict[Place, dict[int, Span]] = field(default_factory=dict)
    """Those tasks that no slave has. No entry is empty."""
    num_waiting: int = 0
    """How many these are."""
    bytes: int = 0
    """About how many bytes all answers take."""

    def hosts(self, number: int) -> tuple[str, ...]:
        """The hosts that have answered a task, in the order of their answers."""
        return tuple(answer.host for answer in self.answers[number])

    def is_waiting(self, number: int) -> bool:
        """Whether a task has answers, and no slave has it."""
        span = self.tasks.get(number)
        return span is not None and span.sid is None

    def spans(self) -> Iterator[Span]:
        """The tasks that no slave has."""
        for queue in self.waiting.values():
            yield from queue.values()

    def add(self, spans: Iterable[Span], record: records.AnswersKept) -> list[Span]:
        """Add answers to tasks. Return a span for each task."""
        singles = [single for span in spans for single in ([span] if span.count == 1 else span.singles())]
        results = {each.tasks[0]: (each, frames) for each, frames in _divided(record.results, record.frames)}
        for single in singles:
            answer = _answer(record, single.attempt, *results[single.first])
            self.answers.setdefault(single.first, []).append(answer)
            self.bytes += answer.size
        return self.wait(singles)

    def wait(self, singles: Sequence[Span]) -> list[Span]:
        """No slave has these tasks any more."""
        for span in singles:
            span.sid, span.attempt = None, span.sent
            self.tasks[span.first] = span
            self.waiting.setdefault(self._place(span), {})[span.first] = span
            self.num_waiting += 1
        return [*singles]

    def send(self, tasks: Sequence[TaskRange]) -> list[Span]:
        """Tasks that wait are sent to a slave."""
        return [self._stop_waiting(self._get(each.first)) for each in tasks]

    def remove(self, number: int) -> tuple[Span, list[Answer]]:
        """Remove a task. Return it with its answers."""
        span = self._get(number)
        if span.sid is None:
            self._stop_waiting(span)
        del self.tasks[number]
        answers = self.answers.pop(number)
        self.bytes -= sum(answer.size for answer in answers)
        return span, answers

    def _get(self, number: int) -> Span:
        span = self.tasks.get(number)
        if span is None:
            raise InternalError(f"task {number} has no answer that is kept")
        return span

    def _stop_waiting(self, span: Span) -> Span:
        queue = self.waiting[self._place(span)]
        del queue[span.first]
        if not queue:
            del self.waiting[self._place(span)]
        self.num_waiting -= 1
        return span

    def _place(self, span: Span) -> Place:
        return span.algorithm.number, span.policy.seconds_expected, self.hosts(span.first)

    def check(self) -> None:
        """Recompute the derived values, and compare the tasks with their states."""
        assert self.tasks.keys() == self.answers.keys(), "a task has no answer, or an answer has no task"
        answers = [answer for own in self.answers.values() for answer in own]
        assert self.bytes == sum(answer.size for answer in answers), "the sizes of answers were added up wrongly"
        waiting = {number: span for queue in self.waiting.values() for number, span in queue.items()}
        assert self.num_waiting == len(waiting), "the tasks that wait for a comparison were miscounted"
        for place, queue in self.waiting.items():
            assert queue, "an empty queue was kept"
            assert all(self._place(span) == place for span in queue.values()), "a task waits in a wrong queue"
        for number, span in self.tasks.items():
            assert (span.first, span.count) == (number, 1), f"{span}: it has answers as task {number}"
            state = TaskState.ANSWERED if span.sid is None else TaskState.REPEATING
            assert span.state is state, f"{span}: it has answers, is at {span.sid}, and is {span.state.name}"
            assert (waiting.get(number) is span) == (span.sid is None), f"{span}: it waits and is at {span.sid}"


def _divided(group: messages.Results, frames: Sequence[Buffer]) -> Iterator[tuple[messages.Results, Sequence[Buffer]]]:
    """Divide a group into groups of one result. It is halved again and again, because each step reads a whole group."""
    count = len(group.seconds)
    if count == 1:
        yield group, frames
        return
    for half in (range(count // 2), range(count // 2, count)):
        yield from _divided(*groups.select(group, frames, half))


def _answer(record: records.AnswersKept, attempt: int, group: messages.Results, frames: Sequence[Buffer]) -> Answer:
    """Make an answer of a group with one result."""
    (entry,), _ = groups.entries(group, frames)
    mark, why_not = mark_of(entry, again=bool(group.again))
    return Answer(record.sid, record.host, attempt, group.seconds[0], bool(group.failed), mark, why_not, group, frames)
