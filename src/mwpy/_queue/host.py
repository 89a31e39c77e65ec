"""Lets a machine serve the computations of a queue, one after the other: the most important one that needs slaves.

Each is served by an agent of its own, which ends when it has had no task for a while, or when a more important
computation needs slaves: then it first finishes its tasks.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from contextlib import suppress
from pathlib import Path

from attrs import Factory, define

from mwpy import resource_file
from mwpy._queue.entry import Entry
from mwpy._queue.folder import Announced, Folder, beat, user_name
from mwpy._roles import join
from mwpy._roles.overseer import agent_command
from mwpy._system import clock, process
from mwpy._values.errors import ExitCode, MwpyError, ResourceFileError
from mwpy._values.jobs import FINISHED, ResourceFile
from mwpy._values.options import JOB_VARIABLE
from mwpy._values.phrases import counted

IDLE_S = 5.0
"""After how many seconds without a task an agent ends."""

LOOK_S, LONGEST_LOOK_S = 1.0, 30.0
"""How often a machine looks into the queue, in seconds: while it serves, and at most, when nothing needs it."""


@define(eq=False)
class Host:
    """A machine that serves a queue.

    Args:
        folder: the queue.
        slaves: how many slaves it has.
    """

    _folder: Folder
    _slaves: int
    _agent: process.Child | None = None
    _served: Entry | None = None
    _said: Announced | None = None
    _avoided: dict[int, float] = Factory(dict)
    """Until when entries are not served, after an agent has failed, on the monotonic clock."""

    def look(self) -> bool:
        """Look once. Return whether it serves an entry.

        Raises:
            OSError: the folder cannot be used now.
        """
        if self._agent is not None and (code := self._agent.poll()) is not None:
            assert self._served is not None
            if code not in (ExitCode.OK, ExitCode.UNFIT):
                print(f"mwpy: the agent for entry {self._served.number} ended with exit code {code}", file=sys.stderr)
            if code != ExitCode.OK:
                self._avoided[self._served.number] = clock.monotonic() + LONGEST_LOOK_S
            self._agent = self._served = None
        best = min(self._needing(), key=lambda found: (found[0].priority, found[0].number), default=None)
        if self._agent is None and best is not None:
            self._serve(*best)
        elif self._served is not None and best is not None and best[0].priority < self._served.priority:
            with suppress(MwpyError):  # it is finished, or its master does not answer now
                join.drain(self._served.resource, self._job)
        name = f"{self._served.number} {self._served.asked.name}" if self._served is not None else ""
        said = Announced(platform.node(), user_name(os.geteuid()), name)
        beat(self._path, said, self._said)
        self._said = said
        return self._agent is not None

    @property
    def _job(self) -> str:
        return f"queue-{platform.node()}-{os.getpid()}"

    @property
    def _path(self) -> Path:
        return self._folder.path / f"host-{platform.node()}-{os.getpid()}.json"

    def _needing(self) -> list[tuple[Entry, ResourceFile]]:
        """The entries that need slaves and run as this user."""
        found = []
        for each in self._folder.entries():
            is_own = each.run_path.exists() and each.run_path.lstat().st_uid == os.geteuid()
            if not is_own or not each.is_running or clock.monotonic() < self._avoided.get(each.number, 0.0):
                continue
            try:
                content = resource_file.read(each.resource)
            except ResourceFileError:  # it is not there yet, or this user may not read it
                continue
            if content.computation_status != FINISHED and content.slaves_needed > 0:
                found.append((each, content))
        return found

    def _serve(self, entry: Entry, content: ResourceFile) -> None:
        words = agent_command(content, (), self._slaves)
        role = words.index("--mw-slave") + 1
        own = ["--mw-resource-file", str(entry.resource), "--mw-idle-exit", str(IDLE_S)]
        self._agent = process.start([*words[:role], *own, *words[role:]], environment={JOB_VARIABLE: self._job})
        self._served = entry
        print(f"mwpy: serves entry {entry.number} ({entry.asked.name} of {user_name(entry.uid)})", flush=True)

    def close(self) -> None:
        """Let the agent end, and take the announcement away."""
        if self._agent is not None:
            self._agent.terminate()
        self._path.unlink(missing_ok=True)


def run(folder: Folder, slaves: int) -> int:
    """Serve the computations of a queue until this process is stopped. Return the exit code."""
    host, pause_s = Host(folder, slaves), LOOK_S
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"mwpy: serves the queue {folder.path} with {counted(slaves, 'slave')}", flush=True)
    try:
        while True:
            try:
                is_needed = host.look()
            except OSError as error:
                is_needed = False
                print(f"mwpy: the queue cannot be used now: {error}", file=sys.stderr, flush=True)
            pause_s = LOOK_S if is_needed else min(2 * pause_s, LONGEST_LOOK_S)
            clock.sleep(pause_s)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        host.close()
