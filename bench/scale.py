"""Many agents on one master: the time to connect, memory and processor time of the idle master, rate, and shares.

    python scale.py 4000 --mw-master --mw-master-host 127.0.0.1 --mw-resource-file scale.rsc

The agents are in one process on the same machine (`agents.py`), so the rate is that of both processes together. The
shares are the most tasks that an agent had, divided by the fewest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mwpy

AGENTS = Path(__file__).with_name("agents.py")

QUICK = "BENCH_QUICK" in os.environ
"""Whether the figures may be wrong: a test checks only that all parts work together."""

SETTLE_S, IDLE_S, RATE_S = (0.1, 0.1, 0.1) if QUICK else (5.0, 20.0, 10.0)

WINDOW = 100
"""How many tasks there are for each agent that have not ended, at agents and in the master."""

RAMP_TASKS = 3 * WINDOW
"""The rate is measured after this number of tasks for each agent. At first, each agent has one task, because its
duration is not known."""


@mwpy.task_algorithm
def nothing(number: int) -> int:
    return number


def resident() -> int:
    statm = Path("/proc/self/statm").read_text(encoding="ascii")
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def idle_share(mw: mwpy.Master) -> float:
    """Return the share of a core that this process uses when nothing happens."""
    mw.loop(SETTLE_S)
    began, used = time.monotonic(), time.process_time()
    mw.loop(IDLE_S)
    return (time.process_time() - used) / (time.monotonic() - began)


def finish(mw: mwpy.Master, window: int, least: int, least_s: float) -> float:
    """Run tasks, `window` at a time, until `least` of them have finished and `least_s` seconds are over.

    Returns:
        How many finished in a second.
    """
    finished = 0
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < least_s or finished < least:
        for number in range(window - mw.num_runnable_tasks()):
            mw.submit(nothing.task(number))
        mw.loop()
        finished += len(mw.results())
    return finished / seconds


def rate(mw: mwpy.Master, agents: int) -> float:
    """Return tasks per second, when all agents have had tasks. The time before this does not count."""
    finish(mw, WINDOW * agents, RAMP_TASKS * agents, 0.0)
    return finish(mw, WINDOW * agents, 0, RATE_S)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    # `sys.argv` has only the script's own arguments here
    path = sys.orig_argv[sys.orig_argv.index("--mw-resource-file") + 1]
    agents = int(argv[0])
    before = resident()
    command = [sys.executable, str(AGENTS), path, str(agents)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        connected_s = float(process.stdout.readline())
        memory, idle = (resident() - before) / agents, idle_share(mw)
        tasks_a_second = rate(mw, agents)
        fewest, most = map(int, process.communicate()[0].split())
    shares = most / fewest if fewest else float("inf")
    print(json.dumps([connected_s, idle * 100, memory / 1000, tasks_a_second, shares]))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
