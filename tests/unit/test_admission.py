"""Agents with another Python or other packages than the master: which differences are reported, and how often."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.spans import defined, span

from mwpy._core.master.admission import MESSAGES_IGNORED
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import Event, Garbage, MasterSettings, Received, TurnedAway
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.records import (
    AgentConnected,
    AgentRefused,
    AlgorithmRefused,
    Notice,
    PackagesCompared,
    PeerDropped,
    Record,
)

PACKAGES = {"numpy": "2.4.6", "scipy": "1.17"}
BY_NAME = defined(0, "max", packages=PACKAGES)
BY_VALUE = defined(0, "<lambda>", reference="", function=b"packed")


@pytest.fixture
def core() -> MasterCore:
    core = MasterCore(MasterSettings("m", "g"))
    core.definitions.add(Defined(BY_NAME))
    core.submit([span(1, BY_NAME)])
    return core


def _receive(core: MasterCore, message: messages.Message, peer: bytes = b"a") -> list[Record]:
    core.handle(Received(peer, "here", message, ()), 0.0)
    core.decide(0.0)
    core.check()
    return core.take_actions().records


def _connect(core: MasterCore, python: str = "3.11", peer: bytes = b"a") -> list[str]:
    """Connect an agent with one slave. Return the notices about it."""
    recorded = _receive(core, messages.Hello("m", "g", "node1", 1, python, 1), peer)
    recorded += _receive(core, messages.SlaveReady(1), peer)
    return _notices(recorded)


def _notices(recorded: list[Record]) -> list[str]:
    return [record.text for record in recorded if isinstance(record, Notice)]


def test_equal_packages_are_recorded_without_a_notice(core: MasterCore) -> None:
    """Equal versions: there is no notice, and the record contains the versions."""
    assert _connect(core) == []
    recorded = _receive(core, messages.Installed(PACKAGES))
    assert recorded == [PackagesCompared("AGENT-0", ["numpy 2.4.6", "scipy 1.17"], [])]


def test_another_version_of_a_package_is_reported_once(core: MasterCore) -> None:
    """The notice names the first agent with it, and both versions. Another difference gives another notice."""
    _connect(core)
    recorded = _receive(core, messages.Installed({"numpy": "1.26", "scipy": "1.17"}))
    assert recorded[0] == PackagesCompared("AGENT-0", ["scipy 1.17"], ["numpy 1.26, not 2.4.6"])
    notices = _notices(recorded)
    assert len(notices) == 1
    assert notices[0].startswith("AGENT-0 on node1 has numpy 1.26, the master 2.4.6: results may differ")
    core.submit([span(2, BY_NAME)])
    _connect(core, peer=b"b")
    recorded = _receive(core, messages.Installed({"numpy": "1.26", "scipy": ""}), b"b")
    assert recorded[0] == PackagesCompared("AGENT-1", [], ["numpy 1.26, not 2.4.6", "scipy missing, not 1.17"])
    assert [text.partition(":")[0] for text in _notices(recorded)] == [
        "AGENT-1 on node1 has no package scipy, the master 1.17"
    ]


def test_an_agent_with_another_python_is_reported_once_and_gets_tasks(core: MasterCore) -> None:
    """Functions that travel by name are sent to this agent, and the notice names both versions."""
    notices = _connect(core, "3.13")
    assert len(notices) == 1
    assert notices[0].startswith("AGENT-0 on node1 has Python 3.13, the master 3.11: ")
    assert core.state.members.peers[b"a"].known.keys() == {0}
    assert _connect(core, "3.13", b"b") == []
    assert _connect(core, "3.12", b"c") != []


def test_an_object_whose_pickle_has_no_code_is_sent_to_another_python() -> None:
    """A program is one. The notice names both versions all the same."""
    core = MasterCore(MasterSettings("m", "g"))
    portable = replace(BY_VALUE, definition=replace(BY_VALUE.definition, is_portable=True))
    core.definitions.add(Defined(portable))
    core.submit([span(1, portable)])
    core.take_actions()
    notices = _connect(core, "3.13")
    assert [text.partition(": ")[0] for text in notices] == ["AGENT-0 on node1 has Python 3.13, the master 3.11"]
    assert core.state.members.peers[b"a"].known.keys() == {0}


@pytest.mark.parametrize("connected_first", [True, False])
def test_a_function_that_travels_by_value_is_not_sent_to_another_python(connected_first: bool) -> None:
    """The agent gets no such task, and the notice names both versions. An agent with the same Python gets the task."""
    core = MasterCore(MasterSettings("m", "g"))
    recorded: list[Record] = []
    if connected_first:
        assert _connect(core, "3.13") == []
    core.definitions.add(Defined(BY_VALUE))
    core.submit([span(1, BY_VALUE)])
    recorded = [*core.take_actions().records]
    if not connected_first:
        recorded += _receive(core, messages.Hello("m", "g", "node1", 1, "3.13", 1))
        recorded += _receive(core, messages.SlaveReady(1))
    refused = [record for record in recorded if isinstance(record, AlgorithmRefused)]
    assert [record.agent for record in refused] == ["AGENT-0"]
    assert "the Pythons differ: 3.11 (master) and 3.13 (slave)" in refused[0].reason
    assert len(_notices(recorded)) == 1
    assert not core.state.members.peers[b"a"].known
    assert _connect(core, "3.11", b"b") == []
    assert core.state.members.peers[b"b"].known.keys() == {0}


def test_an_agent_with_more_slaves_than_it_announced_is_dropped(core: MasterCore) -> None:
    """Otherwise one agent could fill the master's memory with slaves."""
    _connect(core)
    recorded = _receive(core, messages.SlaveReady(2))
    assert recorded[0] == PeerDropped("AGENT-0", "slave 2 is ready, but the agent announced 1 slaves")


