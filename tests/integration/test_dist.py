"""`make dist` makes a wheel and a source distribution, with which somebody can work who has nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.integration.apps.stage import SOURCES

from mwpy import __version__

ROOT = SOURCES.parent
SCRIPT = """
import sys
import mwpy

@mwpy.task_algorithm
def square(x):
    return x * x

@mwpy.master_algorithm
def master(mw, argv):
    print(sum(mw.map(square, range(100))))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""

INDEX_S = 300.0
"""The longest time to get packages from a slow index."""

pytestmark = pytest.mark.timeout(3 * INDEX_S)

NEEDED = ("src", "docs", "examples", "tests", "bench", "condor", "slurm", "pyproject.toml", "mkdocs.yml", "README.md")
NEEDED_TOO = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile")


def run(*command: object, folder: Path) -> str:
    """Run a command without the variables of this test's Python. Return its output."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        env=variables,
        timeout=INDEX_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both files, built from a copy of the sources."""
    clone = tmp_path_factory.mktemp("clone")
    for name in (*NEEDED, *NEEDED_TOO):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, clone)
    run(sys.executable, "-m", "build", "--outdir", "dist", ".", folder=clone)
    return clone / "dist"


def test_the_files_have_what_an_index_wants(dist: Path) -> None:
    """twine, which uploads packages, finds no fault."""
    files = sorted(dist.iterdir())
    assert [each.name for each in files] == [
        f"mwpy_cluster-{__version__}-py3-none-any.whl",
        f"mwpy_cluster-{__version__}.tar.gz",
    ]
    said = run(sys.executable, "-m", "twine", "check", "--strict", *files, folder=dist)
    assert said.count("PASSED") == 2


def test_the_source_distribution_has_all_parts(dist: Path) -> None:
    """Somebody can run the tests and build the documentation from it."""
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        parts = {name.split("/")[1] for name in archive.getnames()}
    assert {*NEEDED, *NEEDED_TOO} <= parts


def test_the_wheel_has_only_the_library(dist: Path) -> None:
    """The tests stay outside, and type checkers find the mark of typed packages."""
    [path] = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"mwpy", f"mwpy_cluster-{__version__}.dist-info"}
    assert "mwpy/py.typed" in names


@pytest.fixture(scope="module")
def programs(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a clean environment that has the wheel."""
    folder = tmp_path_factory.mktemp("clean")
    [wheel] = dist.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", "new", folder=folder)
    programs = folder / "new" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-compile", wheel, folder=folder)
    return programs


def test_the_wheel_works_in_a_clean_environment(programs: Path, tmp_path: Path) -> None:
    """A script with slaves runs, and the command `mwpy` is there."""
    (tmp_path / "app.py").write_text(SCRIPT)
    assert run(programs / "python", "app.py", "--mw-local", "2", folder=tmp_path) == "328350\n"
    assert __version__ in run(programs / "mwpy", "version", folder=tmp_path)


def test_the_wheel_writes_submit_files_that_work_without_a_clone(programs: Path, tmp_path: Path) -> None:
    """All of them. The scripts of Slurm are scripts of a shell, so they run here without Slurm, too."""
    run(programs / "mwpy", "submit-files", ".", folder=tmp_path)
    kinds = ["condor/*.sub", "condor/README.md", "slurm/*.sbatch", "slurm/README.md", "examples/ping/ping.py"]
    expected = {str(path.relative_to(ROOT)) for kind in kinds for path in ROOT.glob(kind)}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == expected
    assert f"PYTHON = {programs / 'python'}\n" in (tmp_path / "condor" / "app.sub").read_text()
    (tmp_path / "app.py").write_text(SCRIPT)
    variables = "export SLURM_JOB_ID=7 SLURM_ARRAY_JOB_ID=8 SLURM_ARRAY_TASK_ID=0"
    both = "sh slurm/master.sbatch app.py & sh slurm/slaves.sbatch app.py; echo slaves: $?; wait $!; echo master: $?"
    said = run("sh", "-c", f"{variables}; {both}", folder=tmp_path).splitlines()
    assert "328350" in said
    assert said[-2:] == ["slaves: 0", "master: 0"]
    assert (tmp_path / "slurm" / "master.7.db").exists()
