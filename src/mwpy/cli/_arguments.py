"""How all commands parse their arguments, and the options and table of batch systems that several commands share."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shlex
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from mwpy._batch import Batch
from mwpy._batch._queued import Language
from mwpy._values.errors import UsageError


def help_of(about: str | None) -> tuple[str, str]:
    """Divide the docstring of a command: its description, and the examples and exit codes, which keep their lines."""
    description, heading, rest = (about or "").partition("\nexamples:\n")
    return description.partition("\n")[2], heading + rest


class Parser(argparse.ArgumentParser):
    """The parser of one command. A mistake in the arguments is a `UsageError` of one line.

    Args:
        command: the name of the command.
        about: the docstring of its module.
        settings: any arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, command: str, about: str | None = None, **settings: Any) -> None:
        description, self._more = help_of(about)
        super().__init__(prog=f"mwpy {command}", allow_abbrev=False, **{"description": description, **settings})

    def format_help(self) -> str:
        """Return the help: usage, options in groups, examples and exit codes."""
        return super().format_help() + self._more

    def error(self, message: str) -> NoReturn:
        """Report a mistake."""
        raise UsageError(f"{message}; `{self.prog} --help` shows the options")


def on_screen(text: str) -> str:
    """A text from another machine, in one line, without characters that change a terminal."""
    return "".join(each if each.isprintable() else " " for each in text)


