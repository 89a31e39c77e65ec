"""A master that inquirers ask, for tests of its answers."""

from __future__ import annotations

from typing import Any

from tests.spans import MAX, MIN, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import MasterSettings, Received, Vanished
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.policy import TaskPolicy

ASK = messages.Ask("m", "g")


class Asked:
    """A master, its agents, and inquirers."""

    def __init__(self, **settings: Any) -> None:
        self.core = MasterCore(MasterSettings("m", "g", **settings))
        for algorithm in (MAX, MIN):
            self.core.definitions.add(Defined(algorithm))
        self.now = 100.0
        self.sent: dict[bytes, list[messages.Message]] = {}
        self.disconnected: list[bytes] = []
        self.recorded: list[records.Record] = []

    def receive(self, message: messages.Message, peer: bytes = b"asks", frames: tuple[bytes, ...] = ()) -> None:
        self.core.handle(Received(peer, "10.0.0.9", message, frames), self.now)

    def decide(self) -> None:
        self.core.decide(self.now)
        self.core.check()
        actions = self.core.take_actions()
        for send in actions.sends:
            self.sent.setdefault(send.peer, []).append(send.message)
        self.recorded += actions.records

    def ask(self, peer: bytes = b"asks", question: messages.Ask = ASK) -> messages.Message:
        """Ask a question a second later, leave, and return the answer."""
        self.now += 1.0
        self.receive(question, peer)
        self.decide()
        self.core.handle(Vanished(peer, 0.0), self.now)
        return self.sent[peer].pop()

    def explain(self, task: int) -> messages.Explanation:
        """Ask about a task."""
        answer = self.ask(question=messages.Ask("m", "g", task))
        assert isinstance(answer, messages.Explanation), answer
        return answer

    @property
    def status(self) -> messages.Status:
        answer = self.ask()
        assert isinstance(answer, messages.Status), answer
        return answer

    def connect(self, peer: bytes = b"a", host: str = "node1", slaves: int = 1) -> None:
        self.receive(messages.Hello("m", "g", host, 1, "3.11", slaves), peer)
        self.receive(messages.SlaveReady(1), peer)
        self.decide()

    def submit(self, first: int, count: int = 1, refers: tuple[int, ...] = (), **policy: Any) -> None:
        own = TaskPolicy(**policy)
        self.core.submit([span(first, MAX, count, policy=own, refers=refers)])
        self.decide()

    def fail(self, error: Exception, task: int, peer: bytes = b"a") -> None:
        self.finish(task, peer, [0], Codec().dumps_failure(error))

    def finish(self, task: int, peer: bytes = b"a", failed: list[int] | None = None, value: bytes = b"\0") -> None:
        results = messages.Results(1, [task], [1], [1], [0.5], failed or [])
        self.receive(results, peer, (groups.payload(1, [value]),))
        self.decide()
