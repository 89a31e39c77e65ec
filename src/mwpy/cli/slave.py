"""mwpy slave --mw-resource-file FILE: an agent without a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mwpy import slave
from mwpy._process import SLAVE_VARIABLE
from mwpy.app import run_agent
from mwpy.errors import ExitCode, UsageError
from mwpy.options import help_text, parse

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Be an agent whose slaves run algorithms that travel by value, and those of modules that are installed here."""
    if SLAVE_VARIABLE in os.environ:
        return slave.run(os.environ[SLAVE_VARIABLE], None, [])
    options, rest = parse(
        ["--mw-slave", *("--mw-help" if each == "--help" else each for each in arguments)], os.environ
    )
    if rest:
        raise UsageError(f"`mwpy slave` takes no argument {rest[0]!r}: an application's own go with its master")
    if options.help:
        print(help_text("mwpy slave"))
        return ExitCode.OK
    return run_agent(options, [sys.executable, "-m", "mwpy", "slave"])
