"""The overseer's shell: it reads resource files, asks a batch system, and does what `OverseerCore` decides.

It has one thread and one loop: a round, then a pause. Ctrl-C and SIGTERM can end it anywhere, because the next overseer
finds everything again. Its jobs keep running and serve their masters, because an overseer that is stopped is usually
started again.

The loop reaches the outside only through its arguments: resource files, a batch system, a clock, and a function that
prints a line. Therefore the simulator can run the same loop.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from attrs import Factory, define, evolve
from msgspec import Struct, field
from msgspec.structs import replace

from mwpy import resource_file
from mwpy._batch import Batch, BatchUnavailable, Launch
from mwpy._core import overseer as events
from mwpy._core.overseen import WatchedComputation
from mwpy._core.overseer import (
    Drained,
    OverseerActions,
    OverseerCore,
    OverseerEvent,
    OverseerSettings,
    Removed,
    Submit,
    Submitted,
)
from mwpy._roles import join
from mwpy._system import clock
from mwpy._system.clock import Clock
from mwpy._system.locks import FileLock, LockHeld
from mwpy._system.process import Question
from mwpy._values.errors import ExitCode, MasterUnreachable, MwpyError, ResourceFileError, UsageError
from mwpy._values.jobs import JobState
from mwpy._values.messages import MAX_DRAINED
from mwpy.resource_file import JOBS, ROUND, NotWhole, ResourceFile

# The resource files that an overseer watches: finding them, locking their computations, and launching from them.


RESOURCE_FILES = "*.rsc"
"""The names of resource files in a directory."""

MESSAGES_KEPT = 20
"""How many of the newest messages are in the file with what the last round found."""

KEPT_S = 30 * 86400.0
"""Seconds for which the output of a job is kept."""

KEPT_FILES = 4000
"""How many output files of a computation are kept at least: those of 2,000 jobs."""

PRUNE_AGAIN_S = 3600.0
"""Seconds until old output files are searched again."""

PATIENCE_S = 2.0
"""How long one file system may delay all computations."""

ANSWER_S = 10.0
"""How long one master may delay all computations when it is asked to let agents leave."""


class OverseerOptions(Struct, frozen=True):
    """The options of an overseer; `mwpy oversee --help` describes each."""

    paths: Sequence[Path]
    settings: OverseerSettings = field(default_factory=OverseerSettings)
    slaves_per_job: int = 1
    priorities: dict[str, int] = field(default_factory=dict)
    """Priorities by the path of a resource file as the user wrote it, or by its file name."""
    command: Sequence[str] = ()
    log_dir: Path | None = None
    extra: tuple[str, ...] = ()
    prologue: str = ""
    name: str = ""
    once: bool = False
    dry_run: bool = False
    json: bool = False


def mark_of(path: Path) -> str:
    """The mark of a computation's jobs: a readable part, and a digest of the resource file's absolute path."""
    path = path.parent.resolve() / path.name
    readable = re.sub(r"[^a-zA-Z0-9]+", "-", path.stem)[:24].strip("-")
    return f"{readable or 'mwpy'}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"


def paths_of(paths: Sequence[Path]) -> list[Path]:
    """The absolute paths of the named resource files, and of the resource files in the named directories."""
    return list(dict.fromkeys(found for path in paths for found in _find(path)[1]))


def _find(path: Path) -> tuple[bool, list[Path]]:
    """Whether a path is a directory, and the absolute paths of the resource files there."""
    is_directory = path.is_dir()
    inside = sorted(path.glob(RESOURCE_FILES)) if is_directory else [path]
    return is_directory, [each.parent.resolve() / each.name for each in inside]


def agent_command(content: ResourceFile, program: Sequence[str], slaves: int) -> tuple[str, ...]:
    """The command of an agent, from the resource file; `program` replaces the file's program if it is not empty."""
    words = [content.slave_executable, *content.slave_arguments]
    role = words.index("--mw-slave") if "--mw-slave" in words else len(words)
    own = words[role + 1 :]
    if own[:1] == ["--mw-resource-file"]:
        del own[:2]
    return (*(program or words[:role]), "--mw-slave", "--mw-slave-processes", str(slaves), *own)


