"""What the run database costs: print a table of ratios, with the database to without one.

Each measurement is a fresh process with two slaves. Those with and without a database alternate, and a ratio compares
only the two of a pair, because the speed of many machines varies by half within minutes. The processor time of all
processes is compared, too: other programs on the machine hardly change it.

    python -m bench.run_database --pairs 20 --only singly,short

The last two parts have no pairs: a second master gets the results of a million tasks from the file, and ten million
items pass through `mw.map`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import mwpy

SINGLE_TASKS = 300_000
SHORT_TASKS = 800
SHORT_S = 0.01
ITEMS = 4_000_000
MATCHED = 1_000_000
MANY_ITEMS = 10_000_000

Figures = dict[str, float]


def nothing(number: int) -> int:
    return number


def work(_number: int) -> None:
    """Use a processor for 10 ms."""
    until = time.process_time() + SHORT_S
    while time.process_time() < until:
        pass


def resident() -> int:
    """Return how much memory this process uses, in bytes."""
    statm = Path("/proc/self/statm").read_text(encoding="ascii")
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def submit(mw: mwpy.Master, function: Callable[[int], object], count: int, target: int) -> None:
    """Submit tasks one by one, and fetch their results."""
    mw.set_target_number(target)
    submitted = finished = 0
    while finished < count:
        for _ in range(min(count - submitted, mw.upto_target_number())):
            mw.submit(mwpy.task(function, submitted), tag=submitted)
            submitted += 1
        mw.loop()
        values = [result.value for result in mw.results()]
        finished += len(values)


def singly(mw: mwpy.Master) -> Figures:
    submit(mw, nothing, SINGLE_TASKS, 10_000)
    return {}


def short(mw: mwpy.Master) -> Figures:
    submit(mw, work, SHORT_TASKS, 100)
    return {}


def bulk(mw: mwpy.Master) -> Figures:
    assert sum(1 for _ in mw.map(nothing, range(ITEMS))) == ITEMS
    return {}


def matched(mw: mwpy.Master) -> Figures:
    submit(mw, nothing, MATCHED, 10_000)
    return {}


def many(mw: mwpy.Master) -> Figures:
    """Return the memory at the end of the first and of the last million, in MB."""
    memory = []
    for number, _ in enumerate(mw.imap_unordered(nothing, range(MANY_ITEMS)), 1):
        if number % 1_000_000 == 0:
            memory.append(resident() / 1e6)
    return {"first": memory[0], "last": memory[-1]}


WORKLOADS: dict[str, tuple[Callable[[mwpy.Master], Figures], int]] = {
    "singly": (singly, SINGLE_TASKS),
    "short": (short, SHORT_TASKS),
    "bulk": (bulk, ITEMS),
    "matched": (matched, MATCHED),
    "many": (many, MANY_ITEMS),
}
"""What is measured, and the number of its tasks."""


def processor_time() -> float:
    """Return the processor time of this process and of its children that have ended, in seconds."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def measure(name: str, database: str | None) -> Figures:
    """Measure in this process. Its own start does not count, but reading what the database has does."""
    began, used = time.perf_counter(), processor_time()
    with mwpy.local_master(slaves=2, run_database=database) as mw:
        opened = time.perf_counter() - began
        if name != "matched":
            assert len([*mw.map(abs, range(1000))]) == 1000  # wait until the slaves run
            opened, used = 0.0, processor_time()
        began = time.perf_counter()
        figures = WORKLOADS[name][0](mw)
        figures["seconds"] = opened + time.perf_counter() - began
    figures["processor_s"] = processor_time() - used
    return figures


def in_fresh_process(name: str, database: Path | None) -> Figures:
    arguments = [] if database is None else ["--database", str(database)]
    command = [sys.executable, "-m", "bench.run_database", "--measure", name, *arguments]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(run.stdout)
    return figures


def compare(name: str, pairs: int, folder: Path) -> None:
    """Measure pairs, and print the medians and ranges of their ratios."""
    ratios, processor, rates = list[float](), list[float](), list[float]()
    for number in range(pairs):
        database = folder / f"{name}-{number}.db"
        order = [None, database] if number % 2 else [database, None]
        found = {each: in_fresh_process(name, each) for each in order}
        ratios.append(found[database]["seconds"] / found[None]["seconds"])
        processor.append(found[database]["processor_s"] / found[None]["processor_s"])
        rates.append(WORKLOADS[name][1] / found[database]["seconds"])
        for path in folder.iterdir():
            path.unlink()
    print(f"{name}: time {spread(ratios)}, processor time {spread(processor)}, {spread(rates, ',.0f')} tasks/s")


def spread(figures: list[float], form: str = ".3f") -> str:
    low, middle, high = (format(figure, form) for figure in (min(figures), median(figures), max(figures)))
    return f"{middle} ({low} to {high})"


def match_again(folder: Path) -> None:
    database = folder / "matched.db"
    first, again = (in_fresh_process("matched", database) for _ in range(2))
    print(f"matched: {MATCHED:,} tasks in {first['seconds']:.1f} s, matched again in {again['seconds']:.1f} s")


def pass_many(folder: Path) -> None:
    for text, database in ("without", None), ("with", folder / "many.db"):
        found = in_fresh_process("many", database)
        growth = f"{found['first']:.1f} MB after the first million, {found['last']:.1f} MB after the last"
        print(f"many: {text} a database {MANY_ITEMS / found['seconds']:,.0f} items/s, {growth}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="what is measured, separated by commas")
    parser.add_argument("--folder", help="where the databases are made")
    parser.add_argument("--measure", choices=WORKLOADS, help=argparse.SUPPRESS)
    parser.add_argument("--database", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.database)))
        return
    for name in given.only.split(","):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            match name:
                case "matched":
                    match_again(Path(folder))
                case "many":
                    pass_many(Path(folder))
                case _:
                    compare(name, given.pairs, Path(folder))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
