"""Cancels tasks, wherever they are.

A pending, blocked or delayed task is cancelled at once. A task that a slave holds is also cancelled at once, if running
tasks are killed: the master does not wait for the agent. It sends one message to each agent that has such tasks, and
ignores what the agent still sends for them. The agent takes back tasks that have not started, and kills the slave if it
has to.

If running tasks may finish, only the agent knows which tasks have started. Until the agent answers or the task ends,
the task is CANCELLING. If such a task comes back unfinished for any reason, it is cancelled then.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.holding import TaskIds
from mwpy._core.master.attempts import without_extra
from mwpy._core.master.commands import CancelTasks, Running
from mwpy._core.master.handback import HandBack
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.spans import named
from mwpy._core.master.state import MasterState
from mwpy._values import messages, records
from mwpy._values.ids import TaskId
from mwpy._values.records import TaskRange
from mwpy._values.task import TaskState

__all__ = ["Cancellation"]


class Cancellation(Struct, eq=False):
    """Does what `CancelTasks` asks for."""

    state: MasterState
    kinds: SlaveKinds
    handback: HandBack

    def cancel(self, command: CancelTasks) -> None:
        """Cancel the tasks that have not ended, and answer which these are."""
        found = self.end(TaskIds(command.ranges), command.running)
        unended = {TaskId(each.first + at) for each in found for at in range(each.count)}
        self.state.actions.cancelled.append((command, sorted(unended)))

    def end(self, ids: TaskIds, running: Running) -> list[TaskRange]:
        """Cancel those tasks with these ids that have not ended, and return them."""
        discard = running is Running.DISCARD
        waiting = named(self.state.jar.pending.spans(), ids)
        if waiting:
            self.handback.cancel(None, waiting, "before it was sent to a slave", discard=discard)
        delayed = named(self.state.jar.delayed.tasks.values(), ids)
        if delayed:
            self.handback.cancel(None, delayed, "in the pause before its next attempt", discard=discard)
        blocked = named(self.state.jar.blocked.tasks.values(), ids)
        if blocked:
            self.handback.cancel(None, blocked, "while it waited for the results of other tasks", discard=discard)
        found = [*waiting, *delayed, *blocked]
        for agent in self.state.members.agents.values():
            held: list[TaskRange] = []
            for slave in agent.slaves.values():
                mine = named(slave.held.spans, ids)
                if not mine:
                    continue
                held += mine
                if running is Running.FINISH:
                    self._let_finish(slave, ids)
                else:
                    when = f"while {slave.sid} had it"
                    if last := without_extra(self.state, slave.sid, mine, f"it was cancelled {when}"):
                        self.handback.cancel(slave.sid, last, when, discard=discard)
                    self.kinds.unload(slave)
            if held:
                ascending = sorted(held, key=lambda each: each.first)
                firsts, counts = [each.first for each in ascending], [each.count for each in ascending]
                self.state.send(agent, messages.Cancel(firsts, counts, kill=running is not Running.FINISH))
            found += held
        return found

    def _let_finish(self, slave: ConnectedSlave, ids: TaskIds) -> None:
        """Do not send the tasks again that a slave holds."""
        tasks = named((span for span in slave.held.spans if span.state is TaskState.ALLOCATED), ids)
        if tasks:
            self.state.record(records.TasksCancelling(slave.sid, tasks))
