"""A core of a master, and hosts with one agent and one slave each, for tests that compare what hosts compute."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from tests.spans import MAX, ids_of, span

from mwpy._core.master.core import Actions, MasterCore, MasterSettings
from mwpy._core.master.events import Received
from mwpy._core.master.spans import Span
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.task import Result

CODEC = Codec()

RIGHT, WRONG = CODEC.dumps_digested("right")[0], CODEC.dumps_digested("wrong")[0]
PLAIN = CODEC.dumps_value("right")[0]
FAILURE, OTHER_FAILURE = CODEC.dumps_failure(OSError("no disk")), CODEC.dumps_failure(ValueError("no number"))
NOT_COMPARABLE = CODEC.dumps_digested(lambda: 1)[0]


class Pool:
    """A core, and hosts with one agent and one slave each. What the core does is collected."""

    def __init__(self, *hosts: str, verify: float = 100.0, settings: MasterSettings | None = None) -> None:
        self.core = MasterCore(replace(settings or MasterSettings("m", "g"), verify=verify))
        self.done: list[records.Record] = []
        self.results: dict[int, Result[object]] = {}
        self.sent: list[tuple[str, messages.Message]] = []
        self.answers: list[list[int]] = []
        """What `CancelTasks` answered."""
        self.now = 0.0
        for host in hosts:
            self.connect(host)

    def connect(self, host: str) -> None:
        """An agent with one slave connects from a host."""
        self.hear(host, messages.Hello("m", "g", host, 1, "3.11", 1))
        self.hear(host, messages.SlaveReady(1))

    def hear(self, host: str, message: messages.Message, frames: Sequence[bytes] = ()) -> None:
        self.core.handle(Received(host.encode(), "here", message, frames), self.now)
        self.decide()

    def decide(self) -> Actions:
        """One iteration."""
        self.core.decide(self.now)
        self.core.check()
        actions = self.core.take_actions()
        self.done += actions.records
        for result in actions.results:
            assert result.task_id not in self.results, "a task ended twice"
            self.results[result.task_id] = result
        self.sent += [(send.peer.decode(), send.message) for send in actions.sends]
        self.answers += [[*unended] for _, unended in actions.cancelled]
        return actions

    def submit(self, count: int = 1, policy: TaskPolicy = DEFAULT_POLICY, first: int = 1) -> None:
        self.take(span(first, MAX, count, policy=policy))

    def take(self, *spans: Span) -> None:
        """The core gets new tasks."""
        self.core.submit(spans)
        self.decide()

    def held(self, host: str) -> list[int]:
        """The tasks that the slave on a host holds."""
        agent = self.core.state.members.peers[host.encode()]
        return ids_of(each for slave in agent.slaves.values() for each in slave.held.spans)

    def answer(self, host: str, entry: bytes, task: int | None = None, *, again: bool = False) -> None:
        """The slave on a host answers the first task that it holds, or another one."""
        agent = self.core.state.members.peers[host.encode()]
        spans = agent.slaves[1].held.spans
        each = next(each for each in spans if task in (None, each.first))
        failed = [0] if entry in (FAILURE, OTHER_FAILURE) else []
        group = messages.Results(1, [each.first], [1], [each.attempt], [0.1], failed, again=[0] if again else [])
        self.hear(host, group, [groups.payload(1, [entry])])

    def each_of(self, kind: type[records.Record]) -> list[records.Record]:
        """The records of a kind."""
        return [record for record in self.done if isinstance(record, kind)]

    @property
    def notices(self) -> str:
        return "\n".join(record.text for record in self.done if isinstance(record, records.Notice))

    @property
    def verdicts(self) -> list[tuple[str, bool]]:
        return [(each.verdict, each.is_sure) for each in self.done if isinstance(each, records.AnswersGiven)]


def first_holder(pool: Pool, task: int = 1) -> str:
    """The first host that holds a task."""
    return next(host.decode() for host in pool.core.state.members.peers if task in pool.held(host.decode()))


def outvote(pool: Pool, task: int = 1) -> None:
    """Host `a` computes a task wrongly, and all others compute it rightly."""
    pool.submit(first=task)
    while task not in pool.results:
        host = first_holder(pool, task)
        pool.answer(host, WRONG if host == "a" else RIGHT, task)
