"""Submits one task that writes output and then ends its slave in the given way. Prints what the master receives."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import mwpy

LINE = "x" * 99 + "\n"


@mwpy.task_algorithm
def run(how: str) -> int:
    """Write to both streams. Then end this process in the given way, or return."""
    print("the task's last line")
    print("a complaint", file=sys.stderr)
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "closed":
        os.close(1)
        os.close(2)
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "flood":
        for _ in range(1_000_000):
            sys.stdout.write(LINE)
        print("after the flood")
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "memory":
        held = bytearray(300 << 20)
        held[::4096] = b"x" * len(held[::4096])
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "hog":
        held = bytearray(1 << 30)
        held[::4096] = b"x" * len(held[::4096])
    elif how == "limited":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        bytearray(2 << 30)
    elif how == "grandchild":
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        os._exit(4)
    elif how == "linger":
        Path("lingers").touch()
        signal.pause()
    return 0


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Wait for the task, or for a task that `mw.map` submits."""
    if argv[1:] == ["map"]:
        [result] = mw.map_results(run, argv[:1], retry=False)
        deaths = [str(death) for death in result.error.deaths] if result.error else []
        print(json.dumps({"text": str(result.error), "deaths": deaths}))
        return 0
    mw.submit(run.task(argv[0]), retry="retry" in argv)
    mw.loop()
    report: dict[str, object] = {"error": [str(result.error) for result in mw.results(unrunnable=False)]}
    for task in mw.unrunnable_tasks():
        words = task.deaths[0].words if task.deaths else None
        report |= {"reason": task.reason, "text": str(task)}
        if words is not None:
            report |= {"stdout": words.stdout, "stderr": words.stderr, "fault": words.fault, "peak": words.peak_bytes}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
