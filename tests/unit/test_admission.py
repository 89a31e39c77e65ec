"""Agents with another Python or other packages than the master: what is reported or refused, and how often."""

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


def _receive(core: MasterCore, message: messages.Message, peer: bytes = b"a") -> list[Record]:
    core.handle(Received(peer, "here", message, ()), 0.0)
    core.decide(0.0)
    core.check()
    return core.take_actions().records


def _connect(core: MasterCore, python: str = "3.11", peer: bytes = b"a") -> list[str]:
    """Connect an agent with one slave. Return the notices about it."""
    found = _receive(core, messages.Hello("m", "g", "node1", 1, python, 1), peer)
    found += _receive(core, messages.SlaveReady(1), peer)
    return _notices(found)


def _notices(found: list[Record]) -> list[str]:
    return [record.text for record in found if isinstance(record, Notice)]


def test_equal_packages_are_recorded_without_a_notice(core: MasterCore) -> None:
    """There is no notice, and the record has the versions."""
    assert _connect(core) == []
    found = _receive(core, messages.Installed(PACKAGES))
    assert found == [PackagesCompared("AGENT-0", ["numpy 2.4.6", "scipy 1.17"], [])]


def test_another_version_of_a_package_is_reported_once(core: MasterCore) -> None:
    """The notice names the first agent with it, and both versions. Another difference gives another notice."""
    _connect(core)
    found = _receive(core, messages.Installed({"numpy": "1.26", "scipy": "1.17"}))
    assert found[0] == PackagesCompared("AGENT-0", ["scipy 1.17"], ["numpy 1.26, not 2.4.6"])
    notices = _notices(found)
    assert len(notices) == 1
    assert notices[0].startswith("AGENT-0 (here) has numpy 1.26, the master 2.4.6: results may differ")
    core.submit([span(2, BY_NAME)])
    _connect(core, peer=b"b")
    found = _receive(core, messages.Installed({"numpy": "1.26", "scipy": ""}), b"b")
    assert found[0] == PackagesCompared("AGENT-1", [], ["numpy 1.26, not 2.4.6", "scipy missing, not 1.17"])
    assert [text.partition(":")[0] for text in _notices(found)] == [
        "AGENT-1 (here) has no package scipy, the master 1.17"
    ]


def test_packages_that_no_definition_names_are_ignored(core: MasterCore) -> None:
    """Only packages that the master asked for count. A version is truncated to its longest accepted length."""
    _connect(core)
    found = _receive(core, messages.Installed({"evil": "1", "numpy": "9" * 5000}))
    assert found[0] == PackagesCompared("AGENT-0", [], [f"numpy {'9' * 100}, not 2.4.6"])


def test_another_python_is_reported_once_and_served(core: MasterCore) -> None:
    """Functions by name are sent there, and the notice names both versions."""
    notices = _connect(core, "3.13")
    assert len(notices) == 1
    assert notices[0].startswith("AGENT-0 (here) has Python 3.13, the master 3.11: ")
    assert core.state.members.peers[b"a"].known == {0: None}
    assert _connect(core, "3.13", b"b") == []
    assert _connect(core, "3.12", b"c") != []


@pytest.mark.parametrize("connected_first", [True, False])
def test_a_function_by_value_is_not_sent_to_another_python(connected_first: bool) -> None:
    """It is refused before a task is sent, with both versions. An agent with the master's Python gets the task."""
    core = MasterCore(MasterSettings("m", "g"))
    found: list[Record] = []
    if connected_first:
        assert _connect(core, "3.13") == []
    core.define(BY_VALUE)
    core.submit([span(1, BY_VALUE)])
    found = [*core.take_actions().records]
    if not connected_first:
        found += _receive(core, messages.Hello("m", "g", "node1", 1, "3.13", 1))
        found += _receive(core, messages.SlaveReady(1))
    refused = [record for record in found if isinstance(record, AlgorithmRefused)]
    assert [record.agent for record in refused] == ["AGENT-0"]
    assert "which Python 3.11 (master) and 3.13 (slave) cannot do" in refused[0].reason
    assert len(_notices(found)) == 1
    assert not core.state.members.peers[b"a"].known
    assert _connect(core, "3.11", b"b") == []
    assert core.state.members.peers[b"b"].known == {0: None}
