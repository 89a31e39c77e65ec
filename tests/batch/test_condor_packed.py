"""A packed script in the pool, on machines that share no files with the submit machine."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.batch.condor_jobs import Jobs
from tests.batch.systems import skip, until
from tests.systems.condor import CondorPool
from tests.systems.system import ROOT

PACKING_S = 300.0
"""Time limit for packing. The package index may be slow."""

OF_THE_POOL = "/usr/bin/python3"
OF_THE_TESTS = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
"""Two Pythons of different versions, without packages."""

ABOUT = "import sys; print('%d.%d' % sys.version_info[:2])"


@pytest.fixture(scope="module")
def packed(condor: CondorPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack the ping example for both Pythons into one file."""
    if importlib.util.find_spec("pex") is None:
        skip("pex is not installed: pip install 'mwpy-cluster[pack]'")
    versions = {condor(python, "-c", ABOUT).stdout.strip() for python in (OF_THE_POOL, OF_THE_TESTS)}
    wanted = [word for version in sorted(versions) for word in ("--python", version)]
    path = tmp_path_factory.mktemp("packed") / "ping.pex"
    done = subprocess.run(
        [sys.executable, "-m", "mwpy", "pack", ROOT / "examples/ping/ping.py", "-o", path, *wanted],
        cwd=ROOT / "src",
        capture_output=True,
        text=True,
        timeout=PACKING_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path


@contextmanager
def nothing_shared(jobs: Jobs) -> Iterator[None]:
    """Hide the checkout and the folder of the submission from the jobs of the pool."""
    hidden = f"/tmp, /var/tmp, {ROOT}, {jobs.folder.parent}"
    jobs.pool.configure(f"MOUNT_UNDER_SCRATCH = {hidden}")
    try:
        yield
    finally:
        jobs.pool.configure()


@pytest.mark.parametrize("python", [OF_THE_TESTS, OF_THE_POOL], ids=["of the tests", "of the pool"])
def test_a_packed_script_needs_only_python(jobs: Jobs, packed: Path, python: str) -> None:
    """Slaves run from the one file that HTCondor transfers. Their master runs from the script."""
    (jobs.folder / "ping.pex").write_bytes(packed.read_bytes())
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
