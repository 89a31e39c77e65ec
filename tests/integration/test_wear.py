"""Slaves that are replaced between tasks, slaves that hang in their start, and agents without work: real processes."""

from __future__ import annotations

import os

import pytest
from tests.integration.apps.stage import Stage, until

import mwpy

MEGABYTE = 1 << 20


def test_a_leaky_algorithm_runs_10000_tasks_in_bounded_memory(stage: Stage) -> None:
    """All tasks together leak 500 MB. Each slave is replaced before it is large, and no task is lost or runs twice."""
    own = ("--mw-local", 2, "--mw-audit-file", stage.audit, "--mw-slave-max-memory", "80 MB")
    run = stage.run("several.py", "worn", *own, 10_000, 50_000, 0.0001)
    report = run.report
    assert report["tasks"] == 10_000
    assert report["largest"] < 160 * MEGABYTE, report
    assert report["slaves"] >= 4, report
    replaced = stage.audited("because it had grown to")
    assert report["slaves"] - 2 <= len(replaced) <= report["slaves"]
    assert not any("exit code" in line for line in replaced)
    assert stage.audited("-> gone while it ran") == []
    assert run.err == ""
    stage.no_process_left()


@pytest.mark.parametrize("where", ["loading", "algorithm"])
def test_a_slave_that_hangs_in_its_start_is_killed_and_shows_where(stage: Stage, where: str) -> None:
    """The agent tries three times, and gives up. The master shows the line where the slaves hung."""
    master = stage.master("slow_start.py", where)
    agent = stage.agent("slow_start.py", "--mw-slave-start-timeout", 2, where)
    assert agent.end() == 6, agent.err
    assert "3 slaves in a row ended before they could take a task: killed by its agent" in agent.err
    until(lambda: "was not ready after 2 s (--mw-slave-start-timeout)" in master.err, "a report of the master")
    function = "hang_while_loading" if where == "loading" else "in slave"
    assert function in master.err, master.err
    assert len(stage.audited("before it could take a task: killed by its agent")) >= 3


def test_an_agent_without_work_ends_its_job(stage: Stage) -> None:
    """Its exit code is 0, so that no batch system starts it again. The computation goes on with another agent."""
    begun, enough = stage.folder / "begun", stage.folder / "enough"
    master = stage.master("several.py", "behind", begun, enough, "--mw-slave-task-group", 1)
    busy = stage.agent("several.py", "--mw-idle-exit", 1)
    until(begun.exists, "a long task")
    until(lambda: len(stage.audited("SLAVE-0 <- 1 task")) >= 1, "tasks at one slave")
    idle = stage.agent("several.py", "--mw-idle-exit", 1)
    assert idle.end() == 0, idle.err
    assert stage.audited("its slaves had no task for 1 s (--mw-idle-exit)")
    assert busy.process.poll() is None
    enough.touch()
    assert (master.end(), busy.end()) == (0, 0), master.err + busy.err
    stage.no_process_left()


def test_a_local_master_replaces_its_slaves(capfd: pytest.CaptureFixture[str]) -> None:
    """An amount of memory can be a text. A wrong limit is an error before anything is started."""
    with pytest.raises(mwpy.UsageError, match="slave_max_memory='much': give a number of bytes"):
        mwpy.local_master(slave_max_memory="much")
    with mwpy.local_master(slaves=1, slave_max_tasks=5, slave_max_memory="1 TB", slave_start_timeout=100) as mw:
        pids = list(mw.map(lambda _: os.getpid(), range(12)))
    assert sorted(map(pids.count, set(pids))) == [2, 5, 5]
    assert capfd.readouterr().err == ""
