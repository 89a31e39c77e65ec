"""The records of a master build its state: `Cluster` checks this in every simulated history.

`test_cluster.py` runs the histories. The tests here show that the check finds what it is meant to find.
"""

from __future__ import annotations

import pytest

from mwpy._simulation.lives import Replay
from mwpy._values import records
from mwpy.testing import Cluster, SimulationFailure


def test_the_records_of_a_history_build_the_same_state() -> None:
    """All kinds of records that change a task occur in a few histories."""
    seen = set()
    slaves = 0
    for seed in range(30):
        cluster = Cluster(seed)
        cluster.run()
        cluster.replay.check_end(cluster.core.state)
        slaves_seen = cluster.replay.rebuilt.members.slaves_seen
        assert slaves_seen == cluster.core.state.members.slaves_seen
        slaves += slaves_seen
        seen |= {type(record) for record in cluster.replay.taken}
    assert slaves > 100
    assert seen >= {
        records.AlgorithmDefined,
        records.AlgorithmsForgotten,
        records.TasksSubmitted,
        records.TasksAllocated,
        records.AttemptsStarted,
        records.AttemptsEnded,
        records.ResultsReceived,
        records.TasksFailed,
        records.TasksReturned,
        records.TasksGivenUp,
        records.TasksUnaddressed,
        records.TasksCancelled,
        records.TasksCancelling,
    }


def _run(seeds: range) -> None:
    for seed in seeds:
        Cluster(seed).run()


@pytest.mark.long
@pytest.mark.parametrize("kind", [records.TasksReturned, records.SlaveChanged, records.AgentLeaving])
def test_a_record_that_is_missing_is_noticed(kind: type[records.Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rebuilt state differs, or a later record contradicts it."""
    recorded = Replay.recorded
    monkeypatch.setattr(
        Replay, "recorded", lambda self, record: None if isinstance(record, kind) else recorded(self, record)
    )
    with pytest.raises(SimulationFailure):
        _run(range(200))


@pytest.mark.long
def test_a_record_that_is_changed_later_is_noticed() -> None:
    """In this test, a list in a record grows later."""
    cluster = Cluster(1)
    cluster.run()
    [first, *_] = [record for record in cluster.replay.taken if isinstance(record, records.TasksAllocated)]
    assert isinstance(first.tasks, list)
    first.tasks.append(first.tasks[0])
    with pytest.raises(AssertionError, match="a record was changed later"):
        cluster.replay.check_end(cluster.core.state)
