"""Sessions: the messages between a master and an agent, which survive the end of their connection.

When a connection ends, nobody knows which of the last messages arrived. So each side counts the messages of the other
side that it has handled, and keeps the messages that it has sent until the other side says that it has handled them. On
the next connection, each side first says how many it has handled. Then it sends the kept messages that the other side
has not handled, in their order. So each message is handled exactly once, and the cores compare nothing.

What is handled is said in a small message (`Handled`), at most once a second, or sooner when much was handled. Nothing
is said while nothing is handled. Messages about the connection itself are not counted (`UNCOUNTED`).

`Session` is one side of a session. `Sessions` has those of a master, and `SessionLink` has that of an agent.
"""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Container, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from attrs import Factory, define
from msgspec import Struct
from msgspec.structs import replace

from mwpy._roles.edges import AgentConnection, MasterConnections, MasterSearch
from mwpy._transport import wire
from mwpy._values import messages
from mwpy._values.algorithm import PYTHON
from mwpy._values.bounds import MAX_NAME, Buffer, SlaveId, shortened
from mwpy._values.connections import Broken, Connected
from mwpy._values.errors import ProtocolError
from mwpy._values.options import JOB_VARIABLE

if TYPE_CHECKING:
    from mwpy._core.agent import child

UNCOUNTED = frozenset({messages.Hello, messages.Welcome, messages.Handled, messages.Probe})
"""Messages that concern one connection only."""

SAY_S = 1.0
"""Seconds from a handled message until it is said how many were handled."""

SAY_MESSAGES = 256
"""After so many handled messages it is said at once."""

SAY_BYTES = 1 << 20
"""After so many bytes of handled messages it is said at once."""

KEPT_MESSAGES = 100_000
"""How many messages are kept at most. A correct peer says long before that what it has handled."""

KEPT_BYTES = 256 << 20
"""When the kept messages of an agent are larger, it reads no messages of its slaves, so that they wait."""


@define(eq=False, repr=False)
class Session:
    """One side of a session."""

    handled: int = 0
    """How many messages of the other side were handled."""
    say_at: float | None = None
    """When to say this; None if the other side knows it."""
    kept_bytes: int = 0
    """About how many bytes are kept."""
    _said: int = 0
    """How many messages the other side knows to be handled."""
    _handled_bytes: int = 0
    """About how many bytes were handled since it was last said."""
    _dropped: int = 0
    """How many messages the other side has handled, so that they are not kept."""
    _kept: deque[tuple[Sequence[Buffer], int, str]] = Factory(deque)
    """The messages that were sent after these, their sizes, and whose they are."""

    # ---- what is sent --------------------------------------------------------------------------------------

    def keep(self, frames: Sequence[Buffer], sid: str = "") -> None:
        """Keep a message that is sent, or that will be sent when there is a connection.

        Args:
            sid: the slave whose results it has; empty for other messages.
        """
        size = sum(map(len, frames))
        self.kept_bytes += size
        self._kept.append((frames, size, sid))

    def drop(self, handled: int) -> int:
        """The other side has handled this many messages: keep them no longer.

        Returns:
            The size of the payloads of those that were kept.

        Raises:
            ProtocolError: this cannot be; the fault of the other side.
        """
        kept = self._kept
        if not self._dropped <= handled <= self._dropped + len(kept):
            raise ProtocolError(
                f"it says that it has handled {handled} messages, not {self._dropped} to {self._dropped + len(kept)}"
            )
        payload_bytes = 0
        while self._dropped < handled:
            frames, size, _ = kept.popleft()
            self.kept_bytes -= size
            self._dropped += 1
            payload_bytes += size - len(frames[0])
        return payload_bytes

    @property
    def kept(self) -> list[tuple[Sequence[Buffer], str]]:
        """The messages that are kept, the oldest first, each with the slave whose results it has."""
        return [(frames, sid) for frames, _, sid in self._kept]

    @property
    def is_full(self) -> bool:
        """Whether there are more messages than a correct peer leaves unhandled."""
        return len(self._kept) > KEPT_MESSAGES

    # ---- what is received ----------------------------------------------------------------------------------

    def note_handled(self, frames: Sequence[Buffer], now: float) -> None:
        """Count a message of the other side that was handled."""
        self.handled += 1
        self._handled_bytes += sum(map(len, frames))
        if self.handled >= self._said + SAY_MESSAGES or self._handled_bytes >= SAY_BYTES:
            self.say_at = now
        elif self.say_at is None:
            self.say_at = now + SAY_S

    def note_repeated(self, now: float) -> None:
        """A message came again that was handled: the other side does not know this."""
        if self.say_at is None:
            self.say_at = now + SAY_S

    def said(self) -> messages.Handled:
        """Return what to say now about the messages that were handled."""
        self._said, self._handled_bytes, self.say_at = self.handled, 0, None
        return messages.Handled(self.handled)

    # ---- the next connection -------------------------------------------------------------------------------

    def go_on(self, handled: int) -> list[Sequence[Buffer]]:
        """Go on with the session on another connection, on which both sides have said what they have handled.

        Args:
            handled: how many messages the other side has handled.

        Returns:
            The messages to send again, in their order.

        Raises:
            ProtocolError: this cannot be; the fault of the other side.
        """
        self.drop(handled)
        self.said()
        return [frames for frames, _ in self.kept]


