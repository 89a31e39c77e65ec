"""How many runs of a program a second: `mwpy sweep`, GNU parallel and HyperQueue in turns, with two at a time.

    .venv/bin/python -m bench.programs --runs 10000 --rounds 3

GNU parallel is left out if it is not installed. HyperQueue is used through its Python package, in the environment of
`--hyperqueue PYTHON`. Its cluster runs in one process.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HYPERQUEUE = """
import sys, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=2))
    client, job = cluster.client(), Job()
    for number in range(int(sys.argv[1])):
        job.program(["true", str(number)], stdout=None, stderr=None)
    began = time.monotonic()
    client.wait_for_jobs([client.submit(job)])
    print(time.monotonic() - began)
"""
"""It measures only the runs: to make the job and to start the cluster takes long."""


def mwpy(runs: int, folder: Path) -> float:
    """Return how many seconds the runs take, with start and end."""
    command = [sys.executable, "-m", "mwpy", "sweep", "true {}", "--slaves", "2", "::::", str(values(runs, folder))]
    return measured(command, folder)


def parallel(runs: int, folder: Path) -> float:
    """Return how many seconds the runs take, with start and end."""
    return measured(["parallel", "--will-cite", "-j2", "-a", str(values(runs, folder)), "true", "{}"], folder)


def values(runs: int, folder: Path) -> Path:
    """Write the values of the runs, one in a line."""
    path = folder / "values"
    path.write_text("".join(f"{number}\n" for number in range(runs)))
    return path


def measured(command: list[str], folder: Path) -> float:
    """Run a command, and return how many seconds it takes."""
    began = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.monotonic() - began


def hyperqueue(python: str, runs: int, folder: Path) -> float:
    """Return how many seconds the runs take."""
    done = subprocess.run([python, "-c", HYPERQUEUE, str(runs)], cwd=folder, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hyperqueue", metavar="PYTHON", help="the Python that has the package hyperqueue")
    parsed = parser.parse_args()
    measures = {"mwpy sweep": mwpy}
    if shutil.which("parallel"):
        measures["GNU parallel"] = parallel
    if parsed.hyperqueue:
        measures["HyperQueue"] = lambda runs, folder: hyperqueue(parsed.hyperqueue, runs, folder)
    rates: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(parsed.rounds):
        for name, measure in measures.items():
            with tempfile.TemporaryDirectory() as folder:
                rates[name].append(parsed.runs / measure(parsed.runs, Path(folder)))
    ours = statistics.median(rates["mwpy sweep"])
    for name, found in rates.items():
        middle = statistics.median(found)
        spread = f"{min(found):.0f} to {max(found):.0f}"
        print(f"{name:14} {middle:7.0f} runs a second ({spread}); mwpy has {ours / middle:.2f} times this rate")


if __name__ == "__main__":
    main()
