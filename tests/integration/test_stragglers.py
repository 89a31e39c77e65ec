"""Second attempts of stragglers, with real processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.integration.apps.stage import Stage, is_gone, kill, until


@pytest.mark.parametrize(
    ("speculate", "options", "stops"),
    [("true", (), False), ("null", ("--mw-speculate",), True)],
    ids=["a task hangs", "a slave is stopped"],
)
def test_a_second_attempt_answers_for_a_task_that_hangs(
    stage: Stage, speculate: str, options: tuple[str, ...], stops: bool
) -> None:
    """The map is complete while the first attempt still hangs. Then its slave is killed, and another one replaces it.
    Nobody is charged, and the agents end well."""
    master = stage.master("several.py", "straggling", speculate, *options)
    agents = [stage.agent("several.py") for _ in range(2)]
    until((stage.folder / "pid").exists, "a task that hangs")
    pid = int((stage.folder / "pid").read_text())
    if stops:
        kill(pid, signal.SIGSTOP)
    until((stage.folder / "complete").exists, lambda: f"a complete map:\n{master.err}")
    until(lambda: is_gone(pid), "an end of the slave whose task hangs")
    until(lambda: "SLAVE-2 " in stage.audit.read_text(), "another slave")
    (stage.folder / "enough").touch()
    assert (master.end(), [agent.end() for agent in agents]) == (0, [0, 0]), master.err
    assert master.report == {"values": [2 * number for number in range(20)], "attempts": 2}
    [given] = stage.audited(" -> 1 task back (task 8 (")
    assert "it has run for" in given
    assert not stage.audited("while it ran"), "an attempt is charged"
    stage.no_process_left()


def test_a_stopped_agent_delays_no_map(stage: Stage) -> None:
    """Nobody hears the agent, and it is not lost yet. When it resumes, it kills the attempt that is not wanted."""
    master = stage.master("several.py", "straggling", "true", "--mw-client-timeout", 100)
    agents = [stage.agent("several.py") for _ in range(2)]
    until((stage.folder / "pid").exists, "a task that hangs")
    pid = int((stage.folder / "pid").read_text())
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    kill(parent, signal.SIGSTOP)
    until((stage.folder / "complete").exists, lambda: f"a complete map:\n{master.err}")
    assert not is_gone(pid)
    kill(parent, signal.SIGCONT)
    until(lambda: is_gone(pid), "an end of the slave whose task hangs")
    (stage.folder / "enough").touch()
    assert (master.end(), [agent.end() for agent in agents]) == (0, [0, 0]), master.err
    assert master.report["attempts"] == 2
