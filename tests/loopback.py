"""Masters' and agents' ends of the link in one process, polled in turn until what a test waits for has happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mwpy._transport.link import (
    AgentLink,
    Broken,
    Connected,
    CurvePair,
    Frames,
    MasterLink,
    StrangerSeen,
    Unreachable,
    member_keys,
    new_key,
    server_keys,
)
from mwpy._values.ids import Buffer

PATIENCE_S = 120.0
"""Nothing takes so long unless the test fails."""

POLL_S = 0.005
"""Seconds that one end is waited for before the next has its turn."""

CALM_S = 3000.0
"""A timeout so long that neither heartbeats nor slow rounds of probes play a part."""

PROBE: list[Buffer] = [b"probe"]

PAYLOAD_BYTES = 1 << 20


class Master:
    """A master's end, and all that it told."""

    def __init__(self, link: MasterLink) -> None:
        self.link = link
        self.told: list[Frames | StrangerSeen | Unreachable] = []
        self._ahead_s = 0.0

    def turn(self) -> None:
        self.told += self.link.poll(POLL_S, time.monotonic() + self._ahead_s)

    def slow_round(self) -> None:
        """Probe every known peer, as happens from time to time in case a sign of its end was missed."""
        self._ahead_s += CALM_S
        self.told += self.link.poll(0.0, time.monotonic() + self._ahead_s)

    @property
    def heard(self) -> list[Frames]:
        return [each for each in self.told if isinstance(each, Frames)]

    @property
    def messages(self) -> list[list[Buffer]]:
        return [list(each.frames) for each in self.heard]

    @property
    def gone(self) -> list[bytes]:
        return [each.peer for each in self.told if isinstance(each, Unreachable)]

    @property
    def strangers(self) -> list[StrangerSeen]:
        return [each for each in self.told if isinstance(each, StrangerSeen)]


class Agent:
    """An agent's end, and all that it told; of the probes nothing."""

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
    """Opens the ends of a test, takes turns between them and closes those that are left."""

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
        """Open an agent's end, of the right keys if no others are given, to a master or a port of this host."""
        address = f"tcp://{source}127.0.0.1:{to.link.port if isinstance(to, Master) else to}"
        server, member = server or server_keys(self.key).public, member or member_keys(self.key)
        end = Agent(AgentLink(address, server, member, timeout_s))
        self._ends.append(end)
        return end

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Take turns until something has happened; what did not is the failure."""
        began = time.monotonic()
        rounds = 0
        while not condition():
            for end in self._ends:
                end.turn()
            waited_s = time.monotonic() - began
            if waited_s > rounds + 1:
                rounds += 1
                for end in self._ends:
                    if isinstance(end, Master):
                        end.slow_round()
            told = [end.told if isinstance(end, Master) else end.fates for end in self._ends]
            assert waited_s < PATIENCE_S, f"no {what}: {told}"[:4000]

    def hello(self, agent: Agent, master: Master, word: bytes = b"hello") -> bytes:
        """Have the agent say a word, and the master hear it; the name of the connection."""
        agent.link.send([word])
        before = len(master.heard)
        self.until(lambda: len(master.heard) > before, f"word {word!r}")
        assert master.messages[before:] == [[word]]
        return master.heard[-1].peer

    def pair(self, *, timeout_s: float = CALM_S, max_payload: int = PAYLOAD_BYTES) -> tuple[Master, Agent, bytes]:
        """A master and an agent that know each other, and the name of their connection."""
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
    """A `Loopback` that leaves nothing open."""
    ends = Loopback()
    try:
        yield ends
    finally:
        ends.close_all()
