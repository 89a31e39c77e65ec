"""The tasks of an agent that gets SIGTERM and has a long grace period."""

from __future__ import annotations

import signal

import pytest
from tests.integration.apps.stage import Stage, kill, slaves_of, until

import mwpy

GRACE_S = 600
"""A grace period that is longer than the time limit of a test. A test that waits for its end fails."""

OTHERS = 19
"""The number of tasks that wait behind the long task, as in the program `behind`."""


@pytest.mark.parametrize(("drained", "code"), [(False, 5), (True, 0)], ids=["SIGTERM", "drained"])
def test_unstarted_tasks_of_an_agent_that_leaves_run_elsewhere_at_once(stage: Stage, drained: bool, code: int) -> None:
    """Unstarted tasks do not wait for the running task, which ends within the grace period and does not run twice."""
    begun, enough = stage.folder / "begun", stage.folder / "enough"
    master = stage.master("several.py", "behind", begun, enough, "--mw-slave-task-group", OTHERS + 1)
    evicted = stage.agent("several.py", "--mw-grace-period", GRACE_S)
    until(begun.exists, "a long task")
    until(lambda: sent(stage, "SLAVE-0") == OTHERS + 1, "all tasks at one slave")
    other = stage.agent("several.py")
    until(lambda: bool(stage.audited("SLAVE-1 -> idle")), "another slave")
    assert sent(stage, "SLAVE-1") == 0
    [slave] = slaves_of(evicted.pid)

    if drained:
        answer = mwpy.drain(stage.resource, "AGENT-0")
        assert (len(answer["agents"]), answer["running"], answer["unknown"]) == (1, OTHERS + 1, [])
    else:
        evicted.send(signal.SIGTERM)
    until(lambda: finished(stage, "SLAVE-1") == OTHERS, lambda: f"others run elsewhere: {stage.audit.read_text()}")
    assert len(stage.audited("SLAVE-0 -> shutting-down")) == 1
    assert len(stage.audited(f"SLAVE-0 -> {OTHERS} tasks back")) == 1
    assert finished(stage, "SLAVE-0") == 0
    assert evicted.process.poll() is None
    assert slaves_of(evicted.pid) == [slave]

    enough.touch()
    assert evicted.end() == code, evicted.err
    assert (master.end(), other.end()) == (0, 0), master.err + other.err
    assert master.report[-1] == ["long", "SLAVE-0"]
    assert master.report[:-1] == [[tag, "SLAVE-1"] for tag in range(OTHERS)]
    assert sent(stage, "SLAVE-0") + sent(stage, "SLAVE-1") == OTHERS + 1 + OTHERS
    stage.no_process_left()


@pytest.mark.parametrize("options", [(), ("--mw-lifetime", 1e9)], ids=["endless", "limited"])
def test_a_kill_of_a_whole_job_is_not_the_death_of_a_slave(stage: Stage, options: tuple[object, ...]) -> None:
    """Batch systems kill processes of a job in any order. The test kills a slave and then its agent, three times.

    The task is a suspect after that, but it runs again.
    """
    begun, enough = stage.folder / "begun", stage.folder / "enough"
    master = stage.master("several.py", "behind", begun, enough, "--mw-slave-task-group", 1)
    for _ in range(3):
        begun.unlink(missing_ok=True)
        agent = stage.agent("several.py", *options)
        until(begun.exists, "a long task")
        [slave] = slaves_of(agent.pid)
        kill(slave, signal.SIGKILL)
        until(lambda: slave not in slaves_of(agent.pid), "an agent that has seen the end of its slave")  # noqa: B023
        agent.send(signal.SIGKILL)
        agent.end()
    enough.touch()
    last = stage.agent("several.py")
    assert (master.end(), last.end()) == (0, 0), master.err + last.err
    assert stage.audited("-> gone while it ran") == []
    assert "3 agents vanished without notice" in master.err
    stage.no_process_left()


def test_after_a_signal_to_all_processes_of_a_job_the_running_task_keeps_its_grace_period(stage: Stage) -> None:
    """Slurm sends SIGTERM to all processes. A slave that gets it before its agent still finishes its task."""
    begun, enough = stage.folder / "begun", stage.folder / "enough"
    master = stage.master("several.py", "behind", begun, enough)
    evicted = stage.agent("several.py", "--mw-grace-period", GRACE_S)
    until(begun.exists, "a long task")
    [slave] = slaves_of(evicted.pid)
    kill(slave, signal.SIGTERM)
    evicted.send(signal.SIGTERM)
    until(lambda: bool(stage.audited("SLAVE-0 -> shutting-down")), "a slave that shuts down")
    enough.touch()
    assert evicted.end() == 5, evicted.err
    other = stage.agent("several.py")
    assert (master.end(), other.end()) == (0, 0), master.err + other.err
    assert ["long", "SLAVE-0"] in master.report
    stage.no_process_left()


def sent(stage: Stage, sid: str) -> int:
    """Return the number of tasks that were sent to a slave."""
    return sum(int(line.split()[-2]) for line in stage.audited(f"{sid} <- "))


def finished(stage: Stage, sid: str) -> int:
    """Return the number of results that a slave sent."""
    return sum(int(line.split()[-2]) for line in stage.audited(f"{sid} -> ") if line.split()[-1].startswith("result"))
