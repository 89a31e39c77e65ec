"""The workloads: what is measured of each library, with two workers.

The rates of the libraries differ by a factor of a thousand. So a measurement of a rate is repeated with more tasks
until it takes long enough. Only the last repetition counts; the others warm up.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench.peers import functions
from bench.peers.peer import Peer
from bench.peers.processes import memory

WORKERS = 2

BEGAN_VARIABLE = "BENCH_BEGAN"
"""The environment variable with the monotonic time at which this process was started."""

QUICK = "BENCH_QUICK" in os.environ
"""Whether the figures may be wrong: a test checks only that all parts work together."""

LONG_S = 0.01 if QUICK else 1.0
"""A measurement of a rate takes at least this time, in seconds, unless it has the most tasks."""

MOST = 10_000_000
"""The largest number of tasks in the measurement of a rate."""

MOST_QUEUED = 1_000_000
"""The largest number of tasks that are queued."""

ROUND_TRIPS = 500

ELEMENTS = 1 << 17
"""How many elements an array of 1 MB has."""

SHARED_ELEMENTS = 12_500_000
"""How many elements an array of 100 MB has."""

SHARED_TASKS = 200
SHARED_TASKS_SENT = 20
"""If a library sends the large array with each task, this many tasks are measured, and the others cost the same."""

LENGTHS_S = (0.1, 0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5)
"""The lengths of busy tasks."""

DECADES = 3
"""The number of decades over which the lengths of mixed tasks are spread."""

POINT_S = 0.5
"""The time that one measurement of an efficiency takes, in seconds."""

LOWEST = 0.3
"""Below this efficiency, no shorter tasks are measured."""

QUEUING_S = 5.0
"""The longest time for which tasks are queued, in seconds."""

SETTLE_S = 1.0
"""How long the memory may change after the last submission, in seconds."""


Figures = Iterator[Sequence[float]]
"""What a workload yields once, before it ends the workers: a number for each of its figures."""


class Figure(NamedTuple):
    """What one row of the table shows."""

    title: str
    unit: str
    more_is_better: bool


class Workload(NamedTuple):
    """A workload, and the figures that it gives."""

    measure: Callable[[Peer], Figures]
    figures: tuple[Figure, ...]


@contextmanager
def started(peer: Peer, workers: int = WORKERS) -> Iterator[None]:
    """Start the workers, and yield when they have run tasks. A measurement in which a worker died does not count."""
    peer.start(workers)
    assert sum(peer.submit_each(functions.nothing, range(100))) == 4950
    before = peer.processes()
    yield
    assert peer.processes() == before, "a worker died during the measurement"
    peer.stop()


def seconds_of(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def rate(run: Callable[[int], Iterable[int]]) -> float:
    """Return the tasks per second of `run(count)`, which returns the values of `count` no-ops."""
    count = 500
    while True:
        began = time.perf_counter()
        total = sum(run(count))
        seconds = time.perf_counter() - began
        assert total == count * (count - 1) // 2
        if seconds >= LONG_S or count >= MOST:
            return count / seconds
        count = min(MOST, count * 4)


def singly(peer: Peer) -> Figures:
    """Submit no-ops with a call for each."""
    with started(peer):
        yield [rate(lambda count: peer.submit_each(functions.nothing, range(count)))]


def map_no_ops(peer: Peer, chunk: int | None, count: int) -> Iterable[int]:
    return peer.map(functions.nothing, range(count), chunk)


def bulk(peer: Peer) -> Figures:
    """Submit no-ops in bulk, with the best chunk."""
    with started(peer):
        yield [max(rate(partial(map_no_ops, peer, chunk)) for chunk in peer.chunks)]


def round_trip(peer: Peer) -> Figures:
    """Submit no-ops one after the other, and wait for each."""
    with started(peer):
        for _ in range(2):  # the first round warms up
            began = time.perf_counter()
            for number in range(ROUND_TRIPS):
                assert peer.result(peer.submit(functions.nothing, number)) == number
            seconds = time.perf_counter() - began
        yield [seconds / ROUND_TRIPS * 1000]


def arrays(peer: Peer) -> Figures:
    """Send arrays to the workers and get them back."""
    import numpy as np

    array = np.zeros(ELEMENTS)

    def transfer(count: int) -> None:
        values = peer.map(functions.same, [array] * count, peer.each)
        assert sum(value.nbytes for value in values) == count * array.nbytes

    with started(peer):
        transfer(50)
        yield [2 * 200 * array.nbytes / 1e6 / seconds_of(lambda: transfer(200))]


def shared_array(peer: Peer) -> Figures:
    """Use one large array in many tasks."""
    import numpy as np

    array = np.ones(SHARED_ELEMENTS)
    tasks = SHARED_TASKS_SENT if peer.sends_each_time else SHARED_TASKS
    with started(peer):
        assert sum(peer.map_shared(functions.sum_of_part, array[:1000], 10)) == 1000
        began = time.perf_counter()
        assert sum(peer.map_shared(functions.sum_of_part, array, tasks)) == SHARED_ELEMENTS
        yield [(time.perf_counter() - began) * SHARED_TASKS / tasks]


def equal(_random: Random, mean_s: float, count: int) -> list[float]:
    return [mean_s] * count


def mixed(random: Random, mean_s: float, count: int) -> list[float]:
    """Lengths whose logarithms are spread evenly over `DECADES`."""
    lengths = [10 ** random.uniform(0, DECADES) for _ in range(count)]
    return [mean_s * count * length / sum(lengths) for length in lengths]


def efficiency(lengths: Callable[[Random, float, int], list[float]]) -> Callable[[Peer], Figures]:
    """Make a workload: how long tasks must be on average for an efficiency of 50 % and of 90 % (METG50, METG90)."""

    def measure(peer: Peer) -> Figures:
        with started(peer):
            reached = dict(efficiencies(peer, lengths))
        yield [shortest(reached, 0.5) * 1e6, shortest(reached, 0.9) * 1e6]

    return measure


def efficiencies(peer: Peer, lengths: Callable[[Random, float, int], list[float]]) -> Iterator[tuple[float, float]]:
    """Yield lengths of tasks, from long to short, with the efficiency that the best chunk reaches."""
    costs_s = dict.fromkeys(peer.chunks, 0.0)
    for mean_s in LENGTHS_S:
        best = 0.0
        for chunk in peer.chunks:
            count = int(POINT_S / max(mean_s / WORKERS, costs_s[chunk]))
            if (chunk or 1) > 1 and count < 4 * WORKERS * chunk:
                continue  # the last chunks would leave workers idle
            items = lengths(Random(7), mean_s, count)
            seconds = seconds_of(lambda: sum(peer.map(functions.busy, items, chunk)))  # noqa: B023
            costs_s[chunk] = seconds / count - mean_s / WORKERS
            best = max(best, sum(items) / WORKERS / seconds)
        yield mean_s, best
        if best < LOWEST:
            return


def shortest(reached: dict[float, float], wanted: float) -> float:
    """Return the shortest length that reaches an efficiency, on a line between the logarithms of two lengths.

    Args:
        reached: the efficiency of each length.
        wanted: the efficiency.

    Returns:
        Infinity if no length reaches it; the shortest measured length if this one does.
    """
    below = math.inf
    for length in sorted(reached):
        if reached[length] >= wanted:
            if below is math.inf:
                return length
            share = (wanted - reached[below]) / (reached[length] - reached[below])
            return below * (length / below) ** share
        below = length
    return math.inf


def queued(peer: Peer) -> Figures:
    """Queue no-ops while all workers are busy, and measure the memory of all processes."""
    with tempfile.TemporaryDirectory() as folder, started(peer):
        handles = [peer.submit(functions.wait_for, f"{folder}/never") for _ in range(WORKERS)]
        time.sleep(SETTLE_S)
        before, count = memory(os.getpid()), 0
        until = time.monotonic() + QUEUING_S
        while count < MOST_QUEUED and time.monotonic() < until:
            for _ in range(1000):
                handle = peer.submit(functions.nothing, count)
                count += 1
                if peer.keeps_handles:
                    handles.append(handle)
        time.sleep(SETTLE_S)
        yield [(memory(os.getpid()) - before) / count]
        os._exit(0)  # the first tasks never end


def launch(peer: Peer) -> Figures:
    """Start a process that starts the workers, and wait for the first value."""
    peer.start(WORKERS)
    assert peer.result(peer.submit(functions.nothing, 7)) == 7
    yield [time.monotonic() - float(os.environ[BEGAN_VARIABLE])]
    peer.stop()


def death(peer: Peer) -> Figures:
    """Let the only worker crash, and wait for the first value of its successor. The script imports NumPy and SciPy."""
    functions.worker()
    with tempfile.TemporaryDirectory() as folder, started(peer, 1):
        died = Path(folder, "died")
        first = peer.result(peer.submit(functions.worker))
        assert peer.result_after_death(functions.die, str(died), functions.worker) != first
        yield [time.monotonic() - float(died.read_text(encoding="ascii"))]


def scale(agents: int, peer: Peer) -> Figures:
    """Connect many agents to one master, let them idle, and give them no-ops."""
    yield peer.scale(agents)


def of_scale(agents: int) -> Workload:
    titles = (
        ("time to connect", "s", False),
        ("idle master", "% of a core", False),
        ("memory of an agent in the master", "kB", False),
        ("no-ops", "tasks/s", True),
        ("most tasks of an agent, divided by the fewest", "ratio", False),
    )
    figures = (Figure(f"{agents:,} agents: {title}", unit, more) for title, unit, more in titles)
    return Workload(partial(scale, agents), tuple(figures))


WORKLOADS = {
    "W1a": Workload(singly, (Figure("no-ops, submitted singly", "tasks/s", True),)),
    "W1b": Workload(bulk, (Figure("no-ops in bulk, best chunk", "tasks/s", True),)),
    "W2": Workload(round_trip, (Figure("round trip of one task", "ms", False),)),
    "W3a": Workload(arrays, (Figure("1 MB arrays there and back", "MB/s", True),)),
    "W3b": Workload(shared_array, (Figure("100 MB array used by 200 tasks", "s", False),)),
    "W4a": Workload(
        efficiency(equal),
        (Figure("METG50, equal lengths", "µs", False), Figure("METG90, equal lengths", "µs", False)),
    ),
    "W4b": Workload(
        efficiency(mixed),
        (Figure("METG50, mixed lengths", "µs", False), Figure("METG90, mixed lengths", "µs", False)),
    ),
    "W5": Workload(queued, (Figure("memory of a queued task", "bytes", False),)),
    "W6a": Workload(launch, (Figure("launch to first result", "s", False),)),
    "W6b": Workload(death, (Figure("death of a worker to its successor's first result", "s", False),)),
    "W7a": of_scale(1000),
    "W7b": of_scale(4000),
}
