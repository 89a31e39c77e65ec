"""The jobs that one test has submitted to an HTCondor pool from its folder, and how they ended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.batch.systems import until
from tests.systems.condor import CondorPool

IDLE, RUNNING, REMOVED, COMPLETED, HELD = 1, 2, 3, 4, 5
"""HTCondor's numbers for the states of a job."""

SHOWN = (
    "ClusterId",
    "ProcId",
    "JobStatus",
    "NumJobStarts",
    "NumJobCompletions",
    "ExitCode",
    "HoldReason",
    "RemoteHost",
)

LINES = 60
"""Number of lines at the end of each file that a failing test shows."""


class Jobs:
    """The jobs that the user `submit` has submitted from a folder."""

    def __init__(self, pool: CondorPool, folder: Path) -> None:
        self.pool = pool
        self.folder = folder
        self._mine = f'Iwd == "{folder}"'

    def submit(self, file: str, **macros: object) -> int:
        """Submit a file of condor/, with macros on the command line. Return the number of the cluster."""
        words = [f"{name}={value}" for name, value in macros.items()]
        report = self.pool("condor_submit", "-terse", f"condor/{file}", *words, cwd=self.folder).stdout
        return int(report.split(".")[0])

    def do(self, verb: str, *words: object) -> None:
        """Run a command such as `condor_hold` on jobs."""
        self.pool(verb, *words, cwd=self.folder)

    def queue(self, cluster: int | None = None) -> list[dict[str, Any]]:
        """Return the jobs that are in the queue, in their order."""
        constraint = self._mine + (f" && ClusterId == {cluster}" if cluster is not None else "")
        report = self.pool("condor_q", "-json", "-constraint", constraint, "-attributes", ",".join(SHOWN)).stdout
        return sorted(json.loads(report or "[]"), key=lambda job: (job["ClusterId"], job["ProcId"]))

    def exit_codes(self, cluster: int) -> list[int | None]:
        """Return the exit code of each ended job of a cluster, in their order; None for a removed or killed job."""
        report = self.pool("condor_history", cluster, "-json", "-attributes", "ProcId,JobStatus,ExitCode").stdout
        ended = sorted(json.loads(report or "[]"), key=lambda job: int(job["ProcId"]))
        return [job.get("ExitCode") if job["JobStatus"] == COMPLETED else None for job in ended]

    def until_resource_file(self, name: str, generation: str = "") -> dict[str, Any]:
        """Wait until a master has written its resource file. A file with the given generation is too old."""
        path = self.folder / name

        def written() -> bool:
            return path.exists() and json.loads(path.read_text())["generation"] != generation

        until(written, f"a new {name}")
        report: dict[str, Any] = json.loads(path.read_text())
        return report

    def until_gone(self, *clusters: int) -> None:
        """Wait until these clusters, or all jobs, have left the queue."""
        until(
            lambda: not [job for job in self.queue() if not clusters or job["ClusterId"] in clusters],
            "no job left in the queue",
        )

    def remove_all(self) -> None:
        """Remove all jobs from the queue."""
        self.pool("condor_rm", "-constraint", self._mine, check=False)
        self.until_gone()

    def until_all(self, cluster: int, true: Callable[[dict[str, Any]], object], what: str) -> None:
        """Wait until a cluster has jobs and a condition is true for each of them."""
        until(
            lambda: (queue := self.queue(cluster)) and all(true(job) for job in queue), f"jobs of {cluster} that {what}"
        )

    def text(self, pattern: str) -> str:
        """Return the contents of all files in condor/ that match a pattern."""
        files = sorted((self.folder / "condor").glob(pattern))
        return "".join(path.read_text(errors="replace") for path in files)

    def audit(self, cluster: int) -> list[str]:
        """Return the audit trail of a master, without the times."""
        return [line.split("[A] ", 1)[1] for line in self.text(f"master.{cluster}.0.audit").splitlines()]

    def count(self, cluster: int, pattern: str) -> int:
        """Count the lines of a master's audit trail that match a pattern."""
        return sum(re.search(pattern, line) is not None for line in self.audit(cluster))

    def shown_at_failure(self) -> str:
        """Return the queue, and the ends of all files that the jobs have written."""
        queue = "\n".join(str(job) for job in self.queue()) or "empty"
        parts = [f"the queue of {self.folder}:\n{queue}"]
        for path in sorted((self.folder / "condor").iterdir()):
            if path.suffix in (".audit", ".out", ".err", ".log") and path.stat().st_size:
                lines = path.read_text(errors="replace").splitlines()[-LINES:]
                parts.append("\n".join([f"the end of {path.name}:", *lines]))
        return "\n\n".join(parts)
