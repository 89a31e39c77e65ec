"""Jobs that use more memory than they have, in a real Slurm with control groups and in a real HTCondor pool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from tests.batch.condor_jobs import Jobs
from tests.batch.systems import in_use, until, user_folder
from tests.batch.test_slurm_life import Cluster
from tests.systems.slurm import SlurmNode
from tests.systems.system import ROOT

HUNGRY = ROOT / "tests" / "batch" / "apps" / "hungry.py"

PORT = 17017

JOB_MB = 800
"""The memory of a job: enough for one task that needs `SIZE`, and too little for two."""

SIZE = 450

BY_AGENT = "out of memory, may use .* MiB now: its slave died: killed by its agent because its job was short of memory"


@pytest.fixture(scope="module")
def limiting() -> Iterator[SlurmNode]:
    """A Slurm that limits the memory of jobs with control groups."""
    with in_use(SlurmNode("slurm-memory", PORT, limits_memory=True)) as node:
        yield node


@pytest.fixture
def limited(limiting: SlurmNode) -> Iterator[Cluster]:
    """A computation in this Slurm."""
    with user_folder(limiting) as folder:
        yield Cluster(limiting, folder)


@pytest.mark.long
def test_slurm_kills_a_slave_that_needs_more_memory_than_its_job_has(limited: Cluster) -> None:
    """The agent survives, and says why its slave died. The task is charged."""
    limited.use(HUNGRY, str(JOB_MB))
    master = limited.master()
    slaves = limited.slaves("0", "--mem=300M")
    limited.nobody_left()
    unrunnable: Any = limited.report(master)["unrunnable"]
    assert [len(deaths) for deaths in unrunnable] == [3]
    for death in unrunnable[0]:
        assert "out of memory: killed by signal 9 (SIGKILL): out of memory: the kernel's" in death
        assert "killed a process of this job's control group" in death
    assert limited.audit(master).count("-> connected, host") == 1
    assert limited.ended(slaves) == ["OUT_OF_MEMORY 0:125"], limited.story()


@pytest.mark.long
def test_an_agent_keeps_its_slurm_job_within_its_memory(limited: Cluster) -> None:
    """Of two large tasks it kills one, which is tried again with more memory. Slurm kills nothing."""
    limited.use(HUNGRY, f"{SIZE},{SIZE} 1GB")
    limited.replace("slaves", "--mw-slave", "--mw-slave --mw-slave-processes 2")
    master = limited.master()
    slaves = limited.slaves("0", f"--mem={JOB_MB}M")
    limited.nobody_left()
    assert limited.report(master) == {"came": [SIZE] * 2, "unrunnable": []}, limited.story()
    audit = limited.audit(master)
    assert audit.count(", out of memory, may use ") == audit.count("because its job was short of memory") / 2 >= 1
    assert limited.ended(slaves) == ["COMPLETED 0:0"], limited.story()


@pytest.fixture
def strict(jobs: Jobs) -> Iterator[Jobs]:
    """The jobs of a pool that holds each job which uses more memory than it has requested."""
    shown = "condor_status", "-master", "-af", "Name"
    until(lambda: jobs.pool(*shown, user="root", check=False).stdout, "a pool that can be configured")
    jobs.pool.configure("SYSTEM_PERIODIC_HOLD = JobStatus == 2 && MemoryUsage > RequestMemory")
    yield jobs
    jobs.pool.configure()


@pytest.mark.long
def test_htcondor_holds_a_job_that_needs_more_memory_than_it_has(strict: Jobs) -> None:
    """Without `memory_max`, the agent gets SIGTERM. The task is charged, and the overseer says what to do.

    HTCondor also counts mapped files, so it may end a job just before the agent agrees. Then that attempt is evicted,
    and a later one is charged.
    """
    (strict.folder / "hungry.py").write_text(HUNGRY.read_text())
    master = strict.submit("master.sub", APP="hungry.py", ARGS=str(JOB_MB))
    strict.until_resource_file("hungry.rsc")
    python, written = f"{strict.folder}/.venv/bin/python", strict.folder / "overseer.out"
    slave = f"{python} {strict.folder}/hungry.py --mw-grace-period 1"
    options = ("--with", "htcondor", "--max", 1, "--interval", 0.5, "--memory", "300MB", "--disk", "20MB", "--command")
    command = strict.pool.command(python, "-m", "mwpy", "oversee", "hungry.rsc", *options, slave, folder=strict.folder)
    with written.open("wb") as output, subprocess.Popen(command, stdout=output) as overseer:
        try:
            lost = r"gone while it ran task 1 \(grow\), attempt \d+, out of memory: killed by its agent after the grace"
            until(lambda: strict.count(master, lost), lambda: f"{written.read_text()}\n{strict.shown_at_failure()}")
            until(lambda: "is held" in written.read_text(), strict.shown_at_failure)
        finally:
            overseer.kill()
    said = r"job \S+ is held: .*MemoryUsage > RequestMemory.*\. Ask for more memory \(--memory\)"
    assert re.search(said, written.read_text()), written.read_text()
    assert strict.count(master, "evicted.*; its slaves used .* of memory, and its job has .* for them: ask for more")


def test_an_agent_keeps_its_htcondor_job_within_its_memory(strict: Jobs) -> None:
    """Of two large tasks it kills one, which is tried again with more memory. The job is not held."""
    (strict.folder / "hungry.py").write_text(HUNGRY.read_text())
    master = strict.submit("master.sub", APP="hungry.py", ARGS=f"{SIZE},{SIZE} 1GB")
    strict.until_resource_file("hungry.rsc")
    slaves = strict.submit("slaves.sub", APP="hungry.py", SLAVES=1, PROCESSES=2, MEMORY=f"{JOB_MB} MB")
    strict.until_gone()
    assert strict.exit_codes(slaves) == [0]
    assert strict.text(f"master.{master}.0.out") == f'{{"came": [{SIZE}, {SIZE}], "unrunnable": []}}\n'
    assert strict.count(master, BY_AGENT) >= 1
