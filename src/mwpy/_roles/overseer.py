"""The overseer's shell: it reads resource files, asks a batch system, and does what `OverseerCore` decides.

One thread, one loop: a round, a pause. Ctrl-C and SIGTERM end it at any place, since all that it knows can be found
again; jobs are left to their masters, for who stops an overseer mostly starts it again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shlex
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from attrs import define, field, frozen

from mwpy import resource_file
from mwpy._batch import Batch, BatchUnavailable, JobState, Launch
from mwpy._core.overseer.core import (
    Ended,
    FileRead,
    FileUnread,
    Listed,
    NotListed,
    NotRemoved,
    NotSubmitted,
    OverseerActions,
    OverseerCore,
    OverseerSettings,
    Submit,
    Submitted,
)
from mwpy._core.overseer.oversight import Need, Oversight
from mwpy._system import clock
from mwpy._values.errors import ExitCode, ResourceFileError, UsageError
from mwpy.resource_file import ResourceFile

__all__ = ["OverseerOptions", "mark_of", "need_of", "remove", "run"]

RESOURCE_FILES = "*.rsc"
"""Which files of a directory are resource files."""


@frozen
class OverseerOptions:
    """What an overseer is told; `mwpy oversee --help` has a sentence on each."""

    paths: Sequence[Path]
    settings: OverseerSettings = field(factory=OverseerSettings)
    processes: int = 1
    priorities: dict[str, int] = field(factory=dict)
    """By the path of a resource file as it was given, or by its name."""
    command: Sequence[str] = ()
    log_dir: Path | None = None
    extra: tuple[str, ...] = ()
    once: bool = False
    dry_run: bool = False


def run(options: OverseerOptions, batch: Batch) -> int:
    """Look after computations until they are finished and no job of them is left, or until told to go.

    Returns:
        The exit code. A directory is looked after until told to go.

    Raises:
        UsageError: another overseer looks after one of them.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    overseer = _Overseer(options, batch)
    try:
        return overseer.run()
    except KeyboardInterrupt:
        overseer.say("goes; the jobs are left to their masters. Start it again, or use --remove")
        return ExitCode.INTERRUPTED


def remove(options: OverseerOptions, batch: Batch) -> int:
    """Remove all jobs of computations, busy or not.

    Raises:
        BatchUnavailable: it will not.
    """
    marks = {mark_of(path): path.name for path in _files(options.paths)}
    jobs = [job for job in batch.jobs() if job.mark in marks and job.state is not JobState.LEAVING]
    if jobs:
        batch.remove([job.job_id for job in jobs])
    print(f"removed {len(jobs)} jobs of {', '.join(marks.values())}")
    return ExitCode.OK


def mark_of(path: Path) -> str:
    """The mark of a computation's jobs: a readable part, and a digest of the resource file's absolute path."""
    path = path.parent.resolve() / path.name
    readable = re.sub(r"[^a-zA-Z0-9]+", "-", path.stem)[:24].strip("-")
    return f"{readable or 'mwpy'}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"


def need_of(content: ResourceFile, wall: float) -> Need:
    """What a resource file says to the core at Unix time `wall`."""
    return Need(
        content.generation,
        content.computation_status == resource_file.FINISHED,
        content.timestamp,
        wall - content.timestamp,
        content.update_interval,
        content.slaves_needed,
        content.connected_jobs,
    )


def agent_command(content: ResourceFile, program: Sequence[str], processes: int) -> tuple[str, ...]:
    """What an agent runs, by the resource file; `program` is run instead of the one that is named there."""
    words = [content.slave_executable, *content.slave_arguments]
    role = words.index("--mw-slave") if "--mw-slave" in words else len(words)
    own = words[role + 1 :]
    if own[:1] == ["--mw-resource-file"]:
        del own[:2]
    return (*(program or words[:role]), "--mw-slave", "--mw-slave-processes", str(processes), *own)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _files(paths: Sequence[Path]) -> list[Path]:
    """The resource files that were named, and those in directories."""
    found: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.glob(RESOURCE_FILES)) if path.is_dir() else [path]
        found.update((each.parent.resolve() / each.name, None) for each in inside)
    return list(found)


@define(eq=False)
class _Watched:
    """A resource file that is looked after."""

    path: Path
    log_dir: Path
    lock: TextIO | None
    content: ResourceFile | None = None


