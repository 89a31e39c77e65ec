"""Master-worker computing for Python: one script, many machines that come, go and crash.

import sys, mwpy

@mwpy.task_algorithm
def square(x: int) -> int:
    return x * x

@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    print(sum(mw.map(square, range(100))))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mwpy._system import shadows

try:
    from mwpy._system.time_left import seconds_left, warned
    from mwpy._values.algorithm import TaskAlgorithm, TaskCall, agent_setup, task, task_algorithm
    from mwpy._values.bounds import SlaveId, TaskId
    from mwpy._values.causes import Cause
    from mwpy._values.errors import (
        AlgorithmUnavailable,
        ArgumentNotPicklable,
        CannotRun,
        DependencyFailed,
        EndIsNear,
        ExitCode,
        FailureKind,
        InternalError,
        MasterUnreachable,
        MwpyError,
        OutOfTime,
        Refused,
        ResourceFileError,
        RunDatabaseError,
        SharedObjectMissing,
        TaskCancelled,
        TaskFailed,
        TaskUnrunnable,
        TooManyFailures,
        UsageError,
    )
    from mwpy._values.items import grid
    from mwpy._values.messages import Attempt, Report, checkpoint, report, restored, this_attempt
    from mwpy._values.policy import Policies
    from mwpy._values.task import Result, UnrunnableTask, given, result, task_seed
    from mwpy.app import VERSION, local_master, main, master_algorithm, slave_algorithm, version_string
except Exception as error:
    shadows.explain(error)
    raise

if TYPE_CHECKING:
    from mwpy._roles.join import drain, explain, status
    from mwpy._roles.replay import replay, to_frame
    from mwpy._roles.set_up import agent_folder
    from mwpy._transport.shared_objects import share
    from mwpy.executor import Executor
    from mwpy.master import LocalMaster, LoopCounts, Master
    from mwpy.slave import Slave, SlaveLoop
    from mwpy.sweep.command import Command, CommandFailed, NotStarted, Outcome, command
    from mwpy.sweep.files import File, file, output

__all__ = [
    "AlgorithmUnavailable",
    "ArgumentNotPicklable",
    "Attempt",
    "CannotRun",
    "Cause",
    "Command",
    "CommandFailed",
    "DependencyFailed",
    "EndIsNear",
    "Executor",
    "ExitCode",
    "FailureKind",
    "File",
    "InternalError",
    "LocalMaster",
    "LoopCounts",
    "Master",
    "MasterUnreachable",
    "MwpyError",
    "NotStarted",
    "OutOfTime",
    "Outcome",
    "Policies",
    "Refused",
    "Report",
    "ResourceFileError",
    "Result",
    "RunDatabaseError",
    "SharedObjectMissing",
    "Slave",
    "SlaveId",
    "SlaveLoop",
    "TaskAlgorithm",
    "TaskCall",
    "TaskCancelled",
    "TaskFailed",
    "TaskId",
    "TaskUnrunnable",
    "TooManyFailures",
    "UnrunnableTask",
    "UsageError",
    "agent_folder",
    "agent_setup",
    "checkpoint",
    "command",
    "drain",
    "explain",
    "file",
    "given",
    "grid",
    "local_master",
    "main",
    "master_algorithm",
    "output",
    "replay",
    "report",
    "restored",
    "result",
    "seconds_left",
    "share",
    "slave_algorithm",
    "status",
    "task",
    "task_algorithm",
    "task_seed",
    "this_attempt",
    "to_frame",
    "version_string",
    "warned",
]

open = local_master  # noqa: A001  # users write mwpy.open
"""Another name for notebooks. It is not in `__all__`, because `from mwpy import *` must not replace the builtin."""

__version__ = VERSION
"""The version of this library."""

_OF_ROLES = {
    "Command": "mwpy.sweep.command",
    "CommandFailed": "mwpy.sweep.command",
    "Executor": "mwpy.executor",
    "File": "mwpy.sweep.files",
    "LocalMaster": "mwpy.master",
    "LoopCounts": "mwpy.master",
    "Master": "mwpy.master",
    "NotStarted": "mwpy.sweep.command",
    "Outcome": "mwpy.sweep.command",
    "Slave": "mwpy.slave",
    "SlaveLoop": "mwpy.slave",
    "agent_folder": "mwpy._roles.set_up",
    "command": "mwpy.sweep.command",
    "drain": "mwpy._roles.join",
    "explain": "mwpy._roles.join",
    "file": "mwpy.sweep.files",
    "output": "mwpy.sweep.files",
    "replay": "mwpy._roles.replay",
    "share": "mwpy._transport.shared_objects",
    "to_frame": "mwpy._roles.replay",
    "status": "mwpy._roles.join",
}
"""The names that most scripts do not use, and their modules. They are imported when they are used, so that each process
starts quickly."""

if not TYPE_CHECKING:  # else mypy would accept every name

    def __getattr__(name):
        if name not in _OF_ROLES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = globals()[name] = getattr(import_module(_OF_ROLES[name]), name)
        except Exception as error:
            shadows.explain(error)
            raise
        return value

    def __dir__():
        return [*__all__, "__version__", "open"]


for name in __all__:
    public = globals().get(name)
    if isinstance(public, type) and issubclass(public, MwpyError):
        public.__module__ = __name__  # tracebacks then show the name under which users catch it
del name, public
