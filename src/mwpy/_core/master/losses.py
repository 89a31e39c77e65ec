"""Slaves and agents that are gone, away or refuse an algorithm, and what that means for the tasks that they held.

Each lost attempt has a cause (see `_values/causes.py`), and the cause decides whether the task is charged with it. When
a slave dies, its death is charged to the task that it ran. When an agent leaves and says so, no task is charged. When
nothing is heard from an agent, the network is blamed. When an agent ends without notice, a task may have killed it. The
master does not know which tasks its slaves ran, so all tasks that they held are suspects. Most of them are innocent:
they run again, and after several such losses they run alone (see `Dispatch`). If an agent comes back, it is a new
agent with new slaves.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from attrs import Factory, define
from msgspec import Struct, field

from mwpy._core.holding import TaskIds, known, take, take_out
from mwpy._core.master.admission import SlaveKinds
from mwpy._core.master.handback import HandBack
from mwpy._core.master.hosts import Hosts
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave
from mwpy._core.master.spans import LOST_AGENTS_ALLOWED, LOST_ALONE_ALLOWED, Span
from mwpy._core.master.state import MasterState
from mwpy._core.master.totals import Totals
from mwpy._values import messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import BLAMELESS_ALLOWED, RESUMED_ALLOWED, Cause
from mwpy._values.last_words import NO_WORDS, Death, LastWords
from mwpy._values.phrases import counted, duration
from mwpy._values.records import Charge, TaskRange
from mwpy._values.task import SlaveState

SILENT = "nothing was heard from it for {}: its machine or the network failed, or it was stopped"
"""Why an agent is away or gone."""

SHOWN = 3
"""How many agents that are away a message names."""

REASONS_KEPT = 100
"""How many reasons for which agents left are counted. When there are more, the rarest is forgotten."""

MEMORY_GROWTH = 2
"""A task that was killed for lack of memory may use this many times as much in its next attempt."""

SILENT_KEPT = 1000
"""How many agents from which nothing was heard are remembered, because they may only have been stopped."""


class _Silent(Struct, eq=False):
    """An agent from which nothing was heard, and for whose losses the network was blamed."""

    host: str
    sids: list[SlaveId]
    lost: Counter[str] = field(default_factory=Counter)
    """How many attempts of each algorithm were lost."""


@define(eq=False, repr=False)
class Losses:
    """Decides what follows when slaves and agents are gone."""

    state: MasterState
    kinds: SlaveKinds
    handback: HandBack
    totals: Totals
    hosts: Hosts
    departures: dict[str, int] = Factory(dict)
    """Why agents left, and how many left for each reason; the last reason last."""
    cannot_go_on: str = ""
    """Why the run must end, because an agent could not be set up; empty if it may go on."""
    _silent: dict[str, _Silent] = Factory(dict)
    """The last agents from which nothing was heard, and their slaves."""

    def slave_died(self, agent: ConnectedAgent, message: messages.SlaveDied) -> None:
        """Handle the end of a slave process that its agent reports."""
        cause, reason = message.cause, message.reason
        if agent.leaving and cause is not Cause.OUT_OF_MEMORY:  # such a task is why the agent leaves
            cause = agent.loss
        slave = agent.slaves.get(message.slave)
        if slave is None:
            if cause is Cause.SET_UP and self.state.settings.set_up is not None and not agent.is_set_up:
                self._set_up_failed(agent, reason, message.words)
            else:
                self._died_before_ready(agent, message.slave, reason, message.words)
            return
        running, ran, unstarted = _split(slave, message)
        named = f"{running[0]}, attempt {running[0].attempt}" if running else ""
        self.state.record(records.SlaveEnded(slave.sid, cause, reason, named, message.words))
        running, ran, unstarted = (self._without_cancelled(slave, spans) for spans in (running, ran, unstarted))
        self._lose_results(slave, ran)
        leaves = f"{agent.name} is leaving" if agent.leaving else ""
        self._return(slave, unstarted, leaves or "its slave died before starting it")
        more = _more_memory(running[0], message.allowed) if running and cause is Cause.OUT_OF_MEMORY else 0
        loss = Charge(slave.sid, cause, reason, more, self.state.now - slave.last_heard)
        self._lose(slave, running, leaves or f"its slave died: {reason}", loss, message.words)
        self.kinds.lost(slave, reason)

    def agent_vanished(self, agent: ConnectedAgent, silent_s: float) -> None:
        """Handle the end of an agent that did not say goodbye.

        Its process ended, and one of its tasks may be the reason. Or nothing was heard from it for `silent_s` seconds:
        then its machine or the network failed, or it was stopped.
        """
        silent = SILENT.format(duration(round(silent_s)))
        reason, cause = (silent, Cause.NETWORK) if silent_s else ("the connection broke", Cause.AGENT_LOST)
        self.state.record(records.AgentLost(agent.name, reason, cause))
        if silent_s:
            self._silent[agent.name] = _Silent(agent.host, [slave.sid for slave in agent.slaves.values()])
            if len(self._silent) > SILENT_KEPT:
                del self._silent[next(iter(self._silent))]
        self.agent_gone(agent, reason, cause)

    def agent_resumed(self, name: str) -> None:
        """Handle the return of an agent that was stopped, and from which nothing was heard meanwhile."""
        if name in self._silent:
            reason = f"{name}: it was stopped for longer than the client timeout, and resumed"
            silent = self._silent.pop(name)
            self.state.record(records.LossesExplained(name, silent.sids, Cause.SUSPENDED, reason))
            for algorithm, attempts in silent.lost.items():
                self.totals.explained(algorithm, silent.host, attempts, Cause.SUSPENDED)

    def agent_gone(self, agent: ConnectedAgent, reason: str, cause: Cause) -> None:
        """Handle the end of an agent and of all its slaves.

        Args:
            cause: the cause of the loss of its tasks, unless it announced another one before.
        """
        cause = Cause.CANCELLED if self.state.closing else agent.loss if agent.leaving else cause
        isolated: list[Span] = []
        for slave in list(agent.slaves.values()):
            what = f"{agent.name} is gone"
            ended = f"{what}: {reason}; its last output is lost too"
            self.state.record(records.SlaveEnded(slave.sid, cause, ended, "", NO_WORDS))
            held = self._without_cancelled(slave, slave.held.spans)
            if cause is Cause.NETWORK and agent.name in self._silent:
                for span in held:
                    self._silent[agent.name].lost[span.algorithm.name] += span.count
            loss = Charge(slave.sid, cause, f"{agent.place}: {reason}", lost_s=self.state.now - slave.last_heard)
            isolated += [span for span in self._lose(slave, held, what, loss) if span.runs_alone]
            self.kinds.lost(slave, reason)
        if isolated and cause is Cause.AGENT_LOST:
            self.state.notice(
                f"{LOST_AGENTS_ALLOWED} agents vanished without notice while they had {isolated[0]}"
                f"{' and others' if len(isolated) > 1 else ''}. Such a task may be the cause, so it runs alone on an "
                f"agent from now on"
            )
        if agent.announced or agent.leaving:  # else it was an examination, which starts no slaves
            self._count_departure(reason)

    def _count_departure(self, reason: str) -> None:
        times = self.departures.pop(reason, 0) + 1  # so the last one stays the last
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

    def _died_before_ready(self, agent: ConnectedAgent, number: int, reason: str, words: LastWords) -> None:
        sid = SlaveId(f"{agent.name}/{number}")
        if agent.leaving:
            self.state.record(records.SlaveEnded(sid, agent.loss, reason, "", words))
            return
        ended = f"before it could take a task: {reason}"
        self.state.record(records.SlaveEnded(sid, Cause.START_UP, ended, "", words))
        self.hosts.started(agent.host, failure=reason)
        self.state.notice(
            f"a slave of {agent.place} ended {ended}. It wrote last:\n{words.shown() or '(nothing)'}",
            key=reason + words.headline,
        )

    def _set_up_failed(self, agent: ConnectedAgent, reason: str, words: LastWords) -> None:
        """The set-up of an agent failed in a way that is no accident: its host gets no more work, or the run ends."""
        self.state.record(records.SlaveEnded(SlaveId(f"{agent.name}/set-up"), Cause.SET_UP, reason, "", words))
        self.state.notice(
            f"{agent.place} was not set up: {reason}. It wrote last:\n{words.shown() or '(nothing)'}",
            key=f"set-up {agent.host} {reason}",
        )
        if self.state.settings.set_up_stops or self.state.settings.only_here:
            self.cannot_go_on = f"{reason} (on {agent.host}; what it wrote is in a message above)"
        else:
            self.hosts.exclude(agent.host, "it could not be set up", reason, self.state.now)

    def _lose(
        self, slave: ConnectedSlave, held: Sequence[Span], what: str, loss: Charge, words: LastWords = NO_WORDS
    ) -> Sequence[Span]:
        """Handle tasks that may have started, and whose attempt is lost. Decide which of them are tried again.

        Args:
            what: why they are pending again.

        Returns:
            The tasks that are pending again.
        """
        seconds = 0.0
        for number, span in enumerate(held):  # the slave ran the first one at most
            since = slave.last_heard if span.left_now is None else max(slave.last_heard, slave.last_left)
            ran_s = 0.0 if number else self.state.now - since
            self.totals.lost(span, slave.agent.host, loss.cause, span.count, ran_s)
            if loss.cause is Cause.OUT_OF_MEMORY:
                self.totals.measured(span.algorithm.name, slave.agent.host, words.peak_bytes)
            if loss.is_charged:
                seconds = max(seconds, ran_s)
                self.hosts.ended(span, slave.agent.host, span.count, span.count, f"{loss.cause.value}: {loss.reason}")

        again: list[Span] = []
        ended: dict[tuple[str, bool], list[TaskRange]] = {}
        for span in held:
            death = Death(slave.sid, span.attempt, loss.cause, loss.reason, words, loss.more_memory)
            why = _why_not_again(span, death, slave.agent)
            if why:
                ended.setdefault((why, loss.is_charged and span.is_last_attempt), []).append(span.whole)
            else:
                again.append(span)
        returned = self._return(slave, again, what, (loss,))
        for (why, used_up), tasks in ended.items():
            self.handback.give_up(
                slave.sid,
                tasks,
                why,
                held=True,
                host=slave.agent.host,
                charges=(loss,),
                seconds=seconds,
                used_up=used_up,
            )
        return returned

    def _without_cancelled(self, slave: ConnectedSlave, held: Sequence[Span]) -> list[Span]:
        return self.handback.without_cancelled(slave.sid, held, f"when {slave.sid}, which had it, was gone")

    def _return(
        self, slave: ConnectedSlave, held: Sequence[Span], reason: str, charges: tuple[Charge, ...] = ()
    ) -> Sequence[Span]:
        by_pause: dict[float, list[TaskRange]] = {}
        for span in held:
            pause_s = span.next_pause_s if any(charge.is_charged for charge in charges) else 0.0
            by_pause.setdefault(pause_s, []).append(span.whole)
        return [
            span
            for pause_s, tasks in by_pause.items()
            for span in self.handback.give_back(slave.sid, tasks, reason, charges, pause_s)
        ]

    # ---- agents that are away -----------------------------------------------------------------------------
    #
    # Agents that are away: nothing is heard from them, and they may come back with their running tasks.
    #
    # When the connection of an agent ends because of silence, the network may have failed, or the agent was stopped. An
    # agent that has a session looks for its master then (`Hello.returns_s`). So it is away, and not lost: its slaves
    # keep their tasks, get no others, and values stay at it. When it comes back, everything goes on as if the messages
    # had only been late. An agent that does not come back in time is lost, as other agents are at once.
    #
    # After another client timeout, its tasks are given to other slaves, unless they must not run twice. Its own results
    # still count if it comes back with them before the others have ended.
    #
    # If the connection was ended from the other side, the process of the agent was probably killed. Then it is lost at
    # once.

    @property
    def deadline(self) -> float | None:
        """When to decide even if nothing happens, on the core's clock; None if there is no need."""
        away = self.state.members.away.values()
        return min(known(each for agent in away for each in (agent.away_until, agent.gives_at)), default=None)

    def connection_ended(self, peer: bytes, silent_s: float, now: float) -> None:
        """The connection of a peer has ended, without a goodbye if it was an agent.

        Args:
            silent_s: as in `Vanished`.
        """
        agent = self.state.members.peers.get(peer)
        if agent is None:
            return
        if not silent_s or self.state.closing is not None or not agent.returns_s or agent.leaving:
            self.agent_vanished(agent, silent_s)
            return
        agent.away_since, agent.away_until = now - silent_s, now + agent.returns_s
        agent.gives_at = now + self.state.settings.client_timeout_s
        reason = SILENT.format(duration(round(silent_s)))
        self.state.record(records.AgentAway(agent.name, reason))
        for slave in agent.slaves.values():
            self.state.settle(slave)
        held = sum(slave.held.count for slave in agent.slaves.values())
        tasks = f", and {counted(held, 'task')} with it" if held else ""
        timeout_s = self.state.settings.client_timeout_s
        self.state.notice(
            f"{agent.place} is away{tasks}: {reason}. It has {duration(agent.returns_s)} to come back; then "
            f"its tasks run elsewhere. Other slaves get them after {timeout_s:.0f} s, but not with retry=False",
            key=f"away {agent.name}",
        )

    def came_back(self, peer: bytes, address: str, now: float) -> None:
        """An agent is back on another connection, from this address."""
        agent = self.state.members.peers[peer]
        if not agent.is_away:  # its connection had ended, and the master did not know it yet
            return
        self.state.record(records.AgentBack(agent.name, address))
        for slave in agent.slaves.values():
            if slave.state is SlaveState.AWAY:
                slave.last_heard = now
                self.state.reclaim(slave, [*slave.given_back], only_pending=True)
        self.state.notice(
            f"{agent.place} is back after {duration(round(now - agent.away_since))}", key=f"back {agent.name}"
        )

    def decide(self, now: float) -> None:
        """Give the tasks of agents that are away to others, and give up the agents that did not come back in time."""
        for agent in [*self.state.members.away.values()]:
            if agent.away_until <= now:
                self.give_up(agent, now)
            elif agent.gives_at is not None and agent.gives_at <= now:
                agent.gives_at = None
                given = self.state.given_away()
                for slave in agent.slaves.values():
                    able = [span for span in slave.held.spans if self.state.may_give_away(span, given)]
                    self.state.give_away(slave, able, f"{agent.name}, which holds it, is away")

    def give_up(self, agent: ConnectedAgent, now: float) -> None:
        """Wait for an agent no longer."""
        self.agent_vanished(agent, now - agent.away_since)
        self.state.actions.forget.append(agent.peer)

    @property
    def waits(self) -> bool:
        """Whether tasks are at agents that are away, and no other slave has any."""
        if not self.state.members.away or not self.state.jar.num_allocated:
            return False
        return not any(slave.held.spans and not slave.agent.is_away for slave in self.state.members.slaves.values())

    def text(self, now: float) -> str:
        """Which agents are away, and what waits for them."""
        agents = [*self.state.members.away.values()]
        held = sum(slave.held.count for agent in agents for slave in agent.slaves.values())
        named = "; ".join(f"{each.place}, away for {duration(round(now - each.away_since))}" for each in agents[:SHOWN])
        more = f"; and {len(agents) - SHOWN} more" if len(agents) > SHOWN else ""
        left_s = min(agent.away_until for agent in agents) - now
        return (
            f"the master waits for the return of {counted(len(agents), 'agent')} with {counted(held, 'task')} "
            f"({named}{more}). The first one is given up in {duration(round(left_s))}; then its tasks run elsewhere"
        )


