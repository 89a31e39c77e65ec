"""The sessions of a master's agents, between its core and its link.

The core knows a peer by the name of its first connection. When an agent comes back on another connection, `Sessions`
translates the name. So the core gets the messages of an agent in one order, each once, whatever its connections were.
`_core/session.py` says how.

An agent forgets a result when the master says that it has handled it. So with a run database, the master says this only
when the result is in the file: if it is killed before that, the agent brings the result to its next generation. Until
then, an agent that comes back sends again what was handled, and `Sessions` passes this over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.master.state import Confirmed
from mwpy._core.session import Session
from mwpy._roles.edges import MasterConnections
from mwpy._transport import wire
from mwpy._values import messages
from mwpy._values.bounds import Buffer

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
        self.confirmed: deque[Confirmed] = deque()
        """What peers have said about handled messages, for the core, which takes it."""
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
            self.confirmed.append(Confirmed(peer, known.session.drop(message.count)))
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
        self.confirmed.append(Confirmed(peer, known.session.drop(message.handled)))
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
