"""The batch systems as fixtures; `systems.py` tells how they are brought up, and what a test finds in them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.batch.condor_jobs import Jobs
from tests.batch.systems import ROOT, UP_S, System, furnish

HERE = Path(__file__).parent

os.environ["PATH"] += f"{os.pathsep}/usr/sbin{os.pathsep}/sbin"  # root's commands, which bring the systems up

LONGEST_S = UP_S + 900
"""What one test may take: the first one of a system waits until that is up, and its waits have limits of their own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder a time limit of their own, where they have none."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONGEST_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what each fixture that has `told_at_failure` says: the state of its batch system."""
    report = yield
    if report.failed and report.when == "call" and isinstance(item, pytest.Function):
        for name, value in item.funcargs.items():
            if hasattr(value, "told_at_failure"):
                report.sections.append((f"{name} at the failure", _told(value)))
    return report


def _told(value: Any) -> str:
    try:
        return str(value.told_at_failure())
    except Exception as error:  # the system itself may be what failed
        return f"nothing is to be had: {error}"


@pytest.fixture(scope="session")
def condor() -> Iterator[System]:
    """An HTCondor pool; `condor("condor_q", cwd=pool_dir)` runs a command in it."""
    pool = System("condor-pool")
    pool.up(*shown())
    yield pool
    pool.leave(empty=not pool("condor_q", "-allusers", "-af", "ClusterId").stdout)


def shown() -> list[str]:
    """The folders that jobs must see, at their own paths: the checkout, the interpreter, its packages."""
    return [word for place in (str(ROOT), sys.base_prefix, sys.prefix) for word in ("--bind", place)]


@pytest.fixture
def pool_dir(condor: System) -> Iterator[Path]:
    """A folder with what a user has in a clone; what is submitted from there is removed at the end."""
    folder = condor.workdir("test")
    furnish(folder)
    yield folder
    condor("condor_rm", "-constraint", f'substr(Iwd, 0, {len(str(folder))}) == "{folder}"', check=False)


@pytest.fixture
def jobs(condor: System, pool_dir: Path) -> Iterator[Jobs]:
    """What a test submits to the pool, from a folder in which the scripts of apps/ are too; removed at the end."""
    for app in (HERE / "apps").glob("*.py"):
        shutil.copy(app, pool_dir)
    jobs = Jobs(condor, pool_dir)
    yield jobs
    jobs.remove_all()


@pytest.fixture(scope="session")
def slurm() -> Iterator[System]:
    """A Slurm node; `slurm("squeue", cwd=slurm_dir)` runs a command on it."""
    node = System("slurm-node")
    node.up()
    yield node
    node.leave(empty=not node("squeue", "-h").stdout)


@pytest.fixture
def slurm_dir(slurm: System) -> Iterator[Path]:
    """A folder with what a user has in a clone; what is submitted from there is cancelled at the end."""
    folder = slurm.workdir("test")
    furnish(folder)
    yield folder
    jobs = [line.split("|") for line in slurm("squeue", "-h", "-o", "%A|%Z").stdout.splitlines()]
    if mine := sorted({job for job, place in jobs if place.startswith(str(folder))}):
        slurm("scancel", *mine, check=False)


@pytest.fixture(scope="session")
def ssh_node() -> Iterator[System]:
    """An SSH server, on four addresses that look like four hosts: `ssh -F $SSH_NODE_CONFIG node1` to `node4`."""
    node = System("ssh-node")
    node.up()
    yield node
    node.leave(empty=True)


@pytest.fixture
def ssh_dir(ssh_node: System) -> Path:
    """A folder with what a user has in a clone."""
    folder = ssh_node.workdir("test")
    furnish(folder)
    return folder
