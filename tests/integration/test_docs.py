"""Every command that the documents show is run, in a new folder, as a reader would run it.

The lines of a `sh` block are run one by one. A `text` block directly after it, or after the line "It prints:", is the
output of its last command: each of its lines must be printed. A `python` block with a whole script, and other blocks
of `toml` and `text`, are saved under the name that the next paragraph gives. Any other `python` block is run by an
interpreter. A command with `--mw-master` goes on while the lines below it are run, as in another terminal. It must end
before its block ends.

A new command needs no change here. A command that no test can run is listed in `CANNOT_RUN`, with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import field, frozen
from tests.integration.apps.stage import Running, Stage, until

from mwpy._values.options import Options, Role, parse
from mwpy.resource_file import IN_PROGRESS

ROOT = Path(__file__).parent.parent.parent
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (
        *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    )
    if path.name not in ("htcondor.md", "slurm.md", "others.md")  # tests/batch runs these
}

BY_HAND = "by hand"
"""A section with these words in its title starts a batch system. tests/batch runs its commands."""

CANNOT_RUN = {
    "git clone URL": "the address is that of the place where the reader found the project",
    "make test": "it is what runs this test",
    "make test-long": "it takes about two hours",
    "make chaos MINUTES=30 SEED=7": "it takes half an hour; tests/chaos runs it for a shorter time",
    "make simulate SEEDS=2500": "it takes long; make test runs 150 seeds",
    "make kill KILLS=1000": "make test runs 60 kills",
    "make power LOSSES=2000 SEED=7": "it takes some minutes; tests/power runs it for ten losses",
    "make bench-peers": "it installs other libraries",
    ".venv/bin/pip install mwpy-cluster[frames]": "it needs a package index",
    "python3 -m venv .venv": "the test has an environment already",
    "make check": "it runs tests that run beside this one",
    "chgrp lab queue": "this machine has no such group",
    "mwpy queue queue --with ssh --hosts hosts.txt --page 8700": "it does not end; test_queue.py keeps queues",
    "mwpy pack cubes.py": "it needs a package index; test_pack.py packs",
    "python3 cubes.pex --mw-slave --mw-resource-file cubes.rsc": "it is packed by the command before",
}
"""Commands that are shown but not run, and why. Their comments are left out."""

SQLITE_SHELL = """\
import sqlite3, sys
connection = sqlite3.connect(sys.argv[-2])
for statement in sys.argv[-1].split(";"):
    print(*connection.execute(statement), sep="\\n")
"""
"""Runs queries where the shell of SQLite is not installed."""

IN_A_CLONE = ("Makefile", "pyproject.toml", "bench", "examples", "src", "tests", "docs", "condor", "slurm", "README.md")
"""The parts of the repository that are copied into the folder of the commands."""

FENCED = re.compile(r"^(```+|~~~+)(.*)\n((?:.*\n)*?)\1 *$", re.MULTILINE)
HIDDEN = re.compile(r"(?:^|\n)\n((?: {4}|\t).*)|^(.*(?:```|~~~).*)$", re.MULTILINE)
"""Code that would be shown but not run: an indented block, a fence in a list, a fence without an end."""


@frozen
class Command:
    """A line to type, and the lines that the document shows as its output."""

    line: str
    shown: list[str] = field(factory=list)

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)

    @property
    def options(self) -> Options:
        return parse(self.words)[0]


@frozen
class Block:
    """A fenced block; `name` is the file name for a script, `output` what the last command prints."""

    language: str
    text: str
    name: str | None = None
    output: str = ""

    @property
    def is_file(self) -> bool:
        """Whether it is a script, a study of `mwpy sweep`, or another file."""
        if self.language == "python":
            return self.name is not None or "mwpy.main()" in self.text
        return self.language in ("toml", "text")

    def commands(self) -> list[Command]:
        """Return the commands of the block, in order."""
        lines = self.text.replace("\\\n", "").splitlines() if self.language == "sh" else []
        commands = [command for command in map(Command, lines) if command.words]
        if self.output:
            commands[-1].shown.extend(self.output.splitlines())
        return commands


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a document, in order. An output is a part of the block before it."""
    fences = [*FENCED.finditer(text)]
    outputs = {
        shell: output
        for shell, output in pairwise(fences)
        if (shell[2], output[2]) == ("sh", "text") and text[shell.end() : output.start()].strip() in ("", "It prints:")
    }
    for found in fences:
        if found not in outputs.values():
            paragraph = text[found.end() :].strip().split("\n\n")[0]
            name = re.search(r"[Ss]ave\s+it\s+as\s+`([^`]+)`", paragraph)
            yield Block(found[2], found[3], name[1] if name else None, outputs[found][3] if found in outputs else "")


def sections(text: str) -> dict[str, str]:
    """Return the sections of a document by title. The text before the first section has an empty title."""
    parts = text.split("\n## ")
    return {"": parts[0]} | {part.partition("\n")[0]: part for part in parts[1:]}


def faults(text: str) -> Iterator[str]:
    """Yield a sentence for each piece of code that this test would not run."""
    for hidden in HIDDEN.finditer(FENCED.sub("", text)):
        yield f"{hidden[0].strip()!r} is not run: fence it, from the first column, with ``` and `sh`, and end the fence"
    for block in blocks(text):
        first = block.text.partition("\n")[0]
        if block.language not in ("sh", "python", "toml", "text"):
            yield f"the block of {first!r} is not run: say `sh` or `python` behind its fence, not more"
        if block.is_file and block.name is None:
            yield f"the file of {first!r} has no name: write 'Save it as `NAME`' in the paragraph after it"


