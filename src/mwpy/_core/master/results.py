"""Takes over what slaves send: results, states, reports, unstarted tasks; and lets waiting tasks go on.

Takes over results that slaves send, and unstarted tasks that they give back.

A result counts only if its slave holds the task in this attempt, or held it until the task was given to another slave.
Then it counts if it is a value and the task has not ended. So results that an old connection still delivers, or that
arrive twice, change nothing.

If the slave says that a task is to be tried again after its exception (the policy `retry_errors`), and the task has
attempts left, then its attempt is lost, and the algorithm gets no result.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

from attrs import define

from mwpy._core.holding import TaskIds, divided, places_of, take, take_named
from mwpy._core.master import dispatch
from mwpy._core.master.algorithms import FailedCall
from mwpy._core.master.handback import HandBack
from mwpy._core.master.hosts import Hosts
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.spans import Span, portion_of
from mwpy._core.master.state import MasterState, TakeReports
from mwpy._core.master.totals import Totals
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer, TaskId
from mwpy._values.causes import Cause
from mwpy._values.errors import ProtocolError
from mwpy._values.groups import Stretch
from mwpy._values.messagepack import FAILURE, Pickled
from mwpy._values.messages import Report
from mwpy._values.phrases import amount
from mwpy._values.records import Charge, TaskRange
from mwpy._values.task import Origin, Result, TaskState, headline, kind_of

RESULT_BYTES = 200
"""About how many bytes a result takes without its value."""

VALUE_BYTES = 40
"""About how many bytes a value takes that comes without a result."""

_result: type[Result[object]] = Result


@define(eq=False, repr=False)
class Results:
    """Takes over results and returned tasks."""

    state: MasterState
    handback: HandBack
    totals: Totals
    hosts: Hosts

    def receive(self, slave: ConnectedSlave, group: messages.Results, frames: Sequence[Buffer], now: float) -> None:
        """Take over a group of results.

        Raises:
            ProtocolError: the frames are not what the group says, or values stay that should not; the agent's fault.
        """
        values, buffers = groups.entries(group, frames)
        if group.failed:
            check_failures(group, values)
        if slave.given_back:
            self._reclaim(slave, group, now)
        counting = sorted(chain.from_iterable(take_named(deque(slave.held.spans), group)))
        if not counting:
            return
        if len(counting) < len(values):
            group, frames = groups.select(group, frames, counting)
            values, buffers = groups.entries(group, frames)
        if group.again:
            group, frames = self._try_again(slave, group, frames, values)
            values, buffers = groups.entries(group, frames)
        if values:
            self._give_out(slave, group, frames, values, buffers)
        slave.last_heard = now
        slave.gave_nothing_back = slave.runs_ended = False
        slave.agent.has_finished = True
        self.state.settle(slave)

    def _give_out(
        self,
        slave: ConnectedSlave,
        group: messages.Results,
        frames: Sequence[Buffer],
        values: list[Any],
        buffers: Sequence[Sequence[Buffer]],
    ) -> None:
        """Give the results of tasks to the algorithm."""
        actions, num = self.state.actions, len(values)
        size = sum(map(len, frames)) + (VALUE_BYTES if group.plain else RESULT_BYTES) * num
        failed = [False] * num
        for position in group.failed:
            failed[position] = True
        host = slave.agent.host
        spans = self.state.record(records.ResultsReceived(slave.sid, group, frames))
        actions.result_bytes += size
        seconds_of: defaultdict[int, list[float]] = defaultdict(lambda: [0, 0.0])
        is_timed = len(group.seconds) == num
        all_small = group.plain or not (group.failed or group.buffers)
        mean_s = group.seconds[0] if is_timed else group.seconds[0] / num
        for span, start in zip(spans, places_of(spans, group), strict=True):
            own, num_failed = slice(start, start + span.count), 0
            seconds = group.seconds[own] if is_timed else [mean_s] * span.count
            total_s = sum(seconds) if is_timed else mean_s * span.count
            origin = Origin(span.algorithm.name, slave.sid, host, span.sent, self.state.wall)
            if all_small and portion_of(span):
                times = group.seconds[own] if is_timed else [total_s]
                part = size * span.count // num
                values_of = values[own], span.tags[0], origin, times, part, group.plain
                actions.ended(span.owner).append(Stretch(span.first, *values_of))
            else:
                columns = (span.ids, repeat(origin), span.tags, seconds, failed[own], values[own])
                actions.ended(span.owner).extend(map(_result, *columns, buffers[own] or repeat(())))
                num_failed = sum(failed[own]) if group.failed else 0
            kinds = (
                [kind_of(values[at].pickle) for at in range(own.start, own.stop) if failed[at]] if num_failed else ()
            )
            learned = seconds_of[span.algorithm.number]
            learned[0] += span.count
            learned[1] += total_s
            longest_s = max(seconds) if is_timed else mean_s
            self.totals.finished(span, host, total_s, longest_s, num_failed, kinds)
            if num_failed or self.hosts.suspicions:
                example = headline(values[start + failed[own].index(True)].pickle) if num_failed else ""
                self.hosts.ended(span, host, span.count, num_failed, example)
            if num_failed:
                self._keep_calls(span, failed[own])
                total_s = sum(each for each, ill in zip(seconds, failed[own], strict=True) if not ill)
            span.algorithm.succeed(span.count - num_failed, total_s)
        in_stretches = all_small and portion_of(spans[0])
        self._learn(slave, seconds_of, dispatch.STRETCH_OVERHEAD_S if in_stretches else dispatch.OVERHEAD_S)

    def _try_again(
        self, slave: ConnectedSlave, group: messages.Results, frames: Sequence[Buffer], values: Sequence[Any]
    ) -> tuple[messages.Results, Sequence[Buffer]]:
        """Return those tasks that are tried again after their exceptions. Return the group of all other results."""
        numbers = [number for number, _ in groups.each_task(group)]
        places = {numbers[place]: place for place in group.again}
        ids, tried_again = TaskIds((number, 1) for number in places), set[int]()
        returned: dict[tuple[str, float], list[TaskRange]] = {}
        for span in slave.held.spans:
            if span.state is TaskState.ALLOCATED and span.policy.retries_errors and not span.is_last_attempt:
                pause_s = span.next_pause_s
                for number in (first + at for first, count in ids.among(span) for at in range(count)):
                    place = places[number]
                    what = headline(values[place].pickle)
                    returned.setdefault((what, pause_s), []).append(span.part(number, 1, span.attempt))
                    self.totals.lost(span, slave.agent.host, Cause.ERROR, 1, *groups.seconds_at(group, [place]))
                    self.hosts.ended(span, slave.agent.host, 1, 1, what)
                    tried_again.add(place)
        for (what, pause_s), tasks in returned.items():
            lost_s = sum(groups.seconds_at(group, [places[task.first] for task in tasks]))
            reason, loss = f"it raised {what}", Charge(slave.sid, Cause.ERROR, what, lost_s=lost_s)
            self.handback.give_back(slave.sid, tasks, reason, (loss,), pause_s)
        return groups.select(group, frames, [place for place in range(len(numbers)) if place not in tried_again])

    def _reclaim(self, slave: ConnectedSlave, group: messages.Results, now: float) -> None:
        """A slave has answered tasks that were given to others. It has them again if they have values."""
        numbers = [number for number, _ in groups.each_task(group)]
        failures = TaskIds((numbers[place], 1) for place in group.failed)
        taken = take(slave.given_back, groups.named_in(group))
        self.state.reclaim(slave, [span for span, has_failed in divided(taken, failures) if not has_failed])
        if taken:
            slave.last_heard = now

    def _keep_calls(self, span: Span, failed: Sequence[bool]) -> None:
        """Give out the calls of the tasks that failed."""
        payloads, buffers = span.payloads, span.buffers or repeat(())
        if span.left is not None:
            payload, own = span.resumed(span.left)
            payloads, buffers = (payload,), (own,)
        columns = zip(span.ids, payloads, buffers, failed, strict=False)
        self.state.actions.failed += [
            FailedCall(task, span.algorithm.record, payload, buffers) for task, payload, buffers, ill in columns if ill
        ]

    def take_back(self, slave: ConnectedSlave, message: messages.Revoked) -> None:
        """Take over unstarted tasks that a slave was asked to give back, or that are cancelled.

        The slave gets no other tasks until its next result arrives, else the same tasks would return to it.
        """
        why = "its result waits behind a long task" if message.late else "taken back unstarted"
        returned = self._return(slave, message, why)
        if not (message.cancelled or message.late):
            slave.asked_back = False
            slave.gave_nothing_back = not returned
        self.state.settle(slave)
        if returned:
            self.state.members.hungry.pop(slave.sid, None)

    def refuse(self, slave: ConnectedSlave, message: messages.AlgorithmFailed) -> None:
        """Take over tasks that a slave cannot run."""
        self._return(slave, message, "its slave cannot run it")
        self.state.settle(slave)

    def _return(
        self, slave: ConnectedSlave, message: messages.Revoked | messages.AlgorithmFailed, reason: str
    ) -> list[Span]:
        held = deque(slave.held.spans)  # a copy, because only the record may change what the slave holds
        named = take(held, groups.named_in(message))
        take(slave.given_back, groups.named_in(message))
        last = self.handback.without_cancelled(slave.sid, named, f"before {slave.sid} started it")
        tasks = [span.whole for span in last]
        return self.state.record(records.TasksReturned(slave.sid, tasks, reason)) if tasks else []

    def _learn(self, slave: ConnectedSlave, seconds_of: Mapping[int, Sequence[float]], overhead_s: float) -> None:
        """Count tasks, and learn how long those of each algorithm take: from their number and the sum of their compute
        times."""
        overall = self.state.members.pace
        for number, (count, total_s) in seconds_of.items():
            slave.finished += int(count)
            slave.busy_s += total_s
            mean = total_s / count
            slave.pace[number] = dispatch.learn(slave.pace.get(number), mean, overhead_s)
            overall[number] = dispatch.learn(overall.get(number), mean, overhead_s)


def check_failures(group: messages.Results, values: Sequence[object]) -> None:
    """Check that each failure of a group has a description.

    Raises:
        ProtocolError: one has none; the agent's fault.
    """
    for position in group.failed:
        value = values[position]
        if type(value) is not Pickled or value.kind != FAILURE:
            raise ProtocolError("Results: a failure without a description")


# Keeps what running tasks leave and report: for each task the newest state for its next attempt, and for each slave the
# newest report until the algorithm asks for it.
#
# Both count only if the slave holds the task in this attempt, as with results. A state is kept until its task ends. The
# master sends it with the arguments of the next attempt, and never reads it. Whether a report counts is looked at again
# when the algorithm asks, after everything else was decided. A slave runs one task at a time, so it has one report. No
# record is made of it.


STATES_BYTES = 1 << 30
"""When all states together take more bytes, a notice says so. The manual names this number."""

_CHECKPOINT_ADVICE = (
    "the states that tasks left with mwpy.checkpoint take more than {} of the master's memory: leave less, or write "
    "the states to files and leave their names"
)


@define(eq=False, repr=False)
class Interim:
    """Keeps the newest state of each task, and the newest report of each slave.

    A state travels with the arguments of the next attempt, behind their large buffers. So agents, and all that divides
    groups of tasks, need not know of it. A state says that a task has come further, so an eviction after it is no step
    towards the limit of evictions. It does not say that the task is harmless: a task of an agent that vanished remains
    a suspect.

    A report is no record, is not sent again, and counts only while its attempt runs: the core keeps it until the
    algorithm asks, because only the core knows then which attempts run. Reports do not wake the algorithm.
    """

    state: MasterState
    asking: TakeReports | None = None
    """The command of an algorithm that waits for the reports."""
    _arrived: int = 0
    """How many reports ever arrived."""

    def state_left(self, slave: ConnectedSlave, message: messages.Checkpoint, frames: Sequence[Buffer]) -> None:
        """Keep a state, unless its task is not at this slave in this attempt, or must not be sent again."""
        self.state.send(slave.agent, messages.CheckpointRead(slave.number))
        span = _running(slave, message.task, message.attempt)
        if span is None:
            return
        task = span.part(message.task, 1, message.attempt)
        self.state.record(records.TaskCheckpointed(slave.sid, task, frames))
        slave.last_left = self.state.now
        if self.state.jar.left_bytes > STATES_BYTES:
            self.state.notice(_CHECKPOINT_ADVICE.format(amount(STATES_BYTES)), key=_CHECKPOINT_ADVICE)

    def reported(self, slave: ConnectedSlave, message: messages.Reported, frames: Sequence[Buffer]) -> None:
        """Keep a report, unless its task is not at this slave in this attempt, or is cancelled."""
        self.state.send(slave.agent, messages.ReportRead(slave.number))
        span = _running(slave, message.task, message.attempt)
        if span is not None:
            task, tag = TaskId(message.task), span.tags[message.task - span.first]
            where = slave.sid, slave.agent.host
            self._arrived += 1
            report = Report(task, tag, message.attempt, *where, message.seconds, bytes(frames[0]))
            slave.report = self._arrived, span.owner, report

    def decide(self) -> None:
        """If the algorithm waits for the reports, give out those of the tasks that still run, the oldest first."""
        if self.asking is None:
            return
        found: list[tuple[int, Any, Report]] = []
        for slave in self.state.members.slaves.values():
            if slave.report is not None and _running(slave, slave.report[2].task_id, slave.report[2].attempt):
                found.append(slave.report)
            slave.report = None
        self.state.actions.reports += [(owner, report) for _, owner, report in sorted(found, key=itemgetter(0))]
        self.state.actions.cancelled.append((self.asking, []))
        self.asking = None


def _running(slave: ConnectedSlave, task: int, attempt: int) -> Span | None:
    """The span with a task that a slave may run in this attempt; None if it does not, or if nobody wants the result."""
    span = next((span for span in slave.held.spans if task in span.ids), None)
    wanted = span is not None and span.attempt == attempt and span.state is TaskState.ALLOCATED
    return span if wanted else None
