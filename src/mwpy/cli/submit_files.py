"""mwpy submit-files DIR [--force]: write the submit files for HTCondor and Slurm.

Write the submit files into a folder, from which `condor_submit` and `sbatch` are then called: DIR/condor and DIR/slurm,
each with a README.md that explains every line, and the ping example, which shows that they work. Jobs run the
interpreter that runs this command. Set PYTHON to another one. On a cluster, it must be on a file system that the
machines share.

examples:
  mwpy submit-files .
  mwpy submit-files ~/scan --force

exit codes:
  0    all files are there
  2    a bad option, or a file with other content is there and --force was not given: nothing was written
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.phrases import counted
from mwpy.cli._arguments import Parser

__all__ = ["main", "make_parser"]

FOLDERS = {"condor": (".sub", ".md"), "slurm": (".sbatch", ".md"), "examples/ping": (".py",)}
"""The folders of the submit files, and the suffixes of the files in them. Others are the output of jobs."""

OF_A_CLONE = {".sub": "$ENV(PWD)/.venv/bin/python", ".sbatch": ".venv/bin/python"}
"""How the files of a clone name their interpreter, by suffix."""


def main(arguments: Sequence[str]) -> int:
    """Write the submit files; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    wanted = {parsed.folder / name: content for name, content in submit_files(sys.executable)}
    try:
        there = {path: path.read_bytes() for path in wanted if path.exists()}
        other = [str(path) for path, content in there.items() if content != wanted[path].encode()]
        if other and not parsed.force:
            raise UsageError(
                f"{', '.join(other)}: {'this file has' if len(other) == 1 else 'these files have'} other content, and "
                f"nothing was written: give another folder, or --force to replace {'it' if len(other) == 1 else 'them'}"
            )
        for path, content in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode())
    except OSError as error:
        raise UsageError(f"the submit files cannot be written: {error}") from error
    for path in wanted:
        print(f"{path}{'' if path not in there else ': replaced' if str(path) in other else ': as it was'}")
    print(f"{counted(len(wanted), 'file')} written, for jobs that run {sys.executable}. Next, for the ping example:")
    folder = shlex.quote(str(parsed.folder))
    print(f"  HTCondor: cd {folder} && condor_submit condor/master.sub && condor_submit condor/slaves.sub")
    print(f"  Slurm:    cd {folder} && sbatch slurm/master.sbatch && sbatch slurm/slaves.sbatch")
    print("For your own script: APP=my.py after condor_submit and its file, and my.py after sbatch and its file")
    return ExitCode.OK


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("submit-files", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder; it is made if it is not there")
    parser.add_argument("--force", action="store_true", help="replace files with other content")
    return parser


def submit_files(interpreter: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the content of each submit file, for jobs that run this interpreter."""
    root = _root()
    for folder, suffixes in FOLDERS.items():
        for path in sorted((root / folder).iterdir()):
            if path.suffix in suffixes:
                content = path.read_text(encoding="utf-8")
                named = OF_A_CLONE.get(path.suffix)
                yield f"{folder}/{path.name}", content.replace(named, interpreter) if named else content


def _root() -> Path:
    """The folder that has the submit files: one of the wheel; or the clone, if mwpy is installed as a link to it."""
    package = Path(__file__).parents[1]
    packed = package / "_batch" / "submit_files"
    root = packed if packed.is_dir() else package.parents[1]
    if not (root / "condor" / "app.sub").is_file():
        raise UsageError(
            "this installation of mwpy has no submit files: install it with pip, or from a clone with `pip -e`"
        )
    return root