class _Place(Struct, eq=False):
    """A path that the user named: a resource file, or a directory with resource files."""

    find: Question[tuple[bool, list[Path]]]
    """Finds out whether it is a directory, and the paths of the resource files."""
    more_may_come: bool = True
    hangs: bool = False


@define(eq=False)
class _File:
    path: Path
    content: Question[ResourceFile]
    log_dir: Path
    lock: FileLock | None
    """Held until `OverseenFiles.close`, or until this process ends; None in a dry run."""
    prune_at: float = 0.0
    """When old output files are searched next."""

    def close(self) -> None:
        """Let other overseers watch its computation, and let its thread end."""
        self.content.close()
        if self.lock is not None:
            self.lock.release()


class OverseenFiles:
    """The resource files of an overseer.

    Args:
        options: the overseer's options.
        say: is called with a line for each computation that another overseer watches.
    """

    def __init__(self, options: OverseerOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._places: dict[Path, _Place] = {}
        self._say = say
        self._files: dict[str, _File] = {}
        self._refused: dict[str, None] = {}
        """The computations that another overseer watches, or has watched. Only the first time is said."""
        self.follow(options.paths)

    def follow(self, paths: Iterable[Path]) -> list[str]:
        """Oversee these paths from now on, and no other resource files. Return the marks of those that are left."""
        former, self._places = self._places, {}
        for path in paths:
            place = former.pop(path, None)
            self._places[path] = place or _Place(Question(partial(_find, path), f"find {path}"))
        for place in former.values():
            place.find.close()
        left = [*self._files.keys() - {mark_of(path) for path in self._places}]
        for mark in left:
            self._files.pop(mark).close()
        return left

    @property
    def more_may_come(self) -> bool:
        """Whether a directory is watched, or a path that does not answer."""
        return any(place.more_may_come for place in self._places.values())

    def find(self) -> list[WatchedComputation]:
        """Return the computations that were found since the last call, and lock them.

        Raises:
            UsageError: another overseer watches the only file, or the lock cannot be made.
        """
        found = []
        options = self._options
        for path in dict.fromkeys(path for given, place in self._places.items() for path in self._ask(given, place)):
            mark = mark_of(path)
            if mark not in self._files and self._claim(mark, path):
                priority = options.priorities.get(str(path), options.priorities.get(path.name, 0))
                found.append(WatchedComputation(mark, path.name, priority, options.slaves_per_job))
        return found

    def _ask(self, given: Path, place: _Place) -> list[Path]:
        try:
            place.more_may_come, paths = place.find.ask(PATIENCE_S)
        except TimeoutError:
            if not place.hangs:
                self._say(f"{given}: does not answer. Does its file system hang? The other computations go on")
            place.hangs, paths = True, []
        return paths

    def read(self, mark: str) -> ResourceFile:
        """Read the file of a computation. Only the first attempt waits for a file system that hangs."""
        file = self._files[mark]
        try:
            return file.content.ask(PATIENCE_S)
        except TimeoutError:
            raise ResourceFileError(f"{file.path} does not answer: does its file system hang?") from None

    def launch(self, mark: str, content: ResourceFile) -> Launch:
        """Prepare the launch of jobs for a computation. Delete old output of its jobs."""
        file, slaves = self._files[mark], self._options.slaves_per_job
        file.log_dir.mkdir(parents=True, exist_ok=True)
        if clock.monotonic() >= file.prune_at:
            file.prune_at = clock.monotonic() + PRUNE_AGAIN_S
            kept = max(KEPT_FILES, 4 * self._options.settings.max_jobs)
            _prune(file.log_dir, mark, kept)
            for folder in file.path.parent.glob(f"{RESOURCE_FILES}{JOBS}"):  # their computations may never run again
                _prune(folder, mark_of(folder.with_suffix("")), kept)
        command = agent_command(content, self._options.command, slaves)
        own = self._options
        return Launch(
            mark, str(file.path), command, slaves, str(file.log_dir), own.extra, prologue=own.prologue, name=own.name
        )

    def drain(self, mark: str, job_ids: Sequence[str]) -> None:
        """Ask the master of a computation to let the agents of jobs leave after their tasks, as `mwpy drain` does.

        It is no error if the master has no such agent, or if the computation is finished.

        Raises:
            MwpyError: the master cannot be asked, or it refuses.
        """
        path = self._files[mark].path
        for start in range(0, len(job_ids), MAX_DRAINED):
            some = job_ids[start : start + MAX_DRAINED]
            question = Question(partial(join.ask, path, drain=some), f"drain {path.name}")
            try:
                question.ask(ANSWER_S)
            except TimeoutError:
                raise MasterUnreachable(f"the master of {path} gave no answer for {ANSWER_S:.0f} s") from None
            finally:
                question.close()

    def publish(self, mark: str, found: dict[str, Any]) -> None:
        """Write what a round found into the folder for the output of the jobs, for the page of the master."""
        log_dir = self._files[mark].log_dir
        with suppress(OSError):  # then the page does not show the jobs
            log_dir.mkdir(parents=True, exist_ok=True)
            resource_file.replace_file(log_dir / ROUND, json.dumps(found).encode())

    def close(self) -> None:
        """Unlock the computations, so that other overseers can watch them."""
        for file in self._files.values():
            file.close()

    def _claim(self, mark: str, path: Path) -> bool:
        """Lock a computation, so that no other overseer watches it. Return False if another one already does."""
        log_dir = (self._options.log_dir or path.with_name(f"{path.name}{JOBS}")).absolute()
        try:
            lock = None if self._options.dry_run else _locked(log_dir, mark)
        except LockHeld as held:
            text = f"another overseer watches {path} ({held})"
            if len(self._options.paths) == 1 and not self.more_may_come:
                raise UsageError(f"{text}: stop it first") from None
            if mark not in self._refused:
                self._say(f"{path.name}: is ignored until that one ends, because {text}")
            self._refused[mark] = None
            return False
        except OSError as error:
            raise UsageError(f"cannot write to {log_dir}: {error.strerror}; give another --log-dir") from error
        content = Question(partial(resource_file.read, path), f"read {path.name}")
        self._files[mark] = _File(path, content, log_dir, lock)
        return True


def _locked(folder: Path, mark: str) -> FileLock:
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"{mark}.lock")


