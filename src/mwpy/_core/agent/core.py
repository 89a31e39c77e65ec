"""The agent's core: every event enters through `handle`, and everything to do leaves through `take_actions`.

The core is one state (`AgentState`: settings, slaves, actions) and parts that receive this state: `Starts`, `Traffic`,
`Shares`, `Watch`, `StartOutput`, `Departure`, `Succession` and `Outage`. This module distributes the events, and does
what is due for each slave (`Child.dues`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec.structs import replace

from mwpy._core.agent.child import (
    UNREADABLE,
    AgentActions,
    AgentEvent,
    AgentSettings,
    AgentState,
    Child,
    ChildEvent,
    ChildState,
    Due,
    ErrorOutput,
    ExitSeen,
    Forked,
    Found,
    Heard,
    Looked,
    LookedUp,
    Measured,
    Nonsense,
    OutageEvent,
    Outgoing,
    Recalled,
    Resumed,
    ShareNotKept,
    ShareOpened,
    SlaveExited,
    SlaveHeard,
    StreamEnded,
    Terminated,
)
from mwpy._core.agent.contact import Outage, Succession
from mwpy._core.agent.limits import Watch
from mwpy._core.agent.starts import Departure, Starts
from mwpy._core.agent.traffic import Shares, StartOutput, Traffic
from mwpy._core.holding import known
from mwpy._values import messages, records
from mwpy._values.bounds import MAX_NAME, MAX_SECONDS, MAX_TASKS, Buffer, shortened
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode, describe_exit, is_from_outside
from mwpy._values.last_words import NO_WORDS, LastWords


class AgentCore:
    """The decisions of an agent, without I/O."""

    def __init__(self, settings: AgentSettings) -> None:
        self.welcome: messages.Welcome | None = None
        """The settings of the master; None until the master has accepted this agent."""
        self._state = AgentState(settings)
        self._starts = Starts(self._state)
        self._shares = Shares(self._state)
        self._watch = Watch(self._state)
        self._traffic = Traffic(self._state, self._watch, self._shares)
        self._output = StartOutput(self._state)
        self.departure = Departure(self._state)
        """How it leaves."""
        self._succession = Succession(self._state, self._starts, self._traffic, self._shares)
        self.outage = Outage(self._state, self.departure, self._succession)
        """How it looks for its master."""
        self.children = self._state.children
        """The slaves that have not ended, by number."""

    @property
    def settings(self) -> AgentSettings:
        """What the agent is."""
        return self._state.settings

    @property
    def leaving(self) -> bool:
        """Whether the agent is about to exit."""
        return self.departure.code is not None

    # ---- events --------------------------------------------------------------------------------------------

    def handle(self, event: AgentEvent, now: float) -> None:
        """Handle an event, and add the actions that it causes."""
        match event:  # first, the frequent events, which concern one slave
            case Heard(messages.Tasks(number) as group, frames):
                child = self.children.get(number)
                if child is not None:
                    self._pass_on(child, group, frames, now)
                return
            case SlaveHeard(number, message, frames):
                self._hear_slave(self.children[number], message, frames, now)
                return
            case Looked():
                self._looked(self.children[event.slave], event, now)
                return
            case Heard(message, frames):
                self._hear_master(message, frames, now)
            case Measured():
                self._measured(self.children[event.slave], event, now)
            case Recalled(number, started, wanted):
                child = self.children.get(number)  # an agent that leaves may have given it up meanwhile
                if child is not None and not child.condemned and self._watch.believes(child, started):
                    self._succession.took_back(child, self._traffic.recalled(child, started, wanted, now))
            case ErrorOutput(number, data):
                self._output.wrote(self.children[number], data)
            case ExitSeen(number, by_sigkill):
                self._watch.exit_seen(self.children[number], by_sigkill, self.leaving, now)
            case SlaveExited():
                self._slave_exited(self.children[event.slave], event, now)
            case Forked(failure=""):
                self._starts.forked(event, now)
            case Forked(number, failure):
                self._starts.not_forked(failure)
                end = SlaveExited(number, f"cannot be started: {failure}", NO_WORDS, 0)
                self._slave_exited(self.children[number], end, now)
            case StreamEnded(number):
                self._watch.stream_ended(self.children[number], now)
            case Nonsense(number, fault, details):
                self._watch.condemn(self.children[number], fault, details)
            case ShareOpened(share, is_complete):
                self._shares.opened(share, is_complete)
            case ShareNotKept(digest, reason):
                self._shares.not_kept(digest, reason)
            case Found(programs):
                self._state.to_master(messages.Offered({name: path[:MAX_NAME] for name, path in programs.items()}))
            case LookedUp(packages):
                self._starts.looked_up(packages)
            case Terminated(reason, cause, used):
                self.departure.terminated(reason, cause, used, now)
            case Resumed(stopped_s):
                self.departure.resumed(stopped_s, now)
                self._watch.resumed(stopped_s, now)
                self._starts.resumed(stopped_s)
            case OutageEvent():
                self.outage.handle(event, now)

    def _hear_master(self, message: messages.Message, frames: Sequence[Buffer], now: float) -> None:
        match message:
            case messages.Revoke(number, count):
                child = self.children.get(number)
                if child is not None:
                    self._traffic.revoke(child, count)
            case messages.Cancel():
                self._traffic.cancel(message)
            case messages.CheckpointRead(number) if number in self.children:
                self._traffic.read(self.children[number], Due.STATE)
            case messages.ReportRead(number) if number in self.children:
                self._traffic.read(self.children[number], Due.REPORT)
            case messages.SharePart():
                self._shares.part(message, frames[1])
            case messages.ShareGone(digest):
                self._shares.gone(digest)
            case messages.Welcome(handled=None):
                self._welcome(message, now)
            case messages.Welcome():  # the session goes on
                self.outage.end(now)
            case messages.OffersWanted(names):
                self._state.actions.find.extend(names)
            case messages.Algorithms():
                self._starts.define(message, frames)
            case messages.Renew(slave=number) if number is not None:
                if number in self.children and self.children[number].is_ready:
                    self._state.stop(self.children[number], finished=False)
            case messages.Renew(module_path) if not self.leaving:
                self._starts.renew_slaves(module_path)
            case messages.SlaveNamed(number) if number in self.children:
                self._traffic.name(self.children[number], message, frames)
            case messages.Shutdown(finished, grace_s, unfit):
                code = ExitCode.UNFIT if unfit else ExitCode.OK if finished else ExitCode.FAILED
                if unfit:
                    self._state.record(records.Notice(f"nothing of this computation can run here: {unfit}"))
                why = "nothing can run here" if unfit else "shut down by the master"
                self.departure.drains = grace_s >= MAX_SECONDS
                self.departure.leave(code, why, Cause.CANCELLED, grace_s, now)
            case messages.Refused():
                self.outage.refused(message, now)
            case _:
                pass  # a probe, or a message of a newer version that does not concern agents

    def _pass_on(self, child: Child, group: messages.Tasks, frames: Sequence[Buffer], now: float) -> None:
        if not child.is_ready:
            self._state.to_master(messages.Revoked(child.number, group.tasks, group.counts, group.attempts))
            return
        was_idle = not child.held
        self._traffic.pass_on(child, group, frames)
        if group.shares:
            self._shares.passed_on(child, group)
        if group.limits or child.memory_limit is not None:
            self._watch.passed_on(child, group.limits, now)
        if was_idle:
            self._watch.active(child, now)

    def _welcome(self, welcome: messages.Welcome, now: float) -> None:
        self.welcome = welcome
        self.outage.has_session = self.settings.hello.returns_s > 0.0
        self._watch.ends_silence = not welcome.result_group
        self._starts.joined(welcome)
        self._succession.joined(welcome)
        if not self.outage.is_over:
            self.outage.end(now)
        if not self.leaving:
            self._starts.fill(now)

    def _hear_slave(self, child: Child, message: messages.Message, frames: Sequence[Buffer], now: float) -> None:
        is_former, has_begun = child.former is not None, child.state in (ChildState.READY, ChildState.STOPPING)
        if child.condemned:
            return
        match message:
            case messages.Results(child.number):
                self._traffic.results(child, message, frames, now)
                self._watch.active(child, now)
                self._starts.succeeded()
            case messages.SetUpEnded(child.number) if child.sets_up is not None and child.set_up_ended is None:
                self._starts.set_up(child, message)
            case messages.SlaveReady(child.number) if not child.is_ready and child.sets_up is None:
                self._succession.ready(child, message, frames)
            case messages.NextGeneration(child.number, edited) if child.is_asked:
                self._succession.has_forgotten(child, edited)
            case messages.AlgorithmFailed(child.number) if is_former:
                self._succession.end_slave(child)
            case (
                messages.Checkpoint(child.number)
                | messages.Reported(child.number)
                | messages.Logged(child.number)
                | messages.PeakMemory(child.number)
                | messages.OtherValues(child.number)
            ) if is_former:
                pass  # the new master cannot know its task
            case messages.Reported(child.number):
                self._traffic.left(child, Due.REPORT, message, frames)
            case messages.Checkpoint(child.number):
                self._traffic.left(child, Due.STATE, message, frames)
            case (
                messages.Logged(child.number) | messages.PeakMemory(child.number) | messages.OtherValues(child.number)
            ) if has_begun:
                self._state.actions.to_master.append(Outgoing(message, (), frames))
            case messages.SlaveWorn(child.number, reason):
                child.replaced_because = reason
            case messages.AlgorithmFailed(child.number) if self._starts.knows(message.number):
                self._traffic.algorithm_failed(child, message, frames)
            case _:
                self._watch.condemn(child, UNREADABLE, f"{type(message).__name__} at the wrong time")
                return
        if is_former:
            self._succession.settle(child)
        if not child.is_up:
            self._output.is_up(child)

    def _looked(self, child: Child, event: Looked, now: float) -> None:
        if child.condemned or not self._watch.believes(child, event.started):
            return
        is_silent = self._watch.ends_silence and Due.SILENCE not in child.dues
        if event.results is not None and (is_silent or child.ended):
            self._traffic.results(child, event.results, event.frames, now)
            self._succession.settle(child)
        if is_silent and not child.ended and child.former is None:
            self._traffic.look_for_late(child, now)
        self._watch.looked(child, event.began, now)

    def _measured(self, child: Child, event: Measured, now: float) -> None:
        if not child.condemned and self._watch.believes(child, event.started):
            self._watch.measured(child, event.used, event.kills, now)

    def _slave_exited(self, child: Child, event: SlaveExited, now: float) -> None:
        was = child.state
        child.change(ChildEvent.EXIT)
        del self.children[child.number]
        self._starts.ended(child)
        self._output.ended(child, event.words, event.error_output)
        child.ended = True
        started = self._watch.last_started(child, event.started)
        running, attempt = child.running(started)
        named = f"task {running}, attempt {attempt}" if running else ""
        by_kernel = event.out_of_memory and not child.killed_because and not self.leaving
        cause = Cause.OUT_OF_MEMORY if by_kernel else child.loss
        limit = self._watch.about_limit(child, started) if cause is Cause.OUT_OF_MEMORY else ""
        if by_kernel and child.sets_up is not None and child.sets_up.memory_max is not None:
            cause = child.loss = Cause.SET_UP
        reason = _reason_of(child, event.reason + limit, running)
        words = replace(event.words, peak_bytes=max(event.words.peak_bytes, child.peak_bytes))
        # the rest of its last words was printed on the agent's own streams
        self._state.record(records.SlaveEnded(child.name, cause, reason, named, LastWords(peak_bytes=words.peak_bytes)))
        self._traffic.send_newest(child, Due.STATE, now)
        self._shares.slave_ended(child)
        if child.former is not None:
            self._succession.ended(child)
        elif not child.is_replaced:
            lost = child.lost(started)[:MAX_TASKS]
            died = messages.SlaveDied(child.number, running, cause, shortened(reason), words, lost, child.allowed)
            self._state.to_master(died)
        if not self.leaving:
            self._replace(child, was, event, reason, now)
        self.departure.exit_if_alone()

    def _replace(self, child: Child, was: ChildState, event: SlaveExited, reason: str, now: float) -> None:
        """Start another slave, or give up if too many have failed in a row."""
        has_failed = was is ChildState.STARTING or (
            not child.is_up and (bool(child.condemned) or child.loss is Cause.START_UP)
        )
        if was is ChildState.READY and not (event.started or child.former or child.condemned):
            has_failed = bool(event.code)  # a slave algorithm that ends with 0 may have waited long enough for a task
        if child.sets_up is not None:
            has_failed = not child.is_replaced
        why: str | None = None
        if has_failed and is_from_outside(event.code) and not (event.out_of_memory or child.killed_because):
            self._starts.killed(now)
        elif not has_failed:
            self._starts.succeeded()
        elif child.loss is Cause.SET_UP:
            why = reason
        else:
            why = self._starts.failed(child, reason, event.words.headline)
        if why is None:
            self._starts.fill(now, child.failed_before + 1 if child.load_failed else 0)
        else:
            self._state.record(records.Notice(f"this agent gives up: {why}"))
            self.departure.leave(ExitCode.CANNOT_START, why, Cause.START_UP, self.settings.grace_s, now)

    # ---- actions -------------------------------------------------------------------------------------------

    def decide(self, now: float) -> None:
        """Decide what is due at this moment."""
        self.outage.decide(now)
        self.departure.decide(now)
        self._starts.decide(now)
        for child in self.children.values():
            for due in [due for due, at in child.dues.items() if now >= at]:
                if child.dues.pop(due, None) is not None:  # what was done before may have dropped it
                    self._do(due, child, now)

    def _do(self, due: Due, child: Child, now: float) -> None:
        """Do what is due for a slave."""
        actions = self._state.actions
        match due:
            case Due.START:
                self._starts.end_start(child, now)
            case Due.STATE | Due.REPORT:
                self._traffic.send_newest(child, due, now)
            case Due.SILENCE | Due.TIME:
                actions.look.append(child.number)
            case Due.MEMORY:
                self._watch.measure(child)
            case Due.SPARED:
                actions.recall.append((child.number, None))
            case Due.KILL:
                self._watch.does_not_end(child)
            case Due.COLLECT:
                actions.collect.append(child.number)

    def next_deadline(self) -> float | None:
        """When to call `decide` even if nothing happens; None if there is no such moment."""
        own = self.departure.deadline, self._starts.deadline, self.outage.deadline
        dues = (at for child in self.children.values() for at in child.dues.values())
        return min(chain(known(own), dues), default=None)

    def take_actions(self) -> AgentActions:
        """Everything to do now. Each action is returned once."""
        actions, self._state.actions = self._state.actions, AgentActions()
        return actions


def _reason_of(child: Child, reason: str, running: int) -> str:
    """Why a slave ended, while it ran this task, or none."""
    if child.killed_because:
        reason = f"killed by its agent {child.killed_because}"
    elif child.condemned:
        reason = f"{reason}; {child.condemned}"
    elif child.set_up_ended is not None:
        reason = child.set_up_ended.failure
    elif child.replaced_because and not running:
        is_well = reason == describe_exit(0)
        reason = child.replaced_because if is_well else f"{child.replaced_because} ({reason})"
    if child.sets_up is not None:
        return f"the set-up {child.sets_up.definition.name} failed: {reason}"
    return f"replaced, because it could not load an algorithm ({reason})" if child.load_failed else reason
