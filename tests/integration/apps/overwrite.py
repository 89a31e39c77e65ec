"""A task overwrites the memory that its slave shares with its agent, once; other tasks run before and after it."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path

import mwpy

COUNT = 200
ONCE = Path("overwritten")
FED = 128
"""Where the second and third number of the memory are; the journal follows. See `_transport/channel.py`."""


def overwrite(how: str) -> None:
    """Overwrite all of the memory, or a part of it."""
    maps = Path("/proc/self/maps").read_text()
    [(begin, end)] = re.findall(r"^(\w+)-(\w+) .*memfd:mwpy-slave", maps, re.MULTILINE)
    start, size = int(begin, 16), int(end, 16) - int(begin, 16)
    match how:
        case "ones":
            ctypes.memset(start, 255, size)
        case "rows":
            ctypes.memset(start + FED + 128, 0, size - FED - 128)


@mwpy.task_algorithm
def number(value: int, how: str) -> int:
    """Return the number; the task in the middle first overwrites the memory."""
    if value == COUNT // 2 and not ONCE.exists():
        ONCE.touch()
        overwrite(how)
    return value


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Print the values and the errors of all tasks."""
    for value in range(COUNT):
        mw.submit(number.task(value, argv[-1]))
    results: list[mwpy.Result[int]] = []
    while len(results) < COUNT:
        mw.loop()
        results += mw.results()
    values = sorted(result.value for result in results if not result.error)
    errors = [str(result.error) for result in results if result.error]
    print(json.dumps({"values": values, "errors": errors}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
