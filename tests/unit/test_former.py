"""Slaves that outlive their master: they finish its tasks, and then serve its next generation."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.driven_agent import (
    HELLO,
    WELCOME,
    agent,
    heard,
    payload,
    results,
    said,
    slave_heard,
    tasks,
    to_master,
    to_slaves,
)
from tests.unit.test_outage import until_asked

from mwpy._core.agent.child import (
    UNBOUNDED,
    AddressesFound,
    AgentActions,
    AgentSettings,
    AttemptFailed,
    Disconnected,
    Forked,
    Looked,
    Recalled,
    SlaveExited,
    SlaveHeard,
)
from mwpy._core.agent.core import AgentCore
from mwpy._values import messages
from mwpy._values.bounds import MAX_TASKS, SlaveId
from mwpy._values.last_words import NO_WORDS

RUNNING, NOT_STARTED, LOST = messages.FormerFate

SECOND = replace(WELCOME, agent="AGENT-7", generation="g2")


def made(slaves: int = 1) -> AgentCore:
    """An agent of the generation `g1`, with slaves that are ready and named."""
    hello = replace(HELLO, generation="g1", slaves=slaves, session="s", returns_s=100.0)
    core = agent(replace(WELCOME, generation="g1"), hello)
    for number in range(1, slaves + 1):
        core.handle(heard(messages.SlaveNamed(number, SlaveId(f"SLAVE-{number}"))), 0.0)
    core.take_actions()
    return core


@pytest.fixture
def core() -> AgentCore:
    """An agent with one slave, which runs task 5 and holds task 6."""
    core = made()
    core.handle(tasks(5, 6), 0.0)
    core.take_actions()
    return core


def refuse(core: AgentCore, generation: str, now: float = 3.0) -> AgentActions:
    """A master of some generation refuses the agent. Return what the agent does then."""
    core.handle(heard(messages.Refused("the master was started again", generation=generation)), now)
    return core.take_actions()


def succeed(core: AgentCore, generation: str = "g2") -> AgentActions:
    """The master dies, and the agent finds its next generation. Return what the agent does then."""
    if core.outage.is_over:
        core.handle(Disconnected("it broke"), 1.0)
    now = until_asked(core)
    core.handle(AddressesFound(["new"]), now)
    assert core.take_actions().connect_to == "new"
    return refuse(core, generation, now)


def join(core: AgentCore, welcome: messages.Welcome = SECOND) -> list[messages.Message]:
    """The next generation accepts the agent. Return what the agent sends to it about its slaves."""
    core.handle(heard(welcome), 9.0)
    return [each for each in to_master(core.take_actions()) if getattr(each, "fate", None) is not NOT_STARTED]


def recall(core: AgentCore, started: int = 1) -> list[messages.Message]:
    """The slave has started this many tasks, and the others are taken back. Return what it is sent."""
    core.handle(Recalled(1, started, UNBOUNDED), 1.0)
    actions = core.take_actions()
    assert actions.to_master == []
    return to_slave(actions)


def to_slave(actions: AgentActions, slave: int = 1) -> list[messages.Message]:
    return [message for number, message in to_slaves(actions) if number == slave]


def act(core: AgentCore, *events: SlaveHeard | Looked | SlaveExited | Forked) -> AgentActions:
    for event in events:
        core.handle(event, 10.0)
    return core.take_actions()


def forgotten(edited: str = "", slave: int = 1) -> SlaveHeard:
    """The answer of a slave that has forgotten the former generation."""
    return slave_heard(messages.NextGeneration(slave, edited), slave=slave)


def test_the_next_generation_learns_which_tasks_were_not_started_and_when_this_is_all(core: AgentCore) -> None:
    succeed(core)
    core.handle(heard(SECOND), 9.0)
    assert to_master(core.take_actions()) == [messages.FormerTasks("g1", RUNNING, [5], [2])]
    core.handle(Recalled(1, 1, UNBOUNDED), 9.0)
    all_said = messages.FormerTasks("g1", NOT_STARTED)
    assert to_master(core.take_actions()) == [messages.FormerTasks("g1", NOT_STARTED, [6], [1]), all_said]
    succeed(core, "g3")
    core.handle(heard(replace(SECOND, generation="g3")), 9.0)
    said_to_third = to_master(core.take_actions())
    assert said_to_third == [messages.FormerTasks("g1", RUNNING, [5], [1]), messages.FormerTasks("g2", NOT_STARTED)]


def test_tasks_that_one_message_cannot_name_are_said_in_several_before_this_is_all() -> None:
    core = made()
    for first in (1, 2 * MAX_TASKS + 1):
        core.handle(tasks(*range(first, first + 2 * MAX_TASKS, 2)), 0.0)
    core.take_actions()
    succeed(core)
    core.handle(heard(SECOND), 9.0)
    core.take_actions()
    said: list[messages.Message] = []
    for _ in range(3):
        core.handle(Recalled(1, 1, UNBOUNDED), 9.0)
        said += to_master(core.take_actions())
    named = [each for each in said if isinstance(each, messages.FormerTasks)]
    assert [len(each.tasks) for each in named] == [MAX_TASKS, MAX_TASKS - 1, 0]
    assert sorted(task for each in named for task in each.tasks) == [*range(3, 4 * MAX_TASKS, 2)]


def test_a_master_of_a_former_generation_is_passed_over(core: AgentCore) -> None:
    """A resource file that is out of date names its address, and it still runs."""
    succeed(core)
    recall(core)
    join(core)
    core.handle(Disconnected("it broke"), 20.0)
    now = until_asked(core)
    core.handle(AddressesFound(["old", "new"]), now)
    assert core.take_actions().connect_to == "old"
    actions = refuse(core, "g1", now)
    assert (actions.connect_to, actions.succeeds, core.leaving) == ("new", None, False)
    core.handle(heard(replace(SECOND, handled=0)), now)
    assert core.outage.is_over
    assert core.settings.hello.generation == "g2"


def test_an_old_result_that_comes_twice_is_no_result_of_a_new_task_with_the_same_id(core: AgentCore) -> None:
    """The agent has read it in the journal, and the slave sends it, too."""
    succeed(core)
    recall(core)
    join(core)
    again = results(5)
    assert isinstance(again.message, messages.Results)
    journal = Looked(1, 1, 0.0, again.message, again.frames)
    assert [type(message) for message in to_master(act(core, journal))] == [messages.Handover]
    assert to_master(act(core, results(5))) == []
    assert to_master(act(core, forgotten())) == [messages.SlaveReady(1)]


def joined(core: AgentCore) -> AgentActions:
    core.handle(heard(SECOND), 9.0)
    return core.take_actions()


def test_a_slave_is_replaced_if_a_file_was_edited_that_it_has_loaded(core: AgentCore) -> None:
    succeed(core)
    recall(core)
    join(core)
    act(core, results(5))
    actions = act(core, forgotten("app.py"))
    assert to_slave(actions) == [messages.Shutdown(finished=False, grace_s=0.0)]
    assert said(actions) == "SLAVE-1 is replaced, because app.py was edited since it was loaded"
    actions = act(core, SlaveExited(1, "exit code 0", NO_WORDS, 1))
    assert (to_master(actions), actions.start) == ([], [2])


def test_the_template_is_always_replaced_when_the_next_generation_has_accepted_the_agent() -> None:
    """Before that, nobody would tell the agent that files were edited after the next template has loaded them."""
    core = AgentCore(AgentSettings(replace(HELLO, session="s", returns_s=100.0), forks=True))
    core.handle(heard(replace(WELCOME, generation="g1")), 0.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 0.0)
    core._starts._forked = 0
    core.take_actions()
    assert not succeed(core).end_template
    assert joined(core).end_template


def test_a_slave_that_ends_without_a_result_leaves_its_task_lost(core: AgentCore) -> None:
    succeed(core)
    recall(core)
    join(core)
    actions = act(core, SlaveExited(1, "signal 9", NO_WORDS, 1))
    assert (to_master(actions), actions.start) == ([messages.FormerTasks("g1", LOST, [5], [1])], [2])


def test_a_slave_is_killed_if_the_next_master_does_not_know_the_generation_of_its_task() -> None:
    """The other slave, which has no task, serves the next master."""
    core = made(2)
    core.handle(tasks(5), 0.0)
    core.handle(Disconnected("it broke"), 1.0)
    now = until_asked(core)
    core.handle(AddressesFound(["new"]), now)
    core.take_actions()
    core.handle(heard(messages.Refused("nobody wants its tasks", again=True, generation="g2")), now)
    actions = core.take_actions()
    assert (actions.kill, actions.connect_to, core.leaving) == ([1], "new", False)
    act(core, SlaveExited(1, "signal 9", NO_WORDS, 1))
    assert join(core) == []
    assert to_master(act(core, forgotten(slave=2))) == [messages.SlaveReady(2)]


@pytest.mark.parametrize("message", [messages.NextGeneration(1), messages.Results(2, [5], [1], [1], [0.1], [])])
def test_a_slave_that_says_something_at_the_wrong_time_is_killed(core: AgentCore, message: messages.Message) -> None:
    succeed(core)
    recall(core)
    assert act(core, slave_heard(message, payload("1"))).kill == [1]


def test_a_third_generation_gets_the_results_of_the_first(core: AgentCore) -> None:
    succeed(core)
    recall(core)
    core.handle(AttemptFailed(), 3.0)
    assert succeed(core, "g3").succeeds == "g1"
    assert join(core, replace(SECOND, generation="g3")) == [messages.FormerTasks("g1", RUNNING, [5], [1])]
    assert succeed(core, "g4").succeeds == "g3"
    assert join(core, replace(SECOND, generation="g4")) == [messages.FormerTasks("g1", RUNNING, [5], [1])]
    [handover] = to_master(act(core, results(5)))
    assert isinstance(handover, messages.Handover)
    assert handover.generation == "g1"
