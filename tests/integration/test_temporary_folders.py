"""Files and folders of a computation: each slave has a temporary folder of its own, and others can read nothing."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.managers import SyncManager
from pathlib import Path

import pytest
from tests.integration.apps.stage import fetched, until

import mwpy
from mwpy._system import locks
from mwpy._system.locks import SlaveFolders
from mwpy.audit import AuditFile


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder for temporary files of a new master and its agents. It is not below `tmp_path`, whose path is long."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


def make_folder(ends: bool) -> tuple[int, str]:
    folder = tempfile.mkdtemp()
    Path(folder, "file").write_text("left")
    if ends:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid(), folder


def hang(_: int) -> None:
    make_folder(ends=False)
    signal.pause()


def ask(_: int) -> tuple[str, str, str]:
    program = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir(), end='')"]
    return tempfile.gettempdir(), os.environ["TMPDIR"], subprocess.check_output(program, text=True)


def manage(_: int) -> list[int]:
    """Use a socket with a path in the temporary folder."""
    with multiprocessing.Manager() as manager:
        assert isinstance(manager, SyncManager)
        return list(manager.list([1, 2]))


def files_below(base: Path) -> list[Path]:
    """Files and links; what vanishes meanwhile is left out."""
    return [Path(folder, name) for folder, _, names in os.walk(base) for name in names]


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_what_a_killed_task_leaves_is_removed_while_the_agent_goes_on(base: Path, way: str) -> None:
    with mwpy.local_master(slaves=1, slave_start=way) as mw:
        mw.submit(mwpy.task(make_folder, True), retry=False)
        mw.submit(mwpy.task(hang, 1), seconds_max=0.5, retry=False)
        assert not any(result.ok for result in fetched(mw, 2))
        until(lambda: not files_below(base), lambda: f"no files, but there are {files_below(base)}")
        [(_, folder)] = mw.map(make_folder, [False])
        assert Path(folder).parent.parent.parent == base
        assert files_below(base) == [Path(folder, "file")]
    assert [*base.iterdir()] == []


def test_slaves_and_the_programs_of_their_tasks_have_different_folders(base: Path) -> None:
    with mwpy.local_master(slaves=1) as one, mwpy.local_master(slaves=1) as other:
        folders = [folder for mw in (one, other) for answers in mw.map(ask, [1]) for folder in answers]
    assert [len({*folders[:3]}), len({*folders[3:]}), len({*folders})] == [1, 1, 2]
    assert {Path(folder).parent.parent for folder in folders} == {base}


def test_a_task_can_use_a_manager_of_multiprocessing(base: Path) -> None:
    with mwpy.local_master(slaves=1) as mw:
        assert list(mw.map(manage, [1])) == [[1, 2]]


def test_the_own_slave_of_a_master_has_the_folder_of_the_master(base: Path) -> None:
    with mwpy.local_master(slaves=0) as mw:
        assert list(mw.map(ask, [1])) == [(str(base),) * 3]


CHOOSES = """
import os, sys, tempfile, mwpy

{choice}

def ask(_):
    return tempfile.gettempdir()

if __name__ == "__main__":
    with mwpy.local_master(slaves=1) as mw:
        print(*mw.map(ask, [1]))
"""


@pytest.mark.parametrize(
    ("choice", "own"), [("tempfile.tempdir = {!r}", ""), ("os.environ['TMPDIR'] = {!r}", "/mwpy-[0-9a-f]+/1")]
)
def test_a_script_can_choose_another_folder(base: Path, tmp_path: Path, choice: str, own: str) -> None:
    """If it sets TMPDIR, each slave has a folder of its own in this folder."""
    chosen = base / "chosen"
    chosen.mkdir()
    (tmp_path / "app.py").write_text(CHOOSES.format(choice=choice.format(str(chosen))))
    out = subprocess.check_output([sys.executable, "app.py"], cwd=tmp_path, text=True)
    assert re.fullmatch(f"{re.escape(str(chosen))}{own}\n", out)


def test_a_folder_that_cannot_be_made_is_reported_once(
    base: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The slaves go on with the folder of their agent. Here its path is too long for sockets."""
    long = base / ("long" * 20)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    with mwpy.local_master(slaves=2) as mw:
        assert {*mw.map(ask, range(10))} == {(str(long),) * 3}
    assert capfd.readouterr().err.count("slaves have no temporary folders of their own") == 1


def test_an_agent_removes_the_old_folder_of_one_that_was_killed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the folders of agents that live: these have a lock, or were just made."""
    killed, living, new = (base / f"{locks._prefix()}{name}" for name in ("killed", "living", "new"))
    for folder in (killed, living, new):
        folder.mkdir()
        (folder / "file").touch()
        if folder != new:
            os.utime(folder, (0, 0))
    lock = os.open(living, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folders = SlaveFolders()
    made = Path(folders.make())
    assert made.is_dir()
    folders.close()
    os.close(lock)
    assert [living.exists(), new.exists(), killed.exists(), made.parent.exists()] == [True, True, False, False]


NOBODY = 65534


def test_the_files_of_a_computation_are_for_their_owner_alone(tmp_path: Path) -> None:
    """They contain arguments, values and keys. This holds also if other files of the user are for everybody."""
    before = os.umask(0o022)
    try:
        files = tmp_path / "audit", tmp_path / "run.db"
        AuditFile(files[0]).close()
        with mwpy.local_master(slaves=1, run_database=str(files[1])) as mw:
            assert len(list(mw.map(bytes, [10, 1 << 20]))) == 2
            found = {each: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.rglob("*")}
    finally:
        os.umask(before)
    assert {each.name for each in found} >= {"audit", "run.db", "run.db-wal", "run.db-shm", "run.db.values"}
    assert {each: mode for each, mode in found.items() if mode & 0o077 and each.parent == tmp_path} == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(
    "code",
    [
        "from mwpy import resource_file; resource_file.read(sys.argv[1])",
        "import pathlib, mwpy.audit; list(mwpy.audit.read_ends(pathlib.Path(sys.argv[1])))",
        "from mwpy._roles.join import read_key; from mwpy._values.options import Options; "
        "read_key(Options(key_file=sys.argv[1]))",
        "from mwpy.run_database import RunDatabase; RunDatabase(sys.argv[1])",
    ],
    ids=["resource file", "audit file", "key file", "run database"],
)
def test_a_file_that_another_user_owns_has_its_own_remedy(code: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    path.chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", f"import os, sys; {code.partition(';')[0]}; os.seteuid({NOBODY}); {code}", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    [*_, last] = done.stderr.splitlines()
    assert "run this as the user who owns" in last
