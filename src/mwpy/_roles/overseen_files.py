"""The resource files that an overseer watches: finding them, locking their computations, and launching from them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from mwpy import resource_file
from mwpy._batch import Launch
from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.state import OverseerSettings
from mwpy._system import clock
from mwpy._system.background import Question
from mwpy._system.locks import FileLock, LockHeld
from mwpy._values.errors import ResourceFileError, UsageError
from mwpy.resource_file import ResourceFile

__all__ = ["OverseenFiles", "OverseerOptions", "agent_command", "mark_of", "paths_of"]

RESOURCE_FILES = "*.rsc"
"""The names of resource files in a directory."""

JOBS = ".jobs"
"""What follows the name of a resource file in the name of the folder for the output of its jobs."""

KEPT_S = 30 * 86400.0
"""Seconds for which the output of a job is kept."""

KEPT_FILES = 4000
"""How many output files of a computation are kept at least: those of 2,000 jobs."""

PRUNE_AGAIN_S = 3600.0
"""Seconds until old output files are searched again."""

PATIENCE_S = 2.0
"""How long one file system may delay all computations."""


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


class _File(Struct, eq=False):
    path: Path
    content: Question[ResourceFile]
    log_dir: Path
    lock: FileLock | None
    """Held until `OverseenFiles.close`, or until this process ends; None in a dry run."""
    prune_at: float = 0.0
    """When old output files are searched next."""


class OverseenFiles:
    """The resource files of an overseer.

    Args:
        options: the overseer's options.
        say: is called with a line for each computation that another overseer watches.
    """

    def __init__(self, options: OverseerOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._places = {path: _Place(Question(partial(_find, path), f"find {path}")) for path in options.paths}
        self._say = say
        self._files: dict[str, _File] = {}
        self._refused: dict[str, None] = {}

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
            if mark not in self._files and mark not in self._refused and self._claim(mark, path):
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
            _prune_neighbours(file.path, kept)
        command = agent_command(content, self._options.command, slaves)
        return Launch(mark, str(file.path), command, slaves, str(file.log_dir), self._options.extra)

    def close(self) -> None:
        """Unlock the computations, so that other overseers can watch them."""
        for file in self._files.values():
            if file.lock is not None:
                file.lock.release()

    def _claim(self, mark: str, path: Path) -> bool:
        """Lock a computation, so that no other overseer watches it. Return False if another one already does."""
        log_dir = (self._options.log_dir or path.with_name(f"{path.name}{JOBS}")).absolute()
        try:
            lock = None if self._options.dry_run else _locked(log_dir, mark)
        except LockHeld as held:
            text = f"another overseer watches {path} ({held})"
            if len(self._options.paths) == 1 and not self.more_may_come:
                raise UsageError(f"{text}: stop it first") from None
            self._say(f"{path.name}: is ignored, because {text}")
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


def _prune_neighbours(resource: Path, kept: int) -> None:
    """Delete old output of computations in the same directory, which may never run again, and then empty folders."""
    for folder in sorted(resource.parent.glob(f"{RESOURCE_FILES}{JOBS}")):
        with suppress(OSError):  # it belongs to another user, or has other files
            if _prune(folder, mark_of(folder.with_suffix("")), kept):
                folder.rmdir()


def _prune(folder: Path, mark: str, kept: int) -> int:
    """Delete old output of a computation's jobs and of its examinations, and all but the latest `kept` files.

    Returns:
        The number of deleted files.
    """
    found = []
    for entry in os.scandir(folder):
        name, _, rest = entry.name.partition(".")
        if (name == mark or (name.startswith("doctor-") and name.endswith(f"-{mark}"))) and rest != "lock":
            found.append((entry.stat().st_mtime, entry.path))
    found.sort(reverse=True)
    old = [path for number, (at, path) in enumerate(found) if number >= kept or clock.wall() > at + KEPT_S]
    for path in old:
        with suppress(FileNotFoundError):
            os.unlink(path)
    return len(old)
