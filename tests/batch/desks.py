"""The folder of a user with a master and its overseers, in each real batch system.

Master and overseer run as a user without privileges; with ssh, the overseer runs as root, who has the key.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tests.batch.systems import PATIENCE_S, until
from tests.systems.ssh import SshNode
from tests.systems.system import ROOT, System

PATIENT_S = 8
"""For less than this time, a resource file may show a busy job as idle."""


class Run:
    """A process in the pool, and its output so far."""

    def __init__(self, process: subprocess.Popen[bytes], written: Path) -> None:
        self._process = process
        self._written = written

    @property
    def out(self) -> str:
        return self._written.read_text(errors="replace")

    def end(self) -> int:
        return self._process.wait(PATIENCE_S)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def says(self, words: str) -> None:
        until(lambda: words in self.out, lambda: f"{words!r} in\n{self.out}")


class Desk(ABC):
    """A folder in a batch system with a master that follows orders, and its overseers."""

    system: str
    options: tuple[object, ...] = ()
    """The options of its overseers, and of the doctor."""
    user = "submit"
    """This user starts them."""

    def __init__(self, pool: System, folder: Path) -> None:
        self.pool = pool
        self.folder = folder
        self.resource = folder / "waves.rsc"
        self._runs: list[Run] = []
        shutil.copy(ROOT / "tests" / "integration" / "apps" / "waves.py", folder)

    def start(self, *words: object, user: str = "submit") -> Run:
        written = self.folder / f"{len(self._runs)}.written"
        with written.open("wb") as file:
            process = subprocess.Popen(
                self.pool.command(*words, user=user, folder=self.folder),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._runs.append(Run(process, written))
        return self._runs[-1]

    def master(self, app: str = "waves.py") -> Run:
        words = ("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-resource-file", self.resource)
        run = self.start(self.folder / ".venv/bin/python", app, *words, self.folder)
        until(self.resource.exists, lambda: f"a resource file\n{run.out}")
        return run

    def kill_master(self) -> None:
        """Kill the master. Its process id is in the generation."""
        os.kill(int(self.report()["generation"].split("-")[1]), signal.SIGKILL)

    def mwpy(self, *words: object) -> Run:
        return self.start(self.folder / ".venv/bin/mwpy", *words, user=self.user)

    def oversee(self, *words: object) -> Run:
        return self.mwpy("oversee", self.resource, "--with", self.system, "--interval", 0.5, *self.options, *words)

    def once(self, *words: object) -> str:
        run = self.oversee("--once", *words)
        assert run.end() == 0, run.out
        return run.out

    def order(self, line: str) -> None:
        with (self.folder / "orders").open("a") as file:
            file.write(f"{line}\n")

    def need(self, slaves: int) -> None:
        """Submit this many tasks that never end, and wait until the resource file asks for slaves."""
        self.need_until("never", slaves)

    def need_until(self, name: str, slaves: int) -> None:
        """Submit this many tasks that end when a file exists, and wait until the resource file asks for all slaves."""
        self.order(f"tasks {slaves} {name}")
        until(lambda: self.report()["slaves-needed"] == slaves, f"a need of {slaves}")

    def report(self) -> Any:
        return json.loads(self.resource.read_text())

    def until_jobs(self, count: int) -> dict[str, int]:
        """Wait until this many jobs are connected and all are busy. Return them."""
        jobs: dict[str, int] = {}

        def come() -> bool:
            jobs.clear()
            jobs.update(self.report()["connected-jobs"])
            return list(jobs.values()) == [1] * count

        until(come, lambda: f"{count} jobs at work, not {jobs}, but\n{self._runs[-1].out}")
        return jobs

    @abstractmethod
    def queue(self) -> list[dict[str, str]]:
        """Return the jobs of this test: `id`, `name`, `cpus`, `account`, `queue`, and more."""

    def until_empty(self) -> None:
        until(lambda: self.queue() == [], lambda: f"no job left, but {self.queue()}")

    def end(self) -> None:
        """Kill all processes."""
        for run in self._runs:
            run.send(signal.SIGKILL)
            run.end()


class CondorDesk(Desk):
    system = "htcondor"
    options = ("--memory", "200MB", "--disk", "20MB")

    def queue(self) -> list[dict[str, str]]:
        names = {"id": "ClusterId", "name": "JobBatchName", "cpus": "RequestCpus", "account": "AcctGroup"}
        names |= {"state": "JobStatus", "starts": "NumJobStarts", "mark": "MwpyMark", "why": "LastRejMatchReason"}
        words = ("-json", "-attributes", ",".join(names.values()), "-constraint", f'Iwd == "{self.folder}"')
        found = json.loads(self.pool("condor_q", *words).stdout or "[]")
        return [{name: str(ad.get(shown, "")) for name, shown in names.items()} for ad in found]


class SlurmDesk(Desk):
    system = "slurm"

    def queue(self) -> list[dict[str, str]]:
        names = ("id", "state", "name", "cpus", "account", "queue", "folder")
        lines = self.pool("squeue", "-h", "-r", "-o", "%i|%T|%j|%C|%a|%P|%Z").stdout.splitlines()
        fields = [dict(zip(names, line.split("|"), strict=True)) for line in lines]
        return [job for job in fields if job["folder"] == str(self.folder)]


class SgeDesk(Desk):
    system = "sge"

    def queue(self) -> list[dict[str, str]]:
        """Others of this user may be in the queue, too."""
        shown = ET.fromstring(self.pool("qstat", "-xml", "-g", "d").stdout)
        jobs = [{each.tag: each.text or "" for each in job} for job in shown.iter("job_list")]
        found = []
        for job in jobs:
            details = self.pool("qstat", "-j", job["JB_job_number"], check=False).stdout
            fields = dict(re.findall(r"^(\w+): +(.*)$", details, re.MULTILINE))
            if fields.get("cwd") == str(self.folder):
                place = job["queue_name"].partition("@")[0]
                own = {"id": job["JB_job_number"], "name": fields["job_name"], "cpus": job["slots"], "queue": place}
                found.append({**own, "account": fields.get("account", "")})
        return found


class SshDesk(Desk):
    system = "ssh"
    user = "root"

    def __init__(self, node: SshNode, folder: Path) -> None:
        super().__init__(node, folder)
        self.config = node.config
        self.options = ("--hosts", "hosts", "--ssh-options", f"-F {node.config}")
        self.hosts("node1 slots=2\nnode2 slots=2\n")

    def hosts(self, text: str) -> None:
        (self.folder / "hosts").write_text(text)

    def queue(self) -> list[dict[str, str]]:
        shown = self.oversee("--dry-run", "--json")
        shown.end()  # it fails if there is no resource file
        [found] = json.loads(shown.out)["computations"]
        return [{"id": state} for state, count in found["jobs"].items() for _ in range(count)]

    def end(self) -> None:
        """Kill all processes, also the jobs."""
        if self.resource.exists():
            self.once("--remove")
        super().end()