def show(document: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a document as JSON for scripts, or lines for people."""
    print(*[json.dumps(document)] if as_json else map(on_screen, lines), sep="\n")


def number(least: float, kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make the `type` of an option that is a number of this kind, and at least this large."""

    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' if kind is int else ''}number") from None
        if not (value >= least and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text} is too small: write {least:g} or more")
        return value

    return convert


def _name(text: str) -> str:
    """Convert the name of a job. All batch systems accept these characters."""
    if not re.fullmatch(r"[A-Za-z][\w.-]{0,63}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} must be a letter, and then letters, digits and . _ -")
    return text


def _word(text: str) -> str:
    if not re.fullmatch(r"[^\s'\"]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be one word without quotes")
    return text


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a job, in groups."""
    add = parser.add_argument_group("jobs").add_argument
    command = "run this program, with these first arguments, instead of the one in the resource file"
    add("--command", type=shlex.split, default=[], metavar="'PROGRAM ARGUMENT ...'", help=command)
    add("--log-dir", type=Path, metavar="DIR", help="the folder for jobs' output; default RESOURCE_FILE.jobs")
    add("--job-name", type=_name, metavar="NAME", help="the name of the jobs in the batch system")
    add(
        "--account",
        type=_word,
        metavar="NAME",
        help="the account, project or accounting group that is charged",
    )
    add("--queue", type=_word, metavar="NAME", help="the queue or partition that the jobs wait in")
    prologue = "run this line of a login shell (bash) before the agent; if it fails, the job ends (repeatable)"
    add("--prologue", action="append", default=[], metavar="LINE", help=prologue)
    line = "add this line to each submission, in the batch system's own language (repeatable)"
    add("--line", action="append", default=[], metavar="LINE", help=line)
    add = parser.add_argument_group("jobs of htcondor").add_argument
    add("--memory", metavar="SIZE", help="the memory that a job asks for; default 1GB")
    add("--disk", metavar="SIZE", help="the disk space that a job asks for; default 1GB")
    transfer = "transfer this file to the job; if the command names it, the job's command names the copy"
    add("--transfer", type=Path, action="append", default=[], metavar="FILE", help=f"{transfer} (repeatable)")
    add = parser.add_argument_group("jobs through ssh").add_argument
    add("--hosts", type=Path, metavar="FILE", help="the machines, one line `HOST [slots=N] [python=PATH]` for each")
    add("--ssh-options", type=shlex.split, default=[], metavar="'-F FILE ...'", help="options for ssh itself")


QUEUED = ("htcondor", "slurm", "sge", "pbs")
"""The batch systems with a queue and a language of their own; see `language`."""

IN_OWN_WORDS = {
    ("account", "htcondor"): "accounting_group = {}",
    ("account", "slurm"): "--account={}",
    ("account", "sge"): "-A {}",
    ("account", "pbs"): "-A {}",
    ("queue", "slurm"): "--partition={}",
    ("queue", "sge"): "-q {}",
    ("queue", "pbs"): "-q {}",
}
"""Options in the language of each batch system."""

USED_BY = {
    "memory": ("htcondor",),
    "disk": ("htcondor",),
    "transfer": ("htcondor",),
    "hosts": ("ssh",),
    "ssh_options": ("ssh",),
    "line": QUEUED,
    "job_name": QUEUED,
    "account": tuple(system for name, system in IN_OWN_WORDS if name == "account"),
    "queue": tuple(system for name, system in IN_OWN_WORDS if name == "queue"),
    "log_dir": (*QUEUED, "local"),
}
"""The options of a job that only some batch systems use, and these systems."""

INSTEAD = {
    ("queue", "htcondor"): ", because HTCondor has no queues; write --line='requirements = ...' to choose machines",
    ("memory", "slurm"): "; for Slurm, write --line=--mem=SIZE",
    ("memory", "sge"): "; for Grid Engine, write --line='-l mem_free=SIZE'",
    ("memory", "pbs"): "; for PBS, write --line='-l select=1:ncpus=N:mem=SIZE'",
    ("disk", "slurm"): "; for Slurm, write --line=--tmp=SIZE",
    ("log_dir", "ssh"): "; each host keeps the output of its jobs in ~/.mwpy-ssh",
}
"""What serves instead of a refused option."""


def lines(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The lines for each submission: the options that all batch systems share, and then the user's lines."""
    own = [(line, name) for (name, system), line in IN_OWN_WORDS.items() if system == arguments.system]
    return (*(line.format(value) for line, name in own if (value := getattr(arguments, name))), *arguments.line)


def language(system: str) -> Language | None:
    """The language of a batch system with a queue; None for other systems."""
    return import_module(f"mwpy._batch.{system}").LANGUAGE if system in QUEUED else None


def batch_system(arguments: argparse.Namespace) -> Batch:
    """Make the batch system that `--with` names; without it, this machine.

    Raises:
        UsageError: an option has no effect with this batch system, or is wrong.
    """
    system = arguments.system or "local"
    for name, systems in USED_BY.items():
        if getattr(arguments, name) and system not in systems:
            option = "--" + name.replace("_", "-")
            where = "without --with" if arguments.system is None else f"with --with {system}"
            able = " or ".join(f"--with {each}" for each in systems)
            raise UsageError(f"{option} has no effect {where}, only with {able}{INSTEAD.get((name, system), '')}")
    if (own := language(system)) is not None:
        own.check(arguments.line)
    if system == "ssh" and arguments.hosts is None:
        raise UsageError("--with ssh needs --hosts FILE, with a line `HOST slots=N` for each machine")
    made: dict[str, tuple[str, tuple[Any, ...]]] = {
        "htcondor": ("HTCondor", (arguments.memory or "1GB", arguments.disk or "1GB", arguments.transfer)),
        "slurm": ("Slurm", ()),
        "sge": ("GridEngine", ()),
        "pbs": ("Pbs", ()),
        "ssh": ("Ssh", (arguments.hosts, arguments.ssh_options)),
        "local": ("Local", (state_folder() / "jobs" / platform.node(),)),  # hosts may share a home directory
    }
    kind, settings = made[system]
    batch: Batch = getattr(import_module(f"mwpy._batch.{system}"), kind)(*settings)  # imported only when it is used
    return batch


def state_folder() -> Path:
    """Return the folder where this user's commands keep what must outlive them."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "mwpy"
