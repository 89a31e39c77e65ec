"""An agent whose master is gone or away: it waits, finishes what its slaves run, and serves the next generation.

Slaves that outlive their master: they finish its tasks, and then serve its next generation.

An agent that wants to go on with its session learns from the next generation of the master itself that it has begun
(`Refused.generation`). So the agent needs no resource file if the master always has the same address. And a file that
is out of date never leads it back to a former generation.

Then the agent takes back the tasks that its slaves have not started, and says so to the new master. The others go on,
however long they take. Their results go to the new master as those of the former generation (`Handover`). Until then
the agent says that they still run, and of those whose slave has ended that they are lost (`FormerTasks`). When no more
tasks are being taken back, it says that it has said everything: then the new master does not wait for it any longer. A
master whose run database does not know the former generation could use nothing of this (`Refused.again`): then the
agent ends the slaves that run its tasks.

Tasks that were not started are named once, to the generation that follows. A later one cannot know whether that one has
sent them to another slave.

Both generations number tasks, algorithms and results that stay here in the same way, so nothing of them may be mixed.
Such a slave belongs to the former generation (`Child.former`): the new master does not know it, and it gets nothing of
the new one. When it has no task left, the agent sends it `NextGeneration`. It forgets what the former master has
defined, and answers. All its messages before the answer belong to the former generation, for example results that the
agent had already read in its journal. After the answer it is like a slave that has just become ready.

The agent asks only when the new master has accepted it: from then on, the master tells it about edited files (`Renew`).
The slave also says whether files were edited that it had loaded. Then it is replaced. The template is always replaced
then, because nothing of it runs that could find this out.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf

from attrs import Factory, define, evolve
from msgspec.structs import replace

from mwpy._core.agent.child import (
    FAREWELL_S,
    UNBOUNDED,
    AddressesFound,
    AgentState,
    AttemptFailed,
    Child,
    ChildEvent,
    ChildState,
    ComputationOver,
    Disconnected,
    Due,
    Former,
    Newest,
    OutageEvent,
    Outgoing,
)
from mwpy._core.agent.starts import Departure, Starts
from mwpy._core.agent.traffic import Shares, Traffic
from mwpy._values import messages, records
from mwpy._values.bounds import MAX_TASKS, Buffer
from mwpy._values.causes import Cause, PlainEnum
from mwpy._values.errors import ExitCode
from mwpy._values.phrases import duration
from mwpy._values.requires import Given


@define(eq=False, repr=False)
class Succession:
    """Leads slaves from one generation of the master to the next."""

    _state: AgentState
    _starts: Starts
    _traffic: Traffic
    _shares: Shares
    is_joining: bool = False
    """Whether the next generation has not accepted this agent yet."""
    _generation: str = ""
    """The generation that has accepted this agent last."""
    _left: dict[str, None] = Factory(dict)
    """The generations that had accepted it before."""
    _sessions: int = 0
    """How many sessions were named since the first one."""
    _settings: tuple[int, int] = (0, 0)
    """The settings of the master with which slaves were started."""
    _recalling: dict[int, None] = Factory(dict)
    """The slaves from which tasks of the generation that ended last are being taken back."""
    _not_started: list[messages.FormerTasks] = Factory(list)
    """What was taken back, until it is said to the next generation."""
    _taken: list[Given] = Factory(list)
    """What slaves of former generations have, as far as the master knows."""
    _to_say_all: str = ""
    """The generation that ended last, until everything about it is said; then empty."""

    def has_left(self, generation: str) -> bool:
        """Whether this generation of the master has accepted the agent, and a later one has begun since then."""
        return generation in self._left

    def begin(self, refused: messages.Refused) -> None:
        """The next generation of the master has begun: prepare to join it."""
        state, hello = self._state, self._state.settings.hello
        state.actions.succeeds, self.is_joining = self._generation, True
        self._left[self._generation] = None
        self._to_say_all = self._generation
        self._not_started.clear()
        self._recalling.clear()
        self._taken = []
        for child in state.children.values():
            if child.state is not ChildState.WAITING and child.former is None and child.sets_up is None:
                self._make_former(child, Former(self._generation, child.name))
            if refused.again and child.held and child in state.living():
                child.kill("because the next generation of the master does not want its task", Cause.CANCELLED)
                state.actions.kill.append(child.number)
        state.settings = evolve(state.settings, hello=replace(hello, generation=refused.generation, resumed=""))
        self._starts.begin_again()
        self._shares.begin_again()
        state.record(records.Notice(f"{refused.reason}: this agent joins its next generation"))

    def name_session(self) -> None:
        """Name another session, before another attempt to join: a master may know the last one, although its answer did
        not arrive. Nobody can guess the name, because nobody can guess its beginning."""
        state, hello = self._state, self._state.settings.hello
        self._sessions += 1
        name = f"{hello.session.partition('.')[0]}.{self._sessions}"
        state.settings = evolve(state.settings, hello=replace(hello, session=name))

    def _make_former(self, child: Child, former: Former) -> None:
        child.former = former
        child.newest = {Due.STATE: Newest(), Due.REPORT: Newest()}
        if child.is_ready and child.held:
            self._state.actions.recall.append((child.number, UNBOUNDED))
            self._recalling[child.number] = None
        self.settle(child)

    def joined(self, welcome: messages.Welcome) -> None:
        """A master has accepted this agent: report the slaves that were started before."""
        state, settings = self._state, (welcome.result_group, welcome.max_result_bytes)
        was_joining, is_other = self.is_joining, self.is_joining and self._settings != settings
        former, self._settings = self._generation, settings
        self.is_joining, self._generation = False, welcome.generation
        state.settings = evolve(state.settings, hello=replace(state.settings.hello, generation=welcome.generation))
        if was_joining:
            self._starts.renew()
        self._say_taken()
        for child in [child for child in state.living() if child.sets_up is None]:
            if is_other:
                self.end_slave(child)
            elif was_joining and child.former is None:  # it was started meanwhile, and files may have been edited since
                child.former = Former(former, child.name)
            self.settle(child)
            if child.former is not None and child.held:
                self._say(child, messages.FormerFate.RUNNING)
        self._say_all()

    def took_back(self, child: Child, revoked: messages.Revoked | None) -> None:
        """Tasks that a slave has not started were taken back."""
        if child.number in self._recalling:
            if revoked is not None and revoked.tasks:
                spans = zip(revoked.tasks, revoked.counts, strict=True)
                self._not_started.append(_of_former(self._to_say_all, messages.FormerFate.NOT_STARTED, spans))
            if child.number not in dict(self._state.actions.recall):
                del self._recalling[child.number]
            self._say_all()
        self.settle(child)

    def _say_all(self) -> None:
        """Say which tasks were not started when this is known of all slaves, and that this is all."""
        if self.is_joining or self._recalling or not self._to_say_all:
            return
        for named in (*self._not_started, messages.FormerTasks(self._to_say_all, messages.FormerFate.NOT_STARTED)):
            self._state.to_master(named)
        self._not_started.clear()
        self._to_say_all = ""

    def _say(self, child: Child, fate: messages.FormerFate) -> None:
        """Say how far the tasks are that a slave of a former generation has not finished."""
        assert child.former is not None
        spans = ((span.first, span.count) for span in islice(child.held, MAX_TASKS))
        self._state.to_master(_of_former(child.former.generation, fate, spans))

    def _say_taken(self) -> None:
        """Say what slaves have that run tasks of a former generation, if this has changed."""
        children = [child for child in self._state.children.values() if child.former is not None and child.held]
        taken = [child.given for child in children if child.given is not None]
        if not self.is_joining and taken != self._taken:
            self._taken = taken
            self._state.to_master(messages.Offered(taken=taken))

    def end_slave(self, child: Child) -> None:
        """Let a slave end after its task. The master never hears of its process."""
        child.is_replaced = True
        if child in self._state.living():
            self._state.stop(child, finished=False)

    def ready(self, child: Child, message: messages.SlaveReady, received: Sequence[Buffer]) -> None:
        """A slave is ready for tasks."""
        child.change(ChildEvent.GET_READY)
        child.dues.pop(Due.START, None)
        if child.is_ready:
            if child.former is None:
                self._state.actions.to_master.append(Outgoing(message, (), received))
            self.settle(child)

    def settle(self, child: Child) -> None:
        """A slave of the former generation may have no task left."""
        former = child.former
        if former is None or child.held:
            return
        self._say_taken()
        if child.has_gpus:
            self.end_slave(child)
        if child.is_ready and not (child.is_asked or self.is_joining):
            child.is_asked = True
            self._state.to_slave(child, messages.NextGeneration(child.number))

    def has_forgotten(self, child: Child, edited: str) -> None:
        """A slave has forgotten the former generation: it serves the new one, unless it has old code."""
        child.is_asked = False
        if self.is_joining:  # the master was started again since then, so the slave is asked again
            return
        child.former = None
        if edited:
            text = f"{child.name} is replaced, because {edited} was edited since it was loaded"
            self._state.record(records.Notice(text))
            self.end_slave(child)
        elif self._starts.must_replace(child):
            self.end_slave(child)
        elif child.is_ready:
            self._starts.give_definitions(child)
            self._state.to_master(messages.SlaveReady(child.number))

    def ended(self, child: Child) -> None:
        """The process of a slave has ended."""
        if child.held and not self.is_joining:
            self._say(child, messages.FormerFate.LOST)
        child.held.clear()
        self._say_taken()
        if self._recalling.pop(child.number, 0) is None:
            self._say_all()
        self.settle(child)


def _of_former(generation: str, fate: messages.FormerFate, spans: Iterable[tuple[int, int]]) -> messages.FormerTasks:
    """Name tasks of a former generation by their first ids and counts."""
    ascending = sorted(spans)
    firsts, counts = [first for first, _ in ascending], [count for _, count in ascending]
    return messages.FormerTasks(generation, fate, firsts, counts)


# The agent has no connection: it looks for its master, and its slaves go on.
#
# The agent reads the resource file again, because the master may have another address now. Then it tries the addresses,
# one after the other. Between two rounds it pauses, longer each time. The pauses differ from agent to agent, because a
# thousand agents may lose their connections at the same moment.
#
# When the agent is back, both sides send again what the other one has not handled (`_roles/sessions.py`). If it finds
# the next generation of its master, it joins this one with its slaves. If it does not find its master in time, it
# leaves as it would have done at once without a session.


FIRST_PAUSE_S = 1.0
"""The longest pause before the first round, in seconds."""

GROWTH = 1.6
"""Each pause is at most this many times as long as the one before."""

LONGEST_PAUSE_S = 20.0
"""The longest of all pauses, in seconds. A thousand agents then need about 100 connections in a second."""

ATTEMPT_S = 5.0
"""Seconds in which one address must answer."""

SHORT_S = 5.0
"""A connection that ends within this many seconds is short."""

SHORT_MAX = 5
"""After so many short connections in a row the agent leaves: something on them ends each of them."""


class Phase(PlainEnum):
    """What the agent does about its connection."""

    CONNECTED = "connected"
    PAUSING = "pausing"
    ASKING = "asking for addresses"
    TRYING = "trying an address"


_CONNECTED = Phase.CONNECTED


@define(eq=False, repr=False)
class Outage:
    """Looks for the master."""

    _state: AgentState
    _departure: Departure
    _succession: Succession
    phase: Phase = Phase.CONNECTED
    has_session: bool = False
    """Whether the master has accepted the agent, and the agent may come back."""
    _reason: str = ""
    """Why the connection ended."""
    _since: float = 0.0
    _due_at: float = 0.0
    """When the present phase ends."""
    _rounds: int = 0
    """How many rounds through all addresses have begun."""
    _back_at: float = -inf
    """When the agent was last back."""
    _short: int = 0
    """How many connections in a row were short."""
    _addresses: list[str] = Factory(list)
    """The addresses that are left to try in this round."""
    _address: str = ""
    """The address that was tried last."""

    @property
    def is_over(self) -> bool:
        """Whether there is a connection."""
        return self.phase is _CONNECTED

    def handle(self, event: OutageEvent, now: float) -> None:
        """The connection has ended, or the search has a result. An answer that comes too late changes nothing."""
        match event:
            case Disconnected(reason, returns):
                self.has_session = self.has_session and returns
                self._begin(reason, now)
            case AddressesFound(addresses) if self.phase is Phase.ASKING:
                self._addresses = [*addresses]
                self._try_next(now)
            case AttemptFailed() if self.phase is Phase.TRYING:
                self._try_next(now)
            case ComputationOver(reason, True) if self.phase is Phase.ASKING:
                self.stop()
                self._departure.leave(ExitCode.OK, reason, Cause.CANCELLED, FAREWELL_S, now)
            case ComputationOver(reason) if self.phase is Phase.ASKING:
                self.give_up(reason, now)
            case _:
                pass

    def _begin(self, reason: str, now: float) -> None:
        """Look for the master, unless the agent has no session or leaves anyway."""
        self._short = self._short + 1 if now < self._back_at + SHORT_S else 0
        leaves = self._departure.code is not None and not self._departure.drains
        if not self.has_session or leaves or self._short >= SHORT_MAX:
            self._departure.disconnected(reason, now, now)
            return
        self._reason, self._since, self._rounds = reason, now, 0
        returns_s = self._state.settings.hello.returns_s
        text = f"the connection to the master has ended ({reason}); looking for it for up to {duration(returns_s)}"
        self._state.record(records.Notice(text))
        self._pause(now)

    def end(self, now: float) -> None:
        """The agent is back."""
        self.phase, self._back_at = Phase.CONNECTED, now
        self._state.record(records.Notice(f"back at the master after {duration(round(now - self._since))}"))

    def refused(self, message: messages.Refused, now: float) -> None:
        """The master has refused this agent, or wants it to leave."""
        if message.generation and self.phase is Phase.TRYING:
            self._other_generation(message, now)
            return
        if message.again and self._succession.is_joining:
            self._pause(now)
            return
        if message.again:
            self.give_up(message.reason, now, again=True)
            return
        self.stop()
        self._state.record(records.Notice(f"the master refused this agent: {message.reason}"))
        cause, grace_s = Cause.CANCELLED, FAREWELL_S
        if message.finish:
            cause, grace_s = Cause.SCALED_DOWN, self._state.settings.grace_s
        self._departure.leave(ExitCode.REFUSED, message.reason, cause, grace_s, now)

    def _other_generation(self, message: messages.Refused, now: float) -> None:
        """The master at this address is of another generation: join it at once, if it is no former one."""
        if self._succession.has_left(message.generation):
            self._try_next(now)
        elif self._departure.code is not None:
            self.give_up(message.reason, now)
        elif self._succession.is_joining:  # it has died before it accepted this agent
            self._succession.begin(message)
            self._pause(now)
        else:
            self._succession.begin(message)
            self._addresses.insert(0, self._address)
            self._try_next(now)

    def stop(self) -> None:
        """Look for the master no longer, now or later."""
        self.phase, self.has_session = Phase.CONNECTED, False

    def give_up(self, reason: str, now: float, *, again: bool = False) -> None:
        """The agent cannot come back, for this reason: it leaves.

        Args:
            again: whether it joins again as a new agent.
        """
        ended_at = now if self.is_over else self._since
        self.stop()
        self._departure.disconnected(reason, ended_at, now, again=again)

    def decide(self, now: float) -> None:
        """End a phase that is due."""
        if self.phase is _CONNECTED:
            return
        if now < min(self._due_at, self._ends_at):
            return
        if now >= self._ends_at:
            self.give_up(f"{self._reason}, and it was not found within {duration(round(now - self._since))}", now)
        elif self.phase is Phase.PAUSING:
            self.phase, self._due_at = Phase.ASKING, self._ends_at
            self._state.actions.ask_addresses = True
        else:
            self._try_next(now)

    @property
    def deadline(self) -> float | None:
        """When `decide` is due; None if there is a connection."""
        return None if self.phase is _CONNECTED else min(self._due_at, self._ends_at)

    @property
    def _ends_at(self) -> float:
        return self._since + self._state.settings.hello.returns_s

    def _pause(self, now: float) -> None:
        longest_s = min(FIRST_PAUSE_S * GROWTH**self._rounds, LONGEST_PAUSE_S)
        self._rounds += 1
        drawn = zlib.crc32(f"{self._state.settings.hello.session} {self._rounds}".encode()) / (1 << 32)
        self.phase, self._due_at = Phase.PAUSING, now + longest_s * (0.2 + 0.8 * drawn)

    def _try_next(self, now: float) -> None:
        if not self._addresses:
            self._pause(now)
            return
        if self._succession.is_joining:
            self._succession.name_session()
        self.phase, self._due_at = Phase.TRYING, now + ATTEMPT_S
        self._state.actions.connect_to = self._address = self._addresses.pop(0)
