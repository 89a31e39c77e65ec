"""Slaves and agents that are gone, and what that means for the tasks that they held.

When a slave dies, its death is charged to the task that it ran. When an agent leaves and says so, no task is charged.
When an agent vanishes without notice, a task may have killed it. The master does not know which tasks its slaves ran,
so all tasks that they held are suspects. Most of them are innocent: they run again, and after several such losses they
run alone (see `isolation.py`). If an agent comes back, it is a new agent with new slaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import define, field

from mwpy._core.holding import take, take_each
from mwpy._core.master.handback import HandBack
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave
from mwpy._core.master.spans import LOST_AGENTS_ALLOWED, Span
from mwpy._core.master.state import MasterState
from mwpy._values import messages, records
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS, Death, LastWords
from mwpy._values.records import Charge

__all__ = ["DEATHS_ALLOWED", "Losses"]

DEATHS_ALLOWED = 3
"""When this many slaves died while they ran a task, the task is never tried again."""

REASONS_KEPT = 100
"""How many reasons for which agents left are counted. When there are more, the rarest is forgotten."""


@define(eq=False)
class Losses:
    """Decides what follows when slaves and agents are gone."""

    state: MasterState
    kinds: SlaveKinds
    handback: HandBack
    departures: dict[str, int] = field(factory=dict)
    """Why agents left, and how many left for each reason."""

    def slave_died(self, agent: ConnectedAgent, message: messages.SlaveDied) -> None:
        """Handle the end of a slave process that its agent reports."""
        cause, words = message.cause, message.words
        slave = agent.slaves.get(message.slave)
        if slave is None:
            self._died_before_ready(agent, message.slave, cause, words)
            return
        running, ran, unstarted = _split(slave, message)
        named = f"{running[0]}, attempt {running[0].attempt}" if running else ""
        self.state.record(records.SlaveEnded(slave.sid, cause, named, words))
        running, ran, unstarted = (self._without_cancelled(slave, spans) for spans in (running, ran, unstarted))
        self._lose_results(slave, ran)
        if agent.leaving:
            self._return(slave, unstarted, f"{agent.name} is leaving")
            self._lose(slave, running, f"{agent.name} is leaving", agent.leaving)
            return
        for span in running:
            self._charge(slave, span, cause, words)
        self._return(slave, unstarted, "its slave died before starting it")
        self.kinds.lost(slave, cause)

    def agent_gone(self, agent: ConnectedAgent, reason: str, *, vanished: bool) -> None:
        """Handle the end of an agent and of all its slaves.

        Args:
            vanished: whether it said no goodbye. Then its tasks are suspects, unless it announced that it leaves.
        """
        suspected = vanished and not agent.leaving
        isolated: list[Span] = []
        for slave in list(agent.slaves.values()):
            cause = f"{agent.name} is gone: {reason}; its last output is lost too"
            self.state.record(records.SlaveEnded(slave.sid, cause, "", NO_WORDS))
            held = self._without_cancelled(slave, slave.held.spans)
            returned = self._lose(slave, held, f"{agent.name} is gone", reason, suspected)
            isolated += [span for span in returned if span.runs_alone and suspected]
        if isolated:
            self.state.notice(
                f"{LOST_AGENTS_ALLOWED} agents vanished without notice while they had {isolated[0]}"
                f"{' and others' if len(isolated) > 1 else ''}. Such a task may be the cause, so it runs alone on an "
                f"agent from now on"
            )
        if agent.announced or agent.leaving:  # else it was an examination, which starts no slaves
            self._count_departure(reason)

    def _count_departure(self, reason: str) -> None:
        times = self.departures.get(reason, 0) + 1
        if len(self.departures) == REASONS_KEPT and times == 1:
            del self.departures[min(self.departures, key=self.departures.__getitem__)]
        self.departures[reason] = times

    def _lose_results(self, slave: ConnectedSlave, ran: Sequence[Span]) -> None:
        """Handle tasks that a slave finished, and whose results were overwritten in its memory."""
        self._return(slave, [span for span in ran if span.policy.retry], "its result was overwritten in its slave")
        once = [span.whole for span in ran if not span.policy.retry]
        if once:
            why = f"{slave.sid} ran it, but its result was overwritten there, and its policy says retry=False"
            self.handback.give_up(slave.sid, once, why, held=True)

    def _died_before_ready(self, agent: ConnectedAgent, number: int, cause: str, words: LastWords) -> None:
        sid = SlaveId(f"{agent.name}/{number}")
        if agent.leaving:
            self.state.record(records.SlaveEnded(sid, cause, "", words))
            return
        self.state.record(records.SlaveEnded(sid, f"before it could take a task: {cause}", "", words))
        self.state.notice(
            f"a slave of {agent.name} ({agent.address}) ended before it could take a task: {cause}. "
            f"It wrote last:\n{words.shown() or '(nothing)'}",
            key=cause + words.headline,
        )

    def _charge(self, slave: ConnectedSlave, running: Span, cause: str, words: LastWords) -> None:
        """Charge the death of a slave to the task that it ran, and decide whether the task is tried again."""
        charges = (Charge(slave.sid, cause),)
        killed = running.slaves_killed + 1
        if killed >= DEATHS_ALLOWED:
            story = _story(running, Death(slave.sid, running.attempt, cause, words))
            reason = f"it was running in {killed} slaves when they died: {story}"
        elif not running.policy.retry:
            reason = f"its slave died ({cause}) and its policy says retry=False"
        else:
            reason = f"its slave died: {cause}"
            self.state.record(records.TasksReturned(slave.sid, [running.whole], reason, charges))
            return
        self.handback.give_up(slave.sid, [running.whole], reason, held=True, host=slave.agent.host, charges=charges)

    def _lose(
        self, slave: ConnectedSlave, held: Sequence[Span], what: str, reason: str, suspected: bool = False
    ) -> Sequence[Span]:
        """Handle the tasks of a slave that is lost with its agent. They may have started.

        Args:
            what: why they are pending again.
            reason: why the agent is lost.
            suspected: whether they may have killed the agent. Then they are charged.

        Returns:
            The tasks that are pending again.
        """
        name, cause = slave.agent.name, f"lost with {slave.agent.name}: {reason}"
        charges = (Charge(slave.sid, cause, agent_lost=True),) if suspected else ()
        once = [span for span in held if not span.policy.retry]
        alone = [span for span in held if suspected and span.runs_alone]
        again = [span for span in held if span.policy.retry and not (suspected and span.runs_alone)]
        returned = self._return(slave, again, what, charges)
        for span in alone:
            story = _story(span, Death(slave.sid, span.attempt, cause))
            why = (
                f"{LOST_AGENTS_ALLOWED + 1} agents vanished while they had it, the last one while it ran nothing else: "
                f"{story}. Does it kill its agent, or need more memory than the machine or the job has?"
            )
            self.handback.give_up(slave.sid, [span.whole], why, held=True, host=slave.agent.host, charges=charges)
        if once:
            why = (
                f"{slave.sid} was lost with {name} ({reason}) when it may have been "
                f"started, and its policy says retry=False"
            )
            self.handback.give_up(
                slave.sid, [span.whole for span in once], why, held=True, host=slave.agent.host, charges=charges
            )
        self.kinds.lost(slave, reason)
        return returned

    def _without_cancelled(self, slave: ConnectedSlave, held: Sequence[Span]) -> list[Span]:
        return self.handback.without_cancelled(slave.sid, held, f"when {slave.sid}, which had it, was gone")

    def _return(
        self, slave: ConnectedSlave, held: Sequence[Span], reason: str, charges: tuple[Charge, ...] = ()
    ) -> Sequence[Span]:
        if not held:
            return ()
        return self.state.record(records.TasksReturned(slave.sid, [span.whole for span in held], reason, charges))

    def check(self) -> None:
        """Assert that each task has fewer deaths than `DEATHS_ALLOWED`."""
        for span in self.state.jar.spans():
            killed, lost = span.slaves_killed, len(span.deaths) - span.slaves_killed
            assert killed < DEATHS_ALLOWED, f"{span} killed {killed} slaves and is not handed back"
            assert lost <= LOST_AGENTS_ALLOWED, f"{span} was lost with {lost} agents and is not handed back"


def _story(span: Span, last: Death) -> str:
    """The history of a task in words, with its last death."""
    return "; ".join(map(str, (*span.deaths, last)))


def _split(slave: ConnectedSlave, message: messages.SlaveDied) -> tuple[list[Span], list[Span], list[Span]]:
    """Return the held task that a slave ran, the tasks that it ran before, and all other tasks that it holds."""
    running = message.running
    held = deque(slave.held.spans)  # a copy, because only the record may change what the slave holds
    attempts = [span.attempt for span in held if running in span.ids]
    found = take(held, running, 1, attempts[0]) if attempts else []
    firsts, counts, attempts_lost = [*zip(*message.lost, strict=True)] or [(), (), ()]
    ran = [span for spans in take_each(held, firsts, counts, attempts_lost) for span in spans]
    return found, ran, list(held)
