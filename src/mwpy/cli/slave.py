"""mwpy slave [SCRIPT [ARGUMENT ...]] --mw-resource-file FILE: an agent, of whose script only the slaves know.

The agent is up and connected before the script is touched: only its slaves run it. So a script that cannot be imported
on this machine is told of at the master, as the last words of slaves. `python SCRIPT --mw-slave` runs the script's top
level in the agent itself, and one that fails there leaves its traceback to the batch system's files alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mwpy import slave
from mwpy._values.environment import SLAVE_VARIABLE
from mwpy._values.errors import ExitCode
from mwpy._values.options import help_text, parse
from mwpy.app import AGENT, run_agent

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Be an agent whose slaves run the script; without one, what travels by value and modules installed here."""
    if SLAVE_VARIABLE in os.environ:
        return slave.run(os.environ[SLAVE_VARIABLE], None, [])
    if list(arguments) == ["--help"]:
        arguments = ["--mw-help"]
    options, script = parse(["--mw-slave", *arguments], os.environ)
    if options.help:
        print(help_text("mwpy slave [SCRIPT]"))
        return ExitCode.OK
    return run_agent(options, [sys.executable, *(script or AGENT)])
