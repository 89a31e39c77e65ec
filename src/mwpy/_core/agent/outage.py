"""The agent has no connection: it looks for its master, and its slaves go on.

The agent reads the resource file again, because the master may have another address now. Then it tries the addresses,
one after the other. Between two rounds it pauses, longer each time. The pauses differ from agent to agent, because a
thousand agents may lose their connections at the same moment.

When the agent is back, both sides send again what the other one has not handled (`_core/session.py`). If it finds the
next generation of its master, it joins this one with its slaves (`_core/agent/former.py`). If it does not find its
master in time, it leaves as it would have done at once without a session.
"""

from __future__ import annotations

import zlib
from math import inf

from msgspec import Struct, field

from mwpy._core.agent.departure import FAREWELL_S, Departure
from mwpy._core.agent.events import AddressesFound, AttemptFailed, ComputationOver, Disconnected
from mwpy._core.agent.former import FormerTasks
from mwpy._core.agent.state import AgentState
from mwpy._values import messages, records
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.plain_enum import PlainEnum

__all__ = ["Outage", "Phase"]

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


OutageEvent = Disconnected | AddressesFound | AttemptFailed | ComputationOver


class Phase(PlainEnum):
    """What the agent does about its connection."""

    CONNECTED = "connected"
    PAUSING = "pausing"
    ASKING = "asking for addresses"
    TRYING = "trying an address"


_CONNECTED = Phase.CONNECTED


class Outage(Struct, eq=False):
    """Looks for the master."""

    _state: AgentState
    _departure: Departure
    _former: FormerTasks
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
    _addresses: list[str] = field(default_factory=list)
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
        if not self.has_session or self._departure.code is not None or self._short >= SHORT_MAX:
            self._departure.disconnected(reason, now, now)
            return
        self._reason, self._since, self._rounds = reason, now, 0
        returns_s = self._state.settings.hello.returns_s
        text = f"the connection to the master has ended ({reason}); looking for it for up to {returns_s:.0f} s"
        self._state.record(records.Notice(text))
        self._pause(now)

    def end(self, now: float) -> None:
        """The agent is back."""
        self.phase, self._back_at = Phase.CONNECTED, now
        self._state.record(records.Notice(f"back at the master after {now - self._since:.0f} s"))

    def refused(self, message: messages.Refused, now: float) -> None:
        """The master has refused this agent, or wants it to leave."""
        if message.generation and self.phase is Phase.TRYING:
            self._other_generation(message, now)
            return
        if message.again and self._former.is_joining:
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
        if self._former.has_left(message.generation):
            self._try_next(now)
        elif self._departure.code is not None:
            self.give_up(message.reason, now)
        elif self._former.is_joining:  # it has died before it accepted this agent
            self._former.begin(message)
            self._pause(now)
        else:
            self._former.begin(message)
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
        if self.phase is _CONNECTED or now < min(self._due_at, self._ends_at):
            return
        if now >= self._ends_at:
            self.give_up(f"{self._reason}, and it was not found within {now - self._since:.0f} s", now)
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
        if self._former.is_joining:
            self._former.name_session()
        self.phase, self._due_at = Phase.TRYING, now + ATTEMPT_S
        self._state.actions.connect_to = self._address = self._addresses.pop(0)

    def check(self) -> None:
        """Assert that only an agent with a session looks for its master."""
        assert self.is_over or self.has_session, "it looks for its master without a session"
