"""Runs one task that is over a limit, among harmless tasks, and prints the outcome of each task."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import mwpy

LARGE_BYTES = 300 << 20
"""What a task allocates that needs much memory."""

NEIGHBOURS = 20
"""Number of harmless tasks before the task that is over a limit. The same number of tasks follows it."""


def hold(size: int) -> None:
    """Use memory until this process is killed."""
    kept = b"x" * size
    while kept:
        signal.pause()


@mwpy.task_algorithm
def run(number: int, how: str, log: str) -> int:
    """Append the number to a log file. Then go over a limit in the given way, or return."""
    with Path(log).open("a") as file:
        print(number, file=file)
    if how == "time":  # in C code, with children, and deaf to signals
        ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        subprocess.Popen([sys.executable, "-c", ignore])
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pause()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.PyDLL(None).sleep(1000)  # holds the interpreter
    elif how == "memory":
        hold(LARGE_BYTES)
    while how == "child":
        if (child := os.fork()) == 0:
            hold(LARGE_BYTES)
        os.waitpid(child, 0)
    return number


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Wait until all tasks are finished or unrunnable. Arguments: the way, the log file, and policies in JSON."""
    how, log, policies = argv
    ways = [""] * NEIGHBOURS + [how] + [""] * NEIGHBOURS
    for number, way in enumerate(ways):
        mw.submit(run.task(number, way, log), tag=number, **(json.loads(policies) if way else {"retry": False}))
    came: list[int] = []
    unrunnable: list[dict[str, object]] = []
    while len(came) + len(unrunnable) < len(ways):
        mw.loop()
        came += [result.value for result in mw.results(unrunnable=False)]
        for task in mw.unrunnable_tasks():
            deaths = [{"cause": death.cause.name, "text": str(death)} for death in task.deaths]
            unrunnable.append({"tag": task.tag, "reason": task.reason, "deaths": deaths})
    print(json.dumps({"came": sorted(came), "unrunnable": unrunnable}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
