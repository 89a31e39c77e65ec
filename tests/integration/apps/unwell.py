"""Tasks that fail on the host `bad-host`, and are tried again elsewhere; prints how many ended on each host.

The argument is a folder. Tasks are submitted until it has a file `enough`. Then five tasks run until it has a file
`done`.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path

import mwpy


@mwpy.task_algorithm(retry_errors=OSError, attempts_max=10_000)
def work(number: int) -> tuple[int, str]:
    if socket.gethostname() == "bad-host":
        raise OSError("no disk is left")
    time.sleep(0.01)
    return number, socket.gethostname()


@mwpy.task_algorithm
def wait(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.02)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    folder = Path(argv[0])
    items: Iterator[int] = takewhile(lambda number: not (folder / "enough").exists(), count())
    numbers, hosts = zip(*mw.map(work, items), strict=True)
    assert numbers == tuple(range(len(numbers)))
    print(json.dumps(Counter(hosts)), flush=True)
    list(mw.map(wait, [str(folder / "done")] * 5))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
