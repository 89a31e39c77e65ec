"""Runs the same number of tasks in each of several stages. A test opens each stage, and can count what is done twice.

    stages.py STAGES TASKS FOLDER

The tasks of stage N wait until a file `open.N` exists in the folder. The file `diary` records each execution of a task
(`ran NUMBER`), each start of the master (`life`), and each result that it gets (`got NUMBER`). At its end, the master
prints as JSON the sum of the results and the tasks that were unrunnable.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import mwpy

LOOK_S = 0.05

SHORT_S = 0.01
"""How long a task takes when its stage is open."""


def write(folder: str, line: str) -> None:
    """Append a line to the diary. Several processes may do so at the same time."""
    file = os.open(f"{folder}/diary", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@mwpy.task_algorithm
def square(folder: str, stage: int, number: int) -> int:
    while not Path(folder, f"open.{stage}").exists():
        time.sleep(LOOK_S)
    time.sleep(SHORT_S)
    write(folder, f"ran {number}")
    return number * number


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    stages, tasks, folder = int(argv[0]), int(argv[1]), argv[2]
    write(folder, "life")
    for number in range(stages * tasks):
        mw.submit(square.task(folder, number // tasks, number), tag=number)
    came: dict[int, int] = {}
    unrunnable: list[str] = []
    while len(came) + len(unrunnable) < stages * tasks:
        mw.loop()
        for result in mw.results(unrunnable=False):
            assert result.tag not in came, f"a second result of {result.tag}"
            came[result.tag] = result.value
            write(folder, f"got {result.tag}")
        unrunnable += [str(task) for task in mw.unrunnable_tasks()]
    print(json.dumps({"sum": sum(came.values()), "unrunnable": unrunnable}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
