"""Submits a task that kills its slave or its agent, among harmless tasks, and prints the outcome of each task."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path

import mwpy
from mwpy._transport.channel import Journal

NEIGHBOURS = 20
"""Number of harmless tasks before the task that kills. The same number of tasks follows it."""


@mwpy.task_algorithm
def run(number: int, how: str, log: str) -> int:
    """Append the number to a log file, if there is one. Then kill this process in the given way, or return."""
    if log:
        with Path(log).open("a") as file:
            print(number, file=file)
    if how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "agent":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()  # this process ends with its agent
    elif how == "close":  # as programs do that become daemons; the slave notices it later
        os.closerange(3, 1000)
    elif how == "exit":
        os._exit(3)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how in ("scribble", "overwrite"):  # as faulty native code can do
        [journal] = [each for each in gc.get_objects() if isinstance(each, Journal)]
        if how == "overwrite":  # once, when there is a result to overwrite
            if not journal.count or Path(f"{log}.overwritten").exists():
                return number
            Path(f"{log}.overwritten").touch()
        journal._memory[:] = b"\xff" * len(journal._memory)
        os._exit(3)
    return number


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Wait until all tasks are finished or unrunnable. With a log file, no task may run twice."""
    log = argv[1] if len(argv) > 1 else ""
    after = argv[0] if argv[0] == "overwrite" else ""
    how = [""] * NEIGHBOURS + [argv[0]] + [after] * NEIGHBOURS
    for number, way in enumerate(how):
        mw.submit(run.task(number, way, log), tag=number, retry=not log)
    came: list[int] = []
    unrunnable: list[dict[str, object]] = []
    while len(came) + len(unrunnable) < len(how):
        mw.loop()
        came += [result.value for result in mw.results(unrunnable=False)]
        for task in mw.unrunnable_tasks():
            deaths = [str(death) for death in task.deaths]
            unrunnable.append({"tag": task.tag, "reason": task.reason, "deaths": deaths})
    print(json.dumps({"came": sorted(came), "unrunnable": unrunnable}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
