"""The folder of a queue: what users ask for, how that went, and what the keeper has decided.

    0007/                   an entry, made by its user under another name and then renamed, so it is always complete
        entry.json          what is asked for
        input/              a copy of the study or script, and of the files that it names
    0007.run/               made by the worker that runs the entry: a copy of the input, logs, run database, tables
        state.json          what happens to it
    0007.request-1000.json  what the user with this number wants later: another priority, or the end
    turn.json               what the keeper has decided
    work-1000.json          the worker of a user: what its entries want, and by the age of the file, that it lives
    masters-1000/0007/      the master that this worker has started, which is found also if 0007.run is removed
    host-NODE-PID.json      a machine that serves the queue with `mwpy slave --queue`
    log.jsonl               what has happened, written by the keeper

Rights are those of the file system. The folder belongs to a group, and has the sticky bit: so members can add files,
and remove only their own. Its owner keeps the queue. The owner of a file is who has asked for something; no name inside
a file counts. Times are those of the file system: the clocks of hosts may differ.
"""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._queue.entry import ENDED, Asked, Entry, Priority, Run, State, Turn
from mwpy._system import clock
from mwpy._values.errors import UsageError
from mwpy._values.messagepack import MALFORMED, from_plain, to_plain
from mwpy.resource_file import replace_file

T = TypeVar("T")

ENTRY, INPUT, STATE, TURN, LOG = "entry.json", "input", "state.json", "turn.json", "log.jsonl"

LIVES_S = 60.0
"""A keeper, a worker or a host lives if its file is younger than this, in seconds."""

LOG_BYTES = 4_000_000
"""When the log is larger, it becomes `log.jsonl.1`, and the former one is removed."""

MAX_FILE_BYTES = 10_000_000
"""A file of the queue that is larger is damaged."""


class Request(Struct, omit_defaults=True):
    """What a user wants for an entry."""

    cancelled: bool = False
    priority: Priority | None = None


class Decision(Struct, omit_defaults=True):
    """What the keeper has decided."""

    turns: dict[int, Turn] = field(default_factory=dict)
    last: int = 0
    """The highest number of an entry that there was."""
    system: str = "local"
    slaves_per_job: int = 1
    """How many slaves one place is for."""
    places: dict[int, dict[str, int]] = field(default_factory=dict)
    """How many places each user has on which host, by the number of the user; without `ssh`, the host is empty."""
    pythons: dict[str, str] = field(default_factory=dict)
    """The hosts, each with its Python; empty for the one of the command."""


class Work(Struct, omit_defaults=True):
    """What a worker says."""

    is_known: bool = False
    """Whether it has looked after its entries since its start."""
    wants: dict[int, int] = field(default_factory=dict)
    """How many places each running entry could use."""
    has: dict[int, int] = field(default_factory=dict)
    """How many it has."""
    fault: str = ""
    """Why no slaves can be started now."""

    @property
    def used(self) -> int:
        """How many they have together."""
        return sum(self.has.values())


class Announced(Struct):
    """What a machine says that serves the queue."""

    host: str
    user: str
    serves: str
    """The entry that it serves; empty if there is none."""


