"""`mwpy doctor` through a real Slurm, and through a real sshd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.batch.test_oversee_htcondor import Desk
from tests.batch.test_oversee_slurm import SlurmDesk
from tests.batch.test_oversee_ssh import SshDesk
from tests.systems.slurm import SlurmNode
from tests.systems.ssh import SshNode


@pytest.fixture
def slurm_desk(slurm: SlurmNode, slurm_dir: Path) -> Iterator[SlurmDesk]:
    desk = SlurmDesk(slurm, slurm_dir)
    yield desk
    desk.end()


@pytest.fixture
def ssh_desk(ssh_node: SshNode, ssh_dir: Path) -> Iterator[SshDesk]:
    desk = SshDesk(ssh_node, ssh_dir)
    yield desk
    desk.end()


def is_well(desk: Desk, *options: object, user: str = "submit") -> str:
    """Assert that the doctor finds a computation healthy. Return its output."""
    desk.master()
    run = desk.start(desk.folder / ".venv/bin/mwpy", "doctor", desk.resource, *options, user=user)
    assert run.end() == 0, run.out
    assert re.search(r"^ok +master: accepted it as AGENT-1; round trip [\d.]+ ms$", run.out, re.MULTILINE)
    assert run.out.endswith("all is well\n")
    return run.out


def test_the_doctor_submits_one_job_to_slurm(slurm_desk: SlurmDesk) -> None:
    """The job reports what it found, including the time until its limit, and leaves the queue."""
    report = is_well(slurm_desk, "--with", "slurm", "--line=--time=9")
    assert re.search(r"^ok +time left: [45]\d\d s$", report, re.MULTILINE), report
    assert re.search(r"^job \d+_0 is submitted$", report, re.MULTILINE)
    assert slurm_desk.queue() == []


def test_the_doctor_starts_one_process_over_ssh(ssh_desk: SshDesk) -> None:
    """The report comes back from the host."""
    ssh_desk.hosts("node1 slots=2\n")
    report = is_well(
        ssh_desk, "--with", "ssh", "--hosts", "hosts", "--ssh-options", f"-F {ssh_desk.config}", user="root"
    )
    assert re.search(r"^job ssh-\w+ is submitted$", report, re.MULTILINE), report
