"""Rounds of measurements: each in a fresh process, and the libraries one after the other within each workload."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.peers.libraries import LIBRARIES
from bench.peers.measure import MARK
from bench.peers.peer import Cannot
from bench.peers.processes import adopt_orphans, end_descendants
from bench.peers.workloads import BEGAN_VARIABLE

ROOT = Path(__file__).parent.parent.parent

LIMIT_S = 150.0
"""The longest time of one measurement, in seconds."""

ONE_THREAD = (
    "BLIS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""These variables limit the threads of the libraries for linear algebra, which would take the cores of the workers."""

ENVIRONMENT = {
    **dict.fromkeys(ONE_THREAD, "1"),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # Parsl starts programs by their names
    "PYTHONDONTWRITEBYTECODE": "",  # else each process would compile mwpy, but not what pip has installed and compiled
    "PYTHONPATH": str(ROOT),  # so that all workers can import the functions of the tasks
    "RAY_USAGE_STATS_ENABLED": "0",
}

Measurement = dict[str, object]
"""Its `workload`, `library` and `round`, and either `figures` or the `reason` why there are none."""


def machine() -> dict[str, object]:
    """Describe this machine and the versions of the libraries."""
    versions = {}
    for name, library in LIBRARIES.items():
        with suppress(Cannot):
            versions[name] = library.version()
    return {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "versions": versions}


def run(workloads: Sequence[str], libraries: Sequence[str], rounds: int) -> Iterator[Measurement]:
    """Measure, and yield each measurement. Each round begins with another library."""
    adopt_orphans()
    for number in range(rounds):
        turn = number % len(libraries)
        for workload in workloads:
            for library in (*libraries[turn:], *libraries[:turn]):
                yield {"workload": workload, "library": library, "round": number} | measure(library, workload)


def measure(library: str, workload: str) -> Mapping[str, object]:
    """Measure in a fresh process."""
    try:
        LIBRARIES[library].version()
    except Cannot as reason:
        return {"reason": str(reason)}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.measure", library, workload],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, BEGAN_VARIABLE: str(time.monotonic())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
        try:
            code = process.wait(LIMIT_S)
            reason = f"it ended with exit code {code}"
        except subprocess.TimeoutExpired:
            process.kill()
            reason = f"it had not ended after {LIMIT_S:.0f} s"
        end_descendants()
        output.seek(0)
        errors.seek(0)
        printed = [line for line in output if line.startswith(MARK)]
        if printed:
            return dict(json.loads(printed[-1].removeprefix(MARK)))
        return {"reason": ". ".join([reason, *list(errors)[-1:]]).strip()}
