"""Arrays between processes of one host travel in files, and between hosts in messages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from tests.integration.apps.stage import APPS, Stage

TASKS = 1000

TINY = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make namespaces")


@needs_root
def test_arrays_are_mapped_and_leave_nothing_open_though_slaves_are_killed(stage: Stage) -> None:
    """The agent and the master have the same number of open files in both halves of the run, up to the few tasks that
    are on their way. /dev/shm has no room for a single array."""
    program = ["unshare", "--mount", "sh", "-c", TINY, "sh", sys.executable, str(APPS / "arrays.py")]
    running = stage.start("", TASKS, 100, "--mw-local", 2, program=program)
    assert running.end() == 0, running.err
    report = running.report
    assert (report["mapped"], report["left"]) == (2 * TASKS, [])
    assert report["growth"] < 20


def run(*words: str) -> None:
    subprocess.run(words, check=True, timeout=60, capture_output=True)


@needs_root
@pytest.mark.skipif(shutil.which("ip") is None, reason="ip(8) is missing")
def test_arrays_reach_an_agent_in_another_network(stage: Stage) -> None:
    """It cannot accept a passage. Between this agent and its slave, the arrays are mapped."""
    name = f"mw{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        run("ip", "addr", "add", "169.254.213.1/30", "dev", f"{name}a")
        run("ip", "link", "set", f"{name}a", "up")
        run("ip", "-n", name, "addr", "add", "169.254.213.2/30", "dev", f"{name}b")
        run("ip", "-n", name, "link", "set", f"{name}b", "up")
        master = stage.master("arrays.py", 30, 0, "--mw-master-host", "169.254.213.1")
        program = [
            "ip",
            "netns",
            "exec",
            name,
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            sys.executable,
            str(APPS / "arrays.py"),
        ]
        stage.start("", "--mw-slave", "--mw-resource-file", stage.resource, program=program)
        assert master.end() == 0, master.err
        assert master.report["mapped"] == 30
    finally:
        run("ip", "netns", "delete", name)