def _prune(folder: Path, mark: str, kept: int) -> None:
    """Delete old output of a computation's jobs and of its examinations, and all but the latest `kept` files; then also
    the folder, if nothing is left."""
    with suppress(OSError):  # it belongs to another user, or has other files
        names = re.compile(rf"(doctor-\d+-)?{re.escape(mark)}\.(?!lock$)")
        found = [(each.stat().st_mtime, each.path) for each in os.scandir(folder) if names.match(each.name)]
        found.sort(reverse=True)
        old = [path for number, (at, path) in enumerate(found) if number >= kept or clock.wall() > at + KEPT_S]
        for path in old:
            os.unlink(path)
        if old:
            folder.rmdir()


LOOK_S = 1.0
"""Seconds between two looks at the files. The batch system is asked less often, because that costs more."""


START_S = 3.0
"""A resource file that is missing for this time after the start is no fault: its master may start at the same time."""


def run(options: OverseerOptions, batch: Batch) -> int:
    """Oversee computations until they are finished and have no jobs left, or until the process is stopped.

    A directory is overseen until the process is stopped.

    Returns:
        The exit code.

    Raises:
        UsageError: another overseer watches one of the computations.
    """
    said: list[str] = []
    """With `json`, the lines that are printed at the end."""
    recent: deque[str] = deque(maxlen=MESSAGES_KEPT)

    def say(text: str) -> None:
        recent.append(f"{clock.date(clock.wall())} {text}")
        if options.json:
            said.append(text)
        else:
            moment = clock.date(clock.wall())
            print(f"{moment} {'(dry run) ' if options.dry_run else ''}{text}", flush=True)

    files = OverseenFiles(options, say)
    overseer = Overseer(OverseerCore(options.settings), files, batch, clock, say, recent, dry_run=options.dry_run)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not (options.once or options.dry_run):
            overseer.run()
            return ExitCode.OK
        overseer.run_round()
        if options.json:
            print(json.dumps({"dry_run": options.dry_run, **overseer.last_round(), "messages": said}))
        return ExitCode.UNREACHABLE if overseer.failed else ExitCode.OK
    except KeyboardInterrupt:
        say("stops; its jobs stay with their masters. Start it again, or remove the jobs with --remove")
        for text in said:
            print(text, file=sys.stderr)
        return ExitCode.INTERRUPTED
    finally:
        files.close()