def _why_not_again(span: Span, loss: Death, agent: ConnectedAgent) -> str:
    """Why tasks that are lost once more cannot be tried again; empty if they can."""
    cause = loss.cause
    if loss.is_charged and span.charged + 1 >= span.policy.attempts_max:
        times = counted(span.policy.attempts_max, "attempt")
        return f"it lost {times} by its own fault, as many as attempts_max allows: {_story(span, loss)}"
    if not span.policy.retry:
        return f"{loss.sid} may have started it when it was lost ({_said(loss)}), and its policy says retry=False"
    lost = len(span.deaths) - span.charged - span.blameless + 1
    is_sure = agent.is_proven or lost > LOST_AGENTS_ALLOWED + LOST_ALONE_ALLOWED
    if cause is Cause.AGENT_LOST and span.runs_alone and is_sure:
        return (
            f"{lost} agents vanished while they had it, the last one while it ran nothing else: "
            f"{_story(span, loss)}. Does it kill its agent, or need more memory than the machine or the job has?"
        )
    if loss.is_blameless and span.left_now is not None:
        if span.left_now.num_lost + 1 >= RESUMED_ALLOWED:
            return (
                f"it was lost {RESUMED_ALLOWED} times without its fault, each time after it had left a state. Does it "
                f"go on from its state? The last time: {_said(loss)}"
            )
    elif loss.is_blameless and span.blameless + 1 >= BLAMELESS_ALLOWED:
        return f"it was lost {BLAMELESS_ALLOWED} times without its fault, the last time: {_said(loss)}"
    return ""


def _story(span: Span, loss: Death) -> str:
    return "; ".join(map(str, (*span.deaths, loss)))


def _said(loss: Death) -> str:
    return f"{loss.cause.value}: {loss.reason}"


def _split(slave: ConnectedSlave, message: messages.SlaveDied) -> tuple[list[Span], list[Span], list[Span]]:
    """Return the held task that a slave ran, the tasks that it ran before, and all other tasks that it holds."""
    held = deque(slave.held.spans)  # a copy, because only the record may change what the slave holds
    found = take_out(held, TaskIds([(message.running, 1)]))
    ran = take(held, message.lost)
    return found, ran, list(held)


def _more_memory(span: Span, allowed: int) -> int:
    """How many bytes the next attempt of a task may use when memory is short, after one that might use `allowed` bytes.
    So of several large tasks, the one that was killed before goes on. 0 for no more."""
    return min(MEMORY_GROWTH * allowed, span.policy.memory_max or 0)
