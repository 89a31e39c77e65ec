"""What the folder of a sweep says about its last start: which process makes the runs, and how it has ended.

This is `job.json`. The commands that watch and stop a sweep read it, also after the user has logged out. A detached
sweep has a mark there, which its job finds in its environment: from its start on, only this job writes the file.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from mwpy import ExitCode, UsageError

T = TypeVar("T")

FILE, RESOURCE = "job.json", "sweep.rsc"
"""Files in the folder of a sweep: what is known about its last start, and the resource file of its master."""

MARK = "MWPY_SWEEP_JOB"
"""The environment variable with the mark of a detached sweep."""


class Job(Struct, omit_defaults=True):
    """The last start of a sweep."""

    arguments: list[str]
    """Those of `mwpy sweep`, without `--detach`."""
    base: str
    """The working folder in which it was started."""
    mark: str = ""
    """The mark of a detached sweep."""
    system: str = ""
    """The batch system whose job it is; empty for a process."""
    pid: int = 0
    """The process that makes the runs; 0 if none has begun."""
    born: str = ""
    """When this process began, in ticks since the boot, because another process may have its number later."""
    host: str = ""
    runs: int = 0
    """How many runs there are."""
    code: int | None = None
    """The exit code; None before the end."""
    summary: dict[str, Any] = field(default_factory=dict)

    def begin(self, folder: Path, runs: int) -> None:
        """This process makes the runs from now on."""
        self.pid, self.born, self.host, self.runs = os.getpid(), _born(os.getpid()), platform.node(), runs
        self.code, self.summary = None, {}  # of its last start, if it was evicted
        store(folder / FILE, self)

    @property
    def is_here(self) -> bool:
        """Whether its process lives, on this machine."""
        return bool(self.pid) and self.host == platform.node() and _born(self.pid) == self.born


def _born(pid: int) -> str:
    """Return when a process began; empty if it has ended."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else others[18]


@contextmanager
def recorded(folder: Path, arguments: Sequence[str]) -> Iterator[Job]:
    """Give the job of a sweep that starts here, and record at its end how it has ended.

    A job of a batch system that starts once more has the `pid` of its last start.
    """
    mark, job = os.environ.pop(MARK, ""), stored(folder / FILE, Job)
    if job is None or not mark or job.mark != mark:
        job = Job([*arguments], os.getcwd())
    try:
        yield job
    except BaseException as error:
        ended = ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else ExitCode.FAILED
        job.code = int(getattr(error, "exit_code", ended))
        raise
    finally:
        if job.pid or job.mark:
            store(folder / FILE, job)


def stored(path: Path, kind: type[T], remedy: str = "remove it") -> T | None:
    """Read what a file in the folder of a sweep says; None if there is no such file.

    Args:
        remedy: what the user can do if it is damaged.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} cannot be read ({error}): {remedy}, or give another --folder") from error


def store(path: Path, value: Struct) -> None:
    """Write such a file, as a whole.

    Raises:
        UsageError: the folder cannot be written.
    """
    with _written(path.parent):
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(value)))
        new.replace(path)


def make_folder(folder: Path) -> None:
    """Make the folder of a sweep.

    Raises:
        UsageError: it cannot be written.
    """
    with _written(folder):
        pass


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(f"the folder {folder} cannot be written ({error.strerror}): give another --folder") from error
