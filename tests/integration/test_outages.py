"""Agents that lose their connection, and come back to the same master with the tasks that they run."""

from __future__ import annotations

import signal
import sys

import pytest
from tests.integration.apps.stage import APPS, Cable, Running, Stage, kill, until

TIMEOUT_S = 2
"""The client timeout in these tests."""


def starts(stage: Stage) -> list[list[str]]:
    """The number of each task that has started, and the process id of its slave."""
    noted = stage.folder / "starts"
    return sorted(line.split() for line in noted.read_text().splitlines()) if noted.exists() else []


def stopped_for_a_while(stage: Stage, agent: Running) -> None:
    """Stop an agent until its master misses it, and wait until it is back."""
    kill(agent.pid, signal.SIGSTOP)
    stage.until_audited("AGENT-0 -> away: ")
    kill(agent.pid, signal.SIGCONT)
    stage.until_audited(" -> back")


def ends_well(stage: Stage, master: Running, agent: Running, begun: list[list[str]]) -> None:
    """Let the tasks end. Each of them was started once, and its slave has returned its result."""
    (stage.folder / "enough").touch()
    assert (master.end(), agent.end()) == (0, 0), master.err + agent.err
    assert starts(stage) == begun
    assert master.report == [int(pid) for _, pid in begun]
    assert not stage.audited("-> lost")
    stage.no_process_left()


def test_a_cable_that_is_unplugged_for_a_while_restarts_no_task(stage: Stage, cable: Cable) -> None:
    """Both sides notice the silence. Then the agent finds its master again, and has the same slaves."""
    cable.plug()
    short = ("--mw-client-timeout", TIMEOUT_S)
    master = stage.master("several.py", "outage", 3, "--mw-master-host", cable.master, *short)
    line = ("--mw-slave", "--mw-resource-file", stage.resource, "--mw-slave-processes", 3, *short)
    agent = stage.start("", *line, program=cable.program(sys.executable, str(APPS / "several.py")))
    until(lambda: len(starts(stage)) == 3, lambda: f"three tasks that run\n{agent.err}")
    begun = starts(stage)
    for _ in range(2):
        known = len(stage.audited("-> back"))
        cable.unplug()
        until(lambda: len(stage.audited("AGENT-0 -> away: ")) > known, "a master that misses the agent")  # noqa: B023
        cable.plug()
        until(lambda: len(stage.audited(" -> back")) > known, lambda: f"an agent that is back\n{agent.err}")  # noqa: B023
    ends_well(stage, master, agent, begun)
    assert agent.err.count("mwpy: back at the master after ") == 2
    assert "AGENT-0 on " in master.err
    assert " is back after " in master.err


def test_an_agent_that_was_stopped_goes_on_with_its_tasks(stage: Stage) -> None:
    """It is stopped for so long that the master misses it."""
    short = ("--mw-client-timeout", TIMEOUT_S)
    master = stage.master("several.py", "outage", 2, *short)
    agent = stage.agent("several.py", "--mw-slave-processes", 2, *short)
    until(lambda: len(starts(stage)) == 2, lambda: f"two tasks that run\n{agent.err}")
    begun = starts(stage)
    stopped_for_a_while(stage, agent)
    ends_well(stage, master, agent, begun)


def test_a_slave_that_dies_after_its_agent_is_back_is_replaced(stage: Stage) -> None:
    """The template, which starts the new slave, is heard on the new connection, too."""
    short = ("--mw-client-timeout", TIMEOUT_S)
    master = stage.master("several.py", "outage", 1, *short)
    agent = stage.agent("several.py", *short)
    until(lambda: len(starts(stage)) == 1, lambda: f"a task that runs\n{agent.err}")
    stopped_for_a_while(stage, agent)
    kill(int(starts(stage)[0][1]), signal.SIGKILL)
    until(lambda: len(starts(stage)) == 2, lambda: f"a second attempt\n{agent.err}")
    (stage.folder / "enough").touch()
    assert (master.end(), agent.end()) == (0, 0), agent.err


def test_a_master_that_was_stopped_has_all_its_agents_back(stage: Stage) -> None:
    """Its agents look for it. The results that came meanwhile are not lost."""
    short = ("--mw-client-timeout", TIMEOUT_S)
    master = stage.master("several.py", "outage", 1, *short)
    agent = stage.agent("several.py", *short)
    until(lambda: len(starts(stage)) == 1, lambda: f"a task that runs\n{agent.err}")
    begun = starts(stage)
    kill(master.pid, signal.SIGSTOP)
    until(lambda: "looking for it" in agent.err, "an agent that looks for its master")
    (stage.folder / "enough").touch()
    kill(master.pid, signal.SIGCONT)
    ends_well(stage, master, agent, begun)


@pytest.mark.parametrize(("given", "code"), [((), 0), (("--mw-reconnect-seconds", 0), 255)], ids=["looks", "leaves"])
def test_the_agents_of_a_killed_master_look_for_it_unless_they_must_leave(
    stage: Stage, given: tuple[object, ...], code: int
) -> None:
    """When the resource file says that the computation is finished, they end."""
    master = stage.master("several.py", "outage", 1)
    agent = stage.agent("several.py", *given)
    until(lambda: len(starts(stage)) == 1, lambda: f"a task that runs\n{agent.err}")
    master.send(signal.SIGKILL)
    until(lambda: "the master" in agent.err, "an agent that notices it")
    content = stage.resource.read_text()
    stage.resource.write_text(content.replace('"in-progress"', '"finished"'))
    assert agent.end() == code, agent.err
    stage.no_process_left()
