"""Arrays between processes of one host travel in files, and between hosts in messages."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.apps.stage import APPS, ORPHAN_S, Cable, Running, Stage, children_of, kill, until
from tests.memory_group import JOIN

TASKS = 1000

TINY = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make namespaces")


@needs_root
def test_arrays_are_mapped_and_leave_nothing_open_though_slaves_are_killed(stage: Stage) -> None:
    """The agent and the master have the same number of open files in both halves of the run, up to the few tasks that
    are on their way. /dev/shm has no room for a single array."""
    program = ["unshare", "--mount", "sh", "-c", TINY, "sh", sys.executable, str(APPS / "arrays.py")]
    running = stage.run("", TASKS, 100, "--mw-local", 2, program=program)
    report = running.report
    assert (report["mapped"], report["left"]) == (2 * TASKS, [])
    assert report["growth"] < 20


HOLDS = """
import os, signal, sys
from pathlib import Path
import numpy as np
import mwpy
@mwpy.task_algorithm
def hold(table, array):
    if array[0] < 4: return array
    Path(f"holds-{os.getpid()}").touch()
    signal.pause()
@mwpy.master_algorithm
def master(mw, argv):
    table = mw.share(np.ones(int(argv[0]) // 8))
    for number in range(50): mw.submit(hold.task(table, np.full(20_000, number)))
    while True: mw.loop()
if __name__ == "__main__": sys.exit(mwpy.main())
"""
"""Four tasks return arrays, which the master does not fetch. Two tasks never end, and the others wait with an array of
160 kB each. All of them use an object of `OBJECT_BYTES`."""

OBJECT_BYTES = 32_000_000


HIDE = 'mount --bind "$0" /dev/shm && exec "$@"'
"""A folder is /dev/shm for a program."""


def files_in_memory(pid: int) -> set[str]:
    """The names of the files in memory that a process has open or mapped."""
    opened = list[str]()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            opened.append(str(path.readlink()))
    mapped = Path(f"/proc/{pid}/maps").read_text().split()
    return {target.removeprefix("/memfd:").split()[0] for target in opened + mapped if target.startswith("/memfd:")}


def hold_memory(stage: Stage, *program: str) -> tuple[Running, int]:
    """Start a master and its agent with a program. Return both when they have a shared object, and the master has large
    buffers: the agent has passed them on to its slaves."""
    (stage.folder / "holds.py").write_text(HOLDS)
    master = stage.start("", OBJECT_BYTES, "--mw-local", 2, program=[*program, sys.executable, "holds.py"])
    until(lambda: len([*stage.folder.glob("holds-*")]) == 2, lambda: f"two tasks: {master.err}")
    [agent] = children_of(master.pid)
    assert {"mwpy-buffers", "mwpy-shared"} <= files_in_memory(master.pid)
    assert "mwpy-shared" in files_in_memory(agent)
    return master, agent


def kill_both(stage: Stage, master: Running, agent: int) -> None:
    """Kill an agent and its master. The slaves end with the agent."""
    kill(agent, signal.SIGKILL)
    master.send(signal.SIGKILL)
    assert master.end() == -signal.SIGKILL
    stage.no_process_left()


@needs_root
def test_a_killed_master_and_its_agent_leave_no_file(stage: Stage) -> None:
    """A folder of the test is /dev/shm for them."""
    files = stage.folder / "shm"
    files.mkdir()
    kill_both(stage, *hold_memory(stage, "unshare", "--mount", "sh", "-c", HIDE, str(files)))
    assert [*files.iterdir()] == []


def shared_bytes(group: Path) -> int:
    """How much shared memory the processes of a control group have made, also that of files that none has mapped."""
    lines = (group / "memory.stat").read_text().splitlines()
    return int(dict(map(str.split, lines))["total_shmem"])


def test_a_killed_master_and_its_agent_leave_no_memory(stage: Stage, memory_group: Path) -> None:
    """The kernel counts it a moment after the processes have ended."""
    both = hold_memory(stage, "sh", "-c", JOIN, str(memory_group))
    assert shared_bytes(memory_group) > OBJECT_BYTES
    kill_both(stage, *both)
    until(lambda: shared_bytes(memory_group) == 0, "no shared memory", ORPHAN_S)


def test_arrays_reach_an_agent_in_another_network(stage: Stage, cable: Cable) -> None:
    """Between this agent and its slave, the arrays are mapped."""
    master = stage.master("arrays.py", 30, 0, "--mw-master-host", cable.master)
    program = cable.program("unshare", "--pid", "--fork", "--mount-proc", sys.executable, str(APPS / "arrays.py"))
    stage.start("", "--mw-slave", "--mw-resource-file", stage.resource, program=program)
    assert master.end() == 0, master.err
    assert master.report["mapped"] == 30
