"""How long slaves were connected, by host."""

from __future__ import annotations

import pytest

from mwpy._core.master import attendance
from mwpy._core.master.attendance import Attendance, Present
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS
from mwpy._values.task import SlaveKind


def agent(number: int, host: str) -> records.AgentConnected:
    return records.AgentConnected(f"AGENT-{number}", "10.0.0.1", host, 7, "")


def began(number: int, of: int) -> records.SlaveConnected:
    return records.SlaveConnected(SlaveId(f"SLAVE-{number}"), f"AGENT-{of}", "10.0.0.1", SlaveKind.UNORDERED)


def ended(number: int) -> records.SlaveEnded:
    return records.SlaveEnded(SlaveId(f"SLAVE-{number}"), Cause.CRASH, "killed", "", NO_WORDS)


def test_the_slaves_of_a_host_are_counted_with_their_time() -> None:
    """Those that are connected count until now, and a slave that was never ready does not count."""
    kept = Attendance()
    kept.note([agent(0, "node1"), began(0, 0), agent(1, "node2")], 10.0)
    kept.note([began(1, 1), began(2, 0), ended(7), records.Notice("something")], 20.0)
    kept.note(
        [ended(0), records.AgentLeft("AGENT-0", "the end"), records.AgentLost("AGENT-1", "", Cause.NETWORK)], 25.0
    )
    kept.note([records.PeerDropped("a stranger", "nonsense"), ended(2)], 26.0)
    assert kept.until(30.0) == {"node1": Present(2, 21.0), "node2": Present(1, 10.0)}
    assert kept.until(40.0)["node2"] == Present(1, 20.0)


def test_a_limited_number_of_hosts_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are named by members."""
    monkeypatch.setattr(attendance, "HOSTS_KEPT", 1)
    kept = Attendance()
    kept.note([agent(0, "node1"), agent(1, "node2"), began(0, 0), began(1, 1)], 0.0)
    kept.note([ended(0), ended(1)], 1.0)
    assert kept.until(2.0) == {"node1": Present(1, 1.0)}
