"""Faults of real processes: they are killed or stopped, hold the GIL, or die because of their tasks."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.apps.stage import (
    ORPHAN_S,
    Running,
    Stage,
    children_of,
    kill,
    name_of,
    slaves_of,
    until,
)

from mwpy._core.master.spans import LOST_AGENTS_ALLOWED
from mwpy.resource_file import read

TIMEOUT_S = 2
"""The client timeout in these tests."""

SHORT = ("--mw-client-timeout", TIMEOUT_S)
KILL_EVERY_S = 0.1
AGENTS_SHARE = 0.1
"""The share of agents among the killed processes. The slaves of a killed agent end with it."""
TEMPLATES_SHARE = 0.1
"""The share of templates. No slave starts until the next template has loaded the script, which takes several kills."""
LOCAL_AGENTS_SHARE = 0.2
"""The share of agents if there is one, which the master starts again."""
AFTERWARDS_S = 120.0
"""How long the computation may take after the last kill."""


def all_came_once(master: Running) -> int:
    """Assert that every task of `count.py` has exactly one correct result. Return the number of tasks."""
    assert master.end() == 0, master.err
    report = master.report
    assert report["twice"] == []
    assert report["wrong"] == []
    assert report["unrunnable"] == []
    assert report["came"] == report["submitted"]
    assert "Traceback" not in master.err
    return int(report["submitted"])


def test_fifty_agents_share_two_hundred_thousand_tasks(stage: Stage) -> None:
    """Fifty agents with one slave each finish 200,000 tiny tasks and exit with 0, and no process is left."""
    go = stage.folder / "go"
    master = stage.master("count.py", "--tasks", 200_000, "--after", go)
    agents = [stage.agent("count.py", "--mw-audit-file", "/dev/null") for _ in range(50)]
    until(lambda: "SLAVE-49 " in stage.audit.read_text(), "fifty slaves")
    go.touch()
    assert all_came_once(master) == 200_000
    assert [agent.end() for agent in agents] == [0] * 50
    stage.no_process_left()


MANY = ("--mw-attempts-max", 100)


def slaves_and_templates(agents: list[Running]) -> tuple[list[int], list[int]]:
    """The children of agents. If an agent has no template that can fork, one of its children may be a template that
    loads the script, so all of them count as templates."""
    slaves: list[int] = []
    templates: list[int] = []
    for agent in agents:
        children = children_of(agent.pid)
        loaded = [pid for pid in children if name_of(pid) == "mwpy-template"]
        templates += loaded or children
        slaves += [pid for pid in children if loaded and pid not in loaded]
    return slaves, templates


@pytest.mark.parametrize("seed", [1])
def test_results_survive_a_kill_every_tenth_of_a_second(
    stage: Stage, seed: int, story: list[str], num_kills: int
) -> None:
    """Random slaves, templates and some agents are killed with SIGKILL under load. Every result arrives exactly once.

    A third of the tasks are submitted one by one, a third are the items of maps, and a third use a shared object and
    the result of another task.
    Only as many agents are killed as a task may lose: more would make it unrunnable. By chance, one task may be killed
    with three slaves, so it gets more attempts.
    """
    story.append(f"seed {seed}")
    dice, kills_s = random.Random(seed), num_kills * KILL_EVERY_S
    program = ("count.py", "--share", "--seconds", kills_s, "--milliseconds", 2, "--listen", 0.5)
    master = stage.master(*program, *SHORT, *MANY)
    line = ("count.py", "--mw-slave-processes", 2, *SHORT)
    agents = [stage.agent(*line) for _ in range(3)]
    until(lambda: "SLAVE-1 " in stage.audit.read_text(), "two slaves")
    begun, kills, agents_killed = time.monotonic(), 0, 0
    while master.process.poll() is None:
        time.sleep(KILL_EVERY_S)
        now = time.monotonic() - begun
        assert now < kills_s + AFTERWARDS_S, f"the master still runs:\n{master.err[-3000:]}"
        for number, agent in enumerate(agents):
            if agent.process.poll() is not None and now < kills_s + AFTERWARDS_S / 2:
                agents[number] = stage.agent(*line)
        slaves, templates = slaves_and_templates(agents)
        may_kill_agent = agents_killed < LOST_AGENTS_ALLOWED and dice.random() < AGENTS_SHARE
        others = templates if dice.random() < TEMPLATES_SHARE else slaves
        victims = [agent.pid for agent in agents] if may_kill_agent else others
        if now < kills_s and victims:
            agents_killed += may_kill_agent
            victim = dice.choice(victims)
            story.append(f"{now:.2f} s: kill {victim}, one of {victims}")
            kill(victim, signal.SIGKILL)
            kills += 1
    assert kills > 0.1 * num_kills
    assert all_came_once(master) > 100
    for agent in agents:
        agent.end()
    stage.no_process_left()


def test_an_agent_that_was_stopped_comes_back(stage: Stage) -> None:
    """It is stopped for longer than the master waits for it, and is lost once. Late results do not count. Its tasks
    were lost because it was stopped, so it is a new agent from then on."""
    enough = stage.folder / "enough"
    master = stage.master("count.py", "--until", enough, "--milliseconds", 5, "--listen", 1, *SHORT)
    agents = [stage.agent("count.py", *SHORT, "--mw-reconnect-seconds", 1) for _ in range(2)]
    until(lambda: all(f"SLAVE-{n} <- " in stage.audit.read_text() for n in (0, 1)), "tasks at two slaves")
    stopped_at = time.monotonic()
    agents[0].send(signal.SIGSTOP)
    until(lambda: "-> lost: nothing was heard from it for" in stage.audit.read_text(), "the loss of the stopped agent")
    stage.until_audited(", network: AGENT-")
    until(lambda: time.monotonic() > stopped_at + 3 * TIMEOUT_S, "three timeouts")
    agents[0].send(signal.SIGCONT)
    until(lambda: "SLAVE-2 <- " in stage.audit.read_text(), "tasks at the agent that came back")
    enough.touch()
    assert all_came_once(master) > 100
    assert [agent.end() for agent in agents] == [0, 0], agents[0].err
    assert "the master is lost: this agent was stopped for" in agents[0].err
    trail = stage.audit.read_text()
    assert (trail.count(" -> lost: "), trail.count(" was not lost but suspended: AGENT-")) == (1, 1)
    stage.no_process_left()


@pytest.mark.parametrize("by", ["resource file", "key"])
def test_an_agent_has_the_client_timeout_of_its_master(stage: Stage, by: str) -> None:
    """A stopped master is lost long before the default of 30 s, although the agent was not given the option."""
    key = stage.folder / "key"
    master = stage.master("count.py", "--milliseconds", 5, "--mw-key-file", key, *SHORT)
    port = read(stage.resource).master_addresses[0].rpartition(":")[2]
    where = ("--mw-master-host", "127.0.0.1", "--mw-master-port", port, "--mw-key-file", key)
    found = ("--mw-resource-file", stage.resource) if by == "resource file" else where
    agent = stage.start("count.py", "--mw-slave", *found, "--mw-reconnect-seconds", 0)
    until(lambda: "SLAVE-0 <- " in stage.audit.read_text(), "tasks at the slave")
    master.send(signal.SIGSTOP)
    assert agent.end(ORPHAN_S) == 255, agent.err


@pytest.mark.parametrize(("held_s", "grouped"), [(20, ()), (3 * TIMEOUT_S, ("--mw-slave-task-group", 3))])
def test_a_slave_that_holds_the_gil_is_not_lost(stage: Stage, held_s: int, grouped: tuple[object, ...]) -> None:
    """A task can hold the GIL for ten timeouts. Earlier results of the same slave arrive before it ends: it ends only
    when they have arrived."""
    master = stage.master("hold.py", held_s, *SHORT, *grouped)
    agent = stage.agent("hold.py", *SHORT)
    assert master.end() == 0, master.err
    assert master.report["slaves"] == 1
    assert master.report["came"] == ["first", "second", "long", "last"]
    assert agent.end() == 0, agent.err
    assert "lost" not in stage.audit.read_text().lower()


@pytest.mark.parametrize(
    ("how", "cause", "grouped"),
    [
        ("sigkill", "SIGKILL", ()),
        ("sigkill", "SIGKILL", ("--mw-slave-task-group", 100)),
        ("exit", "exit code 3", ()),
        ("segfault", "SIGSEGV", ("--mw-slave-task-group", 100)),
    ],
)
def test_a_task_that_kills_its_slaves_becomes_unrunnable(
    stage: Stage, how: str, cause: str, grouped: tuple[object, ...]
) -> None:
    """After three deaths, the task is unrunnable and lists them. The other tasks of its group are not charged."""
    run = stage.run("killer.py", how, "--mw-local", 1, "--mw-audit-file", stage.audit, *grouped)
    [given_up] = run.report["unrunnable"]
    assert given_up["tag"] == 20
    assert len(given_up["deaths"]) == 3
    assert all(cause in death for death in given_up["deaths"])
    assert cause in given_up["reason"]
    assert run.report["came"] == [number for number in range(41) if number != 20]
    stage.no_process_left()


@pytest.mark.parametrize("slaves", [1, 3])
def test_a_task_that_kills_its_agent_becomes_unrunnable(stage: Stage, slaves: int) -> None:
    """Four agents on this machine are lost. All other tasks have results, and the master says what it does."""
    run = stage.run("killer.py", "agent", "--mw-local", slaves, "--mw-audit-file", stage.audit)
    [given_up] = run.report["unrunnable"]
    assert given_up["tag"] == 20
    assert [f"agent lost: AGENT-{number} on " in death for number, death in enumerate(given_up["deaths"])] == [True] * 4
    assert given_up["reason"].startswith("4 agents vanished while they had it, the last one while it ran nothing else")
    assert run.report["came"] == [number for number in range(41) if number != 20]
    assert "3 agents vanished without notice while they had" in run.err
    assert run.err.count("starting another") >= 3
    stage.no_process_left()


def test_results_that_a_slave_overwrote_in_shared_memory_are_computed_again(stage: Stage) -> None:
    run = stage.run("killer.py", "scribble", "--mw-local", 1, "--mw-slave-task-group", 100)
    assert run.report["came"] == [number for number in range(41) if number != 20]
    assert [len(task["deaths"]) for task in run.report["unrunnable"]] == [3]
    assert "overwrote the memory that it shares with its agent: its unsent results are lost: " in run.err
    stage.no_process_left()


def test_a_task_with_an_overwritten_result_does_not_run_again_if_it_may_run_once(stage: Stage) -> None:
    """A task overwrites the journal as soon as a result is in it. So its own and at least another one are lost."""
    log = stage.folder / "log"
    run = stage.run("killer.py", "overwrite", log, "--mw-local", 1, "--mw-slave-task-group", 100)
    ran = log.read_text().split()
    assert len(ran) == len(set(ran)) == 41
    unrunnable = [task["tag"] for task in run.report["unrunnable"]]
    assert len(unrunnable) > 1
    assert sorted([*run.report["came"], *unrunnable]) == list(range(41))
    stage.no_process_left()


def test_a_task_that_closes_the_connection_of_its_slave_costs_only_the_slave(stage: Stage) -> None:
    """The slave notices it later, while it runs another task. All finished results count, and no task is charged."""
    run = stage.run("killer.py", "close", "--mw-local", 1, "--mw-slave-task-group", 100)
    assert run.report == {"came": [*range(41)], "unrunnable": []}
    assert "a task closed or replaced the connection of its slave" in run.err
    assert "Traceback" not in run.err
    stage.no_process_left()


@pytest.mark.parametrize("seed", [1])
def test_a_local_run_goes_on_while_its_agent_and_their_children_are_killed(
    stage: Stage, seed: int, story: list[str], num_kills: int
) -> None:
    """Random agents, templates and slaves, most of which are just starting, get SIGKILL or SIGTERM. No such end is a
    failure of the start, so the run goes on and all values are right."""
    story.append(f"seed {seed}")
    dice, enough, kills = random.Random(seed), stage.folder / "enough", 0
    run = stage.start("squares.py", enough)
    while kills < num_kills / 20:
        time.sleep(dice.choice((0.01, 0.05, 0.1, 0.3, 1.0)))
        assert run.process.poll() is None, run.err
        agents = children_of(run.pid)
        below = [child for agent in agents for child in children_of(agent)]
        victims = agents if dice.random() < LOCAL_AGENTS_SHARE else below
        if victims:
            victim, number = dice.choice(victims), dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            story.append(f"{number.name} for {victim}, one of {victims}")
            kill(victim, number)
            kills += 1
    enough.touch()
    assert run.end() == 0, run.err
    assert run.report > 0
    assert "in a row" not in run.err
    stage.no_process_left()


def test_a_local_agent_that_is_stopped_is_replaced(stage: Stage) -> None:
    """The master kills it when its connection has ended. Its tasks run on another agent."""
    files = ("--mw-audit-file", stage.audit)
    run = stage.start("count.py", "--tasks", 400, "--milliseconds", 10, "--mw-local", 2, *files, *SHORT)
    until(lambda: stage.audit.exists() and "SLAVE-1 " in stage.audit.read_text(), "two slaves")
    [agent] = slaves_of(run.pid)
    kill(agent, signal.SIGSTOP)
    assert all_came_once(run) == 400
    assert "the local agent ended (killed by signal 9 (SIGKILL)" in run.err
    stage.no_process_left()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB. Only root can mount it."""
    if os.geteuid() != 0:
        pytest.skip("the test mounts a small file system, which needs root: run `sudo make test-processes`")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


