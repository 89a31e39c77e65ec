"""A master and the agents that it starts on its own machine, which talk over streams that the agents inherit.

`test_faults.py` kills and stops such agents, and `test_careless_scripts.py` kills their master.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.apps.stage import Stage, slaves_of, until

import mwpy

UNNEEDED = {
    *("bz2", "concurrent.futures", "csv", "email", "html", "importlib.metadata", "json", "logging", "lzma", "pathlib"),
    *("pkgutil", "random", "shutil", "tempfile", "urllib.parse", "zipfile"),
    *("cloudpickle", "joblib", "sqlite3", "zmq"),
    *("mwpy._batch", "mwpy._database", "mwpy._doctor", "mwpy._simulation", "mwpy._transport.link"),
    *("mwpy._roles.join", "mwpy._roles.log_records", "mwpy._roles.runner"),
    *("mwpy._roles.overseer", "mwpy._roles.run_store", "mwpy.executor", "mwpy.joblib", "mwpy.resource_file"),
}
"""Modules that no process needs before the first result, except `logging` and its handler in a slave."""

FIRST_RESULT = """
import sys
before = {*sys.modules}
import mwpy
import functions_of_user
with mwpy.local_master(slaves=1) as mw:
    [result] = mw.map_results(functions_of_user.loaded, [None])
    master = {*sys.modules}
print(*sorted(master - before))
print(*sorted({*result.value} - before))
"""

AGENT = """
import sys
before = {*sys.modules}
import mwpy._roles.slave_processes, mwpy._roles.agent, mwpy.audit
print(*sorted({*sys.modules} - before))
"""


def test_until_the_first_result_no_process_loads_what_it_does_not_need(tmp_path: Path) -> None:
    """Three processes load at the same time, and nothing else takes as long in a launch. What pays for an import at
    the top of a module is that each process uses it; other modules are imported in the functions that use them."""
    (tmp_path / "functions_of_user.py").write_text("import sys\n\ndef loaded(_=None):\n    return [*sys.modules]\n")

    def lines(program: str) -> list[set[str]]:
        run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        return [{*line.split()} for line in run.stdout.splitlines()]

    assert all(importlib.util.find_spec(name) for name in UNNEEDED)
    master, slave = lines(FIRST_RESULT)
    [agent] = lines(AGENT)
    assert {"mwpy.master", "functions_of_user"} <= master
    assert {"mwpy.slave", "functions_of_user"} <= slave
    assert not master & (UNNEEDED | {"mwpy.slave", "mwpy._roles.agent"})
    assert not slave & (UNNEEDED | {"mwpy.audit", "mwpy.master"}) - {"logging", "mwpy._roles.runner"}
    assert not agent & (UNNEEDED | {"mwpy.master", "mwpy._core.master"})


def test_a_hundred_megabytes_travel_there_and_back() -> None:
    sent = os.urandom(1000) * 100_000
    with mwpy.local_master(slaves=1) as mw:
        [came] = mw.map(lambda given: given[::-1], [sent])
    assert came == sent[::-1]


def test_sixty_four_slaves_share_the_tasks_of_one_agent() -> None:
    with mwpy.local_master(slaves=64) as mw:
        io = mw._access.io
        until(lambda: io.num_slaves == 64, lambda: f"64 slaves, not {io.num_slaves}")
        values = list(mw.map(lambda number: number * 2, range(2000)))
    assert values == [*range(0, 4000, 2)]


def test_agents_elsewhere_join_a_master_with_an_agent_of_its_own(stage: Stage) -> None:
    """Both get tasks. When the own agent is gone, its tasks run at the other one, and a new one joins."""
    master = stage.master("count.py", "--tasks", 600, "--milliseconds", 10, "--mw-local", 1)
    [own] = slaves_of(master.pid)
    agent = stage.agent("count.py")
    until(lambda: all(f"SLAVE-{n} <- " in stage.audit.read_text() for n in (0, 1)), "tasks at two slaves")
    trail = stage.audit.read_text()
    assert f" localhost -> connected, host {os.uname().nodename}, pid {own}\n" in trail
    assert f" 127.0.0.1 -> connected, host {os.uname().nodename}, pid {agent.pid}\n" in trail
    os.kill(own, 9)
    assert master.end() == 0, master.err
    assert master.report["came"] == 600
    assert (master.report["twice"], master.report["wrong"], master.report["unrunnable"]) == ([], [], [])
    assert agent.end() == 0, agent.err
    stage.no_process_left()
