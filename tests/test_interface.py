"""The interface agrees with the list in `interface.txt`: names, options, exit codes, file formats, messages.

The list was written before the code was rearranged. To change an interface on purpose, describe the change in
CHANGELOG.md and run this file as a program. It writes the list again:

    .venv/bin/python -m tests.test_interface
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import mwpy
from mwpy import audit, resource_file, run_database
from mwpy._transport import wire
from mwpy._values import bounds, messages, options

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_name("interface.txt")

MADE_BY_USERS = (
    "TaskCancelled",
    "TaskFailed",
    "Cluster",
    "SimulationFailure",
    "ResourceFile",
    "MemberKeys",
    "AuditFile",
    "LoopCounts",
    "SlaveLoop",
    "RunDatabase",
)
FOR_THE_SIMULATOR = (
    "add_agent",
    "core",
    "needs",
    "run_until",
    "transcript",
)
"""Members of `Cluster` for the simulation of an overseer. Users only run a cluster and examine its final state."""

COMMANDS = (
    "compare",
    "doctor",
    "explain",
    "logs",
    "oversee",
    "pack",
    "queue",
    "runs",
    "slave",
    "status",
    "submit-files",
    "sweep",
)


@functools.cache
def described() -> str:
    """Return the whole interface as text, with one section for each part."""
    sections = {
        "import mwpy": names(mwpy),
        "mwpy.testing": names(importlib.import_module("mwpy.testing")),
        "mwpy.resource_file": names(resource_file),
        "mwpy.audit": names(audit),
        "mwpy.run_database": names(run_database),
        "mwpy.joblib": names(importlib.import_module("mwpy.joblib")),
        "options of a script": [f"--mw-{each.name} {each.metavar} [{each.default}]" for each in options.OPTIONS],
        "environment variables": environment_variables(),
        "exit codes": [f"{code.name} = {code.value}" for code in mwpy.ExitCode],
        "options of commands": [line for command in COMMANDS for line in command_line(command)],
        "resource file": keys_of_a_resource_file(),
        "messages": kinds_of_messages(),
        "submit files": settings_of_submit_files(),
    }
    return "".join(
        f"[{title}]\n" + "".join(f"{line.rstrip()}\n" for line in lines) + "\n" for title, lines in sections.items()
    )


def names(module: object) -> list[str]:
    """Return the names that a module exports, with signatures and the public members of classes."""
    return [
        line for name in sorted(getattr(module, "__all__", ())) for line in described_name(name, getattr(module, name))
    ]


def described_name(name: str, thing: object) -> Iterator[str]:
    if not inspect.isclass(thing):
        is_type = isinstance(thing, typing.NewType)
        yield (
            f"{name}{signature(thing)}"
            if inspect.isfunction(thing)
            else f"{name} = {'NewType' if is_type else repr(thing)}"
        )
        return
    bases = ", ".join(base.__name__ for base in thing.__mro__[1:] if base.__module__.startswith("mwpy"))
    made = signature(thing) if name in MADE_BY_USERS else ""
    yield f"class {name}({bases}){made}"
    inherited = {*dir(BaseException), *dir(tuple), *dir(int)}
    for member in sorted(dir(thing)):
        if not member.startswith("_") and member not in inherited and member not in FOR_THE_SIMULATOR:
            value = inspect.getattr_static(thing, member)
            yield f"    {member}{signature(value) if inspect.isfunction(value) else ''}"


def signature(thing: object) -> str:
    try:
        return str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


def environment_variables() -> list[str]:
    return sorted(value for name, value in vars(options).items() if name.endswith("_VARIABLE"))


def command_line(command: str) -> list[str]:
    """Return the options in the output of `mwpy COMMAND --help`, with their values."""
    if command == "slave":  # the same as those of a script
        return []
    shown = subprocess.run(
        [sys.executable, "-m", "mwpy", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "1000"},
    ).stdout
    if command == "logs":
        return ["mwpy logs --all"] if "--all" in shown else []
    return [f"mwpy {command} {found}" for found in re.findall(r"^ +(-.*?)(?:  |$)", shown, re.MULTILINE)]


def keys_of_a_resource_file() -> list[str]:
    content = resource_file.ResourceFile(
        resource_file.IN_PROGRESS,
        0.0,
        1.0,
        "m",
        "g",
        ("tcp://127.0.0.1:1",),
        resource_file.MemberKeys("s", "p", "k"),
        1,
        1,
        1,
        "python",
        ("app.py",),
        connected_jobs={"1.0": 1},
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "app.rsc"
        resource_file.write(path, content)
        mode = path.stat().st_mode & 0o777
        document = json.loads(path.read_text())
    return [f"mode {mode:04o}", *(f"{key}: {value!r}" for key, value in document.items())]


def kinds_of_messages() -> list[str]:
    """Return each kind of message with its number and its fields, and the bounds of their types."""
    lines = [f"version {messages.PROTOCOL_VERSION}"]
    for number, kind in wire._KINDS.items():
        fields = [f"{name}: {written}" for name, written in kind.__annotations__.items()]
        lines.append(f"{number} {kind.__name__}({', '.join(fields)})")
    kinds = {name: kind for name, kind in vars(bounds).items() if typing.get_origin(kind) is typing.Annotated}
    return [*lines, *(f"{name}: {shown(kind)}" for name, kind in sorted(kinds.items()))]


def settings_of_submit_files() -> list[str]:
    """Return what each submit file of HTCondor sets, and the options in each batch script of Slurm."""
    lines = []
    for path in sorted([*(ROOT / "condor").glob("*.sub"), *(ROOT / "slurm").glob("*.sbatch")]):
        found = re.findall(r"^(?:([+\w.]+) *=|#SBATCH +(\S+))", path.read_text(), re.MULTILINE)
        lines += [f"{path.name}: {setting or option}" for setting, option in found]
    return lines


def shown(kind: object) -> str:
    """Return the name of a type without the modules of its parts."""
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


@pytest.mark.parametrize("title", re.findall(r"^\[(.*)\]$", LIST.read_text() if LIST.exists() else "", re.MULTILINE))
def test_the_interface_is_as_it_was(title: str) -> None:
    """No name, option, exit code, key or field of the interface changes or disappears by accident."""
    assert section(described(), title) == section(LIST.read_text(), title), f"[{title}] changed: see {__file__}"


def section(text: str, title: str) -> list[str]:
    return text.partition(f"[{title}]\n")[2].partition("\n\n")[0].splitlines()


if __name__ == "__main__":
    LIST.write_text(described())
