"""The resource file: what the master writes for batch systems and slaves.

The file is JSON. Only its owner can read it, because everyone who knows its content is a member of the computation. It
is written under another name and then renamed, so that a reader sees the old content or the new content, never a part.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from mwpy._values import phrases
from mwpy._values.errors import ResourceFileError
from mwpy._values.phrases import ASK_OWNER

__all__ = ["FINISHED", "IN_PROGRESS", "MemberKeys", "NotWhole", "ResourceFile", "due", "is_stale", "read", "write"]

FORMAT = "mwpy-resource-file"
VERSION = 1
IN_PROGRESS = "in-progress"
FINISHED = "finished"

MUCH = 0.1
"""The file is written at once when the number of needed slaves changes by more than this fraction."""

JOBS_S = 5.0
"""Seconds until the file shows that a job connected, left or became idle. If an idle job got work, the file is written
at once. Because of this delay, the file is not written every second when jobs change every second."""


class MemberKeys(Struct, frozen=True):
    """The keys of a member, as Z85 text."""

    server_public: str
    member_public: str
    member_secret: str


class ResourceFile(Struct, frozen=True):
    """The content of a resource file."""

    computation_status: str
    timestamp: float
    """When the file was written, in Unix seconds."""
    update_interval: float
    """Seconds until the file is written again."""
    member_id: str
    generation: str
    master_addresses: tuple[str, ...]
    """The addresses of the master, `tcp://HOST:PORT`, best first."""
    keys: MemberKeys
    slaves_wanted: int
    slaves_connected: int
    slaves_needed: int
    """How many slaves are missing. It is never more than the unfinished tasks can use."""
    slave_executable: str
    slave_arguments: tuple[str, ...]
    shortest_task: float = 0.0
    """How many seconds each waiting task needs at least; 0 if this is not known of all of them."""
    client_timeout: float = 30.0
    """After this silence of the network, in seconds, an agent counts its master as gone."""
    connected_jobs: dict[str, int] = field(default_factory=dict)
    """The connected jobs of a batch system. The value is the number of slaves of the job that hold tasks, are reserved
    for tasks, or are still starting."""
    excluded_hosts: dict[str, list[str]] = field(default_factory=dict)
    """The hosts that get no more work, because tasks fail there that succeed elsewhere. Each has the ids of its last
    jobs, because a batch system may use another name for the host."""


def write(path: str | Path, content: ResourceFile) -> None:
    """Replace a resource file atomically.

    Raises:
        ResourceFileError: the file cannot be written; the message names the file and the remedy.
    """
    path = Path(path)
    document = {"format": FORMAT, "version": VERSION}
    document |= {_key(name): value for name, value in asdict(content).items()}
    document["keys"] = {_key(name): value for name, value in asdict(content.keys).items()}
    try:
        replace_file(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise ResourceFileError(
            f"cannot write the resource file {path}: {error.strerror or error}; make its directory writable "
            f"and free some space, or give another --mw-resource-file"
        ) from error


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically with one that only its owner can read.

    Raises:
        OSError: it cannot be written.
    """
    fd, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class NotWhole(ResourceFileError):
    """The file is missing or incomplete. This may last only a moment."""


