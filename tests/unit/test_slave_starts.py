"""How an agent starts its slaves: forked from a template, one at a time, or as fresh interpreters."""

from __future__ import annotations

from msgspec.structs import replace

from mwpy._core.agent.child import (
    AgentEvent,
    AgentSettings,
    Forked,
    Heard,
    NotForked,
    SlaveExited,
    SlaveHeard,
)
from mwpy._core.agent.core import AgentCore
from mwpy._transport import wire
from mwpy._values import messages, records
from mwpy._values.errors import ExitCode
from mwpy._values.last_words import NO_WORDS

HELLO = messages.Hello("m", "g", "host", 1, "3.11", 3)
WELCOME = messages.Welcome("AGENT-0", 0, 1000, 30.0)
DEFINITION = messages.AlgorithmDefinition(0, "f", "m:f", "", "3.11")


class Agent:
    """The core of an agent with three slaves, which are forked, and what it did last."""

    def __init__(self, slaves: int = 3) -> None:
        self.core = AgentCore(AgentSettings(replace(HELLO, slaves=slaves), forks=True, start_timeout_s=10.0))
        self.hear(WELCOME)

    def handle(self, event: AgentEvent, now: float = 0.0) -> None:
        self.core.handle(event, now)
        self.core.decide(now)
        self.core.check()
        self.actions = self.core.take_actions()

    def hear(self, message: messages.Message, now: float = 0.0) -> None:
        self.handle(Heard(message, wire.encode(message)), now)

    def get_ready(self, slave: int) -> None:
        message = messages.SlaveReady(slave)
        self.handle(SlaveHeard(slave, message, wire.encode(message)))

    @property
    def ways(self) -> tuple[list[int], list[int]]:
        """The slaves to fork, and the slaves to start as fresh interpreters."""
        return self.actions.fork, self.actions.start

    @property
    def notices(self) -> list[str]:
        return [record.text for record in self.actions.records if isinstance(record, records.Notice)]


def test_the_template_starts_one_slave_at_a_time() -> None:
    """The others wait, and have no process. Each gets all definitions when it is started."""
    agent = Agent()
    assert agent.ways == ([1], [])
    agent.hear(messages.Algorithms([DEFINITION]))
    assert [number for number, _ in agent.actions.to_slaves] == [1]
    agent.handle(Forked(1))
    assert agent.ways == ([2], [])
    assert [number for number, _ in agent.actions.to_slaves] == [2]
    agent.get_ready(1)
    assert agent.ways == ([], [])
    agent.handle(Forked(2))
    assert agent.ways == ([3], [])
    agent.handle(Forked(3))
    assert agent.ways == ([], [])
    agent.handle(SlaveExited(1, "exit code 3", NO_WORDS, 0))
    assert agent.ways == ([4], [])


def test_a_template_that_ends_has_failed_to_start_one_slave() -> None:
    """The next slave starts another template. After three failures in a row the agent gives up."""
    agent = Agent()
    for number in (1, 2):
        agent.handle(SlaveExited(number, "exit code 1", NO_WORDS, 0))
        assert agent.ways == ([number + 1], [])
        assert [type(each.message) for each in agent.actions.to_master] == [messages.SlaveDied]
    agent.handle(SlaveExited(3, "exit code 1", NO_WORDS, 0))
    assert agent.actions.exit is ExitCode.CANNOT_START


def test_a_slave_that_is_killed_because_its_start_hangs_does_not_stop_the_others() -> None:
    """The template is aborted in its place. A slave that the template has started gets the whole time for itself."""
    agent = Agent()
    agent.handle(Forked(1), now=9.0)
    assert (agent.ways, agent.core.children[1].ready_by) == (([2], []), 19.0)
    agent.get_ready(1)
    agent.core.decide(19.0)
    assert agent.core.take_actions().abort == [2]
    agent.handle(SlaveExited(2, "killed", NO_WORDS, 0), now=19.0)
    assert agent.ways == ([3], [])


def test_a_template_that_cannot_fork_ends_and_all_slaves_are_fresh() -> None:
    agent = Agent()
    agent.handle(NotForked(1, "no memory"))
    assert (agent.ways, agent.actions.end_template) == (([], [2, 3, 4]), True)
    assert agent.notices[0].endswith("because the process that has loaded the script cannot be forked: no memory")
    [died] = [each.message for each in agent.actions.to_master]
    assert isinstance(died, messages.SlaveDied)
    assert died.reason == "cannot be started: no memory"
