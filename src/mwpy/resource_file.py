"""The resource file: what the master writes for batch systems and slaves.

The file is JSON. Only its owner can read it, because everyone who knows its content is a member of the computation. It
is written under another name and then renamed, so that a reader sees the old content or the new content, never a part.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from mwpy._system import clock
from mwpy._system.locks import sync_folder
from mwpy._values import phrases
from mwpy._values.errors import ResourceFileError
from mwpy._values.jobs import FINISHED, IN_PROGRESS, MemberKeys, ResourceFile
from mwpy._values.messagepack import MALFORMED, from_plain, to_plain
from mwpy._values.phrases import ASK_OWNER

__all__ = [
    "FINISHED",
    "IN_PROGRESS",
    "MemberKeys",
    "NotWhole",
    "ResourceFile",
    "due",
    "is_stale",
    "overseer_of",
    "read",
    "write",
]

FORMAT = "mwpy-resource-file"
VERSION = 1

JOBS = ".jobs"
"""What follows the name of a resource file in the name of the folder for the output of its jobs."""

ROUND = "overseer.json"
"""The file in this folder with what the last round of the overseer found."""

MUCH = 0.1
"""The file is written at once when the number of needed slaves changes by more than this fraction."""

JOBS_S = 5.0
"""Seconds until the file shows that a job connected, left or became idle. If an idle job got work, the file is written
at once. Because of this delay, the file is not written every second when jobs change every second."""


def overseer_of(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return what the last round of an overseer found, from the file that it writes beside a resource file.

    Returns:
        A dictionary with `messages`, the newest last, `age_s`, and the figures of `mwpy oversee --json`; None if no
        overseer has written, or its file is damaged.
    """
    written = Path(f"{os.fspath(path)}{JOBS}", ROUND)
    try:
        found, age_s = json.loads(written.read_bytes()), clock.wall() - written.stat().st_mtime
    except (OSError, ValueError):
        return None
    is_whole = isinstance(found, dict) and isinstance(found.get("messages"), list)
    return {**found, "age_s": age_s} if is_whole else None


def write(path: str | Path, content: ResourceFile) -> None:
    """Replace a resource file atomically.

    Raises:
        ResourceFileError: the file cannot be written; the message names the file and the remedy.
    """
    path = Path(path)
    document = {"format": FORMAT, "version": VERSION, **to_plain(content)}
    try:
        replace_file(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise ResourceFileError(
            f"cannot write the resource file {path}: {error.strerror or error}; make its directory writable "
            f"and free some space, or give another --mw-resource-file"
        ) from error


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically. Without another mode, only its owner can read the new one.

    Raises:
        OSError: it cannot be written.
    """
    fd, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):  # an interrupt may come when the file is replaced already
            os.unlink(beside)
        raise
    sync_folder(path.parent)


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
    found = document if isinstance(document, dict) else {}
    if found.get("format") != FORMAT:
        raise ResourceFileError(f"{path} is not a resource file of mwpy: its key 'format' is {found.get('format')!r}")
    version = found.get("version")
    if type(version) is not int or version > VERSION:
        raise ResourceFileError(f"the resource file {path} is of version {version}: install a newer mwpy")
    try:
        content = from_plain(document, ResourceFile)
        _check(content)
    except (*MALFORMED, ValueError, SystemError) as error:  # SystemError: msgspec 0.18, integers above all floats
        raise ResourceFileError(
            f"the resource file {path} has a wrong value ({error}): copy it again from the master"
        ) from error
    return content


def _check(content: ResourceFile) -> None:
    """Check what the types do not say.

    Raises:
        ValueError: a value is wrong; the message names the key.
    """
    if content.computation_status not in (IN_PROGRESS, FINISHED):
        raise ValueError(f"'computation-status' is {content.computation_status!r}, which is not known")
    for address in content.master_addresses:
        form = re.fullmatch(r"tcp://[^\s/]+:([0-9]{1,5})", address)
        if form is None or int(form[1]) > 65535:
            raise ValueError(f"'master-addresses' has {address!r}, which is not of the form tcp://HOST:PORT")
    for name, key in to_plain(content.keys).items():  # in Z85 (ZeroMQ RFC 32)
        if not re.fullmatch(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}", key):
            raise ValueError(f"'keys' has no key of 40 characters under {name!r}")
    if not 0.1 <= content.client_timeout <= 1e9:
        raise ValueError("'client-timeout' is not 0.1 to 1e9 seconds")


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
