"""What a master needs that agents of other machines can join: its network, its place, and its resource file.

This loads ZeroMQ, so a master that only its own agents can join does not load it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from mwpy import resource_file
from mwpy._core.master.core import MasterCore
from mwpy._system import clock
from mwpy._system.locks import ENDS_S, FileLock, LockHeld, LocksUnsupported, real_path
from mwpy._system.process import Background
from mwpy._transport import wire
from mwpy._transport.link import EVERYWHERE, MasterLink, candidates, ipv4_of, member_keys, server_keys
from mwpy._values import messages
from mwpy._values.errors import ResourceFileError, UsageError
from mwpy._values.messagepack import encode_json, json_decoder
from mwpy._values.options import UNREADABLE, Options
from mwpy._values.phrases import duration
from mwpy.resource_file import FINISHED, IN_PROGRESS, MemberKeys, ResourceFile

# The key and the port of a master with a run database, in a file beside it that only its owner can read.
#
# The next master of the run database takes both again. So an agent finds it although its resource file is a copy, such
# as the one that HTCondor transfers with a job.


class FormerPlace(Struct, frozen=True):
    """The content of the file."""

    key: str = ""
    """The key of the computation; empty if it is not known."""
    port: int = 0
    """The port of the last master; 0 if it is not known."""


def _beside(run_database: str) -> Path:
    path = real_path(run_database)
    return path.with_name(f"{path.name}.keys")


def recall(run_database: str) -> FormerPlace:
    """Read the key and the port of the last master of a run database. A file that others can read or have written does
    not count: they would know the key."""
    with suppress(OSError, *UNREADABLE):
        fd = os.open(_beside(run_database), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return json_decoder(FormerPlace)(file.read())
    return FormerPlace()


def keep(run_database: str, place: FormerPlace) -> None:
    """Write the key and the port of this master, for the next one.

    Raises:
        UsageError: the file cannot be written.
    """
    path = _beside(run_database)
    try:
        resource_file.replace_file(path, encode_json(place) + b"\n")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}, where the next master of the run database finds its keys: "
            f"{error.strerror or error}; make its directory writable and free some space"
        ) from error


def _published(options: Options) -> str | None:
    """The host that others use; None for all addresses of this machine."""
    return None if options.master_host in EVERYWHERE else options.master_host


def addresses(options: Options, port: int, only_here: bool) -> tuple[str, ...]:
    """Return where agents find the master, best first."""
    return candidates(port, "127.0.0.1" if only_here else _published(options))


def listen(options: Options, key: str, only_here: bool, former_port: int = 0) -> MasterLink:
    """Listen for agents on the published host; without one, on all addresses, or on loopback if nobody else can join.

    Args:
        former_port: the port to use if the options name none, and if it is free; 0 for any.

    Raises:
        UsageError: the host or the port cannot be used.
    """
    published = _published(options)
    host = "127.0.0.1" if only_here else "*" if published is None else ipv4_of(published)
    if host is None:
        raise UsageError(
            f"--mw-master-host {published}: no such host is known here; give a name or an IPv4 address of this machine"
        )
    largest = max(options.max_read_buffer_size, options.max_write_buffer_size)
    given = key, options.silence_s(), largest, wire.encode(messages.Probe())
    if options.master_port is None and former_port:
        with suppress(UsageError):  # another process may have it by now
            return MasterLink(host, former_port, *given)
    return MasterLink(host, options.master_port or 0, *given)


def first_content(
    options: Options, generation: str, addresses: Sequence[str], key: str, slave_command: Sequence[str]
) -> ResourceFile:
    """The content of the resource file before the first slave connects."""
    member = member_keys(key)
    return ResourceFile(
        computation_status=IN_PROGRESS,
        timestamp=clock.wall(),
        update_interval=options.resource_file_update_interval,
        member_id=options.member_id,
        generation=generation,
        master_addresses=tuple(addresses),
        keys=MemberKeys(server_keys(key).public, member.public, member.secret),
        slaves_wanted=0,
        slaves_connected=0,
        slaves_needed=0,
        slave_executable=slave_command[0],
        slave_arguments=tuple(slave_command[1:]),
        client_timeout=options.silence_s(),
    )


# Keeps the resource file of a master: writes it, restores it, and lets no other master write it.
#
# A thread of its own touches the file, so a file system that hangs delays nothing else. The lock is a file beside the
# resource file. If the file system has no locks, or locks only within a host, the generation in the resource file
# decides: the newest master keeps it.


NOTICE_S = 60.0
"""Seconds for which a resource file that cannot be written is not reported, because the next attempt may succeed."""

_MISSING = (0, 0, 0)

CLOSE_S = 5.0
"""How long the end of a computation waits for the last content of the file, in seconds."""


def updated(content: ResourceFile, core: MasterCore, wall: float) -> ResourceFile:
    """A resource file with the figures of this moment.

    Args:
        content: the previous content of the resource file.
        core: the master's core.
        wall: the Unix time.
    """
    finished = core.state.closing is not None and core.state.closing.finished
    status = FINISHED if finished else IN_PROGRESS
    return replace(content, computation_status=status, timestamp=wall, **asdict(core.counts()))


class ResourceKeeper:
    """The resource file of one master. One thread uses this object.

    Args:
        path: the file.
        content: its first content, which is written at once. Later contents differ only in their figures.

    Raises:
        ResourceFileError: another master has the file, or the file cannot be written, or it is a device or a pipe.
    """

    def __init__(self, path: str | Path, content: ResourceFile) -> None:
        self.template = content
        """The content, with old figures."""
        self.path = Path(path)
        self._lock = self._take_lock()
        self._written = content
        self._write(content)
        self._problem = ""
        """Why the last attempt to write failed; empty if it succeeded."""
        self._surprises: list[str] = []
        """Notices about other processes that wrote the file."""
        self._given_up = False
        self._well_at = clock.monotonic()
        """When the file was in order, or when it was last reported that it is not."""
        self._background = Background(self._look, "mwpy-resource-file")

    # ---- for the thread that uses it ----

    def offer(self, content: ResourceFile, now: float) -> list[str]:
        """Write a content if this is due. Restore the file if it was deleted or damaged.

        Args:
            content: the content of this moment.
            now: seconds on the monotonic clock.

        Returns:
            Notices for the user.
        """
        if not self._background.waiting:
            if not self._problem:
                self._well_at = now
            self._background.give(content)
        said, self._surprises = self._surprises, []
        if now - self._well_at > NOTICE_S:
            self._well_at = now
            said.append(self._problem or f"the resource file {self.path} is not written: its file system hangs")
        return said

    def close(self, content: ResourceFile) -> list[str]:
        """Write the last content, and let another master have the file. Return notices for the user."""
        self._background.give(content)
        if not self._background.close(CLOSE_S):
            return [f"the last state is missing in the resource file {self.path}: its file system hangs"]
        if self._lock is not None:
            self._lock.release()
        return [*self._surprises, *([self._problem] if self._problem else [])]

    # ---- for the thread that touches the file ----

    def _look(self, content: ResourceFile) -> None:
        if self._given_up or not (self._was_changed() or resource_file.due(self._written, content)):
            return
        try:
            self._write(content)
            self._problem = ""
        except ResourceFileError as error:
            self._problem = str(error)

    def _write(self, content: ResourceFile) -> None:
        resource_file.write(self.path, content)
        self._written = content
        self._identity = _identity(self.path)

    def _was_changed(self) -> bool:
        """Whether the file is not the one that was written last, so that it must be restored."""
        identity = _identity(self.path)
        if identity == self._identity != _MISSING:  # it may have been deleted before its identity was read
            return False
        other = self._generation()
        if other in ("", self.template.generation):
            return True
        if (self._lock is None or not self._lock.is_exclusive()) and _began(other) > _began(self.template.generation):
            self._given_up = True
            self._surprises.append(
                f"another master, of generation {other}, took the resource file {self.path}: this master no longer "
                f"writes it, and gets no new slaves from it; give each computation a file of its own"
            )
            return False
        self._identity = identity
        self._surprises.append(
            f"another process wrote to the resource file {self.path}; it is restored: let only one master use it"
        )
        return True

    def _generation(self) -> str:
        """The generation in the file; empty if it cannot be read."""
        try:
            return resource_file.read(self.path).generation
        except ResourceFileError:
            return ""

    # ---- at the start ----

    def _take_lock(self) -> FileLock | None:
        if self.path.exists() and not self.path.is_file():  # to replace a device, as /dev/null, harms the machine
            raise ResourceFileError(f"{self.path} is no regular file: give another --mw-resource-file")
        try:
            path = self.path.with_name(f".{self.path.name}.lock")
            return FileLock(path, clock.date(self.template.timestamp), ENDS_S)
        except LockHeld as held:
            raise ResourceFileError(
                f"the resource file {self.path} belongs to another master ({held}): end that master first, or give "
                f"another --mw-resource-file"
            ) from None
        except LocksUnsupported:
            self._check_generation()
            return None
        except OSError as error:
            raise ResourceFileError(
                f"cannot write beside the resource file {self.path}: {error.strerror or error}; make its directory "
                f"writable and free some space, or give another --mw-resource-file"
            ) from error

    def _check_generation(self) -> None:
        """Without locks, a fresh file is taken as a sign that its master runs."""
        try:
            found = resource_file.read(self.path)
        except ResourceFileError:
            return
        if found.computation_status == IN_PROGRESS and not resource_file.is_stale(found, clock.wall()):
            raise ResourceFileError(
                f"the resource file {self.path} was written {duration(round(clock.wall() - found.timestamp))} ago by "
                f"a master of generation {found.generation}: if that master is dead, delete the file; else end it "
                f"first, or give another --mw-resource-file"
            )


def _identity(path: Path) -> tuple[int, int, int]:
    """Something that changes whenever the file does; `_MISSING` if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return _MISSING
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _began(generation: str) -> int:
    """When a master of this generation began; the text is this number, a dash and the number of its process."""
    try:
        return int(generation.partition("-")[0], 16)
    except ValueError:
        return 0
