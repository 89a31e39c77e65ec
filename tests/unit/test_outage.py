"""An agent without a connection: how it looks for its master, comes back, or gives up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.driven_agent import HELLO, WELCOME, agent, heard, said, slave_heard, tasks, to_master

from mwpy._core.agent import contact
from mwpy._core.agent.child import (
    AddressesFound,
    AgentActions,
    AgentSettings,
    AttemptFailed,
    ComputationOver,
    Disconnected,
    Resumed,
)
from mwpy._core.agent.core import AgentCore
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode

SESSION = replace(HELLO, session="s", returns_s=100.0)
BACK = replace(WELCOME, handled=0)


@pytest.fixture
def core() -> AgentCore:
    """An agent with a session and one slave, which runs task 1."""
    core = agent(hello=SESSION)
    core.handle(tasks(1), 0.0)
    core.take_actions()
    return core


def due(core: AgentCore) -> tuple[AgentActions, float]:
    """Let the next thing happen that is due. Return what is done, and when."""
    now = core.next_deadline()
    assert now is not None, "nothing is due"
    core.decide(now)
    return core.take_actions(), now


def until_asked(core: AgentCore, now: float = 0.0) -> float:
    """Wait until the agent asks for the addresses of its master."""
    for _ in range(20):
        actions, now = due(core)
        if actions.ask_addresses:
            return now
    pytest.fail("it does not ask")


def test_it_tries_one_address_after_the_other_and_then_pauses(core: AgentCore) -> None:
    core.handle(Disconnected("it broke"), 1.0)
    now = until_asked(core)
    core.handle(AddressesFound(["a", "b"]), now)
    assert core.take_actions().connect_to == "a"
    core.handle(AttemptFailed(), now)
    assert core.take_actions().connect_to == "b"
    core.handle(AttemptFailed(), now)
    assert core.take_actions().connect_to is None
    assert until_asked(core) > now


def test_an_address_that_does_not_answer_is_given_up_after_some_seconds(core: AgentCore) -> None:
    core.handle(Disconnected("it broke"), 1.0)
    now = until_asked(core)
    core.handle(AddressesFound(["a", "b"]), now)
    core.take_actions()
    core.decide(now + contact.ATTEMPT_S)
    assert core.take_actions().connect_to == "b"


def test_the_pauses_grow_up_to_a_limit_and_differ_from_agent_to_agent() -> None:
    pauses: dict[str, list[float]] = {}
    for session in ("s", "t"):
        core = AgentCore(AgentSettings(replace(SESSION, session=session, returns_s=1000.0)))
        core.handle(heard(WELCOME), 0.0)
        core.handle(slave_heard(messages.SlaveReady(1)), 0.0)
        core.handle(Disconnected("it broke"), 0.0)
        before, pauses[session] = 0.0, []
        for _ in range(20):
            now = until_asked(core)
            pauses[session].append(now - before)
            core.handle(AddressesFound([]), now)
            before = now
        assert pauses[session][0] <= contact.FIRST_PAUSE_S
        assert contact.LONGEST_PAUSE_S / 5 <= pauses[session][-1] <= contact.LONGEST_PAUSE_S
    assert pauses["s"] != pauses["t"]


def test_an_agent_that_is_back_says_so_and_goes_on(core: AgentCore) -> None:
    core.handle(Disconnected("it broke"), 1.0)
    now = until_asked(core)
    core.handle(AddressesFound(["a"]), now)
    core.take_actions()
    assert core.outage.phase is contact.Phase.TRYING
    core.handle(heard(BACK), 31.0)
    assert said(core.take_actions()) == "back at the master after 30 s"
    assert core.outage.is_over
    core.handle(Disconnected("it broke again"), 100.0)
    assert not core.leaving


def test_an_agent_that_does_not_find_its_master_in_time_leaves(core: AgentCore) -> None:
    core.handle(Disconnected("it broke"), 1.0)
    core.decide(101.0)
    assert core.leaving
    [leaving] = [each for each in to_master(core.take_actions()) if isinstance(each, messages.Leaving)]
    assert leaving.cause is Cause.NETWORK


def test_an_agent_whose_connections_all_end_at_once_gives_up(core: AgentCore) -> None:
    """Something on them ends each of them, for example a message that cannot be read."""
    for number in range(contact.SHORT_MAX + 1):
        assert not core.leaving
        core.handle(Disconnected("it broke"), float(number))
        core.handle(heard(BACK), float(number))
    core.handle(Disconnected("it broke"), float(contact.SHORT_MAX + 1))
    assert core.leaving


@pytest.mark.parametrize(("finished", "code"), [(True, ExitCode.OK), (False, ExitCode.FAILED)])
def test_an_agent_leaves_if_the_resource_file_says_that_its_master_has_ended(
    core: AgentCore, finished: bool, code: ExitCode
) -> None:
    core.handle(Disconnected("it broke"), 1.0)
    now = until_asked(core)
    core.handle(ComputationOver("the file says so", finished), now)
    core.decide(now + 2.0)
    core.decide(now + 4.0)
    assert core.take_actions().exit is code


def test_an_agent_that_comes_back_too_late_joins_again_as_a_new_one(core: AgentCore) -> None:
    core.handle(Disconnected("it broke"), 1.0)
    now = until_asked(core)
    core.handle(AddressesFound(["a"]), now)
    core.handle(heard(messages.Refused("too late", again=True)), now)
    assert (core.leaving, core.departure.comes_back, core.departure.was_stopped) == (True, True, False)


@pytest.mark.parametrize(
    ("resumed_at", "again_at", "stopped"),
    [(0.0, 2.0, True), (0.0, 90.0, True), (-31.0, 2.0, False), (80.0, 90.0, True)],
)
def test_an_agent_that_was_stopped_and_comes_back_too_late_says_so(
    core: AgentCore, resumed_at: float, again_at: float, stopped: bool
) -> None:
    """It does not matter how long it has looked for its master. A stop long before the connection ended does not
    count."""
    core.handle(Resumed(90.0), min(resumed_at, 1.0))
    core.handle(Disconnected("it broke"), 1.0)
    if resumed_at > 1.0:
        core.handle(Resumed(70.0), resumed_at)
    core.decide(again_at)
    core.handle(AddressesFound(["a"]), again_at)
    core.handle(heard(messages.Refused("too late", again=True)), again_at)
    assert (core.departure.comes_back, core.departure.was_stopped) == (True, stopped)