class _Overseer:
    def __init__(self, options: OverseerOptions, batch: Batch) -> None:
        self._options = options
        self._batch = batch
        self._core = OverseerCore(options.settings)
        self._watched: dict[str, _Watched] = {}
        self._refused: dict[str, None] = {}
        self._failed = False

    def run(self) -> int:
        while True:
            self._round()
            if self._options.once or self._options.dry_run:
                return ExitCode.UNREACHABLE if self._failed else ExitCode.OK
            if self._core.done and not any(path.is_dir() for path in self._options.paths):
                return ExitCode.OK
            clock.sleep(max(0.0, self._core.next_deadline() - clock.monotonic()))

    def say(self, text: str) -> None:
        moment = datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        print(f"{moment} {'(dry run) ' if self._options.dry_run else ''}{text}", flush=True)

    # ---- what happened -------------------------------------------------------------------------------------

    def _round(self) -> None:
        for path in _files(self._options.paths):
            self._watch(path)
        for mark, watched in self._watched.items():
            self._read(mark, watched)
        now = clock.monotonic()
        try:
            self._core.handle(Listed(self._batch.jobs()), now)
        except BatchUnavailable as error:
            self._failed = True
            self._core.handle(NotListed(str(error)), now)
        while (actions := self._decide()).ask:
            for job_id in actions.ask:
                self._core.handle(Ended(job_id, self._batch.outcome(job_id)), now)
        if not self._options.dry_run:
            self._act(actions)
            self._decide()

    def _watch(self, path: Path) -> None:
        mark = mark_of(path)
        if mark in self._watched or mark in self._refused:
            return
        log_dir = (self._options.log_dir or path.with_name(f"{path.name}.jobs")).absolute()
        try:
            lock = None if self._options.dry_run else self._lock(log_dir / f"{mark}.lock")
        except BlockingIOError:
            text = f"another overseer looks after {path} ({(log_dir / f'{mark}.lock').read_text().strip()})"
            if len(self._options.paths) == 1 and not self._options.paths[0].is_dir():
                raise UsageError(f"{text}: end it first") from None
            self.say(f"{path.name}: is left alone, as {text}")
            self._refused[mark] = None
            return
        except OSError as error:
            raise UsageError(f"cannot write to {log_dir}: {error.strerror}; give another --log-dir") from error
        self._watched[mark] = _Watched(path, log_dir, lock)
        priorities = self._options.priorities
        priority = priorities.get(str(path), priorities.get(path.name, 0))
        self._core.watch(Oversight(mark, path.name, priority, self._options.processes))

    def _lock(self, path: Path) -> TextIO:
        """Keep other overseers from the same computation for as long as this process lives."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a", encoding="utf-8")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}\n")
        lock.flush()
        return lock

    def _read(self, mark: str, watched: _Watched) -> None:
        now = clock.monotonic()
        if self._core.computations[mark].done and not watched.path.exists():
            return
        try:
            content = watched.content = resource_file.read(watched.path)
        except ResourceFileError as error:
            self._failed = True
            self._core.handle(FileUnread(mark, str(error)), now)
            return
        self._core.handle(FileRead(mark, need_of(content, clock.wall())), now)

    # ---- what must be done -----------------------------------------------------------------------------------

    def _decide(self) -> OverseerActions:
        self._core.decide(clock.monotonic())
        actions = self._core.take_actions()
        for line in actions.say:
            self.say(line)
        return actions

    def _act(self, actions: OverseerActions) -> None:
        if actions.remove:
            try:
                self._batch.remove(actions.remove)
            except BatchUnavailable as error:
                self._failed = True
                self._core.handle(NotRemoved(actions.remove, str(error)), clock.monotonic())
        for submit in actions.submit:
            self._submit(submit)

    def _submit(self, submit: Submit) -> None:
        watched = self._watched[submit.mark]
        assert watched.content is not None, "a submission without a resource file"
        command = agent_command(watched.content, self._options.command, self._options.processes)
        launch = Launch(
            submit.mark,
            str(watched.path),
            command,
            self._options.processes,
            str(watched.log_dir),
            self._options.extra,
        )
        try:
            watched.log_dir.mkdir(parents=True, exist_ok=True)
            job_ids = self._batch.submit(launch, submit.count)
        except (BatchUnavailable, OSError) as error:
            self._failed = True
            self._core.handle(NotSubmitted(submit.mark, submit.count, str(error)), clock.monotonic())
            return
        self._core.handle(Submitted(submit.mark, job_ids), clock.monotonic())
        self.say(f"{watched.path.name}: submitted {_span(job_ids)}, which run `{shlex.join(command)}`")


def _span(job_ids: Sequence[str]) -> str:
    return job_ids[0] if len(job_ids) == 1 else f"{job_ids[0]} to {job_ids[-1]}"
