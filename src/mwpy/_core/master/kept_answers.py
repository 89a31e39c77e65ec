"""Gives kept answers to the algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from mwpy._core.holding import TaskIds
from mwpy._core.master.answered import Answer
from mwpy._core.master.doubts import Doubts
from mwpy._core.master.failed_calls import FailedCall
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._core.master.totals import Totals
from mwpy._values import groups, messages, records
from mwpy._values.failures import kind_of
from mwpy._values.records import TaskRange
from mwpy._values.task import Origin, Result

__all__ = ["KeptAnswers"]


class KeptAnswers(Struct, eq=False):
    """Gives out answers."""

    state: MasterState
    kinds: SlaveKinds
    totals: Totals
    doubts: Doubts

    def release_named(self, ids: TaskIds, why: str) -> None:
        """Give out the first answers to these tasks, although they were not confirmed."""
        self.release([span for span in self.state.jar.answered.tasks.values() if any(ids.among(span))], why)

    def release(self, spans: Iterable[Span], why: str) -> None:
        """Give out the first answers to these tasks, although they were not confirmed."""
        tasks: list[TaskRange] = []
        for span in list(spans):
            answer = self.state.jar.answered.answers[span.first][0]
            tasks.append(span.part(span.first, 1, answer.attempt))
            self.doubts.given(answer.host, [span])
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
        (value,), (buffers,) = groups.entries(answer.result, answer.frames)
        origin = Origin(name, answer.sid, answer.host, span.sent, self.state.wall)
        actions.results.append(Result(span.first, origin, span.tags[0], answer.seconds, answer.failed, value, buffers))
        actions.result_bytes += answer.size
        if not answer.failed:
            span.algorithm.succeed(1, answer.seconds)
        kinds = [kind_of(value.pickle)] if answer.failed else ()
        self.totals.finished(span, answer.host, answer.seconds, answer.seconds, int(answer.failed), kinds)
        for _, peak in answer.result.peaks:
            self.totals.measured(name, answer.host, peak)
        if answer.failed:
            own = span.buffers[0] if span.buffers else ()
            actions.failed.append(FailedCall(span.first, span.algorithm.record, span.payloads[0], own))
