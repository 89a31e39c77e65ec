"""Files of a computation are for their owner alone, and what others may not read has its own remedy."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import mwpy
from mwpy.audit import AuditFile

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
