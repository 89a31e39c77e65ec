"""The resource files that an overseer watches: finding them, locking their computations, and launching from them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from attrs import define, field, frozen

from mwpy import resource_file
from mwpy._batch import Launch
from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.state import OverseerSettings
from mwpy._values.errors import UsageError
from mwpy.resource_file import ResourceFile

__all__ = ["OverseenFiles", "OverseerOptions", "agent_command", "mark_of", "paths_of"]

RESOURCE_FILES = "*.rsc"
"""The names of resource files in a directory."""


@frozen
class OverseerOptions:
    """The options of an overseer; `mwpy oversee --help` describes each."""

    paths: Sequence[Path]
    settings: OverseerSettings = field(factory=OverseerSettings)
    slaves_per_job: int = 1
    priorities: dict[str, int] = field(factory=dict)
    """Priorities by the path of a resource file as the user wrote it, or by its file name."""
    command: Sequence[str] = ()
    log_dir: Path | None = None
    extra: tuple[str, ...] = ()
    once: bool = False
    dry_run: bool = False


def mark_of(path: Path) -> str:
    """The mark of a computation's jobs: a readable part, and a digest of the resource file's absolute path."""
    path = path.parent.resolve() / path.name
    readable = re.sub(r"[^a-zA-Z0-9]+", "-", path.stem)[:24].strip("-")
    return f"{readable or 'mwpy'}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"


def paths_of(paths: Sequence[Path]) -> list[Path]:
    """The absolute paths of the named resource files, and of the resource files in the named directories."""
    found: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.glob(RESOURCE_FILES)) if path.is_dir() else [path]
        found.update((each.parent.resolve() / each.name, None) for each in inside)
    return list(found)


def agent_command(content: ResourceFile, program: Sequence[str], slaves: int) -> tuple[str, ...]:
    """The command of an agent, from the resource file; `program` replaces the file's program if it is not empty."""
    words = [content.slave_executable, *content.slave_arguments]
    role = words.index("--mw-slave") if "--mw-slave" in words else len(words)
    own = words[role + 1 :]
    if own[:1] == ["--mw-resource-file"]:
        del own[:2]
    return (*(program or words[:role]), "--mw-slave", "--mw-slave-processes", str(slaves), *own)


@define(eq=False)
class _File:
    path: Path
    log_dir: Path
    lock: TextIO | None
    """Held until `OverseenFiles.close`, or until this process ends; None in a dry run."""


class OverseenFiles:
    """The resource files of an overseer.

    Args:
        options: the overseer's options.
        say: is called with a line for each computation that another overseer watches.
    """

    def __init__(self, options: OverseerOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._files: dict[str, _File] = {}
        self._refused: dict[str, None] = {}

    @property
    def more_may_come(self) -> bool:
        """Whether a directory is watched."""
        return any(path.is_dir() for path in self._options.paths)

    def find(self) -> list[WatchedComputation]:
        """Return the computations that were found since the last call, and lock them.

        Raises:
            UsageError: another overseer watches the only file, or the lock cannot be made.
        """
        found = []
        options = self._options
        for path in paths_of(options.paths):
            mark = mark_of(path)
            if mark not in self._files and mark not in self._refused and self._claim(mark, path):
                priority = options.priorities.get(str(path), options.priorities.get(path.name, 0))
                found.append(WatchedComputation(mark, path.name, priority, options.slaves_per_job))
        return found

    def exists(self, mark: str) -> bool:
        """Whether the file of a computation exists."""
        return self._files[mark].path.exists()

    def read(self, mark: str) -> ResourceFile:
        """Read the file of a computation."""
        return resource_file.read(self._files[mark].path)

    def launch(self, mark: str, content: ResourceFile) -> Launch:
        """Prepare the launch of jobs for a computation."""
        file, slaves = self._files[mark], self._options.slaves_per_job
        file.log_dir.mkdir(parents=True, exist_ok=True)
        command = agent_command(content, self._options.command, slaves)
        return Launch(mark, str(file.path), command, slaves, str(file.log_dir), self._options.extra)

    def close(self) -> None:
        """Unlock the computations, so that other overseers can watch them."""
        for file in self._files.values():
            if file.lock is not None:
                file.lock.close()

    def _claim(self, mark: str, path: Path) -> bool:
        """Lock a computation, so that no other overseer watches it. Return False if another one already does."""
        log_dir = (self._options.log_dir or path.with_name(f"{path.name}.jobs")).absolute()
        lock_path = log_dir / f"{mark}.lock"
        try:
            lock = None if self._options.dry_run else _lock(lock_path)
        except BlockingIOError:
            text = f"another overseer watches {path} ({lock_path.read_text().strip()})"
            if len(self._options.paths) == 1 and not self.more_may_come:
                raise UsageError(f"{text}: stop it first") from None
            self._say(f"{path.name}: is ignored, because {text}")
            self._refused[mark] = None
            return False
        except OSError as error:
            raise UsageError(f"cannot write to {log_dir}: {error.strerror}; give another --log-dir") from error
        self._files[mark] = _File(path, log_dir, lock)
        return True


def _lock(path: Path) -> TextIO:
    """Lock a file until it is closed.

    Raises:
        BlockingIOError: another process has locked it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {platform.node()}\n")
    lock.flush()
    return lock
