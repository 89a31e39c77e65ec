"""`mwpy oversee --with ssh` with a real sshd that looks like four hosts. The overseer runs as root, who has the key."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.batch.systems import until
from tests.batch.test_oversee_htcondor import PATIENT_S, Desk, Run
from tests.systems.ssh import SshNode
from tests.systems.system import ROOT


class SshDesk(Desk):
    """A desk whose overseer uses ssh."""

    def __init__(self, node: SshNode, folder: Path) -> None:
        super().__init__(node, folder)
        self.config = node.config

    def oversee(self, *words: object) -> Run:
        options = ("--with", "ssh", "--hosts", "hosts", "--ssh-options", f"-F {self.config}", "--interval", 0.5)
        return self.start(self.folder / ".venv/bin/mwpy", "oversee", self.resource, *options, *words, user="root")

    def hosts(self, text: str) -> None:
        (self.folder / "hosts").write_text(text)


@pytest.fixture
def desk(ssh_node: SshNode, ssh_dir: Path) -> Iterator[SshDesk]:
    desk = SshDesk(ssh_node, ssh_dir)
    yield desk
    desk.once("--remove")
    desk.end()


def test_an_overseer_follows_the_needs_of_a_master_and_ends_with_it(desk: SshDesk) -> None:
    """The overseer reports a dead host. It is killed, and the next overseer starts nothing twice."""
    desk.hosts("node1 slots=2\nnode2 slots=2\ndead-host slots=9\n")
    master = desk.master()
    desk.order("tasks 3 first")
    first = desk.oversee("--patience", PATIENT_S)
    before = desk.until_jobs(3)
    first.says("host dead-host cannot be used: ssh: Could not resolve hostname dead-host")
    first.send(signal.SIGKILL)
    first.end()
    assert "submits" not in desk.once("--patience", 60)

    desk.order("tasks 1 second")
    second = desk.oversee("--patience", PATIENT_S)
    assert desk.until_jobs(4).keys() > before.keys()
    (desk.folder / "first").touch()
    desk.until_jobs(1)
    (desk.folder / "second").touch()
    desk.order("return 0")
    assert (master.end(), second.end()) == (0, 0), second.out
    assert "waves.rsc: is finished, and no job of it is left" in second.out


ELSEWHERE = """\
#!/bin/sh
exec unshare --map-root-user --uts sh -c 'hostname bad-host && exec "$0" "$@"' {python} "$@"
"""


@pytest.mark.long
def test_no_job_is_submitted_to_a_host_that_the_master_has_excluded(desk: SshDesk) -> None:
    """All tasks fail on `node2`, which names itself `bad-host`. The overseer finds its name by its job."""
    elsewhere = desk.folder / "elsewhere"
    elsewhere.write_text(ELSEWHERE.format(python=desk.folder / ".venv/bin/python"))
    elsewhere.chmod(0o755)
    desk.hosts(f"node1 slots=1\nnode2 slots=1 python={elsewhere}\nnode3 slots=1\n")
    shutil.copy(ROOT / "tests" / "integration" / "apps" / "unwell.py", desk.folder)
    master = desk.master("unwell.py")
    overseer = desk.oversee("--max", 3)
    overseer.says("waves.rsc: tasks fail on node2 that succeed elsewhere, so the master sends no more work there")
    overseer.says("waves.rsc: submits 1 job, not to node2: ")
    assert list(desk.report()["excluded-hosts"]) == ["bad-host"]
    assert "host bad-host gets no more work for 1 h" in master.out
    before, _, _ = overseer.out.partition("waves.rsc: submits 1 job, not to node2: ")
    (desk.folder / "enough").touch()
    until(lambda: "{" in master.out, lambda: f"the end of the tasks\n{master.out}")
    assert "bad-host" not in master.out[master.out.index("{") :]
    until(lambda: len(desk.report()["connected-jobs"]) == 2, lambda: f"two jobs, not {desk.report()}")
    (desk.folder / "done").touch()
    assert (master.end(), overseer.end()) == (0, 0), overseer.out
    after = overseer.out.removeprefix(before)
    assert not re.findall(r"submits \d+ jobs?: .*", after), overseer.out
    assert overseer.out.count("(the master refused it") <= sum(map(int, re.findall(r"submits (\d+) jobs?", before)))
