"""Agents with another Python or other packages than the master: which differences are reported, and how often."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.driven import Driven
from tests.spans import defined

from mwpy._core.master.admission import MESSAGES_IGNORED
from mwpy._core.master.state import Event, Received
from mwpy._values import messages, records
from mwpy._values.causes import Cause
from mwpy._values.connections import Garbage, TurnedAway

PACKAGES = {"numpy": "2.4.6", "scipy": "1.17"}
BY_NAME = defined(0, "max", packages=PACKAGES)
BY_VALUE = defined(0, "<lambda>", reference="", function=b"packed")
HELLO = messages.Hello("m", "g", "node1", 1, "3.11", 1)


@pytest.fixture
def master() -> Driven:
    """A master with a task."""
    master = Driven([BY_NAME])
    master.submit(algorithm=BY_NAME)
    return master


def connect(master: Driven, python: str = "3.11", peer: bytes = b"a") -> list[str]:
    """Connect an agent with one slave. Return the notices about it."""
    master.receive(replace(HELLO, python=python), peer=peer)
    notices = master.notices
    master.receive(messages.SlaveReady(1), peer=peer)
    return notices + master.notices


def test_equal_packages_are_recorded_without_a_notice(master: Driven) -> None:
    """Equal versions: there is no notice, and the record contains the versions."""
    assert connect(master) == []
    actions = master.receive(messages.Installed(PACKAGES))
    assert actions.records == [records.PackagesCompared("AGENT-0", ["numpy 2.4.6", "scipy 1.17"], [])]


def test_another_version_of_a_package_is_reported_once(master: Driven) -> None:
    """The notice names the first agent with it, and both versions. Another difference gives another notice."""
    connect(master)
    master.receive(messages.Installed({"numpy": "1.26", "scipy": "1.17"}))
    compared = records.PackagesCompared("AGENT-0", ["scipy 1.17"], ["numpy 1.26, not 2.4.6"])
    assert master.of(records.PackagesCompared) == [compared]
    [notice] = master.notices
    assert notice.startswith("AGENT-0 on node1 has numpy 1.26, the master 2.4.6: results may differ")
    connect(master, peer=b"b")
    master.receive(messages.Installed({"numpy": "1.26", "scipy": ""}), peer=b"b")
    different = ["numpy 1.26, not 2.4.6", "scipy missing, not 1.17"]
    assert master.of(records.PackagesCompared) == [records.PackagesCompared("AGENT-1", [], different)]
    [notice] = master.notices
    assert notice.startswith("AGENT-1 on node1 has no package scipy, the master 1.17:")


def test_an_agent_with_another_python_is_reported_once_and_gets_tasks(master: Driven) -> None:
    """Functions that travel by name are sent to this agent, and the notice names both versions."""
    [notice] = connect(master, "3.13")
    assert notice.startswith("AGENT-0 on node1 has Python 3.13, the master 3.11: ")
    assert master.held() == [1]
    assert connect(master, "3.13", b"b") == []
    assert connect(master, "3.12", b"c") != []


def test_an_object_whose_pickle_has_no_code_is_sent_to_another_python() -> None:
    """A program is one. The notice names both versions all the same."""
    portable = replace(BY_VALUE, definition=replace(BY_VALUE.definition, is_portable=True))
    master = Driven([portable])
    master.submit(algorithm=portable)
    [notice] = connect(master, "3.13")
    assert notice.startswith("AGENT-0 on node1 has Python 3.13, the master 3.11: ")
    assert master.held() == [1]


@pytest.mark.parametrize("connected_first", [True, False])
def test_a_function_that_travels_by_value_is_not_sent_to_another_python(connected_first: bool) -> None:
    """The agent gets no such task, and the notice names both versions. An agent with the same Python gets the task."""
    master = Driven([])
    if connected_first:
        assert connect(master, "3.13") == []
    master.submit(algorithm=BY_VALUE)
    if not connected_first:
        master.receive(replace(HELLO, python="3.13"))
    [refused] = master.of(records.AlgorithmRefused)
    assert refused.agent == "AGENT-0"
    assert "the Pythons differ: 3.11 (master) and 3.13 (slave)" in refused.reason
    assert len(master.notices) == 1
    assert connect(master, "3.11", b"b") == []
    [slave] = master.core.state.members.peers[b"b"].slaves.values()
    assert master.held(slave.sid) == [1]


def test_an_agent_with_more_slaves_than_it_announced_is_dropped(master: Driven) -> None:
    """Otherwise one agent could fill the master's memory with slaves."""
    connect(master)
    master.receive(messages.SlaveReady(2))
    dropped = records.PeerDropped("AGENT-0", "slave 2 is ready, but the agent announced 1 slaves")
    assert master.of(records.PeerDropped) == [dropped]


def test_no_more_agents_are_accepted_than_there_is_room_for() -> None:
    """The reason says what to change. An agent that leaves makes room for another one."""
    master = Driven(max_agents=1, max_open_files=64)
    connect(master)
    for peer in (b"b", b"c"):
        master.receive(HELLO, peer=peer)
        [refused] = master.of(records.AgentRefused)
        assert refused.reason.startswith("there is room for 1 agents only: this process may have 64 open files")
        assert master.notices == ([f"agents are refused: {refused.reason}"] if peer == b"b" else [])
    master.receive(messages.Goodbye("enough", Cause.EVICTED))
    master.receive(HELLO, peer=b"d")
    assert master.of(records.AgentConnected)


def test_while_connections_cannot_be_accepted_this_is_reported_at_least_every_ten_minutes(master: Driven) -> None:
    reported = dict[float, str]()
    for _ in range(300):
        master.step(TurnedAway("10.0.0.9", "Too many open files"))
        [refused] = master.of(records.AgentRefused)
        for notice in master.notices:
            if "progressed" not in notice:
                reported[master.now] = notice
        master.now += 10.0
    assert refused.reason.startswith("Too many open files: this process may have 65536 open files, and each agent ")
    said = f"connections are turned away, because they cannot be accepted: {refused.reason}"
    assert reported == dict.fromkeys((0, 60, 240, 780, 1380, 1980, 2580), said)


@pytest.mark.parametrize("event", [Garbage(b"a", "here", "nonsense"), Received(b"a", "here", messages.Probe(), ())])
def test_a_refused_peer_that_sends_on_and_on_is_disconnected(master: Driven, event: Event) -> None:
    """An agent leaves when it reads the refusal. Until then its slaves may have sent much, which is ignored."""
    master.receive(replace(HELLO, member_id="other"))
    ends: list[int] = []
    for number in range(1, 2 * MESSAGES_IGNORED + 1):
        master.core.handle(event, 0.0)
        actions = master.core.take_actions()
        assert not actions.records
        ends += [number] * len(actions.disconnect)
    assert ends == [MESSAGES_IGNORED, 2 * MESSAGES_IGNORED]
