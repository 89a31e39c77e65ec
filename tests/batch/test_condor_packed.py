"""A packed script in the pool, on machines that share no files with the submit machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.batch.condor_jobs import Jobs
from tests.batch.packing import OF_THE_POOL, OF_THE_TESTS, Packing
from tests.batch.systems import until
from tests.systems.system import ROOT


@contextmanager
def nothing_shared(jobs: Jobs) -> Iterator[None]:
    """Hide the checkout and the folder of the submission from the jobs of the pool."""
    hidden = f"/tmp, /var/tmp, {ROOT}, {jobs.folder.parent}"
    jobs.pool.configure(f"MOUNT_UNDER_SCRATCH = {hidden}")
    try:
        yield
    finally:
        jobs.pool.configure()


@pytest.mark.long
@pytest.mark.parametrize("python", [OF_THE_TESTS, OF_THE_POOL], ids=["of the tests", "of the pool"])
def test_a_packed_script_needs_only_python(jobs: Jobs, packing: Packing, python: str) -> None:
    """Slaves run from the one file that HTCondor transfers. Their master runs from the script."""
    (jobs.folder / "ping.pex").write_bytes(packing.packed().read_bytes())
    lacking = jobs.pool(python, "-c", "import mwpy", cwd=jobs.folder, check=False)
    assert "No module named 'mwpy'" in lacking.stderr
    with nothing_shared(jobs):
        master = jobs.submit("master.sub", ARGS="--pings 2000")
        jobs.until_resource_file("ping.rsc")
        shared = jobs.submit("slaves.sub", SLAVES=1)
        until(lambda: "Failed to execute" in str(jobs.queue(shared)), "a job that does not find .venv")
        jobs.do("condor_rm", shared)
        slaves = jobs.submit("slaves-pex.sub", PYTHON=python, SLAVES=2)
        jobs.until_gone()
    assert jobs.exit_codes(master) == [0]
    assert jobs.exit_codes(slaves) == [0] * 2
    assert "2000 pings: 2000 good, 0 bad" in jobs.text("master.*.out")