def test_no_more_agents_are_accepted_than_there_is_room_for() -> None:
    """The reason says what to change. An agent that leaves makes room for another one."""
    core = MasterCore(MasterSettings("m", "g", max_agents=1, max_open_files=64))
    _connect(core)
    for peer in (b"b", b"c"):
        recorded = _receive(core, messages.Hello("m", "g", "node1", 1, "3.11", 1), peer)
        [refused] = [record for record in recorded if isinstance(record, AgentRefused)]
        assert refused.reason.startswith("there is room for 1 agents only: this process may have 64 open files")
        assert [record.text for record in recorded if isinstance(record, Notice)] == (
            [f"agents are refused: {refused.reason}"] if peer == b"b" else []
        )
    _receive(core, messages.Goodbye("enough", Cause.EVICTED))
    assert _receive(core, messages.Hello("m", "g", "node1", 1, "3.11", 1), b"d")[0].__class__ is AgentConnected


def test_connections_that_cannot_be_accepted_are_recorded_and_reported_once(core: MasterCore) -> None:
    core.take_actions()
    for _ in range(2):
        core.handle(TurnedAway("10.0.0.9", "Too many open files"), 0.0)
    first, notice, second = core.take_actions().records
    assert isinstance(first, AgentRefused)
    assert first == second
    assert first.reason.startswith("Too many open files: this process may have 65536 open files, and each agent needs")
    assert isinstance(notice, Notice)
    assert notice.text == f"connections are turned away, because they cannot be accepted: {first.reason}"


def test_while_connections_cannot_be_accepted_this_is_reported_at_least_every_ten_minutes(core: MasterCore) -> None:
    core.take_actions()
    reported = []
    for now in range(0, 3000, 10):
        core.handle(TurnedAway("10.0.0.9", "Too many open files"), float(now))
        reported += [now for each in core.take_actions().records if isinstance(each, Notice)]
    assert reported == [0, 60, 240, 780, 1380, 1980, 2580]


@pytest.mark.parametrize("event", [Garbage(b"a", "here", "nonsense"), Received(b"a", "here", messages.Probe(), ())])
def test_a_refused_peer_that_sends_on_and_on_is_disconnected(core: MasterCore, event: Event) -> None:
    """An agent leaves when it reads the refusal. Until then its slaves may have sent much, which is ignored."""
    _receive(core, messages.Hello("other", "g", "node1", 1, "3.11", 1))
    ends: list[int] = []
    for number in range(1, 2 * MESSAGES_IGNORED + 1):
        core.handle(event, 0.0)
        actions = core.take_actions()
        assert not actions.records
        ends += [number] * len(actions.disconnect)
    assert ends == [MESSAGES_IGNORED, 2 * MESSAGES_IGNORED]
