"""The agent's side of a session: a connection to the master that survives the end of the connections below it.

It looks like one connection to the master, and has one after the other. While there is no connection, messages to the
master are kept. `_core/agent/contact.py` decides when to look for the master, and `_core/session.py` what is sent
again.
"""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from mwpy._core.agent import child
from mwpy._core.session import KEPT_BYTES, UNCOUNTED, Session
from mwpy._roles.edges import AgentConnection, MasterSearch
from mwpy._transport import wire
from mwpy._transport.stream import Broken, Connected
from mwpy._values import messages
from mwpy._values.algorithm import PYTHON
from mwpy._values.bounds import MAX_NAME, Buffer, SlaveId, shortened
from mwpy._values.errors import ProtocolError
from mwpy._values.options import JOB_VARIABLE


class SessionLink:
    """The connections to the master, as one.

    Args:
        link: the first connection.
        search: finds the master, and connects to it again; None if the agent has no session.
        brought: the results that the agent brings from a former generation of the master, as messages.
    """

    def __init__(
        self, link: AgentConnection, search: MasterSearch | None, brought: Sequence[Sequence[Buffer]] = ()
    ) -> None:
        self._link = link
        self._search = search
        self._brought = [*brought]
        self._brought_bytes = 0
        """About how many bytes of these came since the last session ended."""
        self.sids: dict[int, SlaveId] = {}
        """The ids that the master has given to slaves, by number, until it has handled everything of the slave."""
        self._died: deque[tuple[int, int]] = deque()
        """The slaves that have died: how many messages were sent until then, and the number."""
        self.asks = False
        """Whether the agent asks where the master may be; `answer` returns it."""
        self.session: Session | None = None
        """The session; None before the master has accepted this agent, and if the agent has none."""
        self._has_session = False
        """Whether the session begins when the master accepts this agent."""
        self._has_ended = False
        self._watched: dict[int, tuple[bool, bool]] = {}
        """What is watched at each file descriptor: writable, readable."""

    # ---- the connection ------------------------------------------------------------------------------------

    def watch(self, fd: int, writable: bool = False, readable: bool = True) -> None:
        """Let `poll` wait for a file descriptor too."""
        self._watched[fd] = writable, readable
        self._link.watch(fd, writable, readable)

    def unwatch(self, fd: int) -> None:
        """Stop waiting for a file descriptor."""
        del self._watched[fd]
        self._link.unwatch(fd)

    def poll(self, timeout_s: float | None) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        """Wait for something to happen; see `AgentLink.poll`."""
        return self._link.poll(timeout_s)

    def end(self) -> None:
        """The connection has ended: keep what is sent from now on."""
        self._has_ended = True

    def answer(self) -> child.AddressesFound | child.ComputationOver | None:
        """If the agent asks where the master may be, return what was found out; None if this needs more time."""
        answer = self._search.answer() if self.asks and self._search is not None else None
        self.asks = self.asks and answer is None
        return answer

    def connect(self, address: str) -> None:
        """Use another connection from now on, to this address."""
        assert self._search is not None, "there is no session"
        link = self._search.connect(address)
        for fd, conditions in self._watched.items():
            link.watch(fd, *conditions)
        self._link.close(0.0)
        self._link = link

    def close(self, linger_s: float) -> None:
        """Close the connection. Messages that were sent have `linger_s` seconds to leave."""
        self._link.close(linger_s)

    # ---- messages ------------------------------------------------------------------------------------------

    def greet(self, hello: messages.Hello) -> None:
        """Send the first message on a connection."""
        self._has_session = bool(hello.session)
        handled = None if self.session is None else self.session.handled
        self._link.send(wire.encode(replace(hello, handled=handled)))

    def post(self, succeeds: str | None, outgoing: Sequence[child.Outgoing]) -> None:
        """Send what the core has decided to send.

        Args:
            succeeds: the generation of the master with which the session has ended before; None if it goes on.
        """
        if succeeds is not None:
            self._brought += self.handovers(succeeds)
            self.session = None
            self.sids.clear()
            self._died.clear()
        for message in outgoing:
            frames = message.received or wire.encode(message.message, message.payload)
            if self.session is None and self._has_ended and isinstance(message.message, messages.Handover):
                self._brought.append(frames)
                self._brought_bytes += sum(map(len, frames))
            self.send(frames)

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send to the master, now or when there is a connection again."""
        if self.session is not None:
            self.session.keep(frames)
            if wire.is_a(messages.SlaveDied, frames):
                died, _ = wire.parse(frames, wire.FROM_AGENT)
                assert isinstance(died, messages.SlaveDied)
                self._died.append((self.session.sent, died.slave))
        if not self._has_ended:
            self._link.send(frames)

    def takes(self, message: messages.Message, frames: Sequence[Buffer], now: float) -> bool:
        """Count a message of the master. Return whether it concerns only the session.

        Raises:
            ProtocolError: it contradicts the session; the master's fault.
        """
        session = self.session
        if isinstance(message, messages.Refused) and self._has_ended:  # the session does not go on at this master
            return False
        if type(message) not in UNCOUNTED:
            if session is not None:
                session.note_handled(frames, now)
                if isinstance(message, messages.SlaveNamed):
                    self.sids[message.slave] = message.sid
            return False
        if isinstance(message, messages.Welcome):
            self._answered(message)
        elif isinstance(message, messages.Handled) and session is not None:
            session.drop(message.count)
            self._forget_dead(message.count)
        return not isinstance(message, messages.Welcome)

    def _answered(self, welcome: messages.Welcome) -> None:
        """The master has accepted the agent, or goes on with its session: send again what it has not handled."""
        if self.session is None:
            self.session = Session() if self._has_session else None
            self._has_ended = False
            brought, self._brought, self._brought_bytes = self._brought, [], 0
            for frames in brought:
                self.send(frames)
            return
        if welcome.handled is None:
            raise ProtocolError("a second Welcome")
        self._forget_dead(welcome.handled)
        for frames in self.session.go_on(welcome.handled):
            self._link.send(frames)
        self._has_ended = False

    def _forget_dead(self, handled: int) -> None:
        """Forget the dead slaves whose last message the master has handled."""
        while self._died and self._died[0][0] <= handled:
            self.sids.pop(self._died.popleft()[1], None)

    def handovers(self, generation: str) -> list[Sequence[Buffer]]:
        """The results that the master has not handled, as messages for its next generation.

        Args:
            generation: the one that has ended.
        """
        found: list[Sequence[Buffer]] = []
        for frames in () if self.session is None else self.session.kept:
            message, payload = wire.parse(frames, wire.FROM_AGENT)
            if isinstance(message, messages.Handover):
                found.append(frames)
            elif isinstance(message, messages.Results):
                handover = messages.Handover(generation, self.sids[message.slave], message)
                found.append(wire.encode(handover, payload))
        return found

    @property
    def say_at(self) -> float:
        """When to call `say`; infinity if there is no need."""
        say_at = None if self.session is None or self._has_ended else self.session.say_at
        return inf if say_at is None else say_at

    def say(self) -> None:
        """Say how many messages of the master were handled."""
        if self.session is not None:
            self._link.send(wire.encode(self.session.said()))

    @property
    def is_full(self) -> bool:
        """Whether so much waits for a connection that slaves must wait, too."""
        kept_bytes = self._brought_bytes if self.session is None else self.session.kept_bytes
        return self._has_ended and kept_bytes > KEPT_BYTES


def hello_of_this_process(member_id: str, generation: str, slaves: int) -> messages.Hello:
    """Return the first message of this process.

    Args:
        generation: the life of the master that the process wants to join; empty for any.
        slaves: how many slaves it will start.
    """
    job = shortened(os.environ.get(JOB_VARIABLE, ""), MAX_NAME)
    return messages.Hello(member_id, generation, platform.node(), os.getpid(), PYTHON, slaves, job)
