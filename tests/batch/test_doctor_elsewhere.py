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


def test_the_doctor_starts_one_process_over_ssh_on_each_host(ssh_desk: SshDesk) -> None:
    """The report of each host comes back. A host that does not answer is a fault, and hides no other host."""
    ssh_desk.hosts("node1 slots=2\nno-such-host\nnode2\n")
    ssh_desk.master()
    options = ("--with", "ssh", "--hosts", "hosts", "--ssh-options", f"-F {ssh_desk.config}")
    run = ssh_desk.start(ssh_desk.folder / ".venv/bin/mwpy", "doctor", ssh_desk.resource, *options, user="root")
    assert run.end() == 1, run.out
    for host in ("node1", "node2"):
        assert re.search(rf"^ok +{host}: master: accepted it as AGENT-", run.out, re.MULTILINE), run.out
    assert re.search(r"^FAULT +no-such-host: batch system: .*Could not resolve hostname", run.out, re.MULTILINE)
    assert run.out.endswith("1 fault found\n")