def remove(options: OverseerOptions, batch: Batch) -> int:
    """Remove all jobs of computations, also those at work.

    Raises:
        BatchUnavailable: the batch system refuses.
    """
    names = {mark_of(path): path.name for path in paths_of(options.paths)}
    jobs = [job for job in batch.jobs() if job.mark in names and job.state is not JobState.LEAVING]
    if jobs:
        batch.remove([job.job_id for job in jobs])
    print(f"removed {len(jobs)} jobs of {', '.join(names.values())}")
    return ExitCode.OK


@define(eq=False, repr=False)
class Overseer:
    """The loop of an overseer.

    Args:
        core: the core, which decides.
        files: the resource files.
        batch: the batch system.
        clock: the time.
        say: the function that prints a line.
        recent: the newest lines.
        dry_run: say what would be done, and do nothing.
    """

    _core: OverseerCore
    _files: OverseenFiles
    _batch: Batch
    _clock: Clock
    _say: Callable[[str], None]
    _recent: Sequence[str] = ()
    """The newest lines."""
    dry_run: bool = False
    _patient_until: float = -math.inf
    """Until when a file that was never read may be missing."""
    failed: bool = False
    """Whether a file could not be read, or the batch system or a master did not answer or refused."""
    _decided: OverseerActions = Factory(OverseerActions)
    """What was decided in the last round."""
    _done: list[Submitted | Removed | Drained] = Factory(list)
    """What was done in the last round."""

    def run(self) -> None:
        """Run rounds until all computations are finished, no job is left, and no computation can be added."""
        self._patient_until = self._clock.monotonic() + START_S
        while True:
            if self.look() and self._core.done and not self._files.more_may_come:
                return
            left_s = self._core.next_deadline() - self._clock.monotonic()
            self._clock.sleep(min(LOOK_S, max(0.0, left_s)))

    def look(self) -> bool:
        """Look at the files, and make a round if it is due. Return whether it was."""
        self._look()
        if is_due := self._core.is_due(self._clock.monotonic()):
            self._finish_round()
        return is_due

    def follow(self, wanted: Mapping[Path, tuple[str, int]], max_jobs: int) -> None:
        """Oversee other computations from now on, and no others. The jobs of those that are left stay.

        Args:
            wanted: the name and the priority of each, by its resource file.
            max_jobs: how many jobs they may have together.
        """
        self._core.settings = replace(self._core.settings, max_jobs=max_jobs)
        for mark in self._files.follow(wanted):
            self._core.forget(mark)
        self._find()
        for path, (name, priority) in wanted.items():
            if (computation := self._core.computations.get(mark_of(path))) is not None:
                computation.name, computation.priority = name, priority

    def run_round(self) -> None:
        """Look at the files and the batch system, decide once, and act."""
        self._look()
        self._finish_round()

    def last_round(self) -> dict[str, Any]:
        """Return what the last round found, decided and did, for scripts."""
        found = [self._round_of(each) for each in self._core.computations.values()]
        return {"failed": self.failed, "computations": found}

    def _round_of(self, computation: WatchedComputation) -> dict[str, Any]:
        content, jobs, mark = computation.content, computation.jobs.listed, computation.mark
        states = Counter(job.state for job in jobs.values())

        def done(kind: type) -> list[str]:
            return [
                job_id for each in self._done if isinstance(each, kind) and not each.fault for job_id in each.job_ids
            ]

        return {
            "file": computation.name,
            "mark": mark,
            "readable": computation.is_readable,
            "finished": computation.finished,
            "slaves_needed": content.slaves_needed,
            "connected_jobs": len(content.connected_jobs),
            "jobs": {state.value: states[state] for state in JobState} if computation.listed else None,
            "to_submit": sum(submit.count for submit in self._decided.submit if submit.mark == mark),
            "submitted": [job_id for job_id in done(Submitted) if job_id in computation.jobs.tracked],
            "to_remove": [job_id for job_id in self._decided.remove if job_id in jobs],
            "removed": [job_id for job_id in done(Removed) if job_id in jobs],
            "to_drain": self._decided.drain.get(mark, []),
            "drained": [job_id for job_id in done(Drained) if job_id in jobs],
        }

    def _find(self) -> None:
        for computation in self._files.find():
            self._core.watch(computation)

    def _look(self) -> None:
        self._find()
        for mark in self._core.computations:
            self._read(mark)

    def _finish_round(self) -> None:
        self._list()
        while (actions := self._decide()).ask:
            for job_id in actions.ask:
                self._handle(events.Ended(job_id, self._batch.outcome(job_id)))
        self._decided, self._done = actions, []
        if not self.dry_run:
            self._act(actions)
            self._decide()
            for mark, each in self._core.computations.items():
                self._files.publish(mark, {**self._round_of(each), "messages": [*self._recent]})

    # ---- what happened -------------------------------------------------------------------------------------

    def _handle(self, event: OverseerEvent) -> None:
        self._core.handle(event, self._clock.monotonic())

    def _fail(self, event: OverseerEvent) -> None:
        self.failed = True
        self._handle(event)

    def _read(self, mark: str) -> None:
        try:
            content = self._files.read(mark)
        except ResourceFileError as error:
            computation = self._core.computations[mark]
            is_new = not computation.content.generation and isinstance(error, NotWhole)
            may_come = is_new and self._clock.monotonic() < self._patient_until
            if not computation.done and not may_come:
                self._fail(events.FileUnread(mark, str(error)))
        else:
            self._handle(events.FileRead(mark, content, self._clock.wall() - content.timestamp))

    def _list(self) -> None:
        try:
            jobs = self._batch.jobs()
        except BatchUnavailable as error:
            self._fail(events.NotListed(str(error)))
        else:
            slaves = max((each.slaves_per_job for each in self._core.computations.values()), default=1)
            self._handle(events.Listed(jobs, self._batch.free_places(slaves)))

    # ---- what must be done ---------------------------------------------------------------------------------

    def _decide(self) -> OverseerActions:
        self._core.decide(self._clock.monotonic())
        actions = self._core.take_actions()
        for line in actions.say:
            self._say(line)
        return actions

    def _act(self, actions: OverseerActions) -> None:
        if actions.remove:
            self._try(Removed(actions.remove), partial(self._batch.remove, actions.remove))
        for submit in actions.submit:
            self._try(Submitted(submit), partial(self._submit, submit))
        for mark, job_ids in actions.drain.items():
            self._try(Drained(mark, job_ids), partial(self._files.drain, mark, job_ids))

    def _try(self, done: Submitted | Removed | Drained, act: Callable[[], Sequence[str] | None]) -> None:
        """Do something, and report that it was done, or why not."""
        try:
            job_ids = act()
        except (MwpyError, OSError) as error:
            done = replace(done, fault=str(error))
            self._fail(done)
        else:
            done = done if job_ids is None else replace(done, job_ids=job_ids)
            self._handle(done)
        self._done.append(done)

    def _submit(self, submit: Submit) -> Sequence[str]:
        launch = self._files.launch(submit.mark, self._core.computations[submit.mark].content)
        launch = evolve(launch, avoided=submit.avoided, amounts=submit.amounts)
        job_ids = self._batch.submit(launch, submit.count)
        name = self._core.computations[submit.mark].name
        with suppress(OSError):  # whatever happens to this line, the jobs are submitted
            self._say(f"{name}: submitted {_range(job_ids)}, which run `{shlex.join(launch.command)}`")
        return job_ids


def _range(job_ids: Sequence[str]) -> str:
    return job_ids[0] if len(job_ids) == 1 else f"{job_ids[0]} to {job_ids[-1]}"