def read(path: str | Path) -> ResourceFile:
    """Read a resource file. Unknown keys are ignored.

    Raises:
        ResourceFileError: the file is missing or incomplete, is newer than this mwpy, or has a wrong value; the message
                names the key.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        start = f"correct its name, or start the master first, with --mw-resource-file {path}"
        raise NotWhole(
            f"cannot read the resource file {Path(path).absolute()}: {getattr(error, 'strerror', None) or error}; "
            f"{ASK_OWNER if isinstance(error, PermissionError) else start}"
        ) from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotWhole(f"the resource file {path} is incomplete or not JSON ({error}): copy it again") from error
    reader = _Reader(str(path), document)
    if reader.take("format", str) != FORMAT:
        raise ResourceFileError(f"{path} is not a resource file of mwpy: its key 'format' is {document['format']!r}")
    if reader.take("version", int) > VERSION:
        raise ResourceFileError(f"the resource file {path} is of version {document['version']}: install a newer mwpy")
    return _content(reader)


def _content(reader: _Reader) -> ResourceFile:
    keys = _Reader(reader.path, reader.take("keys", dict))
    status = reader.take("computation-status", str)
    if status not in (IN_PROGRESS, FINISHED):
        raise ResourceFileError(f"the resource file {reader.path} has the unknown 'computation-status' {status!r}")
    return ResourceFile(
        computation_status=status,
        timestamp=reader.number("timestamp"),
        update_interval=reader.number("update-interval"),
        member_id=reader.take("member-id", str),
        generation=reader.take("generation", str),
        master_addresses=_addresses(reader),
        keys=MemberKeys(
            _curve_key(keys, "server-public"), _curve_key(keys, "member-public"), _curve_key(keys, "member-secret")
        ),
        slaves_wanted=reader.take("slaves-wanted", int),
        slaves_connected=reader.take("slaves-connected", int),
        slaves_needed=reader.take("slaves-needed", int),
        slave_executable=reader.take("slave-executable", str),
        slave_arguments=reader.texts("slave-arguments"),
        shortest_task=reader.number("shortest-task") if "shortest-task" in reader.document else 0.0,
        client_timeout=reader.seconds("client-timeout", 30.0),
        connected_jobs=reader.counts("connected-jobs"),
        excluded_hosts=reader.lists("excluded-hosts"),
    )


def _addresses(reader: _Reader) -> tuple[str, ...]:
    addresses = reader.texts("master-addresses")
    for address in addresses:
        form = re.fullmatch(r"tcp://[^\s/]+:([0-9]{1,5})", address)
        if form is None or int(form[1]) > 65535:
            raise ResourceFileError(
                f"the resource file {reader.path} has {address!r} under the key 'master-addresses', which is not of "
                f"the form tcp://HOST:PORT: copy it again from the master"
            )
    return addresses


def _curve_key(reader: _Reader, key: str) -> str:
    """A CURVE key in Z85 (ZeroMQ RFC 32): 40 characters of its alphabet."""
    value: str = reader.take(key, str)
    if not re.fullmatch(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}", value):
        raise ResourceFileError(
            f"the resource file {reader.path} has no key of 40 characters under 'keys', {key!r}: copy it again "
            f"from the master"
        )
    return value


class _Reader(Struct, frozen=True):
    path: str
    document: Any

    def take(self, key: str, kind: Any) -> Any:
        value = self.document.get(key) if isinstance(self.document, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            expected = getattr(kind, "__name__", "number")
            raise ResourceFileError(
                f"the resource file {self.path} needs {expected} under the key {key!r}, not "
                f"{type(value).__name__}: copy it again from the master"
            )
        return value

    def number(self, key: str) -> float:
        try:
            return float(self.take(key, int | float))
        except OverflowError:
            raise ResourceFileError(
                f"the resource file {self.path} has a number under {key!r} that is too large"
            ) from None

    def seconds(self, key: str, default: float) -> float:
        """Return a duration; the default if the key is missing, because older masters do not write it."""
        value = self.number(key) if key in self.document else default
        if not 0.1 <= value <= 1e9:
            raise ResourceFileError(f"the resource file {self.path} needs 0.1 to 1e9 seconds under the key {key!r}")
        return value

    def counts(self, key: str) -> dict[str, int]:
        """Return a dictionary of numbers; empty if the key is missing, because older masters do not write it."""
        counts: dict[str, int] = self.take(key, dict) if key in self.document else {}
        if not all(type(count) is int for count in counts.values()):
            raise ResourceFileError(f"the resource file {self.path} needs whole numbers under the key {key!r}")
        return counts

    def lists(self, key: str) -> dict[str, list[str]]:
        """Return a dictionary of lists of texts; empty if the key is missing, because older masters do not write it."""
        lists: dict[str, Any] = self.take(key, dict) if key in self.document else {}
        if not all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in lists.values()):
            raise ResourceFileError(f"the resource file {self.path} needs lists of texts under the key {key!r}")
        return lists

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.take(key, list)
        if not all(isinstance(value, str) for value in values):
            raise ResourceFileError(f"the resource file {self.path} needs a list of texts under the key {key!r}")
        return tuple(values)


def is_stale(content: ResourceFile, now: float) -> bool:
    """Return whether the file missed three updates, at the Unix time `now`."""
    return phrases.is_stale(now - content.timestamp, content.update_interval)


def due(last: ResourceFile | None, new: ResourceFile) -> bool:
    """Return whether `new` should replace `last`: the interval has passed, or a value changed much."""
    if last is None or new.computation_status != last.computation_status:
        return True
    changed = abs(new.slaves_needed - last.slaves_needed)
    if changed and changed > MUCH * last.slaves_needed:
        return True
    if new.excluded_hosts.keys() != last.excluded_hosts.keys():
        return True
    before, after = _have_work(last), _have_work(new)
    if any(after.get(job) for job, worked in before.items() if not worked):
        return True  # an overseer must not remove this job as idle
    is_same = after == before and new.excluded_hosts == last.excluded_hosts
    interval = last.update_interval if is_same else min(JOBS_S, last.update_interval)
    return not 0 <= new.timestamp - last.timestamp < interval


def _have_work(content: ResourceFile) -> dict[str, bool]:
    return {job: count > 0 for job, count in content.connected_jobs.items()}


def _key(name: str) -> str:
    return name.replace("_", "-")
