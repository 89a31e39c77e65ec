"""The `mwpy` command: what is done without a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mwpy import slave
from mwpy._process import SLAVE_VARIABLE
from mwpy.app import run_agent, version_string
from mwpy.errors import ExitCode, MwpyError, UsageError
from mwpy.options import help_text, parse

__all__ = ["main"]

USAGE = """usage: mwpy slave --mw-resource-file FILE [--mw-OPTION ...]
       mwpy version

`mwpy slave` is an agent without a script: its slaves run algorithms that travel by value, and those of
modules that are installed here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `mwpy` command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        match arguments:
            case ["slave", *rest]:
                return _slave(rest)
            case ["version" | "--version"]:
                print(version_string())
                return ExitCode.OK
            case _:
                print(USAGE, file=sys.stderr)
                return ExitCode.USAGE
    except MwpyError as error:
        print(f"mwpy: {error}", file=sys.stderr)
        return int(error.exit_code)


def _slave(arguments: list[str]) -> int:
    if SLAVE_VARIABLE in os.environ:
        return slave.run(os.environ[SLAVE_VARIABLE], None, [])
    options, rest = parse(["--mw-slave", *arguments], os.environ)
    if rest:
        raise UsageError(f"`mwpy slave` takes no argument {rest[0]!r}: an application's own go with its master")
    if options.help:
        print(help_text("mwpy slave"))
        return ExitCode.OK
    return run_agent(options, [sys.executable, "-m", "mwpy", "slave"])
