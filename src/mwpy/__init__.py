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

_OF_MODULES = {
    "_roles.join": ("drain", "explain", "status"),
    "_roles.replay": ("replay", "to_frame"),
    "_roles.set_up": ("agent_folder",),
    "_transport.shared_objects": ("share",),
    "executor": ("Executor",),
    "master": ("LocalMaster", "LoopCounts", "Master"),
    "slave": ("Slave", "SlaveLoop"),
    "sweep.command": ("Command", "CommandFailed", "NotStarted", "Outcome", "command"),
    "sweep.files": ("File", "file", "output"),
}
"""The names that most scripts do not use, by their modules. They are imported when they are used, so that each process
starts quickly."""

if not TYPE_CHECKING:  # else mypy would accept every name

    def __getattr__(name):
        home = next((module for module, names in _OF_MODULES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = globals()[name] = getattr(import_module(f"mwpy.{home}"), name)
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
