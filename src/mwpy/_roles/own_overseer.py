"""The overseer that a master starts for its own resource file."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from attrs import define

from mwpy._system import clock, process
from mwpy._system.packages import module_path
from mwpy._values.errors import UsageError
from mwpy._values.options import AGENT, MODULE_PATH

SYSTEMS = ("htcondor", "slurm", "ssh", "local")
"""The batch systems that a master can use by itself."""

END_S = 60.0
"""How long the batch system may take to remove the jobs at the end, in seconds."""

KILL_S = 0.01
"""Seconds between two checks whether a killed process has ended."""

LOG = ".overseer"
"""What follows the name of the resource file in the name of the overseer's log file."""


@define(eq=False, repr=False)
class OwnOverseer:
    """A process that oversees one computation. It ends with the thread that starts it, even if this process is killed.

    Args:
        path: the resource file.
        system: the batch system.
        max_jobs: how many jobs it may have in the queue.
        options: more options of `mwpy oversee`.
        modules: where the jobs of this machine find modules.
    """

    path: str
    system: str
    max_jobs: int
    options: Sequence[str]
    modules: str
    _child: process.Child | None = None

    @property
    def _command(self) -> list[str]:
        return [sys.executable, *AGENT[:-1], "oversee", self.path, "--with", self.system, *self.options]

    def start(self) -> None:
        """Start it.

        Raises:
            OSError: it cannot be started, or its log file cannot be written.
        """
        own = ["--max", str(self.max_jobs), "--parent", str(os.getpid())]
        with open(f"{self.path}{LOG}", "wb") as log:
            environment = {MODULE_PATH: self.modules}
            self._child = process.start([*self._command, *own], environment=environment, output=(log, log))

    def end(self) -> None:
        """End it, and remove the jobs of the computation, which is over. If this fails, say so on standard error."""
        child = self._child
        if child is None:
            return
        child.kill()
        while child.poll() is None:
            clock.sleep(KILL_S)
        child.close()
        command = [*self._command, "--remove"]
        try:
            ended = process.run(command, timeout_s=END_S)
            problem = "" if not ended.returncode else ended.err
        except (OSError, process.TimedOut) as error:
            problem = str(error)
        if problem:
            text = f"mwpy: jobs of {self.path} may be left ({' '.join(problem.split())}): run `{shlex.join(command)}`"
            print(text, file=sys.stderr, flush=True)


def own_overseer(path: str, system: str | None, max_jobs: int, options: Sequence[str]) -> OwnOverseer | None:
    """Make the overseer of a master, if it has one.

    Args:
        path: the resource file of the master.

    Raises:
        UsageError: an argument is wrong; the caller's fault.
    """
    if max_jobs < 1:
        raise UsageError(f"max_jobs={max_jobs!r}: give a whole number from 1 on")
    if system is None:
        return None
    if system not in SYSTEMS:
        raise UsageError(f"system={system!r}: give one of {', '.join(SYSTEMS)}, or None for no overseer")
    return OwnOverseer(path, system, max_jobs, options, module_path())
