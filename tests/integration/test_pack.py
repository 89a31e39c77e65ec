"""`mwpy pack` makes one file that runs in every role on a machine that has only Python."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.integration.apps.stage import APPS, SOURCES, Running, Stage, until

from mwpy.cli.pack import lean

ROOT = SOURCES.parent
MY_APP = APPS / "packed" / "my-app.py"
EXPECTED = "[[0, 0, 7], [1, 7, 1000], [4, 7, 2000], [7, 9, 3000]]"
OLDER = "2.3.0"
"""A version of sortedcontainers that is not the one installed for the tests."""

PACKING_S = 300.0
"""The longest time to get packages from a slow index."""

pytestmark = pytest.mark.timeout(2 * PACKING_S)


def mwpy(*arguments: object, folder: Path, code: int = 0, program: tuple[str, ...] = ("-m", "mwpy")) -> str:
    """Run a command of mwpy on this machine. Return its output."""
    done = subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        timeout=PACKING_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A packed application, and the output of `mwpy pack`."""
    folder = tmp_path_factory.mktemp("packed")
    said = mwpy("pack", MY_APP, "--with", f"sortedcontainers=={OLDER}", folder=folder)
    return folder / "my-app.pex", said


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without any installed package."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = str(folder / "bin" / "python")
    lacking = subprocess.run([python, "-c", "import msgspec"], capture_output=True, env={}, check=False)
    assert b"No module named 'msgspec'" in lacking.stderr
    return python


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scratch folder of all jobs. The first start of a packed file makes an environment there, in some seconds."""
    return tmp_path_factory.mktemp("scratch")


def alone(stage: Stage, scratch: Path, *command: object) -> Running:
    """Start a program as HTCondor starts a job, with almost no environment."""
    return stage.start("", program=["env", "-i", stage.mark, f"_CONDOR_SCRATCH_DIR={scratch}", *map(str, command)])


def test_only_the_part_of_a_checkout_that_a_wheel_needs_is_copied(tmp_path: Path) -> None:
    """An environment in the checkout has hundreds of megabytes, and its files may vanish while they are copied."""
    copy = Path(lean(str(ROOT), tmp_path))
    files = {"pyproject.toml", "README.md", "LICENSE"}
    assert {each.name for each in copy.iterdir()} == {"src", "condor", "slurm", "examples", *files}
    assert not list(copy.rglob("__pycache__"))
    assert lean("mwpy-cluster==1.0", tmp_path) == "mwpy-cluster==1.0"


def test_the_content_of_the_file_is_printed_in_one_line(packed: tuple[Path, str]) -> None:
    """The line names the modules, the packages with versions, and the usage. Missing modules are reported."""
    printed = packed[1].splitlines()
    line = next(line for line in printed if line.startswith("packed "))
    assert re.search(r"with shapes, units for Python 3\.\d+ into my-app\.pex", line)
    for word in ("mwpy_cluster ", "pyzmq ", f"sortedcontainers {OLDER}", "python3 my-app.pex --mw-slave"):
        assert word in line
    assert any("not_available is not packed" in line and str(MY_APP) in line for line in printed)


def test_packed_slaves_serve_the_script_s_master(
    stage: Stage, packed: tuple[Path, str], bare: str, scratch: Path
) -> None:
    """The master runs the script itself. The agent and its slaves run only from the packed file.

    The master reports packages that differ from its own.
    """
    master = stage.master(str(MY_APP), "word", "--mw-audit-file", "-")
    agent = alone(
        stage, scratch, bare, packed[0], "--mw-slave", "--mw-resource-file", stage.resource, "--mw-slave-processes", 2
    )
    assert master.end() == 0, master.err
    assert agent.end() == 0, agent.err
    assert EXPECTED in master.out
    differs = rf"^mwpy: AGENT-0 on \S+ has sortedcontainers {OLDER}, the master {version('sortedcontainers')}: "
    assert len(re.findall(differs, master.err, re.MULTILINE)) == 1, master.err
    places = re.findall(r"^from (.+)$", master.out, re.MULTILINE)
    assert places, master.out
    assert all(place.startswith(str(scratch)) for place in places[0].split(", "))
    stage.no_process_left()


def test_a_packed_script_can_be_the_master(stage: Stage, packed: tuple[Path, str], bare: str, scratch: Path) -> None:
    """A packed master and packed slaves. The resource file names the command that starts more slaves."""
    own = ("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-resource-file", stage.resource)
    master = alone(stage, scratch, bare, packed[0], *own, "word")
    until(lambda: stage.resource.exists() or master.process.poll() is not None, "a resource file")
    written = json.loads(stage.resource.read_text())
    assert written["slave-arguments"][0] == str(packed[0])
    agent = alone(stage, scratch, written["slave-executable"], *written["slave-arguments"])
    assert master.end() == 0, master.err
    assert agent.end() == 0, agent.err
    assert f"{EXPECTED} ['word']" in master.out


@pytest.mark.parametrize(("way", "started"), [("fork", "forks"), ("spawn", "interpreters")])
def test_a_packed_script_runs_alone(
    stage: Stage, packed: tuple[Path, str], bare: str, scratch: Path, way: str, started: str
) -> None:
    """Without a role, it starts its slaves from itself, in both ways."""
    run = alone(stage, scratch, bare, packed[0], "word", "--mw-local", 2, "--mw-slave-start", way)
    assert run.end() == 0, run.err
    assert f"{EXPECTED} ['word']" in run.out
    assert f"started as {{'{started}'}}" in run.out
    places = re.findall(r"^from (.+)$", run.out, re.MULTILINE)
    assert places, run.out
    assert all(place.startswith(str(scratch)) for place in places[0].split(", "))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no_such.py",), "cannot read the imports of .*no_such.py: No such file"),
        ((MY_APP, "--python", "latest"), "--python latest: give a version such as 3.13"),
        ((MY_APP, "--requirements", "none.txt"), "cannot read the requirements none.txt"),
        ((MY_APP, "-o", "no/such/folder/app.pex"), "cannot write no/such/folder/app.pex"),
    ],
)
def test_a_script_that_cannot_be_packed_is_reported_in_one_line(
    stage: Stage, arguments: tuple[object, ...], words: str
) -> None:
    """The command prints one line with the fault, exits with 2, and writes no file."""
    said = mwpy("pack", *arguments, folder=stage.folder, code=2)
    assert re.search(f"^mwpy: .*{words}", said.splitlines()[-1]), said
    assert not list(stage.folder.glob("*.pex"))


def test_without_pex_the_message_says_how_to_install_it(stage: Stage) -> None:
    """The command prints one line with the command that installs pex."""
    hidden = "import sys; sys.modules['pex'] = None; from mwpy.cli import main; sys.exit(main())"
    said = mwpy("pack", MY_APP, folder=stage.folder, code=2, program=("-c", hidden))
    assert said == "mwpy: packing needs pex: pip install 'mwpy-cluster[pack]'\n"
