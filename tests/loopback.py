"""Ends of the link of masters and agents in one process. A test polls them in turn until its condition is true."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mwpy._transport.link import LOOKS_A_TIMEOUT, AgentLink, CurvePair, MasterLink, member_keys, new_key, server_keys
from mwpy._values.bounds import Buffer
from mwpy._values.connections import Broken, Connected, Frames, Happened, Stranger, Vanished

PATIENCE_S = 120.0
"""The test fails after this time."""

POLL_S = 0.005
"""Seconds to wait for one end before the next end is polled."""

CALM_S = 3000.0
"""A timeout so long that heartbeats and looks at the connections have no effect."""

LOOK_S = CALM_S / LOOKS_A_TIMEOUT
"""From one look at the connections to the next. A longer step would make a peer look silent that has just ended."""

PROBE: list[Buffer] = [b"probe"]

PAYLOAD_BYTES = 1 << 20


class Master:
    """The end of a master, and all events that it returned."""

    def __init__(self, link: MasterLink) -> None:
        self.link = link
        self.events: list[Happened] = []
        self._ahead_s = 0.0

    def turn(self) -> None:
        self.events += self.link.poll(POLL_S, time.monotonic() + self._ahead_s)

    def look(self) -> None:
        """Look at all connections, as the link does from time to time."""
        self._ahead_s += LOOK_S
        self.events += self.link.poll(0.0, time.monotonic() + self._ahead_s)

    @property
    def received(self) -> list[Frames]:
        return [each for each in self.events if isinstance(each, Frames)]

    @property
    def messages(self) -> list[list[Buffer]]:
        return [list(each.frames) for each in self.received]

    @property
    def gone(self) -> list[bytes]:
        return [each.peer for each in self.events if isinstance(each, Vanished)]

    @property
    def strangers(self) -> list[Stranger]:
        return [each for each in self.events if isinstance(each, Stranger)]


class Agent:
    """The end of an agent, and all events that it returned, except probes."""

    def __init__(self, link: AgentLink) -> None:
        self.link = link
        self.fates: list[Connected | Broken] = []
        self.messages: list[list[Buffer]] = []

    def turn(self) -> None:
        fates, messages, _ = self.link.poll(POLL_S)
        self.fates += fates
        self.messages += [message for message in messages if message != PROBE]

    @property
    def broken(self) -> list[str]:
        return [each.fate for each in self.fates if isinstance(each, Broken)]


class Loopback:
    """Opens the ends of a test, polls them in turn and closes them."""

    def __init__(self) -> None:
        self.key = new_key()
        self._ends: list[Master | Agent] = []

    def master(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        timeout_s: float = CALM_S,
        max_payload: int = PAYLOAD_BYTES,
    ) -> Master:
        end = Master(MasterLink(host, port, key or self.key, timeout_s, max_payload, PROBE))
        self._ends.append(end)
        return end

    def agent(
        self,
        to: Master | int,
        *,
        source: str = "",
        server: str | None = None,
        member: CurvePair | None = None,
        timeout_s: float = CALM_S,
    ) -> Agent:
        """Open the end of an agent to a master or to a port of this host. The keys are correct by default."""
        address = f"tcp://{source}127.0.0.1:{to.link.port if isinstance(to, Master) else to}"
        server, member = server or server_keys(self.key).public, member or member_keys(self.key)
        end = Agent(AgentLink(address, server, member, timeout_s))
        self._ends.append(end)
        return end

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Poll all ends in turn until the condition is true. Fail if it does not become true."""
        began = time.monotonic()
        while not condition():
            for end in self._ends:
                end.turn()
            waited_s = time.monotonic() - began
            events = [end.events if isinstance(end, Master) else end.fates for end in self._ends]
            assert waited_s < PATIENCE_S, f"no {what}: {events}"[:4000]

    def hello(self, agent: Agent, master: Master, text: bytes = b"hello") -> bytes:
        """Send one message from the agent to the master. Return the name of the connection."""
        agent.link.send([text])
        before = len(master.received)
        self.until(lambda: len(master.received) > before, f"message {text!r}")
        assert master.messages[before:] == [[text]]
        return master.received[-1].peer

    def pair(self, *, timeout_s: float = CALM_S, max_payload: int = PAYLOAD_BYTES) -> tuple[Master, Agent, bytes]:
        """Return a connected master and agent, and the name of their connection."""
        master = self.master(timeout_s=timeout_s, max_payload=max_payload)
        agent = self.agent(master, timeout_s=timeout_s)
        return master, agent, self.hello(agent, master)

    def close(self, end: Master | Agent, linger_s: float = 0.0) -> None:
        self._ends.remove(end)
        end.link.close(linger_s)

    def close_all(self) -> None:
        while self._ends:
            self.close(self._ends[-1])


@contextmanager
def loopback() -> Iterator[Loopback]:
    """Yield a `Loopback` and close all its ends."""
    ends = Loopback()
    try:
        yield ends
    finally:
        ends.close_all()
