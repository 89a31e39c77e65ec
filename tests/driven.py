"""A master's core that a test drives: its agents, its tasks, its results, and the time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.spans import MAX, MIN, held_by, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import Actions, Command, Event, MasterSettings, Received
from mwpy._simulation.lives import Replay
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import AlgorithmDefined


class Driven:
    """A core. Each step decides, checks the core, and returns what is to be done.

    Args:
        algorithms: those that it knows.
        settings: its settings.
    """

    def __init__(self, algorithms: Iterable[AlgorithmDefined] = (MAX, MIN), **settings: Any) -> None:
        self.core = MasterCore(MasterSettings("m", "g", **settings))
        for algorithm in algorithms:
            self.core.definitions.add(Defined(algorithm))
        self.now = 0.0
        self.tasks = 0
        """The id of the last task."""
        self.actions = Actions()
        """What the last step has caused."""

    def step(self, event: Event | Command | None = None) -> Actions:
        """Handle an event or a command, and decide."""
        if isinstance(event, Event):
            self.core.handle(event, self.now)
        elif event is not None:
            self.core.obey(event)
        self.core.check()
        self.core.decide(self.now)
        self.core.check()
        self.actions = self.core.take_actions()
        return self.actions

    def pass_time(self, seconds: float) -> Actions:
        self.now += seconds
        return self.step()

    def receive(self, message: messages.Message, *frames: Buffer, peer: bytes = b"a") -> Actions:
        return self.step(Received(peer, "here", message, frames))

    def join(self, peer: bytes = b"a", slaves: int = 1, host: str = "host", **hello: Any) -> Actions:
        """An agent connects, and its slaves get ready."""
        actions = self.receive(messages.Hello("m", "g", host, 1, "3.11", slaves, **hello), peer=peer)
        for number in range(1, slaves + 1):
            actions = self.receive(messages.SlaveReady(number), peer=peer)
        return actions

    def submit(
        self, count: int = 1, algorithm: AlgorithmDefined = MAX, policy: TaskPolicy = DEFAULT_POLICY, **terms: Any
    ) -> int:
        """Submit tasks that have one span. Return the id of the first."""
        first = self.tasks + 1
        self.tasks += count
        self.core.submit([span(first, algorithm, count, policy=policy, **terms)])
        self.step()
        return first

    def finish(
        self,
        task: int,
        attempt: int = 1,
        *,
        peer: bytes = b"a",
        slave: int = 1,
        seconds: float = 0.1,
        value: bytes = b"\0",
        error: Exception | None = None,
        again: bool = False,
    ) -> Actions:
        """A slave sends the result of a task: an encoded value, or an exception after which it may be tried again."""
        failed = [] if error is None else [0]
        results = messages.Results(slave, [task], [1], [attempt], [seconds], failed, again=failed if again else [])
        entry = value if error is None else Codec().dumps_failure(error)
        return self.receive(results, groups.payload(1, [entry]), peer=peer)

    def held(self, sid: str = "SLAVE-0") -> list[int]:
        return held_by(self.core, sid)

    def of(self, kind: type[records.Record]) -> list[Any]:
        """The records of a kind that the last step has caused."""
        return [record for record in self.actions.records if isinstance(record, kind)]

    @property
    def notices(self) -> list[str]:
        """The notices of the last step."""
        return [record.text for record in self.of(records.Notice)]

    @property
    def sent(self) -> list[int]:
        """The tasks that the last step has sent to slaves."""
        of_tasks = (send.message for send in self.actions.sends if isinstance(send.message, messages.Tasks))
        return [task for group in of_tasks for task, _ in groups.each_task(group)]


class Replayed(Driven):
    """A core whose agents have one slave each. Each step is rebuilt from its records."""

    def __init__(self, algorithms: Iterable[AlgorithmDefined] = (MAX,), **settings: Any) -> None:
        super().__init__(algorithms, **settings)
        self.replay = Replay()
        self.agents = 0
        self.step()

    @property
    def peer(self) -> bytes:
        """The newest agent."""
        return b"%d" % self.agents

    def step(self, event: Event | Command | None = None) -> Actions:
        actions = super().step(event)
        for record in actions.records:
            self.replay.recorded(record)
        self.replay.check(self.core.state)
        return actions

    def next_joins(self) -> Actions:
        """The next agent joins."""
        self.agents += 1
        return self.join(self.peer)
