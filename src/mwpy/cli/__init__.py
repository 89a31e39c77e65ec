"""The `mwpy` command: what is done without a script.

Each command is a module here: its `main(arguments)` returns the exit code, and the first line of its docstring is shown
by `mwpy --help`. It is imported only when it is called.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

from mwpy._values.errors import ExitCode, MwpyError
from mwpy.app import version_string

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `mwpy` command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        match arguments:
            case [command, *rest] if command in _commands():
                return int(importlib.import_module(f"mwpy.cli.{command}").main(rest))
            case ["version" | "--version"]:
                print(version_string())
                return ExitCode.OK
            case ["help" | "--help" | "-h"]:
                print(_usage())
                return ExitCode.OK
            case _:
                print(_usage(), file=sys.stderr)
                return ExitCode.USAGE
    except MwpyError as error:
        print(f"mwpy: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _commands() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__)]


def _usage() -> str:
    lines = ["usage: mwpy COMMAND [ARGUMENT ...]", ""]
    for command in _commands():
        told = importlib.import_module(f"mwpy.cli.{command}").__doc__ or ""
        lines.append(f"  {told.splitlines()[0]}")
    return "\n".join([*lines, "  mwpy version: print the version.", "", "`mwpy COMMAND --help` tells more."])
