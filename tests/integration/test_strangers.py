"""A process that has no key can connect to a master, but neither fill its memory nor keep agents out."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.apps.stage import APPS, Running, Stage, until
from tests.memory_group import JOIN

from mwpy.resource_file import read

TASKS = 200

MEMORY_BYTES = 300 << 20


def start_master(stage: Stage, shell: str, *words: object) -> Running:
    """Start a master in a shell that limits it. Its tasks wait for the file `go`."""
    program = ["sh", "-c", shell, *map(str, words), sys.executable, str(APPS / "count.py")]
    own = ("--mw-master", "--mw-resource-file", stage.resource, "--mw-audit-file", stage.audit)
    files = (*own, "--mw-master-host", "127.0.0.1", "--after", stage.folder / "go")
    master = stage.start("", "--tasks", TASKS, *files, program=program)
    until(lambda: stage.resource.exists() or master.process.poll() is not None, "a resource file")
    assert stage.resource.exists(), master.err
    return master


def strangers(stage: Stage, master: Running, kind: str, count: int) -> Running:
    """Start strangers, and wait until they have done enough."""
    port = read(str(stage.resource)).master_addresses[0].rpartition(":")[2]
    sources = str(Path(__file__).parents[2])
    running = stage.start(
        "", kind, port, count, program=[sys.executable, "-m", "tests.strangers"], variables={"PYTHONPATH": sources}
    )
    until(lambda: running.out == "enough\n" or master.process.poll() is not None, lambda: f"enough: {running.err}")
    return running


def finish(stage: Stage, master: Running) -> None:
    """Let a new agent join, and the computation end, while the strangers are there."""
    agent = stage.agent("count.py")
    (stage.folder / "go").touch()
    assert (agent.end(), master.end()) == (0, 0), (agent.err, master.err)
    assert master.report["came"] == TASKS


def test_twenty_strangers_that_send_a_thousand_megabytes_each_do_not_fill_the_memory_of_a_master(
    memory_group: Path, stage: Stage
) -> None:
    """They announce a frame of 1,000 MiB, send it, and connect again. The master has a control group of 300 MiB."""
    (memory_group / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
    master = start_master(stage, JOIN, memory_group)
    strangers(stage, master, "flood", 20)
    finish(stage, master)


def test_a_thousand_strangers_that_say_nothing_do_not_keep_a_new_agent_out(stage: Stage) -> None:
    """The master may have as many open files as a process usually may, so it has no room for all of them."""
    master = start_master(stage, 'ulimit -n 1024 && exec "$@"', "sh")
    strangers(stage, master, "idle", 1000)
    finish(stage, master)
