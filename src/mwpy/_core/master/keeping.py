"""Decides about values that stay at agents (the policy `keep`).

A value is released when the algorithm has released it and all tasks that refer to it have ended. It is lost with its
agent, or when its agent reports so. Then the tasks that wait to be sent, and refer to it, are blocked again. The agents
give back those that slaves have and have not started. The lost value is computed again as soon as a blocked task needs
it: its task runs again, and may wait for lost values itself. It is ended when no blocked task needs the value any more.

A value cannot be computed again if its task must not run twice, or if it refers to a value that is released. Then the
tasks that need the value fail.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._core.holding import TaskIds
from mwpy._core.master.cancellation import Cancellation
from mwpy._core.master.commands import Running
from mwpy._core.master.handback import HandBack
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave
from mwpy._core.master.relay import Relay
from mwpy._core.master.spans import named
from mwpy._core.master.state import MasterSettings, MasterState
from mwpy._values import groups, messages, records
from mwpy._values.errors import ProtocolError
from mwpy._values.share_messages import share_of_result, task_of
from mwpy._values.shares import most_bytes
from mwpy._values.task import TaskState

__all__ = ["Keeping", "check_kept"]


class Keeping(Struct, eq=False):
    """Releases values, and lets tasks run again whose values are lost and needed."""

    state: MasterState
    handback: HandBack
    cancellation: Cancellation
    relay: Relay

    # ---- what agents say ---------------------------------------------------------------------------------------

    def received(self, agent: ConnectedAgent, group: messages.Message) -> None:
        """A slave has sent something. If these are results whose values stay, release those that do not count."""
        if not isinstance(group, messages.Results) or not group.kept:
            return
        tasks = [*groups.each_task(group)]
        for place, size in group.kept:
            share = share_of_result(*tasks[place], size)
            result = self.state.jar.blocked.results.get(tasks[place][0])
            if result is None or result.share != share or result.agent != agent.name:
                self.state.send(agent, messages.ShareGone(share.digest))

    def gone(self, agent: ConnectedAgent, message: messages.ShareGone) -> None:
        """An agent says that it does not have a value. It may be released already."""
        number = task_of(message.digest)
        result = self.state.jar.blocked.results.get(number)
        if result is None or result.share is None or result.share.digest != message.digest:
            return
        if result.agent == agent.name:
            self._lose(agent.name, [number], f"{agent.name} has no room for it")

    # ---- deciding ----------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Decide what is lost, released, needed and not needed any more."""
        jar, agents = self.state.jar, self.state.members.agents
        if not (jar.kept.tasks or jar.kept.again or jar.blocked.bereft or self.relay.asked):
            return
        blocked = jar.blocked
        for name in [name for name in blocked.at if name not in agents]:
            self._lose(name, [*blocked.at[name]], f"{name}, which had it, is gone")
        while self._block_users() or self._compute_lost():
            pass
        again = self.state.jar.kept.again
        while useless := [number for number in again if not blocked.results[number].waiting]:
            self.cancellation.end(TaskIds((number, 1) for number in useless), Running.DISCARD)
        self._release()
        self.relay.decide()

    def _lose(self, name: str, numbers: list[int], reason: str) -> None:
        """Values are lost. Take back the tasks that slaves have not started and that need them."""
        blocked = self.state.jar.blocked
        users = TaskIds((task, 1) for task in {task: 0 for number in numbers for task in blocked.results[number].users})
        self.state.record(records.ValuesLost(name, numbers, reason))
        for agent in self.state.members.agents.values():
            held = [task for slave in agent.slaves.values() for task in named(slave.held.spans, users)]
            if held:
                held.sort(key=lambda task: task.first)
                ranges = [task.first for task in held], [task.count for task in held]
                self.state.send(agent, messages.Cancel(*ranges, kill=False))

    def _block_users(self) -> bool:
        """Block pending tasks that refer to values that were lost and are not at an agent again. Return whether there
        are any."""
        jar = self.state.jar
        users = {task: 1 for number in jar.blocked.bereft for task in jar.blocked.results[number].users}
        pending = named(jar.pending.spans(), TaskIds(users.items())) if users else []
        if pending:
            self.state.record(records.TasksBlocked(pending))
        return bool(pending)

    def _compute_lost(self) -> bool:
        """Let tasks run again whose values are lost and needed. Return whether there are any."""
        jar = self.state.jar
        needed = [number for number in jar.blocked.lost if jar.blocked.results[number].waiting]
        for number in needed:
            span = jar.kept.tasks[number]
            why_not = "" if span.policy.retry else "its policy says retry=False"
            released = [str(each) for each in span.refers if each not in jar.blocked.results]
            if released:
                why_not = f"it refers to the result of task {released[0]}, which is released"
            if why_not:
                cause = f"the value of {span} was lost, and it cannot run again: {why_not}"
                self.state.record(records.ValuesReleased([number], cause))
                continue
            self.state.record(records.TasksRecomputed([span.whole]))
            sid = span.policy.sid
            if sid is not None and span.state is TaskState.PENDING and sid not in self.state.members.slaves:
                self.handback.release_addressed(sid, "is gone or never was")
        return bool(needed)

    def _release(self) -> None:
        """Release the values that nobody needs. Their agents drop them."""
        jar, agents = self.state.jar, self.state.members.agents
        free = sorted(jar.blocked.free)
        jar.blocked.free.clear()
        released = [number for number in free if number in jar.kept.tasks and jar.blocked.results[number].is_free]
        for number in released:
            result = jar.blocked.results[number]
            if result.share is not None:
                self.state.send(agents[result.agent], messages.ShareGone(result.share.digest))
        if released:
            self.state.record(records.ValuesReleased(released))


def check_kept(settings: MasterSettings, slave: ConnectedSlave, group: messages.Results) -> None:
    """Check the values of a group that stay at its agent. The slave holds all tasks of the group.

    Raises:
        ProtocolError: the master did not let one stay, or one is too large for a result; the agent's fault.
    """
    size, most = max(size for _, size in group.kept), most_bytes(settings.max_result_bytes)
    if size > most:
        raise ProtocolError(f"Results: a value that stays at its agent has {size} bytes, the limit is {most} bytes")
    numbers = [number for number, _ in groups.each_task(group)]
    ids = TaskIds((numbers[place], 1) for place, _ in group.kept)
    for span in slave.held.spans:
        if not (settings.lets_values_stay and span.policy.keep) and any(ids.among(span)):
            raise ProtocolError(f"Results: a value of {span} stays at its agent, which was not asked to keep it")
