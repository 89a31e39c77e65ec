"""Tasks that end without a value: too large ones fail, others are cancelled or handed back as unrunnable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from attrs import define

from mwpy._core.holding import TaskIds, divided
from mwpy._core.master.spans import Span, portion_of, size_of
from mwpy._core.master.state import MasterState
from mwpy._core.master.tasks import Needs
from mwpy._values import records
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.errors import DependencyFailed, TaskCancelled, TaskFailed
from mwpy._values.records import Charge, TaskRange
from mwpy._values.task import Origin, Result, TaskState, UnrunnableTask

NO_SLAVE = SlaveId("")


@define(eq=False, repr=False)
class HandBack:
    """Ends tasks that no slave will run."""

    state: MasterState

    def small_enough(self, spans: Sequence[Span]) -> list[Span]:
        """The tasks whose arguments do not exceed the limit in bytes; the others fail."""
        limit = self.state.settings.max_call_bytes
        good: list[Span] = []
        for span in spans:
            if (portion_of(span) and size_of(span) <= limit) or max(span.sizes()) <= limit:
                good.append(span)
                continue
            for single in span.singles():
                (size,) = single.sizes()
                if size <= limit:
                    good.append(single)
                else:
                    self._fail(
                        single,
                        f"its arguments are {size} bytes, the limit is {limit} bytes "
                        f"(--mw-max-write-buffer-size): pass a file name, or raise the limit",
                    )
        return good

    def _fail(self, single: Span, reason: str) -> None:
        """Fail a task at its submission, or while it is blocked, because it is too large."""
        self.state.record(records.TasksFailed([single.whole], reason))
        self._give_failure(single, TaskFailed(single.algorithm.name, None, "TaskTooLarge", reason))

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

    def is_small_enough(self, blocked: Span, added_bytes: int) -> bool:
        """Whether a blocked task does not exceed the limit together with the values that it needs; if it does, it
        fails."""
        (size,), limit = blocked.sizes(), self.state.settings.max_call_bytes
        if size + added_bytes > limit:
            self._fail(
                blocked,
                f"its arguments are {size + added_bytes} bytes together with the results that it needs, the limit is "
                f"{limit} bytes (--mw-max-write-buffer-size): return file names, or raise the limit",
            )
        return size + added_bytes <= limit

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
        """Make tasks unrunnable: tasks that a slave held, or the first tasks that wait for this slave.

        Args:
            sid: the slave; `NO_SLAVE` for tasks that no slave holds, and that are addressed to none.
            host: the machine of the slave, if it held the tasks.
            seconds: how long they ran at most.
            used_up: whether they lost all attempts that their policy allows by their own fault.
        """
        for span in self.state.record(records.TasksGivenUp(sid, held, tasks, reason, charges, used_up)):
            origin = Origin(span.algorithm.name, sid or None, host, span.sent, self.state.wall)
            self._give_back(span, origin, reason, seconds)

    def _give_back(self, span: Span, origin: Origin, reason: str, seconds: float = 0.0) -> None:
        buffers = span.buffers or repeat(())
        actions = self.state.actions
        (actions.unrunnable if span.owner is None else actions.ended(span.owner)).extend(
            UnrunnableTask(
                TaskId(number),
                span.algorithm.name,
                span.policy.sid,
                tag,
                reason,
                span.deaths,
                payload,
                own,
                origin,
                seconds,
            )
            for number, tag, payload, own in zip(span.ids, span.tags, span.payloads, buffers, strict=False)
        )

    def forbid(self, new: Span, reason: str) -> None:
        """Make new tasks unrunnable, because of what happened to them in a former generation."""
        self.state.record(records.TasksForbidden(new.whole, new.keys, reason))
        self._give_back(new, Origin(new.algorithm.name, None, None, 0, self.state.wall), reason)

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
        cancelled = [span for span in held if span.state is TaskState.CANCELLING]
        others = [span for span in held if span.state is not TaskState.CANCELLING]
        finish = self.state.let_givers_finish(TaskIds((span.first, span.count) for span in cancelled), sid)
        if ended := [span.whole for span, may_finish in divided(cancelled, finish) if not may_finish]:
            self.cancel(sid, ended, when)
        return others

    def release_addressed(self, sid: SlaveId, why: str) -> None:
        """Decide about all pending tasks that are addressed to a slave, because the slave will not run them. Those that
        are delayed stay so until their pauses are over."""
        while queue := self.state.jar.pending.special.get(Needs(sid=sid)):
            self.release(sid, queue[0], f"{sid}, to which it was addressed, {why}")

    def release_orphans(self, spans: Iterable[Span], why: str) -> None:
        """Decide about tasks that have become pending, and that are addressed to slaves that are not there."""
        for sid in dict.fromkeys(span.policy.sid for span in spans):
            if sid is not None and sid not in self.state.members.slaves:
                self.release_addressed(sid, why)

    def release(self, sid: SlaveId, first: Span, reason: str) -> None:
        """Decide about the first tasks that are addressed to a slave, by their policy: the slave will not run them."""
        if first.policy.do_it_anyway:
            self.state.record(records.TasksUnaddressed(sid, [first.whole]))
        else:
            self.give_up(sid, [first.whole], reason, held=False)