def user_name(uid: int) -> str:
    """Return the name of a user, or its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


class Folder:
    """The folder of a queue.

    Args:
        path: where it is.

    Raises:
        UsageError: there is none, or everybody in it could remove the entries of others; the message says what to do.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # it is shown to others, who may not enter a folder before `..`
        self._known: dict[Path, tuple[tuple[int, ...], Any]] = {}
        self._ended: dict[str, Entry] = {}
        """The entries that have ended, which is final. Their files are not looked at again: there may be thousands."""
        try:
            about = self.path.stat()
        except OSError as error:
            remedies = {
                errno.ENOENT: "make this folder first",
                errno.EACCES: "ask for the right to enter each folder of this path",
            }
            remedy = remedies.get(error.errno or 0, "correct this, and try again")
            raise UsageError(f"the queue {path} cannot be used ({error.strerror}): {remedy}") from error
        self.keeper_uid, mode = about.st_uid, about.st_mode
        """The owner of the folder, who keeps the queue."""
        if not stat.S_ISDIR(mode):
            raise UsageError(f"the queue {path} is no folder: give the folder of a queue")
        if not os.access(self.path, os.R_OK | os.X_OK):
            group = _group_name(about.st_gid)
            raise UsageError(f"the queue {path} cannot be read: ask for membership in its group, {group}")
        if mode & 0o022 and not mode & stat.S_ISVTX:
            raise UsageError(f"in the queue {path}, users could remove the entries of others: run `chmod +t {path}`")

    # ---- reading --------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Return all entries, the oldest first. A damaged one has a `fault`."""
        found = []
        for name in {name.removesuffix(".run") for name in os.listdir(self.path)}:
            if re.fullmatch(r"\d{4,9}", name):
                with suppress(FileNotFoundError):  # it was just removed
                    entry = self._ended.get(name) or self._entry(name)
                    found.append(entry)
                    if entry.has_ended:
                        self._ended[name] = entry
        return sorted(found, key=lambda each: each.number)

    def entry(self, text: str) -> Entry:
        """Return the entry with a number, or the one with a name: the only one that has not ended, or the last one.

        Raises:
            UsageError: there is none, or there are several.
        """
        decision = self.decision()
        entries = self.entries()
        found = [each for each in entries if text in (str(each.number), each.path.name)]
        found = found or [each for each in entries if text == each.asked.name]
        if not found:
            raise UsageError(f"there is no entry {text} in {self.path}: `mwpy queue list {self.path}` shows all")
        able = [each for each in found if self.state_of(each, decision)[0] not in ENDED]
        if len(able) > 1:
            numbers = ", ".join(str(each.number) for each in able)
            raise UsageError(f"several entries have the name {text}: give the number of one of them ({numbers})")
        return (able or found)[-1]

    def silence(self) -> str:
        """Say that no keeper looks after the queue; empty if one does."""
        start = f"run `mwpy queue {self.path}`"
        since = changed(self.path / TURN)
        if not since:
            return f"no keeper was started: {start}"
        is_silent = clock.wall() > since + LIVES_S
        return f"the keeper has looked at nothing since {clock.date(since)}: {start}" if is_silent else ""

    def _entry(self, name: str) -> Entry:
        path = self.path / name
        kept = path if path.exists() else path.with_name(f"{name}.run")
        entry = Entry(int(name), path, kept.lstat().st_uid)
        is_removed = not os.path.lexists(path / ENTRY)  # its folder may be removed just now
        asked = self._read(path / ENTRY, Asked)
        if is_removed:
            entry.fault = f"{path} was removed"
        elif isinstance(asked, str):
            entry.fault = f"damaged: {asked}"
        else:
            entry.asked, entry.priority = asked, asked.priority
            if distrust := _distrust(entry):
                entry.fault, entry.asked = distrust, replace(asked, on_end="")
            elif not entry.repeats and not (path / INPUT / asked.words[0]).is_file():
                entry.fault = f"there is no file {asked.words[0]} in its input"
        run = self._read(entry.run_path / STATE, Run)
        if isinstance(run, Run):
            user = entry.run_path.lstat().st_uid
            if user in (entry.uid, self.keeper_uid):
                entry.run, entry.runs_as = run, user
            else:
                entry.fault = f"{entry.run_path} belongs to another user: remove it"
        for uid in sorted({entry.uid, self.keeper_uid}, key=lambda uid: changed(self._request(name, uid))):
            request = self._read(self._request(name, uid), Request, uid)
            if isinstance(request, Request):
                entry.cancelled_by = user_name(uid) if request.cancelled else entry.cancelled_by
                entry.priority = entry.priority if request.priority is None else request.priority
        return entry

    def _request(self, name: str, uid: int) -> Path:
        return self.path / f"{name}.request-{uid}.json"

    def decision(self) -> Decision | None:
        """Return what the keeper has decided; None if there was none."""
        found = self._read(self.path / TURN, Decision, self.keeper_uid)
        return found if isinstance(found, Decision) else None

    def workers(self, now: float) -> dict[int, Work]:
        """Return the workers that live, by their users."""
        return {path.lstat().st_uid: each for path, each in self._living("work-", Work, now)}

    def hosts(self, now: float) -> list[Announced]:
        """Return the machines that serve the queue."""
        return [each for _, each in self._living("host-", Announced, now)]

    def _living(self, prefix: str, kind: type[T], now: float) -> Iterator[tuple[Path, T]]:
        for path in sorted(self.path.glob(f"{prefix}*.json")):
            found = self._read(path, kind)
            if not isinstance(found, str) and now - changed(path) < LIVES_S:
                yield path, found

    def _read(self, path: Path, kind: type[T], owner: int | None = None) -> T | str:
        """Return what a file says, or why it cannot be read.

        Args:
            owner: the user whose file alone counts; None for each.

        Raises:
            OSError: the file system fails, which may pass.
        """
        try:
            about = path.lstat()
            if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE_BYTES:
                return f"{path.name} is no file of a queue"
            if owner not in (None, about.st_uid):
                return f"{path.name} belongs to {user_name(about.st_uid)}"
            identity = about.st_ino, about.st_mtime_ns, about.st_size
            known = self._known.get(path)
            if known is None or known[0] != identity:
                known = self._known[path] = identity, from_plain(json.loads(path.read_bytes()), kind, str_keys=True)
            return known[1]
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            return f"{path.name}: {error.strerror}"
        except (*MALFORMED, ValueError) as error:
            return f"{path.name}: {error}"

    # ---- writing --------------------------------------------------------------------------------------------

    def add(self, asked: Asked, put: Callable[[Path], object]) -> Entry:
        """Add an entry, and return it.

        Args:
            put: makes the input, in a folder that does not exist yet.

        Raises:
            UsageError: the folder cannot be written, or `put` raises it.
        """
        new = None
        try:
            new = Path(tempfile.mkdtemp(prefix=".new-", dir=self.path))
            put(new / INPUT)
            store(new / ENTRY, asked)
            protect(new)
            decision = self.decision()
            number = max([decision.last if decision else 0, *(each.number for each in self.entries())]) + 1
            while True:
                path = self.path / f"{number:04d}"
                try:
                    new.rename(path)
                    return Entry(number, path, os.geteuid(), asked, priority=asked.priority)
                except OSError:  # another user was faster
                    if not path.exists():
                        raise
                number += 1
        except OSError as error:
            raise UsageError(
                f"nothing was added to {self.path}: {error.strerror or error}; {_remedy(error)}"
            ) from error
        finally:
            if new is not None:
                shutil.rmtree(new, ignore_errors=True)

    def ask(self, entry: Entry, **changes: Any) -> None:
        """Ask for a change of an entry: its end, or another priority.

        Raises:
            UsageError: this user may not, it has ended, or the folder cannot be written.
        """
        uid = os.geteuid()
        if uid not in (entry.uid, self.keeper_uid):
            able = " and ".join(dict.fromkeys(map(user_name, (entry.uid, self.keeper_uid))))
            raise UsageError(f"entry {entry.number} belongs to {user_name(entry.uid)}: only {able} may change it")
        state, reason = self.state_of(entry, self.decision())
        if state in ENDED:
            raise UsageError(f"entry {entry.number} is {state.value} already{f': {reason}' if reason else ''}")
        path = self._request(entry.path.name, uid)
        before = self._read(path, Request)
        made = Request() if isinstance(before, str) else before
        try:
            store(path, replace(made, **changes))
        except OSError as error:
            raise UsageError(f"the request cannot be written to {self.path}: {error}; {_remedy(error)}") from error

    @staticmethod
    def state_of(entry: Entry, decision: Decision | None) -> tuple[State, str]:
        """Return what happens to an entry, and why."""
        if entry.run is not None and entry.has_ended:
            return entry.run.state, entry.run.reason
        turn = None if decision is None else decision.turns.get(entry.number)
        if turn is None:
            return State.WAITING, entry.fault or "no keeper has seen it yet"
        if entry.is_running:
            return State.RUNNING, turn.reason
        return (State.WAITING, "starts") if turn.state is State.RUNNING else (turn.state, turn.reason)

    def described(self, entry: Entry, decision: Decision | None) -> dict[str, Any]:
        """Return what is known about an entry, ready for JSON."""
        state, reason = self.state_of(entry, decision)
        asked = {name: value for name, value in to_plain(entry.asked).items() if name != "python"}
        run = {} if entry.run is None else to_plain(entry.run)
        return {
            "entry": entry.number, **asked, "priority": entry.priority, "user": user_name(entry.uid), **run,
            "state": state.value, "reason": reason, "folder": str(entry.run_path),
        }  # fmt: skip

    def log(self, line: dict[str, Any]) -> None:
        """Add a line to the log."""
        path = self.path / LOG
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(f"{LOG}.1"))
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")
        path.chmod(0o640)


