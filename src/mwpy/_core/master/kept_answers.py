"""Gives kept answers to the algorithm, and remembers which results only one host computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from attrs import define, field

from mwpy._core.holding import TaskIds
from mwpy._core.master.answered import Answer
from mwpy._core.master.failed_calls import FailedCall
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._core.master.totals import Totals
from mwpy._values import messages, records
from mwpy._values.records import TaskRange
from mwpy._values.task import Origin, Result

__all__ = ["RANGES_KEPT", "KeptAnswers"]

RANGES_KEPT = 100_000
"""How many ranges of ids of results are kept, of all hosts together, in case a host is outvoted later. More are only
counted."""


@define(eq=False)
class _Alone:
    """The results that one host alone computed and that the algorithm has got."""

    ranges: deque[tuple[int, int]] = field(factory=deque)
    forgotten: int = 0
    """How many are not in `ranges` any more."""

    def continues(self, first: int, count: int) -> bool:
        """Add results to the last range, if they continue it. Return whether they do."""
        if not self.ranges or sum(self.ranges[-1]) != first:
            return False
        self.ranges[-1] = self.ranges[-1][0], self.ranges[-1][1] + count
        return True

    def forget_oldest(self) -> None:
        self.forgotten += self.ranges.popleft()[1]

    @property
    def count(self) -> int:
        return self.forgotten + sum(count for _, count in self.ranges)


@define(eq=False)
class KeptAnswers:
    """Gives out answers."""

    state: MasterState
    kinds: SlaveKinds
    totals: Totals
    _alone: dict[str, _Alone] = field(factory=dict)
    """By host: the results that it alone computed, and that the algorithm has got."""
    _num_ranges: int = 0
    """How many ranges of ids there are, of all hosts."""

    def given(self, host: str, group: messages.Results) -> None:
        """The algorithm gets results that only this host computed."""
        for first, count in zip(group.tasks, group.counts, strict=True):
            self._add(host, first, count)

    def _add(self, host: str, first: int, count: int) -> None:
        alone = self._alone.setdefault(host, _Alone())
        if alone.continues(first, count):
            return
        if self._num_ranges == RANGES_KEPT:
            oldest = alone if alone.ranges else max(self._alone.values(), key=lambda each: len(each.ranges))
            oldest.forget_oldest()
        else:
            self._num_ranges += 1
        alone.ranges.append((first, count))

    def doubt(self, host: str) -> int:
        """Record which results only this host computed, and return how many these are. They are forgotten then."""
        alone = self._alone.pop(host, None)
        if alone is None or not alone.count:
            return 0
        self._num_ranges -= len(alone.ranges)
        self.state.record(records.ResultsDoubted(host, [*alone.ranges], alone.forgotten))
        return alone.count

    def release_named(self, ids: TaskIds, why: str) -> None:
        """Give out the first answers to these tasks, although they were not confirmed."""
        self.release([span for span in self.state.jar.answered.tasks.values() if any(ids.among(span))], why)

    def release(self, spans: Iterable[Span], why: str) -> None:
        """Give out the first answers to these tasks, although they were not confirmed."""
        tasks: list[TaskRange] = []
        for span in list(spans):
            answer = self.state.jar.answered.answers[span.first][0]
            tasks.append(span.part(span.first, 1, answer.attempt))
            self._add(answer.host, span.first, 1)
        if tasks:
            self.give(tasks, f"not verified, because {why}", is_sure=False)

    def give(self, tasks: Sequence[TaskRange], verdict: str, *, is_sure: bool) -> None:
        """Give the algorithm the answers of these attempts."""
        state = self.state
        answers = [
            next(answer for answer in state.jar.answered.answers[each.first] if answer.attempt == each.attempt)
            for each in tasks
        ]
        sids = [state.jar.answered.tasks[each.first].sid for each in tasks]
        spans = state.record(records.AnswersGiven(tasks, verdict, is_sure))
        for span, answer, sid in zip(spans, answers, sids, strict=True):
            self._give_one(span, answer)
            slave = state.members.slaves.get(sid) if sid is not None else None
            if slave is not None:  # it repeats the task, and nobody waits for this any more
                state.send(slave.agent, messages.Cancel([span.first], [1], kill=False))
                self.kinds.unload(slave)

    def _give_one(self, span: Span, answer: Answer) -> None:
        actions, name = self.state.actions, span.algorithm.name
        (value,), (buffers,) = messages.entries(answer.result, answer.frames)
        origin = Origin(name, answer.sid, answer.host, span.sent, self.state.wall)
        actions.results.append(Result(span.first, origin, span.tags[0], answer.seconds, answer.failed, value, buffers))
        actions.result_bytes += answer.size
        if not answer.failed:
            span.algorithm.succeed(1, answer.seconds)
        self.totals.finished(span, answer.host, answer.seconds, answer.seconds, int(answer.failed))
        for _, peak in answer.result.peaks:
            self.totals.measured(name, answer.host, peak)
        if answer.failed:
            own = span.buffers[0] if span.buffers else ()
            actions.failed.append(FailedCall(span.first, span.algorithm.record, span.payloads[0], own))

    def check(self) -> None:
        """Assert that not too many ids are kept."""
        num_ranges = sum(len(alone.ranges) for alone in self._alone.values())
        assert num_ranges == self._num_ranges <= RANGES_KEPT, "too many ids are kept, or they were miscounted"