def follow(stage: Stage, text: str) -> None:
    """Run all commands of a document. Each must succeed and print the lines that are shown."""
    for block in blocks(text):
        if block.is_file:
            (stage.folder / str(block.name)).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            succeed(start(stage, [sys.executable, "-c", block.text]), Command(block.text))
        masters: list[tuple[Running, Command]] = []
        for command in block.commands():
            if " ".join(command.words) in CANNOT_RUN:
                continue
            running = start(stage, ["sh", "-c", command.line])
            if command.options.role is Role.MASTER:
                masters.append((running, command))
                wait_for_address(running, command, stage.folder)
            else:
                succeed(running, command)
        for running, command in masters:
            succeed(running, command)
    stage.no_process_left()


def start(stage: Stage, program: list[str]) -> Running:
    """Start a command in the virtual environment of the clone. pip cannot install anything."""
    path = f"{stage.folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    state = str(stage.folder / "state")
    variables = {"PATH": path, "PIP_NO_INDEX": "1", "MAKEFLAGS": "", "XDG_STATE_HOME": state}
    return stage.start("", program=program, variables=variables)


def wait_for_address(master: Running, command: Command, folder: Path) -> None:
    """Wait until the resource file of a master says that the computation is in progress."""
    resource = command.options.resource_file
    assert resource is not None, f"say in this test when slaves can find the master of {command.line!r}"
    path = folder / resource
    until(
        lambda: (path.exists() and IN_PROGRESS in path.read_text()) or master.process.poll() is not None,
        f"a resource file of {command.line!r}",
    )


def succeed(running: Running, command: Command) -> None:
    """Assert that a command ends with code 0 and has printed each line that is shown."""
    code = running.end()
    story = f"{command.line}\n{running.out}{running.err}"
    assert code == 0, f"exit code {code} of {story}"
    assert "Traceback" not in running.err, story
    missing = [line for line in command.shown if line not in running.out.splitlines()]
    assert not missing, f"{missing} was not printed by {story}"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A copy of the repository in which everything seems to be installed."""
    for name in IN_A_CLONE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, command in (("python", [sys.executable]), ("mwpy", [sys.executable, "-m", "mwpy"])):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (programs / name).chmod(0o755)
    if shutil.which("sqlite3") is None:
        (programs / "sqlite3").write_text(f"#!{sys.executable}\n{SQLITE_SHELL}")
        (programs / "sqlite3").chmod(0o755)
    for stamp in ("pyvenv.cfg", "installed", "installed-for-tests"):
        (tmp_path / ".venv" / stamp).touch()
    with Stage(tmp_path) as stage:
        yield stage


@pytest.mark.parametrize("document", [name for name, text in TEXTS.items() if any(blocks(text))])
def test_what_a_document_shows_works(stage: Stage, document: str) -> None:
    """Each command ends with code 0 and prints the lines that are shown. No process is left."""
    follow(stage, "\n".join(text for title, text in sections(TEXTS[document]).items() if BY_HAND not in title.lower()))


@pytest.mark.parametrize("document", TEXTS)
def test_all_code_of_a_document_is_run(document: str) -> None:
    """All code is in fenced blocks of a language that is run."""
    found = list(faults(TEXTS[document]))
    assert not found, f"{document}:\n" + "\n".join(found)


def test_an_output_that_is_not_printed_is_found(stage: Stage) -> None:
    """An output is compared, and is no file. After other text, a `text` block is a file."""
    right, said = ("```sh\necho no\necho 1; echo 2\n```\n\n", "It prints:\n\n")
    follow(stage, f"{right}```text\n1\n2\n```\n")
    follow(stage, f"{right}{said}```text\n2\n```\n\nThe rest is not shown.")
    with pytest.raises(AssertionError, match=r"\['3'\] was not printed by echo 1"):
        follow(stage, f"{right}{said}```text\n1\n3\n```\n")
    [_, block] = blocks(f"{right}Another file:\n\n```text\n1\n```\n\nSave it as `one`.")
    assert block.is_file
    assert block.name == "one"


@pytest.mark.parametrize("document", ["docs/start.md", "docs/manual/script.md"])
def test_the_roles_are_shown(document: str) -> None:
    """Both documents have a script, and commands that run it alone, as a master, and as a slave."""
    found = list(blocks(TEXTS[document]))
    assert any(block.is_file for block in found)
    assert {command.options.role for block in found for command in block.commands()} == {*Role}


def test_each_exception_is_shown_in_a_document() -> None:
    """A command that was removed from the documents must be removed from `CANNOT_RUN`."""
    shown = {
        " ".join(command.words) for text in TEXTS.values() for block in blocks(text) for command in block.commands()
    }
    assert {*CANNOT_RUN} <= shown


def test_the_rows_of_the_scan_are_written_until_the_master_is_killed(stage: Stage) -> None:
    guide = (ROOT / "docs" / "guides" / "parameter-scan.md").read_text()
    scan, rows = (part.partition("```")[0] for part in guide.split("```python\n")[1:])
    first = "def simulate(mass, charge, spin, field):\n"
    endless = f"{first}    import time\n    time.sleep(1000 * (mass == 1 and charge == 0 and spin > 0 and field))\n"
    assert first in scan
    (stage.folder / "scan.py").write_text(scan.replace(first, endless))
    (stage.folder / "rows.py").write_text(rows.replace("mwpy.open()", "mwpy.open(slaves=2)"))
    master = stage.start("", program=[sys.executable, "rows.py"])
    table = stage.folder / "rows.csv"
    until(lambda: table.exists() and len(table.read_text().splitlines()) == 47, "all rows but the endless one")
    master.process.kill()
    master.process.wait()
    assert len(table.read_text().splitlines()) == 47
