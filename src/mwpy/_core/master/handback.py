"""Decides about tasks that no slave has: they fail, pause, wait, are cancelled, or are handed back as unrunnable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import repeat

from attrs import Factory, define

from mwpy._core.holding import TaskIds
from mwpy._core.master.members import SERVING, ConnectedAgent
from mwpy._core.master.spans import Span, named, numbers_in, portion_of, size_of
from mwpy._core.master.state import (
    CancelTasks,
    GiveResult,
    HoldResults,
    MasterState,
    ReleaseResults,
    ResultRead,
    Running,
)
from mwpy._core.master.tasks import Needs
from mwpy._values import records
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.errors import DependencyFailed, TaskCancelled, TaskFailed
from mwpy._values.phrases import amount, counted, first_of
from mwpy._values.records import Charge, TaskRange
from mwpy._values.task import Origin, Result, StoredAt, TaskState, UnrunnableTask

NO_SLAVE = SlaveId("")

REFERENCES_BYTES = 1 << 30
"""When all results that are kept take more bytes, a notice says so."""

_REFERENCE_ADVICE = (
    "the results that are kept for mwpy.result take more than {} of the master's memory: write large results to files "
    "and return their names, or fetch results to which no other task will refer"
)


@define(eq=False, repr=False)
class HandBack:
    """Returns tasks, and ends those that no slave will run."""

    state: MasterState
    _ends: list[tuple[float, int, int]] = Factory(list)
    """A heap of the ends of pauses: when, on the core's clock, and the id and the last attempt of the task. Those of
    tasks that were cancelled or given up are outdated."""
    stored: dict[int, StoredAt] = Factory(dict)
    """Where those results are in the run database that are kept, and for which no task has waited yet."""

    # ---- tasks that fail or are given up ------------------------------------------------------------------------

    def end_too_large(self, spans: Sequence[Span]) -> None:
        """Those new tasks fail whose arguments exceed the limit in bytes."""
        limit = self.state.settings.max_call_bytes
        for span in spans:
            if (not portion_of(span) or size_of(span) > limit) and max(span.sizes()) > limit:
                for single in span.singles():
                    self.fits(single)

    def fits(self, single: Span, added_bytes: int = 0) -> bool:
        """Whether the arguments of a task do not exceed the limit in bytes, with the values that it needs if it is
        blocked. If they do, it fails."""
        (size,), limit, is_blocked = single.sizes(), self.state.settings.max_call_bytes, bool(single.refers)
        if size + added_bytes <= limit:
            return True
        more = " together with the results that it needs" if is_blocked else ""
        reason = (
            f"its arguments are {size + added_bytes} bytes{more}, the limit is {limit} bytes "
            f"(--mw-max-write-buffer-size): {'return' if is_blocked else 'pass'} file names, or raise the limit"
        )
        self.state.record(records.TasksFailed([single.whole], reason))
        self._give_failure(single, TaskFailed(single.algorithm.name, None, "TaskTooLarge", reason))
        return False

    def fail_dependent(self, single: Span, number: int, cause: str, root: int) -> None:
        """Fail a blocked task that refers to the result of the task `number`, which has none.

        Args:
            cause: which task did not end well, and why.
            root: the id of that task.
        """
        reason = f"it needs the result of task {number}, but {cause}"
        self.state.record(records.TasksFailed([single.whole], reason, root, cause))
        failure = DependencyFailed(single.algorithm.name, None, "DependencyFailed", reason)
        failure.dependency, failure.cause = root, cause
        self._give_failure(single, failure)

    def _give_failure(self, single: Span, failure: TaskFailed) -> None:
        name = single.algorithm.name
        origin = Origin(name, None, None, 0, self.state.wall)
        self.state.actions.ended(single.owner).append(
            Result(single.first, origin, single.tags[0], 0.0, True, _value=failure)
        )

    def give_up(
        self,
        sid: SlaveId,
        tasks: Sequence[TaskRange],
        reason: str,
        *,
        held: bool,
        host: str | None = None,
        charges: tuple[Charge, ...] = (),
        seconds: float = 0.0,
        used_up: bool = False,
    ) -> None:
        """Make tasks unrunnable: tasks that a slave held, or that no slave holds.

        Args:
            sid: the slave; `NO_SLAVE` for tasks that no slave holds, and that are addressed to none.
            host: the machine of the slave, if it held the tasks.
            seconds: how long they ran at most.
            used_up: whether they lost all attempts that their policy allows by their own fault.
        """
        actions = self.state.actions
        for span in self.state.record(records.TasksGivenUp(sid, held, tasks, reason, charges, used_up)):
            name, address = span.algorithm.name, span.policy.sid
            origin = Origin(name, sid or None, host, span.sent, self.state.wall)
            ended = actions.unrunnable if span.owner is None else actions.ended(span.owner)
            columns = zip(span.ids, span.tags, span.payloads, span.buffers or repeat(()), strict=False)
            for number, tag, payload, buffers in columns:
                why = reason, span.deaths, payload, buffers, origin, seconds
                ended.append(UnrunnableTask(TaskId(number), name, address, tag, *why))

    def cancel(self, sid: SlaveId | None, tasks: Sequence[TaskRange], when: str, *, discard: bool = False) -> None:
        """Cancel tasks: tasks that a slave held, or pending tasks.

        Args:
            sid: the slave that held the tasks; None if they were pending.
            when: how far they were, as the end of a sentence.
            discard: do not give the tasks to the algorithm.
        """
        for span in self.state.record(records.TasksCancelled(sid, tasks, when)):
            if not discard:
                name = span.algorithm.name
                text = f"it was cancelled {when}"
                slave = self.state.members.slaves.get(sid) if sid is not None else None
                host = slave.agent.host if slave is not None else None
                origin = Origin(name, sid, host, span.sent, self.state.wall)
                self.state.actions.ended(span.owner).extend(
                    Result(number, origin, tag, 0.0, True, _value=TaskCancelled(name, sid, "TaskCancelled", text))
                    for number, tag in zip(map(TaskId, span.ids), span.tags, strict=True)
                )

    def without_cancelled(self, sid: SlaveId, held: Sequence[Span], when: str) -> list[Span]:
        """Cancel those of the tasks that a slave no longer holds which must not be sent again. Return the others."""
        others = [span for span in held if span.state is not TaskState.CANCELLING]
        if ended := [span.whole for span in held if span.state is TaskState.CANCELLING]:
            self.cancel(sid, ended, when)
        return others

    def release_addressed(self, sid: SlaveId, why: str) -> None:
        """Decide about all pending tasks that are addressed to a slave, because the slave will not run them. Those that
        are delayed stay so until their pauses are over."""
        self.release(sid, [*self.state.jar.pending.special.get(Needs(sid=sid), ())], why)

    def release_orphans(self, spans: Iterable[Span], why: str) -> None:
        """Decide about tasks that have become pending, and that are addressed to slaves that are not there."""
        for sid in dict.fromkeys(span.policy.sid for span in spans):
            if sid is not None and sid not in self.state.members.slaves:
                self.release_addressed(sid, why)

    def release(self, sid: SlaveId, spans: Sequence[Span], why: str) -> None:
        """Decide about pending tasks that are addressed to a slave, by their policy: the slave will not run them."""
        if anyway := [span.whole for span in spans if span.policy.do_it_anyway]:
            self.state.record(records.TasksUnaddressed(sid, anyway))
        if others := [span.whole for span in spans if not span.policy.do_it_anyway]:
            self.give_up(sid, others, f"{sid}, to which it was addressed, {why}", held=False)

    # ---- tasks that pause before their next attempt -------------------------------------------------------------
    #
    # A task pauses if its policy has `after` and its attempt was lost by its own fault: what was wrong, such as a
    # server that is overloaded, may be right later. The pause doubles with each such loss. A delayed task needs no
    # slave, and does not count as pending. Tasks that wait for agents of a former master have no end here.

    def give_back(
        self,
        sid: SlaveId,
        tasks: Sequence[TaskRange],
        reason: str,
        charges: tuple[Charge, ...] = (),
        pause_s: float = 0,
    ) -> Sequence[Span]:
        """Return tasks that a slave held. They are pending again after a pause, in seconds.

        Returns:
            The returned tasks.
        """
        spans = self.state.record(records.TasksReturned(sid, tasks, reason, charges, pause_s))
        if pause_s:
            for span in spans:
                heappush(self._ends, (self.state.now + pause_s, span.first, span.attempt))
        return spans

    def decide_pauses(self, now: float) -> None:
        """End the pauses that are over."""
        due: list[TaskRange] = []
        while (end_at := self.deadline) is not None and end_at <= now:
            due.append(self.state.jar.delayed[heappop(self._ends)[1]].whole)
        if due:
            self.release_orphans(self.state.record(records.TasksDue(due)), "is gone")

    @property
    def deadline(self) -> float | None:
        """When the next pause ends, on the core's clock; None if no task is delayed."""
        while self._ends and not self._is_valid(self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def end_of(self, task: int) -> float | None:
        """When the pause of a delayed task ends, on the core's clock; None if it has none."""
        return next((end[0] for end in self._ends if end[1] == task and self._is_valid(end)), None)

    def _is_valid(self, end: tuple[float, int, int]) -> bool:
        _, number, attempt = end
        span = self.state.jar.delayed.get(number)
        return span is not None and span.attempt == attempt

    # ---- tasks that all slaves refuse ---------------------------------------------------------------------------
    #
    # If other slaves can join, for example from a batch system, such tasks wait for them, and `Silence` says so. A
    # master that only has slaves on its own machine would wait forever, so its tasks are handed back as unrunnable.
    #
    # A slave that was not asked yet may be able to run the algorithm, for example because it loads a file that was
    # corrected. So nothing is handed back while slaves are started or replaced, unless their agent refuses the
    # algorithm for all of them.

    def decide_refused(self) -> None:
        """Hand back the pending tasks of all algorithms that every slave refuses, if no other slave can join."""
        pending, members = self.state.jar.pending, self.state.members
        if members.away or not (members.some_refused and self.state.settings.only_here):
            return
        tables = [*_refused(members.agents.values())]
        for number, queue in [*pending.unaddressed()] if tables else []:
            if all(number in table for table in tables):
                why = f"no slave can run it, and only slaves on this machine can join: {tables[0][number]}"
                self.give_up(NO_SLAVE, [span.whole for span in queue], why, held=False)

    # ---- tasks that are cancelled, wherever they are ------------------------------------------------------------
    #
    # A pending, blocked or delayed task is cancelled at once. A task that a slave holds is also cancelled at once, if
    # running tasks are killed: the master does not wait for the agent. It sends one message to each agent that has such
    # tasks, and ignores what the agent still sends for them. The agent takes back tasks that have not started, and
    # kills the slave if it has to.
    #
    # If running tasks may finish, only the agent knows which tasks have started. Until the agent answers or the task
    # ends, the task is CANCELLING. If such a task comes back unfinished for any reason, it is cancelled then.

    def cancel_some(self, command: CancelTasks) -> None:
        """Cancel the tasks that have not ended, and answer which these are."""
        found = self.cancel_all(TaskIds(command.ranges), command.running)
        self.state.actions.cancelled.append((command, sorted(map(TaskId, numbers_in(found)))))

    def cancel_all(self, ids: TaskIds, running: Running) -> list[TaskRange]:
        """Cancel those tasks with these ids that have not ended, and return them."""
        discard, finish = running is Running.DISCARD, running is Running.FINISH
        jar, found = self.state.jar, list[TaskRange]()
        runs = self.state.given_away() if running is Running.LEAVE else TaskIds(())
        for spans, when in (
            (jar.pending.spans(), "before it was sent to a slave"),
            (jar.delayed.values(), "in the pause before its next attempt"),
            (jar.blocked.tasks.values(), "while it waited for the results of other tasks"),
        ):
            if waiting := named([span for span in spans if not any(runs.among(span))], ids):
                self.cancel(None, waiting, when, discard=discard)
                found += waiting
        if running is Running.LEAVE:
            return found
        for agent in self.state.members.agents.values():
            cancelled: list[TaskRange] = []
            for slave in agent.slaves.values():
                held = named(slave.held.spans, ids)
                found += held
                cancelled += held
                if finish:
                    allocated = (span for span in slave.held.spans if span.state is TaskState.ALLOCATED)
                    if not_again := named(allocated, ids):
                        self.state.record(records.TasksCancelling(slave.sid, not_again))
                elif held:
                    self.cancel(slave.sid, held, f"while {slave.sid} had it", discard=discard)
                    self.state.settle(slave, killed=True)
            if cancelled:
                self.state.cancel_at(agent, cancelled, kill=not finish)
        return found

    # ---- tasks that refer to the results of others --------------------------------------------------------------
    #
    # The algorithm says to which results it will refer before it submits a task that does so, and when it has fetched
    # them. Such a task is blocked at its submission. As soon as all values are here, it is pending. As soon as one of
    # the other tasks has ended without a value, it fails: it would never run. Then tasks that refer to its own result
    # fail, too.

    def hold(self, command: HoldResults) -> None:
        """Keep the results of those tasks that have not ended, and answer which these are."""
        ends = self.state.jar.ends
        held = [number for number in command.numbers if not ends.has(number)]
        if held:
            self.state.record(records.ResultsHeld(held))
        self.state.actions.cancelled.append((command, [TaskId(number) for number in held]))

    def give(self, command: GiveResult) -> None:
        """Keep the result of a task that has ended, if it did not come in time. The algorithm has not fetched it."""
        known = self.state.jar.blocked.results.get(command.number)
        if known is not None and known.is_held and (known.is_here or known.cause):
            return
        if command.stored is None:
            self._give(command)
            return
        self.state.record(records.ResultsHeld([command.number]))
        self.stored[command.number] = command.stored
        if self.state.jar.blocked.results[command.number].waiting:
            self.ask_for([command.number])

    def ask_for(self, numbers: Sequence[int]) -> None:
        """Read the values of those of these tasks that are in the run database only: a task waits for them."""
        for number in numbers:
            if (stored := self.stored.pop(number, None)) is not None:
                self.state.actions.reads.append((number, stored))

    def take_value(self, command: ResultRead) -> None:
        """Take over a value that was read. Meanwhile, the algorithm may have fetched it, and its tasks have ended."""
        result = self.state.jar.blocked.results.get(command.number)
        if result is not None:
            is_held = result.is_held
            self._give(command)
            if not is_held:
                self.state.record(records.ResultsReleased([command.number]))

    def _give(self, command: GiveResult) -> None:
        self.state.record(records.ResultGiven(command.number, command.frames, command.cause, command.root))

    def release_results(self, command: ReleaseResults) -> None:
        """The algorithm has fetched these results."""
        for number in command.numbers:
            self.stored.pop(number, None)
        results = self.state.jar.blocked.results
        held = [number for number in command.numbers if number in results and results[number].is_held]
        if held:
            self.state.record(records.ResultsReleased(held))

    def decide_blocked(self) -> None:
        """Let blocked tasks be pending that have all values, and let those fail that never will."""
        blocked = self.state.jar.blocked
        if blocked.bytes > REFERENCES_BYTES:
            self.state.notice(_REFERENCE_ADVICE.format(amount(REFERENCES_BYTES)), key=_REFERENCE_ADVICE)
        ended: dict[str, list[str]] = {}
        while blocked.ripe:  # each turn has the tasks that need those of the turn before: a chain needs no recursion
            ready: list[TaskRange] = []
            for task in sorted(blocked.ripe):
                span = blocked.tasks[task]
                missing = blocked.missing(span)
                if missing is not None:
                    number, result = missing
                    ended.setdefault(result.cause, []).append(str(task))
                    self.fail_dependent(span, number, result.cause, result.root)
                elif self.fits(span, blocked.added_bytes(span)):
                    ready.append(span.whole)
            if ready:
                spans = self.state.record(records.TasksUnblocked(ready))
                self.release_orphans(spans, "is gone or never was")
        for cause, tasks in ended.items():
            these = f"{counted(len(tasks), 'task')} that {'needs' if len(tasks) == 1 else 'need'} its result"
            self.state.notice(f"{cause}; {these} will not run: {first_of(tasks, len(tasks))}", key=cause)


def _refused(agents: Iterable[ConnectedAgent]) -> Iterator[dict[int, str]]:
    """Yield what each slave refuses. What a slave refuses that is not ready yet, its agent knows."""
    for agent in agents:
        if agent.leaving:
            yield {}  # another one may replace it
        if agent.coming:
            yield agent.refused
        for slave in agent.slaves.values():
            yield slave.refused if slave.state in SERVING else agent.refused
