"""Who has another Python or other packages than the master: what is said, what is refused, and how often."""

from __future__ import annotations

import pytest
from tests.spans import defined, span

from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.events import Received
from mwpy._values import messages
from mwpy._values.records import AlgorithmRefused, Notice, PackagesCompared, Record

PACKAGES = {"numpy": "2.4.6", "scipy": "1.17"}
BY_NAME = defined(0, "max", packages=PACKAGES)
BY_VALUE = defined(0, "<lambda>", reference="", function=b"packed")


@pytest.fixture
def core() -> MasterCore:
    core = MasterCore(MasterSettings("m", "g"))
    core.define(BY_NAME)
    core.submit([span(1, BY_NAME)])
    return core


def _hear(core: MasterCore, message: messages.Message, peer: bytes = b"a") -> list[Record]:
    core.handle(Received(peer, "here", message, ()), 0.0)
    core.decide(0.0)
    core.check()
    return core.take_actions().records


def _connect(core: MasterCore, python: str = "3.11", peer: bytes = b"a") -> list[str]:
    """An agent with one slave comes; what is said of it."""
    told = _hear(core, messages.Hello("m", "g", "node1", 1, python, 1), peer)
    told += _hear(core, messages.SlaveReady(1), peer)
    return _notices(told)


def _notices(told: list[Record]) -> list[str]:
    return [record.text for record in told if isinstance(record, Notice)]


def test_the_same_packages_are_told_of_in_the_audit_file_alone(core: MasterCore) -> None:
    """Nothing is said, and the record has the versions."""
    assert _connect(core) == []
    told = _hear(core, messages.Installed(PACKAGES))
    assert told == [PackagesCompared("AGENT-0", ["numpy 2.4.6", "scipy 1.17"], [])]


def test_another_version_of_a_package_is_told_of_once(core: MasterCore) -> None:
    """The first agent that has it is named, with both versions; another difference is another word."""
    _connect(core)
    told = _hear(core, messages.Installed({"numpy": "1.26", "scipy": "1.17"}))
    assert told[0] == PackagesCompared("AGENT-0", ["scipy 1.17"], ["numpy 1.26, not 2.4.6"])
    words = _notices(told)
    assert len(words) == 1
    assert words[0].startswith("AGENT-0 (here) has numpy 1.26, the master 2.4.6: results may differ")
    core.submit([span(2, BY_NAME)])
    _connect(core, peer=b"b")
    told = _hear(core, messages.Installed({"numpy": "1.26", "scipy": ""}), b"b")
    assert told[0] == PackagesCompared("AGENT-1", [], ["numpy 1.26, not 2.4.6", "scipy missing, not 1.17"])
    assert [text.partition(":")[0] for text in _notices(told)] == [
        "AGENT-1 (here) has no package scipy, the master 1.17"
    ]


def test_packages_that_no_definition_named_are_passed_over(core: MasterCore) -> None:
    """An agent is believed only what it was asked, and of that so much as is a version."""
    _connect(core)
    told = _hear(core, messages.Installed({"evil": "1", "numpy": "9" * 5000}))
    assert told[0] == PackagesCompared("AGENT-0", [], [f"numpy {'9' * 100}, not 2.4.6"])


def test_another_python_is_told_of_once_and_served(core: MasterCore) -> None:
    """What travels by name is sent there, and both versions are said."""
    words = _connect(core, "3.13")
    assert len(words) == 1
    assert words[0].startswith("AGENT-0 (here) has Python 3.13, the master 3.11: ")
    assert core.state.members.peers[b"a"].known == {0: None}
    assert _connect(core, "3.13", b"b") == []
    assert _connect(core, "3.12", b"c") != []


@pytest.mark.parametrize("connected_first", [True, False])
def test_what_travels_by_value_is_not_sent_to_another_python(connected_first: bool) -> None:
    """It is refused before any task is sent, with both versions; an agent with the master's Python gets the task."""
    core = MasterCore(MasterSettings("m", "g"))
    told: list[Record] = []
    if connected_first:
        assert _connect(core, "3.13") == []
    core.define(BY_VALUE)
    core.submit([span(1, BY_VALUE)])
    told = [*core.take_actions().records]
    if not connected_first:
        told += _hear(core, messages.Hello("m", "g", "node1", 1, "3.13", 1))
        told += _hear(core, messages.SlaveReady(1))
    refused = [record for record in told if isinstance(record, AlgorithmRefused)]
    assert [record.agent for record in refused] == ["AGENT-0"]
    assert "which Python 3.11 (master) and 3.13 (slave) cannot do" in refused[0].reason
    assert len(_notices(told)) == 1
    assert not core.state.members.peers[b"a"].known
    assert _connect(core, "3.11", b"b") == []
    assert core.state.members.peers[b"b"].known == {0: None}
