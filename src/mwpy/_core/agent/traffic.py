"""Tasks on their way to slaves, and results on their way to the master.

The agent passes groups of tasks on to its slaves at once. When a slave starts a task, it writes this into memory that
its agent can read. The agent can stop the slave from starting more tasks (see `_transport/channel`). So the agent can
take a task back from a slave that is deep in native code. The core asks for a recall (`AgentActions.recall`). The event
`Recalled` says how far the slave got. The core then reports to slave and master which tasks it took back.

A slave that runs a cancelled task is killed, and another slave replaces it. It is killed after a recall: then it cannot
have started the next task, which is not cancelled. But a slave often needs longer to start than the task to finish.
So the slave gets `SPARED_S` first. The master does not wait for this.

A group that is passed on as a whole is not encoded again: its frames are sent as they were received.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.agent.checkpoints import Checkpoints
from mwpy._core.agent.child import Child, ChildState
from mwpy._core.agent.events import Outgoing
from mwpy._core.agent.state import AgentState
from mwpy._core.holding import TaskIds, divided
from mwpy._values import groups, messages, records
from mwpy._values.bounds import MAX_TASKS
from mwpy._values.causes import Cause
from mwpy._values.ids import Buffer
from mwpy._values.messages import LoadFailure

__all__ = ["FAILED_LOADS_ALLOWED", "SPARED_S", "Traffic"]

FAILED_LOADS_ALLOWED = 3
"""When this many slaves in a row cannot load an algorithm, the last one is not replaced. The manual names this number.
"""

SPARED_S = 0.1
"""Seconds that a slave gets to finish a cancelled task before it is killed: less than a fresh slave needs to start."""


class Traffic(Struct, eq=False):
    """Tasks and results that pass through the agent."""

    _state: AgentState
    _checkpoints: Checkpoints

    def pass_on(self, child: Child, group: messages.Tasks, outgoing: Outgoing) -> None:
        """Pass tasks on to a slave. It is ready, and may run them (see `Wear.admit`)."""
        actions = self._state.actions
        if not child.held:
            actions.feed.append(child.number)
        before = child.passed_on
        child.hold(group)
        actions.records.append(records.TasksReceived(child.name, child.passed_on - before))
        actions.to_slaves.append((child.number, outgoing))

    def name(self, child: Child, message: messages.SlaveNamed, received: Sequence[Buffer]) -> None:
        """The master has given a slave its id."""
        child.name = message.sid
        self._state.record(records.SlaveNamed(child.number, message.sid))
        self._state.actions.to_slaves.append((child.number, Outgoing(message, (), received)))

    def revoke(self, child: Child, count: int) -> None:
        """The master wants tasks back: recall them. If the slave holds none, answer at once."""
        if child.held:
            self._state.actions.recall.append((child.number, count))
        else:
            self._state.to_master(messages.Revoked(child.number, [], [], []))

    def cancel(self, message: messages.Cancel) -> None:
        """The master wants no result of some tasks: recall them from the slaves that hold them."""
        ids = _ids_in(message)
        for child in self._state.living():
            if child.former is None and any(named for _, named in divided(child.held, ids)):
                self._state.actions.recall.append((child.number, message))

    def recalled(
        self, child: Child, started: int, wanted: int | messages.Cancel | None, now: float
    ) -> messages.Revoked | None:
        """Take back tasks that a slave has not started. Report them to the slave, and to the master if it waits. Return
        them; None if the slave is killed.

        One message names at most `MAX_TASKS` spans. If there may be more, recall them, too: a slave expects one message
        for each recall.
        """
        if wanted is None:
            if self._end_doomed(child, started):
                return None
            revoked = child.take_back(started, 0)
        elif isinstance(wanted, messages.Cancel):
            revoked = child.cancel(_ids_in(wanted), started, now + SPARED_S if wanted.kill else None)
        else:
            revoked = child.take_back(started, wanted)
        self._state.to_slave(child, revoked)
        is_asked = isinstance(wanted, int) or (wanted is not None and not wanted.kill)
        if is_asked and child.former is None:
            self._state.to_master(revoked)
        more = wanted - sum(revoked.counts) if isinstance(wanted, int) else wanted
        if more and len(revoked.tasks) == MAX_TASKS and child.has_unstarted(started):
            self._state.actions.recall.append((child.number, more))
        return revoked

    def _end_doomed(self, child: Child, started: int) -> bool:
        """Kill a slave if it still runs the task that must not finish, and return whether it does.

        A slave that is killed gets no answer to the recall, so that it starts nothing before it is dead.
        """
        doomed, child.doomed = child.doomed, None
        if doomed is None or doomed.position != started:
            return False
        child.kill(doomed.because, doomed.cause)
        child.killed_at, child.allowed = started, doomed.allowed
        self._state.actions.kill.append(child.number)
        return True

    def results(self, child: Child, group: messages.Results, received: Sequence[Buffer]) -> None:
        """Pass results on, except for tasks that are not held: their results were already read in the journal."""
        kept = child.end(group)
        if not kept:
            return
        self._checkpoints.ended(child, group)
        actions = self._state.actions
        count = sum(map(len, kept))
        actions.records.append(records.ResultsSent(child.name, count))
        passed, frames = group, received[1:]
        if count != sum(group.counts):
            passed, frames = groups.select(group, frames, [*chain.from_iterable(kept)])
        if child.former is not None:
            former = child.former
            actions.to_master.append(Outgoing(messages.Handover(former.generation, former.sid, passed), frames))
            return
        actions.to_master.append(Outgoing(passed, (), received) if passed is group else Outgoing(passed, frames))

    def passes_logged(self, child: Child, message: messages.Message, received: Sequence[Buffer]) -> bool:
        """Pass on what tasks have logged, or their memory, if the message is that. It does not end the silence of the
        slave."""
        has_begun = child.state in (ChildState.READY, ChildState.STOPPING)
        is_passing = isinstance(message, messages.Logged | messages.PeakMemory) and message.slave == child.number
        if not (is_passing and has_begun):
            return False
        self._state.actions.to_master.append(Outgoing(message, (), received))
        return True

    def algorithm_failed(self, child: Child, message: messages.AlgorithmFailed, received: Sequence[Buffer]) -> None:
        """A slave cannot run an algorithm: it no longer holds the tasks that the message names.

        If another slave may succeed, replace it. After several failures in a row, keep the slave for other algorithms.
        """
        child.end(message)
        if message.failure is LoadFailure.PASSING and child.failed_before + 1 >= FAILED_LOADS_ALLOWED:
            self._state.to_master(replace(message, failure=LoadFailure.REPEATED))
            return
        self._state.actions.to_master.append(Outgoing(message, (), received))
        if message.failure is LoadFailure.PASSING and child.is_ready:
            child.load_failed, child.loss = True, Cause.START_UP
            self._state.stop(child, finished=False)


def _ids_in(message: messages.Cancel) -> TaskIds:
    return TaskIds(zip(message.tasks, message.counts, strict=True))
