"""Sends arrays there and back; some slaves are killed meanwhile. Prints how the arrays travelled, and what stayed open.

The arguments are the number of tasks, and after how many tasks a slave is killed; 0 kills none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np

import mwpy

ITEMS = 20_000
"""160 kB."""


def is_mapped(array: np.ndarray) -> bool:
    """Whether the memory of an array was received through a file."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner, memoryview) and hasattr(owner.obj, "file")


def files_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@mwpy.task_algorithm
def overwrite(array: np.ndarray, number: int, kills: bool) -> tuple[np.ndarray, bool, int]:
    """Return an array, whether the argument was mapped, and the agent; first overwrite the argument.

    If the slave must be killed, this happens once for each number, shortly before or while the result is sent.
    """
    if kills and not Path(f"killed-{number}").exists():
        Path(f"killed-{number}").touch()
        threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGKILL)).start()
    assert (array == number).all(), "another task has written into this argument"
    array += 1.0
    return array, is_mapped(array), os.getppid()


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    tasks, every = map(int, argv)
    sent = mapped = returned = 0
    files: list[int] = []
    source = np.empty(ITEMS)

    def submit(number: int) -> None:
        source[:] = number
        mw.submit(overwrite.task(source, number, bool(every) and not number % every), tag=number)

    while returned < tasks:
        while sent < tasks and sent - returned < 8:
            submit(sent)
            sent += 1
        mw.loop()
        for result in mw.results():
            array, was_mapped, agent = result.value
            assert array.flags.writeable
            assert (array == result.tag + 1).all(), "the result of another task"
            mapped += was_mapped + is_mapped(array)
            returned += 1
            del array, result
        if returned >= tasks // 4:
            files.append(files_of(os.getpid()) + files_of(agent))
    shared_memory = sorted(path.name for path in Path("/dev/shm").iterdir())
    growth = max(files[len(files) // 2 :]) - max(files[: len(files) // 2])
    print(json.dumps({"mapped": mapped, "growth": growth, "left": shared_memory}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