class FreezingDisk:
    """A file system that can be frozen: then every write to it hangs, and no signal ends the wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._frozen = False

    def freeze(self, frozen: bool = True) -> None:
        if frozen != self._frozen:
            subprocess.run(["fsfreeze", "--freeze" if frozen else "--unfreeze", self.path], check=True)
            self._frozen = frozen


@pytest.fixture
def freezing_disk(tmp_path: Path) -> Iterator[FreezingDisk]:
    """A file system of 8 MiB. Only root can mount it."""
    if os.geteuid() != 0:
        pytest.skip("the test mounts and freezes a file system, which needs root: run `sudo make test-processes`")
    disk, image = tmp_path / "disk", tmp_path / "image"
    disk.mkdir()
    image.write_bytes(bytes(8 << 20))
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    made = FreezingDisk(disk)
    try:
        yield made
    finally:
        made.freeze(False)
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_file_system_that_hangs_delays_no_task(stage: Stage, freezing_disk: FreezingDisk) -> None:
    """The audit file and the resource file are on it. All tasks run, and the master says what it could not write."""
    audit, resource = freezing_disk.path / "audit", freezing_disk.path / "computation.rsc"
    go = stage.folder / "go"
    role = ("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-local", 2, "--mw-slave-task-group", 1)
    files = ("--mw-audit-file", audit, "--mw-resource-file", resource, "--mw-resource-file-update-interval", 0.5)
    master = stage.start("count.py", "--tasks", 1000, "--after", go, *role, *files)
    until(lambda: audit.exists() and "SLAVE-1 " in audit.read_text(), "two slaves")
    freezing_disk.freeze()
    go.touch()
    until(lambda: "computation.rsc: its file system hangs" in master.err, lambda: f"a notice: {master.err}")
    until(lambda: "the last lines of the audit file are lost" in master.err, lambda: f"a notice: {master.err}")
    assert '"came": 1000' in master.out
    freezing_disk.freeze(False)
    assert all_came_once(master) == 1000


def test_a_full_disk_loses_audit_lines_but_no_results(stage: Stage, small_disk: Path) -> None:
    """The audit file and the resource file are on this disk. The master reports the gap once and gets all results."""
    audit, resource = small_disk / "audit", small_disk / "computation.rsc"
    go = stage.folder / "go"
    role = ("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-slave-task-group", 1)
    files = ("--mw-audit-file", audit, "--mw-resource-file", resource)
    master = stage.start("count.py", "--tasks", 3000, "--after", go, *role, *files)
    until(resource.exists, "a resource file")
    with suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    agent = stage.start("count.py", "--mw-slave", "--mw-resource-file", resource)
    go.touch()
    assert all_came_once(master) == 3000
    assert agent.end() == 0, agent.err
    assert master.err.count("lines are missing in the audit file") == 1
    assert "cannot write the resource file" in master.err
    stage.no_process_left()


@pytest.mark.parametrize("how", ["ones", "rows"])
def test_a_task_that_writes_nonsense_into_shared_memory_costs_only_its_slave(stage: Stage, how: str) -> None:
    """The agent kills the slave and says why, and every task has its result."""
    run = stage.run("overwrite.py", how, "--mw-local", 1, "--mw-audit-file", stage.audit)
    assert (len(run.report["values"]), run.report["errors"]) == (200, [])
    assert "Traceback" not in run.err
    [first, *_] = [line for line in stage.audit.read_text().splitlines() if "SLAVE-0 -> gone" in line]
    assert re.search("killed by its agent because (what it sent cannot be read|it overwrote the memory)", first), first
    stage.no_process_left()
