"""A master and the agents that it starts on its own machine, which talk over streams that the agents inherit.

`test_faults.py` kills and stops such agents, and `test_roles.py` kills their master.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.integration.apps.stage import Stage, slaves_of, until

import mwpy

LOADED = """
import glob, json, os, sys
import mwpy
with mwpy.local_master(slaves=1) as mw:
    assert list(mw.map(abs, [-1])) == [1]
    [agent] = [pid for path in glob.glob("/proc/self/task/*/children") for pid in open(path).read().split()]
    print(json.dumps(["zmq" in sys.modules, "zmq" in open(f"/proc/{agent}/maps").read(), "MWPY_KEY" in os.environ]))
"""


def test_a_master_that_nobody_else_can_join_loads_no_zeromq_and_neither_does_its_agent() -> None:
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [False, False, False]


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
