"""`mwpy submit-files`: what it writes, and what it leaves alone. `test_dist.py` runs it from a wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mwpy import cli

ROOT = Path(__file__).parents[2]


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_files_of_the_clone_are_written_with_this_interpreter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is named, and the next command comes with a folder that a shell understands."""
    folder = tmp_path / "my scan"
    assert cli.main(["submit-files", str(folder)]) == 0
    written = files_in(folder)
    kinds = ["condor/*.sub", "condor/README.md", "slurm/*.sbatch", "slurm/README.md", "examples/ping/ping.py"]
    assert {*written} == {str(path.relative_to(ROOT)) for kind in kinds for path in ROOT.glob(kind)}
    changed = {name for name, content in written.items() if content != (ROOT / name).read_text()}
    assert changed == {"condor/app.sub", "slurm/master.sbatch", "slurm/slaves.sbatch"}
    assert f"    PYTHON = {sys.executable}\n" in written["condor/app.sub"]
    assert f'"${{PYTHON:-{sys.executable}}}" "$app" --mw-slave' in written["slurm/slaves.sbatch"]
    assert not [name for name in changed if ".venv/bin/python" in written[name].replace(sys.executable, "")]
    said = capsys.readouterr().out
    assert all(f"{folder / name}\n" in said for name in written)
    assert f"cd '{folder}' && condor_submit condor/master.sub" in said


def test_files_that_users_have_changed_are_not_replaced_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then nothing at all is written. Files that are as they would be written do not matter."""
    assert cli.main(["submit-files", str(tmp_path)]) == 0
    assert cli.main(["submit-files", str(tmp_path)]) == 0
    mine, lost = tmp_path / "condor" / "app.sub", tmp_path / "slurm" / "slaves.sbatch"
    mine.write_text("APP = mine.py\n")
    lost.unlink()
    capsys.readouterr()
    assert cli.main(["submit-files", str(tmp_path)]) == 2
    message = f"mwpy: {mine}: this file has other content, and nothing was written: give another folder, or --force"
    assert capsys.readouterr().err.startswith(message)
    assert (mine.read_text(), lost.exists()) == ("APP = mine.py\n", False)
    assert cli.main(["submit-files", str(tmp_path), "--force"]) == 0
    assert f"{mine}: replaced\n" in capsys.readouterr().out
    assert sys.executable in mine.read_text()
    assert lost.exists()


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["submit-files", os.fspath(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith("mwpy: the submit files cannot be written: ")