def _distrust(entry: Entry) -> str:
    """Why somebody else may have written an entry; empty if nobody can have done so."""
    for path in (entry.path, entry.path / ENTRY, entry.path / INPUT):
        about = path.lstat()
        if about.st_uid != entry.uid:
            return f"{path.name} belongs to {user_name(about.st_uid)}, and the entry to {user_name(entry.uid)}"
        if about.st_mode & 0o022:
            return f"others may write {path.name}: add it again"
    return ""


def changed(path: Path) -> float:
    """When a file has changed, by the clock of the file system; 0 if it does not exist."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _remedy(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "ask for membership in the group of the folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space"
    return "correct this, and try again"


def protect(path: Path) -> None:
    """Let the group read a folder and what is in it, and let only the owner write."""
    for folder, _, names in os.walk(path):
        os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) & stat.S_ISGID | 0o750)
        for name in names:
            file = os.path.join(folder, name)
            if not os.path.islink(file):
                os.chmod(file, 0o750 if os.stat(file).st_mode & 0o100 else 0o640)


def store(path: Path, value: Struct) -> None:
    """Replace a file atomically. The group can read it.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(path, json.dumps(to_plain(value), indent=1).encode(), 0o640)


def beat(path: Path, value: Struct, former: Struct | None) -> float:
    """Write a file if its content has changed, else only its time. Return the time of the file system.

    Raises:
        OSError: it cannot be written.
    """
    if value != former or not path.exists():
        store(path, value)
    else:
        os.utime(path)
    return path.stat().st_mtime
