"""Where the processor time of a task goes: in which process, and in which thread of the master.

    python -m bench.costs
    python -m bench.costs singly idle

The tasks are those of `bench/peers/workloads.py`, with two slaves. A first run warms up. To see in which functions the
time goes, sample all processes meanwhile, for example with py-spy:

    py-spy record --subprocesses --threads --format raw --output samples.txt -- python -m bench.costs singly
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import functions
from bench.peers.libraries.mwpy_local_master import MwpyLocalMaster
from bench.peers.processes import descendants
from bench.peers.workloads import ELEMENTS, QUICK, SHARED_ELEMENTS, WORKERS

import mwpy

RUNS = 3

IDLE_S = 0.1 if QUICK else 60.0
IDLE_SLAVES = WORKERS if QUICK else 64

TEMPLATE = "mwpy-template"
"""The name that a template has for the operating system."""


class Workload(NamedTuple):
    """A workload: how many tasks it has, and a function that runs a number of them and returns their values."""

    count: int
    run: Callable[[MwpyLocalMaster, int], Iterable[Any]]
    slaves: int = WORKERS


def round_trips(peer: MwpyLocalMaster, count: int) -> Iterable[Any]:
    return (peer.result(peer.submit(functions.nothing, number)) for number in range(count))


def arrays(peer: MwpyLocalMaster, count: int) -> Iterable[Any]:
    import numpy as np

    return peer.map(functions.same, [np.zeros(ELEMENTS)] * count, None)


def shared_array(peer: MwpyLocalMaster, count: int) -> Iterable[Any]:
    import numpy as np

    return peer.map_shared(functions.sum_of_part, np.ones(SHARED_ELEMENTS), count)


def references(peer: MwpyLocalMaster, count: int) -> Iterable[Any]:
    made = [peer.submit(functions.nothing, number) for number in range(count)]
    later = [peer.submit(functions.nothing, mwpy.result(task)) for task in made]
    ended = 0
    while ended < 2 * count:
        peer.mw.loop()
        ended += len(peer.mw.results())
    return later


def idle(peer: MwpyLocalMaster, count: int) -> Iterable[Any]:
    peer.mw.loop(IDLE_S)
    return range(count)


WORKLOADS = {
    "singly": Workload(200_000, lambda peer, count: peer.submit_each(functions.nothing, range(count))),
    "bulk": Workload(2_000_000, lambda peer, count: peer.map(functions.nothing, range(count), None)),
    "unordered": Workload(2_000_000, lambda peer, count: peer.mw.imap_unordered(functions.nothing, range(count))),
    "references": Workload(8000, references),
    "round_trips": Workload(1000, round_trips),
    "arrays": Workload(400, arrays),
    "shared_array": Workload(200, shared_array),
    "idle": Workload(1, idle, IDLE_SLAVES),
}


def threads() -> dict[Path, str]:
    """Return the files that say how long each thread has used a processor, and to which part of mwpy it belongs. All
    slaves together are one part."""
    found: dict[Path, str] = {}
    master = os.getpid()
    for process in (master, *descendants(master)):
        for thread in Path(f"/proc/{process}/task").glob("*"):
            if process == master:
                part = "algorithm" if thread.name == str(master) else "I/O"
            elif _parent_of(process) == master:
                part = "agent"
            else:
                is_template = (thread / "comm").read_text(encoding="utf-8").strip() == TEMPLATE
                part = "template" if is_template else "slaves"
            found[thread / "schedstat"] = part
    return found


def _parent_of(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.partition("PPid:")[2].split()[0])


def used(files: dict[Path, str]) -> Counter[str]:
    """Return how many seconds each part has used a processor."""
    seconds: Counter[str] = Counter()
    for file, part in files.items():
        seconds[part] += int(file.read_text(encoding="ascii").split()[0]) / 1e9
    return seconds


def measure(workload: Workload) -> Iterable[str]:
    """Yield a line for each run: how long a task took, and how much processor time it used, in microseconds."""
    count = max(1, workload.count // 1000) if QUICK else workload.count
    peer = MwpyLocalMaster()
    peer.start(workload.slaves)
    peer.processes()  # waits until there are all slaves
    assert len([*workload.run(peer, max(1, count // 10))]) == max(1, count // 10)
    files = threads()
    for _ in range(RUNS):
        before, began = used(files), time.perf_counter()
        assert len([*workload.run(peer, count)]) == count
        took = time.perf_counter() - began
        costs = used(files) - before
        parts = ", ".join(f"{part} {seconds / count * 1e6:.2f}" for part, seconds in sorted(costs.items()))
        yield f"{took / count * 1e6:.2f} µs; processor time {costs.total() / count * 1e6:.2f} µs: {parts}"
    peer.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.costs")
    parser.add_argument("workloads", nargs="*", help=f"some of {', '.join(WORKLOADS)} (default: all)")
    chosen = parser.parse_args().workloads or [*WORKLOADS]
    if unknown := {*chosen} - {*WORKLOADS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    for name in chosen:
        for line in measure(WORKLOADS[name]):
            print(f"{name}: a task took {line}", flush=True)


if __name__ == "__main__":
    main()
