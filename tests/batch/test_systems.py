"""All tests in this folder need this: a user without privileges runs mwpy with this interpreter and this code."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.systems.condor import CondorPool
from tests.systems.slurm import SlurmNode
from tests.systems.ssh import SshNode

import mwpy

ABOUT = "import mwpy, sys, os; print(mwpy.__file__, sys.version_info[:3], os.getuid() == 0)"
EXPECTED = f"{mwpy.__file__} {sys.version_info[:3]} False"


def test_a_user_of_the_htcondor_pool_runs_this_mwpy(condor: CondorPool, pool_dir: Path) -> None:
    assert condor(".venv/bin/python", "-c", ABOUT, cwd=pool_dir).stdout.strip() == EXPECTED
    assert condor(".venv/bin/mwpy", "version", cwd=pool_dir).stdout.strip() == mwpy.version_string()


def test_a_user_of_the_slurm_node_runs_this_mwpy(slurm: SlurmNode, slurm_dir: Path) -> None:
    assert slurm(".venv/bin/python", "-c", ABOUT, cwd=slurm_dir).stdout.strip() == EXPECTED


def test_a_user_who_logs_in_by_ssh_runs_this_mwpy(ssh_node: SshNode, ssh_dir: Path) -> None:
    command = f"cd {ssh_dir} && .venv/bin/python -c '{ABOUT}'"
    assert ssh_node("ssh", "-F", ssh_node.config, "node2", command, user="root").stdout.strip() == EXPECTED
