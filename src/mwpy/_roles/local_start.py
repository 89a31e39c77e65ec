"""The start of a master that `mwpy.main` does not start: its slaves load the script, if they can."""

from __future__ import annotations

import os
import sys
from operator import index
from typing import TYPE_CHECKING

from mwpy._roles.computation import Computation, start, start_own_slave
from mwpy._system.loaded_script import LoadedScript
from mwpy._system.modules import module_path
from mwpy._system.process import agent_command, count_cores
from mwpy._values.environment import MODULE_PATH, OWN_MODULE_PATH, SCRIPT_VARIABLE
from mwpy._values.errors import UsageError
from mwpy._values.options import Options

if TYPE_CHECKING:
    from mwpy.audit import AuditFile

__all__ = ["start_local"]


def start_local(slaves: int | None, options: Options, script: LoadedScript | None) -> Computation:
    """Start a master with slaves on this machine. The thread that calls this is its owner.

    Args:
        slaves: how many; None for one per core, 0 for tasks in this process. With a resource file, 0 starts none.
        script: what the slaves load; None for nothing.

    Raises:
        UsageError: the number is negative, or no whole number.
        MwpyError: it cannot start.
    """
    try:
        slaves = None if slaves is None else index(slaves)
    except TypeError:
        raise UsageError(f"slaves={slaves!r}: give a whole number, or None for one slave per core") from None
    if slaves is not None and slaves < 0:
        raise UsageError(f"local_master cannot start {slaves} slaves: give 0 or more, or None for one per core")
    file = options.resource_file
    if slaves == 0 and file is None:
        return start_own_slave(options, _without_a_file())
    command = agent_command()
    environment = {MODULE_PATH: module_path(), OWN_MODULE_PATH: os.environ.get(MODULE_PATH, "")}
    arguments: list[str] = []
    if script is not None:
        environment[SCRIPT_VARIABLE], arguments = script.to_json(), sys.argv
    elsewhere = ["--mw-slave", "--mw-resource-file", file, *options.for_agents(local=False)] if file is not None else []
    return start(
        options,
        open_audit=_without_a_file,
        key=None,
        slave_command=[*command, *elsewhere],
        local_command=agent_command(arguments),
        local_slaves=count_cores() if slaves is None else slaves,
        environment=environment,
    )


def _without_a_file() -> AuditFile:
    from mwpy.audit import AuditFile  # when the agent has started

    return AuditFile()
