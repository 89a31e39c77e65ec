"""The batch systems as fixtures. `tests/systems` brings them up. `systems.py` describes the folder that a test has."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.batch.condor_jobs import Jobs
from tests.batch.desks import CondorDesk, Desk, SgeDesk, SlurmDesk, SshDesk
from tests.batch.packing import Packing, versions
from tests.batch.systems import START_S, in_use, skip, user_folder
from tests.systems.condor import CondorPool
from tests.systems.sge import SgeNode
from tests.systems.slurm import SlurmNode
from tests.systems.ssh import SshNode

HERE = Path(__file__).parent

LONGEST_S = START_S + 900
"""Time limit of one test. The first test waits until its batch system is up. Each wait has its own limit, too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of this folder a time limit, unless it has one. `-k condor` finds all tests with the pool.

    These tests are one part of `make test`, one after another, because a restart of the pool ends what runs in it.
    """
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONGEST_S))
        if isinstance(item, pytest.Function) and "condor" in item.fixturenames:
            item.extra_keyword_matches.add("condor")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the batch system to a failure. Each fixture with `shown_at_failure` returns this state."""
    report = yield
    if report.failed and report.when == "call" and isinstance(item, pytest.Function):
        for name, value in item.funcargs.items():
            if hasattr(value, "shown_at_failure"):
                report.sections.append((f"{name} at the failure", _shown(value)))
    return report


def _shown(value: Any) -> str:
    try:
        return str(value.shown_at_failure())
    except Exception as error:  # the batch system itself may have failed
        return f"the state of the batch system is unknown: {error}"


@pytest.fixture(scope="session")
def condor() -> Iterator[CondorPool]:
    """An HTCondor pool; `condor("condor_q", cwd=pool_dir)` runs a command in it."""
    with in_use(CondorPool()) as pool:
        yield pool


@pytest.fixture(scope="session")
def packing(condor: CondorPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packing]:
    """The ping example, which is being packed for the Pythons of the pool and of the tests."""
    if importlib.util.find_spec("pex") is None:
        skip("pex is not installed: pip install 'mwpy-cluster[pack]'")
    packing = Packing(tmp_path_factory.mktemp("packed"), versions(condor))
    yield packing
    packing.end()


@pytest.fixture(scope="session", autouse=True)
def packing_begins(request: pytest.FixtureRequest) -> None:
    """Begin to pack before the first test, if a later one needs the packed file: packing takes a minute."""
    if any("packing" in item.fixturenames for item in request.session.items if isinstance(item, pytest.Function)):
        with suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):  # those tests are skipped or fail
            request.getfixturevalue("packing")


@pytest.fixture
def pool_dir(condor: CondorPool) -> Iterator[Path]:
    """A folder with the files of a clone. At the end, jobs that were submitted from there are removed."""
    with user_folder(condor) as folder:
        yield folder
        condor("condor_rm", "-constraint", f'substr(Iwd, 0, {len(str(folder))}) == "{folder}"', check=False)


@pytest.fixture
def jobs(condor: CondorPool, pool_dir: Path) -> Iterator[Jobs]:
    """The jobs of a test. Its folder also has the scripts of apps/. At the end, the jobs are removed."""
    for app in (HERE / "apps").glob("*.py"):
        shutil.copy(app, pool_dir)
    jobs = Jobs(condor, pool_dir)
    yield jobs
    jobs.remove_all()


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmNode]:
    """A Slurm node; `slurm("squeue", cwd=slurm_dir)` runs a command on it."""
    with in_use(SlurmNode()) as node:
        yield node


@pytest.fixture
def slurm_dir(slurm: SlurmNode) -> Iterator[Path]:
    """A folder with the files of a clone. At the end, jobs that were submitted from there are cancelled."""
    with user_folder(slurm) as folder:
        yield folder
        jobs = [line.split("|") for line in slurm("squeue", "-h", "-o", "%A|%Z").stdout.splitlines()]
        if mine := sorted({job for job, place in jobs if place.startswith(str(folder))}):
            slurm("scancel", *mine, check=False)


@pytest.fixture(scope="session")
def sge() -> Iterator[SgeNode]:
    """A Grid Engine; `sge("qstat", cwd=sge_dir)` runs a command there."""
    with in_use(SgeNode()) as node:
        yield node


@pytest.fixture
def sge_dir(sge: SgeNode) -> Iterator[Path]:
    """A folder with the files of a clone. At the end, jobs that write there are deleted."""
    with user_folder(sge) as folder:
        yield folder
        shown = re.split("^=+$", sge("qstat", "-j", "*", check=False).stdout, flags=re.MULTILINE)
        jobs = [re.search(r"^job_number: +(\d+)$", each, re.MULTILINE) for each in shown if f"{folder}/" in each]
        if mine := [job[1] for job in jobs if job is not None]:
            sge("qdel", *mine, check=False)


@pytest.fixture(scope="session")
def ssh_node() -> Iterator[SshNode]:
    """An sshd on four addresses that look like four hosts: `ssh -F CONFIG node1` to `node4`."""
    with in_use(SshNode()) as node:
        yield node


@pytest.fixture
def ssh_dir(ssh_node: SshNode) -> Iterator[Path]:
    """A folder with the files of a clone."""
    with user_folder(ssh_node) as folder:
        yield folder


D = TypeVar("D", bound=Desk)


def used(desk: D) -> Iterator[D]:
    """Give a desk to a test, and end what the test has left there."""
    yield desk
    desk.end()


@pytest.fixture
def condor_desk(condor: CondorPool, pool_dir: Path) -> Iterator[CondorDesk]:
    yield from used(CondorDesk(condor, pool_dir))


@pytest.fixture
def slurm_desk(slurm: SlurmNode, slurm_dir: Path) -> Iterator[SlurmDesk]:
    yield from used(SlurmDesk(slurm, slurm_dir))


@pytest.fixture
def sge_desk(sge: SgeNode, sge_dir: Path) -> Iterator[SgeDesk]:
    yield from used(SgeDesk(sge, sge_dir))


@pytest.fixture
def ssh_desk(ssh_node: SshNode, ssh_dir: Path) -> Iterator[SshDesk]:
    yield from used(SshDesk(ssh_node, ssh_dir))


@pytest.fixture
def desk(request: pytest.FixtureRequest) -> Desk:
    """The desk of a batch system, which the parameter names."""
    found: Desk = request.getfixturevalue(f"{request.param.removeprefix('ht')}_desk")
    return found
