"""What one test has in an HTCondor pool: the jobs that it submitted from its folder, and what became of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.batch.systems import PATIENCE_S, until
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
"""How many of the last lines of each file are shown when a test fails."""


class Jobs:
    """The jobs that were submitted from a folder, by the user `submit`."""

    def __init__(self, pool: CondorPool, folder: Path) -> None:
        self.pool = pool
        self.folder = folder
        self._mine = f'Iwd == "{folder}"'

    def submit(self, file: str, **macros: object) -> int:
        """Submit a file of condor/, with macros on the command line; the number of the cluster."""
        words = [f"{name}={value}" for name, value in macros.items()]
        told = self.pool("condor_submit", "-terse", f"condor/{file}", *words, cwd=self.folder).stdout
        return int(told.split(".")[0])

    def do(self, verb: str, *words: object) -> None:
        """A command such as `condor_hold`, about jobs."""
        self.pool(verb, *words, cwd=self.folder)

    def queue(self, cluster: int | None = None) -> list[dict[str, Any]]:
        """The jobs that are in the queue, in their order."""
        constraint = self._mine + (f" && ClusterId == {cluster}" if cluster is not None else "")
        told = self.pool("condor_q", "-json", "-constraint", constraint, "-attributes", ",".join(SHOWN)).stdout
        return sorted(json.loads(told or "[]"), key=lambda job: (job["ClusterId"], job["ProcId"]))

    def exit_codes(self, cluster: int) -> list[int | None]:
        """With what the jobs of a cluster left the queue, in their order; None for one that was removed or killed."""
        told = self.pool("condor_history", cluster, "-json", "-attributes", "ProcId,JobStatus,ExitCode").stdout
        ended = sorted(json.loads(told or "[]"), key=lambda job: int(job["ProcId"]))
        return [job.get("ExitCode") if job["JobStatus"] == COMPLETED else None for job in ended]

    def until(self, come: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for something; `shown_at_failure` is shown if it does not come."""
        until(come, what, patience_s)

    def until_resource_file(self, name: str, generation: str = "") -> dict[str, Any]:
        """Wait until a master at work has written its resource file, which is not that of an older generation."""
        path = self.folder / name

        def written() -> bool:
            return path.exists() and json.loads(path.read_text())["generation"] != generation

        self.until(written, f"a new {name}")
        told: dict[str, Any] = json.loads(path.read_text())
        return told

    def until_gone(self, *clusters: int) -> None:
        """Wait until these jobs, or all, have left the queue."""
        self.until(
            lambda: not [job for job in self.queue() if not clusters or job["ClusterId"] in clusters],
            "no job left in the queue",
        )

    def remove_all(self) -> None:
        """Take all out of the queue."""
        self.pool("condor_rm", "-constraint", self._mine, check=False)
        self.until_gone()

    def until_all(self, cluster: int, true: Callable[[dict[str, Any]], object], what: str) -> None:
        """Wait until a cluster has jobs, and something is true of each."""
        self.until(
            lambda: (queue := self.queue(cluster)) and all(true(job) for job in queue), f"jobs of {cluster} that {what}"
        )

    def text(self, pattern: str) -> str:
        """What is in the files of condor/ that match, in their order."""
        files = sorted((self.folder / "condor").glob(pattern))
        return "".join(path.read_text(errors="replace") for path in files)

    def audit(self, cluster: int) -> list[str]:
        """The audit trail of a master, without the times."""
        return [line.split("[A] ", 1)[1] for line in self.text(f"master.{cluster}.0.audit").splitlines()]

    def count(self, cluster: int, pattern: str) -> int:
        """How many lines of a master's audit trail match."""
        return sum(re.search(pattern, line) is not None for line in self.audit(cluster))

    def shown_at_failure(self) -> str:
        """The queue, and the ends of all files that the jobs have written."""
        queue = "\n".join(str(job) for job in self.queue()) or "empty"
        parts = [f"the queue of {self.folder}:\n{queue}"]
        for path in sorted((self.folder / "condor").iterdir()):
            if path.suffix in (".audit", ".out", ".err", ".log") and path.stat().st_size:
                lines = path.read_text(errors="replace").splitlines()[-LINES:]
                parts.append("\n".join([f"the end of {path.name}:", *lines]))
        return "\n\n".join(parts)