# The sessions of a master's agents, between its core and its link.
#
# The core knows a peer by the name of its first connection. When an agent comes back on another connection, `Sessions`
# translates the name. So the core gets the messages of an agent in one order, each once, whatever its connections were.
#
# An agent forgets a result when the master says that it has handled it. So with a run database, the master says this
# only when the result is in the file: if it is killed before that, the agent brings the result to its next generation.
# Until then, an agent that comes back sends again what was handled, and `Sessions` passes this over.


Said = Sequence[tuple[bytes, messages.Handled]]
"""What is said about handled messages, each with its peer."""


class _Known(Struct, eq=False):
    """The session of an agent."""

    session: Session
    token: str
    """What names it in `Hello`."""
    welcome: messages.Welcome
    """What the agent was answered when it joined."""
    connection: bytes
    """The name of its newest connection."""
    is_away: bool = False
    """Whether this connection has ended."""
    acknowledged: int = 0
    """How many messages the agent may know to be handled."""
    repeated: int = 0
    """How many messages that were handled the agent sends again."""


class Sessions:
    """All sessions.

    Args:
        link: the connections to agents.
        timeout_s: after this silence the connection of an agent has ended.
    """

    def __init__(self, link: MasterConnections, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self.longest_wait_s = timeout_s / 4
        """The longest time for which the link may wait. An agent ends its connection when it has heard nothing for
        `timeout_s`. So a stop that makes an agent do this makes a wait at least `timeout_s / 2` too long."""
        self._stopped_s = 0.0
        """For how long this process was stopped."""
        self._resumed_at = -inf
        self._known: dict[bytes, _Known] = {}
        """By peer."""
        self._by_token: dict[str, bytes] = {}
        """The peers, by what names their session."""
        self._peers: dict[bytes, bytes] = {}
        """The peers of the connections that are not their first ones; empty for one that is not listened to."""
        self._joining: dict[bytes, str] = {}
        """What names the sessions of the peers that are not answered yet."""
        self._owing: dict[bytes, _Known] = {}
        """The sessions in which messages were handled, and nothing was said about it."""
        self.confirmed: deque[tuple[bytes, int]] = deque()
        """Which peers have handled messages with how many bytes of payloads, for the core, which takes it."""
        self.say_at = inf
        """When to call `due`."""

    # ---- messages ------------------------------------------------------------------------------------------

    def peer_of(self, connection: bytes) -> bytes:
        """Return the peer to which a connection belongs; empty if its messages are ignored."""
        return self._peers.get(connection, connection)

    def takes(self, peer: bytes, message: messages.Message, frames: Sequence[Buffer], now: float) -> bool:
        """Count a message of a peer. Return whether it concerns only the session, or came before.

        Raises:
            ProtocolError: it contradicts the session; the peer's fault.
        """
        known = self._known.get(peer)
        if known is None:
            if isinstance(message, messages.Hello) and message.session:
                self._joining[peer] = message.session
            return False
        if isinstance(message, messages.Handled):
            self.confirmed.append((peer, known.session.drop(message.count)))
            return True
        if is_repeated := known.repeated > 0:
            known.repeated -= 1
            known.session.note_repeated(now)
        else:
            known.session.note_handled(frames, now)
        self._owing[peer] = known
        if known.session.say_at is not None and known.session.say_at < self.say_at:
            self.say_at = known.session.say_at
        return is_repeated

    def send(self, peer: bytes, message: messages.Message, payload: Sequence[Buffer]) -> None:
        """Send to a peer. If it is away, the message waits for its return."""
        frames, known = wire.encode(message, payload), self._known.get(peer)
        if known is None:
            token = self._joining.pop(peer, "")
            if token and token not in self._by_token and isinstance(message, messages.Welcome):
                self._known[peer] = _Known(Session(), token, message, peer)
                self._by_token[token] = peer
            self._link.send(peer, frames)
            return
        known.session.keep(frames)
        if known.session.is_full:
            self.disconnect(peer)
            self._end(peer)
        elif not known.is_away:
            self._link.send(known.connection, frames)

    def due(self, now: float) -> Said:
        """Return what to say about handled messages, each with its peer, in the sessions in which this is due."""
        self.say_at = inf
        found: list[tuple[bytes, messages.Handled]] = []
        for peer, known in [*self._owing.items()]:
            say_at = known.session.say_at
            if say_at is not None and say_at > now:
                self.say_at = min(self.say_at, say_at)
                continue
            del self._owing[peer]
            found.append((peer, known.session.said()))
        return found

    def say(self, said: Said) -> None:
        """Say how many messages were handled, as `due` has returned it. An agent that is away learns it later."""
        for peer, message in said:
            known = self._known.get(peer)
            if known is not None and not known.is_away:
                known.acknowledged = message.count
                self._link.send(known.connection, wire.encode(message))

    # ---- connections ---------------------------------------------------------------------------------------

    def waited(self, until: float, now: float) -> None:
        """The link has waited. If it is much later than expected, this process was stopped.

        Args:
            until: when the wait would have ended at the latest if the turn before it had taken no time. This process
                may have been stopped in that turn, too.
        """
        if now > until + self._timeout_s / 2:
            self._stopped_s, self._resumed_at = now - until, now

    def silence(self, silent_s: float, now: float) -> float:
        """Return for how long nothing was heard from a peer whose connection has ended; 0 if its process ended it.

        If this process was stopped, agents have ended their connections because they heard nothing from it.
        """
        return max(silent_s, self._stopped_s) if now < self._resumed_at + self._timeout_s else silent_s

    def ended(self, connection: bytes) -> bytes:
        """A connection has ended. Return its peer; empty if the peer has another connection."""
        return self._peers.pop(connection, connection)

    def settle(self, peer: bytes, *, is_away: bool) -> None:
        """The connection of a peer has ended: the session waits for its return, or ends."""
        known = self._known.get(peer)
        if known is not None and is_away:
            known.is_away = True
            self._owing.pop(peer, None)
        else:
            self._end(peer)

    def goes_on(self, connection: bytes, message: messages.Hello, members: Container[bytes]) -> bytes:
        """If a message is the first one of an agent that comes back on another connection, go on with its session.

        Args:
            members: the peers that the master has not given up.

        Returns:
            The peer that comes back; empty if the agent is a new one, or the session is over.

        Raises:
            ProtocolError: the message contradicts the session; the agent's fault.
        """
        if message.handled is None:
            return b""
        peer = self._by_token.get(message.session, b"")
        if peer not in members or connection in members:  # a member says nothing like this
            return b""
        known = self._known[peer]
        self.confirmed.append((peer, known.session.drop(message.handled)))
        kept = known.session.go_on(message.handled)
        if not known.is_away:
            self._peers[known.connection] = b""
            self._link.disconnect(known.connection)
        self._peers[connection] = peer
        known.connection, known.is_away = connection, False
        self._owing.pop(peer, None)
        known.repeated = known.session.handled - known.acknowledged
        welcome = replace(known.welcome, handled=known.acknowledged)
        for frames in (wire.encode(welcome), *kept):
            self._link.send(connection, frames)
        return peer

    def forget(self, peer: bytes) -> None:
        """Stop waiting for a peer that has gone."""
        known = self._known.get(peer)
        connection = peer if known is None else known.connection
        self._end(peer)
        self._peers.pop(connection, None)
        self._link.forget(connection)

    def disconnect(self, peer: bytes) -> None:
        """End the connection of a peer."""
        known = self._known.get(peer)
        self._link.disconnect(peer if known is None else known.connection)

    def _end(self, peer: bytes) -> None:
        self._joining.pop(peer, None)
        self._owing.pop(peer, None)
        known = self._known.pop(peer, None)
        if known is not None:
            del self._by_token[known.token]


# The agent's side of a session. It looks like one connection to the master, and has one after the other. While there is
# no connection, messages to the master are kept. `_core/agent/contact.py` decides when to look for the master.


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
        self._sids: dict[int, SlaveId] = {}
        """The ids that the master has given to slaves that have not ended, by number."""
        self.asks = False
        """Whether the agent asks where the master may be; `answer` returns it."""
        self.session: Session | None = None
        """The session; None before the master has accepted this agent, and if the agent has none."""
        self._has_session = False
        """Whether the session begins when the master accepts this agent."""
        self._has_ended = False

    # ---- the connection ------------------------------------------------------------------------------------

    def poll(
        self, timeout_s: float | None, files: Mapping[int, int]
    ) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        """Wait for something to happen; see `AgentLink.poll`."""
        return self._link.poll(timeout_s, files)

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
            self._sids.clear()
        for each in outgoing:
            message, sid = each.message, ""
            frames = each.received or wire.encode(message, each.payload)
            if self.session is None and self._has_ended and isinstance(message, messages.Handover):
                self._brought.append(frames)
                self._brought_bytes += sum(map(len, frames))
            if isinstance(message, messages.SlaveDied):
                self._sids.pop(message.slave, None)
            elif isinstance(message, messages.Results):
                sid = self._sids.get(message.slave, "")
            self.send(frames, sid)

    def send(self, frames: Sequence[Buffer], sid: str = "") -> None:
        """Send to the master, now or when there is a connection again."""
        if self.session is not None:
            self.session.keep(frames, sid)
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
                    self._sids[message.slave] = message.sid
            return False
        if isinstance(message, messages.Welcome):
            self._answered(message)
        elif isinstance(message, messages.Handled) and session is not None:
            session.drop(message.count)
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
        for frames in self.session.go_on(welcome.handled):
            self._link.send(frames)
        self._has_ended = False

    def handovers(self, generation: str) -> list[Sequence[Buffer]]:
        """The results that the master has not handled, as messages for its next generation.

        Args:
            generation: the one that has ended.
        """
        found: list[Sequence[Buffer]] = []
        for frames, sid in () if self.session is None else self.session.kept:
            message, payload = wire.parse(frames, wire.FROM_AGENT)
            if isinstance(message, messages.Handover):
                found.append(frames)
            elif isinstance(message, messages.Results):
                found.append(wire.encode(messages.Handover(generation, sid, message), payload))
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
